//! What a store outside of the pool keeps, and what is restored from it.

use super::pages::Before;
use super::{CachePool, Root, SequenceCache};
use crate::page::{PAGE_ROWS, PageId, PageStorage};
use crate::states::{ANCHOR_ROWS, StateId};
use crate::store::{PageName, PageStore};
use forerun_core::{SequenceId, TokenId};
use std::sync::Arc;

/// A store, and the name of the model in it.
#[derive(Clone)]
pub(super) struct ModelStore {
    store: Arc<dyn PageStore>,
    model: PageName,
}

impl<S: PageStorage> CachePool<S> {
    /// Returns the pool with a store, which keeps its published pages and their states, and from
    /// which it restores those that it does not have. `model` is their first
    /// [name](PageName::of_model). Pages that depend on a token before the first slot are not kept.
    #[must_use]
    pub fn with_store(self, store: Arc<dyn PageStore>, model: PageName) -> Self {
        Self { store: Some(ModelStore { store, model }), ..self }
    }

    /// Whether there is a store.
    #[must_use]
    pub fn has_store(&self) -> bool {
        self.store.is_some()
    }

    /// Forgets a sequence of one page. Returns the memory of the page and its last state, if the
    /// host can reach it: what a store would keep. Other arithmetic and other layouts give other
    /// bytes.
    pub fn take_sample(&mut self, sequence: SequenceId) -> Option<Vec<u8>> {
        let cache = self.sequences.get(&sequence)?;
        let (page, state) = (*cache.pages.first()?, cache.states.held.values().next_back());
        let mut bytes = self.storage.page_parts(page).map(|parts| parts.concat());
        if let Some(&state) = state {
            let of_state = self.storage.state_parts(state);
            bytes = bytes.zip(of_state).map(|(bytes, state)| [bytes, state.concat()].concat());
        }
        self.withdraw(page);
        self.release(sequence);
        bytes
    }

    /// Returns the store and the name of a page of `tokens`, which a sequence has up to it.
    fn stored(
        &self,
        cache: &SequenceCache,
        number: usize,
        tokens: &[TokenId],
    ) -> Option<(Arc<dyn PageStore>, PageName)> {
        let ModelStore { store, model } = self.store.as_ref()?;
        let (before, tokens) = cache.content_key(number, tokens);
        let before = match before {
            Before::Root(root) if root == Root::default() => *model,
            Before::Root(_) => return None,
            Before::Page(_) => self.pages.slots.get(cache.pages[number - 1]).name?,
        };
        Some((Arc::clone(store), before.after(&tokens)))
    }

    /// Has the store keep a page of a sequence, which was just published or was published before.
    pub(super) fn store_page(&mut self, cache: &SequenceCache, number: usize) {
        let Some((store, name)) = self.stored(cache, number, cache.index.prefix()) else { return };
        let id = cache.pages[number];
        let is_new = self.pages.slots.get_mut(id).name.replace(name).is_none();
        if is_new
            && !store.touch(name, number)
            && let Some(parts) = self.storage.page_parts(id)
        {
            store.save(name, number, &parts);
        }
    }

    /// Has the store keep the state that a page was given.
    pub(super) fn store_state(&mut self, page: PageId, number: usize, state: StateId) {
        if let Some(ModelStore { store, .. }) = &self.store
            && let Some(name) = self.pages.slots.get(page).name.map(PageName::of_state)
            && !store.touch(name, number)
            && let Some(parts) = self.storage.state_parts(state)
        {
            store.save(name, number, &parts);
        }
    }

    /// Returns a page with the rows that the store has for a page of `tokens`, with one user.
    pub(super) fn restore_page(
        &mut self,
        cache: &SequenceCache,
        number: usize,
        tokens: &[TokenId],
    ) -> Option<PageId> {
        let (store, name) = self.stored(cache, number, tokens)?;
        // Sequences of the batch that have no pass yet keep their pages.
        let others = self.sequences.values().filter(|cache| self.is_in_batch(cache));
        let others: usize = others.map(|cache| cache.pages.len()).sum();
        let has_room = self.pages.slots.budget > others + cache.pages.len();
        if !has_room || !store.touch(name, number) {
            return None;
        }
        let page = self.allocate().ok()?;
        let parts = self.storage.page_parts(page);
        if parts.is_some_and(|mut parts| store.load(name, &mut parts)) {
            self.pages.slots.get_mut(page).name = Some(name);
            return Some(page);
        }
        self.pages.unuse(page, self.now);
        None
    }

    /// Returns the state after the last row of a sequence's page, if the page or the store has one.
    pub(super) fn state_of_page(
        &mut self,
        cache: &SequenceCache,
        number: usize,
    ) -> Option<StateId> {
        let id = cache.pages[number];
        let page = self.pages.slots.get(id);
        let is_anchor = ((number + 1) * PAGE_ROWS).is_multiple_of(ANCHOR_ROWS);
        if page.state.is_some() || !is_anchor {
            return page.state;
        }
        let (name, store) = (page.name?.of_state(), Arc::clone(&self.store.as_ref()?.store));
        if !store.touch(name, number) {
            return None;
        }
        let state = self.allocate_state().ok()?;
        let parts = self.storage.state_parts(state);
        if parts.is_some_and(|mut parts| store.load(name, &mut parts)) {
            // The page is its user.
            self.pages.slots.get_mut(id).state = Some(state);
            return Some(state);
        }
        self.states.unuse_all([state]);
        None
    }
}
