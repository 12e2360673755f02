//! The interface between the training loop and the model that it trains.

use crate::data::{Batch, Dataset, ValidationWindow};
use crate::export::ExportError;
use crate::metrics::PositionAcceptance;
use crate::model::Parameter;
use crate::options::{TrainError, TrainOptions};
use candle_core::{Result, Tensor};
use forerun_formats::checkpoint::Dtype;
use serde_json::Value;
use std::path::Path;

/// A model in training: a language model, or a drafter of a target.
pub trait Learner {
    /// Returns the trainable parameters, always in the same order.
    fn parameters(&self) -> Vec<Parameter>;

    /// Returns further settings that identify a run, in addition to its options. A run can be
    /// resumed only with the same description.
    fn description(&self) -> Value {
        Value::Null
    }

    /// Checks the options of a run.
    ///
    /// # Errors
    /// [`TrainError::Option`] with the first invalid option.
    fn check(
        &self,
        options: &TrainOptions,
        dataset: &Dataset,
    ) -> std::result::Result<(), TrainError>;

    /// Returns the length of the shortest held-out text, in tokens, that an evaluation can use.
    fn least_window(&self) -> usize {
        1
    }

    /// Computes the loss of a batch, as a scalar that can be differentiated and as a number.
    ///
    /// A step consists of one or more batches. `number` is the number of the batch in the run;
    /// random numbers are derived from it and from the seed.
    ///
    /// # Errors
    /// If a tensor operation fails.
    fn loss(&self, batch: &Batch, number: u64, options: &TrainOptions) -> Result<(Tensor, f64)>;

    /// Evaluates the model on held-out text; `None` if there are no windows.
    ///
    /// # Errors
    /// If a tensor operation fails.
    fn evaluate(
        &self,
        windows: &[ValidationWindow],
        options: &TrainOptions,
    ) -> Result<Option<Evaluation>>;

    /// Writes the model into a folder, and creates it if necessary.
    ///
    /// # Errors
    /// If a file cannot be written.
    fn write(&self, folder: &Path, dtype: Dtype) -> std::result::Result<(), ExportError>;
}

/// The result of an evaluation on held-out text.
#[derive(Clone, Debug, PartialEq)]
pub enum Evaluation {
    /// The result of a language model.
    Text {
        /// Negative log-likelihood of all targets, in nats (a sum).
        nll: f64,
        /// Number of target tokens.
        targets: usize,
        /// Bytes of text that the targets represent.
        bytes: u64,
    },
    /// The result of a drafter.
    Drafts {
        /// The objective.
        loss: f64,
        /// The acceptance rates of each position of its drafts.
        acceptance: Vec<PositionAcceptance>,
    },
}
