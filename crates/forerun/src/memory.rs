//! Checks that models fit in memory, before they are loaded.

use crate::drafter::{OpenDrafter, SharedPart};
use crate::error::ForerunError;
use crate::loader::Loader;
use crate::plan::{Method, Plan};
use forerun_core::Role;
use forerun_cpu::{AdapterWeights, CorePart};
#[cfg(feature = "gpu")]
use forerun_formats::SpeculatorArchitecture;
use forerun_formats::{Architecture, Checkpoint, LoadError, ModelTypes, Speculator};
use forerun_model::{DEFAULT_CACHE_BYTES, DRAFTER_CACHE_BYTES};
use forerun_runtime::{DeviceGroup, DeviceGroups, available_memory};

/// Memory for activations, threads and everything else that is small, in bytes.
const RESERVE: usize = 64 << 20;

/// Returns the memory that a part of a model needs at least.
pub(crate) fn of_model(
    checkpoint: &Checkpoint,
    types: ModelTypes,
    part: CorePart,
) -> Result<usize, LoadError> {
    part.least_memory(checkpoint.architecture(), checkpoint, types)
}

/// Returns the memory that a part of a target needs, which drafters share. A norm needs next to
/// none.
pub(crate) fn of_shared(
    checkpoint: &Checkpoint,
    types: ModelTypes,
    part: SharedPart,
) -> Result<usize, LoadError> {
    match part {
        SharedPart::EmbeddingAndHead => {
            let ends = Architecture { layers: Vec::new(), ..checkpoint.architecture().clone() };
            CorePart::Whole.least_memory(&ends, checkpoint, types)
        }
        SharedPart::FinalNorm => Ok(0),
    }
}

/// Returns the memory that a whole model needs on a GPU, with a cache.
#[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "there are no GPUs"))]
pub(crate) fn of_model_on_gpu(
    checkpoint: &Checkpoint,
    types: ModelTypes,
) -> Result<u64, LoadError> {
    #[cfg(feature = "gpu")]
    return forerun_gpu::GpuWeights::needed_memory(checkpoint.architecture(), checkpoint, types);
    #[cfg(not(feature = "gpu"))]
    Ok(0)
}

/// Returns the memory that a drafter trained for a target needs on a GPU, without what it shares
/// with the target.
#[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "there are no GPUs"))]
pub(crate) fn of_speculator_on_gpu(
    speculator: &Speculator,
    types: ModelTypes,
) -> Result<u64, LoadError> {
    #[cfg(feature = "gpu")]
    return match speculator.architecture()? {
        SpeculatorArchitecture::Layers(layers) => {
            forerun_gpu::GpuWeights::needed_memory(&layers, speculator, types)
        }
        SpeculatorArchitecture::Heads(heads) => {
            forerun_gpu::GpuHeadWeights::needed_memory(&heads, speculator, types)
        }
    };
    #[cfg(not(feature = "gpu"))]
    Ok(0)
}

/// Returns the memory that a part of a target needs on a GPU, which drafters share. A norm needs
/// next to none.
#[cfg_attr(not(feature = "gpu"), expect(unused_variables, reason = "there are no GPUs"))]
pub(crate) fn of_shared_on_gpu(
    checkpoint: &Checkpoint,
    types: ModelTypes,
    part: SharedPart,
) -> Result<u64, LoadError> {
    match part {
        #[cfg(feature = "gpu")]
        SharedPart::EmbeddingAndHead => {
            forerun_gpu::GpuWeights::memory_without_layers(checkpoint, types)
        }
        _ => Ok(0),
    }
}

/// Returns the memory that a plan's models take at most on cores: their weights, those of
/// adapters, and full caches.
pub(crate) fn most_of_plan(plan: &Plan, loader: &mut Loader<'_>) -> Result<u64, ForerunError> {
    let target = loader.open(plan.model())?;
    let drafters = OpenDrafter::all(plan, &target, loader)?;
    let is_on_cores = |replica: &usize| {
        let groups = plan.placement().target(*replica);
        let groups = groups.map(DeviceGroups::as_slice).unwrap_or_default();
        // Of a target that is split between a GPU and cores, the whole counts.
        plan.placement().gpu_of(Role::Target(*replica)).is_none()
            || groups.iter().any(|group| matches!(group, DeviceGroup::GpuAndCores { .. }))
    };
    let cache = |default: usize| plan.cache_bytes().unwrap_or(default);
    let mut bytes = 0_usize;
    let replicas = (0..plan.placement().replicas()).filter(is_on_cores).count();
    if replicas > 0 {
        bytes = of_model(&target.checkpoint, plan.types(), CorePart::Whole)?;
        bytes = bytes.saturating_add(replicas.saturating_mul(cache(DEFAULT_CACHE_BYTES)));
        for adapter in plan.adapters() {
            let adapter = adapter.open(&target.checkpoint)?;
            bytes = bytes.saturating_add(AdapterWeights::packed_bytes(&adapter));
        }
    }
    // With `auto`, a drafter may draft in two places.
    let places = if plan.method() == Method::Auto { 2 } else { 1 };
    for drafter in drafters.iter().filter(|drafter| drafter.gpu().is_none()) {
        let default = match drafter.shared_part() {
            Some(_) => DRAFTER_CACHE_BYTES,
            None => DEFAULT_CACHE_BYTES,
        };
        bytes = bytes.saturating_add(drafter.memory(plan)?);
        bytes = bytes.saturating_add(cache(default).saturating_mul(places));
    }
    Ok(bytes as u64)
}

/// Checks that models which need this memory can be loaded. Systems that do not say how much memory
/// they have pass.
///
/// # Errors
/// If less is available.
pub(crate) fn check(models: usize) -> Result<(), ForerunError> {
    let needed = models.saturating_add(RESERVE) as u64;
    match available_memory() {
        Some(available) if available < needed => Err(ForerunError::Memory { needed, available }),
        _ => Ok(()),
    }
}
