//! Key/value caches as an index and pages.
//!
//! * [`CacheIndex`] knows which tokens and tree nodes a sequence's slots hold, and which of their
//!   rows are exact. It is rolled back by comparing tokens, never by index.
//! * [`CachePool`] maps the slots of all sequences to pages with reference counts. Pages of equal
//!   content are shared, and pages are freed by age under a budget.
//! * The states of recurrent layers are kept after some rows, and found again by the same
//!   comparison of tokens ([`StateStep`]).
//! * [`PageStorage`] is the device's: it stores the rows of pages, in its own layout.
//! * A [`PageStore`] keeps pages outside of a pool.
//!
//! This crate has no tensors, files or threads.

mod index;
mod page;
mod pool;
mod states;
mod store;
mod usage;

pub use index::{CacheHit, CacheIndex, Keep};
pub use page::{HeldRows, PAGE_ROWS, PageId, PageStorage, PageTable, RowPlace, StorageError};
pub use pool::{CachePool, Root, SequenceCache};
pub use states::{
    ANCHOR_ROWS, KEPT_OUTPUT_ROWS, RECENT_STATES, SHORT_PASS_ROWS, StateBefore, StateId, StateStep,
};
pub use store::{PageName, PageStore};
pub use usage::{PageEvent, PoolUsage};
