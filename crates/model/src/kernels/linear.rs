//! Linear layers for few rows, and for many: one order of additions in every width.
//!
//! An output adds its products in ascending order of inputs (for int8: of blocks of 32 inputs, each
//! an exact integer sum times its two scales). Rows and tiles are independent of each other, so a
//! kernel may take as many of both at a time as it has registers for.

use super::Isa;
use super::activations::Activations;
use super::operands::{MAX_ROW_BLOCK, Operands, PREFETCH, TileSums, input_bytes};
use super::packed::{PackedMatrix, WeightType};
use super::{LANES, shared::SharedSlice};
use crate::team::Team;
use std::ops::Range;

/// Row blocks that share one walk over the weights, at the most: so many rows stay in the cache.
const GROUP: usize = 8;

/// Inputs over which the row blocks of a group take turns: their weights stay in the second cache
/// beside a group's activations, and sums are seldom stored and loaded again.
const PART: usize = 512;

/// Bytes of weights that a member takes at a time, at the least.
const PIECE: usize = 32 << 10;

/// Products that share one round of a team's work, at the most.
const TOGETHER: usize = 8;

/// A linear layer that is to be computed: `out[row] = weights · x[row]`, plus the weights' bias.
pub(crate) struct Product<'a> {
    pub(crate) x: &'a [f32], // [rows, inputs]
    pub(crate) weights: &'a PackedMatrix,
    /// Where `x` is rearranged.
    pub(crate) activations: &'a mut Activations,
    pub(crate) out: &'a mut [f32], // [rows, outputs]
}

impl Product<'_> {
    /// Computes it on a team.
    pub(crate) fn compute(self, team: &Team) {
        share(team, &[Some(Pieces::of(self, team.isa()))]);
    }
}

/// `out[row] = weights · x[row]`, plus the weights' bias; `x`: `[rows, inputs]`, `out`: `[rows,
/// outputs]`.
pub(crate) fn linear(
    team: &Team,
    x: &[f32],
    weights: &PackedMatrix,
    activations: &mut Activations,
    out: &mut [f32],
) {
    Product { x, weights, activations, out }.compute(team);
}

/// Several products as one piece of work, with one barrier for up to eight of them. Each has the bits
/// that it has alone.
pub(crate) fn linear_group<'a>(team: &Team, products: impl IntoIterator<Item = Product<'a>>) {
    let mut products = products.into_iter().map(|product| Pieces::of(product, team.isa())).fuse();
    loop {
        // An array, since a forward pass allocates nothing.
        let together: [Option<Pieces<'_>>; TOGETHER] = std::array::from_fn(|_| products.next());
        if together[0].is_none() {
            return;
        }
        share(team, &together);
    }
}

/// A product, its activations packed, in pieces that members take one at a time.
struct Pieces<'a> {
    weights: &'a PackedMatrix,
    activations: &'a Activations,
    out: SharedSlice<'a>,
    /// Pairs of tiles in a piece.
    piece: usize,
    count: usize,
}

impl<'a> Pieces<'a> {
    fn of(product: Product<'a>, isa: Isa) -> Self {
        let Product { x, weights, activations, out } = product;
        let weight_type = weights.weight_type();
        activations.pack(isa, weight_type, x, weights.inputs(), row_block(isa, weight_type));
        debug_assert_eq!(out.len(), x.len() / weights.inputs() * weights.outputs());
        let piece = (PIECE / 2).div_ceil(weights.tile_bytes());
        let count = weights.tiles().div_ceil(2).div_ceil(piece);
        Self { weights, activations, out: SharedSlice::new(out), piece, count }
    }

    fn compute(&self, isa: Isa, number: usize) {
        let Self { weights, activations, out, piece, .. } = self;
        let pairs = weights.tiles().div_ceil(2);
        for pair in number * piece..pairs.min((number + 1) * piece) {
            match activations.blocks() {
                1 => multiply::<1>(isa, weights, pair, activations, out),
                _ => multiply::<GROUP>(isa, weights, pair, activations, out),
            }
        }
    }
}

/// All pieces of some products, numbered through.
fn share<const N: usize>(team: &Team, products: &[Option<Pieces<'_>>; N]) {
    let count = products.iter().flatten().map(|product| product.count).sum();
    team.share(count, |_, mut number| {
        for product in products.iter().flatten() {
            match number.checked_sub(product.count) {
                Some(behind) => number = behind,
                None => return product.compute(team.isa(), number),
            }
        }
    });
}

/// The outputs of two neighbouring tiles for all rows, by groups of up to `G` row blocks.
fn multiply<const G: usize>(
    isa: Isa,
    weights: &PackedMatrix,
    pair: usize,
    activations: &Activations,
    out: &SharedSlice<'_>,
) {
    let pair = [2 * pair, (2 * pair + 1).min(weights.tiles() - 1)];
    let mut sums = [[[[0.0; LANES]; MAX_ROW_BLOCK]; 2]; G];
    for group in (0..activations.blocks()).step_by(G) {
        let group = group..activations.blocks().min(group + G);
        let sums = &mut sums[..group.len()];
        add_products(isa, weights, pair, activations, &group, sums);
        for (block, sums) in group.zip(sums) {
            store(pair, activations.block(block), sums, weights, out);
        }
    }
}

/// Adds up two tiles' products for a group of row blocks. The blocks take turns over a part of the
/// inputs, so that only the first of them waits for memory.
fn add_products(
    isa: Isa,
    weights: &PackedMatrix,
    pair: [usize; 2],
    activations: &Activations,
    group: &Range<usize>,
    sums: &mut [[TileSums; 2]],
) {
    let (inputs, weight_type) = (activations.inputs(), weights.weight_type());
    let tiles = pair.map(|tile| weights.tile(tile));
    let mut first = 0;
    while first < inputs {
        let last = inputs.saturating_sub(PREFETCH / input_bytes(weight_type));
        let end = match (isa, group.len()) {
            (Isa::Avx512, 1) if first < last => last,
            (Isa::Avx512, 2..) => inputs.min(first + PART),
            _ => inputs,
        };
        for (turn, (block, sums)) in group.clone().zip(&mut *sums).enumerate() {
            let (rows, first_row) = activations.block(block);
            let operands = Operands {
                weight_type,
                tiles,
                activations,
                start: first_row * inputs,
                rows,
                inputs,
                part: first..end,
                turn,
                turns: group.len(),
            };
            compute(isa, &operands, sums);
        }
        first = end;
    }
}

/// Writes the sums of two tiles and one row block, plus their bias, to their places.
fn store(
    pair: [usize; 2],
    (rows, first_row): (usize, usize),
    sums: &[TileSums; 2],
    weights: &PackedMatrix,
    out: &SharedSlice<'_>,
) {
    let outputs = weights.outputs();
    for (tile, sums) in pair.into_iter().zip(sums) {
        let width = LANES.min(outputs - tile * LANES);
        for (row, sums) in sums.iter().enumerate().take(rows) {
            let at = (first_row + row) * outputs + tile * LANES;
            // SAFETY: tiles belong to one member each, so these outputs do too.
            let out = unsafe { out.part(at..at + width) };
            out.copy_from_slice(&sums[..width]);
            if let Some(bias) = weights.bias() {
                let bias = &bias[tile * LANES..][..width];
                out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
            }
        }
    }
}

/// Rows that share one reading of the weights.
fn row_block(isa: Isa, weight_type: WeightType) -> usize {
    match (isa, weight_type) {
        (Isa::Avx512, WeightType::Int8) => 8,
        (Isa::Avx512, _) => MAX_ROW_BLOCK,
        (Isa::Avx2 | Isa::Portable, _) => 4,
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

    const TYPES: [WeightType; 4] =
        [WeightType::F32, WeightType::Bf16, WeightType::F16, WeightType::Int8];

    /// Weights as the reference takes them: it quantises int8 itself.
    fn held(weight_type: WeightType, matrix: &[f32], inputs: usize) -> Vec<f32> {
        match weight_type {
            WeightType::Int8 => matrix.to_vec(),
            _ => reference::rounded(weight_type, matrix, inputs),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        /// Every type and instruction set, at sizes that fill no tile, against plain loops.
        #[test]
        fn equals_the_reference_bit_for_bit(
            rows in 1..20_usize, inputs in 1..150_usize, outputs in 1..70_usize,
            seed in any::<u32>(), members in 1..3_usize, biased in any::<bool>(),
        ) {
            let x = values(rows * inputs, seed);
            let matrix = values(inputs * outputs, seed ^ 0xABCD);
            let bias = values(outputs, seed ^ 0xB1A5);
            for weight_type in TYPES {
                let packed = PackedMatrix::pack(weight_type, &matrix, inputs);
                let packed = packed.with_bias(biased.then(|| bias.clone()));
                let held = held(weight_type, &matrix, inputs);
                for isa in Isa::available() {
                    let team = Team::unpinned(members).unwrap().with_isa(isa);
                    let mut out = vec![f32::NAN; rows * outputs];
                    linear(&team, &x, &packed, &mut Activations::default(), &mut out);
                    let products = reference::linear(weight_type, isa.is_fused(), &held, &x, inputs);
                    let with_bias = |(at, product): (usize, &f32)| match biased {
                        true => product + bias[at % outputs],
                        false => *product,
                    };
                    let expected: Vec<f32> = products.iter().enumerate().map(with_bias).collect();
                    prop_assert_eq!(bits(&out), bits(&expected), "{} on {}", weight_type, isa);
                }
                let mut row = vec![0.0; inputs];
                packed.unpack_row(outputs - 1, &mut row);
                let last = &matrix[(outputs - 1) * inputs..];
                prop_assert_eq!(row, reference::rounded(weight_type, last, inputs));
            }
        }
    }

    /// More rows than a group has and more inputs than a part, which no case above reaches.
    #[test]
    fn parts_and_groups_equal_the_reference() {
        let (rows, inputs, outputs) = (GROUP * MAX_ROW_BLOCK + 5, 2 * PART + 38, 50);
        let (x, matrix) = (values(rows * inputs, 5), values(inputs * outputs, 6));
        for weight_type in TYPES {
            let packed = PackedMatrix::pack(weight_type, &matrix, inputs);
            let held = held(weight_type, &matrix, inputs);
            for isa in Isa::available() {
                let team = Team::unpinned(2).unwrap().with_isa(isa);
                let mut out = vec![f32::NAN; rows * outputs];
                linear(&team, &x, &packed, &mut Activations::default(), &mut out);
                let expected = reference::linear(weight_type, isa.is_fused(), &held, &x, inputs);
                assert_eq!(bits(&out), bits(&expected), "{weight_type} on {isa}");
            }
        }
    }

    /// Products of other sizes, types and numbers of rows, more of them than share a round.
    #[test]
    fn products_have_the_same_bits_beside_others() {
        let sizes: Vec<(usize, usize, usize)> =
            (0..TOGETHER + 3).map(|n| (1 + n % 5, 20 + 31 * n, 5 + 90 * (n % 4))).collect();
        let matrices: Vec<PackedMatrix> = (0..)
            .zip(&sizes)
            .map(|(n, &(_, inputs, outputs))| {
                let matrix = values(inputs * outputs, n);
                let packed = PackedMatrix::pack(TYPES[n as usize % 4], &matrix, inputs);
                packed.with_bias((n % 3 == 0).then(|| values(outputs, n ^ 0xB1A5)))
            })
            .collect();
        let xs: Vec<Vec<f32>> =
            (0..).zip(&sizes).map(|(n, size)| values(size.0 * size.1, n ^ 0xABCD)).collect();
        for (isa, members) in Isa::available().into_iter().flat_map(|isa| [(isa, 1), (isa, 3)]) {
            let team = Team::unpinned(members).unwrap().with_isa(isa);
            let none = || sizes.iter().map(|size| vec![f32::NAN; size.0 * size.2]).collect();
            let (mut alone, mut grouped): (Vec<Vec<f32>>, Vec<Vec<f32>>) = (none(), none());
            for ((x, weights), out) in xs.iter().zip(&matrices).zip(&mut alone) {
                linear(&team, x, weights, &mut Activations::default(), out);
            }
            let mut packed: Vec<Activations> =
                sizes.iter().map(|_| Activations::default()).collect();
            let operands = xs.iter().zip(&matrices).zip(packed.iter_mut().zip(&mut grouped));
            let before = team.runs();
            linear_group(
                &team,
                operands.map(|((x, weights), (activations, out))| Product {
                    x,
                    weights,
                    activations,
                    out,
                }),
            );
            assert_eq!(team.runs() - before, if members == 1 { 0 } else { 2 });
            for (alone, grouped) in alone.iter().zip(&grouped) {
                assert_eq!(bits(alone), bits(grouped), "{isa}, {members} members");
            }
        }
        linear_group(&Team::single_thread(), []);
    }

    #[test]
    fn several_matrices_pack_as_one() {
        let (a, b, x) = (values(5 * 7, 1), values(20 * 7, 2), values(3 * 7, 3));
        let both = PackedMatrix::pack_all(WeightType::Bf16, &[&a, &b], 7);
        assert_eq!(both.outputs(), 25);
        let team = Team::single_thread();
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
            linear(&Team::single_thread(), &x, &packed, &mut Activations::default(), &mut out);
            assert!(out.iter().all(|value| value.is_nan()));
        }
    }
}
