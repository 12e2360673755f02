//! Granite 3, dense and as a mixture of experts.

use super::super::family::{Description, LLAMA};
use super::super::{Config, MixtureLayers};
use super::llama::{read_biases, write_biases};
use super::{NUM_LOCAL_EXPERTS, experts, flag, write_attention_bias};
use crate::architecture::{Mlp, Weighting};
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::{Map, Value, json};

pub(in super::super) const GRANITE: Description = Description {
    name: "Granite",
    model_type: "granite",
    class: "GraniteForCausalLM",
    defaults: LLAMA,
    reads: &[],
    read: |options, config| {
        read_biases(options, config)?;
        read_factors(options, config)
    },
    write: |config, options| {
        write_biases(config, options);
        write_factors(config, options);
    },
};

pub(in super::super) const GRANITE_MOE: Description = Description {
    name: "Granite-MoE",
    model_type: "granitemoe",
    class: "GraniteMoeForCausalLM",
    defaults: LLAMA,
    reads: &[NUM_LOCAL_EXPERTS],
    read: |options, config| {
        config.qkv_bias = flag(options, "attention_bias")?;
        config.output_bias = config.qkv_bias;
        read_factors(options, config)?;
        let mlp = Mlp { activation: config.hidden_act, ..Mlp::gated(config.intermediate_size) };
        let mut experts = experts(options, NUM_LOCAL_EXPERTS, mlp)?;
        experts.router.weighting = Weighting::SoftmaxOfChosen;
        experts.router.normalised = false;
        config.experts = Some(MixtureLayers::in_all(experts));
        Ok(())
    },
    write: |config, options| {
        write_attention_bias(config, options);
        write_factors(config, options);
        (super::llama::MIXTRAL.write)(config, options);
    },
};

pub(super) fn read_factors(
    options: &JsonOptions<'_>,
    config: &mut Config,
) -> Result<(), LoadError> {
    let factor = |option| Ok::<_, LoadError>(options.number(option)?.unwrap_or(1.0));
    config.attention_multiplier = Some(factor("attention_multiplier")?);
    config.embedding_multiplier = factor("embedding_multiplier")?;
    config.residual_multiplier = factor("residual_multiplier")?;
    config.logits_scaling = factor("logits_scaling")?;
    Ok(())
}

pub(super) fn write_factors(config: &Config, options: &mut Map<String, Value>) {
    for (option, factor) in [
        ("attention_multiplier", config.score_scale()),
        ("embedding_multiplier", config.embedding_multiplier),
        ("residual_multiplier", config.residual_multiplier),
        ("logits_scaling", config.logits_scaling),
    ] {
        options.insert(option.to_owned(), json!(factor));
    }
}
