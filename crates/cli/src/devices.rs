//! `forerun devices`.

use forerun::{Placement, available_cores, granted_cores};
use std::io::Write;
use std::process::ExitCode;

/// Prints the cores and the placements that follow from them.
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    let cores = available_cores();
    let mut out = std::io::stdout().lock();
    if let Some(name) = processor() {
        writeln!(out, "processor            {name}")?;
    }
    writeln!(out, "instruction sets     {}", instruction_sets())?;
    writeln!(out, "cores to use         {}", cores.len())?;
    for core in &cores {
        writeln!(out, "  cpu:{core}")?;
    }
    let cores = granted_cores();
    writeln!(out, "default placement")?;
    writeln!(out, "  with --draft-model {}", Placement::automatic(&cores, true))?;
    writeln!(out, "  otherwise          {}", Placement::automatic(&cores, false))?;
    Ok(ExitCode::SUCCESS)
}

/// The processor's name, where the system tells it.
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
