//! Reads and writes drafters as folders of `config.json` and `model.safetensors`.
//!
//! Tensors have the names of the published checkpoints. The target's weights are not stored.
//! `config.json` identifies the target by the hash of its embedding.

use super::forward::Drafter;
use super::options::TrainedDrafterKind;
use super::shape::{BlockShape, DrafterShape};
use super::target::Target;
use super::vocabulary::DraftVocabulary;
use super::weights::{NamedTensor, Weights};
use crate::export::{ExportError, write_weights};
use forerun_formats::checkpoint::Dtype;
use forerun_formats::checkpoint::SerializedTensor;
use half::bf16;
use safetensors::SafeTensors;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

/// The tensor that maps the head's outputs to the target's tokens, if the drafter does not have all
/// of them.
const DRAFT_TO_TARGET: &str = "d2t";

/// An error of reading a drafter.
#[derive(Debug, thiserror::Error)]
pub enum DrafterFileError {
    /// A file cannot be read.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
    /// A file does not belong to a drafter that [`Drafter::export`] wrote.
    #[error("{path} is not part of a drafter that this trainer wrote: {reason}")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The drafter is of another kind than the one that is to be trained.
    #[error("{folder} is {found}, and {expected} is to be trained: both must be the same")]
    OtherKind {
        /// The drafter's folder.
        folder: PathBuf,
        /// The kind and the number of heads or masks of the drafter.
        found: String,
        /// The kind and the number of heads or masks that were asked for.
        expected: String,
    },
    /// The drafter was trained for another target.
    #[error(
        "{path}: the drafter was trained for another target, {target} (SHA-256 of its embedding: \
         {expected}, of the given target's: {found}): use the target that it was trained for"
    )]
    OtherTarget {
        /// The drafter's configuration file.
        path: PathBuf,
        /// The name of the target that it was trained for.
        target: String,
        /// The hash of that target's embedding.
        expected: String,
        /// The hash of the given target's embedding.
        found: String,
    },
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// The entries of `config.json` that describe the drafter and its target.
#[derive(Deserialize)]
struct DrafterConfig {
    speculator: TrainedDrafterKind,
    #[serde(alias = "medusa_num_heads", alias = "hydra_num_heads")]
    n_mask_tokens: Option<usize>,
    target: String,
    target_embedding_sha256: String,
    // Of block drafters.
    num_hidden_layers: Option<usize>,
    block_size: Option<usize>,
    /// z-lab's layout keeps entries apart.
    dflash_config: Option<BlockConfig>,
    /// In the layout of DSpark's authors they are among the others.
    #[serde(flatten)]
    dspark_config: Option<BlockConfig>,
    markov_rank: Option<usize>,
}

/// What a block drafter reads.
#[derive(Deserialize)]
struct BlockConfig {
    mask_token_id: u32,
    /// Layers, counted from 0, whose outputs the drafter reads.
    target_layer_ids: Vec<usize>,
}

impl DrafterConfig {
    /// Returns the shape of the drafter; `None` if an entry of a block drafter is missing.
    fn shape(&self) -> Option<DrafterShape> {
        let kind = self.speculator;
        let nested = match kind {
            TrainedDrafterKind::Dflash => self.dflash_config.as_ref()?,
            TrainedDrafterKind::Dspark => self.dspark_config.as_ref()?,
            _ => {
                let slots = self.n_mask_tokens.unwrap_or(0);
                return Some(DrafterShape { kind, slots, block: None });
            }
        };
        let has_heads = kind == TrainedDrafterKind::Dspark;
        let block = BlockShape {
            layers: self.num_hidden_layers?,
            mask: nested.mask_token_id,
            target_layers: nested.target_layer_ids.iter().map(|id| id.saturating_add(1)).collect(),
            markov_rank: if has_heads { Some(self.markov_rank?) } else { None },
        };
        let slots = self.block_size?.checked_sub(kind.first_predicting_row())?;
        Some(DrafterShape { kind, slots, block: Some(block) })
    }
}

impl Drafter {
    /// Writes `config.json` and `model.safetensors` into a folder, and creates it if necessary.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn export(&self, target: &Target, folder: &Path, dtype: Dtype) -> Result<(), ExportError> {
        let write_error = |path: &Path| {
            let path = path.to_owned();
            move |cause| ExportError::Write { path, cause }
        };
        fs::create_dir_all(folder).map_err(write_error(folder))?;
        let file = folder.join("config.json");
        let config = format!("{:#}\n", self.config_json(target, dtype));
        forerun_output::write(&file, config).map_err(write_error(&file))?;
        let serialized = |(name, shape, values): NamedTensor| {
            (name, SerializedTensor::new(&values, shape, dtype))
        };
        let mut tensors: Vec<_> = self.weights.tensors()?.into_iter().map(serialized).collect();
        if let Some(vocabulary) = &self.vocabulary {
            let offsets = vocabulary.offsets();
            let tensor = SerializedTensor {
                dtype: safetensors::Dtype::I64,
                shape: vec![offsets.len()],
                bytes: offsets.into_iter().flat_map(i64::to_le_bytes).collect(),
            };
            tensors.push((DRAFT_TO_TARGET.to_owned(), tensor));
        }
        write_weights(folder, tensors)
    }

    /// Returns the contents of `config.json`.
    fn config_json(&self, target: &Target, dtype: Dtype) -> Value {
        let mut config = self.config.to_json(dtype);
        if self.kind().has_draft_heads() {
            config = json!({
                "hidden_size": self.config.hidden_size,
                "vocab_size": self.config.vocab_size,
                "torch_dtype": config["torch_dtype"],
                "base_model_name_or_path": target.name(),
            });
        }
        match self.kind() {
            TrainedDrafterKind::Medusa => {
                config["medusa_num_heads"] = json!(self.slots());
                config["medusa_num_layers"] = json!(1);
                // The drafter uses the target's head.
                config["version"] = json!("2");
            }
            TrainedDrafterKind::Hydra => {
                config["hydra_num_heads"] = json!(self.slots());
                config["hydra_num_layers"] = json!(1);
                config["hydra_head_arch"] = json!("mlp");
                config["grounded_heads"] = json!(true);
                config["hidden_state_offset"] = json!(0);
            }
            _ => {}
        }
        if self.kind().has_masks() {
            config["n_mask_tokens"] = json!(self.slots());
        }
        if let Some(block) = &self.shape.block {
            let layers = block.target_layers.iter().map(|layers| layers - 1).collect::<Vec<_>>();
            config["block_size"] = json!(self.slots() + self.kind().first_predicting_row());
            config["num_target_layers"] = json!(target.config().num_hidden_layers);
            match block.markov_rank {
                None => {
                    config["architectures"] = json!(["DFlashDraftModel"]);
                    config["dflash_config"] =
                        json!({ "mask_token_id": block.mask, "target_layer_ids": layers });
                }
                Some(rank) => {
                    config["architectures"] = json!(["Qwen3DSparkModel"]);
                    config["mask_token_id"] = json!(block.mask);
                    config["target_layer_ids"] = json!(layers);
                    config["markov_rank"] = json!(rank);
                    config["markov_head_type"] = json!("vanilla");
                    config["enable_confidence_head"] = json!(true);
                    config["confidence_head_with_markov"] = json!(true);
                }
            }
        }
        if self.kind().predicts_features() {
            config["bias"] = json!(true);
        }
        // The layouts of block drafters have no such option: `d2t` says it.
        if let (Some(vocabulary), None) = (&self.vocabulary, &self.shape.block) {
            config["draft_vocab_size"] = json!(vocabulary.head().vocab_size());
        }
        config["speculator"] = json!(self.kind());
        config["target"] = json!(target.name());
        config["target_embedding_sha256"] = json!(target.embedding_sha256());
        config
    }

    /// Loads a drafter that [`Self::export`] wrote, in f32 or bf16.
    ///
    /// # Errors
    /// If a file cannot be read or was not written by [`Self::export`], or if the drafter was
    /// trained for another target.
    pub fn load(folder: &Path, target: &Target) -> Result<Self, DrafterFileError> {
        let file = folder.join("config.json");
        let read = |path: &Path| fs::read(path).map_err(|cause| read_error(path.to_owned(), cause));
        let format_error = |path: &Path, reason: String| DrafterFileError::Format {
            path: path.to_owned(),
            reason,
        };
        let config_entries: DrafterConfig = serde_json::from_slice(&read(&file)?)
            .map_err(|error| format_error(&file, error.to_string()))?;
        if config_entries.target_embedding_sha256 != target.embedding_sha256() {
            return Err(DrafterFileError::OtherTarget {
                path: file,
                target: config_entries.target,
                expected: config_entries.target_embedding_sha256,
                found: target.embedding_sha256().to_owned(),
            });
        }
        let Some(shape) = config_entries.shape() else {
            let reason = match config_entries.speculator {
                TrainedDrafterKind::Dspark => {
                    "block_size, num_hidden_layers, mask_token_id, target_layer_ids or markov_rank is missing"
                }
                _ => "block_size, num_hidden_layers or dflash_config is missing",
            };
            return Err(format_error(&file, reason.to_owned()));
        };
        let file = folder.join("model.safetensors");
        let bytes = read(&file)?;
        let tensors = SafeTensors::deserialize(&bytes)
            .map_err(|error| format_error(&file, error.to_string()))?;
        let tokens = draft_tokens(&tensors, target.config().vocab_size)
            .map_err(|reason| format_error(&file, reason))?;
        let outputs = tokens.as_ref().map_or(target.config().vocab_size, |tokens| tokens.len());
        let weights = Weights::read(&shape, target.config(), outputs, |name, shape| {
            let tensor =
                tensors.tensor(name).map_err(|error| format_error(&file, error.to_string()))?;
            let (dtype, found, data) = (tensor.dtype(), tensor.shape(), tensor.data());
            match dtype {
                safetensors::Dtype::F32 if found == shape => {
                    Ok(data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
                }
                safetensors::Dtype::BF16 if found == shape => {
                    let values = data.as_chunks().0.iter();
                    Ok(values.map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect())
                }
                _ => {
                    let expected = format!("expected {name} to be F32 or BF16 {shape:?}");
                    Err(format_error(&file, format!("{expected}, found {dtype:?} {found:?}")))
                }
            }
        })?;
        let vocabulary = tokens.map(|tokens| DraftVocabulary::new(tokens, target));
        Ok(Self { vocabulary, ..Self::new(shape, target.config(), weights) })
    }
}

/// Returns the tokens that a stored drafter can draft, in ascending order; `None` if they are all
/// tokens.
///
/// # Errors
/// If they are not tokens of the target.
fn draft_tokens(
    tensors: &SafeTensors<'_>,
    vocab_size: usize,
) -> Result<Option<Arc<[u32]>>, String> {
    let Ok(tensor) = tensors.tensor(DRAFT_TO_TARGET) else { return Ok(None) };
    let (offsets, rest) = tensor.data().as_chunks();
    let offsets: Vec<i64> = offsets.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect();
    let tokens = DraftVocabulary::tokens_of(&offsets, vocab_size);
    let is_valid = tensor.dtype() == safetensors::Dtype::I64 && rest.is_empty();
    match tokens.filter(|tokens| is_valid && !tokens.is_empty()) {
        Some(tokens) => Ok(Some(tokens)),
        None => Err(format!("{DRAFT_TO_TARGET} does not list tokens of the target")),
    }
}

fn read_error(path: PathBuf, cause: io::Error) -> DrafterFileError {
    DrafterFileError::Read { path, cause }
}
