//! The cores that this process may use, and the ones that it uses by default.

mod quota;
mod system_files;

pub use quota::CpuQuota;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use system_files::SystemFiles;

/// The logical processors that a process may use, the cores and NUMA nodes that they belong to, and
/// the CPU quota of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The preferred ones first.
    processors: Vec<Processor>,
    /// The number of logical processors that are online, if the system tells.
    online: Option<usize>,
    quota: Option<CpuQuota>,
}

/// A logical processor that the process may use. Smaller ones are preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Processor {
    /// The number of processors before it on the same core.
    sibling: usize,
    on_efficiency_core: bool,
    /// The rank of its NUMA node: 0 is the node with the most cores.
    node: usize,
    id: usize,
}

/// What the system tells about a logical processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ProcessorFacts {
    id: usize,
    /// The first logical processor of the same core.
    core: usize,
    on_efficiency_core: bool,
    /// The number of its NUMA node.
    node: usize,
}

/// A reason why there are no more threads by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThreadLimit {
    /// The affinity mask excludes logical processors.
    AffinityMask {
        /// The number of logical processors in the mask.
        allowed: usize,
        /// The number of logical processors that are online.
        online: usize,
    },
    /// Several logical processors share a core.
    SmtSiblings {
        /// The number of cores.
        cores: usize,
        /// The number of logical processors on them.
        processors: usize,
    },
    /// Some cores are slower than the others.
    EfficiencyCores {
        /// The number of performance cores.
        performance: usize,
        /// The number of all cores.
        cores: usize,
    },
    /// The cores belong to several NUMA nodes.
    NumaNodes {
        /// The number of cores of the largest node.
        largest: usize,
        /// The number of cores of all nodes.
        cores: usize,
    },
    /// A cgroup limits the processor time.
    Quota(CpuQuota),
}

impl Topology {
    /// Returns the topology of this machine, for the calling thread's affinity mask.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let allowed = available_cores();
        if cfg!(target_os = "linux") {
            Self::read(Path::new("/"), &allowed)
        } else {
            Self::uniform(&allowed)
        }
    }

    /// Reads the topology from the files below `root`/proc and `root`/sys, as Linux describes it
    /// there. An affinity mask allows the given logical processors. Without files, each of them has
    /// a core of its own.
    #[must_use]
    pub fn read(root: &Path, allowed: &[usize]) -> Self {
        let files = SystemFiles::new(root);
        let (online, quota) = (files.online(), CpuQuota::read(root));
        Self { online, quota, ..Self::ranked(&files.processors(allowed)) }
    }

    /// Returns the topology of equal cores without SMT.
    #[must_use]
    pub fn uniform(cores: &[usize]) -> Self {
        let facts =
            |&id: &usize| ProcessorFacts { id, core: id, on_efficiency_core: false, node: 0 };
        Self::ranked(&cores.iter().map(facts).collect::<Vec<_>>())
    }

    fn ranked(facts: &[ProcessorFacts]) -> Self {
        let mut on_core: BTreeMap<usize, usize> = BTreeMap::new();
        let mut processors = Vec::new();
        for facts in facts {
            let count = on_core.entry(facts.core).or_default();
            let ProcessorFacts { id, on_efficiency_core, node, .. } = *facts;
            processors.push(Processor { sibling: *count, on_efficiency_core, node, id });
            *count += 1;
        }
        let mut topology = Self { processors, online: None, quota: None };
        topology.rank_nodes();
        topology.processors.sort_unstable();
        topology
    }

    /// Replaces the numbers of NUMA nodes by their ranks.
    fn rank_nodes(&mut self) {
        let mut cores: BTreeMap<usize, usize> = BTreeMap::new();
        for processor in self.best_cores() {
            *cores.entry(processor.node).or_default() += 1;
        }
        let size = |node: usize| cores.get(&node).copied().unwrap_or(0);
        let mut nodes: Vec<usize> =
            self.processors.iter().map(|processor| processor.node).collect();
        nodes.sort_by_key(|&node| (std::cmp::Reverse(size(node)), node));
        nodes.dedup();
        let rank = |node| nodes.iter().position(|&other| other == node).unwrap_or(0);
        for processor in &mut self.processors {
            processor.node = rank(processor.node);
        }
    }

    /// Returns one logical processor of each core.
    fn cores(&self) -> impl Iterator<Item = Processor> + '_ {
        self.processors.iter().copied().filter(|processor| processor.sibling == 0)
    }

    /// Returns one logical processor of each performance core, or of each core if there are no
    /// others.
    fn best_cores(&self) -> impl Iterator<Item = Processor> + '_ {
        let efficient = self.cores().all(|core| core.on_efficiency_core);
        self.cores().filter(move |core| core.on_efficiency_core == efficient)
    }

    /// Returns the number of best cores in the NUMA node that has most of them.
    fn largest_node(&self) -> usize {
        self.best_cores().filter(|core| core.node == 0).count()
    }

    /// Returns the logical processors that the process may use, in ascending order.
    #[must_use]
    pub fn processors(&self) -> Vec<usize> {
        let mut ids: Vec<usize> = self.processors.iter().map(|processor| processor.id).collect();
        ids.sort_unstable();
        ids
    }

    /// Returns the CPU quota, if there is one.
    #[must_use]
    pub fn quota(&self) -> Option<CpuQuota> {
        self.quota
    }

    /// Returns the cores for the threads of all teams together: one logical processor of each
    /// performance core of one NUMA node, and no more than the CPU quota has whole processors, but
    /// at least one.
    #[must_use]
    pub fn default_cores(&self) -> Vec<usize> {
        let quota = self.quota.map_or(usize::MAX, CpuQuota::threads);
        self.preferred(self.largest_node().min(quota))
    }

    /// Returns cores for a number of threads: those of the performance cores first, NUMA node by
    /// NUMA node, then efficiency cores, then further logical processors of the same cores. Returns
    /// `None` for no threads, and for more threads than logical processors. The CPU quota does not
    /// count.
    #[must_use]
    pub fn cores_for(&self, threads: usize) -> Option<Vec<usize>> {
        (1..=self.processors.len()).contains(&threads).then(|| self.preferred(threads))
    }

    fn preferred(&self, count: usize) -> Vec<usize> {
        self.processors.iter().take(count).map(|processor| processor.id).collect()
    }

    /// Returns the reasons why [`Topology::default_cores`] are no more.
    #[must_use]
    pub fn limits(&self) -> Vec<ThreadLimit> {
        let (allowed, cores) = (self.processors.len(), self.cores().count());
        let (performance, largest) = (self.best_cores().count(), self.largest_node());
        let mask = self.online.filter(|&online| allowed < online);
        let smt = ThreadLimit::SmtSiblings { cores, processors: allowed };
        let efficiency = ThreadLimit::EfficiencyCores { performance, cores };
        let nodes = ThreadLimit::NumaNodes { largest, cores: performance };
        let limits = [
            mask.map(|online| ThreadLimit::AffinityMask { allowed, online }),
            (cores < allowed).then_some(smt),
            (performance < cores).then_some(efficiency),
            (largest < performance).then_some(nodes),
            self.quota.map(ThreadLimit::Quota),
        ];
        limits.into_iter().flatten().collect()
    }
}

impl fmt::Display for ThreadLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AffinityMask { allowed, online } => {
                write!(
                    f,
                    "{allowed} of {online} logical processors: the affinity mask allows no others"
                )
            }
            Self::SmtSiblings { cores, processors } => {
                write!(f, "{cores} of {processors} logical processors: SMT siblings share a core")
            }
            Self::EfficiencyCores { performance, cores } => {
                write!(f, "{performance} of {cores} cores: the others are efficiency cores")
            }
            Self::NumaNodes { largest, cores } => {
                write!(f, "{largest} of {cores} cores: the others are on other NUMA nodes")
            }
            Self::Quota(quota) => {
                let threads = quota.threads();
                let s = if threads == 1 { "" } else { "s" };
                write!(f, "cgroup quota {quota} → at most {threads} thread{s}")
            }
        }
    }
}

/// Returns the logical processors that the calling thread may use, in ascending order.
#[must_use]
pub fn available_cores() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    if let Ok(set) = rustix::thread::sched_getaffinity(None) {
        return (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect();
    }
    (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
}

/// Returns the cores that this process uses by default ([`Topology::default_cores`]).
#[must_use]
pub fn default_cores() -> Vec<usize> {
    Topology::of_this_machine().default_cores()
}
