//! Activations as the linear kernels read them: in blocks of rows, transposed or quantised.

use super::packed::{BLOCK, WeightType, round};

/// The input of a linear layer, rearranged so that a kernel reads it front to back.
///
/// Rows come in blocks (see [`Activations::pack`]). For float weights a block of R
/// rows is `[inputs][R]`, inputs filled up with zeros to an even number; for int8 it is quants
/// `[inputs/32][R][32]`, with a scale and an offset for each block and row.
#[derive(Default)]
pub(crate) struct Activations {
    rows: usize,
    row_block: usize,
    inputs: usize,
    pub(crate) floats: Vec<f32>,
    pub(crate) quants: Vec<i8>,
    pub(crate) scales: Vec<f32>,
    /// What storing weights with 128 added does to a block's sum of products, negated.
    pub(crate) offsets: Vec<i32>,
}

impl Activations {
    /// Packs `x`: `[rows, inputs]` for weights of a type, in blocks of up to `row_block` rows.
    pub(crate) fn pack(
        &mut self,
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
            WeightType::Int8 => self.quantize(x, inputs),
            _ => self.transpose(x, inputs),
        }
    }

    /// Inputs, filled up.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    /// Number of row blocks.
    pub(crate) fn blocks(&self) -> usize {
        self.rows.div_ceil(self.row_block)
    }

    /// Rows of a row block, and the index of its first row. Blocks are about equal, since a kernel
    /// is quicker with two middling blocks than with a full and a small one.
    pub(crate) fn block(&self, block: usize) -> (usize, usize) {
        let first = |block| self.rows * block / self.blocks();
        (first(block + 1) - first(block), first(block))
    }

    fn transpose(&mut self, x: &[f32], inputs: usize) {
        self.floats.resize(self.rows * self.inputs, 0.0);
        for block in 0..self.blocks() {
            let (rows, first_row) = self.block(block);
            let x = &x[first_row * inputs..(first_row + rows) * inputs];
            let start = first_row * self.inputs;
            let packed = &mut self.floats[start..start + rows * self.inputs];
            for (row, x) in x.chunks_exact(inputs).enumerate() {
                for (input, &value) in x.iter().enumerate() {
                    packed[input * rows + row] = value;
                }
                for input in inputs..self.inputs {
                    packed[input * rows + row] = 0.0;
                }
            }
        }
    }

    fn quantize(&mut self, x: &[f32], inputs: usize) {
        let blocks = self.inputs / BLOCK;
        self.quants.clear();
        self.quants.resize(self.rows * self.inputs, 0);
        self.scales.resize(self.rows * blocks, 0.0);
        self.offsets.resize(self.rows * blocks, 0);
        for block in 0..self.blocks() {
            let (rows, first_row) = self.block(block);
            let x = &x[first_row * inputs..(first_row + rows) * inputs];
            let start = first_row * blocks;
            for (row, x) in x.chunks_exact(inputs).enumerate() {
                for (index, values) in x.chunks(BLOCK).enumerate() {
                    let place = start + index * rows + row;
                    let quants = &mut self.quants[place * BLOCK..place * BLOCK + values.len()];
                    self.scales[place] = quantize_activations(values, quants);
                    self.offsets[place] =
                        -128 * quants.iter().map(|&quant| i32::from(quant)).sum::<i32>();
                }
            }
        }
    }
}

/// Quantises up to 32 activations to −127…127 and returns the scale that gives them back. Values
/// that are not finite make the scale not a number, and so the layer's output.
pub(crate) fn quantize_activations(values: &[f32], quants: &mut [i8]) -> f32 {
    let peak = values.iter().fold(0.0_f32, |peak, value| peak.max(value.abs()));
    let finite = values.iter().all(|value| value.is_finite());
    let inverse = if peak > 0.0 && finite { 127.0 / peak } else { 0.0 };
    for (quant, value) in quants.iter_mut().zip(values) {
        *quant = round(value * inverse) as i8;
    }
    if finite { peak / 127.0 } else { f32::NAN }
}
