//! The slow reference: a forward pass that a reader can check line by line.
//!
//! No cache, no packing, no team, no tree: a whole sequence goes in, all its logits come out. It
//! shares no loop with the production path, yet keeps to the same documented order of additions (see
//! `kernels`), so the two must agree bit for bit in every type and instruction set. Tests use it as
//! their oracle.

use crate::LoadError;
use crate::checkpoint::{Checkpoint, LayerTensor, Tensor};
use crate::config::Config;
use crate::kernels::{Isa, WeightType, exp, reference};
use forerun_core::TokenId;
use half::f16;

/// Weights as the checkpoint has them, row-major.
pub struct ReferenceModel {
    config: Config,
    weight_type: WeightType,
    /// Whether linear layers and attention add products without rounding them.
    fused: bool,
    embedding: Vec<f32>,
    layers: Vec<[Vec<f32>; 9]>,
    final_norm: Vec<f32>,
    head: Vec<f32>,
}

/// The order of a layer's tensors in [`ReferenceModel`].
const LAYER: [LayerTensor; 9] = [
    LayerTensor::AttentionNorm,
    LayerTensor::Query,
    LayerTensor::Key,
    LayerTensor::Value,
    LayerTensor::Output,
    LayerTensor::MlpNorm,
    LayerTensor::Gate,
    LayerTensor::Up,
    LayerTensor::Down,
];

impl ReferenceModel {
    /// Reads all tensors, for the weight type of the checkpoint's own and the best instruction set.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        let weight_type = crate::transformer::own_type(checkpoint)?;
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
        // beforehand. Norms keep their values in every type.
        let round = |tensor: Tensor| {
            let inputs = checkpoint.shape(tensor)[1];
            raw(tensor).map(|values| reference::rounded(weight_type, &values, inputs))
        };
        let read = |tensor: Tensor| match (weight_type, checkpoint.shape(tensor).len()) {
            (WeightType::Int8, _) | (_, 1) => raw(tensor),
            _ => round(tensor),
        };
        let mut layers = Vec::new();
        for layer in 0..checkpoint.config().num_hidden_layers {
            let mut tensors: [Vec<f32>; 9] = Default::default();
            for (slot, tensor) in tensors.iter_mut().zip(LAYER) {
                *slot = read(Tensor::Layer(layer, tensor))?;
            }
            layers.push(tensors);
        }
        Ok(Self {
            config: checkpoint.config().clone(),
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
        let (config, size) = (&self.config, self.config.hidden_size);
        let embed = |&token: &TokenId| self.embedding[token as usize * size..][..size].to_vec();
        let mut hidden: Vec<Vec<f32>> = tokens.iter().map(embed).collect();
        for layer in &self.layers {
            let [attention_norm, query, key, value, output, mlp_norm, gate, up, down] = layer;
            let normed = self.norm_all(&hidden, attention_norm);
            let rotated = |weights| -> Vec<Vec<f32>> {
                let rows = normed.iter().enumerate();
                rows.map(|(position, row)| self.rotate(self.times(weights, row), position))
                    .collect()
            };
            let (queries, keys) = (rotated(query), self.cached(rotated(key)));
            let values = self.cached(normed.iter().map(|row| self.times(value, row)).collect());
            for (position, row) in hidden.iter_mut().enumerate() {
                let seen = (&keys[..=position], &values[..=position]);
                let attended = self.attend(&queries[position], seen);
                plus(row, &self.times(output, &attended));
            }
            let normed = self.norm_all(&hidden, mlp_norm);
            for (row, normed) in hidden.iter_mut().zip(normed) {
                let (gate, up) = (self.times(gate, &normed), self.times(up, &normed));
                let silu = |gate: f32| gate / (1.0 + exp(-gate));
                let inner: Vec<_> = gate.into_iter().zip(up).map(|(g, u)| silu(g) * u).collect();
                plus(row, &self.times(down, &inner));
            }
        }
        debug_assert_eq!(config.vocab_size * size, self.head.len());
        let normed = self.norm_all(&hidden, &self.final_norm);
        normed.iter().map(|row| self.times(&self.head, row)).collect()
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

    /// Rotates pairs `(i, i + head_dim/2)` of every head by `position · theta^(-2i/head_dim)`.
    fn rotate(&self, mut heads: Vec<f32>, position: usize) -> Vec<f32> {
        let (dim, theta) = (self.config.head_dim, f64::from(self.config.rope_theta));
        for head in heads.chunks_mut(dim) {
            for pair in 0..dim / 2 {
                let frequency = (1.0 / theta.powf(2.0 * pair as f64 / dim as f64)) as f32;
                let angle = f64::from(position as f32 * frequency);
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

    fn attend(&self, query: &[f32], (keys, values): (&[Vec<f32>], &[Vec<f32>])) -> Vec<f32> {
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
            let total = sum16(weights.iter().copied());
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
