//! Token trees: the data structure in which candidates are drafted, scored and verified.

use crate::TokenId;
use serde::{Deserialize, Serialize};

/// The index of a node within its [`TokenTree`].
pub type Node = usize;

/// Returns the row of the token after `node`: 0 for the prefix (`None`), else `node + 1`.
///
/// Everything that has one entry for the prefix and one for each node of a tree is in this order:
/// the target's distributions, a drafter's distributions, logits.
#[must_use]
pub fn row_of(node: Option<Node>) -> usize {
    node.map_or(0, |node| node + 1)
}

/// Returns the node that a row follows; `None` for row 0, which follows the prefix. This is the
/// inverse of [`row_of`].
#[must_use]
pub fn node_of_row(row: usize) -> Option<Node> {
    row.checked_sub(1)
}

/// Candidate continuations of a prefix: a forest with roots that follow the prefix's last token.
///
/// A chain is a tree in which every node has one child. Nodes are stored parents first, so a
/// node's index is always larger than its parent's. Depth 1 is the first token after the prefix.
///
/// ```rust
/// use forerun_core::TokenTree;
///
/// // Two continuations that share their first token: 10 11 12 and 10 13.
/// let mut tree = TokenTree::chain(&[10, 11, 12]);
/// let fork = tree.push(Some(0), 13);
///
/// assert_eq!(tree.len(), 4);
/// assert_eq!(tree.depth(fork), 2);
/// assert_eq!(tree.path(fork), [0, fork]);
/// assert_eq!(tree.child_with(None, 10), Some(0));
/// assert!(!tree.is_chain());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawTree")]
pub struct TokenTree {
    tokens: Vec<TokenId>,
    parents: Vec<Option<u32>>,
    #[serde(skip)]
    depths: Vec<u32>,
}

/// The serialised form of a tree. Depths are computed when it is read.
#[derive(Deserialize)]
struct RawTree {
    tokens: Vec<TokenId>,
    parents: Vec<Option<u32>>,
}

/// An error in a serialised tree.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum TreeError {
    /// The two lists have different lengths.
    #[error("a token tree has {tokens} tokens but {parents} parents: give each token one parent")]
    Lengths { tokens: usize, parents: usize },
    /// A node does not come after its parent.
    #[error("node {node} of a token tree has the parent {parent}, but parents must come first")]
    Order { node: usize, parent: u32 },
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
    /// Creates a tree without nodes, which stands for the prefix alone.
    #[must_use]
    pub const fn new() -> Self {
        Self { tokens: Vec::new(), parents: Vec::new(), depths: Vec::new() }
    }

    /// Creates a chain: each token is the only child of the one before it.
    #[must_use]
    pub fn chain(tokens: &[TokenId]) -> Self {
        let mut tree = Self::new();
        tree.extend_chain(None, tokens);
        tree
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns whether the tree has no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Adds a node under `parent` (`None` for the prefix) and returns its index.
    ///
    /// # Panics
    /// If `parent` is not a node of this tree, which is a programming error.
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

    /// Adds `tokens` as a path under `parent`, reusing the nodes that exist, as in a trie. Stops
    /// before a new node would exceed `max_nodes` nodes in the tree.
    pub fn insert_path(
        &mut self,
        parent: Option<Node>,
        tokens: impl IntoIterator<Item = TokenId>,
        max_nodes: usize,
    ) {
        let mut at = parent;
        for token in tokens {
            at = match self.child_with(at, token) {
                None if self.len() >= max_nodes => return,
                None => Some(self.push(at, token)),
                existing => existing,
            };
        }
    }

    /// Adds a copy of `other` under `parent`.
    pub fn graft(&mut self, parent: Option<Node>, other: &Self) {
        let offset = self.len();
        for node in 0..other.len() {
            let parent = other.parent(node).map_or(parent, |above| Some(above + offset));
            self.push(parent, other.token(node));
        }
    }

    /// Overwrites this tree with the first `count` nodes of `other`, reusing its memory.
    pub fn copy_from(&mut self, other: &Self, count: usize) {
        fn copy<T: Copy>(to: &mut Vec<T>, from: &[T]) {
            to.clear();
            to.extend_from_slice(from);
        }
        copy(&mut self.tokens, &other.tokens[..count]);
        copy(&mut self.parents, &other.parents[..count]);
        copy(&mut self.depths, &other.depths[..count]);
    }

    /// Returns the tree of the first `count` nodes.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        let mut first = Self::new();
        first.copy_from(self, count);
        first
    }

    /// Returns the token at a node.
    #[must_use]
    pub fn token(&self, node: Node) -> TokenId {
        self.tokens[node]
    }

    /// Returns all tokens, in the order of their nodes.
    #[must_use]
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Returns the parent of a node; `None` for a root, which follows the prefix.
    #[must_use]
    pub fn parent(&self, node: Node) -> Option<Node> {
        self.parents[node].map(|parent| parent as Node)
    }

    /// Returns the distance of a node from the prefix's last token; 1 for a root.
    #[must_use]
    pub fn depth(&self, node: Node) -> usize {
        self.depths[node] as usize
    }

    /// Returns the largest depth; 0 if there are no nodes.
    #[must_use]
    pub fn max_depth(&self) -> usize {
        self.depths.iter().max().map_or(0, |&depth| depth as usize)
    }

    /// Iterates over the children of a node (of the prefix for `None`) in the order in which they
    /// were added.
    pub fn children(&self, parent: Option<Node>) -> impl Iterator<Item = Node> + '_ {
        let first = parent.map_or(0, |parent| parent + 1);
        (first..self.len()).filter(move |&node| self.parent(node) == parent)
    }

    /// Returns the child of `parent` with this token, if there is one.
    #[must_use]
    pub fn child_with(&self, parent: Option<Node>, token: TokenId) -> Option<Node> {
        self.children(parent).find(|&node| self.token(node) == token)
    }

    /// Returns the nodes from a root down to `node`, both included.
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

    /// Returns whether every node is the child of the node before it.
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
    fn trees_have_paths_depths_and_children() {
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
    fn inserted_paths_share_nodes_and_respect_the_budget() {
        let mut tree = TokenTree::chain(&[1]);
        tree.insert_path(None, [1, 2], 3);
        tree.insert_path(Some(0), [3, 4], 3);
        assert_eq!((tree.tokens(), tree.parent(2)), (&[1, 2, 3][..], Some(0)));
        tree.insert_path(None, [1, 3], 0);
        assert_eq!(tree.len(), 3);
    }

    #[test]
    fn rows_and_nodes_correspond() {
        for (row, node) in [(0, None), (1, Some(0)), (5, Some(4))] {
            assert_eq!((row_of(node), node_of_row(row)), (row, node));
        }
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
    fn trees_survive_serialisation_and_invalid_ones_are_rejected() {
        let tree = sample();
        let text = serde_json::to_string(&tree).unwrap();
        assert_eq!(serde_json::from_str::<TokenTree>(&text).unwrap(), tree);
        let forward = r#"{"tokens":[1,2],"parents":[1,null]}"#;
        let message = serde_json::from_str::<TokenTree>(forward).unwrap_err().to_string();
        assert!(message.contains("node 0"), "{message}");
        assert!(serde_json::from_str::<TokenTree>(r#"{"tokens":[1],"parents":[]}"#).is_err());
    }
}
