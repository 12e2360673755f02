//! Options of `forerun simulate`.

use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// What can be simulated.
#[derive(Debug, Subcommand)]
pub(crate) enum Simulate {
    /// One answer, with its timeline
    Run(SimulatedRunArguments),
}

/// Options of `forerun simulate run`.
#[derive(Args, Debug)]
pub(crate) struct SimulatedRunArguments {
    /// Milliseconds of a forward pass of the target
    #[arg(long, value_name = "MS", default_value_t = 30.0)]
    pub(crate) target_ms: f64,

    /// Milliseconds of the target's first pass, which holds the prompt [default: --target-ms]
    #[arg(long, value_name = "MS")]
    pub(crate) target_first_ms: Option<f64>,

    /// Milliseconds that each further row adds to a pass of the target
    #[arg(long, value_name = "MS", default_value_t = 0.0)]
    pub(crate) row_ms: f64,

    /// Milliseconds of a forward pass of the drafter
    #[arg(long, value_name = "MS", default_value_t = 3.0)]
    pub(crate) draft_ms: f64,

    /// Milliseconds of the drafter's first pass [default: --draft-ms]
    #[arg(long, value_name = "MS")]
    pub(crate) draft_first_ms: Option<f64>,

    /// Probability that a draft token is the target's
    #[arg(long, value_name = "P", default_value_t = 0.8)]
    pub(crate) acceptance: f64,

    /// Tokens drafted in a row; 0 drafts none
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) draft_tokens: usize,

    /// Tokens to generate
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) max_tokens: usize,

    /// Where drafts are right
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,

    /// What becomes of a job that is cancelled while it runs
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = CancelChoice::Layer)]
    pub(crate) cancel: CancelChoice,

    /// Layers of a pass
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub(crate) layers: usize,

    /// Write the timeline: for Perfetto, or as text if FILE ends in .txt
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
}

/// When a cancelled job ends.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CancelChoice {
    /// At once
    Immediate,
    /// With its layer
    Layer,
    /// When it is done
    RunToEnd,
}
