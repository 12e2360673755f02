//! Verification: which candidates the target accepts, and the token it adds itself.
//!
//! One function serves every method, since a chain is a tree and a greedy or coupled row is a
//! point mass. Sources: Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (2302.01318)
//! for sampled chains; SpecInfer (2305.09781) and ParallelSpec's algorithm 1 (2410.05589) for
//! siblings drawn independently; Daliri et al. 2024 (2408.07978) for coupled rows.

use crate::{Distribution, Draft, Key, Node, Proposal, Purpose, Randomness, TokenId};
use std::borrow::Cow;

/// The result of verifying one draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The accepted path, from the prefix down.
    pub accepted: Vec<Node>,
    /// The target's own token behind the path: the correction after a rejection, else the bonus. `None`
    /// where the path ends at a node without a row, so that nothing says what comes behind it.
    pub token: Option<TokenId>,
    /// Whether candidates stood behind the accepted path and all were rejected.
    pub rejected: bool,
}

/// Verifies a draft whose first candidates stand for absolute position `position`.
///
/// `rows` holds the target's distributions: `rows[0]` that of the token at `position`, and
/// `rows[node + 1]` that of the token behind `node`; all are warped as the drafter's were. The last
/// nodes may lack theirs, since drafting may be ahead of scoring. The committed tokens, `accepted` and
/// then `token`, are distributed exactly as the target's.
#[must_use]
pub fn verify(
    draft: &Draft,
    rows: &[Distribution],
    position: usize,
    randomness: &dyn Randomness,
) -> Verdict {
    let mut accepted = Vec::new();
    let mut at = None;
    loop {
        let here = position + accepted.len();
        let Some(row) = rows.get(row_of(at)) else {
            return Verdict { accepted, token: None, rejected: false };
        };
        match descend(draft, at, row, here, randomness) {
            Descent::Accepted(node) => {
                accepted.push(node);
                at = Some(node);
            }
            Descent::Stopped { left, rejected } => {
                let key = Key { position: here, purpose: Purpose::Sample, candidate: 0 };
                let token = Some(left.pick(randomness, key));
                return Verdict { accepted, token, rejected };
            }
        }
    }
}

/// One step of the walk down the tree.
enum Descent<'a> {
    Accepted(Node),
    Stopped { left: Cow<'a, Distribution>, rejected: bool },
}

/// Tries the children of `at` in order; `left` is the target's distribution given the rejections
/// so far.
fn descend<'a>(
    draft: &Draft,
    at: Option<Node>,
    target: &'a Distribution,
    position: usize,
    randomness: &dyn Randomness,
) -> Descent<'a> {
    let mut left = Cow::Borrowed(target);
    let mut rejected = false;
    for (candidate, node) in draft.tree.children(at).enumerate() {
        let key = Key { position, purpose: Purpose::Accept, candidate: candidate as u32 };
        let token = draft.tree.token(node);
        let proposed = match &draft.proposal {
            Proposal::Sampled(proposed) => Some(&proposed[row_of(at)]),
            Proposal::Deterministic => None,
        };
        let chance = left.probability(token) / proposed.map_or(1.0, |q| q.probability(token));
        if accepts(randomness, key, chance) {
            return Descent::Accepted(node);
        }
        match proposed.map_or_else(|| left.without(token), |q| left.residual(q)) {
            Some(rest) => left = Cow::Owned(rest),
            // Nothing would be left: both agree up to rounding, and the token is accepted.
            None => return Descent::Accepted(node),
        }
        rejected = true;
    }
    Descent::Stopped { left, rejected }
}

/// The index of a node's row; the prefix's is 0.
fn row_of(at: Option<Node>) -> usize {
    at.map_or(0, |node| node + 1)
}

/// A certain verdict asks no randomness, so greedy and coupled runs draw none.
fn accepts(randomness: &dyn Randomness, key: Key, chance: f64) -> bool {
    chance >= 1.0 || (chance > 0.0 && randomness.below(key, chance))
}
