//! Linear kernels for AVX-512 with VNNI: two tiles × up to twelve rows in registers.

use super::LANES;
use super::operands::{Operands, PrefetchPlan, TileSums};
use forerun_formats::{QUANT_BLOCK as BLOCK, WeightType};
use std::arch::x86_64::*;
use std::ops::Range;

/// How far ahead activations are prefetched, in bytes.
const PREFETCH_X: usize = 1024;
/// How far ahead scales are prefetched, in bytes of one tile.
const PREFETCH_SCALES: usize = 256;

/// Adds the products of an input range to the sums of both tiles, for every row of the block. The first
/// range starts from zero.
///
/// # Safety
/// The processor must have AVX-512 F, BW, DQ, VL and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn compute(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    // SAFETY: this function enables the features, and `Operands` guarantees the kernels' bounds.
    unsafe {
        match operands.rows {
            1 => by_type::<1>(operands, sums),
            2 => by_type::<2>(operands, sums),
            3 => by_type::<3>(operands, sums),
            4 => by_type::<4>(operands, sums),
            5 => by_type::<5>(operands, sums),
            6 => by_type::<6>(operands, sums),
            7 => by_type::<7>(operands, sums),
            8 => by_type::<8>(operands, sums),
            9 => by_type::<9>(operands, sums),
            10 => by_type::<10>(operands, sums),
            11 => by_type::<11>(operands, sums),
            _ => by_type::<12>(operands, sums),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn by_type<const R: usize>(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    // SAFETY: as in `compute`.
    unsafe {
        match operands.weight_type {
            WeightType::F32 => floats::<R, F32>(operands, sums),
            WeightType::Bf16 => floats::<R, Bf16>(operands, sums),
            WeightType::F16 => floats::<R, F16>(operands, sums),
            WeightType::Int8 => int8::<R>(operands, sums),
        }
    }
}

/// Widening of a float type to f32: 16 lanes of two adjacent inputs.
trait Widen {
    /// Bytes of one input in a tile.
    const BYTES: usize;

    /// Loads and widens the inputs `2 · pair` and `2 · pair + 1`.
    ///
    /// # Safety
    /// The processor must have AVX-512 F, and `tile` must hold both inputs.
    unsafe fn pair(tile: *const u8, pair: usize) -> [__m512; 2];
}

struct F32;
struct Bf16;
struct F16;

impl Widen for F32 {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn pair(tile: *const u8, pair: usize) -> [__m512; 2] {
        // SAFETY: the caller guarantees the features and the inputs; tiles are aligned to 64 bytes.
        unsafe {
            let at = tile.add(pair * 128).cast::<f32>();
            [_mm512_load_ps(at), _mm512_load_ps(at.add(16))]
        }
    }
}

impl Widen for Bf16 {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn pair(tile: *const u8, pair: usize) -> [__m512; 2] {
        // SAFETY: the caller guarantees the features and the inputs. The two inputs of a lane are the
        // halves of one 32-bit number.
        unsafe {
            let both = _mm512_load_si512(tile.add(pair * 64).cast());
            let odd = _mm512_and_si512(both, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(both)), _mm512_castsi512_ps(odd)]
        }
    }
}

impl Widen for F16 {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn pair(tile: *const u8, pair: usize) -> [__m512; 2] {
        // SAFETY: the caller guarantees the features and the inputs.
        //
        // Widening is exact, so the rounding mode does not matter. This form reads memory directly, while
        // `_mm512_cvtph_ps` needs an additional load and a shuffle.
        //
        // Kernels do not use `map` on arrays: it does not have their target features, so if the compiler
        // does not inline it, every number costs a call.
        unsafe {
            let at = tile.add(pair * 64).cast::<__m256i>();
            let (even, odd) = (_mm256_load_si256(at), _mm256_load_si256(at.add(1)));
            [
                _mm512_cvt_roundph_ps::<_MM_FROUND_CUR_DIRECTION>(even),
                _mm512_cvt_roundph_ps::<_MM_FROUND_CUR_DIRECTION>(odd),
            ]
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn floats<const R: usize, W: Widen>(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    let Operands { tiles, inputs, start, ref input_range, .. } = *operands;
    let plan = operands.prefetch_plan();
    let x = &operands.activations.floats[start..start + R * inputs];
    debug_assert!(tiles.iter().all(|tile| tile.len() >= inputs * W::BYTES));
    let x = x[input_range.start * R..input_range.end * R].as_ptr();
    let [first, second] = tiles.map(|tile| tile[input_range.start * W::BYTES..].as_ptr());
    let [mut left, mut right] = load::<R>(input_range, sums);
    for pair in 0..input_range.len() / 2 {
        // SAFETY: both tiles hold the inputs of the range, and `x` holds R numbers for each input. A
        // prefetch may use any address.
        unsafe {
            prefetch(plan, pair * W::BYTES / 32, W::BYTES / 32);
            for line in (0..2 * R).step_by(16) {
                let at = x.wrapping_add(pair * 2 * R + line);
                _mm_prefetch::<_MM_HINT_T0>(at.cast::<i8>().wrapping_add(PREFETCH_X));
            }
            let (l, r) = (W::pair(first, pair), W::pair(second, pair));
            for odd in 0..2 {
                for row in 0..R {
                    let x = _mm512_set1_ps(*x.add((pair * 2 + odd) * R + row));
                    left[row] = _mm512_fmadd_ps(x, l[odd], left[row]);
                    right[row] = _mm512_fmadd_ps(x, r[odd], right[row]);
                }
            }
        }
    }
    store(&[left, right], sums);
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn int8<const R: usize>(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    let Operands { tiles, inputs, start, ref input_range, activations, .. } = *operands;
    let plan = operands.prefetch_plan();
    let (place, blocks) = (start / BLOCK, inputs / BLOCK);
    let x = activations.quants[start..start + R * inputs].as_ptr();
    let x_scales = activations.scales[place..place + R * blocks].as_ptr();
    let offsets = activations.offsets[place..place + R * blocks].as_ptr();
    debug_assert!(tiles.iter().all(|tile| tile.len() >= (inputs + 2 * blocks) * LANES));
    let mut totals = load::<R>(input_range, sums);
    let first_block = input_range.start / BLOCK;
    for block in first_block..input_range.end / BLOCK {
        // SAFETY: each tile holds `blocks` blocks of 512 quants and 16 scales, and `x` holds the same
        // number of blocks of R rows. A prefetch may use any address.
        unsafe {
            let (x, x_scales) = (x.add(block * R * BLOCK), x_scales.add(block * R));
            for (side, tile) in tiles.iter().enumerate() {
                let quants = tile.as_ptr().add(block * BLOCK * LANES);
                let scales = tile.as_ptr().add((inputs + block * 2) * LANES);
                _mm_prefetch::<_MM_HINT_T0>(scales.wrapping_add(PREFETCH_SCALES).cast());
                // Weights are stored with 128 added, which the offset corrects.
                let mut dots = [_mm512_setzero_si512(); R];
                for (row, dot) in dots.iter_mut().enumerate() {
                    *dot = _mm512_set1_epi32(*offsets.add(block * R + row));
                }
                for group in 0..BLOCK / 4 {
                    let line = (block - first_block) * (BLOCK / 4) + group;
                    let at = plan.from[side].wrapping_add(line * plan.stride);
                    _mm_prefetch::<_MM_HINT_T0>(at.cast());
                    let weights = _mm512_load_si512(quants.add(group * 64).cast());
                    for (row, dot) in dots.iter_mut().enumerate() {
                        let x = x.add(row * BLOCK + group * 4).cast::<i32>();
                        let x = _mm512_set1_epi32(x.read_unaligned());
                        *dot = _mm512_dpbusd_epi32(*dot, weights, x);
                    }
                }
                let scale = _mm512_cvtph_ps(_mm256_loadu_si256(scales.cast()));
                for (row, (total, dot)) in totals[side].iter_mut().zip(dots).enumerate() {
                    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(*x_scales.add(row)));
                    *total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, *total);
                }
            }
        }
    }
    store(&totals, sums);
}

/// Prefetches `count` cache lines of both tiles' weights, from the `line`-th line of the plan on.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn prefetch(plan: PrefetchPlan, line: usize, count: usize) {
    for line in line..line + count {
        for from in plan.from {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line * plan.stride).cast());
        }
    }
}

/// Loads the sums of the previous input ranges, which are zeros for the first range.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn load<const R: usize>(input_range: &Range<usize>, sums: &[TileSums; 2]) -> [[__m512; R]; 2] {
    let mut totals = [[_mm512_setzero_ps(); R]; 2];
    if input_range.start == 0 {
        return totals;
    }
    for (totals, sums) in totals.iter_mut().zip(sums) {
        for (total, sums) in totals.iter_mut().zip(sums) {
            // SAFETY: a row of sums has 16 lanes.
            *total = unsafe { _mm512_loadu_ps(sums.as_ptr()) };
        }
    }
    totals
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn store<const R: usize>(totals: &[[__m512; R]; 2], sums: &mut [TileSums; 2]) {
    for (sums, totals) in sums.iter_mut().zip(totals) {
        for (sums, &total) in sums.iter_mut().zip(totals) {
            // SAFETY: a row of sums has 16 lanes.
            unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), total) };
        }
    }
}
