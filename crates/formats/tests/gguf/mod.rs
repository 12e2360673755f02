//! GGUF files are read as the models that they hold, and damaged ones are rejected with a message
//! that names the field.

mod architectures;
mod builder;
mod damaged;
mod golden;
mod mixtures;
mod options;
mod places;
mod round_trip;

use forerun_formats::Checkpoint;
use forerun_formats::checkpoint::{LoadError, Tensor};

/// Reads every tensor.
fn read_all(checkpoint: &Checkpoint) -> Result<(), LoadError> {
    for tensor in checkpoint.architecture().tensors().chain([Tensor::Head]) {
        checkpoint.tensor(tensor)?;
    }
    Ok(())
}
