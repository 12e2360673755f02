//! A model's weights, packed in the layout that the kernels read.

use crate::cpu_pages::CpuPages;
use crate::kernels::{AttentionShape, PackedMatrix, Rope};
use forerun_cache::PageStorage;
use forerun_core::TokenId;
use forerun_formats::checkpoint::LayerTensor;
use forerun_formats::checkpoint::{Tensor, TensorRows};
use forerun_formats::{
    Architecture, AttentionNorm, CacheType, Checkpoint, Head, Layer, LoadError, ModelTypes,
    TensorSource, WeightType,
};
use std::cmp::Reverse;
use std::sync::Arc;

/// A model's packed weights. Replicas on devices that share memory share them.
pub struct Weights {
    architecture: Architecture,
    /// The type of cached keys and values.
    cache_type: CacheType,
    /// The embedding. A drafter may share its target's.
    pub(crate) embedding: Arc<PackedMatrix>,
    /// Embeddings of the mask tokens, which have the ids after the vocabulary.
    masks: Vec<f32>, // [masks, hidden]
    /// The projection to the first layer's input.
    pub(crate) fusion: Option<PackedMatrix>,
    /// What rows of mask tokens read instead of the target's features.
    mask_features: Vec<f32>, // [masks, hidden]
    pub(crate) layers: Vec<LayerWeights>,
    /// The different position embeddings of the layers.
    pub(crate) ropes: Vec<Rope>,
    /// `None` if the head reads the hidden state without a norm.
    pub(crate) final_norm: Option<Vec<f32>>,
    pub(crate) head: Arc<PackedMatrix>,
}

/// The packed weights of one layer.
pub(crate) struct LayerWeights {
    pub(crate) attention_norm: PackedNorm,
    /// The shape of the attention, with its window.
    pub(crate) shape: AttentionShape,
    /// The index of the layer's position embedding.
    pub(crate) rope: usize,
    pub(crate) qkv: Projection, // [(n_heads + 2 · n_kv_heads) · head_dim, inputs]
    pub(crate) qk_norms: Option<[Vec<f32>; 2]>, // [head_dim] of queries, of keys
    pub(crate) output: Projection, // [hidden, n_heads · head_dim]
    pub(crate) mlp_norm: Vec<f32>, // [hidden]
    pub(crate) gate_up: Projection, // [2 · intermediate, hidden]
    pub(crate) down: Projection, // [hidden, intermediate]
}

/// A linear layer as matrices whose outputs follow one another. Successive tensors of one type are one
/// matrix. The matrices are either of one float type or all quantised.
pub(crate) struct Projection(Vec<PackedMatrix>);

impl Projection {
    pub(crate) fn matrices(&self) -> &[PackedMatrix] {
        &self.0
    }

    /// Returns the number of inputs.
    pub(crate) fn inputs(&self) -> usize {
        self.0.first().map_or(0, PackedMatrix::inputs)
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
    Hidden(Vec<f32>),
    EmbeddingAndHidden { embedding: Vec<f32>, hidden: Vec<f32> },
}

/// The matrices of a layer, with those together that are packed as one projection.
const PACKED_TOGETHER: [&[LayerTensor]; 4] = [
    &[LayerTensor::Query, LayerTensor::Key, LayerTensor::Value],
    &[LayerTensor::Output],
    &[LayerTensor::Gate, LayerTensor::Up],
    &[LayerTensor::Down],
];

/// Reads and packs tensors.
pub(crate) struct WeightPacker<'a> {
    pub(crate) source: &'a dyn TensorSource,
    /// The type of all matrices. Without it, each matrix has the smallest type that loses nothing.
    weight_type: Option<WeightType>,
    /// The type of matrices that are stored as floats: the smallest that loses nothing for any of them.
    float_type: WeightType,
}

impl<'a> WeightPacker<'a> {
    /// # Errors
    /// When a matrix has an unsupported type.
    pub(crate) fn new(
        source: &'a dyn TensorSource,
        weight_type: Option<WeightType>,
    ) -> Result<Self, LoadError> {
        Ok(Self { source, weight_type, float_type: source.float_type()? })
    }

    /// Reads a norm, a bias, or another tensor that no matrix kernel reads.
    pub(crate) fn floats(&self, tensor: Tensor, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        self.source.rows(tensor, shape)?.read_all()
    }

    /// Packs a matrix.
    pub(crate) fn matrix(
        &self,
        tensor: Tensor,
        shape: &[usize],
    ) -> Result<PackedMatrix, LoadError> {
        let rows = self.source.rows(tensor, shape)?;
        let weight_type = self.weight_type(&rows);
        pack(weight_type, &[rows])
    }

    /// Packs a projection from tensors with the same inputs.
    fn projection(&self, tensors: &[(Tensor, Vec<usize>)]) -> Result<Projection, LoadError> {
        let tensors = tensors.iter().map(|(tensor, shape)| self.source.rows(*tensor, shape));
        let tensors: Vec<TensorRows<'_>> = tensors.collect::<Result<_, _>>()?;
        let types = self.projection_types(&tensors);
        let runs = types.chunk_by(|a, b| a == b);
        let mut tensors = tensors.as_slice();
        let matrices = runs.map(|run| {
            let (first, rest) = tensors.split_at(run.len());
            tensors = rest;
            pack(run[0], first)
        });
        Ok(Projection(matrices.collect::<Result<_, _>>()?))
    }

    /// Returns the bytes of a projection that is packed from these tensors.
    fn projection_bytes(&self, tensors: &[(Tensor, Vec<usize>)]) -> Result<usize, LoadError> {
        let tensors = tensors.iter().map(|(tensor, shape)| self.source.rows(*tensor, shape));
        let tensors: Vec<TensorRows<'_>> = tensors.collect::<Result<_, _>>()?;
        let types = self.projection_types(&tensors);
        let (mut bytes, mut first) = (0_usize, 0);
        for run in types.chunk_by(|a, b| a == b) {
            let rows = &tensors[first..first + run.len()];
            first += run.len();
            let outputs = rows.iter().map(TensorRows::len).sum();
            let size = [outputs, rows[0].columns()];
            bytes = bytes.saturating_add(PackedMatrix::packed_bytes(run[0], size));
        }
        Ok(bytes)
    }

    /// Returns the bytes of a packed matrix.
    pub(crate) fn matrix_bytes(&self, tensor: Tensor, shape: &[usize]) -> Result<usize, LoadError> {
        self.projection_bytes(&[(tensor, shape.to_vec())])
    }

    /// Returns the type of each tensor of a projection.
    fn projection_types(&self, tensors: &[TensorRows<'_>]) -> Vec<WeightType> {
        let types: Vec<WeightType> = tensors.iter().map(|rows| self.weight_type(rows)).collect();
        let quantised =
            types.iter().filter(|kind| matches!(kind, WeightType::Quantized(_))).count();
        match quantised {
            // The kernels read activations either as floats or quantised. Floats hold all weights.
            1.. if quantised < types.len() => vec![WeightType::F32; types.len()],
            _ => types,
        }
    }

    fn weight_type(&self, rows: &TensorRows<'_>) -> WeightType {
        let stored = || match rows.block_type() {
            Some(block_type) => WeightType::Quantized(block_type),
            None => self.float_type,
        };
        self.weight_type.unwrap_or_else(stored)
    }
}

/// Packs tensors with the same inputs as one matrix, with their outputs one after another. The tensors are
/// read row by row, so only their packed form is in memory as a whole.
fn pack(weight_type: WeightType, tensors: &[TensorRows<'_>]) -> Result<PackedMatrix, LoadError> {
    let rows = tensors.iter().flat_map(|rows| (0..rows.len()).map(move |row| (rows, row)));
    let (rows, inputs): (Vec<_>, _) =
        (rows.collect(), tensors.first().map_or(0, TensorRows::columns));
    let size = [rows.len(), inputs];
    let is_stored = |rows: &TensorRows<'_>| {
        rows.block_type().is_some_and(|stored| weight_type == WeightType::Quantized(stored))
    };
    let packed = match weight_type {
        WeightType::Quantized(block_type) if tensors.iter().all(is_stored) => {
            PackedMatrix::pack_blocks(block_type, size, |output| {
                let (tensor, index) = rows[output];
                Ok::<_, LoadError>(tensor.stored(index)?.unwrap_or_default())
            })?
        }
        _ => PackedMatrix::pack_rows(weight_type, size, |output, row: &mut [f32]| {
            let (tensor, index) = rows[output];
            tensor.read(index, row)
        })?,
    };
    tensors.iter().for_each(TensorRows::release);
    Ok(packed)
}

/// Packs the layers of an architecture.
struct LayerPacker<'a> {
    packer: &'a WeightPacker<'a>,
    architecture: &'a Architecture,
    index: usize,
    layer: &'a Layer,
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
        let weights = weights.iter().map(|&weight| {
            let tensor = Tensor::Layer(self.index, weight);
            (tensor, self.architecture.shape(tensor))
        });
        let projection = self.packer.projection(&weights.collect::<Vec<_>>())?;
        let biases = biases.iter().filter(|bias| self.layer.has(**bias));
        let biases = biases.map(|&bias| self.vector(bias)).collect::<Result<Vec<_>, _>>()?;
        Ok(if biases.is_empty() { projection } else { projection.with_bias(&biases.concat()) })
    }

    fn pack(&self, ropes: &mut Vec<Rope>) -> Result<LayerWeights, LoadError> {
        use LayerTensor as T;
        let attention = &self.layer.attention;
        let rope = Rope::new(attention);
        let rope_index = ropes.iter().position(|other| *other == rope).unwrap_or_else(|| {
            ropes.push(rope);
            ropes.len() - 1
        });
        let head_norms =
            || Ok::<_, LoadError>([self.vector(T::QueryNorm)?, self.vector(T::KeyNorm)?]);
        let qkv_biases = [T::QueryBias, T::KeyBias, T::ValueBias];
        Ok(LayerWeights {
            attention_norm: match self.layer.attention_norm {
                AttentionNorm::None => PackedNorm::None,
                AttentionNorm::Hidden => PackedNorm::Hidden(self.vector(T::AttentionNorm)?),
                AttentionNorm::EmbeddingAndHidden => PackedNorm::EmbeddingAndHidden {
                    embedding: self.vector(T::AttentionNorm)?,
                    hidden: self.vector(T::HiddenNorm)?,
                },
            },
            shape: AttentionShape::new(attention),
            rope: rope_index,
            qkv: self.projection(PACKED_TOGETHER[0], &qkv_biases)?,
            qk_norms: attention.head_norms.then(head_norms).transpose()?,
            output: self.projection(PACKED_TOGETHER[1], &[T::OutputBias])?,
            mlp_norm: self.vector(T::MlpNorm)?,
            gate_up: self.projection(PACKED_TOGETHER[2], &[T::GateBias, T::UpBias])?,
            down: self.projection(PACKED_TOGETHER[3], &[T::DownBias])?,
        })
    }
}

impl Weights {
    /// Reads and packs all tensors of a checkpoint, in the smallest type that loses nothing.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        Self::load_with(checkpoint, ModelTypes::default(), &mut |_| ())
    }

    /// Reads all tensors and packs the matrices in a given type, on all cores. In addition to the packed
    /// weights, this needs memory for a few rows only.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_as(checkpoint: &Checkpoint, weight_type: WeightType) -> Result<Self, LoadError> {
        Self::load_with(checkpoint, weight_type.into(), &mut |_| ())
    }

    /// Reads and packs all tensors, and reports progress. `on_layer` receives the number of layers packed so far.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_with(
        checkpoint: &Checkpoint,
        types: ModelTypes,
        on_layer: &mut dyn FnMut(usize),
    ) -> Result<Self, LoadError> {
        let architecture = checkpoint.architecture().clone();
        Self::pack(architecture, checkpoint, types, None, on_layer)
    }

    /// Reads and packs the tensors of an architecture, which may share the embedding and the head of
    /// `target`.
    ///
    /// # Errors
    /// When a tensor is missing, or has the wrong dtype or shape, a value is not finite, or the target is
    /// missing.
    pub fn load_architecture(
        architecture: Architecture,
        source: &dyn TensorSource,
        target: Option<&Self>,
        types: ModelTypes,
    ) -> Result<Self, LoadError> {
        Self::pack(architecture, source, types, target, &mut |_| ())
    }

    fn pack(
        architecture: Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
        target: Option<&Self>,
        on_layer: &mut dyn FnMut(usize),
    ) -> Result<Self, LoadError> {
        let packer = WeightPacker::new(source, types.weights)?;
        let matrix = |tensor| packer.matrix(tensor, &architecture.shape(tensor));
        let floats = |tensor| packer.floats(tensor, &architecture.shape(tensor));
        let shared = || target.ok_or(LoadError::NoTarget);
        let head = match architecture.head {
            Head::Own => Some(Arc::new(matrix(Tensor::Head)?)),
            Head::Target => Some(Arc::clone(&shared()?.head)),
            Head::Embedding => None,
        };
        let embedding = match architecture.shares_embedding {
            true => Arc::clone(&shared()?.embedding),
            false => Arc::new(matrix(Tensor::Embedding)?),
        };
        let (mut layers, mut ropes) = (Vec::new(), Vec::new());
        for (index, layer) in architecture.layers.iter().enumerate() {
            on_layer(index);
            let layer = LayerPacker { packer: &packer, architecture: &architecture, index, layer };
            layers.push(layer.pack(&mut ropes)?);
        }
        on_layer(layers.len());
        let final_norm = architecture.final_norm.then(|| floats(Tensor::FinalNorm)).transpose()?;
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
        let mut weights = Self {
            head: head.unwrap_or_else(|| Arc::clone(&embedding)),
            architecture,
            cache_type: CacheType::F32,
            embedding,
            masks: masks.unwrap_or_default(),
            fusion,
            mask_features: mask_features.unwrap_or_default(),
            layers,
            ropes,
            final_norm,
        };
        let matrices = weights.matrices().map(PackedMatrix::weight_type);
        weights.cache_type = types.cache.unwrap_or_else(|| CacheType::for_weights(matrices));
        Ok(weights)
    }

    /// Returns what the model computes.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Returns the memory that a model needs at least, in bytes: its packed weights, and one page of its
    /// cache. Matrices that it shares with its target count as nothing.
    ///
    /// # Errors
    /// When a tensor is missing, or has the wrong dtype or shape.
    pub fn least_memory(
        architecture: &Architecture,
        source: &dyn TensorSource,
        types: ModelTypes,
    ) -> Result<usize, LoadError> {
        let shapes = architecture.layers.iter().map(|layer| AttentionShape::new(&layer.attention));
        let page = CpuPages::new(shapes, types.cache.unwrap_or(CacheType::F16)).page_bytes();
        Ok(Self::packed_bytes(architecture, source, types.weights)?.saturating_add(page))
    }

    /// Returns the size of packed weights, as [`Self::bytes`] returns it after packing.
    fn packed_bytes(
        architecture: &Architecture,
        source: &dyn TensorSource,
        weight_type: Option<WeightType>,
    ) -> Result<usize, LoadError> {
        let packer = WeightPacker::new(source, weight_type)?;
        let with_shape = |tensor| (tensor, architecture.shape(tensor));
        let layers = (0..architecture.layers.len()).flat_map(|index| {
            PACKED_TOGETHER.map(|tensors| -> Vec<_> {
                tensors.iter().map(|&tensor| with_shape(Tensor::Layer(index, tensor))).collect()
            })
        });
        let whole = [
            (!architecture.shares_embedding).then_some(Tensor::Embedding),
            (architecture.head == Head::Own).then_some(Tensor::Head),
            architecture.fusion_inputs().map(|_| Tensor::Fusion),
        ];
        let whole = whole.into_iter().flatten().map(|tensor| vec![with_shape(tensor)]);
        whole.chain(layers).try_fold(0_usize, |sum, tensors| {
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

    /// Returns all matrices, also those that are shared with another model. A tied head is the embedding.
    fn matrices(&self) -> impl Iterator<Item = &PackedMatrix> {
        let layers = self.layers.iter().flat_map(|layer| {
            let LayerWeights { qkv, output, gate_up, down, .. } = layer;
            [qkv, output, gate_up, down].into_iter().flat_map(Projection::matrices)
        });
        let head = (!self.has_tied_head()).then_some(&*self.head);
        layers.chain(&self.fusion).chain([&*self.embedding]).chain(head)
    }

    /// Returns the number of bytes of weights that a forward pass with logits reads: all weights except
    /// an embedding that is not the head.
    #[must_use]
    pub fn bytes_read(&self) -> usize {
        self.bytes() - if self.has_tied_head() { 0 } else { self.embedding.bytes() }
    }

    fn has_tied_head(&self) -> bool {
        self.architecture.head == Head::Embedding
    }

    /// Writes a token's embedding to `row`: `[hidden]`.
    pub(crate) fn embed(&self, token: TokenId, row: &mut [f32]) {
        match (token as usize).checked_sub(self.architecture.vocab_size) {
            None => self.embedding.unpack_row(token as usize, row),
            Some(mask) => row.copy_from_slice(&self.masks[mask * row.len()..][..row.len()]),
        }
    }

    /// Returns what the row of a mask token reads instead of a feature: `[hidden]`.
    pub(crate) fn mask_feature(&self, token: TokenId) -> &[f32] {
        let size = self.architecture.hidden_size;
        let mask = token as usize - self.architecture.vocab_size;
        &self.mask_features[mask * size..][..size]
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use forerun_formats::Config;
    use forerun_formats::checkpoint::random::{
        RandomDtype, example_config, write_random_checkpoint,
    };

    #[test]
    fn the_packed_size_is_known_before_packing() {
        for tied in [false, true] {
            let config = Config { tie_word_embeddings: tied, ..example_config() };
            let folder = tempfile::tempdir().unwrap();
            write_random_checkpoint(folder.path(), &config, 1, RandomDtype::F32).unwrap();
            let checkpoint = Checkpoint::open(folder.path()).unwrap();
            for weight_type in WeightType::all() {
                let weights = Weights::load_as(&checkpoint, weight_type).unwrap();
                let architecture = checkpoint.architecture();
                let expected =
                    Weights::packed_bytes(architecture, &checkpoint, Some(weight_type)).unwrap();
                assert_eq!(weights.bytes(), expected, "{weight_type}, tied: {tied}");
                let least = Weights::least_memory(architecture, &checkpoint, weight_type.into());
                assert!(least.unwrap() > expected);
            }
        }
    }
}
