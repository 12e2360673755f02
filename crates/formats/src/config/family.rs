//! The model families, and what distinguishes their configurations.

use std::fmt;

use super::Config;
use super::families::{
    cohere, deepseek, falcon, gemma, glm, gpt, granite, hybrid, llama, olmo, phi, positions, qwen,
};
use crate::architecture::Activation;
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::{Map, Value};

/// A model family: the `model_type` of `config.json`.
///
/// One forward pass computes all families. The family determines which options its configuration
/// has, the default values of absent options, and the names of its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 1 to 3 and models with the same `model_type`: Vicuna, CodeLlama, DeepSeek-Coder,
    /// TinyLlama.
    Llama,
    /// Mistral.
    Mistral,
    /// Mixtral.
    Mixtral,
    /// Qwen2 and 2.5.
    Qwen2,
    /// Qwen3.
    Qwen3,
    /// Qwen2's mixtures of experts.
    Qwen2Moe,
    /// Qwen3's mixtures of experts.
    Qwen3Moe,
    /// Qwen3-Next.
    Qwen3Next,
    /// Qwen3.5 and 3.6.
    Qwen35,
    /// Qwen3.5's and 3.6's mixtures of experts.
    Qwen35Moe,
    /// Granite 3 and dense models with the same `model_type`.
    Granite,
    /// Granite's mixtures of experts.
    GraniteMoe,
    /// Granite 4, hybrid and not.
    GraniteMoeHybrid,
    /// LFM2.
    Lfm2,
    /// SmolLM3.
    SmolLm3,
    /// Gemma 2.
    Gemma2,
    /// Gemma 3 for text.
    Gemma3,
    /// Gemma 4 for text.
    Gemma4,
    /// Phi-1, Phi-1.5 and Phi-2.
    Phi,
    /// Phi-3, Phi-3.5 and Phi-4.
    Phi3,
    /// OLMo 1.
    Olmo,
    /// OLMo 2.
    Olmo2,
    /// OLMo 3.
    Olmo3,
    /// OLMoE.
    Olmoe,
    /// Command R.
    Cohere,
    /// Command R7B and Command A.
    Cohere2,
    /// GLM-4 of 2024.
    Glm,
    /// GLM-4 of 2025.
    Glm4,
    /// GLM-4.5 and later mixtures of experts.
    Glm4Moe,
    /// GLM-4.7-Flash.
    Glm4MoeLite,
    /// DeepSeek-V2, V2-Lite and Coder-V2.
    DeepseekV2,
    /// DeepSeek-V3 and R1.
    DeepseekV3,
    /// StarCoder2.
    StarCoder2,
    /// StableLM 2.
    StableLm,
    /// GPT-NeoX and Pythia.
    GptNeoX,
    /// gpt-oss.
    GptOss,
    /// GPT-2.
    Gpt2,
    /// OPT.
    Opt,
    /// Falcon.
    Falcon,
}

/// What distinguishes a family.
pub(super) struct Description {
    #[cfg_attr(not(test), expect(dead_code, reason = "a test compares it"))]
    pub(super) family: Family,
    /// The family's name in messages.
    pub(super) name: &'static str,
    /// The value of `model_type`.
    pub(super) model_type: &'static str,
    /// The name of the model class in `architectures`.
    pub(super) class: &'static str,
    pub(super) defaults: Defaults,
    /// Options that the family reads, among those that most families do not compute.
    pub(super) reads: &'static [&'static str],
    /// Reads the family's own options. The options of all families have been read.
    pub(super) read: fn(&JsonOptions<'_>, &mut Config) -> Result<(), LoadError>,
    /// Writes the family's own options.
    pub(super) write: fn(&Config, &mut Map<String, Value>),
}

/// The values of options that a configuration does not contain, the defaults of transformers'
/// configuration classes, and the names of options that differ between families.
#[derive(Clone, Copy)]
pub(super) struct Defaults {
    /// Options that the family has under other names, and their common names.
    pub(super) names: &'static [(&'static str, &'static str)],
    /// The width of the MLP as a multiple of the hidden size. `None` means that the option is
    /// required.
    pub(super) mlp_factor: Option<usize>,
    /// `None` means that the option is required.
    pub(super) num_attention_heads: Option<usize>,
    /// `None` means that the option is required.
    pub(super) vocab_size: Option<usize>,
    pub(super) max_position_embeddings: usize,
    /// `None` means the number of query heads.
    pub(super) num_key_value_heads: Option<usize>,
    /// `None` means the hidden size divided by the number of heads.
    pub(super) head_dim: Option<usize>,
    pub(super) rope_theta: f32,
    pub(super) tie_word_embeddings: bool,
    pub(super) bos_token_id: Option<u32>,
    pub(super) eos_token_id: Option<u32>,
    /// The option of the norms' constant, and its value.
    pub(super) epsilon: (&'static str, f32),
    /// The option of the activation function, and its value.
    pub(super) activation: (&'static str, Activation),
    /// The share of a head that RoPE rotates; `None` if the family always rotates whole heads.
    pub(super) partial_rotary_factor: Option<f32>,
    /// The base of RoPE in layers with a window, if they have a RoPE of their own.
    pub(super) local_rope_theta: Option<f32>,
}

/// The defaults of Llama.
pub(super) const LLAMA: Defaults = Defaults {
    names: &[],
    mlp_factor: None,
    num_attention_heads: None,
    vocab_size: None,
    max_position_embeddings: 2048,
    num_key_value_heads: None,
    head_dim: None,
    rope_theta: 10_000.0,
    tie_word_embeddings: false,
    bos_token_id: Some(1),
    eos_token_id: Some(2),
    epsilon: ("rms_norm_eps", 1e-6),
    activation: ("hidden_act", Activation::Silu),
    partial_rotary_factor: None,
    local_rope_theta: None,
};

impl Family {
    pub(super) const ALL: [Self; 39] = [
        Self::Llama,
        Self::Mistral,
        Self::Mixtral,
        Self::Qwen2,
        Self::Qwen3,
        Self::Qwen2Moe,
        Self::Qwen3Moe,
        Self::Qwen3Next,
        Self::Qwen35,
        Self::Qwen35Moe,
        Self::Granite,
        Self::GraniteMoe,
        Self::GraniteMoeHybrid,
        Self::Lfm2,
        Self::SmolLm3,
        Self::Gemma2,
        Self::Gemma3,
        Self::Gemma4,
        Self::Phi,
        Self::Phi3,
        Self::Olmo,
        Self::Olmo2,
        Self::Olmo3,
        Self::Olmoe,
        Self::Cohere,
        Self::Cohere2,
        Self::Glm,
        Self::Glm4,
        Self::Glm4Moe,
        Self::Glm4MoeLite,
        Self::DeepseekV2,
        Self::DeepseekV3,
        Self::StarCoder2,
        Self::StableLm,
        Self::GptNeoX,
        Self::GptOss,
        Self::Gpt2,
        Self::Opt,
        Self::Falcon,
    ];

    /// Returns the value of `model_type`.
    pub fn model_type(self) -> &'static str {
        self.description().model_type
    }

    /// Returns the name of the model class in `architectures`.
    pub fn architecture(self) -> &'static str {
        self.description().class
    }

    /// Whether the family is a Qwen with recurrent layers.
    pub(crate) fn is_hybrid_qwen(self) -> bool {
        matches!(self, Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe)
    }

    pub(super) fn description(self) -> &'static Description {
        match self {
            Self::Llama => &llama::LLAMA,
            Self::Mistral => &llama::MISTRAL,
            Self::Mixtral => &llama::MIXTRAL,
            Self::SmolLm3 => &llama::SMOLLM3,
            Self::Qwen2 => &qwen::QWEN2,
            Self::Qwen3 => &qwen::QWEN3,
            Self::Qwen2Moe => &qwen::QWEN2_MOE,
            Self::Qwen3Moe => &qwen::QWEN3_MOE,
            Self::Qwen3Next => &hybrid::QWEN3_NEXT,
            Self::Qwen35 => &hybrid::QWEN35,
            Self::Qwen35Moe => &hybrid::QWEN35_MOE,
            Self::Granite => &granite::GRANITE,
            Self::GraniteMoe => &granite::GRANITE_MOE,
            Self::GraniteMoeHybrid => &hybrid::GRANITE_MOE_HYBRID,
            Self::Lfm2 => &hybrid::LFM2,
            Self::Gemma2 => &gemma::GEMMA2,
            Self::Gemma3 => &gemma::GEMMA3,
            Self::Gemma4 => &gemma::GEMMA4,
            Self::Phi => &phi::PHI,
            Self::Phi3 => &phi::PHI3,
            Self::Olmo => &olmo::OLMO,
            Self::Olmo2 => &olmo::OLMO2,
            Self::Olmo3 => &olmo::OLMO3,
            Self::Olmoe => &olmo::OLMOE,
            Self::Cohere => &cohere::COHERE,
            Self::Cohere2 => &cohere::COHERE2,
            Self::Glm => &glm::GLM,
            Self::Glm4 => &glm::GLM4,
            Self::Glm4Moe => &glm::GLM4_MOE,
            Self::Glm4MoeLite => &deepseek::GLM4_MOE_LITE,
            Self::DeepseekV2 => &deepseek::DEEPSEEK_V2,
            Self::DeepseekV3 => &deepseek::DEEPSEEK_V3,
            Self::StarCoder2 => &gpt::STARCODER2,
            Self::StableLm => &gpt::STABLELM,
            Self::GptNeoX => &gpt::GPT_NEOX,
            Self::GptOss => &gpt::GPT_OSS,
            Self::Gpt2 => &positions::GPT2,
            Self::Opt => &positions::OPT,
            Self::Falcon => &falcon::FALCON,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.description().name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_its_own_description() {
        for family in Family::ALL {
            assert_eq!(family.description().family, family);
        }
        let mut types = Family::ALL.map(Family::model_type);
        types.sort_unstable();
        assert!(types.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
