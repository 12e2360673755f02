//! A model's weights, packed as the kernels read them.

use crate::LoadError;
use crate::checkpoint::{Checkpoint, Dtype, LayerTensor, Tensor, TensorRows, TensorSource};
use crate::config::Config;
use crate::kernels::{PackedMatrix, WeightType};
use forerun_core::TokenId;
use std::ops::Range;
use std::sync::Arc;

/// Packed weights; replicas on devices that share memory share them.
pub struct Weights {
    pub(crate) config: Config,
    /// Of all matrices that are not another model's.
    pub(crate) weight_type: WeightType,
    /// A drafter's may be its target's.
    pub(crate) embedding: Arc<PackedMatrix>,
    /// Embeddings of tokens behind the vocabulary, which stand for what is to be guessed.
    pub(crate) masks: Vec<f32>, // [masks, hidden]
    pub(crate) layers: Vec<LayerWeights>,
    /// `None` where the head reads the hidden state as it is.
    pub(crate) final_norm: Option<Vec<f32>>,
    /// `None` if tied to the embedding.
    pub(crate) head: Option<Arc<PackedMatrix>>,
}

/// One layer's.
pub(crate) struct LayerWeights {
    pub(crate) attention_norm: AttentionNorm,
    pub(crate) qkv: PackedMatrix, // [(n_heads + 2 · n_kv_heads) · head_dim, hidden]
    pub(crate) qk_norms: Option<[Vec<f32>; 2]>, // [head_dim] of queries, of keys
    pub(crate) window: Option<usize>, // positions that a row sees
    pub(crate) output: PackedMatrix, // [hidden, n_heads · head_dim]
    pub(crate) mlp_norm: Vec<f32>, // [hidden]
    pub(crate) gate_up: PackedMatrix, // [2 · intermediate, hidden]
    pub(crate) down: PackedMatrix, // [hidden, intermediate]
}

/// What a layer's attention reads.
pub(crate) enum AttentionNorm {
    /// The hidden state as it is (EAGLE).
    None,
    /// The normed hidden state: `[hidden]`.
    Hidden(Vec<f32>),
    /// The normed embedding, and behind it the normed hidden state (EAGLE-3): `[hidden]` each.
    Both { embedding: Vec<f32>, hidden: Vec<f32> },
}

/// The smallest weight type in which none of a checkpoint's matrices loses anything.
pub(crate) fn own_type(checkpoint: &Checkpoint) -> Result<WeightType, LoadError> {
    let is_matrix = |tensor: &Tensor| checkpoint.shape(*tensor).len() == 2;
    let matrices = Tensor::all(checkpoint.config()).filter(is_matrix);
    let dtypes = matrices.map(|tensor| checkpoint.dtype(tensor)).collect::<Result<Vec<_>, _>>()?;
    Ok(type_of_all(dtypes))
}

/// The smallest weight type that keeps the values of all these.
pub(crate) fn type_of_all(dtypes: impl IntoIterator<Item = Dtype>) -> WeightType {
    let mut dtypes = dtypes.into_iter();
    let first = dtypes.next();
    match first {
        // Neither half keeps all of the other's values.
        Some(first) if dtypes.any(|dtype| dtype != first) => WeightType::F32,
        Some(Dtype::Bf16) => WeightType::Bf16,
        Some(Dtype::F16) => WeightType::F16,
        Some(Dtype::F32) | None => WeightType::F32,
    }
}

/// Packs matrices of the same inputs as one, their outputs one behind the other. They are read row by
/// row: no tensor is ever in memory as a whole but in its packed form.
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

/// A checkpoint's tensors on their way to a model of this configuration, packed in this type.
pub(crate) struct Packing<'a> {
    pub(crate) source: &'a dyn TensorSource,
    pub(crate) config: &'a Config,
    pub(crate) weight_type: WeightType,
}

impl Packing<'_> {
    /// A norm or a bias.
    pub(crate) fn vector(&self, tensor: Tensor) -> Result<Vec<f32>, LoadError> {
        self.source.rows(tensor)?.read_all()
    }

    /// Matrices of the same inputs as one.
    pub(crate) fn matrix(&self, tensors: &[Tensor]) -> Result<PackedMatrix, LoadError> {
        let rows = tensors.iter().map(|&tensor| self.source.rows(tensor));
        pack(self.weight_type, &rows.collect::<Result<Vec<_>, _>>()?)
    }

    /// Projections of a layer as one, with their biases where the model has such.
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

    /// A layer, with or without a norm before its attention.
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
    /// Reads and packs all tensors of a checkpoint, in its own type.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load(checkpoint: &Checkpoint) -> Result<Self, LoadError> {
        Self::load_with(checkpoint, None, &mut |_| ())
    }

    /// Reads all tensors and packs the matrices in a given type, on all cores. Beside the packed
    /// weights that takes the memory of a few rows.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_as(checkpoint: &Checkpoint, weight_type: WeightType) -> Result<Self, LoadError> {
        Self::load_with(checkpoint, Some(weight_type), &mut |_| ())
    }

    /// The same, `None` being the checkpoint's own type; `on_layer` is told how many layers are
    /// packed.
    ///
    /// # Errors
    /// If a value is not finite.
    pub fn load_with(
        checkpoint: &Checkpoint,
        weight_type: Option<WeightType>,
        on_layer: &mut dyn FnMut(usize),
    ) -> Result<Self, LoadError> {
        let weight_type = weight_type.map_or_else(|| own_type(checkpoint), Ok)?;
        let config = checkpoint.config().clone();
        let packing = Packing { source: checkpoint, config: &config, weight_type };
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(Arc::new(packing.matrix(&[Tensor::Head])?)),
        };
        let embedding = Arc::new(packing.matrix(&[Tensor::Embedding])?);
        let mut layer = |index| {
            on_layer(index);
            packing.layer(index, true)
        };
        let layers =
            (0..config.num_hidden_layers).map(&mut layer).collect::<Result<Vec<_>, _>>()?;
        on_layer(layers.len());
        let final_norm = Some(packing.vector(Tensor::FinalNorm)?);
        let masks = Vec::new();
        Ok(Self { weight_type, embedding, masks, layers, final_norm, head, config })
    }

    /// The model's shape.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Bytes of packed weights.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let layer = |layer: &LayerWeights| {
            let LayerWeights { qkv, output, gate_up, down, .. } = layer;
            [qkv, output, gate_up, down].map(PackedMatrix::bytes).iter().sum::<usize>()
        };
        let layers: usize = self.layers.iter().map(layer).sum();
        layers + self.embedding.bytes() + self.head.as_ref().map_or(0, |head| head.bytes())
    }

    /// Bytes of weights that a pass with logits reads: all but an embedding that is not the head.
    #[must_use]
    pub fn bytes_read(&self) -> usize {
        self.bytes() - self.head.as_ref().map_or(0, |_| self.embedding.bytes())
    }

    /// The type of the packed matrices.
    #[must_use]
    pub fn weight_type(&self) -> WeightType {
        self.weight_type
    }

    /// Tokens that have an embedding: the vocabulary's, then the masks.
    pub(crate) fn embedded_tokens(&self) -> usize {
        self.config.vocab_size + self.masks.len() / self.config.hidden_size
    }

    /// The tokens that stand for what is to be guessed: they are behind the vocabulary.
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

    /// What turns a hidden state into logits.
    pub(crate) fn head(&self) -> &Arc<PackedMatrix> {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}
