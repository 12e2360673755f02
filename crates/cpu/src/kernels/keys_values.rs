//! Cached keys and values of one layer, in the layout of the attention kernel.

use super::Isa;
use super::LANES;
use super::attention_shape::AttentionShape;
use super::cached::{BLOCK_LANES, Brain, Byte, Cached, Full, Half, Nibble, padded};
use bytemuck::cast_slice_mut;
use forerun_cache::{PAGE_ROWS, PageId, PageTable, RowPlace};
use forerun_formats::{CacheType, QUANT_BLOCK, hadamard};
use forerun_lm::CachePart;
use forerun_vector::{Lanes, Vectorized, vectorize};
use std::ops::Range;

/// Blocks of 16 rows in a page.
const BLOCKS: usize = PAGE_ROWS / LANES;

/// Keys and values of one layer.
pub(crate) enum KeysValues {
    Full(Pages<Full>),
    Half(Pages<Half>),
    Brain(Pages<Brain>),
    Byte(Pages<Byte>),
    Nibble(Pages<Nibble>),
}

/// Computes the same for the pages of any type.
macro_rules! of_type {
    ($keys_values:expr, $pages:ident => $result:expr) => {
        match $keys_values {
            KeysValues::Full($pages) => $result,
            KeysValues::Half($pages) => $result,
            KeysValues::Brain($pages) => $result,
            KeysValues::Byte($pages) => $result,
            KeysValues::Nibble($pages) => $result,
        }
    };
}
pub(super) use of_type;

impl KeysValues {
    /// Creates an empty store.
    pub(crate) fn new(shape: AttentionShape, cache_type: CacheType) -> Self {
        match cache_type {
            CacheType::F32 => Self::Full(Pages::new(shape)),
            CacheType::F16 => Self::Half(Pages::new(shape)),
            CacheType::Bf16 => Self::Brain(Pages::new(shape)),
            CacheType::Q8 => Self::Byte(Pages::new(shape)),
            CacheType::Q4 => Self::Nibble(Pages::new(shape)),
        }
    }

    /// Allocates a page's memory, if it is not allocated yet.
    pub(crate) fn reserve(&mut self, page: PageId) {
        of_type!(self, cached => cached.reserve(page));
    }

    /// Frees a page's memory.
    pub(crate) fn release(&mut self, page: PageId) {
        of_type!(self, cached => cached.pages[page.index()] = Page::default());
    }

    /// Writes a key (after RoPE) and a value, each `[n_kv_heads, head_dim]`. Values that are a part
    /// of the keys are empty. Returns which of them is too large for this precision, if one is.
    pub(crate) fn write(
        &mut self,
        isa: Isa,
        place: RowPlace,
        keys: &[f32],
        values: &[f32],
    ) -> Option<CachePart> {
        of_type!(self, cached => vectorize(isa, Write { cached, place, keys, values }));
        let mut parts = [(CachePart::Key, keys), (CachePart::Value, values)].into_iter();
        let overflow = match self {
            Self::Half(_) => parts.find(|(_, numbers)| exceeds_half(numbers)),
            _ => None,
        };
        overflow.map(|(part, _)| part)
    }

    /// Copies a row's key and value.
    pub(crate) fn copy(&mut self, from: RowPlace, to: RowPlace) {
        of_type!(self, cached => cached.copy(from, to));
    }

    /// Rotates each query of a row as the keys are rotated: `[n_heads, head_dim]`.
    pub(crate) fn rotate_queries(&self, head_dim: usize, queries: &mut [f32]) {
        if let Self::Nibble(cached) = self {
            for query in queries.chunks_exact_mut(head_dim) {
                CacheType::Q4.hadamard(&mut query[..cached.key_dims]);
            }
        }
    }

    /// Returns a row's key, then its value if it is stored by itself: `[2, n_kv_heads, head_dim]`.
    pub(crate) fn row(&self, place: RowPlace) -> Vec<f32> {
        of_type!(self, cached => cached.row(place))
    }

    /// Returns the size of one row's key and value in bytes, without padding.
    pub(crate) fn row_bytes(&self) -> usize {
        of_type!(self, cached => cached.row_bytes())
    }

    /// Returns the memory of a page, in parts.
    pub(crate) fn page_parts(&mut self, page: PageId) -> [&mut [u8]; 4] {
        of_type!(self, cached => cached.pages[page.index()].parts())
    }

    /// Returns the allocated memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        of_type!(self, cached => cached.bytes())
    }
}

/// Pages of rows in blocks of 16. In a block, a head's keys are `[head_dim][16 rows]`, so that 16
/// scores are computed in parallel without adding across lanes. Its values are
/// `[16 rows][head_dim]`, padded to whole vectors of 16. Values that are a part of the keys are not
/// stored again.
pub(crate) struct Pages<C: Cached> {
    n_heads: usize,
    head_dim: usize,
    /// Vectors of 16 lanes in a value row; 0 if values are not stored.
    lanes: usize,
    /// Scales of a head's key in a row; 0 without scales.
    scales: usize,
    /// Scales of a head's value in a row.
    value_scales: usize,
    /// Dimensions of a key that are not a part of its value.
    key_dims: usize,
    pages: Vec<Page<C>>,
}

/// The keys and values of a page, `[blocks][n_heads][..]` each; empty without memory.
struct Page<C: Cached> {
    keys: Vec<C>,
    values: Vec<C>,
    key_scales: Vec<C::Scales>, // [blocks][n_heads][scales][16 rows]
    value_scales: Vec<C::Scales>,
}

impl<C: Cached> Default for Page<C> {
    fn default() -> Self {
        let [keys, values] = [Vec::new(), Vec::new()];
        Self { keys, values, key_scales: Vec::new(), value_scales: Vec::new() }
    }
}

impl<C: Cached> Page<C> {
    fn parts(&mut self) -> [&mut [u8]; 4] {
        let Self { keys, values, key_scales, value_scales } = self;
        [
            cast_slice_mut(keys),
            cast_slice_mut(values),
            cast_slice_mut(key_scales),
            cast_slice_mut(value_scales),
        ]
    }
}

/// The keys of one head in a block of 16 rows.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a, C: Cached> {
    vectors: &'a [C],        // [head_dim]
    scales: &'a [C::Scales], // [scales]
}

impl<C: Cached> Default for Keys<'_, C> {
    fn default() -> Self {
        Self { vectors: &[], scales: &[] }
    }
}

impl<C: Cached> Keys<'_, C> {
    /// Writes 16 rows of the numbers from `first` on to `rows`: `[16 rows][width]`.
    #[inline(always)]
    pub(crate) fn transpose<L: Lanes>(&self, first: usize, rows: &mut [f32], width: usize) {
        for index in 0..self.vectors.len() - first {
            let mut column = [0.0; LANES];
            self.load::<L>(first + index).store(&mut column);
            for (row, number) in column.into_iter().enumerate() {
                rows[row * width + index] = number;
            }
        }
    }

    /// Returns one dimension of 16 keys.
    #[inline(always)]
    pub(crate) fn load<L: Lanes>(&self, dim: usize) -> L {
        let vector: L = self.vectors[dim].load();
        if C::IS_SCALED { vector.mul(self.scales[dim / QUANT_BLOCK].load()) } else { vector }
    }
}

/// The values of one head in a block of 16 rows.
#[derive(Clone, Copy)]
pub(crate) struct Values<'a, C: Cached> {
    vectors: &'a [C],        // [16 rows][lanes]
    scales: &'a [C::Scales], // [scales]
    lanes: usize,
}

impl<'a, C: Cached> Values<'a, C> {
    /// Returns `N` consecutive vectors of a row's value.
    #[inline(always)]
    pub(crate) fn load<L: Lanes, const N: usize>(&self, row: usize, lane: usize) -> [L; N] {
        let vectors = &self.vectors[row * self.lanes + lane..][..N];
        let mut loaded = [L::splat(0.0); N];
        for (index, (loaded, vector)) in loaded.iter_mut().zip(vectors).enumerate() {
            *loaded = vector.load();
            if C::IS_SCALED {
                let scale = self.scales[(lane + index) / BLOCK_LANES].get(row);
                *loaded = loaded.mul(L::splat(scale.into()));
            }
        }
        loaded
    }
}

/// The keys and values of one sequence, by its slots.
#[derive(Clone, Copy)]
pub(crate) struct SequenceRows<'a, C: Cached> {
    pub(crate) pages: &'a Pages<C>,
    pub(crate) table: PageTable<'a>,
}

impl<C: Cached> SequenceRows<'_, C> {
    /// Returns the keys of one head in the block that starts with slot `16 · block`.
    #[inline(always)]
    pub(crate) fn keys(&self, block: usize, head: usize) -> Keys<'_, C> {
        self.pages.keys(self.table.pages[block / BLOCKS], block % BLOCKS, head)
    }

    /// Returns the values of one head in the same slots.
    #[inline(always)]
    pub(crate) fn values(&self, block: usize, head: usize) -> Values<'_, C> {
        self.pages.values(self.table.pages[block / BLOCKS], block % BLOCKS, head)
    }
}

impl<C: Cached> Pages<C> {
    fn new(shape: AttentionShape) -> Self {
        let AttentionShape { n_kv_heads: n_heads, head_dim, first_value, .. } = shape;
        let scales = if C::IS_SCALED { head_dim.div_ceil(QUANT_BLOCK) } else { 0 };
        let (lanes, value_scales) = match first_value {
            Some(_) => (0, 0),
            None => (head_dim.div_ceil(LANES), scales),
        };
        let key_dims = first_value.unwrap_or(head_dim);
        Self { n_heads, head_dim, lanes, scales, value_scales, key_dims, pages: Vec::new() }
    }

    fn reserve(&mut self, page: PageId) {
        if self.pages.len() <= page.index() {
            self.pages.resize_with(page.index() + 1, Page::default);
        }
        let page = &mut self.pages[page.index()];
        if page.keys.is_empty() {
            let heads = BLOCKS * self.n_heads;
            page.keys = vec![C::default(); heads * self.head_dim];
            page.values = vec![C::default(); heads * LANES * self.lanes];
            page.key_scales = vec![C::Scales::default(); heads * self.scales];
            page.value_scales = vec![C::Scales::default(); heads * self.value_scales];
        }
    }

    #[inline(always)]
    fn keys(&self, page: PageId, block: usize, head: usize) -> Keys<'_, C> {
        let page = &self.pages[page.index()];
        let vectors = &page.keys[self.part(block, head, self.head_dim)];
        Keys { vectors, scales: &page.key_scales[self.part(block, head, self.scales)] }
    }

    /// Returns the vectors of keys and their scales, to write to them.
    #[inline(always)]
    fn keys_mut(
        &mut self,
        page: PageId,
        block: usize,
        head: usize,
    ) -> (&mut [C], &mut [C::Scales]) {
        let (vectors, scales) =
            (self.part(block, head, self.head_dim), self.part(block, head, self.scales));
        let page = &mut self.pages[page.index()];
        (&mut page.keys[vectors], &mut page.key_scales[scales])
    }

    #[inline(always)]
    fn values(&self, page: PageId, block: usize, head: usize) -> Values<'_, C> {
        let page = &self.pages[page.index()];
        let vectors = &page.values[self.part(block, head, LANES * self.lanes)];
        let scales = &page.value_scales[self.part(block, head, self.value_scales)];
        Values { vectors, scales, lanes: self.lanes }
    }

    /// Returns the vectors of a row's value and the scales of its block, to write to them.
    #[inline(always)]
    fn value_mut(&mut self, place: RowPlace, head: usize) -> (&mut [C], &mut [C::Scales]) {
        let (block, row) = (place.row / LANES, place.row % LANES);
        let vectors = self.part(block, head, LANES * self.lanes).start + row * self.lanes;
        let scales = self.part(block, head, self.value_scales);
        let page = &mut self.pages[place.page.index()];
        (&mut page.values[vectors..vectors + self.lanes], &mut page.value_scales[scales])
    }

    /// Returns the range of a head in a block of rows, if each head has `len` elements.
    #[inline(always)]
    fn part(&self, block: usize, head: usize, len: usize) -> Range<usize> {
        let at = (block * self.n_heads + head) * len;
        at..at + len
    }

    /// Copies a row's key and value.
    fn copy(&mut self, from: RowPlace, to: RowPlace) {
        let [from_block, from_row] = [from.row / LANES, from.row % LANES];
        let [to_block, to_row] = [to.row / LANES, to.row % LANES];
        for head in 0..self.n_heads {
            for dim in 0..self.head_dim {
                let number = self.keys(from.page, from_block, head).vectors[dim].get(from_row);
                self.keys_mut(to.page, to_block, head).0[dim].set(to_row, number);
            }
            for index in 0..self.scales {
                let scale = self.keys(from.page, from_block, head).scales[index].get(from_row);
                self.keys_mut(to.page, to_block, head).1[index].set(to_row, scale);
            }
            for lane in 0..self.lanes {
                let values = self.values(from.page, from_block, head);
                let vector = values.vectors[from_row * self.lanes + lane];
                self.value_mut(to, head).0[lane] = vector;
            }
            for index in 0..self.value_scales {
                let scale = self.values(from.page, from_block, head).scales[index].get(from_row);
                self.value_mut(to, head).1[index].set(to_row, scale);
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
        let (block, row) = (place.row / LANES, place.row % LANES);
        let keys = self.keys(place.page, block, head);
        let values = self.values(place.page, block, head);
        let key = |dim: usize| {
            let number: f32 = keys.vectors[dim].get(row).into();
            if C::IS_SCALED {
                number * keys.scales[dim / QUANT_BLOCK].get(row).into()
            } else {
                number
            }
        };
        let value = |dim: usize| {
            let vector = &values.vectors[row * self.lanes + dim / LANES];
            let number: f32 = vector.get(dim % LANES).into();
            if C::IS_SCALED {
                number * values.scales[dim / QUANT_BLOCK].get(row).into()
            } else {
                number
            }
        };
        let value_dim = if self.has_values() { self.head_dim } else { 0 };
        ((0..self.head_dim).map(key).collect(), (0..value_dim).map(value).collect())
    }

    /// Whether values are stored by themselves.
    fn has_values(&self) -> bool {
        self.lanes > 0
    }

    fn row_bytes(&self) -> usize {
        let head = self.head_dim * size_of::<C>() + self.scales * size_of::<C::Scales>();
        let vectors = if self.has_values() { 2 } else { 1 };
        vectors * self.n_heads * head / LANES
    }

    fn bytes(&self) -> usize {
        let bytes = |page: &Page<C>| {
            let scales = size_of_val(&page.key_scales[..]) + size_of_val(&page.value_scales[..]);
            size_of_val(&page.keys[..]) + size_of_val(&page.values[..]) + scales
        };
        self.pages.iter().map(bytes).sum()
    }
}

/// Writes a row's key and value, each `[n_kv_heads, head_dim]`.
struct Write<'a, C: Cached> {
    cached: &'a mut Pages<C>,
    place: RowPlace,
    keys: &'a [f32],
    values: &'a [f32],
}

impl<C: Cached> Vectorized for Write<'_, C> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { cached, place, keys, values } = self;
        let (block, row, key_dims) = (place.row / LANES, place.row % LANES, cached.key_dims);
        for (head, keys) in keys.chunks_exact(cached.head_dim).enumerate() {
            let (vectors, scales) = cached.keys_mut(place.page, block, head);
            let chunks = vectors.chunks_mut(QUANT_BLOCK).zip(keys.chunks(QUANT_BLOCK));
            for (index, (vectors, keys)) in chunks.enumerate() {
                let mut block = padded(keys);
                if C::ROTATES_KEYS && (index + 1) * QUANT_BLOCK <= key_dims {
                    hadamard(&mut block);
                }
                let (rounded, scale) = C::round::<L>(&block[..keys.len()]);
                for (dim, vector) in vectors.iter_mut().enumerate() {
                    vector.set(row, rounded[dim / LANES].get(dim % LANES));
                }
                if C::IS_SCALED {
                    scales[index].set(row, scale);
                }
            }
        }
        for (head, values) in values.chunks_exact(cached.head_dim).enumerate() {
            let (vectors, scales) = cached.value_mut(place, head);
            let chunks = vectors.chunks_mut(BLOCK_LANES).zip(values.chunks(QUANT_BLOCK));
            for (index, (vectors, values)) in chunks.enumerate() {
                let (rounded, scale) = C::round::<L>(values);
                vectors.copy_from_slice(&rounded[..vectors.len()]);
                if C::IS_SCALED {
                    scales[index].set(row, scale);
                }
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

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

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
