//! Measures models and devices for plans, and checks plans.
//!
//! A [`Laboratory`] measures one engine at a time. Idle engines would disturb the others: their
//! threads and weights share the cores and their caches. Only at the end, the best one and plain
//! decoding take turns.

mod check;
mod laboratory;
mod measuring;
mod options;
mod recording;
mod setting;
mod side_by_side;

pub use check::{Checked, median_error, median_noise};
pub use laboratory::{CheckOptions, Laboratory, MeasurementOptions};
pub use measuring::MeasuringProgress;
pub use options::{plan_file, plan_options};
pub use setting::{Setting, check_drafts, settings};
pub use side_by_side::SideBySide;

use forerun::{AdditionalDrafter, DrafterKind, ForerunError, Lookup, Method, PlanError, Tree};
use forerun_sim::SimError;
use setting::SIMULATED;

/// An error of a measurement for a plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanningError {
    /// The options fit no configuration.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The drafter cannot be simulated.
    #[error(
        "the drafter {0} cannot be planned: its drafts depend on more than the text and the target's hidden states \
         (simulated are {SIMULATED})"
    )]
    Drafter(DrafterKind),
    /// The method cannot be simulated with the drafter.
    #[error(
        "the method {method} cannot be planned with the drafter {drafter}, which is simulated under \
         speculative decoding: set `method = speculative`, or leave it out"
    )]
    Method {
        /// The method.
        method: Method,
        /// The drafter.
        drafter: DrafterKind,
    },
    /// The shape of drafts cannot be simulated.
    #[error("`tree = {tree}` cannot be planned{with}: simulated are ranked:N and auto")]
    Tree {
        /// The tree.
        tree: Tree,
        /// The drafter or the method with which it cannot be planned; empty if with none.
        with: String,
    },
    /// The length of drafts cannot be simulated.
    #[error("`draft_tokens = assisted` cannot be planned: simulated are auto and 1 to 16")]
    Assisted,
    /// Lookups in addition to a drafter cannot be simulated.
    #[error("`lookup = {0}` cannot be planned: leave it out")]
    Lookup(Lookup),
    /// Several drafters cannot be simulated.
    #[error(
        "`additional_drafters = {0}` cannot be planned: a plan compares single drafters, so leave it out, and plan for each"
    )]
    SeveralDrafters(AdditionalDrafter),
    /// Both a length and a tree are given.
    #[error("the depth of a tree cannot be planned: leave `draft_tokens` or `tree` out")]
    Depth,
    /// The target cannot be opened, or cannot answer.
    #[error(transparent)]
    Target(Box<ForerunError>),
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
    /// The measurements were cancelled too early.
    #[error("interrupted before plain decoding and a method were measured")]
    Stopped,
    /// A simulation failed.
    #[error(transparent)]
    Simulation(#[from] SimError),
}
