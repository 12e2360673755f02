//! The drafts of a configuration.

use forerun_core::DraftShape;
use forerun_decode::{TreeLimits, typical_tree};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::fmt;

/// The drafts of a configuration: how long a chain is, or how large a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PlannedDraft {
    /// Chains of so many tokens; 0 for plain decoding.
    Chain(usize),
    /// Chains whose length is chosen while decoding.
    AutoChain,
    /// Trees of so many nodes: those that are accepted most often with a typical drafter.
    Tree(usize),
    /// Trees that grow while decoding.
    AutoTree,
}

/// The longest chain and the deepest tree, as in the facade.
const LONGEST: usize = 16;
/// The largest tree that grows, and the one in its place where none may grow, as in the facade.
pub(super) const GROWING_TREE: TreeLimits = TreeLimits { depth: LONGEST, nodes: 64 };
const FIXED_TREE: TreeLimits = TreeLimits { depth: 4, nodes: 8 };

impl PlannedDraft {
    /// Returns whether it is a tree.
    #[must_use]
    pub fn is_tree(self) -> bool {
        matches!(self, Self::Tree(_) | Self::AutoTree)
    }

    /// Returns whether its size is chosen while decoding.
    #[must_use]
    pub fn is_auto(self) -> bool {
        matches!(self, Self::AutoChain | Self::AutoTree)
    }

    /// Returns the number of its tokens or nodes; `None` if it is chosen while decoding.
    #[must_use]
    pub fn size(self) -> Option<usize> {
        match self {
            Self::Chain(size) | Self::Tree(size) => Some(size),
            Self::AutoChain | Self::AutoTree => None,
        }
    }

    /// Returns the shape that it asks for, with its largest length.
    #[must_use]
    pub fn shape(self) -> DraftShape {
        match self {
            Self::Chain(length) => DraftShape::Chain { length: length.max(1) },
            Self::AutoChain => DraftShape::Chain { length: LONGEST },
            Self::Tree(nodes) => typical_tree(TreeLimits { depth: LONGEST, nodes }),
            Self::AutoTree => typical_tree(FIXED_TREE),
        }
    }

    /// Returns the largest number of tokens in a row.
    pub(super) fn longest(self) -> usize {
        if self.is_auto() { LONGEST } else { self.shape().length() }
    }

    /// Returns the name of its option and the value.
    #[must_use]
    pub fn option(self) -> (&'static str, String) {
        match self {
            Self::Chain(length) => ("draft-tokens", length.to_string()),
            Self::AutoChain => ("draft-tokens", "auto".into()),
            Self::Tree(nodes) => ("tree", format!("ranked:{nodes}")),
            Self::AutoTree => ("tree", "auto".into()),
        }
    }
}

impl fmt::Display for PlannedDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.option() {
            ("tree", value) => write!(f, "tree {value}"),
            (_, value) => {
                write!(f, "{value} draft token{}", if value == "1" { "" } else { "s" })
            }
        }
    }
}

/// Its option as the only entry of a map.
impl Serialize for PlannedDraft {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (name, value) = self.option();
        let mut map = serializer.serialize_map(Some(1))?;
        map.serialize_entry(&name.replace('-', "_"), &value)?;
        map.end()
    }
}
