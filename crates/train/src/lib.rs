//! Trains small language models, and the drafters of the papers.
//!
//! `ops` has the layers, forward and backward; `model` puts them together. This crate may touch files,
//! threads and the clock; nothing that generates text depends on it.

mod model;
mod ops;
mod optimizer;

pub use model::{Llama, ModelError, Parameter};
pub use ops::{LossParts, Targets, Teacher};
pub use optimizer::{AdamW, AdamWOptions};
