//! Uploads of a model's tensors.

use crate::block_conv::BlockConvWeights;
use crate::device::GpuDevice;
use crate::error::GpuLoadError;
use crate::expert_matrix::ExpertMatrix;
use crate::features::{FeatureNorms, FeatureWeights};
use crate::head_matrix::HeadMatrix;
use crate::layer_weights::{
    AttentionNormWeights, AttentionWeights, DenseWeights, ExpertNorms, ExpertWeights,
    LatentWeights, LayerWeights, MixerWeights, NormWeights, OwnInputWeights, RecurrentWeights,
};
use crate::matrix::{GpuMatrix, MatrixSource, upload_floats};
use crate::own_input::OwnInputs;
use crate::weights::GpuWeights;
use forerun_formats::checkpoint::{LayerTensor, Tensor};
use forerun_formats::{
    Architecture, Attention, AttentionNorm, ExpertTensor, Experts, Input, Latent, Layer, LoadError,
    MatrixTypes, Norm, OwnInput, QkNorms, Recurrent, Rope, TensorSource,
};
use wgpu::Buffer;

/// Uploads the tensors of a model.
pub(crate) struct Uploader<'a> {
    pub(crate) device: &'a GpuDevice,
    pub(crate) architecture: &'a Architecture,
    pub(crate) source: &'a dyn TensorSource,
    pub(crate) types: &'a MatrixTypes,
}

impl Uploader<'_> {
    fn floats(&self, tensor: Tensor) -> Result<Vec<f32>, LoadError> {
        self.source.rows(tensor, &self.architecture.shape(tensor))?.read_all()
    }

    pub(crate) fn vector(&self, tensor: Tensor) -> Result<Buffer, GpuLoadError> {
        upload_floats(self.device, &tensor.to_string(), &self.floats(tensor)?)
    }

    /// Uploads tensors as one matrix. There is a bias for each of them, or none.
    pub(crate) fn matrix(
        &self,
        tensors: &[Tensor],
        biases: &[Tensor],
    ) -> Result<GpuMatrix, GpuLoadError> {
        let source = |(index, &tensor): (usize, &Tensor)| {
            let rows = self.source.rows(tensor, &self.architecture.shape(tensor))?;
            let bias = biases.get(index).map(|&bias| self.floats(bias)).transpose()?;
            let weight_type = self.types.of(tensor);
            Ok(MatrixSource { rows, weight_type, bias: bias.unwrap_or_default() })
        };
        let sources = tensors.iter().enumerate().map(source);
        let sources = sources.collect::<Result<Vec<_>, LoadError>>()?;
        let name = tensors.first().map(Tensor::to_string).unwrap_or_default();
        GpuMatrix::upload(self.device, &name, &sources)
    }

    /// Uploads the weights of a norm, if the model's norms have any.
    pub(crate) fn norm(&self, weight: Tensor, bias: Tensor) -> Result<NormWeights, GpuLoadError> {
        let norm = self.architecture.norm;
        let has_bias = norm == Norm::Layer { bias: true };
        Ok(NormWeights {
            weight: norm.has_weights().then(|| self.vector(weight)).transpose()?,
            bias: has_bias.then(|| self.vector(bias)).transpose()?,
        })
    }

    pub(crate) fn layer(
        &self,
        index: usize,
        layer: &Layer,
        ropes: &mut Vec<Rope>,
    ) -> Result<LayerWeights, GpuLoadError> {
        use LayerTensor as T;
        let of_layer = |part| Tensor::Layer(index, part);
        let matrix = |weights: &[LayerTensor], biases: &[LayerTensor]| {
            self.layer_matrix((index, layer), weights, biases)
        };
        let norm = |weight, bias| self.norm(of_layer(weight), of_layer(bias));
        let output_norm =
            |is_there: bool, weight| is_there.then(|| self.output_norm(index, weight)).transpose();
        let conv = |base, projection: LayerTensor| {
            let upload = |shape| {
                let (base, projection) =
                    (self.vector(of_layer(base))?, matrix(&[projection], &[])?);
                Ok::<_, GpuLoadError>(BlockConvWeights { shape, base, projection })
            };
            layer.block_conv.map(upload).transpose()
        };
        let mixer = match (&layer.attention, layer.recurrent) {
            (Some(shape), _) => {
                MixerWeights::Attention(Box::new(self.attention((index, layer), shape, ropes)?))
            }
            (None, Some(shape)) => {
                MixerWeights::Recurrent(Box::new(self.recurrent((index, layer), shape)?))
            }
            (None, None) => {
                return Err(GpuLoadError::unsupported(format!("layer {index} without a mixer")));
            }
        };
        Ok(LayerWeights {
            attention_norm: self.attention_norm(index, layer.attention_norm)?,
            attention_conv: conv(T::AttentionConv, T::AttentionConvProjection)?,
            output: matrix(&[T::Output, T::MixerOutput], &[T::OutputBias])?,
            attention_output_norm: output_norm(
                layer.attention_output_norm,
                T::AttentionOutputNorm,
            )?,
            mlp_input: layer.mlp_input,
            mlp_norm: match layer.mlp_input.norm() {
                None => None,
                Some(T::AttentionNorm) => Some(norm(T::AttentionNorm, T::AttentionNormBias)?),
                Some(weight) => Some(norm(weight, T::MlpNormBias)?),
            },
            mlp_conv: conv(T::MlpConv, T::MlpConvProjection)?,
            dense: match layer.mlp {
                Some(mlp) => Some(DenseWeights {
                    mlp,
                    gate_up: matrix(&[T::Gate, T::Up], &[T::GateBias, T::UpBias])?,
                    down: matrix(&[T::Down], &[T::DownBias])?,
                }),
                None => None,
            },
            experts: layer.experts.map(|shape| self.experts(index, shape)).transpose()?,
            mlp_output_norm: output_norm(layer.mlp_output_norm, T::MlpOutputNorm)?,
            own_input: match layer.own_input {
                Some(shape) => Some(OwnInputWeights {
                    shape,
                    gate: matrix(&[T::InputGate], &[])?,
                    up: matrix(&[T::InputUp], &[])?,
                    norm: self.output_norm(index, T::InputNorm)?,
                }),
                None => None,
            },
            scalar: match layer.scalar {
                true => self.floats(of_layer(T::Scalar))?.first().copied(),
                false => None,
            },
            mixer,
        })
    }

    fn attention_norm(
        &self,
        index: usize,
        norm: AttentionNorm,
    ) -> Result<AttentionNormWeights, GpuLoadError> {
        use LayerTensor as T;
        let upload = |weight| {
            let of_layer = |part| Tensor::Layer(index, part);
            self.norm(of_layer(weight), of_layer(T::AttentionNormBias))
        };
        Ok(match norm {
            AttentionNorm::None => AttentionNormWeights::None,
            AttentionNorm::Hidden => AttentionNormWeights::Hidden(upload(T::AttentionNorm)?),
            AttentionNorm::EmbeddingAndHidden { normed_residual } => {
                AttentionNormWeights::EmbeddingAndHidden {
                    embedding: upload(T::AttentionNorm)?,
                    hidden: upload(T::HiddenNorm)?,
                    normed_residual,
                }
            }
        })
    }

    /// Uploads what is between features of a target and the first layer.
    pub(crate) fn features(
        &self,
        target: Option<&GpuWeights>,
    ) -> Result<FeatureWeights, GpuLoadError> {
        let architecture = self.architecture;
        let has = |tensor| architecture.tensors().any(|own| own == tensor);
        let norm = |tensor| {
            let weight = has(tensor).then(|| self.vector(tensor)).transpose()?;
            Ok::<_, GpuLoadError>(
                weight.map(|weight| NormWeights { weight: Some(weight), bias: None }),
            )
        };
        let bias = self.source.has(Tensor::FusionBias).then_some(Tensor::FusionBias);
        let projection = || self.matrix(&[Tensor::Fusion], bias.as_slice());
        let parts = architecture.feature_norms().map(|tensor| self.floats(tensor));
        let parts = parts.collect::<Result<Vec<_>, LoadError>>()?;
        let epsilon = architecture.norm_epsilon;
        let norms = match (architecture.input, parts.first().map(Vec::len)) {
            (Input::EmbeddingPlusFeature { final_norm: Some(epsilon), .. }, _) => {
                let target = target.ok_or(LoadError::NoTarget)?;
                let weights = target.final_norm.clone().ok_or(LoadError::NoTarget)?;
                let width = target.architecture().hidden_size;
                Some(FeatureNorms { weights, parts: 1, width, epsilon })
            }
            (_, Some(width)) => {
                let weight = upload_floats(self.device, "norms of features", &parts.concat())?;
                let weights = NormWeights { weight: Some(weight), bias: None };
                Some(FeatureNorms { weights, parts: parts.len(), width, epsilon })
            }
            (_, None) => None,
        };
        Ok(FeatureWeights {
            projection: has(Tensor::Fusion).then(projection).transpose()?,
            prediction: has(Tensor::Prediction)
                .then(|| self.matrix(&[Tensor::Prediction], &[]))
                .transpose()?,
            embedding_norm: norm(Tensor::EmbeddingNorm)?,
            norm: norms,
            context_norm: norm(Tensor::ContextNorm)?,
            mask_features: match has(Tensor::MaskFeatures) {
                true => self.floats(Tensor::MaskFeatures)?,
                false => Vec::new(),
            },
        })
    }

    /// Uploads a norm of what a layer adds. It has no bias.
    fn output_norm(&self, index: usize, weight: LayerTensor) -> Result<NormWeights, GpuLoadError> {
        let weight = Some(self.vector(Tensor::Layer(index, weight))?);
        Ok(NormWeights { weight, bias: None })
    }

    /// Uploads those of a layer's tensors that it has as one matrix, with a bias for each of them,
    /// or none.
    fn layer_matrix(
        &self,
        (index, layer): (usize, &Layer),
        weights: &[LayerTensor],
        biases: &[LayerTensor],
    ) -> Result<GpuMatrix, GpuLoadError> {
        let has = |part: &&LayerTensor| layer.has(**part, self.architecture.norm);
        let tensors = |parts: &[LayerTensor]| -> Vec<Tensor> {
            parts.iter().filter(has).map(|&part| Tensor::Layer(index, part)).collect()
        };
        self.matrix(&tensors(weights), &tensors(biases))
    }

    fn attention(
        &self,
        (index, layer): (usize, &Layer),
        shape: &Attention,
        ropes: &mut Vec<Rope>,
    ) -> Result<AttentionWeights, GpuLoadError> {
        use LayerTensor as T;
        let matrix = |weights: &[LayerTensor], biases: &[LayerTensor]| {
            self.layer_matrix((index, layer), weights, biases)
        };
        let rope = shape.rope.clone().map(|rope| {
            ropes.iter().position(|other| *other == rope).unwrap_or_else(|| {
                ropes.push(rope);
                ropes.len() - 1
            })
        });
        let sinks = || self.vector(Tensor::Layer(index, T::Sinks));
        let gate = || matrix(&[T::AttentionGate], &[T::AttentionGateBias]);
        let projection = match shape.latent {
            None => {
                matrix(&[T::Query, T::Key, T::Value], &[T::QueryBias, T::KeyBias, T::ValueBias])?
            }
            Some(_) => matrix(&[T::Query, T::QueryDown], &[T::QueryDownBias])?,
        };
        let latent = shape.latent.as_deref();
        Ok(AttentionWeights {
            projection,
            head_norms: self.head_norms(index, shape)?,
            sinks: shape.sinks.then(sinks).transpose()?,
            rope,
            gate: shape.gate.then(gate).transpose()?,
            latent: latent.map(|latent| self.latent((index, layer), *latent)).transpose()?,
            shape: shape.clone(),
        })
    }

    fn latent(
        &self,
        (index, layer): (usize, &Layer),
        shape: Latent,
    ) -> Result<LatentWeights, GpuLoadError> {
        use LayerTensor as T;
        let matrix = |weights: &[LayerTensor], biases: &[LayerTensor]| {
            self.layer_matrix((index, layer), weights, biases)
        };
        let vector = |part| self.vector(Tensor::Layer(index, part));
        let queries = || {
            let (norm, up) = (vector(T::QueryLatentNorm)?, matrix(&[T::QueryUp], &[])?);
            Ok::<_, GpuLoadError>((norm, up))
        };
        let up = Tensor::Layer(index, T::LatentUp);
        let (name, weight_type, stored) = (up.to_string(), self.types.of(up), self.floats(up)?);
        let (rank, dim) = (shape.rank, shape.plain_dim);
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for head in stored.chunks_exact((dim + shape.value_dim) * rank) {
            let (of_keys, of_values) = head.split_at(dim * rank);
            let column = |at: usize| of_keys[at..].iter().step_by(rank).copied();
            keys.extend((0..rank).flat_map(column));
            values.extend_from_slice(of_values);
        }
        let upload = |weights: &[f32], size| {
            HeadMatrix::upload(self.device, &name, (weights, weight_type), size)
        };
        Ok(LatentWeights {
            shape,
            queries: shape.query_rank.map(|_| queries()).transpose()?,
            down: matrix(&[T::LatentDown], &[T::LatentDownBias])?,
            norm: vector(T::LatentNorm)?,
            keys: upload(&keys, [rank, dim])?,
            values: upload(&values, [shape.value_dim, rank])?,
        })
    }

    fn recurrent(
        &self,
        (index, layer): (usize, &Layer),
        shape: Recurrent,
    ) -> Result<RecurrentWeights, GpuLoadError> {
        use LayerTensor as T;
        let has = |part: &LayerTensor| layer.has(*part, self.architecture.norm);
        let floats = |part| self.floats(Tensor::Layer(index, part));
        let joined = |parts: [LayerTensor; 3]| {
            let parts = parts.into_iter().filter(has).map(floats);
            parts.collect::<Result<Vec<_>, LoadError>>().map(|parts| parts.concat())
        };
        let upload = |name, values: &[f32]| upload_floats(self.device, name, values);
        let stored = joined([T::QueryConv, T::KeyConv, T::ValueConv])?;
        let position = |at: usize| stored[at..].iter().step_by(shape.kernel).copied();
        let convolution: Vec<f32> = (0..shape.kernel).flat_map(position).collect();
        let biases = joined([T::QueryConvBias, T::KeyConvBias, T::ValueConvBias])?;
        let heads = || {
            let rates = floats(T::DecayRate)?.into_iter().map(|rate| shape.decay_rate(rate));
            let skip =
                if has(&T::Skip) { floats(T::Skip)? } else { vec![0.0; shape.n_value_heads] };
            let all: Vec<f32> = rates.chain(floats(T::DecayBias)?).chain(skip).collect();
            upload("the heads of a mixer", &all)
        };
        let norm = || self.vector(Tensor::Layer(index, T::MixerNorm));
        Ok(RecurrentWeights {
            shape,
            projection: self.layer_matrix(
                (index, layer),
                &[
                    T::MixerQuery,
                    T::MixerKey,
                    T::MixerValue,
                    T::MixerGate,
                    T::MixerBeta,
                    T::MixerDecay,
                ],
                &[],
            )?,
            convolution: upload("a convolution", &convolution)?,
            convolution_bias: shape
                .conv_bias
                .then(|| upload("biases of a convolution", &biases))
                .transpose()?,
            heads: shape.has_matrices().then(heads).transpose()?,
            norm: has(&T::MixerNorm).then(norm).transpose()?,
        })
    }

    /// Uploads the inputs of layers next to the hidden state.
    pub(crate) fn own_inputs(&self, shape: OwnInput) -> Result<OwnInputs, GpuLoadError> {
        Ok(OwnInputs {
            shape,
            table: self.matrix(&[Tensor::LayerInputs], &[])?,
            projection: self.matrix(&[Tensor::LayerInputProjection], &[])?,
            norm: self.vector(Tensor::LayerInputNorm)?,
        })
    }

    fn experts(&self, layer: usize, shape: Experts) -> Result<ExpertWeights, GpuLoadError> {
        use ExpertTensor as E;
        use LayerTensor as T;
        let of_layer = |part| Tensor::Layer(layer, part);
        let bias = shape.router.bias.then_some(of_layer(T::RouterBias));
        let shared_gate = shape.shared_gate;
        let shared_gate = shared_gate.then(|| self.matrix(&[of_layer(T::SharedGate)], &[]));
        let projection = |kinds: &[(E, E)]| {
            let source = |expert, (weight, bias): (E, E)| {
                let tensor = Tensor::Expert(layer, expert, weight);
                let bias = Tensor::Expert(layer, expert, bias);
                let bias = shape.mlp.bias.then(|| self.floats(bias)).transpose()?;
                let rows = self.source.rows(tensor, &self.architecture.shape(tensor))?;
                let weight_type = self.types.of(tensor);
                Ok::<_, LoadError>(MatrixSource {
                    rows,
                    weight_type,
                    bias: bias.unwrap_or_default(),
                })
            };
            let of_kind = |&kind: &(E, E)| {
                (0..shape.n_experts).map(|expert| source(expert, kind)).collect::<Result<_, _>>()
            };
            let sources = kinds.iter().map(of_kind).collect::<Result<Vec<Vec<_>>, LoadError>>()?;
            let name = Tensor::Expert(layer, 0, kinds[0].0).to_string();
            ExpertMatrix::upload(self.device, &name, &sources)
        };
        let gate_up = [(E::Gate, E::GateBias), (E::Up, E::UpBias)];
        Ok(ExpertWeights {
            shape,
            router: self.matrix(&[of_layer(T::Router)], bias.as_slice())?,
            adjustments: self.adjustments(layer, shape)?,
            router_norm: shape.router.own_norm.then(|| self.router_norm(layer)).transpose()?,
            norms: match shape.own_norms {
                true => Some(ExpertNorms {
                    input: self.output_norm(layer, T::ExpertsNorm)?,
                    output: self.output_norm(layer, T::ExpertsOutputNorm)?,
                    dense_output: self.output_norm(layer, T::DenseOutputNorm)?,
                }),
                false => None,
            },
            shared_gate: shared_gate.transpose()?,
            gate_up: projection(if shape.mlp.gated { &gate_up[..] } else { &gate_up[1..] })?,
            down: projection(&[(E::Down, E::DownBias)])?,
        })
    }

    /// Uploads the norm of what a router reads, which is divided by the square root of the width.
    fn router_norm(&self, layer: usize) -> Result<NormWeights, GpuLoadError> {
        let factor = 1.0 / (self.architecture.hidden_size as f32).sqrt();
        let stored = self.floats(Tensor::Layer(layer, LayerTensor::RouterNorm))?;
        let weights: Vec<f32> = stored.into_iter().map(|weight| weight * factor).collect();
        let weight = Some(upload_floats(self.device, "the norm of a router", &weights)?);
        Ok(NormWeights { weight, bias: None })
    }

    /// Uploads what changes the choice and the weights of experts, if something does.
    fn adjustments(&self, layer: usize, shape: Experts) -> Result<Option<Buffer>, GpuLoadError> {
        let (correction, scales) = (shape.router.correction, shape.router.expert_scales);
        if !correction && !scales {
            return Ok(None);
        }
        let stored = |is_there, part, other| match is_there {
            true => self.floats(Tensor::Layer(layer, part)),
            false => Ok(vec![other; shape.n_experts]),
        };
        let corrections = stored(correction, LayerTensor::RouterCorrection, 0.0)?;
        let scales = stored(scales, LayerTensor::ExpertScales, 1.0)?;
        let both = [corrections, scales].concat();
        upload_floats(self.device, "the choice of experts", &both).map(Some)
    }

    fn head_norms(
        &self,
        index: usize,
        attention: &Attention,
    ) -> Result<Option<Buffer>, GpuLoadError> {
        if attention.qk_norms == QkNorms::None {
            return Ok(None);
        }
        let mut weights = match attention.n_heads {
            // The norm of keys comes second.
            0 => vec![0.0; attention.head_dim],
            _ => self.floats(Tensor::Layer(index, LayerTensor::QueryNorm))?,
        };
        if attention.keys_of.is_none() {
            weights.extend(self.floats(Tensor::Layer(index, LayerTensor::KeyNorm))?);
        }
        upload_floats(self.device, "norms of heads", &weights).map(Some)
    }
}
