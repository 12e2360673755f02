//! CPU quotas of cgroups.

use std::fmt;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// The processor time that a cgroup's processes may use together in each period. When it is used up, all
/// of them stop until the next period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    time_us: u64,
    /// At least 1.
    period_us: u64,
}

/// A version of cgroups. A process may be in groups of both.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl CpuQuota {
    /// Reads the smallest quota of the process's cgroups and their ancestors.
    pub(super) fn read(root: &Path) -> Option<Self> {
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
        let mounts = fs::read_to_string(root.join("proc/self/mountinfo")).ok()?;
        let mounts: Vec<Mount<'_>> = mounts.lines().filter_map(Mount::parse).collect();
        let mut quotas = Vec::new();
        for (version, group) in groups.lines().filter_map(parse_group) {
            for mount in mounts.iter().filter(|mount| mount.version == version) {
                let folders = mount.folders(root, group);
                quotas.extend(folders.iter().filter_map(|folder| Self::of_group(folder, version)));
            }
        }
        quotas.into_iter().min_by(|a, b| {
            let product = |a: &Self, b: &Self| u128::from(a.time_us) * u128::from(b.period_us);
            product(a, b).cmp(&product(b, a))
        })
    }

    /// Reads the quota of one group.
    fn of_group(folder: &Path, version: Version) -> Option<Self> {
        let read = |name| fs::read_to_string(folder.join(name)).ok();
        let (time, period) = match version {
            Version::V1 => (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?),
            Version::V2 => {
                let text = read("cpu.max")?;
                let (time, period) = text.split_once(' ')?;
                (time.into(), period.into())
            }
        };
        // Without a quota the time is `-1` or `max`.
        let (time_us, period_us) = (time.trim().parse().ok()?, period.trim().parse().ok()?);
        (period_us > 0).then_some(Self { time_us, period_us })
    }

    /// Returns the number of threads that can always run without using up the quota: it is rounded down.
    /// At least 1.
    #[must_use]
    pub fn threads(self) -> usize {
        usize::try_from(self.time_us / self.period_us).unwrap_or(usize::MAX).max(1)
    }
}

/// Writes the number of processors, with two decimals at most, rounded down.
impl fmt::Display for CpuQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = u128::from(self.time_us) * 100 / u128::from(self.period_us);
        let (whole, rest) = (hundredths / 100, hundredths % 100);
        match (rest, rest % 10) {
            (0, _) => write!(f, "{whole}"),
            (_, 0) => write!(f, "{whole}.{}", rest / 10),
            _ => write!(f, "{whole}.{rest:02}"),
        }
    }
}

/// Parses a line of `/proc/self/cgroup`, such as `4:cpu,cpuacct:/docker/1a`. Returns `None` for groups
/// that cannot limit processor time.
fn parse_group(line: &str) -> Option<(Version, &Path)> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let version = match controllers {
        "" => Version::V2,
        _ => controllers.split(',').any(|name| name == "cpu").then_some(Version::V1)?,
    };
    Some((version, Path::new(path)))
}

/// A mounted hierarchy of cgroups.
struct Mount<'a> {
    version: Version,
    /// The group at the mount point.
    group: &'a Path,
    point: &'a Path,
}

impl<'a> Mount<'a> {
    /// Parses a line of `/proc/self/mountinfo`. Returns `None` for other mounts.
    fn parse(line: &'a str) -> Option<Self> {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let version = match system.next()? {
            "cgroup2" => Version::V2,
            "cgroup" => {
                let has_cpu = system.nth(1)?.split(',').any(|option| option == "cpu");
                has_cpu.then_some(Version::V1)?
            }
            _ => return None,
        };
        let mut mount = mount.split(' ').skip(3);
        let (group, point) = (Path::new(mount.next()?), Path::new(mount.next()?));
        Some(Self { version, group, point })
    }

    /// Returns the folders of a group and of its ancestors, as far as they are mounted.
    fn folders(&self, root: &Path, group: &Path) -> Vec<PathBuf> {
        let point = root.join(self.point.strip_prefix("/").unwrap_or(self.point));
        // A group outside the mounted ones is seen in some containers. Then the mounted one is the best guess.
        let below = group.strip_prefix(self.group).ok();
        let below =
            below.filter(|path| path.components().all(|c| matches!(c, Component::Normal(_))));
        below.unwrap_or(Path::new("")).ancestors().map(|path| point.join(path)).collect()
    }
}
