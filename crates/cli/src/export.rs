//! `forerun export`: converts a model to another format.

use crate::arguments::ExportArguments;
use crate::generate::cannot_write;
use crate::{note, progress, text_file};
use anyhow::{Context, ensure};
use forerun::ModelSource;
use forerun::checkpoint::{GgufOptions, export_gguf};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Writes the GGUF file.
pub(crate) fn run(arguments: &ExportArguments) -> anyhow::Result<ExitCode> {
    let ExportArguments { model, offline, gguf, types, importance } = arguments;
    let read = |file: &PathBuf| {
        let text = text_file::read(file);
        text.with_context(|| format!("cannot read the text {}", file.display()))
    };
    let text = importance.as_ref().map(read).transpose()?;
    let options = GgufOptions { types: *types, importance: text.as_deref() };
    write(model.require()?, gguf, options, *offline)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a model as a GGUF file, and notes the file's size and a tokenizer that llama.cpp does not
/// support.
pub(crate) fn write(
    model: &ModelSource,
    file: &Path,
    options: GgufOptions<'_>,
    offline: bool,
) -> anyhow::Result<()> {
    forerun_output::check(file).with_context(|| cannot_write(file))?;
    ensure_not_part_of(file, [model])?;
    let mut loader = progress::loader(offline, true);
    let written = export_gguf(model, file, options, &mut loader)?;
    let (types, size) = (options.types.gguf_name(), written.bytes as f64 / 1e6);
    note(format_args!("wrote {} ({types}, {size:.1} MB)", file.display()));
    if written.pre_tokenizer_unsupported {
        note(
            "warning: llama.cpp does not support this tokenizer's pre-tokenizer and will split text \
             as GPT-2 does. Some texts, for example with digits or line breaks, may be tokenised \
             differently there. The weights are not affected.",
        );
    }
    Ok(())
}

/// Refuses an output that would replace a file of a model.
pub(crate) fn ensure_not_part_of<'a>(
    file: &Path,
    models: impl IntoIterator<Item = &'a ModelSource>,
) -> anyhow::Result<()> {
    ensure!(
        !models.into_iter().any(|model| is_part_of(file, model)),
        "{} is a file of the model itself: choose another name",
        file.display()
    );
    Ok(())
}

/// Returns whether a file exists and the model is read from it. Other GGUF files in the model's
/// folder are not part of the model.
fn is_part_of(file: &Path, model: &ModelSource) -> bool {
    let paths =
        model.path().and_then(|model| model.canonicalize().ok()).zip(file.canonicalize().ok());
    paths.is_some_and(|(model, file)| {
        let is_gguf = file.extension().is_some_and(|extension| extension == "gguf");
        file == model || (file.parent() == Some(&model) && !is_gguf)
    })
}
