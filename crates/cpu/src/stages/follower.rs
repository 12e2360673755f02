//! The members with the stages before the last.

use super::link::Link;
use super::message::{HandOver, StageMessage, StageRows};
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
    /// Creates a member that has the weights of a stage ([`CorePart::Stage`](crate::CorePart::Stage)).
    #[must_use]
    pub fn new(weights: Arc<Weights>, team: Arc<Team>, exchange: Box<dyn Exchange>) -> Self {
        let transformer = Transformer::new(Arc::clone(&weights), team);
        let link = Link::new(exchange);
        Self { transformer, weights, link, passes: ReceivedPasses::default() }
    }

    /// Computes until the leader ends the group.
    ///
    /// # Errors
    /// [`ExchangeError`] if another member is gone or in another pass, or sends what cannot be
    /// read.
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
        let size = rows * weights.architecture().hidden_size;
        let mut so_far = match layers.start {
            0 => StageRows::default(),
            _ => match rows_before(link, [size, handed_over * size])? {
                HandOver::Rows(rows) => *rows,
                HandOver::Cancelled => return hand_over(link, &HandOver::Cancelled),
            },
        };
        transformer.set_features(FeatureSource::Layers(features));
        let hidden = (layers.start > 0).then_some(&so_far.hidden[..]);
        transformer.start(&pass, hidden, storage);
        for layer in layers {
            // Any message of the leader during the pass cancels it.
            if link.receive_from(LEADER, Some(Duration::ZERO))?.is_some() {
                return hand_over(link, &HandOver::Cancelled);
            }
            transformer.run_group(layer..layer + 1, storage);
        }
        so_far.hidden.clear();
        so_far.hidden.extend_from_slice(transformer.hidden());
        so_far.features.extend_from_slice(transformer.collected_features());
        so_far.overflows.extend_from_slice(transformer.output().overflows);
        hand_over(link, &HandOver::Rows(Box::new(so_far)))
    }
}

/// Waits for what the members before this one have computed of the pass: numbers of these lengths,
/// as [`HandOver::read`] takes them.
fn rows_before(link: &mut Link, lengths: [usize; 2]) -> Result<HandOver, ExchangeError> {
    let before = link.exchange.member() - 1;
    let numbers = link.receive_from(before, None)?.unwrap_or_default();
    HandOver::read(&numbers, before, lengths)
}

/// Sends what this member has computed of the pass to the next one.
fn hand_over(link: &mut Link, rows: &HandOver) -> Result<(), ExchangeError> {
    let next = (link.exchange.member() + 1) % link.exchange.members();
    link.send_to(next, rows)
}
