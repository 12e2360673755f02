//! The weights of a model, where the model is placed.

use forerun_cpu::Weights;
use forerun_formats::Architecture;
#[cfg(feature = "gpu")]
use forerun_gpu::GpuWeights;
use std::sync::Arc;

/// A model's weights, for cores or for a GPU.
#[derive(Clone)]
pub(crate) enum PlacedWeights {
    /// Packed for the cores.
    Cores(Arc<Weights>),
    /// In a GPU's memory.
    #[cfg(feature = "gpu")]
    Gpu(Arc<GpuWeights>),
}

impl PlacedWeights {
    /// Returns what the model computes.
    pub(crate) fn architecture(&self) -> &Architecture {
        match self {
            Self::Cores(weights) => weights.architecture(),
            #[cfg(feature = "gpu")]
            Self::Gpu(weights) => weights.architecture(),
        }
    }
}
