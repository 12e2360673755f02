//! The memory that this process can still use.

use crate::cgroup::{self, Version};
use std::fs;
use std::path::Path;

/// Returns the bytes that this process can still use without swapping: the least of what the
/// machine, its control groups, and its limit of address space leave. Files in the page cache count
/// as free. `None` if the system does not say.
#[must_use]
pub fn available_memory() -> Option<u64> {
    available_at(Path::new("/"))
}

/// Returns the available memory of a system whose file system begins at `root`.
fn available_at(root: &Path) -> Option<u64> {
    let process = root.join("proc/self");
    let machine = kilobytes(&root.join("proc/meminfo"), "MemAvailable:");
    let address_space = address_space_limit(&process).and_then(|limit| {
        Some(limit.saturating_sub(kilobytes(&process.join("status"), "VmSize:")?))
    });
    let groups = cgroup::folders(root, "memory");
    let groups = groups.iter().filter_map(|(version, folder)| left_in_group(*version, folder));
    machine.into_iter().chain(address_space).chain(groups).min()
}

/// Returns what a control group leaves, or `None` without a limit.
fn left_in_group(version: Version, folder: &Path) -> Option<u64> {
    let [limit, used, reclaimable] = match version {
        Version::V1 => ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"],
        Version::V2 => ["memory.max", "memory.current", "inactive_file"],
    };
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok();
    let (limit, used): (u64, u64) = (number(limit)?, number(used)?);
    let reclaimable = field(&folder.join("memory.stat"), reclaimable).unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(reclaimable)))
}

/// Returns the process's soft limit of address space (`ulimit -v`) in bytes, or `None` without one.
fn address_space_limit(process: &Path) -> Option<u64> {
    let limits = fs::read_to_string(process.join("limits")).ok()?;
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    limit.split_whitespace().next()?.parse().ok()
}

fn kilobytes(file: &Path, name: &str) -> Option<u64> {
    field(file, name)?.checked_mul(1024)
}

/// Returns the number after a name at the beginning of a line.
fn field(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next()? == name).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let available = || available_at(root.path());
        assert_eq!(available(), None);
        write("proc/meminfo", "MemTotal:  16000 kB\nMemFree:  10 kB\nMemAvailable:  8000 kB\n");
        assert_eq!(available(), Some(8000 * 1024));
        // Control groups of version 2: the process's own is not limited, its parent is.
        write("proc/self/cgroup", "0::/slice/app\n");
        write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        write("sys/fs/cgroup/slice/app/memory.max", "max\n");
        write("sys/fs/cgroup/slice/app/memory.current", "4000000\n");
        assert_eq!(available(), Some(8000 * 1024));
        write("sys/fs/cgroup/slice/memory.max", "6000000\n");
        write("sys/fs/cgroup/slice/memory.current", "5000000\n");
        assert_eq!(available(), Some(1_000_000));
        write("sys/fs/cgroup/slice/memory.stat", "anon 1\nactive_file 9\ninactive_file 500000\n");
        assert_eq!(available(), Some(1_500_000));
        write("sys/fs/cgroup/slice/memory.current", "7000000\n");
        assert_eq!(available(), Some(0));
        // Version 1. Without a limit, the largest number of pages stands there.
        write("proc/self/cgroup", "4:memory:/a/b\n");
        let mount = "31 30 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        write("proc/self/mountinfo", mount);
        write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("sys/fs/cgroup/memory/memory.usage_in_bytes", "7000000\n");
        write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "3000000\n");
        write("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "2000000\n");
        write(
            "sys/fs/cgroup/memory/a/b/memory.stat",
            "inactive_file 1\ntotal_inactive_file 2000\n",
        );
        assert_eq!(available(), Some(1_002_000));
        // `ulimit -v`.
        write(
            "proc/self/limits",
            "Limit             Soft Limit    Hard Limit    Units\n\
             Max cpu time      unlimited     unlimited     seconds\n\
             Max address space 2048000       4096000       bytes\n",
        );
        write("proc/self/status", "Name: forerun\nVmPeak: 3000 kB\nVmSize: 1500 kB\n");
        assert_eq!(available(), Some(2_048_000 - 1500 * 1024));
        write("proc/self/limits", "Max address space unlimited unlimited bytes\n");
        assert_eq!(available(), Some(1_002_000));
        // Files in another form are no limits.
        write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "?\n");
        write("proc/meminfo", "MemAvailable: much\n");
        assert_eq!(available(), Some(9_223_372_036_854_771_712 - 7_000_000));
    }
}
