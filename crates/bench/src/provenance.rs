//! Where numbers come from: command, version, commit, machine, date.

use forerun::{Isa, cores_within_quota};
use serde::{Deserialize, Serialize};
use std::fs;

/// One start of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    /// The command line, as it was typed.
    pub command: String,
    /// The version of forerun.
    pub version: String,
    /// The commit that it was built from, if the build was told by `FORERUN_COMMIT`.
    pub commit: Option<String>,
    /// When it started, in local time with its offset.
    pub started: String,
    /// The processor.
    pub processor: String,
    /// Cores that the program may use.
    pub cores: usize,
    /// The instruction set that the kernels use.
    pub instruction_set: String,
    /// The operating system's kernel.
    pub kernel: String,
    /// Memory of the machine, in bytes; 0 where the system does not tell.
    pub memory_bytes: u64,
}

impl Provenance {
    /// This program on this machine, now; `arguments` is its command line.
    #[must_use]
    pub fn now(arguments: impl Iterator<Item = String>) -> Self {
        let quoted: Vec<String> = arguments.map(|argument| quoted(&argument)).collect();
        Self {
            command: quoted.join(" "),
            version: env!("CARGO_PKG_VERSION").into(),
            commit: option_env!("FORERUN_COMMIT").map(str::to_owned),
            started: jiff::Zoned::now().strftime("%Y-%m-%d %H:%M:%S %:z").to_string(),
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
            cores: cores_within_quota().len(),
            instruction_set: Isa::from_environment()
                .map_or("unknown".into(), |isa| isa.to_string()),
            kernel: kernel(),
            memory_bytes: kilobytes("/proc/meminfo", "MemTotal").unwrap_or(0),
        }
    }
}

/// An argument as a shell takes it.
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

/// The value behind a name and a colon, in one of the kernel's tables.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn kilobytes(file: &str, name: &str) -> Option<u64> {
    let value = field(file, name)?;
    Some(value.split(' ').next()?.parse::<u64>().ok()? * 1024)
}

/// Forgets the peak of this process's memory, where the system lets it.
pub(crate) fn reset_peak_memory() {
    // Where it does not, the peak is that since the start, which is more, never less.
    drop(fs::write("/proc/self/clear_refs", "5"));
}

/// The most memory that this process had since the last reset, in bytes.
pub(crate) fn peak_memory_bytes() -> Option<u64> {
    kilobytes("/proc/self/status", "VmHWM")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_as_a_shell_takes_them() {
        assert_eq!(quoted("--model=a/b.c"), "--model=a/b.c");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
        let told = Provenance::now(["forerun", "a b"].map(String::from).into_iter());
        assert_eq!(told.command, "forerun 'a b'");
        assert!(told.cores > 0 && !told.started.is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_peak_of_memory_can_be_measured_anew() {
        let large = vec![1_u8; 64 << 20];
        assert!(peak_memory_bytes().is_some_and(|peak| peak > large.len() as u64));
        drop(large);
        reset_peak_memory();
        assert!(peak_memory_bytes().is_some());
    }
}
