//! Row-major weights, and the pieces of a layer for one row.

use crate::arithmetic::Arithmetic;
use crate::latent::HeadExpansion;
use crate::matrix::Matrix;
use crate::routing;
use forerun_core::TokenId;
use forerun_formats::checkpoint::{LayerTensor, Tensor};
use forerun_formats::{
    Activation, Architecture, Attention, AttentionNorm, CacheType, Checkpoint, ExpertTensor,
    Experts, Head, Input, LoadError, MatrixTypes, Mlp, ModelTypes, Norm, OwnInput, QkNorms,
    TensorSource,
};
use forerun_vector::{Isa, exp, gelu, gelu_tanh, sigmoid, tanh};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// A model with row-major weights, as in the checkpoint.
#[derive(Clone)]
pub struct ReferenceModel {
    architecture: Architecture,
    arithmetic: Arithmetic,
    pub(crate) cache_type: CacheType,
    tensors: HashMap<Tensor, Values>,
    /// The expansions of compressed keys and values, by layer and by head; empty without them.
    expansions: Vec<Vec<HeadExpansion>>,
}

/// The values of a tensor. Norms, biases and what mask tokens read are not rounded in any type.
#[derive(Clone)]
enum Values {
    Floats(Arc<[f32]>),
    Matrix(Arc<Matrix>),
}

impl Values {
    /// Returns some outputs of a matrix or elements of a vector, in the given order.
    fn select(&self, outputs: &[TokenId], arithmetic: &Arithmetic) -> Self {
        let outputs = outputs.iter().map(|&output| output as usize);
        match self {
            Self::Floats(values) => Self::Floats(outputs.map(|output| values[output]).collect()),
            Self::Matrix(matrix) if arithmetic.quantizes_parts_again => {
                let weights = outputs.flat_map(|output| matrix.weights(output)).collect();
                Self::Matrix(Arc::new(Matrix::new(matrix.weight_type(), weights, matrix.inputs())))
            }
            Self::Matrix(matrix) => Self::Matrix(Arc::new(matrix.select(outputs))),
        }
    }
}

impl ReferenceModel {
    /// Reads all tensors, to compute as the CPU does in the types of the checkpoint and with the
    /// best instruction set.
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

    /// Reads the tensors of an architecture, which may share the embedding and the head of
    /// `target`.
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
                let is_router = matches!(
                    tensor,
                    Tensor::Layer(_, LayerTensor::Router | LayerTensor::SharedGate)
                );
                entry.insert(if is_router { matrix(tensor)?.1 } else { floats(tensor)? });
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
                let of_target = &shared()?.tensors;
                let used = |values: &Values| match &architecture.head_tokens {
                    None => values.clone(),
                    Some(tokens) => values.select(tokens, &arithmetic),
                };
                tensors.insert(Tensor::Head, used(&of_target[&Tensor::Head]));
                let bias = of_target.get(&Tensor::HeadBias);
                tensors.extend(bias.map(|bias| (Tensor::HeadBias, used(bias))));
            }
        }
        if let Input::EmbeddingPlusFeature { final_norm: Some(_), .. } = architecture.input {
            let norm = shared()?.tensors[&Tensor::FinalNorm].clone();
            tensors.insert(Tensor::FeatureNorm, norm);
        }
        let matrices = tensors.values().filter_map(|values| match values {
            Values::Matrix(matrix) => Some(matrix.weight_type()),
            Values::Floats(_) => None,
        });
        let cache_type = arithmetic.types.cache.unwrap_or_else(|| CacheType::for_weights(matrices));
        let expansions = architecture.layers.iter().enumerate().map(|(index, layer)| {
            let up = tensors.get(&Tensor::Layer(index, LayerTensor::LatentUp));
            match (layer.attention.as_ref().and_then(|attention| attention.latent.as_deref()), up) {
                (Some(latent), Some(Values::Matrix(up))) => HeadExpansion::of_heads(up, *latent),
                _ => Vec::new(),
            }
        });
        let expansions = expansions.collect();
        Ok(Self { architecture, arithmetic, cache_type, tensors, expansions })
    }

    /// Returns the model with a head that has only the outputs of some tokens, in the given order.
    pub(crate) fn with_head_tokens(&self, tokens: &[TokenId]) -> Self {
        let mut model = self.clone();
        for tensor in [Tensor::Head, Tensor::HeadBias] {
            let used = self.tensors.get(&tensor).map(|of| of.select(tokens, &self.arithmetic));
            model.tensors.extend(used.map(|used| (tensor, used)));
        }
        model
    }

    /// Returns what the model computes.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    pub(crate) fn arithmetic(&self) -> &Arithmetic {
        &self.arithmetic
    }

    pub(crate) fn has(&self, tensor: Tensor) -> bool {
        self.tensors.contains_key(&tensor)
    }

    /// Returns the attention of a layer that has no recurrent mixer.
    pub(crate) fn attention(&self, layer: usize) -> &Attention {
        self.architecture.layers[layer].attention.as_ref().expect("a layer with attention")
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

    /// Returns the embedding of a token at a position, as the first layer reads it.
    pub(crate) fn embed_at(&self, token: TokenId, position: usize) -> Vec<f32> {
        let mut row = self.embed(token);
        if let Some(table) = self.architecture.positions {
            let start = (table.first + position) * row.len();
            let size = row.len();
            let mut position = self.values(Tensor::Positions)[start..][..size].to_vec();
            if table.token_types > 0 {
                add_assign(&mut position, &self.values(Tensor::TokenTypes)[..size]);
            }
            add_assign(&mut row, &position);
        }
        row
    }

    /// Returns the inputs of all layers that they have next to the hidden state; empty if they have
    /// none.
    pub(crate) fn own_inputs(&self, token: TokenId, embedding: &[f32]) -> Vec<f32> {
        let Some(OwnInput { width, .. }) = self.architecture.own_input() else { return Vec::new() };
        let scale = 1.0 / (embedding.len() as f32).sqrt();
        let factor = (width as f32).sqrt();
        let projected = self.linear(Tensor::LayerInputProjection, embedding);
        let projected: Vec<f32> = projected.into_iter().map(|x| x * scale).collect();
        let norm = self.values(Tensor::LayerInputNorm);
        let normed = projected.chunks(width).flat_map(|part| self.norm_with(part, norm, None));
        let stored = self.matrix(Tensor::LayerInputs).weights(token as usize);
        let pairs = normed.zip(stored);
        pairs.map(|(x, stored)| (x + stored * factor) * std::f32::consts::FRAC_1_SQRT_2).collect()
    }

    /// Returns the embedding of a token without the model's factor, as draft heads read it.
    pub(crate) fn stored_embedding(&self, token: TokenId) -> Vec<f32> {
        self.matrix(Tensor::Embedding).weights(token as usize)
    }

    /// Returns what the row of a mask token reads instead of a feature.
    pub(crate) fn mask_feature(&self, token: TokenId) -> &[f32] {
        let (size, mask) =
            (self.architecture.feature_width(), token as usize - self.architecture.vocab_size);
        &self.values(Tensor::MaskFeatures)[mask * size..][..size]
    }

    /// Computes a token's embedding as the projection reads it.
    pub(crate) fn normed_embedding(&self, token: TokenId) -> Vec<f32> {
        self.norm_with(&self.embed(token), self.values(Tensor::EmbeddingNorm), None)
    }

    /// Computes a feature as its projection reads it: normed, as a whole or part by part.
    pub(crate) fn normed_feature(&self, feature: &[f32]) -> Vec<f32> {
        if let Input::EmbeddingPlusFeature { final_norm: Some(epsilon), .. } =
            self.architecture.input
        {
            let weight = self.values(Tensor::FeatureNorm);
            let (first, rest) = feature.split_at(weight.len());
            return [&self.rms_norm(first, weight, epsilon)[..], rest].concat();
        }
        let norms: Vec<&[f32]> =
            self.architecture.feature_norms().map(|tensor| self.values(tensor)).collect();
        let Some(width) = norms.first().map(|weight| weight.len()) else { return feature.to_vec() };
        let parts = feature.chunks(width).zip(norms);
        parts.flat_map(|(part, weight)| self.norm_with(part, weight, None)).collect()
    }

    /// Computes the projection to the first layer's input.
    pub(crate) fn fuse(&self, inputs: &[f32]) -> Vec<f32> {
        self.project(Tensor::Fusion, Tensor::FusionBias, inputs)
    }

    /// Computes what the row after a hidden state reads in place of the target's.
    pub(crate) fn prediction(&self, hidden: &[f32]) -> Vec<f32> {
        self.linear(Tensor::Prediction, &self.final_norm(hidden))
    }

    /// Computes the state from which every layer has a token's keys and values, in a model that
    /// drafts blocks.
    pub(crate) fn context(&self, feature: &[f32]) -> Vec<f32> {
        self.norm_with(&self.fuse(feature), self.values(Tensor::ContextNorm), None)
    }

    /// Computes the input of a layer's projections from the hidden state and the embedding.
    pub(crate) fn attention_input(
        &self,
        layer: usize,
        hidden: &[f32],
        embedding: &[f32],
    ) -> Vec<f32> {
        use LayerTensor as T;
        let of_layer = |part| Tensor::Layer(layer, part);
        let norm = |weight, row| self.norm(row, of_layer(weight), of_layer(T::AttentionNormBias));
        match self.architecture.layers[layer].attention_norm {
            AttentionNorm::None => hidden.to_vec(),
            AttentionNorm::Hidden => norm(T::AttentionNorm, hidden),
            AttentionNorm::EmbeddingAndHidden { .. } => {
                let embedding = norm(T::AttentionNorm, embedding);
                [embedding, norm(T::HiddenNorm, hidden)].concat()
            }
        }
    }

    /// Replaces the hidden state by the one that the layer adds to. `input` is what its attention
    /// reads.
    pub(crate) fn start_residual(&self, layer: usize, hidden: &mut [f32], input: &[f32]) {
        let pieces = &self.architecture.layers[layer];
        if pieces.post_norm {
            return hidden.copy_from_slice(input);
        }
        let norm = pieces.attention_norm;
        if norm == (AttentionNorm::EmbeddingAndHidden { normed_residual: true }) {
            hidden.copy_from_slice(&input[hidden.len()..]);
        }
    }

    /// Computes a row's queries: projected, normed head by head if the layer does so, and rotated.
    pub(crate) fn queries(&self, layer: usize, input: &[f32], position: usize) -> Vec<f32> {
        use LayerTensor as T;
        if let Some(latent) = self.attention(layer).latent.as_deref() {
            return self.latent_queries(layer, *latent, input, position);
        }
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
        if let Some(latent) = self.attention(layer).latent.as_deref() {
            let mut key = self.latent_key(layer, *latent, input, position);
            self.cache_type.round(&mut key);
            let value = key[latent.rope_dim..].to_vec();
            return [key, value];
        }
        let keys = self.rotated_heads(layer, (T::Key, T::KeyBias, T::KeyNorm), input, position);
        let [values, bias] = [T::Value, T::ValueBias].map(|part| Tensor::Layer(layer, part));
        let mut values = self.project(values, bias, input);
        limit(self.attention(layer), &mut values);
        if self.attention(layer).value_norm {
            let ones = vec![1.0; self.attention(layer).head_dim];
            let heads = values.chunks(ones.len());
            values = heads.flat_map(|head| self.norm_with(head, &ones, None)).collect();
        }
        [keys, values].map(|mut row| {
            let head_dim = self.attention(layer).head_dim;
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
        let attention = self.attention(layer);
        let mut heads = self.project(of_layer(projection), of_layer(bias), input);
        if attention.qk_norms != QkNorms::None {
            let weights = self.values(of_layer(norm));
            let width = match attention.qk_norms {
                QkNorms::None | QkNorms::Heads | QkNorms::OwnHeads => attention.head_dim,
                QkNorms::Whole => heads.len(),
            };
            // One row of weights for each normed part, or the same for all.
            let weights = weights.chunks(width).cycle();
            let normed = heads.chunks(width).zip(weights).map(|(x, w)| self.norm_with(x, w, None));
            heads = normed.collect::<Vec<_>>().concat();
        }
        limit(attention, &mut heads);
        rotate(attention, &mut heads, position);
        heads.chunks_mut(attention.head_dim).for_each(|head| self.cache_type.hadamard(head));
        heads
    }

    /// Computes attention over the keys and values of consecutive positions, starting at `first`,
    /// its gate from the layer's `input`, and its output projection.
    pub(crate) fn attend(
        &self,
        layer: usize,
        (input, query): (&[f32], &[f32]),
        rows: &[[&[f32]; 2]],
        first: usize,
    ) -> Vec<f32> {
        let &Attention {
            n_heads,
            n_kv_heads,
            head_dim: dim,
            score_scale: scale,
            score_cap,
            ref latent,
            ..
        } = self.attention(layer);
        let value_dim = latent.as_ref().map_or(dim, |latent| latent.rank);
        let sinks = match self.tensors.get(&Tensor::Layer(layer, LayerTensor::Sinks)) {
            Some(Values::Floats(sinks)) => Some(sinks),
            _ => None,
        };
        let arithmetic = &self.arithmetic;
        let head_output = |(head, query): (usize, &[f32])| -> Vec<f32> {
            let kv_head = head / (n_heads / n_kv_heads);
            let dot = |[key, _]: &[&[f32]; 2]| {
                let score = arithmetic.dot(query, &key[kv_head * dim..][..dim]) * scale;
                score_cap.map_or(score, |cap| cap * tanh(score / cap))
            };
            let scores: Vec<f32> = rows.iter().map(dot).collect();
            let sink = sinks.map(|sinks| sinks[head]);
            let of_head = rows.iter().map(|[_, value]| &value[kv_head * value_dim..][..value_dim]);
            let values: Vec<&[f32]> = of_head.collect();
            arithmetic.softmax_average(&scores, &values, (first, sink))
        };
        let mut attended: Vec<f32> = query.chunks(dim).enumerate().flat_map(head_output).collect();
        if self.attention(layer).gate {
            let [gate, bias] = [LayerTensor::AttentionGate, LayerTensor::AttentionGateBias]
                .map(|part| Tensor::Layer(layer, part));
            let gates = self.project(gate, bias, input);
            attended.iter_mut().zip(gates).for_each(|(x, gate)| *x *= sigmoid(gate));
        }
        if let Some(latent) = latent {
            attended = self.latent_values(layer, **latent, &attended);
        }
        let [output, bias] =
            [LayerTensor::Output, LayerTensor::OutputBias].map(|part| Tensor::Layer(layer, part));
        self.project(output, bias, &attended)
    }

    /// Adds what attention computed to the hidden state, and then what the MLP and the experts
    /// compute, and what follows from the layer's own input, in a layer without convolutions.
    /// `own_inputs` has those of all layers.
    pub(crate) fn finish_layer(
        &self,
        layer: usize,
        hidden: &mut [f32],
        (attention, own_inputs): (&[f32], &[f32]),
    ) {
        let input = self.add_attention(layer, hidden, attention);
        let delta = self.mlp_delta(layer, hidden, &input);
        self.add_mlp(layer, hidden, (&delta, own_inputs));
    }

    /// Adds what attention computed to the hidden state. Returns what the MLP and the experts read.
    pub(crate) fn add_attention(
        &self,
        layer: usize,
        hidden: &mut [f32],
        attention: &[f32],
    ) -> Vec<f32> {
        use LayerTensor as T;
        let of_layer = |part| Tensor::Layer(layer, part);
        let pieces = &self.architecture.layers[layer];
        let mlp_input = |hidden: &[f32]| match pieces.mlp_input.norm() {
            None => hidden.to_vec(),
            Some(T::AttentionNorm) => {
                self.norm(hidden, of_layer(T::AttentionNorm), of_layer(T::AttentionNormBias))
            }
            Some(norm) => self.norm(hidden, of_layer(norm), of_layer(T::MlpNormBias)),
        };
        let before = mlp_input(hidden);
        let attention = self.output_norm(
            pieces.attention_output_norm,
            T::AttentionOutputNorm,
            layer,
            attention,
        );
        self.add_residual(hidden, &attention);
        if pieces.mlp_input.is_before_attention() {
            return before;
        }
        let input = mlp_input(hidden);
        if pieces.post_norm {
            hidden.copy_from_slice(&input);
        }
        input
    }

    /// Returns what the MLP and the experts compute from their input.
    pub(crate) fn mlp_delta(&self, layer: usize, hidden: &[f32], input: &[f32]) -> Vec<f32> {
        use LayerTensor as T;
        let of_layer = |part| Tensor::Layer(layer, part);
        let pieces = &self.architecture.layers[layer];
        let mut delta = match &pieces.experts {
            Some(experts) => self.experts(layer, experts, (hidden, input)),
            None => vec![0.0; hidden.len()],
        };
        if let Some(mlp) = &pieces.mlp {
            let mut dense = self.mlp(mlp, input, |part| of_layer(part.dense()));
            if pieces.experts.is_some_and(|experts| experts.shared_gate) {
                let gate = self.arithmetic.linear(self.matrix(of_layer(T::SharedGate)), input);
                let factor = sigmoid(gate[0]);
                dense.iter_mut().for_each(|value| *value *= factor);
            }
            let has_norm = pieces.experts.is_some_and(|experts| experts.own_norms);
            let dense = self.output_norm(has_norm, T::DenseOutputNorm, layer, &dense);
            match pieces.experts {
                Some(_) => add_assign(&mut delta, &dense),
                None => delta = dense,
            }
        }
        delta
    }

    /// Adds what the MLP and the experts computed to the hidden state, and what follows from the
    /// layer's own input. `own_inputs` has those of all layers.
    pub(crate) fn add_mlp(
        &self,
        layer: usize,
        hidden: &mut [f32],
        (delta, own_inputs): (&[f32], &[f32]),
    ) {
        use LayerTensor as T;
        let of_layer = |part| Tensor::Layer(layer, part);
        let pieces = &self.architecture.layers[layer];
        let delta = self.output_norm(pieces.mlp_output_norm, T::MlpOutputNorm, layer, delta);
        self.add_residual(hidden, &delta);
        if let Some(OwnInput { width, activation }) = pieces.own_input {
            let gate = self.linear(of_layer(T::InputGate), hidden);
            let pairs = gate.into_iter().zip(&own_inputs[layer * width..]);
            let gated: Vec<f32> =
                pairs.map(|(gate, input)| activate_gated(activation, gate, *input)).collect();
            let up = self.linear(of_layer(T::InputUp), &gated);
            self.add_residual(hidden, &self.output_norm(true, T::InputNorm, layer, &up));
        }
        if pieces.scalar {
            let factor = self.values(of_layer(T::Scalar))[0];
            hidden.iter_mut().for_each(|x| *x *= factor);
        }
    }

    fn output_norm(&self, has: bool, norm: LayerTensor, layer: usize, row: &[f32]) -> Vec<f32> {
        if !has {
            return row.to_vec();
        }
        self.norm_with(row, self.values(Tensor::Layer(layer, norm)), None)
    }

    fn add_residual(&self, hidden: &mut [f32], delta: &[f32]) {
        let factor = self.architecture.factors.residual;
        hidden.iter_mut().zip(delta).for_each(|(hidden, delta)| *hidden += delta * factor);
    }

    /// Computes an MLP. `tensor` names its tensors.
    fn mlp(&self, mlp: &Mlp, input: &[f32], tensor: impl Fn(ExpertTensor) -> Tensor) -> Vec<f32> {
        use ExpertTensor as E;
        let project = |weight, bias, x: &[f32]| self.project(tensor(weight), tensor(bias), x);
        let up = project(E::Up, E::UpBias, input);
        let inner: Vec<f32> = match mlp.gated {
            false => up.into_iter().map(|up| activate(mlp.activation, up)).collect(),
            true => {
                let gate = project(E::Gate, E::GateBias, input);
                let pairs = gate.into_iter().zip(up);
                pairs.map(|(gate, up)| activate_gated(mlp.activation, gate, up)).collect()
            }
        };
        project(E::Down, E::DownBias, &inner)
    }

    /// Computes the weighted sum of the chosen experts, in order of the experts, and its norm, if
    /// it has one. `input` is what the MLP reads.
    fn experts(
        &self,
        layer: usize,
        experts: &Experts,
        (hidden, input): (&[f32], &[f32]),
    ) -> Vec<f32> {
        use LayerTensor as T;
        let of_layer = |part| Tensor::Layer(layer, part);
        let router_input = match experts.router.own_norm {
            true => {
                let factor = 1.0 / (hidden.len() as f32).sqrt();
                let weight = self.values(of_layer(T::RouterNorm)).iter().map(|x| x * factor);
                self.norm_with(hidden, &weight.collect::<Vec<_>>(), None)
            }
            false => input.to_vec(),
        };
        let input = match experts.own_norms {
            true => &self.output_norm(true, T::ExpertsNorm, layer, hidden),
            false => input,
        };
        let scores = self.project(of_layer(T::Router), of_layer(T::RouterBias), &router_input);
        let correction = match self.tensors.get(&of_layer(T::RouterCorrection)) {
            Some(Values::Floats(correction)) => correction.to_vec(),
            _ => vec![0.0; scores.len()],
        };
        let mut sum = vec![0.0; input.len()];
        let scales = match self.tensors.get(&of_layer(T::ExpertScales)) {
            Some(Values::Floats(scales)) => scales.to_vec(),
            _ => vec![1.0; scores.len()],
        };
        for (expert, weight) in routing::choose(experts, &scores, &correction) {
            let weight = weight * scales[expert];
            let out = self.mlp(&experts.mlp, input, |part| Tensor::Expert(layer, expert, part));
            sum.iter_mut().zip(out).for_each(|(sum, out)| *sum += out * weight);
        }
        self.output_norm(experts.own_norms, T::ExpertsOutputNorm, layer, &sum)
    }

    /// Computes the head's input from the last hidden state.
    pub(crate) fn final_norm(&self, hidden: &[f32]) -> Vec<f32> {
        match self.architecture.final_norm {
            true => self.norm(hidden, Tensor::FinalNorm, Tensor::FinalNormBias),
            false => hidden.to_vec(),
        }
    }

    /// Computes the logits of a row from the head's input.
    pub(crate) fn head(&self, normed: &[f32]) -> Vec<f32> {
        let divisor = self.architecture.factors.logit_divisor;
        let mut logits = self.project(Tensor::Head, Tensor::HeadBias, normed);
        logits.iter_mut().for_each(|logit| *logit /= divisor);
        if let Some(cap) = self.architecture.logit_cap {
            logits.iter_mut().for_each(|logit| *logit = cap * tanh(*logit / cap));
        }
        logits
    }

    /// Applies a projection, with its bias if the model has one.
    pub(crate) fn project(&self, projection: Tensor, bias: Tensor, x: &[f32]) -> Vec<f32> {
        let mut out = self.linear(projection, x);
        if let Some(Values::Floats(bias)) = self.tensors.get(&bias) {
            add_assign(&mut out, bias);
        }
        out
    }

    /// Applies a projection without a bias.
    pub(crate) fn linear(&self, projection: Tensor, x: &[f32]) -> Vec<f32> {
        self.multiply(self.matrix(projection), x)
    }

    pub(crate) fn multiply(&self, matrix: &Matrix, x: &[f32]) -> Vec<f32> {
        self.arithmetic.linear(matrix, x)
    }

    /// Returns the expansions of a layer's compressed keys and values, by head.
    pub(crate) fn expansions(&self, layer: usize) -> &[HeadExpansion] {
        &self.expansions[layer]
    }

    /// Applies a norm, with its bias if the model has one.
    fn norm(&self, row: &[f32], weight: Tensor, bias: Tensor) -> Vec<f32> {
        let bias = match self.tensors.get(&bias) {
            Some(Values::Floats(bias)) => Some(&bias[..]),
            _ => None,
        };
        match self.tensors.get(&weight) {
            Some(Values::Floats(weight)) => self.norm_with(row, weight, bias),
            // A norm without weights multiplies by 1.
            _ => self.norm_with(row, &vec![1.0; row.len()], bias),
        }
    }

    fn norm_with(&self, row: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
        let mean = match self.architecture.norm {
            Norm::Rms => 0.0,
            _ => self.arithmetic.sum(row.iter().copied()) / row.len() as f32,
        };
        let centred: Vec<f32> = match self.architecture.norm {
            Norm::Rms => row.to_vec(),
            _ => row.iter().map(|x| x - mean).collect(),
        };
        let mut out = self.rms_norm(&centred, weight, self.architecture.norm_epsilon);
        if let Some(bias) = bias {
            add_assign(&mut out, bias);
        }
        out
    }

    /// Divides a row by its root mean square, and multiplies it with the weights.
    pub(crate) fn rms_norm(&self, row: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
        let square = self.arithmetic.sum(row.iter().map(|x| x * x)) / row.len() as f32;
        let scale = 1.0 / (square + epsilon).sqrt();
        row.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
    }

    /// Returns the values of a norm, of another vector, of a convolution, or of what mask tokens
    /// read.
    pub(crate) fn values(&self, tensor: Tensor) -> &[f32] {
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

/// Limits queries, keys or values, if the layer does so.
fn limit(attention: &Attention, heads: &mut [f32]) {
    if let Some(limit) = attention.qkv_limit {
        heads.iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
    }
}

/// Rotates the pairs `(i, i + dims/2)` of every head by `position` times their frequency, if the
/// layer has RoPE.
pub(crate) fn rotate(attention: &Attention, heads: &mut [f32], position: usize) {
    let Some(rope) = &attention.rope else { return };
    let (half, amplitude) = (rope.dims / 2, rope.amplitude());
    for head in heads.chunks_mut(attention.head_dim) {
        for pair in 0..half {
            let angle = f64::from(position as f32 * rope.frequency(pair));
            let (sine, cosine) = (angle.sin() as f32 * amplitude, angle.cos() as f32 * amplitude);
            let (a, b) = (head[pair], head[pair + half]);
            head[pair] = a * cosine - b * sine;
            head[pair + half] = b * cosine + a * sine;
        }
    }
}

fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu | Activation::ClampedSwiglu { .. } => silu(x),
        Activation::Gelu => gelu(x),
        Activation::GeluTanh => gelu_tanh(x),
        Activation::Relu if x < 0.0 => 0.0,
        Activation::Relu => x,
    }
}

fn activate_gated(activation: Activation, gate: f32, up: f32) -> f32 {
    match activation {
        Activation::ClampedSwiglu { limit } => {
            let gate = if gate > limit { limit } else { gate };
            let up = up.clamp(-limit, limit);
            gate / (1.0 + exp(-1.702 * gate)) * (up + 1.0)
        }
        _ => activate(activation, gate) * up,
    }
}

pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

pub(crate) fn add_assign(x: &mut [f32], y: &[f32]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
