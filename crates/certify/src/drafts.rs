//! What became of drafts: whether there were enough of them to certify anything, and whether a
//! drafter failed.

use forerun_decode::Statistics;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What became of the drafts of some answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drafts {
    /// The number of drafted tokens that the target verified: of each draft, those up to the first
    /// rejected one.
    pub drafted: usize,
    /// How many of them it accepted.
    pub accepted: usize,
    /// Drafters and replicas that failed, and why, once each. The answers went on without them.
    pub failures: Vec<String>,
}

/// The least number of drafted tokens of each kind of answers. If none of so many goes wrong,
/// mistakes that show in more than one of 20 are excluded with a confidence of 95 % (the rule of
/// three).
pub(crate) const LEAST_DRAFTED: usize = 60;

/// The least number of accepted ones among them: mistakes that show in more than three of 10 are
/// excluded. What follows an accepted token, such as a wrong cache or position, shows in all later
/// tokens, so fewer of them suffice.
pub(crate) const LEAST_ACCEPTED: usize = 10;

impl Drafts {
    /// Counts the drafts of an answer.
    pub(crate) fn count(&mut self, statistics: &Statistics) {
        let sum = |counts: &[u64]| counts.iter().sum::<u64>() as usize;
        self.add(&Self {
            drafted: sum(&statistics.tested),
            accepted: sum(&statistics.accepted),
            failures: statistics.failures.clone(),
        });
    }

    /// Adds the drafts of other answers.
    pub(crate) fn add(&mut self, other: &Self) {
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        for failure in &other.failures {
            if !self.failures.contains(failure) {
                self.failures.push(failure.clone());
            }
        }
    }

    /// Returns why so few drafts certify nothing; `None` if there are enough.
    pub(crate) fn shortfall(&self) -> Option<String> {
        let Self { drafted, accepted, .. } = self;
        if *drafted < LEAST_DRAFTED {
            return Some(format!("drafted only {drafted} tokens, but {LEAST_DRAFTED} are needed"));
        }
        (*accepted < LEAST_ACCEPTED).then(|| {
            format!(
                "only {accepted} of {drafted} drafted tokens were accepted, but {LEAST_ACCEPTED} are needed: rejection was \
                 tested, acceptance was not"
            )
        })
    }
}

impl fmt::Display for Drafts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} drafted tokens accepted", self.accepted, self.drafted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_drafted_or_accepted_tokens_certify_nothing() {
        let shortfall = |drafted, accepted| {
            Drafts { drafted, accepted, ..Drafts::default() }.shortfall().unwrap_or_default()
        };
        assert_eq!(shortfall(LEAST_DRAFTED, LEAST_ACCEPTED), "");
        assert!(shortfall(0, 0).contains("drafted only 0 tokens"));
        assert!(shortfall(LEAST_DRAFTED - 1, LEAST_DRAFTED - 1).contains("drafted only 59 tokens"));
        let hopeless = shortfall(2_000, LEAST_ACCEPTED - 1);
        assert!(hopeless.contains("only 9 of 2000") && hopeless.contains("acceptance was not"));
    }

    #[test]
    fn a_failure_is_reported_once() {
        let failed = |reason: &str| Statistics {
            tested: vec![3, 1],
            accepted: vec![1],
            failures: vec![reason.into()],
            ..Statistics::default()
        };
        let mut drafts = Drafts::default();
        for reason in ["drafter 0 failed: a", "drafter 0 failed: a", "drafter 1 failed: b"] {
            drafts.count(&failed(reason));
        }
        assert_eq!((drafts.drafted, drafts.accepted), (12, 3));
        assert_eq!(drafts.failures, ["drafter 0 failed: a", "drafter 1 failed: b"]);
    }
}
