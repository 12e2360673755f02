//! Cached keys and values of one layer, in the layout of the attention kernel.

use super::Isa;
use super::LANES;
use super::attention_shape::AttentionShape;
use super::packed::WeightType;
use forerun_vector::{Lanes, Vectorized, vectorize};
use half::f16;
use std::ops::Range;

/// Slots in a segment. Memory grows by whole segments, so that growing copies nothing.
const SEGMENT: usize = 128;
/// Blocks of 16 slots in a segment.
const BLOCKS: usize = SEGMENT / LANES;

/// A vector of sixteen cached numbers.
pub(crate) trait Cached: Copy + Send + Sync {
    type Number: Copy + Into<f32>;
    const ZERO: Self;
    fn load<L: Lanes>(&self) -> L;
    fn from_lanes<L: Lanes>(values: L) -> Self;
    fn numbers(&self) -> &[Self::Number; LANES];
    fn numbers_mut(&mut self) -> &mut [Self::Number; LANES];
}

/// Full precision, used with full-precision weights.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
pub(crate) struct Full([f32; LANES]);

/// Half precision, used with all other weight types: half the memory, and half the time to read it.
#[repr(C, align(32))]
#[derive(Clone, Copy)]
pub(crate) struct Half([f16; LANES]);

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

/// Keys and values of one layer, in a precision that depends on the weight type.
pub(crate) enum KeysValues {
    Full(Slots<Full>),
    Half(Slots<Half>),
}

impl KeysValues {
    /// Creates an empty store.
    pub(crate) fn new(shape: AttentionShape, weight_type: WeightType) -> Self {
        match weight_type {
            WeightType::F32 => Self::Full(Slots::new(shape)),
            WeightType::Bf16 | WeightType::F16 | WeightType::Int8 => Self::Half(Slots::new(shape)),
        }
    }

    /// Makes room for `slots` slots.
    pub(crate) fn reserve(&mut self, slots: usize) {
        match self {
            Self::Full(cached) => cached.reserve(slots),
            Self::Half(cached) => cached.reserve(slots),
        }
    }

    /// Writes a slot's key (after RoPE) and value, each `[n_kv_heads, head_dim]`.
    pub(crate) fn write(&mut self, isa: Isa, slot: usize, keys: &[f32], values: &[f32]) {
        match self {
            Self::Full(cached) => vectorize(isa, Write { cached, slot, keys, values }),
            Self::Half(cached) => vectorize(isa, Write { cached, slot, keys, values }),
        }
    }

    /// Copies a slot's key and value to an earlier slot.
    pub(crate) fn copy(&mut self, from: usize, to: usize) {
        match self {
            Self::Full(cached) => cached.copy(from, to),
            Self::Half(cached) => cached.copy(from, to),
        }
    }

    /// Returns a slot's key, then its value: `[2, n_kv_heads, head_dim]`.
    pub(crate) fn row(&self, slot: usize) -> Vec<f32> {
        match self {
            Self::Full(cached) => cached.row(slot),
            Self::Half(cached) => cached.row(slot),
        }
    }

    /// Returns the size of one slot's key and value in bytes, without padding.
    pub(crate) fn slot_bytes(&self) -> usize {
        match self {
            Self::Full(cached) => 2 * cached.n_heads * cached.head_dim * size_of::<f32>(),
            Self::Half(cached) => 2 * cached.n_heads * cached.head_dim * size_of::<f16>(),
        }
    }

    /// Returns the allocated memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Full(cached) => cached.bytes(),
            Self::Half(cached) => cached.bytes(),
        }
    }
}

/// Slots in blocks of 16. In a block, a head's keys are `[head_dim][16 slots]`, so that 16 scores are
/// computed in parallel without adding across lanes. Its values are `[16 slots][head_dim]`, padded to
/// whole vectors of 16.
pub(crate) struct Slots<C> {
    n_heads: usize,
    head_dim: usize,
    /// Vectors of 16 lanes in a value row.
    lanes: usize,
    segments: Vec<Segment<C>>,
}

/// The blocks of [`SEGMENT`] slots: keys and values, `[blocks][n_heads][..]` each.
struct Segment<C> {
    keys: Vec<C>,
    values: Vec<C>,
}

impl<C: Cached> Slots<C> {
    fn new(shape: AttentionShape) -> Self {
        let lanes = shape.head_dim.div_ceil(LANES);
        let AttentionShape { n_kv_heads: n_heads, head_dim, .. } = shape;
        Self { n_heads, head_dim, lanes, segments: Vec::new() }
    }

    fn reserve(&mut self, slots: usize) {
        let heads = BLOCKS * self.n_heads;
        let (keys, values) = (heads * self.head_dim, heads * LANES * self.lanes);
        while self.segments.len() * SEGMENT < slots {
            let (keys, values) = (vec![C::ZERO; keys], vec![C::ZERO; values]);
            self.segments.push(Segment { keys, values });
        }
    }

    /// Returns the number of vectors of 16 lanes in a value row.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes
    }

    /// Returns the keys of one head in the block that starts with slot `16 · block`: `[head_dim]` vectors
    /// of 16 slots.
    #[inline(always)]
    pub(crate) fn keys(&self, block: usize, head: usize) -> &[C] {
        let (segment, part) = self.keys_at(block, head);
        &self.segments[segment].keys[part]
    }

    #[inline(always)]
    fn keys_mut(&mut self, block: usize, head: usize) -> &mut [C] {
        let (segment, part) = self.keys_at(block, head);
        &mut self.segments[segment].keys[part]
    }

    #[inline(always)]
    fn keys_at(&self, block: usize, head: usize) -> (usize, Range<usize>) {
        let at = (block % BLOCKS * self.n_heads + head) * self.head_dim;
        (block / BLOCKS, at..at + self.head_dim)
    }

    /// Returns the values of one head in the same slots: `[16, lanes]` vectors.
    #[inline(always)]
    pub(crate) fn values(&self, block: usize, head: usize) -> &[C] {
        let (segment, part) = self.values_at(block, head);
        &self.segments[segment].values[part]
    }

    #[inline(always)]
    fn values_mut(&mut self, block: usize, head: usize) -> &mut [C] {
        let (segment, part) = self.values_at(block, head);
        &mut self.segments[segment].values[part]
    }

    #[inline(always)]
    fn values_at(&self, block: usize, head: usize) -> (usize, Range<usize>) {
        let at = (block % BLOCKS * self.n_heads + head) * LANES * self.lanes;
        (block / BLOCKS, at..at + LANES * self.lanes)
    }

    /// Copies a slot's key and value to another slot.
    fn copy(&mut self, from: usize, to: usize) {
        let (from_block, from_lane, to_block, to_lane) =
            (from / LANES, from % LANES, to / LANES, to % LANES);
        for head in 0..self.n_heads {
            for dim in 0..self.head_dim {
                let number = self.keys(from_block, head)[dim].numbers()[from_lane];
                self.keys_mut(to_block, head)[dim].numbers_mut()[to_lane] = number;
            }
            for lane in 0..self.lanes {
                let chunk = self.values(from_block, head)[from_lane * self.lanes + lane];
                let at = to_lane * self.lanes + lane;
                self.values_mut(to_block, head)[at] = chunk;
            }
        }
    }

    fn row(&self, slot: usize) -> Vec<f32> {
        let (keys, values): (Vec<_>, Vec<_>) =
            (0..self.n_heads).map(|head| self.head(slot, head)).unzip();
        [keys.concat(), values.concat()].concat()
    }

    /// Returns one head's key and value.
    fn head(&self, slot: usize, head: usize) -> (Vec<f32>, Vec<f32>) {
        let (block, lane) = (slot / LANES, slot % LANES);
        let keys = self.keys(block, head).iter().map(|chunk| chunk.numbers()[lane].into());
        let values = &self.values(block, head)[lane * self.lanes..(lane + 1) * self.lanes];
        let value = |index: usize| values[index / LANES].numbers()[index % LANES].into();
        (keys.collect(), (0..self.head_dim).map(value).collect())
    }

    fn bytes(&self) -> usize {
        let bytes = |s: &Segment<C>| size_of_val(&s.keys[..]) + size_of_val(&s.values[..]);
        self.segments.iter().map(bytes).sum()
    }
}

/// Writes a slot's key and value, each `[n_kv_heads, head_dim]`.
struct Write<'a, C> {
    cached: &'a mut Slots<C>,
    slot: usize,
    keys: &'a [f32],
    values: &'a [f32],
}

impl<C: Cached> Vectorized for Write<'_, C> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { cached, slot, keys, values } = self;
        let (block, lane) = (slot / LANES, slot % LANES);
        let (head_dim, lanes) = (cached.head_dim, cached.lanes);
        for (head, keys) in keys.chunks_exact(head_dim).enumerate() {
            let chunks = cached.keys_mut(block, head).chunks_mut(LANES);
            for (chunks, keys) in chunks.zip(keys.chunks(LANES)) {
                let numbers = C::from_lanes(zero_padded::<L>(keys));
                for (chunk, &number) in chunks.iter_mut().zip(numbers.numbers()) {
                    chunk.numbers_mut()[lane] = number;
                }
            }
        }
        for (head, values) in values.chunks_exact(head_dim).enumerate() {
            let chunks = &mut cached.values_mut(block, head)[lane * lanes..(lane + 1) * lanes];
            for (chunk, values) in chunks.iter_mut().zip(values.chunks(LANES)) {
                *chunk = C::from_lanes(zero_padded::<L>(values));
            }
        }
    }
}

/// Loads up to 16 numbers, padded with zeros.
#[inline(always)]
fn zero_padded<L: Lanes>(values: &[f32]) -> L {
    let mut lanes = [0.0; LANES];
    lanes[..values.len()].copy_from_slice(values);
    L::load(&lanes)
}
