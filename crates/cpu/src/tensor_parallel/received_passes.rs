//! What a member that does not lead knows of the passes and storages of its leader.

use super::exchange::{ExchangeError, LEADER};
use super::message::{PassMessage, ReceivedSequence};
use crate::cpu_pages::CpuPages;
use forerun_lm::LayerGroups;
use std::collections::BTreeMap;

/// The passes that a member has received from its leader.
#[derive(Default)]
pub(crate) struct ReceivedPasses {
    /// The number of passes so far.
    number: u32,
    /// The storages of the leader's caches, by their number, with this member's part of their
    /// pages.
    pub(super) storages: BTreeMap<u32, CpuPages>,
}

/// A pass that a member is to compute.
pub(crate) struct ReceivedPass<'a> {
    pub(crate) number: u32,
    pub(crate) storage: &'a mut CpuPages,
    pub(crate) sequences: Vec<ReceivedSequence>,
    /// The groups of layers, if the layers do not run one after another.
    pub(crate) groups: Option<LayerGroups>,
}

impl ReceivedPasses {
    /// Makes the changes of the leader's storages that belong to a pass, and returns the pass.
    /// `new_storage` creates this member's part of a storage.
    ///
    /// # Errors
    /// [`ExchangeError::OutOfStep`] if passes have been lost or repeated.
    pub(crate) fn receive(
        &mut self,
        message: PassMessage,
        new_storage: impl FnOnce() -> CpuPages,
    ) -> Result<ReceivedPass<'_>, ExchangeError> {
        let PassMessage { number, dropped, storage, operations, groups, sequences } = message;
        self.number += 1;
        if number != self.number {
            let (pass, found_pass) = (self.number, number);
            let member = LEADER;
            return Err(ExchangeError::OutOfStep {
                member,
                pass,
                step: 0,
                found_pass,
                found_step: 0,
            });
        }
        for dropped in dropped {
            self.storages.remove(&dropped);
        }
        let storage = self.storages.entry(storage).or_insert_with(new_storage);
        operations.iter().for_each(|operation| operation.apply(storage));
        let groups = groups.map(|sizes| {
            LayerGroups::of_sizes(&sizes.iter().map(|size| *size as usize).collect::<Vec<_>>())
        });
        let sequences = sequences.into_iter().map(Into::into).collect();
        Ok(ReceivedPass { number, storage, sequences, groups })
    }
}
