//! Packs blocks of quantised weights into tiles.

use super::LANES;
use super::block_format::{BlockFormat, GROUPS, Scales};
use forerun_formats::blocks::{UnpackedBlock, quantize};
use forerun_formats::{BlockType, QUANT_BLOCK as BLOCK};
use half::f16;

/// Packs the blocks of 16 outputs at a time into tiles with the same number of inputs.
pub(super) struct BlockRows {
    block_type: BlockType,
    format: BlockFormat,
    /// The inputs of a tile, a multiple of 32.
    inputs: usize,
    /// A block of each output.
    blocks: [UnpackedBlock; LANES],
    /// Scratch memory: a row in whole blocks, and the stored form of rows.
    row: Vec<f32>,
    stored: Vec<u8>,
}

impl BlockRows {
    pub(super) fn new(block_type: BlockType, inputs: usize) -> Self {
        Self {
            block_type,
            format: BlockFormat::of(block_type),
            inputs: inputs.next_multiple_of(BLOCK),
            blocks: std::array::from_fn(|_| UnpackedBlock::new(block_type)),
            row: vec![0.0; inputs.next_multiple_of(block_type.weights())],
            stored: Vec::new(),
        }
    }

    /// Quantises the weights of at most 16 outputs, and packs them into a tile of zeros.
    pub(super) fn pack_floats<'a>(
        &mut self,
        rows: impl Iterator<Item = &'a [f32]>,
        tile: &mut [u8],
    ) {
        let mut stored = std::mem::take(&mut self.stored);
        stored.clear();
        for weights in rows {
            self.row[..weights.len()].copy_from_slice(weights);
            quantize(self.block_type, &self.row, None, &mut stored);
        }
        let row_bytes = self.row.len() / self.block_type.weights() * self.block_type.bytes();
        self.pack(&stored.chunks_exact(row_bytes).collect::<Vec<_>>(), tile);
        self.stored = stored;
    }

    /// Packs the stored blocks of at most 16 outputs into a tile of zeros.
    pub(super) fn pack(&mut self, rows: &[impl AsRef<[u8]>], tile: &mut [u8]) {
        let (bytes, parts) = (self.block_type.bytes(), self.block_type.weights() / BLOCK);
        // The tile may have fewer inputs than whole blocks.
        for first in (0..self.inputs / BLOCK).step_by(parts) {
            for (block, row) in self.blocks.iter_mut().zip(rows) {
                block.read(&row.as_ref()[first / parts * bytes..][..bytes]);
            }
            for part in 0..parts.min(self.inputs / BLOCK - first) {
                self.pack_part(part, first + part, rows.len(), tile);
            }
        }
    }

    /// Packs 32 inputs of the blocks: their part with this number, which is a block of the tile.
    fn pack_part(&self, part: usize, tile_block: usize, outputs: usize, tile: &mut [u8]) {
        let format = &self.format;
        let place = format.place(self.inputs, tile_block);
        let blocks = &self.blocks[..outputs];
        // Bytes are stored with 128 added.
        let flipped = u32::from_ne_bytes([if format.bits == 8 { 0x80 } else { 0 }; 4]);
        let mut quants = [[0; LANES]; GROUPS];
        for (lane, block) in blocks.iter().enumerate() {
            let groups = block.quants()[part * BLOCK..][..BLOCK].as_chunks().0;
            for (quants, &group) in quants.iter_mut().zip(groups) {
                quants[lane] = u32::from_le_bytes(group) ^ flipped;
            }
        }
        let lower = format.lower_bits();
        for (shift, width, at) in
            [(0, lower, place.lower), (lower, format.upper_bits(), place.upper)]
        {
            let plane = &mut tile[at..];
            match width {
                0 => {}
                1 => write_plane::<1>(&quants, shift, plane),
                2 => write_plane::<2>(&quants, shift, plane),
                4 => write_plane::<4>(&quants, shift, plane),
                _ => write_plane::<8>(&quants, shift, plane),
            }
        }
        for (lane, block) in blocks.iter().enumerate() {
            let mut half = |at: usize, index: usize, value: f32| {
                let at = at + (index * LANES + lane) * 2;
                tile[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
            };
            match format.scales {
                Scales::Half => half(place.scales, 0, block.scale()),
                Scales::HalfAndMinimum => {
                    half(place.scales, 0, block.scale());
                    half(place.scales, 1, -block.minimum());
                }
                Scales::Exponent => tile[place.scales + lane] = exponent(block.scale()),
                Scales::Super32 { minima } | Scales::Super16 { minima } => {
                    half(place.supers, 0, block.scale());
                    if minima {
                        half(place.supers, 1, block.minimum());
                    }
                    let groups = format.scales_per_block();
                    for group in 0..groups {
                        let at = place.scales + group * LANES + lane;
                        tile[at] = block.scales()[part * groups + group].cast_unsigned();
                        if minima {
                            tile[at + groups * LANES] = block.minima()[part * groups + group];
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

/// Writes `WIDTH` bits of each of 32 quants, from bit `shift` on, to a plane, of which each row has
/// four bytes of every output.
fn write_plane<const WIDTH: usize>(
    quants: &[[u32; LANES]; GROUPS],
    shift: usize,
    plane: &mut [u8],
) {
    let mask = u32::from_ne_bytes([0xff >> (8 - WIDTH); 4]);
    let rows = plane.as_chunks_mut::<{ 4 * LANES }>().0;
    for (row, groups) in rows.iter_mut().zip(quants.chunks_exact(8 / WIDTH)) {
        let mut bits = [0; LANES];
        for (index, group) in groups.iter().enumerate() {
            for (bits, group) in bits.iter_mut().zip(group) {
                *bits |= (group >> shift & mask) << (index * WIDTH);
            }
        }
        for (bytes, bits) in row.as_chunks_mut().0.iter_mut().zip(bits) {
            *bytes = bits.to_le_bytes();
        }
    }
}
