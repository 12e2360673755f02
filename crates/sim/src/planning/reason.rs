//! Why a configuration is faster or slower than plain decoding.

use super::predict::Answers;
use super::{DrafterRecord, PlannedDraft};
use crate::SimError;
use forerun_decode::DraftPattern;
use serde::{Serialize, Serializer};
use std::fmt;

/// Why a configuration is faster or slower than plain decoding.
#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    /// Plain decoding.
    Plain {
        /// The time of a token compared with plain decoding on all cores.
        relative_time: f64,
    },
    /// It pays.
    Pays {
        /// The number of tokens of a target pass.
        tokens_per_pass: f64,
        /// The time of a draft token, as a share of a plain token's.
        drafter_cost: f64,
    },
    /// The draft tokens cost too much.
    DrafterTooSlow {
        /// The number of tokens of a target pass.
        tokens_per_pass: f64,
        /// The time of a draft token, as a share of a plain token's.
        drafter_cost: f64,
        /// The share at which it would be as fast as plain decoding.
        break_even: f64,
    },
    /// Even a drafter that costs nothing would not pay.
    VerificationTooSlow {
        /// The number of tokens of a target pass.
        tokens_per_pass: f64,
        /// The time of a round without its draft, in plain tokens.
        verification: f64,
    },
    /// The target's part of the cores is too slow.
    TargetTooSlow {
        /// The number of tokens of a target pass.
        tokens_per_pass: f64,
        /// The time of a round, in plain tokens.
        round: f64,
        /// The time of a pass of one row on the target's part of the cores, in plain tokens.
        one_row: f64,
    },
}

impl Reason {
    /// Returns the reason for a time of `ns` for a token, compared with `plain_ns`.
    pub(super) fn of(
        answers: &Answers<'_>,
        draft: PlannedDraft,
        plain_ns: f64,
        ns: f64,
        tokens_per_pass: f64,
    ) -> Result<Self, SimError> {
        let timing = answers.timing;
        let (target, drafter) = timing.costs()?;
        let Some(drafter) = drafter else {
            return Ok(Self::Plain { relative_time: ns / plain_ns });
        };
        // The planner drafts as many tokens as are accepted on average, or none.
        let typical = (tokens_per_pass.round() as usize).saturating_sub(1).max(1);
        let shape = match draft.size() {
            Some(_) => draft.shape(),
            None => PlannedDraft::Chain(typical).shape(),
        };
        let pattern = answers.drafter.map_or_else(DraftPattern::default, DrafterRecord::pattern);
        let shape = shape.truncated(pattern.positions.unwrap_or(usize::MAX));
        let tokens = shape.max_nodes();
        let scale = timing.scale_of(draft);
        let one_ns = drafter.forward.ns(1);
        let rows_ns = |rows: &usize| drafter.forward.ns(*rows).saturating_sub(one_ns);
        let further = if pattern.one_forward { Vec::new() } else { shape.parents_by_depth() };
        let further = further.iter().skip(1).map(|rows| drafter.next_pass_ns(1) + rows_ns(rows));
        let draft_ns = one_ns + 2 * drafter.link_ns + further.sum::<u64>();
        let drafter_cost = draft_ns as f64 * scale / tokens as f64 / plain_ns;
        if ns <= plain_ns {
            return Ok(Self::Pays { tokens_per_pass, drafter_cost });
        }
        let round = tokens_per_pass * ns / plain_ns;
        if timing.method != "speculative" {
            let one_row_ns = (target.forward.ns(1) + 2 * target.link_ns) as f64 * scale;
            return Ok(Self::TargetTooSlow {
                tokens_per_pass,
                round,
                one_row: one_row_ns / plain_ns,
            });
        }
        // A round takes longer than its plain tokens, so a draft token costs more than this allows.
        let verification = round - tokens as f64 * drafter_cost;
        let break_even = (tokens_per_pass - verification) / tokens as f64;
        Ok(match break_even > 0.0 {
            true => Self::DrafterTooSlow { tokens_per_pass, drafter_cost, break_even },
            false => Self::VerificationTooSlow { tokens_per_pass, verification },
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain { relative_time } if *relative_time <= 1.0 => {
                write!(f, "one pass for each token")
            }
            Self::Plain { relative_time } => {
                write!(f, "a pass takes {relative_time:.2} times as long as on all cores")
            }
            Self::Pays { tokens_per_pass, drafter_cost } => write!(
                f,
                "{tokens_per_pass:.2} tokens a pass; a draft token costs {drafter_cost:.2} of a plain token"
            ),
            Self::DrafterTooSlow { tokens_per_pass, drafter_cost, break_even } => write!(
                f,
                "a draft token costs {drafter_cost:.2} of a plain token; for {tokens_per_pass:.2} \
                 tokens a pass, it would have to cost {break_even:.2}"
            ),
            Self::VerificationTooSlow { tokens_per_pass, verification } => write!(
                f,
                "verifying takes {verification:.2} times as long as a plain token, for \
                 {tokens_per_pass:.2} tokens a pass: no drafter would be cheap enough"
            ),
            Self::TargetTooSlow { tokens_per_pass, round, one_row } => write!(
                f,
                "a pass takes {round:.2} times as long as a plain token and gives \
                 {tokens_per_pass:.2}, counting passes that a rejection makes useless; one row \
                 alone takes {one_row:.2} on the target's cores"
            ),
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
