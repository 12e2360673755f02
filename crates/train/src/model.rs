//! A trainable language model of the Llama architecture.

use crate::ops::attention::Rope;
use crate::ops::attention_block::AttentionBlock;
use crate::ops::groups::Groups;
use crate::ops::head::HeadLoss;
use crate::ops::mlp_block::MlpBlock;
use crate::ops::{AttentionShape, LossParts, MlpShape, Targets, apply};
use candle_core::{Device, Result, Tensor, Var};
use forerun_cpu::TeamError;
use forerun_formats::checkpoint::{Checkpoint, LayerTensor, Tensor as CheckpointTensor};
use forerun_formats::{Config, LoadError};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Normal};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Standard deviation of the initial values of matrices (GPT-2).
pub(crate) const INITIAL_DEVIATION: f32 = 0.02;

/// An error of creating or loading a model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The model has a feature that this crate does not implement.
    #[error(
        "training does not support models with {0}: choose a Llama model without biases, norms of \
         queries and keys, and a sliding window"
    )]
    Unsupported(&'static str),
    /// The hidden states that a drafter is to read do not exist.
    #[error(
        "the drafter reads hidden states after layers {layers:?} of the target: give at least one number, \
         and numbers from 1 to {count}"
    )]
    FeatureLayers {
        /// The numbers of layers.
        layers: Vec<usize>,
        /// The number of the target's layers.
        count: usize,
    },
    /// The threads of a target's passes cannot be started.
    #[error(transparent)]
    Threads(#[from] TeamError),
    /// A folder cannot be created.
    #[error("cannot create {path}: {cause}")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The system's reason.
        cause: io::Error,
    },
}

/// A trainable parameter of a model.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// The name of the parameter, unique in its model.
    pub name: String,
    /// The values of the parameter.
    pub values: Var,
    /// Whether weight decay applies to the parameter. It applies to matrices, but not to norms.
    pub decays: bool,
    /// The shapes, `[rows, columns]`, of the matrices that the values consist of, one after
    /// another. Empty for embeddings, the head and vectors.
    pub matrices: Vec<[usize; 2]>,
}

struct Layer {
    attention_norm: Var,
    attention: Var,
    mlp_norm: Var,
    mlp: Var,
}

/// A Llama model, with its weights in f32.
pub struct Llama {
    config: Config,
    embedding: Var,
    layers: Vec<Layer>,
    final_norm: Var,
    /// `None` if the head is tied to the embedding.
    head: Option<Var>,
    rope: Arc<Rope>,
}

impl Llama {
    /// Creates a model with random weights.
    ///
    /// Matrices are normally distributed with a standard deviation of 0.02. For projections that
    /// add to the residual stream it is divided by `√(2 · layers)` (GPT-2). Norms are 1.
    ///
    /// # Errors
    /// If the configuration is invalid, or this crate does not implement the architecture.
    pub fn random(config: &Config, seed: u64) -> std::result::Result<Self, ModelError> {
        let depth = (2.0 * config.num_hidden_layers as f32).sqrt();
        let mut index = 0_u64;
        let architecture = config.architecture();
        Self::build(config, |tensor| {
            let shape = architecture.shape(tensor);
            let count = shape.iter().product();
            index += 1;
            let deviation = match tensor {
                CheckpointTensor::Layer(_, LayerTensor::Output | LayerTensor::Down) => {
                    INITIAL_DEVIATION / depth
                }
                _ => INITIAL_DEVIATION,
            };
            if shape.len() == 1 {
                return Ok(vec![1.0; count]);
            }
            // Each tensor has a generator of its own, so its values do not depend on the others.
            let mut random =
                StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9).wrapping_add(index));
            let normal = Normal::new(0.0, deviation).map_err(candle_core::Error::wrap)?;
            Ok(normal.sample_iter(&mut random).take(count).collect())
        })
    }

    /// Loads the model of a checkpoint.
    ///
    /// # Errors
    /// If the weights cannot be read, or this crate does not implement the architecture.
    pub fn load(checkpoint: &Checkpoint) -> std::result::Result<Self, ModelError> {
        Self::build(checkpoint.config(), |tensor| Ok(checkpoint.tensor(tensor)?))
    }

    fn build(
        config: &Config,
        mut values: impl FnMut(CheckpointTensor) -> std::result::Result<Vec<f32>, ModelError>,
    ) -> std::result::Result<Self, ModelError> {
        config.validate(Path::new("config.json"))?;
        if let Some(piece) = config.unusual_piece() {
            return Err(ModelError::Unsupported(piece));
        }
        let var = |values: Vec<f32>, shape: &[usize]| {
            Var::from_vec(values, shape, &Device::Cpu).map_err(ModelError::from)
        };
        let architecture = config.architecture();
        let mut load = |tensor: CheckpointTensor| var(values(tensor)?, &architecture.shape(tensor));
        let embedding = load(CheckpointTensor::Embedding)?;
        let mut layers = Vec::new();
        for layer in 0..config.num_hidden_layers {
            let mut load_part = |part| load(CheckpointTensor::Layer(layer, part));
            let attention_norm = load_part(LayerTensor::AttentionNorm)?;
            let mlp_norm = load_part(LayerTensor::MlpNorm)?;
            let mut concatenate = |parts: &[LayerTensor]| {
                let flat = parts
                    .iter()
                    .map(|&part| load_part(part)?.flatten_all().map_err(ModelError::from));
                let flat = flat.collect::<std::result::Result<Vec<_>, _>>()?;
                Ok::<_, ModelError>(Var::from_tensor(&Tensor::cat(&flat, 0)?)?)
            };
            let attention = concatenate(&ATTENTION)?;
            let mlp = concatenate(&MLP)?;
            layers.push(Layer { attention_norm, attention, mlp_norm, mlp });
        }
        let final_norm = load(CheckpointTensor::FinalNorm)?;
        let head =
            (!config.tie_word_embeddings).then(|| load(CheckpointTensor::Head)).transpose()?;
        let frequencies: Vec<f32> =
            (0..config.head_dim / 2).map(|pair| config.rope(0).frequency(pair)).collect();
        let rope = Arc::new(Rope::new(&frequencies, config.max_position_embeddings));
        Ok(Self { config: config.clone(), embedding, layers, final_norm, head, rope })
    }

    /// Returns the configuration of the model.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Returns the trainable parameters.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        let parameter = |name: String, values: &Var, decays| Parameter {
            name,
            values: values.clone(),
            decays,
            matrices: Vec::new(),
        };
        let architecture = self.config.architecture();
        let matrices = |parts: &[LayerTensor]| {
            let shape = |&part| architecture.shape(CheckpointTensor::Layer(0, part));
            parts.iter().map(|part| [shape(part)[0], shape(part)[1]]).collect()
        };
        let mut all = vec![parameter("embedding".into(), &self.embedding, true)];
        for (index, layer) in self.layers.iter().enumerate() {
            let norm =
                |name: &str, values| parameter(format!("layers.{index}.{name}"), values, false);
            let block = |name: &str, values, parts: &[LayerTensor]| Parameter {
                matrices: matrices(parts),
                ..parameter(format!("layers.{index}.{name}"), values, true)
            };
            all.extend([
                norm("attention_norm", &layer.attention_norm),
                block("attention", &layer.attention, &ATTENTION),
                norm("mlp_norm", &layer.mlp_norm),
                block("mlp", &layer.mlp, &MLP),
            ]);
        }
        all.push(parameter("final_norm".into(), &self.final_norm, false));
        all.extend(self.head.iter().map(|head| parameter("head".into(), head, true)));
        all
    }

    /// Returns the number of weights that are used in matrix products, once per token. Training
    /// takes 6 floating-point operations per token for each of them.
    #[must_use]
    pub fn product_weights(&self) -> usize {
        let per_layer = AttentionShape::of(&self.config).weight_count()
            + MlpShape::of(&self.config).weight_count();
        per_layer * self.layers.len() + self.config.vocab_size * self.config.hidden_size
    }

    /// Returns one of the model's tensors, in the layout of checkpoints.
    ///
    /// # Errors
    /// If a tensor operation fails.
    pub fn tensor(&self, tensor: CheckpointTensor) -> Result<Vec<f32>> {
        let flat = |var: &Var| var.flatten_all()?.to_vec1::<f32>();
        let CheckpointTensor::Layer(layer, part) = tensor else {
            return flat(match tensor {
                CheckpointTensor::FinalNorm => &self.final_norm,
                CheckpointTensor::Head => self.head.as_ref().unwrap_or(&self.embedding),
                _ => &self.embedding,
            });
        };
        let weights = &self.layers[layer];
        let architecture = self.config.architecture();
        let slice_of = |parts: &[LayerTensor], var: &Var| {
            let size = |part| {
                architecture.shape(CheckpointTensor::Layer(layer, part)).iter().product::<usize>()
            };
            let before = parts.iter().take_while(|&&other| other != part);
            let start = before.map(|&other| size(other)).sum();
            var.narrow(0, start, size(part))?.to_vec1::<f32>()
        };
        match part {
            LayerTensor::AttentionNorm => flat(&weights.attention_norm),
            LayerTensor::MlpNorm => flat(&weights.mlp_norm),
            part if ATTENTION.contains(&part) => slice_of(&ATTENTION, &weights.attention),
            _ => slice_of(&MLP, &weights.mlp),
        }
    }

    /// Computes the residual stream after the last layer, `[tokens, hidden]`. `tokens` are one or
    /// more sequences of `context` tokens, concatenated.
    ///
    /// # Errors
    /// If the tokens are not whole sequences, `context` exceeds the model's limit, a token is not
    /// in the vocabulary, or a tensor operation fails.
    pub fn hidden(&self, tokens: &[u32], context: usize) -> Result<Tensor> {
        if !tokens.len().is_multiple_of(context) || context > self.config.max_position_embeddings {
            candle_core::bail!(
                "{} tokens cannot be split into sequences of {context} tokens that fit the model \
                 (at most {} tokens)",
                tokens.len(),
                self.config.max_position_embeddings
            );
        }
        let tokens = Tensor::new(tokens, &Device::Cpu)?;
        let mut x = self.embedding.as_tensor().index_select(&tokens, 0)?;
        let groups = Arc::new(Groups::causal(context));
        for layer in &self.layers {
            let attention = AttentionBlock {
                shape: AttentionShape::of(&self.config),
                rope: Arc::clone(&self.rope),
                groups: Arc::clone(&groups),
            };
            x = apply(attention, [&x, &layer.attention_norm, &layer.attention])?;
            let mlp = MlpBlock { shape: MlpShape::of(&self.config) };
            x = apply(mlp, [&x, &layer.mlp_norm, &layer.mlp])?;
        }
        Ok(x)
    }

    /// Computes the loss of rows after the last layer, `[tokens, hidden]`, as a scalar, and its
    /// parts. The scalar can be differentiated only with `train`.
    ///
    /// # Errors
    /// If a tensor operation fails.
    pub fn loss(
        &self,
        hidden: &Tensor,
        targets: Targets,
        train: bool,
    ) -> Result<(Tensor, LossParts)> {
        let parts = Arc::new(Mutex::default());
        let head = HeadLoss {
            epsilon: self.config.rms_norm_eps,
            targets,
            train,
            parts: Arc::clone(&parts),
        };
        let loss = apply(head, [hidden, &self.final_norm, self.head_weights()])?;
        let parts = *parts.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((loss, parts))
    }

    /// Returns the weights of the head: `[vocabulary, hidden]`.
    #[must_use]
    pub fn head_weights(&self) -> &Tensor {
        self.head.as_ref().unwrap_or(&self.embedding).as_tensor()
    }

    /// Applies the final norm to rows after the last layer, `[tokens, hidden]`: the inputs of the
    /// head.
    ///
    /// # Errors
    /// If a tensor operation fails.
    pub fn apply_final_norm(&self, hidden: &Tensor) -> Result<Vec<f32>> {
        let (x, norm) =
            (hidden.flatten_all()?.to_vec1::<f32>()?, self.final_norm.to_vec1::<f32>()?);
        let mut out = vec![0.0; x.len()];
        let mut r = vec![0.0; x.len() / norm.len()];
        crate::ops::elementwise::rms_norm(&x, &norm, self.config.rms_norm_eps, &mut out, &mut r);
        Ok(out)
    }
}

/// The order of the tensors in an attention block's weights.
const ATTENTION: [LayerTensor; 4] =
    [LayerTensor::Query, LayerTensor::Key, LayerTensor::Value, LayerTensor::Output];

/// The order of the tensors in an MLP block's weights.
const MLP: [LayerTensor; 3] = [LayerTensor::Gate, LayerTensor::Up, LayerTensor::Down];
