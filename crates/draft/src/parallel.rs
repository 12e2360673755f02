//! ParallelSpec: one forward of a small drafter predicts all positions.
//!
//! *ParallelSpec: Parallel Drafter for Efficient Speculative Decoding*, Xiao et al. 2024, arXiv
//! 2410.05589, section 4 and algorithm 1.
//!
//! 1. One forward reads the tokens that the drafter has not read, followed by mask tokens.
//! 2. The row of the last token predicts the next position, and the row of each mask predicts the
//!    position after the mask.
//! 3. All candidates of a depth share its row. They form a chain, or a product of the rows' best
//!    tokens.
//! 4. Masks are not tokens of the next round, so the cache drops them.
//! 5. Under PEARL, a draft may go on after tokens that the target has not read. They stand before
//!    the masks of the next pass. It reads all features of the target that have come.
//!
//! How masks stand in the pass is [`Masks`]: ParallelSpec's are [`Masks::PerPosition`], and the
//! others are those of later papers. In the EAGLE integration ([`ParallelEagleDrafter`]), rows also
//! depend on the target's features, and those of masks on a trained feature.

use crate::block_heads::{Block, grow_from_block};
use crate::candidate_model::CandidateModel;
use crate::feature_based::draft_readable;
use crate::grow::{Growth, grow_from_depth_rows, row_use};
use crate::{DraftContext, Drafter, Masks, single_draft};
use forerun_core::{Draft, DraftShape, RowUse, SequenceId, TokenTree};
use forerun_lm::{
    BatchEntry, FeatureModel, ForwardBlockHeads, ForwardRequest, LanguageModel, ModelError,
    Progress,
};

/// Drafts with a model that reads masks.
pub struct ParallelDrafter<M> {
    candidates: CandidateModel<M>,
    masks: Masks,
    /// Heads that correct the rows of a block.
    heads: Option<Box<dyn ForwardBlockHeads>>,
}

impl<M: LanguageModel> ParallelDrafter<M> {
    /// Creates a drafter that uses `model`, which must have the masks in its vocabulary.
    pub fn new(model: M, masks: Masks) -> Self {
        Self { candidates: CandidateModel::new(model), masks, heads: None }
    }

    /// Returns the drafter for a target with `vocab_size` tokens.
    #[must_use]
    pub fn with_vocab_size(self, vocab_size: usize) -> Self {
        Self { candidates: self.candidates.with_vocab_size(vocab_size), ..self }
    }

    /// Drafts for several sequences, in one forward. The model reads the first `read` tokens of
    /// each context, or all. With `read`, it gets the target's features, and the tokens without
    /// them are the first ones after those that it reads.
    fn draft_with(
        &mut self,
        contexts: &[DraftContext<'_>],
        read: Option<&[usize]>,
        done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    ) {
        let Self { candidates, masks, heads } = self;
        let hidden_states = heads.is_some();
        let mut drafts: Vec<MaskedDraft> = Vec::new();
        for (index, context) in contexts.iter().enumerate() {
            let read = read.map_or(context.tokens.len(), |read| read[index]);
            let draft = MaskedDraft::new(index, context, read, masks, candidates);
            match draft.filter(|_| candidates.can_read(context.tokens)) {
                Some(draft) => drafts.push(draft),
                None => done(index, Ok(Draft::empty())),
            }
        }
        while !drafts.is_empty() {
            let batch = drafts.iter_mut().map(|draft| {
                let context = &contexts[draft.index];
                let features = read.map(|_| &context.feedback.features);
                let adapter = features.and(context.sampling.adapter);
                let tokens = &context.tokens[..draft.read];
                let request = context.request(&draft.tree, draft.first_row);
                let features_from = hidden_states.then_some(draft.read - 1);
                let sampling = candidates.sampling(context.sampling);
                // Heads correct whole rows.
                let rows_for = match hidden_states {
                    true => RowUse::Full,
                    false => row_use(&draft.shape, &sampling, candidates.vocab_size()),
                };
                let request = ForwardRequest {
                    rows_for,
                    features,
                    adapter,
                    features_from,
                    tokens,
                    ..request
                };
                BatchEntry { request, progress: &mut draft.progress }
            });
            let mut batch: Vec<_> = batch.collect();
            candidates.model.forward(&mut batch);
            drafts.retain_mut(|draft| {
                let Some(output) = draft.progress.result.take() else { return true };
                let context = contexts[draft.index];
                let sampling = candidates.sampling(context.sampling);
                let growth =
                    Growth::new(DraftContext { sampling: &sampling, ..context }, &draft.shape);
                let vocab_size = candidates.vocab_size();
                let grown = output.and_then(|output| match heads.as_deref_mut() {
                    None => grow_from_depth_rows(growth, &output, vocab_size),
                    Some(heads) => {
                        let first_row = masks.first_row();
                        let tokens = &context.tokens[draft.read - 1..];
                        let block = Block { output: &output, tokens, first_row, vocab_size };
                        grow_from_block(growth, &block, heads)
                    }
                });
                done(draft.index, grown);
                false
            });
        }
    }
}

/// A draft that waits for its forward.
struct MaskedDraft {
    /// The index of its context.
    index: usize,
    shape: DraftShape,
    /// The number of first tokens that are not part of the tree.
    read: usize,
    /// The other tokens and the masks after them.
    tree: TokenTree,
    /// The row of the first draft token.
    first_row: usize,
    progress: Progress,
}

impl MaskedDraft {
    /// Plans the draft of a context whose first `read` tokens are read. `None` if there is nothing
    /// to draft.
    fn new(
        index: usize,
        context: &DraftContext<'_>,
        read: usize,
        masks: &Masks,
        candidates: &CandidateModel<impl LanguageModel>,
    ) -> Option<Self> {
        let ahead = &context.tokens[read..];
        let room = candidates.room_after(context.tokens.len()).saturating_sub(masks.first_row());
        let most = room.min(masks.positions_after(ahead.len()));
        let shape = context.shape.truncated(most);
        if shape.depth() == 0 {
            return None;
        }
        let chain = [masks.places_of(ahead), masks.chain(shape.depth(), most)].concat();
        let first_row = ahead.len() + masks.first_row();
        let tree = TokenTree::chain(&chain);
        let progress = Progress::default();
        Some(Self { index, shape, read, tree, first_row, progress })
    }
}

impl<M: LanguageModel> Drafter for ParallelDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        single_draft(|done| self.draft_batch(std::slice::from_ref(context), done))
    }

    fn draft_batch(
        &mut self,
        contexts: &[DraftContext<'_>],
        done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    ) {
        self.draft_with(contexts, None, done);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.candidates.model.release(sequence);
    }
}

/// Drafts with a model that reads masks and the target's features: ParallelSpec's EAGLE
/// integration, P-EAGLE, PARD-2, DFlash, JetSpec and DSpark.
pub struct ParallelEagleDrafter<M> {
    drafter: ParallelDrafter<M>,
}

impl<M: FeatureModel> ParallelEagleDrafter<M> {
    /// Creates a drafter that uses `model`, which must have the masks in its vocabulary.
    pub fn new(model: M, masks: Masks) -> Self {
        Self { drafter: ParallelDrafter::new(model, masks) }
    }

    /// Returns the drafter with heads that correct the rows of its blocks. The model must return
    /// the hidden states of a block as its features.
    #[must_use]
    pub fn with_heads(mut self, heads: Box<dyn ForwardBlockHeads>) -> Self {
        self.drafter.heads = Some(heads);
        self
    }

    /// Returns the model. Tests inspect its caches.
    #[must_use]
    pub fn model(&self) -> &M {
        &self.drafter.candidates.model
    }
}

impl<M: FeatureModel> Drafter for ParallelEagleDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        single_draft(|done| self.draft_batch(std::slice::from_ref(context), done))
    }

    fn draft_batch(
        &mut self,
        contexts: &[DraftContext<'_>],
        done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    ) {
        draft_readable(contexts, done, |ready, read, done| {
            self.drafter.draft_with(ready, Some(read), done);
        });
    }

    fn release(&mut self, sequence: SequenceId) {
        self.drafter.release(sequence);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use forerun_core::{
        DraftShape, FeatureRows, Features, KeyedRandomness, Sampling, TargetFeedback, TokenId,
    };
    use forerun_lm::{ForwardOutput, complete_each};
    use std::sync::atomic::AtomicBool;

    const VOCAB: usize = 40;

    /// Its best token in each row is the number of tokens and nodes before the row. It records its
    /// requests.
    #[derive(Default)]
    struct Counting {
        requests: Vec<(usize, Vec<TokenId>, usize)>,
    }

    impl LanguageModel for Counting {
        fn vocab_size(&self) -> usize {
            VOCAB
        }

        fn context_length(&self) -> usize {
            30
        }

        fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
            complete_each(batch, |request| {
                let ForwardRequest { tokens, tree, first_row, features, .. } = *request;
                assert!(features.unwrap().len() + 1 >= tokens.len());
                self.requests.push((tokens.len(), tree.tokens().to_vec(), first_row));
                let row = |row| (0..VOCAB).map(move |token| f32::from(token == tokens.len() + row));
                let logits = (first_row..=tree.len()).flat_map(row).collect();
                Ok(ForwardOutput {
                    logits,
                    best: Vec::new(),
                    vocab_size: VOCAB,
                    computed_tokens: 0,
                    features: None,
                })
            });
        }

        fn release(&mut self, _sequence: SequenceId) {}
    }

    impl FeatureModel for Counting {}

    /// Drafts up to `length` tokens after `tokens` tokens, of which the first `known` have
    /// features. Returns their number, and the model's last request.
    fn draft(
        masks: &Masks,
        (tokens, known): (usize, usize),
        length: usize,
    ) -> (usize, Option<(usize, Vec<TokenId>, usize)>) {
        let mut drafter = ParallelEagleDrafter::new(Counting::default(), masks.clone());
        let mut features = Features::new();
        features.push(FeatureRows::new(1, vec![0.0; known]));
        let all: Vec<TokenId> = (0..tokens as TokenId).collect();
        let draft = drafter.draft(&DraftContext {
            sequence: SequenceId(0),
            tokens: &all,
            prompt_len: 1,
            sampling: &Sampling::greedy(),
            randomness: &KeyedRandomness { seed: 0, sample: 0 },
            shape: &DraftShape::Chain { length },
            feedback: &TargetFeedback { features, last_draft: None },
            cancel: &AtomicBool::new(false),
            tokens_on_last_device: None,
        });
        (draft.unwrap().tree.len(), drafter.drafter.candidates.model.requests.pop())
    }

    #[test]
    fn a_draft_goes_on_after_tokens_without_features() {
        let request = |read, tree: &[TokenId], first_row| Some((read, tree.to_vec(), first_row));
        let own = Masks::PerPosition(40..42);
        assert_eq!(draft(&own, (6, 5), 9), (3, request(6, &[40, 41], 0)));
        assert_eq!(draft(&own, (6, 3), 2), (2, request(4, &[4, 5, 40], 2)));
        // P-EAGLE's mask stands for any number of positions.
        assert_eq!(draft(&Masks::Repeated(40), (6, 3), 2), (2, request(4, &[40, 40, 40], 2)));
        // A block always has its full size, and the row of a mask predicts the token in its place.
        let block = Masks::Block { mask: 9, size: 5 };
        assert_eq!(draft(&block, (6, 5), 2), (2, request(6, &[9; 4], 1)));
        assert_eq!(draft(&block, (6, 3), 9), (2, request(4, &[4, 5, 9, 9], 3)));
        assert_eq!(draft(&block, (9, 3), 2), (0, None), "the block is full");
        // No row of a causal block sees later ones, so later masks are not needed.
        let causal = Masks::CausalBlock { mask: 9, size: 5 };
        assert_eq!(draft(&causal, (6, 5), 2), (2, request(6, &[9; 2], 1)));
        assert_eq!(draft(&causal, (6, 3), 9), (2, request(4, &[4, 5, 9, 9], 3)));
        assert_eq!(draft(&causal, (6, 3), 1), (1, request(4, &[4, 5, 9], 3)));
        // Every row of DSpark's blocks predicts, also that of the last token.
        let anchored = Masks::AnchoredBlock { mask: 9, size: 5 };
        assert_eq!(draft(&anchored, (6, 5), 2), (2, request(6, &[9; 4], 0)));
        assert_eq!(draft(&anchored, (6, 3), 9), (3, request(4, &[4, 5, 9, 9], 2)));
        assert_eq!(draft(&anchored, (9, 3), 2), (0, None), "the block is full");
        assert_eq!(draft(&anchored, (29, 27), 9), (2, request(28, &[28, 9], 1)));
        // At the end of the context length, blocks are shorter.
        assert_eq!(draft(&block, (29, 27), 9), (1, request(28, &[28, 9], 2)));
        assert_eq!(draft(&own, (30, 29), 9), (1, request(30, &[], 0)));
        // In an answer's first round there are no features.
        assert_eq!(draft(&own, (6, 0), 9), (0, None));
    }
}
