//! Options of `forerun make-pair`.

use super::headings::MODEL;
use super::values;
use clap::Args;
use forerun::checkpoint::Dtype;
use forerun::{ModelSource, WeightTypes};
use std::path::PathBuf;

/// Options of `forerun make-pair`.
#[derive(Args, Debug)]
pub(crate) struct MakePairArguments {
    /// Directory for the pair: `DIR/target` and `DIR/drafter`, in Hugging Face's layout.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,

    /// Overwrite an existing pair.
    #[arg(long)]
    pub(crate) force: bool,

    /// Llama model to draft for a target that is the same model with random layers added.
    ///
    /// A directory, a GGUF file or a hub id. The acceptance is measured on the prompts of
    /// `--suite`.
    #[arg(
        long,
        value_name = "MODEL",
        conflicts_with_all = [
            "fuzzy_overlap", "draft_layers", "hidden", "intermediate", "heads", "kv_heads", "vocab_size", "context"
        ]
    )]
    pub(crate) from: Option<ModelSource>,

    /// With `--from`, the prompts, as for `forerun bench run`.
    #[arg(
        long,
        value_name = "SUITES",
        value_delimiter = ',',
        default_value = "default",
        requires = "from"
    )]
    pub(crate) suite: Vec<String>,

    /// With `--from`, the directory with the files of the suites.
    #[arg(long, value_name = "DIR", requires = "from")]
    pub(crate) data: Option<PathBuf>,

    /// With `--from`, use only hub models that are in the cache.
    #[arg(long, requires = "from")]
    pub(crate) offline: bool,

    /// Acceptance rate of the pair: accepted out of tested draft tokens.
    #[arg(long, value_name = "RATE", default_value_t = 0.8)]
    pub(crate) acceptance: f64,

    /// Largest difference between the requested and the measured acceptance (and overlap)
    /// [default: 0.02; 0.05 with `--from`].
    #[arg(long, value_name = "T")]
    pub(crate) tolerance: Option<f64>,

    /// Temperature at which the acceptance is measured; 0 is greedy.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(crate) temperature: f32,

    /// Seed of the random weights.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Make a deep drafter for EasySpec: rows computed four layers at a time have this overlap (1 −
    /// TV) with exact rows, as in trained models.
    #[arg(long, value_name = "OVERLAP")]
    pub(crate) fuzzy_overlap: Option<f64>,

    /// Number of prompts to continue for each measurement of the acceptance.
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = values::count(1..=100_000))]
    pub(crate) prompts: usize,

    /// Number of tokens of each continuation.
    #[arg(long, short = 'n', value_name = "N", default_value_t = 96, value_parser = values::count(1..=1_000_000))]
    pub(crate) max_tokens: usize,

    /// Number of layers of the target, including those of `--from`.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = values::count(1..=4_096), help_heading = MODEL)]
    pub(crate) layers: usize,

    /// Number of layers of the drafter; they are the target's first layers.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = MODEL)]
    pub(crate) draft_layers: usize,

    /// Width of the hidden states of both models.
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = values::count(1..=1_048_576), help_heading = MODEL)]
    pub(crate) hidden: usize,

    /// Width of the MLPs.
    #[arg(long, value_name = "N", default_value_t = 2816, value_parser = values::count(1..=16_777_216), help_heading = MODEL)]
    pub(crate) intermediate: usize,

    /// Number of query heads.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = values::count(1..=65_536), help_heading = MODEL)]
    pub(crate) heads: usize,

    /// Number of key and value heads.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = values::count(1..=65_536), help_heading = MODEL)]
    pub(crate) kv_heads: usize,

    /// Vocabulary size, at least 258; with 4096, the tokenizer is that of the demonstration pair.
    #[arg(long, value_name = "N", default_value_t = 4096, help_heading = MODEL)]
    pub(crate) vocab_size: usize,

    /// Context length.
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = values::count(1..=268_435_456), help_heading = MODEL)]
    pub(crate) context: usize,

    /// Type in which the weights are stored.
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "bf16",
        value_parser = values::laboratory::stored_type(),
        help_heading = MODEL
    )]
    pub(crate) dtype: Dtype,

    /// Also write GGUF files of these types: `DIR/target-TYPE.gguf` and `DIR/drafter-TYPE.gguf`.
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        value_parser = values::gguf_types(),
        help_heading = MODEL
    )]
    pub(crate) gguf: Vec<WeightTypes>,
}
