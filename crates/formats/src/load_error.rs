//! Errors of loading checkpoints. They name the file, the tensor or option, the expected value and
//! the value that was found.
//!
//! Options of files are in double quotes. Backticks are for options of the caller, which the
//! command line shows as flags, and for tensors.

use crate::config::family::Family;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The reason why a checkpoint could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum LoadError {
    /// A drafter's layers use the embedding or the head of a target, and none was given.
    #[error("the model shares matrices with its target: load it together with the target")]
    NoTarget,
    /// A model is to be split into more pipeline stages than it can be.
    #[error(
        "the model can be split into {most} pipeline stage{} at most, not into {stages}{}; separate fewer ranks by '/' \
         for it",
        if *most == 1 { "" } else { "s" },
        if *share_keys { " (layers that share keys and values stay together)" } else { "" }
    )]
    Stages { stages: usize, most: usize, share_keys: bool },
    /// Memory for the weights could not be allocated.
    #[error(
        "there is no memory for a matrix of {} MiB: set `weight_type = int8`, choose a smaller model, or \
         free memory",
        bytes >> 20
    )]
    OutOfMemory { bytes: usize },
    /// The path given for the checkpoint does not exist.
    #[error(
        "{path}: no such file or directory; give a directory with config.json and model.safetensors, \
         a GGUF file, a llama2.c .bin file, or a hub id (owner/name, owner/name@revision or \
         owner/name:Q4_K_M)"
    )]
    NotFound { path: PathBuf },
    /// A target has no layer that predicts further tokens.
    #[error(
        "{path}: the checkpoint has no MTP head, because it is not {expected}; choose another drafter"
    )]
    NoMtpHead { path: PathBuf, expected: String },
    /// A directory contains no recognisable checkpoint, or several.
    #[error(
        "{path}: expected a directory with config.json, or with exactly one GGUF model or llama2.c .bin \
         file; found {found}"
    )]
    NotACheckpoint { path: PathBuf, found: String },
    /// A file of the checkpoint is missing.
    #[error("{path}: file is missing; {hint}")]
    MissingFile { path: PathBuf, hint: &'static str },
    /// A file has an unsupported format or version.
    #[error("{file}: expected {expected}; found {found}")]
    Format { file: PathBuf, expected: &'static str, found: String },
    /// The weights are pickled by PyTorch.
    #[error(
        "{file}: weights pickled by PyTorch are not supported, because unpickling can execute code; \
         convert them once where torch and safetensors are installed: python -c \"import torch; from \
         safetensors.torch import save_file; save_file({{k: v.contiguous() for k, v in \
         torch.load('{file}', map_location='cpu', weights_only=True).items()}}, '{into}')\"; then \
         give the folder, which must also contain config.json"
    )]
    Pickle { file: PathBuf, into: PathBuf },
    /// A file could not be read.
    #[error("{path}: cannot be read: {cause}")]
    Read { path: PathBuf, cause: io::Error },
    /// A file or directory could not be written.
    #[error("{path}: cannot be written: {cause}")]
    Write { path: PathBuf, cause: io::Error },
    /// A file does not have the length that follows from its header, which 128 bits hold.
    #[error("{file}: expected {expected} bytes from its header, found {found}; {hint}")]
    Length { file: PathBuf, expected: u128, found: usize, hint: &'static str },
    /// A file is not the expected JSON.
    #[error("{file}: invalid JSON: {cause}")]
    Json { file: PathBuf, cause: serde_json::Error },
    /// The header of a safetensors file is invalid.
    #[error("{file}: invalid safetensors header: {cause}; download the file again")]
    Header { file: PathBuf, cause: serde_json::Error },
    /// A required option is absent.
    #[error("{file}: option \"{option}\" is missing; expected {expected}")]
    MissingOption { file: PathBuf, option: &'static str, expected: &'static str },
    /// An option has an invalid value.
    #[error("{file}: option \"{option}\" is {found}; expected {expected}")]
    InvalidOption { file: PathBuf, option: &'static str, found: String, expected: String },
    /// An option has a valid value that this engine does not support.
    #[error(
        "{file}: option \"{option}\" is {found}, which is not supported yet; supported: {supported}"
    )]
    UnsupportedOption {
        file: PathBuf,
        option: &'static str,
        found: String,
        supported: &'static str,
    },
    /// A drafter is opened as a model.
    #[error(
        "{path} is an assistant of Gemma 4, and no model by itself: give it as the draft model of its target"
    )]
    AssistantAlone { path: PathBuf },
    /// A drafter's configuration has an option that is not known. Ignoring it could make the drafts
    /// worse, and no text would show it.
    #[error(
        "{file}: option \"{option}\" is {found}, but {owner} has no such option here, and ignoring it could \
         make the drafts worse; if it does not change what the drafter computes, remove it from the file; \
         otherwise use another drafter"
    )]
    UnknownOption { file: PathBuf, option: String, found: String, owner: &'static str },
    /// A field of a GGUF file is invalid: an option of its metadata (`option
    /// "llama.block_count"`), or a part of a tensor's description.
    #[error("{file}: {field} is {found}; expected {expected}")]
    GgufField { file: PathBuf, field: String, found: String, expected: String },
    /// A field of a GGUF file lies outside it.
    #[error("{file}: the file is truncated or damaged: {field} is {found}; expected {expected}")]
    GgufTruncated { file: PathBuf, field: String, found: String, expected: String },
    /// A field of a GGUF file has a valid value that this engine does not support.
    #[error("{file}: {field} is {found}, which is not supported yet; supported: {supported}")]
    GgufUnsupported { file: PathBuf, field: String, found: String, supported: String },
    /// A shard's name in the index is not a plain file name.
    #[error(
        "{file}: shard {name:?} of tensor `{tensor}` is not a plain file name inside the checkpoint's directory"
    )]
    ShardName { file: PathBuf, tensor: String, name: String },
    /// A tensor that the configuration requires is not stored.
    #[error("{file}: tensor `{tensor}` is missing; {hint}")]
    MissingTensor { file: PathBuf, tensor: String, hint: &'static str },
    /// A tensor is stored in two shards, so it is not clear which one is valid.
    #[error(
        "{file}: tensor `{tensor}` is also stored in {other}; the shards belong to different \
         checkpoints: download them again"
    )]
    DuplicateTensor { file: PathBuf, tensor: String, other: PathBuf },
    /// A stored tensor is not part of the configured model. Ignoring it would change the model.
    #[error(
        "{file}: tensor `{tensor}` is not part of a {family} with {layers} layers; \
         the configuration belongs to another model, or this variant is not supported yet"
    )]
    UnexpectedTensor { file: PathBuf, tensor: String, family: Family, layers: usize },
    /// A stored tensor is not part of the drafter. Ignoring it would change the drafter.
    #[error(
        "{file}: tensor `{tensor}` is not part of {drafter}; this variant of the drafter is not \
         supported yet"
    )]
    UnusedTensor { file: PathBuf, tensor: String, drafter: &'static str },
    /// An adapter changes something that no adapter can change here. Ignoring it would change the
    /// text.
    #[error(
        "{file}: the adapter's tensor `{tensor}` updates no q, k, v, o, gate, up or down projection of \
         this model, a {family} with {layers} layers: name the adapter of this model, and one that was \
         trained for these projections alone"
    )]
    AdapterTensor { file: PathBuf, tensor: String, family: Family, layers: usize },
    /// A drafter is used with a target that has another embedding than the drafter's own target.
    #[error(
        "{drafter}: the drafter was trained for the target {trained_for}, but {target} has a different \
         embedding: set `model` to that target, or `draft_model` to another drafter"
    )]
    TargetMismatch { drafter: PathBuf, trained_for: String, target: PathBuf },
    /// A drafter and its target have different sizes.
    #[error(
        "{drafter}: the {size} is {found}, but in the target {target} it is {expected}; the drafter was \
         trained for another target: set `draft_model` to another drafter"
    )]
    TargetSizeMismatch {
        drafter: PathBuf,
        size: &'static str,
        found: usize,
        expected: usize,
        target: PathBuf,
    },
    /// The tokens of a drafter's head do not map to tokens of the target.
    #[error(
        "{path}: the head has {draft_vocab_size} tokens, but `d2t` does not map each of them to one of \
         the vocabulary's {vocab_size} tokens; the checkpoint is damaged or incomplete: download it \
         again"
    )]
    DraftVocabulary { path: PathBuf, draft_vocab_size: usize, vocab_size: usize },
    /// A folder does not hold a drafter of the requested kind.
    #[error("{path}: the folder holds {found}; expected {expected}")]
    WrongDrafterKind { path: PathBuf, found: String, expected: &'static str },
    /// A tensor's elements have an unsupported type.
    #[error(
        "{file}: tensor `{tensor}` has dtype {found}; expected F32, BF16 or F16: convert the \
         checkpoint"
    )]
    Dtype { file: PathBuf, tensor: String, found: String },
    /// A tensor's shape does not match the configuration.
    #[error(
        "{file}: tensor `{tensor}` has shape {found:?}; expected {expected:?} from the configuration"
    )]
    Shape { file: PathBuf, tensor: String, expected: Vec<usize>, found: Vec<usize> },
    /// A part of a quantised matrix has another type than its format.
    #[error("{file}: tensor `{tensor}` has type {found}; expected one of {expected}")]
    PartDtype { file: PathBuf, tensor: String, expected: String, found: String },
    /// A quantised matrix assigns an input to a group of scales that it does not have.
    #[error(
        "{file}: tensor `{tensor}` has the value {found} at index {index}; expected groups from 0 to \
         {last}: the file is damaged", last = groups - 1
    )]
    GroupIndex { file: PathBuf, tensor: String, index: usize, found: i32, groups: usize },
    /// A weight is NaN or infinite.
    #[error(
        "{file}: tensor `{tensor}` has the value {found} at flat index {index}; expected finite weights: \
         the file is damaged, or training diverged"
    )]
    NonFinite { file: PathBuf, tensor: String, index: usize, found: f32 },
    /// The model does not have a requested tensor.
    #[error("{path}: there is no tensor `{tensor}` in this model, a {family} with {layers} layers")]
    NoSuchTensor { path: PathBuf, tensor: String, family: Family, layers: usize },
}

impl LoadError {
    /// Returns the error for an option with an invalid value.
    pub(crate) fn invalid_option(
        file: &Path,
        option: &'static str,
        found: &dyn fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        let (file, found, expected) = (file.to_owned(), found.to_string(), expected.into());
        Self::InvalidOption { file, option, found, expected }
    }
}

/// Truncates `text` to a length that fits a message. Values from a broken file can have megabytes.
pub(crate) fn shortened(text: &str) -> String {
    const LIMIT: usize = 100;
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_truncated_between_characters() {
        assert_eq!(shortened("silu"), "silu");
        let long = "é".repeat(1000);
        assert_eq!(shortened(&long), format!("{}…", "é".repeat(100)));
    }
}
