//! What drafters and target workers ask of a language model: batches of forward requests, and their
//! answers.
//!
//! This crate has no models. It depends on `forerun-core` alone, so drafters compile without
//! kernels, files or threads.

mod block_heads;
mod error;
#[cfg(feature = "testing")]
pub mod fake;
mod layer_order;
mod model;
mod request;

pub use block_heads::{BlockCorrection, BlockPosition, ForwardBlockHeads};
pub use error::{CachePart, ModelError};
pub use layer_order::{LayerGroups, LayerGroupsError, LayerOrder};
pub use model::{FeatureModel, LanguageModel, LayeredModel};
pub use request::{
    BatchEntry, DeviceChoice, EXCLUDED_LOGIT, ForwardOutput, ForwardRequest, Progress,
    complete_each, unfinished,
};
