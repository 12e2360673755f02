//! What a linear kernel reads: tiles of weights and a block of rows.

use super::LANES;
use super::activations::Activations;
use super::packed::WeightType;
use std::ops::Range;

/// Rows that a kernel takes at a time, at the most.
pub(crate) const MAX_ROW_BLOCK: usize = 12;

/// How far ahead weights are asked for where one row block walks alone, in bytes of one tile.
pub(super) const PREFETCH: usize = 2048;

/// The sums of one tile and one row block.
pub(crate) type TileSums = [[f32; LANES]; MAX_ROW_BLOCK];

/// What a kernel reads: one or two neighbouring tiles of one matrix, and one row block.
pub(crate) struct Operands<'a> {
    pub(crate) weight_type: WeightType,
    pub(crate) tiles: [&'a [u8]; 2],
    pub(crate) activations: &'a Activations,
    /// Inputs of the row block before this one, in numbers (also in quants).
    pub(crate) start: usize,
    pub(crate) rows: usize,
    /// Inputs, filled up to an even number or to whole blocks.
    pub(crate) inputs: usize,
    /// The inputs to add to the sums now; all of them but for AVX-512.
    pub(crate) part: Range<usize>,
    /// Which of the group's blocks this is, and how many there are.
    pub(crate) turn: usize,
    pub(crate) turns: usize,
}

/// Weights to ask memory for while computing: those that will be needed next. The row blocks of a
/// group share that work, so that reading and computing overlap in each of them.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    /// Where to start, for each tile.
    pub(crate) from: [*const u8; 2],
    /// Bytes to go on by for each 64 bytes that are computed with.
    pub(crate) stride: usize,
}

impl Operands<'_> {
    /// A block on its own keeps ahead of itself, in its last part with the next two tiles; several
    /// share the next part, or the first part of the next two tiles.
    pub(crate) fn ahead(&self) -> Ahead {
        let Self { part, turn, turns, .. } = self;
        let input_bytes = input_bytes(self.weight_type);
        let share = part.len() * input_bytes * turn / turns;
        let from = self.tiles.map(|tile| {
            let start = match (part.end < self.inputs, turns) {
                (true, 1) => part.start * input_bytes + PREFETCH,
                (true, _) => part.end * input_bytes + share,
                (false, _) => 2 * tile.len() + share,
            };
            tile.as_ptr().wrapping_add(start)
        });
        Ahead { from, stride: 64 / turns }
    }
}

/// Bytes of one input in a tile.
pub(super) fn input_bytes(weight_type: WeightType) -> usize {
    match weight_type {
        WeightType::F32 => LANES * 4,
        WeightType::Bf16 | WeightType::F16 => LANES * 2,
        WeightType::Int8 => LANES,
    }
}
