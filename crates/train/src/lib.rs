//! Trains small language models, and drafters for speculative decoding: Medusa (arXiv 2401.10774),
//! EAGLE (arXiv 2401.15077), ParallelSpec (arXiv 2410.05589) and DFlash (arXiv 2602.06036).
//!
//! - `tokenizer` and `data` turn text into batches.
//! - `ops` implements the layers, forward and backward; `model` and `drafter` combine them.
//! - `trainer` is the training loop.
//! - `metrics` and `plot` record a run.
//!
//! This crate may use files, threads and the clock. It has many dependencies, so no crate that
//! generates text depends on it.

#![cfg_attr(test, expect(clippy::unwrap_used, reason = "tests"))]

mod checkpoint;
pub mod data;
pub mod drafter;
mod export;
mod files;
mod language;
mod learner;
pub mod metrics;
mod model;
mod muon;
mod ops;
mod optimizer;
mod options;
pub mod plot;
mod schedule;
pub mod tokenizer;
mod trainer;

pub use checkpoint::CheckpointError;
pub use export::{ExportError, export};
pub use forerun_formats::checkpoint::Dtype;
pub use language::{LanguageLearner, evaluate_language_model};
pub use learner::{Evaluation, Learner};
pub use model::{Llama, ModelError, Parameter};
pub use ops::{LossParts, Targets, Teacher};
pub use optimizer::{MatrixUpdate, Optimizer, OptimizerOptions};
pub use options::{TrainError, TrainOptions};
pub use schedule::LearningRateSchedule;
pub use trainer::{DrafterRun, Event, Trainer};
