//! In which order a forward pass goes through the layers.
//!
//! *EasySpec: Layer-Parallel Speculative Decoding for Efficient Multi-GPU Utilization*, Wu et al.
//! 2025, arXiv 2502.02493, algorithm 2 and table 6. The layers of a group take their attention's
//! input from one hidden state, so that all of them can be computed at the same time.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// All layers of a model in groups of neighbours, in order. Written as in `0,1-3,4-7,8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerGroups {
    groups: Vec<Range<usize>>,
}

/// Layer groups that cannot be those of a model.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum LayerGroupsError {
    /// Neither a layer nor a range.
    #[error(
        "{found:?} is neither a layer (as in 4) nor a range of layers (as in 4-7): layer groups are \
         written as in 0,1-3,4-7,8"
    )]
    Syntax {
        /// What stands there.
        found: String,
    },
    /// A range that goes backwards.
    #[error("the layer group {first}-{last} goes backwards: write {last}-{first}")]
    Backwards {
        /// Its first number.
        first: usize,
        /// Its second.
        last: usize,
    },
    /// A layer that is in no group.
    #[error(
        "layer {missing} is in no layer group: the groups name every layer from 0 on, in order, but \
         {found} comes where {missing} should"
    )]
    Gap {
        /// The layer that should come.
        missing: usize,
        /// The one that does.
        found: usize,
    },
    /// A layer that is in two groups, or comes too late.
    #[error(
        "layer {found} comes in the layer groups where {expected} should: they name every layer once, \
         in order"
    )]
    Overlap {
        /// The layer that came.
        found: usize,
        /// The one that should have come.
        expected: usize,
    },
    /// More layers than the model has.
    #[error(
        "the layer groups name layer {named}, but the drafter has {n_layers} layers, 0 to {}",
        n_layers.saturating_sub(1)
    )]
    Beyond {
        /// The last layer that is named.
        named: usize,
        /// Layers of the model.
        n_layers: usize,
    },
    /// Fewer layers than the model has.
    #[error(
        "the layer groups end before layer {missing}, but the drafter has {n_layers} layers: add \
         {missing}-{}",
        n_layers.saturating_sub(1)
    )]
    Short {
        /// The first layer that is not named.
        missing: usize,
        /// Layers of the model.
        n_layers: usize,
    },
}

impl LayerGroups {
    /// The paper's default (table 6) for a layer-parallel size: the first layer alone, for it has
    /// the embedding as its input; then up to three layers, then as many as `size` says at a time;
    /// the last layer alone. A size of 1 (or 0) is every layer alone.
    #[must_use]
    pub fn parallel(n_layers: usize, size: usize) -> Self {
        let (size, last) = (size.max(1), n_layers.saturating_sub(1));
        let mut groups = Vec::new();
        let mut first = 0;
        while first < n_layers {
            let wanted = match first {
                0 => 1,
                1 => size.min(3),
                _ => size,
            };
            // The last layer is in nobody's group.
            let end = if first < last { last.min(first + wanted) } else { n_layers };
            groups.push(first..end);
            first = end;
        }
        Self { groups }
    }

    /// Groups of the given numbers of layers.
    #[must_use]
    pub fn of_sizes(sizes: &[usize]) -> Self {
        let mut first = 0;
        let group = |&size: &usize| {
            first += size;
            first - size..first
        };
        Self { groups: sizes.iter().filter(|&&size| size > 0).map(group).collect() }
    }

    /// Whether these are all layers of a model.
    ///
    /// # Errors
    /// [`LayerGroupsError::Beyond`] or [`LayerGroupsError::Short`].
    pub fn check(&self, n_layers: usize) -> Result<(), LayerGroupsError> {
        match self.n_layers() {
            named if named > n_layers => {
                Err(LayerGroupsError::Beyond { named: named - 1, n_layers })
            }
            missing if missing < n_layers => Err(LayerGroupsError::Short { missing, n_layers }),
            _ => Ok(()),
        }
    }

    /// Number of layers in all groups.
    #[must_use]
    pub fn n_layers(&self) -> usize {
        self.groups.last().map_or(0, |group| group.end)
    }

    /// The groups, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.groups.iter().cloned()
    }

    /// Whether every layer is alone, so that a pass by these groups is the exact one.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.groups.iter().all(|group| group.len() == 1)
    }
}

impl FromStr for LayerGroups {
    type Err = LayerGroupsError;

    fn from_str(text: &str) -> Result<Self, LayerGroupsError> {
        let mut groups = Vec::new();
        let mut expected = 0;
        for part in text.split(',') {
            let syntax = || LayerGroupsError::Syntax { found: part.trim().to_owned() };
            let number = |text: &str| text.trim().parse::<u16>().map(usize::from);
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let first = number(first).map_err(|_| syntax())?;
            let last = number(last).map_err(|_| syntax())?;
            if last < first {
                return Err(LayerGroupsError::Backwards { first, last });
            }
            if first > expected {
                return Err(LayerGroupsError::Gap { missing: expected, found: first });
            }
            if first < expected {
                return Err(LayerGroupsError::Overlap { found: first, expected });
            }
            groups.push(first..last + 1);
            expected = last + 1;
        }
        Ok(Self { groups })
    }
}

impl fmt::Display for LayerGroups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, group) in self.groups.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match group.len() {
                1 => write!(f, "{comma}{}", group.start)?,
                _ => write!(f, "{comma}{}-{}", group.start, group.end - 1)?,
            }
        }
        Ok(())
    }
}

/// The order in which a forward pass goes through the layers.
#[derive(Clone, Copy, Debug)]
pub enum LayerOrder<'a> {
    /// One layer behind the other: what the model is.
    Sequential,
    /// By groups whose layers share their attention's input: an approximation of the model, unless
    /// every layer is alone.
    Groups(&'a LayerGroups),
}

impl LayerOrder<'_> {
    /// Whether the rows of a pass are those of the model itself.
    #[must_use]
    pub fn is_exact(self) -> bool {
        match self {
            Self::Sequential => true,
            Self::Groups(groups) => groups.is_exact(),
        }
    }

    /// How many of a pass's first `nodes` are computed exactly.
    pub(crate) fn exact_among(self, nodes: usize) -> usize {
        if self.is_exact() { nodes } else { 0 }
    }

    /// Number of groups of a model of `n_layers`.
    pub(crate) fn len(self, n_layers: usize) -> usize {
        match self {
            Self::Sequential => n_layers,
            Self::Groups(groups) => groups.groups.len(),
        }
    }

    /// The layers of a group.
    pub(crate) fn group(self, index: usize) -> Range<usize> {
        match self {
            Self::Sequential => index..index + 1,
            Self::Groups(groups) => groups.groups[index].clone(),
        }
    }
}

/// How the members of a team share the attention of a group's layers. Whatever it is, the bits are the
/// same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupWork {
    /// Whole layers at a time, each on a part of the team; one behind the other on a single core.
    #[default]
    Layers,
    /// The layers' projections as one product, first those of queries, keys and values, at last those
    /// of outputs; what lies between goes by layers.
    Products,
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The strategies of table 6, and what follows from their rule for small models.
    #[test]
    fn the_default_groups_are_those_of_the_paper() {
        let table = [
            (
                32,
                2,
                "0,1-2,3-4,5-6,7-8,9-10,11-12,13-14,15-16,17-18,19-20,21-22,23-24,25-26,27-28,\
                 29-30,31",
            ),
            (32, 3, "0,1-3,4-6,7-9,10-12,13-15,16-18,19-21,22-24,25-27,28-30,31"),
            (32, 4, "0,1-3,4-7,8-11,12-15,16-19,20-23,24-27,28-30,31"),
            (32, 5, "0,1-3,4-8,9-13,14-18,19-23,24-28,29-30,31"),
            (28, 4, "0,1-3,4-7,8-11,12-15,16-19,20-23,24-26,27"),
            (12, 2, "0,1-2,3-4,5-6,7-8,9-10,11"),
            (12, 4, "0,1-3,4-7,8-10,11"),
            (12, 99, "0,1-3,4-10,11"),
            (5, 4, "0,1-3,4"),
            (5, 1, "0,1,2,3,4"),
            (4, 1, "0,1,2,3"),
            (4, 0, "0,1,2,3"),
            (3, 4, "0,1,2"),
            (2, 4, "0,1"),
            (1, 4, "0"),
        ];
        for (n_layers, size, expected) in table {
            let groups = LayerGroups::parallel(n_layers, size);
            assert_eq!(groups.to_string(), expected, "{n_layers} layers, {size} at a time");
            assert_eq!(groups.check(n_layers), Ok(()));
            assert_eq!(expected.parse(), Ok(groups.clone()));
            assert_eq!(groups.is_exact(), size < 2 || n_layers < 4);
        }
        assert_eq!(LayerGroups::parallel(0, 4).check(0), Ok(()));
    }

    #[test]
    fn groups_that_are_none_are_refused_with_a_reason() {
        let error = |text: &str, n_layers| {
            let groups = text.parse::<LayerGroups>().and_then(|groups| {
                groups.check(n_layers)?;
                Ok(groups)
            });
            groups.unwrap_err().to_string()
        };
        for (text, word) in [
            ("", "\"\" is neither"),
            ("0,1-x", "\"1-x\""),
            ("0,,1", "\"\""),
            ("-1", "\"-1\""),
            ("0,1-2-3", "\"1-2-3\""),
            ("0,99999999999", "\"99999999999\""),
            ("0,3-1", "write 1-3"),
            ("1-3", "layer 0 is in no"),
            ("0,2-3", "layer 1 is in no"),
            ("0-2,2-3", "layer 2 comes"),
            ("0,0,1-3", "layer 0 comes"),
            ("0,1-4", "layer 4, but the drafter has 4 layers, 0 to 3"),
            ("0,1", "add 2-3"),
        ] {
            let message = error(text, 4);
            assert!(message.contains(word), "{text}: {message}");
        }
        let groups: LayerGroups = " 0 , 1 - 2,3\n".parse().unwrap();
        assert_eq!(groups, LayerGroups::of_sizes(&[1, 2, 1]));
        assert!(!groups.is_exact() && LayerOrder::Sequential.is_exact());
    }
}
