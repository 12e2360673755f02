//! EAGLE: the target's own features, one position further.
//!
//! *EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty*, Li et al. 2024, arXiv
//! 2401.15077, section 3; *EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees*, Li et
//! al. 2024, arXiv 2406.16858, section 4.
//!
//! 1. The target has read all committed tokens but the last; their features come with the job.
//! 2. A row of a token and of the feature before it gives the next feature, and the target's head on
//!    that the next token's distribution.
//! 3. Candidates go on from that: each with the guessed feature that it was drawn from.
//! 4. A chain and a static tree are EAGLE's; the tree of the best of all considered nodes (`top:WxD:N`)
//!    is EAGLE-2's: it expands by the path's probability, and reranks all.
//! 5. The next round begins with the target's features of what was accepted; guessed rows are dropped.
//!
//! Deviations: a draft is verified as its kind demands. EAGLE's code tests the most probable candidates as
//! ours, but draws the siblings of its sampled trees without replacement.

use crate::feature_conditioned::FeatureConditioned;
use crate::{DraftContext, Drafter, ModelDrafter};
use forerun_core::{Draft, SequenceId};
use forerun_model::{FeatureModel, ModelError};

/// Drafts with a layer on its target's features.
pub struct EagleDrafter<M> {
    /// It grows drafts from rows as from any model's; these are made of features, too.
    drafter: ModelDrafter<FeatureConditioned<M>>,
}

impl<M: FeatureModel> EagleDrafter<M> {
    /// A drafter that asks `model`.
    pub fn new(model: M) -> Self {
        Self { drafter: ModelDrafter::new(FeatureConditioned::new(model)) }
    }

    /// The model. Tests look at its caches.
    #[must_use]
    pub fn model(&self) -> &M {
        self.drafter.model().model()
    }
}

impl<M: FeatureModel> Drafter for EagleDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        match self.drafter.model_mut().take_features(context) {
            true => self.drafter.draft(context),
            false => Ok(Draft::empty()),
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        self.drafter.release(sequence);
    }
}
