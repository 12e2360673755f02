//! Linear kernels for AVX2 with FMA and F16C: one tile × up to four rows in registers.

use super::LANES;
use super::block_format::{BlockFormat, GROUPS, Scales};
use super::operands::{Operands, TileSums};
use forerun_formats::{BlockType, QUANT_BLOCK as BLOCK, WeightType};
use std::arch::x86_64::*;

/// Computes the sums of both tiles for every row of the block.
///
/// # Safety
/// The processor must have AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) unsafe fn compute(operands: &Operands<'_>, sums: &mut [TileSums; 2]) {
    for (tile, sums) in operands.tiles.into_iter().zip(sums) {
        // SAFETY: this function enables the features, and `Operands` guarantees the kernels'
        // bounds.
        unsafe {
            match operands.weight_type {
                WeightType::F32 => by_rows_of_floats::<F32>(operands, tile, sums),
                WeightType::Bf16 => by_rows_of_floats::<Bf16>(operands, tile, sums),
                WeightType::F16 => by_rows_of_floats::<F16>(operands, tile, sums),
                WeightType::Quantized(block_type) => {
                    by_block_type(block_type, operands, tile, sums);
                }
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn by_rows_of_floats<W: Widen>(operands: &Operands<'_>, tile: &[u8], sums: &mut TileSums) {
    // SAFETY: as in `compute`.
    unsafe {
        match operands.rows {
            1 => floats::<1, W>(operands, tile, sums),
            2 => floats::<2, W>(operands, tile, sums),
            3 => floats::<3, W>(operands, tile, sums),
            _ => floats::<4, W>(operands, tile, sums),
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn by_block_type(
    block_type: BlockType,
    operands: &Operands<'_>,
    tile: &[u8],
    sums: &mut TileSums,
) {
    use BlockType as T;
    // SAFETY: as in `compute`.
    unsafe {
        match block_type {
            T::Q4_0 => Blocks::<{ T::Q4_0 as usize }>::by_rows(operands, tile, sums),
            T::Q4_1 => Blocks::<{ T::Q4_1 as usize }>::by_rows(operands, tile, sums),
            T::Q5_0 => Blocks::<{ T::Q5_0 as usize }>::by_rows(operands, tile, sums),
            T::Q5_1 => Blocks::<{ T::Q5_1 as usize }>::by_rows(operands, tile, sums),
            T::Q8_0 => Blocks::<{ T::Q8_0 as usize }>::by_rows(operands, tile, sums),
            T::Q2_K => Blocks::<{ T::Q2_K as usize }>::by_rows(operands, tile, sums),
            T::Q3_K => Blocks::<{ T::Q3_K as usize }>::by_rows(operands, tile, sums),
            T::Q4_K => Blocks::<{ T::Q4_K as usize }>::by_rows(operands, tile, sums),
            T::Q5_K => Blocks::<{ T::Q5_K as usize }>::by_rows(operands, tile, sums),
            T::Q6_K => Blocks::<{ T::Q6_K as usize }>::by_rows(operands, tile, sums),
            T::IQ4_NL => Blocks::<{ T::IQ4_NL as usize }>::by_rows(operands, tile, sums),
            T::IQ4_XS => Blocks::<{ T::IQ4_XS as usize }>::by_rows(operands, tile, sums),
            T::MXFP4 => Blocks::<{ T::MXFP4 as usize }>::by_rows(operands, tile, sums),
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
        // SAFETY: the caller guarantees the features and the inputs. The two inputs of a lane are
        // the halves of one 32-bit number.
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

/// The kernel of a block type, given by its place in [`BlockType::ALL`].
struct Blocks<const T: usize>;

impl<const T: usize> Blocks<T> {
    const FORMAT: BlockFormat = BlockFormat::of(BlockType::ALL[T]);
    /// Whether quants may have eight bits. They are then multiplied with their zero subtracted,
    /// because the sum of two products of bytes must fit 16 bits.
    const SIGNED: bool = Self::FORMAT.zero == 128;

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn by_rows(operands: &Operands<'_>, tile: &[u8], sums: &mut TileSums) {
        // SAFETY: as in `compute`.
        unsafe {
            match operands.rows {
                1 => Self::blocks::<1>(operands, tile, sums),
                2 => Self::blocks::<2>(operands, tile, sums),
                3 => Self::blocks::<3>(operands, tile, sums),
                _ => Self::blocks::<4>(operands, tile, sums),
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn blocks<const R: usize>(operands: &Operands<'_>, tile: &[u8], sums: &mut TileSums) {
        let Operands { inputs, start, activations, .. } = *operands;
        let format = &Self::FORMAT;
        let (first_place, blocks) = (start / BLOCK, inputs / BLOCK);
        let x = activations.quantized(first_place..first_place + R * blocks);
        debug_assert!(tile.len() >= format.tile_bytes(inputs));
        let tile = tile.as_ptr();
        let mut total = [[_mm256_setzero_ps(); 2]; R];
        for block in 0..blocks {
            // SAFETY: the tile holds `blocks` blocks of 16 outputs, and the activations hold the
            // same number of blocks of R rows.
            unsafe {
                let place = |row: usize| block * R + row;
                let at = format.place(inputs, block);
                let (lower, upper) = (tile.add(at.lower), tile.add(at.upper));
                let (scales, supers) = (tile.add(at.scales), tile.add(at.supers));
                let parts = format.scales_per_block();
                for part in 0..parts {
                    let mut dots = [[_mm256_setzero_si256(); 2]; R];
                    if format.zero != 0 && !Self::SIGNED {
                        for (row, dots) in dots.iter_mut().enumerate() {
                            let offset = format.zero * x.negative_sum(place(row), part, parts);
                            *dots = [_mm256_set1_epi32(offset); 2];
                        }
                    }
                    for group in part * GROUPS / parts..(part + 1) * GROUPS / parts {
                        let weights = Self::quants(lower, upper, group);
                        for (row, dots) in dots.iter_mut().enumerate() {
                            let x = _mm256_set1_epi32(x.group(place(row), group));
                            for (dot, weights) in dots.iter_mut().zip(weights) {
                                let products = Self::products(weights, x);
                                *dot = _mm256_add_epi32(*dot, products);
                            }
                        }
                    }
                    let [scale, minimum] = Self::scale(scales, supers, part);
                    for (row, (total, dots)) in total.iter_mut().zip(dots).enumerate() {
                        let x_scale = _mm256_set1_ps(x.scale(place(row)));
                        let sum = _mm256_set1_ps(x.scaled_sum(place(row), part, parts));
                        for half in 0..2 {
                            let scale = _mm256_mul_ps(scale[half], x_scale);
                            let dot = _mm256_cvtepi32_ps(dots[half]);
                            total[half] = _mm256_fmadd_ps(dot, scale, total[half]);
                            if format.scales.has_minima() {
                                total[half] = _mm256_fmadd_ps(minimum[half], sum, total[half]);
                            }
                        }
                    }
                }
            }
        }
        store(&total, sums);
    }

    /// Adds the products of four quants and four activations for each output.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn products(quants: __m256i, x: __m256i) -> __m256i {
        let pairs = match Self::SIGNED {
            true => _mm256_maddubs_epi16(_mm256_abs_epi8(quants), _mm256_sign_epi8(x, quants)),
            false => _mm256_maddubs_epi16(quants, x),
        };
        _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))
    }

    /// Returns the quants of a group of four inputs, each in the byte of its output and input.
    /// Signed quants have their zero subtracted.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn quants(lower: *const u8, upper: *const u8, group: usize) -> [__m256i; 2] {
        // SAFETY: the caller guarantees 32 inputs in both planes.
        unsafe {
            let format = &Self::FORMAT;
            let (bits, upper_bits) = (format.lower_bits(), format.upper_bits());
            let load = |plane: *const u8, group: usize, half: usize| {
                _mm256_load_si256(plane.add(group * 64 + half * 32).cast())
            };
            let zero = _mm256_set1_epi8(-128);
            let mut quants = [zero; 2];
            for (half, quants) in quants.iter_mut().enumerate() {
                if bits == 8 {
                    *quants = _mm256_xor_si256(load(lower, group, half), zero);
                    continue;
                }
                let per_byte = 8 / bits;
                let vector = load(lower, group / per_byte, half);
                let vector = shift(vector, -((group % per_byte * bits) as i32));
                *quants = _mm256_and_si256(vector, _mm256_set1_epi8((1 << bits) - 1));
                if let Some(table) = format.table {
                    let table = _mm_loadu_si128(table.as_ptr().cast());
                    let values = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), *quants);
                    *quants = _mm256_xor_si256(values, zero);
                }
                if let Some(per_byte) = 8_usize.checked_div(upper_bits) {
                    let vector = load(upper, group / per_byte, half);
                    let by = bits as i32 - (group % per_byte * upper_bits) as i32;
                    let mask = ((1 << upper_bits) - 1) << bits;
                    let upper = _mm256_and_si256(shift(vector, by), _mm256_set1_epi8(mask));
                    *quants = _mm256_or_si256(*quants, upper);
                }
            }
            quants
        }
    }

    /// Returns the scales of 32 or 16 inputs, and the minima to add.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn scale(scales: *const u8, supers: *const u8, part: usize) -> [[__m256; 2]; 2] {
        // SAFETY: the caller guarantees the scales of 32 inputs and of 256 inputs.
        unsafe {
            let half = |at: *const u8| {
                let at = at.cast::<__m128i>();
                [_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at.add(1)))]
            };
            let integer = |at: *const u8| {
                let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()));
                let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.add(8).cast()));
                [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)]
            };
            let product = |a: [__m256; 2], b: [__m256; 2]| {
                [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
            };
            let none = [_mm256_setzero_ps(); 2];
            match Self::FORMAT.scales {
                Scales::Half => [half(scales), none],
                Scales::HalfAndMinimum => [half(scales), half(scales.add(2 * LANES))],
                Scales::Exponent => {
                    let low =
                        half_powers_of_two(_mm256_cvtepu8_epi32(_mm_loadl_epi64(scales.cast())));
                    let high = _mm_loadl_epi64(scales.add(8).cast());
                    [[low, half_powers_of_two(_mm256_cvtepu8_epi32(high))], none]
                }
                Scales::Super32 { minima } | Scales::Super16 { minima } => {
                    let scale = product(half(supers), integer(scales.add(part * LANES)));
                    if !minima {
                        return [scale, none];
                    }
                    let minima = scales.add(LANES * (Self::FORMAT.scales_per_block() + part));
                    let minimum = product(half(supers.add(2 * LANES)), integer(minima));
                    let negative =
                        [_mm256_sub_ps(none[0], minimum[0]), _mm256_sub_ps(none[1], minimum[1])];
                    [scale, negative]
                }
            }
        }
    }
}

/// Returns half of two to the power of each exponent minus 127.
#[target_feature(enable = "avx2,fma,f16c")]
fn half_powers_of_two(exponents: __m256i) -> __m256 {
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(exponents, _mm256_set1_epi32(1)));
    let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), exponents);
    let is_normal = _mm256_cmpgt_epi32(exponents, _mm256_set1_epi32(1));
    _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal))
}

/// Shifts the bits of bytes to the left, or to the right if `by` is negative. Bits that leave a
/// byte enter its neighbour.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn shift(bytes: __m256i, by: i32) -> __m256i {
    match by {
        1.. => _mm256_sll_epi16(bytes, _mm_cvtsi32_si128(by)),
        0 => bytes,
        _ => _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(-by)),
    }
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
