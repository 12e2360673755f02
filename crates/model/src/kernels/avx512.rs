//! Linear kernels for AVX-512 with VNNI: two tiles × up to twelve rows in registers.

use super::LANES;
use super::operands::{Ahead, Operands, TileSums};
use super::packed::{BLOCK, WeightType};
use std::arch::x86_64::*;
use std::ops::Range;

/// How far ahead activations are asked for, in bytes.
const PREFETCH_X: usize = 1024;
/// How far ahead scales are asked for, in bytes of one tile.
const PREFETCH_SCALES: usize = 256;

/// Adds a part's products to the sums of both tiles, for every row of the block; the first part's
/// sums begin at zero.
///
/// # Safety
/// The processor must have AVX-512 F, BW, DQ, VL and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn compute(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    // SAFETY: the features are enabled here; the kernels' bounds are those of `Operands`.
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

/// How a float type widens: 16 lanes of two neighbouring inputs.
trait Widen {
    /// Bytes of one input in a tile.
    const BYTES: usize;

    /// # Safety
    /// AVX-512 F; `tile` must hold the inputs `2 · pair` and `2 · pair + 1`.
    unsafe fn pair(tile: *const u8, pair: usize) -> [__m512; 2];
}

struct F32;
struct Bf16;
struct F16;

impl Widen for F32 {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn pair(tile: *const u8, pair: usize) -> [__m512; 2] {
        // SAFETY: the caller's promise; tiles are aligned to 64 bytes.
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
        // SAFETY: the caller's promise. A lane's two inputs are the halves of one 32-bit number.
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
        // SAFETY: the caller's promise. Widening is exact, so the rounding does not matter; but this
        // form reads memory itself, while `_mm512_cvtph_ps` costs a load and a shuffle more.
        //
        // No `map` of arrays in kernels: it has none of their target features, and where a compiler
        // does not inline it for another reason, every number costs a call.
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
    let Operands { tiles, inputs, start, ref part, .. } = *operands;
    let ahead = operands.ahead();
    let x = &operands.activations.floats[start..start + R * inputs];
    debug_assert!(tiles.iter().all(|tile| tile.len() >= inputs * W::BYTES));
    let x = x[part.start * R..part.end * R].as_ptr();
    let [first, second] = tiles.map(|tile| tile[part.start * W::BYTES..].as_ptr());
    let [mut left, mut right] = load::<R>(part, sums);
    for pair in 0..part.len() / 2 {
        // SAFETY: both tiles hold the part's inputs, `x` holds R numbers for each; prefetching may
        // point anywhere.
        unsafe {
            prefetch(ahead, pair * W::BYTES / 32, W::BYTES / 32);
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
    let Operands { tiles, inputs, start, ref part, activations, .. } = *operands;
    let ahead = operands.ahead();
    let (place, blocks) = (start / BLOCK, inputs / BLOCK);
    let x = activations.quants[start..start + R * inputs].as_ptr();
    let x_scales = activations.scales[place..place + R * blocks].as_ptr();
    let offsets = activations.offsets[place..place + R * blocks].as_ptr();
    debug_assert!(tiles.iter().all(|tile| tile.len() >= (inputs + 2 * blocks) * LANES));
    let mut totals = load::<R>(part, sums);
    let first_block = part.start / BLOCK;
    for block in first_block..part.end / BLOCK {
        // SAFETY: each tile holds `blocks` blocks of 512 quants and 16 scales, `x` as many blocks
        // of R rows; prefetching may point anywhere.
        unsafe {
            let (x, x_scales) = (x.add(block * R * BLOCK), x_scales.add(block * R));
            for (side, tile) in tiles.iter().enumerate() {
                let quants = tile.as_ptr().add(block * BLOCK * LANES);
                let scales = tile.as_ptr().add((inputs + block * 2) * LANES);
                _mm_prefetch::<_MM_HINT_T0>(scales.wrapping_add(PREFETCH_SCALES).cast());
                // Weights are stored with 128 added; the offset makes up for that.
                let mut dots = [_mm512_setzero_si512(); R];
                for (row, dot) in dots.iter_mut().enumerate() {
                    *dot = _mm512_set1_epi32(*offsets.add(block * R + row));
                }
                for group in 0..BLOCK / 4 {
                    let line = (block - first_block) * (BLOCK / 4) + group;
                    let at = ahead.from[side].wrapping_add(line * ahead.stride);
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

/// Asks for the next `count` lines of both tiles' weights, after `line` of them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn prefetch(ahead: Ahead, line: usize, count: usize) {
    for line in line..line + count {
        for from in ahead.from {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line * ahead.stride).cast());
        }
    }
}

/// The sums to go on with; the first part begins at zero.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn load<const R: usize>(part: &Range<usize>, sums: &[TileSums; 2]) -> [[__m512; R]; 2] {
    let mut totals = [[_mm512_setzero_ps(); R]; 2];
    if part.start == 0 {
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
