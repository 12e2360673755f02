//! `forerun export`: converts a model to another format.

use crate::arguments::ExportArguments;
use crate::generate::cannot_write;
use crate::{note, progress};
use anyhow::Context;
use forerun::{GgufType, ModelSource, export_gguf};
use std::path::Path;
use std::process::ExitCode;

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
