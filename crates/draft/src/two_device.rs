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
use forerun_lm::ModelError;

/// Makes each draft in two halves, on the two devices of its drafter's model.
pub struct TwoDeviceDrafter<D> {
    drafter: D,
}

impl<D: Drafter> TwoDeviceDrafter<D> {
    /// Creates a drafter whose model is on two devices.
    pub fn new(drafter: D) -> Self {
        Self { drafter }
    }
}

/// Divides a draft between the devices.
fn in_halves<'a>(context: &DraftContext<'a>) -> DraftContext<'a> {
    let tokens = context.shape.depth();
    // A single token is drafted on the device that is free.
    let tokens_on_last_device = (tokens > 1).then(|| tokens.div_ceil(2));
    DraftContext { tokens_on_last_device, ..*context }
}

impl<D: Drafter> Drafter for TwoDeviceDrafter<D> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        self.drafter.draft(&in_halves(context))
    }

    fn draft_batch(
        &mut self,
        contexts: &[DraftContext<'_>],
        done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    ) {
        let contexts: Vec<_> = contexts.iter().map(in_halves).collect();
        self.drafter.draft_batch(&contexts, done);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.drafter.release(sequence);
    }
}
