//! Medusa: heads on the target's last hidden state, each of which predicts one position.
//!
//! *Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads*, Cai et al.
//! 2024, arXiv 2401.10774, section 2.1.
//!
//! 1. The feature of the last token that the target has read comes with the job. The target's own
//!    head has already made the next token from it, which is committed.
//! 2. Head `h` predicts the token `h + 2` positions after the feature's. So head 0 predicts the
//!    first token to draft.
//! 3. All candidates of a depth share the distribution of its head. They form a chain, or a product
//!    of the heads' best tokens.
//! 4. A draft may go on after tokens that the target has not read, such as those that a grammar
//!    determines. The heads of their positions are left out.
//!
//! Deviations: the paper's "typical acceptance" changes the distribution of the output, and is not
//! implemented. The paper searches for the shape of its tree; here a tree holds the most probable
//! paths.

use crate::feature_based::readable_tokens;
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
        let Some(read) = readable_tokens(context) else { return Ok(Draft::empty()) };
        let ahead = context.tokens.len() - read;
        let shape = context.shape.truncated(self.n_heads.saturating_sub(ahead));
        if shape.depth() == 0 {
            return Ok(Draft::empty());
        }
        // One row for each depth. The tokens make no difference.
        let depths = TokenTree::chain(&vec![0; ahead + shape.depth() - 1]);
        let vocab_size = self.heads.vocab_size();
        let sampling = sampling_within_vocab(context.sampling, vocab_size);
        let (tokens, features) = (&context.tokens[..read], Some(&context.feedback.features));
        let rows_for = row_use(&shape, &sampling, vocab_size);
        let request = context.request(&depths, ahead);
        let request = ForwardRequest { tokens, rows_for, features, ..request };
        let output = self.heads.logits(&request)?;
        let context = DraftContext { sampling: &sampling, ..*context };
        grow_from_depth_rows(Growth::new(context, &shape), &output, vocab_size)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.heads.release(sequence);
    }
}
