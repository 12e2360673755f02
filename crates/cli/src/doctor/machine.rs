//! The processor and its cores.

use super::Check;
use crate::devices::{instruction_sets, processor};
use forerun::cpu::Isa;
use forerun::placement::{ThreadLimit, Topology};
use std::fs;

pub(super) fn checks() -> Vec<Check> {
    let topology = Topology::of_this_machine();
    let mut checks = vec![processor_check(), cores(&topology), quota(&topology)];
    checks.extend(current_load(&topology));
    checks
}

pub(super) fn current_load(topology: &Topology) -> Option<Check> {
    load(&fs::read_to_string("/proc/loadavg").ok()?, topology)
}

/// The processor and the instruction set that the kernels use.
fn processor_check() -> Check {
    let name = processor().unwrap_or_else(|| "a processor without a name".into());
    let describe = |isa: Isa| format!("{name}: uses {isa} of {}", instruction_sets());
    match Isa::from_environment() {
        Err(error) => Check::advice("processor", describe(Isa::best()), error.to_string()),
        Ok(isa) if isa < Isa::best() => Check::advice(
            "processor",
            describe(isa),
            format!("unset FORERUN_ISA: this processor has {}", Isa::best()),
        ),
        Ok(Isa::Portable) => Check::advice(
            "processor",
            describe(Isa::Portable),
            "the kernels are fast with AVX2, AVX-512 or NEON, which this processor lacks: use another machine",
        ),
        Ok(isa) => Check::ok("processor", describe(isa)),
    }
}

/// The number of threads, and what limits it.
fn cores(topology: &Topology) -> Check {
    let threads = topology.default_cores().len();
    let s = if threads == 1 { "" } else { "s" };
    let limits: Vec<String> = topology
        .limits()
        .iter()
        .filter(|limit| !matches!(limit, ThreadLimit::Quota(_)))
        .map(ToString::to_string)
        .collect();
    let mut found =
        format!("{threads} thread{s} on {} logical processors", topology.processors().len());
    for limit in &limits {
        found += &format!("; {limit}");
    }
    let limits = topology.limits();
    if limits.iter().any(|limit| matches!(limit, ThreadLimit::AffinityMask { .. })) {
        let advice = "start forerun with a wider affinity mask (`taskset`, or `--cpuset-cpus` of a container)";
        return Check::advice("cores", found, advice);
    }
    if !cfg!(target_os = "linux") {
        found += "; this system pins no threads, and does not tell kinds of cores";
    }
    Check::ok("cores", found)
}

/// The processor time that a control group allows.
fn quota(topology: &Topology) -> Check {
    const NAME: &str = "CPU quota";
    let Some(quota) = topology.quota() else {
        return match cfg!(target_os = "linux") {
            true => Check::ok(NAME, "none"),
            false => Check::unknown(NAME, "quotas are known on Linux only"),
        };
    };
    let found = format!("{quota} processors");
    let all = Topology::uniform(&topology.processors()).default_cores().len();
    if quota.threads() < all {
        let advice = format!(
            "raise the quota of the container (`--cpus`) to {all}: {} of {all} processors are used",
            quota.threads()
        );
        return Check::advice(NAME, found, advice);
    }
    Check::ok(NAME, found)
}

/// Returns advice if other programs use the cores. `text` is that of `/proc/loadavg`.
fn load(text: &str, topology: &Topology) -> Option<Check> {
    let load: f64 = text.split_whitespace().next()?.parse().ok()?;
    let cores = topology.default_cores().len();
    let found = format!("load average {load:.1} in the last minute, on {cores} cores");
    Some(match load > 0.5 * cores as f64 {
        true => Check::advice(
            "load",
            found,
            "stop other programs while forerun runs: they take its cores",
        ),
        false => Check::ok("load", found),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn a_busy_machine_gets_advice() {
        let topology = Topology::uniform(&[0, 1]);
        let status = |text| load(text, &topology).map(|check| check.status);
        assert_eq!(status("0.90 0.5 0.5 1/100 7"), Some(Status::Ok));
        assert_eq!(status("1.20 0.5 0.5 1/100 7"), Some(Status::Advice));
        assert_eq!(status(""), None);
    }

    #[test]
    fn equal_cores_without_limits_need_no_advice() {
        let topology = Topology::uniform(&[0, 1, 2]);
        let check = cores(&topology);
        assert_eq!(check.status, Status::Ok);
        assert!(check.found.starts_with("3 threads on 3 logical processors"), "{}", check.found);
        assert_ne!(quota(&topology).status, Status::Advice);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_quota_and_a_mask_get_advice() -> std::io::Result<()> {
        let root = tempfile::tempdir()?;
        let write = |path: &str, text: &str| {
            let file = root.path().join(path);
            fs::create_dir_all(file.parent().unwrap_or(root.path()))?;
            fs::write(file, text)
        };
        write("proc/self/cgroup", "0::/\n")?;
        write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")?;
        write("sys/fs/cgroup/cpu.max", "150000 100000\n")?;
        write("sys/devices/system/cpu/online", "0-7\n")?;
        let topology = Topology::read(root.path(), &[0, 1]);
        let check = quota(&topology);
        assert_eq!((check.status, check.found.as_str()), (Status::Advice, "1.5 processors"));
        let check = cores(&topology);
        assert_eq!(check.status, Status::Advice);
        assert!(check.found.contains("2 of 8 logical processors"), "{}", check.found);
        Ok(())
    }
}
