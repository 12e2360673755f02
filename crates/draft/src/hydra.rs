//! Hydra: Medusa's heads, each of which reads what the heads before it drafted.
//!
//! *Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding*, Ankner et al. 2024, arXiv 2402.05109,
//! section 3.
//!
//! 1. The feature of the last token that the target has read comes with the job.
//! 2. Head `h` reads that and the tokens behind it: the committed one, and `h` candidates.
//! 3. So a tree grows level by level, and siblings have rows of their own.
//!
//! Deviations: as Medusa's here. "Typical acceptance" is left out, and the tree holds the most probable of
//! all paths instead of a searched shape (`--tree top:WxD:N`).

use crate::feature_conditioned::FeatureConditioned;
use crate::{DraftContext, Drafter, ModelDrafter};
use forerun_core::{Draft, SequenceId};
use forerun_model::{FeatureModel, ModelError};

/// Drafts with heads on its target's last feature and on the tokens behind it.
pub struct HydraDrafter<M> {
    drafter: ModelDrafter<FeatureConditioned<M>>,
    n_heads: usize,
}

impl<M: FeatureModel> HydraDrafter<M> {
    /// A drafter that asks `model`, which has so many heads.
    pub fn new(model: M, n_heads: usize) -> Self {
        Self { drafter: ModelDrafter::new(FeatureConditioned::new(model)), n_heads }
    }
}

impl<M: FeatureModel> Drafter for HydraDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        if !self.drafter.model_mut().take_features(context) {
            return Ok(Draft::empty());
        }
        let shape = context.shape.truncated(self.n_heads);
        self.drafter.draft(&DraftContext { shape: &shape, ..*context })
    }

    fn release(&mut self, sequence: SequenceId) {
        self.drafter.release(sequence);
    }
}
