//! Placements that nobody wrote.

use super::{DeviceGroup, DeviceGroups, Placement};

impl Placement {
    /// Creates the default placement.
    ///
    /// If `drafter_cores` is a number and there are at least two cores, the drafter gets so many of
    /// the first cores, and the target the others, at least one each. Otherwise both get all cores.
    /// The target's cores are divided between at most `replicas` replicas. With several replicas
    /// and no `drafter_cores`, there is no drafter group.
    #[must_use]
    pub fn automatic(available: &[usize], drafter_cores: Option<usize>, replicas: usize) -> Self {
        let group = DeviceGroups::single;
        let (drafter, target) = match drafter_cores {
            Some(count) if available.len() > 1 => {
                available.split_at(count.clamp(1, available.len() - 1))
            }
            _ => (available, available),
        };
        let separate = drafter_cores.is_some();
        if !separate && replicas <= 1 {
            let (drafters, targets) = (vec![group(available)], vec![group(available)]);
            return Self { drafters, targets, pace: None };
        }
        let replicas = replicas.clamp(1, target.len().max(1));
        let each = target.len().div_ceil(replicas).max(1);
        let drafters = if separate { vec![group(drafter)] } else { Vec::new() };
        Self { drafters, targets: target.chunks(each).map(group).collect(), pace: None }
    }

    /// Creates the placement of a single target, on a team of these cores.
    #[must_use]
    pub fn target_on(cores: &[usize]) -> Self {
        Self { drafters: Vec::new(), targets: vec![DeviceGroups::single(cores)], pace: None }
    }

    /// Returns the placement with a group for each of `count` drafters. An added group takes a core
    /// from the largest target group, if that has more than one; otherwise it repeats the first
    /// drafter's group.
    #[must_use]
    pub fn with_drafters(mut self, count: usize) -> Self {
        while let Some(first) = self.drafters.first().filter(|_| self.drafters.len() < count) {
            let targets = self.targets.iter_mut().flat_map(|groups| &mut groups.0);
            let largest = targets.max_by_key(|group| group.cores().len());
            let is_first =
                |group: &DeviceGroup| first.0.iter().any(|known| known.is_same_device(group));
            let core = largest.filter(|group| !is_first(group)).and_then(DeviceGroup::take_core);
            let groups = core.map_or_else(|| first.clone(), |core| DeviceGroups::single(&[core]));
            self.drafters.push(groups);
        }
        self
    }

    /// Returns the placement with a group for each of `count` drafters, which all use the first
    /// one's.
    #[must_use]
    pub fn with_drafters_in_turn(mut self, count: usize) -> Self {
        if let Some(first) = self.drafters.first().cloned() {
            self.drafters.resize(count.max(1), first);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_automatic_placement_separates_drafter_and_target_if_possible() {
        let replicated = |cores: &[usize], drafter, replicas| {
            Placement::automatic(cores, drafter, replicas).to_string()
        };
        let show = |cores: &[usize], drafter| replicated(cores, drafter, 1);
        assert_eq!(show(&[0, 1], Some(1)), "drafter=cpu:0,target=cpu:1");
        assert_eq!(show(&[2, 3, 4, 5], Some(1)), "drafter=cpu:2,target=cpu:3-5");
        assert_eq!(show(&[2, 3, 4, 5], Some(2)), "drafter=cpu:2-3,target=cpu:4-5");
        assert_eq!(show(&[2, 3, 4, 5], Some(9)), "drafter=cpu:2-4,target=cpu:5");
        assert_eq!(show(&[0, 1], Some(0)), "drafter=cpu:0,target=cpu:1");
        assert_eq!(show(&[0], Some(1)), "drafter=cpu:0,target=cpu:0,shared");
        assert_eq!(show(&[0, 1], None), "drafter=cpu:0-1,target=cpu:0-1,shared");
        let two = "drafter=cpu:0,target=cpu:1-2,target=cpu:3-4";
        assert_eq!(replicated(&[0, 1, 2, 3, 4], Some(1), 2), two);
        let uneven = "drafter=cpu:0-1,target=cpu:2-3,target=cpu:4";
        assert_eq!(replicated(&[0, 1, 2, 3, 4], Some(2), 2), uneven);
        assert_eq!(replicated(&[0, 1], Some(1), 4), "drafter=cpu:0,target=cpu:1");
        assert_eq!(replicated(&[0], Some(1), 4), "drafter=cpu:0,target=cpu:0,shared");
        assert_eq!(replicated(&[0, 1], None, 4), "target=cpu:0,target=cpu:1");
        let drafters = |cores: &[usize], replicas, count| {
            Placement::automatic(cores, Some(1), replicas).with_drafters(count).to_string()
        };
        assert_eq!(drafters(&[0, 1], 4, 2), "drafter=cpu:0,drafter=cpu:0,target=cpu:1,shared");
        assert_eq!(drafters(&[0, 1, 2], 1, 2), "drafter=cpu:0,drafter=cpu:2,target=cpu:1");
        assert_eq!(drafters(&[0, 1], 4, 1), drafters(&[0, 1], 4, 0));
        let in_turn = |drafter, count| {
            let placement = Placement::automatic(&[0, 1, 2], drafter, 1);
            placement.with_drafters_in_turn(count).to_string()
        };
        assert_eq!(in_turn(Some(1), 2), "drafter=cpu:0,drafter=cpu:0,target=cpu:1-2,shared");
        assert_eq!(in_turn(Some(1), 0), "drafter=cpu:0,target=cpu:1-2");
    }
}
