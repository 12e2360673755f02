//! The arithmetic of ggml's block types: what the bytes of a block mean.
//!
//! A block has a scale, and some types have a factor of minima. Its weights are divided into
//! groups, and each group may have an integer scale and an integer minimum. The quant of a weight
//! stands for a level ([`Levels`]). For all types the weight is, in f32 and with each operation
//! rounded,
//!
//! ```text
//! (scale · group's scale) · level − (factor · group's minimum)
//! ```
//!
//! These are the values of the Python package `gguf`. The C code of ggml has the same operations in
//! the same order, but compilers may fuse the last product and the difference there, which changes
//! the last bit.

mod layout;
mod quantize;

use crate::BlockType;
use half::f16;
use layout::{
    Groups, Layout, Minimum, Scale, read_planes, read_six_bit, write_planes, write_six_bit,
};
pub use layout::{IQ4_LEVELS, Levels, MXFP4_LEVELS};
pub use quantize::quantize;

/// The most weights and groups of a block.
const MAX_WEIGHTS: usize = 256;
const MAX_GROUPS: usize = 16;

/// The largest exponent of [`BlockType::MXFP4`] for which all levels are finite in f32.
const MXFP4_FINITE: u8 = 252;

/// The parts of a block as numbers, with the quants in the order of the weights. The [module](self)
/// says how they make up the weights.
#[derive(Clone, Debug)]
pub struct UnpackedBlock {
    block_type: BlockType,
    scale: f32,
    minimum: f32,
    scales: [i8; MAX_GROUPS],
    minima: [u8; MAX_GROUPS],
    quants: [u8; MAX_WEIGHTS],
}

impl UnpackedBlock {
    /// Creates a block whose weights are zero.
    #[must_use]
    pub fn new(block_type: BlockType) -> Self {
        let (scales, minima, quants) = ([1; MAX_GROUPS], [1; MAX_GROUPS], [0; MAX_WEIGHTS]);
        Self { block_type, scale: 0.0, minimum: 0.0, scales, minima, quants }
    }

    /// Returns the block's scale. It is an f16, widened exactly, or a power of two for
    /// [`BlockType::MXFP4`].
    #[inline]
    #[must_use]
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Returns the factor of the minima: an f16, widened exactly, or zero for types without minima.
    /// It has the opposite sign of the stored one for [`BlockType::Q4_1`] and [`BlockType::Q5_1`],
    /// which add it.
    #[inline]
    #[must_use]
    pub fn minimum(&self) -> f32 {
        self.minimum
    }

    /// Returns the scales of the groups. They are 1 if the type has none.
    #[inline]
    #[must_use]
    pub fn scales(&self) -> &[i8] {
        &self.scales[..self.block_type.groups()]
    }

    /// Returns the minima of the groups. They are 1 if the type has none.
    #[inline]
    #[must_use]
    pub fn minima(&self) -> &[u8] {
        &self.minima[..self.block_type.groups()]
    }

    /// Returns the quants of the weights. [`BlockType::levels`] says what they stand for.
    #[inline]
    #[must_use]
    pub fn quants(&self) -> &[u8] {
        &self.quants[..self.block_type.weights()]
    }

    /// Sets the scale and the levels of the weights, for a type without groups and minima.
    pub(crate) fn set(&mut self, scale: f32, levels: impl Iterator<Item = i8>) {
        self.scale = scale;
        let kind = self.block_type.levels();
        for (quant, level) in self.quants.iter_mut().zip(levels) {
            *quant = kind.quant(level);
        }
    }

    /// Reads a block.
    ///
    /// # Panics
    /// If `bytes` does not have [`BlockType::bytes`] bytes.
    pub fn read(&mut self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.block_type.bytes(), "a block of {}", self.block_type);
        let layout = Layout::of(self.block_type);
        self.scale = match layout.scale {
            Scale::Half(at) => half_at(bytes, at),
            Scale::HalfPower => half_power(bytes[0]),
        };
        self.minimum = match layout.minimum {
            Minimum::None => 0.0,
            Minimum::Half(at) => half_at(bytes, at),
            Minimum::Added(at) => -half_at(bytes, at),
        };
        let groups = self.block_type.groups();
        let mut stored = [0; 2 * MAX_GROUPS];
        match layout.groups {
            Groups::One => {}
            Groups::Scales { stored: planes, offset } => {
                read_planes(planes, bytes, &mut stored[..groups]);
                self.scales = std::array::from_fn(|group| stored[group].wrapping_sub(offset) as i8);
            }
            Groups::ScalesAndMinima(planes) => {
                read_planes(planes, bytes, &mut stored[..2 * groups]);
                self.scales = std::array::from_fn(|group| stored[group] as i8);
                self.minima = std::array::from_fn(|group| stored[groups + group]);
            }
            Groups::SixBit(at) => {
                read_six_bit(&bytes[at..], &mut stored, &mut self.minima);
                self.scales = std::array::from_fn(|group| stored[group] as i8);
            }
        }
        read_planes(layout.quants, bytes, &mut self.quants[..self.block_type.weights()]);
    }

    /// Writes the block: the inverse of [`Self::read`].
    ///
    /// # Panics
    /// If `bytes` does not have [`BlockType::bytes`] bytes.
    pub fn write(&self, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), self.block_type.bytes(), "a block of {}", self.block_type);
        let layout = Layout::of(self.block_type);
        bytes.fill(0);
        match layout.scale {
            Scale::Half(at) => set_half(bytes, at, self.scale),
            Scale::HalfPower => bytes[0] = half_power_exponent(self.scale),
        }
        match layout.minimum {
            Minimum::None => {}
            Minimum::Half(at) => set_half(bytes, at, self.minimum),
            Minimum::Added(at) => set_half(bytes, at, -self.minimum),
        }
        let groups = self.block_type.groups();
        let scales = self.scales.map(|scale| scale as u8);
        match layout.groups {
            Groups::One => {}
            Groups::Scales { stored, offset } => {
                let scales = scales.map(|scale| scale.wrapping_add(offset));
                write_planes(stored, &scales[..groups], bytes);
            }
            Groups::ScalesAndMinima(planes) => {
                let stored = [&scales[..groups], &self.minima[..groups]].concat();
                write_planes(planes, &stored, bytes);
            }
            Groups::SixBit(at) => write_six_bit(&scales, &self.minima, &mut bytes[at..]),
        }
        write_planes(layout.quants, &self.quants[..self.block_type.weights()], bytes);
    }

    /// Computes the weights.
    ///
    /// # Panics
    /// If `out` does not have [`BlockType::weights`] places.
    pub fn dequantize(&self, out: &mut [f32]) {
        assert_eq!(out.len(), self.block_type.weights(), "a block of {}", self.block_type);
        let Layout { group, levels, .. } = *Layout::of(self.block_type);
        let factors = self.scales.iter().zip(&self.minima);
        let groups = self.quants.chunks_exact(group).zip(out.chunks_exact_mut(group));
        for ((quants, out), (scale, minimum)) in groups.zip(factors) {
            let scale = self.scale * f32::from(*scale);
            let minimum = self.minimum * f32::from(*minimum);
            for (quant, out) in quants.iter().zip(out) {
                *out = scale * f32::from(levels.level(*quant)) - minimum;
            }
        }
    }
}

impl Levels {
    /// Returns the level of a quant.
    #[must_use]
    #[inline(always)]
    pub fn level(self, quant: u8) -> i8 {
        match self {
            Self::Offset(offset) => quant.wrapping_sub(offset) as i8,
            Self::Table(table) => table[usize::from(quant % 16)],
        }
    }

    /// Returns the quant of a level, which must be one of the type's.
    fn quant(self, level: i8) -> u8 {
        match self {
            Self::Offset(offset) => (level as u8).wrapping_add(offset),
            Self::Table(table) => {
                table.iter().position(|entry| *entry == level).unwrap_or_default() as u8
            }
        }
    }
}

impl BlockType {
    /// Returns the number of weights in a group, which share an integer scale and minimum.
    #[must_use]
    pub fn group(self) -> usize {
        Layout::of(self).group
    }

    /// Returns the number of groups in a block.
    #[must_use]
    pub fn groups(self) -> usize {
        self.weights() / self.group()
    }

    /// Returns what the quants stand for.
    #[must_use]
    pub fn levels(self) -> Levels {
        Layout::of(self).levels
    }

    /// Computes the weights of successive blocks. See [`dequantize`].
    ///
    /// # Panics
    /// As [`dequantize`].
    pub fn dequantize(self, bytes: &[u8], out: &mut [f32]) {
        dequantize(self, bytes, out);
    }
}

/// Computes the weights of successive blocks, bit-equal to those of the Python package `gguf`. They
/// are finite if [`first_non_finite`] finds no block.
///
/// # Panics
/// If `bytes` is not a number of whole blocks, or `out` does not have a place for each of their
/// weights.
pub fn dequantize(block_type: BlockType, bytes: &[u8], out: &mut [f32]) {
    assert!(bytes.len().is_multiple_of(block_type.bytes()), "whole blocks of {block_type}");
    let weights = bytes.len() / block_type.bytes() * block_type.weights();
    assert_eq!(out.len(), weights, "the weights of {} bytes of {block_type}", bytes.len());
    let mut block = UnpackedBlock::new(block_type);
    let blocks = bytes.chunks_exact(block_type.bytes());
    for (bytes, out) in blocks.zip(out.chunks_exact_mut(block_type.weights())) {
        block.read(bytes);
        block.dequantize(out);
    }
}

/// Returns the index of the first of successive blocks that has a scale or a factor of minima that
/// is NaN or infinite, and that value. Loaders refuse such blocks.
///
/// For [`BlockType::MXFP4`] these are the exponent 255, NaN in its specification, and those whose
/// largest level overflows in f32.
#[must_use]
pub fn first_non_finite(block_type: BlockType, bytes: &[u8]) -> Option<(usize, f32)> {
    // On the stored bits, which is several times faster than to widen them.
    let non_finite_half =
        |block: &[u8], at: usize| (block[at + 1] & 0x7c == 0x7c).then(|| half_at(block, at));
    let layout = Layout::of(block_type);
    let non_finite = |block: &[u8]| -> Option<f32> {
        let scale = match layout.scale {
            Scale::Half(at) => non_finite_half(block, at),
            Scale::HalfPower if block[0] == u8::MAX => Some(f32::NAN),
            Scale::HalfPower => (block[0] > MXFP4_FINITE).then_some(f32::INFINITY),
        };
        scale.or_else(|| match layout.minimum {
            Minimum::None => None,
            Minimum::Half(at) | Minimum::Added(at) => non_finite_half(block, at),
        })
    };
    let mut blocks = bytes.chunks_exact(block_type.bytes()).enumerate();
    blocks.find_map(|(index, block)| Some((index, non_finite(block)?)))
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn set_half(bytes: &mut [u8], at: usize, value: f32) {
    bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
}

/// Returns half of 2^(exponent − 127).
fn half_power(exponent: u8) -> f32 {
    match exponent {
        // These are subnormal.
        0 | 1 => f32::from_bits(0x0020_0000 << exponent),
        _ => f32::from_bits(u32::from(exponent - 1) << 23),
    }
}

/// Returns the exponent of which [`half_power`] makes `scale`.
fn half_power_exponent(scale: f32) -> u8 {
    match scale.to_bits() {
        0..0x0040_0000 => 0,
        0x0040_0000..0x0080_0000 => 1,
        bits => (bits >> 23) as u8 + 1,
    }
}
