//! A small random pair, for a first run without any checkpoint.

use forerun_model::checkpoint::random::{example_config, write_random_pair};
use forerun_model::{Config, LoadError};
use std::path::Path;
use tempfile::TempDir;

/// A random target and a drafter that agrees with it now and then, in temporary folders that go with
/// this value. The text is noise; all else is real.
#[derive(Debug)]
pub struct RandomPair {
    target: TempDir,
    drafter: TempDir,
}

impl RandomPair {
    /// Writes a new pair.
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

    /// The target's checkpoint.
    #[must_use]
    pub fn target(&self) -> &Path {
        self.target.path()
    }

    /// The drafter's checkpoint.
    #[must_use]
    pub fn drafter(&self) -> &Path {
        self.drafter.path()
    }
}
