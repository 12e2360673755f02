//! Which device groups run what.

mod error;

pub use error::PlacementError;

use forerun_core::Role;
use std::fmt;

/// Cores that work as one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceGroup {
    cores: Vec<usize>,
}

/// The device groups of one model: one, or several that it has in turn. A target's are the stages of a
/// pipeline; a drafter's are the first and the last of the target's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups(Vec<DeviceGroup>);

/// Device groups of the drafters and of the target replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    drafters: Vec<Groups>,
    targets: Vec<Groups>,
}

impl DeviceGroup {
    /// The cores, in the order of the team's members.
    #[must_use]
    pub fn cores(&self) -> &[usize] {
        &self.cores
    }

    /// Whether it is the same device, in whatever order its cores are named.
    #[must_use]
    pub fn same_cores(&self, other: &Self) -> bool {
        self.cores.len() == other.cores.len()
            && self.cores.iter().all(|core| other.cores.contains(core))
    }

    fn parse(text: &str, available: &[usize]) -> Option<Result<Self, PlacementError>> {
        let mut cores = Vec::new();
        for range in text.split('+') {
            let range = range.strip_prefix("cpu:")?;
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
            // A range that leaves the machine is refused at its first missing core.
            for core in (first <= last).then_some(first..=last)? {
                let group = || text.to_owned();
                if !available.contains(&core) {
                    let available = describe(available);
                    return Some(Err(PlacementError::NoSuchCore {
                        group: group(),
                        core,
                        available,
                    }));
                }
                if cores.contains(&core) {
                    return Some(Err(PlacementError::Twice { group: group(), core }));
                }
                cores.push(core);
            }
        }
        Some(Ok(Self { cores }))
    }
}

impl Groups {
    /// The groups, in the order in which a target's layers are on them.
    #[must_use]
    pub fn each(&self) -> &[DeviceGroup] {
        &self.0
    }

    /// Whether there are several.
    #[must_use]
    pub fn are_several(&self) -> bool {
        self.0.len() > 1
    }

    /// The cores of all of them.
    pub fn cores(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().flat_map(|group| group.cores.iter().copied())
    }

    fn one(cores: &[usize]) -> Self {
        Self(vec![DeviceGroup { cores: cores.to_vec() }])
    }

    fn parse(text: &str, available: &[usize]) -> Option<Result<Self, PlacementError>> {
        let groups = text.split('/').map(|group| DeviceGroup::parse(group, available));
        let groups: Option<Result<Vec<_>, _>> = groups.collect();
        Some(groups?.map(Self))
    }

    /// Their first and their last, if there are several.
    fn ends(&self) -> Option<Self> {
        let ends = [self.0.first()?, self.0.last()?];
        self.are_several().then(|| Self(ends.map(Clone::clone).into()))
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&groups.join("/"))
    }
}

impl fmt::Display for DeviceGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu:{}", describe(&self.cores))
    }
}

/// `0-3,8` for cores 0, 1, 2, 3 and 8.
fn describe(cores: &[usize]) -> String {
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
    /// Reads a placement such as `drafter=cpu:0,target=cpu:1-3` or
    /// `drafter=cpu:0-3,target=cpu:0-3,shared`; or, for a target whose layers are on several groups,
    /// `target=cpu:0/cpu:1`, with a drafter on the first and the last of them
    /// `drafter=cpu:0/cpu:1,target=cpu:0/cpu:1,shared`.
    ///
    /// # Errors
    /// If it cannot be read, names cores that are not `available`, names a core twice, or lets
    /// groups overlap that are not declared shared or cannot be.
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
            groups.push(Groups::parse(group, available).ok_or_else(syntax)??);
        }
        placement.check_overlaps(shared)?;
        placement.check_halves()?;
        Ok(placement)
    }

    /// A drafter of its own core where there are two cores, the target on the rest; or the target
    /// on all cores where no drafter needs any (`separate` is false). The target's cores are shared out
    /// among up to `replicas` replicas.
    #[must_use]
    pub fn automatic(available: &[usize], separate: bool, replicas: usize) -> Self {
        let group = Groups::one;
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

    /// The same with a group for each of `count` drafters: of a core of its own where the targets have one
    /// to spare, else of the first drafter's.
    #[must_use]
    pub fn with_drafters(mut self, count: usize) -> Self {
        while let Some(first) = self.drafters.first().filter(|_| self.drafters.len() < count) {
            let targets = self.targets.iter_mut().flat_map(|groups| &mut groups.0);
            let largest = targets.max_by_key(|group| group.cores.len());
            let is_first = |group: &DeviceGroup| first.0.iter().any(|own| own.same_cores(group));
            let spare = largest.filter(|group| group.cores.len() > 1 && !is_first(group));
            let core = spare.and_then(|group| group.cores.pop());
            let groups = core.map_or_else(|| first.clone(), |core| Groups::one(&[core]));
            self.drafters.push(groups);
        }
        self
    }

    /// Checks that there is one target group, or several where the method uses `replicas`, and a drafter
    /// group for each of `drafters`.
    ///
    /// # Errors
    /// Names the role that is missing or has too many or too few groups.
    pub fn check_roles(&self, drafters: usize, replicas: bool) -> Result<(), PlacementError> {
        let many = if replicas { usize::MAX } else { 1 };
        let roles =
            [("target", &self.targets, 1, many), ("drafter", &self.drafters, drafters, drafters)];
        for (role, groups, needed, used) in roles {
            let (text, count, used) = (self.to_string(), groups.len(), used.max(1));
            if count == 0 && needed > 0 {
                return Err(PlacementError::Missing { role, text });
            }
            if count > used {
                return Err(PlacementError::TooMany { role, count, used, text });
            }
            if count < needed {
                return Err(PlacementError::TooFew { count, drafters: needed, text });
            }
        }
        Ok(())
    }

    fn check_overlaps(&self, shared: bool) -> Result<(), PlacementError> {
        let models: Vec<&Groups> = self.drafters.iter().chain(&self.targets).collect();
        let groups = models.iter().flat_map(|own| own.0.iter().map(|group| (*own, group)));
        let groups: Vec<(&Groups, &DeviceGroup)> = groups.collect();
        for (index, &(first_model, first)) in groups.iter().enumerate() {
            for &(second_model, second) in &groups[index + 1..] {
                let common = first.cores.iter().find(|core| second.cores.contains(core));
                let Some(&core) = common else { continue };
                if first_model.are_several() != second_model.are_several() {
                    let mut models = [first_model, second_model];
                    models.sort_by_key(|own| !own.are_several());
                    let [first, second] = models.map(ToString::to_string);
                    return Err(PlacementError::Mixed { core, first, second });
                }
                // A model cannot have a group twice.
                let others = !std::ptr::eq(first_model, second_model);
                if !(shared && others && first.same_cores(second)) {
                    let (first, second) = (first.to_string(), second.to_string());
                    return Err(PlacementError::Overlap { core, first, second });
                }
            }
        }
        Ok(())
    }

    /// Drafters with several groups have the first and the last of a target's.
    fn check_halves(&self) -> Result<(), PlacementError> {
        let ends: Vec<Groups> = self.targets.iter().filter_map(Groups::ends).collect();
        let is_wrong = |own: &&Groups| own.are_several() && !ends.contains(own);
        let Some(wrong) = self.drafters.iter().find(is_wrong) else { return Ok(()) };
        let target = ends.first().map(ToString::to_string);
        Err(PlacementError::Halves { drafter: wrong.to_string(), target })
    }

    /// Number of target replicas (the SP degree).
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.targets.len()
    }

    /// The groups of a target replica.
    #[must_use]
    pub fn target(&self, index: usize) -> Option<&Groups> {
        self.targets.get(index)
    }

    /// The groups of a drafter.
    #[must_use]
    pub fn drafter(&self, index: usize) -> Option<&Groups> {
        self.drafters.get(index)
    }

    /// The groups of every role.
    fn roles(&self) -> impl Iterator<Item = (Role, &Groups)> {
        let drafters = self.drafters.iter().enumerate().map(|(i, own)| (Role::Drafter(i), own));
        let targets = self.targets.iter().enumerate().map(|(i, own)| (Role::Target(i), own));
        drafters.chain(targets)
    }

    /// Every group once, with the roles that run on it: groups of the same cores are one device.
    #[must_use]
    pub fn devices(&self) -> Vec<(DeviceGroup, Vec<Role>)> {
        let mut devices: Vec<(DeviceGroup, Vec<Role>)> = Vec::new();
        let groups = self.roles().flat_map(|(role, own)| own.0.iter().map(move |g| (role, g)));
        for (role, group) in groups {
            match devices.iter_mut().find(|(known, _)| known.same_cores(group)) {
                Some((_, roles)) => roles.push(role),
                None => devices.push((group.clone(), vec![role])),
            }
        }
        devices
    }

    /// The roles that have several groups in turn.
    #[must_use]
    pub fn in_turn(&self) -> Vec<(Role, Groups)> {
        let several = self.roles().filter(|(_, own)| own.are_several());
        several.map(|(role, own)| (role, own.clone())).collect()
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drafters = self.drafters.iter().map(|group| format!("drafter={group}"));
        let targets = self.targets.iter().map(|group| format!("target={group}"));
        let mut parts: Vec<String> = drafters.chain(targets).collect();
        let groups: usize = self.roles().map(|(_, own)| own.0.len()).sum();
        if self.devices().len() < groups {
            parts.push("shared".into());
        }
        f.write_str(&parts.join(","))
    }
}

/// The cores that this process may use, ascending.
#[must_use]
pub fn available_cores() -> Vec<usize> {
    #[cfg(target_os = "linux")]
    if let Ok(set) = rustix::thread::sched_getaffinity(None) {
        return (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect();
    }
    (0..std::thread::available_parallelism().map_or(1, usize::from)).collect()
}

/// As many of the available cores as this process gets time for: a container's quota may grant less
/// than there are cores, and a larger team would wait for itself.
#[must_use]
pub fn cores_within_quota() -> Vec<usize> {
    let granted = std::thread::available_parallelism().map_or(1, usize::from);
    let mut cores = available_cores();
    cores.truncate(granted);
    cores
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const CORES: [usize; 6] = [0, 1, 2, 3, 6, 7];

    #[test]
    fn placements_are_read_and_written() {
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
        ] {
            assert_eq!(Placement::parse(text, &CORES).unwrap().to_string(), text);
        }
        let spaced = Placement::parse("drafter=cpu:0 target=cpu:1", &CORES).unwrap();
        assert!(spaced.target(0).unwrap().cores().eq([1]));
    }

    #[test]
    fn impossible_placements_are_refused_by_name() {
        for (text, words) in [
            ("drafter=cpu:0,target=cpu:9", &["core 9", "cpu:9", "0-3+cpu:6-7"][..]),
            ("target=cpu:0-2+cpu:1", &["core 1 twice"]),
            ("drafter=cpu:0-1,target=cpu:1-2", &["core 1", "cpu:0-1", "cpu:1-2", "shared"]),
            ("drafter=cpu:0-1,target=cpu:1-2,shared", &["exactly the same cores"]),
            ("drafter=cpu:0,target=cpu:0", &["shared"]),
            ("target=gpu:0", &["gpu:0", "cpu:"]),
            ("target=cpu:3-1", &["cpu:3-1"]),
            ("target=cpu:", &["target=cpu:"]),
            ("target=cpu:0-99999999999999999999", &["target="]),
            ("target=cpu:0-4000000000", &["core 4"]),
            ("target=cpu:0/", &["target=cpu:0/"]),
            ("target=cpu:0/cpu:0,shared", &["core 0", "two groups"]),
            ("target=cpu:0/cpu:1,target=cpu:0/cpu:1", &["core 0", "shared"]),
            ("drafter=cpu:0,target=cpu:0/cpu:1,shared", &["core 0 is in cpu:0/cpu:1", "in turn"]),
            ("drafter=cpu:0/cpu:1,target=cpu:0-1,shared", &["core 0 is in cpu:0/cpu:1", "cpu:0-1"]),
            ("drafter=cpu:0/cpu:1,target=cpu:0/cpu:1/cpu:2,shared", &["here drafter=cpu:0/cpu:2"]),
            ("drafter=cpu:1/cpu:0,target=cpu:0/cpu:1,shared", &["here drafter=cpu:0/cpu:1"]),
            ("drafter=cpu:0/cpu:1,target=cpu:2", &["drafter=cpu:0/cpu:1", "target several"]),
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
    fn the_automatic_placement_separates_where_it_can() {
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
        let in_turn = placement.in_turn().into_iter().map(|(role, own)| (role, own.to_string()));
        let expected =
            [(Role::Drafter(0), "cpu:0/cpu:3"), (Role::Target(0), "cpu:0/cpu:1-2/cpu:3")];
        assert!(in_turn.eq(expected.map(|(role, own)| (role, own.to_owned()))));
    }
}
