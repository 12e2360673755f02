//! The member that leads.

use super::exchange::Exchange;
use super::members::Members;
use super::sent_passes::SentPasses;
use crate::cpu_pages::CpuPages;
use crate::team::Team;
use crate::transformer::Transformer;
use crate::weights::Weights;
use forerun_cache::PageStorage;
use forerun_formats::{Architecture, FeatureSource, Layer};
use forerun_model::{Forward, Pass, PassError, PassOutput};
use std::sync::Arc;

/// A model that several members compute together, of which this is the leader.
pub struct TensorParallelModel {
    transformer: Transformer,
    weights: Arc<Weights>,
    passes: SentPasses,
}

impl TensorParallelModel {
    /// Creates the leader, which has the first share of the weights. The others are
    /// [`TensorParallelFollower`](super::TensorParallelFollower)s.
    ///
    /// # Panics
    /// If the model reads features, or its head has other tokens than its embedding: such models
    /// are drafters.
    #[must_use]
    pub fn new(weights: Arc<Weights>, team: Arc<Team>, exchange: Box<dyn Exchange>) -> Self {
        let passes = SentPasses::new(weights.architecture());
        let members = Members::new(exchange);
        let transformer = Transformer::new(Arc::clone(&weights), team).with_members(members);
        Self { transformer, weights, passes }
    }

    /// Returns the same model, configured so that new storages store each token's features.
    #[must_use]
    pub fn with_features(self, features: FeatureSource) -> Self {
        Self { transformer: self.transformer.with_features(features), ..self }
    }
}

impl Forward for TensorParallelModel {
    type Storage = CpuPages;

    fn architecture(&self) -> &Architecture {
        self.weights.architecture()
    }

    fn new_storage(&self) -> CpuPages {
        let (weights, share) = (&self.weights, self.weights.share());
        let of_others = share.all().filter(|other| *other != share).map(|other| {
            let layers = weights.architecture().layers.iter();
            let layers: Vec<Layer> = layers.map(|layer| other.of_layer(layer)).collect();
            let pages = CpuPages::new(&layers, weights.cache_type());
            (pages.page_bytes(), pages.state_bytes())
        });
        let of_others = of_others.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        self.passes.mirrored(self.transformer.new_storage(), of_others)
    }

    fn forward(
        &mut self,
        pass: &Pass<'_>,
        storage: &mut CpuPages,
    ) -> Result<PassOutput<'_>, PassError> {
        let Self { transformer, weights, passes } = self;
        passes.start(pass, storage, weights.architecture(), |message| {
            let Some(members) = transformer.members() else { return Ok(()) };
            // Numbers can always be written.
            members.send(&postcard::to_allocvec(&message).unwrap_or_default())?;
            members.start_pass(message.number);
            Ok(())
        })?;
        let outcome = self.transformer.forward(pass, storage).map(|_output| ());
        self.passes.end();
        outcome?;
        Ok(self.transformer.output())
    }
}
