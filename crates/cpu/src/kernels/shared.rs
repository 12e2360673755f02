//! A mutable slice that the members of a team share.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice shared by the members of a team, which write to disjoint ranges of it.
#[derive(Clone, Copy)]
pub(crate) struct SharedSlice<'a> {
    start: *mut f32,
    len: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer comes from an exclusive borrow of `Send` elements, and all access goes through
// `range_mut`, whose contract requires disjoint ranges.
unsafe impl Sync for SharedSlice<'_> {}

impl<'a> SharedSlice<'a> {
    pub(crate) fn new(slice: &'a mut [f32]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// Returns the elements of `range`.
    ///
    /// # Safety
    /// Slices that exist at the same time must not overlap.
    #[expect(clippy::mut_from_ref, reason = "the caller guarantees disjoint ranges")]
    pub(crate) unsafe fn range_mut(&self, range: Range<usize>) -> &mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the range is within the borrowed slice, and the caller guarantees that it overlaps no
        // other.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
