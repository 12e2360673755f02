//! The number of draft tokens, the shape of drafts, and what takes their place.

use super::PlanError;
use crate::registry::DrafterKind;
use forerun_core::DraftShape;
use forerun_core::UnknownValue;
use forerun_decode::{DraftLength, TreeLimits, typical_tree};
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
/// The largest number of nodes in a tree that grows.
const AUTO_NODES: usize = 64;
/// The size of the tree that takes the place of one that grows with methods that grow none.
const FIXED_TREE: TreeLimits = TreeLimits { depth: 4, nodes: 8 };

/// The number of tokens that are drafted in a row.
///
/// Parsed from `auto`, `assisted`, or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftTokens {
    /// Chosen from measured times and acceptance, and shorter where the drafter is unsure. Drafting
    /// pauses when it would slow generation down, and is retried periodically. `Trace::reasons` of
    /// the answer says why. To compare methods by their acceptance, use [`Self::Fixed`].
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
    /// `auto`: grown for each draft, while the next node gives more tokens a second. It knows the
    /// measured times, and how often the drafter's best, second and further tokens are accepted at
    /// each depth. A drafter of one pass fills as many nodes by its own probabilities.
    Auto,
    /// `ranked:N`: the N nodes that are accepted most often with a typical drafter, by their ranks
    /// and depths.
    Ranked {
        /// The number of nodes.
        nodes: usize,
    },
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

/// A lookup of earlier text, whose guesses take the place of the drafter's draft in the rounds
/// where they are expected to be better.
///
/// ```
/// use forerun::Lookup;
///
/// assert_eq!("suffix".parse(), Ok(Lookup::Suffix));
/// assert_eq!(Lookup::None.to_string(), "none");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookup {
    /// `none`: the drafter drafts in every round.
    #[default]
    None,
    /// `suffix`: suffix decoding, as [`DrafterKind::Suffix`].
    Suffix,
}

/// The shape of drafts, and how it adapts.
#[derive(Clone, Debug)]
pub(crate) struct Drafts {
    /// The shape with its largest length. If trees grow, the one that is drafted where nothing may
    /// depend on measured times.
    pub(crate) shape: DraftShape,
    pub(crate) length: DraftLength,
    /// The largest tree, if trees grow.
    pub(crate) trees: Option<TreeLimits>,
}

/// Returns the shape of drafts, and whether it adapts.
pub(crate) fn drafts(
    draft_tokens: DraftTokens,
    tree: &Tree,
    drafter: DrafterKind,
) -> Result<Drafts, PlanError> {
    let range = |option, found: String, expected: &str| PlanError::Range {
        option,
        found,
        expected: expected.into(),
    };
    let (length, requested) = match draft_tokens {
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
    if *tree == Tree::Auto {
        return match (default, length) {
            (DefaultShape::Chain, DraftLength::Fixed | DraftLength::Auto) => {
                Ok(growing(requested.unwrap_or(AUTO_LENGTH)))
            }
            (_, DraftLength::Assisted) => Err(PlanError::conflict(
                "`tree = auto` chooses the size of each draft",
                "set `draft_tokens` to `auto`, or to the largest depth",
            )),
            _ => Err(PlanError::conflict(
                format!(
                    "`tree = auto` has no effect on the drafter {drafter}, which decides the shape \
                     of its drafts"
                ),
                "leave `tree` out",
            )),
        };
    }
    let shape = match tree {
        Tree::None | Tree::Auto => match default {
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
        Tree::Ranked { nodes } => {
            let depth = requested.unwrap_or(AUTO_LENGTH).min(MAX_DRAFT_TOKENS);
            typical_tree(TreeLimits { depth, nodes: (*nodes).min(MAX_NODES + 1) })
        }
    };
    let nodes = shape.max_nodes();
    if let Tree::Ranked { nodes: requested } = tree
        && nodes < MAX_NODES.min(*requested)
    {
        let allowed = "a tree with at most ten candidates after each token, so fewer nodes or a larger `draft_tokens`";
        return Err(range("tree", tree.to_string(), allowed));
    }
    if nodes == 0 || nodes > MAX_NODES || shape.length() > MAX_DRAFT_TOKENS {
        return Err(range(
            "tree",
            tree.to_string(),
            "a tree of 1 to 512 nodes and at most 64 depths, such as top:4x5, ranked:16 or sampled:3,2,1",
        ));
    }
    let shape = match default {
        DefaultShape::ChainWithPhrases { .. } => with_phrases(&shape),
        DefaultShape::Chain | DefaultShape::Tree { .. } => shape,
    };
    Ok(Drafts { shape, length, trees: None })
}

/// Returns drafts that grow to trees of at most so many depths.
fn growing(depth: usize) -> Drafts {
    let fixed = TreeLimits { depth: FIXED_TREE.depth.min(depth), ..FIXED_TREE };
    let trees = Some(TreeLimits { depth, nodes: AUTO_NODES });
    Drafts { shape: typical_tree(fixed), length: DraftLength::Auto, trees }
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
        const EXPECTED: &str = "none, auto, ranked:N, top:W, top:WxD, top:WxD:N, sampled:B1,B2,…";
        let number = |text: &str| text.parse().map_err(|_| UnknownValue::new(text, EXPECTED));
        match text.split_once(':') {
            None if text == "none" => Ok(Self::None),
            None if text == "auto" => Ok(Self::Auto),
            Some(("ranked", nodes)) => Ok(Self::Ranked { nodes: number(nodes)? }),
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

impl FromStr for Lookup {
    type Err = UnknownValue;

    fn from_str(text: &str) -> Result<Self, UnknownValue> {
        match text {
            "none" => Ok(Self::None),
            "suffix" => Ok(Self::Suffix),
            _ => Err(UnknownValue::new(text, "none, suffix")),
        }
    }
}

impl fmt::Display for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Suffix => "suffix",
        })
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Auto => f.write_str("auto"),
            Self::Ranked { nodes } => write!(f, "ranked:{nodes}"),
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
