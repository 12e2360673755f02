//! What unit tests share.

use crate::device::{GpuDevice, GpuOptions};
use crate::weights::GpuWeights;
use forerun_formats::checkpoint::random::{RandomTensors, example_families};
use forerun_formats::{Architecture, WeightType};
use std::sync::Arc;

/// Opens the first GPU. Prints that the test is skipped if there is none.
pub(crate) fn gpu() -> Option<Arc<GpuDevice>> {
    gpu_with(GpuOptions::default())
}

/// Opens the first GPU with options, as [`gpu`] does.
pub(crate) fn gpu_with(options: GpuOptions) -> Option<Arc<GpuDevice>> {
    if GpuDevice::adapters().unwrap().is_empty() {
        eprintln!("skipped: there is no GPU");
        return None;
    }
    Some(GpuDevice::open_with(0, options).unwrap())
}

/// Loads random weights in f32.
pub(crate) fn load(device: &Arc<GpuDevice>, architecture: &Architecture) -> GpuWeights {
    let tensors = RandomTensors::new(architecture, 5);
    GpuWeights::load_architecture(device, architecture.clone(), &tensors, WeightType::F32).unwrap()
}

/// Returns an architecture whose first layer is recurrent.
pub(crate) fn hybrid() -> Architecture {
    let mut families = example_families().into_iter();
    families.find(|config| config.recurrent.is_some()).unwrap().architecture()
}
