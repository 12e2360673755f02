//! Row-major weights, and the pieces of a layer for one row.

use crate::arithmetic::Arithmetic;
use crate::matrix::Matrix;
use forerun_core::TokenId;
use forerun_formats::checkpoint::{LayerTensor, Tensor};
use forerun_formats::{
    Architecture, Attention, AttentionNorm, CacheType, Checkpoint, Head, LoadError, MatrixTypes,
    ModelTypes, TensorSource,
};
use forerun_vector::{Isa, exp};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// A model with row-major weights, as in the checkpoint.
#[derive(Clone)]
pub struct ReferenceModel {
    architecture: Architecture,
    arithmetic: Arithmetic,
    cache_type: CacheType,
    tensors: HashMap<Tensor, Values>,
}

/// The values of a tensor. Norms, biases and what mask tokens read are not rounded in any type.
#[derive(Clone)]
enum Values {
    Floats(Arc<[f32]>),
    Matrix(Arc<Matrix>),
}

impl ReferenceModel {
    /// Reads all tensors, to compute as the CPU does in the types of the checkpoint and with the best
    /// instruction set.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        let isa = Isa::from_environment().unwrap_or_else(|_| Isa::best());
        let arithmetic = Arithmetic::cpu(ModelTypes::default(), isa);
        Self::load_with(checkpoint.architecture().clone(), checkpoint, arithmetic, None)
    }

    /// Reads all tensors, to compute as the CPU does with these types and this instruction set.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_as(
        checkpoint: &Checkpoint,
        types: impl Into<ModelTypes>,
        isa: Isa,
    ) -> Result<Self, LoadError> {
        let arithmetic = Arithmetic::cpu(types, isa);
        Self::load_with(checkpoint.architecture().clone(), checkpoint, arithmetic, None)
    }

    /// Reads the tensors of an architecture, which may share the embedding and the head of `target`.
    ///
    /// # Errors
    /// When a tensor is missing, or has the wrong dtype or shape, or a value is not finite.
    pub fn load_with(
        architecture: Architecture,
        source: &dyn TensorSource,
        arithmetic: Arithmetic,
        target: Option<&Self>,
    ) -> Result<Self, LoadError> {
        let types = MatrixTypes::of_model(arithmetic.types.weights, &architecture, source)?;
        let rows = |tensor| source.rows(tensor, &architecture.shape(tensor));
        let floats = |tensor| Ok::<_, LoadError>(Values::Floats(rows(tensor)?.read_all()?.into()));
        let matrix = |tensor| {
            let matrix = Matrix::read(&rows(tensor)?, types.of(tensor))?;
            Ok::<_, LoadError>((tensor, Values::Matrix(Arc::new(matrix))))
        };
        let mut tensors: HashMap<Tensor, Values> =
            architecture.matrices().map(matrix).collect::<Result<_, _>>()?;
        let fusion_bias = source.has(Tensor::FusionBias).then_some(Tensor::FusionBias);
        for tensor in architecture.tensors().chain(fusion_bias) {
            if let Entry::Vacant(entry) = tensors.entry(tensor) {
                entry.insert(floats(tensor)?);
            }
        }
        let shared = || target.ok_or(LoadError::NoTarget);
        if architecture.shares_embedding {
            tensors.insert(Tensor::Embedding, shared()?.tensors[&Tensor::Embedding].clone());
        }
        match architecture.head {
            Head::Own => {}
            Head::Embedding => {
                tensors.insert(Tensor::Head, tensors[&Tensor::Embedding].clone());
            }
            Head::Target => {
                tensors.insert(Tensor::Head, shared()?.tensors[&Tensor::Head].clone());
            }
        }
        let matrices = tensors.values().filter_map(|values| match values {
            Values::Matrix(matrix) => Some(matrix.weight_type()),
            Values::Floats(_) => None,
        });
        let cache_type = arithmetic.types.cache.unwrap_or_else(|| CacheType::for_weights(matrices));
        Ok(Self { architecture, arithmetic, cache_type, tensors })
    }

    /// Returns what the model computes.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Returns the embedding of a token or of a mask token.
    pub(crate) fn embed(&self, token: TokenId) -> Vec<f32> {
        let size = self.architecture.hidden_size;
        if let Some(mask) = (token as usize).checked_sub(self.architecture.vocab_size) {
            return self.values(Tensor::MaskEmbeddings)[mask * size..][..size].to_vec();
        }
        let mut row = self.stored_embedding(token);
        let factor = self.architecture.factors.embedding;
        row.iter_mut().for_each(|value| *value *= factor);
        row
    }

    /// Returns the embedding of a token without the model's factor, as draft heads read it.
    pub(crate) fn stored_embedding(&self, token: TokenId) -> Vec<f32> {
        self.matrix(Tensor::Embedding).weights(token as usize)
    }

    /// Returns what the row of a mask token reads instead of a feature.
    pub(crate) fn mask_feature(&self, token: TokenId) -> &[f32] {
        let (size, mask) =
            (self.architecture.hidden_size, token as usize - self.architecture.vocab_size);
        &self.values(Tensor::MaskFeatures)[mask * size..][..size]
    }

    /// Computes a feature as its projection reads it: normed, as a whole or part by part.
    pub(crate) fn normed_feature(&self, feature: &[f32]) -> Vec<f32> {
        let norms: Vec<&[f32]> =
            self.architecture.feature_norms().map(|tensor| self.values(tensor)).collect();
        let Some(width) = norms.first().map(|weight| weight.len()) else { return feature.to_vec() };
        let parts = feature.chunks(width).zip(norms);
        parts.flat_map(|(part, weight)| self.norm(part, weight)).collect()
    }

    /// Computes the projection to the first layer's input.
    pub(crate) fn fuse(&self, inputs: &[f32]) -> Vec<f32> {
        self.project(Tensor::Fusion, Tensor::FusionBias, inputs)
    }

    /// Computes the input of a layer's projections from the hidden state and the embedding.
    pub(crate) fn attention_input(
        &self,
        layer: usize,
        hidden: &[f32],
        embedding: &[f32],
    ) -> Vec<f32> {
        let norm = |tensor, row| self.norm(row, self.values(Tensor::Layer(layer, tensor)));
        match self.architecture.layers[layer].attention_norm {
            AttentionNorm::None => hidden.to_vec(),
            AttentionNorm::Hidden => norm(LayerTensor::AttentionNorm, hidden),
            AttentionNorm::EmbeddingAndHidden { .. } => {
                let embedding = norm(LayerTensor::AttentionNorm, embedding);
                [embedding, norm(LayerTensor::HiddenNorm, hidden)].concat()
            }
        }
    }

    /// Replaces the hidden state by the one that the layer adds to. `input` is what its attention reads.
    pub(crate) fn start_residual(&self, layer: usize, hidden: &mut [f32], input: &[f32]) {
        let norm = self.architecture.layers[layer].attention_norm;
        if norm == (AttentionNorm::EmbeddingAndHidden { normed_residual: true }) {
            hidden.copy_from_slice(&input[hidden.len()..]);
        }
    }

    /// Computes a row's queries: projected, normed head by head if the layer does so, and rotated.
    pub(crate) fn queries(&self, layer: usize, input: &[f32], position: usize) -> Vec<f32> {
        use LayerTensor as T;
        self.rotated_heads(layer, (T::Query, T::QueryBias, T::QueryNorm), input, position)
    }

    /// Computes a row's keys and values as the cache stores them.
    pub(crate) fn keys_and_values(
        &self,
        layer: usize,
        input: &[f32],
        position: usize,
    ) -> [Vec<f32>; 2] {
        use LayerTensor as T;
        let keys = self.rotated_heads(layer, (T::Key, T::KeyBias, T::KeyNorm), input, position);
        let [values, bias] = [T::Value, T::ValueBias].map(|part| Tensor::Layer(layer, part));
        let values = self.project(values, bias, input);
        [keys, values].map(|mut row| {
            let head_dim = self.architecture.layers[layer].attention.head_dim;
            row.chunks_mut(head_dim).for_each(|head| self.cache_type.round(head));
            row
        })
    }

    fn rotated_heads(
        &self,
        layer: usize,
        (projection, bias, norm): (LayerTensor, LayerTensor, LayerTensor),
        input: &[f32],
        position: usize,
    ) -> Vec<f32> {
        let of_layer = |tensor| Tensor::Layer(layer, tensor);
        let attention = &self.architecture.layers[layer].attention;
        let mut heads = self.project(of_layer(projection), of_layer(bias), input);
        if let Some(Values::Floats(weight)) = self.tensors.get(&of_layer(norm)) {
            let normed = heads.chunks(attention.head_dim).map(|head| self.norm(head, weight));
            heads = normed.collect::<Vec<_>>().concat();
        }
        rotate(attention, &mut heads, position);
        heads
    }

    /// Computes attention over the keys and values of consecutive positions, starting at `first`, and its
    /// output projection.
    pub(crate) fn attend(
        &self,
        layer: usize,
        query: &[f32],
        rows: &[[&[f32]; 2]],
        first: usize,
    ) -> Vec<f32> {
        let Attention { n_heads, n_kv_heads, head_dim: dim, score_scale: scale, .. } =
            self.architecture.layers[layer].attention;
        let arithmetic = &self.arithmetic;
        let head_output = |(head, query): (usize, &[f32])| -> Vec<f32> {
            let kv_head = head / (n_heads / n_kv_heads) * dim;
            let dot = |[key, _]: &[&[f32]; 2]| {
                let products = query.iter().zip(&key[kv_head..kv_head + dim]);
                products.fold(0.0, |sum, (q, k)| arithmetic.add_product(sum, *q, *k)) * scale
            };
            let scores: Vec<f32> = rows.iter().map(dot).collect();
            let peak = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let weights: Vec<f32> = scores.iter().map(|score| exp(score - peak)).collect();
            // The partial sum of a weight depends on its absolute position.
            let padding = std::iter::repeat_n(0.0, first % arithmetic.sum_lanes);
            let total = arithmetic.sum(padding.chain(weights.iter().copied()));
            let mut out = vec![0.0; dim];
            for (weight, [_, value]) in weights.iter().zip(rows) {
                for (out, value) in out.iter_mut().zip(&value[kv_head..kv_head + dim]) {
                    *out = arithmetic.add_product(*out, *weight, *value);
                }
            }
            out.into_iter().map(|value| value / total).collect()
        };
        let attended: Vec<f32> = query.chunks(dim).enumerate().flat_map(head_output).collect();
        let [output, bias] =
            [LayerTensor::Output, LayerTensor::OutputBias].map(|part| Tensor::Layer(layer, part));
        self.project(output, bias, &attended)
    }

    /// Adds what attention or the MLP computed to the hidden state.
    pub(crate) fn add_residual(&self, hidden: &mut [f32], delta: &[f32]) {
        let factor = self.architecture.factors.residual;
        hidden.iter_mut().zip(delta).for_each(|(hidden, delta)| *hidden += delta * factor);
    }

    /// Computes `hidden += mlp(norm(hidden))`.
    pub(crate) fn add_mlp(&self, layer: usize, hidden: &mut [f32]) {
        use LayerTensor as T;
        let project = |projection, bias, x: &[f32]| {
            self.project(Tensor::Layer(layer, projection), Tensor::Layer(layer, bias), x)
        };
        let normed = self.norm(hidden, self.values(Tensor::Layer(layer, T::MlpNorm)));
        let gate = project(T::Gate, T::GateBias, &normed);
        let up = project(T::Up, T::UpBias, &normed);
        let inner: Vec<f32> = gate.into_iter().zip(up).map(|(gate, up)| silu(gate) * up).collect();
        self.add_residual(hidden, &project(T::Down, T::DownBias, &inner));
    }

    /// Computes the head's input from the last hidden state.
    pub(crate) fn final_norm(&self, hidden: &[f32]) -> Vec<f32> {
        match self.tensors.get(&Tensor::FinalNorm) {
            Some(Values::Floats(weight)) => self.norm(hidden, weight),
            _ => hidden.to_vec(),
        }
    }

    /// Computes the logits of a row from the head's input.
    pub(crate) fn head(&self, normed: &[f32]) -> Vec<f32> {
        let divisor = self.architecture.factors.logit_divisor;
        let mut logits = self.arithmetic.linear(self.matrix(Tensor::Head), normed);
        logits.iter_mut().for_each(|logit| *logit /= divisor);
        logits
    }

    /// Applies a projection, with its bias if the model has one.
    fn project(&self, projection: Tensor, bias: Tensor, x: &[f32]) -> Vec<f32> {
        let mut out = self.arithmetic.linear(self.matrix(projection), x);
        if let Some(Values::Floats(bias)) = self.tensors.get(&bias) {
            add_assign(&mut out, bias);
        }
        out
    }

    fn norm(&self, row: &[f32], weight: &[f32]) -> Vec<f32> {
        let mean = self.arithmetic.sum(row.iter().map(|x| x * x)) / row.len() as f32;
        let scale = 1.0 / (mean + self.architecture.norm_epsilon).sqrt();
        row.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
    }

    /// Returns the values of a norm, or of what mask tokens read.
    fn values(&self, tensor: Tensor) -> &[f32] {
        match &self.tensors[&tensor] {
            Values::Floats(values) => values,
            Values::Matrix(_) => &[],
        }
    }

    fn matrix(&self, tensor: Tensor) -> &Matrix {
        match &self.tensors[&tensor] {
            Values::Matrix(matrix) => matrix,
            Values::Floats(_) => unreachable!("{tensor} is a vector"),
        }
    }
}

/// Rotates the pairs `(i, i + head_dim/2)` of every head by `position` times their frequency, if the layer
/// has RoPE.
fn rotate(attention: &Attention, heads: &mut [f32], position: usize) {
    let Some(rope) = &attention.rope else { return };
    let dim = attention.head_dim;
    for head in heads.chunks_mut(dim) {
        for pair in 0..dim / 2 {
            let angle = f64::from(position as f32 * rope.frequency(pair, dim));
            let (sine, cosine) = (angle.sin() as f32, angle.cos() as f32);
            let (a, b) = (head[pair], head[pair + dim / 2]);
            head[pair] = a * cosine - b * sine;
            head[pair + dim / 2] = b * cosine + a * sine;
        }
    }
}

pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

pub(crate) fn add_assign(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
