//! The numbers of cached keys and values, in vectors of sixteen.

use super::LANES;
use bytemuck::{Pod, Zeroable};
use forerun_formats::{QUANT_BLOCK, quantize_to_i4, quantize_to_i8};
use forerun_vector::Lanes;
use half::{bf16, f16};

/// Vectors of 16 lanes in a block of numbers with the same scale.
pub(super) const BLOCK_LANES: usize = QUANT_BLOCK / LANES;

/// A scale of cached numbers.
type Scale<C> = <<C as Cached>::Scales as Cached>::Number;

/// A vector of sixteen cached numbers.
pub(crate) trait Cached: Pod + Default + Send + Sync {
    type Number: Copy + Into<f32>;
    /// Sixteen scales.
    type Scales: Cached;
    /// Whether each block of 32 dimensions of a row has a scale, with which its numbers are
    /// multiplied.
    const IS_SCALED: bool = false;
    /// Whether keys are rotated before they are rounded, as `CacheType::hadamard` does.
    const ROTATES_KEYS: bool = false;
    fn load<L: Lanes>(&self) -> L;
    /// Rounds up to 32 numbers to the cache's type. Returns their vectors, and their scale.
    fn round<L: Lanes>(values: &[f32]) -> ([Self; BLOCK_LANES], Scale<Self>);
    fn get(&self, lane: usize) -> Self::Number;
    fn set(&mut self, lane: usize, number: Self::Number);
}

/// Full precision.
#[repr(C, align(64))]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct Full([f32; LANES]);

/// Half precision: half the memory, and half the time to read it.
#[repr(C, align(32))]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct Half([f16; LANES]);

/// bfloat16: as small as half precision, with the range of full precision.
#[repr(C, align(32))]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct Brain([bf16; LANES]);

/// 8-bit integers, with a scale for every 32 dimensions of a row.
#[repr(C, align(16))]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct Byte([i8; LANES]);

/// 4-bit integers, with a scale for every 32 dimensions of a row. A byte has lane `i` in its lower
/// half and lane `i + 8` in its upper half.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
pub(crate) struct Nibble([u8; LANES / 2]);

impl Cached for Full {
    type Number = f32;
    type Scales = Full;

    #[inline(always)]
    fn load<L: Lanes>(&self) -> L {
        L::load(&self.0)
    }

    #[inline(always)]
    fn round<L: Lanes>(values: &[f32]) -> ([Self; BLOCK_LANES], Scale<Self>) {
        (vectors(values).map(Self), 1.0)
    }

    #[inline(always)]
    fn get(&self, lane: usize) -> f32 {
        self.0[lane]
    }

    #[inline(always)]
    fn set(&mut self, lane: usize, number: f32) {
        self.0[lane] = number;
    }
}

impl Cached for Half {
    type Number = f16;
    type Scales = Full;

    #[inline(always)]
    fn load<L: Lanes>(&self) -> L {
        L::widen(&self.0)
    }

    #[inline(always)]
    fn round<L: Lanes>(values: &[f32]) -> ([Self; BLOCK_LANES], Scale<Self>) {
        (vectors(values).map(|numbers| Self(L::load(&numbers).narrow())), 1.0)
    }

    #[inline(always)]
    fn get(&self, lane: usize) -> f16 {
        self.0[lane]
    }

    #[inline(always)]
    fn set(&mut self, lane: usize, number: f16) {
        self.0[lane] = number;
    }
}

impl Cached for Brain {
    type Number = bf16;
    type Scales = Full;

    #[inline(always)]
    fn load<L: Lanes>(&self) -> L {
        let mut numbers = [0.0; LANES];
        for (number, stored) in numbers.iter_mut().zip(&self.0) {
            *number = f32::from_bits(u32::from(stored.to_bits()) << 16);
        }
        L::load(&numbers)
    }

    #[inline(always)]
    fn round<L: Lanes>(values: &[f32]) -> ([Self; BLOCK_LANES], Scale<Self>) {
        (vectors(values).map(|numbers| Self(numbers.map(bf16::from_f32))), 1.0)
    }

    #[inline(always)]
    fn get(&self, lane: usize) -> bf16 {
        self.0[lane]
    }

    #[inline(always)]
    fn set(&mut self, lane: usize, number: bf16) {
        self.0[lane] = number;
    }
}

impl Cached for Byte {
    type Number = i8;
    type Scales = Full;
    const IS_SCALED: bool = true;

    #[inline(always)]
    fn load<L: Lanes>(&self) -> L {
        let mut numbers = [0.0; LANES];
        for (number, stored) in numbers.iter_mut().zip(&self.0) {
            *number = f32::from(*stored);
        }
        L::load(&numbers)
    }

    #[inline(always)]
    fn round<L: Lanes>(values: &[f32]) -> ([Self; BLOCK_LANES], Scale<Self>) {
        let mut quants = [0; QUANT_BLOCK];
        let scale = quantize_to_i8(&padded(values), &mut quants);
        (bytemuck::cast(quants), scale)
    }

    #[inline(always)]
    fn get(&self, lane: usize) -> i8 {
        self.0[lane]
    }

    #[inline(always)]
    fn set(&mut self, lane: usize, number: i8) {
        self.0[lane] = number;
    }
}

impl Cached for Nibble {
    type Number = i8;
    type Scales = Brain;
    const IS_SCALED: bool = true;
    const ROTATES_KEYS: bool = true;

    #[inline(always)]
    fn load<L: Lanes>(&self) -> L {
        let mut numbers = [0.0; LANES];
        let (low, high) = numbers.split_at_mut(LANES / 2);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(&self.0) {
            let byte = i32::from(*byte as i8);
            *low = (byte << 28 >> 28) as f32;
            *high = (byte >> 4) as f32;
        }
        L::load(&numbers)
    }

    #[inline(always)]
    fn round<L: Lanes>(values: &[f32]) -> ([Self; BLOCK_LANES], Scale<Self>) {
        let mut quants = [0; QUANT_BLOCK];
        let scale = quantize_to_i4(&padded(values), &mut quants);
        let mut vectors = [Self::default(); BLOCK_LANES];
        let (chunks, _) = quants.as_chunks::<LANES>();
        for (vector, quants) in vectors.iter_mut().zip(chunks) {
            let (low, high) = quants.split_at(LANES / 2);
            for (byte, (low, high)) in vector.0.iter_mut().zip(low.iter().zip(high)) {
                *byte = (low & 15) as u8 | (high << 4) as u8;
            }
        }
        (vectors, bf16::from_f32(scale))
    }

    #[inline(always)]
    fn get(&self, lane: usize) -> i8 {
        let byte = self.0[lane % 8] as i8;
        if lane < 8 { byte << 4 >> 4 } else { byte >> 4 }
    }

    #[inline(always)]
    fn set(&mut self, lane: usize, number: i8) {
        let byte = &mut self.0[lane % 8];
        *byte = match lane < 8 {
            true => (*byte & 0xf0) | (number as u8 & 15),
            false => (*byte & 15) | (number << 4) as u8,
        };
    }
}

/// Returns up to 32 numbers, padded with zeros.
#[inline(always)]
pub(super) fn padded(values: &[f32]) -> [f32; QUANT_BLOCK] {
    let mut block = [0.0; QUANT_BLOCK];
    block[..values.len()].copy_from_slice(values);
    block
}

/// Returns up to 32 numbers, padded with zeros, as vectors.
#[inline(always)]
fn vectors(values: &[f32]) -> [[f32; LANES]; BLOCK_LANES] {
    let mut vectors = [[0.0; LANES]; BLOCK_LANES];
    vectors.as_flattened_mut()[..values.len()].copy_from_slice(values);
    vectors
}
