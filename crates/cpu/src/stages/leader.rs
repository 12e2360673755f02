//! The member with the last stage.

use super::link::Link;
use super::message::{HandOver, StageMessage, StageRows};
use crate::cpu_pages::CpuPages;
use crate::team::Team;
use crate::tensor_parallel::{Exchange, ExchangeError, SentPasses};
use crate::transformer::Transformer;
use crate::weights::Weights;
use forerun_cache::PageStorage;
use forerun_formats::{Architecture, FeatureSource};
use forerun_lm::LayerOrder;
use forerun_model::{
    CacheOverflow, Cancelled, Forward, ForwardRest, Pass, PassError, PassOutput, SequencePass,
};
use std::sync::Arc;
use std::time::Duration;

/// For how long the leader waits for rows before it first looks whether the pass is cancelled. Then
/// it looks again each time that it has waited twice as long.
const FIRST_LOOK: Duration = Duration::from_millis(1);

/// The longest time between two looks.
const LONGEST_LOOK: Duration = Duration::from_millis(50);

/// A model whose layers are on several members, of which this one has the last layers and leads.
pub struct StagedModel {
    transformer: Transformer,
    weights: Arc<Weights>,
    others: Others,
    passes: SentPasses,
    /// The numbers of layers after which hidden states are features, and other members compute
    /// them.
    features: Vec<usize>,
    /// The keys and values of the last pass that a cache cannot hold.
    overflows: Vec<CacheOverflow>,
}

impl StagedModel {
    /// Creates the leader, which has the weights of the last stage ([`CorePart::Stage`](crate::CorePart::Stage)). The
    /// others are [`StageFollower`](super::StageFollower)s.
    ///
    /// # Panics
    /// If the model reads features, or its head has other tokens than its embedding: such models
    /// are drafters. If there is no other member.
    #[must_use]
    pub fn new(weights: Arc<Weights>, team: Arc<Team>, exchange: Box<dyn Exchange>) -> Self {
        assert!(exchange.members() > 1, "a pipeline of several stages");
        let passes = SentPasses::new(weights.architecture());
        let transformer = Transformer::new(Arc::clone(&weights), team);
        let (features, overflows) = (Vec::new(), Vec::new());
        let others = Others { link: Link::new(exchange), owe_rows: false };
        Self { transformer, weights, others, passes, features, overflows }
    }

    /// Returns the same model, configured so that new storages store each token's features.
    #[must_use]
    pub fn with_features(mut self, features: FeatureSource) -> Self {
        if let FeatureSource::Layers(chosen) = &features {
            let first = self.weights.packed_layers().start;
            self.features = chosen.iter().copied().filter(|layers| *layers <= first).collect();
            self.features.sort_unstable();
            self.features.dedup();
        }
        Self { transformer: self.transformer.with_features(features), ..self }
    }

    /// Computes the last layers, from what the other members have computed.
    fn finish(
        &mut self,
        pass: &Pass<'_>,
        rows: &StageRows,
        storage: &mut CpuPages,
    ) -> Result<(), PassError> {
        let StageRows { hidden, features, overflows } = rows;
        let Self { transformer, weights, .. } = self;
        if !features.is_empty() {
            transformer.start(pass, Some(hidden), storage);
            for (layers, hidden) in
                self.features.iter().zip(features.chunks_exact(hidden.len().max(1)))
            {
                transformer.store_hidden(*layers, hidden, storage);
            }
        }
        let first = weights.packed_layers().start;
        let output = transformer.forward_rest(pass, first, hidden, storage)?;
        self.overflows.clear();
        self.overflows.extend(overflows.iter().chain(output.overflows));
        Ok(())
    }
}

/// The other members, as the leader sees them.
struct Others {
    link: Link,
    /// Whether the last pass was cancelled before the last of them handed anything over.
    owe_rows: bool,
}

impl Others {
    /// Sends a message about the pass with this number. Rows that an earlier pass owes are no debt
    /// any more: they come before those of this pass, and [`Link::receive_from`] drops them.
    fn start(&mut self, pass: u32, message: &[u8]) -> Result<(), ExchangeError> {
        (self.link.pass, self.owe_rows) = (pass, false);
        self.link.exchange.send(message)
    }

    /// Waits for what the other members have computed of a pass: numbers of these lengths, as
    /// [`HandOver::read`] takes them. If the pass is cancelled, sends the others a message.
    fn rows(&mut self, pass: &Pass<'_>, lengths: [usize; 2]) -> Result<HandOver, ExchangeError> {
        let Self { link, owe_rows } = self;
        let before = link.exchange.members() - 1;
        let mut patience = FIRST_LOOK;
        loop {
            if let Some(numbers) = link.receive_from(before, Some(patience))? {
                return HandOver::read(&numbers, before, lengths);
            }
            if pass.is_cancelled() {
                *owe_rows = true;
                for member in 1..=before {
                    link.send_to(member, &HandOver::Cancelled)?;
                }
                return Ok(HandOver::Cancelled);
            }
            patience = (patience * 2).min(LONGEST_LOOK);
        }
    }
}

/// Receives what the last pass still owes, so that no member sends to a leader that is gone. That
/// takes as long as a layer.
impl Drop for Others {
    fn drop(&mut self) {
        if self.owe_rows && !std::thread::panicking() {
            let before = self.link.exchange.members() - 1;
            // An error: another member is gone.
            let _ = self.link.receive_from(before, None);
        }
    }
}

impl Forward for StagedModel {
    type Storage = CpuPages;

    fn architecture(&self) -> &Architecture {
        self.weights.architecture()
    }

    fn new_storage(&self) -> CpuPages {
        let own = self.transformer.new_storage();
        let layers = |layers| CpuPages::new(layers, self.weights.cache_type());
        let [all, here] = [&self.architecture().layers[..], self.weights.own_layers()].map(layers);
        let of_others =
            (all.page_bytes() - here.page_bytes(), all.state_bytes() - here.state_bytes());
        self.passes.mirrored(own, of_others)
    }

    fn forward(
        &mut self,
        pass: &Pass<'_>,
        storage: &mut CpuPages,
    ) -> Result<PassOutput<'_>, PassError> {
        let Self { weights, others, passes, features, .. } = self;
        assert_eq!(pass.order, LayerOrder::Sequential, "layers one after another");
        let architecture = weights.architecture();
        let rows: usize = pass.sequences.iter().map(SequencePass::rows).sum();
        let size = rows * architecture.hidden_size;
        let lengths = [size, features.len() * size];
        passes.start(pass, storage, architecture, |message| {
            let number = message.number;
            let features = features.iter().map(|layers| *layers as u32).collect();
            // Numbers can always be written.
            let message = postcard::to_allocvec(&StageMessage { pass: message, features });
            others.start(number, &message.unwrap_or_default())
        })?;
        let rows = match others.rows(pass, lengths) {
            Ok(HandOver::Rows(rows)) => Some(rows),
            Ok(HandOver::Cancelled) => None,
            // The pass cannot go on, and other members may be in the middle of it.
            Err(error) => panic!("{error}"),
        };
        let outcome = match rows {
            Some(rows) => self.finish(pass, &rows, storage),
            None => Err(Cancelled.into()),
        };
        self.passes.end();
        outcome?;
        Ok(PassOutput { overflows: &self.overflows, ..self.transformer.output() })
    }
}
