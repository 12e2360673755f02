//! The dispatches of recurrent mixers: the projections, the convolution, and the gate; between
//! these, those with a state of matrices have the lengths of queries and keys (the gated delta
//! rule), and the recurrence.
//!
//! Rows are computed in order, each from the state that its step names, so their bits do not depend
//! on how a prefix was cut into passes. Work is split over channels and columns of states only.

use crate::kernel::{Kernel, RECUR_COLUMNS};
use crate::layer_weights::RecurrentWeights;
use crate::parameters::{Convolve, Finish, Lengths, Recur};
use crate::pass::PassRun;
use crate::product::Store;
use crate::states::named_slots;
use forerun_formats::{Recurrent, RecurrentRule};
use wgpu::Buffer;

impl<'a> PassRun<'a> {
    /// Records a recurrent mixer without its output projection, and returns the buffer with the
    /// result.
    pub(crate) fn recurrent(
        &mut self,
        index: usize,
        weights: &RecurrentWeights,
        input: &Buffer,
    ) -> &'a Buffer {
        let (scratch, shape) = (self.scratch, &weights.shape);
        self.linear(&weights.projection, input, scratch.projected.get(), Store::Set);
        self.convolve(index, weights);
        let convolved = scratch.convolved.get();
        let recurred = if shape.has_matrices() {
            if shape.rule == RecurrentRule::GatedDelta {
                self.divide_by_lengths(shape);
            }
            self.recur(index, weights);
            scratch.recurred.get()
        } else {
            convolved
        };
        let mixed = scratch.attended.get();
        self.finish_mixer(weights, recurred, mixed);
        mixed
    }

    fn convolve(&mut self, index: usize, weights: &RecurrentWeights) {
        let (scratch, shape) = (self.scratch, &weights.shape);
        let channels = shape.channels() as u32;
        let bias = weights.convolution_bias.as_ref();
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let parameters = Convolve {
            rows: self.row_count(),
            channels,
            row_width: weights.projection.outputs as u32,
            first_factor: if shape.has_matrices() { 0 } else { first_beta(shape) },
            flags: flag(bias.is_some(), Convolve::HAS_BIAS)
                | flag(shape.has_matrices(), Convolve::HAS_SILU),
        };
        let [inputs, _] = self.pages.states(index);
        let buffers = [
            scratch.projected.get(),
            &weights.convolution,
            bias.unwrap_or(&self.weights.unused),
            scratch.steps.get(),
            inputs,
            scratch.convolved.get(),
        ];
        let kernel = Kernel::Convolve { kernel: shape.kernel as u32 };
        self.recorder.dispatch(kernel, &buffers, &parameters, [channels.div_ceil(64), 1, 1]);
    }

    fn divide_by_lengths(&mut self, shape: &Recurrent) {
        let parameters = Lengths {
            channels: shape.channels() as u32,
            key_dim: shape.key_dim as u32,
            query_heads: shape.n_key_heads as u32,
            scale: 1.0 / (shape.key_dim as f32).sqrt(),
        };
        let groups = [2 * shape.n_key_heads as u32, self.row_count(), 1];
        let convolved = self.scratch.convolved.get();
        self.recorder.dispatch(Kernel::Lengths, &[convolved], &parameters, groups);
    }

    fn recur(&mut self, index: usize, weights: &RecurrentWeights) {
        let (scratch, shape) = (self.scratch, &weights.shape);
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let parameters = Recur {
            rows: self.row_count(),
            channels: shape.channels() as u32,
            row_width: weights.projection.outputs as u32,
            key_heads: shape.n_key_heads as u32,
            value_heads: shape.n_value_heads as u32,
            value_dim: shape.value_dim as u32,
            first_beta: first_beta(shape),
            first_decay: first_beta(shape) + shape.beta_width() as u32,
            flags: flag(shape.rule == RecurrentRule::GatedDelta, Recur::IS_DELTA)
                | flag(shape.tiled, Recur::IS_TILED),
        };
        let [_, matrices] = self.pages.states(index);
        let buffers = [
            scratch.convolved.get(),
            scratch.projected.get(),
            weights.heads.as_ref().unwrap_or(&self.weights.unused),
            scratch.steps.get(),
            matrices,
            scratch.recurred.get(),
        ];
        let columns = (shape.value_dim as u32).div_ceil(RECUR_COLUMNS);
        let groups = [columns, shape.n_value_heads as u32, 1];
        let kernel = Kernel::Recur { key_dim: shape.key_dim as u32 };
        self.recorder.dispatch(kernel, &buffers, &parameters, groups);
        let state_bytes = (shape.matrix_values() * size_of::<f32>()) as u64;
        // Between other rows of a prompt, the state stays where it is. They take time all the same.
        self.recorder.cost.cache_bytes += named_slots(&self.rows.steps) as u64 * state_bytes;
        self.recorder.add_work(2 * self.rows.rows.len() as u64 * state_bytes);
    }

    fn finish_mixer(&mut self, weights: &RecurrentWeights, x: &Buffer, y: &Buffer) {
        let shape = &weights.shape;
        let (rule, parts) = match shape.rule {
            RecurrentRule::Convolution => (0, 1),
            RecurrentRule::GatedDelta => (1, shape.n_value_heads),
            RecurrentRule::StateSpace => (2, 1),
        };
        let values = shape.value_width();
        let parameters = Finish {
            width: (values / parts) as u32,
            values: values as u32,
            row_width: weights.projection.outputs as u32,
            first_gate: shape.channels() as u32,
            epsilon: self.weights.architecture().norm_epsilon,
            rule,
        };
        let norm = weights.norm.as_ref().unwrap_or(&self.weights.unused);
        let buffers = [x, self.scratch.projected.get(), norm, y];
        let groups = [parts as u32, self.row_count(), 1];
        self.recorder.dispatch(Kernel::Finish, &buffers, &parameters, groups);
    }
}

/// Returns where the projection `β` begins in a row of projections: after queries, keys, values and
/// gates.
fn first_beta(shape: &Recurrent) -> u32 {
    (shape.channels() + shape.value_width()) as u32
}
