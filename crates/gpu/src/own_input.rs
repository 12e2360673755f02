//! The dispatches of the inputs that layers have next to the hidden state: functions of the row's
//! token.

use crate::kernel::Kernel;
use crate::layer_weights::OwnInputWeights;
use crate::matrix::GpuMatrix;
use crate::parameters;
use crate::pass::PassRun;
use crate::product::Store;
use bytemuck::Zeroable;
use forerun_formats::OwnInput;
use wgpu::Buffer;

/// The weights of the inputs of all layers.
pub(crate) struct OwnInputs {
    pub(crate) shape: OwnInput,
    /// The table of tokens.
    pub(crate) table: GpuMatrix, // [vocabulary, layers · width]
    pub(crate) projection: GpuMatrix, // [layers · width, hidden]
    pub(crate) norm: Buffer,          // [width]
}

impl OwnInputs {
    /// Returns the size of the matrices in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.table.bytes() + self.projection.bytes()
    }
}

impl PassRun<'_> {
    /// Records the inputs of all layers, from the embeddings, which are in the hidden state.
    pub(crate) fn own_inputs(&mut self, inputs: &OwnInputs) {
        let scratch = self.scratch;
        let (own, projected) = (scratch.own_inputs.get(), scratch.projected.get());
        let width = inputs.shape.width;
        let parameters = parameters::Embed {
            quarters: (inputs.projection.outputs / 4) as u32,
            factor: (width as f32).sqrt(),
            stride: (inputs.projection.outputs / 4) as u32,
            ..parameters::Embed::zeroed()
        };
        self.gather_tokens((&inputs.table, 0), own, parameters);
        self.linear(&inputs.projection, scratch.hidden.get(), projected, Store::Set);
        let architecture = self.weights.architecture();
        let layers = architecture.layers.len() as u32;
        let parameters = parameters::OwnInput {
            width: width as u32,
            layers,
            scale: 1.0 / (architecture.hidden_size as f32).sqrt(),
            epsilon: architecture.norm_epsilon,
        };
        let buffers = [projected, &inputs.norm, own];
        let groups = [layers, self.row_count(), 1];
        self.recorder.dispatch(Kernel::OwnInput, &buffers, &parameters, groups);
    }

    /// Records what a layer's own input adds to the hidden state.
    pub(crate) fn add_own_input(&mut self, index: usize, input: &OwnInputWeights) {
        let scratch = self.scratch;
        let (hidden, normed) = (scratch.hidden.get(), scratch.normed.get());
        let (projected, inner) = (scratch.projected.get(), scratch.inner.get());
        self.linear(&input.gate, hidden, projected, Store::Set);
        let width = input.shape.width as u32;
        let parameters = parameters::Activation {
            gate_stride: width,
            up_stride: width * self.weights.architecture().layers.len() as u32,
            up_offset: width * index as u32,
            is_gated: 1,
            ..parameters::Activation::new(input.shape.activation, width)
        };
        let buffers = [projected, scratch.own_inputs.get(), inner];
        let groups = [width.div_ceil(64), self.row_count(), 1];
        self.recorder.dispatch(Kernel::Activation, &buffers, &parameters, groups);
        self.linear(&input.up, inner, normed, Store::Set);
        self.add_residual(Some(&input.norm), normed, hidden);
    }
}
