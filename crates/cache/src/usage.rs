//! What others can see of a pool at any time: how much is in use, and which pages are published.

use crate::page::PAGE_ROWS;
use crate::states::RECENT_STATES;
use forerun_core::TokenId;
use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A change of the pages that every sequence with the same tokens can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageEvent<'a> {
    /// A page was published.
    Published {
        /// The number of this content, which no other one of the pool ever has.
        content: u64,
        /// The content before it; `None` for the first page of a sequence.
        before: Option<u64>,
        /// The page's [`PAGE_ROWS`] tokens.
        tokens: &'a [TokenId],
    },
    /// A published page was withdrawn. Pages after it can no longer be found, even if they are
    /// withdrawn later.
    Withdrawn {
        /// The number of the content.
        content: u64,
    },
}

struct Watcher(Box<dyn Fn(&PageEvent<'_>) + Send + Sync>);

impl fmt::Debug for Watcher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Watcher")
    }
}

/// How many pages and states of a pool are in use. Others can read it at any time.
#[derive(Debug, Default)]
pub struct PoolUsage {
    pub(crate) in_use: AtomicUsize,
    pub(crate) budget: AtomicUsize,
    pub(crate) states_in_use: AtomicUsize,
    /// 0 if the model has no recurrent layers.
    pub(crate) state_budget: AtomicUsize,
    watcher: OnceLock<Watcher>,
}

impl PoolUsage {
    /// Returns the share of the budget that sequences use, of pages or of states, whichever is
    /// larger; above 1 if they need more. Pages and states that are kept for later sequences do not
    /// count.
    #[must_use]
    pub fn share(&self) -> f64 {
        let share = |in_use: &AtomicUsize, budget: &AtomicUsize| {
            in_use.load(Ordering::Relaxed) as f64 / budget.load(Ordering::Relaxed).max(1) as f64
        };
        let pages = share(&self.in_use, &self.budget);
        pages.max(share(&self.states_in_use, &self.state_budget))
    }

    /// Returns the number of sequences that can continue by turns without taking states from one
    /// another: each keeps those of its last rows between passes, and gives up its own for a short
    /// pass. At least 1. `None` if the model has no recurrent layers.
    #[must_use]
    pub fn sequences(&self) -> Option<usize> {
        let budget = self.state_budget.load(Ordering::Relaxed);
        (budget > 0).then(|| (budget / (RECENT_STATES + 1)).max(1))
    }

    /// Returns the number of tokens for which the budget has room.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.budget.load(Ordering::Relaxed).saturating_mul(PAGE_ROWS)
    }

    /// Calls `watch` whenever a page is published or withdrawn, on the thread that computes, which
    /// waits for it. A pool has one watcher: returns whether this is the first.
    pub fn watch(&self, watch: impl Fn(&PageEvent<'_>) + Send + Sync + 'static) -> bool {
        self.watcher.set(Watcher(Box::new(watch))).is_ok()
    }

    pub(crate) fn report(&self, event: &PageEvent<'_>) {
        if let Some(watcher) = self.watcher.get() {
            (watcher.0)(event);
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::{CachePool, Keep, PageId, PageStorage, RowPlace, StorageError};
    use forerun_core::{SequenceId, TokenTree};
    use std::sync::mpsc;

    struct NoMemory;

    impl PageStorage for NoMemory {
        fn page_bytes(&self) -> usize {
            1
        }
        fn reserve(&mut self, _page: PageId) -> Result<(), StorageError> {
            Ok(())
        }
        fn copy_row(&mut self, _from: RowPlace, _to: RowPlace) {}
        fn release(&mut self, _page: PageId) {}
    }

    #[derive(Debug, PartialEq)]
    enum Seen {
        Published(u64, Option<u64>, TokenId),
        Withdrawn(u64),
    }

    #[test]
    fn a_watcher_sees_pages_from_their_publication_until_they_are_evicted() {
        let mut pool = CachePool::new(NoMemory, 3);
        let (sender, seen) = mpsc::channel();
        let watch = move |event: &PageEvent<'_>| {
            let seen = match *event {
                PageEvent::Published { content, before, tokens } => {
                    assert_eq!(tokens.len(), PAGE_ROWS);
                    Seen::Published(content, before, tokens[0])
                }
                PageEvent::Withdrawn { content } => Seen::Withdrawn(content),
            };
            sender.send(seen).unwrap();
        };
        assert!(pool.usage().watch(watch));
        assert!(!pool.usage().watch(|_| {}), "a second watcher");
        let none = TokenTree::new();
        let mut compute = |number: u64, first: TokenId, pages: usize| {
            let sequence = SequenceId(number);
            let tokens: Vec<TokenId> = (first..).take(pages * PAGE_ROWS).collect();
            pool.start_pass();
            let held = pool.seek(sequence, &tokens, &none, Keep::Exact).tokens;
            let rows = TokenTree::chain(&tokens[held..]);
            pool.reserve(sequence, &rows, rows.len()).unwrap();
            pool.record(sequence, &rows, tokens.len() - held);
            pool.share(sequence, &tokens, &none, Keep::Exact);
            pool.release(sequence);
        };
        compute(1, 0, 2);
        compute(2, 0, 2);
        // Room for three pages: the second one of the first sequence goes.
        compute(3, 1000, 2);
        let seen: Vec<Seen> = seen.try_iter().collect();
        let next = PAGE_ROWS as TokenId;
        assert_eq!(
            seen,
            [
                Seen::Published(0, None, 0),
                Seen::Published(1, Some(0), next),
                Seen::Withdrawn(1),
                Seen::Published(2, None, 1000),
                Seen::Published(3, Some(2), 1000 + next),
            ]
        );
    }
}
