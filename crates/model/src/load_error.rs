//! Why a checkpoint did not load: which file, which tensor or option, what was expected, what was
//! there.

use std::io;
use std::path::PathBuf;

use crate::config::family::Family;

/// Why a checkpoint could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The path given for the checkpoint does not exist.
    #[error(
        "{path}: no such file or directory; give a directory with config.json and model.safetensors, \
         a llama2.c .bin file, or a hub id (owner/name or owner/name@revision)"
    )]
    NotFound {
        /// The path as given.
        path: PathBuf,
    },
    /// A directory without any checkpoint that can be recognised, or with several.
    #[error(
        "{path}: expected a directory with config.json, or with exactly one llama2.c .bin file; found {found}"
    )]
    NotACheckpoint {
        /// The directory.
        path: PathBuf,
        /// What there is instead.
        found: String,
    },
    /// A file that belongs to the checkpoint is not there.
    #[error("{path}: file is missing; {hint}")]
    MissingFile {
        /// Where the file should be.
        path: PathBuf,
        /// What to do.
        hint: &'static str,
    },
    /// A file is of a format, or of a version of one, that is not read here.
    #[error("{file}: expected {expected}; found {found}")]
    Format {
        /// The file.
        file: PathBuf,
        /// The format that would be read.
        expected: &'static str,
        /// The format recognised.
        found: String,
    },
    /// Weights as PyTorch pickles them.
    #[error(
        "{file}: weights pickled by PyTorch are not read, since reading them runs what they say; \
         convert them once where torch and safetensors are installed: python -c \"import torch; from \
         safetensors.torch import save_file; save_file({{k: v.contiguous() for k, v in \
         torch.load('{file}', map_location='cpu', weights_only=True).items()}}, '{into}')\"; then \
         name the folder, with its config.json beside them"
    )]
    Pickle {
        /// The file.
        file: PathBuf,
        /// Where the converted weights are looked for.
        into: PathBuf,
    },
    /// The operating system did not let a file be read.
    #[error("{path}: cannot be read: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// A file or directory could not be written.
    #[error("{path}: cannot be written: {cause}")]
    Write {
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// A file does not have the number of bytes that its own header announces.
    #[error("{file}: expected {expected} bytes from its header, found {found}; {hint}")]
    Length {
        /// The file.
        file: PathBuf,
        /// Bytes that the header asks for; wide, because a header can ask for anything.
        expected: u128,
        /// Bytes that there are.
        found: usize,
        /// What is likely wrong.
        hint: &'static str,
    },
    /// A file is not the JSON it should be.
    #[error("{file}: invalid JSON: {cause}")]
    Json {
        /// The file.
        file: PathBuf,
        /// What is wrong, and where.
        cause: serde_json::Error,
    },
    /// The header of a safetensors file is broken.
    #[error("{file}: invalid safetensors header: {cause}; download the file again")]
    Header {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        cause: serde_json::Error,
    },
    /// A required option is absent.
    #[error("{file}: option `{option}` is missing; expected {expected}")]
    MissingOption {
        /// The configuration file.
        file: PathBuf,
        /// The option's name.
        option: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// An option has a value that makes no sense.
    #[error("{file}: option `{option}` is {found}; expected {expected}")]
    InvalidOption {
        /// The configuration file.
        file: PathBuf,
        /// The option's name.
        option: &'static str,
        /// Its value.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// An option has a value that makes sense, but not to this engine.
    #[error(
        "{file}: option `{option}` is {found}, which is not supported yet; supported: {supported}"
    )]
    UnsupportedOption {
        /// The configuration file.
        file: PathBuf,
        /// The option's name.
        option: &'static str,
        /// Its value.
        found: String,
        /// The values that are supported.
        supported: &'static str,
    },
    /// A shard's name in the index is not the plain name of a file beside the index.
    #[error(
        "{file}: shard {name:?} of tensor `{tensor}` is not a plain file name inside the checkpoint's directory"
    )]
    ShardName {
        /// The index file.
        file: PathBuf,
        /// The tensor said to be in that shard.
        tensor: String,
        /// The shard's name.
        name: String,
    },
    /// A tensor that the configuration asks for is not stored.
    #[error("{file}: tensor `{tensor}` is missing; {hint}")]
    MissingTensor {
        /// The file, or the index, where it should be.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What is likely wrong.
        hint: &'static str,
    },
    /// A tensor is stored in two shards, and nothing says which of them counts.
    #[error(
        "{file}: tensor `{tensor}` is stored in {other}, too; the shards are not of one checkpoint: \
         download them again"
    )]
    DuplicateTensor {
        /// The second shard that it is in.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The first shard that it is in.
        other: PathBuf,
    },
    /// A tensor is stored that the configured model has no use for: leaving it out would change the
    /// model.
    #[error(
        "{file}: tensor `{tensor}` is not part of a {family} with {layers} layers; \
         the configuration is of another model, or this variant is not supported yet"
    )]
    UnexpectedTensor {
        /// The file it is in.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The family according to the configuration.
        family: Family,
        /// Layers according to the configuration.
        layers: usize,
    },
    /// A tensor is stored that the drafter has no use for.
    #[error(
        "{file}: tensor `{tensor}` is not part of {of}; this variant is not supported yet: leaving the \
         tensor out would change the drafter"
    )]
    UnusedTensor {
        /// The file it is in.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What it is no part of.
        of: &'static str,
    },
    /// A drafter that shares its target's embedding, beside another target.
    #[error(
        "{drafter}: it was made for the target {made_for}, whose embedding is not that of {target}: \
         name that target as --model, or another --draft-model"
    )]
    OtherTarget {
        /// The drafter's checkpoint.
        drafter: PathBuf,
        /// The target's name, as the drafter's checkpoint tells it.
        made_for: String,
        /// The target's checkpoint.
        target: PathBuf,
    },
    /// A drafter whose sizes are not its target's.
    #[error(
        "{drafter}: its {what} is {found}, but that of the target {target} is {expected}: it was made \
         for another target"
    )]
    TargetSize {
        /// The drafter's checkpoint.
        drafter: PathBuf,
        /// What has to be equal.
        what: &'static str,
        /// The drafter's.
        found: usize,
        /// The target's.
        expected: usize,
        /// The target's checkpoint.
        target: PathBuf,
    },
    /// A drafter's head whose tokens are none of the target's.
    #[error(
        "{path}: the head knows {known} tokens, but `d2t` does not make each of them one of the \
         vocabulary's {vocab_size}: the checkpoint is damaged or incomplete"
    )]
    DraftVocabulary {
        /// The drafter's checkpoint.
        path: PathBuf,
        /// Tokens that its head knows.
        known: usize,
        /// Tokens of the target.
        vocab_size: usize,
    },
    /// A folder that holds no drafter of the kind that was asked for.
    #[error("{path}: it holds {found}, which is not {expected}")]
    NotThatDrafter {
        /// The folder.
        path: PathBuf,
        /// What it holds.
        found: String,
        /// What was asked for.
        expected: &'static str,
    },
    /// A tensor's elements are of a type that is not read.
    #[error(
        "{file}: tensor `{tensor}` has dtype {found}; expected F32, BF16 or F16: convert the \
         checkpoint"
    )]
    Dtype {
        /// The file it is in.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The type found.
        found: String,
    },
    /// A tensor's shape is not what the configuration says.
    #[error(
        "{file}: tensor `{tensor}` has shape {found:?}; expected {expected:?} from the configuration"
    )]
    Shape {
        /// The file it is in.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The shape that follows from the configuration.
        expected: Vec<usize>,
        /// The shape found.
        found: Vec<usize>,
    },
    /// A weight is NaN or infinite.
    #[error(
        "{file}: tensor `{tensor}` has the value {found} at flat index {index}; expected finite weights: \
         the file is damaged, or training diverged"
    )]
    NonFinite {
        /// The file it is in.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Row-major index in the tensor.
        index: usize,
        /// NaN or an infinity.
        found: f32,
    },
    /// A tensor was asked for that the model does not have.
    #[error(
        "{path}: tensor `{tensor}` was asked for, but the model, a {family}, has {layers} layers \
         without it"
    )]
    NoSuchTensor {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// The model's family.
        family: Family,
        /// Layers that there are.
        layers: usize,
    },
}

/// `text`, cut to a length that fits a message: values from a broken file may be megabytes.
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
    fn long_values_are_cut_between_characters() {
        assert_eq!(shortened("silu"), "silu");
        let long = "é".repeat(1000);
        assert_eq!(shortened(&long), format!("{}…", "é".repeat(100)));
    }
}
