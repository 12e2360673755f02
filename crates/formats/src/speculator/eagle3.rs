//! The storage layouts of EAGLE-3's layers.
//!
//! *EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test*, Li
//! et al. 2025, arXiv 2503.01840. `fc.weight` projects hidden states of several of the target's
//! layers to one. The attention of the first layer, `midlayer` (`layers.0` in vLLM's speculators),
//! reads the embedding concatenated with that state; each has its own norm. More layers are
//! ordinary ones. The head may have fewer tokens than the target: the target's token for the head's
//! token `t` is `t + d2t[t]`.
//!
//! P-EAGLE (Hui et al. 2026, arXiv 2602.01469) stores what masks read instead of features,
//! `mask_hidden`, and names a token of the vocabulary whose embedding they have.
//!
//! Options and optional tensors add norms: of the features before `fc` (`input_norm`, or
//! EAGLE-3.1's `fc_norm`), of the state that the first layer adds to, and of the state that the
//! next row reads.

pub(super) mod options;

pub(super) use options::Layout;

use super::Speculator;
use super::draft_vocabulary::DRAFT_TO_TARGET;
use super::layers::short_name;
use crate::architecture::{Architecture, AttentionNorm, Head, Input};
use crate::checkpoint::{LayerTensor, LoadError, NamedTensors, RowLayout, StoredAs, Tensor};
use forerun_core::TokenId;
use std::sync::Arc;

/// The prefix of the only layer's tensor names in the authors' layout.
const MIDLAYER: &str = "midlayer.";

/// What P-EAGLE's masks read instead of features.
const MASK_FEATURES: &str = "mask_hidden";

/// Returns whether masks belong to the drafter (P-EAGLE).
pub(super) fn has_mask(tensors: &NamedTensors) -> bool {
    tensors.has(MASK_FEATURES)
}

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

/// Whose head it is, and the target's token for each of the head's tokens, if the head does not
/// have all of them.
pub(super) type HeadAndTokens = (Head, Option<Arc<[TokenId]>>);

impl Layout {
    /// Returns the name under which a tensor is stored.
    pub(super) fn name(&self, tensor: Tensor) -> String {
        match tensor {
            Tensor::Layer(0, tensor) => layer_name(self.prefix, tensor),
            Tensor::MaskFeatures => MASK_FEATURES.to_owned(),
            tensor => short_name(tensor),
        }
    }

    /// Returns where a mask's tensor is stored. `None` for other tensors.
    pub(super) fn stored_mask(&self, tensors: &NamedTensors, tensor: Tensor) -> Option<StoredAs> {
        let layout = RowLayout::PLAIN;
        let (vocab_size, hidden_size) = (self.config.vocab_size, self.config.hidden_size);
        match tensor {
            Tensor::MaskEmbeddings => Some(StoredAs {
                name: short_name(Tensor::Embedding),
                shape: vec![vocab_size, hidden_size],
                expert: Some([self.mask? as usize, vocab_size]),
                layout,
            }),
            Tensor::MaskFeatures => {
                let width = self.features().width(self.target_hidden_size());
                // Further dimensions of one element each are stored, too.
                let dimensions = tensors.shape(MASK_FEATURES).map_or(2, <[usize]>::len).max(1);
                let shape = [vec![1; dimensions - 1], vec![width]].concat();
                Some(StoredAs { name: MASK_FEATURES.to_owned(), shape, expert: None, layout })
            }
            _ => None,
        }
    }

    /// Returns the sizes that must equal the target's in addition to that of its hidden state: what
    /// they are, the drafter's and the target's.
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
            mask_tokens: usize::from(layout.mask.is_some()),
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

    /// Returns whose head it is. If the drafter's own head does not have all the target's tokens,
    /// also returns the target's token for each of its tokens.
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
