//! Medusa: heads on the target's last hidden state, each of which guesses one position.
//!
//! *Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads*, Cai et al. 2024,
//! arXiv 2401.10774, section 2.1.
//!
//! 1. The feature of the last token that the target has read comes with the job. The target's own head
//!    made the token behind it of that, which is committed.
//! 2. Head `h` guesses the token `h + 2` positions behind that feature's: the first one that is missing,
//!    and those that follow.
//! 3. All candidates of a depth share its head's distribution: a chain, or a product of the heads' best
//!    tokens.
//!
//! Deviations: the paper's "typical acceptance" changes the output's distribution, and is left out. Its
//! tree is found by search; ours holds the most probable of all paths (`--tree top:WxD:N`).

use crate::grow::{DepthRows, grow, own_sampling};
use crate::{DraftContext, Drafter};
use forerun_core::{Draft, SequenceId};
use forerun_model::{FeatureHeads, ModelError};

/// Drafts with heads on its target's last feature.
pub struct MedusaDrafter<H> {
    heads: H,
}

impl<H: FeatureHeads> MedusaDrafter<H> {
    /// A drafter that asks `heads`.
    pub fn new(heads: H) -> Self {
        Self { heads }
    }
}

impl<H: FeatureHeads> Drafter for MedusaDrafter<H> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        // In an answer's first round the target has read nothing yet.
        let last_read = context.tokens.len().checked_sub(2);
        let feature = last_read.and_then(|token| context.feedback.features.rows_from(token).next());
        let Some(feature) = feature else { return Ok(Draft::empty()) };
        let logits = self.heads.logits(feature)?;
        let vocab_size = self.heads.vocab_size();
        let sampling = own_sampling(context.sampling, vocab_size);
        let context = &DraftContext { sampling: &sampling, ..*context };
        let shape = context.shape.truncated(logits.rows().count());
        grow(context, &shape, &mut DepthRows { logits: &logits, vocab_size })
    }

    fn release(&mut self, _sequence: SequenceId) {}
}
