//! `forerun export`: converts a model to another format.

use crate::arguments::values;
use crate::generate::cannot_write;
use crate::{note, progress};
use anyhow::Context;
use clap::Args;
use forerun::{GgufType, ModelSource, export_gguf};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `forerun export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArguments {
    /// Model to convert: a Hugging Face directory of a Llama or Mistral model, or a hub id.
    #[arg(long, value_name = "MODEL")]
    model: ModelSource,

    /// GGUF file to write, for llama.cpp and engines based on it; it contains the tokenizer.
    #[arg(long, value_name = "FILE")]
    gguf: PathBuf,

    /// Type of the matrices.
    #[arg(
        long = "type",
        value_name = "TYPE",
        default_value = "bf16",
        value_parser = values::gguf_type()
    )]
    gguf_type: GgufType,

    /// Use only hub models that are already in the cache.
    #[arg(long)]
    offline: bool,
}

/// Writes the GGUF file.
pub(crate) fn run(arguments: &ExportArguments) -> anyhow::Result<ExitCode> {
    let ExportArguments { model, offline, gguf, gguf_type } = arguments;
    write(model, gguf, *gguf_type, *offline)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a model as a GGUF file, and notes the file's size and a tokenizer that llama.cpp does not
/// support.
pub(crate) fn write(
    model: &ModelSource,
    file: &Path,
    gguf_type: GgufType,
    offline: bool,
) -> anyhow::Result<()> {
    forerun_output::check(file).with_context(|| cannot_write(file))?;
    let mut loader = progress::loader(offline, true);
    let written = export_gguf(model, file, gguf_type, &mut loader)?;
    let size = written.bytes as f64 / 1e6;
    note(format_args!("wrote {} ({gguf_type}, {size:.1} MB)", file.display()));
    if written.pre_tokenizer_unsupported {
        note(
            "warning: llama.cpp does not support this tokenizer's pre-tokenizer and will split text \
             as GPT-2 does. Some texts, for example with digits or line breaks, may be tokenised \
             differently there. The weights are not affected.",
        );
    }
    Ok(())
}
