//! Training of small models: text to tokens, tokens to batches, the log of a run and its picture.
//!
//! This crate may touch files and threads. It is heavy, so nothing that generates text may depend
//! on it.

pub mod data;
mod files;
pub mod metrics;
pub mod plot;
pub mod tokenizer;
