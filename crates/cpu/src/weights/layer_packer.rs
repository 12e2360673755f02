//! Packs the layers of an architecture.

use super::packed_layer::{
    ExpertNorms, LayerWeights, PackedBlockConv, PackedExperts, PackedMlp, PackedNorm,
    PackedOwnInput, PackedQkNorms,
};
use super::packer::{Projection, WeightPacker};
use crate::kernels::{AttentionShape, NormWeights, PackedMatrix, RecurrentWeights, Rope};
use crate::tensor_parallel::{LayerWidths, Share};
use forerun_formats::checkpoint::{LayerTensor, Tensor};
use forerun_formats::{
    Architecture, Attention, AttentionNorm, BlockConv, ExpertTensor, Experts, Layer, LoadError,
    Mlp, OwnInput, QkNorms, Recurrent, WeightType,
};

/// Packs a layer of an architecture.
pub(super) struct LayerPacker<'a> {
    pub(super) packer: &'a WeightPacker<'a>,
    pub(super) architecture: &'a Architecture,
    pub(super) share: Share,
    pub(super) index: usize,
    pub(super) layer: &'a Layer,
    /// The layer as the share computes it.
    pub(super) own: &'a Layer,
}

impl LayerPacker<'_> {
    pub(super) fn vector(&self, tensor: LayerTensor) -> Result<Vec<f32>, LoadError> {
        let tensor = Tensor::Layer(self.index, tensor);
        self.packer.floats(tensor, &self.architecture.shape(tensor))
    }

    /// Packs a projection, with its biases if the layer has any.
    pub(super) fn projection(
        &self,
        weights: &[LayerTensor],
        biases: &[LayerTensor],
    ) -> Result<Projection, LoadError> {
        let norm = self.architecture.norm;
        let weights = weights.iter().filter(|weight| self.layer.has(**weight, norm));
        let weights = weights.map(|&weight| {
            let tensor = Tensor::Layer(self.index, weight);
            (tensor, self.architecture.shape(tensor))
        });
        let projection = self.packer.projection(&weights.collect::<Vec<_>>())?;
        let biases = biases.iter().filter(|bias| self.layer.has(**bias, norm));
        let biases = biases.map(|&bias| self.vector(bias)).collect::<Result<Vec<_>, _>>()?;
        Ok(if biases.is_empty() { projection } else { projection.with_bias(&biases.concat()) })
    }

    /// Reads a norm, with its bias if the model has any.
    fn norm(&self, weight: LayerTensor, bias: LayerTensor) -> Result<NormWeights, LoadError> {
        let bias = self.layer.has(bias, self.architecture.norm).then_some(bias);
        let of_layer = |tensor| Tensor::Layer(self.index, tensor);
        self.packer.norm(self.architecture, of_layer(weight), bias.map(of_layer))
    }

    /// Reads a norm without a bias.
    fn plain_norm(&self, weight: LayerTensor) -> Result<NormWeights, LoadError> {
        let epsilon = self.architecture.norm_epsilon;
        Ok(NormWeights { weight: self.vector(weight)?, bias: None, epsilon })
    }

    pub(super) fn pack(&self, ropes: &mut Vec<Rope>) -> Result<LayerWeights, LoadError> {
        use LayerTensor as T;
        let layer = self.layer;
        let attention = layer.attention.as_ref();
        let has = |piece: fn(&Attention) -> bool| attention.is_some_and(piece);
        let index_of = |rope| {
            ropes.iter().position(|other| *other == rope).unwrap_or_else(|| {
                ropes.push(rope);
                ropes.len() - 1
            })
        };
        let latent = attention.and_then(|attention| attention.latent.as_deref());
        let rope = attention.and_then(Rope::new).map(index_of);
        let qk_norms = || {
            let [queries, keys] = [T::QueryNorm, T::KeyNorm].map(|norm| {
                let has_norm = layer.has(norm, self.architecture.norm);
                Ok::<_, LoadError>(
                    has_norm.then(|| self.vector(norm)).transpose()?.unwrap_or_default(),
                )
            });
            let (queries, keys) = (queries?, keys?);
            let whole = has(|attention| attention.qk_norms == QkNorms::Whole);
            Ok::<_, LoadError>(PackedQkNorms { queries, keys, whole })
        };
        let [of_attention, of_mixer] = [[0, 1], [5, 6]];
        let [input, output] = if attention.is_some() { of_attention } else { of_mixer };
        let qkv_biases = [T::QueryBias, T::KeyBias, T::ValueBias, T::AttentionGateBias];
        let output_norm = |has: bool, norm| has.then(|| self.plain_norm(norm)).transpose();
        Ok(LayerWeights {
            attention_norm: match layer.attention_norm {
                AttentionNorm::None => PackedNorm::None,
                AttentionNorm::Hidden => {
                    PackedNorm::Hidden(self.norm(T::AttentionNorm, T::AttentionNormBias)?)
                }
                AttentionNorm::EmbeddingAndHidden { normed_residual } => {
                    PackedNorm::EmbeddingAndHidden {
                        embedding: self.norm(T::AttentionNorm, T::AttentionNormBias)?,
                        hidden: self.plain_norm(T::HiddenNorm)?,
                        normed_residual,
                    }
                }
            },
            widths: LayerWidths::new(self.share, layer, self.architecture.hidden_size),
            shape: AttentionShape::of_layer(self.own),
            recurrent: layer.recurrent.map(|shape| self.recurrent(shape)).transpose()?,
            rope,
            qkv: match latent {
                None => self.projection(LayerTensor::PROJECTIONS[input], &qkv_biases)?,
                Some(_) => self.latent_projection()?,
            },
            latent: latent.map(|latent| self.latent(*latent)).transpose()?,
            qk_norms: has(|attention| attention.qk_norms != QkNorms::None)
                .then(qk_norms)
                .transpose()?,
            value_norm: attention
                .filter(|attention| attention.value_norm)
                .map(|attention| vec![1.0; attention.head_dim]),
            sees_block: has(|attention| attention.sees_block),
            keys_of: attention.and_then(|attention| attention.keys_of),
            qkv_limit: attention.and_then(|attention| attention.qkv_limit),
            sinks: has(|attention| attention.sinks).then(|| self.vector(T::Sinks)).transpose()?,
            output: self.projection(LayerTensor::PROJECTIONS[output], &[T::OutputBias])?,
            post_norm: layer.post_norm,
            attention_output_norm: output_norm(
                layer.attention_output_norm,
                T::AttentionOutputNorm,
            )?,
            mlp_norm: match layer.mlp_input.norm() {
                None => None,
                Some(T::AttentionNorm) => Some(self.norm(T::AttentionNorm, T::AttentionNormBias)?),
                Some(norm) => Some(self.norm(norm, T::MlpNormBias)?),
            },
            mlp_is_before_attention: layer.mlp_input.is_before_attention(),
            mlp: self.own.mlp.map(|shape| self.dense_mlp(shape)).transpose()?,
            experts: self.own.experts.map(|shape| self.experts(shape)).transpose()?,
            mlp_output_norm: output_norm(layer.mlp_output_norm, T::MlpOutputNorm)?,
            own_input: layer.own_input.map(|input| self.own_input(input)).transpose()?,
            scalar: match layer.scalar {
                true => self.vector(T::Scalar)?.first().copied(),
                false => None,
            },
            attention_conv: self.block_conv(T::AttentionConv, T::AttentionConvProjection)?,
            mlp_conv: self.block_conv(T::MlpConv, T::MlpConvProjection)?,
        })
    }

    fn block_conv(
        &self,
        base: LayerTensor,
        projection: LayerTensor,
    ) -> Result<Option<PackedBlockConv>, LoadError> {
        let Some(BlockConv { group_size, .. }) = self.layer.block_conv else { return Ok(None) };
        let mut input = self.vector(base)?;
        let output = input.split_off(input.len() / 2);
        let projection = Tensor::Layer(self.index, projection);
        let projection = self.packer.matrix(projection, &self.architecture.shape(projection))?;
        Ok(Some(PackedBlockConv { base: [input, output], projection, group_size }))
    }

    fn own_input(&self, input: OwnInput) -> Result<PackedOwnInput, LoadError> {
        let matrix = |part| {
            let tensor = Tensor::Layer(self.index, part);
            self.packer.matrix(tensor, &self.architecture.shape(tensor))
        };
        Ok(PackedOwnInput {
            shape: Mlp { activation: input.activation, ..Mlp::gated(input.width) },
            gate: matrix(LayerTensor::InputGate)?,
            up: matrix(LayerTensor::InputUp)?,
            norm: self.plain_norm(LayerTensor::InputNorm)?,
        })
    }

    /// Reads the weights of a recurrent mixer that are no matrices.
    fn recurrent(&self, shape: Recurrent) -> Result<RecurrentWeights, LoadError> {
        use LayerTensor as T;
        let optional = |tensor| {
            let is_stored = self.layer.has(tensor, self.architecture.norm);
            is_stored.then(|| self.vector(tensor)).transpose()
        };
        let joined = |tensors: [LayerTensor; 3]| {
            let parts = tensors.map(|tensor| Ok(optional(tensor)?.unwrap_or_default()));
            Ok::<_, LoadError>(parts.into_iter().collect::<Result<Vec<_>, LoadError>>()?.concat())
        };
        let by_channel = joined([T::QueryConv, T::KeyConv, T::ValueConv])?;
        let of_position = |position| by_channel.iter().skip(position).step_by(shape.kernel);
        let biases = [T::QueryConvBias, T::KeyConvBias, T::ValueConvBias];
        let rates = optional(T::DecayRate)?.unwrap_or_default();
        Ok(RecurrentWeights {
            shape,
            convolution: (0..shape.kernel).flat_map(of_position).copied().collect(),
            convolution_bias: shape.conv_bias.then(|| joined(biases)).transpose()?,
            decay_rate: rates.into_iter().map(|stored| shape.decay_rate(stored)).collect(),
            decay_bias: optional(T::DecayBias)?.unwrap_or_default(),
            skip: optional(T::Skip)?,
            norm: optional(T::MixerNorm)?.unwrap_or_default(),
            epsilon: self.architecture.norm_epsilon,
        })
    }

    fn dense_mlp(&self, shape: Mlp) -> Result<PackedMlp, LoadError> {
        use LayerTensor as T;
        let weights = if shape.gated { LayerTensor::PROJECTIONS[2] } else { &[T::Up] };
        Ok(PackedMlp {
            shape,
            gate_up: self.projection(weights, &[T::GateBias, T::UpBias])?,
            down: self.projection(LayerTensor::PROJECTIONS[3], &[T::DownBias])?,
        })
    }

    fn experts(&self, shape: Experts) -> Result<PackedExperts, LoadError> {
        use LayerTensor as T;
        let router = |weight| {
            let inputs = self.architecture.hidden_size;
            Ok::<_, LoadError>(PackedMatrix::pack(WeightType::F32, &self.vector(weight)?, inputs))
        };
        let bias = shape.router.bias.then(|| self.vector(T::RouterBias)).transpose()?;
        let correction = shape.router.correction;
        let scales = shape.router.expert_scales;
        let norms = || {
            Ok::<_, LoadError>(ExpertNorms {
                input: self.plain_norm(T::ExpertsNorm)?,
                output: self.plain_norm(T::ExpertsOutputNorm)?,
                dense_output: self.plain_norm(T::DenseOutputNorm)?,
            })
        };
        Ok(PackedExperts {
            shape,
            scales: scales.then(|| self.vector(T::ExpertScales)).transpose()?,
            router_norm: shape.router.own_norm.then(|| self.router_norm()).transpose()?,
            norms: shape.own_norms.then(norms).transpose()?,
            router: router(T::Router)?.with_bias(bias),
            correction: correction.then(|| self.vector(T::RouterCorrection)).transpose()?,
            shared_gate: shape.shared_gate.then(|| router(T::SharedGate)).transpose()?,
            experts: (0..shape.n_experts)
                .map(|expert| self.expert(expert, shape.mlp))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Reads the norm of what the router reads, which is divided by √hidden_size.
    fn router_norm(&self) -> Result<NormWeights, LoadError> {
        let mut norm = self.plain_norm(LayerTensor::RouterNorm)?;
        let factor = 1.0 / (self.architecture.hidden_size as f32).sqrt();
        norm.weight.iter_mut().for_each(|weight| *weight *= factor);
        Ok(norm)
    }

    fn expert(&self, expert: usize, shape: Mlp) -> Result<PackedMlp, LoadError> {
        use ExpertTensor as E;
        let tensor = |part| Tensor::Expert(self.index, expert, part);
        let with_shape = |part| (tensor(part), self.architecture.shape(tensor(part)));
        let projection = |weights: &[ExpertTensor], biases: &[ExpertTensor]| {
            let weights: Vec<_> = weights.iter().map(|part| with_shape(*part)).collect();
            let projection = self.packer.projection(&weights)?;
            let floats = |part: &ExpertTensor| {
                let (tensor, shape) = with_shape(*part);
                self.packer.floats(tensor, &shape)
            };
            if !shape.bias {
                return Ok::<_, LoadError>(projection);
            }
            let biases = biases.iter().map(floats).collect::<Result<Vec<_>, _>>()?;
            Ok(projection.with_bias(&biases.concat()))
        };
        let (weights, biases): (&[E], &[E]) = match shape.gated {
            true => (&[E::Gate, E::Up], &[E::GateBias, E::UpBias]),
            false => (&[E::Up], &[E::UpBias]),
        };
        let (gate_up, down) =
            (projection(weights, biases)?, projection(&[E::Down], &[E::DownBias])?);
        Ok(PackedMlp { shape, gate_up, down })
    }
}
