//! A small random pair, for a first run without checkpoints.

use forerun_formats::checkpoint::random::{example_config, write_random_pair};
use forerun_formats::{Config, LoadError};
use std::path::Path;
use tempfile::TempDir;

/// A small random target, and a drafter that sometimes agrees with it, for tests and first steps.
///
/// The checkpoints have the usual files, but their text is noise. They lie in temporary folders
/// that are deleted when this value is dropped, so keep it until the models are loaded.
#[derive(Debug)]
pub struct RandomPair {
    target: TempDir,
    drafter: TempDir,
}

impl RandomPair {
    /// Writes a pair to new temporary folders. All pairs are the same.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn make() -> Result<Self, LoadError> {
        let folder = || {
            TempDir::with_prefix("forerun-random-pair-")
                .map_err(|source| LoadError::Write { path: std::env::temp_dir(), cause: source })
        };
        let pair = Self { target: folder()?, drafter: folder()? };
        let config = Config {
            hidden_size: 64,
            intermediate_size: 176,
            num_hidden_layers: 1,
            num_attention_heads: 8,
            num_key_value_heads: 4,
            head_dim: 8,
            max_position_embeddings: 2048,
            ..example_config()
        };
        write_random_pair(pair.target(), pair.drafter(), &config, 7, 0.15, 1)?;
        Ok(pair)
    }

    /// Returns the folder of the target's checkpoint.
    #[must_use]
    pub fn target(&self) -> &Path {
        self.target.path()
    }

    /// Returns the folder of the drafter's checkpoint.
    #[must_use]
    pub fn drafter(&self) -> &Path {
        self.drafter.path()
    }
}
