//! The weights of a model, where the model is placed.

use forerun_cpu::Weights;
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
