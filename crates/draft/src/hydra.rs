//! Hydra: Medusa's heads, each of which also reads the tokens drafted by the heads before it.
//!
//! *Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding*, Ankner et al. 2024, arXiv
//! 2402.05109, section 3.
//!
//! 1. The feature of the last token that the target has read comes with the job.
//! 2. Head `h` reads that feature and the tokens after it: the last committed token and `h`
//!    candidates.
//! 3. So a tree grows depth by depth, and every node has a row of its own.
//! 4. A draft may go on after tokens that the target has not read, such as those that a grammar
//!    determines. Then the first heads read these.
//!
//! Deviations: "typical acceptance" changes the distribution of the output, and is not implemented.
//! The paper searches for the shape of its tree; here a tree holds the most probable paths.

use crate::feature_based::{draft_from_features, draft_readable};
use crate::{DraftContext, Drafter, ModelDrafter, single_draft};
use forerun_core::{Draft, SequenceId};
use forerun_lm::{FeatureModel, ModelError};

/// Drafts with heads that read the target's last feature and the tokens after it.
pub struct HydraDrafter<M> {
    drafter: ModelDrafter<M>,
}

impl<M: FeatureModel> HydraDrafter<M> {
    /// Creates a drafter that uses `model`, which has `n_heads` heads.
    pub fn new(model: M, n_heads: usize) -> Self {
        Self { drafter: ModelDrafter::new(model).with_max_depth(n_heads) }
    }
}

impl<M: FeatureModel> Drafter for HydraDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        single_draft(|done| self.draft_batch(std::slice::from_ref(context), done))
    }

    fn draft_batch(
        &mut self,
        contexts: &[DraftContext<'_>],
        done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    ) {
        draft_readable(contexts, done, |ready, read, done| {
            draft_from_features(&mut self.drafter, ready, read, done);
        });
    }

    fn release(&mut self, sequence: SequenceId) {
        self.drafter.release(sequence);
    }
}
