//! A forward pass that records intermediate states, for the analysis of layer groups and of
//! the inputs of projections.

use super::Transformer;
use crate::cpu_pages::CpuPages;
use forerun_formats::checkpoint::{LayerTensor, Tensor};
use forerun_model::Pass;
use std::ops::Range;

/// Number of states that are recorded for each layer: the attention's input (the hidden state), the
/// attention's output, queries, keys and values.
pub(crate) const STATES: usize = 5;

/// The recorded states of all layers of a pass, and its logits.
#[derive(Default)]
pub(crate) struct Observed {
    /// For each layer: hidden state, attention output, queries, keys, values, each `[rows, width]`.
    pub(crate) layers: Vec<[Vec<f32>; STATES]>,
    pub(crate) logits: Vec<f32>, // [rows, vocab]
}

impl Transformer {
    /// Runs a pass like [`Forward::forward`](forerun_model::Forward::forward), and records its
    /// intermediate states.
    ///
    /// With `whole_layers`, a group's MLPs run in parallel, too: each reads the group's hidden
    /// state and the output of its own layer's attention, but not what the layers before it added.
    pub(crate) fn forward_observed(
        &mut self,
        pass: &Pass<'_>,
        whole_layers: bool,
        storage: &mut CpuPages,
    ) -> Observed {
        let mut observed = Observed::default();
        self.prepare(pass, None);
        let order = pass.order;
        for index in 0..order.len(self.weights.n_layers()) {
            let layers = order.group(index);
            self.attention_blocks(layers.clone(), storage);
            for block in 0..layers.len() {
                observed.layers.push(self.states(block, layers.start + block));
            }
            match whole_layers {
                false => self.mlp_blocks(layers),
                true => self.parallel_mlp_blocks(layers),
            }
        }
        self.finish(pass, storage);
        observed.logits.extend_from_slice(self.output().logits);
        observed
    }

    /// Runs a pass, layer by layer, that outputs all its rows. `see(tensor, inputs)` receives the
    /// inputs of each projection, `[rows, inputs]`, with the first of its matrices.
    pub(crate) fn forward_with_inputs(
        &mut self,
        pass: &Pass<'_>,
        storage: &mut CpuPages,
        see: &mut dyn FnMut(Tensor, &[f32]),
    ) {
        self.prepare(pass, None);
        for layer in 0..self.weights.n_layers() {
            self.attention_blocks(layer..layer + 1, storage);
            let block = &self.scratch.blocks[0];
            let weights = self.weights.layer(layer);
            let [input, output] = match weights.recurrent {
                None => [LayerTensor::Query, LayerTensor::Output],
                Some(_) => [LayerTensor::MixerQuery, LayerTensor::MixerOutput],
            };
            see(Tensor::Layer(layer, input), &block.normed);
            see(Tensor::Layer(layer, output), block.output_input(weights));
            if weights.latent.as_ref().is_some_and(|latent| latent.queries.is_some()) {
                see(Tensor::Layer(layer, LayerTensor::QueryUp), &block.latent.compressed);
            }
            self.mlp_blocks(layer..layer + 1);
            // The experts of a mixture see other rows each, which are not observed.
            if self.weights.layer(layer).mlp.is_some() {
                see(Tensor::Layer(layer, LayerTensor::Gate), &self.scratch.normed);
                see(Tensor::Layer(layer, LayerTensor::Down), &self.scratch.mlp.inner);
            }
        }
        self.finish(pass, storage);
        see(Tensor::Head, &self.scratch.normed);
    }

    /// Returns the input and the results of the attention of a layer, which is in this block.
    fn states(&self, block: usize, layer: usize) -> [Vec<f32>; STATES] {
        let (scratch, shape) = (&self.scratch, self.weights.layer(layer).shape);
        let block = &scratch.blocks[block];
        let q_width = shape.q_width();
        let kv_width = if shape.has_keys { shape.kv_width() } else { 0 };
        let part = |range: Range<usize>| {
            let rows = block.qkv.chunks_exact(self.weights.layer(layer).row_width());
            rows.flat_map(|row| row[range.clone()].iter().copied()).collect()
        };
        [
            scratch.hidden.clone(),
            block.delta.clone(),
            part(0..q_width),
            part(q_width..q_width + kv_width),
            match shape.first_value {
                Some(first) => part(q_width + first..q_width + kv_width),
                None => part(q_width + kv_width..shape.row_width()),
            },
        ]
    }

    /// Computes `hidden += Σ (attention + mlp(hidden + attention))`, where every layer of the group
    /// reads the same hidden state.
    fn parallel_mlp_blocks(&mut self, layers: Range<usize>) {
        let shared = self.scratch.hidden.clone();
        let mut sum = shared.clone();
        for (index, layer) in layers.enumerate() {
            self.scratch.hidden.clone_from(&shared);
            self.finish_layer(index, layer);
            let added =
                self.scratch.hidden.iter().zip(&shared).map(|(after, before)| after - before);
            sum.iter_mut().zip(added).for_each(|(sum, added)| *sum += added);
        }
        self.scratch.hidden = sum;
    }
}
