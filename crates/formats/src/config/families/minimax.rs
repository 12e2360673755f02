//! MiniMax-M2: norms of whole queries and keys, RoPE in a part of each head, and experts that are
//! chosen by sigmoids with a correction.

use super::super::MixtureLayers;
use super::super::family::{Defaults, Description, LLAMA};
use super::deepseek::supports;
use super::{NUM_LOCAL_EXPERTS, experts};
use crate::architecture::{Experts, Mlp, QkNorms, Router, Weighting};
use serde_json::json;

pub(in super::super) const MINIMAX_M2: Description = Description {
    name: "MiniMax-M2",
    model_type: "minimax_m2",
    class: "MiniMaxM2ForCausalLM",
    defaults: Defaults {
        max_position_embeddings: 196_608,
        num_key_value_heads: Some(8),
        head_dim: Some(128),
        rope_theta: 5_000_000.0,
        bos_token_id: Some(200_034),
        eos_token_id: Some(200_020),
        partial_rotary_factor: Some(1.0),
        ..LLAMA
    },
    reads: &[NUM_LOCAL_EXPERTS],
    read: |options, config| {
        config.qk_norms = QkNorms::Whole;
        // Published files have the number of dimensions instead of their share.
        if let Some(dims) = options.size("rotary_dim")? {
            config.partial_rotary_factor = dims as f32 / config.head_dim as f32;
        }
        supports(options, "scoring_func", "\"sigmoid\"")?;
        supports(options, "qk_norm_type", "\"per_layer\"")?;
        options.check_supported("use_routing_bias", "true", |value| *value == true)?;
        options.check_supported("shared_intermediate_size", "0", |value| *value == 0)?;
        options.check_supported("attn_type_list", "a list of 1", |kinds| {
            kinds.as_array().is_some_and(|kinds| kinds.iter().all(|kind| *kind == 1))
        })?;
        let mlp = Mlp { activation: config.hidden_act, ..Mlp::gated(config.intermediate_size) };
        let base = experts(options, NUM_LOCAL_EXPERTS, mlp)?;
        let router = Router { weighting: Weighting::Sigmoid, correction: true, ..base.router };
        config.experts = Some(MixtureLayers::in_all(Experts { router, ..base }));
        Ok(())
    },
    write: |config, options| {
        options.insert("rotary_dim".to_owned(), json!(config.rotary_dims()));
        (super::llama::MIXTRAL.write)(config, options);
    },
};
