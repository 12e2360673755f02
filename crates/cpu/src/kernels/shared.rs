//! A mutable slice that the members of a team share.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice shared by the members of a team, which write to disjoint ranges of it.
pub(crate) struct SharedSlice<'a, T = f32> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

impl<T> Clone for SharedSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedSlice<'_, T> {}

// SAFETY: the pointer comes from an exclusive borrow of `Send` elements, and all access goes
// through `range_mut`, whose contract requires disjoint ranges.
unsafe impl<T: Send> Sync for SharedSlice<'_, T> {}

impl<'a, T> SharedSlice<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// Returns the elements of `range`.
    ///
    /// # Safety
    /// Slices that exist at the same time must not overlap.
    #[expect(clippy::mut_from_ref, reason = "the caller guarantees disjoint ranges")]
    pub(crate) unsafe fn range_mut(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the range is within the borrowed slice, and the caller guarantees that it
        // overlaps no other.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
