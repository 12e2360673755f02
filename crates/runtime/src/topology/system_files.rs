//! The files below `/sys` in which Linux describes processors.

use super::ProcessorFacts;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

/// A core with less than this share of the fastest core's speed is an efficiency core: more than
/// the cores of one kind differ, and less than the kinds do.
const EFFICIENCY_SHARE: f64 = 0.75;

/// Reads the files of `/sys/devices`, below any root folder.
pub(super) struct SystemFiles {
    devices: PathBuf,
}

/// Ranges of numbers, written as `0-3,8`.
struct NumberList(Vec<RangeInclusive<usize>>);

impl NumberList {
    fn parse(text: &str) -> Option<Self> {
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            (first <= last).then_some(first..=last)
        };
        text.trim().split(',').map(range).collect::<Option<_>>().map(Self)
    }

    fn contains(&self, number: usize) -> bool {
        self.0.iter().any(|range| range.contains(&number))
    }

    fn first(&self) -> Option<usize> {
        self.0.first().map(|range| *range.start())
    }

    fn count(&self) -> usize {
        let lengths = self.0.iter().map(|range| (range.end() - range.start()).saturating_add(1));
        lengths.fold(0, usize::saturating_add)
    }
}

impl SystemFiles {
    pub(super) fn new(root: &Path) -> Self {
        Self { devices: root.join("sys/devices") }
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.devices.join(file)).ok()
    }

    fn list(&self, file: &str) -> Option<NumberList> {
        NumberList::parse(&self.read(file)?)
    }

    /// Returns the number of logical processors that are online.
    pub(super) fn online(&self) -> Option<usize> {
        self.list("system/cpu/online").map(|list| list.count())
    }

    /// Describes the given logical processors.
    pub(super) fn processors(&self, ids: &[usize]) -> Vec<ProcessorFacts> {
        let nodes = self.nodes();
        let node = |id| nodes.iter().find(|(_, list)| list.contains(id)).map_or(0, |node| node.0);
        let describe = |(&id, on_efficiency_core): (&usize, bool)| {
            let siblings = self.list(&format!("system/cpu/cpu{id}/topology/thread_siblings_list"));
            let core = siblings.and_then(|siblings| siblings.first()).unwrap_or(id);
            ProcessorFacts { id, core, on_efficiency_core, node: node(id) }
        };
        ids.iter().zip(self.on_efficiency_cores(ids)).map(describe).collect()
    }

    /// Returns the processors of each NUMA node.
    fn nodes(&self) -> Vec<(usize, NumberList)> {
        let entries =
            fs::read_dir(self.devices.join("system/node")).into_iter().flatten().flatten();
        let node = |entry: fs::DirEntry| {
            let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            Some((number, self.list(&format!("system/node/node{number}/cpulist"))?))
        };
        entries.filter_map(node).collect()
    }

    /// Returns which processors are on efficiency cores: as the system names them (Intel), or by
    /// their capacity (Arm), or by their largest frequency.
    fn on_efficiency_cores(&self, ids: &[usize]) -> Vec<bool> {
        if let Some(performance) = self.list("cpu_core/cpus") {
            return ids.iter().map(|&id| !performance.contains(id)).collect();
        }
        let speeds = self.numbers(ids, "cpu_capacity");
        let speeds = speeds.or_else(|| self.numbers(ids, "cpufreq/cpuinfo_max_freq"));
        let Some(speeds) = speeds else { return vec![false; ids.len()] };
        let least = speeds.iter().copied().fold(0.0, f64::max) * EFFICIENCY_SHARE;
        speeds.iter().map(|&speed| speed < least).collect()
    }

    /// Reads a number of each processor, or `None` if one has none.
    fn numbers(&self, ids: &[usize], file: &str) -> Option<Vec<f64>> {
        let number = |id| self.read(&format!("system/cpu/cpu{id}/{file}"))?.trim().parse().ok();
        ids.iter().map(number).collect()
    }
}
