//! Block verification: tests a whole draft, from its ends up.
//!
//! *Block Verification Accelerates Speculative Decoding*, Sun et al. 2024, arXiv 2403.10444,
//! algorithm
//! 2. The rule of [`verify`] tests one token after another, and drops everything after the first
//! rejection. A block test accepts a longer part of the same draft as often as any exact rule can,
//! and on average more than that rule (theorems 2 and 3).
//!
//! The paper's rule, written for a chain, is this. Let `chance` of the prefix be 1, and of a draft
//! token `min(1, chance of the token before · target / draft)`. The last token is accepted with its
//! chance. If it is not, the token before it is, with the probability
//!
//! ```text
//! excess / (excess + 1 − chance)      excess = Σ max(0, chance · target − draft)
//! ```
//!
//! and so on towards the prefix. The correction is drawn from the excess of the last accepted
//! token.
//!
//! On a tree of siblings drawn independently, the same step applies to each child in turn. If
//! nothing below a child was accepted, the excess is the distribution that remains for the next
//! child, and the fraction above is its chance. A chain has one child at each node.

use crate::{
    Distribution, Draft, Key, Node, Proposal, Purpose, Randomness, TokenTree, Verdict, row_of,
    verify,
};
use std::borrow::Cow;

/// Verifies a draft as a whole. The parameters are those of [`verify`].
///
/// The committed tokens have exactly the target's distribution. On average at least as many are
/// accepted as by [`verify`]. Candidates that were not drawn are tested as [`verify`] does, since
/// no rule accepts more of them.
///
/// Which tokens are accepted depends on the later tokens of the draft. So a position that is
/// drafted again in the next round needs new random numbers, unlike with [`verify`]. Drafts must
/// therefore be drawn with the keys of [`draft_key`](crate::draft_key), and a draft must be one
/// job.
///
/// ```rust
/// use forerun_core::{
///     Distribution, Draft, KeyedRandomness, Proposal, TokenTree, verify_block,
/// };
///
/// // The target makes the second token so probable that it makes up for the first one.
/// let target = [[(7, 0.2), (8, 0.8)], [(7, 0.1), (8, 0.9)], [(7, 0.5), (8, 0.5)]];
/// let rows = target.map(Distribution::from_weights);
/// let drafted = [[(7, 0.8), (8, 0.2)], [(7, 0.8), (8, 0.2)]];
/// let drafted = drafted.map(Distribution::from_weights).into();
/// let draft = Draft::new(TokenTree::chain(&[7, 8]), Proposal::Sampled(drafted));
///
/// let randomness = KeyedRandomness { seed: 0, sample: 0 };
/// let verdict = verify_block(&draft, &rows, 100, &randomness);
/// // The chances are min(1, 0.2 / 0.8), then min(1, 0.25 · 0.9 / 0.2).
/// assert_eq!(verdict.accepted, [0, 1]);
/// ```
#[must_use]
pub fn verify_block(
    draft: &Draft,
    rows: &[Distribution],
    position: usize,
    randomness: &dyn Randomness,
) -> Verdict {
    let whole = match &draft.proposal {
        Proposal::Deterministic => None,
        Proposal::Sampled(proposed) => {
            Block { tree: &draft.tree, proposed, rows, position, randomness }.accept(None, 1.0)
        }
    };
    whole.unwrap_or_else(|| verify(draft, rows, position, randomness))
}

struct Block<'a> {
    tree: &'a TokenTree,
    proposed: &'a [Distribution],
    rows: &'a [Distribution],
    position: usize,
    randomness: &'a dyn Randomness,
}

impl Block<'_> {
    /// Accepts a node with this probability, with as much below it as possible. Returns the
    /// verdict; `None` if the node is rejected. The prefix, whose chance is 1, is always accepted.
    fn accept(&self, at: Option<Node>, mut chance: f64) -> Option<Verdict> {
        let Some(row) = self.rows.get(row_of(at)) else {
            return self.is_accepted(at, chance).then(|| Verdict {
                accepted: self.path(at),
                token: None,
                rejected: false,
            });
        };
        let mut rest = Cow::Borrowed(row);
        let mut rejected = false;
        for child in self.tree.children(at) {
            let (token, proposed) = (self.tree.token(child), &self.proposed[row_of(at)]);
            let ratio = rest.probability(token) / proposed.probability(token);
            let verdict = self.accept(Some(child), (chance * ratio).min(1.0));
            if verdict.is_some() {
                return verdict;
            }
            rejected = true;
            match rest.excess(chance, proposed) {
                Some(excess) => {
                    let mass = excess.total();
                    chance = mass / (mass + 1.0 - chance);
                    rest = Cow::Owned(excess);
                }
                // Target and draft agree up to rounding.
                None if chance >= 1.0 => break,
                None => return None,
            }
        }
        self.is_accepted(at, chance).then(|| {
            let accepted = self.path(at);
            let position = self.position + accepted.len();
            let key = Key { position, purpose: Purpose::Sample, candidate: 0 };
            Verdict { accepted, token: Some(rest.pick(self.randomness, key)), rejected }
        })
    }

    /// Tests a node after everything below it was rejected.
    fn is_accepted(&self, at: Option<Node>, chance: f64) -> bool {
        // The number of the row, because several nodes of a depth are tested.
        let candidate = row_of(at) as u32;
        let key = Key { position: self.position, purpose: Purpose::Accept, candidate };
        chance >= 1.0 || (chance > 0.0 && self.randomness.below(key, chance))
    }

    fn path(&self, at: Option<Node>) -> Vec<Node> {
        at.map_or_else(Vec::new, |node| self.tree.path(node))
    }
}
