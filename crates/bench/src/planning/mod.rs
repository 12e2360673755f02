//! Measures models and devices for plans, and checks plans.
//!
//! A [`Laboratory`] opens one engine at a time. Idle engines would disturb the others: their threads and weights share
//! the cores and their caches.

mod check;
mod laboratory;
mod options;
mod setting;

pub use check::{Checked, median_error};
pub use laboratory::{Laboratory, MeasurementOptions};
pub use options::plan_file;
pub use setting::{Setting, settings};

use forerun::{ForerunError, PlanError};
use forerun_sim::SimError;

/// An error of a measurement for a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanningError {
    /// The options fit no configuration.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The drafter cannot be simulated.
    #[error(
        "the drafter {0} cannot be planned: only drafters that read nothing but tokens and draft chains are \
         simulated (model, prompt-lookup)"
    )]
    Drafter(String),
    /// An engine cannot be opened, or cannot answer.
    #[error("{setting}: {cause}")]
    Engine {
        /// The configuration.
        setting: String,
        /// The error of the engine.
        cause: Box<ForerunError>,
    },
    /// A job of a measurement failed.
    #[error("{setting}: a measured job failed: {cause}")]
    Job {
        /// The configuration.
        setting: String,
        /// The error of the job.
        cause: String,
    },
    /// An answer differs from that of plain decoding.
    #[error("{0} gave another text than plain decoding: please report this bug")]
    ChangedText(String),
    /// There is no prompt, or the prompts are too long.
    #[error("no prompt fits into the context of {context} tokens with an answer of {tokens}")]
    NoPrompts {
        /// The context length.
        context: usize,
        /// The tokens of an answer.
        tokens: usize,
    },
    /// A simulation failed.
    #[error(transparent)]
    Simulation(#[from] SimError),
}
