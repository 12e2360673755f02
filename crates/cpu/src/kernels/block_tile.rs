//! Packs blocks of quantised weights into tiles.

use super::LANES;
use super::block_format::{BlockFormat, Scales};
use forerun_formats::blocks::{UnpackedBlock, quantize};
use forerun_formats::{BlockType, QUANT_BLOCK as BLOCK};
use half::f16;

/// Packs the blocks of one output at a time into tiles with the same number of inputs.
pub(super) struct BlockRows {
    block_type: BlockType,
    format: BlockFormat,
    /// The inputs of a tile, a multiple of 32.
    inputs: usize,
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
            inputs: inputs.next_multiple_of(BLOCK),
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
        let per_block = self.block_type.weights() / BLOCK;
        for (index, bytes) in stored.chunks_exact(self.block_type.bytes()).enumerate() {
            self.block.read(bytes);
            // The tile may have fewer inputs than whole blocks.
            for part in 0..per_block.min(self.inputs / BLOCK - index * per_block) {
                self.pack_part(part, index * per_block + part, lane, tile);
            }
        }
    }

    /// Packs 32 inputs of the block: its part with this number, which is a block of the tile.
    fn pack_part(&self, part: usize, tile_block: usize, lane: usize, tile: &mut [u8]) {
        let Self { format, block, .. } = self;
        let place = format.place(self.inputs, tile_block);
        let (quants, _) = block.quants().as_chunks::<BLOCK>();
        // Bytes are stored with 128 added.
        let flipped = if format.bits == 8 { 0x80 } else { 0 };
        let lower = format.lower_bits();
        for (shift, width, at) in
            [(0, lower, place.lower), (lower, format.upper_bits(), place.upper)]
        {
            let plane = &mut tile[at..];
            match width {
                0 => {}
                1 => write_plane::<1>(&quants[part], flipped, shift, lane, plane),
                2 => write_plane::<2>(&quants[part], flipped, shift, lane, plane),
                4 => write_plane::<4>(&quants[part], flipped, shift, lane, plane),
                _ => write_plane::<8>(&quants[part], flipped, shift, lane, plane),
            }
        }
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

/// Returns the `exponent` of half of two to the power of `exponent − 127`.
fn exponent(scale: f32) -> u8 {
    match scale.to_bits() {
        0x0020_0000 => 0,
        0x0040_0000 => 1,
        normal => (normal >> 23) as u8 + 1,
    }
}

/// Writes `WIDTH` bits of each of 32 quants, from bit `shift` on, to the 32 inputs of one output in
/// a plane. The bits in `flipped` are inverted first. Each row of the plane has four bytes of every
/// output.
fn write_plane<const WIDTH: usize>(
    quants: &[u8; BLOCK],
    flipped: u8,
    shift: usize,
    lane: usize,
    plane: &mut [u8],
) {
    let (flipped, mask) =
        (u32::from_ne_bytes([flipped; 4]), u32::from_ne_bytes([0xff >> (8 - WIDTH); 4]));
    let groups = quants.as_chunks::<4>().0.chunks_exact(8 / WIDTH);
    for (row, groups) in plane.chunks_exact_mut(4 * LANES).zip(groups) {
        let mut bits = 0;
        for (index, &group) in groups.iter().enumerate() {
            bits |= ((u32::from_le_bytes(group) ^ flipped) >> shift & mask) << (index * WIDTH);
        }
        row[4 * lane..4 * lane + 4].copy_from_slice(&bits.to_le_bytes());
    }
}
