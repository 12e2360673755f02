//! Recurrent mixers, one row after another.

use crate::weights::{ReferenceModel, add_assign, silu};
use forerun_formats::checkpoint::{LayerTensor, Tensor};
use forerun_formats::{Recurrent, RecurrentRule};
use forerun_vector::{exp, sigmoid, softplus};

/// The state of a mixer after a row.
#[derive(Clone, Debug)]
pub(crate) struct RecurrentState {
    /// The last inputs of the convolution, the oldest first: `[kernel − 1][channels]`.
    inputs: Vec<Vec<f32>>,
    /// For each value head `[key_dim][value_dim]`.
    matrices: Vec<Vec<Vec<f32>>>,
}

impl RecurrentState {
    fn zero(shape: &Recurrent) -> Self {
        let matrix = vec![vec![0.0; shape.value_dim]; shape.key_dim];
        let heads = if shape.has_matrices() { shape.n_value_heads } else { 0 };
        Self {
            inputs: vec![vec![0.0; shape.channels()]; shape.kernel - 1],
            matrices: vec![matrix; heads],
        }
    }
}

impl ReferenceModel {
    /// Computes the mixer of a layer for a row, and its output projection. `state` is that before
    /// the row, or `None` for the first row, and becomes that after the row.
    pub(crate) fn mix(
        &self,
        layer: usize,
        shape: &Recurrent,
        input: &[f32],
        state: &mut Option<RecurrentState>,
    ) -> Vec<f32> {
        use LayerTensor as T;
        let of_layer = |part| Tensor::Layer(layer, part);
        let project = |part| self.project(of_layer(part), of_layer(part), input);
        let state = state.get_or_insert_with(|| RecurrentState::zero(shape));
        let epsilon = self.architecture().norm_epsilon;
        let gates = project(T::MixerGate);
        let mixed = match shape.rule {
            RecurrentRule::Convolution => {
                let factors = project(T::MixerBeta);
                let values = project(T::MixerValue).into_iter().zip(factors);
                let values = values.map(|(value, factor)| value * factor).collect();
                let convolved = self.convolve(layer, shape, values, state);
                convolved.into_iter().zip(gates).map(|(value, gate)| gate * value).collect()
            }
            RecurrentRule::GatedDelta => {
                let heads = self.run_heads(layer, shape, input, state);
                let norm = self.values(of_layer(T::MixerNorm));
                let normed = heads.iter().flat_map(|head| self.rms_norm(head, norm, epsilon));
                normed.zip(gates).map(|(value, gate)| value * silu(gate)).collect()
            }
            RecurrentRule::StateSpace => {
                let heads = self.run_heads(layer, shape, input, state).concat();
                let gated = heads.into_iter().zip(gates).map(|(value, gate)| value * silu(gate));
                let norm = self.values(of_layer(T::MixerNorm));
                self.rms_norm(&gated.collect::<Vec<f32>>(), norm, epsilon)
            }
        };
        let output = of_layer(T::MixerOutput);
        self.project(output, output, &mixed)
    }

    /// Computes a short convolution over the inputs in the state and this one, which becomes the
    /// newest one.
    fn convolve(
        &self,
        layer: usize,
        shape: &Recurrent,
        input: Vec<f32>,
        state: &mut RecurrentState,
    ) -> Vec<f32> {
        use LayerTensor as T;
        let joined = |parts: [LayerTensor; 3]| -> Vec<f32> {
            let tensors = parts.map(|part| Tensor::Layer(layer, part));
            let stored = tensors.into_iter().filter(|tensor| self.has(*tensor));
            stored.flat_map(|tensor| self.values(tensor).iter().copied()).collect()
        };
        let weights = joined([T::QueryConv, T::KeyConv, T::ValueConv]);
        let biases = joined([T::QueryConvBias, T::KeyConvBias, T::ValueConvBias]);
        state.inputs.push(input);
        let channel = |(channel, weights): (usize, &[f32])| {
            let inputs = state.inputs.iter().map(|row| row[channel]);
            weights.iter().zip(inputs).fold(0.0, |sum, (weight, x)| sum + weight * x)
        };
        let mut out: Vec<f32> = weights.chunks(shape.kernel).enumerate().map(channel).collect();
        if !biases.is_empty() {
            add_assign(&mut out, &biases);
        }
        state.inputs.remove(0);
        out
    }

    /// Computes the recurrence of all value heads.
    fn run_heads(
        &self,
        layer: usize,
        shape: &Recurrent,
        input: &[f32],
        state: &mut RecurrentState,
    ) -> Vec<Vec<f32>> {
        use LayerTensor as T;
        let of_layer = |part| Tensor::Layer(layer, part);
        let project = |part| self.project(of_layer(part), of_layer(part), input);
        let parts = [T::MixerQuery, T::MixerKey, T::MixerValue].map(project).concat();
        let convolved = self.convolve(layer, shape, parts, state);
        let activated: Vec<f32> = convolved.into_iter().map(silu).collect();
        let (queries, rest) = activated.split_at(shape.key_width());
        let (keys, values) = rest.split_at(shape.key_width());
        let vector = |part| self.values(of_layer(part));
        let (rates, biases) = (vector(T::DecayRate), vector(T::DecayBias));
        let decays = project(T::MixerDecay);
        let is_delta = shape.rule == RecurrentRule::GatedDelta;
        let betas = if is_delta { project(T::MixerBeta) } else { Vec::new() };
        let run_head = |(head, matrix): (usize, &mut Vec<Vec<f32>>)| {
            let of_key_head = |x: &[f32]| {
                let x = &x[shape.key_head(head) * shape.key_dim..][..shape.key_dim];
                if is_delta { self.divided_by_length(x) } else { x.to_vec() }
            };
            let (mut query, key) = (of_key_head(queries), of_key_head(keys));
            let value = &values[head * shape.value_dim..][..shape.value_dim];
            let step = softplus(decays[head] + biases[head]);
            let decay = exp(shape.decay_rate(rates[head]) * step);
            for row in matrix.iter_mut() {
                row.iter_mut().for_each(|state| *state *= decay);
            }
            let factor = if is_delta { sigmoid(betas[head]) } else { step };
            let added = |(column, value): (usize, &f32)| {
                let memory = matrix.iter().zip(&key);
                let memory = memory.fold(0.0, |sum, (row, key)| sum + row[column] * key);
                if is_delta { (value - memory) * factor } else { value * factor }
            };
            let added: Vec<f32> = value.iter().enumerate().map(added).collect();
            for (row, key) in matrix.iter_mut().zip(&key) {
                row.iter_mut().zip(&added).for_each(|(state, added)| *state += key * added);
            }
            if is_delta {
                let scale = 1.0 / (shape.key_dim as f32).sqrt();
                query.iter_mut().for_each(|x| *x *= scale);
            }
            let out = |(column, value): (usize, &f32)| {
                let read = matrix.iter().zip(&query);
                let read = read.fold(0.0, |sum, (row, query)| sum + row[column] * query);
                if is_delta { read } else { read + vector(T::Skip)[head] * value }
            };
            value.iter().enumerate().map(out).collect()
        };
        state.matrices.iter_mut().enumerate().map(run_head).collect()
    }

    fn divided_by_length(&self, x: &[f32]) -> Vec<f32> {
        let square = self.arithmetic().sum(x.iter().map(|x| x * x));
        let inverse = 1.0 / (square + 1e-6).sqrt();
        x.iter().map(|x| x * inverse).collect()
    }
}
