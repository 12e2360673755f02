//! `forerun devices`: shows cores and default placements, or measures a model.

use crate::arguments::DevicesArguments;
use crate::bench::{self, Quartiles};
use crate::progress::{self, Task, Unit};
use forerun::checkpoint::{Checkpoint, ModelTypes};
use forerun::cpu::measure::BandwidthProbe;
use forerun::cpu::{Forward, Isa, ModelProbe, Transformer, Weights};
#[cfg(feature = "gpu")]
use forerun::gpu::{GpuModel, GpuRules, PassTimes as GpuPassTimes};
use forerun::placement::{DeviceGroup, Topology, typical_placement};
use forerun::{ModelSource, Placement};
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
#[cfg(feature = "gpu")]
use std::time::Duration;

/// Prints the cores and the default placements or, with a model, the costs of its forward pass.
pub(crate) fn run(arguments: &DevicesArguments) -> anyhow::Result<ExitCode> {
    match arguments.model.get() {
        Some(model) => costs(model, arguments),
        None => cores(),
    }
}

/// Prints memory bandwidth and the time of a forward pass by rows.
fn costs(model: &ModelSource, arguments: &DevicesArguments) -> anyhow::Result<ExitCode> {
    let checkpoint = Checkpoint::open(&progress::loader(arguments.offline, true).locate(model)?)?;
    match arguments.gpu {
        Some(gpu) => costs_on_gpu(gpu, model, &checkpoint, arguments),
        None => costs_on_cores(model, &checkpoint, arguments),
    }
}

fn costs_on_cores(
    model: &ModelSource,
    checkpoint: &Checkpoint,
    arguments: &DevicesArguments,
) -> anyhow::Result<ExitCode> {
    Isa::from_environment()?;
    let weights = Weights::load_as(checkpoint, model_types(arguments))?;
    let most_rows = most_rows(weights.architecture().context_length, arguments)?;
    let types = weights.weight_types();
    let types: Vec<String> = types.iter().map(|(weight_type, _)| weight_type.to_string()).collect();
    let types = types.join(" and ");
    let team = Arc::new(bench::team(arguments.threads)?);
    let bandwidth = BandwidthProbe::new()?;
    let read = || (0..5).map(|_| bandwidth.read(&team)).fold(0.0, f64::max);
    let before = read();
    let weights = Arc::new(weights);
    let probe = |past| {
        let model = Transformer::new(Arc::clone(&weights), Arc::clone(&team));
        ModelProbe::new(model, past, most_rows)
    };
    let (mut probe, mut fresh) = (probe(arguments.past), probe(0));
    let measured =
        measure(&mut probe, &mut fresh, arguments, |_, rows| weights.bytes_read(rows) as f64);
    let costs = Costs {
        heading: format!("{model}, {types}, {} on {} threads", team.isa(), team.members()),
        past: probe.past(),
        rounds: arguments.rounds,
        bandwidth: before.max(read()),
        weight_bytes: weights.bytes_read(1) as f64,
        cache_bytes: probe.past_bytes() as f64,
    };
    costs.print(measured)?;
    Ok(ExitCode::SUCCESS)
}

fn model_types(arguments: &DevicesArguments) -> ModelTypes {
    ModelTypes { weights: arguments.weights.dtype, cache: arguments.cache.kv_type }
}

#[cfg(feature = "gpu")]
fn costs_on_gpu(
    gpu: usize,
    model: &ModelSource,
    checkpoint: &Checkpoint,
    arguments: &DevicesArguments,
) -> anyhow::Result<ExitCode> {
    let device = GpuRules::from_environment().open(gpu)?;
    let bandwidth = device.measure_bandwidth()?;
    let loaded = GpuModel::load(&device, checkpoint, model_types(arguments))?;
    let most_rows = most_rows(loaded.architecture().context_length, arguments)?;
    let weights = Arc::clone(loaded.weights());
    let mut probe = ModelProbe::new(loaded, arguments.past, most_rows);
    let mut fresh = ModelProbe::new(GpuModel::new(Arc::clone(&weights)), 0, most_rows);
    // Kernels are compiled when they are first used.
    for &rows in &arguments.rows {
        probe.run(rows);
    }
    let bytes_read = |model: &GpuModel| model.last_cost().weight_bytes as f64;
    let measured = measure(&mut probe, &mut fresh, arguments, |model, _| bytes_read(model));
    probe.run(1);
    let costs = Costs {
        heading: format!("{model} on {}, {}", device.adapter(), device.arithmetic()),
        past: probe.past(),
        rounds: arguments.rounds,
        bandwidth,
        weight_bytes: bytes_read(probe.model()),
        cache_bytes: probe.past_bytes() as f64,
    };
    costs.print(measured)?;
    writeln!(
        std::io::stdout().lock(),
        "the GPU returns the best token of each row, as for greedy decoding"
    )?;
    let mut rows: Vec<usize> = arguments.rows.clone();
    rows.dedup();
    for rows in rows {
        print_kernels(&mut probe, rows, arguments.rounds)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the kernels of a pass of `rows` rows.
#[cfg(feature = "gpu")]
fn print_kernels(
    probe: &mut ModelProbe<GpuModel>,
    rows: usize,
    rounds: usize,
) -> anyhow::Result<()> {
    print_times(probe, rows, rounds)?;
    probe.model_mut().measure_kernels()?;
    let seconds: f64 = (0..rounds).map(|_| probe.run(rows)).sum();
    let times = probe.model().kernel_times();
    let mut out = std::io::stdout().lock();
    if times.is_empty() {
        writeln!(out, "the times of single kernels cannot be measured through this driver")?;
        return Ok(());
    }
    let each = |seconds: f64| seconds / rounds as f64 * 1e3;
    let sum: f64 = times.iter().map(|time| time.seconds).sum();
    writeln!(
        out,
        "kernels of a pass of {rows} rows: {:.3} ms of {:.3} ms by the GPU's clock, {}",
        each(sum),
        each(seconds),
        probe.model().last_cost()
    )?;
    for time in times {
        let dispatches = time.dispatches / rounds;
        writeln!(out, "  {:>8.3} ms  {dispatches:>4}  {}", each(time.seconds), time.kernel)?;
    }
    Ok(())
}

/// Prints where the time of passes of `rows` rows goes, as the processor sees it.
#[cfg(feature = "gpu")]
fn print_times(
    probe: &mut ModelProbe<GpuModel>,
    rows: usize,
    rounds: usize,
) -> std::io::Result<()> {
    let device = Arc::clone(probe.model().weights().device());
    let before = device.cuda_launches();
    let times: Vec<_> = (0..rounds)
        .map(|_| {
            probe.run(rows);
            probe.model().last_times()
        })
        .collect();
    let part = |part: fn(&GpuPassTimes) -> Duration| {
        Quartiles::of(times.iter().map(|times| part(times).as_secs_f64() * 1e3).collect())
    };
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "a pass of {rows} rows: recording {} ms, waiting {} ms, reading the results {} ms",
        part(|times| times.recording),
        part(|times| times.waiting),
        part(|times| times.reading),
    )?;
    let (Some(before), Some(after)) = (before, device.cuda_launches()) else { return Ok(()) };
    let each = |after: u64, before: u64| (after - before) as f64 / rounds as f64;
    writeln!(
        out,
        "  {} graphs and {} single operations were launched for a pass{}",
        each(after.graphs, before.graphs),
        each(after.operations, before.operations),
        after.no_graphs.map(|reason| format!(" (no graphs: {reason})")).unwrap_or_default(),
    )
}

#[cfg(not(feature = "gpu"))]
fn costs_on_gpu(
    _gpu: usize,
    _model: &ModelSource,
    _checkpoint: &Checkpoint,
    _arguments: &DevicesArguments,
) -> anyhow::Result<ExitCode> {
    anyhow::bail!("this build has no GPU support: install it with `--features gpu`")
}

/// Returns the largest number of rows of the measured passes, which must fit the context.
fn most_rows(context: usize, arguments: &DevicesArguments) -> anyhow::Result<usize> {
    let most_rows = arguments.rows.iter().copied().max().unwrap_or(1);
    anyhow::ensure!(
        most_rows <= context,
        "a pass of {most_rows} rows does not fit the model's context of {context} tokens: use fewer `--rows`"
    );
    Ok(most_rows)
}

/// Measures passes. `bytes_read` returns the weights that the model's last pass, of so many rows,
/// read. Each pass is measured next to a pass of one row, and to one of the same rows with an empty
/// cache, which shows the cost of attention to the past.
fn measure<F: Forward>(
    probe: &mut ModelProbe<F>,
    fresh: &mut ModelProbe<F>,
    arguments: &DevicesArguments,
    bytes_read: impl Fn(&F, usize) -> f64,
) -> Vec<Passes> {
    let rounds = arguments.rounds;
    let mut measured = Vec::new();
    // A measurement computes the rows twice, and one row.
    let all_rows: usize = arguments.rows.iter().map(|rows| rounds * (2 * rows + 1)).sum();
    let mut task = Task::new("measuring", Unit::Pieces("rows"), all_rows as u64);
    let mut measured_rows = 0;
    for &rows in &arguments.rows {
        let mut passes = Passes { rows, ..Passes::default() };
        for _ in 0..rounds {
            let one = probe.run(1);
            let time = probe.run(rows);
            passes.times_ms.push(time * 1e3);
            passes.ratios.push(time / one);
            // With a short past, noise can be larger than its cost.
            passes.past_shares.push(((1.0 - fresh.run(rows) / time) * 100.0).max(0.0));
            measured_rows += 2 * rows as u64 + 1;
            task.update(measured_rows);
        }
        passes.weight_bytes = bytes_read(probe.model(), rows);
        measured.push(passes);
    }
    measured
}

/// What the measured passes are compared with.
struct Costs {
    heading: String,
    past: usize,
    rounds: usize,
    /// Bytes a second.
    bandwidth: f64,
    /// Bytes of weights of a pass of one row.
    weight_bytes: f64,
    /// Bytes of keys and values of a pass.
    cache_bytes: f64,
}

impl Costs {
    fn print(&self, measured: Vec<Passes>) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(
            out,
            "{}, after {} tokens: a pass of one row reads {:.1} MB of weights and {:.1} MB of keys and values",
            self.heading,
            self.past,
            self.weight_bytes / 1e6,
            self.cache_bytes / 1e6,
        )?;
        writeln!(out, "medians [quartiles] of {} passes", self.rounds)?;
        write!(out, "{}", table(measured, self.bandwidth, self.weight_bytes, self.cache_bytes))
    }
}

/// Measured passes of the same number of rows.
#[derive(Default)]
struct Passes {
    rows: usize,
    /// The bytes of weights that they read, expected if experts are chosen.
    weight_bytes: f64,
    times_ms: Vec<f64>,
    /// Times relative to a pass of one row.
    ratios: Vec<f64>,
    /// Shares of the time for attention to the past, in percent.
    past_shares: Vec<f64>,
}

/// Renders the measured passes, and compares them with the time in which `bandwidth` bytes per
/// second bring weights and cache from memory. A pass of one row reads `one_row` bytes of weights,
/// and each pass `cache_bytes` of keys and values.
fn table(measured: Vec<Passes>, bandwidth: f64, one_row: f64, cache_bytes: f64) -> String {
    let roofline_of = |weight_bytes: f64| (weight_bytes + cache_bytes) / bandwidth * 1e3;
    let roofline_ms = roofline_of(one_row);
    let is_faster = |passes: &Passes| Quartiles::of(passes.times_ms.clone()).median() < roofline_ms;
    let in_caches = measured.iter().any(is_faster);
    let mut text = format!("bandwidth {:.2} GB/s", bandwidth / 1e9);
    text += &match in_caches {
        true => ", which is no limit: the weights fit the CPU's caches\n".to_owned(),
        false => format!(", so at least {roofline_ms:.2} ms per pass\n"),
    };
    for Passes { rows, weight_bytes, times_ms, ratios, past_shares } in measured {
        let roofline = match in_caches {
            true => String::new(),
            false => {
                let least = roofline_of(weight_bytes);
                let shares = times_ms.iter().map(|time| least / time * 100.0).collect();
                let mut roofline = format!(", roofline {} %", Quartiles::of(shares));
                if weight_bytes > one_row {
                    roofline +=
                        &format!(" of about {:.1} MB with more experts", weight_bytes / 1e6);
                }
                roofline
            }
        };
        let [times, ratios, past] = [times_ms, ratios, past_shares].map(Quartiles::of);
        text +=
            &format!("{rows:>4} rows {times} ms, ×{ratios} of one row{roofline}, past {past} %\n");
    }
    text
}

fn cores() -> anyhow::Result<ExitCode> {
    let gpus = gpus()?;
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
    let who = match cfg!(target_os = "linux") {
        true => "leaves busy cores (`--pin` stays on them)",
        false => "by the system (only on Linux are cores pinned, and their kinds and quotas known)",
    };
    writeln!(out, "default placement    {who}")?;
    writeln!(out, "  pearl, auto      {}", typical_placement(&cores, true))?;
    writeln!(out, "  dsi, ssd         {}", Placement::automatic(&cores, Some(1), 1))?;
    writeln!(out, "  others           {}", typical_placement(&cores, false))?;
    write!(out, "{gpus}")?;
    Ok(ExitCode::SUCCESS)
}

/// Lists the GPUs, as placements name them.
#[cfg(feature = "gpu")]
fn gpus() -> Result<String, forerun::gpu::GpuError> {
    let adapters = forerun::gpu::GpuDevice::adapters()?;
    if adapters.is_empty() {
        return Ok("GPUs                 none (a GPU needs a driver for Vulkan, Direct3D 12, Metal, or CUDA with `--features cuda`)\n".to_owned());
    }
    let mut text = "GPUs\n".to_owned();
    for adapter in adapters {
        let gib = adapter.max_buffer_bytes as f64 / (1_u64 << 30) as f64;
        let note = match adapter.kind {
            forerun::gpu::AdapterKind::Software => ", for tests (FORERUN_GPU_SOFTWARE=1)",
            _ if adapter.is_untried() => {
                ", an interface through which forerun has never run on a GPU"
            }
            _ => "",
        };
        let driver = &adapter.driver;
        text += &format!("  {adapter}, {driver}, buffers of up to {gib:.1} GiB{note}\n");
    }
    Ok(text)
}

#[cfg(not(feature = "gpu"))]
fn gpus() -> anyhow::Result<&'static str> {
    Ok("GPUs                 not in this build (`--features gpu`)\n")
}

/// Returns the processor's name, if the system reports it.
pub(crate) fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn instruction_sets() -> String {
    let sets = [
        ("avx2", is_x86_feature_detected!("avx2")),
        ("fma", is_x86_feature_detected!("fma")),
        ("avx512f", is_x86_feature_detected!("avx512f")),
        ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
        ("avx512bf16", is_x86_feature_detected!("avx512bf16")),
        ("amx", Isa::best().has_matrix_unit()),
    ];
    let found: Vec<&str> = sets.iter().filter(|set| set.1).map(|set| set.0).collect();
    if found.is_empty() { "baseline".into() } else { found.join(" ") }
}

#[cfg(target_arch = "aarch64")]
pub(crate) fn instruction_sets() -> String {
    use std::arch::is_aarch64_feature_detected;
    let sets = [
        ("neon", is_aarch64_feature_detected!("neon")),
        ("dotprod", is_aarch64_feature_detected!("dotprod")),
        ("i8mm", is_aarch64_feature_detected!("i8mm")),
    ];
    let found: Vec<&str> = sets.iter().filter(|set| set.1).map(|set| set.0).collect();
    found.join(" ")
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) fn instruction_sets() -> String {
    std::env::consts::ARCH.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(rows: usize, time_ms: f64) -> Passes {
        let [times_ms, ratios, past_shares] = [time_ms, 1.0, 0.0].map(|value| vec![value]);
        Passes { rows, weight_bytes: 15e6, times_ms, ratios, past_shares }
    }

    #[test]
    fn weights_in_the_caches_have_no_roofline() {
        let text = table(vec![passes(1, 0.5), passes(64, 8.0)], 10e9, 15e6, 5e6);
        assert!(
            text.starts_with("bandwidth 10.00 GB/s, which is no limit: the weights fit"),
            "{text}"
        );
        assert!(!text.contains("roofline") && text.contains("  64 rows 8.00"), "{text}");
        let text = table(vec![passes(1, 4.0)], 10e9, 15e6, 5e6);
        assert!(text.contains("so at least 2.00 ms") && text.contains("roofline 50.00"), "{text}");
        // Four rows of a mixture read more experts.
        let four = Passes { weight_bytes: 35e6, ..passes(4, 8.0) };
        let text = table(vec![passes(1, 4.0), four], 10e9, 15e6, 5e6);
        let line = text.lines().last().unwrap_or_default();
        assert!(line.contains("roofline 50.00") && line.contains("about 35.0 MB"), "{text}");
    }
}
