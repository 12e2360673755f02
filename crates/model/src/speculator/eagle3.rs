//! EAGLE-3's layer as it is stored.
//!
//! *EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test*, Li et al.
//! 2025, arXiv 2503.01840. `fc.weight` makes one hidden state of three of the target's; the only layer,
//! `midlayer` (vLLM's speculators call it `layers.0`), attends over the normed embedding beside that
//! state, both normed on their own. Its head may know fewer tokens than the target: `d2t` adds to each of
//! its tokens what makes it the target's.

use super::layers::{EagleWeights, FUSION, HINT};
use super::{Speculator, SpeculatorKind};
use crate::checkpoint::{LayerTensor, LoadError, NamedTensors, Tensor};
use crate::config::Config;
use crate::kernels::{PackedMatrix, WeightType};
use crate::weights::{AttentionNorm, LayerWeights, Weights, pack};
use forerun_core::TokenId;
use std::sync::Arc;

/// What tells this layer from EAGLE's first.
const HIDDEN_NORM: &str = "hidden_norm.weight";
const EMBEDDING: &str = "embed_tokens.weight";
const HEAD: &str = "lm_head.weight";
const TO_TARGET: &str = "d2t";

/// What the layer's tensors begin with; `None` for tensors that are no EAGLE-3.
pub(super) fn prefix(tensors: &NamedTensors) -> Option<&'static str> {
    ["midlayer.", "layers.0."]
        .into_iter()
        .find(|prefix| tensors.has(&format!("{prefix}{HIDDEN_NORM}")))
}

/// The name of a layer's tensor behind the layer's own.
fn within_layer(tensor: LayerTensor) -> String {
    let name = Tensor::Layer(0, tensor).to_string();
    name.strip_prefix("model.layers.0.").map_or(name.clone(), str::to_owned)
}

impl Speculator {
    /// Reads an EAGLE-3 drafter.
    pub(super) fn eagle3(
        &self,
        target: &Weights,
        weight_type: Option<WeightType>,
    ) -> Result<EagleWeights, LoadError> {
        let (Some(config), Some(prefix)) = (&self.config, prefix(&self.tensors)) else {
            return Err(self.not_that("an EAGLE-3 drafter"));
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
        let width = SpeculatorKind::Eagle3.width(target.config());
        let fusion = matrix(FUSION, [size, width])?;
        let (layers, mask_features) = (Arc::new(layers), Vec::new());
        Ok(EagleWeights { layers, fusion, mask_features, draft_tokens })
    }

    fn reject_other_tensors(&self, config: &Config, prefix: &str) -> Result<(), LoadError> {
        let of_layer = LayerTensor::ALL.into_iter().filter(|tensor| tensor.is_in(config));
        let mut known: Vec<String> = of_layer.map(within_layer).collect();
        known.push(HIDDEN_NORM.to_owned());
        self.tensors.reject_others("this EAGLE-3 drafter", |name| {
            let within = name.strip_prefix(prefix);
            let others = [FUSION, EMBEDDING, HEAD, "norm.weight", TO_TARGET, "t2d"];
            within.is_some_and(|own| known.iter().any(|known| known == own))
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
            self.tensors.rows(&format!("{prefix}{}", within_layer(tensor)), shape, HINT)
        };
        let own_shape = |tensor: T| Tensor::Layer(0, tensor).shape(config);
        // Attention reads the embedding beside the hidden state; all else is an ordinary layer.
        let shape_of = |tensor: T| match (tensor, &own_shape(tensor)[..]) {
            (T::Query | T::Key | T::Value, [outputs, inputs]) => vec![*outputs, 2 * inputs],
            (_, shape) => shape.to_vec(),
        };
        let vector = |tensor: T| rows(tensor, &own_shape(tensor))?.read_all();
        let projection = |weights: &[T], biases: &[T]| {
            let weights = weights.iter().map(|&tensor| rows(tensor, &shape_of(tensor)));
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

    /// Its head, or the target's, and the target's tokens that the head knows, where it has its own.
    fn head(
        &self,
        target: &Weights,
        config: &Config,
        weight_type: WeightType,
    ) -> Result<(Arc<PackedMatrix>, Option<Vec<TokenId>>), LoadError> {
        let tensors = &self.tensors;
        let Some(&[known, _]) = tensors.shape(HEAD) else {
            return Ok((Arc::clone(target.head()), None));
        };
        let head = pack(weight_type, &[tensors.rows(HEAD, &[known, config.hidden_size], HINT)?])?;
        let vocab_size = config.vocab_size;
        let draft_tokens = match tensors.integers(TO_TARGET)? {
            None if known == vocab_size => return Ok((Arc::new(head), None)),
            offsets => offsets.unwrap_or_default(),
        };
        let of_target = (0..known).zip(&draft_tokens).map_while(|(token, &offset)| {
            let token = (token as i64).checked_add(offset)?;
            TokenId::try_from(token).ok().filter(|&token| (token as usize) < vocab_size)
        });
        let of_target: Vec<TokenId> = of_target.collect();
        if of_target.len() != known || draft_tokens.len() != known {
            let path = self.path.clone();
            return Err(LoadError::DraftVocabulary { path, known, vocab_size });
        }
        Ok((Arc::new(head), Some(of_target)))
    }
}
