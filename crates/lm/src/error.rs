//! The errors of a forward request.

use forerun_core::{SamplingError, TokenId};
use std::fmt;

/// One of the two vectors that a cache holds for each token and attention head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePart {
    /// The key, after RoPE.
    Key,
    /// The value.
    Value,
}

impl fmt::Display for CachePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "key",
            Self::Value => "value",
        })
    }
}

/// An error that prevents a model from answering a request.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ModelError {
    /// The request was cancelled.
    #[error("the forward pass was cancelled")]
    Cancelled,
    /// The sequence is empty, or too short for the model.
    #[error("a sequence needs at least one token (a prompt, or the model's BOS token)")]
    Empty,
    /// The sequence is longer than the model's context.
    #[error("position {position} is beyond the model's context of {context} tokens")]
    Context { position: usize, context: usize },
    /// A token outside of the model's vocabulary.
    #[error("token {token} is not in the model's vocabulary of {vocab_size} tokens")]
    Token { token: TokenId, vocab_size: usize },
    /// The model has no such adapter.
    #[error(
        "the model has no adapter {0}: start every worker of the target with the same adapters"
    )]
    Adapter(u32),
    /// Features were requested from a model that does not store any.
    #[error(
        "a drafter requested hidden states of the target, but the target was loaded without them"
    )]
    NoFeatures,
    /// Features of too few tokens, or of the wrong width; `found` is 0 if they are missing.
    #[error(
        "the target's features of token {token} have width {found}, but the drafter needs width \
         {expected} (tokens needed: {tokens})"
    )]
    Features { tokens: usize, expected: usize, token: usize, found: usize },
    /// A key or a value is too large for the number type of the model's cache. A caller that knows
    /// whose cache it is says so in front of the message.
    #[error(
        "f16 key/value cache cannot hold a {part} of layer {layer}, which is beyond ±65504: set \
         `cache_type = bf16`"
    )]
    CacheRange { layer: usize, part: CachePart },
    /// The device of the model has failed, or has no memory for the pass.
    #[error("{message}")]
    Device { message: String },
    /// The logits cannot be sampled from.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}
