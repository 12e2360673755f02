//! The cache of one sequence.

use super::pages::{Before, ContentId, ContentKey};
use crate::index::CacheIndex;
use crate::page::{PAGE_ROWS, PageId, PageTable};
use crate::states::SequenceStates;
use forerun_core::{AdapterId, TokenId};

/// What the rows of a sequence depend on besides its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Root {
    /// A token before the first slot.
    pub token: Option<TokenId>,
    /// The target's adapter.
    pub adapter: Option<AdapterId>,
}

/// The cache of one sequence.
#[derive(Default)]
pub struct SequenceCache {
    pub(super) index: CacheIndex,
    pub(super) pages: Vec<PageId>,
    /// The contents of the leading pages that are published.
    pub(super) contents: Vec<ContentId>,
    pub(super) root: Root,
    pub(super) states: SequenceStates,
    pub(super) used: u64,
    /// The last pass with the sequence's request in its batch.
    pub(super) in_batch: u64,
}

impl SequenceCache {
    /// Returns which tokens and nodes are held.
    #[must_use]
    pub fn index(&self) -> &CacheIndex {
        &self.index
    }

    pub(crate) fn states(&self) -> &SequenceStates {
        &self.states
    }

    /// Returns where the rows are.
    #[must_use]
    pub fn table(&self) -> PageTable<'_> {
        PageTable { pages: &self.pages }
    }

    /// Returns the content of the page with this number, all before which are published, if it has
    /// these tokens.
    pub(super) fn content_key(&self, number: usize, tokens: &[TokenId]) -> ContentKey {
        let before = match number.checked_sub(1) {
            None => Before::Root(self.root),
            Some(before) => Before::Page(self.contents[before]),
        };
        (before, tokens[number * PAGE_ROWS..(number + 1) * PAGE_ROWS].to_vec())
    }
}
