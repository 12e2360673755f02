//! The dispatches of convolutions over the rows of a block (DFlash 2).

use crate::kernel::Kernel;
use crate::matrix::GpuMatrix;
use crate::parameters;
use crate::pass::PassRun;
use crate::product::Store;
use forerun_formats::BlockConv;
use wgpu::Buffer;

/// The weights of the convolutions of what attention or the MLP reads, and of what it adds.
pub(crate) struct BlockConvWeights {
    pub(crate) shape: BlockConv,
    pub(crate) base: Buffer, // [2, taps, hidden]
    /// The projection to a row's own numbers.
    pub(crate) projection: GpuMatrix, // [2 · taps · groups, hidden]
}

impl<'a> PassRun<'a> {
    /// Records a row's own numbers and the convolution of what attention or the MLP reads. Returns
    /// the buffer with the result, which is the input if there is no convolution.
    pub(crate) fn convolve_input<'b>(
        &mut self,
        conv: Option<&BlockConvWeights>,
        input: &'b Buffer,
    ) -> &'b Buffer
    where
        'a: 'b,
    {
        let Some(conv) = conv else { return input };
        let scratch = self.scratch;
        self.linear(&conv.projection, input, scratch.block.own.get(), Store::Set);
        let convolved = scratch.block.input.get();
        self.convolve_block((conv, 0), (input, convolved));
        convolved
    }

    /// Records the convolution of what attention or the MLP adds.
    pub(crate) fn convolve_output(&mut self, conv: &BlockConvWeights, both: (&Buffer, &Buffer)) {
        self.convolve_block((conv, 1), both);
    }

    fn convolve_block(
        &mut self,
        (conv, half): (&BlockConvWeights, u32),
        (input, output): (&Buffer, &Buffer),
    ) {
        let BlockConv { taps, group_size } = conv.shape;
        let width = self.weights.architecture().hidden_size as u32;
        let (taps, group_size) = (taps as u32, group_size as u32);
        let parameters = parameters::ConvolveBlock { width, taps, group_size, half };
        let (own, rows) = (self.scratch.block.own.get(), self.scratch.rows.get());
        let groups = [width.div_ceil(64), self.row_count(), 1];
        let buffers = [input, &conv.base, own, rows, output];
        self.recorder.dispatch(Kernel::ConvolveBlock, &buffers, &parameters, groups);
    }
}
