//! What a run trains, as the loop sees it.

use crate::data::{Batch, Dataset, ValidationWindow};
use crate::drafter::PositionAcceptance;
use crate::export::ExportError;
use crate::model::Parameter;
use crate::options::{TrainError, TrainOptions};
use candle_core::{Result, Tensor};
use forerun_model::checkpoint::Dtype;
use serde_json::Value;
use std::path::Path;

/// What can be trained: a language model, or a drafter of a target.
pub trait Learner {
    /// Everything that is trained, in an order that stays.
    fn parameters(&self) -> Vec<Parameter>;

    /// What else than the run's options a run must have been begun with to go on with this.
    fn description(&self) -> Value {
        Value::Null
    }

    /// Refuses options that cannot be followed.
    ///
    /// # Errors
    /// [`TrainError::Option`] with the first of them.
    fn check(
        &self,
        options: &TrainOptions,
        dataset: &Dataset,
    ) -> std::result::Result<(), TrainError>;

    /// The loss of a batch, which is one of those that make a step, as a scalar that can be
    /// differentiated, and as a number. `number` counts batches; random numbers follow from it and
    /// from the seed.
    ///
    /// # Errors
    /// Where the library fails.
    fn loss(&self, batch: &Batch, number: u64, options: &TrainOptions) -> Result<(Tensor, f64)>;

    /// What it makes of held-out text; `None` of none.
    ///
    /// # Errors
    /// Where the library fails.
    fn test(&self, windows: &[ValidationWindow], options: &TrainOptions) -> Result<Option<Tested>>;

    /// Writes it into a folder, which is made.
    ///
    /// # Errors
    /// If a file cannot be written.
    fn write(&self, folder: &Path, dtype: Dtype) -> std::result::Result<(), ExportError>;
}

/// What a test told.
#[derive(Clone, Debug, PartialEq)]
pub enum Tested {
    /// A language model predicted text.
    Text {
        /// Negative logarithmic likelihood of all targets, in nats.
        nll: f64,
        /// Tokens that were predicted.
        targets: usize,
        /// Bytes of text that these stand for.
        bytes: u64,
    },
    /// A drafter drafted on text.
    Drafts {
        /// What is minimised.
        loss: f64,
        /// What each position of its drafts is worth.
        acceptance: Vec<PositionAcceptance>,
    },
}
