//! The pages of all sequences: shared by content, freed by age under a budget.
//!
//! A page is *published* once all its rows belong to the prefix of a sequence and are exact. Then its
//! content is a function of the tokens up to its end, so every sequence that starts with these tokens
//! can use it. Published pages are never written to. A sequence that needs to write to one of its
//! published pages, because its prefix was shortened, first takes the page back or copies its rows.

use crate::index::{CacheHit, CacheIndex, Keep};
use crate::page::{PAGE_ROWS, PageId, PageStorage, PageTable, RowPlace};
use forerun_core::{SequenceId, TokenId, TokenTree};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The identity of a published page's content: the tokens from the start of the sequence to its end.
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

/// A page that has memory.
#[derive(Default)]
struct Page {
    /// Number of sequences that use the page.
    users: usize,
    /// Its content, if it is published.
    content: Option<(ContentId, ContentKey)>,
    /// When it was last used.
    used: u64,
}

/// The cache of one sequence.
#[derive(Default)]
pub struct SequenceCache {
    index: CacheIndex,
    pages: Vec<PageId>,
    /// The contents of the leading pages that are published.
    contents: Vec<ContentId>,
    root: Option<TokenId>,
    used: u64,
}

impl SequenceCache {
    /// Returns which tokens and nodes are held.
    #[must_use]
    pub fn index(&self) -> &CacheIndex {
        &self.index
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

/// How many pages of a pool are in use. Others can read it at any time.
#[derive(Debug, Default)]
pub struct PoolUsage {
    in_use: AtomicUsize,
    budget: AtomicUsize,
}

impl PoolUsage {
    /// Returns the share of the budget that sequences use; above 1 if they need more. Pages that are kept
    /// for later sequences do not count.
    #[must_use]
    pub fn share(&self) -> f64 {
        let in_use = self.in_use.load(Ordering::Relaxed);
        in_use as f64 / self.budget.load(Ordering::Relaxed).max(1) as f64
    }

    /// Returns the number of tokens for which the budget has room.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.budget.load(Ordering::Relaxed).saturating_mul(PAGE_ROWS)
    }
}

/// The caches of all sequences of a model, on pages of a device's storage.
///
/// ```rust
/// use forerun_cache::{CachePool, Keep, PAGE_ROWS, PageId, PageStorage, RowPlace};
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
///     fn reserve(&mut self, page: PageId) {
///         self.0 = self.0.max(page.index() + 1);
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
/// pool.reserve(first, prompt.len());
/// pool.record(first, &TokenTree::chain(&prompt), prompt.len());
/// pool.seek(first, &prompt, &none, Keep::Exact);
/// // The second one uses the same pages.
/// assert_eq!(pool.seek(SequenceId(2), &prompt, &none, Keep::Exact).tokens, prompt.len());
/// assert_eq!(pool.storage().0, 3);
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
    /// Counts passes. Sequences used in the current pass are never evicted.
    now: u64,
    next_content: u64,
    usage: Arc<PoolUsage>,
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
            now: 1,
            next_content: 0,
            usage: Arc::default(),
        }
        .with_budget(budget)
    }

    /// Creates an empty pool with a budget in bytes.
    #[must_use]
    pub fn with_memory(storage: S, bytes: usize) -> Self {
        let pages = bytes / storage.page_bytes().max(1);
        Self::new(storage, pages)
    }

    /// Returns the pool with another budget of pages.
    #[must_use]
    pub fn with_budget(self, budget: usize) -> Self {
        self.usage.budget.store(budget.max(1), Ordering::Relaxed);
        Self { budget: budget.max(1), ..self }
    }

    /// Returns the pool's usage, which the pool keeps up to date.
    #[must_use]
    pub fn usage(&self) -> &Arc<PoolUsage> {
        &self.usage
    }

    /// Returns the pool with another budget, as much memory as `bytes`.
    #[must_use]
    pub fn with_bytes(self, bytes: usize) -> Self {
        let pages = bytes / self.storage.page_bytes().max(1);
        self.with_budget(pages)
    }

    /// Starts a pass: from now on, the sequences of earlier passes may be evicted when pages are needed.
    pub fn start_pass(&mut self) {
        self.now += 1;
    }

    /// Returns the number of pages that have memory.
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.allocated
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
    /// which the pool holds rows that `keep` allows: rows of the sequence's own, and published pages.
    /// See [`CacheIndex::seek`].
    pub fn seek(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        tree: &TokenTree,
        keep: Keep,
    ) -> CacheHit {
        let mut cache = self.sequences.remove(&sequence).unwrap_or_default();
        cache.used = self.now;
        let hit = cache.index.seek(tokens, tree, keep);
        for &(from, to) in cache.index.moves() {
            let (from, to) = (cache.table().place(from), cache.table().place(to));
            self.storage.copy_row(from, to);
        }
        let needed = cache.index.slots().div_ceil(PAGE_ROWS);
        for page in cache.pages.drain(needed.min(cache.pages.len())..) {
            self.unuse(page);
        }
        cache.contents.truncate(cache.index.exact_len() / PAGE_ROWS);
        self.publish(&mut cache);
        let hit = match hit.tokens < tokens.len() {
            true => CacheHit { tokens: self.adopt(&mut cache, tokens), ..hit },
            false => hit,
        };
        self.sequences.insert(sequence, cache);
        hit
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
        }
    }

    /// Extends an exact prefix by published pages, as far as `tokens` agrees with them. Returns the
    /// number of tokens that are then held.
    fn adopt(&mut self, cache: &mut SequenceCache, tokens: &[TokenId]) -> usize {
        loop {
            let held = cache.index.prefix_len();
            let (number, is_exact) = (held / PAGE_ROWS, cache.index.exact_len() == held);
            let end = (number + 1) * PAGE_ROWS;
            // An unpublished page before this one cannot be identified.
            if !is_exact || cache.contents.len() < number || tokens.len() < end {
                return held;
            }
            let key = (cache.before(), tokens[number * PAGE_ROWS..end].to_vec());
            let Some(&page) = self.published.get(&key) else { return held };
            self.use_again(page);
            for own in cache.pages.drain(number..) {
                self.unuse(own);
            }
            cache.pages.push(page);
            cache.contents.extend(self.content(page));
            cache.index.extend_exact(&tokens[held..end]);
        }
    }

    /// Makes room for `nodes` tree nodes after a sequence's prefix, of which the nodes that are not
    /// held yet can then be written. New rows do not count as held until [`CachePool::record`].
    pub fn reserve(&mut self, sequence: SequenceId, nodes: usize) {
        let mut cache = self.sequences.remove(&sequence).unwrap_or_default();
        cache.used = self.now;
        let first = cache.index.slots();
        if let Some(&page) = cache.pages.get(first / PAGE_ROWS) {
            self.make_writable(&mut cache, page, first);
        }
        let needed = (cache.index.prefix_len() + nodes).div_ceil(PAGE_ROWS);
        while cache.pages.len() < needed {
            let page = self.allocate();
            cache.pages.push(page);
        }
        self.sequences.insert(sequence, cache);
    }

    /// Ensures that nothing else uses the page of slot `first`, and that it is not published.
    fn make_writable(&mut self, cache: &mut SequenceCache, page: PageId, first: usize) {
        let number = first / PAGE_ROWS;
        if self.page_mut(page).users > 1 {
            let own = self.allocate();
            for row in 0..first % PAGE_ROWS {
                self.storage.copy_row(RowPlace { page, row }, RowPlace { page: own, row });
            }
            self.unuse(page);
            cache.pages[number] = own;
        } else if let Some((_, key)) = self.page_mut(page).content.take() {
            self.published.remove(&key);
        }
        cache.contents.truncate(number);
    }

    /// Records that the rows of all nodes of `tree` have been written. See [`CacheIndex::record`].
    ///
    /// # Panics
    /// If the sequence has no cache: a programming error.
    pub fn record(&mut self, sequence: SequenceId, tree: &TokenTree, exact: usize) {
        let cache = self.sequences.get_mut(&sequence).expect("a sequence after seek");
        cache.index.record(tree, exact);
    }

    /// Frees the cache of a sequence. Its published pages stay until the budget needs them.
    pub fn release(&mut self, sequence: SequenceId) {
        if let Some(cache) = self.sequences.remove(&sequence) {
            cache.pages.into_iter().for_each(|page| self.unuse(page));
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
        self.budget.saturating_sub(in_pass) * PAGE_ROWS
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
    fn allocate(&mut self) -> PageId {
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
        let id = page.unwrap_or_else(|| {
            let unused = self.pages.iter().position(Option::is_none);
            PageId(unused.unwrap_or(self.pages.len()) as u32)
        });
        self.usage.in_use.fetch_add(1, Ordering::Relaxed);
        let page = Page { users: 1, content: None, used: self.now };
        match self.pages.get_mut(id.index()) {
            Some(slot) => self.allocated += usize::from(slot.replace(page).is_none()),
            None => {
                self.pages.push(Some(page));
                self.allocated += 1;
            }
        }
        self.storage.reserve(id);
        id
    }

    /// Takes the page away that was not used for the longest time: of those that no sequence uses, or
    /// else the last one of a sequence that is not in the current pass.
    fn evict(&mut self) -> Option<PageId> {
        // Among pages that were last used together, those that follow others were published later.
        let age = |page: &Page| page.content.as_ref().map(|(id, _)| (page.used, u64::MAX - id.0));
        let unused = self.pages.iter().enumerate().filter_map(|(number, page)| {
            let page = page.as_ref().filter(|page| page.users == 0)?;
            Some((age(page)?, PageId(number as u32)))
        });
        if let Some((_, id)) = unused.min_by_key(|&(age, _)| age) {
            if let Some((_, key)) = self.page_mut(id).content.take() {
                self.published.remove(&key);
            }
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
                if self.page_mut(page).users == 1
                    && let Some((_, key)) = self.page_mut(page).content.take()
                {
                    self.published.remove(&key);
                }
                self.unuse(page);
            }
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A storage in which a row is the tokens up to it, so that any mix-up is visible.
    #[derive(Default)]
    struct Prefixes(HashMap<PageId, Vec<Vec<TokenId>>>);

    impl PageStorage for Prefixes {
        fn page_bytes(&self) -> usize {
            1
        }

        fn reserve(&mut self, page: PageId) {
            self.0.entry(page).or_insert_with(|| vec![Vec::new(); PAGE_ROWS]);
        }

        fn copy_row(&mut self, from: RowPlace, to: RowPlace) {
            let row = self.0[&from.page][from.row].clone();
            self.0.get_mut(&to.page).expect("a reserved page")[to.row] = row;
        }

        fn release(&mut self, page: PageId) {
            self.0.remove(&page).expect("a reserved page");
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
        pool.reserve(sequence, new.len());
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
        pool.record(sequence, &new, new.len());
        new.len() - first
    }

    fn pool(budget: usize) -> CachePool<Prefixes> {
        CachePool::new(Prefixes::default(), budget)
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Sequences that branch off each other, grow by trees, are rolled back, released and
        /// evicted: every row that a pass reads is that of its tokens ([`compute`] asserts it).
        #[test]
        fn rows_are_always_those_of_their_tokens(
            budget in 1..12_usize,
            steps in prop::collection::vec(
                (0..5_u64, 0..3_u32, 1..4 * PAGE_ROWS, 0..4_usize, 0..40_usize, any::<bool>()),
                1..60,
            ),
        ) {
            let mut pool = pool(budget);
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
