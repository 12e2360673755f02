//! A Llama-shaped language model that can be trained.

use crate::ops::attention::Rope;
use crate::ops::attention_block::AttentionBlock;
use crate::ops::groups::Groups;
use crate::ops::head::HeadLoss;
use crate::ops::mlp_block::MlpBlock;
use crate::ops::{AttentionShape, LossParts, MlpShape, Targets, apply};
use candle_core::{Device, Result, Tensor, Var};
use forerun_model::checkpoint::{Checkpoint, LayerTensor, Tensor as Stored};
use forerun_model::{Config, LoadError};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand_distr::{Distribution, Normal};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Standard deviation of new matrices (GPT-2's).
pub(crate) const INITIAL_DEVIATION: f32 = 0.02;

/// Why there is no model.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The library's complaint.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// A checkpoint that cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A model of which this trainer knows no backward pass.
    #[error(
        "a model with {0} cannot be trained here: only plain Llama models can (no biases, no norms of \
         queries and keys, no sliding window)"
    )]
    Unsupported(&'static str),
}

/// One parameter, as the optimizer sees it.
#[derive(Clone, Debug)]
pub struct Parameter {
    /// Unique in its model.
    pub name: String,
    /// Its values.
    pub values: Var,
    /// Whether weight decay pulls at it: at matrices, not at norms.
    pub decays: bool,
}

struct Layer {
    attention_norm: Var,
    attention: Var,
    mlp_norm: Var,
    mlp: Var,
}

/// A model with its weights in f32.
pub struct Llama {
    config: Config,
    embedding: Var,
    layers: Vec<Layer>,
    final_norm: Var,
    /// `None` where it is the embedding.
    head: Option<Var>,
    rope: Arc<Rope>,
}

impl Llama {
    /// A model of random weights: normal with deviation 0.02; what adds to the residual stream less,
    /// by the root of twice the number of layers (GPT-2).
    ///
    /// # Errors
    /// If the trainer does not know the model's kind.
    pub fn random(config: &Config, seed: u64) -> std::result::Result<Self, ModelError> {
        let depth = (2.0 * config.num_hidden_layers as f32).sqrt();
        let mut index = 0_u64;
        Self::build(config, |tensor| {
            let count = tensor.shape(config).iter().product();
            index += 1;
            let deviation = match tensor {
                Stored::Layer(_, LayerTensor::Output | LayerTensor::Down) => {
                    INITIAL_DEVIATION / depth
                }
                _ => INITIAL_DEVIATION,
            };
            if tensor.shape(config).len() == 1 {
                return Ok(vec![1.0; count]);
            }
            // A generator for each tensor: its values depend on nothing else.
            let mut random =
                StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9).wrapping_add(index));
            let normal = Normal::new(0.0, deviation).map_err(candle_core::Error::wrap)?;
            Ok(normal.sample_iter(&mut random).take(count).collect())
        })
    }

    /// The model of a checkpoint.
    ///
    /// # Errors
    /// If its weights cannot be read or the trainer does not know its kind.
    pub fn load(checkpoint: &Checkpoint) -> std::result::Result<Self, ModelError> {
        Self::build(checkpoint.config(), |tensor| Ok(checkpoint.tensor(tensor)?))
    }

    fn build(
        config: &Config,
        mut values: impl FnMut(Stored) -> std::result::Result<Vec<f32>, ModelError>,
    ) -> std::result::Result<Self, ModelError> {
        config.validate(Path::new("config.json"))?;
        let unsupported = [
            (config.qkv_bias || config.output_bias || config.mlp_bias, "biases"),
            (config.qk_norm, "norms of queries and keys"),
            (config.sliding_window.is_some(), "a sliding window"),
        ];
        if let Some(&(_, what)) = unsupported.iter().find(|(is, _)| *is) {
            return Err(ModelError::Unsupported(what));
        }
        let var = |values: Vec<f32>, shape: &[usize]| {
            Var::from_vec(values, shape, &Device::Cpu).map_err(ModelError::from)
        };
        let mut matrix = |tensor: Stored| var(values(tensor)?, &tensor.shape(config));
        let embedding = matrix(Stored::Embedding)?;
        let mut layers = Vec::new();
        for layer in 0..config.num_hidden_layers {
            let mut one = |part| matrix(Stored::Layer(layer, part));
            let attention_norm = one(LayerTensor::AttentionNorm)?;
            let mlp_norm = one(LayerTensor::MlpNorm)?;
            let mut together = |parts: &[LayerTensor]| {
                let flat =
                    parts.iter().map(|&part| one(part)?.flatten_all().map_err(ModelError::from));
                let flat = flat.collect::<std::result::Result<Vec<_>, _>>()?;
                Ok::<_, ModelError>(Var::from_tensor(&Tensor::cat(&flat, 0)?)?)
            };
            let attention = together(&ATTENTION)?;
            let mlp = together(&MLP)?;
            layers.push(Layer { attention_norm, attention, mlp_norm, mlp });
        }
        let final_norm = matrix(Stored::FinalNorm)?;
        let head = (!config.tie_word_embeddings).then(|| matrix(Stored::Head)).transpose()?;
        let frequencies: Vec<f32> =
            (0..config.head_dim / 2).map(|pair| config.rope_frequency(pair)).collect();
        let rope = Arc::new(Rope::new(&frequencies, config.max_position_embeddings));
        Ok(Self { config: config.clone(), embedding, layers, final_norm, head, rope })
    }

    /// What the model is.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Everything that is trained.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        let parameter =
            |name: String, values: &Var, decays| Parameter { name, values: values.clone(), decays };
        let mut all = vec![parameter("embedding".into(), &self.embedding, true)];
        for (index, layer) in self.layers.iter().enumerate() {
            let of_layer = |name: &str, values, decays| {
                parameter(format!("layers.{index}.{name}"), values, decays)
            };
            all.extend([
                of_layer("attention_norm", &layer.attention_norm, false),
                of_layer("attention", &layer.attention, true),
                of_layer("mlp_norm", &layer.mlp_norm, false),
                of_layer("mlp", &layer.mlp, true),
            ]);
        }
        all.push(parameter("final_norm".into(), &self.final_norm, false));
        all.extend(self.head.iter().map(|head| parameter("head".into(), head, true)));
        all
    }

    /// Weights that take part in matrix products, each once for a token: what 6 operations for each
    /// token of training stand for.
    #[must_use]
    pub fn product_weights(&self) -> usize {
        let of_layer =
            AttentionShape::of(&self.config).weights() + MlpShape::of(&self.config).weights();
        of_layer * self.layers.len() + self.config.vocab_size * self.config.hidden_size
    }

    /// One of its tensors, as checkpoints store them.
    ///
    /// # Errors
    /// Where the library fails.
    pub fn tensor(&self, tensor: Stored) -> Result<Vec<f32>> {
        let flat = |var: &Var| var.flatten_all()?.to_vec1::<f32>();
        let Stored::Layer(layer, part) = tensor else {
            return flat(match tensor {
                Stored::FinalNorm => &self.final_norm,
                Stored::Head => self.head.as_ref().unwrap_or(&self.embedding),
                _ => &self.embedding,
            });
        };
        let own = &self.layers[layer];
        let within = |parts: &[LayerTensor], var: &Var| {
            let size =
                |part| Stored::Layer(layer, part).shape(&self.config).iter().product::<usize>();
            let before = parts.iter().take_while(|&&other| other != part);
            let start = before.map(|&other| size(other)).sum();
            var.narrow(0, start, size(part))?.to_vec1::<f32>()
        };
        match part {
            LayerTensor::AttentionNorm => flat(&own.attention_norm),
            LayerTensor::MlpNorm => flat(&own.mlp_norm),
            part if ATTENTION.contains(&part) => within(&ATTENTION, &own.attention),
            _ => within(&MLP, &own.mlp),
        }
    }

    /// The residual stream behind the last layer, `[tokens, hidden]`, of sequences of `context`
    /// tokens one behind the other.
    ///
    /// # Errors
    /// Where the library fails; for a token that there is not.
    pub fn hidden(&self, tokens: &[u32], context: usize) -> Result<Tensor> {
        self.after_layers(tokens, context, |x| x)
    }

    /// As [`Self::hidden`], for a model that is not trained: nothing is kept for a backward pass.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn frozen(&self, tokens: &[u32], context: usize) -> Result<Tensor> {
        self.after_layers(tokens, context, |x| x.detach())
    }

    fn after_layers(
        &self,
        tokens: &[u32],
        context: usize,
        after_each: impl Fn(Tensor) -> Tensor,
    ) -> Result<Tensor> {
        if !tokens.len().is_multiple_of(context) || context > self.config.max_position_embeddings {
            candle_core::bail!(
                "{} tokens make no sequences of {context}, of which the model sees {}",
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
            x = after_each(apply(mlp, [&x, &layer.mlp_norm, &layer.mlp])?);
        }
        Ok(x)
    }

    /// The loss of rows behind the last layer, as a scalar that can be differentiated if `train`, and
    /// its parts.
    ///
    /// # Errors
    /// Where the library fails.
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

    /// `[vocabulary, hidden]`.
    #[must_use]
    pub fn head_weights(&self) -> &Tensor {
        self.head.as_ref().unwrap_or(&self.embedding).as_tensor()
    }

    /// Rows as the head takes them: behind the final norm.
    ///
    /// # Errors
    /// Where the library fails.
    pub fn normed(&self, hidden: &Tensor) -> Result<Vec<f32>> {
        let (x, norm) =
            (hidden.flatten_all()?.to_vec1::<f32>()?, self.final_norm.to_vec1::<f32>()?);
        let mut out = vec![0.0; x.len()];
        let mut r = vec![0.0; x.len() / norm.len()];
        crate::ops::elementwise::rms_norm(&x, &norm, self.config.rms_norm_eps, &mut out, &mut r);
        Ok(out)
    }
}

/// The order of an attention block's weights.
const ATTENTION: [LayerTensor; 4] =
    [LayerTensor::Query, LayerTensor::Key, LayerTensor::Value, LayerTensor::Output];

/// The order of an MLP block's weights.
const MLP: [LayerTensor; 3] = [LayerTensor::Gate, LayerTensor::Up, LayerTensor::Down];
