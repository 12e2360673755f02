//! The storage layout of EAGLE-3's layer.
//!
//! *EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test*, Li et al.
//! 2025, arXiv 2503.01840. `fc.weight` projects three hidden states of the target to one. The attention
//! of the only layer, `midlayer` (`layers.0` in vLLM's speculators), reads the embedding concatenated
//! with that state; each has its own norm. The head may have fewer tokens than the target: the target's
//! token for the head's token `t` is `t + d2t[t]`.

use super::layers::{EagleWeights, FUSION, HINT};
use super::{Speculator, SpeculatorKind};
use crate::checkpoint::{LayerTensor, LoadError, NamedTensors, Tensor};
use crate::config::Config;
use crate::kernels::{PackedMatrix, WeightType};
use crate::weights::{AttentionNorm, LayerWeights, Weights, pack};
use forerun_core::TokenId;
use std::sync::Arc;

/// The tensor that distinguishes this layer from EAGLE's.
const HIDDEN_NORM: &str = "hidden_norm.weight";
const EMBEDDING: &str = "embed_tokens.weight";
const HEAD: &str = "lm_head.weight";
const DRAFT_TO_TARGET: &str = "d2t";

/// Returns the prefix of the layer's tensor names. `None` for tensors that are not EAGLE-3's.
pub(super) fn prefix(tensors: &NamedTensors) -> Option<&'static str> {
    ["midlayer.", "layers.0."]
        .into_iter()
        .find(|prefix| tensors.has(&format!("{prefix}{HIDDEN_NORM}")))
}

/// Returns a tensor's name after the prefix of its layer.
fn name_within_layer(tensor: LayerTensor) -> String {
    let name = Tensor::Layer(0, tensor).to_string();
    name.strip_prefix("model.layers.0.").map_or(name.clone(), str::to_owned)
}

impl Speculator {
    /// Reads and packs an EAGLE-3 drafter.
    pub(super) fn eagle3(
        &self,
        target: &Weights,
        weight_type: Option<WeightType>,
    ) -> Result<EagleWeights, LoadError> {
        let (Some(config), Some(prefix)) = (&self.config, prefix(&self.tensors)) else {
            return Err(self.wrong_kind("an EAGLE-3 drafter"));
        };
        self.reject_other_tensors(config, prefix)?;
        let (tensors, size) = (&self.tensors, config.hidden_size);
        let weight_type = self.weight_type(weight_type)?;
        let vector = |name: &str, len: usize| tensors.rows(name, &[len], HINT)?.read_all();
        let matrix =
            |name: &str, shape: [usize; 2]| pack(weight_type, &[tensors.rows(name, &shape, HINT)?]);
        let layer = self.midlayer(config, prefix, weight_type)?;
        let embedding = match tensors.has(EMBEDDING) {
            true => Arc::new(matrix(EMBEDDING, [config.vocab_size, size])?),
            false => Arc::clone(&target.embedding),
        };
        let (head, draft_tokens) = self.head(target, config, weight_type)?;
        let layers = Weights {
            config: Config { tie_word_embeddings: false, ..config.clone() },
            weight_type,
            embedding,
            masks: Vec::new(),
            layers: vec![layer],
            final_norm: Some(vector("norm.weight", size)?),
            head: Some(head),
        };
        let width = SpeculatorKind::Eagle3.feature_width(target.config());
        let fusion = matrix(FUSION, [size, width])?;
        let (layers, mask_features) = (Arc::new(layers), Vec::new());
        Ok(EagleWeights { layers, fusion, mask_features, draft_tokens })
    }

    fn reject_other_tensors(&self, config: &Config, prefix: &str) -> Result<(), LoadError> {
        let layer_tensors = LayerTensor::ALL.into_iter().filter(|tensor| tensor.is_in(config));
        let mut layer_names: Vec<String> = layer_tensors.map(name_within_layer).collect();
        layer_names.push(HIDDEN_NORM.to_owned());
        self.tensors.reject_unknown("this EAGLE-3 drafter", |name| {
            let within_layer = name.strip_prefix(prefix);
            let others = [FUSION, EMBEDDING, HEAD, "norm.weight", DRAFT_TO_TARGET, "t2d"];
            within_layer.is_some_and(|name| layer_names.iter().any(|known| known == name))
                || others.contains(&name)
        })
    }

    fn midlayer(
        &self,
        config: &Config,
        prefix: &str,
        weight_type: WeightType,
    ) -> Result<LayerWeights, LoadError> {
        use LayerTensor as T;
        let rows = |tensor: T, shape: &[usize]| {
            self.tensors.rows(&format!("{prefix}{}", name_within_layer(tensor)), shape, HINT)
        };
        let model_shape = |tensor: T| Tensor::Layer(0, tensor).shape(config);
        // Attention reads the embedding and the hidden state. Otherwise this is an ordinary layer.
        let stored_shape = |tensor: T| match (tensor, &model_shape(tensor)[..]) {
            (T::Query | T::Key | T::Value, [outputs, inputs]) => vec![*outputs, 2 * inputs],
            (_, shape) => shape.to_vec(),
        };
        let vector = |tensor: T| rows(tensor, &model_shape(tensor))?.read_all();
        let projection = |weights: &[T], biases: &[T]| {
            let weights = weights.iter().map(|&tensor| rows(tensor, &stored_shape(tensor)));
            let weights = weights.collect::<Result<Vec<_>, _>>()?;
            let biases = biases.iter().filter(|bias| bias.is_in(config));
            let biases = biases.map(|&bias| vector(bias)).collect::<Result<Vec<_>, _>>()?;
            let bias = (!biases.is_empty()).then(|| biases.concat());
            Ok::<PackedMatrix, LoadError>(pack(weight_type, &weights)?.with_bias(bias))
        };
        let hidden_norm = format!("{prefix}{HIDDEN_NORM}");
        let hidden = self.tensors.rows(&hidden_norm, &[config.hidden_size], HINT)?.read_all()?;
        let qk_norms = || Ok::<_, LoadError>([vector(T::QueryNorm)?, vector(T::KeyNorm)?]);
        Ok(LayerWeights {
            attention_norm: AttentionNorm::Both { embedding: vector(T::AttentionNorm)?, hidden },
            qkv: projection(
                &[T::Query, T::Key, T::Value],
                &[T::QueryBias, T::KeyBias, T::ValueBias],
            )?,
            qk_norms: config.qk_norm.then(qk_norms).transpose()?,
            window: config.window(0),
            output: projection(&[T::Output], &[T::OutputBias])?,
            mlp_norm: vector(T::MlpNorm)?,
            gate_up: projection(&[T::Gate, T::Up], &[T::GateBias, T::UpBias])?,
            down: projection(&[T::Down], &[T::DownBias])?,
        })
    }

    /// Returns the drafter's own head, or else the target's. If the head does not have all the target's
    /// tokens, also returns the target's token for each of its tokens.
    fn head(
        &self,
        target: &Weights,
        config: &Config,
        weight_type: WeightType,
    ) -> Result<(Arc<PackedMatrix>, Option<Vec<TokenId>>), LoadError> {
        let tensors = &self.tensors;
        let Some(&[draft_vocab_size, _]) = tensors.shape(HEAD) else {
            return Ok((Arc::clone(target.head()), None));
        };
        let head = tensors.rows(HEAD, &[draft_vocab_size, config.hidden_size], HINT)?;
        let head = pack(weight_type, &[head])?;
        let vocab_size = config.vocab_size;
        let offsets = match tensors.integers(DRAFT_TO_TARGET)? {
            None if draft_vocab_size == vocab_size => return Ok((Arc::new(head), None)),
            offsets => offsets.unwrap_or_default(),
        };
        let target_tokens = (0..draft_vocab_size).zip(&offsets).map_while(|(token, &offset)| {
            let token = (token as i64).checked_add(offset)?;
            TokenId::try_from(token).ok().filter(|&token| (token as usize) < vocab_size)
        });
        let target_tokens: Vec<TokenId> = target_tokens.collect();
        if target_tokens.len() != draft_vocab_size || offsets.len() != draft_vocab_size {
            let path = self.path.clone();
            return Err(LoadError::DraftVocabulary { path, draft_vocab_size, vocab_size });
        }
        Ok((Arc::new(head), Some(target_tokens)))
    }
}
