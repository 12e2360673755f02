//! One of several drafters that run ahead, and how far the rows along its tokens are taken care of.

use crate::Sequence;
use crate::draft_ahead::DraftAhead;
use forerun_core::{Cluster, TokenId};

/// What a drafter has ahead of the committed tokens.
pub(crate) struct Chain {
    /// `None` once the drafter has failed.
    pub(crate) drafting: Option<DraftAhead>,
    /// Every row before this position along the chain is in work, or has come.
    pub(crate) next_row: usize,
}

impl Chain {
    /// Of the drafter of that index, with nothing ahead yet.
    pub(crate) fn new(drafter: usize) -> Self {
        Self { drafting: Some(DraftAhead::new(drafter)), next_row: 0 }
    }

    /// The tokens ahead.
    pub(crate) fn tokens(&self) -> &[TokenId] {
        self.drafting.as_ref().map_or(&[], DraftAhead::tokens)
    }

    /// Whether nothing more will come of it, were it to have `length` tokens.
    pub(crate) fn is_done(&self, sequence: &Sequence, length: usize) -> bool {
        self.drafting.as_ref().is_none_or(|drafting| drafting.is_done(sequence, length))
    }

    /// Goes on behind what was committed if it has these tokens, or starts anew; then returns false.
    pub(crate) fn follow(&mut self, committed: &[TokenId], cluster: &mut dyn Cluster) -> bool {
        let agreed = agreement(self.tokens(), committed);
        let (is_whole, has_other) = (agreed == committed.len(), self.tokens().len() > agreed);
        if let Some(drafting) = &mut self.drafting {
            drafting.accept(agreed, cluster);
            if !is_whole {
                drafting.restart(has_other, cluster);
            }
        }
        if !is_whole {
            self.next_row = 0;
        }
        is_whole
    }
}

/// How many of the first tokens are the same.
pub(crate) fn agreement(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
