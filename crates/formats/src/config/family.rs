//! The model families, and what distinguishes their configurations.

use super::Config;
use super::families::{
    bert, cohere, deepseek, dots, ernie, falcon, gemma, glm, gpt, granite, hybrid, llama, minimax,
    olmo, phi, positions, qwen,
};
use crate::architecture::Activation;
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use crate::table_enum::table_enum;
use serde_json::{Map, Value};
use std::fmt;

table_enum! {
    /// A model family: the `model_type` of `config.json`.
    ///
    /// One forward pass computes all families. The family determines which options its
    /// configuration has, the default values of absent options, and the names of its tensors.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Family;

    /// Returns what distinguishes the family.
    pub(super) fn description() -> &'static Description;

    /// Llama 1 to 3 and models with the same `model_type`: Vicuna, CodeLlama, DeepSeek-Coder,
    /// TinyLlama.
    Llama = &llama::LLAMA,
    /// Mistral.
    Mistral = &llama::MISTRAL,
    /// Mixtral.
    Mixtral = &llama::MIXTRAL,
    /// Qwen2 and 2.5.
    Qwen2 = &qwen::QWEN2,
    /// Qwen3.
    Qwen3 = &qwen::QWEN3,
    /// Qwen2's mixtures of experts.
    Qwen2Moe = &qwen::QWEN2_MOE,
    /// Qwen3's mixtures of experts.
    Qwen3Moe = &qwen::QWEN3_MOE,
    /// Qwen3-VL for text. Afterwards it is a Qwen3.
    Qwen3Vl = &qwen::QWEN3_VL,
    /// Qwen3-VL's mixtures of experts for text.
    Qwen3VlMoe = &qwen::QWEN3_VL_MOE,
    /// Qwen3-Next.
    Qwen3Next = &hybrid::QWEN3_NEXT,
    /// Qwen3.5 and 3.6.
    Qwen35 = &hybrid::QWEN35,
    /// Qwen3.5's and 3.6's mixtures of experts.
    Qwen35Moe = &hybrid::QWEN35_MOE,
    /// Granite 3 and dense models with the same `model_type`.
    Granite = &granite::GRANITE,
    /// Granite's mixtures of experts.
    GraniteMoe = &granite::GRANITE_MOE,
    /// Granite 4, hybrid and not.
    GraniteMoeHybrid = &hybrid::GRANITE_MOE_HYBRID,
    /// LFM2.
    Lfm2 = &hybrid::LFM2,
    /// LFM2's mixtures of experts.
    Lfm2Moe = &hybrid::LFM2_MOE,
    /// SmolLM3.
    SmolLm3 = &llama::SMOLLM3,
    /// Gemma 2.
    Gemma2 = &gemma::GEMMA2,
    /// Gemma 3 for text.
    Gemma3 = &gemma::GEMMA3,
    /// Gemma 4 for text.
    Gemma4 = &gemma::GEMMA4,
    /// Gemma 4 12B for text. Afterwards it is a Gemma 4.
    Gemma4Unified = &gemma::GEMMA4_UNIFIED,
    /// Phi-1, Phi-1.5 and Phi-2.
    Phi = &phi::PHI,
    /// Phi-3, Phi-3.5 and Phi-4.
    Phi3 = &phi::PHI3,
    /// OLMo 1.
    Olmo = &olmo::OLMO,
    /// OLMo 2.
    Olmo2 = &olmo::OLMO2,
    /// OLMo 3.
    Olmo3 = &olmo::OLMO3,
    /// OLMoE.
    Olmoe = &olmo::OLMOE,
    /// Command R.
    Cohere = &cohere::COHERE,
    /// Command R7B and Command A.
    Cohere2 = &cohere::COHERE2,
    /// GLM-4 of 2024.
    Glm = &glm::GLM,
    /// GLM-4 of 2025.
    Glm4 = &glm::GLM4,
    /// GLM-4.5 and later mixtures of experts.
    Glm4Moe = &glm::GLM4_MOE,
    /// GLM-4.7-Flash.
    Glm4MoeLite = &deepseek::GLM4_MOE_LITE,
    /// DeepSeek-V2, V2-Lite and Coder-V2.
    DeepseekV2 = &deepseek::DEEPSEEK_V2,
    /// DeepSeek-V3 and R1.
    DeepseekV3 = &deepseek::DEEPSEEK_V3,
    /// DeepSeek-V3.2.
    DeepseekV32 = &deepseek::DEEPSEEK_V32,
    /// GLM-5.
    GlmMoeDsa = &deepseek::GLM_MOE_DSA,
    /// dots.llm1.
    Dots1 = &dots::DOTS1,
    /// ERNIE 4.5.
    Ernie45 = &ernie::ERNIE45,
    /// ERNIE 4.5's mixtures of experts.
    Ernie45Moe = &ernie::ERNIE45_MOE,
    /// MiniMax-M2.
    MiniMaxM2 = &minimax::MINIMAX_M2,
    /// StarCoder2.
    StarCoder2 = &gpt::STARCODER2,
    /// StableLM 2.
    StableLm = &gpt::STABLELM,
    /// GPT-NeoX and Pythia.
    GptNeoX = &gpt::GPT_NEOX,
    /// gpt-oss.
    GptOss = &gpt::GPT_OSS,
    /// GPT-2.
    Gpt2 = &positions::GPT2,
    /// OPT.
    Opt = &positions::OPT,
    /// Falcon.
    Falcon = &falcon::FALCON,
    /// BERT, as an encoder of texts for embeddings.
    Bert = &bert::BERT,
}

/// What distinguishes a family.
pub(super) struct Description {
    /// The family's name in messages.
    pub(super) name: &'static str,
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
    /// Returns the value of `model_type`.
    pub fn model_type(self) -> &'static str {
        self.description().model_type
    }

    /// Returns the name of the model class in `architectures`.
    pub fn architecture(self) -> &'static str {
        self.description().class
    }

    /// Whether attention reads only the positions that an indexer chooses, if there are more than it
    /// chooses.
    pub(crate) fn is_sparse(self) -> bool {
        matches!(self, Self::DeepseekV32 | Self::GlmMoeDsa)
    }

    /// Whether the family is an LFM2, dense or with experts.
    pub(crate) fn is_lfm2(self) -> bool {
        matches!(self, Self::Lfm2 | Self::Lfm2Moe)
    }

    /// Whether the family is a Qwen with recurrent layers.
    pub(crate) fn is_hybrid_qwen(self) -> bool {
        matches!(self, Self::Qwen3Next | Self::Qwen35 | Self::Qwen35Moe)
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
    fn every_family_has_its_own_model_type() {
        let mut types = Family::ALL.map(Family::model_type);
        types.sort_unstable();
        assert!(types.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
