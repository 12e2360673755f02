//! Options of `forerun export`.

use super::values;
use clap::Args;
use forerun::{GgufType, ModelSource};
use std::path::PathBuf;

/// Options of `forerun export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArguments {
    /// Model to convert: a Hugging Face directory, or a hub id.
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: ModelSource,

    /// GGUF file to write, for llama.cpp and engines based on it; it contains the tokenizer.
    #[arg(long, value_name = "FILE")]
    pub(crate) gguf: PathBuf,

    /// Type of the matrices.
    #[arg(
        long = "type",
        value_name = "TYPE",
        default_value = "bf16",
        value_parser = values::gguf_type()
    )]
    pub(crate) gguf_type: GgufType,

    /// Use only hub models that are already in the cache.
    #[arg(long)]
    pub(crate) offline: bool,
}
