//! A small random pair, for a first run without any checkpoint.

use forerun_model::checkpoint::random::{example_config, write_random_pair};
use forerun_model::{Config, LoadError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A random target and a drafter that agrees with it now and then, in a temporary folder that goes
/// with this value. The text is noise; all else is real.
#[derive(Debug)]
pub struct RandomPair {
    folder: PathBuf,
    target: PathBuf,
    drafter: PathBuf,
}

impl RandomPair {
    /// Writes a new pair.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn make() -> Result<Self, LoadError> {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("forerun-random-pair-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let (target, drafter) = (folder.join("target"), folder.join("drafter"));
        let pair = Self { folder, target, drafter };
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
        write_random_pair(&pair.target, &pair.drafter, &config, 7, 0.15, 1)?;
        Ok(pair)
    }

    /// The target's checkpoint.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The drafter's checkpoint.
    #[must_use]
    pub fn drafter(&self) -> &Path {
        &self.drafter
    }
}

impl Drop for RandomPair {
    fn drop(&mut self) {
        // A temporary folder that stays behind does no harm.
        drop(std::fs::remove_dir_all(&self.folder));
    }
}
