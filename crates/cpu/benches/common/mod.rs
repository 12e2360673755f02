//! Models for the benchmarks of whole models.

use forerun_formats::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use forerun_formats::{Checkpoint, Config, LoadError};
use tempfile::TempDir;

/// The largest number of past tokens in a benchmark, plus rows after them.
pub(crate) const CONTEXT: usize = 2048 + 64;

/// A model of 28 million parameters, small enough to be created in a second.
pub(crate) fn mid() -> Config {
    Config {
        hidden_size: 512,
        intermediate_size: 1408,
        num_hidden_layers: 8,
        num_attention_heads: 8,
        num_key_value_heads: 4,
        head_dim: 64,
        vocab_size: 4096,
        max_position_embeddings: CONTEXT,
        ..example_config()
    }
}

/// Writes a random checkpoint to a temporary folder, which is deleted when the returned `TempDir`
/// is dropped.
///
/// # Errors
/// [`LoadError`] if its files cannot be written.
pub(crate) fn random(config: &Config) -> Result<(TempDir, Checkpoint), LoadError> {
    let folder =
        TempDir::new().map_err(|cause| LoadError::Write { path: std::env::temp_dir(), cause })?;
    write_random_checkpoint(folder.path(), config, 1, RandomDtype::F32)?;
    let checkpoint = Checkpoint::open(folder.path())?;
    Ok((folder, checkpoint))
}
