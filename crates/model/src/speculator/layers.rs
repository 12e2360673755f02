//! The storage layout of EAGLE's and ParallelSpec's layers.
//!
//! Tensor names are those of a model without the first part: `layers.0.self_attn.q_proj.weight`. A
//! tensor that is not stored either does not exist (EAGLE's layer has no norm before its attention and
//! no final norm) or is the target's (the embedding, and always the head).

use super::{Speculator, SpeculatorKind};
use crate::checkpoint::{LayerTensor, LoadError, NamedTensors, Tensor, TensorRows, TensorSource};
use crate::config::Config;
use crate::kernels::{PackedMatrix, WeightType};
use crate::weights::{AttentionNorm, WeightPacker, Weights, pack};
use forerun_core::TokenId;
use std::sync::Arc;

/// The mask tokens' embeddings, `[masks, hidden]`.
pub(super) const MASK_EMBEDDINGS: &str = "mask_embeddings.weight";
/// The mask tokens' replacements for the target's features, `[masks, hidden]`.
const MASK_FEATURES: &str = "mask_features.weight";
/// The projection of a token's embedding and a feature to one row, `[hidden, 2 · hidden]`.
pub(super) const FUSION: &str = "fc.weight";
const FUSION_BIAS: &str = "fc.bias";

pub(super) const HINT: &str =
    "the checkpoint is incomplete, or config.json belongs to another drafter";

/// The logit of a token that is not in the head: it is finite, but its probability is 0.
const EXCLUDED_LOGIT: f32 = -1e9;

/// A packed drafter that reads its target's features.
pub struct EagleWeights {
    /// The layers, with the target's head, and with mask tokens if the drafter has any.
    pub(crate) layers: Arc<Weights>,
    /// The projection of an embedding and a feature, `[hidden, 2 · hidden]`, or of EAGLE-3's features.
    pub(crate) fusion: PackedMatrix,
    pub(crate) mask_features: Vec<f32>, // [masks, hidden]
    /// The target's tokens in the order of the head's, if the head does not have all of them.
    pub(crate) draft_tokens: Option<Vec<TokenId>>,
}

impl EagleWeights {
    /// Returns the drafter's layers.
    #[must_use]
    pub fn layers(&self) -> &Weights {
        &self.layers
    }

    /// Whether the fusion reads an embedding and a feature (EAGLE), rather than only features (EAGLE-3).
    pub(crate) fn fuses_embeddings(&self) -> bool {
        let first_norm = self.layers.layers.first().map(|layer| &layer.attention_norm);
        !matches!(first_norm, Some(AttentionNorm::Both { .. }))
    }

    /// Returns the width of a token's features.
    pub(crate) fn feature_width(&self) -> usize {
        let embedding = if self.fuses_embeddings() { self.layers.config.hidden_size } else { 0 };
        self.fusion.inputs() - embedding
    }

    /// Converts the head's logits to logits of all the target's tokens. Tokens that are not in the head
    /// get a logit so low that their probability is 0.
    pub(crate) fn expand_logits(&self, logits: Vec<f32>) -> Vec<f32> {
        let Some(tokens) = &self.draft_tokens else { return logits };
        let vocab_size = self.layers.config.vocab_size;
        let mut expanded = vec![EXCLUDED_LOGIT; logits.len() / tokens.len() * vocab_size];
        let rows = expanded.chunks_exact_mut(vocab_size).zip(logits.chunks_exact(tokens.len()));
        for (expanded, head_row) in rows {
            for (&token, &logit) in tokens.iter().zip(head_row) {
                expanded[token as usize] = logit;
            }
        }
        expanded
    }
}

/// A model's tensors, stored under their short names after a prefix.
pub(super) struct ShortNamedTensors<'a> {
    pub(super) tensors: &'a NamedTensors,
    pub(super) config: &'a Config,
    pub(super) prefix: &'static str,
}

impl TensorSource for ShortNamedTensors<'_> {
    fn rows(&self, tensor: Tensor) -> Result<TensorRows<'_>, LoadError> {
        let name = format!("{}{}", self.prefix, short_name(tensor));
        self.tensors.rows(&name, &tensor.shape(self.config), HINT)
    }
}

/// Returns a tensor's name without `model.`.
pub(super) fn short_name(tensor: Tensor) -> String {
    let name = tensor.to_string();
    name.strip_prefix("model.").map_or(name.clone(), str::to_owned)
}

impl Speculator {
    /// Reads and packs a ParallelSpec drafter on tokens. `target` must be the target that it was opened
    /// for. Without a weight type, the drafter keeps its stored type.
    ///
    /// # Errors
    ///
    /// When the drafter has another kind, a tensor is missing, unexpected, or has the wrong dtype or
    /// shape, or a value is not finite.
    pub fn parallel(
        &self,
        target: &Weights,
        weight_type: Option<WeightType>,
    ) -> Result<Weights, LoadError> {
        if self.kind != SpeculatorKind::ParallelMedusa {
            return Err(self.wrong_kind("a ParallelSpec drafter on tokens"));
        }
        self.layers(target, weight_type, &[MASK_EMBEDDINGS])
    }

    /// Reads and packs an EAGLE drafter or a ParallelSpec drafter on features. `target` must be the
    /// target that it was opened for. Without a weight type, the drafter keeps its stored type.
    ///
    /// # Errors
    ///
    /// The errors of [`Speculator::parallel`].
    pub fn eagle(
        &self,
        target: &Weights,
        weight_type: Option<WeightType>,
    ) -> Result<EagleWeights, LoadError> {
        let extra: &[&str] = match self.kind {
            SpeculatorKind::Eagle => &[FUSION, FUSION_BIAS],
            SpeculatorKind::ParallelEagle => &[FUSION, FUSION_BIAS, MASK_EMBEDDINGS, MASK_FEATURES],
            SpeculatorKind::Eagle3 => return self.eagle3(target, weight_type),
            _ => return Err(self.wrong_kind("a drafter on its target's features")),
        };
        let layers = Arc::new(self.layers(target, weight_type, extra)?);
        let (size, tensors) = (layers.config().hidden_size, &self.tensors);
        let fusion = pack(layers.weight_type(), &[tensors.rows(FUSION, &[size, 2 * size], HINT)?])?;
        let bias = match tensors.has(FUSION_BIAS) {
            true => Some(tensors.rows(FUSION_BIAS, &[size], HINT)?.read_all()?),
            false => None,
        };
        let mask_features = match layers.masks.len() / size {
            0 => Vec::new(),
            masks => tensors.rows(MASK_FEATURES, &[masks, size], HINT)?.read_all()?,
        };
        let fusion = fusion.with_bias(bias);
        Ok(EagleWeights { layers, fusion, mask_features, draft_tokens: None })
    }

    /// Reads the layers between the embedding and the target's head. `extra` names the tensors that the
    /// drafter may have in addition to a model's.
    fn layers(
        &self,
        target: &Weights,
        weight_type: Option<WeightType>,
        extra: &[&str],
    ) -> Result<Weights, LoadError> {
        let Some(config) = &self.config else {
            return Err(self.wrong_kind("a drafter that is a Transformer layer"));
        };
        let tensors = &self.tensors;
        let model_names: Vec<String> =
            Tensor::all(config).filter(|tensor| *tensor != Tensor::Head).map(short_name).collect();
        tensors.reject_unknown("this drafter", |name| {
            model_names.iter().any(|known| known == name) || extra.contains(&name)
        })?;
        let weight_type = self.weight_type(weight_type)?;
        let source = ShortNamedTensors { tensors, config, prefix: "" };
        let packer = WeightPacker { source: &source, config, weight_type };
        let layer = |index: usize| {
            let norm = short_name(Tensor::Layer(index, LayerTensor::AttentionNorm));
            // EAGLE has no norm in its first layer. A drafter on tokens requires one.
            let is_eagle = self.kind != SpeculatorKind::ParallelMedusa;
            packer.layer(index, tensors.has(&norm) || !is_eagle)
        };
        let layers = (0..config.num_hidden_layers).map(layer).collect::<Result<Vec<_>, _>>()?;
        let has_norm = tensors.has(&short_name(Tensor::FinalNorm))
            || self.kind == SpeculatorKind::ParallelMedusa;
        let final_norm = has_norm.then(|| packer.vector(Tensor::FinalNorm)).transpose()?;
        let embedding = match tensors.has(&short_name(Tensor::Embedding)) {
            true => Arc::new(packer.matrix(&[Tensor::Embedding])?),
            false => Arc::clone(&target.embedding),
        };
        let masks = match tensors.shape(MASK_EMBEDDINGS) {
            Some([masks, _]) => {
                let shape = [*masks, config.hidden_size];
                tensors.rows(MASK_EMBEDDINGS, &shape, HINT)?.read_all()?
            }
            _ => Vec::new(),
        };
        let head = Some(Arc::clone(target.head()));
        let config = Config { tie_word_embeddings: false, ..config.clone() };
        Ok(Weights { config, weight_type, embedding, masks, layers, final_norm, head })
    }
}
