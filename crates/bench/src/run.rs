//! The run: every configuration answers every prompt, in turn.

use crate::equality::difference;
use crate::provenance::quoted;
use crate::record::AnswerRecord;
use crate::{BenchError, Contestant, Journal, Prompt};
use std::time::{Duration, Instant};

/// Who answers.
pub trait Answerer {
    /// Lets the contestant at this place answer a prompt. `sample` asks for its timeline.
    ///
    /// # Errors
    /// If it cannot.
    fn answer(
        &mut self,
        contestant: usize,
        prompt: &Prompt,
        repeat: usize,
        sample: bool,
    ) -> Result<AnswerRecord, BenchError>;
}

/// How often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSchedule {
    /// Answers of each configuration to each prompt.
    pub repeats: usize,
    /// Prompts that each configuration answers before, without being measured.
    pub warm_ups: usize,
    /// Whether every answer above temperature 0, too, must be that of autoregressive decoding: where
    /// verification is coupled.
    pub compare_sampled: bool,
    /// The options of `forerun generate` that ask for these answers, beside those of a configuration.
    pub request_flags: String,
    /// Whether prompts of one turn are put as conversations, too.
    pub chats: bool,
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

/// Lets everybody answer every prompt, `repeats` times: for each prompt one after the other,
/// so that a drift of the machine meets all of them alike. What the journal has is not asked again.
///
/// # Errors
/// If a configuration cannot answer, an answer cannot be kept, or is not that of autoregressive
/// decoding.
pub fn run(
    contestants: &[Contestant],
    prompts: &[Prompt],
    schedule: &RunSchedule,
    answerer: &mut impl Answerer,
    journal: &mut Journal,
    mut on_progress: impl FnMut(Progress<'_>),
) -> Result<(), BenchError> {
    let total = contestants.len() * prompts.len() * schedule.repeats;
    for answer in &journal.answers {
        check(contestants, prompts, schedule, &journal.answers, answer)?;
    }
    if journal.answers.len() < total {
        for prompt in prompts.iter().cycle().take(schedule.warm_ups.min(prompts.len())) {
            for contestant in 0..contestants.len() {
                answerer.answer(contestant, prompt, 0, false)?;
            }
        }
    }
    let started = Instant::now();
    let before = journal.answers.len();
    for repeat in 0..schedule.repeats {
        for (place, prompt) in prompts.iter().enumerate() {
            for (index, contestant) in contestants.iter().enumerate() {
                if journal.has(&contestant.name, &prompt.id, repeat) {
                    continue;
                }
                let sample = place == 0 && repeat == 0;
                let answer = answerer.answer(index, prompt, repeat, sample)?;
                check(contestants, prompts, schedule, &journal.answers, &answer)?;
                journal.push(answer)?;
                let done = journal.answers.len();
                let each = started.elapsed().div_f64((done - before) as f64);
                on_progress(Progress {
                    done,
                    total,
                    left: Some(each.mul_f64(total.saturating_sub(done) as f64)),
                    configuration: &contestant.name,
                    prompt: &prompt.id,
                });
            }
        }
    }
    Ok(())
}

/// Compares an answer with the baseline's first one to the same prompt: the seed is the same in every
/// repeat, so all of them are the same text. A peer's may differ, which the report tells.
fn check(
    contestants: &[Contestant],
    prompts: &[Prompt],
    schedule: &RunSchedule,
    answers: &[AnswerRecord],
    answer: &AnswerRecord,
) -> Result<(), BenchError> {
    let is_own = |own: &&Contestant| own.name == answer.configuration && !own.is_peer();
    let own = contestants.iter().find(is_own);
    let prompt = prompts.iter().find(|prompt| prompt.id == answer.prompt);
    let (Some(own), Some(prompt)) = (own, prompt) else { return Ok(()) };
    if own.temperature > 0.0 && !schedule.compare_sampled {
        return Ok(());
    }
    let plain = &contestants[own.baseline].name;
    let is_plain =
        |known: &&AnswerRecord| known.configuration == *plain && known.prompt == answer.prompt;
    let Some(baseline) = answers.iter().find(is_plain) else { return Ok(()) };
    let reproduce = reproduce(own, prompt, schedule);
    difference(baseline, answer, &reproduce).map_or(Ok(()), |found| Err(found.into()))
}

/// The command that gives an answer again.
fn reproduce(own: &Contestant, prompt: &Prompt, schedule: &RunSchedule) -> String {
    let (flags, request) = (&own.flags, &schedule.request_flags);
    if !schedule.chats && prompt.turns.len() == 1 {
        return format!("forerun generate {flags} {request} --prompt {}", quoted(&prompt.turns[0]));
    }
    // Messages are piped in one a line; a backslash at a line's end continues them.
    let turns: Vec<String> =
        prompt.turns.iter().map(|turn| quoted(&turn.replace('\n', "\\\n"))).collect();
    format!("printf '%s\\n' {} | forerun chat {flags} {request}", turns.join(" "))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::testing::{answer, prompt, turn};
    use crate::{Models, Provenance, Sweep, configurations, contestants};
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
            contestant: usize,
            prompt: &Prompt,
            repeat: usize,
            sample: bool,
        ) -> Result<AnswerRecord, BenchError> {
            let sampled = if sample { "*" } else { "" };
            let asked = format!("{contestant}{}{repeat}{sampled}", prompt.id);
            if self.fails_after == Some(self.asked.len()) {
                return Err(BenchError::NoRepeats);
            }
            let mut turn = turn(&[(10, 2), (20, 1)]);
            if self.differs_at == Some(asked.as_str()) {
                turn.tokens[2] = 99;
            }
            self.asked.push(asked);
            Ok(answer(&self.names[contestant], &prompt.id, repeat, turn))
        }
    }

    fn setting(temperature: f32) -> (Vec<Contestant>, Vec<Prompt>) {
        let models = Models { target: "t".into(), ..Models::default() };
        let (draft_tokens, temperatures) = (vec![DraftTokens::Fixed(3)], vec![temperature]);
        let sweep = Sweep { draft_tokens, temperatures, ..Sweep::default() };
        let configurations = configurations(&models, &[sweep], false).unwrap();
        (contestants(&configurations, &[]).unwrap(), vec![prompt("p", "c"), prompt("q", "c")])
    }

    fn go(
        folder: &Path,
        schedule: &RunSchedule,
        script: Script,
    ) -> (Script, Result<(), BenchError>) {
        go_at(0.0, folder, schedule, script)
    }

    fn go_at(
        temperature: f32,
        folder: &Path,
        schedule: &RunSchedule,
        mut script: Script,
    ) -> (Script, Result<(), BenchError>) {
        let (contestants, prompts) = setting(temperature);
        script.names = contestants.iter().map(|c| c.name.clone()).collect();
        let mut journal = Journal::open(folder, &json!(1), Provenance::default()).unwrap();
        let (done, total) = (std::cell::Cell::new(journal.answers.len()), 2 * 2 * schedule.repeats);
        let progress = |progress: Progress<'_>| {
            done.set(done.get() + 1);
            assert_eq!((progress.done, progress.total), (done.get(), total));
            assert!(progress.left.is_some());
        };
        let outcome = run(&contestants, &prompts, schedule, &mut script, &mut journal, progress);
        (script, outcome)
    }

    fn twice() -> RunSchedule {
        let request_flags = "--max-tokens 9 --seed 7".into();
        RunSchedule { repeats: 2, warm_ups: 1, compare_sampled: true, request_flags, chats: false }
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
            let words = " --temperature 0 --max-tokens 9 --seed 7 --prompt ";
            assert!(error.contains(words), "{error}");
            assert!(error.contains("--prompt 'text of"), "{error}");
            let (_, outcome) = go(folder.path(), &twice(), Script::default());
            outcome.unwrap();
        }
        // A conversation is typed again.
        let folder = tempfile::tempdir().unwrap();
        let liar = Script { differs_at: Some("1q0"), ..Script::default() };
        let (_, outcome) = go(folder.path(), &RunSchedule { chats: true, ..twice() }, liar);
        let error = outcome.unwrap_err().to_string();
        let words = "printf '%s\\n' 'text of q' | forerun chat --model t --method";
        assert!(error.contains(words) && error.ends_with("--seed 7"), "{error}");
        // Where sampling promises only the same distribution, texts may differ; nowhere else.
        for (temperature, compare_sampled) in [(0.0, false), (1.0, false), (1.0, true)] {
            let folder = tempfile::tempdir().unwrap();
            let other = Script { differs_at: Some("1q0"), ..Script::default() };
            let schedule = RunSchedule { compare_sampled, ..twice() };
            let (_, outcome) = go_at(temperature, folder.path(), &schedule, other);
            assert_eq!(outcome.is_ok(), temperature > 0.0 && !compare_sampled);
        }
    }
}
