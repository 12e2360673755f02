//! What is kept of an answer: all that metrics need, and the text to compare.

use crate::times::{Round, Times};
use forerun::{Answer, Commit, Finish, SpanKind, TokenId, Trace};
use serde::{Deserialize, Serialize};

/// A prompt's answer by one configuration in one repeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AnswerRecord {
    /// The configuration's name.
    pub configuration: String,
    /// The prompt's id.
    pub prompt: String,
    /// The prompt's category.
    pub category: String,
    /// Which repeat, from 0.
    pub repeat: usize,
    /// An answer for each turn.
    pub turns: Vec<TurnRecord>,
    /// The most memory that the process had while it answered, all configurations being loaded with
    /// shared weights; `None` where the system does not tell.
    pub peak_memory_bytes: Option<u64>,
}

/// The answer to one turn. Times are in nanoseconds from its request on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// The text.
    pub text: String,
    /// Its tokens, with those that ended it.
    pub tokens: Vec<TokenId>,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Why it ended.
    pub finish: String,
    /// The seed of its draws.
    pub seed: u64,
    /// Up to the last token.
    pub total_ns: u64,
    /// When its tokens became certain.
    pub commits: Vec<Commit>,
    /// What was counted.
    pub counts: Counts,
    /// Where the time went.
    pub times: Times,
    /// Its rounds of drafting and verifying.
    #[serde(default)]
    pub rounds: Vec<Round>,
    /// What devices did, for the report's sample timeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
}

/// Counters of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Tokens committed.
    pub committed: u64,
    /// Target forwards that committed a token.
    pub committing_forwards: u64,
    /// All forward passes of the target, those for the prompt and of cancelled jobs included.
    pub target_forwards: u64,
    /// All forward passes of the drafter.
    pub drafter_forwards: u64,
    /// Tokens drafted, tested or not.
    pub draft_tokens: u64,
    /// Rounds in which the draft's token at this depth was tested.
    pub tested: Vec<u64>,
    /// Rounds in which it was accepted.
    pub accepted: Vec<u64>,
    /// Rows that the target scored.
    pub scored_rows: u64,
}

impl Counts {
    fn of(answer: &Answer) -> Self {
        let statistics = &answer.statistics;
        let spans = |work| answer.trace.spans.iter().filter(move |span| span.work == work);
        let forwards = |work| spans(work).map(|span| span.forwards_ns.len() as u64).sum();
        Self {
            committed: statistics.committed,
            committing_forwards: statistics.target_forwards,
            target_forwards: forwards(SpanKind::Score),
            drafter_forwards: forwards(SpanKind::Draft),
            draft_tokens: statistics.draft_tokens,
            tested: statistics.tested.clone(),
            accepted: statistics.accepted.clone(),
            scored_rows: spans(SpanKind::Score).map(|span| span.rows as u64).sum(),
        }
    }
}

impl TurnRecord {
    /// What is kept of an answer. With `sample`, so many of its spans are.
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
            times: Times::of(&answer.trace, answer.total_ns),
            rounds: Round::all_of(&answer.trace),
            trace,
        }
    }

    /// Up to the first token.
    #[must_use]
    pub fn first_token_ns(&self) -> u64 {
        self.commits.first().map_or(0, |commit| commit.at_ns)
    }

    /// Tokens over the whole time, the prompt's included.
    #[must_use]
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens.len() as f64 / (self.total_ns.max(1) as f64 / 1e9)
    }
}
