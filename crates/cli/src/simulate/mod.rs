//! `forerun simulate`.

use crate::arguments::{CancelChoice, Simulate, SimulatedRunArguments};
use crate::generate::{timeline, write_trace};
use anyhow::ensure;
use forerun_sim::{Acceptance, Cancellation, Cost, Simulation};
use std::io::Write;
use std::process::ExitCode;

pub(crate) fn run(simulate: &Simulate) -> anyhow::Result<ExitCode> {
    match simulate {
        Simulate::Run(arguments) => one_answer(arguments),
    }
}

fn one_answer(arguments: &SimulatedRunArguments) -> anyhow::Result<ExitCode> {
    let simulation = simulation(arguments)?;
    let answer = simulation.run()?;
    let statistics = &answer.statistics;
    let ms = |ns: u64| ns as f64 / 1e6;
    let mut out = std::io::stdout().lock();
    write!(out, "{}", timeline(&answer.trace))?;
    writeln!(
        out,
        "simulated: {} tokens in {:.1} ms, {:.1} tokens/s, {:.2}× plain decoding ({:.1} ms)",
        simulation.max_tokens,
        ms(answer.total_ns),
        simulation.max_tokens as f64 * 1e9 / answer.total_ns.max(1) as f64,
        answer.plain_ns as f64 / answer.total_ns.max(1) as f64,
        ms(answer.plain_ns),
    )?;
    writeln!(
        out,
        "{} target forwards, {} tokens drafted, {} accepted",
        statistics.target_forwards,
        statistics.draft_tokens,
        statistics.accepted.iter().sum::<u64>(),
    )?;
    if let Some(file) = &arguments.trace {
        write_trace(file, &answer.trace)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn simulation(arguments: &SimulatedRunArguments) -> anyhow::Result<Simulation> {
    let ns = |option: &str, ms: f64| {
        let range = 0.0..=1e9;
        ensure!(range.contains(&ms), "{option} is {ms}, but it must be 0 to 1e9 milliseconds");
        Ok((ms * 1e6).round() as u64)
    };
    let first = |option: &str, ms: Option<f64>| ms.map(|ms| ns(option, ms)).transpose();
    let target_ns = ns("--target-ms", arguments.target_ms)?;
    let row_ns = ns("--row-ms", arguments.row_ms)?;
    let target_first = first("--target-first-ms", arguments.target_first_ms)?;
    let draft_ns = ns("--draft-ms", arguments.draft_ms)?;
    let draft_first = first("--draft-first-ms", arguments.draft_first_ms)?;
    Ok(Simulation {
        draft: Cost::linear(draft_ns, 0, draft_first, arguments.layers),
        target: Cost::linear(target_ns, row_ns, target_first, arguments.layers),
        acceptance: Acceptance::Iid(arguments.acceptance),
        draft_tokens: arguments.draft_tokens,
        max_tokens: arguments.max_tokens,
        seed: arguments.seed,
        cancellation: match arguments.cancel {
            CancelChoice::Immediate => Cancellation::Immediate,
            CancelChoice::Layer => Cancellation::Layer,
            CancelChoice::RunToEnd => Cancellation::RunToEnd,
        },
        faults: Vec::new(),
    })
}
