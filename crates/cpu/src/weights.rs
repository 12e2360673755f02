//! A model's weights, packed in the layout that the kernels read.

use crate::cpu_pages::CpuPages;
use crate::kernels::{AttentionShape, PackedMatrix, Rope};
use forerun_cache::PageStorage;
use forerun_core::TokenId;
use forerun_formats::checkpoint::LayerTensor;
use forerun_formats::checkpoint::{Tensor, TensorRows};
use forerun_formats::{
    Architecture, AttentionNorm, Checkpoint, Head, Layer, LoadError, TensorSource, WeightType,
};
use std::sync::Arc;

/// A model's packed weights. Replicas on devices that share memory share them.
pub struct Weights {
    architecture: Architecture,
    /// The type of all matrices, except those shared with another model.
    weight_type: WeightType,
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
    pub(crate) qkv: PackedMatrix, // [(n_heads + 2 · n_kv_heads) · head_dim, inputs]
    pub(crate) qk_norms: Option<[Vec<f32>; 2]>, // [head_dim] of queries, of keys
    pub(crate) output: PackedMatrix, // [hidden, n_heads · head_dim]
    pub(crate) mlp_norm: Vec<f32>, // [hidden]
    pub(crate) gate_up: PackedMatrix, // [2 · intermediate, hidden]
    pub(crate) down: PackedMatrix, // [hidden, intermediate]
}

/// The weights of the norm before a layer's attention: `[hidden]` each.
pub(crate) enum PackedNorm {
    None,
    Hidden(Vec<f32>),
    EmbeddingAndHidden { embedding: Vec<f32>, hidden: Vec<f32> },
}

/// The matrices of a layer, with those together that are packed as one matrix.
const PACKED_TOGETHER: [&[LayerTensor]; 4] = [
    &[LayerTensor::Query, LayerTensor::Key, LayerTensor::Value],
    &[LayerTensor::Output],
    &[LayerTensor::Gate, LayerTensor::Up],
    &[LayerTensor::Down],
];

/// Reads and packs tensors in one type.
pub(crate) struct WeightPacker<'a> {
    pub(crate) source: &'a dyn TensorSource,
    pub(crate) weight_type: WeightType,
}

impl WeightPacker<'_> {
    /// Reads a norm, a bias, or another tensor that no matrix kernel reads.
    pub(crate) fn floats(&self, tensor: Tensor, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        self.source.rows(tensor, shape)?.read_all()
    }

    /// Packs matrices with the same inputs as one matrix, with their outputs one after another. The
    /// tensors are read row by row, so only their packed form is in memory as a whole.
    pub(crate) fn matrix(
        &self,
        tensors: &[(Tensor, Vec<usize>)],
    ) -> Result<PackedMatrix, LoadError> {
        let tensors = tensors.iter().map(|(tensor, shape)| self.source.rows(*tensor, shape));
        let tensors: Vec<TensorRows<'_>> = tensors.collect::<Result<_, _>>()?;
        let rows = tensors.iter().flat_map(|rows| (0..rows.len()).map(move |row| (rows, row)));
        let (rows, inputs): (Vec<_>, _) =
            (rows.collect(), tensors.first().map_or(0, TensorRows::columns));
        let read = |output: usize, row: &mut [f32]| {
            let (tensor, index) = rows[output];
            tensor.read(index, row)
        };
        let packed = PackedMatrix::pack_rows(self.weight_type, [rows.len(), inputs], read)?;
        tensors.iter().for_each(TensorRows::release);
        Ok(packed)
    }
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

    /// Packs projections as one matrix, with their biases if the layer has any.
    fn projection(
        &self,
        weights: &[LayerTensor],
        biases: &[LayerTensor],
    ) -> Result<PackedMatrix, LoadError> {
        let weights = weights.iter().map(|&weight| {
            let tensor = Tensor::Layer(self.index, weight);
            (tensor, self.architecture.shape(tensor))
        });
        let weights = self.packer.matrix(&weights.collect::<Vec<_>>())?;
        let biases = biases.iter().filter(|bias| self.layer.has(**bias));
        let biases = biases.map(|&bias| self.vector(bias)).collect::<Result<Vec<_>, _>>()?;
        Ok(weights.with_bias((!biases.is_empty()).then(|| biases.concat())))
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
        Self::load_with(checkpoint, None, &mut |_| ())
    }

    /// Reads all tensors and packs the matrices in a given type, on all cores. In addition to the packed
    /// weights, this needs memory for a few rows only.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_as(checkpoint: &Checkpoint, weight_type: WeightType) -> Result<Self, LoadError> {
        Self::load_with(checkpoint, Some(weight_type), &mut |_| ())
    }

    /// Reads and packs all tensors, and reports progress. Without a weight type, the matrices have the
    /// type of [`Self::load`]. `on_layer` receives the number of layers packed so far.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_with(
        checkpoint: &Checkpoint,
        weight_type: Option<WeightType>,
        on_layer: &mut dyn FnMut(usize),
    ) -> Result<Self, LoadError> {
        let architecture = checkpoint.architecture().clone();
        Self::pack(architecture, checkpoint, weight_type, None, on_layer)
    }

    /// Reads and packs the tensors of an architecture, which may share the embedding and the head of
    /// `target`. Without a weight type, its matrices have the smallest type that loses nothing.
    ///
    /// # Errors
    /// When a tensor is missing, or has the wrong dtype or shape, a value is not finite, or the target is
    /// missing.
    pub fn load_architecture(
        architecture: Architecture,
        source: &dyn TensorSource,
        target: Option<&Self>,
        weight_type: Option<WeightType>,
    ) -> Result<Self, LoadError> {
        Self::pack(architecture, source, weight_type, target, &mut |_| ())
    }

    fn pack(
        architecture: Architecture,
        source: &dyn TensorSource,
        weight_type: Option<WeightType>,
        target: Option<&Self>,
        on_layer: &mut dyn FnMut(usize),
    ) -> Result<Self, LoadError> {
        let weight_type = weight_type.map_or_else(|| source.lossless_type(), Ok)?;
        let packer = WeightPacker { source, weight_type };
        let matrix = |tensor| packer.matrix(&[(tensor, architecture.shape(tensor))]);
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
        Ok(Self {
            head: head.unwrap_or_else(|| Arc::clone(&embedding)),
            architecture,
            weight_type,
            embedding,
            masks: masks.unwrap_or_default(),
            fusion,
            mask_features: mask_features.unwrap_or_default(),
            layers,
            ropes,
            final_norm,
        })
    }

    /// Returns what the model computes.
    #[must_use]
    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Returns the memory that a model needs at least, in bytes: its packed weights, and one page of its
    /// cache. Matrices that it shares with its target count as nothing.
    #[must_use]
    pub fn least_memory(architecture: &Architecture, weight_type: WeightType) -> usize {
        let shapes = architecture.layers.iter().map(|layer| AttentionShape::new(&layer.attention));
        let page = CpuPages::new(shapes, weight_type).page_bytes();
        Self::packed_bytes(architecture, weight_type).saturating_add(page)
    }

    /// Returns the size of packed weights, as [`Self::bytes`] returns it after packing.
    fn packed_bytes(architecture: &Architecture, weight_type: WeightType) -> usize {
        let bytes = |tensors: &[Tensor]| {
            let shapes: Vec<_> = tensors.iter().map(|&tensor| architecture.shape(tensor)).collect();
            let outputs = shapes.iter().filter_map(|shape| shape.first()).sum();
            let inputs = shapes.iter().filter_map(|shape| shape.get(1)).copied().max().unwrap_or(0);
            PackedMatrix::packed_bytes(weight_type, [outputs, inputs])
        };
        let layers = (0..architecture.layers.len()).flat_map(|index| {
            let tensor = move |tensor| Tensor::Layer(index, tensor);
            PACKED_TOGETHER.map(|tensors| tensors.iter().copied().map(tensor).collect::<Vec<_>>())
        });
        let whole = [
            (!architecture.shares_embedding).then_some(Tensor::Embedding),
            (architecture.head == Head::Own).then_some(Tensor::Head),
            architecture.fusion_inputs().map(|_| Tensor::Fusion),
        ];
        let whole: usize = whole.iter().flatten().map(|&tensor| bytes(&[tensor])).sum();
        whole + layers.map(|tensors| bytes(&tensors)).sum::<usize>()
    }

    /// Returns the size of the packed weights in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let layer = |layer: &LayerWeights| {
            let LayerWeights { qkv, output, gate_up, down, .. } = layer;
            [qkv, output, gate_up, down].map(PackedMatrix::bytes).iter().sum::<usize>()
        };
        let layers: usize = self.layers.iter().map(layer).sum();
        let fusion = self.fusion.as_ref().map_or(0, PackedMatrix::bytes);
        let head = if self.has_tied_head() { 0 } else { self.head.bytes() };
        fusion + layers + self.embedding.bytes() + head
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

    /// Returns the type of the packed matrices.
    #[must_use]
    pub fn weight_type(&self) -> WeightType {
        self.weight_type
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
        let types = [WeightType::F32, WeightType::Bf16, WeightType::F16, WeightType::Int8];
        for tied in [false, true] {
            let config = Config { tie_word_embeddings: tied, ..example_config() };
            let folder = tempfile::tempdir().unwrap();
            write_random_checkpoint(folder.path(), &config, 1, RandomDtype::F32).unwrap();
            let checkpoint = Checkpoint::open(folder.path()).unwrap();
            for weight_type in types {
                let weights = Weights::load_as(&checkpoint, weight_type).unwrap();
                let architecture = checkpoint.architecture();
                let expected = Weights::packed_bytes(architecture, weight_type);
                assert_eq!(weights.bytes(), expected, "{weight_type}, tied: {tied}");
                assert!(Weights::least_memory(architecture, weight_type) > expected);
            }
        }
    }
}
