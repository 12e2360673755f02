//! Attention layers and their position embeddings.

use super::Latent;
use crate::config::RopeScaling;

/// Attention with grouped queries, which is causal except in blocks and encoders, with or without
/// RoPE.
#[derive(Clone, Debug, PartialEq)]
pub struct Attention {
    /// Number of query heads; 0 if the layer has only keys and values for later ones
    /// ([`Layer::has_only_keys`](crate::Layer::has_only_keys)).
    pub n_heads: usize,
    /// Number of key/value heads. It divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of one head. It is even, because RoPE rotates pairs.
    pub head_dim: usize,
    /// The number of positions that a row attends to, including its own; `None` for all of them.
    pub window: Option<usize>,
    /// Whether rows also attend to the later rows of their block
    /// ([`Input::Block`](crate::Input::Block)), or of their text in an encoder (BERT).
    pub sees_block: bool,
    /// The factor of scores. Most models use 1/√head_dim ([`Attention::default_scale`]).
    pub score_scale: f32,
    /// A limit of scores: each becomes `cap · tanh(score / cap)` (Gemma 2).
    pub score_cap: Option<f32>,
    /// Whether each head has a score of its own that takes part in the softmax, without a value
    /// (gpt-oss's attention sinks).
    pub sinks: bool,
    /// Whether the output is multiplied by the sigmoid of a projection of the input (Qwen3-Next).
    pub gate: bool,
    /// The rotary position embedding of queries and keys, if the layer has one (SmolLM3).
    pub rope: Option<Rope>,
    /// The norms of queries and keys before RoPE.
    pub qk_norms: QkNorms,
    /// A limit of queries, keys and values after their norms and before RoPE: each number is at
    /// least `−limit` and at most `limit` (OLMo).
    pub qkv_limit: Option<f32>,
    /// Whether values have a norm of each head, without weights (Gemma 4).
    pub value_norm: bool,
    /// Whether the projections to queries, keys and values have a bias.
    pub qkv_bias: bool,
    /// Whether the output projection has a bias.
    pub output_bias: bool,
    /// The earlier layer to whose keys and values the layer attends, if it has none of its own
    /// (Gemma 4). That layer has attention of the same heads.
    pub keys_of: Option<usize>,
    /// How keys and values are compressed, if they are (DeepSeek). There is one key head then, as
    /// wide as the cached row, and values are a part of the keys.
    pub latent: Option<Box<Latent>>,
}

/// Norms of queries and keys before RoPE. They are of the model's [`Norm`](crate::Norm), without a
/// bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorms {
    /// No norms.
    None,
    /// A norm of each head, with the same weights for all heads (Qwen3): `[head_dim]`.
    Heads,
    /// A norm of each head, with its own weights (Cohere): `[heads, head_dim]`.
    OwnHeads,
    /// One norm over all heads together (OLMo 2): `[heads · head_dim]`.
    Whole,
}

/// Rotary position embedding (Su et al. 2021) of the pairs `(i, i + dims/2)` of the first `dims`
/// numbers of a head.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f32,
    /// Scaling of the frequencies.
    pub scaling: RopeScaling,
    /// The number of rotated dimensions: `head_dim`, or an even number below it. The others stay as
    /// they are.
    pub dims: usize,
}

impl Rope {
    /// Returns the frequency of a pair (of `dims / 2`), in radians per position.
    #[must_use]
    pub fn frequency(&self, pair: usize) -> f32 {
        self.scaling.scaled(self, pair) as f32
    }

    /// Returns the factor of rotated queries and keys: 1 unless the scaling has one (YaRN,
    /// LongRoPE).
    #[must_use]
    pub fn amplitude(&self) -> f32 {
        self.scaling.amplitude()
    }

    /// Returns the divisor of the frequency of a pair: 1 if RoPE is not scaled.
    pub(crate) fn divisor(&self, pair: usize) -> f32 {
        (self.unscaled_frequency(pair) / self.scaling.scaled(self, pair)) as f32
    }

    pub(crate) fn unscaled_frequency(&self, pair: usize) -> f64 {
        let exponent = 2.0 * pair as f64 / self.dims as f64;
        1.0 / f64::from(self.theta).powf(exponent)
    }
}

impl Attention {
    /// Returns attention as in a plain Llama, without RoPE: over all positions, with scores times
    /// 1/√head_dim, and without norms and biases.
    #[must_use]
    pub fn plain(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> Self {
        Self {
            n_heads,
            n_kv_heads,
            head_dim,
            window: None,
            sees_block: false,
            score_scale: Self::default_scale(head_dim),
            score_cap: None,
            sinks: false,
            gate: false,
            rope: None,
            qk_norms: QkNorms::None,
            qkv_limit: None,
            value_norm: false,
            qkv_bias: false,
            output_bias: false,
            keys_of: None,
            latent: None,
        }
    }

    /// Returns the factor of scores of most models: 1/√head_dim.
    #[must_use]
    pub fn default_scale(head_dim: usize) -> f32 {
        1.0 / (head_dim as f32).sqrt()
    }

    /// Returns the width of all query heads.
    #[must_use]
    pub fn q_size(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Returns the width of all key (or value) heads.
    #[must_use]
    pub fn kv_size(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Returns how many numbers the cache holds for each token.
    #[must_use]
    pub fn cached_size(&self) -> usize {
        match self.latent {
            _ if self.keys_of.is_some() => 0,
            Some(_) => self.kv_size(),
            None => 2 * self.kv_size(),
        }
    }

    /// Returns the number of inputs of the output projection.
    #[must_use]
    pub fn output_inputs(&self) -> usize {
        self.latent.as_ref().map_or(self.q_size(), |latent| self.n_heads * latent.value_dim)
    }
}
