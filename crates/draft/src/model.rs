//! An independent language model as the drafter: chains and trees of its own continuations.
//!
//! Chains are those of Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (2302.01318);
//! independently drawn siblings those of SpecInfer (2305.09781); trees of the most probable nodes
//! those of EasySpec (2502.02493) and EAGLE-2 (2406.16858). Nothing is dropped or reordered by what
//! was sampled, which would change the output's distribution.

use crate::{DraftContext, Drafter};
use forerun_core::{
    Distribution, Draft, DraftShape, Key, Node, Proposal, Purpose, SequenceId, TokenTree,
};
use forerun_model::{LanguageModel, Logits, ModelError};

/// Drafts with a language model, usually a small one.
pub struct ModelDrafter<M> {
    model: M,
}

impl<M: LanguageModel> ModelDrafter<M> {
    /// A drafter that asks `model`.
    pub fn new(model: M) -> Self {
        Self { model }
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
            for (row, logits) in (first_row..).zip(logits.rows()) {
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

    /// Each depth keeps the `width` nodes of the highest cumulative probability among the `width`
    /// best children of each node of the depth above.
    fn top(
        &mut self,
        context: &DraftContext<'_>,
        width: usize,
        depth: usize,
    ) -> Result<Draft, ModelError> {
        let sampler = context.sampling.behind(context.tokens, context.prompt_len);
        let mut tree = TokenTree::new();
        // The newest level: rows with the logarithm of their path's probability.
        let mut level: Vec<(usize, f64)> = vec![(0, 0.0)];
        for _ in 0..depth {
            let Some(&(first_row, _)) = level.first() else { break };
            let logits = self.logits(context, &tree, first_row)?;
            let mut children = Vec::new();
            for (&(row, score), logits) in level.iter().zip(logits.rows()) {
                let best = sampler.candidates(logits, &tree, node_of(row), width)?;
                children.extend(best.into_iter().map(|(token, own)| (row, token, score + own)));
            }
            // A stable sort: among equals the earlier row, then the better candidate, goes first.
            children.sort_by(|a, b| b.2.total_cmp(&a.2));
            children.truncate(width);
            level = children
                .into_iter()
                .map(|(row, token, score)| (tree.push(node_of(row), token) + 1, score))
                .collect();
        }
        Ok(Draft { tree, proposal: Proposal::Deterministic })
    }
}

impl<M: LanguageModel> Drafter for ModelDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
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
            DraftShape::Top { width, depth } => self.top(context, width, depth),
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
