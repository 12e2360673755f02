//! Activations in the layout of the linear kernels: in blocks of rows, transposed or quantised.

use super::Isa;
use forerun_formats::{QUANT_BLOCK as BLOCK, WeightType, round_to_i8};
use forerun_vector::{Lanes, Vectorized, vectorize};

/// The input of a linear layer, packed so that a kernel reads it sequentially.
///
/// Rows are grouped in blocks (see [`Activations::pack`]). For float weights, a block of R rows is
/// `[inputs][R]`, with the inputs zero-padded to an even number. For int8 weights, it is quants
/// `[inputs/32][R][32]`, with a scale and an offset for each block of inputs and row.
#[derive(Default)]
pub(crate) struct Activations {
    rows: usize,
    row_block: usize,
    inputs: usize,
    pub(crate) floats: Vec<f32>,
    pub(crate) quants: Vec<i8>,
    pub(crate) scales: Vec<f32>,
    /// For each block of inputs and row, the correction of the sum of products for the 128 that is added
    /// to stored weights.
    pub(crate) offsets: Vec<i32>,
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
            WeightType::Int8 => inputs.next_multiple_of(BLOCK),
            _ => inputs.next_multiple_of(2),
        };
        match weight_type {
            WeightType::Int8 => self.quantize(isa, x, inputs),
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
        self.offsets.resize(self.rows * blocks, 0);
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
                offsets: &mut self.offsets[places],
            };
            vectorize(isa, quantize);
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
    offsets: &'a mut [i32],
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
                let sum: i32 = self.quants[place].iter().map(|&quant| i32::from(quant)).sum();
                self.offsets[place] = -128 * sum;
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
