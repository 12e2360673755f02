//! Which states the sequences of a pool keep.

use super::slots::Slots;
use super::{CachePool, SequenceCache};
use crate::page::{PAGE_ROWS, PageStorage, StorageError};
use crate::states::{
    ANCHOR_ROWS, KEPT_OUTPUT_ROWS, RECENT_STATES, SHORT_PASS_ROWS, StateId, is_kept,
};
use forerun_core::{Node, SequenceId, TokenTree};
use std::sync::atomic::Ordering;

/// The states, with the number of users of each: sequences and pages.
pub(super) type States = Slots<StateId, usize>;

impl States {
    pub(super) fn use_again(&mut self, state: StateId) {
        *self.get_mut(state) += 1;
    }

    /// Counts one user of each less. States that nothing uses become free.
    pub(super) fn unuse_all(&mut self, states: impl IntoIterator<Item = StateId>) {
        for state in states {
            let users = self.get_mut(state);
            *users -= 1;
            if *users == 0 {
                self.set_free(state);
            }
        }
    }
}

impl<S: PageStorage> CachePool<S> {
    /// Notes how many states the sequences use. One that several use counts for each.
    pub(super) fn count_states(&self) {
        if self.has_states() {
            let of_each =
                |cache: &SequenceCache| cache.states.held.len() + cache.states.pending.len();
            let in_use = self.sequences.values().map(of_each).sum();
            self.usage.states_in_use.store(in_use, Ordering::Relaxed);
        }
    }

    /// Whether the model has recurrent layers.
    pub(super) fn has_states(&self) -> bool {
        self.storage.state_bytes() > 0
    }

    /// Shortens a sequence to the last row that has a state, and drops its tree unless each node
    /// has one. Gives back the states of rows long before the end.
    pub(super) fn shorten_to_state(&mut self, cache: &mut SequenceCache) {
        let prefix = cache.index.prefix_len();
        let own = cache.states.held.range(..prefix).next_back().map_or(0, |(slot, _)| slot + 1);
        let mut later_pages = (own / PAGE_ROWS..prefix / PAGE_ROWS).rev();
        let of_pages = later_pages.find_map(|number| {
            Some(((number + 1) * PAGE_ROWS, self.state_of_page(cache, number)?))
        });
        if let Some((end, state)) = of_pages {
            self.states.use_again(state);
            cache.states.held.insert(end - 1, state);
        }
        let end = of_pages.map_or(own, |(end, _)| end);
        let slots = cache.index.slots();
        let nodes_have_states = (prefix..slots).all(|slot| cache.states.held.contains_key(&slot));
        if end < prefix || !nodes_have_states {
            cache.index.truncate(end);
            self.states.unuse_all(cache.states.drop_from(end));
            self.fit_pages(cache);
        }
        self.states.unuse_all(cache.states.drop_before(end.saturating_sub(RECENT_STATES)));
    }

    /// Makes room for the states that a pass keeps.
    pub(super) fn reserve_states(
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
        let in_use = self.states.taken() - self.states_of_pages();
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
        self.states.unuse_all(std::mem::take(&mut cache.states.pending).into_values());
    }

    /// Gives up the states of a sequence that its pass does not need. It needs the last one of the
    /// prefix, and those of its tree.
    fn unuse_old_states(&mut self, cache: &mut SequenceCache) {
        let old = cache.states.drop_before(cache.index.prefix_len().saturating_sub(1));
        self.states.unuse_all(old);
    }

    /// Returns the number of states that pages use alone.
    fn states_of_pages(&self) -> usize {
        let states = self.pages.slots.iter().filter_map(|(_, page)| page.state);
        states.filter(|state| *self.states.get(*state) == 1).count()
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

    pub(super) fn is_in_batch(&self, cache: &SequenceCache) -> bool {
        cache.used == self.now || cache.in_batch == self.now
    }
}
