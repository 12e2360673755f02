//! The options of a training run, and its errors.

use crate::checkpoint::CheckpointError;
use crate::data::{DataError, Dataset};
use crate::drafter::DrafterFileError;
use crate::metrics::MetricsError;
use crate::model::ModelError;
use crate::optimizer::OptimizerOptions;
use crate::plot::PlotError;
use crate::schedule::LearningRateSchedule;
use forerun_formats::Config;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::path::PathBuf;

/// Options of a training run. A run can be resumed only with the same options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainOptions {
    /// Tokens per sequence.
    pub context: usize,
    /// Whether every epoch cuts the text at the same places, so that a cache of features serves all
    /// epochs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub same_windows: bool,
    /// Sequences per batch.
    pub sequences: usize,
    /// Batches per step. Their gradients are accumulated.
    pub accumulation: usize,
    /// The learning rates, and the number of steps.
    pub schedule: LearningRateSchedule,
    /// The optimizer's options.
    pub optimizer: OptimizerOptions,
    /// The seed for the order of the batches and for all other random numbers.
    pub seed: u64,
    /// Steps between evaluations on held-out text; 0 evaluates only at the end.
    pub evaluate_every: u64,
    /// Held-out tokens of an evaluation; 0 disables evaluations.
    pub evaluation_tokens: u64,
    /// Steps between checkpoints; 0 writes one only at the end.
    pub save_every: u64,
    /// The share α of the divergence from the teacher, or from a drafter's target, in the loss
    /// `α · KL + (1 − α) · NLL`. It is ignored for a language model without a teacher.
    pub distillation_share: f32,
}

impl TrainOptions {
    /// Returns the number of tokens per step.
    #[must_use]
    pub fn step_tokens(&self) -> usize {
        self.context * self.sequences * self.accumulation
    }

    /// Returns the weight of a token's loss in a step.
    pub(crate) fn token_weight(&self) -> f32 {
        1.0 / self.step_tokens() as f32
    }

    /// Checks the options and the data against a model.
    pub(crate) fn check_model(&self, model: &Config, dataset: &Dataset) -> Result<(), TrainError> {
        let refuse = TrainError::option;
        let (vocab_size, longest) = (model.vocab_size, model.max_position_embeddings);
        if vocab_size < dataset.vocab_size() {
            let expected = format!("the tokenizer of the data has {} tokens", dataset.vocab_size());
            return refuse("the vocabulary size of the model", &vocab_size, &expected);
        }
        if self.context == 0 || self.context > longest {
            let expected = format!("the model requires 1 to {longest} tokens");
            return refuse("`context`", &self.context, &expected);
        }
        Ok(())
    }

    /// Checks the options that do not depend on the model.
    pub(crate) fn check(&self) -> Result<(), TrainError> {
        let refuse = TrainError::option;
        for (option, size) in
            [("`sequences`", self.sequences), ("`accumulation`", self.accumulation)]
        {
            if size == 0 {
                return refuse(option, &0, "at least 1 is required");
            }
        }
        let share = self.distillation_share;
        if !(0.0..=1.0).contains(&share) {
            return refuse("`distillation_share`", &share, "it must be from 0 to 1");
        }
        Ok(())
    }
}

/// An error of a training run.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// See [`DataError`].
    #[error(transparent)]
    Data(#[from] DataError),
    /// See [`ModelError`].
    #[error(transparent)]
    Model(#[from] ModelError),
    /// See [`DrafterFileError`].
    #[error(transparent)]
    Drafter(#[from] DrafterFileError),
    /// See [`CheckpointError`].
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// See [`MetricsError`].
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// See [`PlotError`].
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// An option is out of range.
    #[error("{option} is {found}, but {expected}")]
    Option {
        /// The option: its field's name in backticks.
        option: &'static str,
        /// The value of the option.
        found: String,
        /// The requirement that the value does not meet.
        expected: String,
    },
    /// The loss is infinite or not a number.
    #[error(
        "training diverged: the loss of step {step} is {loss}. Lower the learning rate and start a new \
         run in another folder. The earlier checkpoints remain in {folder}"
    )]
    Diverged {
        /// The step.
        step: u64,
        /// The loss of the step.
        loss: f64,
        /// The folder of the checkpoints.
        folder: PathBuf,
    },
    /// The folder contains a run with other options.
    #[error(
        "{folder} contains a run with other options ({difference}): use the same options to resume that \
         run, start it over with `restart`, or choose another folder"
    )]
    OtherRun {
        /// The folder of the run.
        folder: PathBuf,
        /// The options that differ.
        difference: String,
    },
}

impl TrainError {
    /// Returns the error for an option that is out of range: the option, its value, and the
    /// requirement.
    pub(crate) fn option<T>(
        option: &'static str,
        found: &dyn Display,
        expected: &str,
    ) -> Result<T, Self> {
        let (found, expected) = (found.to_string(), expected.to_owned());
        Err(Self::Option { option, found, expected })
    }
}
