//! Linear layers for any number of rows, with the same order of additions in every case.
//!
//! An output adds its products in ascending order of inputs. With the instruction set BF16 and bf16
//! weights, the activations are rounded to bf16, and of each two inputs the second one is added
//! first, as `VDPBF16PS` does; with AMX it adds 32 inputs at a time, as `TDPBF16PS` does: the sum
//! of the products of even inputs, plus that of odd inputs. Subnormal numbers are zeros in both.
//! With quantised weights it adds blocks of 32 or 16 inputs in ascending order, each an exact
//! integer sum times its two scales; then the block's minimum times the sum of its activations.
//! Rows and tiles are independent of each other, so a kernel may compute as many of both at a time
//! as its registers can hold.

use super::Isa;
use super::activations::Activations;
use super::block_format::CHUNK;
use super::operands::{
    MAX_ROW_BLOCK, Operands, TileSums, UNPACKED_INPUTS, UnpackedTile, prefetched_inputs,
};
use super::packed::PackedMatrix;
use super::{LANES, shared::SharedSlice};
use crate::team::Team;
use forerun_formats::{BlockType, WeightType};
use std::ops::Range;

/// Largest number of row blocks that share one pass over the weights, so that their rows stay in
/// the cache.
const GROUP_BLOCKS: usize = 8;

/// Number of inputs after which the next row block of a group takes over. Small enough for the
/// inputs' weights and the group's activations to stay in the L2 cache, and large enough to rarely
/// store and reload sums.
const RANGE_INPUTS: usize = UNPACKED_INPUTS;

/// Smallest size of the weights in one piece of work, in bytes.
const PIECE_BYTES: usize = 32 << 10;

/// Largest number of products that are computed in one run of a team.
const MAX_GROUPED_PRODUCTS: usize = 8;

/// A linear layer to compute: `out[row] = weights · x[row]`, plus the weights' bias.
pub(crate) struct Product<'a> {
    pub(crate) x: &'a [f32], // [rows, inputs]
    /// Matrices whose outputs follow one another. They have the same inputs, and are either of one
    /// float type or all quantised.
    pub(crate) weights: &'a [PackedMatrix],
    /// The buffer into which `x` is packed.
    pub(crate) activations: &'a mut Activations,
    pub(crate) out: &'a mut [f32], // [rows, outputs]
}

impl<'a> Product<'a> {
    /// Computes the product on a team.
    pub(crate) fn compute(self, team: &Team) {
        match self.weights {
            [_] => run_products(team, &[self.pack(team).next()]),
            _ => linear_group(team, [self]),
        }
    }

    /// Packs the activations. Returns the product with each matrix.
    fn pack(self, team: &Team) -> impl Iterator<Item = PackedProduct<'a>> {
        let Product { x, weights, activations, out } = self;
        if let Some(first) = weights.first() {
            let (weight_type, inputs) = (first.weight_type(), first.inputs());
            activations.pack(team, weight_type, x, inputs, row_block(team.isa(), weight_type));
            let outputs: usize = weights.iter().map(PackedMatrix::outputs).sum();
            debug_assert_eq!(out.len(), x.len() / inputs * outputs);
        }
        let stride = weights.iter().map(PackedMatrix::outputs).sum();
        let activations = &*activations;
        let out = SharedSlice::new(out);
        let columns = weights.iter().scan(0, |end, matrix| {
            let start = *end;
            *end += matrix.outputs();
            Some(start)
        });
        weights.iter().zip(columns).map(move |(weights, first_column)| {
            let out = Outputs { out, first_column, stride };
            PackedProduct::new(weights, activations, out)
        })
    }
}

/// Computes `out[row] = weights · x[row]`, plus the weights' bias. `x`: `[rows, inputs]`, `out`:
/// `[rows, outputs]`.
pub(crate) fn linear(
    team: &Team,
    x: &[f32],
    weights: &PackedMatrix,
    activations: &mut Activations,
    out: &mut [f32],
) {
    Product { x, weights: std::slice::from_ref(weights), activations, out }.compute(team);
}

/// Computes several products, with one barrier for up to eight of them. Each has the same bits as
/// when it is computed alone.
pub(crate) fn linear_group<'a>(team: &Team, products: impl IntoIterator<Item = Product<'a>>) {
    let mut products = products.into_iter().flat_map(|product| product.pack(team)).fuse();
    loop {
        // An array, because a forward pass must not allocate.
        let batch: [Option<PackedProduct<'_>>; MAX_GROUPED_PRODUCTS] =
            std::array::from_fn(|_| products.next());
        if batch[0].is_none() {
            return;
        }
        run_products(team, &batch);
    }
}

/// Where the outputs of one matrix are written.
#[derive(Clone, Copy)]
struct Outputs<'a> {
    out: SharedSlice<'a>, // [rows, stride]
    /// The column of the matrix's first output.
    first_column: usize,
    stride: usize,
}

/// A product with packed activations, divided into pieces of work for a team's members.
struct PackedProduct<'a> {
    weights: &'a PackedMatrix,
    activations: &'a Activations,
    out: Outputs<'a>,
    /// Number of tile pairs in a piece.
    pairs_per_piece: usize,
    /// Number of pieces.
    pieces: usize,
}

impl<'a> PackedProduct<'a> {
    fn new(weights: &'a PackedMatrix, activations: &'a Activations, out: Outputs<'a>) -> Self {
        let pairs_per_piece = (PIECE_BYTES / 2).div_ceil(weights.tile_bytes());
        let pieces = weights.tiles().div_ceil(2).div_ceil(pairs_per_piece);
        Self { weights, activations, out, pairs_per_piece, pieces }
    }

    fn compute_piece(&self, isa: Isa, piece: usize) {
        let Self { weights, activations, out, pairs_per_piece, .. } = self;
        let pairs = weights.tiles().div_ceil(2);
        for pair in piece * pairs_per_piece..pairs.min((piece + 1) * pairs_per_piece) {
            match activations.blocks() {
                1 => multiply::<1>(isa, weights, pair, activations, out),
                2 => multiply::<2>(isa, weights, pair, activations, out),
                _ => multiply::<GROUP_BLOCKS>(isa, weights, pair, activations, out),
            }
        }
    }
}

/// Computes all pieces of the products in one run of the team.
fn run_products<const N: usize>(team: &Team, products: &[Option<PackedProduct<'_>>; N]) {
    let count = products.iter().flatten().map(|product| product.pieces).sum();
    team.for_each_piece(count, |_, mut piece| {
        for product in products.iter().flatten() {
            match piece.checked_sub(product.pieces) {
                Some(remaining) => piece = remaining,
                None => return product.compute_piece(team.isa(), piece),
            }
        }
    });
}

/// Computes the outputs of two adjacent tiles for all rows, in groups of up to `G` row blocks.
fn multiply<const G: usize>(
    isa: Isa,
    weights: &PackedMatrix,
    pair: usize,
    activations: &Activations,
    out: &Outputs<'_>,
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

/// Sums the products of two tiles for a group of row blocks. The blocks of a group alternate after
/// every range of inputs, so that only the first block waits for memory.
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
    let unpacked_type = unpacked_type(isa, weight_type, group.len());
    let mut unpacked = [const { UnpackedTile::new() }; 2];
    let mut first = 0;
    while first < inputs {
        let last = last_range(weight_type, inputs);
        let end = match group.len() {
            _ if !takes_ranges(isa) => inputs,
            1 if unpacked_type.is_none() => {
                if first < last {
                    last
                } else {
                    inputs
                }
            }
            _ => inputs.min(first + RANGE_INPUTS),
        };
        let input_range = first..end;
        let unpacked = match unpacked_type {
            None => None,
            Some(block_type) => {
                unpack(block_type, tiles, inputs, &input_range, &mut unpacked);
                Some(&unpacked)
            }
        };
        for (block_index, (block, sums)) in group.clone().zip(&mut *sums).enumerate() {
            let (rows, first_row) = activations.block(block);
            let operands = Operands {
                weight_type,
                tiles,
                unpacked,
                activations,
                start: first_row * inputs,
                rows,
                inputs,
                input_range: input_range.clone(),
                block_index,
                group_blocks: group.len(),
            };
            compute(isa, &operands, sums);
        }
        first = end;
    }
}

/// Returns the block type of tiles that are worth unpacking, for a kernel that reads unpacked
/// tiles.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "only the AVX-512 kernels read unpacked tiles")
)]
fn unpacked_type(isa: Isa, weight_type: WeightType, group_blocks: usize) -> Option<BlockType> {
    match (isa, weight_type) {
        #[cfg(target_arch = "x86_64")]
        (Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx, WeightType::Quantized(block_type)) => {
            (group_blocks > 1 && block_type != BlockType::Q8_0).then_some(block_type)
        }
        _ => None,
    }
}

/// Unpacks a range of inputs of two tiles.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "only the AVX-512 kernels read unpacked tiles")
)]
fn unpack(
    block_type: BlockType,
    tiles: [&[u8]; 2],
    inputs: usize,
    range: &Range<usize>,
    unpacked: &mut [UnpackedTile; 2],
) {
    #[cfg(target_arch = "x86_64")]
    for (tile, unpacked) in tiles.into_iter().zip(unpacked) {
        // SAFETY: `unpacked_type` allows it with AVX-512 and AMX only, and a team's `Isa` is one
        // that the processor supports (`Team::with_isa` checks this).
        unsafe { super::avx512::unpack(block_type, tile, inputs, range, unpacked) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("only the AVX-512 kernels read unpacked tiles");
}

/// Returns the first of the inputs during which the next tiles are prefetched.
fn last_range(weight_type: WeightType, inputs: usize) -> usize {
    let unit = match weight_type {
        WeightType::Quantized(_) => CHUNK,
        // The matrix unit takes 32 inputs at a time.
        _ => 32,
    };
    inputs.saturating_sub(prefetched_inputs(weight_type)) / unit * unit
}

/// Writes the sums of two tiles and one row block to the output, plus the bias.
fn store(
    pair: [usize; 2],
    (rows, first_row): (usize, usize),
    sums: &[TileSums; 2],
    weights: &PackedMatrix,
    &Outputs { out, first_column, stride }: &Outputs<'_>,
) {
    let outputs = weights.outputs();
    for (tile, sums) in pair.into_iter().zip(sums) {
        let width = LANES.min(outputs - tile * LANES);
        for (row, sums) in sums.iter().enumerate().take(rows) {
            let at = (first_row + row) * stride + first_column + tile * LANES;
            // SAFETY: each tile is computed by one member, so no other member writes these outputs.
            let out = unsafe { out.range_mut(at..at + width) };
            match out.as_chunks_mut() {
                ([whole], []) => *whole = *sums,
                _ => out.copy_from_slice(&sums[..width]),
            }
            if let Some(bias) = weights.bias() {
                let bias = &bias[tile * LANES..][..width];
                out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
            }
        }
    }
}

/// Returns the number of rows for which a kernel reads the weights once.
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(unused_variables, reason = "only with AMX it depends on the type")
)]
fn row_block(isa: Isa, weight_type: WeightType) -> usize {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Amx if weight_type == WeightType::Bf16 => super::amx::ROW_BLOCK,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => super::avx512::ROW_BLOCK,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => 4,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => 4,
        Isa::Portable => 4,
    }
}

/// Returns whether a kernel can continue the sums of the inputs before a range.
fn takes_ranges(isa: Isa) -> bool {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => true,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => false,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => false,
        Isa::Portable => false,
    }
}

fn compute(isa: Isa, operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    match isa {
        // SAFETY: a team's `Isa` is one that the processor supports (`Team::with_isa` checks this).
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { super::avx512::compute(operands, sums) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => unsafe { super::avx512::compute_with_bf16(operands, sums) },
        #[cfg(target_arch = "x86_64")]
        Isa::Amx => match operands.weight_type {
            // SAFETY: as above.
            WeightType::Bf16 => unsafe { super::amx::compute(operands, sums) },
            // SAFETY: as above.
            _ => unsafe { super::avx512::compute(operands, sums) },
        },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { super::avx2::compute(operands, sums) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => unsafe { super::neon::compute(operands, sums) },
        Isa::Portable => super::portable::compute(operands, sums),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use forerun_reference::{Arithmetic, Matrix};
    use half::f16;
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
        [WeightType::F32, WeightType::Bf16, WeightType::F16, WeightType::INT8];

    /// Random blocks `[outputs, blocks]` with moderate scales.
    fn random_blocks(block_type: BlockType, count: usize, seed: u32) -> Vec<u8> {
        use BlockType as T;
        let hash = |index: u32| {
            (index ^ seed).wrapping_mul(2_654_435_761).rotate_left(13).wrapping_mul(0x9E37_79B9)
        };
        let bytes = block_type.bytes();
        let mut blocks: Vec<u8> =
            (0..(count * bytes) as u32).map(|index| (hash(index) >> 24) as u8).collect();
        let halves: &[usize] = match block_type {
            T::Q4_0 | T::Q5_0 | T::Q8_0 | T::IQ4_NL | T::IQ4_XS => &[0],
            T::Q4_1 | T::Q5_1 | T::Q4_K | T::Q5_K => &[0, 2],
            T::Q2_K => &[80, 82],
            T::Q3_K => &[108],
            T::Q6_K => &[208],
            T::MXFP4 => &[],
        };
        for (index, block) in blocks.chunks_mut(bytes).enumerate() {
            let value = f16::from_f32(values(1, seed ^ index as u32)[0] / 64.0).to_le_bytes();
            halves.iter().for_each(|&at| block[at..at + 2].copy_from_slice(&value));
            if block_type == T::MXFP4 {
                // Exponents of zero and one stand for subnormal scales.
                block[0] = [0, 1, 2, 117, 121, 130][index % 6];
            }
        }
        blocks
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Every type and instruction set, with sizes that leave tiles partly empty, against plain
        /// loops.
        #[test]
        fn equals_the_reference_bit_for_bit(
            rows in 1..20_usize, inputs in 1..150_usize, outputs in 1..70_usize,
            seed in any::<u32>(), members in 1..3_usize, biased in any::<bool>(),
        ) {
            let x = values(rows * inputs, seed);
            let matrix = values(inputs * outputs, seed ^ 0xABCD);
            let bias = values(outputs, seed ^ 0xB1A5);
            for weight_type in WeightType::all() {
                let packed = PackedMatrix::pack(weight_type, &matrix, inputs);
                let packed = packed.with_bias(biased.then(|| bias.clone()));
                let slow = Matrix::new(weight_type, matrix.clone(), inputs);
                for isa in Isa::available() {
                    let team = Team::unpinned(members).unwrap().with_isa(isa);
                    let mut out = vec![f32::NAN; rows * outputs];
                    linear(&team, &x, &packed, &mut Activations::default(), &mut out);
                    let products = Arithmetic::cpu(weight_type, isa).linear(&slow, &x);
                    let with_bias = |(at, product): (usize, &f32)| match biased {
                        true => product + bias[at % outputs],
                        false => *product,
                    };
                    let expected: Vec<f32> = products.iter().enumerate().map(with_bias).collect();
                    prop_assert_eq!(bits(&out), bits(&expected), "{} on {}", weight_type, isa);
                }
                let mut row = vec![0.0; inputs];
                packed.unpack_row(outputs - 1, &mut row);
                prop_assert_eq!(row, slow.weights(outputs - 1));
            }
        }

        /// Every block type and instruction set, from stored blocks.
        #[test]
        fn stored_blocks_equal_the_reference_bit_for_bit(
            rows in 1..20_usize, blocks in 1..4_usize, outputs in 1..40_usize,
            seed in any::<u32>(), members in 1..3_usize,
        ) {
            for block_type in BlockType::ALL {
                let inputs = blocks * block_type.weights();
                let x = values(rows * inputs, seed);
                let stored = random_blocks(block_type, outputs * blocks, seed);
                let row_bytes = blocks * block_type.bytes();
                let packed = PackedMatrix::pack_blocks(block_type, [outputs, inputs], |output| {
                    Ok(stored[output * row_bytes..][..row_bytes].into())
                });
                let packed = packed.unwrap();
                let slow = Matrix::from_blocks(block_type, stored.clone(), inputs);
                for isa in Isa::available() {
                    let team = Team::unpinned(members).unwrap().with_isa(isa);
                    let mut out = vec![f32::NAN; rows * outputs];
                    linear(&team, &x, &packed, &mut Activations::default(), &mut out);
                    let weight_type = WeightType::Quantized(block_type);
                    let expected = Arithmetic::cpu(weight_type, isa).linear(&slow, &x);
                    prop_assert_eq!(bits(&out), bits(&expected), "{} on {}", block_type, isa);
                }
                for output in 0..outputs {
                    let mut row = vec![0.0; inputs];
                    packed.unpack_row(output, &mut row);
                    prop_assert_eq!(bits(&row), bits(&slow.weights(output)), "{}", block_type);
                }
            }
        }
    }

    /// Numbers of all magnitudes: subnormal ones, and products that overflow.
    #[test]
    fn extreme_bf16_numbers_equal_the_reference() {
        let (rows, inputs, outputs) = (3, 70, 16);
        let extreme = |count: usize, seed: u32| -> Vec<f32> {
            let powers = [-140, -127, -126, -100, -63, -1, 0, 1, 62, 100];
            let scaled = values(count, seed).into_iter().zip(powers.into_iter().cycle());
            scaled
                .map(|(value, power)| {
                    value * 2.0_f32.powi(power / 2) * 2.0_f32.powi(power - power / 2)
                })
                .collect()
        };
        for seed in 0..20 {
            let (x, matrix) = (extreme(rows * inputs, seed), extreme(inputs * outputs, seed ^ 77));
            let packed = PackedMatrix::pack(WeightType::Bf16, &matrix, inputs);
            let slow = Matrix::new(WeightType::Bf16, matrix, inputs);
            for isa in Isa::available() {
                let team = Team::single_thread().with_isa(isa);
                let mut out = vec![f32::NAN; rows * outputs];
                linear(&team, &x, &packed, &mut Activations::default(), &mut out);
                let expected = Arithmetic::cpu(WeightType::Bf16, isa).linear(&slow, &x);
                assert_eq!(bits(&out), bits(&expected), "{isa}, {seed}");
            }
        }
    }

    /// More rows than a group and more inputs than a range, which the test above never reaches.
    #[test]
    fn many_rows_and_inputs_equal_the_reference() {
        let (rows, inputs, outputs) = (GROUP_BLOCKS * MAX_ROW_BLOCK + 5, 2 * RANGE_INPUTS + 38, 50);
        let (x, matrix) = (values(rows * inputs, 5), values(inputs * outputs, 6));
        for weight_type in WeightType::all() {
            let packed = PackedMatrix::pack(weight_type, &matrix, inputs);
            let slow = Matrix::new(weight_type, matrix.clone(), inputs);
            for isa in Isa::available() {
                let team = Team::unpinned(2).unwrap().with_isa(isa);
                let mut out = vec![f32::NAN; rows * outputs];
                linear(&team, &x, &packed, &mut Activations::default(), &mut out);
                let expected = Arithmetic::cpu(weight_type, isa).linear(&slow, &x);
                assert_eq!(bits(&out), bits(&expected), "{weight_type} on {isa}");
            }
        }
    }

    /// Products of different sizes, types and numbers of rows, more of them than fit in one run.
    #[test]
    fn grouped_products_have_the_same_bits_as_single_ones() {
        let sizes: Vec<(usize, usize, usize)> = (0..MAX_GROUPED_PRODUCTS + 3)
            .map(|n| (1 + n % 5, 20 + 31 * n, 5 + 90 * (n % 4)))
            .collect();
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
                    weights: std::slice::from_ref(weights),
                    activations,
                    out,
                }),
            );
            // A leader that works alone for a while, because a helper has lost its core, needs no
            // run.
            assert!(team.runs() - before <= if members == 1 { 0 } else { 2 });
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
        let all = Matrix::new(WeightType::Bf16, [a, b].concat(), 7);
        assert_eq!(out, Arithmetic::cpu(WeightType::Bf16, team.isa()).linear(&all, &x));
    }

    #[test]
    fn a_product_with_several_matrices_equals_the_product_with_each() {
        let (rows, inputs) = (5, 256);
        let x = values(rows * inputs, 7);
        let types = [BlockType::Q4_K, BlockType::Q8_0, BlockType::Q6_K];
        let matrices: Vec<PackedMatrix> = types
            .into_iter()
            .zip([33, 16, 50])
            .map(|(block_type, outputs)| {
                let size = inputs / block_type.weights() * block_type.bytes();
                let stored = random_blocks(block_type, outputs * inputs / block_type.weights(), 8);
                let read = |output: usize| Ok(stored[output * size..][..size].into());
                let packed = PackedMatrix::pack_blocks(block_type, [outputs, inputs], read);
                packed.unwrap().with_bias((outputs == 16).then(|| values(16, 9)))
            })
            .collect();
        let outputs = 33 + 16 + 50;
        for (isa, members) in Isa::available().into_iter().flat_map(|isa| [(isa, 1), (isa, 2)]) {
            let team = Team::unpinned(members).unwrap().with_isa(isa);
            let mut together = vec![f32::NAN; rows * outputs];
            let (activations, out) = (&mut Activations::default(), &mut together[..]);
            Product { x: &x, weights: &matrices, activations, out }.compute(&team);
            let mut first = 0;
            for matrix in &matrices {
                let mut alone = vec![f32::NAN; rows * matrix.outputs()];
                linear(&team, &x, matrix, &mut Activations::default(), &mut alone);
                let alone_rows = alone.chunks_exact(matrix.outputs());
                for (alone, together) in alone_rows.zip(together.chunks_exact(outputs)) {
                    assert_eq!(bits(alone), bits(&together[first..][..alone.len()]), "{isa}");
                }
                first += matrix.outputs();
            }
        }
    }

    #[test]
    fn activations_that_are_not_finite_are_not_hidden() {
        let packed = PackedMatrix::pack(WeightType::INT8, &values(16 * 40, 1), 40);
        for broken in [f32::NAN, f32::INFINITY] {
            let mut x = values(40, 2);
            x[3] = broken;
            let mut out = vec![0.0; 16];
            linear(&Team::single_thread(), &x, &packed, &mut Activations::default(), &mut out);
            assert!(out.iter().all(|value| value.is_nan()));
        }
    }
}
