//! PEARL on shared devices: the drafter uses two devices that it shares with the target's layers.
//!
//! *PEARL: Parallel Speculative Decoding with Adaptive Draft Length*, Liu et al. 2024, arXiv
//! 2408.11850, appendix G.
//!
//! 1. The target's layers are placed on several devices, which run one after another.
//! 2. The drafter is loaded on the first and the last of them.
//! 3. The first ⌈γ/2⌉ draft tokens of a round are made on the last device, while the target uses
//!    the first ones. The other ⌊γ/2⌋ are made on the first device.
//!
//! Deviation: a draft of a single token runs on the device that is free.

use crate::{DraftContext, Drafter};
use forerun_core::{Draft, SequenceId, TokenId};
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

    fn record_forced(&mut self, context: &DraftContext<'_>, forced: &[TokenId]) {
        self.drafter.record_forced(context, forced);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.drafter.release(sequence);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::ModelDrafter;
    use forerun_core::{DraftShape, KeyedRandomness, Sampling, TargetFeedback};
    use forerun_lm::fake::TableModel;
    use forerun_lm::{BatchEntry, DeviceChoice, LanguageModel};
    use std::cell::RefCell;
    use std::rc::Rc;
    use std::sync::atomic::AtomicBool;

    /// A model that records the devices of its requests.
    struct Recording {
        model: TableModel,
        devices: Rc<RefCell<Vec<DeviceChoice>>>,
    }

    impl LanguageModel for Recording {
        fn vocab_size(&self) -> usize {
            self.model.vocab_size()
        }

        fn context_length(&self) -> usize {
            self.model.context_length()
        }

        fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
            self.devices.borrow_mut().extend(batch.iter().map(|entry| entry.request.device));
            self.model.forward(batch);
        }

        fn release(&mut self, _sequence: SequenceId) {}
    }

    #[test]
    fn the_first_half_of_a_draft_is_made_on_the_last_device() {
        use DeviceChoice::{AnyFree, First, Last};
        let devices = Rc::new(RefCell::new(Vec::new()));
        let model = Recording { model: TableModel::new(7, 5, 4.0), devices: Rc::clone(&devices) };
        let mut drafter = TwoDeviceDrafter::new(ModelDrafter::new(model));
        let table: [(usize, &[DeviceChoice]); 4] = [
            (1, &[AnyFree]),
            (2, &[Last, First]),
            (4, &[Last, Last, First, First]),
            (5, &[Last, Last, Last, First, First]),
        ];
        for (length, expected) in table {
            let context = DraftContext {
                sequence: SequenceId(0),
                tokens: &[1, 2, 3],
                prompt_len: 3,
                sampling: &Sampling::greedy(),
                randomness: &KeyedRandomness { seed: 0, sample: 0 },
                shape: &DraftShape::Chain { length },
                feedback: &TargetFeedback::default(),
                cancel: &AtomicBool::new(false),
                tokens_on_last_device: None,
            };
            assert_eq!(drafter.draft(&context).unwrap().tree.len(), length);
            assert_eq!(devices.take(), expected, "{length} tokens");
        }
    }
}
