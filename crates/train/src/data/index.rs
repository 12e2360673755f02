//! The index of a prepared data set: its inputs and the contents of its shards.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::{DataError, write_error};

/// The name of the index file. It is written last: a folder without it is not a data set.
pub(crate) const INDEX_FILE: &str = "index.json";

const FORMAT: &str = "forerun-dataset";
const VERSION: u32 = 1;

/// The inputs of a data set, which identify it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recipe {
    /// SHA-256 of `tokenizer.json`.
    pub(crate) tokenizer_sha256: String,
    /// The tokens before every document.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) prefix: Vec<u32>,
    /// The token after every document.
    pub(crate) separator: u32,
    /// Whether the text of a special token is that token.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) special_tokens: bool,
    /// Share of the training files' documents that are held out, in millionths.
    pub(crate) held_out_ppm: u32,
    /// The seed that selects these documents.
    pub(crate) seed: u64,
    /// Maximum number of tokens of a shard.
    pub(crate) shard_tokens: u64,
    /// The source files, in order.
    pub(crate) sources: Vec<Source>,
}

impl Recipe {
    /// Returns the name of the inputs that differ from `other`; `None` if all are equal.
    pub(crate) fn difference(&self, other: &Self) -> Option<&'static str> {
        let tokens = |recipe: &Self| (recipe.prefix.clone(), recipe.separator);
        if self.tokenizer_sha256 != other.tokenizer_sha256 || tokens(self) != tokens(other) {
            Some("tokenizers")
        } else if self.sources != other.sources {
            Some("source files")
        } else if self != other {
            Some("options (special tokens, held-out share, seed or size of shards)")
        } else {
            None
        }
    }
}

/// A source file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Source {
    /// The file's name without its folder, because data sets and sources may be moved.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
    /// Whether all documents of the file are held out.
    pub(crate) validation: bool,
}

/// A document in the shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DocumentEntry {
    /// The index of the document's file in the sources.
    pub(crate) source: usize,
    /// Number of tokens, including the prefix and the separator.
    pub(crate) tokens: u64,
    /// Number of bytes of text.
    pub(crate) bytes: u64,
    pub(crate) held_out: bool,
}

/// A shard: a file of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShardEntry {
    pub(crate) tokens: u64,
    pub(crate) sha256: String,
}

/// The index of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Index {
    format: String,
    version: u32,
    pub(crate) recipe: Recipe,
    /// Bytes per token in the shards: 2 or 4.
    pub(crate) token_width_bytes: u64,
    /// Shards of training documents, in order. [`shard_name`] returns their names.
    pub(crate) training: Vec<ShardEntry>,
    /// Shards of held-out documents, in order.
    pub(crate) held_out: Vec<ShardEntry>,
    /// All documents, in the order of reading.
    pub(crate) documents: Vec<DocumentEntry>,
    /// For each token, the number of bytes of text that it represents.
    pub(crate) token_bytes: Vec<u32>,
    /// Whether the tokens of some document do not reproduce its text byte by byte.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) inexact: bool,
}

/// Returns the name of a shard's file.
pub(crate) fn shard_name(held_out: bool, number: usize) -> String {
    let split = if held_out { "held-out" } else { "training" };
    format!("{split}-{number:05}.tokens")
}

/// Returns whether a file name belongs to the files of a data set.
pub(crate) fn is_dataset_file(name: &str) -> bool {
    name == INDEX_FILE
        || (name.ends_with(".tokens")
            && (name.starts_with("training-") || name.starts_with("held-out-")))
        || (name.ends_with(".partial")
            && (name.starts_with(".training-") || name.starts_with(".held-out-")))
}

impl Index {
    /// Creates an index without documents.
    pub(crate) fn new(recipe: Recipe, token_bytes: Vec<u32>) -> Self {
        // Two bytes can represent 65,536 tokens.
        let token_width_bytes = if token_bytes.len() <= 1 << 16 { 2 } else { 4 };
        let (training, held_out, documents) = (Vec::new(), Vec::new(), Vec::new());
        let format = FORMAT.to_owned();
        Self {
            format,
            version: VERSION,
            recipe,
            token_width_bytes,
            training,
            held_out,
            documents,
            token_bytes,
            inexact: false,
        }
    }

    /// Returns the shards of one split.
    pub(crate) fn shards(&self, held_out: bool) -> &[ShardEntry] {
        if held_out { &self.held_out } else { &self.training }
    }

    /// Reads the index of a folder and checks that it is consistent.
    pub(crate) fn read(folder: &Path) -> Result<Self, DataError> {
        let path = folder.join(INDEX_FILE);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => {
                return Err(DataError::NotPrepared(folder.to_owned()));
            }
            Err(cause) => return Err(DataError::Read { path, cause }),
        };
        let parsed = serde_json::from_slice(&bytes).map_err(|error| error.to_string());
        parsed
            .and_then(|index: Self| index.validated())
            .map_err(|reason| DataError::Corrupt { path, reason })
    }

    fn validated(self) -> Result<Self, String> {
        if self.format != FORMAT || self.version != VERSION {
            return Err(format!(
                "expected the format {FORMAT} of version {VERSION}, found {} of version {}",
                self.format, self.version
            ));
        }
        if !matches!(self.token_width_bytes, 2 | 4) {
            return Err(format!(
                "expected tokens of 2 or 4 bytes, found {} bytes",
                self.token_width_bytes
            ));
        }
        for held_out in [false, true] {
            let documents = self.documents.iter().filter(|entry| entry.held_out == held_out);
            let expected = documents.fold(0_u64, |sum, entry| sum.saturating_add(entry.tokens));
            let shards = self.shards(held_out).iter();
            let found = shards.fold(0_u64, |sum, shard| sum.saturating_add(shard.tokens));
            if expected != found {
                return Err(format!(
                    "the documents of a split have {expected} tokens, but its shards have {found}"
                ));
            }
        }
        Ok(self)
    }

    /// Writes the index atomically.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), DataError> {
        let path = folder.join(INDEX_FILE);
        let json = serde_json::to_vec(self)
            .map_err(|error| DataError::Write { path: path.clone(), cause: error.into() })?;
        forerun_output::write(&path, &json).map_err(write_error(&path))
    }
}
