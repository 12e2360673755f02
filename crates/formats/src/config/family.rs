//! The model families and the default values of their configurations.

use std::fmt;

/// A model family: the `model_type` of `config.json`.
///
/// One forward pass computes all families. The family determines which options its configuration has,
/// and the default values of absent options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 1 to 3 and models with the same `model_type`: Vicuna, CodeLlama, DeepSeek-Coder, TinyLlama.
    Llama,
    /// Mistral.
    Mistral,
    /// Qwen2 and 2.5.
    Qwen2,
    /// Qwen3.
    Qwen3,
    /// Granite 3 and dense models with the same `model_type`.
    Granite,
    /// SmolLM3.
    SmolLm3,
}

/// The values of options that a configuration does not contain: the defaults of transformers'
/// configuration classes.
#[derive(Clone, Copy)]
pub(super) struct Defaults {
    pub(super) max_position_embeddings: usize,
    /// `None` means the number of query heads.
    pub(super) num_key_value_heads: Option<usize>,
    /// `None` means the hidden size divided by the number of heads.
    pub(super) head_dim: Option<usize>,
    pub(super) rope_theta: f32,
    pub(super) tie_word_embeddings: bool,
    pub(super) bos_token_id: Option<u32>,
    pub(super) eos_token_id: Option<u32>,
}

impl Family {
    pub(super) const ALL: [Self; 6] =
        [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3, Self::Granite, Self::SmolLm3];

    /// Returns the value of `model_type`.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Granite => "granite",
            Self::SmolLm3 => "smollm3",
        }
    }

    /// Returns the name of the model class in `architectures`.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Granite => "GraniteForCausalLM",
            Self::SmolLm3 => "SmolLM3ForCausalLM",
        }
    }

    pub(super) fn defaults(self) -> Defaults {
        let llama = Defaults {
            max_position_embeddings: 2048,
            num_key_value_heads: None,
            head_dim: None,
            rope_theta: 10_000.0,
            tie_word_embeddings: false,
            bos_token_id: Some(1),
            eos_token_id: Some(2),
        };
        let qwen2 = Defaults {
            max_position_embeddings: 32_768,
            num_key_value_heads: Some(32),
            bos_token_id: None,
            eos_token_id: None,
            ..llama
        };
        match self {
            Self::Llama | Self::Granite => llama,
            Self::Mistral => {
                Defaults { max_position_embeddings: 131_072, num_key_value_heads: Some(8), ..llama }
            }
            Self::Qwen2 => qwen2,
            Self::Qwen3 => Defaults { head_dim: Some(128), ..qwen2 },
            Self::SmolLm3 => Defaults {
                max_position_embeddings: 32_768,
                num_key_value_heads: Some(4),
                rope_theta: 2_000_000.0,
                tie_word_embeddings: true,
                bos_token_id: Some(128_000),
                eos_token_id: Some(128_001),
                ..llama
            },
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Llama => "Llama",
            Self::Mistral => "Mistral",
            Self::Qwen2 => "Qwen2",
            Self::Qwen3 => "Qwen3",
            Self::Granite => "Granite",
            Self::SmolLm3 => "SmolLM3",
        })
    }
}
