//! Options of `forerun analyze`.

use super::headings::{MEASUREMENT, MODEL, PROMPTS};
use super::types::WeightTypeArguments;
use super::values::layer_groups;
use super::{ModelArguments, SuiteArguments, values};
use clap::{Args, Subcommand};
use forerun::{LayerStrategy, ModelSource, WeightTypes};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum Analyze {
    /// Find out which of a drafter's layers EasySpec can compute together.
    ///
    /// The model is the drafter. For each strategy, reports how close hidden states and
    /// distributions are to the exact ones, and how long a forward pass takes. With `--search`, also
    /// proposes a strategy for `--drafter easyspec`.
    ///
    /// Example: `forerun analyze layers --model DRAFTER --target TARGET --search groups.txt`
    Layers(Box<LayersArguments>),
    /// Estimate a drafter's acceptance rate from greedy answers, as DSI's authors do.
    ///
    /// Target and drafter have the same vocabulary, and continue the first turn of the same prompts
    /// as plain text, each alone. If they agree on the first `n` tokens on average, the acceptance
    /// rate is `1 - 1 / (1 + n)`. Answers on which they agree to the end make it a lower bound.
    ///
    /// Example: `forerun analyze acceptance --model TARGET --draft-model DRAFTER --limit 5`
    Acceptance(Box<AcceptanceArguments>),
}

/// A pair of models.
#[derive(Args, Debug)]
pub(crate) struct PairArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,

    /// Draft model.
    #[arg(long, value_name = "MODEL", help_heading = MODEL)]
    pub(crate) draft_model: ModelSource,

    /// Type of the weights in memory [default: each checkpoint's own]
    #[arg(long, value_name = "TYPE", value_parser = values::weight_types(), help_heading = MODEL)]
    pub(crate) dtype: Option<WeightTypes>,

    /// Use only hub models that are already in the cache, as with `HF_HUB_OFFLINE=1`.
    #[arg(long, help_heading = MODEL)]
    pub(crate) offline: bool,
}

/// Options of `forerun analyze acceptance`.
#[derive(Args, Debug)]
pub(crate) struct AcceptanceArguments {
    #[command(flatten)]
    pub(crate) pair: PairArguments,

    #[command(flatten)]
    pub(crate) suites: SuiteArguments,

    /// Use N prompts of each category, evenly chosen.
    #[arg(long, value_name = "N", value_parser = values::count(1..), help_heading = PROMPTS)]
    pub(crate) limit: Option<usize>,

    /// Number of tokens of each answer; the paper has 256.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 256, value_parser = values::count(1..))]
    pub(crate) max_tokens: usize,

    /// Number of threads, one for each core [default: see `forerun devices`]
    #[arg(long, short = 't', value_name = "N", help_heading = MEASUREMENT)]
    pub(crate) threads: Option<usize>,
}

/// Options of `forerun analyze layers`.
#[derive(Args, Debug)]
pub(crate) struct LayersArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,

    /// Target with the same vocabulary, to report the acceptance rate as well.
    #[arg(long, value_name = "MODEL", help_heading = MODEL)]
    pub(crate) target: Option<ModelSource>,

    #[command(flatten)]
    pub(crate) weights: WeightTypeArguments,

    /// Numbers of layers at a time to compare, in the paper's default groups.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1,2,3,4,5")]
    pub(crate) lp: Vec<usize>,

    /// Additional layer groups to compare, such as `0,1-3,4-7,8`, or `@FILE`.
    ///
    /// May be given several times.
    #[arg(long, value_name = "GROUPS|@FILE", value_parser = layer_groups)]
    pub(crate) layer_groups: Vec<LayerStrategy>,

    /// Also compare each strategy with parallel MLPs, which no drafter uses.
    #[arg(long)]
    pub(crate) whole_layers: bool,

    /// Search for layer groups and write them to a file, for `--layer-groups @FILE`.
    ///
    /// Groups have up to four layers.
    #[arg(long, value_name = "FILE")]
    pub(crate) search: Option<PathBuf>,

    /// With `--search`, the smallest overlap with exact rows to accept.
    #[arg(long, value_name = "SHARE", default_value_t = 0.93)]
    pub(crate) least_overlap: f64,

    /// Prompts: `default`, the name of a suite, or a file, as for `forerun bench run --suite`.
    #[arg(long, value_name = "SUITE", default_value = "default", help_heading = PROMPTS)]
    pub(crate) prompts: String,

    /// Directory with the files of the suites.
    #[arg(long, value_name = "DIR", help_heading = PROMPTS)]
    pub(crate) data: Option<PathBuf>,

    /// Use N prompts of each category, evenly chosen.
    #[arg(long, value_name = "N", value_parser = values::count(1..), help_heading = PROMPTS)]
    pub(crate) limit: Option<usize>,

    /// Maximum number of tokens of each prompt.
    #[arg(long, value_name = "N", default_value_t = 128, help_heading = PROMPTS)]
    pub(crate) tokens: usize,

    /// Number of threads, one for each core [default: see `forerun devices`]
    #[arg(long, short = 't', value_name = "N", help_heading = MEASUREMENT)]
    pub(crate) threads: Option<usize>,

    /// Number of rows of the timed forward passes.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::count(1..=4096), help_heading = MEASUREMENT)]
    pub(crate) rows: usize,

    /// Number of times each forward pass is measured; 0 measures none.
    #[arg(long, value_name = "N", default_value_t = 51, value_parser = values::count(0..=1_000_000), help_heading = MEASUREMENT)]
    pub(crate) rounds: usize,
}
