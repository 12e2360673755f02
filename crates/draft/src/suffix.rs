//! Suffix decoding: continuations of what matches the end of the text, by how often they occurred.
//!
//! *SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications*, Oliaro et al. 2025,
//! arXiv 2411.04975, algorithms 1 and 2.
//!
//! 1. Find the suffixes of the text that also occur earlier in it.
//! 2. Grow a tree from each of them, the most probable node first. A node's probability is that of
//!    its parent times its share of the continuations that occurred there.
//! 3. A tree has up to α nodes for each matched token, and none below a minimum probability.
//! 4. A tree's score is the sum of its nodes' probabilities, which is the number of tokens that are
//!    likely to be accepted. Draft the tree with the highest score.
//! 5. Verify the candidates as deterministic ones, because they are a function of the tokens.
//!
//! Deviations: a suffix automaton takes the place of the suffix tree, so that tokens can be taken
//! back. Where a context has no continuation, because it ends the text, its longest suffix with one
//! is used. A shape also limits the nodes of each depth; a chain is a tree of width 1. Other answers
//! are not searched: a user could tell from the speed whether others got similar ones.

use crate::suffix_automaton::{State, SuffixAutomaton};
use crate::{DraftContext, Drafter};
use forerun_core::{
    Draft, DraftShape, Guess, Guesser, SequenceId, TokenId, TokenTree, node_of_row, row_of,
};
use forerun_lm::ModelError;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// The largest number of tokens that are matched.
const CONTEXT: usize = 64;
/// The number of nodes for each matched token (α).
const NODES_PER_MATCHED_TOKEN: usize = 4;
/// The smallest probability of a node.
const MIN_PROBABILITY: f64 = 0.1;

/// Drafts what followed the last tokens earlier in the text. It needs no model.
#[derive(Default)]
pub struct SuffixDrafter {
    texts: HashMap<SequenceId, SuffixAutomaton<CONTEXT>>,
}

impl SuffixDrafter {
    /// Creates a drafter without texts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Drafter for SuffixDrafter {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let DraftContext { sequence, tokens, shape, .. } = *context;
        let text = self.texts.entry(sequence).or_default();
        text.seek(tokens);
        let Speculation { tree, .. } = speculate(text, &Limits::of(shape));
        Ok(Draft::deterministic(tree))
    }

    fn release(&mut self, sequence: SequenceId) {
        self.texts.remove(&sequence);
    }
}

impl Guesser for SuffixDrafter {
    /// The score is that of the chain: the number of tokens that are likely to be accepted.
    fn guess(&mut self, tokens: &[TokenId], _prompt_len: usize, length: usize) -> Guess {
        let text = self.texts.entry(SequenceId(0)).or_default();
        text.seek(tokens);
        let Speculation { tree, score } =
            speculate(text, &Limits { depth: length, width: 1, nodes: length });
        Guess { tokens: tree.tokens().to_vec(), score }
    }
}

/// Returns the tree with the highest score (algorithm 2), the first one if several have it.
fn speculate<const CONTEXT: usize>(
    text: &SuffixAutomaton<CONTEXT>,
    limits: &Limits,
) -> Speculation {
    let mut best = Speculation::default();
    for (state, matched) in text.repeated_suffixes() {
        let nodes = limits.nodes.min(matched * NODES_PER_MATCHED_TOKEN);
        // No node scores more than 1.
        if best.score < nodes as f64 {
            let speculation = Speculation::grow(text, state, &Limits { nodes, ..*limits });
            if speculation.score > best.score {
                best = speculation;
            }
        }
    }
    best
}

/// The largest size of a draft.
struct Limits {
    depth: usize,
    /// The number of nodes of a depth.
    width: usize,
    nodes: usize,
}

impl Limits {
    fn of(shape: &DraftShape) -> Self {
        let width = match shape {
            DraftShape::Chain { .. } | DraftShape::ConfidentChain { .. } => 1,
            DraftShape::Top { width, .. } | DraftShape::Phrases { width, .. } => *width,
            DraftShape::Sampled { branching: counts } | DraftShape::Ranked { children: counts } => {
                counts.first().copied().unwrap_or(0)
            }
        };
        Self { depth: shape.depth(), width, nodes: shape.max_nodes() }
    }
}

/// A possible node. The largest one is the most probable, then that with the earliest parent, then
/// that with the lowest token.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// The bits of its probability. Those of larger positive numbers are larger.
    probability: u64,
    /// The row that it is in.
    row: Reverse<usize>,
    token: Reverse<TokenId>,
    /// The state of the text up to its token.
    state: State,
}

/// A tree of candidates with the sum of their probabilities.
#[derive(Default)]
struct Speculation {
    tree: TokenTree,
    score: f64,
}

impl Speculation {
    /// Grows the tree after the strings of a state, the most probable node first (algorithm 1).
    fn grow<const CONTEXT: usize>(
        text: &SuffixAutomaton<CONTEXT>,
        state: State,
        limits: &Limits,
    ) -> Self {
        let Self { mut tree, mut score } = Self::default();
        let mut nodes_by_depth = vec![0; limits.depth.min(limits.nodes)];
        let mut open = BinaryHeap::new();
        add_continuations(text, state, (None, 1.0), &mut open);
        while tree.len() < limits.nodes
            && let Some(Candidate { probability, row, token, state }) = open.pop()
        {
            let (parent, probability) = (node_of_row(row.0), f64::from_bits(probability));
            let depth = parent.map_or(0, |parent| tree.depth(parent));
            // A depth without room for a node has none for others.
            let Some(nodes) = nodes_by_depth.get_mut(depth).filter(|n| **n < limits.width) else {
                continue;
            };
            *nodes += 1;
            score += probability;
            let node = tree.push(parent, token.0);
            add_continuations(text, state, (Some(node), probability), &mut open);
        }
        Self { tree, score }
    }
}

/// Adds the tokens after a node, or after the text, that are probable enough.
fn add_continuations<const CONTEXT: usize>(
    text: &SuffixAutomaton<CONTEXT>,
    state: State,
    (parent, probability): (Option<usize>, f64),
    open: &mut BinaryHeap<Candidate>,
) {
    let Some(state) = text.with_continuations(state) else { return };
    let total: u32 = text.continuations(state).map(|(.., count)| count).sum();
    for (token, state, count) in text.continuations(state) {
        let probability = probability * (f64::from(count) / f64::from(total));
        if probability >= MIN_PROBABILITY {
            let (row, token) = (Reverse(row_of(parent)), Reverse(token));
            open.push(Candidate { probability: probability.to_bits(), row, token, state });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suffix_automaton::tests::{Dice, occurrences};
    use forerun_core::{KeyedRandomness, Sampling, TargetFeedback};
    use std::sync::atomic::AtomicBool;

    /// Algorithms 1 and 2 by searching the text, without any structure.
    struct Search<'a> {
        text: &'a [TokenId],
        context: usize,
        alphabet: TokenId,
    }

    impl Search<'_> {
        /// Returns the continuations of the longest suffix of a context that has any.
        fn continuations(&self, context: &[TokenId]) -> (Vec<TokenId>, Vec<(TokenId, usize)>) {
            let longest = context.len().min(self.context);
            for suffix in (1..=longest).rev().map(|len| &context[context.len() - len..]) {
                let count = |token| occurrences(self.text, &[suffix, &[token]].concat());
                let all = (0..self.alphabet).map(|token| (token, count(token)));
                let all: Vec<_> = all.filter(|(_, count)| *count > 0).collect();
                if !all.is_empty() {
                    return (suffix.to_vec(), all);
                }
            }
            (Vec::new(), Vec::new())
        }

        fn grow(&self, suffix: &[TokenId], limits: &Limits) -> Speculation {
            let Speculation { mut tree, mut score } = Speculation::default();
            // By row: the probability and the context.
            let mut rows = vec![(1.0, suffix.to_vec())];
            while tree.len() < limits.nodes {
                let mut best: Option<(f64, usize, TokenId, Vec<TokenId>)> = None;
                for (row, (probability, context)) in rows.iter().enumerate() {
                    let parent = node_of_row(row);
                    let depth = parent.map_or(1, |parent| tree.depth(parent) + 1);
                    let of_depth = (0..tree.len()).filter(|&node| tree.depth(node) == depth);
                    if depth > limits.depth || of_depth.count() >= limits.width {
                        continue;
                    }
                    let (context, continuations) = self.continuations(context);
                    let total: usize = continuations.iter().map(|(_, count)| count).sum();
                    for (token, count) in continuations {
                        let probability = probability * (count as f64 / total as f64);
                        let is_better =
                            best.as_ref().is_none_or(|(highest, ..)| probability > *highest);
                        let is_new = tree.child_with(parent, token).is_none();
                        if probability >= MIN_PROBABILITY && is_better && is_new {
                            let context = [&context[..], &[token]].concat();
                            best = Some((probability, row, token, context));
                        }
                    }
                }
                let Some((probability, row, token, context)) = best else { break };
                tree.push(node_of_row(row), token);
                score += probability;
                rows.push((probability, context));
            }
            Speculation { tree, score }
        }

        fn speculate(&self, limits: &Limits) -> Speculation {
            let mut best = Speculation::default();
            for len in (1..=self.text.len().min(self.context)).rev() {
                let suffix = &self.text[self.text.len() - len..];
                if occurrences(self.text, suffix) > 1 {
                    let nodes = limits.nodes.min(len * NODES_PER_MATCHED_TOKEN);
                    let speculation = self.grow(suffix, &Limits { nodes, ..*limits });
                    if speculation.score > best.score {
                        best = speculation;
                    }
                }
            }
            best
        }
    }

    fn drafts_equal_a_search<const CONTEXT: usize>() {
        let mut nodes = 0;
        for seed in 0..120 {
            let mut dice = Dice(seed);
            let alphabet = 1 + dice.below(4);
            let (mut automaton, mut text) = (SuffixAutomaton::<CONTEXT>::default(), Vec::new());
            for _ in 0..8 {
                dice.edit(&mut text, alphabet);
                automaton.seek(&text);
                let alphabet = alphabet as TokenId;
                let search = Search { text: &text, context: CONTEXT, alphabet };
                for (depth, width, nodes_at_most) in [(1, 1, 1), (6, 1, 6), (4, 2, 7), (5, 3, 15)] {
                    let limits = Limits { depth, width, nodes: nodes_at_most };
                    let expected = search.speculate(&limits);
                    let found = speculate(&automaton, &limits);
                    assert_eq!(found.tree, expected.tree, "{text:?}");
                    assert_eq!(found.score.to_bits(), expected.score.to_bits(), "{text:?}");
                    nodes += found.tree.len();
                }
            }
        }
        assert!(nodes > 5_000, "{nodes}");
    }

    #[test]
    fn drafts_after_growth_and_rollback_equal_a_search() {
        drafts_equal_a_search::<1>();
        drafts_equal_a_search::<3>();
        drafts_equal_a_search::<64>();
    }

    fn draft(drafter: &mut SuffixDrafter, tokens: &[TokenId], shape: &DraftShape) -> TokenTree {
        let context = DraftContext {
            sequence: SequenceId(0),
            tokens,
            prompt_len: tokens.len(),
            sampling: &Sampling::greedy(),
            randomness: &KeyedRandomness { seed: 0, sample: 0 },
            shape,
            feedback: &TargetFeedback::default(),
            cancel: &AtomicBool::new(false),
            tokens_on_last_device: None,
        };
        drafter.draft(&context).map(|draft| draft.tree).unwrap_or_default()
    }

    fn draft_afresh(tokens: &[TokenId], shape: &DraftShape) -> TokenTree {
        draft(&mut SuffixDrafter::new(), tokens, shape)
    }

    #[test]
    fn the_most_frequent_continuation_is_drafted_and_ties_take_the_lowest_token() {
        let chain = DraftShape::Chain { length: 3 };
        // After 1 2: 5 twice, 4 once. After 1 2 5: 6 and 7 once each.
        let text = [1, 2, 5, 7, 1, 2, 4, 8, 1, 2, 5, 6, 9, 1, 2];
        assert_eq!(draft_afresh(&text, &chain), TokenTree::chain(&[5, 6, 9]));
        // A longer match precedes a more frequent, shorter one.
        let text = [3, 1, 6, 2, 1, 7, 2, 1, 7, 3, 1];
        assert_eq!(draft_afresh(&text, &chain).tokens()[0], 6);
        for text in [&[][..], &[1], &[1, 2, 3]] {
            assert_eq!(draft_afresh(text, &chain), TokenTree::new());
        }
        assert_eq!(draft_afresh(&[1, 1, 1], &DraftShape::Chain { length: 0 }), TokenTree::new());
    }

    /// A text that repeats itself has no continuation at its end, where a shorter context goes on.
    #[test]
    fn drafts_go_on_beyond_the_end_of_the_text() {
        let chain = DraftShape::Chain { length: 7 };
        let text = [1, 2, 3, 1, 2, 3];
        assert_eq!(draft_afresh(&text, &chain), TokenTree::chain(&[1, 2, 3, 1, 2, 3, 1]));
        assert_eq!(draft_afresh(&[4, 4, 4], &chain), TokenTree::chain(&[4; 7]));
    }

    #[test]
    fn trees_take_the_most_probable_nodes() {
        // After 1: 2 three times of four, followed by 3 twice and 4 once; and 5.
        let text = [1, 2, 3, 8, 1, 2, 3, 9, 1, 2, 4, 8, 1, 5, 6, 7, 1];
        let tree = draft_afresh(&text, &DraftShape::Top { width: 2, depth: 2, budget: None });
        assert_eq!(tree.tokens(), [2, 3, 5, 4]);
        assert_eq!(tree.children(None).collect::<Vec<_>>(), [0, 2]);
        let best = DraftShape::Top { width: 2, depth: 2, budget: Some(2) };
        assert_eq!(draft_afresh(&text, &best).tokens(), [2, 3]);
        let narrow = DraftShape::Top { width: 1, depth: 2, budget: None };
        assert_eq!(draft_afresh(&text, &narrow).tokens(), [2, 3]);
    }

    #[test]
    fn each_sequence_has_its_own_text_until_it_is_released() {
        let chain = DraftShape::Chain { length: 2 };
        let mut drafter = SuffixDrafter::new();
        assert_eq!(draft(&mut drafter, &[1, 2, 3, 1], &chain), TokenTree::chain(&[2, 3]));
        // The same sequence with another text: nothing of the first one is left.
        assert_eq!(draft(&mut drafter, &[9, 1], &chain), TokenTree::new());
        drafter.release(SequenceId(0));
        assert!(drafter.texts.is_empty());
    }
}
