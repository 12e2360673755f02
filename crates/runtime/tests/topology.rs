//! What the topology of made-up machines says about default threads.

use forerun_decode::drafter_cores;
use forerun_runtime::{CpuQuota, Placement, Topology};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A folder with the files of a made-up machine.
struct Machine(TempDir);

/// The mounts of cgroup v2, and of a v1 hierarchy that has the CPU controller next to one that has
/// not.
const V2: &str = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
const V1: &str = "33 32 0:30 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n\
                  34 32 0:31 / /sys/fs/cgroup/cpu,cpuacct ro master:9 - cgroup cgroup rw,cpu,cpuacct\n";

impl Machine {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn with(self, file: &str, text: &str) -> Self {
        let file = self.root().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("{text}\n")).unwrap();
        self
    }

    fn with_device(self, file: &str, text: &str) -> Self {
        self.with(&format!("sys/devices/{file}"), text)
    }

    /// Adds cores with their logical processors.
    fn with_cores(mut self, cores: &[&[usize]]) -> Self {
        for core in cores {
            let siblings: Vec<String> = core.iter().map(ToString::to_string).collect();
            for id in *core {
                let file = format!("system/cpu/cpu{id}/topology/thread_siblings_list");
                self = self.with_device(&file, &siblings.join(","));
            }
        }
        self
    }

    /// Adds a process in a cgroup.
    fn with_cgroup(self, groups: &str, mounts: &str) -> Self {
        let other = "22 27 0:21 / /proc rw - proc proc rw\nnot a mount";
        self.with("proc/self/cgroup", groups)
            .with("proc/self/mountinfo", &format!("{other}\n{mounts}"))
    }

    fn topology(&self, allowed: impl IntoIterator<Item = usize>) -> Topology {
        Topology::read(self.root(), &Vec::from_iter(allowed))
    }
}

fn limits(topology: &Topology) -> Vec<String> {
    topology.limits().iter().map(ToString::to_string).collect()
}

/// A laptop with six performance cores of two logical processors each, and eight efficiency cores.
fn laptop() -> Machine {
    let performance: Vec<[usize; 2]> = (0..6).map(|core| [2 * core, 2 * core + 1]).collect();
    let efficiency: Vec<[usize; 1]> = (12..20).map(|core| [core]).collect();
    let performance = performance.iter().map(|core| &core[..]);
    let cores: Vec<&[usize]> = performance.chain(efficiency.iter().map(|core| &core[..])).collect();
    Machine::new().with_cores(&cores).with_device("system/cpu/online", "0-19")
}

#[test]
fn a_laptop_uses_its_performance_cores() {
    let named = laptop().with_device("cpu_core/cpus", "0-11").with_device("cpu_atom/cpus", "12-19");
    let by_number = |file: &str, fast: &str, slow: &str| {
        (0..20).fold(laptop(), |laptop, id| {
            let speed = if id < 12 { fast } else { slow };
            laptop.with_device(&format!("system/cpu/cpu{id}/{file}"), speed)
        })
    };
    let by_capacity = by_number("cpu_capacity", "1024", "440");
    let by_frequency = by_number("cpufreq/cpuinfo_max_freq", "5200000", "3700000");
    // Some cores reach a slightly higher frequency than others of the same kind.
    let by_frequency =
        by_frequency.with_device("system/cpu/cpu4/cpufreq/cpuinfo_max_freq", "5400000");
    for laptop in [named, by_capacity, by_frequency] {
        let topology = laptop.topology(0..20);
        assert_eq!(topology.default_cores(), [0, 2, 4, 6, 8, 10]);
        let expected = [
            "14 of 20 logical processors: SMT siblings share a core",
            "6 of 14 cores: the others are efficiency cores",
        ];
        assert_eq!(limits(&topology), expected);
        // More threads: the efficiency cores, and only then the siblings.
        let cores = topology.cores_for(15).unwrap();
        assert_eq!(cores[6..], [12, 13, 14, 15, 16, 17, 18, 19, 1]);
        assert_eq!(topology.cores_for(20).unwrap().len(), 20);
        assert_eq!((topology.cores_for(0), topology.cores_for(21)), (None, None));
        // Efficiency cores and siblings are used if there is nothing else.
        let efficiency = laptop.topology([1, 13, 12]);
        assert_eq!(efficiency.default_cores(), [1]);
        assert_eq!(laptop.topology(12..16).default_cores(), [12, 13, 14, 15]);
        let expected = ["4 of 20 logical processors: the affinity mask allows no others"];
        assert_eq!(limits(&laptop.topology(12..16)), expected);
    }
}

#[test]
fn cores_without_a_speed_are_equal() {
    // One core does not tell its capacity.
    let machine = Machine::new()
        .with_device("system/cpu/cpu0/cpu_capacity", "1024")
        .with_device("system/cpu/cpu1/cpu_capacity", "200");
    assert_eq!(machine.topology(0..3).default_cores(), [0, 1, 2]);
}

/// A server with two sockets of four cores, whose logical processors are numbered as many servers
/// do.
fn server() -> Machine {
    let cores: Vec<[usize; 2]> = (0..8).map(|core| [core, core + 8]).collect();
    let cores: Vec<&[usize]> = cores.iter().map(|core| &core[..]).collect();
    Machine::new()
        .with_cores(&cores)
        .with_device("system/cpu/online", "0-15")
        .with_device("system/node/node0/cpulist", "0-3,8-11")
        .with_device("system/node/node1/cpulist", "4-7,12-15")
        .with_device("system/node/node2/cpulist", "")
        .with_device("system/node/online", "0-2")
}

#[test]
fn no_default_group_straddles_numa_nodes() {
    let server = server();
    let topology = server.topology(0..16);
    let cores = topology.default_cores();
    assert_eq!(cores, [0, 1, 2, 3]);
    let placement = Placement::automatic(&cores, Some(1), 2).to_string();
    assert_eq!(placement, "drafter=cpu:0,target=cpu:1-2,target=cpu:3");
    let large_drafter = drafter_cores(cores.len(), 2.0);
    let placement = Placement::automatic(&cores, Some(large_drafter), 1).to_string();
    assert_eq!(placement, "drafter=cpu:0-1,target=cpu:2-3");
    let expected = [
        "8 of 16 logical processors: SMT siblings share a core",
        "4 of 8 cores: the others are on other NUMA nodes",
    ];
    assert_eq!(limits(&topology), expected);
    // A mask can make another node the largest.
    let topology = server.topology([2, 3, 5, 6, 7, 10]);
    assert_eq!(topology.default_cores(), [5, 6, 7]);
    // Requested threads fill the nodes one by one, and siblings last.
    assert_eq!(topology.cores_for(6).unwrap(), [5, 6, 7, 2, 3, 10]);
}

#[test]
fn a_fractional_quota_is_rounded_down() {
    let v2 = |max: &str| {
        let folder = "sys/fs/cgroup/docker/1a";
        server().with_cgroup("0::/docker/1a", V2).with(&format!("{folder}/cpu.max"), max)
    };
    let v1 = |quota: &str| {
        let folder = "sys/fs/cgroup/cpu,cpuacct/docker/1a";
        server()
            .with_cgroup("5:memory:/docker/1a\n4:cpu,cpuacct:/docker/1a\n0::/system", V1)
            .with(&format!("{folder}/cpu.cfs_quota_us"), quota)
            .with(&format!("{folder}/cpu.cfs_period_us"), "100000")
    };
    for (max, quota, threads, shown) in [
        ("150000 100000", "150000", 1, "cgroup quota 1.5 → at most 1 thread"),
        ("100000 100000", "100000", 1, "cgroup quota 1 → at most 1 thread"),
        ("25000 100000", "25000", 1, "cgroup quota 0.25 → at most 1 thread"),
        ("205000 100000", "205000", 2, "cgroup quota 2.05 → at most 2 threads"),
        ("9900000 100000", "9900000", 4, "cgroup quota 99 → at most 99 threads"),
    ] {
        for machine in [v2(max), v1(quota)] {
            let topology = machine.topology(0..16);
            assert_eq!(topology.default_cores().len(), threads, "{max}");
            assert_eq!(limits(&topology).last().map(String::as_str), Some(shown));
            // All groups of a method that drafts and verifies at the same time share the quota.
            let cores = topology.default_cores();
            for (drafter, replicas) in [(1, 4), (drafter_cores(cores.len(), 10.0), 1)] {
                let placement = Placement::automatic(&cores, Some(drafter), replicas);
                let used: usize =
                    placement.with_drafters(3).devices().iter().map(|d| d.0.cores().len()).sum();
                assert!(used <= threads, "{max}: {used}");
            }
            assert_eq!(topology.cores_for(16).map(|cores| cores.len()), Some(16));
        }
    }
    for machine in [v2("max 100000"), v2("100000 0"), v2("broken"), v1("-1")] {
        assert_eq!(machine.topology(0..16).quota(), None);
    }
}

#[test]
fn the_smallest_quota_of_nested_groups_counts() {
    let quota = |quotas: [&str; 3]| {
        let machine = server().with_cgroup("0::/a/b", V2);
        let folders = ["sys/fs/cgroup", "sys/fs/cgroup/a", "sys/fs/cgroup/a/b"];
        let machine = folders.iter().zip(quotas).fold(machine, |machine, (folder, quota)| {
            machine.with(&format!("{folder}/cpu.max"), quota)
        });
        machine.topology(0..16).quota().map(|quota| quota.to_string())
    };
    assert_eq!(quota(["max 100000", "300000 100000", "400000 100000"]).as_deref(), Some("3"));
    // Periods differ.
    assert_eq!(quota(["max 100000", "300000 100000", "50000 20000"]).as_deref(), Some("2.5"));
    assert_eq!(quota(["100000 100000", "max 100000", "max 100000"]).as_deref(), Some("1"));
    // The groups of another process do not count.
    let machine =
        server().with_cgroup("0::/a", V2).with("sys/fs/cgroup/b/cpu.max", "100000 100000");
    assert_eq!(machine.topology(0..16).quota(), None);
}

#[test]
fn a_container_sees_only_its_own_groups() {
    let quota = |group: &str, mounted: &str, folder: &str| {
        let mount = format!("29 23 0:26 {mounted} /sys/fs/cgroup ro - cgroup2 cgroup rw");
        let machine = server().with_cgroup(&format!("0::{group}"), &mount);
        let machine = machine.with(&format!("{folder}/cpu.max"), "200000 100000");
        machine.topology(0..16).quota().map(CpuQuota::threads)
    };
    // The container's group is mounted, and named as on the host.
    assert_eq!(quota("/docker/1a", "/docker/1a", "sys/fs/cgroup"), Some(2));
    assert_eq!(quota("/docker/1a/b", "/docker/1a", "sys/fs/cgroup/b"), Some(2));
    // A namespace of cgroups.
    assert_eq!(quota("/", "/", "sys/fs/cgroup"), Some(2));
    // The process is outside what is mounted. No folder outside the mount is read.
    assert_eq!(quota("/../other", "/", "sys/fs/cgroup"), Some(2));
    assert_eq!(quota("/../other", "/", "sys/fs/other"), None);
}

#[test]
fn a_machine_that_tells_nothing_has_a_core_for_each_processor() {
    let nothing = Machine::new();
    assert_eq!(nothing.topology([1, 2, 3]), Topology::uniform(&[1, 2, 3]));
    assert_eq!(nothing.topology([1, 2, 3]).default_cores(), [1, 2, 3]);
    assert!(limits(&nothing.topology([1, 2, 3])).is_empty());
    assert!(nothing.topology([]).default_cores().is_empty());
    let broken = Machine::new()
        .with_cores(&[&[]])
        .with_device("system/cpu/online", "3-1")
        .with_device("system/cpu/cpu0/topology/thread_siblings_list", "x")
        .with_device("system/cpu/cpu1/cpu_capacity", "fast")
        .with_device("system/node/node0/cpulist", "0-99999999999999999999")
        .with_device("system/node/nodes/cpulist", "0-1")
        .with_cgroup("0:cpu\n::\n4:cpu", "1 - cgroup\n1 2 - cgroup2");
    assert_eq!(broken.topology(0..2), Topology::uniform(&[0, 1]));
}

#[test]
fn this_machine_has_at_least_one_default_core() {
    let topology = Topology::of_this_machine();
    let processors = topology.processors();
    let cores = topology.default_cores();
    assert!(!cores.is_empty() && cores.iter().all(|core| processors.contains(core)));
    let granted = std::thread::available_parallelism().unwrap().get();
    assert!(cores.len() <= granted, "{cores:?}, but the standard library finds {granted}");
}
