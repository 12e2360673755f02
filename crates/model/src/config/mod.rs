//! What a model is, as in Hugging Face's `config.json`: sizes, constants, and which of the variations
//! of a Llama it has.
//!
//! A family is configuration, not code: `parse` says what each family's options mean, and from then
//! on only the fields of [`Config`] count. An option that would change what the model computes and
//! that this engine does not do is an error; options that matter to training only are ignored.

pub(crate) mod family;
mod parse;
mod rope;
mod sampling;
mod write;

use std::path::Path;

use crate::json_options::JsonOptions;
use crate::load_error::LoadError;

pub use family::Family;
pub use rope::RopeScaling;
pub use sampling::SuggestedSampling;

/// The largest size that is believed: hundreds of times what any model has, and small enough that
/// the product of any two fits 64 bits.
const MAX_SIZE: usize = 1 << 28;

/// What a model of the Llama kind is, apart from its weights. Field names are those of
/// `config.json`, as far as it has them.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Whose options these are; it decides nothing that is computed.
    pub family: Family,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Number of query heads.
    pub num_attention_heads: usize,
    /// Number of key/value heads; it divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of one head; even, because RoPE rotates pairs.
    pub head_dim: usize,
    /// Number of tokens.
    pub vocab_size: usize,
    /// Longest sequence, in tokens, that the model was made for.
    pub max_position_embeddings: usize,
    /// What RMS norms add to the mean square.
    pub rms_norm_eps: f32,
    /// Base of RoPE's frequencies.
    pub rope_theta: f32,
    /// How RoPE's frequencies are scaled.
    pub rope_scaling: RopeScaling,
    /// Which layers see only the last positions, and how many.
    pub sliding_window: Option<SlidingWindow>,
    /// Whether the projections to queries, keys and values add a bias.
    pub qkv_bias: bool,
    /// Whether attention's output projection adds a bias.
    pub output_bias: bool,
    /// Whether the projections of the MLP add a bias.
    pub mlp_bias: bool,
    /// Whether each head of queries and keys passes an RMS norm before RoPE.
    pub qk_norm: bool,
    /// Whether the output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// The token that begins a text, if any.
    pub bos_token_id: Option<u32>,
    /// The tokens that end a text; none means that only a limit ends it.
    pub eos_token_ids: Vec<u32>,
    /// The sampling that the checkpoint suggests: nothing follows it unless a caller asks for it.
    pub suggested_sampling: Option<SuggestedSampling>,
}

/// A limit of what rows see: row `p` sees the positions from `p − size + 1` to `p`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    /// Positions that a row sees, its own among them.
    pub size: usize,
    /// The layers that have this limit.
    pub layers: SlidingLayers,
}

/// Some of a model's layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlidingLayers {
    /// This one and all above; from 0 on is all.
    From(usize),
    /// Those marked `true`, of all layers in order.
    Listed(Vec<bool>),
}

impl Config {
    /// A Llama that asks for nothing but its sizes, which are to be filled in: a separate head, no
    /// biases, norms of heads, windows or scaled RoPE, and no token that begins or ends a text.
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

    /// Lets the text of a `generation_config.json` replace the tokens that end a text, as
    /// transformers does (fine-tunes for chat add theirs there only), and takes the sampling that
    /// it suggests.
    ///
    /// # Errors
    ///
    /// When the text is no JSON object, its `eos_token_id` is not one or several tokens of the
    /// vocabulary, or an option of sampling is not of its type.
    pub fn apply_generation_config(&mut self, text: &str, file: &Path) -> Result<(), LoadError> {
        let options = JsonOptions::parse(text, file)?;
        if let Some(ids) = options.token_ids("eos_token_id")? {
            self.eos_token_ids = ids;
        }
        self.suggested_sampling = SuggestedSampling::read(&options)?;
        self.validate(file)
    }

    /// Checks that the values make a model: nothing zero, absurd, or that does not divide. After
    /// it, the size in bytes of any tensor can be computed without overflow.
    ///
    /// # Errors
    ///
    /// [`LoadError::InvalidOption`] naming `file`, the first bad option, and what was expected.
    pub fn validate(&self, file: &Path) -> Result<(), LoadError> {
        let invalid = |option, found: &dyn std::fmt::Display, expected: &str| {
            let (file, found, expected) = (file.to_owned(), found.to_string(), expected.to_owned());
            Err(LoadError::InvalidOption { file, option, found, expected })
        };
        for (option, size) in self.sizes() {
            if size == 0 || size > MAX_SIZE {
                return invalid(option, &size, &format!("a size from 1 to {MAX_SIZE}"));
            }
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let expected =
                format!("a divisor of `num_attention_heads`, {}", self.num_attention_heads);
            return invalid("num_key_value_heads", &self.num_key_value_heads, &expected);
        }
        if !self.head_dim.is_multiple_of(2) {
            return invalid("head_dim", &self.head_dim, "an even number: RoPE rotates pairs");
        }
        let constants = [("rms_norm_eps", self.rms_norm_eps), ("rope_theta", self.rope_theta)];
        for (option, value) in constants {
            if !(value.is_finite() && value > 0.0) {
                return invalid(option, &value, "a positive, finite number");
            }
        }
        self.rope_scaling.validate(file)?;
        if let Some(SlidingWindow { size, layers }) = &self.sliding_window {
            if *size == 0 || *size > MAX_SIZE {
                return invalid("sliding_window", size, &format!("a size from 1 to {MAX_SIZE}"));
            }
            if let SlidingLayers::Listed(listed) = layers
                && listed.len() != self.num_hidden_layers
            {
                let expected = format!("one for each of {} layers", self.num_hidden_layers);
                return invalid("layer_types", &format!("{} types", listed.len()), &expected);
            }
        }
        let bos = self.bos_token_id.map(|id| ("bos_token_id", id));
        let eos = self.eos_token_ids.iter().map(|id| ("eos_token_id", *id));
        for (option, id) in bos.into_iter().chain(eos) {
            if id as usize >= self.vocab_size {
                let expected = format!("a token id below `vocab_size`, {}", self.vocab_size);
                return invalid(option, &id, &expected);
            }
        }
        self.validate_tensor_sizes(file)
    }

    /// Checks the largest tensors: all others are parts or transposes of these.
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

    /// Width of all query heads together: `num_attention_heads × head_dim`.
    pub fn q_size(&self) -> usize {
        // Saturating, since nobody may have validated these fields yet.
        self.num_attention_heads.saturating_mul(self.head_dim)
    }

    /// Width of all key (or value) heads together: `num_key_value_heads × head_dim`.
    pub fn kv_size(&self) -> usize {
        self.num_key_value_heads.saturating_mul(self.head_dim)
    }

    /// How many positions a row of a layer sees, its own among them; `None` is all before it.
    pub fn window(&self, layer: usize) -> Option<usize> {
        let SlidingWindow { size, layers } = self.sliding_window.as_ref()?;
        let slides = match layers {
            SlidingLayers::From(first) => layer >= *first,
            SlidingLayers::Listed(listed) => listed.get(layer).copied().unwrap_or(false),
        };
        slides.then_some(*size)
    }

    /// What divides the frequency of pair `pair` (of `head_dim / 2`): 1 where RoPE is not scaled.
    pub(crate) fn rope_divisor(&self, pair: usize) -> f32 {
        let frequency = self.unscaled_rope_frequency(pair);
        (frequency / self.rope_scaling.scaled(frequency)) as f32
    }

    /// The angle by which RoPE turns pair `pair` (of `head_dim / 2`) from one position to the next.
    pub fn rope_frequency(&self, pair: usize) -> f32 {
        self.rope_scaling.scaled(self.unscaled_rope_frequency(pair)) as f32
    }

    fn unscaled_rope_frequency(&self, pair: usize) -> f64 {
        let exponent = 2.0 * pair as f64 / self.head_dim as f64;
        1.0 / f64::from(self.rope_theta).powf(exponent)
    }
}
