//! The dispatches of a forward pass.
//!
//! A layer is ten dispatches: a norm, the projection to queries, keys and values, norms and
//! rotations of heads, attention over splits and the sum of splits, the output projection, a norm,
//! the gate and up projection, the activation, and the down projection. Projections whose parts
//! have different types are a dispatch for each part. Attention is in `attention.rs` and
//! `latent.rs`, recurrent mixers are in `recurrent.rs`, and experts in `mixture.rs`.

use crate::kernel::Kernel;
use crate::layer_weights::{
    AttentionNormWeights, DenseWeights, LayerWeights, MixerWeights, NormWeights,
};
use crate::matrix::GpuMatrix;
use crate::pages::GpuPages;
use crate::parameters::{self, groups_of_elements};
use crate::product::{ProductRows, Store};
use crate::recorder::Recorder;
use crate::rows::PassRows;
use crate::scratch::Scratch;
use crate::weights::GpuWeights;
use bytemuck::Zeroable;
use forerun_formats::{Mlp, MlpInput};
use std::ops::Range;
use wgpu::Buffer;

/// The largest number of rows that a workgroup of experts computes.
pub(crate) const MAX_EXPERT_ROWS: u32 = 8;

/// A pass while it is recorded.
pub(crate) struct PassRun<'a> {
    pub(crate) weights: &'a GpuWeights,
    pub(crate) rows: &'a PassRows,
    pub(crate) scratch: &'a Scratch,
    pub(crate) pages: &'a GpuPages,
    pub(crate) recorder: Recorder<'a>,
}

impl<'a> PassRun<'a> {
    /// Records the embeddings as the first layer's input, and the inputs of layers next to the
    /// hidden state.
    pub(crate) fn embed(&mut self) {
        let weights = self.weights;
        let architecture = weights.architecture();
        let parameters = parameters::Embed {
            has_positions: weights.positions.is_some().into(),
            first_position: architecture.positions.map_or(0, |table| table.first) as u32,
            ..self.embed_parameters(architecture.hidden_size)
        };
        self.gather_embeddings(self.scratch.hidden.get(), parameters);
        if let Some(inputs) = &weights.own_inputs {
            self.own_inputs(inputs);
        }
    }

    /// Records the embeddings without those of positions, as the first part of rows of this width.
    pub(crate) fn embed_tokens(&mut self, to: &Buffer, width: usize) {
        self.gather_embeddings(to, self.embed_parameters(width));
    }

    fn embed_parameters(&self, width: usize) -> parameters::Embed {
        let architecture = self.weights.architecture();
        parameters::Embed {
            quarters: (architecture.embedding_width() / 4) as u32,
            factor: architecture.factors.embedding,
            stride: (width / 4) as u32,
            ..parameters::Embed::zeroed()
        }
    }

    fn gather_embeddings(&mut self, to: &Buffer, parameters: parameters::Embed) {
        let weights = self.weights;
        self.gather_tokens((&weights.embedding, 0), to, parameters);
        if let Some(masks) = &weights.masks {
            let first = weights.architecture().vocab_size;
            let parameters = parameters::Embed { factor: 1.0, ..parameters };
            self.gather_tokens((masks, first), to, parameters);
        }
    }

    /// Records the rows of a table by the rows' tokens, of which the table's first one has this
    /// number.
    pub(crate) fn gather_tokens(
        &mut self,
        (table, first_token): (&GpuMatrix, usize),
        to: &Buffer,
        parameters: parameters::Embed,
    ) {
        let positions = self.weights.positions.as_ref().unwrap_or(&self.weights.unused);
        for part in &table.parts {
            let parameters = parameters::Embed {
                first_token: (first_token + part.first_output) as u32,
                tokens: part.outputs as u32,
                ..parameters
            };
            let buffers = [&part.weights, positions, self.scratch.rows.get(), to];
            let kernel = Kernel::Embed(part.weight_type);
            self.recorder.dispatch(kernel, &buffers, &parameters, [self.row_count(), 1, 1]);
        }
    }

    /// Records a group of layers (EasySpec, algorithm 2): the attention of all of them reads the
    /// same hidden state. Then each adds its attention and its MLP to the hidden state.
    pub(crate) fn layers(&mut self, group: Range<usize>) {
        let is_alone = group.len() == 1;
        for (slot, layer) in group.clone().enumerate() {
            self.mix(layer, slot, is_alone);
        }
        for (slot, layer) in group.enumerate() {
            self.finish_layer(layer, slot, is_alone);
        }
    }

    /// Whether the output projection of a layer adds to the hidden state itself.
    fn adds_at_once(layer: &LayerWeights, is_alone: bool) -> bool {
        is_alone && layer.attention_output_norm.is_none() && layer.attention_conv.is_none()
    }

    /// Records the attention of a layer, or its recurrent mixer, which adds to the hidden state, or
    /// is stored in a slot.
    fn mix(&mut self, index: usize, slot: usize, is_alone: bool) {
        let (scratch, layer) = (self.scratch, &self.weights.layers[index]);
        let hidden = scratch.hidden.get();
        let input = self.attention_input(layer);
        let input = self.convolve_input(layer.attention_conv.as_ref(), input);
        let mixed = match &layer.mixer {
            MixerWeights::Attention(attention) => self.attention(index, attention, input),
            MixerWeights::Recurrent(mixer) => self.recurrent(index, mixer, input),
        };
        if Self::adds_at_once(layer, is_alone) {
            self.start_residual(layer);
            if layer.mlp_input.is_before_attention() {
                self.mlp_input(layer);
            }
            let factor = self.weights.architecture().factors.residual;
            self.linear(&layer.output, mixed, hidden, Store::Add(factor));
        } else {
            let delta = scratch.deltas[slot].get();
            match &layer.attention_conv {
                None => self.linear(&layer.output, mixed, delta, Store::Set),
                Some(conv) => {
                    let output = scratch.block.output.get();
                    self.linear(&layer.output, mixed, output, Store::Set);
                    self.convolve_output(conv, (output, delta));
                }
            }
        }
    }

    /// Records what a layer's attention reads, and returns the buffer with it.
    fn attention_input(&mut self, layer: &LayerWeights) -> &'a Buffer {
        let scratch = self.scratch;
        let hidden = scratch.hidden.get();
        match &layer.attention_norm {
            AttentionNormWeights::None => hidden,
            AttentionNormWeights::Hidden(norm) => {
                let normed = scratch.normed.get();
                self.norm(norm, (hidden, normed), Store::Set);
                normed
            }
            AttentionNormWeights::EmbeddingAndHidden { embedding, hidden: of_hidden, .. } => {
                let (size, joined) =
                    (self.weights.architecture().hidden_size, scratch.joined.get());
                self.norm_into(embedding, scratch.embeddings.get(), (joined, 0), 2 * size);
                self.norm_into(of_hidden, hidden, (joined, size), 2 * size);
                joined
            }
        }
    }

    /// Records the hidden state to which a layer adds, if that is the normed one.
    fn start_residual(&mut self, layer: &LayerWeights) {
        let AttentionNormWeights::EmbeddingAndHidden { hidden: norm, normed_residual, .. } =
            &layer.attention_norm
        else {
            return;
        };
        if *normed_residual {
            let (hidden, normed) = (self.scratch.hidden.get(), self.scratch.normed.get());
            self.norm(norm, (hidden, normed), Store::Set);
            let numbers = self.row_count() as usize * self.weights.architecture().hidden_size;
            let bytes = (numbers * size_of::<f32>()) as u64;
            self.recorder.copy((normed, 0), (hidden, 0), bytes);
        }
    }

    /// Records what follows a layer's attention, which is in a slot unless it has been added.
    fn finish_layer(&mut self, index: usize, slot: usize, is_alone: bool) {
        let (scratch, layer) = (self.scratch, &self.weights.layers[index]);
        let (hidden, delta) = (scratch.hidden.get(), scratch.deltas[slot].get());
        let is_before = layer.mlp_input.is_before_attention();
        if !Self::adds_at_once(layer, is_alone) {
            self.start_residual(layer);
            if is_before {
                self.mlp_input(layer);
            }
            self.add_residual(layer.attention_output_norm.as_ref(), delta, hidden);
        }
        if !is_before {
            self.mlp_input(layer);
        }
        let input = match layer.mlp_input {
            MlpInput::Unnormed => hidden,
            _ => scratch.mlp_input.get(),
        };
        let input = self.convolve_input(layer.mlp_conv.as_ref(), input);
        let has_both = layer.dense.is_some() && layer.experts.is_some();
        let adds_at_once = layer.mlp_output_norm.is_none() && !has_both && layer.mlp_conv.is_none();
        let (to, store) = match (adds_at_once, &layer.mlp_conv) {
            (true, _) => (hidden, Store::Add(self.weights.architecture().factors.residual)),
            (false, None) => (delta, Store::Set),
            (false, Some(_)) => (scratch.block.output.get(), Store::Set),
        };
        match (&layer.dense, &layer.experts) {
            (Some(dense), None) => self.dense(dense, (input, to), store),
            (None, Some(experts)) => self.mixture(index, experts, (input, to), store),
            (Some(dense), Some(experts)) => {
                self.mixture(index, experts, (input, to), store);
                let output = scratch.dense.get();
                self.dense(dense, (input, output), Store::Set);
                self.shared_gate(experts, input, output);
                match &experts.norms {
                    Some(norms) => self.norm(&norms.dense_output, (output, to), Store::Add(1.0)),
                    None => self.add(output, to, 1.0),
                }
            }
            (None, None) => unreachable!("refused when the model was loaded"),
        }
        if let Some(conv) = &layer.mlp_conv {
            self.convolve_output(conv, (to, delta));
        }
        if !adds_at_once {
            self.add_residual(layer.mlp_output_norm.as_ref(), delta, hidden);
        }
        if let Some(input) = &layer.own_input {
            self.add_own_input(index, input);
        }
        if let Some(factor) = layer.scalar {
            let len = self.row_count() * self.weights.architecture().hidden_size as u32;
            let parameters = parameters::Scale { len, factor };
            let groups = groups_of_elements(len);
            self.recorder.dispatch(Kernel::Scale, &[hidden], &parameters, groups);
        }
    }

    /// Records a dense MLP.
    fn dense(&mut self, dense: &DenseWeights, (x, y): (&Buffer, &Buffer), store: Store) {
        let (projected, inner) = (self.scratch.projected.get(), self.scratch.inner.get());
        self.linear(&dense.gate_up, x, projected, Store::Set);
        self.activation(&dense.mlp, (projected, inner), self.row_count());
        self.linear(&dense.down, inner, y, store);
    }

    /// Records the norm of what a layer's MLP reads, if there is one.
    fn mlp_input(&mut self, layer: &LayerWeights) {
        if let Some(norm) = &layer.mlp_norm {
            let (hidden, to) = (self.scratch.hidden.get(), self.scratch.mlp_input.get());
            self.norm(norm, (hidden, to), Store::Set);
        }
    }

    /// Records the activation of an MLP, for the first rows of `projected`.
    pub(crate) fn activation(
        &mut self,
        mlp: &Mlp,
        (projected, inner): (&Buffer, &Buffer),
        rows: u32,
    ) {
        let width = mlp.intermediate_size as u32;
        let stride = if mlp.gated { 2 * width } else { width };
        let parameters = parameters::Activation {
            gate_stride: stride,
            up_stride: stride,
            up_offset: stride - width,
            is_gated: mlp.gated.into(),
            ..parameters::Activation::new(mlp.activation, width)
        };
        let groups = [width.div_ceil(64), rows, 1];
        let buffers = [projected, projected, inner];
        self.recorder.dispatch(Kernel::Activation, &buffers, &parameters, groups);
    }

    /// Records `hidden += delta · factor` with the model's factor, and a norm of `delta` if there
    /// is one.
    pub(crate) fn add_residual(
        &mut self,
        norm: Option<&NormWeights>,
        delta: &Buffer,
        hidden: &Buffer,
    ) {
        let factor = self.weights.architecture().factors.residual;
        match norm {
            Some(norm) => self.norm(norm, (delta, hidden), Store::Add(factor)),
            None => self.add(delta, hidden, factor),
        }
    }

    /// Records `y += x · factor`. `x`, `y`: `[rows, hidden]`.
    fn add(&mut self, x: &Buffer, y: &Buffer, factor: f32) {
        let len = self.row_count() * self.weights.architecture().hidden_size as u32;
        let parameters = parameters::Add { len, factor };
        self.recorder.dispatch(Kernel::Add, &[x, y], &parameters, groups_of_elements(len));
    }

    /// Records a norm of all rows.
    pub(crate) fn norm(&mut self, norm: &NormWeights, both: (&Buffer, &Buffer), store: Store) {
        let parameters = self.norm_parameters(norm, store);
        self.norm_rows(norm, both, parameters, self.row_count());
    }

    /// Records a norm of all rows, whose results are parts of rows of this width, from this number
    /// on.
    pub(crate) fn norm_into(
        &mut self,
        norm: &NormWeights,
        input: &Buffer,
        (output, start): (&Buffer, usize),
        width: usize,
    ) {
        let parameters = parameters::Norm {
            output_start: start as u32,
            output_stride: width as u32,
            ..self.norm_parameters(norm, Store::Set)
        };
        self.norm_rows(norm, (input, output), parameters, self.row_count());
    }

    pub(crate) fn norm_parameters(&self, norm: &NormWeights, store: Store) -> parameters::Norm {
        use parameters::Norm;
        let architecture = self.weights.architecture();
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let (adds, factor) = store.parts();
        let flags = flag(adds, Norm::ADDS)
            | flag(architecture.norm.is_layer_norm(), Norm::SUBTRACTS_MEAN)
            | flag(norm.weight.is_some(), Norm::HAS_WEIGHTS)
            | flag(norm.bias.is_some(), Norm::HAS_BIAS);
        let (width, epsilon) = (architecture.hidden_size as u32, architecture.norm_epsilon);
        Norm { factor, ..Norm::new(width, flags, epsilon) }
    }

    /// Records a norm of so many rows.
    pub(crate) fn norm_rows(
        &mut self,
        norm: &NormWeights,
        (input, output): (&Buffer, &Buffer),
        parameters: parameters::Norm,
        rows: u32,
    ) {
        let unused = &self.weights.unused;
        let buffers = [
            input,
            norm.weight.as_ref().unwrap_or(unused),
            norm.bias.as_ref().unwrap_or(unused),
            self.scratch.rows.get(),
            output,
        ];
        self.recorder.dispatch(Kernel::Norm, &buffers, &parameters, [rows, 1, 1]);
    }

    /// Records RMS norms of so many parts of this width, with a constant of their own.
    pub(crate) fn norm_parts(
        &mut self,
        weight: &Buffer,
        (input, output): (&Buffer, &Buffer),
        [parts, width]: [u32; 2],
        epsilon: f32,
    ) {
        use parameters::Norm;
        let parameters = Norm::new(width, Norm::HAS_WEIGHTS, epsilon);
        let buffers = [input, weight, &self.weights.unused, self.scratch.rows.get(), output];
        self.recorder.dispatch(Kernel::Norm, &buffers, &parameters, [parts, 1, 1]);
    }

    pub(crate) fn linear(&mut self, matrix: &GpuMatrix, x: &Buffer, y: &Buffer, store: Store) {
        self.linear_rows(matrix, (x, y), store, self.row_count());
    }

    /// Records a product with a matrix, for the first rows of `x`.
    fn linear_rows(
        &mut self,
        matrix: &GpuMatrix,
        both: (&Buffer, &Buffer),
        store: Store,
        rows: u32,
    ) {
        let unused = &self.weights.unused;
        self.recorder.product(matrix, both, (ProductRows::first(rows), store), unused);
    }

    /// Records the logits of some outputs, by their numbers, and returns the buffer with them.
    pub(crate) fn logits(&mut self, outputs: Range<u32>) {
        let (scratch, weights) = (self.scratch, self.weights);
        let (normed, logits) = (scratch.normed.get(), scratch.logits.get());
        let rows = outputs.len() as u32;
        match &weights.final_norm {
            Some(norm) => {
                let mut parameters = self.norm_parameters(norm, Store::Set);
                parameters.flags |= parameters::Norm::READS_OUTPUTS;
                parameters.first_output = outputs.start;
                self.norm_rows(norm, (scratch.hidden.get(), normed), parameters, rows);
            }
            None => self.gather(outputs),
        }
        self.linear_rows(&weights.head, (normed, logits), Store::Set, rows);
        let architecture = weights.architecture();
        let (divisor, cap) = (architecture.factors.logit_divisor, architecture.logit_cap);
        if divisor != 1.0 || cap.is_some() {
            let len = rows * weights.head.outputs as u32;
            let parameters = parameters::Logits { len, divisor, cap: cap.unwrap_or(0.0) };
            let groups = groups_of_elements(len);
            self.recorder.dispatch(Kernel::Logits, &[logits], &parameters, groups);
        }
    }

    /// Copies the hidden states of outputs.
    fn gather(&mut self, outputs: Range<u32>) {
        let row_bytes = (self.weights.architecture().hidden_size * size_of::<f32>()) as u64;
        let (hidden, normed) = (self.scratch.hidden.get(), self.scratch.normed.get());
        for (to, output) in (0..).zip(outputs) {
            let row = u64::from(self.rows.outputs[output as usize]);
            let (from, to) = ((hidden, row * row_bytes), (normed, to * row_bytes));
            self.recorder.copy(from, to, row_bytes);
        }
    }

    /// Records the final norm of all rows, and returns the buffer with the result.
    pub(crate) fn normed_hidden(&mut self) -> &Buffer {
        let (hidden, normed) = (self.scratch.hidden.get(), self.scratch.normed.get());
        match &self.weights.final_norm {
            Some(norm) => {
                self.norm(norm, (hidden, normed), Store::Set);
                normed
            }
            None => hidden,
        }
    }

    pub(crate) fn row_count(&self) -> u32 {
        self.rows.rows.len() as u32
    }
}
