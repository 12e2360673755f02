//! The storage layouts of EAGLE-3's layers.
//!
//! *EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test*, Li et al.
//! 2025, arXiv 2503.01840. `fc.weight` projects hidden states of several of the target's layers to one. The
//! attention of the first layer, `midlayer` (`layers.0` in vLLM's speculators), reads the embedding
//! concatenated with that state; each has its own norm. More layers are ordinary ones. The head may have
//! fewer tokens than the target: the target's token for the head's token `t` is `t + d2t[t]`.
//!
//! Options and optional tensors add norms: of the features before `fc` (`input_norm`, or EAGLE-3.1's
//! `fc_norm`), of the state that the first layer adds to, and of the state that the next row reads.

pub(super) mod options;

pub(super) use options::Layout;

use super::Speculator;
use super::draft_vocabulary::DRAFT_TO_TARGET;
use super::layers::short_name;
use crate::architecture::{Architecture, AttentionNorm, Head, Input};
use crate::checkpoint::{LayerTensor, LoadError, NamedTensors, Tensor};
use forerun_core::TokenId;
use std::sync::Arc;

/// The prefix of the only layer's tensor names in the authors' layout.
const MIDLAYER: &str = "midlayer.";

/// Returns the prefix of the first layer's tensor names. `None` for tensors that are not EAGLE-3's.
pub(super) fn prefix(tensors: &NamedTensors) -> Option<&'static str> {
    // The norm distinguishes this layer from EAGLE's.
    let norm = |prefix: &&str| tensors.has(&layer_name(prefix, LayerTensor::HiddenNorm));
    [MIDLAYER, "layers.0."].into_iter().find(norm)
}

/// Returns the name of a tensor of the first layer.
fn layer_name(prefix: &str, tensor: LayerTensor) -> String {
    let name = Tensor::Layer(0, tensor).to_string();
    format!("{prefix}{}", name.trim_start_matches("model.layers.0."))
}

/// Whose head it is, and the target's token for each of the head's tokens, if the head does not have all of
/// them.
pub(super) type HeadAndTokens = (Head, Option<Arc<[TokenId]>>);

impl Layout {
    /// Returns the name under which a tensor is stored.
    pub(super) fn name(&self, tensor: Tensor) -> String {
        match tensor {
            Tensor::Layer(0, tensor) => layer_name(self.prefix, tensor),
            tensor => short_name(tensor),
        }
    }

    /// Returns the sizes that must equal the target's in addition to that of its hidden state: what they
    /// are, the drafter's and the target's.
    pub(super) fn sizes(
        &self,
        tensors: &NamedTensors,
        target: &crate::config::Config,
    ) -> Vec<(&'static str, usize, usize)> {
        let mut sizes = vec![("vocabulary", self.config.vocab_size, target.vocab_size)];
        let own = [Tensor::Embedding, Tensor::Head].map(|tensor| tensors.has(&short_name(tensor)));
        if own != [true; 2] {
            // It shares the target's matrices.
            sizes.push(("hidden size", self.config.hidden_size, target.hidden_size));
        }
        sizes
    }
}

impl Speculator {
    /// Returns the layers, with the drafter's own head or the target's.
    pub(super) fn eagle3(&self, layout: &Layout) -> Result<Architecture, LoadError> {
        let model = layout.config.architecture();
        let mut layers = model.layers.clone();
        if let Some(first) = layers.first_mut() {
            let normed_residual = layout.norm_before_residual;
            first.attention_norm = AttentionNorm::EmbeddingAndHidden { normed_residual };
        }
        let (head, head_tokens) = self.head(layout.config.vocab_size)?;
        let architecture = Architecture {
            input: Input::Feature {
                width: layout.features().width(layout.target_hidden_size()),
                norm: layout.feature_norm,
                normed_predictions: layout.norm_output,
            },
            shares_embedding: !self.tensors.has(&short_name(Tensor::Embedding)),
            layers,
            final_norm: true,
            head,
            head_tokens,
            ..model
        };
        let tensors = architecture.tensors().chain([Tensor::FusionBias]);
        let mut names: Vec<String> = tensors.map(|tensor| layout.name(tensor)).collect();
        names.extend([DRAFT_TO_TARGET, "t2d"].map(str::to_owned));
        let is_known = |name: &str| names.iter().any(|known| known == name);
        self.tensors.reject_unknown("this EAGLE-3 drafter", is_known)?;
        Ok(architecture)
    }

    /// Returns whose head it is. If the drafter's own head does not have all the target's tokens, also
    /// returns the target's token for each of its tokens.
    pub(super) fn head(&self, vocab_size: usize) -> Result<HeadAndTokens, LoadError> {
        let tensors = &self.tensors;
        let Some(&[draft_vocab_size, _]) = tensors.shape(&short_name(Tensor::Head)) else {
            return Ok((Head::Target, None));
        };
        match self.head_tokens(vocab_size)? {
            None if draft_vocab_size == vocab_size => Ok((Head::Own, None)),
            Some(tokens) if tokens.len() == draft_vocab_size => Ok((Head::Own, Some(tokens))),
            _ => Err(self.draft_vocabulary_error(draft_vocab_size, vocab_size)),
        }
    }
}
