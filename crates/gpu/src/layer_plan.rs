//! How many of a model's first layers a GPU has.

use crate::device::GpuDevice;
use crate::error::{GpuFailure, GpuLoadError};
use crate::matrix::row_bytes;
use crate::pages::number_bytes;
use crate::support;
use forerun_cache::{RECENT_STATES, SHORT_PASS_ROWS};
use forerun_formats::checkpoint::{LayerTensor, Tensor};
use forerun_formats::{
    Architecture, Attention, CacheType, Head, MatrixTypes, ModelTypes, Recurrent, WeightType,
};

/// Memory that is left to the buffers of passes and to the driver.
pub(crate) const PASS_BYTES: u64 = 512 << 20;

/// The number of tokens for whose keys and values memory is left. The cache may still grow larger,
/// while there is memory.
const CACHED_TOKENS: u64 = 8192;

/// The number of states of recurrent layers for which memory is left: those of a sequence, and
/// those of a short pass.
const KEPT_STATES: u64 = (RECENT_STATES + SHORT_PASS_ROWS) as u64;

/// How many of a model's first layers are loaded on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LayerCount {
    /// This number, or all if there are fewer; 0 counts as 1.
    Exactly(usize),
    /// As many as GPUs compute and as fit in the free memory.
    AsManyAsFit,
}

/// How a model's first layers are loaded on a GPU.
///
/// There is room for passes and for the keys and values of 8,192 tokens, and for 64 states of
/// recurrent layers, for each of the `replicas`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerOptions {
    /// The types of the matrices and of the cache.
    pub types: ModelTypes,
    /// The number of layers.
    pub count: LayerCount,
    /// How many of these, from the first on, leave their experts and the choice of them to the
    /// other device.
    pub without_experts: usize,
    /// The number of models with these weights that have caches of their own on this GPU.
    pub replicas: usize,
    /// Memory in bytes that is left free in addition, such as for a drafter that is loaded later.
    pub reserved_bytes: u64,
}

impl LayerOptions {
    /// Creates the options of a single replica without other models on its GPU.
    #[must_use]
    pub fn new(types: impl Into<ModelTypes>, count: LayerCount) -> Self {
        Self { types: types.into(), count, without_experts: 0, replicas: 1, reserved_bytes: 0 }
    }
}

/// The memory in bytes that the layers of a model need on a GPU.
struct Needs {
    /// What each layer needs for its weights, and for the caches of all replicas.
    layers: Vec<[u64; 2]>,
    /// What passes and other models need.
    others: u64,
}

impl Needs {
    /// Returns the number of layers that fit.
    fn fitting(&self, free: u64) -> usize {
        let mut needed = self.others;
        let fits = self.layers.iter().take_while(|[weights, caches]| {
            needed = needed.saturating_add(weights + caches);
            needed <= free
        });
        fits.count()
    }

    /// Returns what must be free in addition to the weights of the first `layers`.
    fn room(&self, layers: usize) -> u64 {
        let caches: u64 = self.layers[..layers].iter().map(|[_, caches]| caches).sum();
        caches.saturating_add(self.others)
    }
}

/// The layers that are about to be loaded.
pub(crate) struct LayerPlan {
    pub(crate) layers: usize,
    count: LayerCount,
    adapter: String,
    needs: Needs,
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
        options: LayerOptions,
    ) -> Result<Self, GpuLoadError> {
        let LayerOptions { count, without_experts, replicas, reserved_bytes, .. } = options;
        let (supported, piece) = support::first_layers(architecture, types, cache, without_experts);
        let piece = piece.unwrap_or_default();
        if supported == 0 {
            return Err(GpuLoadError::Unsupported { piece });
        }
        let replicas = replicas.max(1) as u64;
        let layers = layer_bytes(architecture, types, cache, without_experts).into_iter();
        let layers = layers.map(|[weights, cached]| [weights, cached * replicas]).collect();
        let others = reserved_bytes.saturating_add(replicas * PASS_BYTES);
        let (adapter, needs) = (device.adapter().name.clone(), Needs { layers, others });
        let mut plan = Self { layers: supported, count, adapter, needs };
        match count {
            LayerCount::Exactly(asked) => {
                let asked = asked.clamp(1, architecture.layers.len());
                if asked > supported {
                    return Err(GpuLoadError::UnsupportedLayers { piece, layers: supported });
                }
                plan.layers = asked;
            }
            LayerCount::AsManyAsFit => {
                if let Some(most) = device.memory_limit() {
                    plan.layers = supported.min(plan.needs.fitting(most));
                }
                if plan.layers == 0 {
                    return Err(plan.nothing_fits().into());
                }
            }
        }
        Ok(plan)
    }

    /// Drops the last of the loaded layers until there is room for the caches of the others, for
    /// passes and for other models. `has_memory` says whether this many bytes are free. Fails if no
    /// layer is left, or fewer than were asked for.
    pub(crate) fn leave_room<L>(
        &self,
        layers: &mut Vec<L>,
        mut has_memory: impl FnMut(u64) -> Result<bool, GpuFailure>,
    ) -> Result<(), GpuLoadError> {
        while !layers.is_empty() && !has_memory(self.needs.room(layers.len()))? {
            layers.pop();
        }
        match (layers.len(), self.count) {
            (0, _) => Err(self.nothing_fits().into()),
            (found, LayerCount::Exactly(_)) if found < self.layers => {
                Err(GpuLoadError::TooManyLayers {
                    adapter: self.adapter.clone(),
                    layers: found,
                    asked: self.layers,
                })
            }
            _ => Ok(()),
        }
    }

    fn nothing_fits(&self) -> GpuFailure {
        let bytes = self.needs.layers.first().map_or(0, |[weights, caches]| weights + caches);
        GpuFailure::OutOfMemory {
            adapter: self.adapter.clone(),
            what: "a layer, its caches, the buffers of passes and other models".to_owned(),
            bytes: bytes.saturating_add(self.needs.others),
        }
    }
}

/// Returns the memory in bytes that a whole model needs on a GPU: its weights, the keys and values
/// of 8,192 tokens, and the buffers of passes.
pub(crate) fn needed_memory(
    architecture: &Architecture,
    types: &MatrixTypes,
    cache: CacheType,
) -> u64 {
    let layers = layer_bytes(architecture, types, cache, 0).into_iter().flatten().sum::<u64>();
    layers + bytes_outside_layers(architecture, types) + PASS_BYTES
}

/// Returns the memory in bytes that the tensors of a model need that belong to no layer.
pub(crate) fn bytes_outside_layers(architecture: &Architecture, types: &MatrixTypes) -> u64 {
    let outside = |tensor: &Tensor| !matches!(tensor, Tensor::Layer(..) | Tensor::Expert(..));
    let outside = architecture.tensors().filter(outside);
    // A part of the target's head is copied. Its type is the target's.
    let is_copied = architecture.head == Head::Target && architecture.head_tokens.is_some();
    let row = row_bytes(WeightType::F32, architecture.hidden_size);
    let copied = if is_copied { architecture.head_size() * row } else { 0 };
    let bytes = |tensor| {
        // The projection of features may have a bias.
        let bias = if tensor == Tensor::Fusion { architecture.hidden_size } else { 0 };
        tensor_bytes(architecture, types, tensor) + (bias * size_of::<f32>()) as u64
    };
    outside.map(bytes).sum::<u64>() + copied as u64
}

/// Returns whether a tensor is part of the experts that the first layers leave to another device.
pub(crate) fn is_elsewhere(tensor: Tensor, without_experts: usize) -> bool {
    match tensor {
        Tensor::Expert(layer, ..) | Tensor::Layer(layer, LayerTensor::Router) => {
            layer < without_experts
        }
        _ => false,
    }
}

/// Returns the bytes of each layer's weights, and those of its keys and values or of its states.
fn layer_bytes(
    architecture: &Architecture,
    types: &MatrixTypes,
    cache: CacheType,
    without_experts: usize,
) -> Vec<[u64; 2]> {
    let number = number_bytes(cache) as u64;
    let cached = architecture.layers.iter().map(|layer| {
        let numbers = layer.attention.as_ref().map_or(0, Attention::cached_size) as u64;
        let state = layer.recurrent.as_ref().map_or(0, Recurrent::state_bytes) as u64;
        [0, CACHED_TOKENS * number * numbers + KEPT_STATES * state]
    });
    let mut bytes: Vec<[u64; 2]> = cached.collect();
    for tensor in architecture.tensors().filter(|it| !is_elsewhere(*it, without_experts)) {
        let (Tensor::Layer(layer, _) | Tensor::Expert(layer, ..)) = tensor else { continue };
        bytes[layer][0] += tensor_bytes(architecture, types, tensor);
    }
    bytes
}

fn tensor_bytes(architecture: &Architecture, types: &MatrixTypes, tensor: Tensor) -> u64 {
    let shape = architecture.shape(tensor);
    let bytes = match shape[..] {
        [outputs, inputs] => outputs * row_bytes(types.of(tensor), inputs),
        _ => shape.iter().product::<usize>() * size_of::<f32>(),
    };
    bytes as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heads::GpuHeadWeights;
    use crate::testing::gpu;
    use crate::weights::{GpuWeights, types_of};
    use forerun_formats::checkpoint::random::{
        RandomDtype, example_config, write_random_checkpoint,
    };
    use forerun_formats::checkpoint::random_speculator::{RandomSpeculator, SpeculatorLayout};
    use forerun_formats::{Checkpoint, Config, Speculator, SpeculatorArchitecture};

    /// The weights of drafters and what they share with their target need what was planned, and
    /// small buffers for which [`PASS_BYTES`] has room.
    #[test]
    fn weights_of_drafters_need_the_planned_memory() {
        use SpeculatorLayout as L;
        let Some(device) = gpu() else { return };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("target");
        let config = Config {
            hidden_size: 256,
            intermediate_size: 512,
            vocab_size: 2000,
            ..example_config()
        };
        write_random_checkpoint(&path, &config, 3, RandomDtype::F32).unwrap();
        let target = Checkpoint::open(&path).unwrap();
        let allocated = || {
            device.wait(device.submit_writes()).unwrap();
            let report = device.inner().generate_allocator_report();
            report.map(|report| report.allocations.iter().map(|it| it.size).sum::<u64>())
        };
        let Some(_) = allocated() else {
            return eprintln!("skipped: the driver reports no memory");
        };
        let check = |name: &str, planned: u64, before: u64| {
            let found = allocated().unwrap() - before;
            let is_close = found <= planned + 1024 && planned <= found + found / 20;
            assert!(is_close, "{name}: planned {planned}, allocated {found}");
        };
        let types = ModelTypes::from(WeightType::F32);
        let before = allocated().unwrap();
        let shared = GpuWeights::load_without_layers(&device, &target, types).unwrap();
        let planned = GpuWeights::memory_without_layers(&target, types).unwrap();
        check("the embedding and the head", planned, before);
        for layout in [
            L::Eagle,
            L::SharedEmbeddingEagle,
            L::ReducedEagle,
            L::Eagle3,
            L::PEagle,
            L::DFlash2,
            L::Medusa,
            L::SharedHeadMedusa,
            L::ReducedMedusa,
            L::Hydra,
            L::ReducedHydra,
        ] {
            let path = folder.path().join(format!("{layout:?}"));
            let random = RandomSpeculator {
                layout,
                target: &config,
                seed: 3,
                positions: 3,
                target_embedding_sha256: None,
            };
            random.write(&path).unwrap();
            let speculator = Speculator::open(&path, &target).unwrap().unwrap();
            let before = allocated().unwrap();
            let name = format!("{layout:?}");
            match speculator.architecture().unwrap() {
                SpeculatorArchitecture::Layers(layers) => {
                    let (matrices, cache) = types_of(&layers, &speculator, types).unwrap();
                    let caches = layer_bytes(&layers, &matrices, cache, 0);
                    let caches: u64 = caches.into_iter().map(|[_, cached]| cached).sum();
                    let needed = GpuWeights::needed_memory(&layers, &speculator, types).unwrap();
                    let loaded = GpuWeights::load_drafter(&shared, layers, &speculator, types);
                    let _loaded = loaded.unwrap();
                    check(&name, needed - caches - PASS_BYTES, before);
                }
                SpeculatorArchitecture::Heads(heads) => {
                    let needed = GpuHeadWeights::needed_memory(&heads, &speculator, types).unwrap();
                    let loaded = GpuHeadWeights::load(&shared, heads, &speculator, types);
                    let _loaded = loaded.unwrap();
                    check(&name, needed - PASS_BYTES, before);
                }
            }
        }
    }

    /// A plan of three layers with two replicas, whose caches need 20 bytes a layer, next to models
    /// of 7 bytes.
    fn plan(count: LayerCount) -> LayerPlan {
        let needs = Needs { layers: vec![[100, 20], [100, 20], [300, 20]], others: 7 };
        LayerPlan { layers: 3, count, adapter: "a GPU".into(), needs }
    }

    #[test]
    fn layers_fit_with_all_caches_and_what_is_reserved() {
        let needs = plan(LayerCount::AsManyAsFit).needs;
        let found = [0, 126, 127, 246, 247, 566, 567, 1000].map(|free| needs.fitting(free));
        assert_eq!(found, [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!([0, 1, 3].map(|layers| needs.room(layers)), [7, 27, 67]);
        assert_eq!(Needs { others: u64::MAX, ..needs }.fitting(u64::MAX - 1), 0, "no overflow");
    }

    /// Each layer that is dropped frees its weights.
    #[test]
    fn loaded_layers_are_dropped_until_there_is_room() {
        let leave = |count, total: u64| {
            let plan = plan(count);
            let mut layers = vec![100_u64, 100, 300];
            let mut kept = layers.clone();
            let left = plan.leave_room(&mut layers, |bytes| {
                let fits = kept.iter().sum::<u64>() + bytes <= total;
                kept.pop();
                Ok(fits)
            });
            (layers.len(), left.map_err(|error| error.to_string()))
        };
        let fit = LayerCount::AsManyAsFit;
        assert_eq!(leave(fit, 567), (3, Ok(())));
        assert_eq!(leave(fit, 566), (2, Ok(())));
        assert_eq!(leave(fit, 246), (1, Ok(())));
        assert!(leave(fit, 126).1.unwrap_err().contains("no memory for a layer"));
        assert_eq!(leave(LayerCount::Exactly(3), 567), (3, Ok(())));
        let error = leave(LayerCount::Exactly(3), 566).1.unwrap_err();
        assert!(error.contains("2 of this model's layers, not for 3"), "{error}");
    }
}
