//! How tiles store the block types: what a quant means, and where its bits and scales are.
//!
//! A tile of a block type is a sequence of chunks of 256 inputs; the last chunk may have fewer
//! blocks of 32 inputs. A chunk starts with its scales, so that kernels read memory in ascending
//! order:
//!
//! * the scales, and the minima after them: `[blocks][1, 2 or 4][16]`;
//! * the scales of the scales, and of the minima: `[1 or 2][16]` as f16, padded to whole cache
//!   lines;
//! * for each block, the lower bits of its quants: `[vectors][16][4]` bytes, of which each holds one
//!   8-bit quant, the lower four bits of two quants, or the lower two bits of four quants; then the
//!   upper bits in the same way.
//!
//! Quants come in groups of four inputs, so that one 64-byte vector holds a group of 16 outputs. If
//! a byte holds several quants, they belong to successive groups, with the first group in the
//! lowest bits.

use super::LANES;
use forerun_formats::{BlockType, QUANT_BLOCK as BLOCK, blocks};
use half::f16;

/// The groups of four inputs in 32 inputs.
pub(super) const GROUPS: usize = BLOCK / 4;
/// The blocks in a chunk. They share the scale of scales.
const CHUNK_BLOCKS: usize = 8;
/// The inputs in a chunk.
pub(super) const CHUNK: usize = CHUNK_BLOCKS * BLOCK;

/// What the quants and scales of a block type mean. A weight is `scale · (quant − zero)`, plus or
/// minus a minimum. With a table, the quant is the table's entry.
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

    /// Returns the number of quants' bits among the lower bits.
    pub(super) const fn lower_bits(&self) -> usize {
        match self.bits {
            8 => 8,
            2 | 3 => 2,
            _ => 4,
        }
    }

    /// Returns the number of quants' bits among the upper bits.
    pub(super) const fn upper_bits(&self) -> usize {
        self.bits - self.lower_bits()
    }

    /// Returns the bytes of the lower bits of 32 inputs.
    pub(super) const fn lower_bytes(&self) -> usize {
        self.lower_bits() * BLOCK / 8 * LANES
    }

    /// Returns the bytes of the quants of 32 inputs.
    pub(super) const fn quant_bytes(&self) -> usize {
        self.bits * BLOCK / 8 * LANES
    }

    /// Returns the number of scales for 32 inputs.
    pub(super) const fn scales_per_block(&self) -> usize {
        match self.scales {
            Scales::Super16 { .. } => 2,
            _ => 1,
        }
    }

    /// Returns the bytes of 32 inputs among the scales.
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

    /// Returns the bytes of a chunk's scales of scales.
    const fn super_bytes(&self) -> usize {
        match self.scales {
            Scales::Super32 { minima } | Scales::Super16 { minima } => {
                LANES * 2 * (1 + minima as usize)
            }
            _ => 0,
        }
    }

    /// Returns the bytes of a chunk with this number of blocks: whole cache lines, because kernels
    /// load aligned vectors of quants.
    const fn chunk_bytes(&self, blocks: usize) -> usize {
        self.header_bytes(blocks) + blocks * self.quant_bytes()
    }

    /// Returns the bytes of the scales of a chunk with this number of blocks.
    const fn header_bytes(&self, blocks: usize) -> usize {
        (blocks * self.scale_bytes() + self.super_bytes()).next_multiple_of(64)
    }

    /// Returns the bytes of a whole chunk.
    pub(super) const fn whole_chunk_bytes(&self) -> usize {
        self.chunk_bytes(CHUNK_BLOCKS)
    }

    /// Returns the bytes of a tile with this number of inputs, a multiple of 32.
    pub(super) const fn tile_bytes(&self, inputs: usize) -> usize {
        let last = inputs % CHUNK / BLOCK;
        let rest = if last > 0 { self.chunk_bytes(last) } else { 0 };
        inputs / CHUNK * self.whole_chunk_bytes() + rest
    }

    /// Returns where the parts of a block of 32 inputs begin in a tile with this number of inputs.
    #[inline(always)]
    pub(super) const fn place(&self, inputs: usize, block: usize) -> BlockPlace {
        let chunk = block / CHUNK_BLOCKS;
        let within = block % CHUNK_BLOCKS;
        let left = inputs / BLOCK - chunk * CHUNK_BLOCKS;
        let blocks = if left < CHUNK_BLOCKS { left } else { CHUNK_BLOCKS };
        let start = chunk * self.whole_chunk_bytes();
        let lower = start + self.header_bytes(blocks) + within * self.quant_bytes();
        BlockPlace {
            lower,
            upper: lower + self.lower_bytes(),
            scales: start + within * self.scale_bytes(),
            supers: start + blocks * self.scale_bytes(),
        }
    }
}

/// Where the parts of a block of 32 inputs begin in a tile, in bytes.
#[derive(Clone, Copy)]
pub(super) struct BlockPlace {
    pub(super) lower: usize,
    pub(super) upper: usize,
    pub(super) scales: usize,
    /// The scales of the block's chunk.
    pub(super) supers: usize,
}

impl BlockFormat {
    /// Returns a quant of a tile: what is multiplied by the scale, plus the format's zero.
    pub(super) fn quant(&self, tile: &[u8], place: BlockPlace, input: usize, lane: usize) -> u8 {
        let (group, within) = (input % BLOCK / 4, input % 4);
        let bits = |start: usize, width: usize| {
            let per_byte = 8 / width;
            let byte = group / per_byte * 64 + lane * 4 + within;
            let shifted = tile[start + byte] >> (group % per_byte * width);
            shifted & (0xff >> (8 - width))
        };
        let lower = bits(place.lower, self.lower_bits());
        let upper = match self.upper_bits() {
            0 => 0,
            width => bits(place.upper, width) << self.lower_bits(),
        };
        match self.table {
            Some(table) => table[usize::from(lower)],
            None => lower | upper,
        }
    }

    /// Writes the weights of one output of a tile to `row`: `[inputs]`, of which a tile has
    /// `padded_inputs`. Every operation is rounded, as the block types define it.
    pub(super) fn weights(&self, tile: &[u8], padded_inputs: usize, lane: usize, row: &mut [f32]) {
        for (input, weight) in row.iter_mut().enumerate() {
            let place = self.place(padded_inputs, input / BLOCK);
            let level = i32::from(self.quant(tile, place, input, lane)) - self.zero;
            let [scale, minimum] = self.scale(tile, place, input, lane);
            *weight = scale * level as f32 + minimum;
        }
    }

    /// Returns the scale of an input's weight in a tile, and what is added to the weight. This is
    /// the negative zero for types without minima: adding it changes nothing.
    pub(super) fn scale(
        &self,
        tile: &[u8],
        place: BlockPlace,
        input: usize,
        lane: usize,
    ) -> [f32; 2] {
        let (scales, supers) = (&tile[place.scales..], &tile[place.supers..]);
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
