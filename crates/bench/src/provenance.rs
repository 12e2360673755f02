//! The provenance of measurements: command, version, machine, date.

use forerun::cpu::Isa;
use forerun::placement::default_cores;
use serde::{Deserialize, Serialize};
use std::fs;

/// The circumstances of one start of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The command line, as it was typed.
    pub command: String,
    /// The version of forerun.
    pub version: String,
    /// The time of the start, in local time with its offset.
    pub started: String,
    /// The name of the processor.
    pub processor: String,
    /// The number of cores that the program uses by default.
    pub cores: usize,
    /// The instruction set that the kernels use.
    pub instruction_set: String,
    /// The name and version of the operating system's kernel.
    pub kernel: String,
    /// The memory of the machine in bytes; 0 if it is unknown.
    pub memory_bytes: u64,
}

impl Provenance {
    /// Returns the provenance of the running program. `arguments` is its command line.
    #[must_use]
    pub fn now(arguments: impl Iterator<Item = String>) -> Self {
        let quoted: Vec<String> = arguments.map(|argument| quoted(&argument)).collect();
        Self {
            command: quoted.join(" "),
            version: env!("CARGO_PKG_VERSION").into(),
            started: jiff::Zoned::now().strftime("%Y-%m-%d %H:%M:%S %:z").to_string(),
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
            cores: default_cores().len(),
            instruction_set: Isa::from_environment()
                .map_or("unknown".into(), |isa| isa.to_string()),
            kernel: kernel(),
            memory_bytes: kilobytes("/proc/meminfo", "MemTotal").unwrap_or(0),
        }
    }
}

/// Quotes an argument for a POSIX shell, if necessary.
pub(crate) fn quoted(argument: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@".contains(c);
    if !argument.is_empty() && argument.chars().all(plain) {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\'', "'\\''"))
}

fn kernel() -> String {
    let read = |name| fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok();
    match (read("ostype"), read("osrelease")) {
        (Some(system), Some(release)) => format!("{} {}", system.trim(), release.trim()),
        _ => std::env::consts::OS.into(),
    }
}

/// Returns the value after a name and a colon in a file of `/proc`.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn kilobytes(file: &str, name: &str) -> Option<u64> {
    let value = field(file, name)?;
    Some(value.split(' ').next()?.parse::<u64>().ok()? * 1024)
}

/// Resets the peak memory of this process, if the system allows it.
pub(crate) fn reset_peak_memory() {
    // Otherwise, the peak is the one since the start of the process, which may be higher.
    drop(fs::write("/proc/self/clear_refs", "5"));
}

/// Returns the peak memory of this process since the last reset in bytes.
pub(crate) fn peak_memory_bytes() -> Option<u64> {
    kilobytes("/proc/self/status", "VmHWM")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_for_a_shell() {
        assert_eq!(quoted("--model=a/b.c"), "--model=a/b.c");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
        let provenance = Provenance::now(["forerun", "a b"].map(String::from).into_iter());
        assert_eq!(provenance.command, "forerun 'a b'");
        assert!(provenance.cores > 0 && !provenance.started.is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_peak_memory_can_be_reset() {
        // Otherwise the compiler may leave memory out that nobody reads.
        let large = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(peak_memory_bytes().is_some_and(|peak| peak > large.len() as u64));
        drop(large);
        reset_peak_memory();
        assert!(peak_memory_bytes().is_some());
    }
}
