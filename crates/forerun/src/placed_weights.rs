//! The weights of a model, where the model is placed.

use forerun_cpu::{HeadWeights, Weights};
use forerun_formats::{Architecture, CacheType, DraftHeads};
#[cfg(feature = "gpu")]
use forerun_gpu::{GpuHeadWeights, GpuWeights};
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

    /// Returns the arithmetic of products, if it is a GPU's.
    pub(crate) fn arithmetic(&self) -> Option<String> {
        match self {
            Self::Cores(_) => None,
            #[cfg(feature = "gpu")]
            Self::Gpu(weights) => Some(weights.device().arithmetic().to_string()),
        }
    }

    /// Whether their device works: a GPU may have failed.
    pub(crate) fn device_works(&self) -> bool {
        match self {
            Self::Cores(_) => true,
            #[cfg(feature = "gpu")]
            Self::Gpu(weights) => weights.device().check().is_ok(),
        }
    }
}

/// The weights of draft heads, for cores or for a GPU.
#[derive(Clone)]
pub(crate) enum PlacedHeads {
    /// Packed for the cores.
    Cores(Arc<HeadWeights>),
    /// In a GPU's memory.
    #[cfg(feature = "gpu")]
    Gpu(Arc<GpuHeadWeights>),
}

impl PlacedHeads {
    /// Returns what the heads compute.
    pub(crate) fn architecture(&self) -> &DraftHeads {
        match self {
            Self::Cores(weights) => weights.architecture(),
            #[cfg(feature = "gpu")]
            Self::Gpu(weights) => weights.architecture(),
        }
    }
}

/// Where the first layers of a model go.
#[derive(Clone, Copy)]
#[cfg_attr(not(feature = "gpu"), expect(dead_code, reason = "there are none without GPUs"))]
pub(crate) struct FirstLayersPlace {
    pub(crate) gpu: usize,
    /// Their number. `None`: as many as fit.
    pub(crate) layers: Option<usize>,
    /// How many of these leave their experts to the cores.
    pub(crate) without_experts: usize,
    /// The number of target replicas on this GPU.
    pub(crate) replicas: usize,
    /// Memory in bytes that other models will need there.
    pub(crate) reserved_bytes: u64,
}

/// The first layers of a model on a GPU.
#[derive(Clone)]
pub(crate) struct FirstLayers {
    pub(crate) weights: PlacedWeights,
    /// Their number.
    pub(crate) layers: usize,
    /// The type of their cache, which is that of the other layers, too.
    pub(crate) cache_type: CacheType,
}

#[cfg(feature = "gpu")]
impl FirstLayers {
    pub(crate) fn new(weights: Arc<GpuWeights>) -> Self {
        let (layers, cache_type) = (weights.n_layers(), weights.cache_type());
        Self { weights: PlacedWeights::Gpu(weights), layers, cache_type }
    }
}
