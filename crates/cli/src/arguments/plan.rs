//! Options of `forerun plan`.

use super::headings::{MEASUREMENT, OUTPUT, PROMPTS};
use super::{BY_POSITION, EngineArguments, MODEL, values};
use clap::Args;
use std::path::PathBuf;

/// The options that have no effect if nothing is measured.
const OF_MEASUREMENTS: [&str; 25] = [
    "check",
    "check_rounds",
    "save_profile",
    "seconds",
    "max_tokens",
    "prompts",
    MODEL,
    BY_POSITION,
    "draft_model",
    "dtype",
    "kv_type",
    "cache_bytes",
    "context_length",
    "offline",
    "lookup",
    "also_draft",
    "pearl",
    "lp",
    "layer_groups",
    "calibration",
    "threads",
    "gpu_layers",
    "cpu_moe",
    "n_cpu_moe",
    "pin",
];

/// Options of `forerun plan`.
#[derive(Args, Debug)]
pub(crate) struct PlanArguments {
    /// Plan for the hardware of this profile, which `--save-profile` or a person wrote; nothing is
    /// measured.
    ///
    /// `--method`, `--drafter`, `--placement`, `--draft-tokens` and `--tree` limit the plan.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = OF_MEASUREMENTS,
        help_heading = MEASUREMENT
    )]
    pub(crate) hardware: Option<PathBuf>,

    /// Time for everything, in seconds: what does not fit is left out; 0 measures every method
    /// once, however long it takes.
    ///
    /// Plain decoding and one method are measured in any case. With `--check`, all is measured, and
    /// the time only says how long answers are.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = clap::value_parser!(u64).range(0..=86_400),
        help_heading = MEASUREMENT
    )]
    pub(crate) seconds: u64,

    /// Run all predicted configurations, and compare predicted with measured speed.
    #[arg(long, help_heading = MEASUREMENT)]
    pub(crate) check: bool,

    /// Number of times that each configuration answers each prompt for `--check`.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 3,
        value_parser = values::count(1..=1000),
        help_heading = MEASUREMENT
    )]
    pub(crate) check_rounds: usize,

    /// Maximum number of tokens of an answer.
    #[arg(
        short = 'n',
        long,
        value_name = "N",
        default_value_t = 64,
        value_parser = values::count(8..=100_000),
        help_heading = MEASUREMENT
    )]
    pub(crate) max_tokens: usize,

    /// File with prompts: text with blank lines between prompts, or `.jsonl` with a field `prompt`
    /// or `text` [default: beginnings of stories]
    #[arg(long, value_name = "FILE", help_heading = PROMPTS)]
    pub(crate) prompts: Option<PathBuf>,

    /// File for the best configuration, as options for `--config`.
    #[arg(long, value_name = "FILE", default_value = "forerun-plan.toml", help_heading = OUTPUT)]
    pub(crate) out: PathBuf,

    /// File for the measurements, for `--hardware`.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(crate) save_profile: Option<PathBuf>,

    /// Number of configurations to list.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 12,
        value_parser = values::count(1..=100_000),
        help_heading = OUTPUT
    )]
    pub(crate) top: usize,

    /// Print the whole ranking as JSON.
    #[arg(long, help_heading = OUTPUT)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) engine: EngineArguments,
}
