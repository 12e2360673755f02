//! The configuration of a model from a GGUF file's metadata, by llama.cpp's keys.

use std::sync::Arc;

use super::metadata::GgufMetadata;
use super::names::{SUPPORTED_ARCHITECTURES, family};
use super::parse::{invalid, option, unsupported};
use super::unread;
use crate::architecture::QkNorms;
use crate::config::{
    Config, Family, MAX_LAYERS, RopeScaling, SlidingLayers, SlidingWindow, SuggestedSampling,
};
use crate::json_options::MAX_SIZE;
use crate::load_error::LoadError;

/// What a model's tensors say about its configuration.
pub(super) struct TensorFacts {
    pub(super) qkv_bias: bool,
    pub(super) output_bias: bool,
    pub(super) mlp_bias: bool,
    /// Whether there is a head of its own.
    pub(super) has_head: bool,
}

/// Reads the configuration. RoPE's divisors, if they are stored, are not part of the metadata: the
/// caller adds them with [`add_divisors`].
///
/// # Errors
///
/// When the architecture is not supported, an option is missing or invalid, or an option changes the
/// computation in a way that is not supported.
pub(super) fn read_config(
    metadata: GgufMetadata<'_>,
    tensors: &TensorFacts,
) -> Result<Config, LoadError> {
    let (architecture, family) = supported_family(metadata)?;
    let options = ModelOptions { metadata, architecture };
    let hidden_size = options.required_size("embedding_length", MAX_SIZE)?;
    let layers = options.required_size("block_count", MAX_LAYERS)?;
    let heads = options.of_layers("attention.head_count", layers)?;
    let heads = heads.ok_or_else(|| options.missing("attention.head_count"))?;
    let kv_heads = options.of_layers("attention.head_count_kv", layers)?.unwrap_or(heads);
    if !heads.is_multiple_of(kv_heads) {
        let expected = format!("a divisor of \"{architecture}.attention.head_count\", {heads}");
        return Err(options.invalid("attention.head_count_kv", &expected));
    }
    let intermediate_size = options.of_layers("feed_forward_length", layers)?;
    let epsilon = "attention.layer_norm_rms_epsilon";
    let config = Config {
        family,
        hidden_size,
        intermediate_size: intermediate_size
            .ok_or_else(|| options.missing("feed_forward_length"))?,
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: kv_heads,
        head_dim: head_dim(&options, hidden_size, heads)?,
        vocab_size: vocab_size(&options)?,
        max_position_embeddings: options.required_size("context_length", MAX_SIZE)?,
        rms_norm_eps: options.positive(epsilon)?.ok_or_else(|| options.missing(epsilon))?,
        rope_theta: options.positive("rope.freq_base")?.unwrap_or(10_000.0),
        rope_scaling: rope_scaling(&options)?,
        sliding_window: sliding_window(&options, layers)?,
        qkv_bias: tensors.qkv_bias,
        output_bias: tensors.output_bias,
        mlp_bias: tensors.mlp_bias,
        qk_norms: if family == Family::Qwen3 { QkNorms::Heads } else { QkNorms::None },
        tie_word_embeddings: !tensors.has_head,
        bos_token_id: None,
        eos_token_ids: Vec::new(),
        suggested_sampling: suggested_sampling(metadata)?,
        ..Config::plain_llama()
    };
    let config = with_end_tokens(config, metadata)?;
    config.validate(metadata.path())?;
    unread::reject(metadata, architecture, &config)?;
    Ok(config)
}

/// Adds stored divisors of RoPE's frequencies.
///
/// # Errors
///
/// When the metadata scale the frequencies, too, or the divisors are not valid.
pub(super) fn add_divisors(
    config: &mut Config,
    divisors: Arc<[f32]>,
    metadata: GgufMetadata<'_>,
) -> Result<(), LoadError> {
    if let RopeScaling::Linear { factor } = config.rope_scaling {
        let field = "the factor of RoPE's scaling";
        let supported = "either a factor or the divisors `rope_freqs.weight`";
        return Err(unsupported(metadata.path(), field, factor, supported));
    }
    config.rope_scaling = RopeScaling::Divisors { divisors, attention_factor: 1.0 };
    config.validate(metadata.path())
}

/// Returns the name of the architecture, and its family.
fn supported_family(metadata: GgufMetadata<'_>) -> Result<(&str, Family), LoadError> {
    const TYPE: &str = "general.type";
    const ARCHITECTURE: &str = "general.architecture";
    let refuse = |key, supported| {
        Err(unsupported(metadata.path(), option(key), metadata.displayed(key), supported))
    };
    if metadata.text(TYPE)?.is_some_and(|found| found != "model") {
        return refuse(TYPE, "\"model\"");
    }
    let Some(architecture) = metadata.text(ARCHITECTURE)? else {
        return Err(metadata.invalid(ARCHITECTURE, SUPPORTED_ARCHITECTURES));
    };
    match family(architecture) {
        Some(family) => Ok((architecture, family)),
        None => refuse(ARCHITECTURE, SUPPORTED_ARCHITECTURES),
    }
}

/// The options of a model: their keys begin with the name of its architecture.
struct ModelOptions<'a> {
    metadata: GgufMetadata<'a>,
    architecture: &'a str,
}

impl ModelOptions<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn invalid(&self, name: &str, expected: &str) -> LoadError {
        self.metadata.invalid(&self.key(name), expected)
    }

    fn unsupported(&self, name: &str, supported: &str) -> LoadError {
        let key = self.key(name);
        unsupported(self.metadata.path(), option(&key), self.metadata.displayed(&key), supported)
    }

    fn missing(&self, name: &str) -> LoadError {
        self.invalid(name, "a positive number")
    }

    fn size(&self, name: &str, largest: usize) -> Result<Option<usize>, LoadError> {
        let Some(size) = self.metadata.u32(&self.key(name))? else { return Ok(None) };
        match usize::try_from(size) {
            Ok(size) if (1..=largest).contains(&size) => Ok(Some(size)),
            _ => Err(self.invalid(name, &format!("a size from 1 to {largest}"))),
        }
    }

    fn required_size(&self, name: &str, largest: usize) -> Result<usize, LoadError> {
        self.size(name, largest)?.ok_or_else(|| self.missing(name))
    }

    /// Returns a size that may be given for each layer, if it is the same for all of them.
    fn of_layers(&self, name: &str, layers: usize) -> Result<Option<usize>, LoadError> {
        let key = self.key(name);
        if !self.metadata.is_array(&key) {
            return self.size(name, MAX_SIZE);
        }
        let Some(mut sizes) = self.metadata.i32s(&key)? else { return Ok(None) };
        let expected = format!("a positive number for each of the {layers} layers");
        if sizes.len() != layers {
            return Err(self.invalid(name, &expected));
        }
        let first = sizes.next().unwrap_or(0);
        if sizes.any(|size| size != first) {
            return Err(self.unsupported(name, "the same number for all layers"));
        }
        match usize::try_from(first) {
            Ok(size) if (1..=MAX_SIZE).contains(&size) => Ok(Some(size)),
            _ => Err(self.invalid(name, &expected)),
        }
    }

    fn positive(&self, name: &str) -> Result<Option<f32>, LoadError> {
        match self.metadata.f32(&self.key(name))? {
            Some(value) if !(value.is_finite() && value > 0.0) => {
                Err(self.invalid(name, "a positive, finite number"))
            }
            value => Ok(value),
        }
    }

    /// Fails unless the option is absent or has this size.
    fn check_size(&self, name: &str, expected: usize) -> Result<(), LoadError> {
        match self.metadata.u32(&self.key(name))? {
            Some(size) if size as usize != expected => {
                Err(self.unsupported(name, &format!("the size of a head, {expected}")))
            }
            _ => Ok(()),
        }
    }
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
    options.check_size("rope.dimension_count", head_dim)?;
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

/// Reads the scaling of RoPE. A factor without a type is linear, as in llama.cpp.
fn rope_scaling(options: &ModelOptions<'_>) -> Result<RopeScaling, LoadError> {
    const TYPE: &str = "rope.scaling.type";
    let name = options.metadata.text(&options.key(TYPE))?;
    match name {
        Some("none") => return Ok(RopeScaling::None),
        Some("linear") | None => {}
        Some(_) => {
            let supported = "\"none\", \"linear\", or divisors in the tensor `rope_freqs.weight`";
            return Err(options.unsupported(TYPE, supported));
        }
    }
    for name in ["rope.scaling.factor", "rope.scale_linear"] {
        let Some(factor) = options.metadata.f32(&options.key(name))? else { continue };
        // As in llama.cpp, 0 means that the frequencies are not scaled.
        return match factor {
            0.0 | 1.0 => Ok(RopeScaling::None),
            factor if factor.is_finite() && factor > 1.0 => Ok(RopeScaling::Linear { factor }),
            _ => Err(options.invalid(name, "a finite number of at least 1")),
        };
    }
    Ok(RopeScaling::None)
}

/// Reads the sliding window. The pattern says which layers use it; without one, all layers do.
fn sliding_window(
    options: &ModelOptions<'_>,
    layers: usize,
) -> Result<Option<SlidingWindow>, LoadError> {
    const WINDOW: &str = "attention.sliding_window";
    const PATTERN: &str = "attention.sliding_window_pattern";
    let size = match options.metadata.u32(&options.key(WINDOW))? {
        None | Some(0) => return Ok(None),
        Some(_) => options.required_size(WINDOW, MAX_SIZE)?,
    };
    let pattern = options.key(PATTERN);
    if options.metadata.scalar(&pattern).is_some() {
        return Err(options.unsupported(PATTERN, "an array with a flag for each layer"));
    }
    let layers = match options.metadata.bools(&pattern)? {
        None => SlidingLayers::From(0),
        Some(slides) if slides.len() == layers => SlidingLayers::Listed(slides.collect()),
        Some(_) => {
            let expected = format!("a flag for each of the {layers} layers");
            return Err(options.invalid(PATTERN, &expected));
        }
    };
    Ok(Some(SlidingWindow { size, layers }))
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

/// Returns the control tokens with the text of a known end. The metadata of many files name one end only,
/// although a chat ends at another one. llama.cpp finds the others in the same way.
fn ends_by_text(metadata: GgufMetadata<'_>) -> Result<Vec<u32>, LoadError> {
    const CONTROL: i32 = 3;
    const ENDS: [&str; 12] = [
        "</s>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<EOT>",
        "<eos>",
        "<｜end▁of▁sentence｜>",
    ];
    let tokens = metadata.strings("tokenizer.ggml.tokens")?.into_iter().flatten();
    let types = metadata.i32s("tokenizer.ggml.token_type")?.into_iter().flatten();
    let numbered = (0..).zip(tokens.zip(types));
    let ends = numbered.filter(|(_, (text, kind))| *kind == CONTROL && ENDS.contains(text));
    Ok(ends.map(|(id, _)| id).collect())
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
