//! `forerun chat`: a conversation with a model, and `forerun run`: the same, or a single answer.
//!
//! Answers go to standard output and everything else to standard error, so that a script that pipes
//! messages in reads only answers.

mod command;
mod input;
mod interrupts;
mod settings;
mod totals;

use crate::arguments::{ChatArguments, EngineArguments, RunArguments};
use crate::flags::with_flags;
use crate::generate::{
    OUTPUT_FAILED, Output, TRANSLATED, cannot_write, demonstration, detail_plan, detail_reasons,
    exit_code, finish_reason, json_report, options, request, suggested_sampling,
};
use crate::note::detail;
use crate::word_wrap::WordWrap;
use crate::{note, progress, text_file};
use anyhow::{Context, Error, bail};
use command::Command;
use forerun::checkpoint::EmbeddedModel;
use forerun::text::{ChatTemplateError, repeats_itself};
use forerun::{
    Answer, Chat, ChatError, ChatTemplate, Engine, Finish, Method, ModelSource, Plan, Reply,
    Request,
};
use input::{Input, Line};
use interrupts::Interrupts;
use serde_json::json;
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use totals::Totals;

/// Maximum number of tokens of an answer.
const DEFAULT_MAX_TOKENS: usize = 2_048;

pub(crate) fn run(arguments: ChatArguments) -> anyhow::Result<ExitCode> {
    let has_history = !arguments.no_history;
    with_session(arguments, |session| session.converse(&mut Input::new(has_history)?))
}

/// Answers one message, or converses if there is none.
pub(crate) fn run_model(arguments: RunArguments) -> anyhow::Result<ExitCode> {
    let RunArguments { chat, prompt, json } = arguments;
    match first_message(&prompt)? {
        Some(message) => with_session(chat, |session| session.answer_once(&message, json)),
        None if json => bail!("--json prints one answer: give a prompt after the model"),
        None => run(chat),
    }
}

/// Returns the message of the command line, after the text that is piped in; `None` if there is
/// neither and a terminal can be asked.
fn first_message(prompt: &[String]) -> anyhow::Result<Option<String>> {
    let prompt = prompt.join(" ");
    if std::io::stdin().is_terminal() {
        return Ok(Some(prompt).filter(|prompt| !prompt.trim().is_empty()));
    }
    let piped = text_file::read(Path::new("-")).context("cannot read from standard input")?;
    let parts = [piped.trim_end(), prompt.as_str()];
    let message: Vec<&str> = parts.into_iter().filter(|part| !part.trim().is_empty()).collect();
    match message.join("\n\n") {
        message if message.is_empty() => {
            bail!("no prompt: give one after the model, or pipe a text to standard input")
        }
        message => Ok(Some(message)),
    }
}

/// Loads the models, and calls `talk` with a new conversation.
fn with_session(
    mut arguments: ChatArguments,
    talk: impl FnOnce(&mut Session<'_>) -> anyhow::Result<ExitCode>,
) -> anyhow::Result<ExitCode> {
    arguments.answers.is_chat = true;
    arguments.answers.max_tokens.get_or_insert(DEFAULT_MAX_TOKENS);
    // All errors that do not need a model are found before a model is loaded.
    let request = request(&arguments.answers)?;
    request.validate()?;
    demonstration(&mut arguments.answers.engine)?;
    let (plan, method) = plan(&arguments.answers.engine)?;
    request.validate_for(method)?;
    // The template of a hub model is available only after the download.
    let local = match plan.model() {
        ModelSource::Embedded(model) => Some(embedded_template(&arguments, model)?),
        model => {
            let path = model.path().filter(|path| path.exists());
            path.map(|path| template(&arguments, path)).transpose()?
        }
    };
    let mut loader = progress::loader(arguments.answers.engine.offline, true);
    let engine = Engine::open_with(&plan, &mut loader)?;
    drop(loader);
    if engine.translates_drafts() {
        note(TRANSLATED);
    }
    detail_plan(&engine);
    let request = suggested_sampling(request, &arguments.answers, &engine)?;
    let template = match local {
        Some(template) => template,
        None => template(&arguments, engine.tokenizer().file())?,
    };
    if template.is_plain() && arguments.chat_template.is_none() {
        note("the model has no chat template: using \"User: …\" and \"Assistant: …\"");
    }
    let mut chat = Chat::new(&engine, template);
    chat.set_method(method)?;
    chat.set_system(arguments.system.as_deref().unwrap_or_default())?;
    let mut session = Session {
        engine: &engine,
        chat,
        request,
        interrupts: Interrupts::listen()?,
        totals: Totals::default(),
        is_chat: false,
        limit_is_known: false,
        saved: None,
    };
    talk(&mut session)
}

/// Loads the chosen chat template, or else that of the checkpoint to which `path` belongs.
fn template(arguments: &ChatArguments, path: &Path) -> Result<ChatTemplate, ChatTemplateError> {
    match &arguments.chat_template {
        Some(choice) => ChatTemplate::choose(path, choice),
        None => ChatTemplate::from_checkpoint(path),
    }
}

/// Loads the chosen chat template, or else that of a model that is part of the program.
fn embedded_template(
    arguments: &ChatArguments,
    model: &EmbeddedModel,
) -> Result<ChatTemplate, ChatTemplateError> {
    match &arguments.chat_template {
        Some(choice) => ChatTemplate::choose_embedded(model, choice),
        None => ChatTemplate::from_embedded(model),
    }
}

/// Returns the plan and the initial method. A drafter is loaded even if the initial method is plain
/// decoding, so that the method can change.
fn plan(arguments: &EngineArguments) -> anyhow::Result<(Plan, Method)> {
    let has_drafter = arguments.draft_model.is_some() || arguments.drafter.is_some();
    let method = arguments.method.filter(|method| method.drafts() || !has_drafter);
    let plan = Plan::new(options(&EngineArguments { method, ..arguments.clone() })?)?;
    let method = arguments.method.unwrap_or(plan.method());
    Ok((plan, method))
}

/// An answer, and why it was stopped before its end.
struct Ended {
    answer: Answer,
    interrupted: bool,
    is_repetitive: bool,
}

/// A conversation at a terminal or a pipe.
struct Session<'a> {
    engine: &'a Engine,
    chat: Chat<'a>,
    request: Request,
    interrupts: Interrupts,
    totals: Totals,
    /// Whether there are further messages.
    is_chat: bool,
    /// Whether a note has said what allows longer answers.
    limit_is_known: bool,
    /// The file in which this conversation was saved.
    saved: Option<PathBuf>,
}

impl Session<'_> {
    /// Reads and handles lines until the end.
    fn converse(&mut self, input: &mut Input) -> anyhow::Result<ExitCode> {
        self.is_chat = true;
        if input.is_terminal() {
            note("/help lists the commands; Ctrl-C stops an answer, Ctrl-D ends the chat");
        }
        loop {
            let line = match input.read()? {
                Line::Text(line) => line,
                Line::Empty => continue,
                Line::End => return Ok(ExitCode::SUCCESS),
            };
            match Command::parse(&line) {
                Ok(Command::Quit) => return Ok(ExitCode::SUCCESS),
                Ok(Command::Send(text)) => {
                    let interrupted = self.answer(&text)?;
                    // In a script, nobody is there to continue the conversation.
                    if interrupted && !input.is_terminal() {
                        return Ok(ExitCode::from(crate::interrupts::interrupted()));
                    }
                }
                Ok(command) => {
                    if let Err(error) = self.execute(command) {
                        note::error(with_flags(&format!("{error:#}")));
                    }
                }
                Err(hint) => note(with_flags(&hint)),
            }
        }
    }

    /// Generates the answer to the only message.
    fn answer_once(&mut self, text: &str, as_json: bool) -> anyhow::Result<ExitCode> {
        let Ended { answer, interrupted, is_repetitive } = self.reply(text, as_json)?;
        if as_json {
            let reason = match is_repetitive {
                true => "repetition",
                false => finish_reason(&answer, interrupted),
            };
            let mut report = json_report(self.engine.plan(), &answer, reason);
            report["method"] = self.chat.method().to_string().into();
            writeln!(std::io::stdout(), "{report}").context(OUTPUT_FAILED)?;
        }
        Ok(match interrupted {
            true => ExitCode::from(crate::interrupts::interrupted()),
            false => exit_code(&self.request, &answer, is_repetitive),
        })
    }

    /// Generates the answer to a message. Returns whether it was interrupted.
    fn answer(&mut self, text: &str) -> anyhow::Result<bool> {
        let interrupted = self.reply(text, false).map(|ended| ended.interrupted);
        interrupted.or_else(|error| match error.downcast_ref() {
            // An error in one message does not end the conversation.
            Some(
                ChatError::TooLong { .. } | ChatError::FarTooLong { .. } | ChatError::Template(_),
            ) => {
                note::error(with_flags(&format!("{error:#}")));
                Ok(false)
            }
            _ => Err(error),
        })
    }

    /// Generates the answer to a message. `is_silent`: whether it is not printed meanwhile.
    fn reply(&mut self, text: &str, is_silent: bool) -> anyhow::Result<Ended> {
        let canceller = self.interrupts.for_new_answer();
        let (mut output, mut wrap) = (Output::new(is_silent), WordWrap::on_standard_output());
        // A piece of text is that of a token, or of several if they make a character together. An
        // answer that continues after its end repeats itself by request.
        let mut pieces: Vec<String> = Vec::new();
        let (mut is_repetitive, may_repeat) = (false, self.request.ignore_eos);
        let reply = self.chat.send_interruptibly(text, &self.request, &canceller, |text| {
            output.write(&wrap.push(text))?;
            pieces.push(text.to_owned());
            is_repetitive = !may_repeat && repeats_itself(&pieces);
            if is_repetitive { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        self.interrupts.answer_ended();
        output.check()?;
        let reply = reply?;
        // The answer may already end with a line break.
        let end = if reply.answer.text.ends_with('\n') { "" } else { "\n" };
        let _ = output.write(&(wrap.end() + end));
        output.check()?;
        let was_stopped = reply.answer.finish == Finish::Stopped;
        let interrupted = canceller.is_cancelled() && was_stopped;
        is_repetitive &= was_stopped && !interrupted;
        if is_repetitive {
            note(format_args!(
                "[stopped: the answer repeats itself; {} 1.1 or a higher temperature can prevent that{}]",
                self.option("repetition-penalty"),
                if self.is_chat { ". /clear forgets it" } else { "" }
            ));
        }
        self.note_end(&reply, interrupted);
        detail_reasons(&reply.answer);
        detail(reply.answer.summary());
        self.totals.add(&reply.answer);
        Ok(Ended { answer: reply.answer, interrupted, is_repetitive })
    }

    /// Notes how the answer ended and which turns were left out.
    fn note_end(&mut self, reply: &Reply, interrupted: bool) {
        if interrupted && reply.kept {
            note("[interrupted; the text so far stays in the conversation]");
        } else if interrupted {
            note("[interrupted before the answer began; the message was removed]");
        }
        match reply.forgotten_turns {
            0 => (),
            1 => note("[the context is full: the oldest turn was left out]"),
            turns => {
                note(format_args!("[the context is full: the {turns} oldest turns were left out]"));
            }
        }
        match reply.answer.finish {
            Finish::MaxTokens => {
                let is_known = std::mem::replace(&mut self.limit_is_known, true);
                let more = match is_known {
                    true => String::new(),
                    false => format!("; {} allows more", self.option("max-tokens")),
                };
                note(format_args!("[stopped after {} tokens{more}]", self.request.max_tokens));
            }
            Finish::Context => note("[stopped at the end of the model's context]"),
            Finish::Eos | Finish::Stopped => (),
        }
    }

    /// Returns what sets an option: a command of the chat, or an option of the command line.
    fn option(&self, name: &str) -> String {
        if self.is_chat { format!("/set {name}") } else { format!("--{name}") }
    }

    fn execute(&mut self, command: Command) -> anyhow::Result<()> {
        match command {
            // The caller handles these.
            Command::Send(_) | Command::Quit => (),
            Command::Help(topic) => note(command::help(&topic)),
            Command::ShowMethod => note(format_args!("the method is {}", self.chat.method())),
            Command::Method(method) => {
                self.chat.set_method(method)?;
                note(format_args!("the next answer will use the method {method}"));
            }
            Command::Stats => note(&self.totals),
            Command::System(text) => {
                self.chat.set_system(&text)?;
                note(match text.is_empty() {
                    true => "the next answer will have no system message",
                    false => "the next answer will have the new system message",
                });
            }
            Command::ShowSettings => note(settings::listed(&self.request)),
            Command::ShowSetting(name) if name == "system" => {
                let system = self.chat.messages().find(|message| message.role == "system");
                let text = system.map(|message| message.content);
                note(text.as_deref().unwrap_or("there is no system message"));
            }
            Command::ShowSetting(name) => {
                note(settings::shown(&self.request, &name).map_err(Error::msg)?);
            }
            Command::Set(name, value) => {
                let changed = settings::changed(&self.request, self.chat.method(), &name, &value);
                self.request = changed.map_err(Error::msg)?;
                note(format_args!("the next answer will have {name} {value}"));
            }
            Command::Clear => {
                self.chat.reset();
                note("started a new conversation; the system message stays");
            }
            Command::Save(file) => self.save(&file)?,
        }
        Ok(())
    }

    /// Saves the messages as a JSON list of roles and contents.
    fn save(&mut self, file: &Path) -> anyhow::Result<()> {
        if file.exists() && self.saved.as_deref() != Some(file) {
            bail!("{} already exists: choose another name", file.display());
        }
        let message =
            |message: forerun::Message| json!({ "role": message.role, "content": message.content });
        let messages: Vec<_> = self.chat.messages().map(message).collect();
        let text = serde_json::to_string_pretty(&messages)? + "\n";
        forerun_output::write(file, text).with_context(|| cannot_write(file))?;
        self.saved = Some(file.to_owned());
        note(format_args!("wrote {} messages to {}", messages.len(), file.display()));
        Ok(())
    }
}
