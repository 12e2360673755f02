//! Placements: the assignment of drafters and target replicas to groups of cores, to GPUs, or to ranks.

mod error;

pub use error::PlacementError;

use forerun_core::Role;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The cores that a placement can name are below this number.
const MAX_CORES: usize = 4096;

/// A rank that a placement names is below this number.
const MAX_RANKS: usize = 65_536;

/// A GPU that a placement names is below this number.
const MAX_GPUS: usize = 4096;

/// What works as one device: a group of cores of this machine, a GPU, or the cores of ranks, which are processes of
/// an MPI job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceGroup {
    /// Empty for a GPU, and for a rank: its process finds them.
    cores: Vec<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rank: Option<usize>,
    /// The other ranks that compute with `rank`, which leads them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    followers: Vec<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gpu: Option<usize>,
}

/// The device groups of one model: one group, or several groups that the model uses one after another.
/// With several groups, a target is split into pipeline stages, and a drafter alternates between the
/// target's first and last group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceGroups(Vec<DeviceGroup>);

/// The device groups of the drafters and of the target replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    drafters: Vec<DeviceGroups>,
    targets: Vec<DeviceGroups>,
}

impl DeviceGroup {
    /// Creates the group of these cores.
    #[must_use]
    pub fn new(cores: &[usize]) -> Self {
        Self { cores: cores.to_vec(), rank: None, followers: Vec::new(), gpu: None }
    }

    /// Creates the group of a rank's cores.
    #[must_use]
    pub fn of_rank(rank: usize) -> Self {
        Self { cores: Vec::new(), rank: Some(rank), followers: Vec::new(), gpu: None }
    }

    /// Creates the group of a GPU. GPUs are numbered from 0, in the order in which their drivers report them.
    #[must_use]
    pub fn of_gpu(gpu: usize) -> Self {
        Self { cores: Vec::new(), rank: None, followers: Vec::new(), gpu: Some(gpu) }
    }

    /// Returns the number of the GPU; `None` for cores.
    #[must_use]
    pub fn gpu(&self) -> Option<usize> {
        self.gpu
    }

    /// Returns the rank whose cores these are, or that leads the group's ranks; `None` for cores of this machine.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        self.rank
    }

    /// Returns all ranks of the group, the leader first. There are none for cores of this machine.
    #[must_use]
    pub fn ranks(&self) -> Vec<usize> {
        self.rank.iter().chain(&self.followers).copied().collect()
    }

    /// Returns whether several ranks compute a model together (tensor parallelism).
    #[must_use]
    pub fn has_several_ranks(&self) -> bool {
        !self.followers.is_empty()
    }

    /// Returns the cores, in the order of the team's members. There are none for a GPU, and for a rank, because
    /// only its process knows them.
    #[must_use]
    pub fn cores(&self) -> &[usize] {
        &self.cores
    }

    /// Returns whether both groups are the same device, regardless of the order of their cores.
    #[must_use]
    pub fn same_cores(&self, other: &Self) -> bool {
        (self.rank, self.gpu) == (other.rank, other.gpu)
            && self.followers == other.followers
            && self.cores.len() == other.cores.len()
            && self.cores.iter().all(|core| other.cores.contains(core))
    }

    fn parse(text: &str, available: &[usize]) -> Option<Result<Self, PlacementError>> {
        if text.starts_with("rank:") {
            return Self::parse_ranks(text);
        }
        if let Some(gpu) = text.strip_prefix("gpu:") {
            if gpu.contains('+') {
                return Some(Err(PlacementError::JoinedGpus { group: text.into() }));
            }
            let gpu = gpu.parse().ok().filter(|&gpu| gpu < MAX_GPUS)?;
            return Some(Ok(Self::of_gpu(gpu)));
        }
        let mut cores = Vec::new();
        for range in text.split('+') {
            let range = range.strip_prefix("cpu:")?;
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
            // A range beyond the available cores fails at its first missing core.
            for core in (first <= last).then_some(first..=last)? {
                let group = || text.to_owned();
                if !available.contains(&core) {
                    let available = format_ranges(available);
                    return Some(Err(PlacementError::NoSuchCore {
                        group: group(),
                        core,
                        available,
                    }));
                }
                if cores.contains(&core) {
                    return Some(Err(PlacementError::DuplicateCore { group: group(), core }));
                }
                cores.push(core);
            }
        }
        Some(Ok(Self::new(&cores)))
    }

    fn parse_ranks(text: &str) -> Option<Result<Self, PlacementError>> {
        let rank =
            |part: &str| part.strip_prefix("rank:")?.parse().ok().filter(|&it| it < MAX_RANKS);
        let ranks: Vec<usize> = text.split('+').map(rank).collect::<Option<_>>()?;
        if let Some(at) = (1..ranks.len()).find(|&at| ranks[..at].contains(&ranks[at])) {
            let (group, rank) = (text.to_owned(), ranks[at]);
            return Some(Err(PlacementError::DuplicateRank { group, rank }));
        }
        let (first, followers) = ranks.split_first()?;
        Some(Ok(Self { followers: followers.to_vec(), ..Self::of_rank(*first) }))
    }
}

impl DeviceGroups {
    /// Returns the groups, in the order of a target's layers.
    #[must_use]
    pub fn as_slice(&self) -> &[DeviceGroup] {
        &self.0
    }

    /// Returns whether there are several groups.
    #[must_use]
    pub fn has_several(&self) -> bool {
        self.0.len() > 1
    }

    /// Returns the cores of all groups.
    pub fn cores(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().flat_map(|group| group.cores.iter().copied())
    }

    fn single(cores: &[usize]) -> Self {
        Self(vec![DeviceGroup::new(cores)])
    }

    fn parse(text: &str, available: &[usize]) -> Option<Result<Self, PlacementError>> {
        let groups = text.split('/').map(|group| DeviceGroup::parse(group, available));
        let groups: Option<Result<Vec<DeviceGroup>, _>> = groups.collect();
        Some(groups?.and_then(|groups| {
            if groups.len() > 1 && groups.iter().any(|group| group.rank.is_some()) {
                return Err(PlacementError::SplitRanks { group: text.into() });
            }
            match groups.len() > 1 && groups.iter().any(|group| group.gpu.is_some()) {
                true => Err(PlacementError::JoinedGpus { group: text.into() }),
                false => Ok(Self(groups)),
            }
        }))
    }

    /// Returns the first and the last group, if there are several.
    fn first_and_last(&self) -> Option<Self> {
        let ends = [self.0.first()?, self.0.last()?];
        self.has_several().then(|| Self(ends.map(Clone::clone).into()))
    }
}

impl fmt::Display for DeviceGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&groups.join("/"))
    }
}

impl fmt::Display for DeviceGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.rank, self.gpu) {
            (Some(rank), _) => {
                write!(f, "rank:{rank}")?;
                self.followers.iter().try_for_each(|rank| write!(f, "+rank:{rank}"))
            }
            (None, Some(gpu)) => write!(f, "gpu:{gpu}"),
            (None, None) => write!(f, "cpu:{}", format_ranges(&self.cores)),
        }
    }
}

/// Formats cores as ranges: `0-3+cpu:8` for the cores 0, 1, 2, 3 and 8.
fn format_ranges(cores: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &core in cores {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == core => *last = core,
            _ => ranges.push((core, core)),
        }
    }
    let show = |&(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    ranges.iter().map(show).collect::<Vec<_>>().join("+cpu:")
}

impl Placement {
    /// Parses a placement, such as `drafter=cpu:0,target=cpu:1-3` or
    /// `drafter=cpu:0-3,target=cpu:0-3,shared`.
    ///
    /// `target=cpu:0/cpu:1` splits the target's layers between two groups. To use the target's first and
    /// last group for the drafter, too, write `drafter=cpu:0/cpu:1,target=cpu:0/cpu:1,shared`.
    ///
    /// `drafter=cpu:0-3,target=gpu:0` places the target on a GPU.
    ///
    /// `drafter=rank:0,target=rank:1` places models on the ranks of an MPI job. All groups name ranks then. The ranks
    /// of `target=rank:1+rank:2` compute one target together.
    ///
    /// # Errors
    /// [`PlacementError`] if the text cannot be read, names a core that is not `available` or names a
    /// core twice, if groups overlap that are not declared shared or cannot be shared, or if some groups name
    /// ranks and others cores.
    pub fn parse(text: &str, available: &[usize]) -> Result<Self, PlacementError> {
        let mut placement = Self { drafters: Vec::new(), targets: Vec::new() };
        let mut shared = false;
        for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
            let syntax = || PlacementError::Syntax { part: part.into(), text: text.into() };
            if part == "shared" {
                shared = true;
                continue;
            }
            let (role, group) = part.split_once('=').ok_or_else(syntax)?;
            let groups = match role {
                "drafter" => &mut placement.drafters,
                "target" => &mut placement.targets,
                _ => return Err(syntax()),
            };
            groups.push(DeviceGroups::parse(group, available).ok_or_else(syntax)??);
        }
        placement.check_ranks(shared)?;
        placement.check_gpus(shared)?;
        placement.check_replicas()?;
        placement.check_overlaps(shared)?;
        placement.check_split_drafters()?;
        Ok(placement)
    }

    /// Checks that every core is among the `available` ones.
    ///
    /// # Errors
    /// [`PlacementError::NoSuchCore`] names the first group with a core that is not.
    pub fn check_cores(&self, available: &[usize]) -> Result<(), PlacementError> {
        for group in self.all_groups() {
            if let Some(&core) = group.cores.iter().find(|core| !available.contains(core)) {
                let (group, available) = (group.to_string(), format_ranges(available));
                return Err(PlacementError::NoSuchCore { group, core, available });
            }
        }
        Ok(())
    }

    /// Creates the default placement.
    ///
    /// If `separate` is true and there are at least two cores, the drafter gets the first core and the
    /// target the others. Otherwise both get all cores. The target's cores are divided between at most
    /// `replicas` replicas. With several replicas and `separate` false, there is no drafter group.
    #[must_use]
    pub fn automatic(available: &[usize], separate: bool, replicas: usize) -> Self {
        let group = DeviceGroups::single;
        let (drafter, target) = match available {
            [first, rest @ ..] if separate && !rest.is_empty() => {
                (std::slice::from_ref(first), rest)
            }
            _ => (available, available),
        };
        if !separate && replicas <= 1 {
            return Self { drafters: vec![group(available)], targets: vec![group(available)] };
        }
        let replicas = replicas.clamp(1, target.len().max(1));
        let each = target.len().div_ceil(replicas).max(1);
        let drafters = if separate { vec![group(drafter)] } else { Vec::new() };
        Self { drafters, targets: target.chunks(each).map(group).collect() }
    }

    /// Creates the placement of a single target, on a team of these cores.
    #[must_use]
    pub fn target_on(cores: &[usize]) -> Self {
        Self { drafters: Vec::new(), targets: vec![DeviceGroups::single(cores)] }
    }

    /// Returns the placement with a group for each of `count` drafters. An added group takes a core from
    /// the largest target group, if that has more than one; otherwise it repeats the first drafter's
    /// group.
    #[must_use]
    pub fn with_drafters(mut self, count: usize) -> Self {
        while let Some(first) = self.drafters.first().filter(|_| self.drafters.len() < count) {
            let targets = self.targets.iter_mut().flat_map(|groups| &mut groups.0);
            let largest = targets.max_by_key(|group| group.cores.len());
            let is_first =
                |group: &DeviceGroup| first.0.iter().any(|known| known.same_cores(group));
            let spare = largest.filter(|group| group.cores.len() > 1 && !is_first(group));
            let core = spare.and_then(|group| group.cores.pop());
            let groups = core.map_or_else(|| first.clone(), |core| DeviceGroups::single(&[core]));
            self.drafters.push(groups);
        }
        self
    }

    /// Checks that there is one target group (or several, if the method uses `replicas`), and one drafter
    /// group for each of `drafters`.
    ///
    /// # Errors
    /// [`PlacementError`] if a role has no group, too many or too few.
    pub fn check_roles(&self, drafters: usize, replicas: bool) -> Result<(), PlacementError> {
        let many = if replicas { usize::MAX } else { 1 };
        let roles =
            [("target", &self.targets, 1, many), ("drafter", &self.drafters, drafters, drafters)];
        for (role, groups, needed, used) in roles {
            let (text, count, used) = (self.to_string(), groups.len(), used.max(1));
            if count == 0 && needed > 0 {
                return Err(PlacementError::MissingGroup { role, text });
            }
            if count > used {
                return Err(PlacementError::TooManyGroups { role, count, used, text });
            }
            if count < needed {
                return Err(PlacementError::TooFewGroups { count, drafters: needed, text });
            }
        }
        Ok(())
    }

    /// Returns the ranks that have a model, in ascending order. There are none if the placement names cores.
    #[must_use]
    pub fn ranks(&self) -> Vec<usize> {
        let mut ranks: Vec<usize> = self.all_groups().flat_map(DeviceGroup::ranks).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    fn all_groups(&self) -> impl Iterator<Item = &DeviceGroup> {
        self.roles().flat_map(|(_, groups)| &groups.0)
    }

    /// Checks that all groups name ranks if one does, and that roles on the same rank are declared shared.
    fn check_ranks(&self, shared: bool) -> Result<(), PlacementError> {
        let on_ranks = self.all_groups().filter(|group| group.rank.is_some()).count();
        match on_ranks {
            0 => return Ok(()),
            count if count < self.all_groups().count() => {
                return Err(PlacementError::RanksAndCores { text: self.to_string() });
            }
            _ => {}
        }
        let mut drafters = self.drafters.iter().flat_map(|groups| &groups.0);
        if let Some(group) = drafters.find(|group| group.has_several_ranks()) {
            return Err(PlacementError::DraftingRanks { group: group.to_string() });
        }
        for group in self.all_groups().filter(|group| group.has_several_ranks()) {
            let others = self.all_groups().filter(|other| !std::ptr::eq(*other, group));
            let others: Vec<usize> = others.flat_map(DeviceGroup::ranks).collect();
            if let Some(rank) = group.ranks().into_iter().find(|rank| others.contains(rank)) {
                return Err(PlacementError::SharedMember { rank, group: group.to_string() });
            }
        }
        let ranks: Vec<usize> = self.all_groups().flat_map(DeviceGroup::ranks).collect();
        let repeated = (1..ranks.len()).find(|&at| ranks[..at].contains(&ranks[at]));
        match repeated {
            Some(at) if !shared => Err(PlacementError::SharedRank { rank: ranks[at] }),
            _ => Ok(()),
        }
    }

    /// Checks that roles on the same GPU are declared shared.
    fn check_gpus(&self, shared: bool) -> Result<(), PlacementError> {
        let gpus: Vec<usize> = self.all_groups().filter_map(|group| group.gpu).collect();
        match (1..gpus.len()).find(|&at| gpus[..at].contains(&gpus[at])) {
            Some(at) if !shared => Err(PlacementError::SharedGpu { gpu: gpus[at] }),
            _ => Ok(()),
        }
    }

    /// Checks that all target replicas compute the same bits.
    fn check_replicas(&self) -> Result<(), PlacementError> {
        let is_on_gpu = |groups: &&DeviceGroups| groups.0.iter().any(|group| group.gpu.is_some());
        let (on_gpus, others): (Vec<_>, Vec<_>) = self.targets.iter().partition(is_on_gpu);
        match (on_gpus.first(), others.first()) {
            (Some(gpu), Some(other)) => Err(PlacementError::MixedReplicas {
                gpu: gpu.to_string(),
                other: other.to_string(),
            }),
            _ => Ok(()),
        }
    }

    fn check_overlaps(&self, shared: bool) -> Result<(), PlacementError> {
        let models: Vec<&DeviceGroups> = self.drafters.iter().chain(&self.targets).collect();
        let groups = models.iter().flat_map(|model| model.0.iter().map(|group| (*model, group)));
        let groups: Vec<(&DeviceGroups, &DeviceGroup)> = groups.collect();
        for (index, &(first_model, first)) in groups.iter().enumerate() {
            for &(second_model, second) in &groups[index + 1..] {
                let common = first.cores.iter().find(|core| second.cores.contains(core));
                let Some(&core) = common else { continue };
                if first_model.has_several() != second_model.has_several() {
                    let mut models = [first_model, second_model];
                    models.sort_by_key(|model| !model.has_several());
                    let [first, second] = models.map(ToString::to_string);
                    return Err(PlacementError::MixedDevices { core, first, second });
                }
                // A model cannot use the same group twice, even if it is declared shared.
                let others = !std::ptr::eq(first_model, second_model);
                if !(shared && others && first.same_cores(second)) {
                    let (first, second) = (first.to_string(), second.to_string());
                    return Err(PlacementError::Overlap { core, first, second });
                }
            }
        }
        Ok(())
    }

    /// Checks that drafters with several groups use the first and the last group of a target.
    fn check_split_drafters(&self) -> Result<(), PlacementError> {
        let ends: Vec<DeviceGroups> =
            self.targets.iter().filter_map(DeviceGroups::first_and_last).collect();
        let is_wrong = |groups: &&DeviceGroups| groups.has_several() && !ends.contains(groups);
        let Some(wrong) = self.drafters.iter().find(is_wrong) else { return Ok(()) };
        let target = ends.first().map(ToString::to_string);
        Err(PlacementError::NotFirstAndLast { drafter: wrong.to_string(), target })
    }

    /// Returns whether there is a single target, and the drafters have no devices but the target's.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        let [target] = &self.targets[..] else { return false };
        if let [DeviceGroup { rank: Some(rank), followers, .. }] = target.as_slice() {
            return followers.is_empty() && self.ranks() == [*rank];
        }
        let is_targets = |group: &DeviceGroup| match group.gpu {
            Some(_) => target.0.contains(group),
            None => group.cores.iter().all(|core| target.cores().any(|own| own == *core)),
        };
        self.drafters.iter().flat_map(|groups| &groups.0).all(is_targets)
    }

    /// Returns the number of target replicas (DSI's degree of speculation parallelism).
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.targets.len()
    }

    /// Returns the groups of a target replica.
    #[must_use]
    pub fn target(&self, index: usize) -> Option<&DeviceGroups> {
        self.targets.get(index)
    }

    /// Returns the groups of a drafter.
    #[must_use]
    pub fn drafter(&self, index: usize) -> Option<&DeviceGroups> {
        self.drafters.get(index)
    }

    /// Returns the GPU of a role; `None` if it is on cores or on a rank.
    #[must_use]
    pub fn gpu_of(&self, role: Role) -> Option<usize> {
        let groups = self.roles().find(|(own, _)| *own == role)?.1;
        groups.0.first().and_then(DeviceGroup::gpu)
    }

    /// Returns the groups of every role.
    fn roles(&self) -> impl Iterator<Item = (Role, &DeviceGroups)> {
        let drafters =
            self.drafters.iter().enumerate().map(|(i, groups)| (Role::Drafter(i), groups));
        let targets = self.targets.iter().enumerate().map(|(i, groups)| (Role::Target(i), groups));
        drafters.chain(targets)
    }

    /// Returns every device once, with the roles that run on it. Groups with the same cores are one
    /// device.
    #[must_use]
    pub fn devices(&self) -> Vec<(DeviceGroup, Vec<Role>)> {
        let mut devices: Vec<(DeviceGroup, Vec<Role>)> = Vec::new();
        let groups =
            self.roles().flat_map(|(role, groups)| groups.0.iter().map(move |g| (role, g)));
        for (role, group) in groups {
            match devices.iter_mut().find(|(known, _)| known.same_cores(group)) {
                Some((_, roles)) => roles.push(role),
                None => devices.push((group.clone(), vec![role])),
            }
        }
        devices
    }

    /// Returns the roles with several groups, which they use one after another.
    #[must_use]
    pub fn multi_device_roles(&self) -> Vec<(Role, DeviceGroups)> {
        let several = self.roles().filter(|(_, groups)| groups.has_several());
        several.map(|(role, groups)| (role, groups.clone())).collect()
    }
}

impl FromStr for Placement {
    type Err = PlacementError;

    /// Parses a placement as [`Placement::parse`] does, without looking at this machine's cores: see
    /// [`Placement::check_cores`].
    fn from_str(text: &str) -> Result<Self, PlacementError> {
        let any: Vec<usize> = (0..MAX_CORES).collect();
        Self::parse(text, &any).map_err(|error| match error {
            PlacementError::NoSuchCore { group, core, .. } => {
                PlacementError::CoreTooLarge { group, core, largest: MAX_CORES - 1 }
            }
            other => other,
        })
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drafters = self.drafters.iter().map(|group| format!("drafter={group}"));
        let targets = self.targets.iter().map(|group| format!("target={group}"));
        let mut parts: Vec<String> = drafters.chain(targets).collect();
        let groups: usize = self.roles().map(|(_, groups)| groups.0.len()).sum();
        if self.devices().len() < groups {
            parts.push("shared".into());
        }
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const CORES: [usize; 6] = [0, 1, 2, 3, 6, 7];

    #[test]
    fn placements_are_parsed_and_formatted() {
        for text in [
            "drafter=cpu:0,target=cpu:1-3",
            "drafter=cpu:2,target=cpu:0-1+cpu:6-7",
            "drafter=cpu:0-1,target=cpu:0-1,shared",
            "target=cpu:3",
            "drafter=cpu:1+cpu:0,target=cpu:0-1,shared",
            "drafter=cpu:0,target=cpu:1,target=cpu:2",
            "target=cpu:0/cpu:1-2/cpu:3",
            "drafter=cpu:3,target=cpu:0/cpu:1",
            "drafter=cpu:0/cpu:3,target=cpu:0/cpu:1-2/cpu:3,shared",
            "drafter=cpu:3,target=cpu:0/cpu:1,target=cpu:0/cpu:1,shared",
            "drafter=rank:0,target=rank:1",
            "drafter=cpu:0,target=gpu:0",
            "drafter=gpu:1,target=gpu:1,shared",
            "drafter=gpu:0,target=gpu:1,target=gpu:3",
            "drafter=rank:0,target=rank:0,target=rank:7,shared",
            "drafter=rank:0,target=rank:2+rank:1,target=rank:3",
        ] {
            assert_eq!(Placement::parse(text, &CORES).unwrap().to_string(), text);
        }
        let spaced = Placement::parse("drafter=cpu:0 target=cpu:1", &CORES).unwrap();
        assert!(spaced.target(0).unwrap().cores().eq([1]));
    }

    #[test]
    fn invalid_placements_are_rejected_with_a_reason() {
        for (text, words) in [
            ("drafter=cpu:0,target=cpu:9", &["core 9", "cpu:9", "0-3+cpu:6-7"][..]),
            ("target=cpu:0-2+cpu:1", &["core 1 twice"]),
            ("drafter=cpu:0-1,target=cpu:1-2", &["core 1", "cpu:0-1", "cpu:1-2", "shared"]),
            ("drafter=cpu:0-1,target=cpu:1-2,shared", &["exactly the same cores"]),
            ("drafter=cpu:0,target=cpu:0", &["shared"]),
            ("target=tpu:0", &["tpu:0", "cpu:"]),
            ("target=cpu:3-1", &["cpu:3-1"]),
            ("target=cpu:", &["target=cpu:"]),
            ("target=cpu:0-99999999999999999999", &["target="]),
            ("target=cpu:0-4000000000", &["core 4"]),
            ("target=cpu:0/", &["target=cpu:0/"]),
            ("target=cpu:0/cpu:0,shared", &["core 0", "two groups"]),
            ("target=cpu:0/cpu:1,target=cpu:0/cpu:1", &["core 0", "shared"]),
            (
                "drafter=cpu:0,target=cpu:0/cpu:1,shared",
                &["core 0 is in cpu:0/cpu:1, the groups of a model on several devices"],
            ),
            ("drafter=cpu:0/cpu:1,target=cpu:0-1,shared", &["core 0 is in cpu:0/cpu:1", "cpu:0-1"]),
            ("drafter=cpu:0/cpu:1,target=cpu:0/cpu:1/cpu:2,shared", &["write drafter=cpu:0/cpu:2"]),
            ("drafter=cpu:1/cpu:0,target=cpu:0/cpu:1,shared", &["write drafter=cpu:0/cpu:1"]),
            ("drafter=cpu:0/cpu:1,target=cpu:2", &["drafter=cpu:0/cpu:1", "target several"]),
            ("drafter=rank:0,target=cpu:1", &["drafter=rank:0,target=cpu:1", "ranks or cores"]),
            ("drafter=rank:1,target=rank:1", &["rank 1 is in two groups", "shared"]),
            ("target=rank:1+rank:1", &["rank:1+rank:1", "rank 1 twice"]),
            ("target=rank:1+cpu:1", &["target=rank:1+cpu:1"]),
            ("drafter=rank:1+rank:2,target=rank:3", &["rank:1+rank:2", "one rank"]),
            (
                "drafter=rank:2,target=rank:1+rank:2,shared",
                &["rank 2", "rank:1+rank:2", "no other"],
            ),
            ("target=rank:1/rank:2", &["rank:1/rank:2", "target=rank:1,target=rank:2"]),
            ("target=rank:x", &["target=rank:x"]),
            ("target=gpu:", &["target=gpu:"]),
            ("target=gpu:99999", &["target=gpu:99999"]),
            ("drafter=gpu:1,target=gpu:1", &["GPU 1 is in two groups", "shared"]),
            ("target=gpu:0+gpu:1", &["gpu:0+gpu:1", "one GPU"]),
            ("target=gpu:0/cpu:0", &["gpu:0/cpu:0", "one GPU"]),
            ("target=cpu:0,target=gpu:1", &["cpu:0", "gpu:1", "same kind"]),
            ("drafter=rank:0,target=gpu:0", &["drafter=rank:0,target=gpu:0", "ranks or cores"]),
            ("target=rank:99999999", &["target=rank:99999999"]),
            ("verifier=cpu:0", &["verifier"]),
            ("nonsense", &["nonsense", "drafter=cpu:0"]),
        ] {
            let message = Placement::parse(text, &CORES).unwrap_err().to_string();
            for word in words {
                assert!(message.contains(word), "{text}: {message}");
            }
        }
    }

    #[test]
    fn a_placement_for_another_machine_is_read_and_its_cores_are_checked() {
        let placement: Placement = "drafter=cpu:0,target=cpu:1-9".parse().unwrap();
        assert_eq!(placement.to_string(), "drafter=cpu:0,target=cpu:1-9");
        let error = placement.check_cores(&CORES).unwrap_err().to_string();
        assert!(error.contains("cpu:1-9") && error.contains("core 4"), "{error}");
        assert_eq!(placement.check_cores(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), Ok(()));
        let error = "target=cpu:0-4000000000".parse::<Placement>().unwrap_err().to_string();
        let expected = "group cpu:0-4000000000 names core 4096, but core ids are at most 4095";
        assert_eq!(error, expected);
    }

    #[test]
    fn roles_are_checked_against_the_method() {
        let check = |text, drafter| {
            let placement = Placement::parse(text, &CORES).unwrap();
            placement.check_roles(drafter, false).map_err(|error| error.to_string())
        };
        let replicas = Placement::parse("target=cpu:0,target=cpu:1", &CORES).unwrap();
        assert_eq!((replicas.check_roles(0, true), replicas.replicas()), (Ok(()), 2));
        assert_eq!(check("target=cpu:0", 0), Ok(()));
        assert!(check("target=cpu:0", 1).unwrap_err().contains("no drafter group"));
        assert!(check("drafter=cpu:0", 1).unwrap_err().contains("no target group"));
        assert!(check("target=cpu:0,target=cpu:1", 0).unwrap_err().contains("2 target groups"));
        let two = "drafter=cpu:0,drafter=cpu:0,target=cpu:1,shared";
        assert_eq!(check(two, 2), Ok(()));
        assert!(check(two, 1).unwrap_err().contains("2 drafter groups, but this method uses one"));
        assert!(check(two, 3).unwrap_err().contains("2 drafter groups for 3 drafters"));
    }

    #[test]
    fn the_automatic_placement_separates_drafter_and_target_if_possible() {
        let replicated = |cores: &[usize], separate, replicas| {
            Placement::automatic(cores, separate, replicas).to_string()
        };
        let show = |cores: &[usize], separate| replicated(cores, separate, 1);
        assert_eq!(show(&[0, 1], true), "drafter=cpu:0,target=cpu:1");
        assert_eq!(show(&[2, 3, 4, 5], true), "drafter=cpu:2,target=cpu:3-5");
        assert_eq!(show(&[0], true), "drafter=cpu:0,target=cpu:0,shared");
        assert_eq!(show(&[0, 1], false), "drafter=cpu:0-1,target=cpu:0-1,shared");
        let two = "drafter=cpu:0,target=cpu:1-2,target=cpu:3-4";
        assert_eq!(replicated(&[0, 1, 2, 3, 4], true, 2), two);
        assert_eq!(replicated(&[0, 1], true, 4), "drafter=cpu:0,target=cpu:1");
        assert_eq!(replicated(&[0], true, 4), "drafter=cpu:0,target=cpu:0,shared");
        assert_eq!(replicated(&[0, 1], false, 4), "target=cpu:0,target=cpu:1");
        let drafters = |cores: &[usize], replicas, count| {
            Placement::automatic(cores, true, replicas).with_drafters(count).to_string()
        };
        assert_eq!(drafters(&[0, 1], 4, 2), "drafter=cpu:0,drafter=cpu:0,target=cpu:1,shared");
        assert_eq!(drafters(&[0, 1, 2], 1, 2), "drafter=cpu:0,drafter=cpu:2,target=cpu:1");
        assert_eq!(drafters(&[0, 1], 4, 1), drafters(&[0, 1], 4, 0));
    }

    #[test]
    fn placements_on_ranks_know_their_ranks() {
        let parse = |text: &str| text.parse::<Placement>().unwrap();
        let three = parse("drafter=rank:3,target=rank:0,target=rank:2");
        assert_eq!((three.ranks(), three.replicas()), (vec![0, 2, 3], 2));
        assert_eq!(three.check_cores(&[]), Ok(()));
        assert!(parse("target=cpu:0").ranks().is_empty());
        assert!(!three.is_shared() && !parse("drafter=rank:0,target=rank:1").is_shared());
        assert!(parse("drafter=rank:1,target=rank:1,shared").is_shared());
        let together = parse("drafter=rank:0,target=rank:3+rank:1");
        assert_eq!((together.ranks(), together.replicas()), (vec![0, 1, 3], 1));
        let group = &together.target(0).unwrap().as_slice()[0];
        assert_eq!((group.rank(), group.ranks()), (Some(3), vec![3, 1]));
        let devices = parse("drafter=rank:1,target=rank:1,target=rank:0,shared").devices();
        let both = vec![Role::Drafter(0), Role::Target(0)];
        let expected = [(1, both), (0, vec![Role::Target(1)])];
        assert_eq!(devices, expected.map(|(rank, roles)| (DeviceGroup::of_rank(rank), roles)));
    }

    #[test]
    fn shared_placements_have_one_target_with_all_cores() {
        let shared = |text: &str| Placement::parse(text, &[0, 1, 2, 3]).unwrap().is_shared();
        assert!(shared("drafter=cpu:0-3,target=cpu:0-3,shared") && shared("target=cpu:0-1"));
        assert!(!shared("drafter=cpu:0,target=cpu:1-3"));
        assert!(!shared("drafter=cpu:0,target=cpu:0,target=cpu:1,shared"));
        assert!(shared("drafter=gpu:0,target=gpu:0,shared") && shared("target=gpu:0"));
        assert!(!shared("drafter=gpu:0,target=cpu:0") && !shared("drafter=cpu:0,target=gpu:0"));
    }

    #[test]
    fn groups_of_the_same_cores_are_one_device() {
        let devices = Placement::automatic(&[0, 1], false, 1).devices();
        assert_eq!(devices.len(), 1);
        assert_eq!(devices[0].1, [Role::Drafter(0), Role::Target(0)]);
        let pipeline = "drafter=cpu:0/cpu:3,target=cpu:0/cpu:1-2/cpu:3,shared";
        let placement = Placement::parse(pipeline, &CORES).unwrap();
        let devices = placement.devices().into_iter();
        let devices: Vec<_> = devices.map(|(group, roles)| (group.to_string(), roles)).collect();
        let both = vec![Role::Drafter(0), Role::Target(0)];
        let expected =
            [("cpu:0", both.clone()), ("cpu:3", both), ("cpu:1-2", vec![Role::Target(0)])];
        assert_eq!(devices, expected.map(|(group, roles)| (group.to_owned(), roles)));
        let multi_device_roles = placement
            .multi_device_roles()
            .into_iter()
            .map(|(role, groups)| (role, groups.to_string()));
        let expected =
            [(Role::Drafter(0), "cpu:0/cpu:3"), (Role::Target(0), "cpu:0/cpu:1-2/cpu:3")];
        assert!(multi_device_roles.eq(expected.map(|(role, text)| (role, text.to_owned()))));
    }
}
