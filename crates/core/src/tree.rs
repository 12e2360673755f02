//! Token trees: the shape in which candidates are drafted, scored and verified.

use crate::TokenId;
use serde::{Deserialize, Serialize};

/// Index of a node within its [`TokenTree`].
pub type Node = usize;

/// Candidate continuations of a prefix, as a forest whose roots follow the prefix's last token.
///
/// A chain is a tree in which every node has one child. Nodes are stored parents first, so a
/// node's index is always larger than its parent's. Depth 1 is the first token after the prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawTree")]
pub struct TokenTree {
    tokens: Vec<TokenId>,
    parents: Vec<Option<u32>>,
    #[serde(skip)]
    depths: Vec<u32>,
}

/// What a serialised tree holds; depths are derived from it.
#[derive(Deserialize)]
struct RawTree {
    tokens: Vec<TokenId>,
    parents: Vec<Option<u32>>,
}

/// A serialised tree that is not one.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TreeError {
    /// The two lists of a serialised tree have different lengths.
    #[error("a token tree has {tokens} tokens but {parents} parents")]
    Lengths {
        /// Number of tokens.
        tokens: usize,
        /// Number of parents.
        parents: usize,
    },
    /// A node's parent does not stand before it.
    #[error("node {node} of a token tree names {parent} as its parent, which does not precede it")]
    Order {
        /// The node.
        node: usize,
        /// Its alleged parent.
        parent: u32,
    },
}

impl TryFrom<RawTree> for TokenTree {
    type Error = TreeError;

    fn try_from(raw: RawTree) -> Result<Self, TreeError> {
        if raw.tokens.len() != raw.parents.len() {
            return Err(TreeError::Lengths {
                tokens: raw.tokens.len(),
                parents: raw.parents.len(),
            });
        }
        let mut tree = Self::default();
        for (node, (token, parent)) in raw.tokens.into_iter().zip(raw.parents).enumerate() {
            if let Some(parent) = parent
                && parent as usize >= node
            {
                return Err(TreeError::Order { node, parent });
            }
            tree.push(parent.map(|parent| parent as Node), token);
        }
        Ok(tree)
    }
}

impl TokenTree {
    /// A tree without nodes: only the prefix itself.
    #[must_use]
    pub const fn new() -> Self {
        Self { tokens: Vec::new(), parents: Vec::new(), depths: Vec::new() }
    }

    /// A chain of tokens, each the only child of the one before.
    #[must_use]
    pub fn chain(tokens: &[TokenId]) -> Self {
        let mut tree = Self::new();
        tree.extend_chain(None, tokens);
        tree
    }

    /// Number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Adds a node under `parent` (`None`: right after the prefix) and returns its index.
    ///
    /// # Panics
    /// If `parent` is not a node of this tree: a programming error.
    pub fn push(&mut self, parent: Option<Node>, token: TokenId) -> Node {
        let depth = parent.map_or(1, |parent| self.depths[parent] + 1);
        self.tokens.push(token);
        self.parents.push(parent.map(|parent| parent as u32));
        self.depths.push(depth);
        self.tokens.len() - 1
    }

    /// Adds `tokens` as a chain under `parent` and returns its last node (`parent` if empty).
    pub fn extend_chain(&mut self, parent: Option<Node>, tokens: &[TokenId]) -> Option<Node> {
        tokens.iter().fold(parent, |parent, &token| Some(self.push(parent, token)))
    }

    /// Hangs a copy of `other` under `parent`.
    pub fn graft(&mut self, parent: Option<Node>, other: &Self) {
        let offset = self.len();
        for node in 0..other.len() {
            let parent = other.parent(node).map_or(parent, |above| Some(above + offset));
            self.push(parent, other.token(node));
        }
    }

    /// Becomes the tree of the first `count` nodes of `other`, in the memory that it has.
    pub fn copy_from(&mut self, other: &Self, count: usize) {
        fn copy<T: Copy>(to: &mut Vec<T>, from: &[T]) {
            to.clear();
            to.extend_from_slice(from);
        }
        copy(&mut self.tokens, &other.tokens[..count]);
        copy(&mut self.parents, &other.parents[..count]);
        copy(&mut self.depths, &other.depths[..count]);
    }

    /// The tree of the first `count` nodes.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        let mut first = Self::new();
        first.copy_from(self, count);
        first
    }

    /// The token at a node.
    #[must_use]
    pub fn token(&self, node: Node) -> TokenId {
        self.tokens[node]
    }

    /// All tokens, in node order.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// The node above, or `None` where the prefix is above.
    #[must_use]
    pub fn parent(&self, node: Node) -> Option<Node> {
        self.parents[node].map(|parent| parent as Node)
    }

    /// Distance from the prefix's last token; 1 for a root.
    #[must_use]
    pub fn depth(&self, node: Node) -> usize {
        self.depths[node] as usize
    }

    /// The largest depth; 0 without nodes.
    #[must_use]
    pub fn max_depth(&self) -> usize {
        self.depths.iter().max().map_or(0, |&depth| depth as usize)
    }

    /// The children of a node (of the prefix for `None`), in the order in which they were added.
    pub fn children(&self, parent: Option<Node>) -> impl Iterator<Item = Node> + '_ {
        let first = parent.map_or(0, |parent| parent + 1);
        (first..self.len()).filter(move |&node| self.parent(node) == parent)
    }

    /// The child of `parent` that holds `token`, if there is one.
    #[must_use]
    pub fn child_with(&self, parent: Option<Node>, token: TokenId) -> Option<Node> {
        self.children(parent).find(|&node| self.token(node) == token)
    }

    /// The nodes from a root down to `node`, both included.
    #[must_use]
    pub fn path(&self, node: Node) -> Vec<Node> {
        let mut path = vec![node];
        let mut at = node;
        while let Some(parent) = self.parent(at) {
            path.push(parent);
            at = parent;
        }
        path.reverse();
        path
    }

    /// Whether every node follows the one before it.
    #[must_use]
    pub fn is_chain(&self) -> bool {
        (0..self.len()).all(|node| self.parent(node) == node.checked_sub(1))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// ```text
    /// prefix ─ 10 ─ 11 ─ 12
    ///       │    └ 13
    ///       └ 20
    /// ```
    fn sample() -> TokenTree {
        let mut tree = TokenTree::new();
        let a = tree.push(None, 10);
        let b = tree.push(Some(a), 11);
        tree.push(None, 20);
        tree.push(Some(b), 12);
        tree.push(Some(a), 13);
        tree
    }

    #[test]
    fn a_tree_knows_its_paths_depths_and_children() {
        let tree = sample();
        assert_eq!(tree.children(None).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(tree.children(Some(0)).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(tree.path(3), [0, 1, 3]);
        assert_eq!((0..5).map(|node| tree.depth(node)).collect::<Vec<_>>(), [1, 2, 1, 3, 2]);
        assert_eq!(tree.max_depth(), 3);
        assert_eq!(tree.child_with(Some(0), 13), Some(4));
        assert!(!tree.is_chain());
        assert!(TokenTree::chain(&[1, 2, 3]).is_chain());
    }

    #[test]
    fn grafting_keeps_the_shape_below_the_new_parent() {
        let mut tree = TokenTree::chain(&[1, 2]);
        tree.graft(Some(1), &sample());
        assert_eq!(tree.path(5), [0, 1, 2, 3, 5]);
        assert_eq!(tree.token(4), 20);
        assert_eq!(tree.depth(4), 3);
    }

    #[test]
    fn a_tree_survives_serialisation_and_a_broken_one_is_refused() {
        let tree = sample();
        let text = serde_json::to_string(&tree).unwrap();
        assert_eq!(serde_json::from_str::<TokenTree>(&text).unwrap(), tree);
        let forward = r#"{"tokens":[1,2],"parents":[1,null]}"#;
        let message = serde_json::from_str::<TokenTree>(forward).unwrap_err().to_string();
        assert!(message.contains("node 0"), "{message}");
        assert!(serde_json::from_str::<TokenTree>(r#"{"tokens":[1],"parents":[]}"#).is_err());
    }
}
