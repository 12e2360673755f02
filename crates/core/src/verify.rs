//! Verification: which candidates the target accepts, and the token it adds itself.
//!
//! One function serves every method, since a chain is a tree and a greedy or coupled row is a
//! point mass. Sources: Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (2302.01318)
//! for sampled chains; SpecInfer (2305.09781) and ParallelSpec's algorithm 1 (2410.05589) for
//! siblings drawn independently; Daliri et al. 2024 (2408.07978) for coupled rows; DSI's algorithm 1
//! (2405.14105) for chains of several drafters.

use crate::{Distribution, Draft, Key, Node, Proposal, Purpose, Randomness, TokenId, TokenTree};
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
        let children = draft.tree.children(at).enumerate();
        let candidates = children.map(|(number, node)| Candidate {
            number: number as u32,
            node,
            token: draft.tree.token(node),
            proposed: proposed_at(draft, at),
        });
        match descend(candidates, row, here, randomness) {
            Descent::Accepted(candidate) => {
                accepted.push(candidate.node);
                at = Some(candidate.node);
            }
            Descent::Stopped { left, rejected } => {
                let key = Key { position: here, purpose: Purpose::Sample, candidate: 0 };
                let token = Some(left.pick(randomness, key));
                return Verdict { accepted, token, rejected: rejected.is_some() };
            }
        }
    }
}

/// Verifies chains of several drafters, each with its drafter's index, whose first tokens stand for
/// absolute position `position`.
///
/// Where there are several, each is tested as if its tokens were a function of those before them, whatever
/// they were drawn from: which drafters have got how far may follow from what others drew, and only this
/// test is exact then (for a given candidate `x`, `x` is accepted with probability `p[x]`, else
/// `p[x]` is left out). It accepts `Σ p·q` where the other one accepts `Σ min(p, q)`.
///
/// `rows[n]` is the target's distribution of the token behind the first `n` tokens of `path`. At every
/// position the chains that agree with what was accepted are tested in their order, each with a key of its
/// own against what the rejections before it left. An accepted token may lead away from `path`, behind
/// which there is no row.
///
/// Returns the chain that was walked, which is what was accepted and behind it a rejected token if there
/// is one, and the verdict, whose nodes are that chain's.
#[must_use]
pub fn verify_chains(
    chains: &[(usize, &Draft)],
    path: &[TokenId],
    rows: &[Distribution],
    position: usize,
    randomness: &dyn Randomness,
) -> (TokenTree, Verdict) {
    let mut walked: Vec<TokenId> = Vec::new();
    let alone = chains.len() == 1;
    loop {
        let depth = walked.len();
        let verdict = |token, rejected| Verdict { accepted: (0..depth).collect(), token, rejected };
        let is_behind = path.get(..depth) == Some(&walked[..]);
        let Some(row) = rows.get(depth).filter(|_| is_behind) else {
            return (TokenTree::chain(&walked), verdict(None, false));
        };
        let here = position + depth;
        let candidates = chains.iter().filter_map(|&(drafter, draft)| {
            let token = *draft.tree.tokens().strip_prefix(&walked[..])?.first()?;
            let proposed = proposed_at(draft, depth.checked_sub(1)).filter(|_| alone);
            Some(Candidate { number: drafter as u32, node: depth, token, proposed })
        });
        match descend(candidates, row, here, randomness) {
            Descent::Accepted(candidate) => walked.push(candidate.token),
            Descent::Stopped { left, rejected } => {
                let key = Key { position: here, purpose: Purpose::Sample, candidate: 0 };
                let verdict = verdict(Some(left.pick(randomness, key)), rejected.is_some());
                walked.extend(rejected);
                return (TokenTree::chain(&walked), verdict);
            }
        }
    }
}

/// A token that may stand at a position.
struct Candidate<'a> {
    /// Its number among the candidates of all drafts that there may be there.
    number: u32,
    node: Node,
    token: TokenId,
    /// What it was drawn from, unless it is a function of the tokens before it.
    proposed: Option<&'a Distribution>,
}

/// What children of a node were drawn from.
fn proposed_at(draft: &Draft, at: Option<Node>) -> Option<&Distribution> {
    match &draft.proposal {
        Proposal::Sampled(proposed) => Some(&proposed[row_of(at)]),
        Proposal::Deterministic => None,
    }
}

/// One step of the walk down the tree.
enum Descent<'a> {
    Accepted(Candidate<'a>),
    /// `rejected` is the first token that was.
    Stopped {
        left: Cow<'a, Distribution>,
        rejected: Option<TokenId>,
    },
}

/// Tries candidates in order; `left` is the target's distribution given the rejections so far.
fn descend<'a>(
    candidates: impl Iterator<Item = Candidate<'a>>,
    target: &'a Distribution,
    position: usize,
    randomness: &dyn Randomness,
) -> Descent<'a> {
    let mut left = Cow::Borrowed(target);
    let mut rejected = None;
    for candidate in candidates {
        let Candidate { number, token, proposed, .. } = candidate;
        let key = Key { position, purpose: Purpose::Accept, candidate: number };
        let chance = left.probability(token) / proposed.map_or(1.0, |q| q.probability(token));
        if accepts(randomness, key, chance) {
            return Descent::Accepted(candidate);
        }
        match proposed.map_or_else(|| left.without(token), |q| left.residual(q)) {
            Some(rest) => left = Cow::Owned(rest),
            // Nothing would be left: both agree up to rounding, and the token is accepted.
            None => return Descent::Accepted(candidate),
        }
        rejected.get_or_insert(token);
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
