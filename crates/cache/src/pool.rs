//! The pages of all sequences: shared by content, freed by age under a budget.
//!
//! A page is *published* once all its rows belong to the prefix of a sequence and are exact. Then
//! its content is a function of the tokens up to its end, so every sequence that starts with these
//! tokens can use it. Published pages are never written to. A sequence that needs to write to one
//! of its published pages, because its prefix was shortened, first takes the page back or copies
//! its rows.

use crate::index::{CacheHit, CacheIndex, Keep};
use crate::page::{PAGE_ROWS, PageId, PageStorage, PageTable, RowPlace, StorageError};
use crate::states::{
    ANCHOR_ROWS, KEPT_OUTPUT_ROWS, RECENT_STATES, SHORT_PASS_ROWS, SequenceStates, StateId, is_kept,
};
use crate::usage::{PageEvent, PoolUsage};
use forerun_core::{Node, SequenceId, TokenId, TokenTree};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The identity of a published page's content: the tokens from the start of the sequence to its
/// end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ContentId(u64);

/// What comes before a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Before {
    /// Nothing but a token without a row (see [`CachePool::set_root`]).
    Root(Option<TokenId>),
    Page(ContentId),
}

/// What a page's content depends on, if it is published: the content before it and its own tokens.
type ContentKey = (Before, Vec<TokenId>);

#[derive(Default)]
struct Page {
    /// Number of sequences that use the page.
    users: usize,
    /// Its content, if it is published.
    content: Option<(ContentId, ContentKey)>,
    /// When it was last used.
    used: u64,
    /// The state after its last row, if that is kept. Only published pages have one.
    state: Option<StateId>,
}

/// Passes after which a pool whose device had no memory for a page or a state asks for it again.
const RETRY_PASSES: u64 = 1000;

/// The cache of one sequence.
#[derive(Default)]
pub struct SequenceCache {
    index: CacheIndex,
    pages: Vec<PageId>,
    /// The contents of the leading pages that are published.
    contents: Vec<ContentId>,
    root: Option<TokenId>,
    states: SequenceStates,
    used: u64,
    /// The last pass with the sequence's request in its batch.
    in_batch: u64,
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

    /// Returns what comes before the first page whose content is not published.
    fn before(&self) -> Before {
        self.contents.last().map_or(Before::Root(self.root), |&content| Before::Page(content))
    }

    /// Returns where the rows are.
    #[must_use]
    pub fn table(&self) -> PageTable<'_> {
        PageTable { pages: &self.pages }
    }
}

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
    /// By page number. `None` has no memory.
    pages: Vec<Option<Page>>,
    /// Number of pages with memory.
    allocated: usize,
    /// Pages with memory that nothing uses.
    free: Vec<PageId>,
    published: HashMap<ContentKey, PageId>,
    sequences: HashMap<SequenceId, SequenceCache>,
    /// Number of pages to have memory for.
    budget: usize,
    /// The budget if the device has memory for it.
    full_budget: usize,
    /// The pass that tries the full budgets again.
    retry_at: u64,
    /// Counts passes. Sequences used in the current pass are never evicted.
    now: u64,
    next_content: u64,
    usage: Arc<PoolUsage>,
    states: StateSlots,
}

#[derive(Default)]
struct StateSlots {
    /// The number of users of each slot: sequences and pages. `None` has no memory.
    users: Vec<Option<usize>>,
    /// Slots with memory that nothing uses.
    free: Vec<StateId>,
    /// Number of slots with memory.
    allocated: usize,
    /// Number of slots to have memory for.
    budget: usize,
    /// The budget if the device has memory for it.
    full_budget: usize,
}

impl<S: PageStorage> CachePool<S> {
    /// Creates an empty pool that frees pages by age once it has more than `budget` pages. If the
    /// sequences of one pass need more, it exceeds the budget for that pass.
    #[must_use]
    pub fn new(storage: S, budget: usize) -> Self {
        Self {
            storage,
            pages: Vec::new(),
            allocated: 0,
            free: Vec::new(),
            published: HashMap::new(),
            sequences: HashMap::new(),
            budget: budget.max(1),
            full_budget: budget.max(1),
            retry_at: u64::MAX,
            now: 1,
            next_content: 0,
            usage: Arc::default(),
            states: StateSlots {
                budget: usize::MAX,
                full_budget: usize::MAX,
                ..StateSlots::default()
            },
        }
        .with_budget(budget)
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
        self.full_budget = budget.max(1);
        self.set_budget(self.full_budget);
        self
    }

    fn set_budget(&mut self, budget: usize) {
        self.budget = budget;
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
            self.set_budget(self.full_budget);
            if self.has_states() {
                self.set_state_budget(self.states.full_budget);
            }
        }
    }

    /// Returns the number of pages that have memory.
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.allocated
    }

    /// Returns the number of states that have memory.
    #[must_use]
    pub fn allocated_states(&self) -> usize {
        self.states.allocated
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
    /// pages. See [`CacheIndex::seek`]. If the model has recurrent layers, the last row that is
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

    /// Notes how many states the sequences use. One that several use counts for each.
    fn count_states(&self) {
        if self.has_states() {
            let of_each =
                |cache: &SequenceCache| cache.states.held.len() + cache.states.pending.len();
            let in_use = self.sequences.values().map(of_each).sum();
            self.usage.states_in_use.store(in_use, Ordering::Relaxed);
        }
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
        lost.into_iter().chain(failed).for_each(|state| self.unuse_state(state));
        self.fit_pages(cache);
        self.publish(cache);
        hit
    }

    /// Gives the pages back that a sequence's index does not need.
    fn fit_pages(&mut self, cache: &mut SequenceCache) {
        let needed = cache.index.slots().div_ceil(PAGE_ROWS);
        for page in cache.pages.drain(needed.min(cache.pages.len())..) {
            self.unuse(page);
        }
        cache.contents.truncate(cache.index.exact_len() / PAGE_ROWS);
    }

    /// Whether the model has recurrent layers.
    fn has_states(&self) -> bool {
        self.storage.state_bytes() > 0
    }

    /// Shortens a sequence to the last row that has a state, and drops its tree unless each node
    /// has one. Gives back the states of rows long before the end.
    fn shorten_to_state(&mut self, cache: &mut SequenceCache) {
        let prefix = cache.index.prefix_len();
        let own = cache.states.held.range(..prefix).next_back().map_or(0, |(slot, _)| slot + 1);
        let pages = cache.pages.iter().enumerate().take(prefix / PAGE_ROWS);
        let of_pages = pages.rev().find_map(|(number, page)| {
            let state = self.pages[page.index()].as_ref()?.state?;
            Some(((number + 1) * PAGE_ROWS, state))
        });
        let of_pages = of_pages.filter(|(end, _)| *end > own);
        if let Some((end, state)) = of_pages {
            self.use_state(state);
            cache.states.held.insert(end - 1, state);
        }
        let end = of_pages.map_or(own, |(end, _)| end);
        let slots = cache.index.slots();
        let nodes_have_states = (prefix..slots).all(|slot| cache.states.held.contains_key(&slot));
        if end < prefix || !nodes_have_states {
            cache.index.truncate(end);
            let lost = cache.states.drop_from(end);
            lost.into_iter().for_each(|state| self.unuse_state(state));
            self.fit_pages(cache);
        }
        let old = cache.states.drop_before(end.saturating_sub(RECENT_STATES));
        old.into_iter().for_each(|state| self.unuse_state(state));
    }

    /// Declares that the rows of a sequence also depend on a token before the first slot. Drops its
    /// rows if they belong to another one.
    pub fn set_root(&mut self, sequence: SequenceId, root: TokenId) {
        if self.sequences.get(&sequence).is_none_or(|cache| cache.root != Some(root)) {
            self.release(sequence);
            let cache = SequenceCache { root: Some(root), ..SequenceCache::default() };
            self.sequences.insert(sequence, cache);
        }
    }

    /// Publishes the sequence's full pages of exact rows. A page whose content is already published
    /// is replaced by the published one.
    fn publish(&mut self, cache: &mut SequenceCache) {
        for number in cache.contents.len()..cache.index.exact_len() / PAGE_ROWS {
            let own = cache.pages[number];
            let slots = number * PAGE_ROWS..(number + 1) * PAGE_ROWS;
            let key = (cache.before(), cache.index.prefix()[slots].to_vec());
            let page = match self.published.get(&key) {
                Some(&page) => page,
                None => {
                    let content = ContentId(self.next_content);
                    self.next_content += 1;
                    self.report_published(content, &key);
                    self.published.insert(key.clone(), own);
                    self.page_mut(own).content = Some((content, key));
                    own
                }
            };
            if page != own {
                self.use_again(page);
                self.unuse(own);
                cache.pages[number] = page;
            }
            cache.contents.extend(self.content(page));
            let end = (number + 1) * PAGE_ROWS;
            if let Some(&state) = cache.states.held.get(&(end - 1))
                && end.is_multiple_of(ANCHOR_ROWS)
                && self.page_mut(page).state.is_none()
            {
                self.use_state(state);
                self.page_mut(page).state = Some(state);
            }
        }
    }

    /// Reports a page to the pool's watcher, unless its content also depends on a token without a
    /// row.
    fn report_published(&self, content: ContentId, (before, tokens): &ContentKey) {
        let before = match before {
            Before::Root(Some(_)) => return,
            Before::Root(None) => None,
            Before::Page(before) => Some(before.0),
        };
        self.usage.report(&PageEvent::Published { content: content.0, before, tokens });
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
            let key = (cache.before(), tokens[number * PAGE_ROWS..end].to_vec());
            let Some(&page) = self.published.get(&key) else { return };
            self.use_again(page);
            for own in cache.pages.drain(number..) {
                self.unuse(own);
            }
            cache.pages.push(page);
            cache.contents.extend(self.content(page));
            cache.index.extend_exact(&tokens[held..end]);
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

    /// Makes room for the states that a pass keeps.
    fn reserve_states(
        &mut self,
        cache: &mut SequenceCache,
        tree: &TokenTree,
        first_output: Node,
    ) -> Result<(), StorageError> {
        self.unuse_pending_states(cache);
        let (prefix, held) = (cache.index.prefix_len(), cache.index.tree_len());
        let first_output = first_output.clamp(held, tree.len());
        let nodes: Vec<Node> = (held..tree.len())
            .filter(|node| is_kept(*node, tree, prefix, held, first_output))
            .collect();
        let in_use = self.states.allocated - self.states.free.len() - self.states_of_pages();
        if in_use + nodes.len() > self.states.budget {
            self.unuse_old_states(cache);
        }
        for node in nodes {
            let mut state = self.allocate_state();
            if state.is_err() {
                self.unuse_old_states(cache);
                state = self.allocate_state();
            }
            match state {
                Ok(state) => _ = cache.states.pending.insert(node, state),
                Err(error) => {
                    self.unuse_pending_states(cache);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Gives up the states of a pass that has failed.
    fn unuse_pending_states(&mut self, cache: &mut SequenceCache) {
        let failed = std::mem::take(&mut cache.states.pending).into_values();
        failed.for_each(|state| self.unuse_state(state));
    }

    /// Gives up the states of a sequence that its pass does not need. It needs the last one of the
    /// prefix, and those of its tree.
    fn unuse_old_states(&mut self, cache: &mut SequenceCache) {
        let old = cache.states.drop_before(cache.index.prefix_len().saturating_sub(1));
        old.into_iter().for_each(|state| self.unuse_state(state));
    }

    fn states_of_pages(&self) -> usize {
        let states = self.pages.iter().flatten().filter_map(|page| page.state);
        states.filter(|state| self.states.users[state.index()] == Some(1)).count()
    }

    fn use_state(&mut self, state: StateId) {
        *self.state_users(state) += 1;
    }

    /// Counts one user less. A state that nothing uses becomes free.
    fn unuse_state(&mut self, state: StateId) {
        let users = self.state_users(state);
        *users -= 1;
        if *users == 0 {
            self.states.free.push(state);
        }
    }

    fn state_users(&mut self, state: StateId) -> &mut usize {
        self.states.users[state.index()].as_mut().expect("a state with memory")
    }

    /// Returns a state with one user.
    fn allocate_state(&mut self) -> Result<StateId, StorageError> {
        // An earlier pass may have exceeded the budget.
        while self.states.allocated > self.states.budget {
            let Some(state) = self.free_state() else { break };
            self.states.users[state.index()] = None;
            self.states.allocated -= 1;
            self.storage.release_state(state);
        }
        let is_full = self.states.allocated >= self.states.budget;
        let found = if is_full { self.free_state() } else { self.states.free.pop() };
        let state = found.map_or_else(|| self.reserve_state(), Ok)?;
        match self.states.users.get_mut(state.index()) {
            Some(users) => self.states.allocated += usize::from(users.replace(1).is_none()),
            None => {
                self.states.users.push(Some(1));
                self.states.allocated += 1;
            }
        }
        Ok(state)
    }

    /// Returns a state with new memory. If the device has none left, takes another state away. The
    /// states that there are become the budget for the next [`RETRY_PASSES`], so that passes are
    /// planned with them.
    fn reserve_state(&mut self) -> Result<StateId, StorageError> {
        let unused = self.states.users.iter().position(Option::is_none);
        let state = StateId(unused.unwrap_or(self.states.users.len()) as u32);
        let Err(error) = self.storage.reserve_state(state) else { return Ok(state) };
        self.set_state_budget(self.states.allocated.clamp(1, self.states.budget));
        self.retry_at = self.now + RETRY_PASSES;
        self.free_state().ok_or(error)
    }

    /// Returns a free state, if necessary after taking one away that was not used for the longest
    /// time: of a page, or else those of a sequence that is not in the current pass.
    fn free_state(&mut self) -> Option<StateId> {
        if let Some(state) = self.states.free.pop() {
            return Some(state);
        }
        let users = &self.states.users;
        let of_pages = self.pages.iter().enumerate().filter_map(|(number, page)| {
            let page = page.as_ref()?;
            // Taking away one that a sequence uses as well would free nothing.
            let is_only_user = users[page.state?.index()] == Some(1);
            let content = page.content.as_ref().map(|(id, _)| id.0);
            is_only_user.then_some((page.used, content, number))
        });
        if let Some((_, _, number)) = of_pages.min() {
            let state = self.pages[number].as_mut().and_then(|page| page.state.take());
            state.into_iter().for_each(|state| self.unuse_state(state));
            return self.states.free.pop();
        }
        let idle = self.sequences.iter().filter(|(_, cache)| !self.is_in_batch(cache));
        let idle = idle.filter(|(_, cache)| !cache.states.held.is_empty());
        let (&sequence, _) = idle.min_by_key(|(id, cache)| (cache.used, id.0))?;
        let cache = self.sequences.get_mut(&sequence)?;
        let states = cache.states.drop_all();
        states.into_iter().for_each(|state| self.unuse_state(state));
        self.free_state()
    }

    /// Ensures that nothing else uses the page of slot `first`, and that it is not published.
    fn make_writable(
        &mut self,
        cache: &mut SequenceCache,
        page: PageId,
        first: usize,
    ) -> Result<(), StorageError> {
        let number = first / PAGE_ROWS;
        if self.page_mut(page).users > 1 {
            let own = self.allocate()?;
            for row in 0..first % PAGE_ROWS {
                self.storage.copy_row(RowPlace { page, row }, RowPlace { page: own, row });
            }
            self.unuse(page);
            cache.pages[number] = own;
        } else {
            self.unpublish(page);
        }
        cache.contents.truncate(number);
        Ok(())
    }

    /// Removes the content of a page, and its state.
    fn unpublish(&mut self, id: PageId) {
        let page = self.page_mut(id);
        let (content, state) = (page.content.take(), page.state.take());
        if let Some((content, key)) = content {
            self.published.remove(&key);
            if !matches!(key.0, Before::Root(Some(_))) {
                self.usage.report(&PageEvent::Withdrawn { content: content.0 });
            }
        }
        state.into_iter().for_each(|state| self.unuse_state(state));
    }

    /// Records that the rows of all nodes of `tree` have been written. See [`CacheIndex::record`].
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
            cache.states.drop_all().into_iter().for_each(|state| self.unuse_state(state));
            cache.pages.into_iter().for_each(|page| self.unuse(page));
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
        self.budget.saturating_sub(in_pass).saturating_mul(PAGE_ROWS)
    }

    /// Marks a sequence whose request is in the current batch, so that the others take none of its
    /// states.
    pub fn protect_states(&mut self, sequence: SequenceId) {
        let now = self.now;
        if let Some(cache) = self.sequences.get_mut(&sequence) {
            cache.in_batch = now;
        }
    }

    /// Whether a pass over `rows` rows of a sequence, with logits of the last `outputs`, can keep
    /// its states without exceeding the budget, if no sequence of the current batch loses any.
    #[must_use]
    pub fn has_room_for_states(&self, sequence: SequenceId, rows: usize, outputs: usize) -> bool {
        if !self.has_states() {
            return true;
        }
        let in_batch = self.sequences.values().filter(|cache| self.is_in_batch(cache));
        let used: usize =
            in_batch.map(|cache| cache.states.held.len() + cache.states.pending.len()).sum();
        // The sequence's own states can go, except the last one.
        let own = self.sequences.get(&sequence).map_or(0, |cache| cache.states.held.len());
        let others = used - own + own.min(1);
        let needed = match rows {
            few if few <= SHORT_PASS_ROWS => few,
            many => outputs.min(KEPT_OUTPUT_ROWS) + 2 + many / ANCHOR_ROWS,
        };
        others + needed <= self.states.budget
    }

    fn is_in_batch(&self, cache: &SequenceCache) -> bool {
        cache.used == self.now || cache.in_batch == self.now
    }

    fn page_mut(&mut self, page: PageId) -> &mut Page {
        self.pages[page.index()].as_mut().expect("a page with memory")
    }

    fn content(&self, page: PageId) -> Option<ContentId> {
        self.pages[page.index()].as_ref()?.content.as_ref().map(|(content, _)| *content)
    }

    fn use_again(&mut self, page: PageId) {
        let now = self.now;
        let page = self.page_mut(page);
        page.users += 1;
        page.used = now;
        if page.users == 1 {
            self.usage.in_use.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts one user less. A page that is neither used nor published becomes free.
    fn unuse(&mut self, id: PageId) {
        let now = self.now;
        let page = self.page_mut(id);
        page.users -= 1;
        page.used = now;
        if page.users > 0 {
            return;
        }
        let is_kept = page.content.is_some();
        self.usage.in_use.fetch_sub(1, Ordering::Relaxed);
        if !is_kept {
            self.free.push(id);
        }
    }

    /// Returns a page of its own for a sequence.
    fn allocate(&mut self) -> Result<PageId, StorageError> {
        // An earlier pass may have exceeded the budget.
        while self.allocated > self.budget {
            let Some(page) = self.free.pop().or_else(|| self.evict()) else { break };
            self.pages[page.index()] = None;
            self.allocated -= 1;
            self.storage.release(page);
        }
        let page = self.free.pop().or_else(|| match self.allocated < self.budget {
            true => None,
            false => self.evict(),
        });
        let id = page.map_or_else(|| self.reserve_page(), Ok)?;
        self.usage.in_use.fetch_add(1, Ordering::Relaxed);
        let page = Page { users: 1, content: None, used: self.now, state: None };
        match self.pages.get_mut(id.index()) {
            Some(slot) => self.allocated += usize::from(slot.replace(page).is_none()),
            None => {
                self.pages.push(Some(page));
                self.allocated += 1;
            }
        }
        Ok(id)
    }

    /// Returns a page with new memory. If the device has none left, takes another page away, and
    /// the pages that there are become the budget for the next [`RETRY_PASSES`].
    fn reserve_page(&mut self) -> Result<PageId, StorageError> {
        let unused = self.pages.iter().position(Option::is_none);
        let id = PageId(unused.unwrap_or(self.pages.len()) as u32);
        let Err(error) = self.storage.reserve(id) else { return Ok(id) };
        let page = self.evict().ok_or(error)?;
        self.set_budget(self.allocated);
        self.retry_at = self.now + RETRY_PASSES;
        Ok(page)
    }

    /// Takes the page away that was not used for the longest time: of those that no sequence uses,
    /// or else the last one of a sequence that is not in the current pass.
    fn evict(&mut self) -> Option<PageId> {
        // Among pages that were last used together, those that follow others were published later.
        let age = |page: &Page| page.content.as_ref().map(|(id, _)| (page.used, u64::MAX - id.0));
        let unused = self.pages.iter().enumerate().filter_map(|(number, page)| {
            let page = page.as_ref().filter(|page| page.users == 0)?;
            Some((age(page)?, PageId(number as u32)))
        });
        if let Some((_, id)) = unused.min_by_key(|&(age, _)| age) {
            self.unpublish(id);
            return Some(id);
        }
        loop {
            let idle = self.sequences.iter().filter(|(_, cache)| cache.used < self.now);
            let idle = idle.filter(|(_, cache)| !cache.pages.is_empty());
            let (&sequence, _) = idle.min_by_key(|(id, cache)| (cache.used, id.0))?;
            let mut cache = self.sequences.remove(&sequence)?;
            if let Some(page) = cache.pages.pop() {
                cache.index.truncate(cache.pages.len() * PAGE_ROWS);
                cache.contents.truncate(cache.pages.len());
                if self.page_mut(page).users == 1 {
                    self.unpublish(page);
                }
                self.unuse(page);
            }
            let lost = match cache.pages.is_empty() {
                true => cache.states.drop_all(),
                false => cache.states.drop_from(cache.pages.len() * PAGE_ROWS),
            };
            lost.into_iter().for_each(|state| self.unuse_state(state));
            if !cache.pages.is_empty() {
                self.sequences.insert(sequence, cache);
            }
            if let Some(page) = self.free.pop() {
                return Some(page);
            }
        }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::page::HeldRows;
    use crate::states::StateBefore;
    use proptest::prelude::*;

    /// A storage in which a row is the tokens up to it, so that any mix-up is visible.
    #[derive(Default)]
    struct Prefixes(HashMap<PageId, Vec<Vec<TokenId>>>, Option<HashMap<StateId, Vec<TokenId>>>);

    impl PageStorage for Prefixes {
        fn page_bytes(&self) -> usize {
            1
        }

        fn reserve(&mut self, page: PageId) -> Result<(), StorageError> {
            self.0.entry(page).or_insert_with(|| vec![Vec::new(); PAGE_ROWS]);
            Ok(())
        }

        fn copy_row(&mut self, from: RowPlace, to: RowPlace) {
            let row = self.0[&from.page][from.row].clone();
            self.0.get_mut(&to.page).expect("a reserved page")[to.row] = row;
        }

        fn release(&mut self, page: PageId) {
            self.0.remove(&page).expect("a reserved page");
        }

        fn state_bytes(&self) -> usize {
            usize::from(self.1.is_some())
        }

        fn reserve_state(&mut self, state: StateId) -> Result<(), StorageError> {
            let states = self.1.as_mut().expect("a model with states");
            // What was in the slot before must not matter.
            states.insert(state, vec![TokenId::MAX]);
            Ok(())
        }

        fn release_state(&mut self, state: StateId) {
            let states = self.1.as_mut().expect("a model with states");
            states.remove(&state).expect("a reserved state");
        }
    }

    /// Does what a model does: seeks, writes the missing rows, records them. Returns the number of
    /// computed rows. Asserts that all rows that a pass reads are those of its tokens.
    fn compute(
        pool: &mut CachePool<Prefixes>,
        sequence: SequenceId,
        tokens: &[TokenId],
        tree: &TokenTree,
    ) -> usize {
        pool.start_pass();
        let held = pool.seek(sequence, tokens, tree, Keep::Exact);
        let missing = &tokens[held.tokens..];
        let mut new = TokenTree::chain(missing);
        new.graft(missing.len().checked_sub(1), tree);
        pool.reserve(sequence, &new, missing.len().saturating_sub(1)).unwrap();
        let (storage, sequences) = pool.storage_and_sequences();
        let cache = &sequences[&sequence];
        let (prefix, table) = (cache.index().prefix_len(), cache.table());
        let first = cache.index().tree_len();
        let path = |node| {
            let path = new.path(node).into_iter().map(|node| new.token(node));
            tokens[..prefix].iter().copied().chain(path).collect::<Vec<_>>()
        };
        for node in first..new.len() {
            let place = table.place(prefix + node);
            storage.0.get_mut(&place.page).expect("a reserved page")[place.row] = path(node);
        }
        for slot in 0..prefix + new.len() {
            let expected = match slot.checked_sub(prefix) {
                None => tokens[..=slot].to_vec(),
                Some(node) => path(node),
            };
            let place = table.place(slot);
            assert_eq!(storage.0[&place.page][place.row], expected, "slot {slot}");
        }
        if let Some(states) = &mut storage.1 {
            let mut running = Vec::new();
            let mut steps = Vec::new();
            cache.add_state_steps(&new, &mut steps);
            for (node, step) in (first..new.len()).zip(steps) {
                let mut state = match step.before {
                    StateBefore::Zero => Vec::new(),
                    StateBefore::Kept(state) => states[&state].clone(),
                    StateBefore::Running => std::mem::take(&mut running),
                };
                state.push(new.token(node));
                assert_eq!(state, path(node), "the state after node {node}");
                match step.after {
                    Some(slot) => *states.get_mut(&slot).expect("a reserved state") = state,
                    None => running = state,
                }
            }
        }
        pool.record(sequence, &new, new.len());
        new.len() - first
    }

    fn pool(budget: usize) -> CachePool<Prefixes> {
        CachePool::new(Prefixes::default(), budget)
    }

    /// A pool of a model with recurrent layers.
    fn recurrent_pool(budget: usize, states: usize) -> CachePool<Prefixes> {
        let storage = Prefixes(HashMap::new(), Some(HashMap::new()));
        CachePool::new(storage, budget).with_state_budget(states)
    }

    /// Returns `len` tokens that begin with those of every shorter list of the same `seed`.
    fn tokens(seed: u32, len: usize) -> Vec<TokenId> {
        (0..len as u32).map(|index| index * 7 + seed).collect()
    }

    #[test]
    fn equal_prompts_share_their_full_pages() {
        let (mut pool, none) = (pool(100), TokenTree::new());
        let prompt = tokens(0, 10 * PAGE_ROWS + 5);
        assert_eq!(compute(&mut pool, SequenceId(0), &prompt, &none), prompt.len());
        // The pages are published when the next job shows that their tokens are a prefix.
        assert_eq!(compute(&mut pool, SequenceId(0), &prompt, &none), 0);
        for sequence in 1..8 {
            assert_eq!(compute(&mut pool, SequenceId(sequence), &prompt, &none), 5);
        }
        // Ten shared pages, and one of each sequence's own.
        assert_eq!(pool.allocated(), 10 + 8);
        // A released sequence's pages serve the next one.
        (0..8).for_each(|sequence| pool.release(SequenceId(sequence)));
        assert_eq!(compute(&mut pool, SequenceId(9), &prompt, &none), 5);
        assert_eq!(pool.allocated(), 10 + 8, "free pages keep their memory within the budget");
    }

    /// A storage whose device has memory for some pages only.
    #[derive(Default)]
    struct Limited {
        rows: Prefixes,
        most: usize,
        budget: usize,
        most_states: usize,
        state_budget: usize,
    }

    impl PageStorage for Limited {
        fn page_bytes(&self) -> usize {
            1
        }

        fn set_budget(&mut self, pages: usize) {
            self.budget = pages;
        }

        fn reserve(&mut self, page: PageId) -> Result<(), StorageError> {
            let is_new = !self.rows.0.contains_key(&page);
            if is_new && self.rows.0.len() >= self.most {
                return Err(StorageError("no memory".into()));
            }
            self.rows.reserve(page)
        }

        fn copy_row(&mut self, from: RowPlace, to: RowPlace) {
            self.rows.copy_row(from, to);
        }

        fn release(&mut self, page: PageId) {
            self.rows.release(page);
        }

        fn state_bytes(&self) -> usize {
            self.rows.state_bytes()
        }

        fn set_state_budget(&mut self, states: usize) {
            self.state_budget = states;
        }

        fn reserve_state(&mut self, state: StateId) -> Result<(), StorageError> {
            if state.index() >= self.most_states {
                return Err(StorageError("no memory".into()));
            }
            self.rows.reserve_state(state)
        }

        fn release_state(&mut self, state: StateId) {
            self.rows.release_state(state);
        }
    }

    /// Writes the rows of the last sequence, in a pass with all of them. Returns the number of
    /// computed rows, or `None` if there is no memory.
    fn write(
        pool: &mut CachePool<Limited>,
        sequences: &[(SequenceId, &[TokenId])],
    ) -> Option<usize> {
        pool.start_pass();
        let none = TokenTree::new();
        let mut held = 0;
        for (sequence, tokens) in sequences {
            held = pool.seek(*sequence, tokens, &none, Keep::Exact).tokens;
        }
        let (sequence, tokens) = *sequences.last()?;
        let new = TokenTree::chain(&tokens[held..]);
        pool.reserve(sequence, &new, 0).ok()?;
        pool.record(sequence, &new, new.len());
        Some(new.len())
    }

    /// Returns the pages of sequences, none of which occurs twice.
    fn different_pages(pool: &CachePool<Limited>, sequences: [SequenceId; 2]) -> usize {
        let tables = sequences.into_iter().filter_map(|sequence| pool.sequence(sequence));
        let mut pages: Vec<PageId> =
            tables.flat_map(|cache| cache.table().pages.to_vec()).collect();
        let count = pages.len();
        pages.sort_unstable();
        pages.dedup();
        assert_eq!(pages.len(), count, "no page belongs to two sequences");
        count
    }

    #[test]
    fn a_device_without_memory_leaves_the_pool_whole() {
        let storage = Limited { most: 4, ..Limited::default() };
        let mut pool = CachePool::new(storage, 100);
        assert_eq!(pool.storage().budget, 100);
        let [a, b] = [tokens(0, 2 * PAGE_ROWS - 5), tokens(1, 4 * PAGE_ROWS)];
        let [first, second] = [SequenceId(0), SequenceId(1)];
        let short = &b[..PAGE_ROWS / 2];
        assert_eq!(write(&mut pool, &[(first, &a)]), Some(a.len()));
        assert_eq!(write(&mut pool, &[(second, short)]), Some(short.len()));
        // A pass that needs more fails, again and again, and takes no page from the other sequence
        // in it.
        for _ in 0..3 {
            assert_eq!(write(&mut pool, &[(first, &a), (second, &b)]), None);
            assert_eq!((pool.allocated(), different_pages(&pool, [first, second])), (4, 4));
        }
        // Both keep their rows, and the pages of the failed pass are free again.
        assert_eq!(write(&mut pool, &[(first, &a)]), Some(0));
        assert_eq!(write(&mut pool, &[(second, short)]), Some(0));
        let two = &b[..2 * PAGE_ROWS];
        let missing = two.len() - short.len();
        assert_eq!(write(&mut pool, &[(first, &a), (second, two)]), Some(missing));
        // Alone, a sequence takes the pages of the other one, and the pool remembers what there is.
        assert_eq!(write(&mut pool, &[(second, &b)]), Some(b.len() - two.len()));
        assert_eq!((pool.allocated(), different_pages(&pool, [first, second])), (4, 4));
        assert_eq!((pool.storage().budget, pool.usage().tokens()), (4, 4 * PAGE_ROWS));
        assert_eq!(write(&mut pool, &[(first, &a)]), Some(a.len()));
        // Later, it asks for memory again, which may be there. One pass has begun since it found
        // none.
        pool.storage.most = 5;
        (2..RETRY_PASSES).for_each(|_| pool.start_pass());
        assert_eq!(pool.storage().budget, 4);
        pool.start_pass();
        assert_eq!((pool.storage().budget, pool.usage().tokens()), (100, 100 * PAGE_ROWS));
        assert_eq!(write(&mut pool, &[(second, &b)]), Some(b.len() - two.len()));
        assert_eq!((pool.allocated(), different_pages(&pool, [first, second])), (5, 5));
    }

    #[test]
    fn a_device_without_memory_for_states_takes_older_ones_away() {
        let rows = Prefixes(HashMap::new(), Some(HashMap::new()));
        let storage = Limited { rows, most: 100, most_states: 12, ..Limited::default() };
        let mut pool = CachePool::new(storage, 100).with_state_budget(1000);
        let [first, second] = [SequenceId(0), SequenceId(1)];
        let [a, b] = [tokens(0, 10), tokens(1, 14)];
        assert_eq!(write(&mut pool, &[(first, &a)]), Some(10));
        // A sequence gives up its own old states.
        let longer = [&a[..], &[1, 2, 3, 4, 5]].concat();
        assert_eq!(write(&mut pool, &[(first, &longer)]), Some(5));
        assert_eq!((pool.allocated_states(), pool.storage().state_budget), (12, 12));
        // A pass that needs more than there are fails, again and again.
        for _ in 0..3 {
            assert_eq!(write(&mut pool, &[(second, &b)]), None);
            assert_eq!(pool.allocated_states(), 12);
            assert_eq!(pool.usage().state_budget.load(Ordering::Relaxed), 12);
        }
        // A short one finds the states that the failed one has given back, also after its sequence
        // was released.
        assert_eq!(write(&mut pool, &[(second, &b[..12])]), Some(12));
        pool.release(second);
        assert_eq!(write(&mut pool, &[(first, &a[..3])]), Some(3));
        // The other sequence in a pass keeps its states.
        for _ in 0..3 {
            assert_eq!(write(&mut pool, &[(first, &a[..3]), (second, &b[..12])]), None);
            assert_eq!(write(&mut pool, &[(first, &a[..3])]), Some(0));
        }
        assert_eq!(write(&mut pool, &[(first, &a)]), Some(7));
        assert_eq!(write(&mut pool, &[(first, &longer)]), Some(5));
        assert_eq!(pool.allocated_states(), 12);
        // Later, the pool asks for memory again.
        pool.storage.most_states = 1000;
        (0..RETRY_PASSES).for_each(|_| pool.start_pass());
        assert_eq!(pool.storage().state_budget, 1000);
        assert_eq!(write(&mut pool, &[(first, &a[..3]), (second, &b)]), Some(14));
        assert!(pool.allocated_states() > 12);
    }

    #[test]
    fn a_shortened_prefix_copies_a_shared_page_before_writing() {
        let (mut pool, none) = (pool(100), TokenTree::new());
        let prompt = tokens(0, 2 * PAGE_ROWS);
        for sequence in [0, 0, 1] {
            compute(&mut pool, SequenceId(sequence), &prompt, &none);
        }
        // Sequence 1 continues differently within the second page.
        let mut other = prompt[..PAGE_ROWS + 10].to_vec();
        other.extend([9, 9, 9]);
        assert_eq!(compute(&mut pool, SequenceId(1), &other, &none), 3);
        assert_eq!(compute(&mut pool, SequenceId(0), &prompt, &none), 0);
        // Alone, a sequence takes its page back instead of copying it.
        let allocated = pool.allocated();
        assert_eq!(compute(&mut pool, SequenceId(0), &other, &none), 3);
        assert_eq!(pool.allocated(), allocated);
    }

    #[test]
    fn the_budget_frees_old_content_first_and_then_idle_sequences() {
        let (mut pool, none) = (pool(4), TokenTree::new());
        let [a, b] = [tokens(0, 2 * PAGE_ROWS), tokens(1, 2 * PAGE_ROWS)];
        for (sequence, tokens) in [(0, &a), (0, &a), (1, &b), (1, &b)] {
            compute(&mut pool, SequenceId(sequence), tokens, &none);
        }
        pool.release(SequenceId(0));
        let c = tokens(2, PAGE_ROWS);
        compute(&mut pool, SequenceId(2), &c, &none);
        assert_eq!(pool.allocated(), 4);
        assert_eq!(compute(&mut pool, SequenceId(1), &b, &none), 0, "in use, so it stays");
        // The first page of the released content is still there; the last one went first.
        assert_eq!(compute(&mut pool, SequenceId(3), &a, &none), PAGE_ROWS);
        // Nothing is unused now: the idle sequences lose pages, the oldest first.
        let large = tokens(3, 4 * PAGE_ROWS);
        compute(&mut pool, SequenceId(4), &large, &none);
        assert_eq!(pool.allocated(), 4);
        assert_eq!(compute(&mut pool, SequenceId(1), &b, &none), 2 * PAGE_ROWS);
        // A sequence may exceed the budget, but only for its own pass.
        let huge = tokens(5, 6 * PAGE_ROWS);
        compute(&mut pool, SequenceId(5), &huge, &none);
        assert_eq!(pool.allocated(), 6);
        compute(&mut pool, SequenceId(6), &c, &none);
        assert_eq!(pool.allocated(), 4);
    }

    /// Verification passes with all kinds of verdicts compute no row twice.
    #[test]
    fn a_rejection_recomputes_no_row_of_a_recurrent_model() {
        let [mut plain, mut recurrent] = [pool(100), recurrent_pool(100, 1000)];
        let mut text = tokens(0, 300);
        for round in 0..200_u32 {
            let mut tree = TokenTree::chain(&[1, 2, 3, 4 + round % 3]);
            let fork = tree.push(Some(1), 9);
            tree.push(Some(fork), round);
            tree.push(None, 7);
            let computed =
                [&mut plain, &mut recurrent].map(|pool| compute(pool, SequenceId(0), &text, &tree));
            assert_eq!(computed[0], computed[1], "round {round}");
            assert_eq!(computed[1], if round == 0 { 307 } else { 8 }, "round {round}");
            // Accepts none, some or all nodes of a path, and adds another token.
            let path = tree.path([0, 1, 3, 5, 6][round as usize % 5]);
            let accepted = path.into_iter().take(round as usize % 6);
            text.extend(accepted.map(|node| tree.token(node)));
            text.push(100 + round);
        }
        let kept = recurrent.sequence(SequenceId(0)).map_or(0, SequenceCache::kept_states);
        assert!(kept <= RECENT_STATES + 8, "{kept} states");
        // The others are those of every 256th row.
        assert_eq!(
            recurrent.states.allocated - recurrent.states.free.len(),
            kept + text.len() / ANCHOR_ROWS
        );
    }

    #[test]
    fn usage_counts_the_states_of_sequences() {
        let states = 3 * (RECENT_STATES + 1);
        let mut pool = recurrent_pool(100, states);
        let usage = Arc::clone(pool.usage());
        assert_eq!((usage.sequences(), usage.share()), (Some(3), 0.0));
        assert_eq!(CachePool::new(Prefixes::default(), 100).usage().sequences(), None);
        let none = TokenTree::new();
        // The last rows of a sequence have states, and a prompt only its last two.
        let mut text = tokens(1, 200);
        compute(&mut pool, SequenceId(1), &text, &none);
        assert_eq!(usage.share(), 4.0 / 100.0, "pages are the larger share");
        for token in 0..50 {
            text.push(token);
            compute(&mut pool, SequenceId(1), &text, &none);
        }
        assert_eq!(usage.share(), (RECENT_STATES + 1) as f64 / states as f64);
        // As many as `sequences` says continue by turns, each pass computing its own rows alone.
        let mut texts: Vec<Vec<TokenId>> = (1..4).map(|seed| tokens(seed, 100)).collect();
        let draft = TokenTree::chain(&(0..SHORT_PASS_ROWS as TokenId - 1).collect::<Vec<_>>());
        for round in 0..100 {
            for (text, id) in texts.iter_mut().zip(2..) {
                let computed = compute(&mut pool, SequenceId(id), text, &draft);
                let new = if round == 0 { 100 } else { 1 };
                assert_eq!(computed, new + draft.len(), "sequence {id} in round {round}");
                text.push(round % 7 + 900);
            }
            pool.release(SequenceId(1));
        }
        assert!(usage.share() <= 1.0 && pool.allocated_states() <= states);
        (2..5).for_each(|id| pool.release(SequenceId(id)));
        assert_eq!(usage.share(), 0.0);
    }

    #[test]
    fn edited_and_shared_texts_continue_at_the_last_anchor() {
        let (mut pool, none) = (recurrent_pool(100, 1000), TokenTree::new());
        let text = tokens(0, 600);
        for part in [256, 512, 600] {
            compute(&mut pool, SequenceId(0), &text[..part], &none);
        }
        compute(&mut pool, SequenceId(0), &text, &none);
        // Another sequence uses the pages up to a row with a state.
        assert_eq!(compute(&mut pool, SequenceId(1), &text, &none), 600 - 512);
        // An edited text, too.
        let mut edited = text.clone();
        edited[580] = 1;
        assert_eq!(compute(&mut pool, SequenceId(0), &edited, &none), 600 - 512);
        edited[300] = 1;
        assert_eq!(compute(&mut pool, SequenceId(0), &edited, &none), 600 - 256);
        // The same text again, of which the last row is computed again.
        assert_eq!(compute(&mut pool, SequenceId(1), &text[..599], &none), 0);
    }

    #[test]
    fn states_have_a_budget() {
        let (mut pool, none) = (recurrent_pool(100, 12), TokenTree::new());
        for sequence in 0..6 {
            let text = tokens(sequence, 300);
            let id = SequenceId(u64::from(sequence));
            for part in [256, 300] {
                compute(&mut pool, id, &text[..part], &none);
            }
            for end in 1..40 {
                let longer = [&text[..], &tokens(90, end)].concat();
                assert_eq!(compute(&mut pool, id, &longer, &TokenTree::chain(&[1, 2, 3])), 4);
                assert!(pool.allocated_states() <= 12, "{} states", pool.allocated_states());
            }
        }
        // A large tree needs more, for its own pass.
        let mut wide = TokenTree::new();
        (0..30).for_each(|token| _ = wide.push(None, token));
        compute(&mut pool, SequenceId(0), &tokens(0, 300), &wide);
        assert!(pool.allocated_states() > 30);
        compute(&mut pool, SequenceId(1), &tokens(1, 300), &none);
        compute(&mut pool, SequenceId(1), &tokens(1, 301), &none);
        assert!(pool.allocated_states() <= 12, "{} states", pool.allocated_states());
        (0..6).for_each(|sequence| pool.release(SequenceId(sequence)));
        assert!(pool.states.allocated - pool.states.free.len() <= 6, "those of pages");
    }

    #[test]
    fn a_failed_pass_leaves_the_states() {
        let (mut pool, none) = (recurrent_pool(100, 1000), TokenTree::new());
        let text = tokens(0, 40);
        compute(&mut pool, SequenceId(0), &text, &none);
        for _ in 0..3 {
            pool.start_pass();
            pool.seek(SequenceId(0), &text, &none, Keep::Exact);
            pool.reserve(SequenceId(0), &TokenTree::chain(&[1, 2, 3]), 0).unwrap();
        }
        let longer = [&text[..], &[4]].concat();
        assert_eq!(compute(&mut pool, SequenceId(0), &longer, &none), 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Sequences that branch off each other, grow by trees, are rolled back, released and
        /// evicted: every row that a pass reads is that of its tokens ([`compute`] asserts it).
        #[test]
        fn rows_are_always_those_of_their_tokens(
            budget in 1..12_usize,
            states in prop::option::of(prop_oneof![1..20_usize, Just(1000)]),
            steps in prop::collection::vec(
                (0..5_u64, 0..3_u32, 1..4 * PAGE_ROWS, 0..4_usize, 0..40_usize, any::<bool>()),
                1..60,
            ),
        ) {
            let mut pool = match states {
                Some(states) => recurrent_pool(budget, states),
                None => pool(budget),
            };
            for (sequence, seed, len, branch, depth, release) in steps {
                let sequence = SequenceId(sequence);
                // The texts share a first part, and differ from a multiple of 50 tokens on.
                let mut text = tokens(0, len);
                for token in text.iter_mut().skip(50 * branch) {
                    *token += seed;
                }
                let mut tree = TokenTree::chain(&tokens(seed, depth));
                tree.push(depth.checked_sub(3), 1);
                tree.push(None, 2);
                compute(&mut pool, sequence, &text, &tree);
                // The accepted path becomes a part of the prefix.
                text.extend(&tree.tokens()[..depth / 2]);
                compute(&mut pool, sequence, &text, &TokenTree::chain(&[seed, 3]));
                if release {
                    pool.release(sequence);
                }
            }
        }
    }
}
