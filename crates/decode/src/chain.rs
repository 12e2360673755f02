//! The chain of one of several drafters, with the position up to which its rows are scored.

use crate::Sequence;
use crate::draft_ahead::DraftAhead;
use forerun_core::{Cluster, TokenId};

/// The tokens that a drafter has drafted after the committed ones.
pub(crate) struct Chain {
    /// The drafter's jobs and tokens.
    pub(crate) drafting: DraftAhead,
    /// All rows before this position along the chain have been submitted or have arrived.
    pub(crate) next_row: usize,
}

impl Chain {
    /// Creates an empty chain for the drafter with this index.
    pub(crate) fn new(drafter: usize) -> Self {
        Self { drafting: DraftAhead::new(drafter), next_row: 0 }
    }

    /// Returns the tokens after the committed ones.
    pub(crate) fn tokens(&self) -> &[TokenId] {
        self.drafting.tokens()
    }

    /// Returns whether a chain with a requested length of `length` tokens will not grow further.
    pub(crate) fn is_done(&self, sequence: &Sequence, length: usize) -> bool {
        self.drafting.is_done(sequence, length)
    }

    /// Moves the chain past the committed tokens. If the chain does not contain all of them, it
    /// restarts after them. Returns whether the chain continues.
    pub(crate) fn advance(&mut self, committed: &[TokenId], cluster: &mut dyn Cluster) -> bool {
        let agreed = common_prefix_len(self.tokens(), committed);
        let (continues, has_other) = (agreed == committed.len(), self.tokens().len() > agreed);
        self.drafting.accept(agreed, cluster);
        if !continues {
            self.drafting.restart_after_reading(has_other, cluster);
            self.next_row = 0;
        }
        continues
    }
}

/// Returns the length of the common prefix.
pub(crate) fn common_prefix_len(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
