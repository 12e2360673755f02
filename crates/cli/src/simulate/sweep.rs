//! `forerun simulate sweep` and `forerun simulate heatmaps`: tables of many configurations.

use crate::arguments::{HeatmapArguments, SweepArguments};
use crate::interrupts;
use crate::note;
use crate::progress::{Task, Unit};
use forerun_sim::sweep::{Heatmaps, Progress, RowSource, Sweep, Table, run as simulate};
use std::num::NonZero;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

pub(super) fn run(arguments: &SweepArguments) -> anyhow::Result<ExitCode> {
    let sweep = Sweep::read(&arguments.file)?;
    let out = arguments.out.clone().unwrap_or_else(|| arguments.file.with_extension("csv"));
    fill(&sweep, "configurations", &out, arguments.threads)
}

/// Runs `forerun simulate heatmaps`: DSI's figures 2 and 7.
pub(super) fn heatmaps(arguments: &HeatmapArguments) -> anyhow::Result<ExitCode> {
    let HeatmapArguments { steps, lookaheads, max_tokens, repeats, .. } = *arguments;
    let heatmaps = Heatmaps {
        latency_steps: steps.get(),
        acceptance_steps: steps.get(),
        lookaheads: lookaheads.get(),
        tokens: max_tokens.get(),
        repeats: repeats.get(),
        ..Heatmaps::default()
    };
    let count = heatmaps.configurations();
    note(format_args!("{count} configurations per method, {repeats} texts each"));
    fill(&heatmaps, "drafters", &arguments.out, arguments.threads)
}

/// Simulates the rows that the table does not have yet.
fn fill(
    sweep: &impl RowSource,
    what: &'static str,
    out: &Path,
    threads: Option<NonZero<usize>>,
) -> anyhow::Result<ExitCode> {
    let mut table = Table::open(out, sweep)?;
    let before = table.rows;
    if before > 0 && before < sweep.count() {
        note(format_args!("resuming after {before} rows"));
    }
    let stopped = Arc::new(AtomicBool::new(false));
    let interrupted = Arc::clone(&stopped);
    interrupts::listen(move || interrupted.swap(true, Ordering::Relaxed))?;
    let mut task =
        Task::resumed("simulating", Unit::Pieces(what), before as u64, sweep.count() as u64);
    let (started, mut last) =
        (Instant::now(), Progress { done: before, total: sweep.count(), rounds: 0 });
    let outcome = simulate(sweep, &mut table, thread_count(threads), |progress| {
        task.update(progress.done as u64);
        last = progress;
        match stopped.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    drop(task);
    outcome?;
    let seconds = started.elapsed().as_secs_f64();
    note(format_args!(
        "simulated: {} of {} {what} in {}, {} rounds in {seconds:.1} s, {:.0} rounds/s",
        last.done,
        last.total,
        out.display(),
        last.rounds,
        last.rounds as f64 / seconds.max(1e-9),
    ));
    if last.done < last.total {
        note("interrupted: run the same command again to resume");
        return Ok(ExitCode::from(interrupts::interrupted()));
    }
    Ok(ExitCode::SUCCESS)
}

fn thread_count(threads: Option<NonZero<usize>>) -> usize {
    let all = || std::thread::available_parallelism().map_or(1, NonZero::get);
    threads.map_or_else(all, NonZero::get)
}
