//! Sizes and constants of a Llama-family model, as in Hugging Face's `config.json`.
//!
//! An option that would change what the model computes and that this engine does not do is an
//! error; options that matter to training only are ignored.

use std::path::Path;

use serde_json::Value;

use crate::checkpoint::options::Options;
use crate::checkpoint::{LayerTensor, LoadError, Tensor};

/// The largest size that is believed: hundreds of times what any model has, and small enough that
/// the product of any two fits 64 bits.
const MAX_SIZE: usize = 1 << 28;

/// What a Llama-family model is, apart from its weights. Field names are those of `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
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
    /// Whether the output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// The token that begins a text, if any.
    pub bos_token_id: Option<u32>,
    /// The tokens that end a text; none means that only a limit ends it.
    pub eos_token_ids: Vec<u32>,
}

impl Config {
    /// Reads the text of a `config.json`; `file` is its name in errors. Options that may be absent
    /// then have the value that transformers' `LlamaConfig` gives them.
    ///
    /// # Errors
    ///
    /// When the text is no JSON object, a size is missing, a value makes no sense, or an option
    /// asks for something this engine does not do.
    pub fn parse(text: &str, file: &Path) -> Result<Self, LoadError> {
        let options = Options::parse(text, file)?;
        reject_other_models(&options)?;

        let hidden_size = options.required_size("hidden_size")?;
        let num_attention_heads = options.required_size("num_attention_heads")?;
        let head_dim = match options.size("head_dim")? {
            Some(head_dim) => head_dim,
            None => divided_head_dim(hidden_size, num_attention_heads, file)?,
        };
        let default_bos = (!options.contains("bos_token_id")).then_some(1);
        let default_eos = (!options.contains("eos_token_id")).then_some(2);
        let config = Self {
            hidden_size,
            intermediate_size: options.required_size("intermediate_size")?,
            num_hidden_layers: options.required_size("num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads: options
                .size("num_key_value_heads")?
                .unwrap_or(num_attention_heads),
            head_dim,
            vocab_size: options.required_size("vocab_size")?,
            max_position_embeddings: options.size("max_position_embeddings")?.unwrap_or(2048),
            rms_norm_eps: options.number("rms_norm_eps")?.unwrap_or(1e-6),
            rope_theta: rope_theta(&options, file)?,
            tie_word_embeddings: options.flag("tie_word_embeddings")?.unwrap_or(false),
            bos_token_id: options.token_id("bos_token_id")?.or(default_bos),
            eos_token_ids: options
                .token_ids("eos_token_id")?
                .unwrap_or_else(|| default_eos.into_iter().collect()),
        };
        config.validate(file)?;
        Ok(config)
    }

    /// Lets the text of a `generation_config.json` replace the tokens that end a text, as
    /// transformers does: fine-tunes for chat add theirs there only.
    ///
    /// # Errors
    ///
    /// When the text is no JSON object, or its `eos_token_id` is not one or several tokens of the
    /// vocabulary.
    pub fn apply_generation_config(&mut self, text: &str, file: &Path) -> Result<(), LoadError> {
        if let Some(ids) = Options::parse(text, file)?.token_ids("eos_token_id")? {
            self.eos_token_ids = ids;
        }
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

    fn validate_tensor_sizes(&self, file: &Path) -> Result<(), LoadError> {
        let of_layer = LayerTensor::ALL.map(|tensor| Tensor::Layer(0, tensor));
        for tensor in [Tensor::Embedding].into_iter().chain(of_layer) {
            let shape = tensor.shape(self);
            let bytes =
                shape.iter().try_fold(size_of::<f32>(), |product, n| product.checked_mul(*n));
            if bytes.is_none_or(|bytes| isize::try_from(bytes).is_err()) {
                return Err(LoadError::InvalidOption {
                    file: file.to_owned(),
                    option: "hidden_size",
                    found: self.hidden_size.to_string(),
                    expected: format!("sizes that fit memory, not {shape:?} for `{tensor}`"),
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
}

/// Refuses everything that would have to be computed differently.
fn reject_other_models(options: &Options<'_>) -> Result<(), LoadError> {
    if !options.contains("model_type") {
        return Err(options.missing("model_type", "\"llama\""));
    }
    options.only("model_type", "\"llama\"", |value| value == "llama")?;
    options.only("architectures", "[\"LlamaForCausalLM\"]", |value| {
        value.as_array().is_some_and(|names| names.iter().any(|name| name == "LlamaForCausalLM"))
    })?;
    options.only("hidden_act", "\"silu\"", |value| value == "silu")?;
    options.only("attention_bias", "false", |value| value == false)?;
    options.only("mlp_bias", "false", |value| value == false)?;
    options.only("partial_rotary_factor", "1.0", |value| value.as_f64() == Some(1.0))?;
    options.only("quantization_config", "none (F32 or BF16 weights)", |_| false)
}

fn divided_head_dim(hidden_size: usize, heads: usize, file: &Path) -> Result<usize, LoadError> {
    match hidden_size.checked_rem(heads) {
        Some(0) => Ok(hidden_size / heads),
        _ => Err(LoadError::InvalidOption {
            file: file.to_owned(),
            option: "num_attention_heads",
            found: heads.to_string(),
            expected: format!("a divisor of `hidden_size`, {hidden_size} (or `head_dim` given)"),
        }),
    }
}

/// The base of RoPE: an option of its own, or, since transformers 5, within `rope_parameters`.
/// `rope_scaling` is the older name of the same object, and any real scaling is an error.
fn rope_theta(options: &Options<'_>, file: &Path) -> Result<f32, LoadError> {
    let mut theta = options.number("rope_theta")?;
    for option in ["rope_parameters", "rope_scaling"] {
        let Some(rope) = options.object(option)? else { continue };
        let is_default = |value: &Value| value == "default";
        rope.only("rope_type", "\"default\"", is_default)?;
        rope.only("type", "\"default\"", is_default)?;
        rope.only("partial_rotary_factor", "1.0", |value| value.as_f64() == Some(1.0))?;
        let known = ["rope_theta", "rope_type", "type", "partial_rotary_factor"];
        if rope.names().any(|name| !known.contains(&name)) {
            let supported = "`rope_theta` and a `rope_type` of \"default\"";
            return Err(options.unsupported(option, supported));
        }
        let inner = rope.number("rope_theta")?;
        if let (Some(outer), Some(inner)) = (theta, inner)
            && outer != inner
        {
            return Err(LoadError::InvalidOption {
                file: file.to_owned(),
                option: "rope_theta",
                found: outer.to_string(),
                expected: format!("{inner}, as in `{option}`"),
            });
        }
        theta = theta.or(inner);
    }
    Ok(theta.unwrap_or(10_000.0))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use serde_json::json;

    use super::*;

    fn llama(changes: Value) -> Result<Config, LoadError> {
        let mut options = json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 172,
            "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 512,
        });
        if let (Value::Object(options), Value::Object(changes)) = (&mut options, changes) {
            options.extend(changes);
        }
        Config::parse(&options.to_string(), Path::new("config.json"))
    }

    fn message(changes: Value) -> String {
        llama(changes).unwrap_err().to_string()
    }

    #[test]
    fn absent_options_have_the_defaults_of_transformers() {
        let config = llama(json!({})).unwrap();
        assert_eq!((config.head_dim, config.num_key_value_heads), (8, 8));
        assert_eq!((config.rms_norm_eps, config.rope_theta), (1e-6, 10_000.0));
        assert_eq!((config.bos_token_id, config.eos_token_ids), (Some(1), vec![2]));
        assert_eq!((config.max_position_embeddings, config.tie_word_embeddings), (2048, false));
    }

    #[test]
    fn end_tokens_are_one_several_or_none() {
        let ids = |value| llama(json!({ "eos_token_id": value })).unwrap().eos_token_ids;
        assert_eq!(ids(json!(7)), [7]);
        assert_eq!(ids(json!([7, 9])), [7, 9]);
        assert_eq!(ids(json!(null)), [0u32; 0]);
        assert!(message(json!({"eos_token_id": 512})).contains("`eos_token_id` is 512"));
        assert!(message(json!({"eos_token_id": [1, -1]})).contains("[1,-1]"));
    }

    #[test]
    fn the_generation_config_replaces_end_tokens() {
        let mut config = llama(json!({})).unwrap();
        let file = Path::new("generation_config.json");
        config.apply_generation_config("{}", file).unwrap();
        assert_eq!(config.eos_token_ids, [2]);
        config.apply_generation_config(r#"{"eos_token_id": [5, 6]}"#, file).unwrap();
        assert_eq!(config.eos_token_ids, [5, 6]);
        let error = config.apply_generation_config(r#"{"eos_token_id": "no"}"#, file);
        assert!(error.unwrap_err().to_string().starts_with("generation_config.json: "));
    }

    #[test]
    fn rope_theta_is_found_in_its_old_and_new_places() {
        let theta = |changes| llama(changes).unwrap().rope_theta;
        assert_eq!(theta(json!({"rope_theta": 500_000})), 500_000.0);
        let parameters = json!({"rope_theta": 1e6, "rope_type": "default"});
        assert_eq!(theta(json!({ "rope_parameters": parameters })), 1e6);
        assert_eq!(theta(json!({"rope_scaling": {"type": "default"}})), 10_000.0);
        let both = message(json!({"rope_theta": 1e4, "rope_parameters": parameters}));
        assert!(both.contains("`rope_theta` is 10000; expected 1000000"), "{both}");
    }

    #[test]
    fn what_would_be_computed_differently_is_refused() {
        let cases = [
            (json!({"model_type": "qwen2"}), "`model_type` is \"qwen2\""),
            (json!({"architectures": ["LlamaModel"]}), "`architectures`"),
            (json!({"hidden_act": "gelu"}), "`hidden_act` is \"gelu\""),
            (json!({"attention_bias": true}), "`attention_bias` is true"),
            (json!({"mlp_bias": true}), "`mlp_bias` is true"),
            (json!({"partial_rotary_factor": 0.5}), "`partial_rotary_factor` is 0.5"),
            (json!({"quantization_config": {"bits": 4}}), "`quantization_config` is {\"bits\":4}"),
            (json!({"rope_scaling": {"type": "linear", "factor": 2}}), "`type` is \"linear\""),
            (json!({"rope_parameters": {"rope_type": "yarn"}}), "`rope_type` is \"yarn\""),
            (json!({"rope_scaling": {"factor": 2.0}}), "`rope_scaling` is {\"factor\":2.0}"),
        ];
        for (changes, words) in cases {
            let message = message(changes);
            assert!(message.starts_with("config.json: option"), "{message}");
            assert!(message.contains(words) && message.contains("not supported yet"), "{message}");
        }
    }

    #[test]
    fn values_that_make_no_sense_are_refused() {
        let huge = MAX_SIZE;
        let cases = [
            (json!({"hidden_size": null}), "`hidden_size` is missing"),
            (json!({"hidden_size": "64"}), "`hidden_size` is \"64\""),
            (json!({"hidden_size": -64}), "`hidden_size` is -64"),
            (json!({"vocab_size": 0}), "`vocab_size` is 0"),
            (json!({"num_hidden_layers": u64::MAX}), "`num_hidden_layers` is 18446744073709551615"),
            (json!({"num_attention_heads": 0}), "`num_attention_heads` is 0"),
            (json!({"num_attention_heads": 7}), "a divisor of `hidden_size`, 64"),
            (json!({"num_key_value_heads": 3}), "a divisor of `num_attention_heads`, 8"),
            (json!({"head_dim": 7}), "`head_dim` is 7; expected an even number"),
            (json!({"rms_norm_eps": -1e-6}), "`rms_norm_eps` is -0.000001"),
            (json!({"rope_theta": 1e300}), "`rope_theta` is inf"),
            (json!({"bos_token_id": 512}), "`bos_token_id` is 512"),
            (json!({"tie_word_embeddings": "yes"}), "expected true or false"),
            (json!({"head_dim": huge, "num_attention_heads": huge}), "sizes that fit memory"),
        ];
        for (changes, words) in cases {
            let message = message(changes);
            assert!(message.starts_with("config.json: option"), "{message}");
            assert!(message.contains(words), "{message}");
        }
    }
}
