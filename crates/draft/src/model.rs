//! An independent language model as the drafter: chains and trees of its continuations.
//!
//! Target and drafter may have vocabularies of different sizes, because checkpoints with the same
//! tokenizer may pad their embeddings differently. Tokens that the target does not have are never
//! candidates. After a token that the drafter does not have, it drafts nothing. So the drafter's
//! distributions cover the tokens that both models have, and are verified as such.

use crate::candidate_model::CandidateModel;
use crate::grow::{Growth, ModelGrowth, grow_from_model, row_use};
use crate::{DraftContext, Drafter, single_draft};
use forerun_core::{Draft, Sampling, SequenceId, TokenTree};
use forerun_lm::{ForwardRequest, LanguageModel, ModelError};
use std::borrow::Cow;

/// Drafts with a language model, usually a small one.
pub struct ModelDrafter<M> {
    candidates: CandidateModel<M>,
    max_depth: usize,
}

impl<M: LanguageModel> ModelDrafter<M> {
    /// Creates a drafter that uses `model`.
    pub fn new(model: M) -> Self {
        Self { candidates: CandidateModel::new(model), max_depth: usize::MAX }
    }

    /// Returns the drafter for a target with `vocab_size` tokens.
    #[must_use]
    pub fn with_vocab_size(self, vocab_size: usize) -> Self {
        Self { candidates: self.candidates.with_vocab_size(vocab_size), ..self }
    }

    /// Returns the drafter with another limit on the depth of the trees of its requests.
    pub(crate) fn with_max_depth(self, max_depth: usize) -> Self {
        Self { max_depth, ..self }
    }

    /// Returns the model.
    pub(crate) fn model(&self) -> &M {
        &self.candidates.model
    }

    /// Drafts for several sequences. `request` adds options to the requests of the context with an
    /// index. If it takes away the last tokens, they are nodes of the request's tree instead.
    pub(crate) fn draft_with<'a>(
        &mut self,
        contexts: &'a [DraftContext<'a>],
        request: impl Fn(usize, ForwardRequest<'a>) -> ForwardRequest<'a>,
        done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    ) {
        static NO_TREE: TokenTree = TokenTree::new();
        let Self { candidates, max_depth } = self;
        let sampling = contexts.iter().map(|context| candidates.sampling(context.sampling));
        let sampling: Vec<Cow<'_, Sampling>> = sampling.collect();
        let mut growths = Vec::new();
        for (index, (context, sampling)) in contexts.iter().zip(&sampling).enumerate() {
            if !candidates.can_read(context.tokens) {
                done(index, Ok(Draft::empty()));
                continue;
            }
            let request = request(index, context.request(&NO_TREE, 0));
            let ahead = context.tokens.len() - request.tokens.len();
            let room = candidates.room_after(context.tokens.len());
            let shape = context.shape.truncated(room.min(max_depth.saturating_sub(ahead)));
            let rows_for = row_use(&shape, sampling, candidates.vocab_size());
            let request = ForwardRequest { rows_for, ..request };
            let growth = Growth::new(DraftContext { sampling, ..*context }, &shape);
            growths.push(ModelGrowth::new(index, growth, request));
        }
        let vocab_size = candidates.vocab_size();
        grow_from_model(&mut candidates.model, growths, vocab_size, done);
    }
}

impl<M: LanguageModel> Drafter for ModelDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        single_draft(|done| self.draft_batch(std::slice::from_ref(context), done))
    }

    fn draft_batch(
        &mut self,
        contexts: &[DraftContext<'_>],
        done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    ) {
        self.draft_with(contexts, |_, request| request, done);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.candidates.model.release(sequence);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{Masks, ParallelDrafter};
    use forerun_core::{DraftShape, KeyedRandomness, Sampling, StopRule, TargetFeedback, TokenId};
    use forerun_lm::fake::{TableModel, row_prefix};
    use std::sync::atomic::AtomicBool;

    const VOCAB: usize = 5;
    const MODEL: TableModel = TableModel::new(7, VOCAB, 4.0);
    const MASK: TokenId = 1;

    fn draft(prompt: &[TokenId], shape: &DraftShape, sampling: &Sampling) -> Draft {
        draft_of(&mut ModelDrafter::new(MODEL), prompt, shape, sampling)
    }

    fn draft_of(
        drafter: &mut dyn Drafter,
        prompt: &[TokenId],
        shape: &DraftShape,
        sampling: &Sampling,
    ) -> Draft {
        let context = DraftContext {
            sequence: SequenceId(0),
            tokens: prompt,
            prompt_len: prompt.len(),
            sampling,
            randomness: &KeyedRandomness { seed: 0, sample: 0 },
            shape,
            feedback: &TargetFeedback::default(),
            cancel: &AtomicBool::new(false),
            tokens_on_last_device: None,
        };
        drafter.draft(&context).unwrap()
    }

    fn paths(prompt: &[TokenId], shape: &DraftShape) -> Vec<Vec<TokenId>> {
        paths_of(&mut ModelDrafter::new(MODEL), prompt, shape)
    }

    fn paths_of(
        drafter: &mut dyn Drafter,
        prompt: &[TokenId],
        shape: &DraftShape,
    ) -> Vec<Vec<TokenId>> {
        let tree = draft_of(drafter, prompt, shape, &Sampling::greedy()).tree;
        let mut paths: Vec<_> =
            (0..tree.len()).map(|node| row_prefix(&[], &tree, Some(node))).collect();
        paths.sort();
        paths
    }

    /// Returns one of 25 prompts.
    fn prompt(number: usize) -> [TokenId; 2] {
        [number / VOCAB, number % VOCAB].map(|token| token as TokenId)
    }

    /// Returns all continuations of up to `depth` tokens with the logarithms of their
    /// probabilities, at the temperature by which greedy candidates are compared. `is_read`:
    /// whether a row depends on the tokens of the path before it, or there are masks in their
    /// places.
    fn all(prompt: &[TokenId], depth: usize, is_read: bool) -> Vec<(f64, Vec<TokenId>)> {
        let mut all = vec![(0.0, Vec::new())];
        let mut begin = 0;
        for _ in 0..depth {
            let end = all.len();
            for parent in begin..end {
                let (score, path) = all[parent].clone();
                let read = if is_read { path.clone() } else { vec![MASK; path.len()] };
                let row = MODEL.row(&[prompt, &read].concat()).into_iter();
                let row = row.map(|logit| f64::from(logit) / 0.6);
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

    /// If as many nodes are expanded as the tree may have, it holds the most probable of all
    /// continuations, also those of a drafter that reads masks in place of tokens.
    #[test]
    fn a_budget_keeps_the_most_probable_continuations() {
        let masked = || ParallelDrafter::new(MODEL, Masks::Repeated(MASK));
        for (first, is_read) in (0..20).flat_map(|first| [(first, true), (first, false)]) {
            let prompt = prompt(first);
            let all = all(&prompt, 3, is_read);
            for budget in [1, 2, 7, 20, 60, 500] {
                let shape = DraftShape::Top { width: budget, depth: 3, budget: Some(budget) };
                let count = budget.min(all.len());
                if count < all.len() && all[count - 1].0 - all[count].0 < 1e-6 {
                    continue;
                }
                let mut expected: Vec<_> =
                    all[..count].iter().map(|(_, path)| path.clone()).collect();
                expected.sort();
                let found = match is_read {
                    true => paths(&prompt, &shape),
                    false => paths_of(&mut masked(), &prompt, &shape),
                };
                assert_eq!(found, expected, "{first} {budget} {is_read}");
            }
        }
    }

    /// A chain that stops is the beginning of one that does not.
    #[test]
    fn chains_stop_where_the_drafter_is_unsure() {
        let chain = |prompt: &[TokenId], stop| {
            let shape = DraftShape::ConfidentChain { length: 3, stop };
            draft(prompt, &shape, &Sampling::greedy())
        };
        let stop = StopRule { acceptance: [0, 100, 300, 500, 700, 900, 950, 990], least: 500 };
        let mut stopped = [0; 4];
        for prompt in (0..20).map(prompt) {
            let whole = chain(&prompt, StopRule::NEVER);
            assert_eq!((whole.tree.len(), whole.confidences.len()), (3, 3));
            let goes_on = |&tokens: &usize| stop.goes_on(&whole.confidences[..tokens]);
            let length = (1..3).find(|tokens| !goes_on(tokens)).unwrap_or(3);
            let short = chain(&prompt, stop);
            assert_eq!(short.tree.tokens(), &whole.tree.tokens()[..length]);
            assert_eq!(short.confidences, whole.confidences[..length]);
            stopped[length] += 1;
        }
        assert!(stopped[1..].iter().all(|&count| count > 0), "{stopped:?}");
    }

    /// A node's children are its best candidates, best first.
    #[test]
    fn ranked_trees_have_the_candidates_of_their_ranks() {
        let best = |tokens: &[TokenId]| {
            let row = MODEL.row(tokens);
            let mut ranks: Vec<TokenId> = (0..VOCAB as TokenId).collect();
            ranks.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
            ranks
        };
        for first in 0..20 {
            let prompt = prompt(first);
            // The second root has two children, and the first of these has one.
            let shape = DraftShape::Ranked { children: vec![3, 0, 2, 0, 1] };
            let roots = best(&prompt);
            let below = best(&[&prompt[..], &[roots[1]]].concat());
            let last = best(&[&prompt[..], &[roots[1], below[0]]].concat());
            let mut expected = vec![
                vec![roots[0]],
                vec![roots[1]],
                vec![roots[2]],
                vec![roots[1], below[0]],
                vec![roots[1], below[1]],
                vec![roots[1], below[0], last[0]],
            ];
            expected.sort();
            assert_eq!(paths(&prompt, &shape), expected, "{first}");
            // There are no more candidates than tokens.
            let all = DraftShape::Ranked { children: vec![VOCAB + 3, 1] };
            assert_eq!(paths(&prompt, &all).len(), VOCAB + 1);
        }
    }

    /// A narrow tree expands the nodes that it would keep without a budget. A large budget keeps
    /// all of them and their siblings.
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
