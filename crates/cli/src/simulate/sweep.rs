//! `forerun simulate sweep`: a table of many configurations.

use crate::arguments::SweepArguments;
use crate::interrupts::{self, INTERRUPTED};
use crate::{note, progress};
use forerun_sim::sweep::{Progress, Sweep, Table, run as simulate};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

pub(super) fn run(arguments: &SweepArguments) -> anyhow::Result<ExitCode> {
    let sweep = Sweep::read(&arguments.file)?;
    let out = arguments.out.clone().unwrap_or_else(|| arguments.file.with_extension("csv"));
    let mut table = Table::open(&out, &sweep)?;
    let before = table.rows;
    if before > 0 && before < sweep.len() {
        note(format_args!("going on behind {before} rows"));
    }
    let stopped = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&stopped);
    interrupts::listen(move || told.swap(true, Ordering::Relaxed))?;
    let bar = progress::bar(
        sweep.len() as u64,
        "{pos}/{len} configurations {wide_bar} {per_sec} {eta} left",
    );
    bar.set_position(before as u64);
    bar.reset_eta();
    let (started, mut last) =
        (Instant::now(), Progress { done: before, total: sweep.len(), rounds: 0 });
    let outcome = simulate(&sweep, &mut table, threads(arguments), |progress| {
        bar.set_position(progress.done as u64);
        last = progress;
        match stopped.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    bar.finish_and_clear();
    outcome?;
    let seconds = started.elapsed().as_secs_f64();
    note(format_args!(
        "simulated: {} of {} configurations in {}, {} rounds in {seconds:.1} s, {:.0} rounds/s",
        last.done,
        last.total,
        out.display(),
        last.rounds,
        last.rounds as f64 / seconds.max(1e-9),
    ));
    if last.done < last.total {
        note("interrupted; the same command goes on from there");
        return Ok(ExitCode::from(INTERRUPTED));
    }
    Ok(ExitCode::SUCCESS)
}

fn threads(arguments: &SweepArguments) -> usize {
    let all = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    arguments.threads.map_or_else(all, std::num::NonZero::get)
}
