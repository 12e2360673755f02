//! Linear layers for few rows, and for many: one order of additions in every width.
//!
//! An output adds its products in ascending order of inputs (for int8: of blocks of 32 inputs, each
//! an exact integer sum times its two scales). Rows and tiles are independent of each other, so a
//! kernel may take as many of both at a time as it has registers for.

use super::activations::Activations;
use super::isa::Isa;
use super::packed::{PackedMatrix, WeightType};
use super::{LANES, shared::SharedSlice};
use crate::team::Team;

/// Rows that a kernel takes at a time, at the most.
pub(crate) const MAX_ROW_BLOCK: usize = 8;

/// The sums of one tile and one row block.
pub(crate) type TileSums = [[f32; LANES]; MAX_ROW_BLOCK];

/// What a kernel reads: one or two neighbouring tiles of one matrix, and one row block.
pub(crate) struct Operands<'a> {
    pub(crate) weight_type: WeightType,
    pub(crate) tiles: [&'a [u8]; 2],
    pub(crate) activations: &'a Activations,
    /// Inputs of the row block before this one, in numbers (also in quants).
    pub(crate) start: usize,
    pub(crate) rows: usize,
    /// Inputs, filled up to an even number or to whole blocks.
    pub(crate) inputs: usize,
}

/// `out[row] = weights · x[row]`; `x`: `[rows, inputs]`, `out`: `[rows, outputs]`.
pub(crate) fn linear(
    team: &Team,
    x: &[f32],
    weights: &PackedMatrix,
    activations: &mut Activations,
    out: &mut [f32],
) {
    let (outputs, isa) = (weights.outputs(), team.isa());
    activations.pack(weights.weight_type(), x, weights.inputs(), row_block(isa));
    let activations = &*activations;
    debug_assert_eq!(out.len(), x.len() / weights.inputs() * outputs);
    let out = SharedSlice::new(out);
    team.split(weights.tiles(), 2, |tiles| {
        let mut sums = [[[0.0; LANES]; MAX_ROW_BLOCK]; 2];
        for first in tiles.clone().step_by(2) {
            let second = (first + 1).min(tiles.end - 1);
            for block in 0..activations.blocks() {
                let (rows, first_row) = activations.block(block);
                let operands = Operands {
                    weight_type: weights.weight_type(),
                    tiles: [weights.tile(first), weights.tile(second)],
                    activations,
                    start: first_row * activations.inputs(),
                    rows,
                    inputs: activations.inputs(),
                };
                compute(isa, &operands, &mut sums);
                for (tile, sums) in [first, second].into_iter().zip(&sums) {
                    let width = LANES.min(outputs - tile * LANES);
                    for (row, sums) in sums.iter().enumerate().take(rows) {
                        let at = (first_row + row) * outputs + tile * LANES;
                        // SAFETY: tiles belong to one member each, so these outputs do too.
                        unsafe { out.part(at..at + width) }.copy_from_slice(&sums[..width]);
                    }
                }
            }
        }
    });
}

/// Rows that share one reading of the weights.
fn row_block(isa: Isa) -> usize {
    match isa {
        Isa::Avx512 => MAX_ROW_BLOCK,
        Isa::Avx2 | Isa::Portable => 4,
    }
}

#[cfg(target_arch = "x86_64")]
fn compute(isa: Isa, operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    match isa {
        // SAFETY: a team's `Isa` is one that the processor has (`Team::with_isa` checks).
        Isa::Avx512 => unsafe { super::avx512::compute(operands, sums) },
        // SAFETY: as above.
        Isa::Avx2 => unsafe { super::avx2::compute(operands, sums) },
        Isa::Portable => super::portable::compute(operands, sums),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn compute(_isa: Isa, operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    super::portable::compute(operands, sums);
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::reference;
    use super::*;
    use proptest::prelude::*;

    fn values(count: usize, seed: u32) -> Vec<f32> {
        let value = |index: u32| {
            let hash = (index ^ seed).wrapping_mul(2_654_435_761).rotate_left(13);
            (hash.wrapping_mul(0x9E37_79B9) as f32 / 2_147_483_648.0 - 1.0) * 1.5
        };
        (0..count as u32).map(value).collect()
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        /// Every type and instruction set, at sizes that fill no tile, against plain loops.
        #[test]
        fn equals_the_reference_bit_for_bit(
            rows in 1..20_usize, inputs in 1..150_usize, outputs in 1..70_usize,
            seed in any::<u32>(), members in 1..3_usize,
        ) {
            let x = values(rows * inputs, seed);
            let matrix = values(inputs * outputs, seed ^ 0xABCD);
            for weight_type in [WeightType::F32, WeightType::Bf16, WeightType::F16, WeightType::Int8] {
                let packed = PackedMatrix::pack(weight_type, &matrix, inputs);
                let held = match weight_type {
                    WeightType::Int8 => matrix.clone(),
                    _ => reference::rounded(weight_type, &matrix, inputs),
                };
                for isa in Isa::available() {
                    let team = Team::unpinned(members).unwrap().with_isa(isa);
                    let mut out = vec![f32::NAN; rows * outputs];
                    linear(&team, &x, &packed, &mut Activations::default(), &mut out);
                    let expected = reference::linear(weight_type, isa.is_fused(), &held, &x, inputs);
                    prop_assert_eq!(bits(&out), bits(&expected), "{} on {}", weight_type, isa);
                }
                let mut row = vec![0.0; inputs];
                packed.unpack_row(outputs - 1, &mut row);
                let last = &matrix[(outputs - 1) * inputs..];
                prop_assert_eq!(row, reference::rounded(weight_type, last, inputs));
            }
        }
    }

    #[test]
    fn several_matrices_pack_as_one() {
        let (a, b, x) = (values(5 * 7, 1), values(20 * 7, 2), values(3 * 7, 3));
        let both = PackedMatrix::pack_all(WeightType::Bf16, &[&a, &b], 7);
        assert_eq!(both.outputs(), 25);
        let team = Team::solo();
        let mut out = vec![0.0; 3 * 25];
        linear(&team, &x, &both, &mut Activations::default(), &mut out);
        let all = reference::rounded(WeightType::Bf16, &[a, b].concat(), 7);
        assert_eq!(out, reference::linear(WeightType::Bf16, team.isa().is_fused(), &all, &x, 7));
    }

    #[test]
    fn activations_that_are_not_finite_are_not_hidden() {
        let packed = PackedMatrix::pack(WeightType::Int8, &values(16 * 40, 1), 40);
        for broken in [f32::NAN, f32::INFINITY] {
            let mut x = values(40, 2);
            x[3] = broken;
            let mut out = vec![0.0; 16];
            linear(&Team::solo(), &x, &packed, &mut Activations::default(), &mut out);
            assert!(out.iter().all(|value| value.is_nan()));
        }
    }
}
