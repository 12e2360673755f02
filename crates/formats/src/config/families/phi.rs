//! Phi-2 and Phi-3, with the models of the same kinds.

use super::super::family::{Defaults, Description, LLAMA};
use super::super::{NormPlacement, SlidingLayers};
use super::{sliding_window, write_nothing};
use crate::architecture::{Activation, Norm};

pub(in super::super) const PHI: Description = Description {
    name: "Phi",
    model_type: "phi",
    class: "PhiForCausalLM",
    defaults: Defaults {
        epsilon: ("layer_norm_eps", 1e-5),
        activation: ("hidden_act", Activation::GeluTanh),
        partial_rotary_factor: Some(0.5),
        ..LLAMA
    },
    reads: &["lm_head_bias"],
    read: |_, config| {
        config.norm = Norm::Layer { bias: true };
        config.norm_placement = NormPlacement::Parallel;
        (config.qkv_bias, config.output_bias, config.mlp_bias) = (true, true, true);
        config.gated_mlp = false;
        config.head_bias = true;
        Ok(())
    },
    write: write_nothing,
};

pub(in super::super) const PHI3: Description = Description {
    name: "Phi-3",
    model_type: "phi3",
    class: "Phi3ForCausalLM",
    defaults: Defaults {
        max_position_embeddings: 4096,
        eos_token_id: Some(32_000),
        epsilon: ("rms_norm_eps", 1e-5),
        partial_rotary_factor: Some(1.0),
        ..LLAMA
    },
    reads: &[],
    read: |options, config| {
        let size = options.size("sliding_window")?;
        config.sliding_window = sliding_window(options, size, SlidingLayers::From(0))?;
        Ok(())
    },
    write: write_nothing,
};
