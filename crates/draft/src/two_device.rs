//! A drafter that has two devices, which it shares with the target's layers.
//!
//! *PEARL: Parallel Speculative Decoding with Adaptive Draft Length*, Liu et al. 2024, arXiv
//! 2408.11850, appendix G: of a round's γ tokens the first ⌈γ/2⌉ are made on the last device, the other
//! ⌊γ/2⌋ on the first.

use crate::{DraftContext, Drafter};
use forerun_core::{Draft, SequenceId};
use forerun_model::{ModelError, PassAssignment};

/// Drafts with a drafter whose model is on two devices.
pub struct TwoDeviceDrafter<D> {
    drafter: D,
    sharing: PassAssignment,
}

impl<D: Drafter> TwoDeviceDrafter<D> {
    /// Has the model that `sharing` speaks of make each draft in halves.
    pub fn new(drafter: D, sharing: PassAssignment) -> Self {
        Self { drafter, sharing }
    }
}

impl<D: Drafter> Drafter for TwoDeviceDrafter<D> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let tokens = context.shape.depth();
        // A single token has no halves: where drafting goes token by token, each goes where nobody is.
        self.sharing.assign_to_last((tokens > 1).then(|| tokens.div_ceil(2)));
        self.drafter.draft(context)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.drafter.release(sequence);
    }
}
