//! The options of EAGLE-3's configurations, in both layouts.
//!
//! * The authors' layout has a Llama's options, and EAGLE-3's next to them. Some writers put the
//!   latter in `eagle_config`.
//! * vLLM's *speculators* have the layers' options in `transformer_layer_config`.
//!
//! An option that is not known is refused: ignoring it would keep the text, and silently cost
//! acceptance.

use super::MIDLAYER;
use crate::architecture::{FeatureNorm, FeatureSource};
use crate::checkpoint::{LoadError, NamedTensors, Tensor};
use crate::config::{Config, unread};
use crate::json_options::JsonOptions;
use crate::speculator::layers::short_name;
use forerun_core::TokenId;
use serde_json::Value;
use std::path::Path;

const OWNER: &str = "an EAGLE-3 drafter";
const FEATURE_LAYERS: &str = "eagle_aux_hidden_state_layer_ids";
pub(in crate::speculator) const LAYER_CONFIG: &str = "transformer_layer_config";

/// EAGLE-3's options.
const OPTIONS: &[&str] = &[
    FEATURE_LAYERS,
    "bias",
    "draft_vocab_size",
    "eagle_config",
    "fc_norm",
    "norm_before_fc",
    "norm_before_residual",
    "norm_output",
    "num_aux_hidden_states",
    "target_hidden_size",
];

/// The names that the mask of P-EAGLE has.
const MASK_OPTIONS: [&str; 3] = ["mask_token_id", "ptd_token_id", "pard_token"];

/// The options of P-EAGLE's training.
const MASK_TRAINING_OPTIONS: &[&str] = &[
    "down_sample_ratio",
    "down_sample_ratio_min",
    "max_seq_len",
    "para_depths",
    "prediction_loss_weight",
];

pub(in crate::speculator) const SPECULATORS_OPTIONS: &[&str] =
    &[LAYER_CONFIG, "speculators_config", "speculators_model_type", "speculators_version"];

const EAGLE_CONFIG_OPTIONS: &[&str] = &[
    FEATURE_LAYERS,
    "eh_proj_before_attn",
    "next_layer_regular",
    "norm_before_fc",
    "parallel_draft_heads_num_layers",
    "parallel_draft_step",
    "return_hidden_post_norm",
    "use_aux_hidden_state",
    "use_input_layernorm_in_first_layer",
    "use_last_layernorm",
    "use_mtp_layernorm",
];

/// The options of a layer, next to those that [`unread`] knows.
pub(in crate::speculator) const LAYER_OPTIONS: &[&str] = &[
    "attention_bias",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "max_window_layers",
    "mlp_bias",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "partial_rotary_factor",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "use_sliding_window",
    "vocab_size",
];

/// Options that change nothing that is computed: of training, of files, of texts, and those that
/// transformers writes for every model.
#[rustfmt::skip]
pub(in crate::speculator) const NEUTRAL: &[&str] = &[
    "_attn_implementation", "_commit_hash", "_name_or_path", "add_cross_attention", "architectures",
    "attention_dropout", "attn_implementation", "auto_map", "bad_words_ids", "base_model_ep_plan",
    "base_model_pp_plan", "base_model_tp_plan", "begin_suppress_tokens", "bos_token_id",
    "chunk_size_feed_forward", "cross_attention_hidden_size", "decoder_start_token_id",
    "diversity_penalty", "do_sample", "dtype", "early_stopping", "embed_requires_grad",
    "enable_sp_ulysses", "encoder_no_repeat_ngram_size", "eos_token_id",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "has_no_defaults_at_init", "hidden_dropout", "id2label",
    "initializer_range", "is_decoder", "is_encoder_decoder", "label2id", "length_penalty",
    "max_length", "min_length", "model_type", "no_repeat_ngram_size", "num_beam_groups", "num_beams",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_scores",
    "pad_token_id", "prefix", "pretraining_tp", "problem_type", "pruned_heads",
    "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate",
    "sep_token_id", "suppress_tokens", "target", "target_embedding_sha256", "target_model_type",
    "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder",
    "tie_word_embeddings", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript",
    "transformers_version", "typical_p", "use_bfloat16", "use_cache",
];

/// What is stored for EAGLE-3, and what its options say.
pub(in crate::speculator) struct Layout {
    /// The configuration of the layers.
    pub(super) config: Config,
    /// The prefix of the first layer's tensor names.
    pub(super) prefix: &'static str,
    /// The features: the residual stream after each of these numbers of the target's layers.
    feature_layers: Vec<usize>,
    target_hidden_size: usize,
    pub(super) feature_norm: FeatureNorm,
    /// Whether the first layer adds to the normed hidden state.
    pub(super) norm_before_residual: bool,
    /// Whether the next row reads the predicted hidden state after the final norm.
    pub(super) norm_output: bool,
    /// The token whose embedding masks have (P-EAGLE).
    pub(super) mask: Option<TokenId>,
}

impl Layout {
    /// Reads the options of `file`. `tensors` come with the prefix of the first layer's names.
    /// Fails when an option is missing, invalid or not known, or contradicts a tensor.
    pub(in crate::speculator) fn read(
        options: &JsonOptions<'_>,
        file: &Path,
        (tensors, prefix): (&NamedTensors, &'static str),
        target: &Config,
    ) -> Result<Self, LoadError> {
        let layer_options = options.object(LAYER_CONFIG)?;
        let is_speculators = layer_options.is_some() || options.contains("speculators_model_type");
        let has_mask = super::has_mask(tensors);
        check_names(options, is_speculators, has_mask)?;
        let nested = options.object("eagle_config")?;
        nested.as_ref().map_or(Ok(()), check_eagle_config)?;
        let nested = nested.as_ref();
        if is_speculators {
            check_algorithm(options, if has_mask { "peagle" } else { "eagle3" })?;
            if layer_options.is_none() {
                return Err(options.missing(LAYER_CONFIG, "the options of the drafter's layers"));
            }
        }
        let layer_options = layer_options.as_ref().unwrap_or(options);
        check_family(layer_options, is_speculators)?;
        // `architectures` names a drafter's class, not a model's.
        let config = Config::parse(&layer_options.without("architectures"), file)?;
        if prefix == MIDLAYER && config.num_hidden_layers != 1 {
            let expected = "1, because the tensors are those of one layer, `midlayer`";
            return Err(options.invalid("num_hidden_layers", &config.num_hidden_layers, expected));
        }
        let norm_before_residual = match options.flag("norm_before_residual")? {
            Some(flag) => flag,
            // Its readers disagree about the default.
            None if is_speculators => {
                return Err(options.missing("norm_before_residual", "true or false"));
            }
            None => false,
        };
        let feature_layers = feature_layers(options, nested, target.num_hidden_layers)?;
        let target_hidden_size = options.size("target_hidden_size")?.unwrap_or(config.hidden_size);
        check_draft_vocabulary(options, tensors, config.vocab_size)?;
        check_bias(options, tensors)?;
        if !is_speculators {
            check_tie(options, tensors)?;
        }
        let norm_output = either_flag(options, "norm_output", nested, "return_hidden_post_norm")?;
        Ok(Self {
            feature_norm: feature_norm(options, nested, tensors, feature_layers.len())?,
            config,
            prefix,
            feature_layers,
            target_hidden_size,
            norm_before_residual,
            norm_output: norm_output.unwrap_or(false),
            mask: has_mask.then(|| mask(options, target.vocab_size)).transpose()?,
        })
    }

    /// Returns the features that the drafter reads.
    pub(in crate::speculator) fn features(&self) -> FeatureSource {
        FeatureSource::Layers(self.feature_layers.clone())
    }

    /// Returns the width of each of the target's hidden states.
    pub(in crate::speculator) fn target_hidden_size(&self) -> usize {
        self.target_hidden_size
    }
}

/// Rejects options that are not known.
fn check_names(
    options: &JsonOptions<'_>,
    is_speculators: bool,
    has_mask: bool,
) -> Result<(), LoadError> {
    let of_masks =
        |name: &str| MASK_OPTIONS.contains(&name) || MASK_TRAINING_OPTIONS.contains(&name);
    options.reject_unknown(OWNER, |name| {
        let of_layout = match is_speculators {
            true => SPECULATORS_OPTIONS.contains(&name),
            false => LAYER_OPTIONS.contains(&name) || unread::knows(name),
        };
        of_layout
            || (has_mask && of_masks(name))
            || OPTIONS.contains(&name)
            || NEUTRAL.contains(&name)
    })
}

/// Rejects layers of families for which no EAGLE-3 drafter is defined, such as those with constant
/// factors.
fn check_family(options: &JsonOptions<'_>, is_speculators: bool) -> Result<(), LoadError> {
    let (supported, families): (_, &[&str]) = match is_speculators {
        true => ("\"llama\", \"qwen3\"", &["llama", "qwen3"]),
        false => {
            let families = &["llama", "mistral", "qwen2", "qwen3"];
            ("\"llama\", \"mistral\", \"qwen2\", \"qwen3\"", families)
        }
    };
    let is_supported = |value: &Value| families.iter().any(|family| value == *family);
    options.check_supported("model_type", supported, is_supported)
}

/// Rejects speculators of another algorithm.
fn check_algorithm(options: &JsonOptions<'_>, algorithm: &'static str) -> Result<(), LoadError> {
    let is_supported = |value: &Value| value == algorithm;
    options.check_supported("speculators_model_type", algorithm, is_supported)?;
    let inner = options.object("speculators_config")?;
    inner.map_or(Ok(()), |inner| inner.check_supported("algorithm", algorithm, is_supported))
}

/// Returns the token whose embedding P-EAGLE's masks have. It may have several names, but one
/// value.
fn mask(options: &JsonOptions<'_>, vocab_size: usize) -> Result<TokenId, LoadError> {
    let mut found: Option<TokenId> = None;
    for name in MASK_OPTIONS {
        let Some(token) = options.token_id(name)? else { continue };
        let expected = match found {
            Some(other) if other != token => format!("{other}, as under the mask's other name"),
            _ if token as usize >= vocab_size => {
                format!("a token of the vocabulary of {vocab_size}")
            }
            _ => {
                found = Some(token);
                continue;
            }
        };
        return Err(options.invalid(name, &token, &expected));
    }
    found.ok_or_else(|| options.missing(MASK_OPTIONS[0], "the token whose embedding masks have"))
}

/// Rejects what is not known in `eagle_config`, and what is not computed.
fn check_eagle_config(options: &JsonOptions<'_>) -> Result<(), LoadError> {
    options.reject_unknown(OWNER, |name| EAGLE_CONFIG_OPTIONS.contains(&name))?;
    for option in [
        "use_aux_hidden_state",
        "use_input_layernorm_in_first_layer",
        "use_last_layernorm",
        "next_layer_regular",
    ] {
        options.check_supported(option, "true", |value| value == true)?;
    }
    for option in ["use_mtp_layernorm", "eh_proj_before_attn"] {
        options.check_supported(option, "false", |value| value == false)?;
    }
    options.check_supported("parallel_draft_step", "1", |value| value.as_u64() == Some(1))
}

/// Returns a flag that may be among the options or, under another name, in `eagle_config`.
fn either_flag(
    options: &JsonOptions<'_>,
    name: &'static str,
    nested: Option<&JsonOptions<'_>>,
    nested_name: &'static str,
) -> Result<Option<bool>, LoadError> {
    let nested = nested.map_or(Ok(None), |nested| nested.flag(nested_name))?;
    match (options.flag(name)?, nested) {
        (Some(flag), Some(nested)) if flag != nested => {
            let expected = format!("{nested}, as \"{nested_name}\" in \"eagle_config\"");
            Err(options.invalid(name, &flag, &expected))
        }
        (flag, nested) => Ok(flag.or(nested)),
    }
}

/// Returns the features, as numbers of the target's layers before them.
///
/// Among the options, as in vLLM and its speculators, an id is this number: 0 is the embedding. In
/// `eagle_config`, as in SGLang, SpecForge and ModelOpt, it is the index of a layer whose output is
/// read.
fn feature_layers(
    options: &JsonOptions<'_>,
    nested: Option<&JsonOptions<'_>>,
    target_layers: usize,
) -> Result<Vec<usize>, LoadError> {
    let ids = |options: &JsonOptions<'_>, offset: usize| {
        // An empty list means the default.
        let ids = options.sizes(FEATURE_LAYERS)?.filter(|ids| !ids.is_empty());
        let ids = ids.map(|ids| ids.iter().map(|id| id.saturating_add(offset)).collect::<Vec<_>>());
        match &ids {
            Some(layers) if layers.iter().any(|&layer| layer > target_layers) => {
                let largest = target_layers.saturating_sub(offset);
                let expected =
                    format!("numbers up to {largest}: the target has {target_layers} layers");
                Err(options.invalid(FEATURE_LAYERS, &options.displayed(FEATURE_LAYERS), &expected))
            }
            _ => Ok(ids),
        }
    };
    let nested = nested.map_or(Ok(None), |nested| ids(nested, 1))?;
    let layers = match (ids(options, 0)?, nested) {
        (Some(layers), Some(nested)) if layers != nested => {
            let expected = format!(
                "{nested:?}, one more than each id in \"eagle_config\", or no list in one of the two"
            );
            let found = options.displayed(FEATURE_LAYERS);
            return Err(options.invalid(FEATURE_LAYERS, &found, &expected));
        }
        (layers, nested) => layers.or(nested).unwrap_or_else(|| {
            // The same layers as in its authors' code.
            vec![target_layers.min(2), target_layers / 2, target_layers.saturating_sub(3)]
        }),
    };
    match options.size("num_aux_hidden_states")? {
        Some(number) if number != layers.len() => {
            let expected = format!("{}, the number of hidden states that are read", layers.len());
            Err(options.invalid("num_aux_hidden_states", &number, &expected))
        }
        _ => Ok(layers),
    }
}

/// Returns the norm of features. The tensors say whether there is one, and the options must agree.
fn feature_norm(
    options: &JsonOptions<'_>,
    nested: Option<&JsonOptions<'_>>,
    tensors: &NamedTensors,
    parts: usize,
) -> Result<FeatureNorm, LoadError> {
    let whole = either_flag(options, "norm_before_fc", nested, "norm_before_fc")?;
    let of_parts = options.flag("fc_norm")?;
    let has = |tensor| tensors.has(&short_name(tensor));
    let stored = [has(Tensor::FeatureNorm), has(Tensor::FeaturePartNorm(0))];
    for (option, flag, stored, tensor) in [
        ("norm_before_fc", whole, stored[0], Tensor::FeatureNorm),
        ("fc_norm", of_parts, stored[1], Tensor::FeaturePartNorm(0)),
    ] {
        if flag == Some(false) && stored {
            let expected = format!("true, because `{tensor}` is stored");
            return Err(options.invalid(option, &false, &expected));
        }
    }
    match [whole.unwrap_or(stored[0]), of_parts.unwrap_or(stored[1])] {
        [true, true] => {
            let expected =
                "false, because \"norm_before_fc\" is true: features have one norm or the other";
            Err(options.invalid("fc_norm", &true, expected))
        }
        [true, false] => Ok(FeatureNorm::Whole),
        [false, true] => Ok(FeatureNorm::Parts(parts)),
        [false, false] => Ok(FeatureNorm::None),
    }
}

/// Checks whether the projection of features has a bias, as the option says.
fn check_bias(options: &JsonOptions<'_>, tensors: &NamedTensors) -> Result<(), LoadError> {
    let stored = tensors.has(&short_name(Tensor::FusionBias));
    match options.flag("bias")? {
        Some(flag) if flag != stored => {
            let verb = if stored { "is" } else { "is not" };
            let expected = format!("{stored}, because `{}` {verb} stored", Tensor::FusionBias);
            Err(options.invalid("bias", &flag, &expected))
        }
        _ => Ok(()),
    }
}

/// Refuses a head that is said to be the embedding, unless one is stored. Its readers disagree
/// whether it is the drafter's embedding or the target's head.
fn check_tie(options: &JsonOptions<'_>, tensors: &NamedTensors) -> Result<(), LoadError> {
    let head = short_name(Tensor::Head);
    match options.flag("tie_word_embeddings")? {
        Some(true) if !tensors.has(&head) => {
            let expected = format!("false for the target's head, or a stored `{head}`");
            Err(options.invalid("tie_word_embeddings", &true, &expected))
        }
        _ => Ok(()),
    }
}

/// Checks the size of the drafter's vocabulary against its head.
pub(in crate::speculator) fn check_draft_vocabulary(
    options: &JsonOptions<'_>,
    tensors: &NamedTensors,
    vocab_size: usize,
) -> Result<(), LoadError> {
    let head = short_name(Tensor::Head);
    let (size, why) = match tensors.shape(&head) {
        Some(shape) => (shape.first().copied().unwrap_or(0), "the number of rows of"),
        None => (vocab_size, "the target's, because there is no"),
    };
    match options.size("draft_vocab_size")? {
        Some(found) if found != size => {
            let expected = format!("{size}, {why} `{head}`");
            Err(options.invalid("draft_vocab_size", &found, &expected))
        }
        _ => Ok(()),
    }
}
