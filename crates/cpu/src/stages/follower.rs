//! The members with the stages before the last.

use super::message::{HandOver, StageMessage, StageRows, check_pass};
use crate::cpu_pages::CpuPages;
use crate::team::Team;
use crate::tensor_parallel::{Exchange, ExchangeError, LEADER, ReceivedPass, ReceivedPasses};
use crate::transformer::Transformer;
use crate::weights::Weights;
use forerun_formats::FeatureSource;
use forerun_lm::{DeviceChoice, LayerOrder};
use forerun_model::{Pass, SequencePass};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A member that computes a stage of the passes of a leader, other than the last one.
pub struct StageFollower {
    transformer: Transformer,
    weights: Arc<Weights>,
    link: Link,
    passes: ReceivedPasses,
}

impl StageFollower {
    /// Creates a member that has the weights of a stage ([`Weights::load_stage`]).
    #[must_use]
    pub fn new(weights: Arc<Weights>, team: Arc<Team>, exchange: Box<dyn Exchange>) -> Self {
        let transformer = Transformer::new(Arc::clone(&weights), team);
        let hidden_size = weights.architecture().hidden_size;
        let link = Link { exchange, pass: 0, hidden_size };
        Self { transformer, weights, link, passes: ReceivedPasses::default() }
    }

    /// Computes until the leader ends the group.
    ///
    /// # Errors
    /// [`ExchangeError`] if another member is gone or in another pass, or sends what cannot be read.
    pub fn run(mut self) -> Result<(), ExchangeError> {
        while let Some(bytes) = self.link.exchange.receive()? {
            let message = postcard::from_bytes(&bytes);
            self.compute(message.map_err(|cause| ExchangeError::Message(cause.to_string()))?)?;
        }
        Ok(())
    }

    fn compute(&mut self, message: StageMessage) -> Result<(), ExchangeError> {
        let StageMessage { pass, features } = message;
        let Self { transformer, weights, link, passes } = self;
        // Features are kept by the leader.
        let new_storage = || CpuPages::new(weights.own_layers(), weights.cache_type());
        let ReceivedPass { number, storage, sequences, .. } = passes.receive(pass, new_storage)?;
        link.pass = number;
        let never = AtomicBool::new(false);
        let parts = sequences.iter();
        let parts = parts.map(|of| SequencePass::new(of, &of.tree, of.first_output, &never));
        let sequences: Vec<SequencePass<'_>> = parts.collect();
        let pass = Pass {
            sequences: &sequences,
            order: LayerOrder::Sequential,
            device: DeviceChoice::AnyFree,
        };
        let rows: usize = sequences.iter().map(SequencePass::rows).sum();
        let layers = weights.packed_layers();
        let is_feature_before = |layers: &usize| *layers <= weights.packed_layers().start;
        let features: Vec<usize> = features.into_iter().map(|layers| layers as usize).collect();
        let handed_over = features.iter().filter(|it| is_feature_before(it)).count();
        let mut so_far = match layers.start {
            0 => StageRows::default(),
            _ => match link.rows(rows, handed_over)? {
                HandOver::Rows(rows) => *rows,
                HandOver::Cancelled => return link.hand_over(&HandOver::Cancelled),
            },
        };
        transformer.set_features(FeatureSource::Layers(features));
        let hidden = (layers.start > 0).then_some(&so_far.hidden[..]);
        transformer.start(&pass, hidden, storage);
        for layer in layers {
            if link.is_cancelled()? {
                return link.hand_over(&HandOver::Cancelled);
            }
            transformer.run_group(layer..layer + 1, storage);
        }
        so_far.hidden.clear();
        so_far.hidden.extend_from_slice(transformer.hidden());
        so_far.features.extend_from_slice(transformer.collected_features());
        so_far.overflows.extend_from_slice(transformer.output().overflows);
        link.hand_over(&HandOver::Rows(Box::new(so_far)))
    }
}

/// A member's connections to the members before and after it, and to the leader.
struct Link {
    exchange: Box<dyn Exchange>,
    /// The number of the pass.
    pass: u32,
    hidden_size: usize,
}

impl Link {
    /// Waits for what the members before this one have computed of the pass: the hidden states of `rows` rows, and those
    /// that are features, of this many numbers of layers.
    fn rows(&mut self, rows: usize, features: usize) -> Result<HandOver, ExchangeError> {
        let size = rows * self.hidden_size;
        let before = self.exchange.member() - 1;
        loop {
            let numbers = self.exchange.receive_from(before, None)?.unwrap_or_default();
            let found = HandOver::pass_of(&numbers, before)?;
            check_pass(before, self.pass, found)?;
            if found == self.pass {
                return Ok(HandOver::read(&numbers, before, [size, features * size])?.1);
            }
        }
    }

    /// Returns whether the leader has cancelled the pass.
    fn is_cancelled(&mut self) -> Result<bool, ExchangeError> {
        while let Some(numbers) = self.exchange.receive_from(LEADER, Some(Duration::ZERO))? {
            // Numbers of earlier passes were too late.
            let found = HandOver::pass_of(&numbers, LEADER)?;
            check_pass(LEADER, self.pass, found)?;
            if found == self.pass {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Sends what this member has computed of the pass to the next one.
    fn hand_over(&mut self, rows: &HandOver) -> Result<(), ExchangeError> {
        let next = (self.exchange.member() + 1) % self.exchange.members();
        self.exchange.send_to(next, &rows.to_numbers(self.pass))
    }
}
