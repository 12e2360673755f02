//! The configuration of a model, as in Hugging Face's `config.json`: its sizes, its constants, and its
//! variations of the Llama architecture.
//!
//! A family is configuration, not code. `parse` interprets each family's options; afterwards only the
//! fields of [`Config`] count. An unsupported option that would change the model's outputs is an error.
//! Options that only affect training are ignored.

pub(crate) mod family;
mod parse;
mod rope;
mod sampling;
pub(crate) mod unread;
mod write;

use std::path::Path;

use crate::architecture::{
    Architecture, Attention, AttentionNorm, Factors, Head, Input, Layer, Mlp, Rope,
};
use crate::json_options::{JsonOptions, MAX_SIZE};
use crate::load_error::LoadError;

pub use family::Family;
pub use rope::RopeScaling;
pub use sampling::SuggestedSampling;

/// The largest number of layers that is accepted: tens of times that of any model, and small enough
/// to describe each layer.
pub(crate) const MAX_LAYERS: usize = 1 << 12;

/// The description of a Llama-like model without its weights. The fields have the names that
/// `config.json` uses, if it has such a field.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The model's family. It does not affect the computation.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of query heads.
    pub num_attention_heads: usize,
    /// Number of key/value heads. It divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of one head. It is even, because RoPE rotates pairs.
    pub head_dim: usize,
    /// Number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// Maximum length of a sequence in tokens.
    pub max_position_embeddings: usize,
    /// The constant that RMS norms add to the mean square.
    pub rms_norm_eps: f32,
    /// Base of RoPE's frequencies.
    pub rope_theta: f32,
    /// Scaling of RoPE's frequencies.
    pub rope_scaling: RopeScaling,
    /// Whether each layer has RoPE, in order; `None` if all have it. This is `no_rope_layers` in
    /// `config.json`, where 1 means that the layer has RoPE.
    pub rope_layers: Option<Vec<bool>>,
    /// The factor of attention scores; `None` for 1/√head_dim.
    pub attention_multiplier: Option<f32>,
    /// The factor of embeddings.
    pub embedding_multiplier: f32,
    /// The factor of what attention and the MLP add to the residual stream.
    pub residual_multiplier: f32,
    /// The divisor of logits.
    pub logits_scaling: f32,
    /// The sliding window and the layers that use it, if any.
    pub sliding_window: Option<SlidingWindow>,
    /// Whether the projections to queries, keys and values have a bias.
    pub qkv_bias: bool,
    /// Whether attention's output projection has a bias.
    pub output_bias: bool,
    /// Whether the projections of the MLP have a bias.
    pub mlp_bias: bool,
    /// Whether an RMS norm is applied to each head of queries and keys before RoPE.
    pub qk_norm: bool,
    /// Whether the output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// The token that begins a text, if any.
    pub bos_token_id: Option<u32>,
    /// The tokens that end a text. If there are none, only a limit ends it.
    pub eos_token_ids: Vec<u32>,
    /// The sampling that the checkpoint suggests. It is applied only if a caller requests it.
    pub suggested_sampling: Option<SuggestedSampling>,
}

/// Sliding-window attention: row `p` attends to the positions from `p − size + 1` to `p`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// The number of positions that a row attends to, including its own.
    pub size: usize,
    /// The layers that use the window.
    pub layers: SlidingLayers,
}

/// The layers that use a sliding window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlidingLayers {
    /// This layer and all layers after it. `From(0)` means all layers.
    From(usize),
    /// The layers marked `true`. The list has an entry for every layer, in order.
    Listed(Vec<bool>),
}

impl Config {
    /// Returns a plain Llama configuration. Its sizes are 0 and must be set. It has a separate head, no
    /// biases, no norms of heads, no window, no scaled RoPE, and no tokens that begin or end a text.
    #[must_use]
    pub fn plain_llama() -> Self {
        Self {
            family: Family::Llama,
            hidden_size: 0,
            intermediate_size: 0,
            num_hidden_layers: 0,
            num_attention_heads: 0,
            num_key_value_heads: 0,
            head_dim: 0,
            vocab_size: 0,
            max_position_embeddings: 0,
            rms_norm_eps: 1e-5,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            rope_layers: None,
            attention_multiplier: None,
            embedding_multiplier: 1.0,
            residual_multiplier: 1.0,
            logits_scaling: 1.0,
            sliding_window: None,
            qkv_bias: false,
            output_bias: false,
            mlp_bias: false,
            qk_norm: false,
            tie_word_embeddings: false,
            bos_token_id: None,
            eos_token_ids: Vec::new(),
            suggested_sampling: None,
        }
    }

    /// Applies the text of a `generation_config.json`. Its EOS tokens replace those of `config.json`, as
    /// in transformers, because chat fine-tunes add their tokens only there. Its sampling options become
    /// the suggested sampling.
    ///
    /// # Errors
    ///
    /// When the text is not a JSON object, its `eos_token_id` is not one or several tokens of the
    /// vocabulary, or a sampling option has the wrong type.
    pub fn apply_generation_config(&mut self, text: &str, file: &Path) -> Result<(), LoadError> {
        let options = JsonOptions::parse(text, file)?;
        if let Some(ids) = options.token_ids("eos_token_id")? {
            self.eos_token_ids = ids;
        }
        self.suggested_sampling = SuggestedSampling::read(&options)?;
        self.validate(file)
    }

    /// Checks that the values describe a valid model: no size is zero or absurdly large, and sizes
    /// divide where they must. Afterwards the size of every tensor in bytes can be computed without
    /// overflow.
    ///
    /// # Errors
    ///
    /// [`LoadError::InvalidOption`] with `file`, the first invalid option and the expected value.
    pub fn validate(&self, file: &Path) -> Result<(), LoadError> {
        let invalid = |option, found: &dyn std::fmt::Display, expected: &str| {
            let (file, found, expected) = (file.to_owned(), found.to_string(), expected.to_owned());
            Err(LoadError::InvalidOption { file, option, found, expected })
        };
        for (option, size) in self.sizes() {
            let largest = if option == "num_hidden_layers" { MAX_LAYERS } else { MAX_SIZE };
            if size == 0 || size > largest {
                return invalid(option, &size, &format!("a size from 1 to {largest}"));
            }
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let expected =
                format!("a divisor of \"num_attention_heads\", {}", self.num_attention_heads);
            return invalid("num_key_value_heads", &self.num_key_value_heads, &expected);
        }
        if !self.head_dim.is_multiple_of(2) {
            return invalid("head_dim", &self.head_dim, "an even number: RoPE rotates pairs");
        }
        let constants = [
            ("rms_norm_eps", self.rms_norm_eps),
            ("rope_theta", self.rope_theta),
            ("attention_multiplier", self.score_scale()),
            ("embedding_multiplier", self.embedding_multiplier),
            ("residual_multiplier", self.residual_multiplier),
            ("logits_scaling", self.logits_scaling),
        ];
        for (option, value) in constants {
            if !(value.is_finite() && value > 0.0) {
                return invalid(option, &value, "a positive, finite number");
            }
        }
        self.rope_scaling.validate(self.head_dim, file)?;
        if let Some(listed) = &self.rope_layers
            && listed.len() != self.num_hidden_layers
        {
            let expected = format!("one for each of the {} layers", self.num_hidden_layers);
            return invalid("no_rope_layers", &format!("{} entries", listed.len()), &expected);
        }
        if let Some(SlidingWindow { size, layers }) = &self.sliding_window {
            if *size == 0 || *size > MAX_SIZE {
                return invalid("sliding_window", size, &format!("a size from 1 to {MAX_SIZE}"));
            }
            if let SlidingLayers::Listed(listed) = layers
                && listed.len() != self.num_hidden_layers
            {
                let expected = format!("one for each of the {} layers", self.num_hidden_layers);
                return invalid("layer_types", &format!("{} entries", listed.len()), &expected);
            }
        }
        let bos = self.bos_token_id.map(|id| ("bos_token_id", id));
        let eos = self.eos_token_ids.iter().map(|id| ("eos_token_id", *id));
        for (option, id) in bos.into_iter().chain(eos) {
            if id as usize >= self.vocab_size {
                let expected = format!("a token id below \"vocab_size\", {}", self.vocab_size);
                return invalid(option, &id, &expected);
            }
        }
        self.validate_tensor_sizes(file)
    }

    /// Checks the sizes of the largest tensors. All others are parts or transposes of these.
    fn validate_tensor_sizes(&self, file: &Path) -> Result<(), LoadError> {
        let queries = [self.num_attention_heads, self.head_dim, self.hidden_size];
        let tensors = [
            ("model.embed_tokens.weight", &[self.vocab_size, self.hidden_size][..]),
            ("model.layers.0.self_attn.q_proj.weight", &queries),
            ("model.layers.0.mlp.gate_proj.weight", &[self.intermediate_size, self.hidden_size]),
        ];
        for (tensor, sizes) in tensors {
            let bytes =
                sizes.iter().try_fold(size_of::<f32>(), |product, n| product.checked_mul(*n));
            if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
                return Err(LoadError::InvalidOption {
                    file: file.to_owned(),
                    option: "hidden_size",
                    found: self.hidden_size.to_string(),
                    expected: format!("sizes that fit in memory, not {sizes:?} for `{tensor}`"),
                });
            }
        }
        Ok(())
    }

    fn sizes(&self) -> [(&'static str, usize); 8] {
        [
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("vocab_size", self.vocab_size),
            ("max_position_embeddings", self.max_position_embeddings),
        ]
    }

    /// Returns what the model computes. The configuration must be valid.
    #[must_use]
    pub fn architecture(&self) -> Architecture {
        let layer = |index| Layer {
            attention_norm: AttentionNorm::Hidden,
            attention: Attention {
                n_heads: self.num_attention_heads,
                n_kv_heads: self.num_key_value_heads,
                head_dim: self.head_dim,
                window: self.window(index),
                score_scale: self.score_scale(),
                rope: self.has_rope(index).then(|| self.rope()),
                head_norms: self.qk_norm,
                qkv_bias: self.qkv_bias,
                output_bias: self.output_bias,
            },
            mlp: Mlp { intermediate_size: self.intermediate_size, bias: self.mlp_bias },
        };
        Architecture {
            hidden_size: self.hidden_size,
            vocab_size: self.vocab_size,
            context_length: self.max_position_embeddings,
            norm_epsilon: self.rms_norm_eps,
            factors: self.architecture_factors(),
            input: Input::Embedding,
            mask_tokens: 0,
            shares_embedding: false,
            layers: (0..self.num_hidden_layers).map(layer).collect(),
            final_norm: true,
            head: if self.tie_word_embeddings { Head::Embedding } else { Head::Own },
            head_tokens: None,
        }
    }

    /// Returns the width of all query heads: `num_attention_heads × head_dim`.
    pub fn q_size(&self) -> usize {
        // Saturating, because the fields may not have been validated yet.
        self.num_attention_heads.saturating_mul(self.head_dim)
    }

    /// Returns the width of all key (or value) heads: `num_key_value_heads × head_dim`.
    pub fn kv_size(&self) -> usize {
        self.num_key_value_heads.saturating_mul(self.head_dim)
    }

    /// Returns the sliding window of a layer: the number of positions that a row attends to, including
    /// its own. `None` means that a row attends to all earlier positions.
    pub fn window(&self, layer: usize) -> Option<usize> {
        let SlidingWindow { size, layers } = self.sliding_window.as_ref()?;
        let slides = match layers {
            SlidingLayers::From(first) => layer >= *first,
            SlidingLayers::Listed(listed) => listed.get(layer).copied().unwrap_or(false),
        };
        slides.then_some(*size)
    }

    /// Returns whether a layer has RoPE.
    #[must_use]
    pub fn has_rope(&self, layer: usize) -> bool {
        let listed = self.rope_layers.as_ref();
        listed.is_none_or(|layers| layers.get(layer).copied().unwrap_or(true))
    }

    /// Returns whether the model has a constant factor that a Llama does not have.
    #[must_use]
    pub fn has_factors(&self) -> bool {
        self.attention_multiplier.is_some() || self.architecture_factors() != Factors::ONE
    }

    fn architecture_factors(&self) -> Factors {
        Factors {
            embedding: self.embedding_multiplier,
            residual: self.residual_multiplier,
            logit_divisor: self.logits_scaling,
        }
    }

    /// Returns the factor of attention scores.
    #[must_use]
    pub fn score_scale(&self) -> f32 {
        self.attention_multiplier.unwrap_or_else(|| Attention::default_scale(self.head_dim))
    }

    /// Returns the rotary position embedding of queries and keys, in the layers that have it.
    #[must_use]
    pub fn rope(&self) -> Rope {
        Rope { theta: self.rope_theta, scaling: self.rope_scaling.clone() }
    }
}
