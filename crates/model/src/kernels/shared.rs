//! A slice that a team's members write to in disjoint parts.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice shared by the members of a team; each writes only to elements of its own.
pub(crate) struct SharedSlice<'a> {
    start: *mut f32,
    len: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer comes from an exclusive borrow of `Send` elements, and all access goes
// through `part`, whose callers promise disjoint ranges.
unsafe impl Sync for SharedSlice<'_> {}

impl<'a> SharedSlice<'a> {
    pub(crate) fn new(slice: &'a mut [f32]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// No two parts that are alive at the same time may overlap.
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [f32] {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {}", self.len);
        // SAFETY: the range is within the borrowed slice, and disjoint by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
