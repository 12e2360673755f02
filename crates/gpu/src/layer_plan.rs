//! How many of a model's first layers a GPU has.

use crate::device::GpuDevice;
use crate::error::{GpuFailure, GpuLoadError};
use crate::matrix::row_bytes;
use crate::support;
use forerun_formats::checkpoint::Tensor;
use forerun_formats::{Architecture, CacheType, MatrixTypes};

/// Memory that is left to the buffers of passes and to the driver.
const PASS_BYTES: u64 = 512 << 20;

/// The number of tokens for whose keys and values memory is left. The cache may still grow larger, while there is memory.
const CACHED_TOKENS: u64 = 8192;

/// How many of a model's first layers are loaded on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerCount {
    /// This number, or all if there are fewer.
    Exactly(usize),
    /// As many as GPUs compute and as fit in the free memory, with room for the keys and values of 8,192 tokens and for
    /// passes.
    AsManyAsFit,
}

/// The layers that are about to be loaded.
pub(crate) struct LayerPlan {
    pub(crate) layers: usize,
    count: LayerCount,
    adapter: String,
    /// The memory that each layer needs for its weights, and what it leaves free.
    bytes: Vec<[u64; 2]>,
}

impl LayerPlan {
    /// Plans how many layers are loaded.
    ///
    /// # Errors
    /// [`GpuLoadError::Unsupported`] and [`GpuLoadError::UnsupportedLayers`], and
    /// [`GpuFailure::OutOfMemory`] if not even one layer fits.
    pub(crate) fn new(
        device: &GpuDevice,
        architecture: &Architecture,
        (types, cache): (&MatrixTypes, CacheType),
        count: LayerCount,
    ) -> Result<Self, GpuLoadError> {
        let (supported, piece) = support::first_layers(architecture, types, cache);
        let piece = piece.unwrap_or_default();
        if supported == 0 {
            return Err(GpuLoadError::Unsupported { piece });
        }
        let bytes = layer_bytes(architecture, types, cache);
        let adapter = device.adapter().name.clone();
        let mut plan = Self { layers: supported, count, adapter, bytes };
        match count {
            LayerCount::Exactly(asked) => {
                let asked = asked.clamp(1, architecture.layers.len());
                if asked > supported {
                    return Err(GpuLoadError::UnsupportedLayers { piece, layers: supported });
                }
                plan.layers = asked;
            }
            LayerCount::AsManyAsFit => {
                if let Some(free) = device.free_memory() {
                    plan.layers = supported.min(fitting(&plan.bytes, free));
                }
                if plan.layers == 0 {
                    return Err(plan.nothing_fits().into());
                }
            }
        }
        Ok(plan)
    }

    /// Returns how many layers to keep if the memory ended in layer `loaded`.
    ///
    /// # Errors
    /// If it is not enough.
    pub(crate) fn without_memory(
        &self,
        loaded: usize,
        failure: GpuFailure,
    ) -> Result<usize, GpuLoadError> {
        match self.count {
            LayerCount::Exactly(_) if loaded == 0 => Err(failure.into()),
            LayerCount::Exactly(_) => Err(GpuLoadError::TooManyLayers {
                adapter: self.adapter.clone(),
                layers: loaded,
                asked: self.layers,
            }),
            LayerCount::AsManyAsFit => {
                let held = self.bytes[..loaded].iter().map(|[weights, _]| weights).sum();
                match fitting(&self.bytes[..loaded], held) {
                    0 => Err(self.nothing_fits().into()),
                    layers => Ok(layers),
                }
            }
        }
    }

    fn nothing_fits(&self) -> GpuFailure {
        let bytes = self.bytes.first().map_or(0, |[weights, kept]| weights + kept);
        let what = "a layer, its cache and the buffers of passes".to_owned();
        GpuFailure::OutOfMemory { adapter: self.adapter.clone(), what, bytes: bytes + PASS_BYTES }
    }
}

/// Returns the number of layers that fit.
fn fitting(layers: &[[u64; 2]], free: u64) -> usize {
    let mut needed = PASS_BYTES;
    let fits = layers.iter().take_while(|[weights, cache]| {
        needed = needed.saturating_add(weights + cache);
        needed <= free
    });
    fits.count()
}

/// Returns the bytes of each layer's weights, and those of its keys and values.
fn layer_bytes(
    architecture: &Architecture,
    types: &MatrixTypes,
    cache: CacheType,
) -> Vec<[u64; 2]> {
    let number = if cache == CacheType::F32 { 4 } else { 2 };
    let cached = architecture.layers.iter().map(|layer| {
        let numbers = layer.attention.as_ref().map_or(0, |attention| attention.cached_size());
        [0, CACHED_TOKENS * number * numbers as u64]
    });
    let mut bytes: Vec<[u64; 2]> = cached.collect();
    for tensor in architecture.tensors() {
        let (Tensor::Layer(layer, _) | Tensor::Expert(layer, ..)) = tensor else { continue };
        let shape = architecture.shape(tensor);
        let of_tensor = match shape[..] {
            [outputs, inputs] => outputs * row_bytes(types.of(tensor), inputs),
            _ => shape.iter().product::<usize>() * size_of::<f32>(),
        };
        bytes[layer][0] += of_tensor as u64;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_fit_with_their_caches_and_the_buffers_of_passes() {
        let layers = [[100, 10], [100, 10], [300, 10]];
        let fit = |free: u64| fitting(&layers, PASS_BYTES + free);
        assert_eq!([0, 109, 110, 219, 220, 529, 530, 1000].map(fit), [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(fitting(&layers, 1000), 0, "passes need memory, too");
    }
}
