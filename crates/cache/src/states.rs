//! The states that recurrent layers keep after rows, and which rows have one.
//!
//! Keys and values of a row stay where they are, so a cache can be shortened to any length. The
//! state of recurrent layers is different: it is overwritten row by row. So the states after some
//! rows are kept, each in a slot of its own, and [`CachePool::seek`](crate::CachePool::seek) finds
//! the deepest row that has one. A pass reads the states that are kept, and writes others: if it
//! fails or is cancelled, nothing has changed.

use crate::page::{HeldRows, PAGE_ROWS, PageTable};
use crate::pool::SequenceCache;
use forerun_core::{Node, TokenTree};
use std::collections::BTreeMap;

/// A slot of a device's memory for the state of all recurrent layers after one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

impl StateId {
    /// Returns the slot's number, to index a device's storage.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Where a row's recurrence starts and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateStep {
    /// The state before the row.
    pub before: StateBefore,
    /// The slot for the state after the row. Without one, only the next row reads it.
    pub after: Option<StateId>,
}

/// The state before a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateBefore {
    /// The row is the first one of its sequence: all values are zero.
    Zero,
    /// The state in a slot.
    Kept(StateId),
    /// The state that the row before it in the pass has left, which has no slot.
    Running,
}

/// A pass that computes at most this many rows of a sequence keeps the state after each of them.
pub const SHORT_PASS_ROWS: usize = 32;

/// A pass keeps the state after each row whose logits it computes, if these are at most this many,
/// and after the row before the first of them, where the same request would start again.
pub const KEPT_OUTPUT_ROWS: usize = 128;

/// The states of this many rows at the end of a prefix are kept, so that verdicts can shorten it.
pub const RECENT_STATES: usize = 32;

/// The state after every this many rows of a prefix is kept with their pages, so that other
/// sequences, and edited texts, can continue there.
pub const ANCHOR_ROWS: usize = 4 * PAGE_ROWS;

#[derive(Default)]
pub(crate) struct SequenceStates {
    /// The states after the rows in these slots.
    pub(crate) held: BTreeMap<usize, StateId>,
    /// The slots for states after the nodes that the present pass computes.
    pub(crate) pending: BTreeMap<Node, StateId>,
}

impl SequenceStates {
    /// Follows rows that were moved from slot to slot. Returns the states of rows that are not
    /// among the first `slots` afterwards.
    pub(crate) fn follow(&mut self, moves: &[(usize, usize)], slots: usize) -> Vec<StateId> {
        let mut lost = Vec::new();
        for (slot, state) in std::mem::take(&mut self.held) {
            let new = match moves.iter().find(|(from, _)| *from == slot) {
                Some((_, to)) => Some(*to),
                None if slot < slots && moves.iter().all(|(_, to)| *to != slot) => Some(slot),
                None => None,
            };
            match new {
                Some(new) => drop(self.held.insert(new, state)),
                None => lost.push(state),
            }
        }
        lost
    }

    /// Removes the states of the rows in slots below `end`.
    pub(crate) fn drop_before(&mut self, end: usize) -> Vec<StateId> {
        let later = self.held.split_off(&end);
        std::mem::replace(&mut self.held, later).into_values().collect()
    }

    /// Removes the states of the rows from slot `start` on.
    pub(crate) fn drop_from(&mut self, start: usize) -> Vec<StateId> {
        self.held.split_off(&start).into_values().collect()
    }

    pub(crate) fn drop_all(&mut self) -> Vec<StateId> {
        let pending = std::mem::take(&mut self.pending).into_values();
        std::mem::take(&mut self.held).into_values().chain(pending).collect()
    }
}

/// Returns whether a pass keeps the state after a node. The pass computes the nodes from `held` on,
/// after a prefix of `prefix` rows, and the logits of those from `first_output` on.
pub(crate) fn is_kept(
    node: Node,
    tree: &TokenTree,
    prefix: usize,
    held: usize,
    first_output: Node,
) -> bool {
    let (rows, outputs) = (tree.len() - held, tree.len() - first_output);
    let is_anchor = tree.depth(node) == node + 1 && (prefix + node + 1).is_multiple_of(ANCHOR_ROWS);
    // The next row continues only where it follows this one, and nothing else does.
    let mut children = tree.children(Some(node));
    let is_link = children.next() == Some(node + 1) && children.next().is_none();
    rows <= SHORT_PASS_ROWS
        || node + 1 >= first_output && outputs <= KEPT_OUTPUT_ROWS
        || is_anchor
        || !is_link
}

impl HeldRows for SequenceCache {
    fn prefix_len(&self) -> usize {
        self.index().prefix_len()
    }

    fn tree_len(&self) -> usize {
        self.index().tree_len()
    }

    fn table(&self) -> PageTable<'_> {
        Self::table(self)
    }

    fn add_state_steps(&self, tree: &TokenTree, steps: &mut Vec<StateStep>) {
        let (prefix, held) = (self.index().prefix_len(), self.index().tree_len());
        let kept = |slot: usize| StateBefore::Kept(self.states().held[&slot]);
        steps.extend((held..tree.len()).map(|node| {
            let before = match tree.parent(node) {
                None => prefix.checked_sub(1).map_or(StateBefore::Zero, kept),
                Some(parent) if parent < held => kept(prefix + parent),
                Some(parent) => match self.states().pending.get(&parent) {
                    Some(state) => StateBefore::Kept(*state),
                    None => {
                        assert_eq!(parent + 1, node, "a state that several rows continue is kept");
                        StateBefore::Running
                    }
                },
            };
            StateStep { before, after: self.states().pending.get(&node).copied() }
        }));
    }
}

impl SequenceCache {
    /// Returns the number of states that the sequence keeps, without those that pages keep.
    #[must_use]
    pub fn kept_states(&self) -> usize {
        self.states().held.len()
    }
}
