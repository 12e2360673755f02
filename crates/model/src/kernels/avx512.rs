//! Linear kernels for AVX-512 with VNNI: two tiles × up to eight rows in registers.

use super::LANES;
use super::linear::{Operands, TileSums};
use super::packed::{BLOCK, WeightType};
use std::arch::x86_64::*;

/// How far ahead weights are asked for, in bytes of one tile.
const PREFETCH: usize = 2048;

/// The sums of both tiles for every row of the block.
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
            _ => by_type::<8>(operands, sums),
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
            WeightType::Int8 => {
                for (tile, sums) in operands.tiles.into_iter().zip(sums) {
                    int8::<R>(operands, tile, sums);
                }
            }
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
        // SAFETY: the caller's promise.
        unsafe {
            let at = tile.add(pair * 64).cast::<__m256i>();
            [_mm512_cvtph_ps(_mm256_load_si256(at)), _mm512_cvtph_ps(_mm256_load_si256(at.add(1)))]
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn floats<const R: usize, W: Widen>(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    let Operands { tiles, inputs, start, .. } = *operands;
    let x = operands.activations.floats[start..start + R * inputs].as_ptr();
    debug_assert!(tiles.iter().all(|tile| tile.len() >= inputs * W::BYTES));
    let [first, second] = tiles.map(<[u8]>::as_ptr);
    let mut left = [_mm512_setzero_ps(); R];
    let mut right = [_mm512_setzero_ps(); R];
    for pair in 0..inputs / 2 {
        // SAFETY: both tiles hold `inputs` inputs, `x` holds `inputs · R` numbers; prefetching may
        // point anywhere.
        unsafe {
            let ahead = pair * 2 * W::BYTES + PREFETCH;
            for line in (0..2 * W::BYTES).step_by(64) {
                _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(ahead + line).cast());
                _mm_prefetch::<_MM_HINT_T0>(second.wrapping_add(ahead + line).cast());
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
    for row in 0..R {
        // SAFETY: a row of sums has 16 lanes.
        unsafe {
            _mm512_storeu_ps(sums[0][row].as_mut_ptr(), left[row]);
            _mm512_storeu_ps(sums[1][row].as_mut_ptr(), right[row]);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn int8<const R: usize>(operands: &Operands<'_>, tile: &[u8], sums: &mut TileSums) {
    let Operands { inputs, start, activations, .. } = *operands;
    let blocks = inputs / BLOCK;
    let place = start / BLOCK;
    let x = activations.quants[start..start + R * inputs].as_ptr();
    let x_scales = activations.scales[place..place + R * blocks].as_ptr();
    let x_sums = activations.sums[place..place + R * blocks].as_ptr();
    let (quants, scales) = tile.split_at(inputs * LANES);
    debug_assert!(scales.len() >= blocks * LANES * 2);
    let (quants, scales) = (quants.as_ptr(), scales.as_ptr());
    let mut total = [_mm512_setzero_ps(); R];
    for block in 0..blocks {
        // SAFETY: the tile holds `blocks` blocks of 512 quants and 16 scales, `x` as many blocks of
        // R rows; prefetching may point anywhere.
        unsafe {
            // Weights are stored with 128 added: subtract 128 times the sum of the activations.
            let mut dots = [_mm512_setzero_si512(); R];
            for (row, dot) in dots.iter_mut().enumerate() {
                *dot = _mm512_set1_epi32(-128 * *x_sums.add(block * R + row));
            }
            for group in 0..BLOCK / 4 {
                let at = quants.add((block * BLOCK / 4 + group) * 64);
                _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(PREFETCH).cast());
                let weights = _mm512_load_si512(at.cast());
                for (row, dot) in dots.iter_mut().enumerate() {
                    let x = x.add((block * R + row) * BLOCK + group * 4).cast::<i32>();
                    let x = _mm512_set1_epi32(x.read_unaligned());
                    *dot = _mm512_dpbusd_epi32(*dot, weights, x);
                }
            }
            let scale = _mm512_cvtph_ps(_mm256_loadu_si256(scales.add(block * 32).cast()));
            for (row, (total, dot)) in total.iter_mut().zip(dots).enumerate() {
                let scale = _mm512_mul_ps(scale, _mm512_set1_ps(*x_scales.add(block * R + row)));
                *total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale, *total);
            }
        }
    }
    for (sums, total) in sums.iter_mut().zip(total) {
        // SAFETY: a row of sums has 16 lanes.
        unsafe { _mm512_storeu_ps(sums.as_mut_ptr(), total) };
    }
}
