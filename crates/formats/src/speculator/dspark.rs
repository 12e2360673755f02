//! The storage layouts of DSpark: the heads after DFlash's layers, and the options that are not
//! DFlash's.
//!
//! *DSpark: Confidence-Scheduled Speculative Decoding with Semi-Autoregressive Generation*, 2026,
//! arXiv 2607.05147. There are two layouts:
//!
//! | | its authors' (DeepSpec) | vLLM's speculators |
//! |---|---|---|
//! | layers | a Qwen3's, among the options; none is causal | as for DFlash |
//! | features | `target_layer_ids`: *k* is the output of layer *k*, counted from 0, and -1 the embedding | as for DFlash |
//! | a row predicts | the token after its place | the same if `sample_from_anchor` is true |
//! | head | its own, a copy of the target's. forerun's trainer stores none: the target's, or its part for the tokens in `d2t` | its own if it has fewer tokens (`d2t`) |
//!
//! Both have `markov_head.markov_w1` and `markov_w2`, `gate_proj` (gated) or `joint_proj` (rnn),
//! and `confidence_head.proj`. [`BlockHeads`](crate::BlockHeads) says what they compute.
//!
//! The tensors say which heads there are. These options may be left out, and must agree with the
//! tensors otherwise:
//!
//! | option | meaning |
//! |---|---|
//! | `markov_rank` | the number of columns of `markov_head.markov_w1`; 0 without a Markov head |
//! | `markov_head_type` | `vanilla` (the default), `gated` or `rnn` |
//! | `enable_confidence_head` | whether `confidence_head.proj` is stored |
//! | `confidence_head_with_markov` | whether the confidence head also reads the Markov head's embedding of the token before. Default: whether its weights are wider than the hidden state |
//!
//! Heads in other packages are refused, because their readers disagree about what a row predicts.

use super::dflash::{OF_TRAINER, TARGET_LAYERS};
use super::layers::short_name;
use crate::architecture::{ConfidenceInput, MarkovHead, MarkovKind};
use crate::checkpoint::{LoadError, NamedTensors, Tensor};
use crate::config::Config;
use crate::json_options::{JsonOptions, MAX_SIZE};
use crate::tensor::BlockHeadTensor;
use serde_json::Value;

/// The option with the algorithm in the layout of vLLM's speculators.
pub(super) const TYPE: &str = "speculators_model_type";

const RANK: &str = "markov_rank";
const KIND: &str = "markov_head_type";
const HAS_CONFIDENCE: &str = "enable_confidence_head";
const CONFIDENCE_READS_TOKEN: &str = "confidence_head_with_markov";
const PREDICTS_AFTER: &str = "sample_from_anchor";

pub(super) const HEAD_OPTIONS: &[&str] = &[RANK, KIND, HAS_CONFIDENCE, CONFIDENCE_READS_TOKEN];

/// The options in the authors' layout, next to those of the layers and of the heads. `num_anchors`
/// is of training. `speculator` is the drafter's kind in checkpoints of forerun's own trainer.
pub(super) const OPTIONS: &[&str] =
    &["block_size", "mask_token_id", "num_anchors", "num_target_layers", OF_TRAINER, TARGET_LAYERS];

#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub(super) markov: Option<MarkovHead>,
    pub(super) confidence: Option<ConfidenceInput>,
}

/// Returns whether there are heads after a block drafter's layers.
pub(super) fn has_heads(tensors: &NamedTensors) -> bool {
    [BlockHeadTensor::Previous, BlockHeadTensor::Confidence]
        .iter()
        .any(|tensor| tensors.has(&stored_name(*tensor)))
}

/// Returns whether the options are those of a DSpark drafter of speculators.
pub(super) fn is_dspark(options: &JsonOptions<'_>) -> bool {
    options.get(TYPE).is_some_and(|value| value == "dspark")
}

fn stored_name(tensor: BlockHeadTensor) -> String {
    short_name(Tensor::BlockHead(tensor))
}

/// Rejects drafters of another class. In the authors' layout the class must be there, because the
/// layouts of others have the same tensors.
pub(super) fn check_class(options: &JsonOptions<'_>, of_authors: bool) -> Result<(), LoadError> {
    const CLASSES: &str = "architectures";
    let (known, supported): (&[&str], _) = match of_authors {
        true => (&["Qwen3DSparkModel"], "[\"Qwen3DSparkModel\"]"),
        false => (
            &["DSparkDraftModel", "DSparkSpeculator"],
            "[\"DSparkDraftModel\"] or [\"DSparkSpeculator\"]",
        ),
    };
    if of_authors && options.get(CLASSES).is_none() {
        return Err(options.missing(CLASSES, supported));
    }
    options.check_supported(CLASSES, supported, |value| {
        let classes = value.as_array();
        classes.is_some_and(|all| {
            !all.is_empty() && all.iter().all(|name| known.iter().any(|known| name == known))
        })
    })
}

/// Returns whether each row of a block of `size` rows predicts the token after its place, in the
/// layout of speculators. Its first checkpoints do not say so, but give the number of tokens that a
/// block predicts.
pub(super) fn predicts_after(options: &JsonOptions<'_>, size: usize) -> Result<bool, LoadError> {
    if let Some(flag) = options.flag(PREDICTS_AFTER)? {
        return Ok(flag);
    }
    let inner = options.object("speculators_config")?;
    let proposals = inner.as_ref().and_then(|inner| inner.get("proposal_methods"));
    let tokens = |value: &Value| value.get("speculative_tokens").and_then(Value::as_u64);
    match proposals.and_then(|all| tokens(all.get(0)?)) {
        Some(tokens) if tokens == size as u64 => Ok(true),
        Some(tokens) if tokens.checked_add(1) == Some(size as u64) => Ok(false),
        _ => Err(options.missing(PREDICTS_AFTER, "true or false")),
    }
}

/// Returns the features in the authors' layout, as numbers of the target's layers before them.
/// Transformers gives the output of the last layer after the final norm, so the authors do not read
/// it.
pub(super) fn feature_layers(
    options: &JsonOptions<'_>,
    target_layers: usize,
) -> Result<Vec<usize>, LoadError> {
    let expected = format!(
        "numbers from -1 to {}: the target has {target_layers} layers",
        target_layers as i64 - 2
    );
    let invalid = || options.invalid(TARGET_LAYERS, &options.displayed(TARGET_LAYERS), &expected);
    let Some(ids) = options.get(TARGET_LAYERS) else {
        return Err(options.missing(TARGET_LAYERS, "a list of layers of the target"));
    };
    let layer = |id: &Value| {
        let before = usize::try_from(id.as_i64()?.checked_add(1)?).ok()?;
        Some(before).filter(|&before| before < target_layers)
    };
    let layers: Option<Vec<usize>> = ids.as_array().and_then(|ids| ids.iter().map(layer).collect());
    layers.filter(|layers| !layers.is_empty()).ok_or_else(invalid)
}

/// Returns the heads. The tensors say which there are, and the options must agree.
pub(super) fn heads(
    options: &JsonOptions<'_>,
    tensors: &NamedTensors,
    config: &Config,
) -> Result<Heads, LoadError> {
    let columns = |tensor| match tensors.shape(&stored_name(tensor)) {
        Some([_, columns]) => *columns,
        _ => 0,
    };
    let rank = columns(BlockHeadTensor::Previous);
    if rank > MAX_SIZE {
        return Err(options.invalid(RANK, &rank, &format!("at most {MAX_SIZE}")));
    }
    if let Some(found) = options.size(RANK)?
        && found != rank
    {
        let name = stored_name(BlockHeadTensor::Previous);
        let expected = format!("{rank}, the number of columns of `{name}` (0 without it)");
        return Err(options.invalid(RANK, &found, &expected));
    }
    let kinds = [
        ("vanilla", MarkovKind::Vanilla),
        ("gated", MarkovKind::Gated),
        ("rnn", MarkovKind::Recurrent),
    ];
    let name = options.string(KIND)?.unwrap_or_else(|| "vanilla".to_owned());
    let Some((_, kind)) = kinds.into_iter().find(|(known, _)| *known == name) else {
        return Err(options.unsupported(KIND, "\"vanilla\", \"gated\" or \"rnn\""));
    };
    let markov = (rank > 0).then_some(MarkovHead { kind, rank });
    if markov.is_some() && config.final_logit_softcapping.is_some() {
        // Its readers disagree whether the bias is added before the cap.
        return Err(options.unsupported("final_logit_softcapping", "null with a Markov head"));
    }
    let inputs = columns(BlockHeadTensor::Confidence);
    let confidence = confidence(options, inputs, config.hidden_size, rank)?;
    Ok(Heads { markov, confidence })
}

/// Returns what the confidence head reads, if there is one. `inputs` is the width of its weights,
/// and 0 without them.
fn confidence(
    options: &JsonOptions<'_>,
    inputs: usize,
    hidden_size: usize,
    rank: usize,
) -> Result<Option<ConfidenceInput>, LoadError> {
    let name = stored_name(BlockHeadTensor::Confidence);
    let stored = inputs > 0;
    if let Some(flag) = options.flag(HAS_CONFIDENCE)?
        && flag != stored
    {
        let verb = if stored { "is" } else { "is not" };
        let expected = format!("{stored}, because `{name}` {verb} stored");
        return Err(options.invalid(HAS_CONFIDENCE, &flag, &expected));
    }
    if !stored {
        return Ok(None);
    }
    let reads_token = options.flag(CONFIDENCE_READS_TOKEN)?.unwrap_or(inputs != hidden_size);
    let (input, expected) = match reads_token {
        true => (ConfidenceInput::HiddenAndPrevious, hidden_size + rank),
        false => (ConfidenceInput::Hidden, hidden_size),
    };
    match inputs == expected && (rank > 0 || !reads_token) {
        true => Ok(Some(input)),
        false => {
            let expected = format!("the opposite: `{name}` has {inputs} columns");
            Err(options.invalid(CONFIDENCE_READS_TOKEN, &reads_token, &expected))
        }
    }
}
