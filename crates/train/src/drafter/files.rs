//! Drafters as folders: `config.json` and `model.safetensors`, with tensor names as published
//! checkpoints have them. What is the target's is not stored: the hash of its embedding is.

use super::forward::Drafter;
use super::options::TrainedDrafterKind;
use super::target::Target;
use super::weights::{StoredTensor, Weights};
use crate::export::{ExportError, Weights as Stored, write_weights};
use crate::files::{sync_folder, write_atomically};
use forerun_model::checkpoint::Dtype;
use safetensors::SafeTensors;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Why a drafter was not read.
#[derive(Debug, thiserror::Error)]
pub enum DrafterFileError {
    /// A file that cannot be read.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
    /// A file that is no drafter's.
    #[error("{path} is not a drafter that was trained here: {reason}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A drafter for another target.
    #[error(
        "{path} was trained for another target, {target} (its embedding's SHA-256 is {expected}, the \
         given one's {found}): give the target that it belongs to"
    )]
    OtherTarget {
        /// The drafter's configuration.
        path: PathBuf,
        /// The target that it names.
        target: String,
        /// The hash that it names.
        expected: String,
        /// The hash of the target at hand.
        found: String,
    },
    /// The library's complaint.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// What a `config.json` says of our own.
#[derive(Deserialize)]
struct Described {
    speculator: TrainedDrafterKind,
    #[serde(alias = "medusa_num_heads")]
    n_mask_tokens: Option<usize>,
    target: String,
    target_embedding_sha256: String,
}

impl Drafter {
    /// Writes `config.json` and `model.safetensors` into a folder.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn export(&self, target: &Target, folder: &Path, dtype: Dtype) -> Result<(), ExportError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |cause| ExportError::Write { path, cause }
        };
        fs::create_dir_all(folder).map_err(failed(folder))?;
        let file = folder.join("config.json");
        let config = format!("{:#}\n", self.describe(target, dtype));
        write_atomically(&file, config.as_bytes()).map_err(failed(&file))?;
        let stored =
            |(name, shape, values): StoredTensor| (name, Stored::new(&values, shape, dtype));
        let tensors: Vec<_> = self.weights.tensors()?.into_iter().map(stored).collect();
        write_weights(folder, &tensors)?;
        sync_folder(folder).map_err(failed(folder))
    }

    fn describe(&self, target: &Target, dtype: Dtype) -> Value {
        let mut config = self.config.to_json(dtype);
        if self.kind == TrainedDrafterKind::Medusa {
            config = json!({
                "hidden_size": self.config.hidden_size,
                "vocab_size": self.config.vocab_size,
                "torch_dtype": config["torch_dtype"],
                "medusa_num_heads": self.size,
                "medusa_num_layers": 1,
                // The head is the target's.
                "version": "2",
                "base_model_name_or_path": target.name(),
            });
        }
        if self.kind.has_masks() {
            config["n_mask_tokens"] = json!(self.size);
        }
        if self.kind.predicts_features() {
            config["bias"] = json!(true);
        }
        config["speculator"] = json!(self.kind);
        config["target"] = json!(target.name());
        config["target_embedding_sha256"] = json!(target.embedding_sha256());
        config
    }

    /// Reads what [`Self::export`] wrote in f32.
    ///
    /// # Errors
    /// If a file cannot be read or is none of these, or the drafter is for another target.
    pub fn load(folder: &Path, target: &Target) -> Result<Self, DrafterFileError> {
        let file = folder.join("config.json");
        let read = |path: &Path| fs::read(path).map_err(|cause| reading(path.to_owned(), cause));
        let wrong = |path: &Path, reason: String| DrafterFileError::Format {
            path: path.to_owned(),
            reason,
        };
        let described: Described = serde_json::from_slice(&read(&file)?)
            .map_err(|error| wrong(&file, error.to_string()))?;
        if described.target_embedding_sha256 != target.embedding_sha256() {
            return Err(DrafterFileError::OtherTarget {
                path: file,
                target: described.target,
                expected: described.target_embedding_sha256,
                found: target.embedding_sha256().to_owned(),
            });
        }
        let (kind, size) = (described.speculator, described.n_mask_tokens.unwrap_or(0));
        let file = folder.join("model.safetensors");
        let bytes = read(&file)?;
        let stored =
            SafeTensors::deserialize(&bytes).map_err(|error| wrong(&file, error.to_string()))?;
        let weights = Weights::read(kind, size, target.config(), |name, shape| {
            let tensor = stored.tensor(name).map_err(|error| wrong(&file, error.to_string()))?;
            if tensor.dtype() != safetensors::Dtype::F32 || tensor.shape() != shape {
                let (dtype, found) = (tensor.dtype(), tensor.shape());
                let reason = format!("{name} is {dtype:?} {found:?}, not F32 {shape:?}");
                return Err(wrong(&file, reason));
            }
            let values = tensor.data().as_chunks().0.iter();
            Ok(values.map(|bytes| f32::from_le_bytes(*bytes)).collect())
        })?;
        Ok(Self::new(kind, size, target.config(), weights))
    }
}

fn reading(path: PathBuf, cause: io::Error) -> DrafterFileError {
    DrafterFileError::Read { path, cause }
}
