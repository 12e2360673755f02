//! Linear kernels for NEON: a tile × up to four rows of floats in registers, or four outputs × up
//! to four rows of a block type.
//!
//! Products of bytes use the best instructions that the processor has: [`MatrixProducts`] (I8MM),
//! [`DotProducts`] (DotProd), or [`WideningProducts`], which every processor has. All of them are
//! exact. They are written in assembly, like the conversion of half precision, because their
//! intrinsics are not stable in the oldest supported version of Rust.
//!
//! The choice follows counts of instructions. No speed was ever measured: kernels ran in
//! `qemu-user` only, so there is no prefetching either.

use super::LANES;
use super::block_format::{BlockFormat, GROUPS, Scales};
use super::operands::{Operands, TileSums};
use forerun_formats::{BlockType, QUANT_BLOCK as BLOCK, WeightType};
use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

/// The vectors of four outputs in a tile.
const QUADS: usize = LANES / 4;
/// The inputs of a vector of activations.
const VECTOR: usize = 16;
/// The vectors of activations in a block.
const VECTORS: usize = BLOCK / VECTOR;
/// The groups of four inputs in a vector of activations.
const VECTOR_GROUPS: usize = GROUPS / VECTORS;

/// Computes the sums of both tiles for every row of the block.
///
/// # Safety
/// The processor must have NEON.
#[target_feature(enable = "neon")]
pub(crate) unsafe fn compute(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    // SAFETY: this function enables the feature, and `Operands` guarantees the kernels' bounds.
    unsafe {
        match operands.weight_type {
            WeightType::F32 => by_rows_of_floats::<F32>(operands, sums),
            WeightType::Bf16 => by_rows_of_floats::<Bf16>(operands, sums),
            WeightType::F16 => by_rows_of_floats::<F16>(operands, sums),
            WeightType::Quantized(block_type) => {
                ByteProducts::best(operands.rows).compute(block_type, operands, sums);
            }
        }
    }
}

/// Few rows read both tiles at the same time: four sums alone would wait for one another.
#[target_feature(enable = "neon")]
unsafe fn by_rows_of_floats<W: Widen>(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    // SAFETY: as in `compute`.
    unsafe {
        match operands.rows {
            1 => floats::<2, 1, W>(operands, operands.tiles, sums),
            2 => floats::<2, 2, W>(operands, operands.tiles, sums),
            rows => {
                for (&tile, sums) in operands.tiles.iter().zip(sums.as_chunks_mut::<1>().0) {
                    match rows {
                        3 => floats::<1, 3, W>(operands, [tile], sums),
                        _ => floats::<1, 4, W>(operands, [tile], sums),
                    }
                }
            }
        }
    }
}

/// Widening of a float type to f32: two adjacent inputs, each as four vectors of four outputs.
trait Widen {
    /// Bytes of one input in a tile.
    const BYTES: usize;

    /// Loads and widens the inputs `2 · pair` and `2 · pair + 1`.
    ///
    /// # Safety
    /// The processor must have NEON, and `tile` must hold both inputs.
    unsafe fn pair(tile: *const u8, pair: usize) -> [[float32x4_t; QUADS]; 2];
}

struct F32;
struct Bf16;
struct F16;

impl Widen for F32 {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn pair(tile: *const u8, pair: usize) -> [[float32x4_t; QUADS]; 2] {
        // SAFETY: the caller guarantees the feature and the inputs.
        unsafe {
            let at = tile.add(pair * 128).cast::<f32>();
            let quad = |index: usize| vld1q_f32(at.add(index * 4));
            [[quad(0), quad(1), quad(2), quad(3)], [quad(4), quad(5), quad(6), quad(7)]]
        }
    }
}

impl Widen for Bf16 {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn pair(tile: *const u8, pair: usize) -> [[float32x4_t; QUADS]; 2] {
        // SAFETY: the caller guarantees the feature and the inputs. The two inputs of a lane are
        // the halves of one 32-bit number.
        unsafe {
            let at = tile.add(pair * 64).cast::<u32>();
            let both = |quad: usize| vld1q_u32(at.add(quad * 4));
            let even = |quad| vreinterpretq_f32_u32(vshlq_n_u32::<16>(both(quad)));
            let mask = vdupq_n_u32(0xffff_0000);
            let odd = |quad| vreinterpretq_f32_u32(vandq_u32(both(quad), mask));
            [[even(0), even(1), even(2), even(3)], [odd(0), odd(1), odd(2), odd(3)]]
        }
    }
}

impl Widen for F16 {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn pair(tile: *const u8, pair: usize) -> [[float32x4_t; QUADS]; 2] {
        // SAFETY: the caller guarantees the feature and the inputs.
        unsafe {
            let at = tile.add(pair * 64);
            [halves(at), halves(at.add(32))]
        }
    }
}

/// Loads and widens 16 half-precision numbers.
#[inline(always)]
unsafe fn halves(at: *const u8) -> [float32x4_t; QUADS] {
    // SAFETY: the caller guarantees the feature and the numbers.
    unsafe {
        let at = at.cast::<u16>();
        let (first, second) = (vld1q_u16(at), vld1q_u16(at.add(8)));
        [widen_low(first), widen_high(first), widen_low(second), widen_high(second)]
    }
}

#[inline(always)]
unsafe fn widen_low(halves: uint16x8_t) -> float32x4_t {
    let quad;
    // SAFETY: the caller guarantees the feature.
    unsafe {
        asm!(
            "fcvtl {quad:v}.4s, {halves:v}.4h",
            quad = lateout(vreg) quad, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    quad
}

#[inline(always)]
unsafe fn widen_high(halves: uint16x8_t) -> float32x4_t {
    let quad;
    // SAFETY: the caller guarantees the feature.
    unsafe {
        asm!(
            "fcvtl2 {quad:v}.4s, {halves:v}.8h",
            quad = lateout(vreg) quad, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    quad
}

/// Computes `T` tiles × `R` rows.
#[target_feature(enable = "neon")]
unsafe fn floats<const T: usize, const R: usize, W: Widen>(
    operands: &Operands<'_>,
    tiles: [&[u8]; T],
    sums: &mut [TileSums; T],
) {
    let Operands { inputs, start, .. } = *operands;
    let x = operands.activations.floats[start..start + R * inputs].as_ptr();
    debug_assert!(tiles.iter().all(|tile| tile.len() >= inputs * W::BYTES));
    let mut totals = [[[vdupq_n_f32(0.0); QUADS]; R]; T];
    for pair in 0..inputs / 2 {
        for (tile, totals) in tiles.iter().zip(&mut totals) {
            // SAFETY: the tile holds `inputs` inputs, `x` holds `inputs · R` numbers.
            unsafe {
                let weights = W::pair(tile.as_ptr(), pair);
                for (odd, weights) in weights.into_iter().enumerate() {
                    for (row, total) in totals.iter_mut().enumerate() {
                        let x = *x.add((pair * 2 + odd) * R + row);
                        for (total, weights) in total.iter_mut().zip(weights) {
                            *total = vfmaq_n_f32(*total, weights, x);
                        }
                    }
                }
            }
        }
    }
    for (totals, sums) in totals.iter().zip(sums) {
        store(totals, sums);
    }
}

#[target_feature(enable = "neon")]
fn store<const R: usize>(totals: &[[float32x4_t; QUADS]; R], sums: &mut TileSums) {
    for (sums, totals) in sums.iter_mut().zip(totals) {
        for (sums, &total) in sums.as_chunks_mut::<4>().0.iter_mut().zip(totals) {
            // SAFETY: the chunk has four numbers.
            unsafe { vst1q_f32(sums.as_mut_ptr(), total) };
        }
    }
}

/// The instructions that multiply bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ByteProducts {
    Widening,
    Dot,
    Matrix,
}

impl ByteProducts {
    /// Returns the instructions to use on this processor for a number of rows. Products of matrices
    /// pay with four.
    fn best(rows: usize) -> Self {
        if rows == 4 && is_aarch64_feature_detected!("i8mm") {
            Self::Matrix
        } else if is_aarch64_feature_detected!("dotprod") {
            Self::Dot
        } else {
            Self::Widening
        }
    }

    /// Computes the sums of both tiles.
    ///
    /// # Safety
    /// The processor must have the instructions, and [`Self::Matrix`] needs four rows.
    unsafe fn compute(
        self,
        block_type: BlockType,
        operands: &Operands<'_>,
        sums: &mut [TileSums; 2],
    ) {
        for (tile, sums) in operands.tiles.into_iter().zip(sums) {
            // SAFETY: the caller guarantees the instructions, and `Operands` the kernels' bounds.
            unsafe { self.by_block_type(block_type, operands, tile, sums) };
        }
    }

    #[target_feature(enable = "neon")]
    unsafe fn by_block_type(
        self,
        block_type: BlockType,
        operands: &Operands<'_>,
        tile: &[u8],
        sums: &mut TileSums,
    ) {
        use BlockType as T;
        // SAFETY: as in `compute`.
        unsafe {
            match block_type {
                T::Q4_0 => Blocks::<{ T::Q4_0 as usize }>::by_rows(self, operands, tile, sums),
                T::Q4_1 => Blocks::<{ T::Q4_1 as usize }>::by_rows(self, operands, tile, sums),
                T::Q5_0 => Blocks::<{ T::Q5_0 as usize }>::by_rows(self, operands, tile, sums),
                T::Q5_1 => Blocks::<{ T::Q5_1 as usize }>::by_rows(self, operands, tile, sums),
                T::Q8_0 => Blocks::<{ T::Q8_0 as usize }>::by_rows(self, operands, tile, sums),
                T::Q2_K => Blocks::<{ T::Q2_K as usize }>::by_rows(self, operands, tile, sums),
                T::Q3_K => Blocks::<{ T::Q3_K as usize }>::by_rows(self, operands, tile, sums),
                T::Q4_K => Blocks::<{ T::Q4_K as usize }>::by_rows(self, operands, tile, sums),
                T::Q5_K => Blocks::<{ T::Q5_K as usize }>::by_rows(self, operands, tile, sums),
                T::Q6_K => Blocks::<{ T::Q6_K as usize }>::by_rows(self, operands, tile, sums),
                T::IQ4_NL => Blocks::<{ T::IQ4_NL as usize }>::by_rows(self, operands, tile, sums),
                T::IQ4_XS => Blocks::<{ T::IQ4_XS as usize }>::by_rows(self, operands, tile, sums),
                T::MXFP4 => Blocks::<{ T::MXFP4 as usize }>::by_rows(self, operands, tile, sums),
            }
        }
    }
}

/// Sums of products of four outputs and `R` rows, in an arrangement of their own. All methods need
/// the processor's instructions, and are part of functions that enable them.
trait Products {
    /// Starts the sums of each row with a number.
    unsafe fn start<const R: usize>(numbers: [i32; R]) -> [int32x4_t; R];

    /// Adds the products of 16 inputs. `weights` has a vector of four outputs × four inputs for
    /// each group of inputs, `x` has a vector of 16 inputs for each row.
    unsafe fn add<const R: usize>(
        sums: &mut [int32x4_t; R],
        weights: [int8x16_t; VECTOR_GROUPS],
        x: &[int8x16_t; R],
    );

    /// Arranges the sums by row: for each of them, those of its four outputs.
    unsafe fn by_row<const R: usize>(sums: [int32x4_t; R]) -> [int32x4_t; R];
}

/// 16-bit products, as every processor computes them. Two of them fit 16 bits, because activations
/// are at least −127.
struct WideningProducts;

impl Products for WideningProducts {
    #[inline(always)]
    unsafe fn start<const R: usize>(numbers: [i32; R]) -> [int32x4_t; R] {
        // SAFETY: the caller guarantees the instructions.
        unsafe { start_rows(numbers) }
    }

    #[inline(always)]
    unsafe fn add<const R: usize>(
        sums: &mut [int32x4_t; R],
        weights: [int8x16_t; VECTOR_GROUPS],
        x: &[int8x16_t; R],
    ) {
        // SAFETY: the caller guarantees the instructions.
        unsafe {
            for (sum, &x) in sums.iter_mut().zip(x) {
                let x = vreinterpretq_s32_s8(x);
                let groups = [
                    vdupq_laneq_s32::<0>(x),
                    vdupq_laneq_s32::<1>(x),
                    vdupq_laneq_s32::<2>(x),
                    vdupq_laneq_s32::<3>(x),
                ];
                for (weights, x) in weights.into_iter().zip(groups) {
                    let x = vreinterpretq_s8_s32(x);
                    let low = vmull_s8(vget_low_s8(weights), vget_low_s8(x));
                    let high = vmull_high_s8(weights, x);
                    *sum = vpadalq_s16(*sum, vpaddq_s16(low, high));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn by_row<const R: usize>(sums: [int32x4_t; R]) -> [int32x4_t; R] {
        sums
    }
}

/// `SDOT`: four products of bytes for each of four outputs.
struct DotProducts;

impl Products for DotProducts {
    #[inline(always)]
    unsafe fn start<const R: usize>(numbers: [i32; R]) -> [int32x4_t; R] {
        // SAFETY: the caller guarantees the instructions.
        unsafe { start_rows(numbers) }
    }

    #[inline(always)]
    unsafe fn add<const R: usize>(
        sums: &mut [int32x4_t; R],
        [a, b, c, d]: [int8x16_t; VECTOR_GROUPS],
        x: &[int8x16_t; R],
    ) {
        // SAFETY: the caller guarantees the instructions.
        unsafe {
            for (sum, &x) in sums.iter_mut().zip(x) {
                *sum = dot::<0>(*sum, a, x);
                *sum = dot::<1>(*sum, b, x);
                *sum = dot::<2>(*sum, c, x);
                *sum = dot::<3>(*sum, d, x);
            }
        }
    }

    #[inline(always)]
    unsafe fn by_row<const R: usize>(sums: [int32x4_t; R]) -> [int32x4_t; R] {
        sums
    }
}

/// `SMMLA`: eight products of bytes for each of two outputs and two rows. The sums of two rows are
/// in two vectors: those of the first two outputs in one, and those of the last two in the other.
/// Each vector alternates between the rows.
struct MatrixProducts;

impl Products for MatrixProducts {
    #[inline(always)]
    unsafe fn start<const R: usize>(numbers: [i32; R]) -> [int32x4_t; R] {
        // SAFETY: the caller guarantees the instructions.
        unsafe {
            let mut sums = start_rows(numbers);
            for pair in sums.as_chunks_mut::<2>().0 {
                *pair = [vzip1q_s32(pair[0], pair[1]); 2];
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn add<const R: usize>(
        sums: &mut [int32x4_t; R],
        [a, b, c, d]: [int8x16_t; VECTOR_GROUPS],
        x: &[int8x16_t; R],
    ) {
        // SAFETY: the caller guarantees the instructions.
        unsafe {
            let two_outputs = |first: int8x16_t, second: int8x16_t| {
                let (first, second) = (vreinterpretq_s32_s8(first), vreinterpretq_s32_s8(second));
                [vzip1q_s32(first, second), vzip2q_s32(first, second)]
            };
            let eight_inputs = [two_outputs(a, b), two_outputs(c, d)];
            for (sums, x) in sums.as_chunks_mut::<2>().0.iter_mut().zip(x.as_chunks::<2>().0) {
                let (first, second) = (vreinterpretq_s64_s8(x[0]), vreinterpretq_s64_s8(x[1]));
                let x = [vzip1q_s64(first, second), vzip2q_s64(first, second)];
                for (weights, x) in eight_inputs.into_iter().zip(x) {
                    for (sum, weights) in sums.iter_mut().zip(weights) {
                        let weights = vreinterpretq_s8_s32(weights);
                        *sum = matrix_product(*sum, weights, vreinterpretq_s8_s64(x));
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn by_row<const R: usize>(mut sums: [int32x4_t; R]) -> [int32x4_t; R] {
        // SAFETY: the caller guarantees the instructions.
        unsafe {
            for pair in sums.as_chunks_mut::<2>().0 {
                *pair = [vuzp1q_s32(pair[0], pair[1]), vuzp2q_s32(pair[0], pair[1])];
            }
        }
        sums
    }
}

#[inline(always)]
unsafe fn start_rows<const R: usize>(numbers: [i32; R]) -> [int32x4_t; R] {
    // SAFETY: the caller guarantees NEON.
    unsafe {
        let mut sums = [vdupq_n_s32(0); R];
        for (sum, number) in sums.iter_mut().zip(numbers) {
            *sum = vdupq_n_s32(number);
        }
        sums
    }
}

/// Adds the products of four outputs × four inputs and the `G`-th group of four inputs in `x`.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn dot<const G: u32>(mut sum: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: this function enables the instruction.
    unsafe {
        asm!(
            "sdot {sum:v}.4s, {weights:v}.16b, {x:v}.4b[{group}]",
            sum = inlateout(vreg) sum, weights = in(vreg) weights, x = in(vreg) x, group = const G,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// Adds the products of two outputs × eight inputs and two rows of the same inputs.
#[inline]
#[target_feature(enable = "neon,i8mm")]
fn matrix_product(mut sum: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: this function enables the instruction.
    unsafe {
        asm!(
            "smmla {sum:v}.4s, {weights:v}.16b, {x:v}.16b",
            sum = inlateout(vreg) sum, weights = in(vreg) weights, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sum
}

/// The kernel of a block type, given by its place in [`BlockType::ALL`].
struct Blocks<const T: usize>;

impl<const T: usize> Blocks<T> {
    const FORMAT: BlockFormat = BlockFormat::of(BlockType::ALL[T]);
    /// Whether quants may have eight bits. They are then multiplied with their zero subtracted,
    /// because the instructions multiply signed bytes.
    const SIGNED: bool = Self::FORMAT.zero == 128;

    #[target_feature(enable = "neon")]
    unsafe fn by_rows(
        products: ByteProducts,
        operands: &Operands<'_>,
        tile: &[u8],
        sums: &mut TileSums,
    ) {
        use ByteProducts as P;
        // SAFETY: the caller guarantees the instructions, and four rows for products of matrices.
        unsafe {
            match (products, operands.rows) {
                (P::Matrix, _) => Self::matrix::<4>(operands, tile, sums),
                (P::Dot, 1) => Self::dot::<1>(operands, tile, sums),
                (P::Dot, 2) => Self::dot::<2>(operands, tile, sums),
                (P::Dot, 3) => Self::dot::<3>(operands, tile, sums),
                (P::Dot, _) => Self::dot::<4>(operands, tile, sums),
                (P::Widening, 1) => Self::widening::<1>(operands, tile, sums),
                (P::Widening, 2) => Self::widening::<2>(operands, tile, sums),
                (P::Widening, 3) => Self::widening::<3>(operands, tile, sums),
                (P::Widening, _) => Self::widening::<4>(operands, tile, sums),
            }
        }
    }

    #[target_feature(enable = "neon,i8mm")]
    unsafe fn matrix<const R: usize>(operands: &Operands<'_>, tile: &[u8], sums: &mut TileSums) {
        // SAFETY: as in `by_rows`.
        unsafe { Self::blocks::<R, MatrixProducts>(operands, tile, sums) }
    }

    #[target_feature(enable = "neon,dotprod")]
    unsafe fn dot<const R: usize>(operands: &Operands<'_>, tile: &[u8], sums: &mut TileSums) {
        // SAFETY: as in `by_rows`.
        unsafe { Self::blocks::<R, DotProducts>(operands, tile, sums) }
    }

    #[target_feature(enable = "neon")]
    unsafe fn widening<const R: usize>(operands: &Operands<'_>, tile: &[u8], sums: &mut TileSums) {
        // SAFETY: as in `by_rows`.
        unsafe { Self::blocks::<R, WideningProducts>(operands, tile, sums) }
    }

    #[inline(always)]
    unsafe fn blocks<const R: usize, P: Products>(
        operands: &Operands<'_>,
        tile: &[u8],
        sums: &mut TileSums,
    ) {
        let Operands { inputs, start, activations, .. } = *operands;
        let format = &Self::FORMAT;
        let (first_place, blocks) = (start / BLOCK, inputs / BLOCK);
        let x = activations.quantized(first_place..first_place + R * blocks);
        debug_assert!(tile.len() >= format.tile_bytes(inputs));
        let tile = tile.as_ptr();
        let parts = format.scales_per_block();
        // SAFETY: the tile holds `blocks` blocks of 16 outputs, and the activations hold the same
        // number of blocks of R rows.
        unsafe {
            let mut totals = [[vdupq_n_f32(0.0); QUADS]; R];
            for block in 0..blocks {
                let place = |row: usize| block * R + row;
                let at = format.place(inputs, block);
                let [lower, upper, scales, supers] =
                    [at.lower, at.upper, at.scales, at.supers].map(|at| tile.add(at));
                for part in 0..parts {
                    let mut offsets = [0; R];
                    if format.zero != 0 && !Self::SIGNED {
                        for (row, offset) in offsets.iter_mut().enumerate() {
                            *offset = format.zero * x.negative_sum(place(row), part, parts);
                        }
                    }
                    let [scale, minimum] = Self::scale(scales, supers, part);
                    for quad in 0..QUADS {
                        let mut dots = P::start(offsets);
                        for vector in part * VECTORS / parts..(part + 1) * VECTORS / parts {
                            let weights = Self::quants(lower, upper, vector, quad);
                            let mut inputs = [vdupq_n_s8(0); R];
                            for (row, inputs) in inputs.iter_mut().enumerate() {
                                *inputs = vld1q_s8(x.quants_from(place(row), vector * VECTOR));
                            }
                            P::add(&mut dots, weights, &inputs);
                        }
                        let dots = P::by_row(dots);
                        for (row, (totals, dot)) in totals.iter_mut().zip(dots).enumerate() {
                            let total = &mut totals[quad];
                            let scale = vmulq_n_f32(scale[quad], x.scale(place(row)));
                            *total = vfmaq_f32(*total, vcvtq_f32_s32(dot), scale);
                            if format.scales.has_minima() {
                                let sum = x.scaled_sum(place(row), part, parts);
                                *total = vfmaq_n_f32(*total, minimum[quad], sum);
                            }
                        }
                    }
                }
            }
            store(&totals, sums);
        }
    }

    /// Returns the quants of 16 inputs of four outputs: for each group of four inputs, a vector
    /// with each of them in the byte of its output and input. Signed quants have their zero
    /// subtracted.
    #[inline(always)]
    unsafe fn quants(
        lower: *const u8,
        upper: *const u8,
        vector: usize,
        quad: usize,
    ) -> [int8x16_t; VECTOR_GROUPS] {
        // SAFETY: the caller guarantees NEON, and 32 inputs in both planes.
        unsafe {
            let format = &Self::FORMAT;
            let (bits, upper_bits) = (format.lower_bits(), format.upper_bits());
            let load = |plane: *const u8, group: usize| vld1q_u8(plane.add(group * 64 + quad * 16));
            let zero = vdupq_n_u8(128);
            let mut quants = [vdupq_n_s8(0); VECTOR_GROUPS];
            for (group, quants) in (vector * VECTOR_GROUPS..).zip(&mut quants) {
                if bits == 8 {
                    *quants = vreinterpretq_s8_u8(veorq_u8(load(lower, group), zero));
                    continue;
                }
                let per_byte = 8 / bits;
                let by = -((group % per_byte * bits) as i8);
                let shifted = vshlq_u8(load(lower, group / per_byte), vdupq_n_s8(by));
                let mut unsigned = vandq_u8(shifted, vdupq_n_u8((1 << bits) - 1));
                if let Some(table) = format.table {
                    unsigned = veorq_u8(vqtbl1q_u8(vld1q_u8(table.as_ptr()), unsigned), zero);
                }
                if let Some(per_byte) = 8_usize.checked_div(upper_bits) {
                    let by = bits as i8 - (group % per_byte * upper_bits) as i8;
                    let shifted = vshlq_u8(load(upper, group / per_byte), vdupq_n_s8(by));
                    let mask = vdupq_n_u8(((1 << upper_bits) - 1) << bits);
                    unsigned = vorrq_u8(unsigned, vandq_u8(shifted, mask));
                }
                *quants = vreinterpretq_s8_u8(unsigned);
            }
            quants
        }
    }

    /// Returns the scales of 32 or 16 inputs, and the minima to add.
    #[inline(always)]
    unsafe fn scale(
        scales: *const u8,
        supers: *const u8,
        part: usize,
    ) -> [[float32x4_t; QUADS]; 2] {
        // SAFETY: the caller guarantees NEON, and the scales of 32 inputs and of 256 inputs.
        unsafe {
            let none = [vdupq_n_f32(0.0); QUADS];
            match Self::FORMAT.scales {
                Scales::Half => [halves(scales), none],
                Scales::HalfAndMinimum => [halves(scales), halves(scales.add(2 * LANES))],
                Scales::Exponent => [half_powers_of_two(scales), none],
                Scales::Super32 { minima } | Scales::Super16 { minima } => {
                    let scale = products(halves(supers), scales.add(part * LANES));
                    if !minima {
                        return [scale, none];
                    }
                    let minima = scales.add(LANES * (Self::FORMAT.scales_per_block() + part));
                    let [a, b, c, d] = products(halves(supers.add(2 * LANES)), minima);
                    [scale, [vnegq_f32(a), vnegq_f32(b), vnegq_f32(c), vnegq_f32(d)]]
                }
            }
        }
    }
}

/// Multiplies numbers and integers: 16 bytes.
#[inline(always)]
unsafe fn products(numbers: [float32x4_t; QUADS], integers: *const u8) -> [float32x4_t; QUADS] {
    // SAFETY: the caller guarantees NEON and the integers.
    unsafe {
        let integers = vld1q_s8(integers.cast());
        let (low, high) = (vmovl_s8(vget_low_s8(integers)), vmovl_high_s8(integers));
        let [a, b, c, d] = numbers;
        [
            vmulq_f32(a, vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)))),
            vmulq_f32(b, vcvtq_f32_s32(vmovl_high_s16(low))),
            vmulq_f32(c, vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)))),
            vmulq_f32(d, vcvtq_f32_s32(vmovl_high_s16(high))),
        ]
    }
}

/// Returns half of two to the power of each exponent minus 127. There are 16 of them, each a byte.
#[inline(always)]
unsafe fn half_powers_of_two(exponents: *const u8) -> [float32x4_t; QUADS] {
    // SAFETY: the caller guarantees NEON and the exponents.
    unsafe {
        let exponents = vld1q_u8(exponents);
        let (low, high) = (vmovl_u8(vget_low_u8(exponents)), vmovl_high_u8(exponents));
        let power = |exponent: uint32x4_t| {
            let one = vdupq_n_u32(1);
            let normal = vshlq_n_u32::<23>(vsubq_u32(exponent, one));
            let subnormal = vshlq_u32(vdupq_n_u32(0x0020_0000), vreinterpretq_s32_u32(exponent));
            vreinterpretq_f32_u32(vbslq_u32(vcgtq_u32(exponent, one), normal, subnormal))
        };
        [
            power(vmovl_u16(vget_low_u16(low))),
            power(vmovl_high_u16(low)),
            power(vmovl_u16(vget_low_u16(high))),
            power(vmovl_high_u16(high)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::activations::Activations;
    use crate::kernels::operands::MAX_ROW_BLOCK;
    use crate::kernels::{Isa, PackedMatrix};
    use crate::team::Team;

    fn values(count: usize) -> Vec<f32> {
        let value = |index: u32| {
            index.wrapping_mul(2_654_435_761).rotate_left(13) as f32 / 2_147_483_648.0 - 1.0
        };
        (0..count as u32).map(value).collect()
    }

    /// The portable kernels compute the same integers, but round each product of an integer and its
    /// scales.
    #[test]
    fn all_products_of_bytes_give_the_same_bits() {
        let mut compared = vec![ByteProducts::Widening];
        compared.extend(is_aarch64_feature_detected!("dotprod").then_some(ByteProducts::Dot));
        compared.extend(is_aarch64_feature_detected!("i8mm").then_some(ByteProducts::Matrix));
        println!("compared: {compared:?}");
        let inputs = 320;
        for (block_type, rows) in
            BlockType::ALL.into_iter().flat_map(|t| [1, 2, 3, 4].map(|n| (t, n)))
        {
            let weight_type = WeightType::Quantized(block_type);
            let weights = PackedMatrix::pack(weight_type, &values(32 * inputs), inputs);
            let team = Team::single_thread().with_isa(Isa::Neon);
            let mut activations = Activations::default();
            activations.pack(&team, weight_type, &values(rows * inputs), inputs, rows);
            let operands = Operands {
                weight_type,
                tiles: [weights.tile(0), weights.tile(1)],
                unpacked: None,
                activations: &activations,
                start: 0,
                rows,
                inputs,
                input_range: 0..inputs,
                block_index: 0,
                group_blocks: 1,
            };
            let results: Vec<_> = compared
                .iter()
                .filter(|&&products| products != ByteProducts::Matrix || rows == 4)
                .map(|products| {
                    let mut sums = [[[f32::NAN; LANES]; MAX_ROW_BLOCK]; 2];
                    // SAFETY: the processor has the instructions, and there are four rows for
                    // products of matrices.
                    unsafe { products.compute(block_type, &operands, &mut sums) };
                    sums.as_flattened().as_flattened().iter().map(|sum| sum.to_bits()).collect()
                })
                .collect::<Vec<Vec<u32>>>();
            assert!(results.iter().all(|bits| *bits == results[0]), "{block_type}, {rows} rows");
        }
    }
}
