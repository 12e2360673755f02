//! The storage of features: hidden states that drafters read.

use forerun_cache::{PAGE_ROWS, PageId, RowPlace};

/// The features of all pages' rows, stored in addition to keys and values.
pub(crate) struct FeaturePages {
    width: usize,
    pages: Vec<Vec<f32>>, // [pages][rows, width]
}

impl FeaturePages {
    /// Creates a storage without pages.
    pub(crate) fn new(width: usize) -> Self {
        Self { width, pages: Vec::new() }
    }

    /// Allocates a page's memory.
    pub(crate) fn reserve(&mut self, page: PageId) {
        if self.pages.len() <= page.index() {
            self.pages.resize_with(page.index() + 1, Vec::new);
        }
        self.pages[page.index()].resize(PAGE_ROWS * self.width, 0.0);
    }

    /// Frees a page's memory.
    pub(crate) fn release(&mut self, page: PageId) {
        self.pages[page.index()] = Vec::new();
    }

    /// Returns a page's memory.
    pub(crate) fn part(&mut self, page: PageId) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.pages[page.index()])
    }

    pub(crate) fn copy(&mut self, from: RowPlace, to: RowPlace) {
        let row = self.row(from).to_vec();
        self.row_mut(to).copy_from_slice(&row);
    }

    /// Writes `states`, `[rows, size]`, as part number `part` of the rows at `places`.
    pub(crate) fn write(
        &mut self,
        places: impl Iterator<Item = RowPlace>,
        part: usize,
        states: &[f32],
        size: usize,
    ) {
        for (place, state) in places.zip(states.chunks_exact(size)) {
            self.row_mut(place)[part * size..(part + 1) * size].copy_from_slice(state);
        }
    }

    /// Returns a row's features: `[width]`.
    pub(crate) fn row(&self, place: RowPlace) -> &[f32] {
        &self.pages[place.page.index()][place.row * self.width..(place.row + 1) * self.width]
    }

    fn row_mut(&mut self, place: RowPlace) -> &mut [f32] {
        &mut self.pages[place.page.index()][place.row * self.width..(place.row + 1) * self.width]
    }

    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn row_bytes(&self) -> usize {
        self.width * size_of::<f32>()
    }

    /// Returns the allocated memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.pages.iter().map(|page| size_of_val(&page[..])).sum()
    }
}
