//! `forerun devices`: shows cores and default placements, or measures a model.

use crate::arguments::DevicesArguments;
use crate::bench::{self, Quartiles};
use crate::progress;
use forerun::measure::BandwidthProbe;
use forerun::model_cost::ModelProbe;
use forerun::{Checkpoint, DeviceGroup, Isa, ModelSource, Placement, Topology, Weights};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;

/// Numbers of rows of the measured forward passes.
const ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Prints the cores and the default placements or, with a model, the costs of its forward pass.
pub(crate) fn run(arguments: &DevicesArguments) -> anyhow::Result<ExitCode> {
    match &arguments.model {
        Some(model) => costs(model, arguments),
        None => cores(),
    }
}

/// Prints memory bandwidth and the time of a forward pass by rows. Each pass is measured next to a
/// pass of one row, and to one of the same rows with an empty cache, which shows the cost of
/// attention to the past.
fn costs(model: &ModelSource, arguments: &DevicesArguments) -> anyhow::Result<ExitCode> {
    Isa::from_environment()?;
    let checkpoint = Checkpoint::open(&progress::loader(arguments.offline, true).locate(model)?)?;
    let weights = match arguments.dtype {
        Some(weight_type) => Weights::load_as(&checkpoint, weight_type)?,
        None => Weights::load(&checkpoint)?,
    };
    let weight_bytes = weights.bytes_read() as f64;
    let types = weights.weight_types();
    let types: Vec<String> = types.iter().map(|(weight_type, _)| weight_type.to_string()).collect();
    let types = types.join(" and ");
    let team = Arc::new(bench::team(arguments.threads)?);
    let bandwidth = BandwidthProbe::new();
    let read = || (0..5).map(|_| bandwidth.read(&team)).fold(0.0, f64::max);
    let before = read();
    let most_rows = ROWS[ROWS.len() - 1];
    let weights = Arc::new(weights);
    let probe = |past| ModelProbe::new(Arc::clone(&weights), Arc::clone(&team), past, most_rows);
    let (mut probe, mut fresh) = (probe(arguments.past), probe(0));
    let mut measured = Vec::new();
    for rows in ROWS {
        let (mut times, mut ratios, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..arguments.rounds.max(1) {
            let one = probe.run(1);
            let time = probe.run(rows);
            times.push(time * 1e3);
            ratios.push(time / one);
            shares.push((1.0 - fresh.run(rows) / time) * 100.0);
        }
        measured.push((rows, times, ratios, shares));
    }
    let best = before.max(read());
    let cache_bytes = probe.past_bytes() as f64;
    let roofline_ms = (weight_bytes + cache_bytes) / best * 1e3;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}, {types}, {} on {} threads, after {} tokens: a forward pass reads {:.1} MB of \
         weights and {:.1} MB of keys and values",
        model,
        team.isa(),
        team.members(),
        probe.past(),
        weight_bytes / 1e6,
        cache_bytes / 1e6,
    )?;
    writeln!(out, "bandwidth {:.2} GB/s, so at least {roofline_ms:.2} ms per pass", best / 1e9)?;
    writeln!(out, "medians [quartiles] of {} passes", arguments.rounds.max(1))?;
    for (rows, times, ratios, shares) in measured {
        let share = times.iter().map(|time| roofline_ms / time * 100.0).collect();
        let [times, ratios, share, past] = [times, ratios, share, shares].map(Quartiles::of);
        writeln!(
            out,
            "{rows:>4} rows {times} ms, ×{ratios} of one row, roofline {share} %, past {past} %"
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn cores() -> anyhow::Result<ExitCode> {
    let topology = Topology::of_this_machine();
    let mut out = std::io::stdout().lock();
    if let Some(name) = processor() {
        writeln!(out, "processor            {name}")?;
    }
    writeln!(out, "instruction sets     {}", instruction_sets())?;
    let processors = topology.processors();
    writeln!(out, "logical processors   {}", processors.len())?;
    writeln!(out, "  {}", DeviceGroup::new(&processors))?;
    let cores = topology.default_cores();
    writeln!(out, "default threads      {}", cores.len())?;
    for limit in topology.limits() {
        writeln!(out, "  {limit}")?;
    }
    writeln!(out, "default placement    not pinned to cores (`--pin` pins it)")?;
    writeln!(out, "  pearl, dsi  {}", Placement::automatic(&cores, true, 1))?;
    writeln!(out, "  others      {}", Placement::automatic(&cores, false, 1))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the processor's name, if the system reports it.
fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(target_arch = "x86_64")]
fn instruction_sets() -> String {
    let sets = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
    ];
    let found: Vec<&str> = sets.iter().filter(|set| set.1).map(|set| set.0).collect();
    if found.is_empty() { "baseline".into() } else { found.join(" ") }
}

#[cfg(not(target_arch = "x86_64"))]
fn instruction_sets() -> String {
    std::env::consts::ARCH.into()
}
