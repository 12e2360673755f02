//! `forerun distill`: lets a model continue lines of text, to train a drafter on the result.

use crate::arguments::DistillArguments;
use crate::generate::{cannot_write, options, request, suggested_sampling};
use crate::interrupts::{cancel_on_interrupt, interrupted};
use crate::progress::{Task, Unit};
use crate::{note, progress};
use anyhow::{Context, bail};
use forerun::{Canceller, ChatTemplate, Engine, Finish, Message, Plan, Request};
use forerun_output::Lock;
use forerun_train::data::Documents;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

pub(crate) fn run(arguments: &DistillArguments) -> anyhow::Result<ExitCode> {
    let canceller = Canceller::new();
    let done = write(arguments, &canceller, || cancel_on_interrupt(&canceller))?;
    Ok(if done { ExitCode::SUCCESS } else { interrupted().into() })
}

/// Writes texts until all are complete or `canceller` is cancelled. Returns whether all are
/// complete. `listen` is called when the model is loaded.
pub(crate) fn write(
    arguments: &DistillArguments,
    canceller: &Canceller,
    listen: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let answers = &arguments.answers;
    answers.engine.model.require()?;
    let base = request(answers)?;
    base.validate()?;
    let prompts = prompts(arguments)?;
    let failed = || cannot_write(&arguments.out);
    forerun_output::check(&arguments.out).with_context(failed)?;
    let _lock = Lock::file(&arguments.out).with_context(failed)?;
    let done = count_written(&arguments.out, &prompts)?;
    let plan = Plan::new(options(&answers.engine)?)?;
    let mut loader = progress::loader(answers.engine.offline, true);
    let engine = Engine::open_with(&plan, &mut loader)?;
    drop(loader);
    let base = suggested_sampling(base, answers, &engine)?;
    let template = arguments.chat.then(|| engine.chat_template());
    let template = template.transpose()?;
    let base =
        template.as_ref().map_or(base.clone(), |template| engine.chat_request(template, &base));
    listen()?;
    let mut out = forerun_output::append(&arguments.out).with_context(failed)?;
    let writer = Writer { engine: &engine, template, base, prompts: &prompts, canceller };
    let mut task =
        Task::resumed("writing", Unit::Pieces("texts"), done as u64, prompts.len() as u64);
    let (mut written, mut tokens) = (done, 0);
    writer.write_all(done, arguments.parallel as usize, |text| {
        out.write_all(format!("{}\n", text.line).as_bytes()).with_context(failed)?;
        written += 1;
        tokens += text.tokens;
        task.message(format!("{tokens} tokens"));
        task.update(written as u64);
        Ok(())
    })?;
    out.sync_all().with_context(failed)?;
    if written < prompts.len() {
        task.note(format_args!(
            "interrupted at text {written}: run the same command again to resume"
        ));
        return Ok(false);
    }
    drop(task);
    note(format_args!("wrote {written} texts to {}", arguments.out.display()));
    Ok(true)
}

/// Writes texts, several at the same time.
struct Writer<'a> {
    engine: &'a Engine,
    /// The template of chat messages, if the prompts are some.
    template: Option<ChatTemplate>,
    base: Request,
    prompts: &'a [String],
    canceller: &'a Canceller,
}

/// A text as a line of the output, and the number of tokens that were generated for it.
struct Text {
    line: Value,
    tokens: usize,
}

impl Writer<'_> {
    /// Writes the texts from number `first` on, and hands them over in order. Returns early if it
    /// is cancelled.
    fn write_all(
        &self,
        first: usize,
        parallel: usize,
        mut hand_over: impl FnMut(&Text) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let next = AtomicUsize::new(first);
        let (sender, texts) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..parallel {
                let (next, sender) = (&next, sender.clone());
                scope.spawn(move || {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        let Some(prompt) = self.prompts.get(number) else { return };
                        let text = self.write(number, prompt).transpose();
                        let Some(text) = text else { return };
                        if sender.send((number, text)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            let (mut waiting, mut number) = (BTreeMap::new(), first);
            let result = texts.iter().try_for_each(|(other, text)| {
                waiting.insert(other, text?);
                while let Some(text) = waiting.remove(&number) {
                    hand_over(&text)?;
                    number += 1;
                }
                Ok(())
            });
            if result.is_err() {
                self.canceller.cancel();
            }
            result
        })
    }

    /// Writes one text. Returns `None` if it was cancelled.
    fn write(&self, number: usize, prompt: &str) -> anyhow::Result<Option<Text>> {
        // The random numbers of a text depend only on its number, so that a resumed run gives the
        // same texts.
        let seed = self.base.seed.unwrap_or(0).wrapping_add(number as u64);
        let request = Request { seed: Some(seed), ..self.base.clone() };
        let (start, tokens) = match &self.template {
            None => (prompt, self.engine.encode_prompt(prompt)?),
            Some(template) => ("", self.engine.encode_chat(template, &[Message::user(prompt)])?),
        };
        let on_text = |_: &str| ControlFlow::Continue(());
        let answer =
            self.engine.generate_tokens_interruptibly(tokens, &request, self.canceller, on_text)?;
        if self.canceller.is_cancelled() && answer.finish == Finish::Stopped {
            return Ok(None);
        }
        let mut line = json!({ "prompt": prompt, "text": format!("{start}{}", answer.text) });
        if self.template.is_some() {
            line["complete"] = matches!(answer.finish, Finish::Eos | Finish::Stopped).into();
        }
        Ok(Some(Text { line, tokens: answer.tokens.len() }))
    }
}

/// Returns the prompts: beginnings of lines that are long enough, evenly spread over all lines.
fn prompts(arguments: &DistillArguments) -> anyhow::Result<Vec<String>> {
    let mut all = Vec::new();
    for file in &arguments.prompts {
        for document in Documents::open(file)? {
            let text = document?.text;
            all.extend(text.lines().filter_map(|line| match arguments.chat {
                true => Some(line.trim().to_owned()).filter(|line| !line.is_empty()),
                false => beginning(line, arguments.prompt_chars),
            }));
        }
    }
    if all.is_empty() && arguments.chat {
        bail!("the files of prompts have no lines: write one chat message a line");
    }
    if all.is_empty() {
        bail!(
            "no line of the prompts is longer than {} characters: lower --prompt-chars",
            arguments.prompt_chars
        );
    }
    let (lines, count) = (all.len(), arguments.count.min(all.len()));
    Ok((0..count).map(|number| std::mem::take(&mut all[number * lines / count])).collect())
}

/// Returns the first `chars` characters of a line, extended to the end of the last word. Returns
/// `None` for shorter lines.
fn beginning(line: &str, chars: usize) -> Option<String> {
    let line = line.trim();
    let (cut, _) = line.char_indices().nth(chars)?;
    let end = line[cut..].find(char::is_whitespace).map_or(line.len(), |rest| cut + rest);
    Some(line[..end].to_owned())
}

/// Counts the texts that an earlier run wrote, and removes an incomplete last line.
fn count_written(out: &Path, prompts: &[String]) -> anyhow::Result<usize> {
    if !out.exists() {
        return Ok(0);
    }
    let failed = || format!("cannot use {}", out.display());
    let file = File::options().read(true).write(true).open(out).with_context(failed)?;
    let mut reader = BufReader::new(&file);
    let (mut done, mut complete_bytes, mut line) = (0, 0_u64, Vec::new());
    loop {
        line.clear();
        let length = reader.read_until(b'\n', &mut line).with_context(failed)? as u64;
        if line.last() != Some(&b'\n') {
            break;
        }
        let prompt = serde_json::from_slice::<Value>(&line).ok();
        let prompt = prompt.as_ref().and_then(|line| line["prompt"].as_str());
        if prompt.is_none() || prompt != prompts.get(done).map(String::as_str) {
            bail!(
                "{} contains texts of other prompts (line {}): choose another --out",
                out.display(),
                done + 1
            );
        }
        done += 1;
        complete_bytes += length;
    }
    file.set_len(complete_bytes).with_context(failed)?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_ends_with_a_complete_word() {
        let cut = |chars| beginning("  It was the best of times", chars);
        assert_eq!(cut(5), Some("It was".to_owned()));
        assert_eq!(cut(6), Some("It was".to_owned()));
        assert_eq!(cut(7), Some("It was the".to_owned()));
        assert_eq!(cut(23), Some("It was the best of times".to_owned()));
        assert_eq!(cut(24), None);
        assert_eq!(beginning("Straße über", 6), Some("Straße".to_owned()));
    }
}
