//! The convolutions of a layer over the rows of blocks.

use crate::kernels::{Activations, BlockConvolution, convolve_block, linear};
use crate::team::Team;
use crate::weights::PackedBlockConv;

/// The buffers of the convolutions of what attention or the MLP reads and of what it adds.
#[derive(Default)]
pub(super) struct BlockConvs {
    own: Vec<f32>,       // [rows, 2, taps, groups]
    convolved: Vec<f32>, // [rows, hidden]
    activations: Activations,
}

impl BlockConvs {
    /// Convolves what attention or the MLP reads, and computes the rows' own numbers of both
    /// convolutions. `x`: `[rows, hidden]`.
    pub(super) fn before(
        &mut self,
        team: &Team,
        conv: &PackedBlockConv,
        block_rows: &[usize],
        x: &mut Vec<f32>,
    ) {
        self.own.resize(block_rows.len() * conv.projection.outputs(), 0.0);
        linear(team, x, &conv.projection, &mut self.activations, &mut self.own);
        self.convolve(team, (conv, 0), block_rows, x);
    }

    /// Convolves what attention or the MLP adds, after [`Self::before`]. `x`: `[rows, hidden]`.
    pub(super) fn after(
        &mut self,
        team: &Team,
        conv: &PackedBlockConv,
        block_rows: &[usize],
        x: &mut Vec<f32>,
    ) {
        self.convolve(team, (conv, 1), block_rows, x);
    }

    fn convolve(
        &mut self,
        team: &Team,
        (packed, side): (&PackedBlockConv, usize),
        block_rows: &[usize],
        x: &mut Vec<f32>,
    ) {
        let Self { own, convolved, .. } = self;
        let own_width = packed.projection.outputs();
        let conv = BlockConvolution {
            base: &packed.base[side],
            own: &own[side * own_width / 2..],
            own_width,
            group_size: packed.group_size,
            block_rows,
        };
        convolved.resize(x.len(), 0.0);
        convolve_block(team.isa(), &conv, x, convolved);
        std::mem::swap(x, convolved);
    }
}
