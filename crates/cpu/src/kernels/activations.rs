//! Activations in the layout of the linear kernels: in blocks of rows, transposed or quantised.

use super::Isa;
use forerun_formats::{QUANT_BLOCK as BLOCK, WeightType, round_to_i8};
use forerun_vector::{Lanes, Vectorized, vectorize};
use std::ops::Range;

/// The input of a linear layer, packed so that a kernel reads it sequentially.
///
/// Rows are grouped in blocks (see [`Activations::pack`]). For float weights, a block of R rows is
/// `[inputs][R]`, with the inputs zero-padded to an even number. For quantised weights, it is quants
/// `[inputs/32][R][32]`, with a scale and sums for each block of inputs and row.
#[derive(Default)]
pub(crate) struct Activations {
    rows: usize,
    row_block: usize,
    inputs: usize,
    pub(crate) floats: Vec<f32>,
    pub(crate) quants: Vec<i8>,
    pub(crate) scales: Vec<f32>,
    /// The negative sum of each block's quants.
    pub(crate) negative_sums: Vec<i32>,
    /// The sum of each block's activations: the sum of its quants, times their scale.
    pub(crate) scaled_sums: Vec<f32>,
    /// The negative sums of each block's first and last 16 quants.
    pub(crate) negative_half_sums: Vec<[i32; 2]>,
}

impl Activations {
    /// Packs `x`: `[rows, inputs]` for weights of type `weight_type`, in blocks of up to `row_block` rows.
    pub(crate) fn pack(
        &mut self,
        isa: Isa,
        weight_type: WeightType,
        x: &[f32],
        inputs: usize,
        row_block: usize,
    ) {
        self.rows = x.len() / inputs;
        self.row_block = row_block;
        self.inputs = match weight_type {
            WeightType::Quantized(_) => inputs.next_multiple_of(BLOCK),
            _ => inputs.next_multiple_of(2),
        };
        match weight_type {
            WeightType::Quantized(_) => self.quantize(isa, x, inputs),
            _ => self.transpose(isa, x, inputs),
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

    /// Returns the number of rows in a row block, and the index of its first row. Blocks have about equal
    /// sizes, because a kernel is faster on two medium blocks than on a full and a small one.
    pub(crate) fn block(&self, block: usize) -> (usize, usize) {
        let first = |block| self.rows * block / self.blocks();
        (first(block + 1) - first(block), first(block))
    }

    /// Returns the quantised blocks in these places.
    ///
    /// # Panics
    /// If there are no such blocks.
    pub(super) fn quantized(&self, places: Range<usize>) -> QuantizedRows<'_> {
        QuantizedRows {
            quants: &self.quants[places.start * BLOCK..places.end * BLOCK],
            scales: &self.scales[places.clone()],
            negative_sums: &self.negative_sums[places.clone()],
            scaled_sums: &self.scaled_sums[places.clone()],
            negative_half_sums: &self.negative_half_sums[places],
        }
    }

    /// Returns the sum of the activations in one of `parts` equal parts of a block: one or two.
    pub(super) fn scaled_sum(&self, place: usize, part: usize, parts: usize) -> f32 {
        match parts {
            1 => self.scaled_sums[place],
            _ => -self.negative_half_sums[place][part] as f32 * self.scales[place],
        }
    }

    fn transpose(&mut self, isa: Isa, x: &[f32], inputs: usize) {
        self.floats.resize(self.rows * self.inputs, 0.0);
        for block in 0..self.blocks() {
            let (rows, first_row) = self.block(block);
            let x = &x[first_row * inputs..(first_row + rows) * inputs];
            let start = first_row * self.inputs;
            let packed = &mut self.floats[start..start + rows * self.inputs];
            vectorize(isa, Transpose { x, inputs, rows, packed });
        }
    }

    fn quantize(&mut self, isa: Isa, x: &[f32], inputs: usize) {
        let blocks = self.inputs / BLOCK;
        self.quants.resize(self.rows * self.inputs, 0);
        self.scales.resize(self.rows * blocks, 0.0);
        self.negative_sums.resize(self.rows * blocks, 0);
        self.scaled_sums.resize(self.rows * blocks, 0.0);
        self.negative_half_sums.resize(self.rows * blocks, [0; 2]);
        for block in 0..self.blocks() {
            let (rows, first_row) = self.block(block);
            let places = first_row * blocks..(first_row + rows) * blocks;
            let (quants, _) = self.quants.as_chunks_mut();
            let quantize = Quantize {
                x: &x[first_row * inputs..(first_row + rows) * inputs],
                inputs,
                rows,
                quants: &mut quants[places.clone()],
                scales: &mut self.scales[places.clone()],
                negative_sums: &mut self.negative_sums[places.clone()],
                scaled_sums: &mut self.scaled_sums[places.clone()],
                negative_half_sums: &mut self.negative_half_sums[places],
            };
            vectorize(isa, quantize);
        }
    }
}

/// Successive blocks of quantised activations. Nothing checks the bounds of the places that are asked for.
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
        if rows == 1 {
            packed[..inputs].copy_from_slice(x);
        } else {
            for (row, x) in x.chunks_exact(inputs).enumerate() {
                for (packed, &value) in packed[row..].iter_mut().step_by(rows).zip(x) {
                    *packed = value;
                }
            }
        }
        packed[inputs * rows..].fill(0.0);
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
                self.scales[place] = quantize_activations(&block, &mut self.quants[place]);
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

/// Quantises a block of activations to −127…127, and returns the scale that restores them. If a value is
/// not finite, the scale is NaN, and so are the layer's outputs.
#[inline(always)]
pub(crate) fn quantize_activations(values: &[f32; BLOCK], quants: &mut [i8; BLOCK]) -> f32 {
    // Compared as integers, so that the order does not matter: without the sign, floats sort like their
    // bits, with infinities and NaN last.
    let magnitudes = values.iter().map(|value| value.to_bits() & 0x7fff_ffff);
    let peak = f32::from_bits(magnitudes.fold(0, u32::max));
    if peak == 0.0 {
        quants.fill(0);
        return 0.0;
    }
    if !peak.is_finite() {
        quants.fill(0);
        return f32::NAN;
    }
    let inverse = 127.0 / peak;
    for (quant, value) in quants.iter_mut().zip(values) {
        *quant = round_to_i8(value * inverse);
    }
    peak / 127.0
}
