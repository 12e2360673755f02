//! Compressed keys and values (DeepSeek), as a GGUF file's metadata describe them.

use super::options::ModelOptions;
use crate::architecture::Latent;
use crate::config::{Config, Family, RopeScaling};
use crate::json_options::MAX_SIZE;
use crate::load_error::LoadError;

/// The code of sigmoids as weights of experts.
const SIGMOID: u32 = 2;

/// Returns the part of a head with RoPE, which is the head of the other options.
pub(super) fn rope_dim(options: &ModelOptions<'_>) -> Result<usize, LoadError> {
    options.required_size("rope.dimension_count", MAX_SIZE)
}

/// Sets the compression of keys and values. `has` says whether a tensor is stored.
pub(super) fn read(
    options: &ModelOptions<'_>,
    has: &dyn Fn(&str) -> bool,
    config: &mut Config,
) -> Result<(), LoadError> {
    const KEY: &str = "attention.key_length_mla";
    const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";
    let rope_dim = config.head_dim;
    // Old files have one tensor of all expansions, and the sizes of expanded heads under other
    // names.
    let [key, value] = match options.contains(KEY) {
        true => [KEY, "attention.value_length_mla"],
        false => ["attention.key_length", "attention.value_length"],
    };
    let plain_dim = options.required_size(key, MAX_SIZE)?.saturating_sub(rope_dim);
    if plain_dim == 0 {
        return Err(options.invalid(key, &format!("a size above that of RoPE, {rope_dim}")));
    }
    let compresses_queries = has("blk.0.attn_q_a.weight");
    let query_rank = || options.required_size("attention.q_lora_rank", MAX_SIZE);
    // llama.cpp's conversion multiplies the weight by 0.1.
    let multiplier = options.positive_or_zero(LOG_MULTIPLIER)?;
    let mscale = multiplier.map_or(0.0, |multiplier| (f64::from(multiplier) / 0.1) as f32);
    config.latent = Some(Latent {
        query_rank: compresses_queries.then(query_rank).transpose()?,
        rank: options.required_size("attention.kv_lora_rank", MAX_SIZE)?,
        plain_dim,
        rope_dim,
        value_dim: options.required_size(value, MAX_SIZE)?,
        mscale,
        // As from safetensors.
        norm_epsilon: 1e-6,
    });
    config.num_key_value_heads = config.num_attention_heads;
    config.rope_interleave = true;
    if let RopeScaling::Yarn(yarn) = &mut config.rope_scaling
        && mscale != 0.0
    {
        // All published models have the same weight for queries and keys, and for scores.
        yarn.attention_factor = 1.0;
    }
    let gating = options.metadata.u32(&options.key("expert_gating_func"))?.unwrap_or(0);
    let corrects = |layer| has(&format!("blk.{layer}.exp_probs_b.bias"));
    // Files of GLM-4.7-Flash do not name the function.
    let has_sigmoids =
        gating == SIGMOID || gating == 0 && (0..config.num_hidden_layers).any(corrects);
    if config.family == Family::DeepseekV2 && has_sigmoids {
        config.family = Family::DeepseekV3;
    }
    if config.family.is_sparse() {
        // As from safetensors: up to there, attention reads all positions.
        let positions = options.required_size("attention.indexer.top_k", MAX_SIZE)?;
        config.max_position_embeddings = config.max_position_embeddings.min(positions);
    }
    Ok(())
}
