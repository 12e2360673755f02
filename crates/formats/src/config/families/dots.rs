//! dots.llm1: attention of Qwen3, and experts of DeepSeek-V3's kind.

use super::super::SlidingLayers;
use super::super::family::{Defaults, Description};
use super::deepseek::{supports, supports_every_layer};
use super::glm::{MixtureDefaults, mixture_layers, write_mixture};
use super::qwen::QWEN3;
use super::{NUM_LOCAL_EXPERTS, flag, size_or, sliding_window, write_attention_bias};
use crate::architecture::QkNorms;

pub(in super::super) const DOTS1: Description = Description {
    name: "dots.llm1",
    model_type: "dots1",
    class: "Dots1ForCausalLM",
    defaults: Defaults { max_position_embeddings: 2048, head_dim: None, ..QWEN3.defaults },
    reads: &["n_routed_experts", NUM_LOCAL_EXPERTS],
    read: |options, config| {
        config.qkv_bias = flag(options, "attention_bias")?;
        config.output_bias = config.qkv_bias;
        config.qk_norms = QkNorms::Heads;
        let size = size_or(options, "sliding_window", Some(4096))?;
        let first = options.size("max_window_layers")?.unwrap_or(62);
        config.sliding_window = sliding_window(options, size, SlidingLayers::From(first))?;
        // The published name of DeepSeek-V3's sigmoids.
        supports(options, "scoring_func", "\"noaux_tc\"")?;
        supports_every_layer(options)?;
        let defaults = MixtureDefaults { first_dense: 0, ..MixtureDefaults::GLM };
        let mut layers = mixture_layers(options, config, &defaults)?;
        layers.experts.router.normalised = flag(options, "norm_topk_prob")?;
        config.experts = Some(layers);
        Ok(())
    },
    write: |config, options| {
        write_attention_bias(config, options);
        write_mixture(config, options);
    },
};
