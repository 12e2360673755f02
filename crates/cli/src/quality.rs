//! `forerun bench quality`.

use crate::arguments::QualityBenchArguments;
use crate::{bench, progress};
use anyhow::Context;
use forerun::{QualityBench, QualityOptions};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Prints loss and divergence of a model on a text, by weight type.
pub(crate) fn run(arguments: QualityBenchArguments) -> anyhow::Result<ExitCode> {
    let QualityBenchArguments { model, text, tokens, window, dtypes, draft_model, threads } =
        arguments;
    let cores = bench::cores(threads)?;
    let content = std::fs::read_to_string(&text)
        .with_context(|| format!("cannot read the text {}", text.display()))?;
    let located = progress::loader(false, true).locate(&model)?;
    let locate = |model: &PathBuf| progress::loader(false, true).locate(model);
    let options = QualityOptions {
        model: located,
        weight_types: dtypes,
        draft_models: draft_model.iter().map(locate).collect::<Result<_, _>>()?,
        max_tokens: tokens,
        window,
    };
    let bench = QualityBench::open(&options, &content)?;
    // Pinned only now: loading uses all cores.
    let team = Arc::new(forerun::Team::pinned(&cores)?);
    let report = bench.run(&team, show_progress())?;

    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}, {} tokens of {} in windows of {}, {} on {} threads",
        model.display(),
        report.tokens,
        text.display(),
        report.window,
        team.isa(),
        team.members(),
    )?;
    writeln!(out, "means over tokens; loss and KL(f32 ‖ row's) in nats; overlap is 1 − TV")?;
    writeln!(
        out,
        "{:<5} {:>9} {:>10} {:>12} {:>12} {:>9} {:>9}",
        "type", "loss", "to f32", "perplexity", "KL", "top-1", "overlap"
    )?;
    let exact = report.types[0].1;
    let types = report.types.iter().map(|(weight_type, own)| (weight_type.to_string(), own));
    let drafters =
        draft_model.iter().zip(&report.drafters).map(|(path, (_, own))| (name_of(path), own));
    for (name, quality) in types.chain(drafters) {
        writeln!(
            out,
            "{name:<5} {:>9.5} {:>+8.4} % {:>12.4} {:>12.3e} {:>7.2} % {:>7.2} %",
            quality.loss,
            (quality.loss / exact.loss - 1.0) * 100.0,
            quality.perplexity(),
            quality.kl_divergence,
            quality.top1_agreement * 100.0,
            quality.overlap * 100.0,
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The last part of a path.
fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

/// A line on standard error that follows the progress, where that is a terminal.
fn show_progress() -> impl FnMut(usize, usize) {
    let shown = std::io::stderr().is_terminal();
    move |done, all| {
        if shown {
            // The line is cleared at the end. A closed standard error is no reason to fail.
            let line = format!("{done} of {all} tokens");
            let line = if done < all { line } else { String::new() };
            drop(write!(std::io::stderr(), "\r\x1b[K{line}"));
        }
    }
}
