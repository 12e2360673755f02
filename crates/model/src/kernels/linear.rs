//! Linear layers for few rows: packed weights, one order of additions.

use super::{LANES, shared::SharedSlice};
use crate::team::Team;

/// Rows that share one reading of a tile.
const ROW_BLOCK: usize = 4;

/// A weight matrix `[outputs, inputs]`, packed in tiles of 16 outputs: `[outputs/16][inputs][16]`,
/// the last tile filled up with zeros.
pub(crate) struct PackedMatrix {
    tiles: Vec<f32>,
    outputs: usize,
    inputs: usize,
}

impl PackedMatrix {
    /// Packs row-major weights `[outputs, inputs]`.
    pub(crate) fn pack(weights: &[f32], outputs: usize, inputs: usize) -> Self {
        debug_assert_eq!(weights.len(), outputs * inputs);
        let mut tiles = vec![0.0; outputs.div_ceil(LANES) * inputs * LANES];
        for (output, row) in weights.chunks_exact(inputs).enumerate() {
            let tile = output / LANES * inputs * LANES + output % LANES;
            for (input, &weight) in row.iter().enumerate() {
                tiles[tile + input * LANES] = weight;
            }
        }
        Self { tiles, outputs, inputs }
    }

    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Bytes of packed weights.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&self.tiles[..])
    }

    /// Copies the weights of one output (an embedding's row) to `row`: `[inputs]`.
    pub(crate) fn unpack_row(&self, output: usize, row: &mut [f32]) {
        let tile = self.tile(output / LANES);
        for (value, lanes) in row.iter_mut().zip(tile.chunks_exact(LANES)) {
            *value = lanes[output % LANES];
        }
    }

    fn tile(&self, tile: usize) -> &[f32] {
        let size = self.inputs * LANES;
        &self.tiles[tile * size..(tile + 1) * size]
    }
}

/// `out[row] = weights · x[row]`; `x`: `[rows, inputs]`, `out`: `[rows, outputs]`.
pub(crate) fn linear(team: &Team, x: &[f32], weights: &PackedMatrix, out: &mut [f32]) {
    let (inputs, outputs) = (weights.inputs, weights.outputs);
    let rows = x.len() / inputs;
    debug_assert_eq!(out.len(), rows * outputs);
    let out = SharedSlice::new(out);
    team.split(outputs, LANES, |range| {
        for tile in range.start / LANES..range.end.div_ceil(LANES) {
            let first = tile * LANES;
            let width = LANES.min(outputs - first);
            for (block, x) in x.chunks(inputs * ROW_BLOCK).enumerate() {
                let sums = tile_times_rows(weights.tile(tile), x, inputs);
                for (row, sums) in sums.iter().enumerate().take(x.len() / inputs) {
                    let at = (block * ROW_BLOCK + row) * outputs + first;
                    // SAFETY: tiles belong to one member each, so these outputs do too.
                    unsafe { out.part(at..at + width) }.copy_from_slice(&sums[..width]);
                }
            }
        }
    });
}

/// Sums of one tile for up to four rows; each lane of each row adds in ascending order of inputs.
fn tile_times_rows(tile: &[f32], x: &[f32], inputs: usize) -> [[f32; LANES]; ROW_BLOCK] {
    let mut sums = [[0.0; LANES]; ROW_BLOCK];
    // Rows that are not there repeat row 0; their sums are not used.
    let row = |index: usize| x.get(index * inputs..(index + 1) * inputs).unwrap_or(&x[..inputs]);
    if x.len() == inputs {
        for (lanes, &value) in tile.chunks_exact(LANES).zip(x) {
            for (sum, &weight) in sums[0].iter_mut().zip(lanes) {
                *sum += value * weight;
            }
        }
        return sums;
    }
    let rows: [&[f32]; ROW_BLOCK] = std::array::from_fn(row);
    for (input, lanes) in tile.chunks_exact(LANES).enumerate() {
        for (sums, row) in sums.iter_mut().zip(rows) {
            for (sum, &weight) in sums.iter_mut().zip(lanes) {
                *sum += row[input] * weight;
            }
        }
    }
    sums
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, in its order of additions.
    fn reference(x: &[f32], weights: &[f32], inputs: usize) -> Vec<f32> {
        let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).fold(0.0, |sum, (x, w)| sum + x * w);
        x.chunks(inputs)
            .flat_map(|row| weights.chunks(inputs).map(move |output| dot(row, output)))
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn equals_the_definition_bit_for_bit(
            rows in 1..10_usize, inputs in 1..40_usize, outputs in 1..50_usize,
            seed in any::<u32>(), members in 1..3_usize,
        ) {
            let value = |index: usize| {
                (((index as u32).wrapping_mul(2_654_435_761) ^ seed) as f32 / 4e9 - 0.5) * 2.0
            };
            let x: Vec<f32> = (0..rows * inputs).map(value).collect();
            let weights: Vec<f32> = (1_000..1_000 + inputs * outputs).map(value).collect();
            let packed = PackedMatrix::pack(&weights, outputs, inputs);
            let mut out = vec![f32::NAN; rows * outputs];
            linear(&Team::unpinned(members).unwrap(), &x, &packed, &mut out);
            let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&out), bits(&reference(&x, &weights, inputs)));
            let mut row = vec![0.0; inputs];
            packed.unpack_row(outputs - 1, &mut row);
            prop_assert_eq!(&row[..], &weights[(outputs - 1) * inputs..]);
        }
    }
}
