//! Verification: decides which candidates the target accepts, and which token it adds.
//!
//! One function serves every method, because a chain is a tree, and a greedy or coupled row is a
//! point mass. Sources:
//!
//! * sampled chains: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318);
//! * siblings drawn independently: SpecInfer (arXiv 2305.09781), algorithm 1 of ParallelSpec (arXiv
//!   2410.05589);
//! * coupled rows: Daliri et al. 2024 (arXiv 2408.07978);
//! * chains of several drafters: algorithm 1 of DSI (arXiv 2405.14105);
//! * drawn and given candidates for one position: each is tested against what the rejections before
//!   it leave.

use crate::{Distribution, Draft, Key, Node, Purpose, Randomness, TokenId, TokenTree, row_of};
use std::borrow::Cow;

/// The result of verifying one draft.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The nodes of the accepted path, from the prefix down.
    pub accepted: Vec<Node>,
    /// The target's own token after the path: the correction after a rejection, else the bonus
    /// token. `None` if the path ends at a node without a row.
    pub token: Option<TokenId>,
    /// Whether the accepted path had further candidates, all of which were rejected.
    pub rejected: bool,
}

/// Verifies a draft. Its first candidates are for absolute position `position`.
///
/// `rows` holds the target's distributions: `rows[0]` for the token at `position`, and
/// `rows[node + 1]` for the token after `node` ([`row_of`]). The same sampling options must apply
/// to them as to the drafter's. The last nodes may lack a row, because drafting may be ahead of
/// scoring. The committed tokens, `accepted` followed by `token`, have exactly the target's
/// distribution.
///
/// ```rust
/// use forerun_core::{Distribution, Draft, KeyedRandomness, Proposal, TokenTree, verify};
///
/// // The drafter proposes 7 8 9. After 7 and 8 the target wants 5 instead of 9.
/// let draft = Draft::deterministic(TokenTree::chain(&[7, 8, 9]));
/// let rows = [7, 8, 5, 6].map(Distribution::point);
/// let randomness = KeyedRandomness { seed: 0, sample: 0 };
///
/// let verdict = verify(&draft, &rows, 100, &randomness);
/// assert_eq!(verdict.accepted, [0, 1]);
/// assert_eq!(verdict.token, Some(5));
/// assert!(verdict.rejected);
///
/// // If all draft tokens are accepted, the last row gives a bonus token.
/// let rows = [7, 8, 9, 6].map(Distribution::point);
/// let verdict = verify(&draft, &rows, 100, &randomness);
/// assert_eq!((verdict.accepted.len(), verdict.token), (3, Some(6)));
/// ```
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
        let candidates = draft.tree.children(at).enumerate().map(|(number, node)| Candidate {
            number: number as u32,
            node,
            token: draft.tree.token(node),
            proposed: draft.drawn_from(node),
        });
        match descend(candidates, row, here, randomness) {
            Descent::Accepted(candidate) => {
                accepted.push(candidate.node);
                at = Some(candidate.node);
            }
            Descent::Stopped { rest, rejected } => {
                let key = Key { position: here, purpose: Purpose::Sample, candidate: 0 };
                let token = Some(rest.pick(randomness, key));
                return Verdict { accepted, token, rejected: rejected.is_some() };
            }
        }
    }
}

/// Verifies the chains of several drafters, each given with its drafter's index. Their first tokens
/// are for absolute position `position`.
///
/// `rows[n]` is the target's distribution of the token after the first `n` tokens of `path`. At
/// every position, the chains that agree with the accepted tokens are tested in order. Each test
/// uses its own key, and the distribution that remains after the rejections before it. An accepted
/// token may leave `path`; the verdict ends there, because no row follows.
///
/// If there are several chains, each is tested as if its tokens were a function of the tokens
/// before them, even if they were drawn. How far a drafter has got may depend on what other
/// drafters drew, and only this test is exact then: a given candidate `x` is accepted with
/// probability `p[x]`, else `x` is removed from `p`. It accepts with probability `Σ p·q`; the test
/// of a single sampled chain accepts with probability `Σ min(p, q)`.
///
/// Returns the chain of the accepted tokens, followed by a rejected token if there is one, and the
/// verdict on that chain.
///
/// ```rust
/// use forerun_core::{Distribution, Draft, KeyedRandomness, Proposal, TokenTree, verify_chains};
///
/// // The first drafter's second token, 8, is wrong. The second drafter's, 4, is right, but the row
/// // after it was not scored.
/// let chains = [[7, 8, 9], [7, 4, 2]].map(|tokens| Draft::deterministic(TokenTree::chain(&tokens)));
/// let rows = [7, 4, 9].map(Distribution::point);
/// let randomness = KeyedRandomness { seed: 0, sample: 0 };
/// let chains = [(0, &chains[0]), (1, &chains[1])];
/// let (walked, verdict) = verify_chains(&chains, &[7, 8], &rows, 100, &randomness);
/// assert_eq!((walked.tokens(), verdict.accepted.len(), verdict.token), (&[7, 4][..], 2, None));
/// ```
#[must_use]
pub fn verify_chains(
    chains: &[(usize, &Draft)],
    path: &[TokenId],
    rows: &[Distribution],
    position: usize,
    randomness: &dyn Randomness,
) -> (TokenTree, Verdict) {
    let mut walked: Vec<TokenId> = Vec::new();
    let single = chains.len() == 1;
    loop {
        let depth = walked.len();
        let verdict = |token, rejected| Verdict { accepted: (0..depth).collect(), token, rejected };
        let on_path = path.get(..depth) == Some(&walked[..]);
        let Some(row) = rows.get(depth).filter(|_| on_path) else {
            return (TokenTree::chain(&walked), verdict(None, false));
        };
        let here = position + depth;
        let candidates = chains.iter().filter_map(|&(drafter, draft)| {
            let token = *draft.tree.tokens().strip_prefix(&walked[..])?.first()?;
            let proposed = draft.drawn_from(depth).filter(|_| single);
            Some(Candidate { number: drafter as u32, node: depth, token, proposed })
        });
        match descend(candidates, row, here, randomness) {
            Descent::Accepted(candidate) => walked.push(candidate.token),
            Descent::Stopped { rest, rejected } => {
                let key = Key { position: here, purpose: Purpose::Sample, candidate: 0 };
                let verdict = verdict(Some(rest.pick(randomness, key)), rejected.is_some());
                walked.extend(rejected);
                return (TokenTree::chain(&walked), verdict);
            }
        }
    }
}

/// A candidate token for one position.
struct Candidate<'a> {
    /// The number that distinguishes its key from those of other candidates for the position.
    number: u32,
    node: Node,
    token: TokenId,
    /// The distribution that it was drawn from, unless it is a function of the tokens before it.
    proposed: Option<&'a Distribution>,
}

/// The result of one step down the tree.
enum Descent<'a> {
    Accepted(Candidate<'a>),
    /// No candidate was accepted.
    Stopped {
        /// The target's distribution after the rejections.
        rest: Cow<'a, Distribution>,
        /// The first rejected token.
        rejected: Option<TokenId>,
    },
}

/// Tests candidates in order.
fn descend<'a>(
    candidates: impl Iterator<Item = Candidate<'a>>,
    target: &'a Distribution,
    position: usize,
    randomness: &dyn Randomness,
) -> Descent<'a> {
    let mut rest = Cow::Borrowed(target);
    let mut rejected = None;
    for candidate in candidates {
        let Candidate { number, token, proposed, .. } = candidate;
        let key = Key { position, purpose: Purpose::Accept, candidate: number };
        let probability = rest.probability(token) / proposed.map_or(1.0, |q| q.probability(token));
        if accepts(randomness, key, probability) {
            return Descent::Accepted(candidate);
        }
        match proposed.map_or_else(|| rest.without(token), |q| rest.residual(q)) {
            Some(remaining) => rest = Cow::Owned(remaining),
            // No mass remains: both agree up to rounding, so the token is accepted.
            None => return Descent::Accepted(candidate),
        }
        rejected.get_or_insert(token);
    }
    Descent::Stopped { rest, rejected }
}

/// Returns whether a candidate is accepted, which has this probability. A certain verdict uses no
/// randomness, so greedy and coupled runs draw none.
fn accepts(randomness: &dyn Randomness, key: Key, probability: f64) -> bool {
    probability >= 1.0 || (probability > 0.0 && randomness.below(key, probability))
}
