//! Placements: the assignment of drafters and target replicas to groups of cores, to GPUs, or to
//! ranks.

mod automatic;
mod error;
mod group;
mod parse;
mod validate;

pub use error::PlacementError;
pub use group::{DeviceGroup, DeviceGroups};

use crate::pace::{Pace, PassTimes};
use forerun_core::Role;
use std::fmt;

/// The device groups of the drafters and of the target replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    drafters: Vec<DeviceGroups>,
    targets: Vec<DeviceGroups>,
    /// How long passes take, if the devices are paced. Then each model has a device of its own, also
    /// on the same cores.
    pace: Option<Pace>,
}

impl Placement {
    /// Returns the ranks that have a model, in ascending order. There are none if the placement
    /// names cores.
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

    /// Returns whether there is a single target, and the drafters have no devices but the target's.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        let [target] = &self.targets[..] else { return false };
        if self.pace.is_some() {
            return self.drafters.is_empty();
        }
        if let [group] = target.as_slice()
            && let Some(rank) = group.rank()
        {
            return !group.has_several_ranks() && self.ranks() == [rank];
        }
        let is_targets = |group: &DeviceGroup| match group {
            DeviceGroup::Cores(cores) => {
                cores.iter().all(|core| target.cores().any(|own| own == *core))
            }
            DeviceGroup::Gpu(gpu) => target.0.iter().any(|own| own.gpu() == Some(*gpu)),
            DeviceGroup::Ranks { .. }
            | DeviceGroup::RankStages(_)
            | DeviceGroup::GpuAndCores { .. } => target.0.contains(group),
        };
        self.drafters.iter().flat_map(|groups| &groups.0).all(is_targets)
    }

    /// Returns how long the passes of its devices take, if they are paced.
    #[must_use]
    pub fn pace(&self) -> Option<&Pace> {
        self.pace.as_ref()
    }

    /// Returns the pass times of a role's device, if it is paced.
    #[must_use]
    pub fn pass_times(&self, role: Role) -> Option<&PassTimes> {
        self.pace.as_ref()?.times_of(role)
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

    /// Returns the GPU of a role, or that of its first layers; `None` if it is on cores or on a
    /// rank.
    #[must_use]
    pub fn gpu_of(&self, role: Role) -> Option<usize> {
        let groups = self.roles().find(|(own, _)| *own == role)?.1;
        groups.0.first().and_then(DeviceGroup::gpu)
    }

    /// Returns whether the first layers of a target replica are on a GPU, and the others on cores.
    #[must_use]
    pub fn is_split(&self, index: usize) -> bool {
        self.target(index).is_some_and(|groups| groups.0.iter().any(DeviceGroup::is_split))
    }

    /// Returns the placement with this number of the targets' first layers on a GPU. Targets on
    /// cores alone get GPU 0. `None` if a target cannot be split, because all of it is on a GPU or
    /// ranks, or on several groups.
    #[must_use]
    pub fn with_gpu_layers(mut self, layers: usize) -> Option<Self> {
        for groups in self.targets.iter_mut().filter(|groups| !groups.has_several()) {
            groups.move_layers(0, Some(layers));
        }
        let all_split = self.targets.iter_mut().all(|groups| groups.set_gpu_layers(layers));
        all_split.then_some(self)
    }

    /// Returns whether a drafter and a target are on the same GPU, as a whole or in part.
    #[must_use]
    pub fn has_drafter_on_gpu_of_target(&self) -> bool {
        let on = |models: &[DeviceGroups]| -> Vec<usize> {
            models.iter().flat_map(|groups| &groups.0).filter_map(DeviceGroup::gpu).collect()
        };
        let targets = on(&self.targets);
        on(&self.drafters).iter().any(|gpu| targets.contains(gpu))
    }

    /// Returns the placement of the first target replica alone.
    #[must_use]
    pub fn of_first_target(&self) -> Self {
        let targets = self.targets.iter().take(1).cloned().collect();
        Self { drafters: Vec::new(), targets, pace: self.pace.clone() }
    }

    /// Returns the groups of every role.
    fn roles(&self) -> impl Iterator<Item = (Role, &DeviceGroups)> {
        let drafters =
            self.drafters.iter().enumerate().map(|(i, groups)| (Role::Drafter(i), groups));
        let targets = self.targets.iter().enumerate().map(|(i, groups)| (Role::Target(i), groups));
        drafters.chain(targets)
    }

    /// Returns every device once, with the roles that run on it. Groups with the same cores are one
    /// device, unless they are paced.
    #[must_use]
    pub fn devices(&self) -> Vec<(DeviceGroup, Vec<Role>)> {
        let mut devices: Vec<(DeviceGroup, Vec<Role>)> = Vec::new();
        let groups =
            self.roles().flat_map(|(role, groups)| groups.0.iter().map(move |g| (role, g)));
        for (role, group) in groups {
            let is_same = |known: &DeviceGroup| self.pace.is_none() && known.is_same_device(group);
            match devices.iter_mut().find(|(known, _)| is_same(known)) {
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

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drafters = self.drafters.iter().map(|group| format!("drafter={group}"));
        let targets = self.targets.iter().map(|group| format!("target={group}"));
        let mut parts: Vec<String> = drafters.chain(targets).collect();
        let groups: usize = self.roles().map(|(_, groups)| groups.0.len()).sum();
        let gpus: Vec<usize> = self.all_groups().filter_map(DeviceGroup::gpu).collect();
        let shares_gpu = (1..gpus.len()).any(|at| gpus[..at].contains(&gpus[at]));
        if self.devices().len() < groups || shares_gpu {
            parts.push("shared".into());
        }
        parts.extend(self.pace.iter().map(|pace| format!("paced={}", pace.name)));
        f.write_str(&parts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORES: [usize; 6] = [0, 1, 2, 3, 6, 7];

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
    fn layers_move_to_a_gpu_from_cores_only() {
        let with = |text: &str, layers| {
            let placement = text.parse::<Placement>().unwrap();
            placement.with_gpu_layers(layers).map(|placement| placement.to_string())
        };
        let moved = with("drafter=cpu:0-1,target=cpu:0-1,shared", 3);
        assert_eq!(moved.as_deref(), Some("drafter=cpu:0-1,target=gpu:0:3/cpu:0-1,shared"));
        assert_eq!(with("target=gpu:1/cpu:0", 9).as_deref(), Some("target=gpu:1:9/cpu:0"));
        let replicas = with("drafter=cpu:0,target=cpu:1,target=cpu:2", 1);
        assert!(replicas.unwrap().ends_with("target=gpu:0:1/cpu:2,shared"));
        for text in ["target=gpu:0", "target=rank:0", "target=cpu:0/cpu:1"] {
            assert_eq!(with(text, 3), None, "{text}");
        }
        let shares_gpu = |text: &str| {
            let placement = text.parse::<Placement>().unwrap();
            let before = placement.has_drafter_on_gpu_of_target();
            [before, placement.with_gpu_layers(3).unwrap().has_drafter_on_gpu_of_target()]
        };
        assert_eq!(shares_gpu("drafter=gpu:0,target=cpu:0"), [false, true]);
        assert_eq!(shares_gpu("drafter=gpu:1,target=cpu:0"), [false, false]);
        assert_eq!(shares_gpu("drafter=gpu:0,target=gpu:0/cpu:0,shared"), [true, true]);
        let split = "drafter=cpu:0,target=gpu:0/cpu:1".parse::<Placement>().unwrap();
        assert_eq!(split.of_first_target().to_string(), "target=gpu:0/cpu:1");
        assert!(split.is_split(0) && !split.is_split(1));
        assert_eq!(split.gpu_of(Role::Target(0)), Some(0));
        assert!(split.multi_device_roles().is_empty());
    }

    #[test]
    fn shared_placements_have_one_target_with_all_cores() {
        let shared = |text: &str| Placement::parse(text, &[0, 1, 2, 3]).unwrap().is_shared();
        assert!(shared("drafter=cpu:0-3,target=cpu:0-3,shared") && shared("target=cpu:0-1"));
        assert!(!shared("drafter=cpu:0,target=cpu:1-3"));
        assert!(!shared("drafter=cpu:0,target=cpu:0,target=cpu:1,shared"));
        assert!(shared("drafter=gpu:0,target=gpu:0,shared") && shared("target=gpu:0"));
        assert!(shared("drafter=gpu:0,target=gpu:0/cpu:0,shared"));
        assert!(shared("drafter=cpu:0,target=gpu:0/cpu:0,shared"));
        assert!(!shared("drafter=gpu:0,target=cpu:0") && !shared("drafter=cpu:0,target=gpu:0"));
    }

    #[test]
    fn groups_of_the_same_cores_are_one_device() {
        let devices = Placement::automatic(&[0, 1], None, 1).devices();
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
