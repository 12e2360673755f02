//! `forerun bench quality`: measures what weight types cost in quality.

use crate::arguments::QualityBenchArguments;
use crate::{bench, progress, text_file};
use anyhow::{Context, bail};
use forerun::ModelSource;
use forerun_laboratory::{CeilingOptions, QualityBench, QualityOptions, TypeQuality};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

/// Number of continuations that `--ceiling` samples after a text.
const CONTINUATIONS: usize = 64;

/// Prints a model's loss on a text, and its divergence from f32, by weight type.
pub(crate) fn run(arguments: QualityBenchArguments) -> anyhow::Result<ExitCode> {
    let QualityBenchArguments {
        model,
        text,
        tokens,
        window,
        dtype,
        cache,
        draft_model,
        threads,
        ceiling,
        temperature,
    } = arguments;
    if temperature.is_nan() || temperature <= 0.0 {
        bail!("--temperature is {temperature}, but it must be above 0: at 0 nothing is sampled");
    }
    let model = model.require()?;
    let threads = bench::threads(threads)?;
    let content = text_file::read(&text)
        .with_context(|| format!("cannot read the text {}", text.display()))?;
    let locate =
        |model: &ModelSource| progress::loader(false, true).locate(model).map(ModelSource::Path);
    let options = QualityOptions {
        model: locate(model)?,
        weight_types: dtype.concat(),
        cache_type: cache.kv_type,
        draft_models: draft_model.iter().map(locate).collect::<Result<_, _>>()?,
        max_tokens: tokens,
        window,
    };
    let bench = QualityBench::open(&options, &content)?;
    let team = Arc::new(forerun::cpu::Team::unpinned(threads)?);
    let ceiling = ceiling.map(|places| {
        let options = CeilingOptions { places, continuations: CONTINUATIONS, temperature, seed: 0 };
        bench.ceiling(&team, options, progress::counted("sampling", "texts"))
    });
    let ceiling = ceiling.transpose()?;
    let report = bench.run(&team, progress::counted("measuring", "tokens"))?;

    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}, {} tokens of {} in windows of {}, {} on {} threads",
        model,
        report.tokens,
        text.display(),
        report.window,
        team.isa(),
        team.members(),
    )?;
    writeln!(
        out,
        "means over tokens; bits of a weight in a GGUF file; loss and KL(f32 ‖ row) in nats; overlap is 1 − TV"
    )?;
    if let Some(cache_type) = cache.kv_type {
        writeln!(out, "after the first row, keys and values in {cache_type}")?;
    }
    writeln!(
        out,
        "{:<7} {:>6} {:>9} {:>10} {:>12} {:>12} {:>9} {:>9}",
        "type", "bits", "loss", "to f32", "perplexity", "KL", "top-1", "overlap"
    )?;
    let exact = report.types[0].quality;
    let types = report.types.iter().map(|TypeQuality { types, bits_per_weight, quality }| {
        (types.to_string(), format!("{bits_per_weight:.2}"), quality)
    });
    let drafters = draft_model
        .iter()
        .zip(&report.drafters)
        .map(|(model, (_, quality))| (model.name(), String::new(), quality));
    for (name, bits, quality) in types.chain(drafters) {
        writeln!(
            out,
            "{name:<7} {bits:>6} {:>9.5} {:>+8.4} % {:>12.4} {:>12.3e} {:>7.2} % {:>7.2} %",
            quality.loss,
            (quality.loss / exact.loss - 1.0) * 100.0,
            quality.perplexity(),
            quality.kl_divergence,
            quality.top1_agreement * 100.0,
            quality.overlap * 100.0,
        )?;
    }
    if let Some(ceiling) = ceiling {
        writeln!(
            out,
            "highest acceptance without the tokens between ({CONTINUATIONS} continuations at temperature \
             {temperature}), with its standard error"
        )?;
        for (place, (overlap, error)) in ceiling.iter().enumerate() {
            writeln!(
                out,
                "token {:<2} {:>6.2} % ± {:.2}",
                place + 1,
                overlap * 100.0,
                error * 100.0
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
