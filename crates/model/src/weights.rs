//! A model's weights, packed in the layout that the kernels read.

use crate::LoadError;
use crate::checkpoint::{Checkpoint, Dtype, LayerTensor, Tensor, TensorRows, TensorSource};
use crate::config::Config;
use crate::kernels::{PackedMatrix, WeightType};
use forerun_core::TokenId;
use std::ops::Range;
use std::sync::Arc;

/// A model's packed weights. Replicas on devices that share memory share them.
pub struct Weights {
    pub(crate) config: Config,
    /// The type of all matrices, except those shared with another model.
    pub(crate) weight_type: WeightType,
    /// The embedding. A drafter may share its target's.
    pub(crate) embedding: Arc<PackedMatrix>,
    /// Embeddings of the mask tokens, which have the ids after the vocabulary.
    pub(crate) masks: Vec<f32>, // [masks, hidden]
    pub(crate) layers: Vec<LayerWeights>,
    /// `None` if the head reads the hidden state without a norm.
    pub(crate) final_norm: Option<Vec<f32>>,
    /// `None` if tied to the embedding.
    pub(crate) head: Option<Arc<PackedMatrix>>,
}

/// The packed weights of one layer.
pub(crate) struct LayerWeights {
    pub(crate) attention_norm: AttentionNorm,
    pub(crate) qkv: PackedMatrix, // [(n_heads + 2 · n_kv_heads) · head_dim, hidden]
    pub(crate) qk_norms: Option<[Vec<f32>; 2]>, // [head_dim] of queries, of keys
    pub(crate) window: Option<usize>, // positions that a row attends to
    pub(crate) output: PackedMatrix, // [hidden, n_heads · head_dim]
    pub(crate) mlp_norm: Vec<f32>, // [hidden]
    pub(crate) gate_up: PackedMatrix, // [2 · intermediate, hidden]
    pub(crate) down: PackedMatrix, // [hidden, intermediate]
}

/// The norm before a layer's attention.
pub(crate) enum AttentionNorm {
    /// No norm: attention reads the hidden state (EAGLE).
    None,
    /// Attention reads the normed hidden state: `[hidden]`.
    Hidden(Vec<f32>),
    /// Attention reads the normed embedding, concatenated with the normed hidden state (EAGLE-3):
    /// `[hidden]` each.
    Both { embedding: Vec<f32>, hidden: Vec<f32> },
}

/// Returns the smallest weight type that represents all matrices of a checkpoint exactly.
pub(crate) fn lossless_type_of(checkpoint: &Checkpoint) -> Result<WeightType, LoadError> {
    let is_matrix = |tensor: &Tensor| checkpoint.shape(*tensor).len() == 2;
    let matrices = Tensor::all(checkpoint.config()).filter(is_matrix);
    let dtypes = matrices.map(|tensor| checkpoint.dtype(tensor)).collect::<Result<Vec<_>, _>>()?;
    Ok(lossless_type(dtypes))
}

/// Returns the smallest weight type that represents the values of all `dtypes` exactly.
pub(crate) fn lossless_type(dtypes: impl IntoIterator<Item = Dtype>) -> WeightType {
    let mut dtypes = dtypes.into_iter();
    let first = dtypes.next();
    match first {
        // Neither 16-bit type represents all values of the other.
        Some(first) if dtypes.any(|dtype| dtype != first) => WeightType::F32,
        Some(Dtype::Bf16) => WeightType::Bf16,
        Some(Dtype::F16) => WeightType::F16,
        Some(Dtype::F32) | None => WeightType::F32,
    }
}

/// Packs matrices with the same inputs as one matrix, with their outputs one after another. The tensors
/// are read row by row, so only their packed form is in memory as a whole.
pub(crate) fn pack(
    weight_type: WeightType,
    tensors: &[TensorRows<'_>],
) -> Result<PackedMatrix, LoadError> {
    let rows = tensors.iter().flat_map(|rows| (0..rows.len()).map(move |row| (rows, row)));
    let (rows, inputs): (Vec<_>, _) =
        (rows.collect(), tensors.first().map_or(0, TensorRows::columns));
    let read = |output: usize, row: &mut [f32]| {
        let (tensor, index) = rows[output];
        tensor.read(index, row)
    };
    PackedMatrix::pack_rows(weight_type, [rows.len(), inputs], read)
}

/// Reads and packs a checkpoint's tensors for a model of this configuration, in this type.
pub(crate) struct WeightPacker<'a> {
    pub(crate) source: &'a dyn TensorSource,
    pub(crate) config: &'a Config,
    pub(crate) weight_type: WeightType,
}

impl WeightPacker<'_> {
    /// Reads a norm or a bias.
    pub(crate) fn vector(&self, tensor: Tensor) -> Result<Vec<f32>, LoadError> {
        self.source.rows(tensor)?.read_all()
    }

    /// Packs matrices with the same inputs as one matrix.
    pub(crate) fn matrix(&self, tensors: &[Tensor]) -> Result<PackedMatrix, LoadError> {
        let rows = tensors.iter().map(|&tensor| self.source.rows(tensor));
        pack(self.weight_type, &rows.collect::<Result<Vec<_>, _>>()?)
    }

    /// Packs projections of a layer as one matrix, with their biases if the model has any.
    fn projection(
        &self,
        layer: usize,
        weights: &[LayerTensor],
        biases: &[LayerTensor],
    ) -> Result<PackedMatrix, LoadError> {
        let weights: Vec<_> = weights.iter().map(|&w| Tensor::Layer(layer, w)).collect();
        let biases = biases.iter().filter(|bias| bias.is_in(self.config));
        let biases = biases.map(|&bias| self.vector(Tensor::Layer(layer, bias)));
        let biases = biases.collect::<Result<Vec<_>, _>>()?;
        let bias = (!biases.is_empty()).then(|| biases.concat());
        Ok(self.matrix(&weights)?.with_bias(bias))
    }

    /// Reads and packs a layer, with or without a norm before its attention.
    pub(crate) fn layer(
        &self,
        index: usize,
        attention_norm: bool,
    ) -> Result<LayerWeights, LoadError> {
        use LayerTensor as T;
        let vector = |tensor| self.vector(Tensor::Layer(index, tensor));
        let qk_norms = || Ok::<_, LoadError>([vector(T::QueryNorm)?, vector(T::KeyNorm)?]);
        let qkv_biases = [T::QueryBias, T::KeyBias, T::ValueBias];
        Ok(LayerWeights {
            attention_norm: match attention_norm {
                true => AttentionNorm::Hidden(vector(T::AttentionNorm)?),
                false => AttentionNorm::None,
            },
            qkv: self.projection(index, &[T::Query, T::Key, T::Value], &qkv_biases)?,
            qk_norms: self.config.qk_norm.then(qk_norms).transpose()?,
            window: self.config.window(index),
            output: self.projection(index, &[T::Output], &[T::OutputBias])?,
            mlp_norm: vector(T::MlpNorm)?,
            gate_up: self.projection(index, &[T::Gate, T::Up], &[T::GateBias, T::UpBias])?,
            down: self.projection(index, &[T::Down], &[T::DownBias])?,
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
        let weight_type = weight_type.map_or_else(|| lossless_type_of(checkpoint), Ok)?;
        let config = checkpoint.config().clone();
        let packer = WeightPacker { source: checkpoint, config: &config, weight_type };
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(Arc::new(packer.matrix(&[Tensor::Head])?)),
        };
        let embedding = Arc::new(packer.matrix(&[Tensor::Embedding])?);
        let mut layer = |index| {
            on_layer(index);
            packer.layer(index, true)
        };
        let layers =
            (0..config.num_hidden_layers).map(&mut layer).collect::<Result<Vec<_>, _>>()?;
        on_layer(layers.len());
        let final_norm = Some(packer.vector(Tensor::FinalNorm)?);
        let masks = Vec::new();
        Ok(Self { weight_type, embedding, masks, layers, final_norm, head, config })
    }

    /// Returns the model's configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the size of the packed weights in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let layer = |layer: &LayerWeights| {
            let LayerWeights { qkv, output, gate_up, down, .. } = layer;
            [qkv, output, gate_up, down].map(PackedMatrix::bytes).iter().sum::<usize>()
        };
        let layers: usize = self.layers.iter().map(layer).sum();
        layers + self.embedding.bytes() + self.head.as_ref().map_or(0, |head| head.bytes())
    }

    /// Returns the number of bytes of weights that a forward pass with logits reads: all weights except
    /// an embedding that is not the head.
    #[must_use]
    pub fn bytes_read(&self) -> usize {
        self.bytes() - self.head.as_ref().map_or(0, |_| self.embedding.bytes())
    }

    /// Returns the type of the packed matrices.
    #[must_use]
    pub fn weight_type(&self) -> WeightType {
        self.weight_type
    }

    /// Returns the number of tokens that have an embedding: the vocabulary and the mask tokens.
    pub(crate) fn embedded_tokens(&self) -> usize {
        self.config.vocab_size + self.masks.len() / self.config.hidden_size
    }

    /// Returns the mask tokens. They have the ids after the vocabulary.
    #[must_use]
    pub fn mask_tokens(&self) -> Range<TokenId> {
        self.config.vocab_size as TokenId..self.embedded_tokens() as TokenId
    }

    /// Writes a token's embedding to `row`: `[hidden]`.
    pub(crate) fn embed(&self, token: TokenId, row: &mut [f32]) {
        match (token as usize).checked_sub(self.config.vocab_size) {
            None => self.embedding.unpack_row(token as usize, row),
            Some(mask) => row.copy_from_slice(&self.masks[mask * row.len()..][..row.len()]),
        }
    }

    /// Returns the matrix that converts a hidden state to logits.
    pub(crate) fn head(&self) -> &Arc<PackedMatrix> {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}
