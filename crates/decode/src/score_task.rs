//! DSI's verification tasks.

use forerun_core::{TokenId, TokenTree};

/// A job that scores consecutive rows along a chain. Rows are named by the absolute position that
/// they predict.
#[derive(Clone, Debug)]
pub(crate) struct ScoreTask {
    pub(crate) first_row: usize,
    /// The number of committed tokens when the task was created.
    pub(crate) committed: usize,
    /// The tokens after the committed ones, up to the last row.
    pub(crate) tokens: Vec<TokenId>,
    /// The number of tokens that its rows have accepted so far.
    pub(crate) accepted: usize,
}

impl ScoreTask {
    /// Creates a task for the row after `committed` tokens.
    pub(crate) fn next_row(committed: usize) -> Self {
        Self { first_row: committed, committed, tokens: Vec::new(), accepted: 0 }
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.committed + self.tokens.len() + 1 - self.first_row
    }

    /// Returns the tokens from a position on, up to the last row.
    pub(crate) fn path(&self, position: usize) -> &[TokenId] {
        self.tokens.get(position - self.committed..).unwrap_or_default()
    }

    /// Returns the tokens between the `frontier` committed ones and the tree to score, and the
    /// tree.
    pub(crate) fn request(&self, frontier: usize) -> (&[TokenId], TokenTree) {
        let (ahead, tokens) = self.path(frontier).split_at(self.first_row - frontier);
        (ahead, TokenTree::chain(tokens))
    }
}
