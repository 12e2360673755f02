//! Activations in the layout of the linear kernels: in blocks of rows, transposed or quantised.

use super::LANES;
use super::operands::MAX_ROW_BLOCK;
use super::shared::SharedSlice;
use crate::team::Team;
use forerun_formats::{QUANT_BLOCK as BLOCK, WeightType, quantize_to_i8};
use forerun_vector::{Lanes, Vectorized, vectorize};
use std::ops::Range;

/// Number of activations from which on the members of a team share the packing.
const MIN_SHARED_NUMBERS: usize = 16 << 10;

/// The input of a linear layer, packed so that a kernel reads it sequentially.
///
/// Rows are grouped in blocks (see [`Activations::pack`]). For float weights, a block of R rows is
/// `[inputs][R]`, with the inputs zero-padded to an even number. For products of bf16 numbers, it
/// is `[inputs/2][R][2]`, and with a matrix unit `[inputs/32][R][32]`, zero-padded to 32 inputs.
/// For quantised weights, it is quants `[inputs/32][R][32]`, with a scale and sums for each block
/// of inputs and row.
#[derive(Default)]
pub(crate) struct Activations {
    rows: usize,
    row_block: usize,
    inputs: usize,
    pub(crate) floats: Vec<f32>,
    /// Two bf16 numbers each, the first one in the lower half.
    pub(crate) pairs: Vec<u32>,
    quantized: QuantizedBlocks,
}

/// Blocks of quantised activations.
#[derive(Default)]
struct QuantizedBlocks {
    quants: Vec<[i8; BLOCK]>,
    scales: Vec<f32>,
    /// The negative sum of each block's quants.
    negative_sums: Vec<i32>,
    /// The sum of each block's activations: the sum of its quants, times their scale.
    scaled_sums: Vec<f32>,
    /// The negative sums of each block's first and last 16 quants.
    negative_half_sums: Vec<[i32; 2]>,
}

impl Activations {
    /// Packs `x`: `[rows, inputs]` for weights of type `weight_type`, in blocks of up to
    /// `row_block` rows.
    pub(crate) fn pack(
        &mut self,
        team: &Team,
        weight_type: WeightType,
        x: &[f32],
        inputs: usize,
        row_block: usize,
    ) {
        self.rows = x.len() / inputs;
        self.row_block = row_block;
        self.inputs = match weight_type {
            WeightType::Quantized(_) => inputs.next_multiple_of(BLOCK),
            WeightType::Bf16 if team.isa().has_matrix_unit() => inputs.next_multiple_of(2 * LANES),
            _ => inputs.next_multiple_of(2),
        };
        match weight_type {
            WeightType::Quantized(_) => self.quantize(team, x, inputs),
            WeightType::Bf16 if team.isa().rounds_to_bf16() => self.round_to_bf16(team, x, inputs),
            _ => self.transpose(team, x, inputs),
        }
    }

    /// Returns the number of inputs, with padding.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns the number of row blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.rows.div_ceil(self.row_block)
    }

    /// Returns the number of rows in a row block, and the index of its first row. Blocks have about
    /// equal sizes, because a kernel is faster on two medium blocks than on a full and a small one.
    pub(crate) fn block(&self, block: usize) -> (usize, usize) {
        let first = |block| self.rows * block / self.blocks();
        (first(block + 1) - first(block), first(block))
    }

    /// Returns the quantised blocks in these places.
    ///
    /// # Panics
    /// If there are no such blocks.
    pub(super) fn quantized(&self, places: Range<usize>) -> QuantizedRows<'_> {
        let blocks = &self.quantized;
        QuantizedRows {
            quants: blocks.quants[places.clone()].as_flattened(),
            scales: &blocks.scales[places.clone()],
            negative_sums: &blocks.negative_sums[places.clone()],
            scaled_sums: &blocks.scaled_sums[places.clone()],
            negative_half_sums: &blocks.negative_half_sums[places],
        }
    }

    /// Returns the quants of a block.
    pub(super) fn quants(&self, place: usize) -> &[i8; BLOCK] {
        &self.quantized.quants[place]
    }

    /// Returns the scale of a block.
    pub(super) fn scale(&self, place: usize) -> f32 {
        self.quantized.scales[place]
    }

    /// Returns the sum of the activations in one of `parts` equal parts of a block: one or two.
    pub(super) fn scaled_sum(&self, place: usize, part: usize, parts: usize) -> f32 {
        let blocks = &self.quantized;
        match parts {
            1 => blocks.scaled_sums[place],
            _ => -blocks.negative_half_sums[place][part] as f32 * blocks.scales[place],
        }
    }

    /// Calls `work` with each row block's first row and number of rows: on the team, if there is
    /// much to do.
    fn for_each_block(&self, team: &Team, work: impl Fn(Range<usize>) + Sync) {
        let work = |block| {
            let (rows, first_row) = self.block(block);
            work(first_row..first_row + rows);
        };
        match self.blocks() {
            count @ 2.. if self.rows * self.inputs >= MIN_SHARED_NUMBERS => {
                team.for_each_piece(count, |_, block| work(block));
            }
            count => (0..count).for_each(work),
        }
    }

    fn transpose(&mut self, team: &Team, x: &[f32], inputs: usize) {
        let mut floats = std::mem::take(&mut self.floats);
        floats.resize(self.rows * self.inputs, 0.0);
        let packed = SharedSlice::new(&mut floats);
        self.for_each_block(team, |rows| {
            let x = &x[rows.start * inputs..rows.end * inputs];
            // SAFETY: each block of rows has a range of its own.
            let packed =
                unsafe { packed.range_mut(rows.start * self.inputs..rows.end * self.inputs) };
            vectorize(team.isa(), Transpose { x, inputs, rows: rows.len(), packed });
        });
        self.floats = floats;
    }

    fn round_to_bf16(&mut self, team: &Team, x: &[f32], inputs: usize) {
        let in_row = self.inputs / 2;
        let mut pairs = std::mem::take(&mut self.pairs);
        pairs.resize(self.rows * in_row, 0);
        let packed = SharedSlice::new(&mut pairs);
        self.for_each_block(team, |rows| {
            let x = &x[rows.start * inputs..rows.end * inputs];
            // SAFETY: each block of rows has a range of its own.
            let packed = unsafe { packed.range_mut(rows.start * in_row..rows.end * in_row) };
            let work = RoundToBf16 { x, inputs, rows: rows.len(), packed };
            match team.isa().has_matrix_unit() {
                true => vectorize(team.isa(), InTiles(work)),
                false => vectorize(team.isa(), work),
            }
        });
        self.pairs = pairs;
    }

    fn quantize(&mut self, team: &Team, x: &[f32], inputs: usize) {
        let in_row = self.inputs / BLOCK;
        let count = self.rows * in_row;
        let mut blocks = std::mem::take(&mut self.quantized);
        blocks.quants.resize(count, [0; BLOCK]);
        blocks.scales.resize(count, 0.0);
        blocks.negative_sums.resize(count, 0);
        blocks.scaled_sums.resize(count, 0.0);
        blocks.negative_half_sums.resize(count, [0; 2]);
        let quants = SharedSlice::new(&mut blocks.quants);
        let scales = SharedSlice::new(&mut blocks.scales);
        let negative_sums = SharedSlice::new(&mut blocks.negative_sums);
        let scaled_sums = SharedSlice::new(&mut blocks.scaled_sums);
        let negative_half_sums = SharedSlice::new(&mut blocks.negative_half_sums);
        self.for_each_block(team, |rows| {
            let places = rows.start * in_row..rows.end * in_row;
            // SAFETY: each block of rows has places of its own.
            let quantize = unsafe {
                Quantize {
                    x: &x[rows.start * inputs..rows.end * inputs],
                    inputs,
                    rows: rows.len(),
                    quants: quants.range_mut(places.clone()),
                    scales: scales.range_mut(places.clone()),
                    negative_sums: negative_sums.range_mut(places.clone()),
                    scaled_sums: scaled_sums.range_mut(places.clone()),
                    negative_half_sums: negative_half_sums.range_mut(places),
                }
            };
            vectorize(team.isa(), quantize);
        });
        self.quantized = blocks;
    }
}

/// Successive blocks of quantised activations. Nothing checks the bounds of the places that are
/// asked for.
#[derive(Clone, Copy)]
pub(super) struct QuantizedRows<'a> {
    quants: &'a [i8],
    scales: &'a [f32],
    negative_sums: &'a [i32],
    scaled_sums: &'a [f32],
    negative_half_sums: &'a [[i32; 2]],
}

impl QuantizedRows<'_> {
    /// Returns four quants: those of a group of inputs.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) unsafe fn group(&self, place: usize, group: usize) -> i32 {
        // SAFETY: the caller guarantees that the place exists.
        unsafe { self.quants_from(place, group * 4).cast::<i32>().read_unaligned() }
    }

    /// Returns the address of a block's quants, from an input on.
    #[inline(always)]
    pub(super) unsafe fn quants_from(&self, place: usize, input: usize) -> *const i8 {
        let at = place * BLOCK + input;
        debug_assert!(at + 4 <= self.quants.len());
        // SAFETY: the caller guarantees that the place exists.
        unsafe { self.quants.as_ptr().add(at) }
    }

    /// Returns the scale of a block.
    #[inline(always)]
    pub(super) unsafe fn scale(&self, place: usize) -> f32 {
        // SAFETY: the caller guarantees that the place exists.
        unsafe { *self.scales.get_unchecked(place) }
    }

    /// Returns the negative sum of the quants in one of `parts` equal parts of a block: one or two.
    #[inline(always)]
    pub(super) unsafe fn negative_sum(&self, place: usize, part: usize, parts: usize) -> i32 {
        // SAFETY: the caller guarantees that the place and the part exist.
        unsafe {
            match parts {
                1 => *self.negative_sums.get_unchecked(place),
                _ => *self.negative_half_sums.get_unchecked(place).get_unchecked(part),
            }
        }
    }

    /// Returns the sum of the activations in one of `parts` equal parts of a block: one or two.
    #[inline(always)]
    pub(super) unsafe fn scaled_sum(&self, place: usize, part: usize, parts: usize) -> f32 {
        // SAFETY: the caller guarantees that the place and the part exist.
        unsafe {
            match parts {
                1 => *self.scaled_sums.get_unchecked(place),
                _ => -self.negative_sum(place, part, parts) as f32 * self.scale(place),
            }
        }
    }
}

/// Transposes one row block from `[rows, inputs]` to `[inputs, rows]`.
struct Transpose<'a> {
    x: &'a [f32],
    inputs: usize,
    rows: usize,
    packed: &'a mut [f32],
}

impl Vectorized for Transpose<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { x, inputs, rows, packed } = self;
        let mut tile = [[0.0; LANES]; MAX_ROW_BLOCK];
        for (index, packed) in packed.chunks_mut(LANES * rows).enumerate() {
            let start = index * LANES;
            let end = inputs.min(start + LANES);
            for (tile, x) in tile.iter_mut().zip(x.chunks_exact(inputs)) {
                let x = &x[start..end];
                tile[..x.len()].copy_from_slice(x);
                tile[x.len()..].fill(0.0);
            }
            transpose(&tile, rows, packed);
        }
    }
}

/// Rounds one row block from `[rows, inputs]` to pairs of bf16 numbers `[inputs/2, rows]`.
struct RoundToBf16<'a> {
    x: &'a [f32],
    inputs: usize,
    rows: usize,
    packed: &'a mut [u32],
}

impl Vectorized for RoundToBf16<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let Self { x, inputs, rows, packed } = self;
        let mut tile = [[0; LANES]; MAX_ROW_BLOCK];
        for (index, packed) in packed.chunks_mut(LANES * rows).enumerate() {
            let start = index * 2 * LANES;
            let end = inputs.min(start + 2 * LANES);
            for (tile, x) in tile.iter_mut().zip(x.chunks_exact(inputs)) {
                let mut values = [[0.0; 2]; LANES];
                let x = &x[start..end];
                values.as_flattened_mut()[..x.len()].copy_from_slice(x);
                for (pair, [first, second]) in tile.iter_mut().zip(values) {
                    *pair = bf16_bits(first) | bf16_bits(second) << 16;
                }
            }
            transpose(&tile, rows, packed);
        }
    }
}

/// The same, to pairs `[inputs/32, rows, 16]`.
struct InTiles<'a>(RoundToBf16<'a>);

impl Vectorized for InTiles<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let RoundToBf16 { x, inputs, rows, packed } = self.0;
        let (packed, _) = packed.as_chunks_mut::<LANES>();
        for (row, x) in x.chunks_exact(inputs).enumerate() {
            for (index, x) in x.chunks(2 * LANES).enumerate() {
                let mut values = [[0.0; 2]; LANES];
                values.as_flattened_mut()[..x.len()].copy_from_slice(x);
                let pairs = &mut packed[index * rows + row];
                for (pair, [first, second]) in pairs.iter_mut().zip(values) {
                    *pair = bf16_bits(first) | bf16_bits(second) << 16;
                }
            }
        }
    }
}

/// Rounds to bf16, to even if two numbers are equally near.
#[inline(always)]
fn bf16_bits(value: f32) -> u32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // Rounding must not turn NaN into infinity.
    let quiet = bits >> 16 | 0x40;
    if value.is_nan() { quiet } else { rounded }
}

/// Writes `[rows][16]` as `[16][rows]`; fewer columns if `packed` is shorter.
#[inline(always)]
fn transpose<T: Copy>(tile: &[[T; LANES]; MAX_ROW_BLOCK], rows: usize, packed: &mut [T]) {
    #[inline(always)]
    fn rows_of<const R: usize, T: Copy>(tile: &[[T; LANES]; MAX_ROW_BLOCK], packed: &mut [T]) {
        let (columns, _) = packed.as_chunks_mut::<R>();
        for (column, packed) in columns.iter_mut().take(LANES).enumerate() {
            for (row, packed) in packed.iter_mut().enumerate() {
                *packed = tile[row][column];
            }
        }
    }
    match rows {
        1 => rows_of::<1, T>(tile, packed),
        2 => rows_of::<2, T>(tile, packed),
        3 => rows_of::<3, T>(tile, packed),
        4 => rows_of::<4, T>(tile, packed),
        5 => rows_of::<5, T>(tile, packed),
        6 => rows_of::<6, T>(tile, packed),
        7 => rows_of::<7, T>(tile, packed),
        8 => rows_of::<8, T>(tile, packed),
        9 => rows_of::<9, T>(tile, packed),
        10 => rows_of::<10, T>(tile, packed),
        11 => rows_of::<11, T>(tile, packed),
        _ => rows_of::<12, T>(tile, packed),
    }
}

/// Quantises one row block from `[rows, inputs]` to blocks of quants `[inputs/32, rows, 32]`.
struct Quantize<'a> {
    x: &'a [f32],
    inputs: usize,
    rows: usize,
    quants: &'a mut [[i8; BLOCK]],
    scales: &'a mut [f32],
    negative_sums: &'a mut [i32],
    scaled_sums: &'a mut [f32],
    negative_half_sums: &'a mut [[i32; 2]],
}

impl Vectorized for Quantize<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (row, x) in self.x.chunks_exact(self.inputs).enumerate() {
            for (index, values) in x.chunks(BLOCK).enumerate() {
                let mut block = [0.0; BLOCK];
                block[..values.len()].copy_from_slice(values);
                let place = index * self.rows + row;
                self.scales[place] = quantize_to_i8(&block, &mut self.quants[place]);
                let (first, second) = self.quants[place].split_at(BLOCK / 2);
                let sum = |half: &[i8]| half.iter().map(|&quant| i32::from(quant)).sum::<i32>();
                let halves = [sum(first), sum(second)];
                self.negative_half_sums[place] = halves.map(|sum| -sum);
                self.negative_sums[place] = -halves[0] - halves[1];
                self.scaled_sums[place] = (halves[0] + halves[1]) as f32 * self.scales[place];
            }
        }
    }
}
