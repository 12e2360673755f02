//! Medusa: heads on the target's last hidden state, each of which predicts one position.
//!
//! *Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads*, Cai et al.
//! 2024, arXiv 2401.10774, section 2.1.
//!
//! 1. The feature of the last token that the target has read comes with the job. The target's own
//!    head has already made the next token from it, which is committed.
//! 2. Head `h` predicts the token `h + 2` positions after the feature's. So head 0 predicts the first
//!    token to draft.
//! 3. All candidates of a depth share the distribution of its head. They form a chain, or a product
//!    of the heads' best tokens.
//!
//! Deviations: the paper's "typical acceptance" changes the distribution of the output, and is not
//! implemented. The paper searches for the shape of its tree; here a tree holds the most probable
//! paths.

use crate::grow::{DepthRows, grow, sampling_within_vocab};
use crate::{DraftContext, Drafter};
use forerun_core::{Draft, SequenceId};
use forerun_model::{FeatureHeads, ModelError};

/// Drafts with heads that read the target's last feature.
pub struct MedusaDrafter<H> {
    heads: H,
}

impl<H: FeatureHeads> MedusaDrafter<H> {
    /// Creates a drafter that uses `heads`.
    pub fn new(heads: H) -> Self {
        Self { heads }
    }
}

impl<H: FeatureHeads> Drafter for MedusaDrafter<H> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        // In an answer's first round the target has not read any token.
        let last_read = context.tokens.len().checked_sub(2);
        let feature = last_read.and_then(|token| context.feedback.features.rows_from(token).next());
        let Some(feature) = feature else { return Ok(Draft::empty()) };
        let logits = self.heads.logits(feature)?;
        let vocab_size = self.heads.vocab_size();
        let sampling = sampling_within_vocab(context.sampling, vocab_size);
        let context = &DraftContext { sampling: &sampling, ..*context };
        let shape = context.shape.truncated(logits.rows().count());
        grow(context, &shape, &mut DepthRows { logits: &logits, vocab_size })
    }

    fn release(&mut self, _sequence: SequenceId) {}
}
