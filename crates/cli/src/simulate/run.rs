//! `forerun simulate run`: simulates one answer.

use crate::arguments::{CancelChoice, SimulatedRunArguments};
use crate::generate::{TraceFile, timeline};
use crate::text_file;
use anyhow::{Context, anyhow};
use forerun_sim::{Calibration, Cancellation, Parameters, SimulatedAnswer};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

pub(super) fn run(arguments: &SimulatedRunArguments) -> anyhow::Result<ExitCode> {
    let calibration = arguments.calibration.as_deref().map(read_calibration).transpose()?;
    let simulation = parameters(arguments).simulation(calibration.as_ref())?;
    let file = arguments.trace.as_deref().map(TraceFile::create).transpose()?;
    let (answer, plain_ns) = (simulation.run()?, simulation.plain_ns()?);
    let mut out = std::io::stdout().lock();
    let tokens = simulation.max_tokens;
    let mut trace = answer.trace.clone();
    if arguments.real_time {
        let measured = simulation.run_in_real_time()?;
        trace = measured.trace;
        write!(out, "{}", timeline(&trace))?;
        let ratio = measured.total_ns as f64 / answer.total_ns.max(1) as f64;
        let rounds = measured.statistics.target_forwards.max(1);
        writeln!(
            out,
            "measured: {tokens} tokens in {:.1} ms, {:.2} ms per round, {ratio:.4}× virtual time",
            ms(measured.total_ns),
            ms(measured.total_ns) / rounds as f64,
        )?;
    } else {
        write!(out, "{}", timeline(&trace))?;
    }
    report(&mut out, tokens, &answer, plain_ns)?;
    if let Some(file) = file {
        file.write(&trace)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn report(
    out: &mut impl Write,
    tokens: usize,
    answer: &SimulatedAnswer,
    plain_ns: u64,
) -> std::io::Result<()> {
    let statistics = &answer.statistics;
    writeln!(
        out,
        "simulated: {tokens} tokens in {:.1} ms, {:.1} tokens/s, {:.2}× plain decoding ({:.1} ms)",
        ms(answer.total_ns),
        forerun::trace::tokens_per_second(tokens, answer.total_ns),
        plain_ns as f64 / answer.total_ns.max(1) as f64,
        ms(plain_ns),
    )?;
    writeln!(
        out,
        "{} target forward passes, {} tokens drafted, {} accepted",
        answer.targets.jobs,
        statistics.draft_tokens,
        statistics.accepted.iter().sum::<u64>(),
    )
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

pub(super) fn read_calibration(file: &Path) -> anyhow::Result<Calibration> {
    let text = text_file::read(file)
        .with_context(|| format!("cannot read the calibration file {}", file.display()))?;
    Calibration::parse(&text).map_err(|reason| anyhow!("{}: {reason}", file.display()))
}

fn parameters(arguments: &SimulatedRunArguments) -> Parameters {
    Parameters {
        method: arguments.method,
        target_ms: arguments.target_ms,
        target_first_ms: arguments.target_first_ms,
        row_ms: arguments.row_ms,
        targets: arguments.targets,
        draft_ms: arguments.draft_ms,
        draft_first_ms: arguments.draft_first_ms,
        draft_next_ms: arguments.draft_next_ms,
        drafters: arguments.drafters,
        acceptance: arguments.acceptance,
        draft_tokens: arguments.draft_tokens,
        max_tokens: arguments.max_tokens,
        seed: arguments.seed,
        cancel: match arguments.cancel {
            CancelChoice::Immediate => Cancellation::Immediate,
            CancelChoice::Layer => Cancellation::Layer,
            CancelChoice::RunToEnd => Cancellation::RunToEnd,
        },
        layers: arguments.layers,
        link_ms: arguments.link_ms,
        layer_parallel: arguments.layer_parallel,
        draft_attention_ms: arguments.draft_attention_ms,
        draft_mlp_ms: arguments.draft_mlp_ms,
        draft_communication_ms: arguments.draft_communication_ms,
    }
}
