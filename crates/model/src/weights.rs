//! A model's weights, packed as the kernels read them.

use crate::LoadError;
use crate::checkpoint::{Checkpoint, Dtype, LayerTensor, Tensor};
use crate::config::Config;
use crate::kernels::{PackedMatrix, WeightType};

/// Packed weights; replicas on devices that share memory share them.
pub struct Weights {
    config: Config,
    pub(crate) embedding: PackedMatrix,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) final_norm: Vec<f32>,
    /// `None` if tied to the embedding.
    head: Option<PackedMatrix>,
}

/// One layer's.
pub(crate) struct LayerWeights {
    pub(crate) attention_norm: Vec<f32>,        // [hidden]
    pub(crate) qkv: PackedMatrix,               // [(n_heads + 2 · n_kv_heads) · head_dim, hidden]
    pub(crate) qk_norms: Option<[Vec<f32>; 2]>, // [head_dim] of queries, of keys
    pub(crate) window: Option<usize>,           // positions that a row sees
    pub(crate) output: PackedMatrix,            // [hidden, n_heads · head_dim]
    pub(crate) mlp_norm: Vec<f32>,              // [hidden]
    pub(crate) gate_up: PackedMatrix,           // [2 · intermediate, hidden]
    pub(crate) down: PackedMatrix,              // [hidden, intermediate]
}

/// The smallest weight type in which none of a checkpoint's matrices loses anything.
pub(crate) fn own_type(checkpoint: &Checkpoint) -> Result<WeightType, LoadError> {
    let is_matrix = |tensor: &Tensor| checkpoint.shape(*tensor).len() == 2;
    let mut own = None;
    for tensor in Tensor::all(checkpoint.config()).filter(is_matrix) {
        let dtype = checkpoint.dtype(tensor)?;
        if own.is_some_and(|own| own != dtype) {
            // Neither half keeps all of the other's values.
            return Ok(WeightType::F32);
        }
        own = Some(dtype);
    }
    Ok(match own {
        Some(Dtype::Bf16) => WeightType::Bf16,
        Some(Dtype::F16) => WeightType::F16,
        Some(Dtype::F32) | None => WeightType::F32,
    })
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
        let vector = |tensor| checkpoint.tensor(tensor);
        // Row by row: no tensor is ever in memory as a whole but in its packed form.
        let matrices = |tensors: &[Tensor]| {
            let tensors = tensors.iter().map(|&tensor| checkpoint.rows(tensor));
            let tensors = tensors.collect::<Result<Vec<_>, LoadError>>()?;
            let rows = tensors.iter().flat_map(|rows| (0..rows.len()).map(move |row| (rows, row)));
            let (rows, inputs): (Vec<_>, _) = (rows.collect(), tensors[0].columns());
            let read = |output: usize, row: &mut [f32]| {
                let (tensor, index) = rows[output];
                tensor.read(index, row)
            };
            PackedMatrix::pack_rows(weight_type, [rows.len(), inputs], read)
        };
        let mut layer = |index| {
            on_layer(index);
            use LayerTensor as T;
            let vector = |tensor| vector(Tensor::Layer(index, tensor));
            let projection = |weights: &[LayerTensor], biases: &[LayerTensor]| {
                let weights: Vec<_> = weights.iter().map(|&w| Tensor::Layer(index, w)).collect();
                let biases = biases.iter().filter(|bias| bias.is_in(&config));
                let biases = biases.map(|&bias| vector(bias)).collect::<Result<Vec<_>, _>>()?;
                let bias = (!biases.is_empty()).then(|| biases.concat());
                Ok::<_, LoadError>(matrices(&weights)?.with_bias(bias))
            };
            let qk_norms = || Ok::<_, LoadError>([vector(T::QueryNorm)?, vector(T::KeyNorm)?]);
            Ok::<_, LoadError>(LayerWeights {
                attention_norm: vector(T::AttentionNorm)?,
                qkv: projection(
                    &[T::Query, T::Key, T::Value],
                    &[T::QueryBias, T::KeyBias, T::ValueBias],
                )?,
                qk_norms: config.qk_norm.then(qk_norms).transpose()?,
                window: config.window(index),
                output: projection(&[T::Output], &[T::OutputBias])?,
                mlp_norm: vector(T::MlpNorm)?,
                gate_up: projection(&[T::Gate, T::Up], &[T::GateBias, T::UpBias])?,
                down: projection(&[T::Down], &[T::DownBias])?,
            })
        };
        let head = match config.tie_word_embeddings {
            true => None,
            false => Some(matrices(&[Tensor::Head])?),
        };
        let embedding = matrices(&[Tensor::Embedding])?;
        let layers =
            (0..config.num_hidden_layers).map(&mut layer).collect::<Result<Vec<_>, _>>()?;
        on_layer(layers.len());
        Ok(Self { embedding, layers, final_norm: vector(Tensor::FinalNorm)?, head, config })
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
        layers + self.embedding.bytes() + self.head.as_ref().map_or(0, PackedMatrix::bytes)
    }

    /// Bytes of weights that a pass with logits reads: all but an embedding that is not the head.
    #[must_use]
    pub fn bytes_read(&self) -> usize {
        self.bytes() - self.head.as_ref().map_or(0, |_| self.embedding.bytes())
    }

    /// The type of the packed matrices.
    #[must_use]
    pub fn weight_type(&self) -> WeightType {
        self.embedding.weight_type()
    }

    /// What turns a hidden state into logits.
    pub(crate) fn head(&self) -> &PackedMatrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}
