//! `forerun bench kernels`: measures memory bandwidth and single linear layers.

use crate::arguments::KernelBenchArguments;
use crate::progress::{Task, Unit};
use anyhow::Context;
use forerun::cpu::measure::{BandwidthProbe, LinearProbe};
use forerun::cpu::{Isa, Team};
use forerun::placement::Topology;
use std::io::Write;
use std::process::ExitCode;

/// Numbers of rows that are compared with one row.
const ROWS: [usize; 8] = [2, 4, 8, 12, 16, 32, 64, 256];

/// The most weights of a layer that `bench kernels` measures.
const MOST_WEIGHTS: usize = 1 << 28;

/// Prints memory bandwidth, and the time of one layer by weight type and rows.
pub(crate) fn kernels(arguments: &KernelBenchArguments) -> anyhow::Result<ExitCode> {
    let weights = arguments.outputs.saturating_mul(arguments.inputs);
    anyhow::ensure!(
        weights <= MOST_WEIGHTS,
        "--outputs and --inputs make a layer of {weights} weights, and at most {MOST_WEIGHTS} are measured: choose smaller numbers"
    );
    let isa = Isa::from_environment()?;
    let team = team(Some(arguments.threads))?;
    let mut out = std::io::stdout().lock();
    let probe = BandwidthProbe::new()?;
    let read = |team: &Team, times| (0..times).map(|_| probe.read(team)).fold(0.0, f64::max);
    let mut best = read(&team, 5);
    let alone = self::team(Some(1))?;
    let mut best_alone = read(&alone, 5);
    let (outputs, inputs, rounds) = (arguments.outputs, arguments.inputs, arguments.rounds);
    writeln!(out, "{outputs}×{inputs}, {isa}, {} threads, {rounds} rounds", team.members())?;
    writeln!(out, "bandwidth {:.2} GB/s (best of 5 reads of 512 MB)", best / 1e9)?;
    writeln!(out, "medians [quartiles]; ratios are relative to one row, measured alternately")?;
    // A measurement computes each number of rows and one row.
    let rows_of_type: usize = ROWS.iter().map(|rows| rounds * (rows + 1)).sum();
    let all_rows = (arguments.dtype.len() * rows_of_type) as u64;
    let mut task = Task::new("measuring", Unit::Pieces("rows"), all_rows);
    let mut measured_rows = 0;
    for &weight_type in &arguments.dtype {
        task.message(weight_type.to_string());
        let mut layer = LinearProbe::new(weight_type, outputs, inputs);
        best = read(&team, 3).max(best);
        let mut one_row = Vec::new();
        let mut lines = Vec::new();
        for rows in ROWS {
            let mut ratios = Vec::new();
            for _ in 0..rounds {
                let one = layer.run(&team, 1);
                ratios.push(layer.run(&team, rows) / one);
                one_row.push(one);
                measured_rows += rows as u64 + 1;
                task.update(measured_rows);
            }
            lines.push(format!("  {rows:>4} rows ×{}", Quartiles::of(ratios)));
        }
        best = read(&team, 3).max(best);
        best_alone = read(&alone, 3).max(best_alone);
        if team.members() > 1 {
            let bandwidths = best / best_alone;
            let speedup = (0..rounds).map(|_| layer.run(&alone, 1) / layer.run(&team, 1)).collect();
            let speedup = Quartiles::of(speedup);
            lines.push(format!(
                "  one row ×{speedup} the speed of 1 thread, bandwidth ×{bandwidths:.2}"
            ));
        }
        let bytes = layer.bytes() as f64;
        let shares = one_row.iter().map(|time| bytes / time / best * 100.0).collect();
        let times = one_row.iter().map(|time| time * 1e3).collect();
        let first = format!(
            "{weight_type}: one row {} ms, {} % of bandwidth",
            Quartiles::of(times),
            Quartiles::of(shares),
        );
        lines.insert(0, first);
        task.suspend(|| writeln!(out, "{}", lines.join("\n")))?;
    }
    drop(task);
    writeln!(out, "bandwidth at the end {:.2} GB/s (best of all)", best / 1e9)?;
    Ok(ExitCode::SUCCESS)
}

/// Starts a team of `threads` threads, or of as many as are used by default.
pub(crate) fn team(threads: Option<usize>) -> anyhow::Result<Team> {
    Ok(Team::unpinned(self::threads(threads)?)?)
}

/// Checks a number of threads. By default it is that of a default placement.
pub(crate) fn threads(threads: Option<usize>) -> anyhow::Result<usize> {
    let topology = Topology::of_this_machine();
    let Some(count) = threads else { return Ok(topology.default_cores().len()) };
    let cores = topology.cores_for(count).with_context(|| {
        let most = topology.processors().len();
        format!(
            "--threads is {count}, but this machine has {most} cores: use a number from 1 to {most}"
        )
    })?;
    Ok(cores.len())
}

/// The median and the quartiles of measurements.
pub(crate) struct Quartiles([f64; 3]);

impl Quartiles {
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
        Self([at(0.25), at(0.5), at(0.75)])
    }

    pub(crate) fn median(&self) -> f64 {
        self.0[1]
    }
}

impl std::fmt::Display for Quartiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [low, median, high] = self.0;
        write!(f, "{median:.2} [{low:.2} {high:.2}]")
    }
}
