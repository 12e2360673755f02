//! Linear kernels for AVX2 with FMA and F16C: one tile × up to four rows in registers.

use super::LANES;
use super::operands::{Operands, TileSums};
use forerun_formats::{QUANT_BLOCK as BLOCK, WeightType};
use std::arch::x86_64::*;

/// Computes the sums of both tiles for every row of the block.
///
/// # Safety
/// The processor must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn compute(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    for (tile, sums) in operands.tiles.into_iter().zip(sums) {
        // SAFETY: this function enables the features, and `Operands` guarantees the kernels' bounds.
        unsafe {
            match operands.rows {
                1 => by_type::<1>(operands, tile, sums),
                2 => by_type::<2>(operands, tile, sums),
                3 => by_type::<3>(operands, tile, sums),
                _ => by_type::<4>(operands, tile, sums),
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn by_type<const R: usize>(operands: &Operands<'_>, tile: &[u8], sums: &mut TileSums) {
    // SAFETY: as in `compute`.
    unsafe {
        match operands.weight_type {
            WeightType::F32 => floats::<R, F32>(operands, tile, sums),
            WeightType::Bf16 => floats::<R, Bf16>(operands, tile, sums),
            WeightType::F16 => floats::<R, F16>(operands, tile, sums),
            WeightType::Int8 => int8::<R>(operands, tile, sums),
        }
    }
}

/// Widening of a float type to f32: two adjacent inputs, each as two halves of 8 lanes.
trait Widen {
    /// Bytes of one input in a tile.
    const BYTES: usize;

    /// Loads and widens the inputs `2 · pair` and `2 · pair + 1`.
    ///
    /// # Safety
    /// The processor must have AVX2 and F16C, and `tile` must hold both inputs.
    unsafe fn pair(tile: *const u8, pair: usize) -> [[__m256; 2]; 2];
}

struct F32;
struct Bf16;
struct F16;

impl Widen for F32 {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn pair(tile: *const u8, pair: usize) -> [[__m256; 2]; 2] {
        // SAFETY: the caller guarantees the features and the inputs; tiles are aligned to 64 bytes.
        unsafe {
            let at = tile.add(pair * 128).cast::<f32>();
            [
                [_mm256_load_ps(at), _mm256_load_ps(at.add(8))],
                [_mm256_load_ps(at.add(16)), _mm256_load_ps(at.add(24))],
            ]
        }
    }
}

impl Widen for Bf16 {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn pair(tile: *const u8, pair: usize) -> [[__m256; 2]; 2] {
        // SAFETY: the caller guarantees the features and the inputs. The two inputs of a lane are the
        // halves of one 32-bit number.
        unsafe {
            let at = tile.add(pair * 64).cast::<__m256i>();
            let (low, high) = (_mm256_load_si256(at), _mm256_load_si256(at.add(1)));
            let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            let even = [_mm256_slli_epi32::<16>(low), _mm256_slli_epi32::<16>(high)];
            let odd = [_mm256_and_si256(low, mask), _mm256_and_si256(high, mask)];
            [
                [_mm256_castsi256_ps(even[0]), _mm256_castsi256_ps(even[1])],
                [_mm256_castsi256_ps(odd[0]), _mm256_castsi256_ps(odd[1])],
            ]
        }
    }
}

impl Widen for F16 {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn pair(tile: *const u8, pair: usize) -> [[__m256; 2]; 2] {
        // SAFETY: the caller guarantees the features and the inputs.
        unsafe {
            let at = tile.add(pair * 64).cast::<__m128i>();
            let half = |index: usize| _mm256_cvtph_ps(_mm_load_si128(at.add(index)));
            [[half(0), half(1)], [half(2), half(3)]]
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn floats<const R: usize, W: Widen>(
    operands: &Operands<'_>,
    tile: &[u8],
    sums: &mut TileSums,
) {
    let Operands { inputs, start, .. } = *operands;
    let x = operands.activations.floats[start..start + R * inputs].as_ptr();
    debug_assert!(tile.len() >= inputs * W::BYTES);
    let mut total = [[_mm256_setzero_ps(); 2]; R];
    for pair in 0..inputs / 2 {
        // SAFETY: the tile holds `inputs` inputs, `x` holds `inputs · R` numbers.
        unsafe {
            let weights = W::pair(tile.as_ptr(), pair);
            for (odd, weights) in weights.into_iter().enumerate() {
                for (row, total) in total.iter_mut().enumerate() {
                    let x = _mm256_set1_ps(*x.add((pair * 2 + odd) * R + row));
                    for (total, weights) in total.iter_mut().zip(weights) {
                        *total = _mm256_fmadd_ps(x, weights, *total);
                    }
                }
            }
        }
    }
    store(&total, sums);
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn int8<const R: usize>(operands: &Operands<'_>, tile: &[u8], sums: &mut TileSums) {
    let Operands { inputs, start, activations, .. } = *operands;
    let blocks = inputs / BLOCK;
    let place = start / BLOCK;
    let x = activations.quants[start..start + R * inputs].as_ptr();
    let x_scales = activations.scales[place..place + R * blocks].as_ptr();
    let (quants, scales) = tile.split_at(inputs * LANES);
    debug_assert!(scales.len() >= blocks * LANES * 2);
    let (quants, scales) = (quants.as_ptr(), scales.as_ptr());
    let (sign, ones) = (_mm256_set1_epi8(-128), _mm256_set1_epi16(1));
    let mut total = [[_mm256_setzero_ps(); 2]; R];
    for block in 0..blocks {
        // SAFETY: the tile holds `blocks` blocks of 512 quants and 16 scales, and `x` holds the same
        // number of blocks of R rows.
        unsafe {
            let mut dots = [[_mm256_setzero_si256(); 2]; R];
            for group in 0..BLOCK / 4 {
                let at = quants.add((block * BLOCK / 4 + group) * 64).cast::<__m256i>();
                let weights = [
                    _mm256_xor_si256(_mm256_load_si256(at), sign),
                    _mm256_xor_si256(_mm256_load_si256(at.add(1)), sign),
                ];
                for (row, dots) in dots.iter_mut().enumerate() {
                    let x = x.add((block * R + row) * BLOCK + group * 4).cast::<i32>();
                    let x = _mm256_set1_epi32(x.read_unaligned());
                    for (dot, weights) in dots.iter_mut().zip(weights) {
                        // |x| · ±w: both factors are at most 127, so the sum of two products is below
                        // 2¹⁵, and nothing saturates.
                        let pairs =
                            _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(weights, x));
                        *dot = _mm256_add_epi32(*dot, _mm256_madd_epi16(pairs, ones));
                    }
                }
            }
            let at = scales.add(block * 32).cast::<__m128i>();
            let scale =
                [_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at.add(1)))];
            for (row, (total, dots)) in total.iter_mut().zip(dots).enumerate() {
                let x_scale = _mm256_set1_ps(*x_scales.add(block * R + row));
                for ((total, dot), scale) in total.iter_mut().zip(dots).zip(scale) {
                    let scale = _mm256_mul_ps(scale, x_scale);
                    *total = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, *total);
                }
            }
        }
    }
    store(&total, sums);
}

#[target_feature(enable = "avx2,fma,f16c")]
fn store<const R: usize>(total: &[[__m256; 2]; R], sums: &mut TileSums) {
    for (sums, total) in sums.iter_mut().zip(total) {
        // SAFETY: a row of sums has 16 lanes.
        unsafe {
            _mm256_storeu_ps(sums.as_mut_ptr(), total[0]);
            _mm256_storeu_ps(sums[8..].as_mut_ptr(), total[1]);
        }
    }
}
