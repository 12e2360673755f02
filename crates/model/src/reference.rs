//! The slow reference: a forward pass that a reader can check line by line.
//!
//! No cache, no packing, no team, no tree: a whole sequence goes in, all its logits come out. It
//! shares no loop with the production path, yet keeps to the same documented order of additions (see
//! `kernels`), so the two must agree bit for bit in every type and instruction set. Tests use it as
//! their oracle.

use crate::LoadError;
use crate::checkpoint::{Checkpoint, LayerTensor as T, LayerTensor, Tensor};
use crate::config::Config;
use crate::kernels::{Isa, WeightType, exp, reference};
use crate::layers::LayerOrder;
use forerun_core::TokenId;
use half::f16;
use std::collections::HashMap;

/// Weights as the checkpoint has them, row-major.
pub struct ReferenceModel {
    config: Config,
    weight_type: WeightType,
    /// Whether linear layers and attention add products without rounding them.
    fused: bool,
    embedding: Vec<f32>,
    layers: Vec<Layer>,
    final_norm: Vec<f32>,
    head: Vec<f32>,
}

/// A layer's tensors, those that the model has.
type Layer = HashMap<LayerTensor, Vec<f32>>;

impl ReferenceModel {
    /// Reads all tensors, for the weight type of the checkpoint's own and the best instruction set.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        let weight_type = crate::weights::own_type(checkpoint)?;
        let isa = Isa::from_environment().unwrap_or_else(|_| Isa::best());
        Self::load_as(checkpoint, weight_type, isa)
    }

    /// Reads all tensors, to compute as the kernels of a type and an instruction set do.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_as(
        checkpoint: &Checkpoint,
        weight_type: WeightType,
        isa: Isa,
    ) -> Result<Self, LoadError> {
        let raw = |tensor| checkpoint.tensor(tensor);
        // Integers are made of the checkpoint's own values, layer by layer; floats can be rounded
        // beforehand. Norms and biases keep their values in every type.
        let round = |tensor: Tensor| {
            let inputs = checkpoint.shape(tensor)[1];
            raw(tensor).map(|values| reference::rounded(weight_type, &values, inputs))
        };
        let read = |tensor: Tensor| match (weight_type, checkpoint.shape(tensor).len()) {
            (WeightType::Int8, _) | (_, 1) => raw(tensor),
            _ => round(tensor),
        };
        let config = checkpoint.config();
        let layer = |index| -> Result<Layer, LoadError> {
            let present = LayerTensor::ALL.into_iter().filter(|tensor| tensor.is_in(config));
            present.map(|tensor| Ok((tensor, read(Tensor::Layer(index, tensor))?))).collect()
        };
        let layers = (0..config.num_hidden_layers).map(layer).collect::<Result<_, _>>()?;
        Ok(Self {
            config: config.clone(),
            weight_type,
            fused: isa.is_fused(),
            embedding: round(Tensor::Embedding)?,
            layers,
            final_norm: read(Tensor::FinalNorm)?,
            head: read(Tensor::Head)?,
        })
    }

    /// The model's shape.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Logits behind every token: `tokens.len()` rows of `vocab_size`.
    #[must_use]
    pub fn logits(&self, tokens: &[TokenId]) -> Vec<Vec<f32>> {
        self.logits_by(tokens, LayerOrder::Sequential, 0)
    }

    /// The same by another order of layers for all tokens but the first `exact`.
    #[must_use]
    pub fn logits_by(
        &self,
        tokens: &[TokenId],
        order: LayerOrder<'_>,
        exact: usize,
    ) -> Vec<Vec<f32>> {
        let (config, size) = (&self.config, self.config.hidden_size);
        let embed = |&token: &TokenId| self.embedding[token as usize * size..][..size].to_vec();
        let mut hidden: Vec<Vec<f32>> = tokens.iter().map(embed).collect();
        let groups: Vec<_> =
            (0..order.len(self.layers.len())).map(|group| order.group(group)).collect();
        // What attention reads: a approximate row keeps to the hidden state at its group's beginning.
        let mut inputs = hidden.clone();
        for (index, layer) in self.layers.iter().enumerate() {
            let begins = groups.iter().any(|group| group.start == index);
            let fresh = if begins { hidden.len() } else { exact.min(hidden.len()) };
            inputs[..fresh].clone_from_slice(&hidden[..fresh]);
            let normed = self.norm_all(&inputs, &layer[&T::AttentionNorm]);
            // Queries or keys: projected, each head normed where the model has it so, turned.
            let heads = |projection, bias, norm| -> Vec<Vec<f32>> {
                let head = |(position, row): (usize, &Vec<f32>)| {
                    let mut heads = self.project(layer, (projection, bias), row);
                    if let Some(weight) = layer.get(&norm) {
                        heads = self.norm_all(&split(&heads, config.head_dim), weight).concat();
                    }
                    self.rotate(heads, position)
                };
                normed.iter().enumerate().map(head).collect()
            };
            let queries = heads(T::Query, T::QueryBias, T::QueryNorm);
            let keys = self.cached(heads(T::Key, T::KeyBias, T::KeyNorm));
            let values = (T::Value, T::ValueBias);
            let values = normed.iter().map(|row| self.project(layer, values, row)).collect();
            let values = self.cached(values);
            for (position, row) in hidden.iter_mut().enumerate() {
                let window = config.window(index).unwrap_or(usize::MAX);
                let first = (position + 1).saturating_sub(window);
                let seen = (&keys[first..=position], &values[first..=position]);
                let attended = self.attend(&queries[position], seen, first);
                plus(row, &self.project(layer, (T::Output, T::OutputBias), &attended));
            }
            let normed = self.norm_all(&hidden, &layer[&T::MlpNorm]);
            for (row, normed) in hidden.iter_mut().zip(normed) {
                let gate = self.project(layer, (T::Gate, T::GateBias), &normed);
                let up = self.project(layer, (T::Up, T::UpBias), &normed);
                let silu = |gate: f32| gate / (1.0 + exp(-gate));
                let inner: Vec<_> = gate.into_iter().zip(up).map(|(g, u)| silu(g) * u).collect();
                plus(row, &self.project(layer, (T::Down, T::DownBias), &inner));
            }
        }
        debug_assert_eq!(config.vocab_size * size, self.head.len());
        let normed = self.norm_all(&hidden, &self.final_norm);
        normed.iter().map(|row| self.times(&self.head, row)).collect()
    }

    /// A projection of a layer, with its bias where the model has one.
    fn project(
        &self,
        layer: &Layer,
        (projection, bias): (LayerTensor, LayerTensor),
        x: &[f32],
    ) -> Vec<f32> {
        let mut out = self.times(&layer[&projection], x);
        if let Some(bias) = layer.get(&bias) {
            plus(&mut out, bias);
        }
        out
    }

    /// `weights · x`.
    fn times(&self, weights: &[f32], x: &[f32]) -> Vec<f32> {
        reference::linear(self.weight_type, self.fused, weights, x, x.len())
    }

    /// Keys or values as a cache keeps them: beside weights of less than full precision, in half.
    fn cached(&self, mut rows: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
        if self.weight_type != WeightType::F32 {
            for value in rows.iter_mut().flatten() {
                *value = f16::from_f32(*value).to_f32();
            }
        }
        rows
    }

    fn norm_all(&self, rows: &[Vec<f32>], weight: &[f32]) -> Vec<Vec<f32>> {
        let norm = |row: &Vec<f32>| {
            let mean = sum16(row.iter().map(|x| x * x)) / row.len() as f32;
            let scale = 1.0 / (mean + self.config.rms_norm_eps).sqrt();
            row.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
        };
        rows.iter().map(norm).collect()
    }

    /// Rotates pairs `(i, i + head_dim/2)` of every head by `position` times their frequency.
    fn rotate(&self, mut heads: Vec<f32>, position: usize) -> Vec<f32> {
        let dim = self.config.head_dim;
        for head in heads.chunks_mut(dim) {
            for pair in 0..dim / 2 {
                let angle = f64::from(position as f32 * self.config.rope_frequency(pair));
                let (sine, cosine) = (angle.sin() as f32, angle.cos() as f32);
                let (a, b) = (head[pair], head[pair + dim / 2]);
                head[pair] = a * cosine - b * sine;
                head[pair + dim / 2] = b * cosine + a * sine;
            }
        }
        heads
    }

    /// `sum + a · b`, as the instruction set adds products.
    fn plus_product(&self, sum: f32, a: f32, b: f32) -> f32 {
        if self.fused { a.mul_add(b, sum) } else { sum + a * b }
    }

    /// Attention over the keys and values of neighbouring positions, of which `first` is the first.
    fn attend(
        &self,
        query: &[f32],
        (keys, values): (&[Vec<f32>], &[Vec<f32>]),
        first: usize,
    ) -> Vec<f32> {
        let (dim, config) = (self.config.head_dim, &self.config);
        let group = config.num_attention_heads / config.num_key_value_heads;
        let scale = 1.0 / (dim as f32).sqrt();
        let head_output = |(head, query): (usize, &[f32])| -> Vec<f32> {
            let part = head / group * dim..(head / group + 1) * dim;
            let dot = |key: &Vec<f32>| {
                let products = query.iter().zip(&key[part.clone()]);
                products.fold(0.0, |sum, (q, k)| self.plus_product(sum, *q, *k)) * scale
            };
            let scores: Vec<f32> = keys.iter().map(dot).collect();
            let peak = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = scores.iter().map(|score| exp(score - peak)).collect();
            // Weights are summed by absolute position.
            let before = std::iter::repeat_n(0.0, first % 16);
            let total = sum16(before.chain(weights.iter().copied()));
            let mut out = vec![0.0; dim];
            for (weight, value) in weights.iter().zip(values) {
                for (out, value) in out.iter_mut().zip(&value[part.clone()]) {
                    *out = self.plus_product(*out, *weight, *value);
                }
            }
            out.into_iter().map(|value| value / total).collect()
        };
        query.chunks(dim).enumerate().flat_map(head_output).collect()
    }
}

/// The heads of a row.
fn split(row: &[f32], head_dim: usize) -> Vec<Vec<f32>> {
    row.chunks(head_dim).map(<[f32]>::to_vec).collect()
}

fn plus(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// Sixteen partial sums, element `i` in number `i mod 16`, then halves onto halves.
fn sum16(terms: impl Iterator<Item = f32>) -> f32 {
    let mut sums = [0.0_f32; 16];
    for (index, term) in terms.enumerate() {
        sums[index % 16] += term;
    }
    for width in [8, 4, 2, 1] {
        for index in 0..width {
            sums[index] += sums[index + width];
        }
    }
    sums[0]
}
