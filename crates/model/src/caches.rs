//! The per-sequence state of models.

use forerun_core::SequenceId;
use std::collections::HashMap;

/// Number of sequences to store. The least recently used sequence is evicted first.
const MAX_SEQUENCES: usize = 64;

/// A state for every sequence, such as its key/value cache.
pub(crate) struct Caches<T> {
    entries: HashMap<SequenceId, (u64, T)>,
    /// Counts uses, to find the least recently used entry.
    uses: u64,
}

impl<T> Caches<T> {
    /// Creates an empty collection.
    pub(crate) fn new() -> Self {
        Self { entries: HashMap::new(), uses: 0 }
    }

    /// Returns the state of a sequence.
    pub(crate) fn get(&self, sequence: SequenceId) -> Option<&T> {
        self.entries.get(&sequence).map(|(_, state)| state)
    }

    /// Removes and returns the state of a sequence, so that no broken state remains if its use panics. If
    /// there is none and the collection is full, evicts another sequence to make room for
    /// [`Caches::put`].
    pub(crate) fn take(&mut self, sequence: SequenceId) -> Option<T> {
        self.uses += 1;
        if let Some((_, state)) = self.entries.remove(&sequence) {
            return Some(state);
        }
        if self.entries.len() >= MAX_SEQUENCES
            && let Some(&oldest) =
                self.entries.iter().min_by_key(|(_, (used, _))| used).map(|e| e.0)
        {
            self.entries.remove(&oldest);
        }
        None
    }

    /// Stores the state of a sequence after [`Caches::take`].
    pub(crate) fn put(&mut self, sequence: SequenceId, state: T) {
        self.entries.insert(sequence, (self.uses, state));
    }

    /// Removes the state of a sequence.
    pub(crate) fn release(&mut self, sequence: SequenceId) {
        self.entries.remove(&sequence);
    }
}
