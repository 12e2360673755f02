//! A model's weights, packed in the layout that the kernels read.

mod latent;

use crate::cpu_pages::CpuPages;
use crate::kernels::{AttentionShape, NormWeights, PackedMatrix, RecurrentWeights, Rope};
use crate::pipeline::LayerSizes;
use crate::stages::Stage;
use crate::tensor_parallel::{LayerWidths, Share, Widths};
use forerun_cache::PageStorage;
use forerun_core::TokenId;
use forerun_formats::checkpoint::LayerTensor;
use forerun_formats::checkpoint::{Tensor, TensorRows};
use forerun_formats::{
    Architecture, Attention, AttentionNorm, BlockConv, BlockType, CacheType, Checkpoint,
    ExpertTensor, Experts, Head, Input, Layer, LoadError, MatrixTypes, Mlp, ModelTypes, Norm,
    OwnInput, QkNorms, Recurrent, TensorSource, WeightType, WeightTypes,
};
pub(crate) use latent::PackedLatent;
use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;

/// A model's packed weights. Replicas on devices that share memory share them.
pub struct Weights {
    architecture: Architecture,
    /// The part of the model that this process or thread computes, which is usually the whole.
    share: Share,
    /// The layers as the share computes them. Those on another device have no attention and keep
    /// nothing.
    own_layers: Vec<Layer>,
    /// The packed layers. The others are on other devices.
    packed_layers: Range<usize>,
    /// How the members share the vocabulary, in the embedding and the head.
    pub(crate) vocabulary: Widths,
    cache_type: CacheType,
    /// The embedding. A drafter may share its target's.
    pub(crate) embedding: Arc<PackedMatrix>,
    /// Embeddings of positions, if the model has any.
    positions: Vec<f32>, // [rows, hidden]
    /// Embeddings of the mask tokens, which have the ids after the vocabulary.
    masks: Vec<f32>, // [masks, hidden]
    /// The projection to the first layer's input.
    pub(crate) fusion: Option<PackedMatrix>,
    /// The norm of the embedding before the projection, if it has one (MTP).
    pub(crate) embedding_norm: Option<NormWeights>,
    /// The norms of the parts of a feature before its projection, or of the whole.
    pub(crate) feature_norms: Vec<NormWeights>, // [parts][part width]
    /// The norm of a projected feature, if it has one (DFlash).
    pub(crate) context_norm: Option<NormWeights>,
    /// What rows of mask tokens read instead of the target's features.
    mask_features: Vec<f32>, // [masks, feature width]
    /// The packed ones.
    layers: Vec<LayerWeights>,
    /// The inputs that layers have next to the hidden state, if they have any.
    pub(crate) own_inputs: Option<PackedOwnInputs>,
    /// The different position embeddings of the layers.
    pub(crate) ropes: Vec<Rope>,
    /// `None` if the head reads the hidden state without a norm.
    pub(crate) final_norm: Option<NormWeights>,
    pub(crate) head: Arc<PackedMatrix>,
}

/// What computes the inputs that layers have next to the hidden state.
pub(crate) struct PackedOwnInputs {
    table: PackedMatrix,                 // [vocab, layers · width]
    pub(crate) projection: PackedMatrix, // [layers · width, hidden]
    /// The norm of each layer's part: `[width]`.
    pub(crate) norm: Vec<f32>,
}

impl PackedOwnInputs {
    /// Writes a token's row of the table: `[layers · width]`.
    pub(crate) fn stored(&self, token: TokenId, row: &mut [f32]) {
        self.table.unpack_row(token as usize, row);
    }
}

/// What a layer adds because of its own input.
pub(crate) struct PackedOwnInput {
    /// The gated product, with the activation function of the gate.
    pub(crate) shape: Mlp,
    pub(crate) gate: PackedMatrix, // [width, hidden]
    pub(crate) up: PackedMatrix,   // [hidden, width]
    pub(crate) norm: NormWeights,
}

/// The packed weights of one layer: those of a share.
pub(crate) struct LayerWeights {
    /// How members share what they gather.
    pub(crate) widths: LayerWidths,
    pub(crate) attention_norm: PackedNorm,
    /// The shape of the attention, with its window. It has no heads if the layer has a recurrent
    /// mixer.
    pub(crate) shape: AttentionShape,
    /// The recurrent mixer, if the layer has one instead of attention.
    pub(crate) recurrent: Option<RecurrentWeights>,
    /// The index of the layer's position embedding, if it has one.
    pub(crate) rope: Option<usize>,
    /// What attention or the mixer reads: `[(n_heads + 2 · n_kv_heads) · head_dim, inputs]` for
    /// attention without gates and latent vectors.
    pub(crate) qkv: Projection,
    pub(crate) latent: Option<PackedLatent>,
    pub(crate) qk_norms: Option<PackedQkNorms>,
    /// The weights of the norm of each head's values, if there is one. All are 1: `[head_dim]`.
    pub(crate) value_norm: Option<Vec<f32>>,
    /// The layer to whose keys and values this one attends, if it has none of its own.
    pub(crate) keys_of: Option<usize>,
    /// Whether the rows of a block also attend to the later rows of their block.
    pub(crate) sees_block: bool,
    /// The limit of queries, keys and values, if there is one.
    pub(crate) qkv_limit: Option<f32>,
    /// The score of each head's attention sink, if the layer has any: `[n_heads]`.
    pub(crate) sinks: Option<Vec<f32>>,
    pub(crate) output: Projection, // [hidden, n_heads · head_dim], or [hidden, value width]
    pub(crate) attention_output_norm: Option<NormWeights>,
    /// The norm of what the MLP and the experts read, if there is one.
    pub(crate) mlp_norm: Option<NormWeights>,
    /// Whether the MLP and the experts read the hidden state before attention has been added.
    pub(crate) mlp_is_before_attention: bool,
    pub(crate) mlp: Option<PackedMlp>,
    pub(crate) experts: Option<PackedExperts>,
    pub(crate) mlp_output_norm: Option<NormWeights>,
    pub(crate) own_input: Option<PackedOwnInput>,
    /// The factor of the hidden state after the layer, if there is one.
    pub(crate) scalar: Option<f32>,
    /// The convolutions over blocks around attention and around the MLP, if there are any.
    pub(crate) attention_conv: Option<PackedBlockConv>,
    pub(crate) mlp_conv: Option<PackedBlockConv>,
}

/// The convolutions over blocks of what attention or the MLP reads and of what it adds.
pub(crate) struct PackedBlockConv {
    pub(crate) base: [Vec<f32>; 2],      // [taps, hidden] each
    pub(crate) projection: PackedMatrix, // [2 · taps · groups, hidden]
    pub(crate) group_size: usize,
}

impl LayerWeights {
    /// Returns the width of what attention or the mixer reads.
    pub(crate) fn row_width(&self) -> usize {
        let of_mixer = self.recurrent.as_ref().map(|mixer| mixer.shape.projected_width());
        of_mixer.unwrap_or_else(|| self.shape.row_width())
    }

    /// Returns the width of what attention or the mixer computes.
    pub(crate) fn mixed_width(&self) -> usize {
        let of_mixer = self.recurrent.as_ref().map(|mixer| mixer.shape.value_width());
        of_mixer.unwrap_or_else(|| self.shape.out_width())
    }

    fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let Self { qkv, latent, output, mlp, experts, .. } = self;
        let attention = [qkv, output].into_iter().flat_map(Projection::matrices);
        let attention = attention.chain(latent.iter().flat_map(PackedLatent::matrices));
        let routers = experts
            .iter()
            .flat_map(|experts| std::iter::once(&experts.router).chain(&experts.shared_gate));
        let experts = experts.iter().flat_map(|experts| &experts.experts);
        let mlps = mlp.iter().chain(experts).flat_map(PackedMlp::matrices);
        let own_input = self.own_input.iter().flat_map(|input| [&input.gate, &input.up]);
        let convs = self.attention_conv.iter().chain(&self.mlp_conv);
        let convs = convs.map(|conv| &conv.projection);
        attention.chain(routers).chain(mlps).chain(own_input).chain(convs)
    }

    /// Returns the number of bytes of weights that a pass over some rows reads, as
    /// [`Weights::bytes_read`] does.
    pub(crate) fn bytes_read(&self, rows: usize) -> usize {
        let all: usize = self.matrices().map(PackedMatrix::bytes).sum();
        all - self.experts.as_ref().map_or(0, |experts| experts.unread_bytes(rows))
    }
}

/// The norms of queries and keys.
pub(crate) struct PackedQkNorms {
    pub(crate) queries: Vec<f32>,
    pub(crate) keys: Vec<f32>,
    /// Whether all heads have one norm together, rather than one each.
    pub(crate) whole: bool,
}

pub(crate) struct PackedMlp {
    pub(crate) shape: Mlp,
    /// Gate, if there is one, and up: `[2 · intermediate, hidden]`.
    pub(crate) gate_up: Projection,
    pub(crate) down: Projection, // [hidden, intermediate]
}

impl PackedMlp {
    fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        self.gate_up.matrices().iter().chain(self.down.matrices())
    }
}

pub(crate) struct PackedExperts {
    pub(crate) shape: Experts,
    pub(crate) router: PackedMatrix, // [experts, hidden], f32
    /// What is added to the experts' weights to choose some of them: `[experts]`.
    pub(crate) correction: Option<Vec<f32>>,
    /// The factors of the experts' weights, if they have any: `[experts]`.
    pub(crate) scales: Option<Vec<f32>>,
    /// The norm of what the router reads, if it has one of its own.
    pub(crate) router_norm: Option<NormWeights>,
    pub(crate) norms: Option<ExpertNorms>,
    /// The projection whose sigmoid is the factor of the dense MLP: `[1, hidden]`, f32.
    pub(crate) shared_gate: Option<PackedMatrix>,
    pub(crate) experts: Vec<PackedMlp>,
}

impl PackedExperts {
    /// Returns the bytes of the experts that no row of a pass chooses: the expected number.
    fn unread_bytes(&self, rows: usize) -> usize {
        let all = self.experts.iter().flat_map(PackedMlp::matrices);
        let bytes: usize = all.map(PackedMatrix::bytes).sum();
        let n_experts = self.shape.n_experts as f64;
        let unread = n_experts - self.shape.expected_distinct(rows);
        (bytes as f64 / n_experts * unread) as usize
    }
}

/// The norms that experts have next to a dense MLP.
pub(crate) struct ExpertNorms {
    pub(crate) input: NormWeights,
    pub(crate) output: NormWeights,
    /// That of what the dense MLP adds.
    pub(crate) dense_output: NormWeights,
}

/// A linear layer as matrices whose outputs follow one another: one for each [`ProjectionPart`].
/// The matrices are either of one float type or all quantised.
pub(crate) struct Projection(Vec<PackedMatrix>);

impl Projection {
    pub(crate) fn matrices(&self) -> &[PackedMatrix] {
        &self.0
    }

    pub(crate) fn inputs(&self) -> usize {
        self.0.first().map_or(0, PackedMatrix::inputs)
    }

    /// Returns the number of outputs: those of a share.
    pub(crate) fn outputs(&self) -> usize {
        self.0.iter().map(PackedMatrix::outputs).sum()
    }

    /// Returns the same projection with a bias: `[outputs]`.
    fn with_bias(self, mut bias: &[f32]) -> Self {
        let with_part = |matrix: PackedMatrix| {
            let (part, rest) = bias.split_at(matrix.outputs());
            bias = rest;
            matrix.with_bias(Some(part.to_vec()))
        };
        Self(self.0.into_iter().map(with_part).collect())
    }
}

/// The weights of the norm before a layer's attention: `[hidden]` each.
pub(crate) enum PackedNorm {
    None,
    Hidden(NormWeights),
    EmbeddingAndHidden { embedding: NormWeights, hidden: NormWeights, normed_residual: bool },
}

/// Reads and packs tensors.
pub(crate) struct WeightPacker<'a> {
    pub(crate) source: &'a dyn TensorSource,
    pub(crate) types: MatrixTypes,
    /// The part of a model to pack, if it is not the whole.
    pub(crate) part: Option<(&'a Architecture, PackedPart<'a>)>,
}

impl WeightPacker<'_> {
    /// Reads a norm, a bias, or another tensor that no matrix kernel reads.
    pub(crate) fn floats(&self, tensor: Tensor, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let mut values = self.source.rows(tensor, shape)?.read_all()?;
        let (rows, width) = (self.rows(tensor, shape), shape.iter().skip(1).product::<usize>());
        values.truncate(rows.end * width);
        values.drain(..rows.start * width);
        Ok(values)
    }

    /// Returns the rows of a tensor to pack.
    fn rows(&self, tensor: Tensor, shape: &[usize]) -> Range<usize> {
        match &self.part {
            Some((architecture, part)) => part.rows(architecture, tensor),
            None => 0..shape.first().copied().unwrap_or(0),
        }
    }

    /// Packs a matrix.
    pub(crate) fn matrix(
        &self,
        tensor: Tensor,
        shape: &[usize],
    ) -> Result<PackedMatrix, LoadError> {
        self.part(tensor, shape)?.pack()
    }

    /// Packs a projection from tensors with the same inputs.
    fn projection(&self, tensors: &[(Tensor, Vec<usize>)]) -> Result<Projection, LoadError> {
        let parts = self.parts(tensors)?;
        Ok(Projection(parts.iter().map(ProjectionPart::pack).collect::<Result<_, _>>()?))
    }

    fn projection_bytes(&self, tensors: &[(Tensor, Vec<usize>)]) -> Result<usize, LoadError> {
        let parts = self.parts(tensors)?;
        Ok(parts.iter().map(ProjectionPart::packed_bytes).fold(0, usize::saturating_add))
    }

    pub(crate) fn matrix_bytes(&self, tensor: Tensor, shape: &[usize]) -> Result<usize, LoadError> {
        Ok(self.part(tensor, shape)?.packed_bytes())
    }

    fn part(&self, tensor: Tensor, shape: &[usize]) -> Result<ProjectionPart<'_>, LoadError> {
        let rows = self.source.rows(tensor, shape)?;
        let weight_type = self.types.of(tensor);
        let block_type = rows.block_type();
        let stored = block_type.filter(|stored| weight_type == WeightType::Quantized(*stored));
        let wanted = self.rows(tensor, shape);
        Ok(ProjectionPart { weight_type, stored, tensors: vec![(rows, wanted)] })
    }

    /// Joins successive tensors that are packed in the same way.
    fn parts(
        &self,
        tensors: &[(Tensor, Vec<usize>)],
    ) -> Result<Vec<ProjectionPart<'_>>, LoadError> {
        let mut parts: Vec<ProjectionPart<'_>> = Vec::new();
        for (tensor, shape) in tensors {
            let part = self.part(*tensor, shape)?;
            let is_same = |last: &&mut ProjectionPart<'_>| {
                (last.weight_type, last.stored) == (part.weight_type, part.stored)
            };
            match parts.last_mut().filter(is_same) {
                Some(last) => last.tensors.extend(part.tensors),
                None => parts.push(part),
            }
        }
        Ok(parts)
    }
}

/// Tensors with the same inputs that are packed as one matrix, with their outputs one after
/// another.
struct ProjectionPart<'a> {
    weight_type: WeightType,
    /// The type of the stored blocks, if they are packed as they are.
    stored: Option<BlockType>,
    /// With the rows to pack.
    tensors: Vec<(TensorRows<'a>, Range<usize>)>,
}

impl ProjectionPart<'_> {
    fn size(&self) -> [usize; 2] {
        let outputs = self.tensors.iter().map(|(_, rows)| rows.len()).sum();
        [outputs, self.tensors.first().map_or(0, |(tensor, _)| tensor.columns())]
    }

    fn packed_bytes(&self) -> usize {
        PackedMatrix::packed_bytes(self.weight_type, self.size())
    }

    /// Reads the tensors row by row, so that only their packed form is in memory as a whole.
    fn pack(&self) -> Result<PackedMatrix, LoadError> {
        let rows = self.tensors.iter();
        let rows = rows.flat_map(|(tensor, rows)| rows.clone().map(move |row| (tensor, row)));
        let rows: Vec<_> = rows.collect();
        let packed = match self.stored {
            Some(block_type) => PackedMatrix::pack_blocks(block_type, self.size(), |output| {
                let (tensor, index) = rows[output];
                Ok::<_, LoadError>(tensor.stored(index)?.unwrap_or_default())
            })?,
            None => PackedMatrix::pack_rows(
                self.weight_type,
                self.size(),
                |output, row: &mut [f32]| {
                    let (tensor, index) = rows[output];
                    tensor.read(index, row)
                },
            )?,
        };
        self.tensors.iter().for_each(|(tensor, _)| tensor.release());
        Ok(packed)
    }
}

/// Packs the layers of an architecture.
struct LayerPacker<'a> {
    packer: &'a WeightPacker<'a>,
    architecture: &'a Architecture,
    share: Share,
    index: usize,
    layer: &'a Layer,
    /// The layer as the share computes it.
    own: &'a Layer,
}

impl LayerPacker<'_> {
    fn vector(&self, tensor: LayerTensor) -> Result<Vec<f32>, LoadError> {
        let tensor = Tensor::Layer(self.index, tensor);
        self.packer.floats(tensor, &self.architecture.shape(tensor))
    }

    /// Packs a projection, with its biases if the layer has any.
    fn projection(
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
        let has_bias = self.layer.has(bias, self.architecture.norm);
        Ok(NormWeights {
            weight: match self.architecture.norm.has_weights() {
                true => self.vector(weight)?,
                false => vec![1.0; self.architecture.hidden_size],
            },
            bias: has_bias.then(|| self.vector(bias)).transpose()?,
            epsilon: self.architecture.norm_epsilon,
        })
    }

    /// Reads a norm without a bias.
    fn plain_norm(&self, weight: LayerTensor) -> Result<NormWeights, LoadError> {
        let epsilon = self.architecture.norm_epsilon;
        Ok(NormWeights { weight: self.vector(weight)?, bias: None, epsilon })
    }

    fn pack(&self, ropes: &mut Vec<Rope>) -> Result<LayerWeights, LoadError> {
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
            let has_keys = layer.has(T::KeyNorm, self.architecture.norm);
            let keys = has_keys.then(|| self.vector(T::KeyNorm)).transpose()?.unwrap_or_default();
            let queries = self.vector(T::QueryNorm)?;
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

/// The part of a model that is packed.
#[derive(Clone)]
pub(crate) struct PackedPart<'a> {
    share: Share,
    /// The model that has the embedding or the head, if this one does not.
    target: Option<&'a Weights>,
    /// The layers that are not on another device.
    layers: Range<usize>,
    embedding: bool,
    head: bool,
}

impl PackedPart<'_> {
    const WHOLE: Self = Self {
        share: Share::WHOLE,
        target: None,
        layers: 0..usize::MAX,
        embedding: true,
        head: true,
    };

    /// Returns the rows of a tensor to pack.
    fn rows(&self, architecture: &Architecture, tensor: Tensor) -> Range<usize> {
        let is_used = match tensor {
            Tensor::Embedding => self.embedding,
            Tensor::Head | Tensor::HeadBias => self.head,
            _ => true,
        };
        if is_used { self.share.rows(architecture, tensor) } else { 0..0 }
    }

    fn layers_of<'l>(
        &self,
        layers: impl IntoIterator<Item = &'l Layer>,
    ) -> impl Iterator<Item = (usize, &'l Layer)> {
        layers.into_iter().enumerate().take(self.layers.end).skip(self.layers.start)
    }

    /// Returns the layers as this part computes them. Those on other devices keep nothing here.
    fn own_layers(&self, architecture: &Architecture) -> Vec<Layer> {
        let own = |(index, layer): (usize, &Layer)| match self.layers.contains(&index) {
            true => self.share.of_layer(layer),
            false => Layer { attention: None, recurrent: None, ..layer.clone() },
        };
        architecture.layers.iter().enumerate().map(own).collect()
    }
}

/// The tensors of a projection, with their shapes.
type MatrixTensors = Vec<(Tensor, Vec<usize>)>;

/// Returns the matrices of the layers of a part.
fn layer_matrices(
    architecture: &Architecture,
    part: &PackedPart<'_>,
) -> impl Iterator<Item = MatrixTensors> {
    let with_shape = |tensor| (tensor, architecture.shape(tensor));
    part.layers_of(&architecture.layers).flat_map(move |(index, layer)| {
        let dense = LayerTensor::PROJECTIONS.map(|tensors| -> MatrixTensors {
            let stored = tensors.iter().filter(|tensor| layer.has(**tensor, architecture.norm));
            stored.map(|&tensor| with_shape(Tensor::Layer(index, tensor))).collect()
        });
        let experts = layer.experts.into_iter().flat_map(move |experts| {
            (0..experts.n_experts).flat_map(move |expert| {
                let parts = ExpertTensor::PROJECTIONS.map(|parts| -> MatrixTensors {
                    let gated =
                        |part: &&ExpertTensor| experts.mlp.gated || **part != ExpertTensor::Gate;
                    let parts = parts.iter().filter(gated);
                    parts.map(|&part| with_shape(Tensor::Expert(index, expert, part))).collect()
                });
                parts.into_iter()
            })
        });
        let routers = [LayerTensor::Router, LayerTensor::SharedGate].into_iter();
        let routers = routers.filter(|router| layer.has(*router, architecture.norm));
        let routers = routers.map(move |router| vec![with_shape(Tensor::Layer(index, router))]);
        let dense = dense.into_iter().filter(|tensors| !tensors.is_empty());
        dense.chain(routers).chain(experts)
    })
}

impl Weights {
    /// Reads and packs all tensors of a checkpoint, in the smallest type that loses nothing.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        Self::load_with(checkpoint, ModelTypes::default(), &mut |_| ())
    }

    /// Reads all tensors and packs the matrices in given types, on all cores. In addition to the
    /// packed weights, this needs memory for a few rows only.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_as(
        checkpoint: &Checkpoint,
        types: impl Into<ModelTypes>,
    ) -> Result<Self, LoadError> {
        Self::load_with(checkpoint, types.into(), &mut |_| ())
    }

    /// Reads and packs all tensors, and reports progress. `on_layer` receives the number of layers
    /// packed so far.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_with(
        checkpoint: &Checkpoint,
        types: ModelTypes,
        on_layer: &mut dyn FnMut(usize),
    ) -> Result<Self, LoadError> {
        Self::load_share(checkpoint, types, Share::WHOLE, on_layer)
    }

    /// Reads and packs a member's share of the tensors, as [`Self::load_with`] does with all.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_share(
        checkpoint: &Checkpoint,
        types: ModelTypes,
        share: Share,
        on_layer: &mut dyn FnMut(usize),
    ) -> Result<Self, LoadError> {
        let architecture = checkpoint.architecture().clone();
        let part = PackedPart { share, ..PackedPart::WHOLE };
        Self::pack(architecture, checkpoint, types, &part, on_layer)
    }

    /// Reads and packs all tensors but those of the layers before `first_layer`, which are on
    /// another device. A [`SplitModel`](forerun_model::SplitModel) computes the whole. The layers
    /// that `on_layer` receives include them.
    ///
    /// # Errors
    /// If the source lacks a tensor, or a value is not finite.
    ///
    /// # Panics
    /// If there are fewer layers: a programming error.
    pub fn load_from_layer(
        first_layer: usize,
        architecture: Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
        on_layer: &mut dyn FnMut(usize),
    ) -> Result<Self, LoadError> {
        assert!(first_layer <= architecture.layers.len(), "a layer of the model, or its end");
        Self::pack(
            architecture,
            source,
            types,
            &PackedPart { layers: first_layer..usize::MAX, ..PackedPart::WHOLE },
            on_layer,
        )
    }

    /// Reads and packs the tensors of a pipeline stage, as [`Self::load_with`] does with all. The
    /// first stage has the embedding, and the last one the head. `on_layer` receives the number of
    /// layers of the stage packed so far.
    ///
    /// # Errors
    /// [`LoadError::Stages`] if the model cannot be split into so many stages; if a tensor is
    /// missing or a value is not finite.
    pub fn load_stage(
        checkpoint: &Checkpoint,
        types: ModelTypes,
        stage: Stage,
        on_layer: &mut dyn FnMut(usize),
    ) -> Result<Self, LoadError> {
        let architecture = checkpoint.architecture().clone();
        let part = Self::part_of_stage(&architecture, checkpoint, types, stage)?;
        let first = part.layers.start;
        let on_layer = &mut |layers: usize| on_layer(layers - first);
        Self::pack(architecture, checkpoint, types, &part, on_layer)
    }

    /// Returns the layers of a pipeline stage. They are chosen so that the largest stage has as few
    /// bytes of matrices as possible.
    ///
    /// # Errors
    /// [`LoadError::Stages`] if the model cannot be split into so many stages; if a tensor is
    /// missing.
    pub fn layers_of_stage(
        checkpoint: &Checkpoint,
        types: ModelTypes,
        stage: Stage,
    ) -> Result<Range<usize>, LoadError> {
        let architecture = checkpoint.architecture();
        Ok(Self::part_of_stage(architecture, checkpoint, types, stage)?.layers)
    }

    fn part_of_stage(
        architecture: &Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
        stage: Stage,
    ) -> Result<PackedPart<'static>, LoadError> {
        let types = MatrixTypes::of_model(types.weights, architecture, source)?;
        let packer = WeightPacker { source, types, part: None };
        let of_layer = |(index, layer): (usize, &Layer)| {
            let part = PackedPart { layers: index..index + 1, ..PackedPart::WHOLE };
            let expansion = PackedLatent::expansion_bytes(&packer.types, index, layer);
            layer_matrices(architecture, &part).try_fold(expansion, |sum, tensors| {
                Ok::<_, LoadError>(sum.saturating_add(packer.projection_bytes(&tensors)?))
            })
        };
        let layers = architecture.layers.iter().enumerate().map(of_layer);
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let bytes = |tensor| packer.matrix_bytes(tensor, &architecture.shape(tensor));
        let is_tied = architecture.head == Head::Embedding;
        // Every stage computes the inputs of its own layers from the embedding.
        let has_inputs = architecture.own_input().is_some();
        // What all stages have does not count.
        let first = if has_inputs { 0 } else { bytes(Tensor::Embedding)? };
        let last = match is_tied {
            true => first,
            false => bytes(Tensor::Head)?,
        };
        let layers = stage.layers(&architecture.layers, &LayerSizes { layers, first, last })?;
        let is_last = layers.end == architecture.layers.len();
        Ok(PackedPart {
            embedding: layers.start == 0 || has_inputs || (is_last && is_tied),
            head: is_last,
            layers,
            ..PackedPart::WHOLE
        })
    }

    /// Returns the memory that a stage needs at least, as [`Self::least_memory`] does for a share.
    ///
    /// # Errors
    /// As [`Self::load_stage`].
    pub fn least_memory_of_stage(
        checkpoint: &Checkpoint,
        types: ModelTypes,
        stage: Stage,
    ) -> Result<usize, LoadError> {
        let architecture = checkpoint.architecture();
        let part = Self::part_of_stage(architecture, checkpoint, types, stage)?;
        Self::least_memory_of_part(architecture, checkpoint, types, &part)
    }

    /// Reads and packs the embedding and the head alone: what a drafter shares with a target that
    /// is on another device. A model with them has no layers.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_without_layers(
        checkpoint: &Checkpoint,
        types: ModelTypes,
    ) -> Result<Self, LoadError> {
        let architecture = Architecture { layers: Vec::new(), ..checkpoint.architecture().clone() };
        Self::load_architecture(architecture, checkpoint, None, types)
    }

    /// Reads the final norm alone: what a drafter that is a whole model shares with a target
    /// (PARD-2). A model with it has no layers, no embedding and no head.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_final_norm(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        let (layers, positions) = (Vec::new(), None);
        let architecture = Architecture {
            layers,
            positions,
            head_bias: false,
            ..checkpoint.architecture().clone()
        };
        let part = PackedPart { embedding: false, head: false, ..PackedPart::WHOLE };
        Self::pack(architecture, checkpoint, ModelTypes::default(), &part, &mut |_| ())
    }

    /// Reads and packs the tensors of an architecture, which may share the embedding and the head
    /// of `target`.
    ///
    /// # Errors
    /// When a tensor is missing, or has the wrong dtype or shape, a value is not finite, or the
    /// target is missing.
    pub fn load_architecture(
        architecture: Architecture,
        source: &dyn TensorSource,
        target: Option<&Self>,
        types: ModelTypes,
    ) -> Result<Self, LoadError> {
        Self::pack(
            architecture,
            source,
            types,
            &PackedPart { target, ..PackedPart::WHOLE },
            &mut |_| (),
        )
    }

    fn pack(
        architecture: Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
        part: &PackedPart<'_>,
        on_layer: &mut dyn FnMut(usize),
    ) -> Result<Self, LoadError> {
        let PackedPart { share, target, .. } = *part;
        let matrix_types = MatrixTypes::of_model(types.weights, &architecture, source)?;
        let all_types: Vec<WeightType> = matrix_types.all().collect();
        let of_part = Some((&architecture, part.clone()));
        let packer = WeightPacker { source, types: matrix_types, part: of_part };
        let matrix = |tensor| packer.matrix(tensor, &architecture.shape(tensor));
        let floats = |tensor| packer.floats(tensor, &architecture.shape(tensor));
        let shared = || target.ok_or(LoadError::NoTarget);
        let head_bias = architecture.head_bias.then(|| floats(Tensor::HeadBias)).transpose()?;
        // A tied head with a bias is the embedding with a bias, which has no effect there.
        let (own_bias, tied_bias) = match architecture.head {
            // Stages before the last one have no head.
            Head::Embedding => (None, head_bias.filter(|_| part.head)),
            _ => (head_bias, None),
        };
        let head = match architecture.head {
            Head::Own => Some(Arc::new(matrix(Tensor::Head)?.with_bias(own_bias))),
            Head::Target => Some(match &architecture.head_tokens {
                None => Arc::clone(&shared()?.head),
                Some(tokens) => Arc::new(shared()?.head.select(tokens)?),
            }),
            Head::Embedding => None,
        };
        let embedding = match architecture.shares_embedding {
            true => Arc::clone(&shared()?.embedding),
            false => Arc::new(matrix(Tensor::Embedding)?.with_bias(tied_bias)),
        };
        let (mut layers, mut ropes) = (Vec::new(), Vec::new());
        let own_layers = part.own_layers(&architecture);
        for (index, layer) in part.layers_of(&architecture.layers) {
            on_layer(index);
            let own = &own_layers[index];
            let (packer, architecture) = (&packer, &architecture);
            let layer = LayerPacker { packer, architecture, share, index, layer, own };
            layers.push(layer.pack(&mut ropes)?);
        }
        let n_layers = architecture.layers.len();
        let packed_layers = part.layers.start..part.layers.end.min(n_layers);
        on_layer(packed_layers.end);
        let final_norm = || {
            let has_bias = architecture.norm == Norm::Layer { bias: true };
            Ok::<_, LoadError>(NormWeights {
                weight: match architecture.norm.has_weights() {
                    true => floats(Tensor::FinalNorm)?,
                    false => vec![1.0; architecture.hidden_size],
                },
                bias: has_bias.then(|| floats(Tensor::FinalNormBias)).transpose()?,
                epsilon: architecture.norm_epsilon,
            })
        };
        let final_norm = architecture.final_norm.then(final_norm).transpose()?;
        let positions = architecture.positions.map(|_| floats(Tensor::Positions)).transpose()?;
        let has_masks = architecture.mask_tokens > 0;
        let masks = has_masks.then(|| floats(Tensor::MaskEmbeddings)).transpose()?;
        let fusion = || {
            let has_bias = source.has(Tensor::FusionBias);
            let bias = has_bias.then(|| floats(Tensor::FusionBias)).transpose()?;
            Ok::<_, LoadError>(matrix(Tensor::Fusion)?.with_bias(bias))
        };
        let fusion = architecture.fusion_inputs().map(|_| fusion()).transpose()?;
        let has_mask_features = has_masks && fusion.is_some();
        let mask_features = has_mask_features.then(|| floats(Tensor::MaskFeatures)).transpose()?;
        let feature_norm = |tensor| {
            let (weight, epsilon) = (floats(tensor)?, architecture.norm_epsilon);
            Ok::<_, LoadError>(NormWeights { weight, bias: None, epsilon })
        };
        let has_embedding_norm = architecture.input == Input::NormedEmbeddingAndFeature;
        let embedding_norm =
            has_embedding_norm.then(|| feature_norm(Tensor::EmbeddingNorm)).transpose()?;
        let is_block = matches!(architecture.input, Input::Block { .. });
        let context_norm = is_block.then(|| feature_norm(Tensor::ContextNorm)).transpose()?;
        let feature_norms = match architecture.input {
            Input::EmbeddingPlusFeature { final_norm: Some(_), .. } => {
                shared()?.final_norm.iter().cloned().collect()
            }
            _ => architecture.feature_norms().map(feature_norm).collect::<Result<_, _>>()?,
        };
        let own_inputs = || {
            Ok::<_, LoadError>(PackedOwnInputs {
                table: matrix(Tensor::LayerInputs)?,
                projection: matrix(Tensor::LayerInputProjection)?,
                norm: floats(Tensor::LayerInputNorm)?,
            })
        };
        let own_inputs = architecture.own_input().map(|_| own_inputs()).transpose()?;
        let mut weights = Self {
            head: head.unwrap_or_else(|| Arc::clone(&embedding)),
            vocabulary: Widths::of_outputs(share, architecture.vocab_size),
            architecture,
            share,
            own_layers,
            packed_layers,
            cache_type: CacheType::F32,
            embedding,
            positions: positions.unwrap_or_default(),
            masks: masks.unwrap_or_default(),
            fusion,
            embedding_norm,
            feature_norms,
            context_norm,
            mask_features: mask_features.unwrap_or_default(),
            layers,
            own_inputs,
            ropes,
            final_norm,
        };
        // All parts have caches of one type, also if some have matrices of f32 only.
        let elsewhere = all_types.into_iter().filter(|_| !weights.has_all_layers());
        let matrices = weights.matrices().map(PackedMatrix::weight_type).chain(elsewhere);
        weights.cache_type = types.cache.unwrap_or_else(|| CacheType::for_weights(matrices));
        Ok(weights)
    }

    /// Returns what the model computes.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Returns the part of the model that these weights are.
    #[must_use]
    pub fn share(&self) -> Share {
        self.share
    }

    /// Returns the layers as the share computes them.
    pub(crate) fn own_layers(&self) -> &[Layer] {
        &self.own_layers
    }

    /// Returns the layers whose weights are here.
    #[must_use]
    pub fn packed_layers(&self) -> Range<usize> {
        self.packed_layers.clone()
    }

    /// Returns whether the weights of all layers are here, as a whole or a share of each.
    #[must_use]
    pub fn has_all_layers(&self) -> bool {
        self.layers.len() == self.n_layers()
    }

    /// Returns the packed weights of some layers.
    pub(crate) fn layers(&self, layers: Range<usize>) -> &[LayerWeights] {
        let first = self.packed_layers.start;
        &self.layers[layers.start - first..layers.end - first]
    }

    pub(crate) fn layer(&self, layer: usize) -> &LayerWeights {
        &self.layers[layer - self.packed_layers.start]
    }

    /// Returns the number of layers of the model, also of those that are on another device.
    pub(crate) fn n_layers(&self) -> usize {
        self.architecture.layers.len()
    }

    /// Whether the model has recurrent layers.
    pub(crate) fn has_states(&self) -> bool {
        self.layers.iter().any(|layer| layer.recurrent.is_some())
    }

    /// Returns the memory that a share of a model needs at least, in bytes: its packed weights, and
    /// one page of its cache; also two states, the old one and the new one, if it has recurrent
    /// layers. Matrices that it shares with its target count as nothing.
    ///
    /// # Errors
    /// When a tensor is missing, or has the wrong dtype or shape.
    pub fn least_memory(
        architecture: &Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
        share: Share,
    ) -> Result<usize, LoadError> {
        let part = PackedPart { share, ..PackedPart::WHOLE };
        Self::least_memory_of_part(architecture, source, types, &part)
    }

    /// Returns the memory that a model needs at least without the layers before `first_layer`, as
    /// [`Self::least_memory`] does for the whole.
    ///
    /// # Errors
    /// When a tensor is missing, or has the wrong dtype or shape.
    pub fn least_memory_from_layer(
        first_layer: usize,
        architecture: &Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
    ) -> Result<usize, LoadError> {
        let part = PackedPart { layers: first_layer..usize::MAX, ..PackedPart::WHOLE };
        Self::least_memory_of_part(architecture, source, types, &part)
    }

    fn least_memory_of_part(
        architecture: &Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
        part: &PackedPart<'_>,
    ) -> Result<usize, LoadError> {
        let cache_type = types.cache.unwrap_or(CacheType::F16);
        let pages = CpuPages::new(&part.own_layers(architecture), cache_type);
        let cache = pages.page_bytes().saturating_add(pages.state_bytes().saturating_mul(2));
        Ok(Self::packed_bytes(architecture, source, types.weights, part)?.saturating_add(cache))
    }

    /// Returns the size of packed weights, as [`Self::bytes`] returns it after packing.
    fn packed_bytes(
        architecture: &Architecture,
        source: &dyn TensorSource,
        weights: Option<WeightTypes>,
        part: &PackedPart<'_>,
    ) -> Result<usize, LoadError> {
        let types = MatrixTypes::of_model(weights, architecture, source)?;
        let expansions = part.own_layers(architecture);
        let expansions = part
            .layers_of(&expansions)
            .map(|(index, layer)| PackedLatent::expansion_bytes(&types, index, layer))
            .fold(0, usize::saturating_add);
        let whole = [
            (!architecture.shares_embedding).then_some(Tensor::Embedding),
            (architecture.head == Head::Own).then_some(Tensor::Head),
            architecture.fusion_inputs().map(|_| Tensor::Fusion),
            architecture.own_input().map(|_| Tensor::LayerInputs),
            architecture.own_input().map(|_| Tensor::LayerInputProjection),
        ];
        let whole = whole.into_iter().flatten();
        let whole = whole.map(|tensor| vec![(tensor, architecture.shape(tensor))]);
        let mut matrices = whole.chain(layer_matrices(architecture, part));
        let packer = WeightPacker { source, types, part: Some((architecture, part.clone())) };
        matrices.try_fold(expansions, |sum, tensors| {
            Ok(sum.saturating_add(packer.projection_bytes(&tensors)?))
        })
    }

    /// Returns the size of the packed weights in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.matrices().map(PackedMatrix::bytes).sum()
    }

    /// Returns the types of the packed matrices, with the bytes of each, the largest first.
    #[must_use]
    pub fn weight_types(&self) -> Vec<(WeightType, usize)> {
        let mut types: Vec<(WeightType, usize)> = Vec::new();
        for matrix in self.matrices() {
            match types.iter_mut().find(|(weight_type, _)| *weight_type == matrix.weight_type()) {
                Some((_, bytes)) => *bytes += matrix.bytes(),
                None => types.push((matrix.weight_type(), matrix.bytes())),
            }
        }
        types.sort_by_key(|(_, bytes)| Reverse(*bytes));
        types
    }

    /// Returns the type of cached keys and values.
    #[must_use]
    pub fn cache_type(&self) -> CacheType {
        self.cache_type
    }

    /// Returns all matrices, also those that are shared with another model. A tied head is the
    /// embedding.
    fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let layers = self.layers.iter().flat_map(LayerWeights::matrices);
        let own_inputs =
            self.own_inputs.iter().flat_map(|inputs| [&inputs.table, &inputs.projection]);
        let head = (!self.has_tied_head()).then_some(&*self.head);
        let whole = own_inputs.chain(&self.fusion).chain([&*self.embedding]).chain(head);
        layers.chain(whole)
    }

    /// Returns the number of bytes of weights that a forward pass over some rows with logits reads:
    /// all weights except an embedding that is not the head, the table of the layers' own inputs,
    /// and the experts that no row chooses. Their number is the expected one for rows that choose
    /// at random ([`Experts::expected_distinct`]), which is exact for one row.
    #[must_use]
    pub fn bytes_read(&self, rows: usize) -> usize {
        let experts = self.layers.iter().filter_map(|layer| layer.experts.as_ref());
        let unread = experts.map(|experts| experts.unread_bytes(rows));
        let embedding = if self.has_tied_head() { 0 } else { self.embedding.bytes() };
        let table = self.own_inputs.as_ref().map_or(0, |inputs| inputs.table.bytes());
        self.bytes() - embedding - table - unread.sum::<usize>()
    }

    fn has_tied_head(&self) -> bool {
        self.architecture.head == Head::Embedding
    }

    /// Writes a token's embedding to `row`: `[hidden]`. A share writes those of its part of the
    /// vocabulary.
    pub(crate) fn embed(&self, token: TokenId, row: &mut [f32]) {
        match (token as usize).checked_sub(self.architecture.vocab_size) {
            None => {
                let own = self.share.outputs(self.architecture.vocab_size);
                if !own.contains(&(token as usize)) {
                    return;
                }
                self.embedding.unpack_row(token as usize - own.start, row);
                let factor = self.architecture.factors.embedding;
                row.iter_mut().for_each(|value| *value *= factor);
            }
            Some(mask) => row.copy_from_slice(&self.masks[mask * row.len()..][..row.len()]),
        }
    }

    /// Adds the embedding of a position to a row. The model must have such embeddings.
    pub(crate) fn add_position(&self, position: usize, row: &mut [f32]) {
        let first = self.architecture.positions.map_or(0, |table| table.first);
        let embedding = &self.positions[(first + position) * row.len()..][..row.len()];
        row.iter_mut().zip(embedding).for_each(|(value, embedding)| *value += embedding);
    }

    /// Returns what the row of a mask token reads instead of a feature: `[feature width]`.
    pub(crate) fn mask_feature(&self, token: TokenId) -> &[f32] {
        let size = self.architecture.feature_width();
        let mask = token as usize - self.architecture.vocab_size;
        &self.mask_features[mask * size..][..size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_formats::Config;
    use forerun_formats::checkpoint::random::{
        RandomDtype, example_config, example_families, write_random_checkpoint,
    };

    #[test]
    fn the_packed_size_is_known_before_packing() {
        let plain =
            [false, true].map(|tied| Config { tie_word_embeddings: tied, ..example_config() });
        let is_special = |config: &Config| {
            let is_layered = config.per_layer_input.is_some();
            config.experts.is_some() || config.recurrent.is_some() || is_layered
        };
        let mixtures = example_families().into_iter().filter(is_special);
        for config in plain.into_iter().chain(mixtures) {
            let folder = tempfile::tempdir().unwrap();
            write_random_checkpoint(folder.path(), &config, 1, RandomDtype::F32).unwrap();
            let checkpoint = Checkpoint::open(folder.path()).unwrap();
            for types in WeightTypes::all() {
                let weights = Weights::load_as(&checkpoint, types).unwrap();
                let architecture = checkpoint.architecture();
                let of = |share| {
                    let part = PackedPart { share, ..PackedPart::WHOLE };
                    Weights::packed_bytes(architecture, &checkpoint, Some(types), &part)
                };
                let expected = of(Share::WHOLE).unwrap();
                assert_eq!(weights.bytes(), expected, "{types}, {config:?}");
                let share = Share::new(1, 3);
                let third = Weights::load_share(&checkpoint, types.into(), share, &mut |_| ());
                assert_eq!(third.unwrap().bytes(), of(share).unwrap(), "{types}, {config:?}");
                let least =
                    Weights::least_memory(architecture, &checkpoint, types.into(), Share::WHOLE);
                assert!(least.unwrap() > expected);
                let embedding = if weights.has_tied_head() { 0 } else { weights.embedding.bytes() };
                let many = [1, 4, 100_000].map(|rows| weights.bytes_read(rows));
                // A row reads one row of the table of the layers' own inputs.
                let table = weights.own_inputs.as_ref().map_or(0, |inputs| inputs.table.bytes());
                assert_eq!(many[2], weights.bytes() - embedding - table, "every expert is read");
                assert_eq!(many[0] < many[1], config.experts.is_some(), "{config:?}");
            }
        }
    }
}
