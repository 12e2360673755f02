//! What the benches of whole models share.

use forerun_model::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use forerun_model::{Checkpoint, Config, LoadError};
use tempfile::TempDir;

/// The longest past that is measured, and the rows behind it.
pub(crate) const CONTEXT: usize = 2048 + 64;

/// 28 million parameters: little enough to be made in a second.
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

/// A random checkpoint, in a folder that goes with the value beside it.
///
/// # Errors
/// If its files cannot be written.
pub(crate) fn random(config: &Config) -> Result<(TempDir, Checkpoint), LoadError> {
    let folder =
        TempDir::new().map_err(|cause| LoadError::Write { path: std::env::temp_dir(), cause })?;
    write_random_checkpoint(folder.path(), config, 1, RandomDtype::F32)?;
    let checkpoint = Checkpoint::open(folder.path())?;
    Ok((folder, checkpoint))
}
