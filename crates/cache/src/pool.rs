//! The pages of all sequences: shared by content, freed by age under a budget.
//!
//! A page is *published* once all its rows belong to the prefix of a sequence and are exact. Then
//! its content is a function of the tokens up to its end, so every sequence that starts with these
//! tokens can use it. Published pages are never written to. A sequence that needs to write to one
//! of its published pages, because its prefix was shortened, first takes the page back or copies
//! its rows.

mod memory;
mod pages;
mod sequence_cache;
mod slots;
mod states;
mod store;
#[cfg(test)]
mod tests;

use crate::index::{CacheHit, Keep};
use crate::page::{PAGE_ROWS, PageId, PageStorage, RowPlace, StorageError};
use crate::states::ANCHOR_ROWS;
use crate::usage::PoolUsage;
use forerun_core::{Node, SequenceId, TokenId, TokenTree};
use pages::Pages;
pub use sequence_cache::{Root, SequenceCache};
use slots::Slots;
use states::States;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::ModelStore;

/// Passes after which a pool whose device had no memory for a page or a state asks for it again.
const RETRY_PASSES: u64 = 1000;

/// The caches of all sequences of a model, on pages of a device's storage.
///
/// ```rust
/// use forerun_cache::{CachePool, Keep, PAGE_ROWS, PageId, PageStorage, RowPlace, StorageError};
/// use forerun_core::{SequenceId, TokenTree};
///
/// /// A storage that only counts its pages.
/// #[derive(Default)]
/// struct Counting(usize);
///
/// impl PageStorage for Counting {
///     fn page_bytes(&self) -> usize {
///         1
///     }
///     fn reserve(&mut self, page: PageId) -> Result<(), StorageError> {
///         self.0 = self.0.max(page.index() + 1);
///         Ok(())
///     }
///     fn copy_row(&mut self, _from: RowPlace, _to: RowPlace) {}
///     fn release(&mut self, _page: PageId) {}
/// }
///
/// let mut pool = CachePool::new(Counting::default(), 100);
/// let prompt: Vec<u32> = (0..3 * PAGE_ROWS as u32).collect();
/// let none = TokenTree::new();
/// // The first sequence computes the prompt.
/// let first = SequenceId(1);
/// assert_eq!(pool.seek(first, &prompt, &none, Keep::Exact).tokens, 0);
/// let rows = TokenTree::chain(&prompt);
/// pool.reserve(first, &rows, rows.len())?;
/// pool.record(first, &rows, prompt.len());
/// pool.seek(first, &prompt, &none, Keep::Exact);
/// // The second one uses the same pages.
/// assert_eq!(pool.seek(SequenceId(2), &prompt, &none, Keep::Exact).tokens, prompt.len());
/// assert_eq!(pool.storage().0, 3);
/// # Ok::<(), StorageError>(())
/// ```
pub struct CachePool<S> {
    storage: S,
    pages: Pages,
    states: States,
    sequences: HashMap<SequenceId, SequenceCache>,
    /// The pass that tries the full budgets again.
    retry_at: u64,
    /// Counts passes. Sequences used in the current pass are never evicted.
    now: u64,
    usage: Arc<PoolUsage>,
    store: Option<ModelStore>,
}

impl<S: PageStorage> CachePool<S> {
    /// Creates an empty pool that frees pages by age once it has more than `budget` pages. If the
    /// sequences of one pass need more, it exceeds the budget for that pass.
    #[must_use]
    pub fn new(storage: S, budget: usize) -> Self {
        let usage = Arc::<PoolUsage>::default();
        let pool = Self {
            storage,
            pages: Pages::new(Arc::clone(&usage)),
            states: Slots::default(),
            sequences: HashMap::new(),
            retry_at: u64::MAX,
            now: 1,
            usage,
            store: None,
        };
        pool.with_budget(budget)
    }

    /// Creates an empty pool with a budget in bytes. If the model has recurrent layers, their
    /// states may have a half of it.
    #[must_use]
    pub fn with_memory(storage: S, bytes: usize) -> Self {
        Self::new(storage, 1).with_bytes(Some(bytes))
    }

    /// Returns the pool with another budget of pages.
    #[must_use]
    pub fn with_budget(mut self, budget: usize) -> Self {
        self.pages.slots.full_budget = budget.max(1);
        self.set_budget(self.pages.slots.full_budget);
        self
    }

    fn set_budget(&mut self, budget: usize) {
        self.pages.slots.budget = budget;
        self.usage.budget.store(budget, Ordering::Relaxed);
        self.storage.set_budget(budget);
    }

    /// Returns the pool's usage, which the pool keeps up to date.
    #[must_use]
    pub fn usage(&self) -> &Arc<PoolUsage> {
        &self.usage
    }

    /// Returns the pool with another budget, as much memory as `bytes`, if there is one.
    #[must_use]
    pub fn with_bytes(self, bytes: Option<usize>) -> Self {
        let Some(bytes) = bytes else { return self };
        let (page, state) = (self.storage.page_bytes(), self.storage.state_bytes());
        if state == 0 {
            return self.with_budget(bytes / page.max(1));
        }
        // Without attention, pages need no memory.
        let for_states = if page == 0 { bytes } else { bytes / 2 };
        let pages = (bytes - for_states).checked_div(page).unwrap_or(usize::MAX);
        self.with_budget(pages).with_state_budget(for_states / state)
    }

    /// Returns the pool with another budget of states. If the sequences of one pass need more, it
    /// exceeds the budget for that pass.
    #[must_use]
    pub fn with_state_budget(mut self, budget: usize) -> Self {
        self.states.full_budget = budget.max(1);
        self.set_state_budget(self.states.full_budget);
        self
    }

    fn set_state_budget(&mut self, budget: usize) {
        self.states.budget = budget;
        self.usage.state_budget.store(budget, Ordering::Relaxed);
        self.storage.set_state_budget(budget);
    }

    /// Starts a pass: from now on, the sequences of earlier passes may be evicted when pages are
    /// needed.
    pub fn start_pass(&mut self) {
        self.now += 1;
        if self.now >= self.retry_at {
            self.retry_at = u64::MAX;
            self.set_budget(self.pages.slots.full_budget);
            if self.has_states() {
                self.set_state_budget(self.states.full_budget);
            }
        }
    }

    /// Returns the number of pages that have memory.
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.pages.slots.allocated()
    }

    /// Returns the number of states that have memory.
    #[must_use]
    pub fn allocated_states(&self) -> usize {
        self.states.allocated()
    }

    /// Returns the device's storage.
    #[must_use]
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// Returns the device's storage and the sequences' caches, for a pass that writes rows.
    pub fn storage_and_sequences(&mut self) -> (&mut S, &HashMap<SequenceId, SequenceCache>) {
        (&mut self.storage, &self.sequences)
    }

    /// Returns the cache of a sequence, if there is one.
    #[must_use]
    pub fn sequence(&self, sequence: SequenceId) -> Option<&SequenceCache> {
        self.sequences.get(&sequence)
    }

    /// Makes the cache of a sequence keep the longest part of `tokens` and of `tree` after them for
    /// which the pool holds rows that `keep` allows: rows of the sequence's own, and published
    /// pages. See `CacheIndex::seek`. If the model has recurrent layers, the last row that is
    /// kept has a state, and so has each node.
    pub fn seek(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        tree: &TokenTree,
        keep: Keep,
    ) -> CacheHit {
        let mut cache = self.sequences.remove(&sequence).unwrap_or_default();
        let hit = self.keep_rows(&mut cache, tokens, tree, keep);
        if hit.tokens < tokens.len() {
            self.adopt(&mut cache, tokens);
        }
        if self.has_states() {
            self.shorten_to_state(&mut cache);
        }
        let hit = CacheHit { tokens: cache.index.prefix_len(), nodes: cache.index.tree_len() };
        self.sequences.insert(sequence, cache);
        self.count_states();
        hit
    }

    /// Lets other sequences use the whole pages of `tokens` that a pass has written. The sequence
    /// keeps its rows of `tokens` and of `tree` after them. Unlike after [`CachePool::seek`], the
    /// last row may have no state.
    pub fn share(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        tree: &TokenTree,
        keep: Keep,
    ) {
        let mut cache = self.sequences.remove(&sequence).unwrap_or_default();
        self.keep_rows(&mut cache, tokens, tree, keep);
        self.sequences.insert(sequence, cache);
    }

    /// Keeps the rows of a sequence that agree with `tokens` and with `tree`, and publishes its
    /// whole pages.
    fn keep_rows(
        &mut self,
        cache: &mut SequenceCache,
        tokens: &[TokenId],
        tree: &TokenTree,
        keep: Keep,
    ) -> CacheHit {
        cache.used = self.now;
        let hit = cache.index.seek(tokens, tree, keep);
        for &(from, to) in cache.index.moves() {
            let (from, to) = (cache.table().place(from), cache.table().place(to));
            self.storage.copy_row(from, to);
        }
        let lost = cache.states.follow(cache.index.moves(), cache.index.slots());
        let failed = std::mem::take(&mut cache.states.pending).into_values();
        self.states.unuse_all(lost.into_iter().chain(failed));
        self.fit_pages(cache);
        self.publish(cache);
        hit
    }

    /// Gives the pages back that a sequence's index does not need.
    fn fit_pages(&mut self, cache: &mut SequenceCache) {
        let needed = cache.index.slots().div_ceil(PAGE_ROWS);
        for page in cache.pages.drain(needed.min(cache.pages.len())..) {
            self.pages.unuse(page, self.now);
        }
        cache.contents.truncate(cache.index.exact_len() / PAGE_ROWS);
    }

    /// Publishes the sequence's full pages of exact rows. A page whose content is already published
    /// is replaced by the published one.
    fn publish(&mut self, cache: &mut SequenceCache) {
        for number in cache.contents.len()..cache.index.exact_len() / PAGE_ROWS {
            let own = cache.pages[number];
            let key = cache.content_key(number, cache.index.prefix());
            match self.pages.find(&key) {
                None => self.pages.publish(own, key),
                Some(page) if page == own => {}
                Some(page) => {
                    self.pages.use_again(page, self.now);
                    self.pages.unuse(own, self.now);
                    cache.pages[number] = page;
                }
            }
            self.store_page(cache, number);
            let end = (number + 1) * PAGE_ROWS;
            let page = self.pages.slots.get_mut(cache.pages[number]);
            cache.contents.extend(page.content());
            if let Some(&state) = cache.states.held.get(&(end - 1))
                && end.is_multiple_of(ANCHOR_ROWS)
                && page.state.is_none()
            {
                page.state = Some(state);
                self.states.use_again(state);
                self.store_state(cache.pages[number], number, state);
            }
        }
    }

    /// Extends an exact prefix by published pages, as far as `tokens` agrees with them.
    fn adopt(&mut self, cache: &mut SequenceCache, tokens: &[TokenId]) {
        loop {
            let held = cache.index.prefix_len();
            let (number, is_exact) = (held / PAGE_ROWS, cache.index.exact_len() == held);
            let end = (number + 1) * PAGE_ROWS;
            // An unpublished page before this one cannot be identified.
            if !is_exact || cache.contents.len() < number || tokens.len() < end {
                return;
            }
            let key = cache.content_key(number, tokens);
            let page = match self.pages.find(&key) {
                Some(page) => {
                    self.pages.use_again(page, self.now);
                    page
                }
                None => {
                    let Some(page) = self.restore_page(cache, number, tokens) else { return };
                    self.pages.publish(page, key);
                    page
                }
            };
            for own in cache.pages.drain(number..) {
                self.pages.unuse(own, self.now);
            }
            cache.pages.push(page);
            cache.contents.extend(self.pages.slots.get(page).content());
            cache.index.extend_exact(&tokens[held..end]);
        }
    }

    /// Declares what the rows of a sequence depend on besides its tokens, and drops its rows if
    /// they depend on something else. A pass that makes room may drop a sequence with its root, so
    /// each request declares it before [`CachePool::seek`].
    pub fn set_root(&mut self, sequence: SequenceId, root: Root) {
        if self.sequences.get(&sequence).map(|cache| cache.root).unwrap_or_default() != root {
            self.release(sequence);
            let cache = SequenceCache { root, ..SequenceCache::default() };
            self.sequences.insert(sequence, cache);
        }
    }

    /// Makes room for the nodes of `tree` after a sequence's prefix, of which the nodes that are
    /// not held yet can then be written: the pages of all, and the states after some.
    /// `first_output` is the first node whose logits are needed. New rows do not count as held
    /// until [`CachePool::record`].
    ///
    /// # Errors
    /// If the device has no memory. All sequences keep their rows then.
    pub fn reserve(
        &mut self,
        sequence: SequenceId,
        tree: &TokenTree,
        first_output: Node,
    ) -> Result<(), StorageError> {
        let mut cache = self.sequences.remove(&sequence).unwrap_or_default();
        cache.used = self.now;
        // If the device has no memory, the sequence keeps the rows and pages that it has.
        let result = self.reserve_for(&mut cache, tree, first_output);
        self.sequences.insert(sequence, cache);
        self.count_states();
        result
    }

    /// Makes room in a cache that is not among the sequences.
    fn reserve_for(
        &mut self,
        cache: &mut SequenceCache,
        tree: &TokenTree,
        first_output: Node,
    ) -> Result<(), StorageError> {
        let first = cache.index.slots();
        if let Some(&page) = cache.pages.get(first / PAGE_ROWS) {
            self.make_writable(cache, page, first)?;
        }
        let needed = (cache.index.prefix_len() + tree.len()).div_ceil(PAGE_ROWS);
        while cache.pages.len() < needed {
            let page = self.allocate()?;
            cache.pages.push(page);
        }
        if self.has_states() {
            self.reserve_states(cache, tree, first_output)?;
        }
        Ok(())
    }

    /// Ensures that nothing else uses the page of slot `first`, and that it is not published.
    fn make_writable(
        &mut self,
        cache: &mut SequenceCache,
        page: PageId,
        first: usize,
    ) -> Result<(), StorageError> {
        let number = first / PAGE_ROWS;
        if self.pages.is_shared(page) {
            let own = self.allocate()?;
            for row in 0..first % PAGE_ROWS {
                self.storage.copy_row(RowPlace { page, row }, RowPlace { page: own, row });
            }
            self.pages.unuse(page, self.now);
            cache.pages[number] = own;
        } else {
            self.withdraw(page);
        }
        cache.contents.truncate(number);
        Ok(())
    }

    /// Removes the content of a page, and its state.
    fn withdraw(&mut self, page: PageId) {
        let state = self.pages.withdraw(page);
        self.states.unuse_all(state);
    }

    /// Records that the rows of all nodes of `tree` have been written. See `CacheIndex::record`.
    ///
    /// # Panics
    /// If the sequence has no cache: a programming error.
    pub fn record(&mut self, sequence: SequenceId, tree: &TokenTree, exact: usize) {
        let cache = self.sequences.get_mut(&sequence).expect("a sequence after seek");
        cache.index.record(tree, exact);
        let prefix = cache.index.prefix_len();
        let states = std::mem::take(&mut cache.states.pending).into_iter();
        cache.states.held.extend(states.map(|(node, state)| (prefix + node, state)));
    }

    /// Frees the cache of a sequence. Its published pages stay until the budget needs them.
    pub fn release(&mut self, sequence: SequenceId) {
        if let Some(mut cache) = self.sequences.remove(&sequence) {
            self.states.unuse_all(cache.states.drop_all());
            cache.pages.into_iter().for_each(|page| self.pages.unuse(page, self.now));
            self.count_states();
        }
    }

    /// Returns how many more slots the current pass can write without exceeding the budget.
    #[must_use]
    pub fn free_slots(&self) -> usize {
        let in_pass: usize = self
            .sequences
            .values()
            .filter(|cache| cache.used == self.now)
            .map(|cache| cache.pages.len())
            .sum();
        self.pages.slots.budget.saturating_sub(in_pass).saturating_mul(PAGE_ROWS)
    }
}
