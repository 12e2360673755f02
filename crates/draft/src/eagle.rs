//! EAGLE: a layer predicts the target's next feature from its features so far.
//!
//! *EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty*, Li et al. 2024, arXiv
//! 2401.15077, section 3; *EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees*,
//! Li et al. 2024, arXiv 2406.16858, section 4.
//!
//! 1. The target has read all committed tokens but the last. Their features come with the job.
//! 2. The input of a row is a token and the feature before it. The output is the next feature, and
//!    the target's head gives the next token's distribution from it.
//! 3. Further rows continue from a candidate and the predicted feature that it was drawn from.
//! 4. Chains and static trees are EAGLE's. The tree of the best of all considered nodes is
//!    EAGLE-2's: it expands nodes by the probability of their path, and reranks all of them.
//! 5. The next round starts with the target's features of the accepted tokens. Rows with predicted
//!    features are dropped.
//!
//! Deviation: EAGLE's code draws the siblings of its sampled trees without replacement. Here they
//! are drawn independently. Trees of the most probable candidates are verified as in EAGLE's code.

use crate::feature_based::draft_from_features;
use crate::{DraftContext, Drafter, ModelDrafter, single_draft};
use forerun_core::{Draft, SequenceId};
use forerun_lm::{FeatureModel, ModelError};

/// Drafts with a layer that reads the target's features.
pub struct EagleDrafter<M> {
    /// Grows drafts as from any model. The rows also depend on features.
    drafter: ModelDrafter<M>,
}

impl<M: FeatureModel> EagleDrafter<M> {
    /// Creates a drafter that uses `model`.
    pub fn new(model: M) -> Self {
        Self { drafter: ModelDrafter::new(model) }
    }

    /// Returns the model. Tests inspect its caches.
    #[must_use]
    pub fn model(&self) -> &M {
        self.drafter.model()
    }
}

impl<M: FeatureModel> Drafter for EagleDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        single_draft(|done| self.draft_batch(std::slice::from_ref(context), done))
    }

    fn draft_batch(
        &mut self,
        contexts: &[DraftContext<'_>],
        done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    ) {
        draft_from_features(&mut self.drafter, contexts, done);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.drafter.release(sequence);
    }
}
