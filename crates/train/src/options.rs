//! How a run is trained, and why one ends early.

use crate::checkpoint::CheckpointError;
use crate::data::{DataError, Dataset};
use crate::drafter::DrafterFileError;
use crate::metrics::MetricsError;
use crate::model::ModelError;
use crate::optimizer::AdamWOptions;
use crate::plot::PlotError;
use crate::schedule::LearningRateSchedule;
use forerun_model::Config;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::path::PathBuf;

/// How a model is trained. All of it is part of the run: it cannot be resumed with other options.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainOptions {
    /// Tokens of a sequence.
    pub context: usize,
    /// Sequences that are computed at once.
    pub sequences: usize,
    /// Batches of these whose gradients make one step.
    pub accumulation: usize,
    /// Learning rates, and how many steps there are.
    pub schedule: LearningRateSchedule,
    /// The optimizer's options.
    pub optimizer: AdamWOptions,
    /// Orders the batches.
    pub seed: u64,
    /// Steps between tests on held-out text; 0 tests at the end only.
    pub evaluate_every: u64,
    /// Held-out tokens of a test.
    pub evaluation_tokens: u64,
    /// Steps between checkpoints; 0 writes one at the end only.
    pub save_every: u64,
    /// The share α of the divergence from the teacher, or from a drafter's target, in the loss
    /// `α · KL + (1 − α) · NLL`; it counts where there is one.
    pub distillation_share: f32,
}

impl TrainOptions {
    /// Tokens of a step.
    #[must_use]
    pub fn step_tokens(&self) -> usize {
        self.context * self.sequences * self.accumulation
    }

    /// What a token's loss counts in a step.
    pub(crate) fn token_weight(&self) -> f32 {
        1.0 / self.step_tokens() as f32
    }

    /// Refuses what a model cannot follow.
    pub(crate) fn check_model(&self, model: &Config, dataset: &Dataset) -> Result<(), TrainError> {
        let refuse = TrainError::option;
        let (vocab_size, seen) = (model.vocab_size, model.max_position_embeddings);
        if vocab_size < dataset.vocab_size() {
            let expected = format!("the data's tokenizer has {} tokens", dataset.vocab_size());
            return refuse("vocab_size", &vocab_size, &expected);
        }
        if self.context == 0 || self.context > seen {
            let expected = format!("1 to {seen} tokens fit the model");
            return refuse("context", &self.context, &expected);
        }
        Ok(())
    }

    /// Refuses what no model can follow.
    pub(crate) fn check(&self) -> Result<(), TrainError> {
        let refuse = TrainError::option;
        for (option, size) in [("sequences", self.sequences), ("accumulation", self.accumulation)] {
            if size == 0 {
                return refuse(option, &0, "at least 1 is needed");
            }
        }
        let share = self.distillation_share;
        if !(0.0..=1.0).contains(&share) {
            return refuse("distillation share", &share, "it goes from 0 to 1");
        }
        Ok(())
    }
}

/// Why training ended early.
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
    /// The library's complaint.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// An option out of range.
    #[error("{option} is {found}, but {expected}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What it is.
        found: String,
        /// What it may be.
        expected: String,
    },
    /// A loss that is no number.
    #[error(
        "the loss of step {step} is {loss}: lower the learning rate, and go on from an older checkpoint \
         (remove the newest folder under {folder})"
    )]
    Diverged {
        /// The step.
        step: u64,
        /// Its loss.
        loss: f64,
        /// Where the checkpoints are.
        folder: PathBuf,
    },
    /// A run of other options.
    #[error(
        "{folder} holds a run of other options ({difference}): choose another folder, or the same options \
         to go on"
    )]
    OtherRun {
        /// The run's folder.
        folder: PathBuf,
        /// What differs.
        difference: String,
    },
}

impl TrainError {
    /// An option out of range: its name, what it is, and what it may be.
    pub(crate) fn option<T>(
        option: &'static str,
        found: &dyn Display,
        expected: &str,
    ) -> Result<T, Self> {
        let (found, expected) = (found.to_string(), expected.to_owned());
        Err(Self::Option { option, found, expected })
    }
}
