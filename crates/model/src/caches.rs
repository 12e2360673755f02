//! What models keep of each sequence.

use forerun_core::SequenceId;
use std::collections::HashMap;

/// Sequences of which something is kept; the one unused for longest goes first.
const MAX_SEQUENCES: usize = 64;

/// Something for every sequence, such as its cache.
pub(crate) struct Caches<T> {
    entries: HashMap<SequenceId, (u64, T)>,
    /// Counts uses, to find what was unused for longest.
    uses: u64,
}

impl<T> Caches<T> {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self { entries: HashMap::new(), uses: 0 }
    }

    /// What is kept of a sequence.
    pub(crate) fn get(&self, sequence: SequenceId) -> Option<&T> {
        self.entries.get(&sequence).map(|(_, kept)| kept)
    }

    /// Takes out what is kept of a sequence, so that a panic while it is in use cannot leave it broken.
    /// Room for it stays until it is put back.
    pub(crate) fn take(&mut self, sequence: SequenceId) -> Option<T> {
        self.uses += 1;
        if let Some((_, kept)) = self.entries.remove(&sequence) {
            return Some(kept);
        }
        if self.entries.len() >= MAX_SEQUENCES
            && let Some(&oldest) =
                self.entries.iter().min_by_key(|(_, (used, _))| used).map(|e| e.0)
        {
            self.entries.remove(&oldest);
        }
        None
    }

    /// Puts back what was taken out.
    pub(crate) fn put(&mut self, sequence: SequenceId, kept: T) {
        self.entries.insert(sequence, (self.uses, kept));
    }

    /// Forgets a sequence.
    pub(crate) fn release(&mut self, sequence: SequenceId) {
        self.entries.remove(&sequence);
    }
}
