//! CPU quotas of cgroups.

use crate::cgroup::{self, Version};
use std::fmt;
use std::fs;
use std::path::Path;

/// The processor time that a cgroup's processes may use together in each period. When it is used
/// up, all of them stop until the next period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    time_us: u64,
    /// At least 1.
    period_us: u64,
}

impl CpuQuota {
    /// Reads the smallest quota of the process's cgroups and their ancestors.
    pub(super) fn read(root: &Path) -> Option<Self> {
        let groups = cgroup::folders(root, "cpu").into_iter();
        let quotas = groups.filter_map(|(version, folder)| Self::of_group(&folder, version));
        quotas.min_by(|a, b| {
            let product = |a: &Self, b: &Self| u128::from(a.time_us) * u128::from(b.period_us);
            product(a, b).cmp(&product(b, a))
        })
    }

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

    /// Returns the number of threads that can always run without using up the quota: it is rounded
    /// down. At least 1.
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
