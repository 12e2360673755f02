//! Options of `forerun embed`.

use super::types::WeightTypeArguments;
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

    #[command(flatten)]
    pub(crate) weights: WeightTypeArguments,

    /// Use only hub models that are already in the cache, as with `HF_HUB_OFFLINE=1`.
    #[arg(long, help_heading = headings::MODEL)]
    pub(crate) offline: bool,
}
