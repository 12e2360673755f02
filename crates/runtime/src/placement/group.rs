//! What a placement can name as one device.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What works as one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeviceGroup {
    /// Cores of this machine, in the order of the team's members.
    Cores(Vec<usize>),
    /// The cores of processes of an MPI job. Only these processes know them.
    Ranks {
        /// The rank that leads the others, or works alone.
        leader: usize,
        /// The ranks that compute together with the leader (tensor parallelism), if any.
        followers: Vec<usize>,
    },
    /// The cores of processes of an MPI job, each with consecutive layers of a model (pipeline
    /// stages): at least two ranks, in the order of the layers. The last one leads.
    RankStages(Vec<usize>),
    /// A GPU, by its number. GPUs are numbered from 0: those with their own memory first, software
    /// drivers last.
    Gpu(usize),
    /// A GPU with the first layers of a target, and cores with everything else.
    GpuAndCores {
        /// The number of the GPU.
        gpu: usize,
        /// The number of layers on the GPU. `None`: as many as fit in its memory.
        layers: Option<usize>,
        /// The cores, in the order of the team's members.
        cores: Vec<usize>,
    },
}

/// The device groups of one model: one group, or several groups that the model uses one after
/// another. With several groups, a target is split into pipeline stages, and a drafter alternates
/// between the target's first and last group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceGroups(pub(super) Vec<DeviceGroup>);

impl DeviceGroup {
    /// Creates the group of these cores.
    #[must_use]
    pub fn new(cores: &[usize]) -> Self {
        Self::Cores(cores.to_vec())
    }

    /// Creates the group of a rank's cores.
    #[must_use]
    pub fn of_rank(rank: usize) -> Self {
        Self::Ranks { leader: rank, followers: Vec::new() }
    }

    /// Creates the group of a GPU.
    #[must_use]
    pub fn of_gpu(gpu: usize) -> Self {
        Self::Gpu(gpu)
    }

    /// Returns the number of the GPU that computes all layers of a model, or the first ones; `None`
    /// for cores.
    #[must_use]
    pub fn gpu(&self) -> Option<usize> {
        match self {
            Self::Gpu(gpu) | Self::GpuAndCores { gpu, .. } => Some(*gpu),
            Self::Cores(_) | Self::Ranks { .. } | Self::RankStages(_) => None,
        }
    }

    /// Returns whether a GPU has the first layers of a target, and cores have the others.
    #[must_use]
    pub fn is_split(&self) -> bool {
        matches!(self, Self::GpuAndCores { .. })
    }

    /// Returns the rank whose cores these are, or that leads the group's ranks; `None` on this
    /// machine.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        match self {
            Self::Ranks { leader, .. } => Some(*leader),
            Self::RankStages(stages) => stages.last().copied(),
            Self::Cores(_) | Self::Gpu(_) | Self::GpuAndCores { .. } => None,
        }
    }

    /// Returns all ranks of the group, the leader first. There are none on this machine.
    #[must_use]
    pub fn ranks(&self) -> Vec<usize> {
        match self {
            Self::Ranks { leader, followers } => [&[*leader], &followers[..]].concat(),
            Self::RankStages(stages) => {
                let mut ranks = stages.clone();
                ranks.rotate_right(1);
                ranks
            }
            Self::Cores(_) | Self::Gpu(_) | Self::GpuAndCores { .. } => Vec::new(),
        }
    }

    /// Returns whether several ranks compute a model together: each layer (tensor parallelism), or
    /// some layers each.
    #[must_use]
    pub fn has_several_ranks(&self) -> bool {
        self.has_rank_stages()
            || matches!(self, Self::Ranks { followers, .. } if !followers.is_empty())
    }

    /// Returns whether ranks have consecutive layers of a model each (pipeline stages).
    #[must_use]
    pub fn has_rank_stages(&self) -> bool {
        matches!(self, Self::RankStages(_))
    }

    /// Returns the cores, in the order of the team's members. There are none for a GPU, and for
    /// ranks, because only their processes know them.
    #[must_use]
    pub fn cores(&self) -> &[usize] {
        match self {
            Self::Cores(cores) | Self::GpuAndCores { cores, .. } => cores,
            Self::Ranks { .. } | Self::RankStages(_) | Self::Gpu(_) => &[],
        }
    }

    /// Returns whether both groups are the same device, regardless of the order of their cores.
    /// Groups with the same cores are, also if a GPU has some layers of one's model.
    #[must_use]
    pub fn is_same_device(&self, other: &Self) -> bool {
        match [self.cores(), other.cores()] {
            [[], []] => self == other,
            [own, others] => {
                own.len() == others.len() && own.iter().all(|core| others.contains(core))
            }
        }
    }

    /// Takes the last core from a group of several.
    pub(super) fn take_core(&mut self) -> Option<usize> {
        match self {
            Self::Cores(cores) | Self::GpuAndCores { cores, .. } if cores.len() > 1 => cores.pop(),
            _ => None,
        }
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
        self.0.iter().flat_map(|group| group.cores().iter().copied())
    }

    /// Moves first layers from cores to a GPU.
    pub(super) fn move_layers(&mut self, gpu: usize, layers: Option<usize>) {
        for group in &mut self.0 {
            if let DeviceGroup::Cores(cores) = group {
                *group = DeviceGroup::GpuAndCores { gpu, layers, cores: std::mem::take(cores) };
            }
        }
    }

    /// Sets the number of layers on the GPU, in a group of a GPU and cores. Returns whether there
    /// is one.
    pub(super) fn set_gpu_layers(&mut self, count: usize) -> bool {
        match &mut self.0[..] {
            [DeviceGroup::GpuAndCores { layers, .. }] => {
                *layers = Some(count);
                true
            }
            _ => false,
        }
    }

    pub(super) fn single(cores: &[usize]) -> Self {
        Self(vec![DeviceGroup::new(cores)])
    }

    /// Returns the first and the last group, if there are several.
    pub(super) fn first_and_last(&self) -> Option<Self> {
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
        match self {
            Self::Cores(cores) => write!(f, "cpu:{}", format_ranges(cores)),
            Self::Ranks { leader, followers } => {
                write!(f, "rank:{leader}")?;
                followers.iter().try_for_each(|rank| write!(f, "+rank:{rank}"))
            }
            Self::RankStages(stages) => {
                let stages: Vec<String> = stages.iter().map(|it| format!("rank:{it}")).collect();
                f.write_str(&stages.join("/"))
            }
            Self::Gpu(gpu) => write!(f, "gpu:{gpu}"),
            Self::GpuAndCores { gpu, layers, cores } => {
                write!(f, "gpu:{gpu}")?;
                layers.iter().try_for_each(|layers| write!(f, ":{layers}"))?;
                write!(f, "/cpu:{}", format_ranges(cores))
            }
        }
    }
}

/// Formats cores as ranges: `0-3+cpu:8` for the cores 0, 1, 2, 3 and 8.
pub(super) fn format_ranges(cores: &[usize]) -> String {
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
