//! ParallelSpec: one forward of a small drafter predicts all positions.
//!
//! *ParallelSpec: Parallel Drafter for Efficient Speculative Decoding*, Xiao et al. 2024, arXiv
//! 2410.05589, section 4 and algorithm 1; *PARD: Accelerating LLM Inference with Low-Cost PARallel
//! Draft Model Adaptation*, An et al. 2025, arXiv 2504.18583.
//!
//! 1. One forward reads the tokens that the drafter has not read, followed by mask tokens.
//! 2. The row of the last token predicts the next position, and the row of each mask predicts the
//!    position after the mask.
//! 3. All candidates of a depth share its row. They form a chain, or a product of the rows' best
//!    tokens.
//! 4. Masks are not tokens of the next round, so the cache drops them.
//!
//! ParallelSpec's drafters have a mask for each position, `[MASK]1` to `[MASK]k`, and are trained
//! for `k + 1` positions. PARD has one mask, which can be repeated any number of times. In the EAGLE
//! integration, rows also depend on the target's features, and those of masks on a trained feature.

use crate::candidate_model::CandidateModel;
use crate::feature_conditioned::FeatureConditioned;
use crate::grow::{DepthRows, grow};
use crate::{DraftContext, Drafter};
use forerun_core::{Draft, SequenceId, TokenId, TokenTree};
use forerun_model::{FeatureModel, LanguageModel, ModelError};
use std::ops::Range;

/// The mask tokens that stand for the positions to predict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Masks {
    /// One mask for each position after the first (ParallelSpec).
    PerPosition(Range<TokenId>),
    /// One mask for all positions (PARD).
    Repeated(TokenId),
}

impl Masks {
    /// Returns how many positions one forward can predict.
    fn positions(&self) -> usize {
        match self {
            Self::PerPosition(masks) => masks.len() + 1,
            Self::Repeated(_) => usize::MAX,
        }
    }

    /// Returns the chain of masks to predict `positions` positions.
    fn chain(&self, positions: usize) -> TokenTree {
        let masks: Vec<TokenId> = match self {
            Self::PerPosition(masks) => masks.clone().take(positions.saturating_sub(1)).collect(),
            Self::Repeated(mask) => vec![*mask; positions.saturating_sub(1)],
        };
        TokenTree::chain(&masks)
    }
}

/// Drafts with a model that reads masks.
pub struct ParallelDrafter<M> {
    candidates: CandidateModel<M>,
    masks: Masks,
}

impl<M: LanguageModel> ParallelDrafter<M> {
    /// Creates a drafter that uses `model`, which must have the masks in its vocabulary.
    pub fn new(model: M, masks: Masks) -> Self {
        Self { candidates: CandidateModel::new(model), masks }
    }

    /// Returns the drafter for a target with `vocab_size` tokens.
    #[must_use]
    pub fn with_vocab_size(self, vocab_size: usize) -> Self {
        Self { candidates: self.candidates.with_vocab_size(vocab_size), ..self }
    }
}

impl<M: LanguageModel> Drafter for ParallelDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let candidates = &mut self.candidates;
        if !candidates.can_read(context.tokens) {
            return Ok(Draft::empty());
        }
        let room = candidates.room_after(context.tokens.len());
        let shape = context.shape.truncated(room.min(self.masks.positions()));
        if shape.depth() == 0 {
            return Ok(Draft::empty());
        }
        let masks = self.masks.chain(shape.depth());
        let logits = candidates.model.logits(&context.rows(&masks, 0))?;
        let sampling = candidates.sampling(context.sampling);
        let context = &DraftContext { sampling: &sampling, ..*context };
        let vocab_size = candidates.vocab_size();
        grow(context, &shape, &mut DepthRows { logits: &logits, vocab_size })
    }

    fn release(&mut self, sequence: SequenceId) {
        self.candidates.model.release(sequence);
    }
}

/// Drafts with a model that reads masks and the target's features: ParallelSpec's EAGLE
/// integration.
pub struct ParallelEagleDrafter<M> {
    drafter: ParallelDrafter<FeatureConditioned<M>>,
}

impl<M: FeatureModel> ParallelEagleDrafter<M> {
    /// Creates a drafter that uses `model`, which must have the masks in its vocabulary.
    pub fn new(model: M, masks: Masks) -> Self {
        Self { drafter: ParallelDrafter::new(FeatureConditioned::new(model), masks) }
    }

    /// Returns the model. Tests inspect its caches.
    #[must_use]
    pub fn model(&self) -> &M {
        self.drafter.candidates.model.model()
    }
}

impl<M: FeatureModel> Drafter for ParallelEagleDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        match self.drafter.candidates.model.take_features(context) {
            true => self.drafter.draft(context),
            false => Ok(Draft::empty()),
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        self.drafter.release(sequence);
    }
}
