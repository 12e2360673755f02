//! The run: every configuration answers every prompt, in turn.

use crate::equality::difference;
use crate::record::AnswerRecord;
use crate::{BenchError, Configuration, Journal, Prompt};
use std::time::{Duration, Instant};

/// Who answers.
pub trait Answerer {
    /// Lets a configuration answer a prompt. `sample` asks for its timeline.
    ///
    /// # Errors
    /// If it cannot.
    fn answer(
        &mut self,
        configuration: usize,
        prompt: &Prompt,
        repeat: usize,
        sample: bool,
    ) -> Result<AnswerRecord, BenchError>;
}

/// How often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Answers of each configuration to each prompt.
    pub repeats: usize,
    /// Prompts that each configuration answers before, without being measured.
    pub warm_ups: usize,
    /// Whether every answer must be that of autoregressive decoding: at temperature 0, and where
    /// verification is coupled.
    pub compare: bool,
    /// The options of `forerun generate` that ask for these answers, beside those of a configuration.
    pub request_flags: String,
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// Answers that are there, those of an earlier session included.
    pub done: usize,
    /// All of them.
    pub total: usize,
    /// How long the rest takes at the speed so far; `None` before there is one.
    pub left: Option<Duration>,
    /// Who answers next, or answered last.
    pub configuration: &'a str,
    /// Which prompt.
    pub prompt: &'a str,
}

/// Lets every configuration answer every prompt, `repeats` times: for each prompt one after the other,
/// so that a drift of the machine meets all of them alike. What the journal has is not asked again.
///
/// # Errors
/// If a configuration cannot answer, an answer cannot be kept, or is not that of autoregressive
/// decoding.
pub fn run(
    configurations: &[Configuration],
    prompts: &[Prompt],
    schedule: &Schedule,
    answerer: &mut impl Answerer,
    journal: &mut Journal,
    mut on_progress: impl FnMut(Progress<'_>),
) -> Result<(), BenchError> {
    let total = configurations.len() * prompts.len() * schedule.repeats;
    for answer in &journal.answers {
        check(configurations, prompts, schedule, &journal.answers, answer)?;
    }
    if journal.answers.len() < total {
        for prompt in prompts.iter().cycle().take(schedule.warm_ups.min(prompts.len())) {
            for configuration in 0..configurations.len() {
                answerer.answer(configuration, prompt, 0, false)?;
            }
        }
    }
    let started = Instant::now();
    let before = journal.answers.len();
    for repeat in 0..schedule.repeats {
        for (place, prompt) in prompts.iter().enumerate() {
            for (index, configuration) in configurations.iter().enumerate() {
                if journal.has(&configuration.name, &prompt.id, repeat) {
                    continue;
                }
                let sample = place == 0 && repeat == 0;
                let answer = answerer.answer(index, prompt, repeat, sample)?;
                check(configurations, prompts, schedule, &journal.answers, &answer)?;
                journal.push(answer)?;
                let done = journal.answers.len();
                let each = started.elapsed().div_f64((done - before) as f64);
                on_progress(Progress {
                    done,
                    total,
                    left: Some(each.mul_f64(total.saturating_sub(done) as f64)),
                    configuration: &configuration.name,
                    prompt: &prompt.id,
                });
            }
        }
    }
    Ok(())
}

/// Compares an answer with the baseline's first one to the same prompt: the seed is the same in every
/// repeat, so all of them are the same text.
fn check(
    configurations: &[Configuration],
    prompts: &[Prompt],
    schedule: &Schedule,
    answers: &[AnswerRecord],
    answer: &AnswerRecord,
) -> Result<(), BenchError> {
    let own = configurations.iter().find(|own| own.name == answer.configuration);
    let prompt = prompts.iter().find(|prompt| prompt.id == answer.prompt);
    let (true, Some(own), Some(prompt)) = (schedule.compare, own, prompt) else {
        return Ok(());
    };
    let plain = &configurations[own.baseline].name;
    let is_plain =
        |known: &&AnswerRecord| known.configuration == *plain && known.prompt == answer.prompt;
    let Some(baseline) = answers.iter().find(is_plain) else { return Ok(()) };
    let text = crate::provenance::quoted(&prompt.turns[0]);
    let (flags, request) = (&own.flags, &schedule.request_flags);
    let reproduce = format!("forerun generate {flags} {request} --prompt {text}");
    difference(baseline, answer, &reproduce).map_or(Ok(()), |found| Err(found.into()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::testing::{answer, prompt, turn};
    use crate::{Models, Provenance, Sweep, configurations};
    use forerun::DraftTokens;
    use serde_json::json;
    use std::path::Path;

    /// Answers by a script, and notes who was asked.
    #[derive(Default)]
    struct Script {
        names: Vec<String>,
        asked: Vec<String>,
        /// Fails when so many were asked.
        fails_after: Option<usize>,
        /// Answers otherwise when this was asked.
        differs_at: Option<&'static str>,
    }

    impl Answerer for Script {
        fn answer(
            &mut self,
            configuration: usize,
            prompt: &Prompt,
            repeat: usize,
            sample: bool,
        ) -> Result<AnswerRecord, BenchError> {
            let sampled = if sample { "*" } else { "" };
            let asked = format!("{configuration}{}{repeat}{sampled}", prompt.id);
            if self.fails_after == Some(self.asked.len()) {
                return Err(BenchError::NoRepeats);
            }
            let mut turn = turn(&[(10, 2), (20, 1)]);
            if self.differs_at == Some(asked.as_str()) {
                turn.tokens[2] = 99;
            }
            self.asked.push(asked);
            Ok(answer(&self.names[configuration], &prompt.id, repeat, turn))
        }
    }

    fn setting() -> (Vec<Configuration>, Vec<Prompt>) {
        let models = Models { target: "t".into(), ..Models::default() };
        let sweep = Sweep { draft_tokens: vec![DraftTokens::Fixed(3)], ..Sweep::default() };
        let configurations = configurations(&models, &[sweep], false).unwrap();
        (configurations, vec![prompt("p", "c"), prompt("q", "c")])
    }

    fn go(
        folder: &Path,
        schedule: &Schedule,
        mut script: Script,
    ) -> (Script, Result<(), BenchError>) {
        let (configurations, prompts) = setting();
        script.names = configurations.iter().map(|c| c.name.clone()).collect();
        let mut journal = Journal::open(folder, &json!(1), Provenance::default()).unwrap();
        let (done, total) = (std::cell::Cell::new(journal.answers.len()), 2 * 2 * schedule.repeats);
        let progress = |progress: Progress<'_>| {
            done.set(done.get() + 1);
            assert_eq!((progress.done, progress.total), (done.get(), total));
            assert!(progress.left.is_some());
        };
        let outcome = run(&configurations, &prompts, schedule, &mut script, &mut journal, progress);
        (script, outcome)
    }

    fn twice() -> Schedule {
        let request_flags = "--max-tokens 9 --seed 7".into();
        Schedule { repeats: 2, warm_ups: 1, compare: true, request_flags }
    }

    #[test]
    fn configurations_take_turns_behind_their_warm_ups() {
        let folder = tempfile::tempdir().unwrap();
        let (script, outcome) = go(folder.path(), &twice(), Script::default());
        outcome.unwrap();
        let expected = ["0p0", "1p0", "0p0*", "1p0*", "0q0", "1q0", "0p1", "1p1", "0q1", "1q1"];
        assert_eq!(script.asked, expected);
        // All is there: nothing is asked again, and nobody is warmed up.
        let (script, outcome) = go(folder.path(), &twice(), Script::default());
        outcome.unwrap();
        assert!(script.asked.is_empty());
    }

    #[test]
    fn an_interrupted_run_goes_on_where_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let broken = Script { fails_after: Some(5), ..Script::default() };
        let (script, outcome) = go(folder.path(), &twice(), broken);
        assert!(outcome.is_err());
        assert_eq!(script.asked.len(), 5);
        let (script, outcome) = go(folder.path(), &twice(), Script::default());
        outcome.unwrap();
        assert_eq!(script.asked, ["0p0", "1p0", "1q0", "0p1", "1p1", "0q1", "1q1"]);
    }

    #[test]
    fn an_answer_that_differs_fails_the_run_and_is_not_kept() {
        for differs_at in ["1q0", "0p1"] {
            let folder = tempfile::tempdir().unwrap();
            let liar = Script { differs_at: Some(differs_at), ..Script::default() };
            let (_, outcome) = go(folder.path(), &twice(), liar);
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("position 2") && error.contains("token 99"), "{error}");
            assert!(error.contains("forerun generate --model t --method"), "{error}");
            assert!(error.contains(" --max-tokens 9 --seed 7 --prompt "), "{error}");
            assert!(error.contains("--prompt 'text of"), "{error}");
            let (_, outcome) = go(folder.path(), &twice(), Script::default());
            outcome.unwrap();
        }
        // Where sampling promises only the same distribution, texts may differ.
        let folder = tempfile::tempdir().unwrap();
        let other = Script { differs_at: Some("1q0"), ..Script::default() };
        let (_, outcome) = go(folder.path(), &Schedule { compare: false, ..twice() }, other);
        outcome.unwrap();
    }
}
