//! How EasySpec's drafter computes, as it is asked for.

use forerun_draft::CalibrationPolicy;
use forerun_model::{LayerGroups, LayerGroupsError};
use std::fmt;
use std::str::FromStr;

/// Which layers of the drafter are computed at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerStrategy {
    /// The paper's default groups for a layer-parallel size ([`LayerGroups::parallel`]).
    Parallel(usize),
    /// These groups.
    Groups(LayerGroups),
}

impl LayerStrategy {
    /// The groups for a drafter of `n_layers`.
    ///
    /// # Errors
    /// If groups that were given are not those of so many layers.
    pub fn groups(&self, n_layers: usize) -> Result<LayerGroups, LayerGroupsError> {
        match self {
            Self::Parallel(size) => Ok(LayerGroups::parallel(n_layers, *size)),
            Self::Groups(groups) => {
                groups.check(n_layers)?;
                Ok(groups.clone())
            }
        }
    }

    /// The strategy of a file: layer groups, between lines that begin with `#`.
    ///
    /// # Errors
    /// If what stands there are no layer groups.
    pub fn from_file_text(text: &str) -> Result<Self, LayerGroupsError> {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        lines.collect::<String>().parse().map(Self::Groups)
    }
}

impl Default for LayerStrategy {
    /// The paper's: four layers at a time.
    fn default() -> Self {
        Self::Parallel(4)
    }
}

impl FromStr for LayerStrategy {
    type Err = LayerGroupsError;

    fn from_str(text: &str) -> Result<Self, LayerGroupsError> {
        text.parse().map(Self::Groups)
    }
}

/// As it is written on the command line: the flag that means the same.
impl fmt::Display for LayerStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parallel(size) => write!(f, "--lp {size}"),
            Self::Groups(groups) => write!(f, "--layer-groups {groups}"),
        }
    }
}

/// EasySpec's part of a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EasySpec {
    /// Which layers are computed at the same time.
    pub layers: LayerStrategy,
    /// When the drafter's cache is made exact.
    pub calibration: CalibrationPolicy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_say_where_its_groups_come_from() {
        let text = "# found by forerun analyze layers\n0,1-3,\n4\n";
        let strategy = LayerStrategy::from_file_text(text);
        let groups = LayerGroups::of_sizes(&[1, 3, 1]);
        assert_eq!(strategy, Ok(LayerStrategy::Groups(groups.clone())));
        assert_eq!(strategy.and_then(|own| own.groups(5)), Ok(groups));
        assert!(LayerStrategy::from_file_text("# nothing").is_err());
        assert_eq!(LayerStrategy::default().to_string(), "--lp 4");
        let strategy = LayerStrategy::from_str("0,1-2");
        assert_eq!(strategy.map(|own| own.to_string()), Ok("--layer-groups 0,1-2".to_owned()));
    }
}
