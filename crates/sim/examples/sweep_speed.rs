//! Measures the speed of sweeps:
//! `cargo run --release -p forerun-sim --example sweep_speed [THREADS]`.
//!
//! The sweep has 100,000 configurations of speculative decoding with 50 tokens each, and plain
//! decoding as their baseline.

use forerun_sim::sweep::{Sweep, SweepError, Table, run};
use std::ops::ControlFlow;
use std::time::Instant;

const GRID: &str = "target-ms = 30\nmax-tokens = 50\n\
    draft-ms = { from = 0.3, to = 30, steps = 100 }\n\
    acceptance = { from = 0, to = 1, steps = 100 }\n\
    draft-tokens = { from = 1, to = 10, step = 1 }\n";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let threads = match std::env::args().nth(1) {
        Some(threads) => threads.parse()?,
        None => std::thread::available_parallelism()?.get(),
    };
    let folder = std::env::temp_dir().join(format!("forerun-sweep-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let measured = measure(&folder, threads);
    std::fs::remove_dir_all(&folder)?;
    let (configurations, rounds, seconds) = measured?;
    println!(
        "{configurations} configurations, {rounds} rounds in {seconds:.2} s on {threads} threads: \
         {:.0} configurations/s, {:.2} million rounds/s",
        configurations as f64 / seconds,
        rounds as f64 / seconds / 1e6,
    );
    Ok(())
}

fn measure(folder: &std::path::Path, threads: usize) -> Result<(usize, u64, f64), SweepError> {
    let (file, table) = (folder.join("sweep.toml"), folder.join("sweep.csv"));
    std::fs::write(&file, GRID).map_err(|cause| SweepError::Write { file: file.clone(), cause })?;
    let sweep = Sweep::read(&file)?;
    let mut table = Table::open(&table, &sweep)?;
    let (started, mut rounds) = (Instant::now(), 0);
    run(&sweep, &mut table, threads, |progress| {
        rounds = progress.rounds;
        ControlFlow::Continue(())
    })?;
    Ok((sweep.len(), rounds, started.elapsed().as_secs_f64()))
}
