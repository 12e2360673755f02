//! Layers that draft for one target, as they are stored: EAGLE's and ParallelSpec's.
//!
//! Names are those of a model without its first part: `layers.0.self_attn.q_proj.weight`. What is not
//! stored is not there (EAGLE's layer has no norm before its attention, and none behind it) or is the
//! target's (its embedding, and always its head).

use super::{Speculator, SpeculatorKind};
use crate::checkpoint::{LayerTensor, LoadError, NamedTensors, Tensor, TensorRows, TensorSource};
use crate::config::Config;
use crate::kernels::{PackedMatrix, WeightType};
use crate::weights::{AttentionNorm, Packing, Weights, pack};
use forerun_core::TokenId;
use std::sync::Arc;

/// Embeddings of the masks, `[masks, hidden]`.
pub(super) const MASK_EMBEDDINGS: &str = "mask_embeddings.weight";
/// What the masks have in place of the target's features, `[masks, hidden]`.
const MASK_FEATURES: &str = "mask_features.weight";
/// What makes one row of a token's embedding and a feature, `[hidden, 2 · hidden]`.
pub(super) const FUSION: &str = "fc.weight";
const FUSION_BIAS: &str = "fc.bias";

pub(super) const HINT: &str =
    "the checkpoint is incomplete, or config.json belongs to another drafter";

/// The logit of a token that a head does not know: finite, but its probability is none.
const IMPOSSIBLE: f32 = -1e9;

/// A drafter on its target's features, packed.
pub struct EagleWeights {
    /// Its layers, with the target's head, and masks where it has any.
    pub(crate) layers: Arc<Weights>,
    /// `[hidden, 2 · hidden]` of the embedding and the feature, or of EAGLE-3's features alone.
    pub(crate) fusion: PackedMatrix,
    pub(crate) mask_features: Vec<f32>, // [masks, hidden]
    /// The target's tokens that the head knows, where it does not know all.
    pub(crate) draft_tokens: Option<Vec<TokenId>>,
}

impl EagleWeights {
    /// Its layers.
    #[must_use]
    pub fn layers(&self) -> &Weights {
        &self.layers
    }

    /// Whether a row is made of its embedding and a feature at once, not of EAGLE-3's features alone.
    pub(crate) fn has_pairs(&self) -> bool {
        let of_first = self.layers.layers.first().map(|layer| &layer.attention_norm);
        !matches!(of_first, Some(AttentionNorm::Both { .. }))
    }

    /// Numbers of a token's features.
    pub(crate) fn feature_width(&self) -> usize {
        let beside = if self.has_pairs() { self.layers.config.hidden_size } else { 0 };
        self.fusion.inputs() - beside
    }

    /// Logits of all the target's tokens: those that the head does not know are as good as impossible.
    pub(crate) fn of_all_tokens(&self, logits: Vec<f32>) -> Vec<f32> {
        let Some(tokens) = &self.draft_tokens else { return logits };
        let vocab_size = self.layers.config.vocab_size;
        let mut all = vec![IMPOSSIBLE; logits.len() / tokens.len() * vocab_size];
        let rows = all.chunks_exact_mut(vocab_size).zip(logits.chunks_exact(tokens.len()));
        for (all, known) in rows {
            for (&token, &logit) in tokens.iter().zip(known) {
                all[token as usize] = logit;
            }
        }
        all
    }
}

/// A model's tensors under their short names, with something in front of them.
pub(super) struct ShortNames<'a> {
    pub(super) tensors: &'a NamedTensors,
    pub(super) config: &'a Config,
    pub(super) prefix: &'static str,
}

impl TensorSource for ShortNames<'_> {
    fn rows(&self, tensor: Tensor) -> Result<TensorRows<'_>, LoadError> {
        let name = format!("{}{}", self.prefix, short_name(tensor));
        self.tensors.rows(&name, &tensor.shape(self.config), HINT)
    }
}

pub(super) fn short_name(tensor: Tensor) -> String {
    let name = tensor.to_string();
    name.strip_prefix("model.").map_or(name.clone(), str::to_owned)
}

impl Speculator {
    /// Reads a ParallelSpec drafter on tokens for the target that it was opened for, in a type or else
    /// its own.
    ///
    /// # Errors
    ///
    /// When it is another drafter, a tensor is missing, unexpected, or of the wrong dtype or shape, or
    /// a value is not finite.
    pub fn parallel(
        &self,
        target: &Weights,
        weight_type: Option<WeightType>,
    ) -> Result<Weights, LoadError> {
        if self.kind != SpeculatorKind::ParallelMedusa {
            return Err(self.not_that("a ParallelSpec drafter on tokens"));
        }
        self.layers(target, weight_type, &[MASK_EMBEDDINGS])
    }

    /// Reads an EAGLE or a ParallelSpec drafter on features for the target that it was opened for, in
    /// a type or else its own.
    ///
    /// # Errors
    ///
    /// As [`Speculator::parallel`].
    pub fn eagle(
        &self,
        target: &Weights,
        weight_type: Option<WeightType>,
    ) -> Result<EagleWeights, LoadError> {
        let extra: &[&str] = match self.kind {
            SpeculatorKind::Eagle => &[FUSION, FUSION_BIAS],
            SpeculatorKind::ParallelEagle => &[FUSION, FUSION_BIAS, MASK_EMBEDDINGS, MASK_FEATURES],
            SpeculatorKind::Eagle3 => return self.eagle3(target, weight_type),
            _ => return Err(self.not_that("a drafter on its target's features")),
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

    /// The layers, between the target's embedding and head.
    fn layers(
        &self,
        target: &Weights,
        weight_type: Option<WeightType>,
        extra: &[&str],
    ) -> Result<Weights, LoadError> {
        let Some(config) = &self.config else { return Err(self.not_that("a layer that drafts")) };
        let tensors = &self.tensors;
        let own: Vec<String> =
            Tensor::all(config).filter(|tensor| *tensor != Tensor::Head).map(short_name).collect();
        tensors.reject_others("this drafter", |name| {
            own.iter().any(|known| known == name) || extra.contains(&name)
        })?;
        let weight_type = self.weight_type(weight_type)?;
        let source = ShortNames { tensors, config, prefix: "" };
        let packing = Packing { source: &source, config, weight_type };
        let layer = |index: usize| {
            let norm = short_name(Tensor::Layer(index, LayerTensor::AttentionNorm));
            // EAGLE has none in its first layer; a drafter on tokens cannot do without.
            let is_eagle = self.kind != SpeculatorKind::ParallelMedusa;
            packing.layer(index, tensors.has(&norm) || !is_eagle)
        };
        let layers = (0..config.num_hidden_layers).map(layer).collect::<Result<Vec<_>, _>>()?;
        let has_norm = tensors.has(&short_name(Tensor::FinalNorm))
            || self.kind == SpeculatorKind::ParallelMedusa;
        let final_norm = has_norm.then(|| packing.vector(Tensor::FinalNorm)).transpose()?;
        let embedding = match tensors.has(&short_name(Tensor::Embedding)) {
            true => Arc::new(packing.matrix(&[Tensor::Embedding])?),
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
