//! Options of `forerun models`.

use super::types::WeightTypeArguments;
use super::values;
use clap::{Args, Subcommand};
use forerun::ModelSource;

/// What to do with models.
#[derive(Debug, Subcommand)]
pub(crate) enum Models {
    /// List the models in the cache, with their sizes.
    ///
    /// The last column says when a model was last read, as far as the file system records it.
    #[command(visible_alias = "ls")]
    List(ListModelsArguments),
    /// Show what a model is, whether it runs here, and published draft models for it.
    ///
    /// A hub model must be in the cache: `forerun models pull` downloads it.
    Show(ShowModelArguments),
    /// Download models to the cache. An interrupted download is resumed.
    ///
    /// Prints the folder or the GGUF file of each model.
    Pull(PullModelsArguments),
    /// Remove models from the cache.
    ///
    /// `owner/name` removes all revisions, `owner/name:Q4_K_M` one GGUF model of the repository.
    Rm(RemoveModelsArguments),
}

/// Options of `forerun models list`.
#[derive(Args, Debug)]
pub(crate) struct ListModelsArguments {
    /// Print a JSON object, with all revisions and files.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `forerun models show`.
#[derive(Args, Debug)]
pub(crate) struct ShowModelArguments {
    /// Model: a hub id, a GGUF file, a Hugging Face directory, or `demo`
    #[arg(value_name = "MODEL", value_parser = values::named_model)]
    pub(crate) name: ModelSource,

    #[command(flatten)]
    pub(crate) weights: WeightTypeArguments,

    /// Print the chat template as well.
    #[arg(long)]
    pub(crate) template: bool,

    /// Print a JSON object.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `forerun models pull`.
#[derive(Args, Debug)]
pub(crate) struct PullModelsArguments {
    /// Hub ids: `owner/name`, `owner/name@revision`, or `owner/name:Q4_K_M` for a GGUF file
    #[arg(value_name = "MODEL", required = true, value_parser = values::named_model)]
    pub(crate) names: Vec<ModelSource>,
}

/// Options of `forerun models rm`.
#[derive(Args, Debug)]
pub(crate) struct RemoveModelsArguments {
    /// Models in the cache: `owner/name`, or `owner/name:Q4_K_M` for one GGUF model
    #[arg(value_name = "MODEL", required = true)]
    pub(crate) names: Vec<String>,

    /// Do not ask.
    #[arg(long, short)]
    pub(crate) yes: bool,
}
