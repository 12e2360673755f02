//! The slow reference model: a forward pass that a reader can check line by line.
//!
//! It has no cache, no packing, no team and no tree. It takes a whole sequence and returns all its
//! logits. It shares no loop with the production code, but uses the same documented order of additions
//! (see `kernels`). The two must therefore agree bit for bit in every weight type and instruction set.
//! Tests use it as their oracle.

use crate::LoadError;
use crate::checkpoint::{Checkpoint, LayerTensor as T, LayerTensor, Tensor};
use crate::config::Config;
use crate::kernels::{Isa, WeightType, exp, reference};
use forerun_core::TokenId;
use forerun_lm::LayerOrder;
use half::f16;
use std::collections::HashMap;

/// A model with row-major weights, as in the checkpoint.
pub struct ReferenceModel {
    config: Config,
    weight_type: WeightType,
    /// Whether linear layers and attention use fused multiply-add, which does not round products.
    fused: bool,
    embedding: Vec<f32>,
    layers: Vec<Layer>,
    final_norm: Vec<f32>,
    head: Vec<f32>,
}

/// The tensors of a layer that exist in the model.
type Layer = HashMap<LayerTensor, Vec<f32>>;

impl ReferenceModel {
    /// Reads all tensors, to compute in the smallest weight type that loses nothing and with the best
    /// instruction set.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        let weight_type = crate::weights::lossless_type_of(checkpoint)?;
        let isa = Isa::from_environment().unwrap_or_else(|_| Isa::best());
        Self::load_as(checkpoint, weight_type, isa)
    }

    /// Reads all tensors, to compute as the kernels do with this weight type and instruction set.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_as(
        checkpoint: &Checkpoint,
        weight_type: WeightType,
        isa: Isa,
    ) -> Result<Self, LoadError> {
        let raw = |tensor| checkpoint.tensor(tensor);
        // int8 is quantised from the checkpoint's values in each product. Floats are rounded here.
        // Norms and biases are not rounded in any type.
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

    /// Returns the model's configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Computes the logits after every token: `tokens.len()` rows of `vocab_size`.
    #[must_use]
    pub fn logits(&self, tokens: &[TokenId]) -> Vec<Vec<f32>> {
        self.logits_in_order(tokens, LayerOrder::Sequential, 0)
    }

    /// Computes the logits as [`Self::logits`] does, with another order of layers for all tokens except
    /// the first `exact`.
    #[must_use]
    pub fn logits_in_order(
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
        // The inputs of attention: an approximate row uses the hidden state at the start of its group.
        let mut inputs = hidden.clone();
        for (index, layer) in self.layers.iter().enumerate() {
            let starts_group = groups.iter().any(|group| group.start == index);
            let updated = if starts_group { hidden.len() } else { exact.min(hidden.len()) };
            inputs[..updated].clone_from_slice(&hidden[..updated]);
            let normed = self.norm_all(&inputs, &layer[&T::AttentionNorm]);
            // Queries or keys: projected, normed head by head if the model does so, and rotated.
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
            let keys = self.round_for_cache(heads(T::Key, T::KeyBias, T::KeyNorm));
            let values = (T::Value, T::ValueBias);
            let values = normed.iter().map(|row| self.project(layer, values, row)).collect();
            let values = self.round_for_cache(values);
            for (position, row) in hidden.iter_mut().enumerate() {
                let window = config.window(index).unwrap_or(usize::MAX);
                let first = (position + 1).saturating_sub(window);
                let visible = (&keys[first..=position], &values[first..=position]);
                let attended = self.attend(&queries[position], visible, first);
                add_assign(row, &self.project(layer, (T::Output, T::OutputBias), &attended));
            }
            let normed = self.norm_all(&hidden, &layer[&T::MlpNorm]);
            for (row, normed) in hidden.iter_mut().zip(normed) {
                let gate = self.project(layer, (T::Gate, T::GateBias), &normed);
                let up = self.project(layer, (T::Up, T::UpBias), &normed);
                let silu = |gate: f32| gate / (1.0 + exp(-gate));
                let inner: Vec<_> = gate.into_iter().zip(up).map(|(g, u)| silu(g) * u).collect();
                add_assign(row, &self.project(layer, (T::Down, T::DownBias), &inner));
            }
        }
        debug_assert_eq!(config.vocab_size * size, self.head.len());
        let normed = self.norm_all(&hidden, &self.final_norm);
        normed.iter().map(|row| self.multiply(&self.head, row)).collect()
    }

    /// Applies a projection of a layer, with its bias if the model has one.
    fn project(
        &self,
        layer: &Layer,
        (projection, bias): (LayerTensor, LayerTensor),
        x: &[f32],
    ) -> Vec<f32> {
        let mut out = self.multiply(&layer[&projection], x);
        if let Some(bias) = layer.get(&bias) {
            add_assign(&mut out, bias);
        }
        out
    }

    /// Computes `weights · x`.
    fn multiply(&self, weights: &[f32], x: &[f32]) -> Vec<f32> {
        reference::linear(self.weight_type, self.fused, weights, x, x.len())
    }

    /// Rounds keys or values as a cache does: to f16, unless the weights are f32.
    fn round_for_cache(&self, mut rows: Vec<Vec<f32>>) -> Vec<Vec<f32>> {
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

    /// Rotates the pairs `(i, i + head_dim/2)` of every head by `position` times their frequency.
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

    /// Computes `sum + a · b` with the rounding of the instruction set.
    fn add_product(&self, sum: f32, a: f32, b: f32) -> f32 {
        if self.fused { a.mul_add(b, sum) } else { sum + a * b }
    }

    /// Computes attention over the keys and values of consecutive positions, starting at `first`.
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
            let kv_head = head / group * dim..(head / group + 1) * dim;
            let dot = |key: &Vec<f32>| {
                let products = query.iter().zip(&key[kv_head.clone()]);
                products.fold(0.0, |sum, (q, k)| self.add_product(sum, *q, *k)) * scale
            };
            let scores: Vec<f32> = keys.iter().map(dot).collect();
            let peak = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = scores.iter().map(|score| exp(score - peak)).collect();
            // The partial sum of a weight depends on its absolute position.
            let padding = std::iter::repeat_n(0.0, first % 16);
            let total = sum16(padding.chain(weights.iter().copied()));
            let mut out = vec![0.0; dim];
            for (weight, value) in weights.iter().zip(values) {
                for (out, value) in out.iter_mut().zip(&value[kv_head.clone()]) {
                    *out = self.add_product(*out, *weight, *value);
                }
            }
            out.into_iter().map(|value| value / total).collect()
        };
        query.chunks(dim).enumerate().flat_map(head_output).collect()
    }
}

/// Splits a row into its heads.
fn split(row: &[f32], head_dim: usize) -> Vec<Vec<f32>> {
    row.chunks(head_dim).map(<[f32]>::to_vec).collect()
}

fn add_assign(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// Sums the terms in sixteen partial sums (term `i` in number `i mod 16`), then adds the upper half of
/// the partial sums to the lower half until one is left.
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
