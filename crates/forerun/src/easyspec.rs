//! EasySpec's options: layer groups and calibration (arXiv 2502.02493).

use forerun_draft::CalibrationPolicy;
use forerun_lm::{LayerGroups, LayerGroupsError};
use std::fmt;
use std::str::FromStr;

/// The layers of an EasySpec drafter that are computed at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LayerStrategy {
    /// The paper's default groups for this layer-parallel size ([`LayerGroups::parallel`]). Errors
    /// call it `layer_parallel_size`.
    Parallel(usize),
    /// The given groups. Errors call them `layer_groups`.
    Groups(LayerGroups),
}

impl LayerStrategy {
    /// Returns the layer groups for a drafter with `n_layers` layers.
    ///
    /// # Errors
    /// If the given groups do not cover exactly `n_layers` layers.
    pub fn groups(&self, n_layers: usize) -> Result<LayerGroups, LayerGroupsError> {
        match self {
            Self::Parallel(size) => Ok(LayerGroups::parallel(n_layers, *size)),
            Self::Groups(groups) => {
                groups.check(n_layers)?;
                Ok(groups.clone())
            }
        }
    }

    /// Parses a file of layer groups. Lines that begin with `#` are comments.
    ///
    /// # Errors
    /// If the other lines are not layer groups.
    pub fn from_file_text(text: &str) -> Result<Self, LayerGroupsError> {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        lines.collect::<String>().parse().map(Self::Groups)
    }
}

impl Default for LayerStrategy {
    /// Returns the paper's default: four layers at a time.
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

/// Writes the strategy as a command-line option, for commands that reproduce a run.
impl fmt::Display for LayerStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parallel(size) => write!(f, "--lp {size}"),
            Self::Groups(groups) => write!(f, "--layer-groups {groups}"),
        }
    }
}

/// EasySpec's options in a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EasySpec {
    /// The layers that are computed at the same time.
    pub layers: LayerStrategy,
    /// When approximate rows of the drafter's cache are recomputed exactly.
    pub calibration: CalibrationPolicy,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_layer_groups_may_have_comments() {
        let text = "# found by forerun analyze layers\n0,1-3,\n4\n";
        let strategy = LayerStrategy::from_file_text(text);
        let groups = LayerGroups::of_sizes(&[1, 3, 1]);
        assert_eq!(strategy, Ok(LayerStrategy::Groups(groups.clone())));
        assert_eq!(strategy.and_then(|strategy| strategy.groups(5)), Ok(groups));
        assert!(LayerStrategy::from_file_text("# nothing").is_err());
        assert_eq!(LayerStrategy::default().to_string(), "--lp 4");
        let strategy = LayerStrategy::from_str("0,1-2");
        assert_eq!(
            strategy.map(|strategy| strategy.to_string()),
            Ok("--layer-groups 0,1-2".to_owned())
        );
    }
}
