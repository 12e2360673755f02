//! The order in which a forward pass computes the layers: one after another, or in groups.
//!
//! *EasySpec: Layer-Parallel Speculative Decoding for Efficient Multi-GPU Utilization*, Wu et al.
//! 2025, arXiv 2502.02493, algorithm 2 and table 6. The attention of all layers of a group reads
//! the same hidden state, so that all of them can be computed at the same time.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// A partition of a model's layers into groups of consecutive layers, written as `0,1-3,4-7,8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerGroups {
    groups: Vec<Range<usize>>,
}

/// Layer groups that are malformed, or do not match a model.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum LayerGroupsError {
    /// A group is neither a layer nor a range of layers.
    #[error(
        "{found:?} is neither a layer, such as 4, nor a range of layers, such as 4-7; write layer \
         groups as in 0,1-3,4-7,8"
    )]
    Syntax { found: String },
    /// The first layer of a range is greater than the last.
    #[error("the layer group {first}-{last} goes backwards; write {last}-{first}")]
    Backwards { first: usize, last: usize },
    /// A layer is in no group.
    #[error(
        "layer {missing} is in no layer group: {found} follows where {missing} was expected; list \
         every layer once, in order, from 0 on"
    )]
    Gap { missing: usize, found: usize },
    /// A layer is in two groups, or not in order.
    #[error(
        "layer {found} is in two layer groups or out of order: {expected} was expected; list every \
         layer once, in order, from 0 on"
    )]
    Overlap { found: usize, expected: usize },
    /// The groups have more layers than the model.
    #[error(
        "the layer groups name layer {named}, but the drafter has only {n_layers} layers, 0 to {}",
        n_layers.saturating_sub(1)
    )]
    Beyond { named: usize, n_layers: usize },
    /// The groups have fewer layers than the model.
    #[error(
        "the layer groups end before layer {missing}, but the drafter has {n_layers} layers; add \
         {missing}-{}",
        n_layers.saturating_sub(1)
    )]
    Short { missing: usize, n_layers: usize },
}

impl LayerGroups {
    /// Creates the paper's default groups (table 6) for a layer-parallel size: the first layer
    /// alone, because it reads the embedding; then a group of at most three layers; then groups of
    /// `size` layers; and the last layer alone. A size of 1 or 0 puts every layer in a group of its
    /// own.
    #[must_use]
    pub fn parallel(n_layers: usize, size: usize) -> Self {
        let (size, last) = (size.max(1), n_layers.saturating_sub(1));
        let mut groups = Vec::new();
        let mut first = 0;
        while first < n_layers {
            let group_size = match first {
                0 => 1,
                1 => size.min(3),
                _ => size,
            };
            // The last layer gets a group of its own.
            let end = if first < last { last.min(first + group_size) } else { n_layers };
            groups.push(first..end);
            first = end;
        }
        Self { groups }
    }

    /// Creates groups of the given sizes, in order. Sizes of 0 are skipped.
    #[must_use]
    pub fn of_sizes(sizes: &[usize]) -> Self {
        let mut first = 0;
        let group = |&size: &usize| {
            first += size;
            first - size..first
        };
        Self { groups: sizes.iter().filter(|&&size| size > 0).map(group).collect() }
    }

    /// Checks that the groups contain exactly the layers of a model of `n_layers`.
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

    /// Returns the number of layers in all groups.
    #[must_use]
    pub fn n_layers(&self) -> usize {
        self.groups.last().map_or(0, |group| group.end)
    }

    /// Returns the groups, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.groups.iter().cloned()
    }

    /// Returns whether every group is a single layer, so that a pass with these groups is exact.
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

/// The order in which a forward pass computes the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerOrder<'a> {
    /// One layer after another, as the model is defined.
    Sequential,
    /// In groups, whose layers' attention reads the same hidden state. This approximates the model,
    /// unless every group is a single layer.
    Groups(&'a LayerGroups),
}

impl LayerOrder<'_> {
    /// Returns whether a pass in this order computes exact rows.
    #[must_use]
    pub fn is_exact(self) -> bool {
        match self {
            Self::Sequential => true,
            Self::Groups(groups) => groups.is_exact(),
        }
    }

    /// Returns how many of a pass's first `nodes` are computed exactly: all or none.
    #[must_use]
    pub fn exact_among(self, nodes: usize) -> usize {
        if self.is_exact() { nodes } else { 0 }
    }

    /// Returns the number of groups for a model of `n_layers`.
    #[must_use]
    pub fn len(self, n_layers: usize) -> usize {
        match self {
            Self::Sequential => n_layers,
            Self::Groups(groups) => groups.groups.len(),
        }
    }

    /// Returns the layers of a group.
    #[must_use]
    pub fn group(self, index: usize) -> Range<usize> {
        match self {
            Self::Sequential => index..index + 1,
            Self::Groups(groups) => groups.groups[index].clone(),
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// The strategies of table 6, and the same rule applied to small models.
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
    fn groups_of_single_layers_are_exact() {
        for (sizes, exact) in [(&[1][..], 3), (&[1, 1], 3), (&[2], 0), (&[1, 2], 0)] {
            let groups = LayerGroups::of_sizes(sizes);
            assert_eq!(LayerOrder::Groups(&groups).exact_among(3), exact, "{groups}");
        }
        assert_eq!(LayerOrder::Sequential.exact_among(3), 3);
    }

    #[test]
    fn invalid_groups_are_rejected_with_a_reason() {
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
            ("0-2,2-3", "layer 2 is in two layer groups or out of order: 3 was expected"),
            ("0,0,1-3", "layer 0 is in two layer groups or out of order: 1 was expected"),
            ("0,1-4", "layer 4, but the drafter has only 4 layers, 0 to 3"),
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
