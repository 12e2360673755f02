//! Options of `forerun export`.

use super::{ModelArguments, values};
use clap::Args;
use forerun::WeightTypes;
use std::path::PathBuf;

/// Options of `forerun export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,

    /// GGUF file to write, for llama.cpp and engines based on it; it contains the tokenizer.
    #[arg(long, value_name = "FILE")]
    pub(crate) gguf: PathBuf,

    /// Type of the matrices, or a mix of types.
    #[arg(
        long = "type",
        value_name = "TYPE",
        default_value = "bf16",
        value_parser = values::gguf_types()
    )]
    pub(crate) types: WeightTypes,

    /// UTF-8 text like the model's future texts, to keep its quality with block types (an
    /// importance matrix).
    #[arg(long, value_name = "FILE")]
    pub(crate) importance: Option<PathBuf>,

    /// Use only hub models that are already in the cache, as with `HF_HUB_OFFLINE=1`.
    #[arg(long)]
    pub(crate) offline: bool,
}
