//! Random adapters.

use super::{Normal, write_error};
use crate::checkpoint::{Dtype, SerializedTensor, StoredAs, Tensor, write_safetensors};
use crate::config::Config;
use crate::load_error::LoadError;
use crate::tensor::LayerTensor;
use serde_json::json;
use std::fs;
use std::path::Path;

/// Writes a random adapter for a model with projections that are stored apart: a folder of PEFT with
/// updates of rank 3 for all projections of attention and MLPs. They are about half as large as the
/// projections of [`write_random_checkpoint`](super::write_random_checkpoint).
///
/// # Errors
/// When a file cannot be written.
pub fn write_random_adapter(dir: &Path, config: &Config, seed: u64) -> Result<(), LoadError> {
    const RANK: usize = 3;
    use LayerTensor as T;
    let architecture = config.architecture();
    let mut normal = Normal { state: seed };
    let mut random = |shape: [usize; 2]| {
        let deviation = 0.7 / (shape[1] as f32).sqrt();
        let values: Vec<f32> =
            (0..shape[0] * shape[1]).map(|_| deviation * normal.next()).collect();
        SerializedTensor::new(&values, shape.to_vec(), Dtype::F32)
    };
    let mut tensors = Vec::new();
    for (index, layer) in architecture.layers.iter().enumerate() {
        let parts = [T::Query, T::Key, T::Value, T::Output, T::Gate, T::Up, T::Down];
        for part in parts.into_iter().filter(|part| layer.has(*part, architecture.norm)) {
            let tensor = Tensor::Layer(index, part);
            let name = StoredAs::of(tensor, config, &architecture).name;
            let module = name.strip_suffix(".weight").unwrap_or(&name);
            let named = |matrix| format!("base_model.model.{module}.lora_{matrix}.weight");
            let shape = architecture.shape(tensor);
            tensors.push((named("A"), random([RANK, shape[1]])));
            tensors.push((named("B"), random([shape[0], RANK])));
        }
    }
    fs::create_dir_all(dir).map_err(|cause| write_error(dir, cause))?;
    let options = json!({ "peft_type": "LORA", "bias": "none", "r": RANK, "lora_alpha": RANK });
    let file = dir.join("adapter_config.json");
    forerun_output::write(&file, format!("{options:#}\n"))
        .map_err(|cause| write_error(&file, cause))?;
    let file = dir.join("adapter_model.safetensors");
    write_safetensors(&file, tensors).map_err(|cause| write_error(&file, cause))
}
