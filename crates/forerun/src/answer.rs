//! Finished answers and their measurements.

use forerun_core::trace::{Span, SpanKind, Trace};
use forerun_core::{TokenId, TokenLogprob, Verification};
use forerun_decode::{Finish, Statistics, VerificationRecord};
use forerun_runtime::Pace;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A finished answer, with its statistics and trace.
///
/// ```
/// use forerun::{Engine, Finish, Options, RandomPair, Request};
///
/// let pair = RandomPair::make()?;
/// let draft_model = Some(pair.drafter().into());
/// let options = Options { draft_model, ..Options::new(pair.target()) };
/// let engine = Engine::open(options)?;
/// let request = Request { max_tokens: 16, ignore_eos: true, ..Request::default() };
/// let answer = engine.complete("Once upon a time", &request)?;
///
/// assert_eq!((answer.tokens.len(), answer.finish), (16, Finish::MaxTokens));
/// println!("{}", answer.summary());
/// println!("mean accepted tokens: {:.2}", answer.statistics.mean_accepted_tokens());
/// println!("{}", answer.trace.to_perfetto());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Answer {
    /// The text, as it was streamed.
    pub text: String,
    /// The tokens after the prompt: those of the text, and those that ended it (an end-of-sequence
    /// token, or the tokens of a stop string).
    pub tokens: Vec<TokenId>,
    /// The log-probabilities at the position of each of these tokens, if requested.
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// The log-probabilities of the prompt's tokens after the first, if requested.
    pub prompt_logprobs: Option<Vec<TokenLogprob>>,
    /// The number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// Why the answer ended.
    pub finish: Finish,
    /// The seed of the answer's random draws.
    ///
    /// A request with this seed and the same verification reproduces the text if this request had
    /// the seed, too, or if verification is coupled. Otherwise it may not: without a seed, draft
    /// lengths may follow measured times, and rejection sampling draws other numbers for other
    /// draft lengths.
    pub seed: u64,
    /// How drafts were verified.
    pub verification: Verification,
    /// The time from the request to the first token, in nanoseconds.
    pub first_token_ns: u64,
    /// The time from the request to the last token, in nanoseconds.
    pub total_ns: u64,
    /// The commits, in order: each has the tokens of one step. Their sizes add up to the length of
    /// [`Answer::tokens`].
    pub commits: Vec<Commit>,
    /// The outcomes of all verifications, in order. If a stop string ended the answer, they may
    /// have more tokens than the answer.
    pub verifications: Vec<VerificationRecord>,
    /// Counters of drafting and verification.
    pub statistics: Statistics,
    /// The timeline of all device groups while this answer was generated.
    pub trace: Trace,
    /// The passes of paced devices. `None`: passes took the time of this machine.
    pub paced: Option<PacedPasses>,
}

/// How the passes of paced devices kept to their times while an answer was generated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PacedPasses {
    /// The name of the pass times, as the placement gives it.
    pub name: String,
    /// The number of passes.
    pub passes: usize,
    /// The number of these that took more than 5 % longer than their time.
    pub overruns: usize,
}

impl PacedPasses {
    pub(crate) fn of(trace: &Trace, pace: &Pace) -> Self {
        let passes = trace.spans.iter().map(|span| span.forwards_ns.len()).sum();
        let overruns = trace.spans.iter().map(|span| span.overruns).sum();
        Self { name: pace.name.clone(), passes, overruns }
    }
}

impl fmt::Display for PacedPasses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, passes, overruns } = self;
        write!(f, "paced as {name}: {overruns} of {passes} passes overran")
    }
}

/// Tokens that became part of the answer at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// The time since the request, in nanoseconds.
    pub at_ns: u64,
    /// The number of tokens.
    pub tokens: usize,
}

impl Answer {
    /// Returns the answer's tokens per second, over the whole time including the prompt's.
    #[must_use]
    pub fn tokens_per_second(&self) -> f64 {
        tokens_per_second(self.tokens.len(), self.total_ns)
    }

    /// Returns the tokens per second of decoding: those after the first step, over the time since
    /// its tokens were there. 0 if the answer has only one step.
    #[must_use]
    pub fn decode_tokens_per_second(&self) -> f64 {
        let first = self.commits.first().map_or(0, |commit| commit.tokens);
        let total_ns = self.total_ns.saturating_sub(self.first_token_ns);
        tokens_per_second(self.tokens.len().saturating_sub(first), total_ns)
    }

    /// Returns how many tokens of the prompt were held in the target's cache, so that nothing was
    /// computed for them; 0 if the workers do not record passes.
    #[must_use]
    pub fn cached_prompt_tokens(&self) -> usize {
        let scores = self.trace.spans.iter().filter(|span| span.kind == SpanKind::Score);
        let first = scores.filter(|span| span.computed_tokens > 0).min_by_key(|span| span.start_ns);
        // Of the scored rows, all but the first are drafted tokens.
        let computed =
            |span: &Span| span.computed_tokens.saturating_sub(span.rows.saturating_sub(1));
        first.map_or(0, |span| self.prompt_tokens.saturating_sub(computed(span)))
    }

    /// Summarises the answer in one line: speed; mean accepted tokens (MAT) and acceptance by draft
    /// position, if there were drafts; the draft tokens of each drafter, if there are several; the
    /// share of the time in which drafter and target worked together, if there is one; the passes of
    /// paced devices; why drafting paused, if it did in most steps; failures.
    #[must_use]
    pub fn summary(&self) -> String {
        let statistics = &self.statistics;
        if self.tokens.is_empty() {
            return "no tokens".into();
        }
        let mut line = format!(
            "{} token{}, {:.1} tokens/s, first after {:.1} ms",
            self.tokens.len(),
            if self.tokens.len() == 1 { "" } else { "s" },
            self.tokens_per_second(),
            self.first_token_ns as f64 / 1e6,
        );
        if statistics.drafts > 0 {
            line += &format!(
                " | {:.2} tokens a pass (MAT) | accepted {:.0} % of tested draft tokens",
                statistics.mean_accepted_tokens(),
                statistics.acceptance_rate() * 100.0,
            );
        }
        let by_drafter = &statistics.draft_tokens_by_drafter;
        if by_drafter.len() > 1 {
            let counts: Vec<String> = by_drafter.iter().map(ToString::to_string).collect();
            line += &format!(" | draft tokens by drafter: {}", counts.join(", "));
        }
        let wall_ns = self.trace.occupancy().wall_ns.max(1);
        let together = (self.trace.together_ns() as f64 * 100.0 / wall_ns as f64).round();
        if together > 0.0 {
            line += &format!(" | drafter and target together {together} % of the time");
        }
        line.extend(self.paced.iter().map(|paced| format!(" | {paced}")));
        let reasons = self.trace.reasons();
        let steps: u64 = reasons.iter().map(|reason| reason.steps).sum();
        let pauses = || reasons.iter().filter(|reason| !reason.drafts);
        let paused: u64 = pauses().map(|reason| reason.steps).sum();
        let says_why =
            steps >= FEWEST_STEPS && paused * 2 > steps && statistics.failures.is_empty();
        if let Some(reason) = pauses().next().filter(|_| says_why) {
            line += &format!(" | drafting paused in {paused} of {steps} steps: {}", reason.words);
        }
        for failure in &statistics.failures {
            line += &format!(" | {failure}; decoding continued without it");
        }
        line
    }
}

/// The fewest steps of an answer that says why drafting paused.
const FEWEST_STEPS: u64 = 16;

/// Returns the tokens per second of `tokens` tokens that took `total_ns` nanoseconds.
#[must_use]
pub fn tokens_per_second(tokens: usize, total_ns: u64) -> f64 {
    tokens as f64 / (total_ns.max(1) as f64 / 1e9)
}
