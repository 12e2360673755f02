//! Memory for pages and states, and from whom it is taken once the budget or the device has none.

use super::{CachePool, RETRY_PASSES, SequenceCache};
use crate::page::{PAGE_ROWS, PageId, PageStorage, StorageError};
use crate::states::StateId;
use forerun_core::SequenceId;

impl<S: PageStorage> CachePool<S> {
    /// Returns a page of its own for a sequence.
    pub(super) fn allocate(&mut self) -> Result<PageId, StorageError> {
        // An earlier pass may have exceeded the budget.
        while self.pages.slots.exceed_budget() {
            let Some(page) = self.pages.slots.take_free().or_else(|| self.evict()) else { break };
            self.pages.slots.remove(page);
            self.storage.release(page);
        }
        let mut found = self.pages.slots.take_free();
        if found.is_none() && self.pages.slots.are_full() {
            found = self.evict();
        }
        let page = found.map_or_else(|| self.reserve_page(), Ok)?;
        self.pages.put(page, self.now);
        Ok(page)
    }

    /// Returns a page with new memory. If the device has none left, takes another page away, and
    /// the pages that there are become the budget for the next [`RETRY_PASSES`].
    fn reserve_page(&mut self) -> Result<PageId, StorageError> {
        let page = self.pages.slots.without_memory();
        let Err(error) = self.storage.reserve(page) else { return Ok(page) };
        let page = self.evict().ok_or(error)?;
        self.set_budget(self.allocated());
        self.retry_at = self.now + RETRY_PASSES;
        Ok(page)
    }

    /// Takes the page away that was not used for the longest time: of those that no sequence uses,
    /// or else the last one of a sequence that is not in the current pass, if possible of one that is
    /// not in its batch.
    fn evict(&mut self) -> Option<PageId> {
        if let Some(page) = self.pages.oldest_unused() {
            self.withdraw(page);
            return Some(page);
        }
        loop {
            let idle = self.sequences.iter().filter(|(_, cache)| cache.used < self.now);
            let idle = idle.filter(|(_, cache)| !cache.pages.is_empty());
            let age = |(id, cache): &(&SequenceId, &SequenceCache)| {
                (cache.in_batch == self.now, cache.used, id.0)
            };
            let (&sequence, _) = idle.min_by_key(age)?;
            let mut cache = self.sequences.remove(&sequence)?;
            if let Some(page) = cache.pages.pop() {
                cache.index.truncate(cache.pages.len() * PAGE_ROWS);
                cache.contents.truncate(cache.pages.len());
                if !self.pages.is_shared(page) {
                    self.withdraw(page);
                }
                self.pages.unuse(page, self.now);
            }
            self.states.unuse_all(match cache.pages.is_empty() {
                true => cache.states.drop_all(),
                false => cache.states.drop_from(cache.pages.len() * PAGE_ROWS),
            });
            if !cache.pages.is_empty() {
                self.sequences.insert(sequence, cache);
            }
            if let Some(page) = self.pages.slots.take_free() {
                return Some(page);
            }
        }
    }

    /// Returns a state with one user.
    pub(super) fn allocate_state(&mut self) -> Result<StateId, StorageError> {
        // An earlier pass may have exceeded the budget.
        while self.states.exceed_budget() {
            let Some(state) = self.free_state() else { break };
            self.states.remove(state);
            self.storage.release_state(state);
        }
        let mut found = self.states.take_free();
        if found.is_none() && self.states.are_full() {
            found = self.free_state();
        }
        let state = found.map_or_else(|| self.reserve_state(), Ok)?;
        self.states.put(state, 1);
        Ok(state)
    }

    /// Returns a state with new memory. If the device has none left, takes another state away. The
    /// states that there are become the budget for the next [`RETRY_PASSES`], so that passes are
    /// planned with them.
    fn reserve_state(&mut self) -> Result<StateId, StorageError> {
        let state = self.states.without_memory();
        let Err(error) = self.storage.reserve_state(state) else { return Ok(state) };
        self.set_state_budget(self.allocated_states().clamp(1, self.states.budget));
        self.retry_at = self.now + RETRY_PASSES;
        self.free_state().ok_or(error)
    }

    /// Returns a free state, if necessary after taking one away that was not used for the longest
    /// time: of a page, or else those of a sequence that is not in the current pass.
    fn free_state(&mut self) -> Option<StateId> {
        if let Some(state) = self.states.take_free() {
            return Some(state);
        }
        let of_pages = self.pages.slots.iter().filter_map(|(id, page)| {
            // Taking away one that a sequence uses as well would free nothing.
            let is_only_user = *self.states.get(page.state?) == 1;
            is_only_user.then_some((page.used, page.order(), id))
        });
        if let Some((_, _, id)) = of_pages.min() {
            let state = self.pages.slots.get_mut(id).state.take();
            self.states.unuse_all(state);
            return self.states.take_free();
        }
        let idle = self.sequences.iter().filter(|(_, cache)| !self.is_in_batch(cache));
        let idle = idle.filter(|(_, cache)| !cache.states.held.is_empty());
        let (&sequence, _) = idle.min_by_key(|(id, cache)| (cache.used, id.0))?;
        let cache = self.sequences.get_mut(&sequence)?;
        self.states.unuse_all(cache.states.drop_all());
        self.free_state()
    }
}
