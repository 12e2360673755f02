//! The first layers of a model on a GPU, whose rest is on another device.

use crate::model::GpuModel;
use crate::pages::GpuPages;
use crate::weights::GpuWeights;
use forerun_formats::FeatureSource;
use forerun_lm::LayerOrder;
use forerun_model::{ExpertsElsewhere, Forward, ForwardLayers, LayersOutput, Pass, PassError};
use std::sync::Arc;

/// The first layers of a model on a GPU.
pub struct GpuLayers(GpuModel);

impl GpuLayers {
    /// Creates the layers from their weights.
    ///
    /// # Panics
    /// If the weights are those of a whole model: a programming error.
    #[must_use]
    pub fn new(weights: Arc<GpuWeights>) -> Self {
        assert!(weights.is_part(), "weights of layers alone");
        Self(GpuModel::new(weights))
    }

    /// As [`GpuPages::max_cache_bytes`]: `page_bytes` and `state_bytes` also count the part on the
    /// other device.
    #[must_use]
    pub fn max_cache_bytes(&self, page_bytes: usize, state_bytes: usize) -> usize {
        self.0.new_storage().max_cache_bytes(page_bytes, state_bytes)
    }
}

impl ForwardLayers for GpuLayers {
    type Storage = GpuPages;

    fn n_layers(&self) -> usize {
        self.0.weights.n_layers()
    }

    fn new_storage(&self) -> GpuPages {
        let weights = &self.0.weights;
        let empty = &weights.empty_pages;
        GpuPages::new(weights.device(), &weights.layers, weights.cache_type(), empty)
    }

    fn forward_layers(
        &mut self,
        pass: &Pass<'_>,
        inputs: &[f32],
        kept: &[usize],
        experts: &mut ExpertsElsewhere<'_>,
        storage: &mut GpuPages,
    ) -> Result<LayersOutput<'_>, PassError> {
        let Self(model) = self;
        assert!(matches!(pass.order, LayerOrder::Sequential), "no groups of layers");
        assert!(kept.first() > Some(&0) && kept.is_sorted(), "layers in order");
        model.features = Some(FeatureSource::Layers(kept.to_vec()));
        model.compute(pass, Some((inputs, experts)), storage)?;
        Ok(LayersOutput { hidden: &model.kept, overflows: &model.overflows })
    }
}
