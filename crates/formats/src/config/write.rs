//! Converts a configuration to the options of `config.json`.

use super::{Config, Family, RopeScaling, SlidingLayers};
use crate::weight_type::Dtype;
use serde_json::{Value, json};

impl Config {
    /// Returns the options of `config.json` for weights of this type. [`Config::parse`] reads them back.
    #[must_use]
    pub fn to_json(&self, dtype: Dtype) -> Value {
        let mut options = json!({
            "architectures": [self.family.architecture()],
            "model_type": self.family.model_type(),
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_position_embeddings,
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": rope_scaling_json(&self.rope_scaling),
            "attention_bias": self.output_bias,
            "mlp_bias": self.mlp_bias,
            "sliding_window": self.sliding_window.as_ref().map(|window| window.size),
            "use_sliding_window": self.sliding_window.is_some(),
            "tie_word_embeddings": self.tie_word_embeddings,
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_ids,
            "torch_dtype": match dtype {
                // No type of config.json holds blocks, so their values are written.
                Dtype::F32 | Dtype::Block(_) => "float32",
                Dtype::Bf16 => "bfloat16",
                Dtype::F16 => "float16",
            },
        });
        if let Some(layers) = &self.rope_layers {
            options["no_rope_layers"] = layers.iter().map(|has_rope| u8::from(*has_rope)).collect();
        }
        if self.family == Family::Granite {
            options["attention_multiplier"] = json!(self.score_scale());
        }
        for (option, factor) in [
            ("embedding_multiplier", self.embedding_multiplier),
            ("residual_multiplier", self.residual_multiplier),
            ("logits_scaling", self.logits_scaling),
        ] {
            if factor != 1.0 {
                options[option] = json!(factor);
            }
        }
        match self.sliding_window.as_ref().map(|window| &window.layers) {
            Some(SlidingLayers::Listed(listed)) => {
                let name = |&slides| if slides { "sliding_attention" } else { "full_attention" };
                options["layer_types"] = listed.iter().map(name).collect();
            }
            Some(SlidingLayers::From(first)) => options["max_window_layers"] = json!(first),
            None => {}
        }
        options
    }
}

fn rope_scaling_json(scaling: &RopeScaling) -> Value {
    match scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original_max_position_embeddings,
        }),
        // The same computation under transformers' name for stored divisors.
        RopeScaling::Divisors(divisors) => json!({
            "rope_type": "longrope",
            "short_factor": **divisors,
            "long_factor": **divisors,
            "attention_factor": 1.0,
        }),
    }
}
