//! The operands of a linear kernel: tiles of weights and a block of rows.

#![cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "only the AVX-512 and AMX kernels take input ranges and prefetch")
)]

use super::LANES;
use super::activations::Activations;
use super::block_format::{BlockFormat, CHUNK};
use forerun_formats::WeightType;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Largest number of rows that a kernel computes at a time.
pub(crate) const MAX_ROW_BLOCK: usize = 16;

/// The sums of one tile and one row block.
pub(crate) type TileSums = [[f32; LANES]; MAX_ROW_BLOCK];

/// Largest number of inputs in an unpacked part of a tile: what fits in the L1 cache.
pub(crate) const UNPACKED_INPUTS: usize = 512;

/// A range of inputs of a tile of a block type, unpacked once for several row blocks. Only the
/// elements of the range are written.
#[repr(align(64))]
pub(crate) struct UnpackedTile {
    /// Quants in groups of four inputs of all outputs.
    pub(super) quants: [MaybeUninit<[u8; 4 * LANES]>; UNPACKED_INPUTS / 4],
    /// Scales of 32 or 16 inputs.
    pub(super) scales: [MaybeUninit<[f32; LANES]>; UNPACKED_INPUTS / 16],
    /// What is added to 32 or 16 inputs.
    pub(super) minima: [MaybeUninit<[f32; LANES]>; UNPACKED_INPUTS / 16],
}

impl UnpackedTile {
    /// Returns a tile in which nothing is written.
    pub(super) const fn new() -> Self {
        const { assert!(UNPACKED_INPUTS.is_multiple_of(CHUNK)) };
        Self {
            quants: [const { MaybeUninit::uninit() }; _],
            scales: [const { MaybeUninit::uninit() }; _],
            minima: [const { MaybeUninit::uninit() }; _],
        }
    }
}

/// The operands of a kernel: two adjacent tiles of a matrix (the same tile twice if there is no
/// second one), and one row block.
pub(crate) struct Operands<'a> {
    pub(crate) weight_type: WeightType,
    pub(crate) tiles: [&'a [u8]; 2],
    /// The input range of both tiles, if it is unpacked.
    pub(crate) unpacked: Option<&'a [UnpackedTile; 2]>,
    pub(crate) activations: &'a Activations,
    /// Where the row block starts in the activations: the number of packed inputs (or quants)
    /// before it.
    pub(crate) start: usize,
    pub(crate) rows: usize,
    /// Number of inputs, padded to an even number, to whole blocks, or to whole tiles of a matrix
    /// unit.
    pub(crate) inputs: usize,
    /// The inputs to add to the sums now. Always all inputs, except with AVX-512 and AMX.
    pub(crate) input_range: Range<usize>,
    /// Index of the row block in its group.
    pub(crate) block_index: usize,
    /// Number of row blocks in the group.
    pub(crate) group_blocks: usize,
}

/// The weights to prefetch during a computation: those that are needed next. The row blocks of a
/// group share the prefetching, so that each of them overlaps reading with computing.
#[derive(Clone, Copy)]
pub(crate) struct PrefetchPlan {
    /// The first address to prefetch for each tile.
    pub(crate) from: [*const u8; 2],
    /// How far to advance that address for every 64 bytes of weights used, in bytes.
    pub(crate) stride: usize,
}

impl Operands<'_> {
    /// Returns what to prefetch. A single block stays ahead of itself, and in its last input range
    /// prefetches the next two tiles. Several blocks, and one with unpacked tiles, share the next
    /// input range, or the first input range of the next two tiles.
    #[inline]
    pub(crate) fn prefetch_plan(&self) -> PrefetchPlan {
        let Self { input_range, block_index, group_blocks, .. } = self;
        let offset = |input| input_offset(self.weight_type, input);
        let range_bytes = offset(input_range.end) - offset(input_range.start);
        let share = range_bytes * block_index / group_blocks;
        let from = self.tiles.map(|tile| {
            let start = match (input_range.end < self.inputs, group_blocks) {
                (true, 1) if self.unpacked.is_none() => {
                    offset(input_range.start + prefetched_inputs(self.weight_type))
                }
                (true, _) => offset(input_range.end) + share,
                (false, _) => 2 * tile.len() + share,
            };
            tile.as_ptr().wrapping_add(start)
        });
        PrefetchPlan { from, stride: 64 / group_blocks }
    }
}

/// Returns where an input begins in a tile, in bytes. For block types it is the first input of a
/// chunk, or the end.
#[inline]
fn input_offset(weight_type: WeightType, input: usize) -> usize {
    match weight_type {
        WeightType::F32 => input * LANES * 4,
        WeightType::Bf16 | WeightType::F16 => input * LANES * 2,
        WeightType::Quantized(block_type) => BlockFormat::of(block_type).tile_bytes(input),
    }
}

/// Returns how many inputs ahead a kernel prefetches weights if its group has a single row block: 2
/// KB of floats, or at least 4 KB of whole chunks of a block type.
#[inline]
pub(super) fn prefetched_inputs(weight_type: WeightType) -> usize {
    match weight_type {
        WeightType::F32 => 32,
        WeightType::Bf16 | WeightType::F16 => 64,
        WeightType::Quantized(block_type) => {
            4096_usize.div_ceil(BlockFormat::of(block_type).whole_chunk_bytes()) * CHUNK
        }
    }
}
