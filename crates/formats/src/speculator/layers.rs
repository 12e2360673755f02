//! The storage layout of EAGLE's and ParallelSpec's layers.
//!
//! Tensor names are those of a model without the first part: `layers.0.self_attn.q_proj.weight`. A
//! tensor that is not stored either does not exist (EAGLE's layer has no norm before its attention
//! and no final norm) or is the target's (the embedding, and always the head). Drafters may use the
//! rows of the target's head for some tokens only, which `d2t` lists.

use super::draft_vocabulary::DRAFT_TO_TARGET;
use super::{Speculator, SpeculatorKind};
use crate::architecture::{Architecture, AttentionNorm, Head, Input, Layer};
use crate::checkpoint::{LayerTensor, LoadError, NamedTensors, Tensor};
use crate::config::Config;

/// Returns a tensor's name without `model.`.
pub(super) fn short_name(tensor: Tensor) -> String {
    let name = tensor.to_string();
    name.strip_prefix("model.").map_or(name.clone(), str::to_owned)
}

pub(super) fn mask_tokens(tensors: &NamedTensors) -> usize {
    match tensors.shape(&short_name(Tensor::MaskEmbeddings)) {
        Some([masks, _]) => *masks,
        _ => 0,
    }
}

impl Speculator {
    /// Returns the layers between the embedding and the target's head.
    pub(super) fn eagle_or_parallel(&self, config: &Config) -> Result<Architecture, LoadError> {
        let extra: &[Tensor] = match self.kind {
            SpeculatorKind::Eagle => &[Tensor::Fusion, Tensor::FusionBias],
            SpeculatorKind::ParallelEagle => {
                &[Tensor::Fusion, Tensor::FusionBias, Tensor::MaskEmbeddings, Tensor::MaskFeatures]
            }
            _ => &[Tensor::MaskEmbeddings],
        };
        let model = config.architecture();
        let names = model.tensors().filter(|tensor| *tensor != Tensor::Head);
        let names: Vec<String> = names.chain(extra.iter().copied()).map(short_name).collect();
        let tensors = &self.tensors;
        let on_tokens = self.kind == SpeculatorKind::ParallelMedusa;
        let is_known =
            |name: &str| names.iter().any(|known| known == name) || name == DRAFT_TO_TARGET;
        tensors.reject_unknown("this drafter", is_known)?;
        // EAGLE has no norm in its first layer. A drafter on tokens requires all norms.
        let has = |tensor| on_tokens || tensors.has(&short_name(tensor));
        let layer = |(index, layer): (usize, &Layer)| {
            let has_norm = has(Tensor::Layer(index, LayerTensor::AttentionNorm));
            let attention_norm = match has_norm {
                _ if on_tokens => layer.attention_norm,
                true => AttentionNorm::Hidden,
                false => AttentionNorm::None,
            };
            Layer { attention_norm, ..layer.clone() }
        };
        Ok(Architecture {
            input: if on_tokens { Input::Embedding } else { Input::EmbeddingAndFeature },
            mask_tokens: mask_tokens(tensors),
            shares_embedding: !tensors.has(&short_name(Tensor::Embedding)),
            layers: model.layers.iter().enumerate().map(layer).collect(),
            final_norm: has(Tensor::FinalNorm),
            head: Head::Target,
            head_tokens: self.head_tokens(config.vocab_size)?,
            // It is part of the target's head.
            head_bias: false,
            ..model
        })
    }
}
