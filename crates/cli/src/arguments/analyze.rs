//! `forerun analyze`.

use super::values::{ChosenType, layer_groups, weight_type};
use clap::{Args, Subcommand};
use forerun::LayerStrategy;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum Analyze {
    /// Which of a drafter's layers can be computed together (--drafter easyspec): how near each
    /// strategy's states and distributions are to the exact ones, and what a pass takes; with
    /// --search, propose a strategy
    Layers(Box<LayersArguments>),
}

/// Options of `forerun analyze layers`.
#[derive(Args, Debug)]
pub(crate) struct LayersArguments {
    /// The drafter: a Hugging Face directory, a llama2.c file, or a hub id
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: PathBuf,

    /// A target of the same tokens: tell what it would accept, too
    #[arg(long, value_name = "MODEL")]
    pub(crate) target: Option<PathBuf>,

    /// Texts: default, the name of a suite, or a file, as for forerun bench run --suite
    #[arg(long, value_name = "FILE", default_value = "default")]
    pub(crate) prompts: String,

    /// The folder of the suites' files
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,

    /// Take N prompts of each category, evenly chosen
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,

    /// Tokens of each prompt at the most
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub(crate) tokens: usize,

    /// Fuzzy rows behind every exact one: the depth of drafts without their first token
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) depth: usize,

    /// Layer-parallel sizes to compare, in the paper's default groups
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1,2,3,4,5")]
    pub(crate) lp: Vec<usize>,

    /// Compare these groups, too; may be given several times
    #[arg(long, value_name = "GROUPS|@FILE", value_parser = layer_groups)]
    pub(crate) layer_groups: Vec<LayerStrategy>,

    /// Compare each of them once more with the MLPs in parallel, too, which no drafter does
    #[arg(long)]
    pub(crate) whole_layers: bool,

    /// Tell the similarities of every layer, too
    #[arg(long)]
    pub(crate) per_layer: bool,

    /// Search for groups and write them to FILE, for --layer-groups @FILE
    #[arg(long, value_name = "FILE")]
    pub(crate) search: Option<PathBuf>,

    /// With --search, the overlap with exact rows that is to be kept
    #[arg(long, value_name = "SHARE", default_value_t = 0.93)]
    pub(crate) least_overlap: f64,

    /// With --search, layers of a group at the most
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) largest: usize,

    /// Keep weights as f32, bf16, f16 or int8; auto is the checkpoint's own type
    #[arg(long, value_name = "TYPE", default_value = "auto", value_parser = weight_type)]
    pub(crate) dtype: ChosenType,

    /// Cores of the team [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,

    /// Rows of the passes whose time is told
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) rows: usize,

    /// Measurements of each pass, on all threads and on one, by layers and by products; 0 measures none
    #[arg(long, value_name = "N", default_value_t = 51)]
    pub(crate) rounds: usize,
}
