//! Falcon.

use super::super::family::{Defaults, Description, LLAMA};
use super::super::{Config, NormPlacement};
use super::flag;
use crate::architecture::{Activation, Norm};
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::json;

pub(in super::super) const FALCON: Description = Description {
    name: "Falcon",
    model_type: "falcon",
    class: "FalconForCausalLM",
    defaults: Defaults {
        names: &[("n_embed", "hidden_size"), ("ffn_hidden_size", "intermediate_size")],
        mlp_factor: Some(4),
        tie_word_embeddings: true,
        bos_token_id: Some(11),
        eos_token_id: Some(11),
        epsilon: ("layer_norm_epsilon", 1e-5),
        activation: ("activation", Activation::Gelu),
        ..LLAMA
    },
    reads: &["parallel_attn"],
    read: |options, config| {
        config.norm = Norm::Layer { bias: true };
        config.gated_mlp = false;
        let bias = flag(options, "bias")?;
        (config.qkv_bias, config.output_bias, config.mlp_bias) = (bias, bias, bias);
        let is_new = flag(options, "new_decoder_architecture")?;
        config.num_key_value_heads = match is_new {
            true => options.size("num_kv_heads")?.unwrap_or(config.num_attention_heads),
            false if options.flag("multi_query")?.unwrap_or(true) => 1,
            false => config.num_attention_heads,
        };
        config.norm_placement = placement(options, is_new)?;
        Ok(())
    },
    write: |config, options| {
        use NormPlacement as N;
        let placement = config.norm_placement;
        // The new form has all numbers of key/value heads, but no norms one after another.
        let is_new = placement != N::Before;
        for (option, value) in [
            ("bias", json!(config.mlp_bias)),
            ("new_decoder_architecture", json!(is_new)),
            ("parallel_attn", json!(is_new)),
            ("num_ln_in_parallel_attn", json!(if placement == N::ParallelNorms { 2 } else { 1 })),
            ("num_kv_heads", json!(config.num_key_value_heads)),
            ("multi_query", json!(config.num_key_value_heads == 1)),
        ] {
            options.insert(option.to_owned(), value);
        }
    },
};

fn placement(options: &JsonOptions<'_>, is_new: bool) -> Result<NormPlacement, LoadError> {
    const NORMS: &str = "num_ln_in_parallel_attn";
    let is_parallel = options.flag("parallel_attn")?.unwrap_or(true);
    if !is_new {
        options.check_supported(NORMS, "1 with the old decoder", |norms| *norms == 1)?;
        return Ok(if is_parallel { NormPlacement::Parallel } else { NormPlacement::Before });
    }
    options.check_supported("parallel_attn", "true with the new decoder", |flag| *flag == true)?;
    match options.size(NORMS)?.unwrap_or(2) {
        1 => Ok(NormPlacement::Parallel),
        2 => Ok(NormPlacement::ParallelNorms),
        _ => Err(options.unsupported(NORMS, "1 or 2")),
    }
}

impl Config {
    /// Returns the numbers of rows of a set of queries with their key and value in Falcon's fused
    /// projection: those of the queries, and of the whole set.
    pub(crate) fn falcon_rows(&self) -> [usize; 2] {
        let queries = self.num_attention_heads / self.num_key_value_heads * self.head_dim;
        [queries, queries + 2 * self.head_dim]
    }
}
