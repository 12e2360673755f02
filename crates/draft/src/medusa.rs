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

use crate::grow::{Growth, grow_from_depth_rows, row_use, sampling_within_vocab};
use crate::{DraftContext, Drafter};
use forerun_core::{Draft, SequenceId, TokenTree};
use forerun_lm::{FeatureModel, ForwardRequest, ModelError};

/// Drafts with heads that read the target's last feature.
pub struct MedusaDrafter<H> {
    heads: H,
    n_heads: usize,
}

impl<H: FeatureModel> MedusaDrafter<H> {
    /// Creates a drafter that uses `n_heads` heads. They are a model whose rows depend only on the
    /// features of the last token that the target has read, and on their depth.
    pub fn new(heads: H, n_heads: usize) -> Self {
        Self { heads, n_heads }
    }
}

impl<H: FeatureModel> Drafter for MedusaDrafter<H> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        // In an answer's first round the target has not read any token.
        let last_read = context.tokens.len().checked_sub(2);
        let features = &context.feedback.features;
        let shape = context.shape.truncated(self.n_heads);
        if last_read.is_none_or(|token| features.len() <= token) || shape.depth() == 0 {
            return Ok(Draft::empty());
        }
        // One row for each depth. The tokens make no difference.
        let depths = TokenTree::chain(&vec![0; shape.depth() - 1]);
        let vocab_size = self.heads.vocab_size();
        let sampling = sampling_within_vocab(context.sampling, vocab_size);
        let (features, rows_for) = (Some(features), row_use(&shape, &sampling, vocab_size));
        let request = ForwardRequest { rows_for, features, ..context.request(&depths, 0) };
        let output = self.heads.logits(&request)?;
        let context = DraftContext { sampling: &sampling, ..*context };
        grow_from_depth_rows(Growth::new(context, &shape), &output, vocab_size)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.heads.release(sequence);
    }
}
