//! The recurrent mixers of hybrid models, as a GGUF file's metadata describe them.

use super::options::ModelOptions;
use crate::architecture::{Recurrent, RecurrentRule};
use crate::config::{Config, Family, RecurrentLayers};
use crate::json_options::MAX_SIZE;
use crate::load_error::LoadError;

/// The number of key/value heads of each layer: 0 in layers with a mixer (LFM2, Granite 4).
const KV_HEADS: &str = "attention.head_count_kv";

/// Reads the mixers and their layers, if the family has any. `has` says whether a tensor is stored.
pub(super) fn read(
    options: &ModelOptions<'_>,
    family: Family,
    has: &dyn Fn(&str) -> bool,
    config: &Config,
) -> Result<Option<RecurrentLayers>, LoadError> {
    let layers = match family {
        Family::Lfm2 | Family::Lfm2Moe | Family::GraniteMoeHybrid => without_keys(options, config)?,
        family if family.is_hybrid_qwen() => listed_layers(options, config)?,
        _ => return Ok(None),
    };
    let mixer = match family {
        Family::Lfm2 | Family::Lfm2Moe => Recurrent {
            rule: RecurrentRule::Convolution,
            n_key_heads: 0,
            key_dim: 0,
            n_value_heads: 1,
            value_dim: config.hidden_size,
            kernel: options.required_size("shortconv.l_cache", MAX_SIZE)?,
            conv_bias: false,
            tiled: false,
            negative_rates: false,
        },
        _ => with_matrices(options, family, has, config)?,
    };
    Ok(Some(RecurrentLayers { mixer, layers }))
}

/// Reads a mixer with states of matrices: the gated delta rule of Qwen, or Mamba-2.
fn with_matrices(
    options: &ModelOptions<'_>,
    family: Family,
    has: &dyn Fn(&str) -> bool,
    config: &Config,
) -> Result<Recurrent, LoadError> {
    const GROUPS: &str = "ssm.group_count";
    const WIDTH: &str = "ssm.inner_size";
    let size = |name| options.required_size(name, MAX_SIZE);
    let (n_value_heads, width) = (size("ssm.time_step_rank")?, size(WIDTH)?);
    if !width.is_multiple_of(n_value_heads) {
        let expected = format!("a multiple of \"{}\"", options.key("ssm.time_step_rank"));
        return Err(options.invalid(WIDTH, &expected));
    }
    let is_mamba = family == Family::GraniteMoeHybrid;
    let n_key_heads = size(GROUPS)?;
    if is_mamba && n_key_heads > 1 {
        // transformers has one norm of all groups, and llama.cpp one of each.
        return Err(options.unsupported(GROUPS, "1, because of the norm of mixers"));
    }
    let has_bias = |layer| has(&format!("blk.{layer}.ssm_conv1d.bias"));
    Ok(Recurrent {
        rule: if is_mamba { RecurrentRule::StateSpace } else { RecurrentRule::GatedDelta },
        n_key_heads,
        key_dim: size("ssm.state_size")?,
        n_value_heads,
        value_dim: width / n_value_heads,
        kernel: size("ssm.conv_kernel")?,
        conv_bias: is_mamba && (0..config.num_hidden_layers).any(has_bias),
        // The conversion reorders the value heads of Qwen3.5, but not those of Qwen3-Next.
        tiled: matches!(family, Family::Qwen35 | Family::Qwen35Moe),
        negative_rates: true,
    })
}

/// Returns the layers without key/value heads.
fn without_keys(options: &ModelOptions<'_>, config: &Config) -> Result<Vec<bool>, LoadError> {
    match options.metadata.i32s(&options.key(KV_HEADS))? {
        Some(heads) if heads.len() == config.num_hidden_layers => {
            Ok(heads.map(|heads| heads == 0).collect())
        }
        _ => {
            let layers = config.num_hidden_layers;
            Err(options.invalid(KV_HEADS, &format!("a number for each of the {layers} layers")))
        }
    }
}

/// Returns the layers with a mixer of a Qwen: listed, or all but the last of every so many layers.
fn listed_layers(options: &ModelOptions<'_>, config: &Config) -> Result<Vec<bool>, LoadError> {
    const LISTED: &str = "attention.recurrent_layers";
    let layers = config.num_hidden_layers;
    match options.metadata.bools(&options.key(LISTED))? {
        // The list also has layers for multi-token prediction.
        Some(listed) if listed.len() >= layers => Ok(listed.take(layers).collect()),
        Some(_) => Err(options.invalid(LISTED, &format!("a flag for each of the {layers} layers"))),
        None => {
            let period = options.size("full_attention_interval", MAX_SIZE)?.unwrap_or(4);
            Ok((1..=layers).map(|layer| !layer.is_multiple_of(period)).collect())
        }
    }
}
