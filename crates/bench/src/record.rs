//! Records of answers: everything that metrics need, and the text to compare.

use crate::times::{Round, TimeBreakdown};
use forerun::trace::{SpanKind, Trace, tokens_per_second};
use forerun::{Answer, Commit, Finish, TokenId};
use serde::{Deserialize, Serialize};

/// The answer of one configuration to one prompt in one repeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AnswerRecord {
    /// The name of the configuration.
    pub configuration: String,
    /// The id of the prompt.
    pub prompt: String,
    /// The category of the prompt.
    pub category: String,
    /// The number of the repeat, from 0.
    pub repeat: usize,
    /// The answers to all turns.
    pub turns: Vec<TurnRecord>,
    /// The peak memory of the process during the answer in bytes, or `None` if it is unknown. It
    /// includes all configurations, which share their weights.
    pub peak_memory_bytes: Option<u64>,
}

/// The answer to one turn. Times are in nanoseconds since the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// The text of the answer.
    pub text: String,
    /// The tokens of the answer, including those that end it.
    pub tokens: Vec<TokenId>,
    /// The number of tokens in the prompt.
    pub prompt_tokens: usize,
    /// The reason for the end of the answer.
    pub finish: String,
    /// The sampling seed.
    pub seed: u64,
    /// The time until the last token.
    pub total_ns: u64,
    /// The times at which tokens were committed.
    pub commits: Vec<Commit>,
    /// The counters of the answer.
    pub counts: Counts,
    /// The breakdown of the time.
    pub times: TimeBreakdown,
    /// The rounds of drafting and verifying.
    #[serde(default)]
    pub rounds: Vec<Round>,
    /// The beginning of the trace, for the report's sample timeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
}

/// Counters of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// The number of committed tokens.
    pub committed: u64,
    /// The number of target passes that committed at least one token.
    pub committing_forwards: u64,
    /// The number of all target passes, including those for the prompt and of cancelled jobs.
    pub target_forwards: u64,
    /// The number of all drafter passes.
    pub drafter_forwards: u64,
    /// The number of passes on paced devices that took longer than their time.
    #[serde(default)]
    pub overruns: u64,
    /// The number of draft tokens, tested or not.
    pub draft_tokens: u64,
    /// For each depth, the number of rounds in which the draft token at this depth was tested.
    pub tested: Vec<u64>,
    /// For each depth, the number of rounds in which the draft token was accepted.
    pub accepted: Vec<u64>,
    /// The number of rows that the target scored.
    pub scored_rows: u64,
}

impl Counts {
    fn of(answer: &Answer) -> Self {
        let statistics = &answer.statistics;
        let spans = |kind| answer.trace.spans.iter().filter(move |span| span.kind == kind);
        let forwards = |kind| spans(kind).map(|span| span.forwards_ns.len() as u64).sum();
        Self {
            committed: statistics.committed,
            committing_forwards: statistics.target_forwards,
            target_forwards: forwards(SpanKind::Score),
            drafter_forwards: forwards(SpanKind::Draft),
            overruns: answer.trace.spans.iter().map(|span| span.overruns as u64).sum(),
            draft_tokens: statistics.draft_tokens,
            tested: statistics.tested.clone(),
            accepted: statistics.accepted.clone(),
            scored_rows: spans(SpanKind::Score).map(|span| span.rows as u64).sum(),
        }
    }
}

impl TurnRecord {
    /// Creates the record of an answer. `sample` is the number of spans of its trace to keep, if
    /// any.
    #[must_use]
    pub fn of(answer: &Answer, sample: Option<usize>) -> Self {
        let trace = sample.map(|spans| {
            let mut trace = answer.trace.clone();
            trace.spans.sort_by_key(|span| span.start_ns);
            trace.spans.truncate(spans);
            trace
        });
        Self {
            text: answer.text.clone(),
            tokens: answer.tokens.clone(),
            prompt_tokens: answer.prompt_tokens,
            finish: match answer.finish {
                Finish::Eos => "eos",
                Finish::MaxTokens => "max_tokens",
                Finish::Context => "context",
                Finish::Stopped => "stop",
            }
            .into(),
            seed: answer.seed,
            total_ns: answer.total_ns,
            commits: answer.commits.clone(),
            counts: Counts::of(answer),
            times: TimeBreakdown::of(&answer.trace, answer.total_ns),
            rounds: Round::all_of(&answer.trace),
            trace,
        }
    }

    /// Returns the time until the first token in nanoseconds.
    #[must_use]
    pub fn first_token_ns(&self) -> u64 {
        self.commits.first().map_or(0, |commit| commit.at_ns)
    }

    /// Returns the number of tokens per second, over the total time including the prompt.
    #[must_use]
    pub fn tokens_per_second(&self) -> f64 {
        tokens_per_second(self.tokens.len(), self.total_ns)
    }
}
