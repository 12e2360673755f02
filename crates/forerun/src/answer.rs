//! An answer and what it cost.

use forerun_core::trace::Trace;
use forerun_core::{TokenId, TokenLogprob, Verification};
use forerun_decode::{Finish, Statistics, VerificationRecord};
use serde::{Deserialize, Serialize};

/// A finished answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The text, as it was streamed.
    pub text: String,
    /// The tokens behind the prompt: those of the text, and those that ended it (an end-of-sequence
    /// token, or the tokens of a stop string).
    pub tokens: Vec<TokenId>,
    /// Log-probabilities in the place of each of these tokens, if they were asked for.
    pub logprobs: Option<Vec<TokenLogprob>>,
    /// Number of the prompt's tokens.
    pub prompt_tokens: usize,
    /// Why it ended.
    pub finish: Finish,
    /// The seed of its draws. Asked for again with the same verification, it gives the same text if it was
    /// asked for this time, too, or verification is coupled. Rejection sampling draws other numbers
    /// where drafting followed measured times, as it may without a seed.
    pub seed: u64,
    /// How drafts were verified.
    pub verification: Verification,
    /// From the request to the first token.
    pub first_token_ns: u64,
    /// From the request to the last token.
    pub total_ns: u64,
    /// When tokens became certain, in order: those of one step come together. They add up to
    /// [`Answer::tokens`].
    pub commits: Vec<Commit>,
    /// What each verification came to, in order. A stop string may end the answer before all of their
    /// tokens are told.
    pub verifications: Vec<VerificationRecord>,
    /// Counters of drafting and verification.
    pub statistics: Statistics,
    /// What every device group did, and when.
    pub trace: Trace,
}

/// Tokens that became certain at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Commit {
    /// From the request on, in nanoseconds.
    pub at_ns: u64,
    /// How many tokens.
    pub tokens: usize,
}

impl Answer {
    /// Tokens of the answer over the whole time, the prompt's included.
    #[must_use]
    pub fn tokens_per_second(&self) -> f64 {
        self.tokens.len() as f64 / (self.total_ns.max(1) as f64 / 1e9)
    }

    /// One line: speed, mean accepted tokens, acceptance per draft position, the share of the time in
    /// which devices ran side by side, and what failed.
    #[must_use]
    pub fn summary(&self) -> String {
        let statistics = &self.statistics;
        if self.tokens.is_empty() {
            return "no tokens".into();
        }
        let mut line = format!(
            "{} token{}, {:.1} tokens/s, first after {:.1} ms | MAT {:.2}",
            self.tokens.len(),
            if self.tokens.len() == 1 { "" } else { "s" },
            self.tokens_per_second(),
            self.first_token_ns as f64 / 1e6,
            statistics.mean_accepted_tokens(),
        );
        if statistics.drafts > 0 {
            let rates = statistics.acceptance_per_position();
            let shown: Vec<String> =
                rates.iter().map(|rate| format!("{:.0}", rate * 100.0)).collect();
            line += &format!(
                " | accepted {:.0} %, by position {} %",
                statistics.acceptance_rate() * 100.0,
                shown.join(" "),
            );
        }
        let overlap = self.trace.occupancy().overlap_share();
        line += &format!(" | devices side by side {:.0} % of the time", overlap * 100.0);
        for failure in &statistics.failures {
            line += &format!(" | {failure}; decoding went on without it");
        }
        line
    }
}
