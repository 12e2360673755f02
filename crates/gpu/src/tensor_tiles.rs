//! What blocks of kernels for tensor cores compute.

/// Attention reads so many numbers of a head at once.
pub(crate) const HEAD_MULTIPLE: usize = 8;

/// Heads that share keys in a block of attention.
pub(crate) const HEADS_AT_ONCE: u32 = 8;

/// Inputs of so many rows are rounded before the product, by
/// [`Kernel::Round`](crate::kernel::Kernel::Round).
pub(crate) const LEAST_ROUNDED_ROWS: u32 = 5;

/// With so many outputs, blocks of 128 outputs keep a GPU busy.
const MANY_OUTPUTS: u32 = 16_384;

/// The outputs and rows of a warp of a product on tensor cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TensorTiles {
    /// Outputs, in tiles of 16.
    pub(crate) outputs: u32,
    /// Rows, in tiles of eight.
    pub(crate) rows: u32,
    /// Whether each warp of a block computes a part of the inputs for the same outputs and rows.
    /// Otherwise, it computes all inputs for outputs and rows of its own.
    pub(crate) spreads_parts: bool,
}

impl TensorTiles {
    /// Returns the tiles for so many rows and outputs. A product's bits do not depend on them. More
    /// rows need more outputs, because each block reads its rows, and fewer blocks.
    pub(crate) fn new(rows: u32, outputs: u32) -> Self {
        let (tile_outputs, tile_rows) = match rows {
            0..=4 => (1, 1),
            5..=8 => (2, 1),
            9..=16 => (2, 2),
            17..=32 => (2, 4),
            33..=64 if outputs < MANY_OUTPUTS => (2, 8),
            _ => return Self { outputs: 2, rows: 4, spreads_parts: false },
        };
        Self { outputs: tile_outputs, rows: tile_rows, spreads_parts: true }
    }

    /// Returns the rows and the outputs of a block.
    pub(crate) fn of_block(self) -> [u32; 2] {
        let [row_warps, output_warps] = if self.spreads_parts { [1, 1] } else { [2, 4] };
        [8 * self.rows * row_warps, 16 * self.outputs * output_warps]
    }
}
