//! The storage layout of EAGLE-3's layer.
//!
//! *EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test*, Li et al.
//! 2025, arXiv 2503.01840. `fc.weight` projects three hidden states of the target to one. The attention
//! of the only layer, `midlayer` (`layers.0` in vLLM's speculators), reads the embedding concatenated
//! with that state; each has its own norm. The head may have fewer tokens than the target: the target's
//! token for the head's token `t` is `t + d2t[t]`.

use super::layers::short_name;
use super::{Speculator, SpeculatorKind};
use crate::architecture::{Architecture, AttentionNorm, Head, Input, Layer, Norm};
use crate::checkpoint::{LayerTensor, LoadError, NamedTensors, Tensor};
use crate::config::Config;
use forerun_core::TokenId;
use std::sync::Arc;

const DRAFT_TO_TARGET: &str = "d2t";

/// Returns the prefix of the layer's tensor names. `None` for tensors that are not EAGLE-3's.
pub(super) fn prefix(tensors: &NamedTensors) -> Option<&'static str> {
    // The norm distinguishes this layer from EAGLE's.
    let norm = |prefix: &&str| tensors.has(&layer_name(prefix, LayerTensor::HiddenNorm));
    ["midlayer.", "layers.0."].into_iter().find(norm)
}

/// Returns the name of a layer's tensor.
pub(super) fn layer_name(prefix: &str, tensor: LayerTensor) -> String {
    let name = Tensor::Layer(0, tensor).to_string();
    format!("{prefix}{}", name.trim_start_matches("model.layers.0."))
}

/// Whose head it is, and the target's token for each of the head's tokens, if the head does not have all of
/// them.
type HeadAndTokens = (Head, Option<Arc<[TokenId]>>);

impl Speculator {
    /// Returns the layer, with the drafter's own head or the target's.
    pub(super) fn eagle3(
        &self,
        config: &Config,
        prefix: &'static str,
        target: &Config,
    ) -> Result<Architecture, LoadError> {
        let model = config.architecture();
        let attention_norm = AttentionNorm::EmbeddingAndHidden;
        let layers: Vec<Layer> = model
            .layers
            .iter()
            .take(1)
            .map(|layer| Layer { attention_norm, ..layer.clone() })
            .collect();
        self.reject_other_tensors(&layers, prefix)?;
        let (head, head_tokens) = self.head(config)?;
        Ok(Architecture {
            input: Input::Feature { width: SpeculatorKind::Eagle3.feature_width(target) },
            shares_embedding: !self.tensors.has(&short_name(Tensor::Embedding)),
            layers,
            final_norm: true,
            head,
            head_tokens,
            ..model
        })
    }

    fn reject_other_tensors(&self, layers: &[Layer], prefix: &str) -> Result<(), LoadError> {
        let of_layer = layers.iter().flat_map(|layer| layer.tensors(Norm::Rms));
        let mut names: Vec<String> = of_layer.map(|tensor| layer_name(prefix, tensor)).collect();
        let others = [Tensor::Fusion, Tensor::Embedding, Tensor::Head, Tensor::FinalNorm];
        names.extend(others.map(short_name));
        names.extend([DRAFT_TO_TARGET, "t2d"].map(str::to_owned));
        self.tensors
            .reject_unknown("this EAGLE-3 drafter", |name| names.iter().any(|known| known == name))
    }

    /// Returns whose head it is. If the drafter's own head does not have all the target's tokens, also
    /// returns the target's token for each of its tokens.
    fn head(&self, config: &Config) -> Result<HeadAndTokens, LoadError> {
        let tensors = &self.tensors;
        let Some(&[draft_vocab_size, _]) = tensors.shape(&short_name(Tensor::Head)) else {
            return Ok((Head::Target, None));
        };
        let vocab_size = config.vocab_size;
        let offsets = match tensors.integers(DRAFT_TO_TARGET)? {
            None if draft_vocab_size == vocab_size => return Ok((Head::Own, None)),
            offsets => offsets.unwrap_or_default(),
        };
        let target_tokens = (0..draft_vocab_size).zip(&offsets).map_while(|(token, &offset)| {
            let token = (token as i64).checked_add(offset)?;
            TokenId::try_from(token).ok().filter(|&token| (token as usize) < vocab_size)
        });
        let target_tokens: Arc<[TokenId]> = target_tokens.collect();
        if target_tokens.len() != draft_vocab_size || offsets.len() != draft_vocab_size {
            let path = self.path.clone();
            return Err(LoadError::DraftVocabulary { path, draft_vocab_size, vocab_size });
        }
        Ok((Head::Own, Some(target_tokens)))
    }
}
