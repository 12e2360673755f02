//! The number of draft tokens, and the shape of drafts.

use super::{Options, PlanError};
use crate::registry::DrafterKind;
use crate::unknown_value::UnknownValue;
use forerun_core::DraftShape;
use forerun_decode::DraftLength;
use forerun_draft::{DefaultShape, PHRASE_TOKENS, with_phrases};
use std::fmt;
use std::str::FromStr;

/// The longest chain of an automatic draft length.
const AUTO_LENGTH: usize = 16;
/// The depth of a tree, and the length of a chain with phrases, if neither is set.
const AUTO_DEPTH: usize = 5;
/// The largest number of tokens in a row.
const MAX_DRAFT_TOKENS: usize = 64;
/// The largest number of nodes in a tree.
const MAX_NODES: usize = 512;

/// The number of tokens that are drafted in a row.
///
/// Parsed from `auto`, `assisted`, or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftTokens {
    /// Chosen from measured times and acceptance. Drafting pauses when it would slow generation
    /// down, and is retried periodically.
    #[default]
    Auto,
    /// Always this many, 1 to 64.
    Fixed(usize),
    /// Two more after a round in which all draft tokens were accepted, one less after any other, as
    /// in Hugging Face's assisted generation. Starts with 5.
    Assisted,
}

/// The shape of drafts: a chain or a tree.
///
/// ```
/// use forerun::Tree;
///
/// let tree: Tree = "top:4x5".parse()?;
/// assert_eq!(tree, Tree::Top { width: 4, depth: Some(5), budget: None });
/// assert_eq!(tree.to_string(), "top:4x5");
/// # Ok::<(), forerun::UnknownValue>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tree {
    /// `none`: a chain.
    #[default]
    None,
    /// `top:W` or `top:WxD`: the W most probable nodes at each depth. `top:WxD:N`: the N most
    /// probable of all children of these nodes.
    Top {
        /// The number of nodes at each depth.
        width: usize,
        /// The number of depths. `None` uses the number of draft tokens.
        depth: Option<usize>,
        /// The number of nodes of the whole tree. `None` keeps all.
        budget: Option<usize>,
    },
    /// `sampled:3,2,1`: independently sampled children of each node, by depth.
    Sampled {
        /// The number of children of each node, by depth.
        branching: Vec<usize>,
    },
}

/// Returns the shape of drafts, and whether their length adapts.
pub(crate) fn shape(
    options: &Options,
    drafter: DrafterKind,
) -> Result<(DraftShape, DraftLength), PlanError> {
    let range = |option, found: String, expected| PlanError::Range { option, found, expected };
    let (length, requested) = match options.draft_tokens {
        DraftTokens::Auto => (DraftLength::Auto, None),
        DraftTokens::Assisted => (DraftLength::Assisted, None),
        DraftTokens::Fixed(count) if (1..=MAX_DRAFT_TOKENS).contains(&count) => {
            (DraftLength::Fixed, Some(count))
        }
        DraftTokens::Fixed(count) => {
            return Err(range("draft_tokens", count.to_string(), "auto, assisted or 1 to 64"));
        }
    };
    let longest = match length {
        DraftLength::Assisted => MAX_DRAFT_TOKENS,
        _ => AUTO_LENGTH,
    };
    let default = drafter.traits().shape;
    let shape = match &options.tree {
        Tree::None => match default {
            DefaultShape::Chain => DraftShape::Chain { length: requested.unwrap_or(longest) },
            DefaultShape::Tree { depth, nodes } => DraftShape::Top {
                width: nodes / depth.max(1),
                depth: requested.unwrap_or(depth),
                budget: Some(nodes),
            },
            DefaultShape::ChainWithPhrases { phrases } => DraftShape::Phrases {
                length: requested.unwrap_or(match length {
                    DraftLength::Assisted => longest,
                    _ => AUTO_DEPTH,
                }),
                width: phrases,
                phrase: PHRASE_TOKENS,
                budget: None,
            },
        },
        Tree::Top { width, depth, budget } => DraftShape::Top {
            width: *width,
            depth: depth.or(requested).unwrap_or(AUTO_DEPTH),
            budget: *budget,
        },
        Tree::Sampled { branching } => DraftShape::Sampled { branching: branching.clone() },
    };
    let nodes = shape.max_nodes();
    if nodes == 0 || nodes > MAX_NODES || shape.length() > MAX_DRAFT_TOKENS {
        return Err(range(
            "tree",
            options.tree.to_string(),
            "a tree of 1 to 512 nodes and at most 64 depths, such as top:4x5 or sampled:3,2,1",
        ));
    }
    let shape = match default {
        DefaultShape::ChainWithPhrases { .. } => with_phrases(&shape),
        DefaultShape::Chain | DefaultShape::Tree { .. } => shape,
    };
    Ok((shape, length))
}

impl FromStr for DraftTokens {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        match text {
            "auto" => Ok(Self::Auto),
            "assisted" => Ok(Self::Assisted),
            _ => text
                .parse()
                .map(Self::Fixed)
                .map_err(|_| UnknownValue::new(text, "auto, assisted, 1, 2, … 64")),
        }
    }
}

impl FromStr for Tree {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        const EXPECTED: &str = "none, top:W, top:WxD, top:WxD:N, sampled:B1,B2,…";
        let number = |text: &str| text.parse().map_err(|_| UnknownValue::new(text, EXPECTED));
        match text.split_once(':') {
            None if text == "none" => Ok(Self::None),
            Some(("top", size)) => {
                let (size, budget) = match size.split_once(':') {
                    None => (size, None),
                    Some((size, budget)) => (size, Some(number(budget)?)),
                };
                let (width, depth) = match size.split_once('x') {
                    None => (size, None),
                    Some((width, depth)) => (width, Some(number(depth)?)),
                };
                Ok(Self::Top { width: number(width)?, depth, budget })
            }
            Some(("sampled", sizes)) => Ok(Self::Sampled {
                branching: sizes.split(',').map(number).collect::<Result<_, _>>()?,
            }),
            _ => Err(UnknownValue::new(text, EXPECTED)),
        }
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Top { width, depth, budget } => {
                write!(f, "top:{width}")?;
                depth.map_or(Ok(()), |depth| write!(f, "x{depth}"))?;
                budget.map_or(Ok(()), |budget| write!(f, ":{budget}"))
            }
            Self::Sampled { branching } => {
                let sizes: Vec<String> = branching.iter().map(ToString::to_string).collect();
                write!(f, "sampled:{}", sizes.join(","))
            }
        }
    }
}
