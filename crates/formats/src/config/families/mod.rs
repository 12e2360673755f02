//! The families' own options, one file for families of the same origin.

pub(super) mod bert;
pub(super) mod cohere;
pub(super) mod deepseek;
pub(super) mod dots;
pub(super) mod ernie;
pub(super) mod falcon;
pub(super) mod gemma;
pub(super) mod glm;
pub(super) mod gpt;
pub(super) mod granite;
pub(super) mod hybrid;
pub(super) mod llama;
pub(super) mod minimax;
pub(super) mod olmo;
pub(super) mod phi;
pub(super) mod positions;
pub(super) mod qwen;

use super::{Config, MAX_LAYERS, SlidingLayers, SlidingWindow};
use crate::architecture::{Experts, Mlp, Router};
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde_json::{Map, Value, json};

/// Returns a flag that is false if it is absent.
fn flag(options: &JsonOptions<'_>, option: &'static str) -> Result<bool, LoadError> {
    Ok(options.flag(option)?.unwrap_or(false))
}

/// Returns a size option. If it is absent, it is `default`; if it is `null`, it is `None`.
pub(super) fn size_or(
    options: &JsonOptions<'_>,
    option: &'static str,
    default: Option<usize>,
) -> Result<Option<usize>, LoadError> {
    Ok(options.size(option)?.or(default.filter(|_| !options.contains(option))))
}

/// Returns whether each layer uses the window, if the configuration lists its layers.
fn layer_types(options: &JsonOptions<'_>) -> Result<Option<Vec<bool>>, LoadError> {
    const KNOWN: &str = "\"full_attention\", \"sliding_attention\"";
    let Some(names) = options.strings("layer_types")? else { return Ok(None) };
    let slides = |name: &String| match name.as_str() {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        _ => Err(options.unsupported("layer_types", KNOWN)),
    };
    names.iter().map(slides).collect::<Result<_, _>>().map(Some)
}

/// Returns whether each layer has a dense MLP instead of experts. The list is empty if none has.
fn dense_if(config: &Config, is_dense: impl Fn(usize) -> bool) -> Vec<bool> {
    let dense: Vec<bool> = (0..config.num_hidden_layers.min(MAX_LAYERS)).map(is_dense).collect();
    if dense.contains(&true) { dense } else { Vec::new() }
}

/// Returns the sliding window of this size. `layer_types` lists its layers one by one; without it
/// they are `layers`.
pub(super) fn sliding_window(
    options: &JsonOptions<'_>,
    size: Option<usize>,
    layers: SlidingLayers,
) -> Result<Option<SlidingWindow>, LoadError> {
    match (size, layer_types(options)?) {
        (None, Some(listed)) if listed.contains(&true) => {
            let supported = "only \"full_attention\", because no sliding window is in use";
            Err(options.unsupported("layer_types", supported))
        }
        (None, _) => Ok(None),
        (Some(size), Some(listed)) => {
            Ok(Some(SlidingWindow { size, layers: SlidingLayers::Listed(listed) }))
        }
        (Some(size), None) => Ok(Some(SlidingWindow { size, layers })),
    }
}

/// Returns the layers with a window if the last of every `period` layers has none.
fn all_but_every(period: usize, layers: usize) -> SlidingLayers {
    let slides = |layer: usize| !(layer + 1).is_multiple_of(period.max(1));
    SlidingLayers::Listed((0..layers.min(MAX_LAYERS)).map(slides).collect())
}

/// Writes nothing: for families without options of their own.
fn write_nothing(_: &Config, _: &mut Map<String, Value>) {}

/// Writes the biases of attention, as `attention_bias`.
fn write_attention_bias(config: &Config, options: &mut Map<String, Value>) {
    options.insert("attention_bias".to_owned(), json!(config.output_bias));
}

/// The number of experts as transformers 5 calls it in all families.
const NUM_LOCAL_EXPERTS: &str = "num_local_experts";

/// Reads a mixture of experts, whose number is under this option, or under [`NUM_LOCAL_EXPERTS`].
/// Its router is Mixtral's: a softmax over all experts.
fn experts(
    options: &JsonOptions<'_>,
    n_experts: &'static str,
    mlp: Mlp,
) -> Result<Experts, LoadError> {
    let n_experts = if options.contains(n_experts) { n_experts } else { NUM_LOCAL_EXPERTS };
    let router = Router::softmax(options.required_size("num_experts_per_tok")?);
    Ok(Experts::plain(options.required_size(n_experts)?, mlp, router))
}
