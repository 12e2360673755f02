//! Random checkpoints, and functions that change them.

use forerun::checkpoint::Config;
use forerun_formats::checkpoint::random::{example_config, write_random_pair};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A random target and its drafter, in a directory that is deleted with this value.
pub(crate) struct Models {
    folder: TempDir,
}

impl Models {
    /// Creates a pair that agrees often, but not always.
    pub(crate) fn pair() -> Self {
        Self::of(&example_config())
    }

    /// Creates a pair with a drafter of eight layers.
    pub(crate) fn deep() -> Self {
        Self::of(&Config { num_hidden_layers: 8, ..example_config() })
    }

    /// Creates a pair with this context length.
    pub(crate) fn with_context(max_position_embeddings: usize) -> Self {
        Self::of(&Config { max_position_embeddings, ..example_config() })
    }

    /// Creates a pair with a long context in which every second token is a word of `length` bytes,
    /// so that it generates a lot of text.
    pub(crate) fn with_long_words(length: usize) -> Self {
        let models = Self::with_context(1 << 20);
        for model in [models.target(), models.drafter()] {
            edit_json(&model.join("tokenizer.json"), |tokenizer| {
                let vocabulary = tokenizer["model"]["vocab"].as_object_mut().unwrap();
                *vocabulary = std::mem::take(vocabulary)
                    .into_iter()
                    .map(|(piece, id)| match id.as_u64() {
                        Some(number @ 128..) => (format!("{number:-<length$}"), id),
                        _ => (piece, id),
                    })
                    .collect();
            });
        }
        models
    }

    fn of(drafter: &Config) -> Self {
        let models = Self { folder: tempfile::tempdir().unwrap() };
        write_random_pair(&models.target(), &models.drafter(), drafter, 2, 0.3, 5).unwrap();
        models
    }

    /// Returns the directory of both, which a test may use for other files.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn target(&self) -> PathBuf {
        self.folder().join("target")
    }

    pub(crate) fn drafter(&self) -> PathBuf {
        self.folder().join("drafter")
    }
}

/// Changes a JSON file.
pub(crate) fn edit_json(file: &Path, edit: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    edit(&mut value);
    fs::write(file, value.to_string()).unwrap();
}

/// The parts of a safetensors file, without its eight bytes of length: a JSON header, and the bytes
/// of the tensors.
pub(crate) struct Weights {
    pub(crate) header: Value,
    pub(crate) data: Vec<u8>,
}

impl Weights {
    /// Changes a safetensors file.
    pub(crate) fn edit(file: &Path, edit: impl FnOnce(&mut Self)) {
        let bytes = fs::read(file).unwrap();
        let (length, rest) = bytes.split_first_chunk().unwrap();
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        let header = serde_json::from_slice(header).unwrap();
        let mut weights = Self { header, data: data.to_vec() };
        edit(&mut weights);
        let header = weights.header.to_string();
        let length = (header.len() as u64).to_le_bytes();
        fs::write(file, [&length, header.as_bytes(), &weights.data].concat()).unwrap();
    }

    /// Returns the offset of a tensor's bytes.
    pub(crate) fn start_of(&self, tensor: &str) -> usize {
        self.header[tensor]["data_offsets"][0].as_u64().unwrap() as usize
    }
}
