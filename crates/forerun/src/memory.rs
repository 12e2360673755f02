//! Checks that models fit in memory, before they are loaded.

use crate::error::ForerunError;
use forerun_cpu::{SpeculatorWeights, Weights};
use forerun_formats::{Checkpoint, LoadError, Speculator, TensorSource, WeightType};
use forerun_runtime::available_memory;

/// Memory for activations, threads and everything else that is small, in bytes.
const RESERVE: usize = 64 << 20;

/// Returns the memory that a model needs at least. Without a weight type, it is the checkpoint's own.
pub(crate) fn of_model(
    checkpoint: &Checkpoint,
    weight_type: Option<WeightType>,
) -> Result<usize, LoadError> {
    let weight_type = weight_type.map_or_else(|| checkpoint.lossless_type(), Ok)?;
    Ok(Weights::least_memory(checkpoint.architecture(), weight_type))
}

/// Returns the memory that a drafter needs at least in addition to its target.
pub(crate) fn of_speculator(
    speculator: &Speculator,
    weight_type: Option<WeightType>,
) -> Result<usize, LoadError> {
    let weight_type = weight_type.map_or_else(|| speculator.lossless_type(), Ok)?;
    Ok(SpeculatorWeights::least_memory(&speculator.architecture()?, weight_type))
}

/// Checks that models which need this memory can be loaded. Systems that do not say how much memory they
/// have pass.
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
