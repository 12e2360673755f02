//! The members that do not lead.

use super::exchange::{Exchange, ExchangeError};
use super::members::Members;
use super::message::PassMessage;
use super::received_passes::{ReceivedPass, ReceivedPasses};
use crate::team::Team;
use crate::transformer::Transformer;
use crate::weights::Weights;
use forerun_lm::{DeviceChoice, LayerOrder};
use forerun_model::{Forward, Pass, SequencePass};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A member that computes its share of the passes of a leader.
pub struct TensorParallelFollower {
    transformer: Transformer,
    passes: ReceivedPasses,
}

impl TensorParallelFollower {
    /// Creates a member that has a share of the weights.
    #[must_use]
    pub fn new(weights: Arc<Weights>, team: Arc<Team>, exchange: Box<dyn Exchange>) -> Self {
        let transformer = Transformer::new(weights, team).with_members(Members::new(exchange));
        Self { transformer, passes: ReceivedPasses::default() }
    }

    /// Computes until the leader ends the group.
    ///
    /// # Errors
    /// [`ExchangeError`] if a message of the leader cannot be read, or it is in another pass.
    ///
    /// # Panics
    /// If a member fails during a pass.
    pub fn run(mut self) -> Result<(), ExchangeError> {
        let members = |of: &Self| of.transformer.members().map(Members::receive).transpose();
        while let Some(bytes) = members(&self)?.flatten() {
            let message = postcard::from_bytes(&bytes);
            self.compute(message.map_err(|cause| ExchangeError::Message(cause.to_string()))?)?;
        }
        Ok(())
    }

    fn compute(&mut self, message: PassMessage) -> Result<(), ExchangeError> {
        let new_storage = || self.transformer.new_storage();
        let ReceivedPass { number, storage, sequences, groups } =
            self.passes.receive(message, new_storage)?;
        let never = AtomicBool::new(false);
        let parts = sequences.iter();
        let parts = parts.map(|of| SequencePass::new(of, &of.tree, of.first_output, &never));
        let sequences: Vec<SequencePass<'_>> = parts.collect();
        let order = groups.as_ref().map_or(LayerOrder::Sequential, LayerOrder::Groups);
        let pass = Pass { sequences: &sequences, order, device: DeviceChoice::AnyFree };
        if let Some(members) = self.transformer.members() {
            members.start_pass(number);
        }
        // The leader reports cancelled passes.
        let _ = self.transformer.forward(&pass, storage);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{ThreadExchange, message::PageOperation};
    use super::*;
    use forerun_formats::Checkpoint;
    use forerun_formats::checkpoint::random::{
        RandomDtype, example_config, write_random_checkpoint,
    };

    fn follower() -> TensorParallelFollower {
        let dir = tempfile::tempdir().unwrap();
        write_random_checkpoint(dir.path(), &example_config(), 1, RandomDtype::F32).unwrap();
        let weights = Weights::load(&Checkpoint::open(dir.path()).unwrap()).unwrap();
        let exchange = ThreadExchange::group(1).remove(0);
        let team = Arc::new(Team::single_thread());
        TensorParallelFollower::new(Arc::new(weights), team, Box::new(exchange))
    }

    fn message(number: u32, storage: u32, dropped: &[u32]) -> PassMessage {
        PassMessage {
            number,
            dropped: dropped.to_vec(),
            storage,
            operations: vec![PageOperation::Reserve(2)],
            groups: None,
            sequences: Vec::new(),
        }
    }

    #[test]
    fn storages_live_as_long_as_those_of_the_leader() {
        let mut follower = follower();
        follower.compute(message(1, 0, &[])).unwrap();
        follower.compute(message(2, 3, &[])).unwrap();
        assert!(follower.passes.storages.values().all(|storage| storage.bytes() > 0));
        assert_eq!(follower.passes.storages.keys().collect::<Vec<_>>(), [&0, &3]);
        follower.compute(message(3, 3, &[0, 7])).unwrap();
        assert_eq!(follower.passes.storages.keys().collect::<Vec<_>>(), [&3]);
    }

    #[test]
    fn a_lost_or_repeated_pass_is_an_error() {
        for number in [1, 3] {
            let mut follower = follower();
            follower.compute(message(1, 0, &[])).unwrap();
            let error = follower.compute(message(number, 0, &[])).err();
            let expected = ExchangeError::OutOfStep {
                member: 0,
                pass: 2,
                step: 0,
                found_pass: number,
                found_step: 0,
            };
            assert_eq!(error, Some(expected));
        }
    }
}
