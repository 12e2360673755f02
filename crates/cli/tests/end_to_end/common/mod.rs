//! Runs of the binary, and checkpoints to run it on.

mod checkpoints;
mod run;

pub(crate) use checkpoints::{Models, Weights, edit_json};
pub(crate) use run::{Finished, Reader, Run};
