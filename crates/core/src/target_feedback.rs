//! Feedback from the target in addition to its tokens, for drafters that learn from it.

use crate::{Features, Node, Scores, TokenId, TokenTree, row_of};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The feedback from the target in a draft job. It holds only the parts that the drafter reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetFeedback {
    /// The target's features of all tokens but the last, or of none.
    pub features: Features,
    /// The last draft with the target's tokens.
    pub last_draft: Option<Arc<VerifiedDraft>>,
}

/// A scored tree with the target's most probable token after the prefix and after each node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifiedDraft {
    /// The tree.
    pub tree: TokenTree,
    /// The target's most probable token of each row ([`row_of`]).
    pub tokens: Vec<TokenId>,
}

impl VerifiedDraft {
    /// Creates the record of a tree from its scores.
    #[must_use]
    pub fn new(tree: &TokenTree, scores: &Scores) -> Self {
        let tokens = scores.rows.iter().map(|row| row.most_probable().unwrap_or(0)).collect();
        Self { tree: tree.clone(), tokens }
    }

    /// Returns the target's token after a path from the prefix, if the tree has that path.
    #[must_use]
    pub fn token_after(&self, path: impl IntoIterator<Item = TokenId>) -> Option<TokenId> {
        let mut at: Option<Node> = None;
        for token in path {
            at = Some(self.tree.child_with(at, token)?);
        }
        self.tokens.get(row_of(at)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Distribution;

    #[test]
    fn a_scored_tree_has_the_token_after_each_path() {
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
