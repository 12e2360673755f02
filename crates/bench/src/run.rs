//! Runs a comparison: all participants answer every prompt, one after another.

use crate::equality::difference;
use crate::provenance::quoted;
use crate::record::AnswerRecord;
use crate::{BenchError, Journal, Participant, Prompt};

/// Generates the answers of participants.
pub trait Answerer {
    /// Answers a prompt with the participant at this index. With `sample`, the record contains the
    /// beginning of the trace.
    ///
    /// # Errors
    /// If the participant cannot answer the prompt.
    fn answer(
        &mut self,
        participant: usize,
        prompt: &Prompt,
        repeat: usize,
        sample: bool,
    ) -> Result<AnswerRecord, BenchError>;
}

/// How to run a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSchedule {
    /// The number of answers of each participant to each prompt.
    pub repeats: usize,
    /// The number of prompts that each participant answers first without being measured.
    pub warm_ups: usize,
    /// Whether answers above temperature 0 must also be equal to those of autoregressive decoding,
    /// as with coupled verification.
    pub compare_sampled: bool,
    /// The flags of `forerun generate` for the request, in addition to those of a configuration.
    pub request_flags: String,
    /// Whether prompts with a single turn are conversations, too.
    pub prompts_as_chats: bool,
}

/// The progress of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The number of answers so far, including those of earlier sessions, without warm-ups.
    pub done: usize,
    /// The participant that answered last.
    pub configuration: &'a str,
    /// The id of the prompt that was answered last.
    pub prompt: &'a str,
}

/// Lets all participants answer every prompt `repeats` times.
///
/// All participants answer a prompt, one after another, before the next one, so that a drift of the
/// machine affects all of them alike. Answers that the journal already has are not generated again.
///
/// # Errors
/// If a participant cannot answer, if an answer cannot be written, or if an answer differs from
/// that of autoregressive decoding.
pub fn run(
    participants: &[Participant],
    prompts: &[Prompt],
    schedule: &RunSchedule,
    answerer: &mut impl Answerer,
    journal: &mut Journal,
    mut on_progress: impl FnMut(Progress<'_>),
) -> Result<(), BenchError> {
    let total = participants.len() * prompts.len() * schedule.repeats;
    for answer in &journal.answers {
        check(participants, prompts, schedule, &journal.answers, answer)?;
    }
    if journal.answers.len() < total {
        for prompt in prompts.iter().cycle().take(schedule.warm_ups.min(prompts.len())) {
            for (index, participant) in participants.iter().enumerate() {
                answerer.answer(index, prompt, 0, false)?;
                on_progress(Progress {
                    done: journal.answers.len(),
                    configuration: &participant.name,
                    prompt: &prompt.id,
                });
            }
        }
    }
    for repeat in 0..schedule.repeats {
        for (prompt_index, prompt) in prompts.iter().enumerate() {
            for (index, participant) in participants.iter().enumerate() {
                if journal.has(&participant.name, &prompt.id, repeat) {
                    continue;
                }
                let sample = prompt_index == 0 && repeat == 0;
                let answer = answerer.answer(index, prompt, repeat, sample)?;
                check(participants, prompts, schedule, &journal.answers, &answer)?;
                journal.push(answer)?;
                on_progress(Progress {
                    done: journal.answers.len(),
                    configuration: &participant.name,
                    prompt: &prompt.id,
                });
            }
        }
    }
    Ok(())
}

/// Compares an answer with the baseline's first answer to the same prompt. All repeats have the
/// same seed, so they must have the same text. The answers of peers are not checked here, because
/// they may differ.
fn check(
    participants: &[Participant],
    prompts: &[Prompt],
    schedule: &RunSchedule,
    answers: &[AnswerRecord],
    answer: &AnswerRecord,
) -> Result<(), BenchError> {
    let answered = |participant: &&Participant| {
        participant.name == answer.configuration && !participant.is_peer()
    };
    let participant = participants.iter().find(answered);
    let prompt = prompts.iter().find(|prompt| prompt.id == answer.prompt);
    let (Some(participant), Some(prompt)) = (participant, prompt) else { return Ok(()) };
    if participant.temperature > 0.0 && !schedule.compare_sampled {
        return Ok(());
    }
    let plain = &participants[participant.baseline].name;
    let is_plain =
        |known: &&AnswerRecord| known.configuration == *plain && known.prompt == answer.prompt;
    let Some(baseline) = answers.iter().find(is_plain) else { return Ok(()) };
    let reproduce = reproduce(participant, prompt, schedule);
    difference(baseline, answer, &reproduce).map_or(Ok(()), |found| Err(found.into()))
}

/// Returns the command that reproduces an answer.
fn reproduce(participant: &Participant, prompt: &Prompt, schedule: &RunSchedule) -> String {
    let (flags, request) = (&participant.flags, &schedule.request_flags);
    if !schedule.prompts_as_chats && prompt.turns.len() == 1 {
        return format!("forerun generate {flags} {request} --prompt {}", quoted(&prompt.turns[0]));
    }
    // The input has one message per line. A backslash at the end of a line continues the message.
    let turns: Vec<String> =
        prompt.turns.iter().map(|turn| quoted(&turn.replace('\n', "\\\n"))).collect();
    format!("printf '%s\\n' {} | forerun chat {flags} {request}", turns.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{answer, prompt, turn};
    use crate::{Models, Provenance, Sweep, configurations, participants};
    use forerun::DraftTokens;
    use serde_json::json;
    use std::path::Path;

    /// Returns fixed answers and records the requests.
    #[derive(Default)]
    struct ScriptedAnswerer {
        names: Vec<String>,
        requests: Vec<String>,
        /// The number of requests after which it fails.
        fails_after: Option<usize>,
        /// The request to which it gives another answer.
        differs_at: Option<&'static str>,
    }

    impl Answerer for ScriptedAnswerer {
        fn answer(
            &mut self,
            participant: usize,
            prompt: &Prompt,
            repeat: usize,
            sample: bool,
        ) -> Result<AnswerRecord, BenchError> {
            let sampled = if sample { "*" } else { "" };
            let request = format!("{participant}{}{repeat}{sampled}", prompt.id);
            if self.fails_after == Some(self.requests.len()) {
                return Err(BenchError::NoRepeats);
            }
            let mut turn = turn(&[(10, 2), (20, 1)]);
            if self.differs_at == Some(request.as_str()) {
                turn.tokens[2] = 99;
            }
            self.requests.push(request);
            Ok(answer(&self.names[participant], &prompt.id, repeat, turn))
        }
    }

    fn setting(temperature: f32) -> (Vec<Participant>, Vec<Prompt>) {
        let models = Models { target: "t".into(), ..Models::default() };
        let (draft_tokens, temperatures) = (vec![DraftTokens::Fixed(3)], vec![temperature]);
        let sweep = Sweep { draft_tokens, temperatures, ..Sweep::default() };
        let configurations = configurations(&models, &[sweep], false).unwrap();
        (participants(&configurations, &[]).unwrap(), vec![prompt("p", "c"), prompt("q", "c")])
    }

    fn run_greedy(
        folder: &Path,
        schedule: &RunSchedule,
        script: ScriptedAnswerer,
    ) -> (ScriptedAnswerer, Result<(), BenchError>) {
        run_at(0.0, folder, schedule, script)
    }

    fn run_at(
        temperature: f32,
        folder: &Path,
        schedule: &RunSchedule,
        mut script: ScriptedAnswerer,
    ) -> (ScriptedAnswerer, Result<(), BenchError>) {
        let (participants, prompts) = setting(temperature);
        script.names = participants.iter().map(|c| c.name.clone()).collect();
        let mut journal = Journal::open(folder, &json!(1), Provenance::default()).unwrap();
        let mut done = journal.answers.len();
        let progress = |progress: Progress<'_>| {
            // Warm-ups do not count.
            assert!((done..=done + 1).contains(&progress.done));
            done = progress.done;
        };
        let outcome = run(&participants, &prompts, schedule, &mut script, &mut journal, progress);
        (script, outcome)
    }

    fn twice() -> RunSchedule {
        let request_flags = "--max-tokens 9 --seed 7".into();
        RunSchedule {
            repeats: 2,
            warm_ups: 1,
            compare_sampled: true,
            request_flags,
            prompts_as_chats: false,
        }
    }

    #[test]
    fn participants_alternate_after_their_warm_ups() {
        let folder = tempfile::tempdir().unwrap();
        let (script, outcome) = run_greedy(folder.path(), &twice(), ScriptedAnswerer::default());
        outcome.unwrap();
        let expected = ["0p0", "1p0", "0p0*", "1p0*", "0q0", "1q0", "0p1", "1p1", "0q1", "1q1"];
        assert_eq!(script.requests, expected);
        // The journal has all answers, so nothing is generated again, and there are no warm-ups.
        let (script, outcome) = run_greedy(folder.path(), &twice(), ScriptedAnswerer::default());
        outcome.unwrap();
        assert!(script.requests.is_empty());
    }

    #[test]
    fn an_interrupted_run_is_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let failing = ScriptedAnswerer { fails_after: Some(5), ..ScriptedAnswerer::default() };
        let (script, outcome) = run_greedy(folder.path(), &twice(), failing);
        assert!(outcome.is_err());
        assert_eq!(script.requests.len(), 5);
        let (script, outcome) = run_greedy(folder.path(), &twice(), ScriptedAnswerer::default());
        outcome.unwrap();
        assert_eq!(script.requests, ["0p0", "1p0", "1q0", "0p1", "1p1", "0q1", "1q1"]);
    }

    #[test]
    fn an_answer_that_differs_fails_the_run_and_is_not_kept() {
        let differing =
            |request| ScriptedAnswerer { differs_at: Some(request), ..ScriptedAnswerer::default() };
        for request in ["1q0", "0p1"] {
            let folder = tempfile::tempdir().unwrap();
            let (_, outcome) = run_greedy(folder.path(), &twice(), differing(request));
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains("position 2") && error.contains("token 99"), "{error}");
            assert!(error.contains("forerun generate --model t --method"), "{error}");
            let words = " --temperature 0 --max-tokens 9 --seed 7 --prompt ";
            assert!(error.contains(words), "{error}");
            assert!(error.contains("--prompt 'text of"), "{error}");
            let (_, outcome) = run_greedy(folder.path(), &twice(), ScriptedAnswerer::default());
            outcome.unwrap();
        }
        // A conversation is reproduced by `forerun chat`.
        let folder = tempfile::tempdir().unwrap();
        let schedule = RunSchedule { prompts_as_chats: true, ..twice() };
        let (_, outcome) = run_greedy(folder.path(), &schedule, differing("1q0"));
        let error = outcome.unwrap_err().to_string();
        let words = "printf '%s\\n' 'text of q' | forerun chat --model t --method";
        assert!(error.contains(words) && error.ends_with("--seed 7"), "{error}");
        // Texts may differ only if sampling guarantees no more than the same distribution.
        for (temperature, compare_sampled) in [(0.0, false), (1.0, false), (1.0, true)] {
            let folder = tempfile::tempdir().unwrap();
            let schedule = RunSchedule { compare_sampled, ..twice() };
            let (_, outcome) = run_at(temperature, folder.path(), &schedule, differing("1q0"));
            assert_eq!(outcome.is_ok(), temperature > 0.0 && !compare_sampled);
        }
    }
}
