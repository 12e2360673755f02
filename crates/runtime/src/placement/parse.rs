//! Parsing of placements.

use super::group::format_ranges;
use super::{DeviceGroup, DeviceGroups, Placement, PlacementError};
use crate::pace::Pace;
use std::str::FromStr;

/// The cores that a placement can name are below this number.
const MAX_CORES: usize = 4096;

/// A rank that a placement names is below this number.
const MAX_RANKS: usize = 65_536;

/// A GPU that a placement names is below this number.
const MAX_GPUS: usize = 4096;

impl DeviceGroup {
    fn parse(text: &str, available: &[usize]) -> Option<Result<Self, PlacementError>> {
        if text.starts_with("rank:") {
            return Self::parse_ranks(text);
        }
        if let Some(gpu) = text.strip_prefix("gpu:") {
            if gpu.contains('+') {
                return Some(Err(PlacementError::JoinedGpus { group: text.into() }));
            }
            let gpu = parse_gpu(gpu)?;
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
        let (leader, followers) = ranks.split_first()?;
        Some(Ok(Self::Ranks { leader: *leader, followers: followers.to_vec() }))
    }
}

fn parse_gpu(text: &str) -> Option<usize> {
    text.parse().ok().filter(|&gpu| gpu < MAX_GPUS)
}

impl DeviceGroups {
    fn parse(text: &str, available: &[usize]) -> Option<Result<Self, PlacementError>> {
        if let Some(split) = Self::parse_split(text, available) {
            return Some(split);
        }
        let groups = text.split('/').map(|group| DeviceGroup::parse(group, available));
        let groups: Option<Result<Vec<DeviceGroup>, _>> = groups.collect();
        Some(groups?.and_then(|groups| {
            if groups.len() > 1 && groups.iter().any(|group| group.rank().is_some()) {
                return Self::rank_stages(text, &groups);
            }
            match groups.len() > 1 && groups.iter().any(|group| group.gpu().is_some()) {
                true => Err(PlacementError::JoinedGpus { group: text.into() }),
                false => Ok(Self(groups)),
            }
        }))
    }
}

impl DeviceGroups {
    /// Returns the group of ranks with consecutive layers.
    fn rank_stages(text: &str, groups: &[DeviceGroup]) -> Result<Self, PlacementError> {
        let rank = |group: &DeviceGroup| group.rank().filter(|_| !group.has_several_ranks());
        let stages: Option<Vec<usize>> = groups.iter().map(rank).collect();
        let Some(stages) = stages else {
            return Err(PlacementError::MixedStages { group: text.into() });
        };
        match (1..stages.len()).find(|&at| stages[..at].contains(&stages[at])) {
            Some(at) => Err(PlacementError::DuplicateRank { group: text.into(), rank: stages[at] }),
            None => Ok(Self(vec![DeviceGroup::RankStages(stages)])),
        }
    }

    /// Reads a GPU and cores, as in `gpu:0/cpu:0-7` or `gpu:0:20/cpu:0-7`.
    fn parse_split(text: &str, available: &[usize]) -> Option<Result<Self, PlacementError>> {
        let (gpu, cores) = text.strip_prefix("gpu:")?.split_once('/')?;
        let (gpu, layers) = match gpu.split_once(':') {
            Some((gpu, layers)) => (gpu, Some(layers.parse().ok().filter(|&layers| layers > 0)?)),
            None => (gpu, None),
        };
        let gpu = parse_gpu(gpu)?;
        Some(match DeviceGroup::parse(cores, available)? {
            Ok(DeviceGroup::Cores(cores)) => {
                Ok(Self(vec![DeviceGroup::GpuAndCores { gpu, layers, cores }]))
            }
            Ok(_) => return None,
            Err(error) => Err(error),
        })
    }
}

impl Placement {
    /// Parses a placement, such as `drafter=cpu:0,target=cpu:1-3` or
    /// `drafter=cpu:0-3,target=cpu:0-3,shared`.
    ///
    /// `target=cpu:0/cpu:1` splits the target's layers between two groups. To use the target's
    /// first and last group for the drafter, too, write
    /// `drafter=cpu:0/cpu:1,target=cpu:0/cpu:1,shared`.
    ///
    /// `drafter=cpu:0-3,target=gpu:0` places the target on a GPU. `target=gpu:0/cpu:0-3` places as
    /// many of its first layers there as fit, and `target=gpu:0:20/cpu:0-3` places 20. The cores
    /// have everything else.
    ///
    /// `drafter=rank:0,target=rank:1` places models on the ranks of an MPI job. All groups name
    /// ranks then. The ranks of `target=rank:1+rank:2` compute one target together; so do those of
    /// a drafter. The ranks of `target=rank:1/rank:2` have some of its layers each.
    ///
    /// # Errors
    /// [`PlacementError`] if the text cannot be read, names a core that is not `available` or names
    /// a core twice, if groups overlap that are not declared shared or cannot be shared, if some
    /// groups name ranks and others cores, or if the devices are paced
    /// ([`Placement::parse_paced`]).
    pub fn parse(text: &str, available: &[usize]) -> Result<Self, PlacementError> {
        let no_pace = |_: &str| {
            Err("pass times are read where placements are options of the command `forerun`".into())
        };
        Self::read(text, available, &no_pace)
    }

    /// Parses a placement that may be paced, such as `drafter=cpu:0,target=cpu:1,paced=NAME`,
    /// without looking at this machine's cores: see [`Placement::check_cores`]. `find_pace` returns
    /// the pass times of that name, or why there are none.
    ///
    /// # Errors
    /// As [`Placement::parse`].
    pub fn parse_paced(
        text: &str,
        find_pace: impl Fn(&str) -> Result<Pace, String>,
    ) -> Result<Self, PlacementError> {
        let any: Vec<usize> = (0..MAX_CORES).collect();
        Self::read(text, &any, &find_pace).map_err(PlacementError::on_any_cores)
    }

    fn read(
        text: &str,
        available: &[usize],
        find_pace: &dyn Fn(&str) -> Result<Pace, String>,
    ) -> Result<Self, PlacementError> {
        let mut placement = Self { drafters: Vec::new(), targets: Vec::new(), pace: None };
        let mut shared = false;
        for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
            let syntax = || PlacementError::Syntax { part: part.into(), text: text.into() };
            if part == "shared" {
                shared = true;
                continue;
            }
            let (role, group) = part.split_once('=').ok_or_else(syntax)?;
            let groups = match role {
                "paced" if placement.pace.is_none() => {
                    let named = |reason| PlacementError::NoPace { name: group.into(), reason };
                    placement.pace = Some(find_pace(group).map_err(named)?);
                    continue;
                }
                "drafter" => &mut placement.drafters,
                "target" => &mut placement.targets,
                _ => return Err(syntax()),
            };
            groups.push(DeviceGroups::parse(group, available).ok_or_else(syntax)??);
        }
        placement.check(shared)?;
        Ok(placement)
    }
}

impl FromStr for Placement {
    type Err = PlacementError;

    /// Parses a placement as [`Placement::parse`] does, without looking at this machine's cores:
    /// see [`Placement::check_cores`].
    fn from_str(text: &str) -> Result<Self, PlacementError> {
        let any: Vec<usize> = (0..MAX_CORES).collect();
        Self::parse(text, &any).map_err(PlacementError::on_any_cores)
    }
}

impl PlacementError {
    /// Returns the error of a placement for any machine.
    fn on_any_cores(self) -> Self {
        match self {
            Self::NoSuchCore { group, core, .. } => {
                Self::CoreTooLarge { group, core, largest: MAX_CORES - 1 }
            }
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::PassTimes;
    use forerun_core::Role;

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
            "drafter=cpu:3,target=gpu:0/cpu:0-2",
            "drafter=cpu:0-1,target=gpu:1:20/cpu:0-1,shared",
            "drafter=gpu:0,target=gpu:0/cpu:0-2,shared",
            "target=gpu:0/cpu:0,target=gpu:1/cpu:1",
            "drafter=rank:0,target=rank:0,target=rank:7,shared",
            "drafter=rank:0,target=rank:2+rank:1,target=rank:3",
            "drafter=rank:0+rank:1,target=rank:2+rank:3",
            "drafter=rank:0,target=rank:3/rank:1/rank:2",
            "drafter=rank:4/rank:0,target=rank:3/rank:1,target=rank:2",
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
            (
                "drafter=rank:1+rank:2,drafter=rank:1+rank:2,target=rank:3,shared",
                &["rank 1", "rank:1+rank:2", "no other"],
            ),
            ("drafter=rank:1+rank:2,target=rank:1,shared", &["rank 1", "no other"]),
            (
                "drafter=rank:2,target=rank:1+rank:2,shared",
                &["rank 2", "rank:1+rank:2", "no other"],
            ),
            ("target=rank:1/rank:1", &["rank:1/rank:1", "rank 1 twice"]),
            ("target=rank:1/rank:2+rank:3", &["rank:1/rank:2+rank:3", "target=rank:1/rank:2"]),
            ("target=rank:1/cpu:2", &["rank:1/cpu:2", "target=rank:1/rank:2"]),
            ("target=rank:1/", &["target=rank:1/"]),
            (
                "drafter=rank:2,target=rank:1/rank:2,shared",
                &["rank 2", "rank:1/rank:2", "no other"],
            ),
            (
                "drafter=rank:1/rank:2,target=rank:1/rank:2,shared",
                &["rank", "rank:1/rank:2", "no other"],
            ),
            ("target=rank:x", &["target=rank:x"]),
            ("target=gpu:", &["target=gpu:"]),
            ("target=gpu:99999", &["target=gpu:99999"]),
            ("drafter=gpu:1,target=gpu:1", &["GPU 1 is in two groups", "shared"]),
            ("target=gpu:0+gpu:1", &["gpu:0+gpu:1", "one GPU"]),
            ("target=cpu:0/gpu:0", &["cpu:0/gpu:0", "one GPU", "target=gpu:0/cpu:0-7"]),
            ("target=gpu:0/gpu:1", &["gpu:0/gpu:1", "one GPU"]),
            ("target=gpu:0/cpu:0/cpu:1", &["gpu:0/cpu:0/cpu:1", "one GPU"]),
            ("target=gpu:0:0/cpu:0", &["target=gpu:0:0/cpu:0"]),
            ("target=gpu:0:x/cpu:0", &["target=gpu:0:x/cpu:0"]),
            ("target=gpu:0:5", &["target=gpu:0:5"]),
            ("target=gpu:0/cpu:9", &["core 9"]),
            ("drafter=gpu:0/cpu:0,target=cpu:1", &["gpu:0/cpu:0", "drafter"]),
            ("drafter=gpu:0,target=gpu:0/cpu:0", &["GPU 0 is in two groups", "shared"]),
            ("drafter=cpu:0-1,target=gpu:0/cpu:0,shared", &["core 0", "exactly the same cores"]),
            ("target=gpu:0,target=gpu:1/cpu:0", &["gpu:0", "gpu:1/cpu:0", "same kind"]),
            (
                "target=gpu:0:3/cpu:0,target=gpu:1:4/cpu:1",
                &["gpu:0:3/cpu:0", "same number of layers"],
            ),
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
    fn paced_devices_may_name_the_same_cores_and_say_that_they_are_paced() {
        let times = |ns| PassTimes { rows_ns: vec![(1, ns)], first_ns: None };
        let find = |name: &str| match name {
            "pair" => Ok(Pace { name: name.into(), target: times(9), drafter: Some(times(2)) }),
            "alone" => Ok(Pace { name: name.into(), target: times(9), drafter: None }),
            _ => Err("there are pair and alone".to_owned()),
        };
        let text = "drafter=cpu:0,target=cpu:0-1,target=cpu:0-1,paced=pair";
        let placement = Placement::parse_paced(text, find).unwrap();
        assert_eq!((placement.to_string(), placement.devices().len()), (text.into(), 3));
        assert_eq!(placement.pass_times(Role::Drafter(4)), Some(&times(2)));
        assert_eq!(placement.pass_times(Role::Target(1)), Some(&times(9)));
        assert!(!placement.is_shared());
        assert_eq!(placement.of_first_target().to_string(), "target=cpu:0-1,paced=pair");
        for (text, words) in [
            ("target=cpu:0,paced=fast", &["\"fast\"", "there are pair and alone"][..]),
            ("target=cpu:0,paced", &["cannot read \"paced\""]),
            ("target=cpu:0,paced=pair,paced=pair", &["cannot read \"paced=pair\""]),
            ("drafter=cpu:0,target=cpu:1,paced=alone", &["alone", "no times of a drafter"]),
            ("drafter=cpu:0,target=cpu:0,paced=pair,shared", &["leave \"shared\" out"]),
            ("target=cpu:0/cpu:1,paced=pair", &["not cpu:0/cpu:1"]),
            ("target=rank:1,paced=pair", &["not rank:1"]),
            ("target=gpu:0,target=gpu:0,paced=pair", &["GPU 0 is in two groups"]),
        ] {
            let message = Placement::parse_paced(text, find).unwrap_err().to_string();
            assert!(words.iter().all(|word| message.contains(word)), "{text}: {message}");
        }
        let message = "target=cpu:0,paced=pair".parse::<Placement>().unwrap_err().to_string();
        assert!(message.contains("options of the command"), "{message}");
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
}
