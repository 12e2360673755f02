//! `forerun export`: a model in another format.

use crate::arguments::values::only_gguf_type;
use crate::{note, progress};
use clap::Args;
use forerun::{GgufType, export_gguf};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Options of `forerun export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArguments {
    /// The model: a Hugging Face directory of a Llama or Mistral, or a hub id
    #[arg(long, value_name = "MODEL")]
    model: PathBuf,

    /// Take hub models from the cache only
    #[arg(long)]
    offline: bool,

    /// The GGUF file to write, for llama.cpp and its kin; the tokenizer is within
    #[arg(long, value_name = "FILE")]
    gguf: PathBuf,

    /// The type of its matrices: f32, bf16, q8_0 (the numbers of --dtype int8)
    #[arg(long = "type", value_name = "TYPE", default_value = "bf16", value_parser = only_gguf_type)]
    gguf_type: GgufType,
}

/// Writes the file.
pub(crate) fn run(arguments: &ExportArguments) -> anyhow::Result<ExitCode> {
    let ExportArguments { model, offline, gguf, gguf_type } = arguments;
    write(model, gguf, *gguf_type, *offline)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a model as a GGUF file, and says what whoever uses it should know.
pub(crate) fn write(
    model: &Path,
    file: &Path,
    gguf_type: GgufType,
    offline: bool,
) -> anyhow::Result<()> {
    let mut loader = progress::loader(offline, true);
    let written = export_gguf(model, file, gguf_type, &mut loader)?;
    let size = written.bytes as f64 / 1e6;
    note(format_args!("written: {} ({gguf_type}, {size:.1} MB)", file.display()));
    if written.splits_otherwise {
        note(format_args!(
            "llama.cpp has no rule that splits text into words as this tokenizer does, and will split as \
             GPT-2: texts with digits or line breaks, for one, may have other tokens there; the model \
             is the same"
        ));
    }
    Ok(())
}
