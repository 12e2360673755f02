//! ParallelSpec: one forward of one layer guesses all positions.
//!
//! *ParallelSpec: Parallel Drafter for Efficient Speculative Decoding*, Xiao et al. 2024, arXiv
//! 2410.05589, section 4 and algorithm 1; *PARD: Accelerating LLM Inference with Low-Cost PARallel Draft
//! Model Adaptation*, An et al. 2025, arXiv 2504.18583.
//!
//! 1. The tokens that the drafter has not read, and masks behind them, go through one forward.
//! 2. The last token's row guesses the next position, and each mask's row the one behind the mask.
//! 3. All candidates of a depth share its row: a chain, or a product of the rows' best tokens.
//! 4. Masks are no tokens of the next round's, so its cache drops them when it seeks.
//!
//! With masks of its own, `[MASK]1` to `[MASK]k`, a drafter was trained for `k + 1` positions; PARD's one
//! mask is repeated as often as is asked. In the EAGLE integration rows are made of the target's features,
//! too, and a mask's of a trained one.

use crate::feature_conditioned::FeatureConditioned;
use crate::grow::{DepthRows, grow, own_sampling};
use crate::{DraftContext, Drafter};
use forerun_core::{Draft, SequenceId, TokenId, TokenTree};
use forerun_model::{FeatureModel, LanguageModel, ModelError};
use std::ops::Range;

/// What stands for the positions to be guessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Masks {
    /// One for each position behind the next (ParallelSpec).
    Own(Range<TokenId>),
    /// One for all of them (PARD).
    Repeated(TokenId),
}

impl Masks {
    /// Positions that can be guessed in one forward.
    fn positions(&self) -> usize {
        match self {
            Self::Own(masks) => masks.len() + 1,
            Self::Repeated(_) => usize::MAX,
        }
    }

    /// A chain of the masks of so many positions.
    fn chain(&self, positions: usize) -> TokenTree {
        let masks: Vec<TokenId> = match self {
            Self::Own(masks) => masks.clone().take(positions.saturating_sub(1)).collect(),
            Self::Repeated(mask) => vec![*mask; positions.saturating_sub(1)],
        };
        TokenTree::chain(&masks)
    }
}

/// Drafts with a model that reads masks.
pub struct ParallelDrafter<M> {
    model: M,
    masks: Masks,
    /// Tokens that may be candidates: all below this.
    vocab_size: usize,
}

impl<M: LanguageModel> ParallelDrafter<M> {
    /// A drafter that asks `model`, which knows the masks.
    pub fn new(model: M, masks: Masks) -> Self {
        let vocab_size = model.vocab_size();
        Self { model, masks, vocab_size }
    }

    /// The same for a target whose vocabulary may have another size.
    #[must_use]
    pub fn with_vocab_size(self, vocab_size: usize) -> Self {
        Self { vocab_size: vocab_size.min(self.vocab_size), ..self }
    }
}

impl<M: LanguageModel> Drafter for ParallelDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let tokens = context.tokens;
        let known = self.model.vocab_size();
        if tokens.iter().any(|&token| token as usize >= known) {
            return Ok(Draft::empty());
        }
        // Near the end of its context a drafter guesses less, then nothing.
        let left = self.model.context_length().saturating_sub(tokens.len().saturating_sub(1));
        let shape = context.shape.truncated(left.min(self.masks.positions()));
        if shape.depth() == 0 {
            return Ok(Draft::empty());
        }
        let masks = self.masks.chain(shape.depth());
        let logits = self.model.logits(&context.rows(&masks, 0))?;
        let vocab_size = self.vocab_size;
        let sampling = own_sampling(context.sampling, vocab_size);
        let context = &DraftContext { sampling: &sampling, ..*context };
        grow(context, &shape, &mut DepthRows { logits: &logits, vocab_size })
    }

    fn release(&mut self, sequence: SequenceId) {
        self.model.release(sequence);
    }
}

/// Drafts with masks on the target's features: ParallelSpec in place of EAGLE.
pub struct ParallelEagleDrafter<M> {
    drafter: ParallelDrafter<FeatureConditioned<M>>,
}

impl<M: FeatureModel> ParallelEagleDrafter<M> {
    /// A drafter that asks `model`, which knows the masks.
    pub fn new(model: M, masks: Masks) -> Self {
        Self { drafter: ParallelDrafter::new(FeatureConditioned::new(model), masks) }
    }

    /// The model. Tests look at its caches.
    #[must_use]
    pub fn model(&self) -> &M {
        self.drafter.model.model()
    }
}

impl<M: FeatureModel> Drafter for ParallelEagleDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        match self.drafter.model.take_features(context) {
            true => self.drafter.draft(context),
            false => Ok(Draft::empty()),
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        self.drafter.release(sequence);
    }
}
