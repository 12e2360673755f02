//! The configuration of a model from a GGUF file's metadata, by llama.cpp's keys.

use super::architectures::{ASSISTANT, GgufArchitecture, NEXT_TOKEN_LAYERS};
use super::metadata::GgufMetadata;
use super::names::SHORT_DIVISORS;
use super::options::ModelOptions;
use super::parse::{invalid, option, unsupported};
use super::rope::{partial_rotary_factor, rope_scaling, sliding_window};
use super::{gemma4, latent, unread};
use crate::architecture::Norm;
use crate::config::{Config, Family, MAX_LAYERS, SuggestedSampling};
use crate::json_options::MAX_SIZE;
use crate::known_ends::known_ends;
use crate::load_error::LoadError;

/// Reads the configuration. RoPE's divisors, if they are stored, are not part of the metadata: the
/// caller adds them. `has` says whether a tensor is stored. Fails when the architecture is not
/// supported, an option is missing or invalid, or an option changes the computation in a way that
/// is not supported.
pub(super) fn read_config(
    metadata: GgufMetadata<'_>,
    has: &dyn Fn(&str) -> bool,
) -> Result<(Config, &'static GgufArchitecture), LoadError> {
    let architecture = supported_architecture(metadata)?;
    let options = ModelOptions { metadata, architecture: architecture.name };
    let hidden_size = options.required_size("embedding_length", MAX_SIZE)?;
    let all_layers = options.required_size("block_count", MAX_LAYERS)?;
    let layers = all_layers - next_token_layers(&options, architecture, all_layers)?;
    let heads = options.of_layers("attention.head_count", layers)?;
    let heads = heads.ok_or_else(|| options.missing("attention.head_count"))?;
    let kv_heads = match architecture.family {
        // Its layers may differ.
        Family::Gemma4 => gemma4::first_size(&options, "attention.head_count_kv", layers)?,
        // Layers with a mixer have none.
        Family::Lfm2 | Family::Lfm2Moe | Family::GraniteMoeHybrid => {
            options.of_some_layers("attention.head_count_kv", layers)?
        }
        _ => options.of_layers("attention.head_count_kv", layers)?,
    };
    let kv_heads = kv_heads.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        let name = architecture.name;
        let expected = format!("a divisor of \"{name}.attention.head_count\", {heads}");
        return Err(options.invalid("attention.head_count_kv", &expected));
    }
    let head_dim = match architecture.family {
        Family::DeepseekV2 | Family::DeepseekV32 | Family::GlmMoeDsa => latent::rope_dim(&options)?,
        _ => head_dim(&options, hidden_size, heads)?,
    };
    let partial_rotary_factor = if architecture.partial_rope {
        partial_rotary_factor(&options, head_dim)?
    } else {
        options.check_size("rope.dimension_count", head_dim)?;
        1.0
    };
    let context_length = options.required_size("context_length", MAX_SIZE)?;
    let epsilon = match architecture.norm {
        Norm::Rms => "attention.layer_norm_rms_epsilon",
        Norm::Layer { .. } | Norm::UnweightedLayer => "attention.layer_norm_epsilon",
    };
    let has_short_factors = has(SHORT_DIVISORS);
    // The first layer of a hybrid may have a mixer.
    let has_in_some = |part: &str| (0..layers).any(|layer| has(&format!("blk.{layer}.{part}")));
    let mut config = Config {
        family: architecture.family,
        hidden_size,
        intermediate_size: intermediate_size(&options, architecture, layers)?,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: kv_heads,
        head_dim,
        vocab_size: vocab_size(&options)?,
        max_position_embeddings: context_length,
        norm: architecture.norm,
        rms_norm_eps: options.required_positive(epsilon)?,
        rope_theta: options.positive("rope.freq_base")?.unwrap_or(10_000.0),
        rope_scaling: rope_scaling(&options, architecture, context_length, has_short_factors)?,
        partial_rotary_factor,
        sliding_window: sliding_window(&options, architecture, layers)?,
        qkv_bias: has_in_some("attn_q.bias") || has_in_some("attn_qkv.bias"),
        output_bias: has_in_some("attn_output.bias"),
        mlp_bias: has("blk.0.ffn_gate.bias") || has("blk.0.ffn_up.bias"),
        tie_word_embeddings: !has("output.weight"),
        bos_token_id: None,
        eos_token_ids: Vec::new(),
        suggested_sampling: suggested_sampling(metadata)?,
        ..Config::plain_llama()
    };
    architecture.adapt(&options, has, &mut config)?;
    let config = with_end_tokens(config, metadata)?;
    config.validate(metadata.path())?;
    unread::reject(metadata, architecture, &config, has_short_factors)?;
    Ok((config, architecture))
}

/// Returns how many of the layers are for multi-token prediction. They are the last ones, and not
/// read.
fn next_token_layers(
    options: &ModelOptions<'_>,
    architecture: &GgufArchitecture,
    all_layers: usize,
) -> Result<usize, LoadError> {
    if !architecture.reads_option(NEXT_TOKEN_LAYERS) {
        return Ok(0);
    }
    if architecture.name == ASSISTANT {
        return options.check_size(NEXT_TOKEN_LAYERS, all_layers).map(|()| 0);
    }
    let count = options.size_or_zero(NEXT_TOKEN_LAYERS)?.unwrap_or(0);
    if count >= all_layers {
        let expected = format!("fewer than the {all_layers} layers");
        return Err(options.invalid(NEXT_TOKEN_LAYERS, &expected));
    }
    Ok(count)
}

fn supported_architecture(
    metadata: GgufMetadata<'_>,
) -> Result<&'static GgufArchitecture, LoadError> {
    const TYPE: &str = "general.type";
    const ARCHITECTURE: &str = "general.architecture";
    let refuse = |key, supported: &str| {
        Err(unsupported(metadata.path(), option(key), metadata.displayed(key), supported))
    };
    if metadata.text(TYPE)?.is_some_and(|found| found != "model") {
        return refuse(TYPE, "\"model\"");
    }
    let Some(name) = metadata.text(ARCHITECTURE)? else {
        return Err(metadata.invalid(ARCHITECTURE, &GgufArchitecture::all_names()));
    };
    let has_experts = metadata.u32(&format!("{name}.expert_count"))?.is_some_and(|n| n > 0);
    match GgufArchitecture::named(name, has_experts) {
        Some(architecture) => Ok(architecture),
        None => refuse(ARCHITECTURE, &GgufArchitecture::all_names()),
    }
}

/// Returns the width of the dense MLP. If all layers have experts, it may be absent, and theirs
/// counts.
fn intermediate_size(
    options: &ModelOptions<'_>,
    architecture: &GgufArchitecture,
    layers: usize,
) -> Result<usize, LoadError> {
    const SIZE: &str = "feed_forward_length";
    if architecture.family == Family::Gemma4 {
        return gemma4::first_size(options, SIZE, layers)?.ok_or_else(|| options.missing(SIZE));
    }
    let of_experts = options.size_or_zero("expert_feed_forward_length")?;
    if of_experts.is_some() && options.metadata.u32(&options.key(SIZE)).ok() == Some(Some(0)) {
        return Ok(of_experts.unwrap_or(0));
    }
    let size = options.of_layers(SIZE, layers)?.or(of_experts);
    size.ok_or_else(|| options.missing(SIZE))
}

/// Returns the size of a head. Keys, values and the rotated part must have the same size.
fn head_dim(
    options: &ModelOptions<'_>,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, LoadError> {
    let head_dim = match options.size("attention.key_length", MAX_SIZE)? {
        Some(head_dim) => head_dim,
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            let key = options.key("embedding_length");
            return Err(options.invalid("attention.head_count", &format!("a divisor of \"{key}\"")));
        }
    };
    if !head_dim.is_multiple_of(2) {
        let file = options.metadata.path();
        return Err(invalid(file, "the size of a head", head_dim, "an even number"));
    }
    options.check_size("attention.value_length", head_dim)?;
    Ok(head_dim)
}

/// Returns the size of the vocabulary: that of the model, or of its tokenizer.
fn vocab_size(options: &ModelOptions<'_>) -> Result<usize, LoadError> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    if let Some(size) = options.size("vocab_size", MAX_SIZE)? {
        return Ok(size);
    }
    match options.metadata.array_length(TOKENS) {
        Some(length) if (1..=MAX_SIZE).contains(&length) => Ok(length),
        _ => {
            let key = options.key("vocab_size");
            let expected = format!("an array of tokens, or \"{key}\"");
            Err(options.metadata.invalid(TOKENS, &expected))
        }
    }
}

/// Adds the tokens that begin and end a text: end of sequence, of a turn, and of a message.
fn with_end_tokens(config: Config, metadata: GgufMetadata<'_>) -> Result<Config, LoadError> {
    let token = |name: &str| {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match metadata.u32(&key)? {
            Some(id) if id as usize >= config.vocab_size => {
                let expected = format!("a token id below {}", config.vocab_size);
                Err(metadata.invalid(&key, &expected))
            }
            id => Ok(id),
        }
    };
    let bos_token_id = token("bos")?;
    let mut eos_token_ids = Vec::new();
    for name in ["eos", "eot", "eom"] {
        eos_token_ids.extend(token(name)?.filter(|id| !eos_token_ids.contains(id)));
    }
    for id in ends_by_text(metadata)? {
        if (id as usize) < config.vocab_size && !eos_token_ids.contains(&id) {
            eos_token_ids.push(id);
        }
    }
    Ok(Config { bos_token_id, eos_token_ids, ..config })
}

/// Returns the tokens with the text of a known end. The metadata of many files name one end only,
/// although a chat ends at another one.
fn ends_by_text(metadata: GgufMetadata<'_>) -> Result<Vec<u32>, LoadError> {
    const CONTROL: i32 = 3;
    let texts = metadata.strings("tokenizer.ggml.tokens")?.into_iter().flatten();
    let types = metadata.i32s("tokenizer.ggml.token_type")?.into_iter().flatten();
    let is_control = types.map(|kind| kind == CONTROL).chain(std::iter::repeat(false));
    Ok(known_ends(
        (0..).zip(texts).zip(is_control).map(|((id, text), control)| (id, text, control)),
    ))
}

/// Reads the sampling that the authors suggest. Absent options have no effect.
fn suggested_sampling(metadata: GgufMetadata<'_>) -> Result<Option<SuggestedSampling>, LoadError> {
    const PREFIX: &str = "general.sampling.";
    const NAMES: [&str; 5] = ["temp", "top_k", "top_p", "min_p", "penalty_repeat"];
    let suggests = |key: &str| key.strip_prefix(PREFIX).is_some_and(|name| NAMES.contains(&name));
    if !metadata.keys().any(suggests) {
        return Ok(None);
    }
    let number = |name| metadata.f32(&format!("{PREFIX}{name}"));
    let top_k = metadata.u32(&format!("{PREFIX}top_k"))?.unwrap_or(0);
    Ok(Some(SuggestedSampling {
        temperature: number("temp")?.unwrap_or(1.0),
        top_k: top_k as usize,
        top_p: number("top_p")?.unwrap_or(1.0),
        min_p: number("min_p")?.unwrap_or(0.0),
        repetition_penalty: number("penalty_repeat")?.unwrap_or(1.0),
    }))
}
