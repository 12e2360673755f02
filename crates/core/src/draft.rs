//! What a drafter is asked for and what it answers.

use crate::{Distribution, TokenTree};
use serde::{Deserialize, Serialize};

/// The candidates that a drafter is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DraftShape {
    /// A chain of up to `length` tokens, each drawn from the drafter's distribution.
    Chain {
        /// Number of tokens (γ).
        length: usize,
    },
    /// Deterministic candidates: each depth keeps the `width` best nodes by cumulative probability
    /// (EasySpec's tree attention; its ALGORITHMS entry is §2).
    Top {
        /// Nodes kept at each depth.
        width: usize,
        /// Number of depths.
        depth: usize,
        /// Nodes of the whole tree at most: of all children considered, expanded or not, the best
        /// stay (EAGLE-2's reranking). `None` keeps every depth's `width`.
        budget: Option<usize>,
    },
    /// Siblings drawn independently from the drafter's distribution (SpecInfer): every node of
    /// depth `d` gets `branching[d]` children, the prefix being depth 0.
    Sampled {
        /// Children of each node, by depth.
        branching: Vec<usize>,
    },
    /// A deterministic chain, and phrases behind its last token as branches of one tree (Ouroboros).
    Phrases {
        /// Tokens of the chain (γ).
        length: usize,
        /// Phrases at the most.
        width: usize,
        /// Tokens of a phrase at the most.
        phrase: usize,
        /// Nodes of the whole tree at most, if that is bounded.
        budget: Option<usize>,
    },
}

impl DraftShape {
    /// The largest number of consecutive tokens that the shape can add.
    #[must_use]
    pub fn depth(&self) -> usize {
        match self {
            Self::Chain { length } => *length,
            Self::Top { depth, .. } => *depth,
            Self::Sampled { branching } => branching.len(),
            Self::Phrases { length, phrase, .. } => length.saturating_add(*phrase),
        }
    }

    /// The number of draft tokens that decoders decide on: the depth but for phrases, which lengthen a
    /// draft at no cost of the drafter's.
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            Self::Phrases { length, .. } => *length,
            _ => self.depth(),
        }
    }

    /// The same shape of at most `length` draft tokens. Phrases stay behind them; without any there are
    /// none.
    #[must_use]
    pub fn with_draft_tokens(&self, length: usize) -> Self {
        match *self {
            Self::Phrases { length: own, width, phrase, budget } if length > 0 => {
                Self::Phrases { length: length.min(own), width, phrase, budget }
            }
            _ => self.truncated(length),
        }
    }

    /// The same shape, cut to at most `depth` tokens in a row: phrases first, what the drafter makes
    /// itself last.
    #[must_use]
    pub fn truncated(&self, depth: usize) -> Self {
        match self {
            Self::Chain { length } => Self::Chain { length: depth.min(*length) },
            Self::Top { width, depth: own, budget } => {
                Self::Top { width: *width, depth: depth.min(*own), budget: *budget }
            }
            Self::Sampled { branching } => {
                Self::Sampled { branching: branching.iter().copied().take(depth).collect() }
            }
            Self::Phrases { length, width, phrase, budget } => {
                let length = depth.min(*length);
                let phrase = (depth - length).min(*phrase);
                Self::Phrases { length, width: *width, phrase, budget: *budget }
            }
        }
    }

    /// An upper bound of the number of nodes.
    #[must_use]
    pub fn max_nodes(&self) -> usize {
        match self {
            Self::Chain { length } => *length,
            Self::Top { width, depth, budget: None } => width.saturating_mul(*depth),
            Self::Top { width, depth, budget: Some(budget) } => {
                // The prefix has one row to expand, every later depth `width`.
                let rows = depth.saturating_sub(1).saturating_mul(*width).saturating_add(1);
                if *depth == 0 { 0 } else { rows.saturating_mul(*width).min(*budget) }
            }
            Self::Sampled { branching } => {
                let mut level = 1_usize;
                branching.iter().fold(0_usize, |nodes, &children| {
                    level = level.saturating_mul(children);
                    nodes.saturating_add(level)
                })
            }
            Self::Phrases { length, width, phrase, budget } => {
                let nodes = width.saturating_mul(*phrase).saturating_add(*length);
                nodes.min(budget.unwrap_or(usize::MAX))
            }
        }
    }
}

/// How candidates were made, which decides how they must be verified.
///
/// There is no third kind for coupled verification: a coupled (or greedy) target row is a point
/// mass on the token that the target emits there, and both rules below then accept exactly it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Proposal {
    /// Children of a row were drawn independently from the distribution at the row's index: 0 is
    /// the prefix, `node + 1` a node. Rows without children hold an empty one.
    Sampled(Vec<Distribution>),
    /// Candidates are a function of the tokens before them (top-k, n-gram matches, coupled draws).
    Deterministic,
}

/// A drafter's answer: candidates and how they were made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Draft {
    /// The candidates.
    pub tree: TokenTree,
    /// How they were made.
    pub proposal: Proposal,
}

impl Draft {
    /// Whether every candidate can have been drawn from its row's distribution, as verification takes
    /// for granted. A draft that comes from elsewhere has to be asked.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let Proposal::Sampled(proposed) = &self.proposal else { return true };
        (0..self.tree.len()).all(|node| {
            let row = self.tree.parent(node).map_or(0, |parent| parent + 1);
            proposed.get(row).is_some_and(|row| row.probability(self.tree.token(node)) > 0.0)
        })
    }

    /// No candidates at all: verification then draws the target's next token.
    #[must_use]
    pub fn empty() -> Self {
        Self { tree: TokenTree::new(), proposal: Proposal::Deterministic }
    }

    /// Hangs a chain behind the last token of this chain, as one that was drafted further. Returns
    /// whether that was possible: both must be chains, and made in the same way unless one is empty.
    #[must_use]
    pub fn extend(&mut self, further: Self) -> bool {
        if !self.tree.is_chain() || !further.tree.is_chain() {
            return false;
        }
        if self.tree.is_empty() {
            *self = further;
            return true;
        }
        match (&mut self.proposal, further.proposal) {
            _ if further.tree.is_empty() => return true,
            (Proposal::Sampled(rows), Proposal::Sampled(more)) => {
                // The row behind the last token was empty as long as nothing was drawn from it.
                rows.truncate(self.tree.len());
                rows.extend(more);
            }
            (Proposal::Deterministic, Proposal::Deterministic) => {}
            _ => return false,
        }
        self.tree.extend_chain(self.tree.len().checked_sub(1), further.tree.tokens());
        true
    }

    /// Takes the first tokens off a chain, as they have been committed.
    pub fn drop_first(&mut self, count: usize) {
        self.tree = TokenTree::chain(&self.tree.tokens()[count.min(self.tree.len())..]);
        if let Proposal::Sampled(rows) = &mut self.proposal {
            rows.drain(..count.min(rows.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenId;

    fn sampled(tokens: &[TokenId]) -> Draft {
        let rows = tokens.iter().map(|&token| Distribution::point(token));
        let rows = rows.chain([Distribution::default()]).collect();
        Draft { tree: TokenTree::chain(tokens), proposal: Proposal::Sampled(rows) }
    }

    fn looked_up(tokens: &[TokenId]) -> Draft {
        Draft { tree: TokenTree::chain(tokens), proposal: Proposal::Deterministic }
    }

    #[test]
    fn chains_grow_at_their_end_and_lose_their_beginning() {
        for make in [sampled, looked_up] {
            let mut draft = Draft::empty();
            assert!(draft.extend(make(&[1])) && draft.extend(make(&[2, 3])));
            assert!(draft.extend(Draft::empty()) && draft.extend(make(&[4])));
            assert_eq!(draft, make(&[1, 2, 3, 4]));
            assert!(draft.is_consistent());
            draft.drop_first(3);
            assert_eq!(draft, make(&[4]));
            assert!(draft.extend(make(&[5])));
            assert_eq!(draft, make(&[4, 5]));
            draft.drop_first(2);
            assert!(draft.tree.is_empty() && draft.extend(make(&[6])));
            assert_eq!(draft, make(&[6]));
        }
    }

    #[test]
    fn phrases_are_cut_first_and_no_part_of_a_draft_length() {
        let phrases =
            |length, phrase| DraftShape::Phrases { length, width: 3, phrase, budget: Some(15) };
        let whole = phrases(5, 4);
        assert_eq!((whole.depth(), whole.length(), whole.max_nodes()), (9, 5, 15));
        for (depth, length, phrase) in [(20, 5, 4), (9, 5, 4), (6, 5, 1), (5, 5, 0), (2, 2, 0)] {
            assert_eq!(whole.truncated(depth), phrases(length, phrase));
        }
        assert_eq!(
            (whole.with_draft_tokens(9), whole.with_draft_tokens(2)),
            (whole.clone(), phrases(2, 4))
        );
        assert_eq!((whole.with_draft_tokens(0).depth(), phrases(2, 1).max_nodes()), (0, 5));
        // Others have no phrases.
        let chain = DraftShape::Chain { length: 5 };
        assert_eq!((chain.length(), chain.with_draft_tokens(3)), (5, chain.truncated(3)));
    }

    #[test]
    fn what_is_no_chain_or_made_otherwise_does_not_fit_behind() {
        let mut siblings = TokenTree::new();
        siblings.push(None, 1);
        siblings.push(None, 2);
        let siblings = Draft { tree: siblings, proposal: Proposal::Deterministic };
        assert!(!looked_up(&[1]).extend(siblings.clone()) && !Draft::empty().extend(siblings));
        assert!(!looked_up(&[1]).extend(sampled(&[2])) && !sampled(&[1]).extend(looked_up(&[2])));
    }
}
