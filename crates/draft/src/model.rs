//! An independent language model as the drafter: chains and trees of its own continuations.
//!
//! Chains are those of Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (2302.01318);
//! independently drawn siblings those of SpecInfer (2305.09781); trees of the most probable nodes
//! those of EasySpec (2502.02493) and EAGLE-2 (2406.16858). Nothing is dropped or reordered by what
//! was sampled, which would change the output's distribution.
//!
//! Checkpoints with one tokenizer may pad their embeddings to different sizes. Tokens that the target
//! does not have are no candidates; behind a token that the drafter does not have it drafts nothing.
//! The drafter's distributions are over the tokens of both then, and are verified as such.

use crate::{DraftContext, Drafter};
use forerun_core::{
    Distribution, Draft, DraftShape, Key, Node, Proposal, Purpose, Sampling, SequenceId, TokenId,
    TokenTree,
};
use forerun_model::{LanguageModel, Logits, ModelError};
use std::borrow::Cow;
use std::ops::Range;

/// Drafts with a language model, usually a small one.
pub struct ModelDrafter<M> {
    model: M,
    /// Tokens that may be candidates: all below this.
    vocab_size: usize,
}

impl<M: LanguageModel> ModelDrafter<M> {
    /// A drafter that asks `model`.
    pub fn new(model: M) -> Self {
        let vocab_size = model.vocab_size();
        Self { model, vocab_size }
    }

    /// The same for a target whose vocabulary may have another size.
    #[must_use]
    pub fn for_vocabulary(self, vocab_size: usize) -> Self {
        Self { vocab_size: vocab_size.min(self.vocab_size), ..self }
    }

    /// The model.
    pub(crate) fn model(&self) -> &M {
        &self.model
    }

    /// The model, which may be told how to compute.
    pub(crate) fn model_mut(&mut self) -> &mut M {
        &mut self.model
    }

    /// The options without the biases of tokens that are no candidates.
    fn own<'s>(&self, sampling: &'s Sampling) -> Cow<'s, Sampling> {
        let is_candidate = |token: TokenId| (token as usize) < self.vocab_size;
        match sampling.logit_bias.last_key_value() {
            Some((&token, _)) if !is_candidate(token) => {
                let mut own = sampling.clone();
                own.logit_bias.retain(|&token, _| is_candidate(token));
                Cow::Owned(own)
            }
            _ => Cow::Borrowed(sampling),
        }
    }

    /// Logits of the rows from `first_row` on.
    fn logits(
        &mut self,
        context: &DraftContext<'_>,
        tree: &TokenTree,
        first_row: usize,
    ) -> Result<Logits, ModelError> {
        let DraftContext { sequence, tokens, cancel, .. } = *context;
        self.model.logits(sequence, tokens, tree, first_row, cancel)
    }

    /// Siblings drawn independently, level by level; a chain is the case of one child a node.
    fn sampled(
        &mut self,
        context: &DraftContext<'_>,
        branching: &[usize],
    ) -> Result<Draft, ModelError> {
        let sampler = context.sampling.behind(context.tokens, context.prompt_len);
        let mut tree = TokenTree::new();
        let mut proposed: Vec<Distribution> = Vec::new();
        for (depth, &children) in branching.iter().enumerate() {
            // The rows of the newest level: they are the ones not proposed from yet.
            let first_row = proposed.len();
            let logits = self.logits(context, &tree, first_row)?;
            let position = context.tokens.len() + depth;
            let mut candidate = 0;
            for (row, logits) in (first_row..).zip(logits.rows_below(self.vocab_size)) {
                let distribution = sampler.distribution(logits, &tree, node_of(row))?;
                for _ in 0..children {
                    let key = Key { position, purpose: Purpose::Draft, candidate };
                    tree.push(node_of(row), distribution.pick(context.randomness, key));
                    candidate += 1;
                }
                proposed.push(distribution);
            }
        }
        proposed.resize(tree.len() + 1, Distribution::default());
        Ok(Draft { tree, proposal: Proposal::Sampled(proposed) })
    }

    /// Each depth expands the `width` nodes of the highest cumulative probability among the `width`
    /// best children of each node of the depth above. A budget chooses among all these children,
    /// expanded or not.
    fn top(
        &mut self,
        context: &DraftContext<'_>,
        width: usize,
        depth: usize,
        budget: Option<usize>,
    ) -> Result<Draft, ModelError> {
        let sampler = context.sampling.behind(context.tokens, context.prompt_len);
        let mut expanded = TokenTree::new();
        let mut considered: Vec<Candidate> = Vec::new();
        // The newest level: rows, each with its path's logarithmic probability and its candidate.
        let mut level: Vec<(usize, f64, Option<usize>)> = vec![(0, 0.0, None)];
        for _ in 0..depth {
            let Some(&(first_row, ..)) = level.first() else { break };
            let logits = self.logits(context, &expanded, first_row)?;
            let new = considered.len();
            let rows = logits.rows_below(self.vocab_size);
            for (&(row, score, parent), logits) in level.iter().zip(rows) {
                let best = sampler.candidates(logits, &expanded, node_of(row), width)?;
                considered.extend(best.into_iter().map(|(token, own)| {
                    // Never above its parent's, whatever rounding does.
                    Candidate { row, parent, token, score: score + own.min(0.0) }
                }));
            }
            let best = best(&considered, new..considered.len(), width).into_iter();
            level = best
                .map(|place| {
                    let Candidate { row, token, score, .. } = considered[place];
                    (expanded.push(node_of(row), token) + 1, score, Some(place))
                })
                .collect();
        }
        let tree = budget.map_or(expanded, |budget| rerank(&considered, budget));
        Ok(Draft { tree, proposal: Proposal::Deterministic })
    }
}

/// A child that a tree of the most probable nodes may get.
struct Candidate {
    /// The row that it was proposed from, among the expanded nodes.
    row: usize,
    /// Its parent among the candidates; `None` is the prefix.
    parent: Option<usize>,
    token: TokenId,
    /// The logarithm of its path's probability.
    score: f64,
}

/// The places of the `count` best candidates of a range, best first; among equals the earlier one.
fn best(considered: &[Candidate], range: Range<usize>, count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = range.collect();
    places.sort_by(|&a, &b| considered[b].score.total_cmp(&considered[a].score));
    places.truncate(count);
    places
}

/// The tree of the `budget` best candidates. A parent is among them whenever its child is: it is at
/// least as probable, and came earlier.
fn rerank(considered: &[Candidate], budget: usize) -> TokenTree {
    let mut kept = best(considered, 0..considered.len(), budget);
    kept.sort_unstable();
    let mut tree = TokenTree::new();
    for &place in &kept {
        let Candidate { parent, token, .. } = considered[place];
        // Nodes stand in the order of their places.
        let parent = parent.and_then(|parent| kept.binary_search(&parent).ok());
        tree.push(parent, token);
    }
    tree
}

impl<M: LanguageModel> Drafter for ModelDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let known = self.model.vocab_size();
        if context.tokens.iter().any(|&token| token as usize >= known) {
            return Ok(Draft::empty());
        }
        let sampling = self.own(context.sampling);
        let context = &DraftContext { sampling: &sampling, ..*context };
        // A drafter whose context is shorter than the target's drafts less near its end, then
        // nothing.
        let left =
            self.model.context_length().saturating_sub(context.tokens.len().saturating_sub(1));
        match context.shape.at_most(left) {
            DraftShape::Chain { length } => self.sampled(context, &vec![1; length]),
            // Equal draws would be equal siblings: one is enough where draws are determined.
            DraftShape::Sampled { branching } if context.sampling.is_deterministic() => {
                self.sampled(context, &vec![1; branching.len()])
            }
            DraftShape::Sampled { branching } => self.sampled(context, &branching),
            DraftShape::Top { width, depth, budget } => self.top(context, width, depth, budget),
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        self.model.release(sequence);
    }
}

/// The node of a row; row 0 is the prefix.
fn node_of(row: usize) -> Option<Node> {
    row.checked_sub(1)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use forerun_core::KeyedRandomness;
    use std::sync::atomic::AtomicBool;

    const VOCAB: usize = 5;

    /// Logits are a hash of the tokens before them.
    struct Hashed;

    impl Hashed {
        fn row(tokens: &[TokenId]) -> [f32; VOCAB] {
            let hash = tokens.iter().fold(7_u64, |hash, &token| {
                (hash ^ u64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
            });
            std::array::from_fn(|token| (hash >> (8 * token) & 255) as f32 / 64.0)
        }
    }

    impl LanguageModel for Hashed {
        fn vocab_size(&self) -> usize {
            VOCAB
        }

        fn context_length(&self) -> usize {
            64
        }

        fn logits(
            &mut self,
            _sequence: SequenceId,
            tokens: &[TokenId],
            tree: &TokenTree,
            first_row: usize,
            _cancel: &AtomicBool,
        ) -> Result<Logits, ModelError> {
            let values = (first_row..=tree.len())
                .flat_map(|row| Self::row(&[tokens, &path(tree, node_of(row))].concat()))
                .collect();
            Ok(Logits { values, vocab_size: VOCAB, computed_tokens: 0 })
        }

        fn release(&mut self, _sequence: SequenceId) {}
    }

    fn path(tree: &TokenTree, node: Option<Node>) -> Vec<TokenId> {
        let Some(node) = node else { return Vec::new() };
        let mut path = path(tree, tree.parent(node));
        path.push(tree.token(node));
        path
    }

    fn paths(prompt: &[TokenId], shape: &DraftShape) -> Vec<Vec<TokenId>> {
        let context = DraftContext {
            sequence: SequenceId(0),
            tokens: prompt,
            prompt_len: prompt.len(),
            sampling: &Sampling::greedy(),
            randomness: &KeyedRandomness { seed: 0, sample: 0 },
            shape,
            cancel: &AtomicBool::new(false),
        };
        let tree = ModelDrafter::new(Hashed).draft(&context).unwrap().tree;
        let mut paths: Vec<_> = (0..tree.len()).map(|node| path(&tree, Some(node))).collect();
        paths.sort();
        paths
    }

    /// One of 25 prompts.
    fn prompt(number: usize) -> [TokenId; 2] {
        [number / VOCAB, number % VOCAB].map(|token| token as TokenId)
    }

    /// All continuations of up to `depth` tokens with the logarithms of their probabilities.
    fn all(prompt: &[TokenId], depth: usize) -> Vec<(f64, Vec<TokenId>)> {
        let mut all = vec![(0.0, Vec::new())];
        let mut begin = 0;
        for _ in 0..depth {
            let end = all.len();
            for parent in begin..end {
                let (score, path) = all[parent].clone();
                let row = Hashed::row(&[prompt, &path].concat()).map(f64::from);
                let sum: f64 = row.iter().map(|logit| logit.exp()).sum();
                for (token, logit) in row.iter().enumerate() {
                    let path = [&path[..], &[token as TokenId]].concat();
                    all.push((score + logit - sum.ln(), path));
                }
            }
            begin = end;
        }
        all.remove(0);
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all
    }

    /// Where every node is expanded, the tree is that of the most probable continuations there are.
    #[test]
    fn a_budget_keeps_the_most_probable_continuations() {
        for first in 0..20 {
            let prompt = prompt(first);
            let all = all(&prompt, 3);
            for budget in [1, 2, 7, 20, 60, 500] {
                let shape = DraftShape::Top { width: 125, depth: 3, budget: Some(budget) };
                let count = budget.min(all.len());
                if count < all.len() && all[count - 1].0 - all[count].0 < 1e-6 {
                    continue;
                }
                let mut expected: Vec<_> =
                    all[..count].iter().map(|(_, path)| path.clone()).collect();
                expected.sort();
                assert_eq!(paths(&prompt, &shape), expected, "{first} {budget}");
            }
        }
    }

    /// A narrow tree expands the nodes that it would keep without a budget; and a budget large
    /// enough keeps all of these, and their siblings.
    #[test]
    fn a_large_budget_adds_siblings() {
        for first in 0..20 {
            let top =
                |budget| paths(&prompt(first), &DraftShape::Top { width: 2, depth: 3, budget });
            let (narrow, all) = (top(None), top(Some(99)));
            assert_eq!((narrow.len(), all.len()), (6, 10));
            assert!(narrow.iter().all(|path| all.contains(path)));
            assert_eq!(top(Some(4)).len(), 4);
        }
    }
}
