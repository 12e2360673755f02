//! The configuration of a model, as in Hugging Face's `config.json`: its sizes, its constants, and
//! its variations of the Llama architecture.
//!
//! A family is configuration, not code. `parse` interprets each family's options; afterwards only
//! the fields of [`Config`] count. An unsupported option that would change the model's outputs is
//! an error. Options that only affect training are ignored.

mod families;
pub(crate) mod family;
mod parse;
mod pooling;
mod quantization;
mod rope;
mod sampling;
pub(crate) mod unread;
mod validation;
mod write;

use crate::architecture::{
    Activation, Architecture, Attention, AttentionNorm, Experts, Factors, Head, Input, Latent,
    Layer, Mlp, MlpInput, Norm, OwnInput, PositionTable, QkNorms, Recurrent, Rope,
};
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use std::path::Path;
use validation::Validation;

pub use family::Family;
pub use pooling::{Pooling, PoolingMode};
pub use quantization::{Quantization, ScaleSharing};
pub use rope::{RopeScaling, Yarn};
pub use sampling::SuggestedSampling;
pub(crate) use validation::{MAX_EXPERTS, MAX_LAYERS};

/// The description of a Llama-like model without its weights. The fields have the names that
/// `config.json` uses, if it has such a field.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The model's family. It does not affect the computation.
    pub family: Family,
    /// Whether the model is a part of one that also reads images, whose other tensors are not read.
    pub multimodal: bool,
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
    /// The norm of hidden states.
    pub norm: Norm,
    /// Where a layer has norms.
    pub norm_placement: NormPlacement,
    /// The constant that norms add to the mean square.
    pub rms_norm_eps: f32,
    /// The activation function of MLPs.
    pub hidden_act: Activation,
    /// Whether MLPs have a gate.
    pub gated_mlp: bool,
    /// The layers with experts, if the model is a mixture of experts.
    pub experts: Option<MixtureLayers>,
    /// Base of RoPE's frequencies.
    pub rope_theta: f32,
    /// Scaling of RoPE's frequencies.
    pub rope_scaling: RopeScaling,
    /// The share of a head that RoPE rotates.
    pub partial_rotary_factor: f32,
    /// The number of rows before that of position 0 in the table of position embeddings, if there
    /// is one (GPT-2, OPT).
    pub learned_positions: Option<usize>,
    /// The number of token types, of which all tokens have the first; 0 without them (BERT).
    pub token_types: usize,
    /// Whether rows attend to all rows of their text, also later ones (BERT).
    pub bidirectional: bool,
    /// How a text's hidden states become its embedding, if the model is one for embeddings. It
    /// generates no text then.
    pub pooling: Option<Pooling>,
    /// RoPE's base and scaling in the layers with a window, if they have their own (Gemma 3).
    pub local_rope: Option<(f32, RopeScaling)>,
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
    /// A limit of attention scores: each becomes `cap · tanh(score / cap)`.
    pub attn_logit_softcapping: Option<f32>,
    /// A limit of the sizes of queries, keys and values.
    pub clip_qkv: Option<f32>,
    /// A limit of logits, of the same form.
    pub final_logit_softcapping: Option<f32>,
    /// The sliding window and the layers that use it, if any.
    pub sliding_window: Option<SlidingWindow>,
    /// Whether the projections to queries, keys and values have a bias.
    pub qkv_bias: bool,
    /// Whether attention's output projection has a bias.
    pub output_bias: bool,
    /// Whether the projections of the MLP have a bias.
    pub mlp_bias: bool,
    /// Whether the output projection to logits has a bias.
    pub head_bias: bool,
    /// The norms of queries and keys before RoPE.
    pub qk_norms: QkNorms,
    /// Whether values have a norm of each head, without weights (Gemma 4).
    pub value_norm: bool,
    /// The heads of layers without a window, if they have their own sizes (Gemma 4).
    pub global_heads: Option<GlobalHeads>,
    /// The last layers, if they attend to keys and values of earlier ones (Gemma 4).
    pub shared_keys: Option<SharedKeys>,
    /// The width of the input that each layer has next to the hidden state, if there is one (Gemma
    /// 4).
    pub per_layer_input: Option<usize>,
    /// Whether the hidden state after each layer is multiplied by a stored number (Gemma 4).
    pub layer_scalar: bool,
    /// Whether attention has sinks (gpt-oss).
    pub sinks: bool,
    /// Whether the output of attention has a gate (Qwen3-Next).
    pub attention_gate: bool,
    /// The layers with a recurrent mixer instead of attention, if there are any.
    pub recurrent: Option<RecurrentLayers>,
    /// How keys and values are compressed, if they are (DeepSeek). `head_dim` is the part of a head
    /// with RoPE.
    pub latent: Option<Latent>,
    /// Whether the checkpoint stores the rows that RoPE rotates as neighbours (DeepSeek).
    pub rope_interleave: bool,
    /// Whether the output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// The format of quantised matrices, if the checkpoint has any (Hugging Face's directories).
    pub quantization: Option<Quantization>,
    /// The token that begins a text, if any.
    pub bos_token_id: Option<u32>,
    /// The tokens that end a text. If there are none, only a limit ends it.
    pub eos_token_ids: Vec<u32>,
    /// The sampling that the checkpoint suggests. It is applied only if a caller requests it.
    pub suggested_sampling: Option<SuggestedSampling>,
}

/// The heads of layers without a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalHeads {
    /// Width of one head.
    pub head_dim: usize,
    /// Number of key/value heads.
    pub num_key_value_heads: usize,
    /// Whether values are the keys before their norm and RoPE. The projection is stored once.
    pub values_are_keys: bool,
}

/// The last layers of a model, each of which attends to the keys and values of the last earlier
/// layer of its kind: with or without a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedKeys {
    /// The number of these layers.
    pub layers: usize,
    /// Whether their MLPs are twice as wide.
    pub wide_mlp: bool,
}

/// Where a layer has norms of hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormPlacement {
    /// Before attention and before the MLP (Llama).
    Before,
    /// Of what attention and the MLP add (OLMo 2).
    After,
    /// Of the embedding, and of the sums after attention and after the MLP (BERT).
    OfSums,
    /// Before, and of what is added (Gemma 2, GLM-4).
    Around,
    /// One before both attention and the MLP, which read the same (Cohere, Phi-2).
    Parallel,
    /// Before each of attention and the MLP, which read the same hidden state (GPT-NeoX).
    ParallelNorms,
}

/// The layers of a mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MixtureLayers {
    /// The experts of a layer.
    pub experts: Experts,
    /// Width of the dense MLP that is added to the experts, if there is one (a shared expert).
    pub shared_size: Option<usize>,
    /// Whether each layer has a dense MLP instead of experts, in order. It is empty if none has.
    pub dense: Vec<bool>,
}

impl MixtureLayers {
    /// Returns experts in all layers, without a shared one.
    #[must_use]
    pub fn in_all(experts: Experts) -> Self {
        Self { experts, shared_size: None, dense: Vec::new() }
    }

    /// Whether a layer has experts.
    #[must_use]
    pub fn has_experts(&self, layer: usize) -> bool {
        !self.dense.get(layer).copied().unwrap_or(false)
    }
}

/// The recurrent mixers of a hybrid model.
#[derive(Clone, Debug, PartialEq)]
pub struct RecurrentLayers {
    /// The mixer of a layer.
    pub mixer: Recurrent,
    /// Whether each layer has a mixer instead of attention, in order.
    pub layers: Vec<bool>,
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
    /// Returns a plain Llama configuration. Its sizes are 0 and must be set. It has a separate
    /// head, no biases, no norms of heads, no window, no scaled RoPE, and no tokens that begin or
    /// end a text.
    #[must_use]
    pub fn plain_llama() -> Self {
        Self {
            family: Family::Llama,
            multimodal: false,
            hidden_size: 0,
            intermediate_size: 0,
            num_hidden_layers: 0,
            num_attention_heads: 0,
            num_key_value_heads: 0,
            head_dim: 0,
            vocab_size: 0,
            max_position_embeddings: 0,
            norm: Norm::Rms,
            norm_placement: NormPlacement::Before,
            rms_norm_eps: 1e-5,
            hidden_act: Activation::Silu,
            gated_mlp: true,
            experts: None,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::None,
            partial_rotary_factor: 1.0,
            learned_positions: None,
            token_types: 0,
            bidirectional: false,
            pooling: None,
            local_rope: None,
            rope_layers: None,
            attention_multiplier: None,
            embedding_multiplier: 1.0,
            residual_multiplier: 1.0,
            logits_scaling: 1.0,
            attn_logit_softcapping: None,
            clip_qkv: None,
            final_logit_softcapping: None,
            sliding_window: None,
            qkv_bias: false,
            output_bias: false,
            mlp_bias: false,
            head_bias: false,
            qk_norms: QkNorms::None,
            value_norm: false,
            global_heads: None,
            shared_keys: None,
            per_layer_input: None,
            layer_scalar: false,
            sinks: false,
            attention_gate: false,
            recurrent: None,
            latent: None,
            rope_interleave: false,
            tie_word_embeddings: false,
            quantization: None,
            bos_token_id: None,
            eos_token_ids: Vec::new(),
            suggested_sampling: None,
        }
    }

    /// Applies the text of a `generation_config.json`. Its EOS tokens replace those of
    /// `config.json`, as in transformers, because chat fine-tunes add their tokens only there. Its
    /// sampling options become the suggested sampling.
    ///
    /// # Errors
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

    /// Returns the sampling of chats that say nothing else: the suggested one, or else
    /// [`SuggestedSampling::MODERATE`].
    #[must_use]
    pub fn chat_sampling(&self) -> SuggestedSampling {
        self.suggested_sampling.unwrap_or(SuggestedSampling::MODERATE)
    }

    /// Checks that the values describe a valid model: no size is zero or absurdly large, and sizes
    /// divide where they must. Afterwards the size of every tensor in bytes can be computed without
    /// overflow.
    ///
    /// # Errors
    /// [`LoadError::InvalidOption`] with `file`, the first invalid option and the expected value.
    pub fn validate(&self, file: &Path) -> Result<(), LoadError> {
        Validation { config: self, file }.run()
    }

    /// Returns what the model computes. The configuration must be valid.
    #[must_use]
    pub fn architecture(&self) -> Architecture {
        Architecture {
            hidden_size: self.hidden_size,
            vocab_size: self.vocab_size,
            context_length: self.max_position_embeddings,
            norm: self.norm,
            norm_epsilon: self.rms_norm_eps,
            factors: self.architecture_factors(),
            input: Input::Embedding,
            positions: self.learned_positions.map(|first| PositionTable {
                first,
                rows: first + self.max_position_embeddings,
                token_types: self.token_types,
            }),
            mask_tokens: 0,
            shares_embedding: false,
            layers: (0..self.num_hidden_layers).map(|index| self.layer(index)).collect(),
            final_norm: true,
            head: if self.tie_word_embeddings { Head::Embedding } else { Head::Own },
            head_bias: self.head_bias,
            logit_cap: self.final_logit_softcapping,
            head_tokens: None,
        }
    }

    fn layer(&self, index: usize) -> Layer {
        use NormPlacement as N;
        let placement = self.norm_placement;
        let has_output_norms = matches!(placement, N::After | N::Around);
        let is_wide = |shared: &SharedKeys| shared.wide_mlp && self.keys_of(index).is_some();
        let widening = if self.shared_keys.as_ref().is_some_and(is_wide) { 2 } else { 1 };
        let mlp = |size: usize| Mlp {
            intermediate_size: widening * size,
            gated: self.gated_mlp,
            activation: self.hidden_act,
            bias: self.mlp_bias,
        };
        let mixture = self.experts.as_ref().filter(|layers| layers.has_experts(index));
        let (n_kv_heads, head_dim) = self.heads(index);
        let has_mixer =
            |layers: &&RecurrentLayers| layers.layers.get(index).copied().unwrap_or(false);
        let recurrent = self.recurrent.as_ref().filter(has_mixer).map(|layers| layers.mixer);
        Layer {
            attention_norm: match placement {
                N::After => AttentionNorm::None,
                _ => AttentionNorm::Hidden,
            },
            attention: recurrent.is_none().then(|| Attention {
                n_heads: self.num_attention_heads,
                n_kv_heads: self.latent.map_or(n_kv_heads, |_| 1),
                head_dim: self.latent.map_or(head_dim, |latent| latent.key_dim()),
                window: self.window(index),
                sees_block: self.bidirectional,
                score_scale: self.score_scale(),
                score_cap: self.attn_logit_softcapping,
                sinks: self.sinks,
                gate: self.attention_gate,
                rope: self.has_rope(index).then(|| self.rope(index)),
                qk_norms: self.qk_norms,
                qkv_limit: self.clip_qkv,
                value_norm: self.value_norm,
                keys_of: self.keys_of(index),
                qkv_bias: self.qkv_bias,
                output_bias: self.output_bias,
                latent: self.latent.map(Box::new),
            }),
            recurrent,
            post_norm: placement == N::OfSums,
            attention_output_norm: has_output_norms,
            mlp_input: match placement {
                N::Before | N::Around | N::OfSums => MlpInput::Hidden,
                N::After => MlpInput::Unnormed,
                N::Parallel => MlpInput::AttentionInput,
                N::ParallelNorms => MlpInput::BeforeAttention,
            },
            mlp: match mixture {
                None => Some(mlp(self.intermediate_size)),
                Some(layers) => layers.shared_size.map(mlp),
            },
            experts: mixture.map(|layers| layers.experts),
            mlp_output_norm: has_output_norms,
            own_input: self
                .per_layer_input
                .map(|width| OwnInput { width, activation: self.hidden_act }),
            scalar: self.layer_scalar,
            block_conv: None,
        }
    }

    /// Returns the number of key/value heads of a layer, and the width of its heads.
    fn heads(&self, layer: usize) -> (usize, usize) {
        match self.global_heads.filter(|_| self.window(layer).is_none()) {
            Some(heads) => (heads.num_key_value_heads, heads.head_dim),
            None => (self.num_key_value_heads, self.head_dim),
        }
    }

    /// Returns the earlier layer to whose keys and values a layer attends, if it has none of its
    /// own.
    #[must_use]
    pub fn keys_of(&self, layer: usize) -> Option<usize> {
        let first = self.num_hidden_layers.checked_sub(self.shared_keys?.layers)?;
        let has_window = |layer| self.window(layer).is_some();
        let of_its_kind = |earlier: &usize| has_window(*earlier) == has_window(layer);
        if layer < first { None } else { (0..first).rev().find(of_its_kind) }
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

    /// Returns the sliding window of a layer: the number of positions that a row attends to,
    /// including its own. `None` means that a row attends to all earlier positions.
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
        let of_latent = self.latent.map(|latent| latent.score_scale(&self.rope_scaling));
        let factor = self.attention_multiplier.or(of_latent);
        factor.unwrap_or_else(|| Attention::default_scale(self.head_dim))
    }

    /// Returns the rotary position embedding of a layer's queries and keys, if it has one.
    #[must_use]
    pub fn rope(&self, layer: usize) -> Rope {
        let local = self.local_rope.as_ref().filter(|_| self.window(layer).is_some());
        let (theta, scaling) = match local {
            Some((theta, scaling)) => (*theta, scaling),
            None => (self.rope_theta, &self.rope_scaling),
        };
        let dims = self.rotary_dims_of(self.heads(layer).1);
        Rope { theta, scaling: scaling.clone(), dims }
    }

    /// Returns the number of dimensions of a head that RoPE rotates.
    #[must_use]
    pub fn rotary_dims(&self) -> usize {
        self.rotary_dims_of(self.head_dim)
    }

    fn rotary_dims_of(&self, head_dim: usize) -> usize {
        // The share is rounded to f32: 0.9 of 80 is 72, not 71.
        (head_dim as f64 * f64::from(self.partial_rotary_factor) + 1e-4) as usize
    }

    /// Returns the first piece that a plain Llama does not have, in words; `None` for a plain
    /// Llama. Its sizes, its RoPE and whether its head is the embedding do not matter.
    #[must_use]
    pub fn unusual_piece(&self) -> Option<&'static str> {
        let pieces = [
            (self.qkv_bias || self.output_bias || self.mlp_bias || self.head_bias, "biases"),
            (self.qk_norms != QkNorms::None, "norms of queries and keys"),
            (self.value_norm, "norms of values"),
            (self.global_heads.is_some(), "two sizes of heads"),
            (self.shared_keys.is_some(), "layers that share keys and values"),
            (self.per_layer_input.is_some(), "inputs of each layer"),
            (self.layer_scalar, "factors of layers"),
            (self.sliding_window.is_some(), "a sliding window"),
            (self.learned_positions.is_some(), "learned positions"),
            (self.clip_qkv.is_some(), "limited queries, keys and values"),
            (self.rope_layers.is_some(), "layers without RoPE"),
            (self.partial_rotary_factor != 1.0, "RoPE of a part of each head"),
            (self.local_rope.is_some(), "two kinds of RoPE"),
            (self.rope_scaling.amplitude() != 1.0, "RoPE with a factor (YaRN, LongRoPE)"),
            (self.attention_multiplier.is_some(), "a factor of attention scores"),
            (self.architecture_factors() != Factors::ONE, "constant factors"),
            (self.attn_logit_softcapping.is_some(), "limited attention scores"),
            (self.final_logit_softcapping.is_some(), "limited logits"),
            (self.sinks, "attention sinks"),
            (self.attention_gate, "gated attention"),
            (self.recurrent.is_some(), "recurrent layers"),
            (self.latent.is_some(), "compressed keys and values"),
            (self.norm != Norm::Rms, "layer norms"),
            (self.norm_placement != NormPlacement::Before, "norms in other places"),
            (self.hidden_act != Activation::Silu, "another activation function"),
            (!self.gated_mlp, "an MLP without a gate"),
            (self.experts.is_some(), "a mixture of experts"),
        ];
        pieces.into_iter().find(|(present, _)| *present).map(|(_, piece)| piece)
    }
}
