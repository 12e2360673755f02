//! Cached keys and values of one layer, in the layout of the attention kernel.

use super::Isa;
use super::LANES;
use super::attention_shape::AttentionShape;
use forerun_cache::{PAGE_ROWS, PageId, PageTable, RowPlace};
use forerun_formats::CacheType;
use forerun_lm::CachePart;
use forerun_vector::{Lanes, Vectorized, vectorize};
use half::{bf16, f16};
use std::ops::Range;

/// Blocks of 16 rows in a page.
const BLOCKS: usize = PAGE_ROWS / LANES;

/// A vector of sixteen cached numbers.
pub(crate) trait Cached: Copy + Send + Sync {
    type Number: Copy + Into<f32>;
    const ZERO: Self;
    fn load<L: Lanes>(&self) -> L;
    fn from_lanes<L: Lanes>(values: L) -> Self;
    fn numbers(&self) -> &[Self::Number; LANES];
    fn numbers_mut(&mut self) -> &mut [Self::Number; LANES];
}

/// Full precision.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Full([f32; LANES]);

/// Half precision: half the memory, and half the time to read it.
#[repr(C, align(32))]
#[derive(Clone, Copy)]
pub(crate) struct Half([f16; LANES]);

/// bfloat16: as small as half precision, with the range of full precision.
#[repr(C, align(32))]
#[derive(Clone, Copy)]
pub(crate) struct Brain([bf16; LANES]);

impl Cached for Full {
    type Number = f32;
    const ZERO: Self = Self([0.0; LANES]);

    #[inline(always)]
    fn load<L: Lanes>(&self) -> L {
        L::load(&self.0)
    }

    #[inline(always)]
    fn from_lanes<L: Lanes>(values: L) -> Self {
        let mut numbers = [0.0; LANES];
        values.store(&mut numbers);
        Self(numbers)
    }

    #[inline(always)]
    fn numbers(&self) -> &[f32; LANES] {
        &self.0
    }

    #[inline(always)]
    fn numbers_mut(&mut self) -> &mut [f32; LANES] {
        &mut self.0
    }
}

impl Cached for Half {
    type Number = f16;
    const ZERO: Self = Self([f16::ZERO; LANES]);

    #[inline(always)]
    fn load<L: Lanes>(&self) -> L {
        L::widen(&self.0)
    }

    #[inline(always)]
    fn from_lanes<L: Lanes>(values: L) -> Self {
        Self(values.narrow())
    }

    #[inline(always)]
    fn numbers(&self) -> &[f16; LANES] {
        &self.0
    }

    #[inline(always)]
    fn numbers_mut(&mut self) -> &mut [f16; LANES] {
        &mut self.0
    }
}

impl Cached for Brain {
    type Number = bf16;
    const ZERO: Self = Self([bf16::ZERO; LANES]);

    #[inline(always)]
    fn load<L: Lanes>(&self) -> L {
        let mut numbers = [0.0; LANES];
        for (number, stored) in numbers.iter_mut().zip(&self.0) {
            *number = f32::from_bits(u32::from(stored.to_bits()) << 16);
        }
        L::load(&numbers)
    }

    #[inline(always)]
    fn from_lanes<L: Lanes>(values: L) -> Self {
        let (mut numbers, mut stored) = ([0.0; LANES], Self::ZERO);
        values.store(&mut numbers);
        for (stored, number) in stored.0.iter_mut().zip(numbers) {
            *stored = bf16::from_f32(number);
        }
        stored
    }

    #[inline(always)]
    fn numbers(&self) -> &[bf16; LANES] {
        &self.0
    }

    #[inline(always)]
    fn numbers_mut(&mut self) -> &mut [bf16; LANES] {
        &mut self.0
    }
}

/// Keys and values of one layer.
pub(crate) enum KeysValues {
    Full(Pages<Full>),
    Half(Pages<Half>),
    Brain(Pages<Brain>),
}

impl KeysValues {
    /// Creates an empty store.
    pub(crate) fn new(shape: AttentionShape, cache_type: CacheType) -> Self {
        match cache_type {
            CacheType::F32 => Self::Full(Pages::new(shape)),
            CacheType::F16 => Self::Half(Pages::new(shape)),
            CacheType::Bf16 => Self::Brain(Pages::new(shape)),
        }
    }

    /// Allocates a page's memory, if it is not allocated yet.
    pub(crate) fn reserve(&mut self, page: PageId) {
        match self {
            Self::Full(cached) => cached.reserve(page),
            Self::Half(cached) => cached.reserve(page),
            Self::Brain(cached) => cached.reserve(page),
        }
    }

    /// Frees a page's memory.
    pub(crate) fn release(&mut self, page: PageId) {
        match self {
            Self::Full(cached) => cached.pages[page.index()] = Page::default(),
            Self::Half(cached) => cached.pages[page.index()] = Page::default(),
            Self::Brain(cached) => cached.pages[page.index()] = Page::default(),
        }
    }

    /// Writes a key (after RoPE) and a value, each `[n_kv_heads, head_dim]`. Returns which of them is
    /// too large for this precision, if one is.
    pub(crate) fn write(
        &mut self,
        isa: Isa,
        place: RowPlace,
        keys: &[f32],
        values: &[f32],
    ) -> Option<CachePart> {
        match self {
            Self::Full(cached) => {
                vectorize(isa, Write { cached, place, keys, values });
                None
            }
            Self::Half(cached) => {
                vectorize(isa, Write { cached, place, keys, values });
                let mut parts = [(CachePart::Key, keys), (CachePart::Value, values)].into_iter();
                parts.find(|(_, numbers)| exceeds_half(numbers)).map(|(part, _)| part)
            }
            Self::Brain(cached) => {
                vectorize(isa, Write { cached, place, keys, values });
                None
            }
        }
    }

    /// Copies a row's key and value.
    pub(crate) fn copy(&mut self, from: RowPlace, to: RowPlace) {
        match self {
            Self::Full(cached) => cached.copy(from, to),
            Self::Half(cached) => cached.copy(from, to),
            Self::Brain(cached) => cached.copy(from, to),
        }
    }

    /// Returns a row's key, then its value: `[2, n_kv_heads, head_dim]`.
    pub(crate) fn row(&self, place: RowPlace) -> Vec<f32> {
        match self {
            Self::Full(cached) => cached.row(place),
            Self::Half(cached) => cached.row(place),
            Self::Brain(cached) => cached.row(place),
        }
    }

    /// Returns the size of one row's key and value in bytes, without padding.
    pub(crate) fn row_bytes(&self) -> usize {
        match self {
            Self::Full(cached) => cached.row_bytes(),
            Self::Half(cached) => cached.row_bytes(),
            Self::Brain(cached) => cached.row_bytes(),
        }
    }

    /// Returns the allocated memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Full(cached) => cached.bytes(),
            Self::Half(cached) => cached.bytes(),
            Self::Brain(cached) => cached.bytes(),
        }
    }
}

/// Pages of rows in blocks of 16. In a block, a head's keys are `[head_dim][16 rows]`, so that 16 scores
/// are computed in parallel without adding across lanes. Its values are `[16 rows][head_dim]`, padded to
/// whole vectors of 16.
pub(crate) struct Pages<C> {
    n_heads: usize,
    head_dim: usize,
    /// Vectors of 16 lanes in a value row.
    lanes: usize,
    pages: Vec<Page<C>>,
}

/// The keys and values of a page, `[blocks][n_heads][..]` each; empty without memory.
struct Page<C> {
    keys: Vec<C>,
    values: Vec<C>,
}

impl<C> Default for Page<C> {
    fn default() -> Self {
        Self { keys: Vec::new(), values: Vec::new() }
    }
}

/// The keys and values of one sequence, by its slots.
#[derive(Clone, Copy)]
pub(crate) struct SequenceRows<'a, C> {
    pub(crate) pages: &'a Pages<C>,
    pub(crate) table: PageTable<'a>,
}

impl<C: Cached> SequenceRows<'_, C> {
    /// Returns the keys of one head in the block that starts with slot `16 · block`: `[head_dim]` vectors
    /// of 16 slots.
    #[inline(always)]
    pub(crate) fn keys(&self, block: usize, head: usize) -> &[C] {
        self.pages.keys(self.table.pages[block / BLOCKS], block % BLOCKS, head)
    }

    /// Returns the values of one head in the same slots: `[16, lanes]` vectors.
    #[inline(always)]
    pub(crate) fn values(&self, block: usize, head: usize) -> &[C] {
        self.pages.values(self.table.pages[block / BLOCKS], block % BLOCKS, head)
    }
}

impl<C: Cached> Pages<C> {
    fn new(shape: AttentionShape) -> Self {
        let lanes = shape.head_dim.div_ceil(LANES);
        let AttentionShape { n_kv_heads: n_heads, head_dim, .. } = shape;
        Self { n_heads, head_dim, lanes, pages: Vec::new() }
    }

    fn reserve(&mut self, page: PageId) {
        if self.pages.len() <= page.index() {
            self.pages.resize_with(page.index() + 1, Page::default);
        }
        let page = &mut self.pages[page.index()];
        if page.keys.is_empty() {
            let heads = BLOCKS * self.n_heads;
            let (keys, values) = (heads * self.head_dim, heads * LANES * self.lanes);
            (page.keys, page.values) = (vec![C::ZERO; keys], vec![C::ZERO; values]);
        }
    }

    /// Returns the number of vectors of 16 lanes in a value row.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes
    }

    #[inline(always)]
    fn keys(&self, page: PageId, block: usize, head: usize) -> &[C] {
        &self.pages[page.index()].keys[self.keys_at(block, head)]
    }

    #[inline(always)]
    fn keys_mut(&mut self, page: PageId, block: usize, head: usize) -> &mut [C] {
        let part = self.keys_at(block, head);
        &mut self.pages[page.index()].keys[part]
    }

    #[inline(always)]
    fn keys_at(&self, block: usize, head: usize) -> Range<usize> {
        let at = (block * self.n_heads + head) * self.head_dim;
        at..at + self.head_dim
    }

    #[inline(always)]
    fn values(&self, page: PageId, block: usize, head: usize) -> &[C] {
        &self.pages[page.index()].values[self.values_at(block, head)]
    }

    #[inline(always)]
    fn values_mut(&mut self, page: PageId, block: usize, head: usize) -> &mut [C] {
        let part = self.values_at(block, head);
        &mut self.pages[page.index()].values[part]
    }

    #[inline(always)]
    fn values_at(&self, block: usize, head: usize) -> Range<usize> {
        let at = (block * self.n_heads + head) * LANES * self.lanes;
        at..at + LANES * self.lanes
    }

    /// Copies a row's key and value.
    fn copy(&mut self, from: RowPlace, to: RowPlace) {
        let [from_block, from_lane] = [from.row / LANES, from.row % LANES];
        let [to_block, to_lane] = [to.row / LANES, to.row % LANES];
        for head in 0..self.n_heads {
            for dim in 0..self.head_dim {
                let number = self.keys(from.page, from_block, head)[dim].numbers()[from_lane];
                self.keys_mut(to.page, to_block, head)[dim].numbers_mut()[to_lane] = number;
            }
            for lane in 0..self.lanes {
                let at = from_lane * self.lanes + lane;
                let chunk = self.values(from.page, from_block, head)[at];
                let at = to_lane * self.lanes + lane;
                self.values_mut(to.page, to_block, head)[at] = chunk;
            }
        }
    }

    fn row(&self, place: RowPlace) -> Vec<f32> {
        let (keys, values): (Vec<_>, Vec<_>) =
            (0..self.n_heads).map(|head| self.head(place, head)).unzip();
        [keys.concat(), values.concat()].concat()
    }

    /// Returns one head's key and value.
    fn head(&self, place: RowPlace, head: usize) -> (Vec<f32>, Vec<f32>) {
        let (block, lane) = (place.row / LANES, place.row % LANES);
        let keys = self.keys(place.page, block, head).iter();
        let keys = keys.map(|chunk| chunk.numbers()[lane].into());
        let values = self.values(place.page, block, head);
        let values = &values[lane * self.lanes..(lane + 1) * self.lanes];
        let value = |index: usize| values[index / LANES].numbers()[index % LANES].into();
        (keys.collect(), (0..self.head_dim).map(value).collect())
    }

    fn row_bytes(&self) -> usize {
        2 * self.n_heads * self.head_dim * size_of::<C::Number>()
    }

    fn bytes(&self) -> usize {
        let bytes = |page: &Page<C>| size_of_val(&page.keys[..]) + size_of_val(&page.values[..]);
        self.pages.iter().map(bytes).sum()
    }
}

/// Writes a row's key and value, each `[n_kv_heads, head_dim]`.
struct Write<'a, C> {
    cached: &'a mut Pages<C>,
    place: RowPlace,
    keys: &'a [f32],
    values: &'a [f32],
}

impl<C: Cached> Vectorized for Write<'_, C> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { cached, place: RowPlace { page, row }, keys, values } = self;
        let (block, lane) = (row / LANES, row % LANES);
        let (head_dim, lanes) = (cached.head_dim, cached.lanes);
        for (head, keys) in keys.chunks_exact(head_dim).enumerate() {
            let chunks = cached.keys_mut(page, block, head).chunks_mut(LANES);
            for (chunks, keys) in chunks.zip(keys.chunks(LANES)) {
                let numbers = C::from_lanes(zero_padded::<L>(keys));
                for (chunk, &number) in chunks.iter_mut().zip(numbers.numbers()) {
                    chunk.numbers_mut()[lane] = number;
                }
            }
        }
        for (head, values) in values.chunks_exact(head_dim).enumerate() {
            let chunks = cached.values_mut(page, block, head);
            let chunks = &mut chunks[lane * lanes..(lane + 1) * lanes];
            for (chunk, values) in chunks.iter_mut().zip(values.chunks(LANES)) {
                *chunk = C::from_lanes(zero_padded::<L>(values));
            }
        }
    }
}

/// Returns whether a finite number rounds to an infinite one in half precision.
fn exceeds_half(numbers: &[f32]) -> bool {
    // Halfway between the largest number and the next power of two.
    const LIMIT: f32 = 65_520.0;
    numbers.iter().fold(false, |found, x| found | (x.abs() >= LIMIT) & x.is_finite())
}

/// Loads up to 16 numbers, padded with zeros.
#[inline(always)]
fn zero_padded<L: Lanes>(values: &[f32]) -> L {
    let mut lanes = [0.0; LANES];
    lanes[..values.len()].copy_from_slice(values);
    L::load(&lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_become_infinite_in_half_precision_are_found() {
        let largest = f32::from_bits(65_520_f32.to_bits() - 1);
        for x in [0.0, 1.0, 65_504.0, largest, 65_520.0, 1e6, f32::MAX] {
            for x in [x, -x] {
                assert_eq!(exceeds_half(&[1.0, x]), f16::from_f32(x).is_infinite(), "{x}");
            }
        }
        // They were not finite before.
        assert!(!exceeds_half(&[f32::INFINITY, f32::NEG_INFINITY, f32::NAN]));
    }
}
