//! The member that leads.

use super::exchange::Exchange;
use super::members::Members;
use super::message::{PassMessage, SequenceMessage, groups};
use crate::cpu_pages::{CpuPages, DroppedStorages, Mirror};
use crate::team::Team;
use crate::transformer::Transformer;
use crate::weights::Weights;
use forerun_cache::PageStorage;
use forerun_formats::{Architecture, FeatureSource, Input, Layer};
use forerun_lm::LayerOrder;
use forerun_model::{Cancelled, Forward, Pass, PassError, PassOutput};
use std::cell::Cell;
use std::sync::Arc;

/// A model that several members compute together, of which this is the leader.
pub struct TensorParallelModel {
    transformer: Transformer,
    weights: Arc<Weights>,
    /// The number of passes so far.
    passes: u32,
    /// Whether a pass has begun and not ended: it has panicked, and the other members are in the middle of it.
    is_in_pass: bool,
    storages: Cell<u32>,
    dropped: DroppedStorages,
}

impl TensorParallelModel {
    /// Creates the leader, which has the first share of the weights. The others are
    /// [`TensorParallelFollower`](super::TensorParallelFollower)s.
    ///
    /// # Panics
    /// If the model reads features, or its head has other tokens than its embedding: such models are drafters.
    #[must_use]
    pub fn new(weights: Arc<Weights>, team: Arc<Team>, exchange: Box<dyn Exchange>) -> Self {
        let architecture = weights.architecture();
        assert_eq!(architecture.input, Input::Embedding, "a model that reads tokens only");
        assert!(architecture.head_tokens.is_none(), "a head with all tokens");
        let members = Members::new(exchange);
        let transformer = Transformer::new(Arc::clone(&weights), team).with_members(members);
        let (storages, dropped) = (Cell::new(0), DroppedStorages::default());
        Self { transformer, weights, passes: 0, is_in_pass: false, storages, dropped }
    }

    /// Returns the same model, configured so that new storages store each token's features.
    #[must_use]
    pub fn with_features(self, features: FeatureSource) -> Self {
        Self { transformer: self.transformer.with_features(features), ..self }
    }

    /// Panics if a pass cannot be computed, before the other members hear of it.
    fn check(&self, pass: &Pass<'_>) {
        assert!(
            !self.is_in_pass,
            "a pass of the tensor-parallel group has failed, so its members are out of step"
        );
        let architecture = self.weights.architecture();
        if let LayerOrder::Groups(groups) = pass.order {
            assert_eq!(groups.n_layers(), architecture.layers.len(), "groups of all layers");
        }
        for sequence in pass.sequences {
            let held = sequence.held();
            let outputs = held..=sequence.tree.len();
            assert!(outputs.contains(&sequence.first_output), "output rows must be new rows");
            assert!(sequence.features.is_empty(), "a model that reads tokens only");
            let mut tokens = sequence.tree.tokens()[held..].iter();
            let vocabulary = architecture.vocab_size;
            assert!(tokens.all(|token| (*token as usize) < vocabulary), "tokens with an embedding");
            if let Some(table) = architecture.positions {
                let deepest = (held..sequence.tree.len()).map(|node| sequence.tree.depth(node));
                let end = sequence.cache.prefix_len() + deepest.max().unwrap_or(0);
                assert!(table.first + end <= table.rows, "positions with an embedding");
            }
        }
    }
}

impl Forward for TensorParallelModel {
    type Storage = CpuPages;

    fn architecture(&self) -> &Architecture {
        self.weights.architecture()
    }

    fn new_storage(&self) -> CpuPages {
        let number = self.storages.get();
        self.storages.set(number + 1);
        let (weights, share) = (&self.weights, self.weights.share());
        let of_others = share.all().filter(|other| *other != share).map(|other| {
            let layers = weights.architecture().layers.iter();
            let layers: Vec<Layer> = layers.map(|layer| other.of_layer(layer)).collect();
            let pages = CpuPages::new(&layers, weights.cache_type());
            (pages.page_bytes(), pages.state_bytes())
        });
        let of_others = of_others.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let dropped = Arc::clone(&self.dropped);
        self.transformer.new_storage().with_mirror(Mirror::new(number, of_others, dropped))
    }

    fn forward(
        &mut self,
        pass: &Pass<'_>,
        storage: &mut CpuPages,
    ) -> Result<PassOutput<'_>, PassError> {
        self.check(pass);
        if pass.is_cancelled() {
            return Err(Cancelled.into());
        }
        let (number, operations) =
            storage.take_operations().expect("a storage of this tensor-parallel model");
        self.passes += 1;
        let message = PassMessage {
            number: self.passes,
            dropped: crate::cpu_pages::take_dropped(&self.dropped),
            storage: number,
            operations,
            groups: groups(pass.order, self.weights.architecture().layers.len()),
            sequences: SequenceMessage::all(pass, self.weights.has_states()),
        };
        self.is_in_pass = true;
        if let Some(members) = self.transformer.members() {
            // Numbers can always be written.
            let bytes = postcard::to_allocvec(&message).unwrap_or_default();
            if let Err(error) = members.send(&bytes) {
                panic!("{error}");
            }
            members.start_pass(self.passes);
        }
        let outcome = self.transformer.forward(pass, storage).map(|_output| ());
        self.is_in_pass = false;
        outcome?;
        Ok(self.transformer.output())
    }
}
