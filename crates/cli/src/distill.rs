//! `forerun distill`: lets a model continue lines of text, to train a drafter on the result.

use crate::arguments::DistillArguments;
use crate::generate::{cannot_write, options, request, suggested_sampling};
use crate::interrupts::{cancel_on_interrupt, interrupted};
use crate::progress::{Task, Unit};
use crate::{note, progress};
use anyhow::{Context, bail, ensure};
use forerun::{Canceller, Finish, Forerun, Plan};
use forerun_output::Lock;
use forerun_train::data::Documents;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

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
    ensure!(
        answers.engine.model.is_some(),
        "no --model given: name the model that writes the text"
    );
    let base = request(answers)?;
    base.validate()?;
    let prompts = prompts(arguments)?;
    let failed = || cannot_write(&arguments.out);
    forerun_output::check(&arguments.out).with_context(failed)?;
    let _lock = Lock::file(&arguments.out).with_context(failed)?;
    let done = count_written(&arguments.out, &prompts)?;
    let plan = Plan::new(options(&answers.engine))?;
    let mut loader = progress::loader(answers.engine.offline, true);
    let engine = Forerun::open_with(&plan, &mut loader)?;
    drop(loader);
    let base = suggested_sampling(base, answers, &engine)?;
    listen()?;
    let mut out = forerun_output::append(&arguments.out).with_context(failed)?;
    let unit = Unit::Pieces("texts");
    let mut task = Task::resumed("writing", unit, done as u64, prompts.len() as u64);
    let mut tokens = 0;
    for (number, prompt) in prompts.iter().enumerate().skip(done) {
        let mut request = base.clone();
        // The random numbers of a text depend only on its number, so that a resumed run gives the
        // same texts.
        request.seed = Some(base.seed.unwrap_or(0).wrapping_add(number as u64));
        let on_text = |_: &str| ControlFlow::Continue(());
        let answer = engine.generate_interruptibly(prompt, &request, canceller, on_text)?;
        if canceller.is_cancelled() && answer.finish == Finish::Stopped {
            task.note(format_args!(
                "interrupted at text {number}: run the same command again to resume"
            ));
            return Ok(false);
        }
        tokens += answer.tokens.len();
        let line = json!({ "prompt": prompt, "text": format!("{prompt}{}", answer.text) });
        out.write_all(format!("{line}\n").as_bytes()).with_context(failed)?;
        task.message(format!("{tokens} tokens"));
        task.update(number as u64 + 1);
    }
    out.sync_all().with_context(failed)?;
    drop(task);
    note(format_args!("wrote {} texts to {}", prompts.len(), arguments.out.display()));
    Ok(true)
}

/// Returns the prompts: beginnings of lines that are long enough, evenly spread over all lines.
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
