//! Numbered slots of a device's memory under a budget.

use crate::page::PageId;
use crate::states::StateId;

/// The number of a slot.
pub(super) trait SlotId: Copy {
    fn new(index: usize) -> Self;
    fn index(self) -> usize;
}

impl SlotId for PageId {
    fn new(index: usize) -> Self {
        Self(index as u32)
    }

    fn index(self) -> usize {
        self.index()
    }
}

impl SlotId for StateId {
    fn new(index: usize) -> Self {
        Self(index as u32)
    }

    fn index(self) -> usize {
        self.index()
    }
}

/// The slots for pages or for states, with what is known of each.
pub(super) struct Slots<Id, T> {
    /// By number. `None` has no memory.
    entries: Vec<Option<T>>,
    /// Those with memory that nothing uses.
    free: Vec<Id>,
    /// Number of slots with memory.
    allocated: usize,
    /// Number of slots to have memory for.
    pub(super) budget: usize,
    /// The budget if the device has memory for it.
    pub(super) full_budget: usize,
}

impl<Id, T> Default for Slots<Id, T> {
    /// Slots without a limit.
    fn default() -> Self {
        let (entries, free, allocated) = (Vec::new(), Vec::new(), 0);
        Self { entries, free, allocated, budget: usize::MAX, full_budget: usize::MAX }
    }
}

impl<Id: SlotId, T> Slots<Id, T> {
    pub(super) fn allocated(&self) -> usize {
        self.allocated
    }

    /// Whether more slots have memory than the budget allows.
    pub(super) fn exceed_budget(&self) -> bool {
        self.allocated > self.budget
    }

    /// Whether the budget allows no more slots with memory.
    pub(super) fn are_full(&self) -> bool {
        self.allocated >= self.budget
    }

    /// Returns the number of slots with memory that are not free.
    pub(super) fn taken(&self) -> usize {
        self.allocated - self.free.len()
    }

    pub(super) fn get(&self, id: Id) -> &T {
        self.entries[id.index()].as_ref().expect("a slot with memory")
    }

    pub(super) fn get_mut(&mut self, id: Id) -> &mut T {
        self.entries[id.index()].as_mut().expect("a slot with memory")
    }

    /// Returns the slots with memory.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Id, &T)> {
        let entries = self.entries.iter().enumerate();
        entries.filter_map(|(index, entry)| Some((Id::new(index), entry.as_ref()?)))
    }

    /// Notes that nothing uses a slot any more.
    pub(super) fn set_free(&mut self, id: Id) {
        self.free.push(id);
    }

    pub(super) fn take_free(&mut self) -> Option<Id> {
        self.free.pop()
    }

    /// Returns a slot without memory.
    pub(super) fn without_memory(&self) -> Id {
        let unused = self.entries.iter().position(Option::is_none);
        Id::new(unused.unwrap_or(self.entries.len()))
    }

    /// Takes a slot into use, which was free or has new memory.
    pub(super) fn put(&mut self, id: Id, entry: T) {
        match self.entries.get_mut(id.index()) {
            Some(slot) => self.allocated += usize::from(slot.replace(entry).is_none()),
            None => {
                self.entries.push(Some(entry));
                self.allocated += 1;
            }
        }
    }

    /// Notes that a slot has no memory any more.
    pub(super) fn remove(&mut self, id: Id) {
        self.entries[id.index()] = None;
        self.allocated -= 1;
    }
}
