//! Errors of loading checkpoints. They name the file, the tensor or option, the expected value and
//! the value that was found.
//!
//! Options of files are in double quotes. Backticks are for options of the caller, which the
//! command line shows as flags, and for tensors.

use std::io;
use std::path::PathBuf;

use crate::config::family::Family;

/// The reason why a checkpoint could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    Stages {
        /// The number of stages of the placement.
        stages: usize,
        /// The largest possible number.
        most: usize,
        /// Whether layers read the keys and values of other layers.
        share_keys: bool,
    },
    /// Memory for the weights could not be allocated.
    #[error(
        "there is no memory for a matrix of {} MiB: set `weight_type = int8`, choose a smaller model, or \
         free memory",
        bytes >> 20
    )]
    OutOfMemory {
        /// The size of the packed matrix in bytes.
        bytes: usize,
    },
    /// The path given for the checkpoint does not exist.
    #[error(
        "{path}: no such file or directory; give a directory with config.json and model.safetensors, \
         a GGUF file, a llama2.c .bin file, or a hub id (owner/name, owner/name@revision or \
         owner/name:Q4_K_M)"
    )]
    NotFound {
        /// The path as given.
        path: PathBuf,
    },

    /// A target has no layer that predicts further tokens.
    #[error(
        "{path}: the checkpoint has no MTP head, because it is not {expected}; choose another drafter"
    )]
    NoMtpHead {
        /// The target's path.
        path: PathBuf,
        /// What the checkpoint would be or have.
        expected: String,
    },
    /// A directory contains no recognisable checkpoint, or several.
    #[error(
        "{path}: expected a directory with config.json, or with exactly one GGUF model or llama2.c .bin \
         file; found {found}"
    )]
    NotACheckpoint {
        /// The directory.
        path: PathBuf,
        /// The contents that were found instead.
        found: String,
    },
    /// A file of the checkpoint is missing.
    #[error("{path}: file is missing; {hint}")]
    MissingFile {
        /// The expected path of the file.
        path: PathBuf,
        /// What to do.
        hint: &'static str,
    },
    /// A file has an unsupported format or version.
    #[error("{file}: expected {expected}; found {found}")]
    Format {
        /// The file.
        file: PathBuf,
        /// The supported format.
        expected: &'static str,
        /// The format that was found.
        found: String,
    },
    /// The weights are pickled by PyTorch.
    #[error(
        "{file}: weights pickled by PyTorch are not supported, because unpickling can execute code; \
         convert them once where torch and safetensors are installed: python -c \"import torch; from \
         safetensors.torch import save_file; save_file({{k: v.contiguous() for k, v in \
         torch.load('{file}', map_location='cpu', weights_only=True).items()}}, '{into}')\"; then \
         give the folder, which must also contain config.json"
    )]
    Pickle {
        /// The file.
        file: PathBuf,
        /// The path at which converted weights are expected.
        into: PathBuf,
    },
    /// A file could not be read.
    #[error("{path}: cannot be read: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        cause: io::Error,
    },
    /// A file or directory could not be written.
    #[error("{path}: cannot be written: {cause}")]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's error.
        cause: io::Error,
    },
    /// A file does not have the length that follows from its header.
    #[error("{file}: expected {expected} bytes from its header, found {found}; {hint}")]
    Length {
        /// The file.
        file: PathBuf,
        /// The length in bytes according to the header. 128 bits hold any length that a header
        /// states.
        expected: u128,
        /// The actual length in bytes.
        found: usize,
        /// The probable cause.
        hint: &'static str,
    },
    /// A file is not the expected JSON.
    #[error("{file}: invalid JSON: {cause}")]
    Json {
        /// The file.
        file: PathBuf,
        /// The parser's error, with its position.
        cause: serde_json::Error,
    },
    /// The header of a safetensors file is invalid.
    #[error("{file}: invalid safetensors header: {cause}; download the file again")]
    Header {
        /// The file.
        file: PathBuf,
        /// The parser's error.
        cause: serde_json::Error,
    },
    /// A required option is absent.
    #[error("{file}: option \"{option}\" is missing; expected {expected}")]
    MissingOption {
        /// The configuration file.
        file: PathBuf,
        /// The option's name.
        option: &'static str,
        /// The expected value.
        expected: &'static str,
    },
    /// An option has an invalid value.
    #[error("{file}: option \"{option}\" is {found}; expected {expected}")]
    InvalidOption {
        /// The configuration file.
        file: PathBuf,
        /// The option's name.
        option: &'static str,
        /// The option's value.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// An option has a valid value that this engine does not support.
    #[error(
        "{file}: option \"{option}\" is {found}, which is not supported yet; supported: {supported}"
    )]
    UnsupportedOption {
        /// The configuration file.
        file: PathBuf,
        /// The option's name.
        option: &'static str,
        /// The option's value.
        found: String,
        /// The supported values.
        supported: &'static str,
    },
    /// A drafter's configuration has an option that is not known. Ignoring it could make the drafts
    /// worse, and no text would show it.
    #[error(
        "{file}: option \"{option}\" is {found}, but {owner} has no such option here, and ignoring it could \
         make the drafts worse; if it does not change what the drafter computes, remove it from the file; \
         otherwise use another drafter"
    )]
    UnknownOption {
        /// The configuration file.
        file: PathBuf,
        /// The option's name.
        option: String,
        /// The option's value.
        found: String,
        /// What the option would belong to.
        owner: &'static str,
    },
    /// A field of a GGUF file is invalid: an option of its metadata, or a part of a tensor's
    /// description.
    #[error("{file}: {field} is {found}; expected {expected}")]
    GgufField {
        /// The file.
        file: PathBuf,
        /// The field: `option "llama.block_count"`, for example.
        field: String,
        /// The field's value.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// A field of a GGUF file has a valid value that this engine does not support.
    #[error("{file}: {field} is {found}, which is not supported yet; supported: {supported}")]
    GgufUnsupported {
        /// The file.
        file: PathBuf,
        /// The field.
        field: String,
        /// The field's value.
        found: String,
        /// The supported values, or what to use instead.
        supported: String,
    },
    /// A shard's name in the index is not a plain file name.
    #[error(
        "{file}: shard {name:?} of tensor `{tensor}` is not a plain file name inside the checkpoint's directory"
    )]
    ShardName {
        /// The index file.
        file: PathBuf,
        /// The tensor that the index assigns to this shard.
        tensor: String,
        /// The shard's name.
        name: String,
    },
    /// A tensor that the configuration requires is not stored.
    #[error("{file}: tensor `{tensor}` is missing; {hint}")]
    MissingTensor {
        /// The file or the index that should contain the tensor.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The probable cause.
        hint: &'static str,
    },
    /// A tensor is stored in two shards, so it is not clear which one is valid.
    #[error(
        "{file}: tensor `{tensor}` is also stored in {other}; the shards belong to different \
         checkpoints: download them again"
    )]
    DuplicateTensor {
        /// The second shard that contains the tensor.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The first shard that contains the tensor.
        other: PathBuf,
    },
    /// A stored tensor is not part of the configured model. Ignoring it would change the model.
    #[error(
        "{file}: tensor `{tensor}` is not part of a {family} with {layers} layers; \
         the configuration belongs to another model, or this variant is not supported yet"
    )]
    UnexpectedTensor {
        /// The file that contains the tensor.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The family according to the configuration.
        family: Family,
        /// The number of layers according to the configuration.
        layers: usize,
    },
    /// A stored tensor is not part of the drafter. Ignoring it would change the drafter.
    #[error(
        "{file}: tensor `{tensor}` is not part of {drafter}; this variant of the drafter is not \
         supported yet"
    )]
    UnusedTensor {
        /// The file that contains the tensor.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// A description of the drafter.
        drafter: &'static str,
    },
    /// A drafter is used with a target that has another embedding than the drafter's own target.
    #[error(
        "{drafter}: the drafter was trained for the target {trained_for}, but {target} has a different \
         embedding: set `model` to that target, or `draft_model` to another drafter"
    )]
    TargetMismatch {
        /// The drafter's checkpoint.
        drafter: PathBuf,
        /// The name of the drafter's target, according to the drafter's checkpoint.
        trained_for: String,
        /// The target's checkpoint.
        target: PathBuf,
    },
    /// A drafter and its target have different sizes.
    #[error(
        "{drafter}: the {size} is {found}, but in the target {target} it is {expected}; the drafter was \
         trained for another target: set `draft_model` to another drafter"
    )]
    TargetSizeMismatch {
        /// The drafter's checkpoint.
        drafter: PathBuf,
        /// The name of the size.
        size: &'static str,
        /// The drafter's size.
        found: usize,
        /// The target's size.
        expected: usize,
        /// The target's checkpoint.
        target: PathBuf,
    },
    /// The tokens of a drafter's head do not map to tokens of the target.
    #[error(
        "{path}: the head has {draft_vocab_size} tokens, but `d2t` does not map each of them to one of \
         the vocabulary's {vocab_size} tokens; the checkpoint is damaged or incomplete: download it \
         again"
    )]
    DraftVocabulary {
        /// The drafter's checkpoint.
        path: PathBuf,
        /// The number of tokens of the drafter's head.
        draft_vocab_size: usize,
        /// The number of tokens of the target.
        vocab_size: usize,
    },
    /// A folder does not hold a drafter of the requested kind.
    #[error("{path}: the folder holds {found}; expected {expected}")]
    WrongDrafterKind {
        /// The folder.
        path: PathBuf,
        /// The kind of drafter in the folder.
        found: String,
        /// The requested kind.
        expected: &'static str,
    },
    /// A tensor's elements have an unsupported type.
    #[error(
        "{file}: tensor `{tensor}` has dtype {found}; expected F32, BF16 or F16: convert the \
         checkpoint"
    )]
    Dtype {
        /// The file that contains the tensor.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The tensor's type.
        found: String,
    },
    /// A tensor's shape does not match the configuration.
    #[error(
        "{file}: tensor `{tensor}` has shape {found:?}; expected {expected:?} from the configuration"
    )]
    Shape {
        /// The file that contains the tensor.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The shape according to the configuration.
        expected: Vec<usize>,
        /// The stored shape.
        found: Vec<usize>,
    },
    /// A part of a quantised matrix has another type than its format.
    #[error("{file}: tensor `{tensor}` has type {found}; expected one of {expected}")]
    PartDtype {
        /// The file that contains the tensor.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The types that the format has.
        expected: String,
        /// The stored type.
        found: String,
    },
    /// A quantised matrix assigns an input to a group of scales that it does not have.
    #[error(
        "{file}: tensor `{tensor}` has the value {found} at index {index}; expected groups from 0 to \
         {last}: the file is damaged", last = groups - 1
    )]
    GroupIndex {
        /// The file that contains the tensor.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The index of the input.
        index: usize,
        /// The value.
        found: i32,
        /// The number of groups.
        groups: usize,
    },
    /// A weight is NaN or infinite.
    #[error(
        "{file}: tensor `{tensor}` has the value {found} at flat index {index}; expected finite weights: \
         the file is damaged, or training diverged"
    )]
    NonFinite {
        /// The file that contains the tensor.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The row-major index in the tensor.
        index: usize,
        /// The value: NaN or an infinity.
        found: f32,
    },
    /// The model does not have a requested tensor.
    #[error("{path}: there is no tensor `{tensor}` in this model, a {family} with {layers} layers")]
    NoSuchTensor {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The model's family.
        family: Family,
        /// The model's number of layers.
        layers: usize,
    },
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
