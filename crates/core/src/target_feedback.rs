//! What the target has told of a sequence beside its tokens, for drafters that learn from it.

use crate::{Features, Node, Scores, TokenId, TokenTree};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a draft job brings of the target's: only what its drafter reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetFeedback {
    /// The features of the first tokens: all but the last, or none.
    pub features: Features,
    /// What it made of the last draft.
    pub last_draft: Option<Arc<VerifiedDraft>>,
}

/// A tree that was scored: the target's most probable token behind its prefix, and behind each node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedDraft {
    /// The tree.
    pub tree: TokenTree,
    /// By row: the prefix's, then the nodes'.
    pub tokens: Vec<TokenId>,
}

impl VerifiedDraft {
    /// What is to be remembered of a tree's scores.
    #[must_use]
    pub fn new(tree: &TokenTree, scores: &Scores) -> Self {
        let tokens = scores.rows.iter().map(|row| row.most_probable().unwrap_or(0)).collect();
        Self { tree: tree.clone(), tokens }
    }

    /// The target's token behind a path through the tree, if the tree has that path.
    #[must_use]
    pub fn token_after(&self, path: impl IntoIterator<Item = TokenId>) -> Option<TokenId> {
        let mut at: Option<Node> = None;
        for token in path {
            at = Some(self.tree.child_with(at, token)?);
        }
        self.tokens.get(at.map_or(0, |node| node + 1)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Distribution;

    #[test]
    fn a_scored_tree_tells_the_token_behind_each_path() {
        let mut tree = TokenTree::chain(&[1, 2]);
        tree.push(None, 3);
        let row = |token| Distribution::from_weights([(4, 1.0), (token, 2.0), (9, 2.0)]);
        let scores = Scores { rows: (5..9).map(row).collect(), ..Scores::default() };
        let last_draft = VerifiedDraft::new(&tree, &scores);
        let table: &[(&[TokenId], Option<TokenId>)] = &[
            (&[], Some(5)),
            (&[1], Some(6)),
            (&[1, 2], Some(7)),
            (&[3], Some(8)),
            (&[2], None),
            (&[3, 1], None),
        ];
        for &(path, token) in table {
            assert_eq!(last_draft.token_after(path.iter().copied()), token, "{path:?}");
        }
    }
}
