//! `forerun simulate calibrate`: measures a pair of models for simulations.

use super::passes::{CHAIN, PairBench, ROWS};
use crate::arguments::CalibrateArguments;
use crate::generate::cannot_write;
use crate::progress::{Task, Unit};
use crate::{note, progress};
use anyhow::{Context, bail, ensure};
use forerun::checkpoint::Checkpoint;
use forerun::{DraftTokens, Engine, Method, Options, Plan, TokenId};
use forerun_bench::Provenance;
use forerun_output::OutputFile;
use forerun_sim::{Calibration, Parameters};
use std::io::Write;
use std::process::ExitCode;

pub(super) fn run(arguments: &CalibrateArguments) -> anyhow::Result<ExitCode> {
    let longest = arguments.check.iter().copied().max().unwrap_or(0);
    ensure!(
        longest < ROWS[ROWS.len() - 1],
        "--check is {longest}, but at most {} draft tokens can be compared",
        ROWS[ROWS.len() - 1] - 1
    );
    ensure!(
        arguments.rounds > 0 && arguments.prompts > 0 && arguments.prompt_tokens > 0,
        "--rounds, --prompts and --prompt-tokens must be at least 1"
    );
    ensure!(
        arguments.max_tokens > 2 * CHAIN,
        "--max-tokens is {}, but must be larger than {}",
        arguments.max_tokens,
        2 * CHAIN
    );
    let model = arguments.pair.model.require()?;
    let plan = Plan::new(Options {
        model: model.clone(),
        draft_model: Some(arguments.pair.draft_model.clone()),
        // Each model has its own cores, so that simulations of every method can use the
        // measurements.
        method: Some(Method::Pearl.into()),
        draft_tokens: DraftTokens::Fixed(longest.max(1)),
        weight_type: arguments.pair.dtype,
        placement: arguments.placement.clone(),
        ..Options::default()
    })?;
    let failed = || cannot_write(&arguments.out);
    let mut out = OutputFile::create(&arguments.out).with_context(failed)?;
    let mut loader = progress::loader(arguments.pair.offline, true);
    let engine = Engine::open_with(&plan, &mut loader)?;
    let drafter = Checkpoint::open(&loader.locate(&arguments.pair.draft_model)?)?;
    let layers = [engine.config(), drafter.config()].map(|config| config.num_hidden_layers);
    let prompts = prompts(arguments, &engine)?;
    let mut bench = PairBench::new(engine.cluster(), prompts, arguments.max_tokens);
    bench.write_texts()?;
    let mut task = Task::new("measuring", Unit::Pieces("rounds"), arguments.rounds as u64);
    for round in 0..arguments.rounds {
        bench.measure_passes(round, longest + 1)?;
        bench.measure_answers(&arguments.check)?;
        task.update(round as u64 + 1);
    }
    drop(task);
    let models = [model, &arguments.pair.draft_model];
    let calibration = bench.calibration(models, layers, plan.placement());
    let comment = comment(arguments);
    out.write_all(calibration.to_toml(&comment).as_bytes())
        .and_then(|()| out.finish())
        .with_context(failed)?;
    report(&bench, &calibration, &arguments.check)?;
    note(format_args!("wrote {}", arguments.out.display()));
    Ok(ExitCode::SUCCESS)
}

/// Describes the origin of the measurements.
fn comment(arguments: &CalibrateArguments) -> String {
    let from = Provenance::now(std::env::args());
    format!(
        "Measured by forerun {}, {} rounds, medians.\n{}\n{}, {} cores, {}, {}",
        from.version,
        arguments.rounds,
        from.command,
        from.processor,
        from.cores,
        from.instruction_set,
        from.started
    )
}

/// Cuts prompts to the same number of tokens, so that all cost the same; shorter ones are skipped.
fn prompts(arguments: &CalibrateArguments, engine: &Engine) -> anyhow::Result<Vec<Vec<TokenId>>> {
    let context = engine.config().max_position_embeddings;
    ensure!(
        arguments.prompt_tokens + arguments.max_tokens + ROWS[ROWS.len() - 1] <= context,
        "the prompt, the answer and the drafts do not fit the model's context of {context}: lower \
         --prompt-tokens or --max-tokens"
    );
    let mut prompts = Vec::new();
    for prompt in arguments.suites.read()? {
        let mut tokens = engine.tokenizer().encode(&prompt.turns.join("\n"))?;
        if tokens.len() >= arguments.prompt_tokens && prompts.len() < arguments.prompts {
            tokens.truncate(arguments.prompt_tokens);
            prompts.push(tokens);
        }
    }
    if prompts.is_empty() {
        bail!("no prompt has at least {} tokens: lower --prompt-tokens", arguments.prompt_tokens);
    }
    Ok(prompts)
}

/// Prints measured next to predicted speed, in tokens per second over all prompts.
fn report(bench: &PairBench, calibration: &Calibration, lengths: &[usize]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let agreed = calibration.agreement.concat();
    let share = agreed.matches('1').count() as f64 / agreed.len().max(1) as f64;
    writeln!(out, "the drafter agrees with the target at {:.1} % of tokens", share * 100.0)?;
    if lengths.is_empty() {
        return Ok(());
    }
    writeln!(out, "draft tokens | measured tokens/s | predicted tokens/s | error")?;
    let mut errors = Vec::new();
    let tokens = (bench.max_tokens() * calibration.agreement.len()) as f64;
    for (&draft_tokens, measured_ms) in lengths.iter().zip(bench.answers_ms()) {
        let mut predicted_ms = 0.0;
        for seed in 0..calibration.agreement.len() as u64 {
            let max_tokens = bench.max_tokens();
            let parameters = Parameters { draft_tokens, max_tokens, seed, ..Parameters::default() };
            let answer = parameters.simulation(Some(calibration))?.measure()?;
            predicted_ms += answer.total_ns as f64 / 1e6;
        }
        let error = measured_ms / predicted_ms - 1.0;
        errors.push(error.abs());
        writeln!(
            out,
            "{draft_tokens:>12} | {:>17.2} | {:>18.2} | {:>+5.1} %",
            tokens * 1e3 / measured_ms,
            tokens * 1e3 / predicted_ms,
            error * 100.0
        )?;
    }
    errors.sort_by(f64::total_cmp);
    let median = (errors[(errors.len() - 1) / 2] + errors[errors.len() / 2]) / 2.0;
    writeln!(out, "median error {:.1} %, measured against predicted", median * 100.0)?;
    Ok(())
}
