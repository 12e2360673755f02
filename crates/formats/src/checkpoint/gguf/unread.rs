//! Options that change the computation of some model of llama.cpp, and that this engine does not
//! compute. Each of them is accepted with the value that leaves the computation as it is.

use super::architectures::GgufArchitecture;
use super::metadata::GgufMetadata;
use super::parse::{option, unsupported};
use super::rope::ATTENTION_FACTOR;
use super::value::Scalar;
use crate::architecture::Weighting;
use crate::config::Config;
use crate::load_error::LoadError;

/// The values of an option that leave the computation as it is.
enum Neutral {
    /// Nothing: 0, `false`, an empty text, or an array of zeros.
    Nothing,
    /// A factor of 1, or 0 for none.
    Factor,
    /// 1 or, with YaRN, the recommended factor, which applies anyway (OLMo 3).
    AttentionFactor,
    /// `true`.
    True,
    /// The factor of attention scores, 1/√head_dim, or 0 for this default.
    AttentionScale,
    /// The size of a head.
    HeadDim,
    /// The width of the residual stream.
    HiddenSize,
    /// The base of RoPE.
    RopeTheta,
    /// Whether the weights of the chosen experts are divided by their sum, as the architecture does
    /// it.
    ExpertsNormalised,
    /// The code of the function from a router's scores to weights, as the architecture computes it,
    /// or 0.
    ExpertGating,
}

impl Neutral {
    /// Returns the neutral value in words, for errors.
    fn description(&self) -> &'static str {
        match self {
            Self::Nothing => "none (absent, 0 or false)",
            Self::Factor => "1",
            Self::AttentionFactor => "1, or what YaRN recommends",
            Self::True => "true",
            Self::AttentionScale => "1/√head_dim",
            Self::HeadDim => "the size of a head",
            Self::HiddenSize => "\"embedding_length\"",
            Self::RopeTheta => "\"rope.freq_base\"",
            Self::ExpertsNormalised => "what the architecture does with the weights of experts",
            Self::ExpertGating => "the function of the architecture",
        }
    }

    /// Whether `value` leaves the computation of `config` as it is.
    fn is(&self, value: Scalar<'_>, config: &Config) -> bool {
        let router = config.experts.as_ref().map(|layers| layers.experts.router);
        let number = match value {
            Scalar::Integer(value) => value as f64,
            Scalar::Float(value) => value,
            Scalar::Bool(value) => {
                let expected = match self {
                    Self::ExpertsNormalised => router.is_some_and(|router| router.normalised),
                    _ => matches!(self, Self::True),
                };
                return value == expected;
            }
            Scalar::Text(text) => return matches!(self, Self::Nothing) && text.is_empty(),
        };
        let close_to = |expected: f64| (number - expected).abs() <= 1e-6 * expected.abs();
        match self {
            Self::Nothing => number == 0.0,
            Self::Factor => number == 1.0 || number == 0.0,
            Self::AttentionFactor => {
                number == 1.0 || close_to(f64::from(config.rope_scaling.amplitude()))
            }
            Self::True | Self::ExpertsNormalised => false,
            Self::ExpertGating => {
                let code = match router.map(|router| router.weighting) {
                    None => 0.0,
                    Some(Weighting::Softmax) => 1.0,
                    Some(Weighting::Sigmoid) => 2.0,
                    Some(Weighting::SoftmaxOfChosen) => 3.0,
                };
                number == 0.0 || number == code
            }
            Self::AttentionScale => {
                number == 0.0 || close_to(1.0 / (config.head_dim as f64).sqrt())
            }
            Self::HeadDim => number == config.head_dim as f64,
            Self::HiddenSize => number == config.hidden_size as f64,
            Self::RopeTheta => close_to(f64::from(config.rope_theta)),
        }
    }
}

/// The options without the name of the architecture, and the values with which they change nothing.
const OPTIONS: &[(&str, Neutral)] = &[
    // Mixtures of experts, additional layers, and other forms of layers.
    ("expert_count", Neutral::Nothing),
    ("expert_used_count", Neutral::Nothing),
    ("expert_shared_count", Neutral::Nothing),
    ("expert_shared_feed_forward_length", Neutral::Nothing),
    ("expert_chunk_feed_forward_length", Neutral::Nothing),
    ("expert_group_count", Neutral::Factor),
    ("expert_group_used_count", Neutral::Factor),
    ("expert_group_scale", Neutral::Factor),
    ("experts_per_group", Neutral::Nothing),
    ("expert_weights_scale", Neutral::Factor),
    ("expert_weights_norm", Neutral::ExpertsNormalised),
    ("expert_gating_func", Neutral::ExpertGating),
    ("leading_dense_block_count", Neutral::Nothing),
    ("moe_every_n_layers", Neutral::Nothing),
    ("interleave_moe_layer_step", Neutral::Nothing),
    ("nextn_predict_layers", Neutral::Nothing),
    ("n_deepstack_layers", Neutral::Nothing),
    ("decoder_block_count", Neutral::Nothing),
    ("full_attention_interval", Neutral::Nothing),
    ("use_parallel_residual", Neutral::Nothing),
    ("swin_norm", Neutral::Nothing),
    ("embedding_length_out", Neutral::HiddenSize),
    ("embedding_length_per_layer_input", Neutral::Nothing),
    ("altup.num_inputs", Neutral::Nothing),
    ("activation_sparsity_scale", Neutral::Nothing),
    ("rescale_every_n_layers", Neutral::Nothing),
    // Factors and limits.
    ("logit_scale", Neutral::Factor),
    ("residual_scale", Neutral::Factor),
    ("embedding_scale", Neutral::Factor),
    ("attn_logit_softcapping", Neutral::Nothing),
    ("final_logit_softcapping", Neutral::Nothing),
    ("router_logit_softcapping", Neutral::Nothing),
    ("swiglu_clamp_exp", Neutral::Nothing),
    ("swiglu_clamp_shexp", Neutral::Nothing),
    // Attention.
    ("attention.causal", Neutral::True),
    ("attention.max_alibi_bias", Neutral::Nothing),
    ("attention.clamp_kqv", Neutral::Nothing),
    ("attention.scale", Neutral::AttentionScale),
    ("attention.output_scale", Neutral::Factor),
    ("attention.temperature_length", Neutral::Nothing),
    ("attention.temperature_scale", Neutral::Nothing),
    ("attention.q_lora_rank", Neutral::Nothing),
    ("attention.kv_lora_rank", Neutral::Nothing),
    ("attention.key_length_mla", Neutral::Nothing),
    ("attention.value_length_mla", Neutral::Nothing),
    ("attention.key_length_swa", Neutral::HeadDim),
    ("attention.value_length_swa", Neutral::HeadDim),
    ("attention.shared_kv_layers", Neutral::Nothing),
    ("attention.indexer.head_count", Neutral::Nothing),
    // RoPE.
    ("rope.dimension_count_swa", Neutral::HeadDim),
    ("rope.dimension_sections", Neutral::Nothing),
    ("rope.freq_base_swa", Neutral::RopeTheta),
    ("rope.scaling.alpha", Neutral::Factor),
    (ATTENTION_FACTOR, Neutral::AttentionFactor),
    ("rope.scaling.yarn_log_multiplier", Neutral::Nothing),
    ("rope.scaling.yarn_ext_factor", Neutral::Nothing),
    ("rope.scaling.yarn_attn_factor", Neutral::AttentionFactor),
];

/// Rejects options that would change the computation of `config`. Some are read with LongRoPE's
/// factors, or by some architectures.
///
/// # Errors
/// [`LoadError::GgufUnsupported`] with the first such option.
pub(super) fn reject(
    metadata: GgufMetadata<'_>,
    architecture: &GgufArchitecture,
    config: &Config,
    has_short_factors: bool,
) -> Result<(), LoadError> {
    let is_read = |name: &str| {
        architecture.reads_option(name) || has_short_factors && name == ATTENTION_FACTOR
    };
    let unread = OPTIONS.iter().filter(|(name, _)| !is_read(name));
    for (name, neutral) in unread {
        let key = format!("{}.{name}", architecture.name);
        let is_neutral = match metadata.scalar(&key) {
            Some(value) => neutral.is(value, config),
            None => !metadata.contains(&key) || is_array_of_zeros(metadata, &key),
        };
        if !is_neutral {
            let (file, found) = (metadata.path(), metadata.displayed(&key));
            return Err(unsupported(file, option(&key), found, neutral.description()));
        }
    }
    Ok(())
}

fn is_array_of_zeros(metadata: GgufMetadata<'_>, key: &str) -> bool {
    metadata.i32s(key).ok().flatten().is_some_and(|mut values| values.all(|value| value == 0))
}
