//! Converts a configuration to the options of `config.json`.

use super::{Config, RecurrentLayers, RopeScaling, SlidingLayers};
use crate::architecture::Activation;
use crate::weight_type::Dtype;
use serde_json::{Value, json};

impl Config {
    /// Returns the options of `config.json` for weights of this type. [`Config::parse`] reads them
    /// back.
    #[must_use]
    pub fn to_json(&self, dtype: Dtype) -> Value {
        let description = self.family.description();
        let mut options = json!({
            "architectures": [description.class],
            "model_type": description.model_type,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_position_embeddings,
            "rope_theta": self.rope_theta,
            "rope_scaling": rope_scaling_json(&self.rope_scaling),
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
        options[description.defaults.epsilon.0] = json!(self.rms_norm_eps);
        options[description.defaults.activation.0] = json!(activation_name(self.hidden_act));
        if description.defaults.partial_rotary_factor.is_some() {
            options["partial_rotary_factor"] = json!(self.partial_rotary_factor);
        }
        if let Some((theta, scaling)) = &self.local_rope {
            options["rope_parameters"] = json!({
                "full_attention": rope_parameters_json(self.rope_theta, &self.rope_scaling),
                "sliding_attention": rope_parameters_json(*theta, scaling),
            });
            for option in ["rope_theta", "rope_scaling"] {
                options[option] = Value::Null;
            }
        }
        if let Some(options) = options.as_object_mut() {
            (description.write)(self, options);
        }
        if let Some(RecurrentLayers { layers, .. }) = &self.recurrent {
            let name = |&mixes| if mixes { "linear_attention" } else { "full_attention" };
            options["layer_types"] = layers.iter().map(name).collect();
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

/// Returns the name of an activation function. gpt-oss's has none of its own.
fn activation_name(activation: Activation) -> &'static str {
    match activation {
        Activation::Silu | Activation::ClampedSwiglu { .. } => "silu",
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
        Activation::Relu => "relu",
    }
}

fn rope_parameters_json(theta: f32, scaling: &RopeScaling) -> Value {
    let mut parameters = match rope_scaling_json(scaling) {
        Value::Null => json!({"rope_type": "default"}),
        scaling => scaling,
    };
    parameters["rope_theta"] = json!(theta);
    parameters
}

fn rope_scaling_json(scaling: &RopeScaling) -> Value {
    match scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Proportional { share, factor } => json!({
            "rope_type": "proportional",
            "partial_rotary_factor": share,
            "factor": factor,
        }),
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
        RopeScaling::Yarn(yarn) => json!({
            "rope_type": "yarn",
            "factor": yarn.factor,
            "beta_fast": yarn.beta_fast,
            "beta_slow": yarn.beta_slow,
            "truncate": yarn.truncate,
            "attention_factor": yarn.attention_factor,
            "original_max_position_embeddings": yarn.original_max_position_embeddings,
        }),
        // The same computation under transformers' name for stored divisors.
        RopeScaling::Divisors { divisors, attention_factor } => json!({
            "rope_type": "longrope",
            "short_factor": **divisors,
            "long_factor": **divisors,
            "attention_factor": attention_factor,
        }),
    }
}
