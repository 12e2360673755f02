//! Packs blocks of quantised weights into tiles.

use super::LANES;
use super::block_format::{BlockFormat, Planes, SUPER_BLOCK, Scales};
use forerun_formats::blocks::{UnpackedBlock, quantize};
use forerun_formats::{BlockType, QUANT_BLOCK as BLOCK};
use half::f16;

/// Packs the blocks of one output at a time into tiles with the same number of inputs.
pub(super) struct BlockRows {
    block_type: BlockType,
    format: BlockFormat,
    planes: Planes,
    block: UnpackedBlock,
    /// Scratch memory: a row in whole blocks, and its stored form.
    row: Vec<f32>,
    stored: Vec<u8>,
}

impl BlockRows {
    pub(super) fn new(block_type: BlockType, inputs: usize) -> Self {
        let format = BlockFormat::of(block_type);
        Self {
            block_type,
            format,
            planes: format.planes(inputs.next_multiple_of(BLOCK)),
            block: UnpackedBlock::new(block_type),
            row: vec![0.0; inputs.next_multiple_of(block_type.weights())],
            stored: Vec::new(),
        }
    }

    /// Quantises the weights of one output, and packs them.
    pub(super) fn pack_floats(&mut self, lane: usize, weights: &[f32], tile: &mut [u8]) {
        self.row[..weights.len()].copy_from_slice(weights);
        let mut stored = std::mem::take(&mut self.stored);
        stored.clear();
        quantize(self.block_type, &self.row, None, &mut stored);
        self.pack(lane, &stored, tile);
        self.stored = stored;
    }

    /// Packs the stored blocks of one output into a tile whose bits for it are zero.
    pub(super) fn pack(&mut self, lane: usize, stored: &[u8], tile: &mut [u8]) {
        for (index, bytes) in stored.chunks_exact(self.block_type.bytes()).enumerate() {
            self.block.read(bytes);
            let first_block = index * self.block_type.weights() / BLOCK;
            self.pack_quants(first_block, lane, tile);
            self.pack_scales(first_block, lane, tile);
        }
    }

    fn pack_quants(&self, first_block: usize, lane: usize, tile: &mut [u8]) {
        let Self { format, planes, .. } = self;
        // Bytes are stored with 128 added.
        let flipped = if format.bits == 8 { 0x80 } else { 0 };
        let blocks = self.block.quants().as_chunks::<BLOCK>().0;
        let lower_blocks = tile[..planes.upper].chunks_exact_mut(format.lower_bytes());
        for (quants, tile) in blocks.iter().zip(lower_blocks.skip(first_block)) {
            add_bits(&quants.map(|quant| quant ^ flipped), format.lower_bits(), lane, tile);
        }
        if format.upper_bits() > 0 {
            let upper = &mut tile[planes.upper..planes.scales];
            let upper_blocks = upper.chunks_exact_mut(format.upper_bytes());
            for (quants, tile) in blocks.iter().zip(upper_blocks.skip(first_block)) {
                let upper = quants.map(|quant| quant >> format.lower_bits());
                add_bits(&upper, format.upper_bits(), lane, tile);
            }
        }
    }

    fn pack_scales(&self, first_block: usize, lane: usize, tile: &mut [u8]) {
        let Self { format, planes, block, .. } = self;
        let half = |value: f32, index: usize, bytes: &mut [u8]| {
            let at = (index * LANES + lane) * 2;
            bytes[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
        };
        let (_, scales) = tile.split_at_mut(planes.scales);
        let (scales, supers) = scales.split_at_mut(planes.supers - planes.scales);
        let scales = &mut scales[first_block * format.scale_bytes()..];
        match format.scales {
            Scales::Half => half(block.scale(), 0, scales),
            Scales::HalfAndMinimum => {
                half(block.scale(), 0, scales);
                half(-block.minimum(), 1, scales);
            }
            Scales::Exponent => scales[lane] = exponent(block.scale()),
            Scales::Super32 { minima } | Scales::Super16 { minima } => {
                let supers =
                    &mut supers[first_block * BLOCK / SUPER_BLOCK * format.super_bytes()..];
                half(block.scale(), 0, supers);
                if minima {
                    half(block.minimum(), 1, supers);
                }
                let parts = format.scales_per_block();
                let places = scales.chunks_exact_mut(format.scale_bytes());
                let groups =
                    block.scales().chunks_exact(parts).zip(block.minima().chunks_exact(parts));
                for (place, (scales, minimum)) in places.zip(groups) {
                    for part in 0..parts {
                        place[part * LANES + lane] = scales[part].cast_unsigned();
                        if minima {
                            place[(parts + part) * LANES + lane] = minimum[part];
                        }
                    }
                }
            }
        }
    }
}

/// Returns the `exponent` of half of two to the power of `exponent − 127`.
fn exponent(scale: f32) -> u8 {
    match scale.to_bits() {
        0x0020_0000 => 0,
        0x0040_0000 => 1,
        normal => (normal >> 23) as u8 + 1,
    }
}

/// Adds the lowest bits of 32 quants to the 32 inputs of one output in a plane. These bits must be zero.
fn add_bits(quants: &[u8; BLOCK], width: usize, lane: usize, plane: &mut [u8]) {
    let (per_byte, mask) = (8 / width, 0xff >> (8 - width));
    for (group, quants) in quants.as_chunks::<4>().0.iter().enumerate() {
        let at = group / per_byte * 64 + lane * 4;
        for (byte, quant) in plane[at..at + 4].iter_mut().zip(quants) {
            *byte |= (quant & mask) << (group % per_byte * width);
        }
    }
}
