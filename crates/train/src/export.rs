//! Exports a model as a Hugging Face model directory.

use crate::model::Llama;
use forerun_formats::Config;
use forerun_formats::checkpoint::{Dtype, SerializedTensor, Tensor, write_safetensors};
use serde_json::json;
use std::io;
use std::path::{Path, PathBuf};

/// An error of exporting a model.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file cannot be written.
    #[error("cannot write {path}: {cause}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// Writes `config.json`, `generation_config.json` and `model.safetensors` into a folder, and copies
/// the tokenizer: `tokenizer.json`, and `tokenizer_config.json` if there is one, from the folder of
/// `tokenizer`.
///
/// # Errors
/// If a file cannot be read or written.
pub fn export(
    model: &Llama,
    tokenizer: &Path,
    folder: &Path,
    dtype: Dtype,
) -> Result<(), ExportError> {
    let config = model.config();
    let write_error = |path: &Path| {
        let path = path.to_owned();
        move |cause| ExportError::Write { path, cause }
    };
    std::fs::create_dir_all(folder).map_err(write_error(folder))?;
    let generation =
        json!({ "bos_token_id": config.bos_token_id, "eos_token_id": config.eos_token_ids });
    let texts = [("config.json", config.to_json(dtype)), ("generation_config.json", generation)];
    for (name, json) in texts {
        let file = folder.join(name);
        forerun_output::write(&file, format!("{json:#}\n")).map_err(write_error(&file))?;
    }
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let source = tokenizer.with_file_name(name);
        let file = folder.join(name);
        if name == "tokenizer.json" || source.exists() {
            let text = std::fs::read(&source).map_err(write_error(&source))?;
            forerun_output::write(&file, text).map_err(write_error(&file))?;
        }
    }
    write_weights(folder, tensors(model, dtype)?)
}

fn tensors(model: &Llama, dtype: Dtype) -> candle_core::Result<Vec<(String, SerializedTensor)>> {
    let config: &Config = model.config();
    let architecture = config.architecture();
    let weights = |tensor: Tensor| {
        let values = model.tensor(tensor)?;
        Ok((tensor.to_string(), SerializedTensor::new(&values, architecture.shape(tensor), dtype)))
    };
    architecture.tensors().map(weights).collect()
}

/// Writes tensors into a folder as `model.safetensors`.
pub(crate) fn write_weights(
    folder: &Path,
    tensors: Vec<(String, SerializedTensor)>,
) -> Result<(), ExportError> {
    let file = folder.join("model.safetensors");
    write_safetensors(&file, tensors).map_err(|cause| ExportError::Write { path: file, cause })
}
