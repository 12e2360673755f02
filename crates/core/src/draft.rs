//! Draft requests and drafts: the shape that a drafter is asked for, and the candidates that it
//! proposes.

use crate::{
    Distribution, Key, Node, Purpose, StopRule, TokenTree, Verification, node_of_row, row_of,
};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::{iter, mem};

/// The shape of a requested draft.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DraftShape {
    /// A chain of up to `length` tokens, each drawn from the drafter's distribution.
    Chain {
        /// Number of tokens (γ).
        length: usize,
    },
    /// A chain of up to `length` tokens that stops where the drafter is unsure. The draft has the
    /// drafter's [confidences](Draft::confidences). Drafters that do not know how sure they are
    /// draft the whole chain.
    ConfidentChain {
        /// The largest number of tokens.
        length: usize,
        /// Where it stops.
        stop: StopRule,
    },
    /// A tree of deterministic candidates: each depth keeps the `width` nodes with the highest
    /// cumulative probability (the tree of EasySpec, arXiv 2502.02493).
    Top {
        /// Number of nodes to keep at each depth.
        width: usize,
        /// Number of depths.
        depth: usize,
        /// Maximum number of nodes of the whole tree. The best of all considered children stay,
        /// whether they were expanded or not (the reranking of EAGLE-2, arXiv 2406.16858). `None`
        /// keeps `width` nodes at every depth.
        budget: Option<usize>,
    },
    /// A tree of siblings drawn independently from the drafter's distribution (SpecInfer, arXiv
    /// 2305.09781). Every node of depth `d` gets `branching[d]` children; the prefix has depth 0.
    Sampled {
        /// Number of children of each node, by depth.
        branching: Vec<usize>,
    },
    /// A deterministic chain with phrases after its last token, as branches of one tree (Ouroboros,
    /// arXiv 2402.13720).
    Phrases {
        /// Number of tokens of the chain (γ).
        length: usize,
        /// Maximum number of phrases.
        width: usize,
        /// Maximum number of tokens of a phrase.
        phrase: usize,
        /// Maximum number of nodes of the whole tree; `None` for no limit.
        budget: Option<usize>,
    },
    /// A tree of deterministic candidates, each given by its rank among those of its parent. So it
    /// can hold the nodes that are accepted most often (Medusa, arXiv 2401.10774, section 2.3.3).
    Ranked {
        /// The number of children of each row ([`row_of`]): its best candidates, best first. Nodes
        /// are in the order of their depths. Rows after the last entry have none.
        children: Vec<usize>,
    },
}

impl DraftShape {
    /// Returns the largest number of consecutive tokens that the shape can add.
    #[must_use]
    pub fn depth(&self) -> usize {
        match self {
            Self::Chain { length } | Self::ConfidentChain { length, .. } => *length,
            Self::Top { depth, .. } => *depth,
            Self::Sampled { branching } => branching.len(),
            Self::Ranked { children } => ranked_levels(children).count(),
            Self::Phrases { length, phrase, .. } => length.saturating_add(*phrase),
        }
    }

    /// Returns the number of draft tokens that a draft-length policy controls: the depth without
    /// phrases, which lengthen a draft at no cost to the drafter.
    #[must_use]
    pub fn length(&self) -> usize {
        match self {
            Self::Phrases { length, .. } => *length,
            _ => self.depth(),
        }
    }

    /// Returns the shape limited to `length` draft tokens, as counted by [`length`](Self::length).
    /// Phrases after them stay, unless `length` is 0.
    #[must_use]
    pub fn with_draft_tokens(&self, length: usize) -> Self {
        match *self {
            Self::Phrases { length: own, width, phrase, budget } if length > 0 => {
                Self::Phrases { length: length.min(own), width, phrase, budget }
            }
            _ => self.truncated(length),
        }
    }

    /// Returns the shape limited to `depth` consecutive tokens. Phrases are shortened first, then
    /// the drafter's own tokens.
    #[must_use]
    pub fn truncated(&self, depth: usize) -> Self {
        match self {
            Self::Chain { length } => Self::Chain { length: depth.min(*length) },
            Self::ConfidentChain { length, stop } => {
                Self::ConfidentChain { length: depth.min(*length), stop: *stop }
            }
            Self::Top { width, depth: own, budget } => {
                Self::Top { width: *width, depth: depth.min(*own), budget: *budget }
            }
            Self::Sampled { branching } => {
                Self::Sampled { branching: branching.iter().copied().take(depth).collect() }
            }
            Self::Ranked { children } => {
                let parents = ranked_levels(children).take(depth).last().map_or(0, |rows| rows.end);
                Self::Ranked { children: children[..parents.min(children.len())].to_vec() }
            }
            Self::Phrases { length, width, phrase, budget } => {
                let length = depth.min(*length);
                let phrase = (depth - length).min(*phrase);
                Self::Phrases { length, width: *width, phrase, budget: *budget }
            }
        }
    }

    /// Returns, for each depth, the number of rows that its nodes follow, at most: what a drafter
    /// computes for it.
    #[must_use]
    pub fn parents_by_depth(&self) -> Vec<usize> {
        match self {
            Self::Chain { length }
            | Self::ConfidentChain { length, .. }
            | Self::Phrases { length, .. } => vec![1; *length],
            Self::Top { width, depth, .. } => {
                (0..*depth).map(|depth| if depth == 0 { 1 } else { *width }).collect()
            }
            Self::Sampled { branching } => {
                let mut level = 1_usize;
                let next = |&children: &usize| {
                    let below = level.saturating_mul(children);
                    mem::replace(&mut level, below)
                };
                branching.iter().map(next).collect()
            }
            Self::Ranked { children } => {
                let of_rows =
                    |rows: Range<usize>| &children[rows.start..rows.end.min(children.len())];
                let parents = |rows| of_rows(rows).iter().filter(|&&count| count > 0).count();
                ranked_levels(children).map(parents).collect()
            }
        }
    }

    /// Returns an upper bound of the number of nodes.
    #[must_use]
    pub fn max_nodes(&self) -> usize {
        match self {
            Self::Chain { length } | Self::ConfidentChain { length, .. } => *length,
            Self::Top { width, depth, budget: None } => width.saturating_mul(*depth),
            Self::Top { width, depth, budget: Some(budget) } => {
                // The first depth expands one row, every later depth `width`.
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
            Self::Ranked { children } => {
                let parents = ranked_levels(children).last().map_or(0, |rows| rows.end);
                let parents = children.iter().take(parents);
                parents.fold(0, |nodes, &count| nodes.saturating_add(count))
            }
            Self::Phrases { length, width, phrase, budget } => {
                let nodes = width.saturating_mul(*phrase).saturating_add(*length);
                nodes.min(budget.unwrap_or(usize::MAX))
            }
        }
    }
}

/// Returns the rows of each depth of a [`DraftShape::Ranked`] that has children, starting with the
/// prefix's.
fn ranked_levels(children: &[usize]) -> impl Iterator<Item = Range<usize>> + '_ {
    let mut rows = 0..1_usize;
    iter::from_fn(move || {
        let parents = rows.start.min(children.len())..rows.end.min(children.len());
        let count = children[parents].iter().fold(0_usize, |sum, &count| sum.saturating_add(count));
        let next = rows.end..rows.end.saturating_add(count);
        (count > 0).then(|| mem::replace(&mut rows, next))
    })
}

/// How candidates were chosen, which decides how they must be verified.
///
/// Coupled verification needs no variant of its own. A coupled or greedy target row is a point mass
/// on the token that the target emits there, and both rules below then accept exactly that token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Proposal {
    /// The children of a row were drawn independently from the distribution at the row's index
    /// ([`row_of`]). Rows without children hold an empty distribution.
    Sampled(Vec<Distribution>),
    /// Candidates are a function of the tokens before them, as top-k, n-gram matches and coupled
    /// draws are.
    Deterministic,
}

/// Returns the key of the uniform that draws the next node of a draft, which has the nodes of
/// `tree` so far and follows `prefix` tokens.
///
/// `depth` is the number of tokens between the prefix and the node, and `sibling` the number of
/// nodes of the same depth that were drawn before.
///
/// With block verification, the fate of a draft's first tokens depends on its later ones. If a
/// draft of the next round drew these positions again with the same numbers, its tokens would
/// depend on that fate, and the text would no longer have the target's distribution. So its keys
/// name the start of the draft, and the node.
#[must_use]
pub fn draft_key(
    verification: Verification,
    prefix: usize,
    tree: &TokenTree,
    depth: usize,
    sibling: u32,
) -> Key {
    let (position, candidate) = match verification {
        Verification::Block => (prefix, tree.len() as u32),
        Verification::Rejection | Verification::Coupled => (prefix + depth, sibling),
    };
    Key { position, purpose: Purpose::Draft, candidate }
}

/// A draft: the candidates, and how they were chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Draft {
    /// The candidates.
    pub tree: TokenTree,
    /// How they were chosen.
    pub proposal: Proposal,
    /// The drafter's confidence in each token of a [`DraftShape::ConfidentChain`], from 0 to 1.
    /// Empty for other shapes, and if the drafter does not know.
    pub confidences: Vec<f32>,
}

impl Draft {
    /// Returns whether every candidate has a positive probability in the row that it was drawn
    /// from. Verification relies on this, so check drafts that come from other processes.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let Proposal::Sampled(rows) = &self.proposal else { return true };
        (0..self.tree.len()).all(|node| {
            let row = rows.get(row_of(self.tree.parent(node)));
            row.is_some_and(|row| row.probability(self.tree.token(node)) > 0.0)
        })
    }

    /// Returns the distribution that a node's token was drawn from, if it was drawn.
    #[must_use]
    pub fn drawn_from(&self, node: Node) -> Option<&Distribution> {
        let Proposal::Sampled(rows) = &self.proposal else { return None };
        rows.get(row_of(self.tree.parent(node)))
    }

    /// Creates a draft without confidences.
    #[must_use]
    pub fn new(tree: TokenTree, proposal: Proposal) -> Self {
        Self { tree, proposal, confidences: Vec::new() }
    }

    /// Creates a draft of candidates that are a function of the tokens before them
    /// ([`Proposal::Deterministic`]).
    #[must_use]
    pub fn deterministic(tree: TokenTree) -> Self {
        Self::new(tree, Proposal::Deterministic)
    }

    /// Creates a draft without candidates. Verifying it draws the target's next token.
    #[must_use]
    pub fn empty() -> Self {
        Self::deterministic(TokenTree::new())
    }

    /// Appends a chain that was drafted after this chain's last token.
    ///
    /// The two may be of different kinds. A candidate that is a function of the tokens before it
    /// was drawn from the distribution that is certain of it, and verification treats both alike.
    pub fn extend(&mut self, further: Self) {
        if self.tree.is_empty() {
            *self = further;
            return;
        }
        if further.tree.is_empty() {
            return;
        }
        let Self { mut tree, proposal, .. } = mem::replace(self, Self::empty());
        let length = tree.len();
        tree.graft(length.checked_sub(1), &further.tree);
        let proposal = match (proposal, further.proposal) {
            (Proposal::Deterministic, Proposal::Deterministic) => Proposal::Deterministic,
            (proposal, more) => {
                // The row after the last token was empty because nothing had been drawn from it.
                let mut rows = rows_of(&tree, proposal);
                rows.truncate(length);
                rows.extend(rows_of(&further.tree, more));
                Proposal::Sampled(rows)
            }
        };
        *self = Self::new(tree, proposal);
    }

    /// Shortens a chain to `count` tokens, if it is longer.
    pub fn truncate(&mut self, count: usize) {
        self.tree = self.tree.first(count.min(self.tree.len()));
        self.confidences.truncate(count);
        if let Proposal::Sampled(rows) = &mut self.proposal {
            rows.truncate(count + 1);
            // Nothing is drawn from the row after the last token.
            rows.get_mut(count).into_iter().for_each(|row| *row = Distribution::default());
        }
    }

    /// Removes the first `count` tokens of a chain, after they were committed.
    pub fn drop_first(&mut self, count: usize) {
        self.tree = TokenTree::chain(&self.tree.tokens()[count.min(self.tree.len())..]);
        self.confidences.drain(..count.min(self.confidences.len()));
        if let Proposal::Sampled(rows) = &mut self.proposal {
            rows.drain(..count.min(rows.len()));
        }
    }
}

/// Returns the distributions that a chain's tokens were drawn from.
fn rows_of(tree: &TokenTree, proposal: Proposal) -> Vec<Distribution> {
    let certain = |row| {
        let next = tree.children(node_of_row(row)).next();
        next.map_or_else(Distribution::default, |node| Distribution::point(tree.token(node)))
    };
    match proposal {
        Proposal::Sampled(rows) => rows,
        Proposal::Deterministic => (0..=tree.len()).map(certain).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TokenId;

    fn sampled(tokens: &[TokenId]) -> Draft {
        let rows = tokens.iter().map(|&token| Distribution::point(token));
        let rows = rows.chain([Distribution::default()]).collect();
        Draft::new(TokenTree::chain(tokens), Proposal::Sampled(rows))
    }

    fn deterministic(tokens: &[TokenId]) -> Draft {
        Draft::deterministic(TokenTree::chain(tokens))
    }

    #[test]
    fn confidences_are_those_of_the_tokens_that_are_left() {
        let mut draft = Draft { confidences: vec![0.9, 0.8, 0.7], ..deterministic(&[1, 2, 3]) };
        draft.truncate(2);
        assert_eq!(draft.confidences, [0.9, 0.8]);
        draft.drop_first(1);
        assert_eq!(draft.confidences, [0.8]);
        draft.extend(deterministic(&[4]));
        assert!(draft.confidences.is_empty(), "those of the new tokens are not known");
    }

    #[test]
    fn chains_grow_at_the_end_and_shrink_at_the_start() {
        for make in [sampled, deterministic] {
            let mut draft = Draft::empty();
            let further = [make(&[1]), make(&[2, 3]), Draft::empty(), make(&[4])];
            further.into_iter().for_each(|further| draft.extend(further));
            assert_eq!(draft, make(&[1, 2, 3, 4]));
            assert!(draft.is_consistent());
            draft.drop_first(3);
            assert_eq!(draft, make(&[4]));
            draft.extend(make(&[5]));
            assert_eq!(draft, make(&[4, 5]));
            let mut short = make(&[4, 5, 6]);
            short.truncate(7);
            assert_eq!(short, make(&[4, 5, 6]));
            short.truncate(2);
            assert_eq!(short, draft);
            draft.drop_first(2);
            assert!(draft.tree.is_empty());
            draft.extend(make(&[6]));
            assert_eq!(draft, make(&[6]));
        }
    }

    #[test]
    fn phrases_are_shortened_first_and_do_not_count_as_draft_length() {
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
        // Other shapes have no phrases.
        let chain = DraftShape::Chain { length: 5 };
        assert_eq!((chain.length(), chain.with_draft_tokens(3)), (5, chain.truncated(3)));
    }

    #[test]
    fn ranked_trees_list_the_children_of_their_rows() {
        let ranked = |children: &[usize]| DraftShape::Ranked { children: children.to_vec() };
        // Two roots; the first has two children, the second one; one more after the last of these.
        let tree = ranked(&[2, 2, 1, 0, 0, 1]);
        assert_eq!((tree.depth(), tree.length(), tree.max_nodes()), (3, 3, 6));
        assert_eq!(tree.parents_by_depth(), [1, 2, 1]);
        assert_eq!(tree.truncated(9), tree);
        assert_eq!(tree.truncated(2), ranked(&[2, 2, 1]));
        assert_eq!(tree.with_draft_tokens(1), ranked(&[2]));
        assert_eq!((tree.truncated(0).depth(), tree.truncated(0).max_nodes()), (0, 0));
        // Entries of rows that do not exist have no effect.
        let broken = ranked(&[1, 0, 5, usize::MAX]);
        assert_eq!((broken.depth(), broken.max_nodes()), (1, 1));
        assert_eq!(ranked(&[usize::MAX, usize::MAX]).max_nodes(), usize::MAX);
    }

    #[test]
    fn drafts_of_different_kinds_are_one_draft() {
        let extended = |mut draft: Draft, further| {
            draft.extend(further);
            assert!(draft.is_consistent());
            draft
        };
        // The drafts for tests draw from distributions that are certain.
        assert_eq!(extended(deterministic(&[1]), sampled(&[2, 3])), sampled(&[1, 2, 3]));
        assert_eq!(extended(sampled(&[1, 2]), deterministic(&[3])), sampled(&[1, 2, 3]));
        assert_eq!(extended(Draft::empty(), sampled(&[1])), sampled(&[1]));
        let longer = extended(extended(sampled(&[1]), deterministic(&[2, 3])), sampled(&[4]));
        assert_eq!(longer, sampled(&[1, 2, 3, 4]));
    }
}
