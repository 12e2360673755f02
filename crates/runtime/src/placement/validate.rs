//! Which placements are valid.

use super::group::format_ranges;
use super::{DeviceGroup, DeviceGroups, Placement, PlacementError};
use crate::pace::Pace;

impl Placement {
    /// Checks that groups which overlap are declared `shared` and can be, and that all can work
    /// together.
    pub(super) fn check(&self, shared: bool) -> Result<(), PlacementError> {
        self.check_ranks(shared)?;
        self.check_gpus(shared)?;
        self.check_replicas()?;
        if let Some(pace) = &self.pace {
            return self.check_paced(pace, shared);
        }
        self.check_overlaps(shared)?;
        self.check_split_drafters()
    }

    /// Checks that every model has one device in this process, and a time for its passes.
    fn check_paced(&self, pace: &Pace, shared: bool) -> Result<(), PlacementError> {
        if shared {
            return Err(PlacementError::PacedShared);
        }
        let is_elsewhere = |group: &DeviceGroup| group.rank().is_some();
        let mut models = self.roles().map(|(_, groups)| groups);
        let cannot = models.find(|it| it.has_several() || it.0.iter().any(is_elsewhere));
        if let Some(groups) = cannot {
            return Err(PlacementError::PacedGroup { group: groups.to_string() });
        }
        match self.drafters.is_empty() || pace.drafter.is_some() {
            true => Ok(()),
            false => Err(PlacementError::NoPaceOfDrafter { name: pace.name.clone() }),
        }
    }

    /// Checks that every core is among the `available` ones.
    ///
    /// # Errors
    /// [`PlacementError::NoSuchCore`] names the first group with a core that is not.
    pub fn check_cores(&self, available: &[usize]) -> Result<(), PlacementError> {
        for group in self.all_groups() {
            if let Some(&core) = group.cores().iter().find(|core| !available.contains(core)) {
                let (group, available) = (group.to_string(), format_ranges(available));
                return Err(PlacementError::NoSuchCore { group, core, available });
            }
        }
        Ok(())
    }

    /// Checks that there is one target group (or several, if the method uses `replicas`), and one
    /// drafter group for each of `drafters`.
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

    /// Checks that all groups name ranks if one does, and that roles on the same rank are declared
    /// shared.
    fn check_ranks(&self, shared: bool) -> Result<(), PlacementError> {
        let on_ranks = self.all_groups().filter(|group| group.rank().is_some()).count();
        match on_ranks {
            0 => return Ok(()),
            count if count < self.all_groups().count() => {
                return Err(PlacementError::RanksAndCores { text: self.to_string() });
            }
            _ => {}
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
        let mut drafters = self.drafters.iter().flat_map(|groups| &groups.0);
        if let Some(group) = drafters.find(|group| group.is_split()) {
            return Err(PlacementError::SplitDrafter { group: group.to_string() });
        }
        let gpus: Vec<usize> = self.all_groups().filter_map(DeviceGroup::gpu).collect();
        match (1..gpus.len()).find(|&at| gpus[..at].contains(&gpus[at])) {
            Some(at) if !shared => Err(PlacementError::SharedGpu { gpu: gpus[at] }),
            _ => Ok(()),
        }
    }

    /// Checks that all target replicas compute the same bits.
    fn check_replicas(&self) -> Result<(), PlacementError> {
        let bits = |groups: &DeviceGroups| match groups.0.first() {
            Some(DeviceGroup::GpuAndCores { layers, .. }) => (true, Some(*layers)),
            Some(DeviceGroup::Gpu(_)) => (true, None),
            _ => (false, None),
        };
        let on_gpu = self.targets.iter().find(|groups| bits(groups).0);
        let Some(on_gpu) = on_gpu else { return Ok(()) };
        match self.targets.iter().find(|groups| bits(groups) != bits(on_gpu)) {
            Some(other) => Err(PlacementError::MixedReplicas {
                gpu: on_gpu.to_string(),
                other: other.to_string(),
            }),
            None => Ok(()),
        }
    }

    fn check_overlaps(&self, shared: bool) -> Result<(), PlacementError> {
        let models: Vec<&DeviceGroups> = self.drafters.iter().chain(&self.targets).collect();
        let groups = models.iter().flat_map(|model| model.0.iter().map(|group| (*model, group)));
        let groups: Vec<(&DeviceGroups, &DeviceGroup)> = groups.collect();
        for (index, &(first_model, first)) in groups.iter().enumerate() {
            for &(second_model, second) in &groups[index + 1..] {
                let common = first.cores().iter().find(|core| second.cores().contains(core));
                let Some(&core) = common else { continue };
                if first_model.has_several() != second_model.has_several() {
                    let mut models = [first_model, second_model];
                    models.sort_by_key(|model| !model.has_several());
                    let [first, second] = models.map(ToString::to_string);
                    return Err(PlacementError::MixedDevices { core, first, second });
                }
                // A model cannot use the same group twice, even if it is declared shared.
                let others = !std::ptr::eq(first_model, second_model);
                if !(shared && others && first.is_same_device(second)) {
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const CORES: [usize; 6] = [0, 1, 2, 3, 6, 7];

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
}
