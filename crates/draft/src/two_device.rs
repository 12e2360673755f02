//! PEARL on shared devices: the drafter uses two devices that it shares with the target's layers.
//!
//! *PEARL: Parallel Speculative Decoding with Adaptive Draft Length*, Liu et al. 2024, arXiv
//! 2408.11850, appendix G.
//!
//! 1. The target's layers are placed on several devices, which run one after another.
//! 2. The drafter is loaded on the first and the last of them.
//! 3. The first ⌈γ/2⌉ draft tokens of a round are made on the last device, while the target uses the
//!    first ones. The other ⌊γ/2⌋ are made on the first device.
//!
//! Deviation: a draft of a single token runs on the device that is free.

use crate::{DraftContext, Drafter};
use forerun_core::{Draft, SequenceId};
use forerun_model::{ModelError, PassAssignment};

/// Makes each draft in two halves, on the two devices of its drafter's model.
pub struct TwoDeviceDrafter<D> {
    drafter: D,
    assignment: PassAssignment,
}

impl<D: Drafter> TwoDeviceDrafter<D> {
    /// Creates a drafter. `assignment` must belong to the model of `drafter`.
    pub fn new(drafter: D, assignment: PassAssignment) -> Self {
        Self { drafter, assignment }
    }
}

impl<D: Drafter> Drafter for TwoDeviceDrafter<D> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let tokens = context.shape.depth();
        // A single token is drafted on the device that is free.
        self.assignment.assign_to_last((tokens > 1).then(|| tokens.div_ceil(2)));
        self.drafter.draft(context)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.drafter.release(sequence);
    }
}
