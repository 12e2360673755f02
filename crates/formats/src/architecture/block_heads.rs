//! The heads after a block drafter's layers (DSpark, DFlash 2).

use super::Architecture;
use crate::tensor::{BlockHeadTensor, Tensor};
use forerun_core::TokenId;
use std::sync::Arc;

/// Heads that correct the rows of a block, one position after another.
///
/// *DSpark: Confidence-Scheduled Speculative Decoding with Semi-Autoregressive Generation*, 2026,
/// arXiv 2607.05147, section 3. All positions of a block are computed in one pass, so their rows do
/// not depend on the tokens that are drafted for the positions before them. The Markov head
/// restores some of that dependence: it adds a bias to the logits of a position, which depends on
/// the token before it. The confidence head predicts whether the target will accept the token of a
/// position if it accepts those before it.
///
/// With `h` the row's hidden state after the final norm and `e` the embedding of the token before
/// the position:
///
/// | kind | latent vector `z` |
/// |---|---|
/// | vanilla | `e` |
/// | gated | `sigmoid(gate(cat(h, e))) · e` |
/// | recurrent | `tanh(o)` with `(g, c, o) = joint(cat(s, e, h))`; the next state is `σ(g) · s + (1 - σ(g)) · tanh(c)` |
///
/// The bias of the logits is `logit_bias(z)`, and the confidence `sigmoid(confidence(h))` or
/// `sigmoid(confidence(cat(h, e)))`. The state of the block's first position is 0.
///
/// DFlash 2 has a selector in their place ([`CandidateSelector`]).
#[derive(Clone, Debug, PartialEq)]
pub struct BlockHeads {
    /// Width of the layers' hidden states.
    pub hidden_size: usize,
    /// The constant that the final norm adds to the mean square.
    pub norm_epsilon: f32,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// The vocabulary's tokens in the order of the head's outputs, if the head does not have all of
    /// them.
    pub head_tokens: Option<Arc<[TokenId]>>,
    /// The head that adds a bias to logits.
    pub markov: Option<MarkovHead>,
    /// What the head that predicts acceptance reads, if there is one.
    pub confidence: Option<ConfidenceInput>,
    /// The head that scores the most probable tokens, if there is one.
    pub selector: Option<CandidateSelector>,
}

/// A head that scores the most probable tokens of a position by the token before it (DFlash 2).
///
/// Other tokens are not drafted. The score of token `b` after token `a` is its logit plus
/// `Σ predecessor[a] · projection(h) · successor[b]`, with `h` the row's hidden state after the
/// final norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CandidateSelector {
    /// Width of what is known of a token.
    pub rank: usize,
    /// The number of tokens that are scored.
    pub candidates: usize,
}

/// A low-rank head that adds a bias to logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MarkovHead {
    /// How the latent vector is computed.
    pub kind: MarkovKind,
    /// Width of the latent vector.
    pub rank: usize,
}

/// How the latent vector of a Markov head is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkovKind {
    /// It is the embedding of the token before the position.
    Vanilla,
    /// The embedding is multiplied by a gate that also reads the hidden state.
    Gated,
    /// It depends on all tokens of the block before the position, through a recurrent state.
    Recurrent,
}

/// What a confidence head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfidenceInput {
    /// The hidden state.
    Hidden,
    /// The hidden state and the Markov head's embedding of the token before the position.
    HiddenAndPrevious,
}

impl BlockHeads {
    /// Returns no heads after some layers. To have heads, change the result:
    /// `BlockHeads { selector, ..BlockHeads::none(layers) }`.
    #[must_use]
    pub fn none(layers: &Architecture) -> Self {
        let Architecture { hidden_size, norm_epsilon, vocab_size, .. } = *layers;
        let head_tokens = layers.head_tokens.clone();
        let (markov, confidence, selector) = (None, None, None);
        Self { hidden_size, norm_epsilon, vocab_size, head_tokens, markov, confidence, selector }
    }

    /// Returns the width of the Markov head's latent vectors; 0 without one.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.markov.map_or(0, |markov| markov.rank)
    }

    /// Returns the matrices of the heads that are stored.
    pub fn matrices(&self) -> impl Iterator<Item = BlockHeadTensor> + '_ {
        use BlockHeadTensor as T;
        let of_kind = self.markov.and_then(|markov| match markov.kind {
            MarkovKind::Vanilla => None,
            MarkovKind::Gated => Some(T::Gate),
            MarkovKind::Recurrent => Some(T::Joint),
        });
        let markov = self.markov.map(|_| [T::Previous, T::LogitBias]);
        let selector = self.selector.map(|_| [T::Predecessor, T::Successor, T::SelectorProjection]);
        markov.into_iter().flatten().chain(of_kind).chain(selector.into_iter().flatten())
    }

    /// Returns the other tensors: vectors that no matrix kernel reads.
    pub fn vectors(&self) -> impl Iterator<Item = BlockHeadTensor> + '_ {
        use BlockHeadTensor as T;
        let of_kind = self.matrices().filter_map(|matrix| match matrix {
            T::Gate => Some(T::GateBias),
            T::Joint => Some(T::JointBias),
            _ => None,
        });
        let confidence = self.confidence.map(|_| [T::Confidence, T::ConfidenceBias]);
        of_kind.chain(confidence.into_iter().flatten())
    }

    /// Returns all tensors that are stored for the heads.
    pub fn tensors(&self) -> impl Iterator<Item = Tensor> + '_ {
        self.matrices().chain(self.vectors()).map(Tensor::BlockHead)
    }

    /// Returns the shape of a tensor.
    #[must_use]
    pub fn shape(&self, tensor: BlockHeadTensor) -> Vec<usize> {
        use BlockHeadTensor as T;
        let (hidden, rank) = (self.hidden_size, self.rank());
        match tensor {
            T::Previous => vec![self.vocab_size, rank],
            T::LogitBias => {
                vec![self.head_tokens.as_ref().map_or(self.vocab_size, |t| t.len()), rank]
            }
            T::Gate => vec![rank, hidden + rank],
            T::GateBias => vec![rank],
            T::Joint => vec![3 * rank, 2 * rank + hidden],
            T::JointBias => vec![3 * rank],
            T::Confidence => vec![1, self.confidence_inputs()],
            T::ConfidenceBias => vec![1],
            T::Predecessor | T::Successor => vec![self.vocab_size, self.selector_rank()],
            T::SelectorProjection => vec![self.selector_rank(), hidden],
        }
    }

    /// Returns the width of what the selector knows of a token; 0 without one.
    fn selector_rank(&self) -> usize {
        self.selector.map_or(0, |selector| selector.rank)
    }

    /// Returns the width of what the confidence head reads.
    fn confidence_inputs(&self) -> usize {
        match self.confidence {
            Some(ConfidenceInput::HiddenAndPrevious) => self.hidden_size + self.rank(),
            Some(ConfidenceInput::Hidden) | None => self.hidden_size,
        }
    }
}
