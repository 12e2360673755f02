//! `forerun distill`: a model's own continuations of a text's lines, as text to train on.

use crate::arguments::DistillArguments;
use crate::generate::{options, request, suggested_sampling};
use crate::interrupts::{INTERRUPTED, cancel_on_interrupt};
use crate::{note, progress};
use anyhow::{Context, bail, ensure};
use forerun::{Canceller, Finish, Forerun, Plan};
use forerun_train::data::Documents;
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(arguments: &DistillArguments) -> anyhow::Result<ExitCode> {
    let canceller = Canceller::new();
    let done = write(arguments, &canceller, || cancel_on_interrupt(&canceller))?;
    Ok(if done { ExitCode::SUCCESS } else { INTERRUPTED.into() })
}

/// Writes texts until all are there or `canceller` says to end, and returns whether all are there.
/// `listen` is called once the model is loaded.
pub(crate) fn write(
    arguments: &DistillArguments,
    canceller: &Canceller,
    listen: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<bool> {
    let answers = &arguments.answers;
    ensure!(answers.model.is_some(), "name the model whose text is wanted with --model");
    let base = request(answers)?;
    base.validate()?;
    let prompts = prompts(arguments)?;
    let done = written(&arguments.out, &prompts)?;
    let plan = Plan::new(options(answers))?;
    let mut loader = progress::loader(answers.offline, true);
    let engine = Forerun::open_with(&plan, &mut loader)?;
    drop(loader);
    let base = suggested_sampling(base, answers, &engine)?;
    listen()?;
    let failed = || format!("cannot write {}", arguments.out.display());
    let mut out =
        OpenOptions::new().create(true).append(true).open(&arguments.out).with_context(failed)?;
    let bar = progress::bar(prompts.len() as u64, "text {pos}/{len} {wide_bar} {msg} {eta} left");
    bar.set_position(done as u64);
    bar.reset_eta();
    let mut tokens = 0;
    for (number, prompt) in prompts.iter().enumerate().skip(done) {
        let mut request = base.clone();
        // A text's draws depend on its number alone, so that a run that goes on is the same run.
        request.seed = Some(base.seed.unwrap_or(0).wrapping_add(number as u64));
        let go_on = |_: &str| ControlFlow::Continue(());
        let answer = engine.generate_interruptibly(prompt, &request, canceller, go_on)?;
        if canceller.is_cancelled() && answer.finish == Finish::Stopped {
            bar.finish_and_clear();
            note(format_args!("interrupted at text {number}: the same command goes on"));
            return Ok(false);
        }
        tokens += answer.tokens.len();
        let line = json!({ "prompt": prompt, "text": format!("{prompt}{}", answer.text) });
        out.write_all(format!("{line}\n").as_bytes()).with_context(failed)?;
        bar.set_message(format!("{tokens} tokens"));
        bar.inc(1);
    }
    out.sync_all().with_context(failed)?;
    bar.finish_and_clear();
    note(format_args!("{} texts in {}", prompts.len(), arguments.out.display()));
    Ok(true)
}

/// The beginnings of lines that are long enough, evenly spread over all of them.
fn prompts(arguments: &DistillArguments) -> anyhow::Result<Vec<String>> {
    let mut all = Vec::new();
    for file in &arguments.prompts {
        for document in Documents::open(file)? {
            let text = document?.text;
            all.extend(text.lines().filter_map(|line| beginning(line, arguments.prompt_chars)));
        }
    }
    if all.is_empty() {
        bail!(
            "no line of the prompts has {} characters: choose a smaller --prompt-chars",
            arguments.prompt_chars
        );
    }
    let (lines, count) = (all.len(), arguments.count.min(all.len()));
    Ok((0..count).map(|number| std::mem::take(&mut all[number * lines / count])).collect())
}

/// About the first `chars` characters, to the end of the word that these end in.
fn beginning(line: &str, chars: usize) -> Option<String> {
    let line = line.trim();
    let (cut, _) = line.char_indices().nth(chars)?;
    let end = line[cut..].find(char::is_whitespace).map_or(line.len(), |rest| cut + rest);
    Some(line[..end].to_owned())
}

/// How many texts an earlier run wrote; what it was writing when it ended is removed.
fn written(out: &Path, prompts: &[String]) -> anyhow::Result<usize> {
    if !out.exists() {
        return Ok(0);
    }
    let failed = || format!("cannot use {}", out.display());
    let file = File::options().read(true).write(true).open(out).with_context(failed)?;
    let mut reader = BufReader::new(&file);
    let (mut done, mut whole, mut line) = (0, 0_u64, Vec::new());
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
                "{} holds texts of other prompts (line {}): choose another file",
                out.display(),
                done + 1
            );
        }
        done += 1;
        whole += length;
    }
    file.set_len(whole).with_context(failed)?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_ends_with_a_word() {
        let cut = |chars| beginning("  It was the best of times", chars);
        assert_eq!(cut(5), Some("It was".to_owned()));
        assert_eq!(cut(6), Some("It was".to_owned()));
        assert_eq!(cut(7), Some("It was the".to_owned()));
        assert_eq!(cut(23), Some("It was the best of times".to_owned()));
        assert_eq!(cut(24), None);
        assert_eq!(beginning("Straße über", 6), Some("Straße".to_owned()));
    }
}
