//! How tiles store the block types: what a quant means, and where its bits and scales are.
//!
//! A tile of a block type has up to four planes, one after another. Each is in ascending order of inputs:
//!
//! * the lower bits of the quants: `[inputs/32][vectors][16][4]` bytes. A byte holds one 8-bit quant, the
//!   lower four bits of two quants, or the lower two bits of four quants;
//! * the upper bits of the quants, in the same way: `[inputs/32][vectors][16][4]` bytes;
//! * the scales, and the minima after them: `[inputs/n][1 or 2][16]`;
//! * the scales of 256 inputs: `[inputs/256][1 or 2][16]` as f16.
//!
//! Quants come in groups of four inputs, so that one 64-byte vector holds a group of 16 outputs. If a byte
//! holds several quants, they belong to successive groups, with the first group in the lowest bits.

use super::LANES;
use forerun_formats::{BlockType, QUANT_BLOCK as BLOCK, blocks};
use half::f16;

/// The groups of four inputs in 32 inputs.
pub(super) const GROUPS: usize = BLOCK / 4;
/// The inputs that share a scale of scales.
pub(super) const SUPER_BLOCK: usize = 256;

/// What the quants and scales of a block type mean. A weight is `scale · (quant − zero)`, plus or minus a
/// minimum. With a table, the quant is the table's entry.
#[derive(Clone, Copy)]
pub(super) struct BlockFormat {
    /// Bits of a stored quant: 2, 3, 4, 5, 6 or 8.
    pub(super) bits: usize,
    /// A power of two, or zero.
    pub(super) zero: i32,
    pub(super) table: Option<&'static [u8; 16]>,
    pub(super) scales: Scales,
}

/// How the scales of a block type are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scales {
    /// One f16 for 32 inputs.
    Half,
    /// Two f16 for 32 inputs: the scale, and a minimum that is added.
    HalfAndMinimum,
    /// The exponent of a power of two for 32 inputs.
    Exponent,
    /// An integer for 32 inputs, times an f16 for 256 inputs.
    Super32 { minima: bool },
    /// An integer for 16 inputs, times an f16 for 256 inputs.
    Super16 { minima: bool },
}

impl Scales {
    /// Whether a minimum is added to the weights.
    pub(super) const fn has_minima(self) -> bool {
        match self {
            Self::Half | Self::Exponent => false,
            Self::HalfAndMinimum => true,
            Self::Super32 { minima } | Self::Super16 { minima } => minima,
        }
    }
}

/// The levels of the types with a table, plus 128.
const IQ4_LEVELS: [u8; 16] = shifted(&blocks::IQ4_LEVELS);
const MXFP4_LEVELS: [u8; 16] = shifted(&blocks::MXFP4_LEVELS);

const fn shifted(levels: &[i8; 16]) -> [u8; 16] {
    let mut shifted = [0; 16];
    let mut index = 0;
    while index < 16 {
        shifted[index] = levels[index].cast_unsigned() ^ 0x80;
        index += 1;
    }
    shifted
}

impl BlockFormat {
    /// Returns the format of a block type.
    pub(super) const fn of(block_type: BlockType) -> Self {
        const fn new(bits: usize, zero: i32, scales: Scales) -> BlockFormat {
            BlockFormat { bits, zero, table: None, scales }
        }
        const fn indexed(table: &'static [u8; 16], scales: Scales) -> BlockFormat {
            BlockFormat { bits: 4, zero: 128, table: Some(table), scales }
        }
        match block_type {
            BlockType::Q4_0 => new(4, 8, Scales::Half),
            BlockType::Q4_1 => new(4, 0, Scales::HalfAndMinimum),
            BlockType::Q5_0 => new(5, 16, Scales::Half),
            BlockType::Q5_1 => new(5, 0, Scales::HalfAndMinimum),
            BlockType::Q8_0 => new(8, 128, Scales::Half),
            BlockType::Q2_K => new(2, 0, Scales::Super16 { minima: true }),
            BlockType::Q3_K => new(3, 4, Scales::Super16 { minima: false }),
            BlockType::Q4_K => new(4, 0, Scales::Super32 { minima: true }),
            BlockType::Q5_K => new(5, 0, Scales::Super32 { minima: true }),
            BlockType::Q6_K => new(6, 32, Scales::Super16 { minima: false }),
            BlockType::IQ4_NL => indexed(&IQ4_LEVELS, Scales::Half),
            BlockType::IQ4_XS => indexed(&IQ4_LEVELS, Scales::Super32 { minima: false }),
            BlockType::MXFP4 => indexed(&MXFP4_LEVELS, Scales::Exponent),
        }
    }

    /// Returns the number of quants' bits in the plane of lower bits.
    pub(super) const fn lower_bits(&self) -> usize {
        match self.bits {
            8 => 8,
            2 | 3 => 2,
            _ => 4,
        }
    }

    /// Returns the number of quants' bits in the plane of upper bits.
    pub(super) const fn upper_bits(&self) -> usize {
        self.bits - self.lower_bits()
    }

    /// Returns the bytes of 32 inputs in the plane of lower bits.
    pub(super) const fn lower_bytes(&self) -> usize {
        self.lower_bits() * BLOCK / 8 * LANES
    }

    /// Returns the bytes of 32 inputs in the plane of upper bits.
    pub(super) const fn upper_bytes(&self) -> usize {
        self.upper_bits() * BLOCK / 8 * LANES
    }

    /// Returns the number of scales for 32 inputs.
    pub(super) const fn scales_per_block(&self) -> usize {
        match self.scales {
            Scales::Super16 { .. } => 2,
            _ => 1,
        }
    }

    /// Returns the bytes of 32 inputs in the plane of scales.
    pub(super) const fn scale_bytes(&self) -> usize {
        LANES
            * match self.scales {
                Scales::Half => 2,
                Scales::HalfAndMinimum => 4,
                Scales::Exponent => 1,
                Scales::Super32 { minima } => 1 + minima as usize,
                Scales::Super16 { minima } => 2 * (1 + minima as usize),
            }
    }

    /// Returns the bytes of 256 inputs in the plane of scales of scales.
    pub(super) const fn super_bytes(&self) -> usize {
        match self.scales {
            Scales::Super32 { minima } | Scales::Super16 { minima } => {
                LANES * 2 * (1 + minima as usize)
            }
            _ => 0,
        }
    }

    /// Returns where the planes begin in a tile with this number of inputs, a multiple of 32.
    pub(super) const fn planes(&self, inputs: usize) -> Planes {
        let blocks = inputs / BLOCK;
        let upper = blocks * self.lower_bytes();
        let scales = upper + blocks * self.upper_bytes();
        let supers = scales + blocks * self.scale_bytes();
        let end = supers + inputs.div_ceil(SUPER_BLOCK) * self.super_bytes();
        Planes { upper, scales, supers, end }
    }
}

/// Where the planes after the first begin in a tile, and where the last ends, in bytes.
#[derive(Clone, Copy)]
pub(super) struct Planes {
    pub(super) upper: usize,
    pub(super) scales: usize,
    pub(super) supers: usize,
    pub(super) end: usize,
}

impl BlockFormat {
    /// Returns a quant of a tile: what is multiplied by the scale, plus the format's zero.
    pub(super) fn quant(&self, tile: &[u8], planes: &Planes, input: usize, lane: usize) -> u8 {
        let (block, group, within) = (input / BLOCK, input % BLOCK / 4, input % 4);
        let bits = |start: usize, bytes: usize, width: usize| {
            let per_byte = 8 / width;
            let byte = group / per_byte * 64 + lane * 4 + within;
            let shifted = tile[start + block * bytes + byte] >> (group % per_byte * width);
            shifted & (0xff >> (8 - width))
        };
        let lower = bits(0, self.lower_bytes(), self.lower_bits());
        let upper = match self.upper_bits() {
            0 => 0,
            width => bits(planes.upper, self.upper_bytes(), width) << self.lower_bits(),
        };
        match self.table {
            Some(table) => table[usize::from(lower)],
            None => lower | upper,
        }
    }

    /// Writes the weights of one output of a tile to `row`: `[inputs]`, of which a tile has
    /// `padded_inputs`. Every operation is rounded, as the block types define it.
    pub(super) fn weights(&self, tile: &[u8], padded_inputs: usize, lane: usize, row: &mut [f32]) {
        let planes = self.planes(padded_inputs);
        for (input, weight) in row.iter_mut().enumerate() {
            let level = i32::from(self.quant(tile, &planes, input, lane)) - self.zero;
            let [scale, minimum] = self.scale(tile, &planes, input, lane);
            *weight = scale * level as f32 + minimum;
        }
    }

    /// Returns the scale of an input's weight in a tile, and what is added to the weight. This is the
    /// negative zero for types without minima: adding it changes nothing.
    pub(super) fn scale(
        &self,
        tile: &[u8],
        planes: &Planes,
        input: usize,
        lane: usize,
    ) -> [f32; 2] {
        let scales = &tile[planes.scales + input / BLOCK * self.scale_bytes()..];
        let supers = &tile[planes.supers + input / SUPER_BLOCK * self.super_bytes()..];
        let half = |bytes: &[u8], index: usize| {
            let at = (index * LANES + lane) * 2;
            f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
        };
        match self.scales {
            Scales::Half => [half(scales, 0), -0.0],
            Scales::HalfAndMinimum => [half(scales, 0), half(scales, 1)],
            Scales::Exponent => [half_power_of_two(scales[lane]), -0.0],
            Scales::Super32 { minima } | Scales::Super16 { minima } => {
                let parts = self.scales_per_block();
                let part = input % BLOCK * parts / BLOCK;
                let integer = |index: usize| f32::from(scales[index * LANES + lane].cast_signed());
                let scale = half(supers, 0) * integer(part);
                [scale, if minima { -(half(supers, 1) * integer(parts + part)) } else { -0.0 }]
            }
        }
    }
}

/// Returns half of two to the power of `exponent − 127`.
fn half_power_of_two(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => (u32::from(exponent) - 1) << 23,
    })
}
