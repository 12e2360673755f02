//! Pages, and where a sequence's slots are on them.

use crate::states::{StateId, StateStep};
use forerun_core::{FeatureRows, TokenTree};
use std::ops::Range;

/// Number of rows in a page.
pub const PAGE_ROWS: usize = 64;

/// A page of a [`CachePool`](crate::CachePool). It holds the rows of [`PAGE_ROWS`] consecutive
/// slots, in all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

impl PageId {
    /// Returns the page's number, to index a device's storage.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The place of one slot's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowPlace {
    /// The page.
    pub page: PageId,
    /// The row in the page, below [`PAGE_ROWS`].
    pub row: usize,
}

/// The pages of a sequence's slots, in order.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageTable<'a> {
    /// The pages. Slot `i` is on page `i / PAGE_ROWS`.
    pub pages: &'a [PageId],
}

impl PageTable<'_> {
    /// Returns the place of a slot's row.
    ///
    /// # Panics
    /// If the sequence has no such slot: a programming error.
    #[must_use]
    #[inline(always)]
    pub fn place(self, slot: usize) -> RowPlace {
        RowPlace { page: self.pages[slot / PAGE_ROWS], row: slot % PAGE_ROWS }
    }
}

/// What a forward pass asks of the cache of a sequence: how many rows are held, and where all rows
/// are.
pub trait HeldRows {
    /// Returns the number of tokens in the held prefix.
    fn prefix_len(&self) -> usize;

    /// Returns the number of nodes after the prefix that are held.
    fn tree_len(&self) -> usize;

    /// Returns where the rows are.
    fn table(&self) -> PageTable<'_>;

    /// Adds where the recurrence of each new node starts and ends, in order. `tree` is that of the
    /// pass, for which room has been made.
    ///
    /// # Panics
    /// If a row that the pass continues has no state: a programming error.
    fn add_state_steps(&self, tree: &TokenTree, steps: &mut Vec<StateStep>);
}

/// A device that cannot store another page or state: it has no memory left, or has failed. The
/// message names the device.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct StorageError(pub String);

/// The rows of all pages, in the layout of a device.
pub trait PageStorage {
    /// Returns the size of a page in bytes.
    fn page_bytes(&self) -> usize;

    /// Sets the number of pages that the pool has at most, unless the sequences of one pass need
    /// more. A storage that allocates ahead stays below it.
    fn set_budget(&mut self, _pages: usize) {}

    /// Allocates the memory of a page, if it is not allocated yet. Its content is arbitrary.
    ///
    /// # Errors
    /// If there is no memory. All pages that have memory must keep it and their rows.
    fn reserve(&mut self, page: PageId) -> Result<(), StorageError>;

    /// Copies a row: its keys and values in all layers, and its features. `from` has been written.
    fn copy_row(&mut self, from: RowPlace, to: RowPlace);

    /// Returns the features of a range of a sequence's slots, which must have been written. `None`
    /// if the rows have no features.
    fn features(&self, _table: PageTable<'_>, _slots: Range<usize>) -> Option<FeatureRows> {
        None
    }

    /// Frees the memory of a page.
    fn release(&mut self, page: PageId);

    /// Returns the memory of a page's rows, in parts that have the same sizes for all pages. `None`
    /// if the host cannot reach it.
    fn page_parts(&mut self, _page: PageId) -> Option<Vec<&mut [u8]>> {
        None
    }

    /// Returns the size in bytes of the state that the recurrent layers keep after a row; 0 for a
    /// model without such layers, which has no states.
    fn state_bytes(&self) -> usize {
        0
    }

    /// Sets the number of states that the pool has at most, as [`PageStorage::set_budget`] does for
    /// pages.
    fn set_state_budget(&mut self, _states: usize) {}

    /// Allocates the memory of a state, if it is not allocated yet. Its content is arbitrary.
    ///
    /// # Errors
    /// If there is no memory. All states that have memory must keep it and their numbers.
    fn reserve_state(&mut self, _state: StateId) -> Result<(), StorageError> {
        Ok(())
    }

    /// Frees the memory of a state.
    fn release_state(&mut self, _state: StateId) {}

    /// Returns the memory of a state, as [`PageStorage::page_parts`] does of a page.
    fn state_parts(&mut self, _state: StateId) -> Option<Vec<&mut [u8]>> {
        None
    }
}
