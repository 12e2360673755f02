//! Trains small language models, and the drafters of the papers.
//!
//! `tokenizer` and `data` turn text into batches; `ops` has the layers, forward and backward, `model`
//! and `drafter` put them together; `trainer` is the loop; `metrics` and `plot` tell how a run went. This crate may touch files, threads
//! and the clock. It is heavy, so nothing that generates text depends on it.

mod checkpoint;
pub mod data;
pub mod drafter;
mod export;
mod files;
mod language;
mod learner;
pub mod metrics;
mod model;
mod ops;
mod optimizer;
mod options;
pub mod plot;
mod schedule;
pub mod tokenizer;
mod trainer;

pub use checkpoint::CheckpointError;
pub use export::{ExportError, export};
pub use forerun_model::checkpoint::Dtype;
pub use language::{LanguageLearner, evaluate};
pub use learner::{Learner, Tested};
pub use model::{Llama, ModelError, Parameter};
pub use ops::{LossParts, Targets, Teacher};
pub use optimizer::{AdamW, AdamWOptions};
pub use options::{TrainError, TrainOptions};
pub use schedule::LearningRateSchedule;
pub use trainer::{Event, Trainer};
