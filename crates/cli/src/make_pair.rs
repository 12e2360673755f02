//! `forerun make-pair`: creates a pair of random models with a given acceptance rate.

use crate::arguments::MakePairArguments;
use crate::generate::DEMONSTRATION_TARGET;
use crate::{export, note, progress};
use forerun::ModelSource;
use forerun::checkpoint::Config;
use forerun_bench::suite;
use forerun_laboratory::{
    AcceptanceCalibration, CalibrationStep, GrownPairOptions, ResidualCalibration,
    SyntheticPairOptions, grow_pair, make_pair,
};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The usual number of steps of the search for an acceptance rate.
const USUAL_STEPS: u32 = 8;

/// Creates a pair and reports its measurements.
pub(crate) fn run(arguments: &MakePairArguments) -> anyhow::Result<ExitCode> {
    let MakePairArguments { out, force, .. } = arguments;
    for part in ["target", "drafter"] {
        let part = out.join(part);
        anyhow::ensure!(
            *force || !part.exists(),
            "{} already exists: choose another --out, or overwrite it with --force",
            part.display()
        );
        ensure_is_model(&part)?;
    }
    if let Some(model) = &arguments.from {
        return grow(arguments, model);
    }
    check_heads(arguments)?;
    let options = options(arguments);
    let pair = make_pair(&options, out, step_notes())?;
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(
        measurements(arguments, pair.bytes_read, pair.epsilon, &pair.acceptance).as_bytes(),
    )?;
    if let Some(ResidualCalibration { scale, overlap }) = pair.residual {
        writeln!(
            stdout,
            "the drafter's rows computed four layers at a time: overlap {overlap:.3} with exact rows, \
             on texts not used by the search (scale of the drafter's layers {scale})"
        )?;
    }
    finish(arguments, &pair.target, &pair.drafter)
}

/// Grows a pair from a real model and reports its measurements.
fn grow(arguments: &MakePairArguments, model: &ModelSource) -> anyhow::Result<ExitCode> {
    let prompts = suite::read(&arguments.suite, arguments.data.as_deref())?;
    let mut prompts: Vec<String> =
        prompts.into_iter().filter_map(|prompt| prompt.turns.into_iter().next()).collect();
    // Neighbours in a suite have the same category.
    prompts.sort_by_cached_key(|prompt| {
        let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        prompt.bytes().fold(0x811c_9dc5_u32, step)
    });
    let options = GrownPairOptions {
        model: model.clone(),
        offline: arguments.offline,
        layers: arguments.layers,
        acceptance: arguments.acceptance,
        tolerance: arguments.tolerance.unwrap_or(0.05),
        temperature: arguments.temperature,
        dtype: arguments.dtype,
        seed: arguments.seed,
        prompts,
        first_prompts: arguments.prompts,
        max_tokens: arguments.max_tokens,
    };
    let pair = grow_pair(&options, &arguments.out, step_notes())?;
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(
        measurements(arguments, pair.bytes_read, pair.epsilon, &pair.acceptance).as_bytes(),
    )?;
    if let Some(overlap) = pair.layer_parallel_overlap {
        writeln!(
            stdout,
            "the drafter's rows computed four layers at a time: overlap {overlap:.3} with exact rows"
        )?;
    }
    finish(arguments, &pair.target, &pair.drafter)
}

/// Returns a function that notes every step of a search, and after the first one how long it will
/// take.
fn step_notes() -> impl FnMut(&CalibrationStep) {
    let started = Instant::now();
    let mut steps = 0;
    move |step| {
        note(step_line(step));
        steps += 1;
        // The first step also makes the models.
        if steps == 1 && started.elapsed() * USUAL_STEPS > Duration::from_secs(60) {
            let time = progress::about(started.elapsed() * USUAL_STEPS);
            note(format_args!("a search usually takes {USUAL_STEPS} steps: {time} in total"));
        }
    }
}

/// Describes what a pair reads and accepts.
fn measurements(
    arguments: &MakePairArguments,
    bytes_read: [usize; 2],
    epsilon: f32,
    accepted: &AcceptanceCalibration,
) -> String {
    let [target, drafter] = bytes_read.map(|bytes| bytes as f64 / 1e6);
    format!(
        "{}: a forward pass reads {target:.0} MB in the target and {drafter:.1} MB in the drafter \
         (ratio {:.1})\n\
         acceptance {:.3} at temperature {} (scale {epsilon}), on {} positions not used by the search; \
         {:.3} on all {} positions; {:.0} % of the 4-grams are distinct\n",
        arguments.out.display(),
        target / drafter,
        accepted.rate,
        arguments.temperature,
        accepted.positions,
        accepted.rate_of_all,
        accepted.all_positions,
        accepted.distinct_4_grams * 100.0,
    )
}

/// Writes GGUF files of a pair's models, if requested, and says how to use the pair.
fn finish(
    arguments: &MakePairArguments,
    target: &Path,
    drafter: &Path,
) -> anyhow::Result<ExitCode> {
    for types in &arguments.gguf {
        for (name, model) in [("target", target), ("drafter", drafter)] {
            let file = arguments.out.join(format!("{name}-{}.gguf", types.gguf_name()));
            export::write(&model.into(), &file, (*types).into(), true)?;
        }
    }
    let (target, drafter) = (target.display(), drafter.display());
    note(format_args!(
        "try it: forerun generate --model {target} --draft-model {drafter} --prompt Once"
    ));
    Ok(ExitCode::SUCCESS)
}

/// Checks that the heads have the same, even number of values, and that they share keys and values
/// evenly.
fn check_heads(arguments: &MakePairArguments) -> anyhow::Result<()> {
    let MakePairArguments { hidden, heads, kv_heads, .. } = *arguments;
    anyhow::ensure!(
        hidden % (2 * heads) == 0,
        "--hidden is {hidden}, but it must be a multiple of 2 × --heads, {}",
        2 * heads
    );
    anyhow::ensure!(
        heads % kv_heads == 0,
        "--heads is {heads}, but it must be a multiple of --kv-heads, {kv_heads}"
    );
    Ok(())
}

fn options(arguments: &MakePairArguments) -> SyntheticPairOptions {
    // The tokenizer of the demonstration pair, if it fits the vocabulary size.
    let tokenizer = (arguments.vocab_size == 4096).then_some(DEMONSTRATION_TARGET);
    // The demonstration pair has one token for the beginning and the end; a synthetic tokenizer has
    // two.
    let (bos, eos) = if tokenizer.is_some() { (0, 0) } else { (256, 257) };
    let target = Config {
        hidden_size: arguments.hidden,
        intermediate_size: arguments.intermediate,
        num_hidden_layers: arguments.layers,
        num_attention_heads: arguments.heads,
        num_key_value_heads: arguments.kv_heads,
        head_dim: arguments.hidden / arguments.heads,
        vocab_size: arguments.vocab_size,
        max_position_embeddings: arguments.context,
        bos_token_id: Some(bos),
        eos_token_ids: vec![eos],
        ..Config::plain_llama()
    };
    SyntheticPairOptions {
        target,
        draft_layers: arguments.draft_layers,
        acceptance: arguments.acceptance,
        layer_parallel_overlap: arguments.fuzzy_overlap,
        tolerance: arguments.tolerance.unwrap_or(0.02),
        temperature: arguments.temperature,
        dtype: arguments.dtype,
        seed: arguments.seed,
        prompts: arguments.prompts,
        max_tokens: arguments.max_tokens,
        tokenizer,
    }
}

/// Returns a line of progress: a scale that the search tried.
fn step_line(step: &CalibrationStep) -> String {
    let which = |others: bool| if others { "other " } else { "" };
    match step {
        CalibrationStep::Residual { scale, overlap, other_texts } => {
            let which = which(*other_texts);
            format!(
                "scale of the drafter's layers {scale:.4}: overlap {overlap:.3} on {which}texts"
            )
        }
        CalibrationStep::Epsilon { epsilon, acceptance, prompts, other_prompts } => format!(
            "scale {epsilon:.4}: acceptance {:.3} on {} positions of {prompts} {}prompts",
            acceptance.rate,
            acceptance.positions,
            which(*other_prompts),
        ),
    }
}

/// Refuses to replace a folder with anything but the files of a model.
fn ensure_is_model(folder: &Path) -> anyhow::Result<()> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(()) };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_known = [".json", ".safetensors", ".gguf", ".md", ".jinja"]
            .iter()
            .any(|extension| name.ends_with(extension));
        anyhow::ensure!(
            is_known && entry.path().is_file(),
            "{} is not a file of a model: --force replaces only models, so move it or choose another --out",
            entry.path().display()
        );
    }
    Ok(())
}
