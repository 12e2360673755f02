//! Options of `forerun embed`.

use super::values::{self, ChosenTypes};
use super::{ModelArguments, headings};
use clap::Args;

/// Options of `forerun embed`.
#[derive(Args, Debug)]
pub(crate) struct EmbedArguments {
    // The model is the first word, so it stands before the texts.
    #[command(flatten)]
    pub(crate) model: ModelArguments,

    /// Texts to embed. Without one, each line of standard input is a text.
    #[arg(value_name = "TEXT")]
    pub(crate) texts: Vec<String>,

    /// Type of the weights in memory; mixes are llama.cpp's.
    #[arg(
        long,
        value_name = "TYPE",
        default_value = "auto",
        value_parser = values::weight_types_or_auto(),
        help_heading = headings::MODEL
    )]
    pub(crate) dtype: ChosenTypes,

    /// Use only hub models that are already in the cache, as with `HF_HUB_OFFLINE=1`.
    #[arg(long, help_heading = headings::MODEL)]
    pub(crate) offline: bool,
}
