//! The types in which models are computed, and the rounding of weights to them.

use crate::block_type::BlockType;
use crate::table_enum::table_enum;
use half::{bf16, f16};
use std::fmt;
use std::str::FromStr;

/// The type of a tensor's elements as stored in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// 32-bit floats.
    F32,
    /// bfloat16: the upper halves of 32-bit floats.
    Bf16,
    /// IEEE 754 16-bit floats.
    F16,
    /// Blocks of quantised values, in GGUF files.
    Block(BlockType),
}

impl Dtype {
    /// Returns the number of bytes of a row of `columns` values. The last block may be filled in
    /// part.
    #[must_use]
    pub(crate) fn row_bytes(self, columns: usize) -> usize {
        match self {
            Self::F32 => columns * size_of::<f32>(),
            Self::Bf16 | Self::F16 => columns * size_of::<u16>(),
            Self::Block(block) => columns.div_ceil(block.weights()) * block.bytes(),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.write_str("f32"),
            Self::Bf16 => f.write_str("bf16"),
            Self::F16 => f.write_str("f16"),
            Self::Block(block) => block.fmt(f),
        }
    }
}

/// The type of a matrix's packed weights. Each type counts as a model of its own: outputs are
/// bit-identical for the same types, but not between types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// 32-bit floats.
    F32,
    /// bfloat16, widened exactly in the kernels.
    Bf16,
    /// IEEE half precision, widened exactly in the kernels.
    F16,
    /// A block type of GGUF. Activations are quantised to 8 bits in blocks of 32 inputs, and
    /// products of quants are exact.
    Quantized(BlockType),
}

impl WeightType {
    /// 8-bit integers in blocks of 32 inputs with one half-precision scale each: GGUF's `Q8_0`.
    pub const INT8: Self = Self::Quantized(BlockType::Q8_0);

    /// All types: floats, then int8, then the other block types.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let floats = [Self::F32, Self::Bf16, Self::F16, Self::INT8];
        let others = BlockType::ALL.into_iter().filter(|block| *block != BlockType::Q8_0);
        floats.into_iter().chain(others.map(Self::Quantized)).collect()
    }
}

impl From<WeightType> for Dtype {
    fn from(weight_type: WeightType) -> Self {
        match weight_type {
            WeightType::F32 => Self::F32,
            WeightType::Bf16 => Self::Bf16,
            WeightType::F16 => Self::F16,
            WeightType::Quantized(block_type) => Self::Block(block_type),
        }
    }
}

table_enum! {
    /// The type of cached keys and values. Each type counts as a model of its own, as weight types
    /// do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum CacheType;

    /// Returns the name in options.
    fn name() -> &'static str;

    /// 32-bit floats.
    F32 = "f32",
    /// IEEE half precision: up to 65,504.
    F16 = "f16",
    /// bfloat16: the range of f32, with 8 significant bits.
    Bf16 = "bf16",
    /// 8-bit integers in blocks of 32 dimensions of a head, with an f32 scale each. So every finite
    /// number fits, unlike with scales in half precision, and a row depends on no other row. A
    /// block with a number that is not finite has the scale NaN, so the error reaches the logits.
    Q8 = "q8",
    /// 4-bit integers in blocks of 32 dimensions of a head, with a bf16 scale each; those of keys
    /// are rotated ([`CacheType::hadamard`]). A row depends on no other row. A block with a number
    /// that is not finite has the scale NaN.
    Q4 = "q4",
}

impl CacheType {
    /// For q4, multiplies each whole block of 32 dimensions of a query or a key by an orthonormal
    /// Hadamard matrix. Their products stay the same, and an outlier among the dimensions of a key
    /// no longer sets the steps of its block (QuaRot, arXiv:2404.00456).
    pub fn hadamard(self, head: &mut [f32]) {
        if self == Self::Q4 {
            head.as_chunks_mut().0.iter_mut().for_each(hadamard);
        }
    }

    /// Rounds a head's key or value, `[head_dim]`, to the numbers that a cache of this type holds.
    pub fn round(self, head: &mut [f32]) {
        let quantize = match self {
            Self::Q4 => quantize_to_i4,
            _ => quantize_to_i8,
        };
        match self {
            Self::F32 => {}
            Self::F16 => head.iter_mut().for_each(|x| *x = f16::from_f32(*x).to_f32()),
            Self::Bf16 => head.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32()),
            Self::Q8 | Self::Q4 => {
                for block in head.chunks_mut(QUANT_BLOCK) {
                    let (mut values, mut quants) = ([0.0; QUANT_BLOCK], [0; QUANT_BLOCK]);
                    values[..block.len()].copy_from_slice(block);
                    let scale = quantize(&values, &mut quants);
                    for (number, quant) in block.iter_mut().zip(quants) {
                        *number = f32::from(quant) * scale;
                    }
                }
            }
        }
    }

    /// Returns the default for a model whose matrices have these types: f32 if all are f32,
    /// otherwise f16.
    #[must_use]
    pub fn for_weights(weight_types: impl IntoIterator<Item = WeightType>) -> Self {
        match weight_types.into_iter().all(|weight_type| weight_type == WeightType::F32) {
            true => Self::F32,
            false => Self::F16,
        }
    }
}

/// The error for an unknown name of a cache type.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a cache type; use auto, f32, f16, bf16, q8 or q4")]
pub struct UnknownCacheType(pub String);

impl FromStr for CacheType {
    type Err = UnknownCacheType;

    fn from_str(text: &str) -> Result<Self, UnknownCacheType> {
        let found = Self::ALL.into_iter().find(|cache_type| cache_type.to_string() == text);
        found.ok_or_else(|| UnknownCacheType(text.to_owned()))
    }
}

impl fmt::Display for CacheType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.write_str("f32"),
            Self::Bf16 => f.write_str("bf16"),
            Self::F16 => f.write_str("f16"),
            Self::Quantized(BlockType::Q8_0) => f.write_str("int8"),
            Self::Quantized(block_type) => block_type.fmt(f),
        }
    }
}

/// Number of activations that share a scale in products with quantised weights.
pub const QUANT_BLOCK: usize = 32;

impl WeightType {
    /// Returns the smallest float type that represents the values of all float `dtypes` exactly.
    /// Blocks have a type of their own.
    #[must_use]
    pub fn lossless(dtypes: impl IntoIterator<Item = Dtype>) -> Self {
        let mut dtypes = dtypes.into_iter().filter(|dtype| !matches!(dtype, Dtype::Block(_)));
        let first = dtypes.next();
        match first {
            // Neither 16-bit type represents all values of the other.
            Some(first) if dtypes.any(|dtype| dtype != first) => Self::F32,
            Some(Dtype::Bf16) => Self::Bf16,
            Some(Dtype::F16) => Self::F16,
            Some(Dtype::F32 | Dtype::Block(_)) | None => Self::F32,
        }
    }
}

/// Rounds a number in −127.5…127.5 to the nearest integer, ties to even. Adding 1.5 · 2²³ leaves no
/// fractional bits, and puts the integer into the lowest bits.
#[must_use]
#[inline(always)]
pub fn round_to_i8(value: f32) -> i8 {
    const SHIFT: f32 = 12_582_912.0;
    (value + SHIFT).to_bits() as i8
}

/// Quantises a block of numbers to −127…127, and returns the scale that restores them. If a number
/// is not finite, the scale is NaN.
#[must_use]
#[inline(always)]
pub fn quantize_to_i8(values: &[f32; QUANT_BLOCK], quants: &mut [i8; QUANT_BLOCK]) -> f32 {
    // Compared as integers, so that the order does not matter: without the sign, floats sort like
    // their bits, with infinities and NaN last.
    let magnitudes = values.iter().map(|value| value.to_bits() & 0x7fff_ffff);
    let peak = f32::from_bits(magnitudes.fold(0, u32::max));
    if peak == 0.0 {
        quants.fill(0);
        return 0.0;
    }
    if !peak.is_finite() {
        quants.fill(0);
        return f32::NAN;
    }
    let inverse = 127.0 / peak;
    for (quant, value) in quants.iter_mut().zip(values) {
        *quant = round_to_i8(value * inverse);
    }
    peak / 127.0
}

/// Quantises a block of numbers to −8…7, and returns the scale that restores them, which fits bf16.
/// The largest number becomes −8, as in GGUF's Q4_0. If a number is not finite, the scale is NaN.
#[must_use]
#[inline(always)]
pub fn quantize_to_i4(values: &[f32; QUANT_BLOCK], quants: &mut [i8; QUANT_BLOCK]) -> f32 {
    // As in `quantize_to_i8`, with the sign as the lowest bit.
    let magnitudes = values.iter().map(|value| value.to_bits().rotate_left(1));
    let peak = f32::from_bits(magnitudes.fold(0, u32::max).rotate_right(1));
    quants.fill(0);
    if !peak.is_finite() {
        return f32::NAN;
    }
    let scale = bf16::from_f32(peak / -8.0).to_f32();
    if !scale.is_normal() {
        return 0.0;
    }
    let inverse = 1.0 / scale;
    for (quant, value) in quants.iter_mut().zip(values) {
        *quant = round_to_i8(value * inverse).min(7);
    }
    scale
}

/// Multiplies a block by the orthonormal Hadamard matrix of its size.
#[inline(always)]
pub fn hadamard(block: &mut [f32; QUANT_BLOCK]) {
    const FACTOR: f32 = 0.176_776_7; // 1 / √32
    let mut width = 1;
    while width < QUANT_BLOCK {
        for pair in block.chunks_exact_mut(2 * width) {
            let (low, high) = pair.split_at_mut(width);
            for (low, high) in low.iter_mut().zip(high) {
                (*low, *high) = (*low + *high, *low - *high);
            }
        }
        width *= 2;
    }
    block.iter_mut().for_each(|x| *x *= FACTOR);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_cache_are_rounded_to_half_a_step() {
        let mut state = 7_u32;
        let mut random = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        };
        for magnitude in [1e-30_f32, 1.0, 3e4, 1e30] {
            let numbers: Vec<f32> = (0..80).map(|_| random() * magnitude).collect();
            // Of 4 bits, the largest number's opposite is a whole step away.
            for (cache_type, steps) in [(CacheType::Q8, 253.9), (CacheType::Q4, 7.9)] {
                let mut rounded = numbers.clone();
                cache_type.round(&mut rounded);
                let blocks = numbers.chunks(QUANT_BLOCK).zip(rounded.chunks(QUANT_BLOCK));
                for (numbers, rounded) in blocks {
                    let largest = numbers.iter().fold(0.0_f32, |largest, x| largest.max(x.abs()));
                    for (number, rounded) in numbers.iter().zip(rounded) {
                        assert!((number - rounded).abs() <= largest / steps, "{number} {rounded}");
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_without_a_usable_scale_are_zeros_or_not_numbers() {
        for cache_type in [CacheType::Q8, CacheType::Q4] {
            for small in [0.0, -0.0, 1e-40, 1e-38] {
                let mut head = [small; 3];
                cache_type.round(&mut head);
                assert_eq!(head, [0.0; 3]);
            }
            for wrong in [f32::INFINITY, f32::NAN] {
                let mut head = [[1.0; QUANT_BLOCK], [2.0; QUANT_BLOCK]].concat();
                head[3] = wrong;
                cache_type.round(&mut head);
                assert!(head[..QUANT_BLOCK].iter().all(|x| x.is_nan()));
                assert!(head[QUANT_BLOCK..].iter().all(|x| (x - 2.0).abs() < 1e-6));
            }
        }
    }

    #[test]
    fn rotated_queries_and_keys_have_the_same_products() {
        let [query, key] = [3, 7].map(|factor| {
            let numbers = (0..80).map(|index| ((index * factor) % 11) as f32 - 5.0);
            numbers.collect::<Vec<f32>>()
        });
        let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        let [rotated_query, rotated_key] = [&query, &key].map(|numbers| {
            let mut rotated = numbers.clone();
            CacheType::Q4.hadamard(&mut rotated);
            assert_ne!(rotated[..64], numbers[..64]);
            // The last dimensions are no whole block.
            assert_eq!(rotated[64..], numbers[64..]);
            rotated
        });
        let (found, expected) = (product(&rotated_query, &rotated_key), product(&query, &key));
        assert!((found - expected).abs() < 1e-3, "{found} {expected}");
    }
}
