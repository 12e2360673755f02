//! The index of a prepared data set: what it was made of, and what its shards hold.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::{DataError, writing};
use crate::files::write_atomically;

/// The file that makes a folder a data set. It is written last.
pub(crate) const INDEX_FILE: &str = "index.json";

const FORMAT: &str = "forerun-dataset";
const VERSION: u32 = 1;

/// All that a data set is made of, so that nothing else is taken for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recipe {
    /// SHA-256 of `tokenizer.json`.
    pub(crate) tokenizer_sha256: String,
    /// Tokens in front of every document.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) prefix: Vec<u32>,
    /// The token behind every document.
    pub(crate) separator: u32,
    /// Documents of each million that are held out of the training files.
    pub(crate) held_out_ppm: u32,
    /// Chooses which these are.
    pub(crate) seed: u64,
    /// Most tokens of a shard.
    pub(crate) shard_tokens: u64,
    /// The files, in order.
    pub(crate) sources: Vec<Source>,
}

impl Recipe {
    /// What of it is not as in `other`.
    pub(crate) fn difference(&self, other: &Self) -> Option<&'static str> {
        let tokens = |recipe: &Self| (recipe.prefix.clone(), recipe.separator);
        if self.tokenizer_sha256 != other.tokenizer_sha256 || tokens(self) != tokens(other) {
            Some("tokenizers")
        } else if self.sources != other.sources {
            Some("source files")
        } else if self != other {
            Some("options (held-out share, seed or size of shards)")
        } else {
            None
        }
    }
}

/// A file of text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Source {
    /// Its name, without folders: a data set may move, and so may its sources.
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) sha256: String,
    /// Whether all of it is held out.
    pub(crate) validation: bool,
}

/// A document, as it lies in the shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DocumentEntry {
    /// Its file, by place among the sources.
    pub(crate) source: usize,
    /// Its tokens, with what stands in front and behind.
    pub(crate) tokens: u64,
    /// Bytes of its text.
    pub(crate) bytes: u64,
    pub(crate) held_out: bool,
}

/// A file of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShardEntry {
    pub(crate) tokens: u64,
    pub(crate) sha256: String,
}

/// The index itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Index {
    format: String,
    version: u32,
    pub(crate) recipe: Recipe,
    /// Bytes of a token in shards: 2 or 4.
    pub(crate) token_width_bytes: u64,
    /// Shards to learn from, in order; their names are [`shard_name`]'s.
    pub(crate) training: Vec<ShardEntry>,
    /// Shards of held-out documents, in order.
    pub(crate) held_out: Vec<ShardEntry>,
    /// The documents in the order in which they were read.
    pub(crate) documents: Vec<DocumentEntry>,
    /// By token: bytes of text that it stands for.
    pub(crate) token_bytes: Vec<u32>,
    /// Whether there are documents that their tokens do not spell byte by byte.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) inexact: bool,
}

/// The name of a shard.
pub(crate) fn shard_name(held_out: bool, number: usize) -> String {
    let split = if held_out { "held-out" } else { "training" };
    format!("{split}-{number:05}.tokens")
}

/// Whether a file's name is one that preparing gives.
pub(crate) fn is_ours(name: &str) -> bool {
    name == INDEX_FILE
        || name.starts_with(".partial-")
        || (name.ends_with(".tokens")
            && (name.starts_with("training-") || name.starts_with("held-out-")))
}

impl Index {
    /// An index of nothing yet.
    pub(crate) fn new(recipe: Recipe, token_bytes: Vec<u32>) -> Self {
        // Two bytes name 65,536 tokens.
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

    /// The shards of one half.
    pub(crate) fn shards(&self, held_out: bool) -> &[ShardEntry] {
        if held_out { &self.held_out } else { &self.training }
    }

    /// Reads a folder's index and checks that it agrees with itself.
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
            .and_then(|index: Self| index.checked())
            .map_err(|reason| DataError::Broken { path, reason })
    }

    fn checked(self) -> Result<Self, String> {
        if self.format != FORMAT || self.version != VERSION {
            return Err(format!(
                "expected {FORMAT} of version {VERSION}, found {} of version {}",
                self.format, self.version
            ));
        }
        if !matches!(self.token_width_bytes, 2 | 4) {
            return Err(format!("tokens of {} bytes", self.token_width_bytes));
        }
        for held_out in [false, true] {
            let documents = self.documents.iter().filter(|entry| entry.held_out == held_out);
            let expected = documents.fold(0_u64, |sum, entry| sum.saturating_add(entry.tokens));
            let shards = self.shards(held_out).iter();
            let found = shards.fold(0_u64, |sum, shard| sum.saturating_add(shard.tokens));
            if expected != found {
                return Err(format!("documents of {expected} tokens, shards of {found}"));
            }
        }
        Ok(self)
    }

    /// Writes it, whole or not at all.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), DataError> {
        let path = folder.join(INDEX_FILE);
        let json = serde_json::to_vec(self)
            .map_err(|error| DataError::Write { path: path.clone(), cause: error.into() })?;
        write_atomically(&path, &json).map_err(writing(&path))
    }
}
