//! Which device groups run what.

use forerun_core::Role;
use std::fmt;

/// Cores that work as one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceGroup {
    cores: Vec<usize>,
}

/// Device groups of the drafters and of the target replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    drafters: Vec<DeviceGroup>,
    targets: Vec<DeviceGroup>,
}

/// A placement that cannot be.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlacementError {
    /// Not the grammar.
    #[error(
        "cannot read {part:?} in the placement {text:?}; write for example \
         \"drafter=cpu:0,target=cpu:1-3\", join ranges by '+' (cpu:0+cpu:4-7), and add \",shared\" \
         where drafter and target run on the same cores"
    )]
    Syntax {
        /// The part that is not understood.
        part: String,
        /// The whole.
        text: String,
    },
    /// A core that this process may not use.
    #[error("group {group} names core {core}, but the cores here are {available}")]
    NoSuchCore {
        /// The group as it was written.
        group: String,
        /// The core.
        core: usize,
        /// The cores that may be used.
        available: String,
    },
    /// A core twice in one group.
    #[error("group {group} names core {core} twice; name each core once")]
    Twice {
        /// The group as it was written.
        group: String,
        /// The core.
        core: usize,
    },
    /// A core in two groups that are not declared shared.
    #[error(
        "core {core} is in two groups, {first} and {second}; give each its own cores, or add \
         \",shared\" and give both exactly the same cores"
    )]
    Overlap {
        /// The core.
        core: usize,
        /// One group.
        first: String,
        /// The other.
        second: String,
    },
    /// No group for a role that is needed.
    #[error("the placement {text:?} has no {role} group; add for example \"{role}=cpu:0\"")]
    Missing {
        /// `target` or `drafter`.
        role: &'static str,
        /// The whole.
        text: String,
    },
    /// More groups of a role than the method uses.
    #[error("the placement {text:?} has {count} {role} groups, but this method uses {}",
        if *used == 1 { "one".to_owned() } else { used.to_string() })]
    TooMany {
        /// `target` or `drafter`.
        role: &'static str,
        /// How many there are.
        count: usize,
        /// How many are used.
        used: usize,
        /// The whole.
        text: String,
    },
    /// Fewer groups than drafters.
    #[error(
        "the placement {text:?} has {count} drafter group{} for {drafters} drafters with models; give \
         each one, and where they run on the same cores name these twice and add \",shared\"",
        if *count == 1 { "" } else { "s" }
    )]
    TooFew {
        /// How many there are.
        count: usize,
        /// Drafters that need one.
        drafters: usize,
        /// The whole.
        text: String,
    },
}

impl DeviceGroup {
    /// The cores, in the order of the team's members.
    #[must_use]
    pub fn cores(&self) -> &[usize] {
        &self.cores
    }

    fn same_cores(&self, other: &Self) -> bool {
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
    /// `drafter=cpu:0-3,target=cpu:0-3,shared`.
    ///
    /// # Errors
    /// If it cannot be read, names cores that are not `available`, names a core twice, or lets
    /// groups overlap that are not declared shared.
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
            groups.push(DeviceGroup::parse(group, available).ok_or_else(syntax)??);
        }
        placement.check_overlaps(shared)?;
        Ok(placement)
    }

    /// A drafter of its own core where there are two cores, the target on the rest; or the target
    /// on all cores where no drafter needs any (`separate` is false). The target's cores are shared out
    /// among up to `replicas` replicas.
    #[must_use]
    pub fn automatic(available: &[usize], separate: bool, replicas: usize) -> Self {
        let group = |cores: &[usize]| DeviceGroup { cores: cores.to_vec() };
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
            let largest = self.targets.iter_mut().max_by_key(|group| group.cores.len());
            let spare = largest.filter(|group| group.cores.len() > 1 && !group.same_cores(first));
            let cores = spare.and_then(|group| group.cores.pop()).map(|core| vec![core]);
            let group = DeviceGroup { cores: cores.unwrap_or_else(|| first.cores.clone()) };
            self.drafters.push(group);
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
        let groups: Vec<&DeviceGroup> = self.drafters.iter().chain(&self.targets).collect();
        for (index, first) in groups.iter().enumerate() {
            for second in &groups[index + 1..] {
                let common = first.cores.iter().find(|core| second.cores.contains(core));
                if let Some(&core) = common
                    && !(shared && first.same_cores(second))
                {
                    let (first, second) = (first.to_string(), second.to_string());
                    return Err(PlacementError::Overlap { core, first, second });
                }
            }
        }
        Ok(())
    }

    /// Number of target replicas (the SP degree).
    #[must_use]
    pub fn replicas(&self) -> usize {
        self.targets.len()
    }

    /// The group of a target replica.
    #[must_use]
    pub fn target(&self, index: usize) -> Option<&DeviceGroup> {
        self.targets.get(index)
    }

    /// The group of a drafter.
    #[must_use]
    pub fn drafter(&self, index: usize) -> Option<&DeviceGroup> {
        self.drafters.get(index)
    }

    /// Every group once, with the roles that run on it: groups of the same cores are one device.
    #[must_use]
    pub fn devices(&self) -> Vec<(DeviceGroup, Vec<Role>)> {
        let drafters = self.drafters.iter().enumerate().map(|(i, group)| (group, Role::Drafter(i)));
        let targets = self.targets.iter().enumerate().map(|(i, group)| (group, Role::Target(i)));
        let mut devices: Vec<(DeviceGroup, Vec<Role>)> = Vec::new();
        for (group, role) in drafters.chain(targets) {
            match devices.iter_mut().find(|(known, _)| known.same_cores(group)) {
                Some((_, roles)) => roles.push(role),
                None => devices.push((group.clone(), vec![role])),
            }
        }
        devices
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drafters = self.drafters.iter().map(|group| format!("drafter={group}"));
        let targets = self.targets.iter().map(|group| format!("target={group}"));
        let mut parts: Vec<String> = drafters.chain(targets).collect();
        if self.devices().len() < parts.len() {
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
pub fn granted_cores() -> Vec<usize> {
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
        ] {
            assert_eq!(Placement::parse(text, &CORES).unwrap().to_string(), text);
        }
        let spaced = Placement::parse("drafter=cpu:0 target=cpu:1", &CORES).unwrap();
        assert_eq!(spaced.target(0).unwrap().cores(), [1]);
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
    }
}
