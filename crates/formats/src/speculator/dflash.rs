//! The storage layouts of DFlash's layers, which DFlash 2 ([`super::dflash2`]) and DSpark
//! ([`super::dspark`]) have, too.
//!
//! *DFlash: Block Diffusion for Flash Speculative Decoding*, 2026, arXiv 2602.06036. `fc.weight`
//! projects hidden states of several of the target's layers to one, and `hidden_norm.weight` norms
//! it. Every layer computes the keys and values of the tokens before the block from that state. The
//! layers are those of a Qwen3. There are two layouts:
//!
//! | | z-lab | vLLM's speculators |
//! |---|---|---|
//! | layers | among the options | in `transformer_layer_config` |
//! | features | `dflash_config.target_layer_ids`: *k* is the output of layer *k*, counted from 0 | `aux_hidden_state_layer_ids`: *k* is the hidden state after *k* layers |
//! | mask token | `dflash_config.mask_token_id` | `mask_token_id` |
//! | head | the target's, or its part for the tokens in `d2t` if forerun's trainer wrote the drafter | its own if it has fewer tokens (`d2t`) |
//! | sliding layers | causal unless `is_causal` or `dflash_config.causal` is false | causal unless `sliding_window_non_causal` is true |
//! | a row predicts | the token in its place | the token after its place if `sample_from_anchor` is true |
//! | factors | `input_embedding_scale` of embeddings and `output_multiplier` of logits | none |
//!
//! Options of z-lab's layout that are not those of layers stand in `dflash_config` or among the
//! others. Other layers are not causal. JetSpec (*Breaking the Scaling Ceiling of Speculative
//! Decoding with Parallel Tree Drafting*, 2026, arXiv 2606.18394) has z-lab's layout, and
//! `dflash_config.causal_head`, which is true: all layers are causal. An option that is not known
//! is refused: ignoring it would keep the text, and silently cost acceptance.

use super::Speculator;
use super::dflash2::{self, Additions};
use super::draft_vocabulary::DRAFT_TO_TARGET;
use super::dspark::{self, Heads};
use super::eagle3::options::{
    LAYER_CONFIG, LAYER_OPTIONS, NEUTRAL, SPECULATORS_OPTIONS, check_draft_vocabulary,
};
use super::layers::short_name;
use crate::architecture::{Architecture, BlockHeads, Factors, FeatureSource, Head, Input, Layer};
use crate::checkpoint::{LoadError, NamedTensors, Tensor};
use crate::config::{Config, unread};
use crate::json_options::JsonOptions;
use forerun_core::TokenId;
use serde_json::Value;
use std::path::Path;

pub(super) const OWNER: &str = "a block drafter";
const NESTED: &str = "dflash_config";
/// The features in the layout of vLLM's speculators.
const FEATURE_LAYERS: &str = "aux_hidden_state_layer_ids";
/// The features in the layouts of z-lab and of DSpark's authors.
pub(super) const TARGET_LAYERS: &str = "target_layer_ids";

/// The drafter's kind in checkpoints of forerun's own trainer.
pub(super) const OF_TRAINER: &str = "speculator";

/// The options in z-lab's layout, next to those of the layers, and the one of forerun's own
/// trainer.
const OPTIONS: &[&str] = &[
    "block_size",
    EMBEDDING_FACTOR,
    "is_causal",
    LOGIT_FACTOR,
    NESTED,
    "num_target_layers",
    OF_TRAINER,
];

const NESTED_OPTIONS: &[&str] = &[
    "block_size",
    "causal",
    CAUSAL_HEAD,
    EMBEDDING_FACTOR,
    LOGIT_CAP,
    LOGIT_FACTOR,
    "mask_token_id",
    TARGET_HIDDEN_SIZE,
    TARGET_LAYERS,
];

const EMBEDDING_FACTOR: &str = "input_embedding_scale";
const LOGIT_FACTOR: &str = "output_multiplier";
/// The limit of logits after that. 0 means none.
const LOGIT_CAP: &str = "final_logit_softcapping";

/// Whether all layers are causal, in JetSpec's layout.
const CAUSAL_HEAD: &str = "causal_head";
const TARGET_HIDDEN_SIZE: &str = "target_hidden_size";

/// The options in the layout of vLLM's speculators.
const OWN_SPECULATORS_OPTIONS: &[&str] = &[
    FEATURE_LAYERS,
    "block_size",
    "draft_vocab_size",
    "mask_token_id",
    "projector_type",
    "sample_from_anchor",
    "shift_label",
    "sliding_window_non_causal",
    TARGET_HIDDEN_SIZE,
];

/// Options of vLLM's speculators that are of training, or of heads that are refused.
const NEUTRAL_SPECULATORS_OPTIONS: &[&str] = &[
    "auf",
    "emb_dim",
    "gru_hidden_dim",
    "lambda_base_decay_ratio",
    "lambda_base_decay_steps",
    "lambda_base_start",
    "max_anchors",
    "pure_draft_prefix_len",
];

/// Copies of the target's tensors, which some writers store, and the map from its tokens to those
/// of the head. They are not read.
const UNREAD_TENSORS: &[&str] =
    &["embed_tokens.weight", "t2d", "verifier_lm_head.weight", "verifier_norm.weight"];

/// The rows that a block drafter reads after the tokens of its context: the last token, and then
/// masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DraftBlock {
    /// The token of all rows but the first.
    pub mask: TokenId,
    /// The number of rows.
    pub size: usize,
    /// Whether each row predicts the token after its place, and the block as many tokens as it has
    /// rows. Otherwise the row of each mask predicts the token in its place, and that of the last
    /// token nothing.
    pub predicts_after: bool,
    /// Whether no row sees later ones, so that a shorter block has the same first rows.
    pub causal: bool,
}

impl DraftBlock {
    /// Returns the number of tokens that a block predicts.
    #[must_use]
    pub fn positions(&self) -> usize {
        self.size - usize::from(!self.predicts_after)
    }
}

/// What is drafted with DFlash's layers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    DFlash,
    DFlash2,
    DSpark,
}

impl Algorithm {
    /// Returns the algorithm that a block drafter's tensors show.
    pub(super) fn of_tensors(tensors: &NamedTensors) -> Self {
        if dflash2::is_dflash2(tensors) {
            Self::DFlash2
        } else if dspark::has_heads(tensors) {
            Self::DSpark
        } else {
            Self::DFlash
        }
    }

    /// Returns the algorithm. DSpark drafters of speculators may have no heads.
    fn of(options: &JsonOptions<'_>, tensors: &NamedTensors) -> Self {
        match Self::of_tensors(tensors) {
            Self::DFlash if dspark::is_dspark(options) => Self::DSpark,
            shown => shown,
        }
    }
}

/// Whose layout it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Writer {
    ZLab,
    Speculators,
    /// DSpark's authors.
    DeepSpec,
}

/// What is stored for DFlash or DSpark, and what the options say.
pub(super) struct Layout {
    /// The configuration of the layers.
    pub(super) config: Config,
    /// The features: the residual stream after each of these numbers of the target's layers.
    feature_layers: Vec<usize>,
    pub(super) block: DraftBlock,
    /// Whether all layers are causal, or none. `None` if only those with a sliding window are.
    causal: Option<bool>,
    /// DSpark's heads after the layers; without any in the others.
    heads: Heads,
    additions: Option<Additions>,
    /// The factors of embeddings and logits.
    factors: Factors,
    /// Whether forerun's trainer wrote the drafter.
    of_trainer: bool,
}

pub(super) fn is_dflash(tensors: &NamedTensors) -> bool {
    [Tensor::ContextNorm, Tensor::Fusion].iter().all(|tensor| tensors.has(&short_name(*tensor)))
}

impl Layout {
    /// Reads the options of `file`. Fails when an option is missing, invalid or not known, or
    /// contradicts a tensor.
    pub(super) fn read(
        options: &JsonOptions<'_>,
        file: &Path,
        tensors: &NamedTensors,
        target: &Config,
    ) -> Result<Self, LoadError> {
        let layer_options = options.object(LAYER_CONFIG)?;
        let algorithm = Algorithm::of(options, tensors);
        let writer = match algorithm {
            _ if layer_options.is_some() || options.contains(dspark::TYPE) => Writer::Speculators,
            Algorithm::DSpark => Writer::DeepSpec,
            Algorithm::DFlash | Algorithm::DFlash2 => Writer::ZLab,
        };
        check_names(options, writer, algorithm)?;
        let nested = options.object(NESTED)?;
        if let Some(nested) = &nested {
            nested.reject_unknown(OWNER, |name| match algorithm {
                Algorithm::DFlash2 if name == CAUSAL_HEAD => false,
                Algorithm::DFlash2 if dflash2::OPTIONS.contains(&name) => true,
                _ => NESTED_OPTIONS.contains(&name),
            })?;
        }
        check_class(options, writer, algorithm)?;
        if writer == Writer::Speculators {
            check_speculators(options, algorithm)?;
            if layer_options.is_none() {
                return Err(options.missing(LAYER_CONFIG, "the options of the drafter's layers"));
            }
        }
        let layer_options = layer_options.as_ref().unwrap_or(options);
        let logit_cap = logit_cap(holder(layer_options, nested.as_ref(), LOGIT_CAP)?)?;
        let config = layers(layer_options, logit_cap, writer == Writer::Speculators, file)?;
        check_sizes(options, tensors, &config, target)?;
        let nested = nested.as_ref();
        if let Some(nested) = nested {
            check_size(nested, TARGET_HIDDEN_SIZE, (config.hidden_size, HIDDEN_SIZE))?;
        }
        let target_layers = target.num_hidden_layers;
        let feature_layers = match (writer, nested) {
            (Writer::Speculators, _) => {
                feature_layers(options, (FEATURE_LAYERS, 0), target_layers)?
            }
            (Writer::DeepSpec, _) => dspark::feature_layers(options, target_layers)?,
            (Writer::ZLab, Some(nested)) => {
                feature_layers(nested, (TARGET_LAYERS, 1), target_layers)?
            }
            (Writer::ZLab, None) => return Err(options.missing(NESTED, "DFlash's options")),
        };
        let block = block(options, nested, config.vocab_size)?;
        let predicts_after = match (writer, algorithm) {
            (Writer::ZLab, _) => false,
            (Writer::DeepSpec, _) => true,
            (Writer::Speculators, Algorithm::DSpark) => {
                dspark::predicts_after(options, block.size)?
            }
            (Writer::Speculators, _) => options.flag("sample_from_anchor")?.unwrap_or_default(),
        };
        let causal = match writer {
            Writer::Speculators => {
                let flag = options.flag("sliding_window_non_causal")?;
                flag.unwrap_or(algorithm == Algorithm::DFlash2).then_some(false)
            }
            Writer::DeepSpec => Some(false),
            Writer::ZLab => causal(options, nested)?,
        };
        let (heads, additions) = match algorithm {
            Algorithm::DFlash2 => {
                let additions = Additions::read(options, nested, &config, block.size)?;
                (Heads { markov: None, confidence: None }, Some(additions))
            }
            _ => (dspark::heads(options, tensors, &config)?, None),
        };
        let factors = factors(options, nested)?;
        let layers = config.architecture().layers;
        let slides = |layer: &Layer| layer.attention.as_ref().is_some_and(|a| a.window.is_some());
        let causal_block = causal.unwrap_or_else(|| layers.iter().all(slides));
        let block = DraftBlock { predicts_after, causal: causal_block, ..block };
        let of_trainer = options.contains(OF_TRAINER);
        let layout =
            Self { config, feature_layers, block, causal, heads, additions, factors, of_trainer };
        layout.check_windows(layer_options, writer)?;
        Ok(layout)
    }

    /// Returns the features that the drafter reads.
    pub(super) fn features(&self) -> FeatureSource {
        FeatureSource::Layers(self.feature_layers.clone())
    }

    pub(super) fn block_heads(&self, layers: &Architecture) -> Option<BlockHeads> {
        let Heads { markov, confidence } = self.heads;
        let selector = self.additions.map(|additions| additions.selector);
        let any = markov.is_some() || confidence.is_some() || selector.is_some();
        any.then(|| BlockHeads { markov, confidence, selector, ..BlockHeads::none(layers) })
    }

    /// Refuses windows that would end within a block: rows do not see what is beyond a window on
    /// either side. DSpark's authors have no windows.
    fn check_windows(&self, options: &JsonOptions<'_>, writer: Writer) -> Result<(), LoadError> {
        let has_causal_head =
            options.object(NESTED)?.is_some_and(|nested| nested.contains(CAUSAL_HEAD));
        let layers = self.config.architecture().layers;
        let windows = layers.iter().filter_map(|layer| layer.attention.as_ref()?.window);
        match windows.min() {
            Some(window) if writer == Writer::DeepSpec => {
                Err(options.invalid("sliding_window", &window, "null: all layers are full"))
            }
            Some(window) if has_causal_head => {
                let expected = "null: implementations of JetSpec disagree about windows";
                Err(options.invalid("sliding_window", &window, expected))
            }
            Some(window) if self.causal == Some(false) && window < self.block.size => {
                let expected = format!(
                    "at most {window}, because layers that are not causal have a window of that size"
                );
                Err(options.invalid("block_size", &self.block.size, &expected))
            }
            _ => Ok(()),
        }
    }
}

/// Reads the configuration of the layers, which are those of Qwen3. The library speculators has
/// these layers whatever `model_type` says, and writes the target's.
fn layers(
    options: &JsonOptions<'_>,
    logit_cap: Option<f32>,
    is_speculators: bool,
    file: &Path,
) -> Result<Config, LoadError> {
    const TYPE: &str = "model_type";
    let is_known = |value: &Value| value == "qwen3" || is_speculators && value == "llama";
    options.check_supported(TYPE, "\"qwen3\"", is_known)?;
    // `architectures` names a drafter's class, not a model's, and a model is always causal. A Qwen3
    // has no cap.
    let mut text = options.with(TYPE, "qwen3");
    for option in ["architectures", "is_causal", LOGIT_CAP] {
        text = JsonOptions::parse(&text, file)?.without(option);
    }
    Ok(Config { final_logit_softcapping: logit_cap, ..Config::parse(&text, file)? })
}

fn logit_cap(options: &JsonOptions<'_>) -> Result<Option<f32>, LoadError> {
    match options.number(LOGIT_CAP)? {
        Some(cap) if !(cap.is_finite() && cap >= 0.0) => {
            Err(options.invalid(LOGIT_CAP, &cap, "a positive number, or 0 for no limit"))
        }
        cap => Ok(cap.filter(|cap| *cap > 0.0)),
    }
}

/// Returns the factors of embeddings and logits.
fn factors(
    options: &JsonOptions<'_>,
    nested: Option<&JsonOptions<'_>>,
) -> Result<Factors, LoadError> {
    let factor = |option| {
        let options = holder(options, nested, option)?;
        let factor = options.number(option)?.unwrap_or(1.0);
        match factor > 0.0 && factor.is_finite() && factor.recip().is_finite() {
            true => Ok(factor),
            false => Err(options.invalid(option, &factor, "a positive number that is not tiny")),
        }
    };
    let (embedding, logit) = (factor(EMBEDDING_FACTOR)?, factor(LOGIT_FACTOR)?);
    Ok(Factors { embedding, logit_divisor: logit.recip(), ..Factors::ONE })
}

/// Returns the options that hold an option: those in `dflash_config` if it is there. Fails when
/// both have the option, with different values. The authors' code takes that in `dflash_config`,
/// even a null.
pub(super) fn holder<'o, 'f>(
    options: &'o JsonOptions<'f>,
    nested: Option<&'o JsonOptions<'f>>,
    option: &'static str,
) -> Result<&'o JsonOptions<'f>, LoadError> {
    let Some(nested) = nested.filter(|nested| nested.contains(option)) else { return Ok(options) };
    if options.get(option).is_some_and(|outer| nested.get(option) != Some(outer)) {
        let expected = format!("{}, as in \"{NESTED}\"", nested.displayed(option));
        return Err(options.invalid(option, &options.displayed(option), &expected));
    }
    Ok(nested)
}

/// Rejects options that are not known.
fn check_names(
    options: &JsonOptions<'_>,
    writer: Writer,
    algorithm: Algorithm,
) -> Result<(), LoadError> {
    let of_layers = |name: &str| LAYER_OPTIONS.contains(&name) || unread::knows(name);
    options.reject_unknown(OWNER, |name| {
        let of_layout = match writer {
            Writer::Speculators => {
                SPECULATORS_OPTIONS.contains(&name)
                    || OWN_SPECULATORS_OPTIONS.contains(&name)
                    || NEUTRAL_SPECULATORS_OPTIONS.contains(&name)
            }
            Writer::DeepSpec => of_layers(name) || dspark::OPTIONS.contains(&name),
            Writer::ZLab => of_layers(name) || OPTIONS.contains(&name),
        };
        let of_algorithm = match algorithm {
            Algorithm::DFlash => false,
            Algorithm::DFlash2 => dflash2::OPTIONS.contains(&name),
            Algorithm::DSpark => dspark::HEAD_OPTIONS.contains(&name),
        };
        of_layout || of_algorithm || NEUTRAL.contains(&name)
    })
}

/// Rejects drafters of another class.
fn check_class(
    options: &JsonOptions<'_>,
    writer: Writer,
    algorithm: Algorithm,
) -> Result<(), LoadError> {
    let (known, supported): (&[&str], _) = match algorithm {
        Algorithm::DFlash => (
            &["DFlashDraftModel", "DFlashSpeculator"],
            "[\"DFlashDraftModel\"] or [\"DFlashSpeculator\"]",
        ),
        Algorithm::DFlash2 => (&["DFlash2DraftModel"], "[\"DFlash2DraftModel\"]"),
        Algorithm::DSpark => return dspark::check_class(options, writer == Writer::DeepSpec),
    };
    let classes = |value: &Value| {
        value
            .as_array()
            .is_some_and(|all| all.iter().all(|name| known.iter().any(|known| name == known)))
    };
    options.check_supported("architectures", supported, classes)
}

/// Rejects speculators of another algorithm, and what is not computed.
fn check_speculators(options: &JsonOptions<'_>, algorithm: Algorithm) -> Result<(), LoadError> {
    if algorithm == Algorithm::DFlash2 {
        // Its training has no other meaning of rows.
        options.check_supported("sample_from_anchor", "false", |value| value == false)?;
    }
    let (algorithm, supported) = match algorithm {
        Algorithm::DFlash => ("dflash", "\"dflash\""),
        Algorithm::DFlash2 => ("dflash2", "\"dflash2\""),
        Algorithm::DSpark => ("dspark", "\"dspark\""),
    };
    let is_supported = |value: &Value| value == algorithm;
    options.check_supported(dspark::TYPE, supported, is_supported)?;
    options.check_supported("projector_type", "\"dflash\"", |value| value == "dflash")?;
    options.check_supported("shift_label", "false", |value| value == false)?;
    let inner = options.object("speculators_config")?;
    inner.map_or(Ok(()), |inner| inner.check_supported("algorithm", supported, is_supported))
}

/// Checks sizes that the options repeat.
fn check_sizes(
    options: &JsonOptions<'_>,
    tensors: &NamedTensors,
    config: &Config,
    target: &Config,
) -> Result<(), LoadError> {
    check_draft_vocabulary(options, tensors, config.vocab_size)?;
    check_size(options, TARGET_HIDDEN_SIZE, (config.hidden_size, HIDDEN_SIZE))?;
    let layers = (target.num_hidden_layers, "the number of the target's layers");
    check_size(options, "num_target_layers", layers)
}

const HIDDEN_SIZE: &str = "the drafter's hidden size";

/// Checks a size that is known, and says what it is.
fn check_size(
    options: &JsonOptions<'_>,
    option: &'static str,
    (expected, what): (usize, &str),
) -> Result<(), LoadError> {
    match options.size(option)? {
        Some(found) if found != expected => {
            Err(options.invalid(option, &found, &format!("{expected}, {what}")))
        }
        _ => Ok(()),
    }
}

/// Returns the features, as numbers of the target's layers before them: each id plus `offset`.
fn feature_layers(
    options: &JsonOptions<'_>,
    (option, offset): (&'static str, usize),
    target_layers: usize,
) -> Result<Vec<usize>, LoadError> {
    let ids = options.sizes(option)?.filter(|ids| !ids.is_empty());
    let ids = ids.ok_or_else(|| options.missing(option, "a list of layers of the target"))?;
    let layers: Vec<usize> = ids.iter().map(|id| id.saturating_add(offset)).collect();
    match layers.iter().any(|&layer| layer > target_layers) {
        true => {
            let largest = target_layers.saturating_sub(offset);
            let expected =
                format!("numbers up to {largest}: the target has {target_layers} layers");
            Err(options.invalid(option, &options.displayed(option), &expected))
        }
        false => Ok(layers),
    }
}

/// Returns the block. Its options may be among the others or in `dflash_config`.
fn block(
    options: &JsonOptions<'_>,
    nested: Option<&JsonOptions<'_>>,
    vocab_size: usize,
) -> Result<DraftBlock, LoadError> {
    let of = |option| holder(options, nested, option);
    let size = of("block_size")?.size("block_size")?;
    let size =
        size.ok_or_else(|| options.missing("block_size", "the number of rows of a block"))?;
    if !(2..=MAX_BLOCK).contains(&size) {
        let expected = format!("a number from 2 to {MAX_BLOCK}");
        return Err(options.invalid("block_size", &size, &expected));
    }
    let mask = of("mask_token_id")?.token_id("mask_token_id")?;
    let mask = mask.ok_or_else(|| options.missing("mask_token_id", "the id of the mask token"))?;
    if mask as usize >= vocab_size {
        let expected = format!("a token id below {vocab_size}, the size of the vocabulary");
        return Err(options.invalid("mask_token_id", &mask, &expected));
    }
    Ok(DraftBlock { mask, size, predicts_after: false, causal: false })
}

/// The largest block that is accepted. Published blocks have 8 to 32 rows.
const MAX_BLOCK: usize = 1024;

/// Returns whether all layers are causal, or none, in the layout of z-lab and of JetSpec.
fn causal(
    options: &JsonOptions<'_>,
    nested: Option<&JsonOptions<'_>>,
) -> Result<Option<bool>, LoadError> {
    let flag = |name| nested.map_or(Ok(None), |nested| nested.flag(name));
    let of_nested = match (flag("causal")?, flag(CAUSAL_HEAD)?) {
        (Some(causal), Some(head)) if causal != head => {
            let expected = format!("{causal}, as \"causal\"");
            return Err(options.invalid(CAUSAL_HEAD, &head, &expected));
        }
        (causal, head) => causal.or(head),
    };
    match (options.flag("is_causal")?, of_nested) {
        (Some(flag), Some(nested)) if flag != nested => {
            let expected = format!("{nested}, as \"causal\" in \"{NESTED}\"");
            Err(options.invalid("is_causal", &flag, &expected))
        }
        (flag, nested) => Ok(flag.or(nested)),
    }
}

impl Speculator {
    /// Returns the layers, with the drafter's own head or the target's.
    pub(super) fn dflash(&self, layout: &Layout) -> Result<Architecture, LoadError> {
        let model = layout.config.architecture();
        let mut layers = model.layers.clone();
        for layer in &mut layers {
            layer.block_conv = layout.additions.map(|additions| additions.conv);
            if let Some(attention) = &mut layer.attention {
                attention.sees_block = !layout.causal.unwrap_or(attention.window.is_some());
            }
        }
        let (head, head_tokens) = match self.head(layout.config.vocab_size)? {
            // A part of the target's head.
            (Head::Target, _) if layout.of_trainer => {
                (Head::Target, self.head_tokens(layout.config.vocab_size)?)
            }
            other => other,
        };
        // Nobody else has `d2t` without a head, so it may mean something else there. DFlash 2 has
        // all tokens.
        let knows_tokens = match layout.additions {
            Some(_) => false,
            None => head == Head::Own || layout.of_trainer,
        };
        let width = layout.features().width(layout.config.hidden_size);
        let architecture = Architecture {
            input: Input::Block { width },
            shares_embedding: true,
            layers,
            final_norm: true,
            head,
            head_tokens,
            factors: layout.factors,
            ..model
        };
        let heads = layout.block_heads(&architecture);
        let of_heads = heads.iter().flat_map(BlockHeads::tensors);
        let names: Vec<String> = architecture.tensors().chain(of_heads).map(short_name).collect();
        let is_known = |name: &str| {
            names.iter().any(|known| known == name)
                || name == DRAFT_TO_TARGET && knows_tokens
                || UNREAD_TENSORS.contains(&name)
        };
        self.tensors.reject_unknown("this block drafter", is_known)?;
        Ok(architecture)
    }
}
