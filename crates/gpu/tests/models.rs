//! The same weights for a GPU and for the reference.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_formats::{Architecture, ModelTypes, TensorSource};
use forerun_gpu::{GpuDevice, GpuLoadError, GpuModel, GpuWeights};
use forerun_reference::{Arithmetic, ReferenceModel};
use std::sync::Arc;

/// The same weights for the GPU and for the reference.
pub(crate) struct Models {
    pub(crate) weights: Arc<GpuWeights>,
    pub(crate) reference: Arc<ReferenceModel>,
}

impl Models {
    /// Loads a model on both.
    pub(crate) fn load(
        device: &Arc<GpuDevice>,
        architecture: &Architecture,
        source: &dyn TensorSource,
        types: impl Into<ModelTypes>,
    ) -> Result<Self, GpuLoadError> {
        let types = types.into();
        let gpu = GpuWeights::load_architecture(device, architecture.clone(), source, types)?;
        let arithmetic = Arithmetic::gpu(types);
        let reference =
            ReferenceModel::load_with(architecture.clone(), source, arithmetic, None).unwrap();
        Ok(Self { weights: Arc::new(gpu), reference: Arc::new(reference) })
    }

    pub(crate) fn gpu(&self) -> GpuModel {
        GpuModel::new(Arc::clone(&self.weights))
    }
}
