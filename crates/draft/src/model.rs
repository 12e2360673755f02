//! An independent language model as the drafter: chains and trees of its own continuations.
//!
//! Checkpoints with one tokenizer may pad their embeddings to different sizes. Tokens that the target
//! does not have are no candidates; behind a token that the drafter does not have it drafts nothing.
//! The drafter's distributions are over the tokens of both then, and are verified as such.

use crate::grow::{RowSource, grow, own_sampling};
use crate::{DraftContext, Drafter};
use forerun_core::{Draft, SequenceId, TokenTree};
use forerun_model::{LanguageModel, Logits, ModelError};

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
    pub fn with_vocab_size(self, vocab_size: usize) -> Self {
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
}

/// The model's rows behind a context's tokens.
struct ModelRows<'a, M> {
    model: &'a mut M,
    context: &'a DraftContext<'a>,
    vocab_size: usize,
    /// Those that were asked for last.
    last: Option<Logits>,
}

impl<M: LanguageModel> RowSource for ModelRows<'_, M> {
    fn rows(&mut self, tree: &TokenTree, first_row: usize) -> Result<Vec<&[f32]>, ModelError> {
        let logits = self.model.logits(&self.context.rows(tree, first_row))?;
        Ok(self.last.insert(logits).rows_below(self.vocab_size).collect())
    }
}

impl<M: LanguageModel> Drafter for ModelDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let known = self.model.vocab_size();
        if context.tokens.iter().any(|&token| token as usize >= known) {
            return Ok(Draft::empty());
        }
        let sampling = own_sampling(context.sampling, self.vocab_size);
        let context = &DraftContext { sampling: &sampling, ..*context };
        // A drafter whose context is shorter than the target's drafts less near its end, then
        // nothing.
        let left =
            self.model.context_length().saturating_sub(context.tokens.len().saturating_sub(1));
        let shape = context.shape.truncated(left);
        let (model, vocab_size) = (&mut self.model, self.vocab_size);
        grow(context, &shape, &mut ModelRows { model, context, vocab_size, last: None })
    }

    fn release(&mut self, sequence: SequenceId) {
        self.model.release(sequence);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use forerun_core::{DraftShape, KeyedRandomness, Sampling, TargetFeedback, TokenId};
    use forerun_model::fake::{TableModel, row_prefix};
    use std::sync::atomic::AtomicBool;

    const VOCAB: usize = 5;
    const MODEL: TableModel = TableModel::new(7, VOCAB, 4.0);

    fn paths(prompt: &[TokenId], shape: &DraftShape) -> Vec<Vec<TokenId>> {
        let context = DraftContext {
            sequence: SequenceId(0),
            tokens: prompt,
            prompt_len: prompt.len(),
            sampling: &Sampling::greedy(),
            randomness: &KeyedRandomness { seed: 0, sample: 0 },
            shape,
            feedback: &TargetFeedback::default(),
            cancel: &AtomicBool::new(false),
        };
        let tree = ModelDrafter::new(MODEL).draft(&context).unwrap().tree;
        let mut paths: Vec<_> =
            (0..tree.len()).map(|node| row_prefix(&[], &tree, Some(node))).collect();
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
                let row = MODEL.row(&[prompt, &path].concat()).into_iter().map(f64::from);
                let sum: f64 = row.clone().map(f64::exp).sum();
                for (token, logit) in row.enumerate() {
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
