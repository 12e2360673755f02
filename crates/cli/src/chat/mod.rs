//! `forerun chat`: a conversation, line by line.
//!
//! Answers go to standard output, everything else to standard error, so that a script that pipes
//! messages in reads answers only.

mod command;
mod input;
mod interrupts;
mod totals;

use crate::arguments::{AnswerArguments, ChatArguments};
use crate::generate::{OUTPUT, Output, demonstration, options, request, suggested_sampling};
use crate::interrupts::INTERRUPTED;
use crate::{note, progress};
use anyhow::{Context, bail};
use command::Command;
use forerun::{
    Chat, ChatError, ChatTemplate, ChatTemplateError, Finish, Forerun, Method, Plan, Reply, Request,
};
use input::{Input, Line};
use interrupts::Interrupts;
use serde_json::json;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use totals::Totals;

pub(crate) fn run(mut arguments: ChatArguments) -> anyhow::Result<ExitCode> {
    // Whatever can be refused is refused before a model is loaded.
    let request = request(&arguments.answers)?;
    request.validate()?;
    let demonstration = demonstration(&mut arguments.answers)?;
    let (plan, method) = plan(&arguments.answers)?;
    // The template of a model from a hub is there once the model is.
    let local = plan.model().exists().then(|| template(&arguments, plan.model())).transpose()?;
    let mut loader = progress::loader(arguments.answers.offline, true);
    let engine = Forerun::open_with(&plan, &mut loader)?;
    drop(loader);
    drop(demonstration);
    if engine.translates_drafts() {
        note("the drafter has another vocabulary: its drafts are translated by their text");
    }
    let request = suggested_sampling(request, &arguments.answers, &engine)?;
    let template = match local {
        Some(template) => template,
        None => template(&arguments, engine.tokenizer().file())?,
    };
    if template.is_plain() && arguments.chat_template.is_none() {
        note("the model ships no chat template: messages are put as \"User: …\", \"Assistant: …\"");
    }
    let mut chat = Chat::new(&engine, template);
    chat.set_method(method)?;
    chat.set_system(arguments.system.as_deref().unwrap_or_default())?;
    let mut session = Session {
        chat,
        request,
        interrupts: Interrupts::listen()?,
        totals: Totals::default(),
        saved: None,
    };
    session.converse(&mut Input::new(!arguments.no_history)?)
}

/// The template that was chosen, or the one that lies beside a file of the checkpoint.
fn template(arguments: &ChatArguments, beside: &Path) -> Result<ChatTemplate, ChatTemplateError> {
    match &arguments.chat_template {
        Some(choice) => ChatTemplate::choose(beside, choice),
        None => ChatTemplate::from_checkpoint(beside),
    }
}

/// The plan, and the method to begin with. A drafter is loaded even if plain decoding comes first,
/// so that the method can change.
fn plan(arguments: &AnswerArguments) -> anyhow::Result<(Plan, Method)> {
    let mut options = options(arguments);
    let asked = options.method;
    let drafts = options.draft_model.is_some() || options.drafter.is_some();
    if asked == Some(Method::Autoregressive) && drafts {
        options.method = None;
    }
    let plan = Plan::new(options)?;
    let method = asked.unwrap_or(plan.method());
    Ok((plan, method))
}

/// A conversation at a terminal or a pipe.
struct Session<'a> {
    chat: Chat<'a>,
    request: Request,
    interrupts: Interrupts,
    totals: Totals,
    /// The file that this conversation was saved to.
    saved: Option<PathBuf>,
}

impl Session<'_> {
    /// Reads lines until the end.
    fn converse(&mut self, input: &mut Input) -> anyhow::Result<ExitCode> {
        if input.is_terminal() {
            note("/help lists the commands; Ctrl-C interrupts an answer, Ctrl-D ends the chat");
        }
        loop {
            let line = match input.read()? {
                Line::Text(line) => line,
                Line::Nothing => continue,
                Line::End => return Ok(ExitCode::SUCCESS),
            };
            match Command::parse(&line) {
                Ok(Command::Quit) => return Ok(ExitCode::SUCCESS),
                Ok(Command::Say(text)) => {
                    let interrupted = self.answer(&text)?;
                    // A script has nobody who could go on differently.
                    if interrupted && !input.is_terminal() {
                        return Ok(ExitCode::from(INTERRUPTED));
                    }
                }
                Ok(command) => {
                    if let Err(error) = self.obey(command) {
                        note(format_args!("{error:#}"));
                    }
                }
                Err(hint) => note(hint),
            }
        }
    }

    /// Answers a message. Returns whether the answer was interrupted.
    fn answer(&mut self, text: &str) -> anyhow::Result<bool> {
        let canceller = self.interrupts.for_new_answer();
        let mut output = Output::default();
        let reply = self.chat.send(text, &self.request, &canceller, |text| output.write(text));
        self.interrupts.answer_ended();
        if let Some(error) = output.broken {
            return Err(error).context(OUTPUT);
        }
        let reply = match reply {
            Ok(reply) => reply,
            // What is wrong with one message is no reason to end the conversation.
            Err(error @ (ChatError::TooLong { .. } | ChatError::Template(_))) => {
                note(format_args!("error: {error}"));
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        };
        // An answer may end its line itself.
        if !reply.answer.text.ends_with('\n')
            && let ControlFlow::Break(()) = output.write("\n")
            && let Some(error) = output.broken
        {
            return Err(error).context(OUTPUT);
        }
        let interrupted = canceller.is_cancelled() && reply.answer.finish == Finish::Stopped;
        self.comment(&reply, interrupted);
        self.totals.add(&reply.answer);
        Ok(interrupted)
    }

    /// Says what the answer alone does not show.
    fn comment(&self, reply: &Reply, interrupted: bool) {
        if interrupted && reply.kept {
            note("[interrupted; the answer so far stays in the conversation]");
        } else if interrupted {
            note("[interrupted before the answer began; the message was taken back]");
        }
        match reply.forgotten_turns {
            0 => (),
            1 => note("[the context is full: the oldest turn was left out]"),
            turns => {
                note(format_args!("[the context is full: the {turns} oldest turns were left out]"));
            }
        }
        match reply.answer.finish {
            Finish::MaxTokens => note(format_args!(
                "[ended at {} tokens; --max-tokens allows more]",
                self.request.max_tokens
            )),
            Finish::Context => note("[ended at the end of the model's context]"),
            Finish::Eos | Finish::Stopped => (),
        }
    }

    fn obey(&mut self, command: Command) -> anyhow::Result<()> {
        match command {
            // Both are done by whoever reads commands.
            Command::Say(_) | Command::Quit => (),
            Command::Help => note(command::HELP),
            Command::ShowMethod => note(format_args!("the method is {}", self.chat.method())),
            Command::Method(method) => {
                self.chat.set_method(method)?;
                note(format_args!("the method is {method} from the next answer on"));
            }
            Command::Stats => note(&self.totals),
            Command::System(text) => {
                self.chat.set_system(&text)?;
                note(match text.is_empty() {
                    true => "there is no system message from the next answer on",
                    false => "the system message holds from the next answer on",
                });
            }
            Command::Reset => {
                self.chat.reset();
                note("the conversation begins anew; the system message stays");
            }
            Command::Save(file) => self.save(&file)?,
        }
        Ok(())
    }

    /// Writes the messages as a JSON list of roles and contents.
    fn save(&mut self, file: &Path) -> anyhow::Result<()> {
        if file.exists() && self.saved.as_deref() != Some(file) {
            bail!("{} is there already: choose another name", file.display());
        }
        let message =
            |message: forerun::Message| json!({ "role": message.role, "content": message.content });
        let messages: Vec<_> = self.chat.messages().map(message).collect();
        let text = serde_json::to_string_pretty(&messages)? + "\n";
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
        self.saved = Some(file.to_owned());
        note(format_args!("{} messages are in {}", messages.len(), file.display()));
        Ok(())
    }
}
