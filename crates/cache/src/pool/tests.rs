//! Tests of a pool of pages and states.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::page::HeldRows;
use crate::states::{RECENT_STATES, SHORT_PASS_ROWS, StateBefore, StateId};
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
fn write(pool: &mut CachePool<Limited>, sequences: &[(SequenceId, &[TokenId])]) -> Option<usize> {
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
    let mut pages: Vec<PageId> = tables.flat_map(|cache| cache.table().pages.to_vec()).collect();
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
    assert_eq!(recurrent.states.taken(), kept + text.len() / ANCHOR_ROWS);
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
    assert!(pool.states.taken() <= 6, "those of pages");
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
