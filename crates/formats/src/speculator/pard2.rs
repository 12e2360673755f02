//! The storage layout of PARD-2: a whole model, a mask token, and a projection of the target's
//! features.
//!
//! *PARD-2: Target-Aligned Parallel Draft Model for Dual-Mode Speculative Decoding*, An et al.
//! 2026, arXiv 2605.08632. A row of the token at position `p` reads
//! `embedding + scale · projection(feature[p - 1])`; there is no feature before the first token,
//! and zeros stand for it. The rows of masks read the last feature that is known. The model itself
//! is a PARD drafter, so the layers, the embedding and the head are its own.
//!
//! The authors' code (AMD-AGI/PARD, `pard2_infer.py` and `pard2_train.py`) reads these options, the
//! first one that is present:
//!
//! | option | meaning |
//! |---|---|
//! | `pard2`, or `spd_type: pard2` | the drafter is one of PARD-2; `spd_type: pard` alone is PARD |
//! | `pard2_target_layers` | the features: indices of transformers' `hidden_states`, which are negative from the end |
//! | `pard2_scale`, `pard_scale`, `feat_scale` | the factor of the projection, 0.02 by default |
//! | `pard2_target_dim`, `pard_target_dim` | the width of a feature |
//! | `pard2_proj_bias`, `proj_bias` | whether the projection has a bias; none by default |
//!
//! The last of `hidden_states` is the one after the target's final norm, the others are not normed.
//!
//! The projection is `target_proj` in `warp_model.bin`, which PyTorch has pickled. Pickles are not
//! read: the projection must be converted to `warp_model.safetensors`.

use super::{Layout as SpeculatorLayout, Speculator, SpeculatorKind};
use crate::architecture::{Architecture, FeatureSource, Input, Norm};
use crate::checkpoint::{Checkpoint, LoadError, NamedTensors, Tensor, pickle, read_text};
use crate::json_options::JsonOptions;
use forerun_core::TokenId;
use std::path::Path;

pub(super) const MASK: &str = "pard_token";

const FLAG: &str = "pard2";
const TYPE: &str = "spd_type";

const TYPES: [&str; 2] = ["pard", "pard2"];

const LAYERS: &str = "pard2_target_layers";
const SCALES: [&str; 3] = ["pard2_scale", "pard_scale", "feat_scale"];
const WIDTHS: [&str; 2] = ["pard2_target_dim", "pard_target_dim"];
const BIASES: [&str; 2] = ["pard2_proj_bias", "proj_bias"];

/// The factor of the projection if no option has it.
const DEFAULT_SCALE: f32 = 0.02;

const WEIGHT: &str = "target_proj.weight";
const BIAS: &str = "target_proj.bias";

/// The file of PARD-2's projection, and the same file as PyTorch stores it.
pub const PROJECTION_FILES: [&str; 2] = [FILE, "warp_model.bin"];

const FILE: &str = "warp_model.safetensors";

/// What is stored for PARD-2, and what the options say.
pub(super) struct Layout {
    /// The model without the projection.
    pub(super) model: Checkpoint,
    /// The features: the residual stream after each of these numbers of the target's layers.
    feature_layers: Vec<usize>,
    input: Input,
}

impl Layout {
    /// Returns the features that the drafter reads.
    pub(super) fn features(&self) -> FeatureSource {
        FeatureSource::Layers(self.feature_layers.clone())
    }

    /// Returns what the drafter computes.
    pub(super) fn architecture(&self) -> Architecture {
        Architecture { input: self.input, ..self.model.architecture().clone() }
    }
}

/// Returns whether the options of a PARD model are those of PARD-2. Fails when an option has the
/// wrong type, or names another drafter.
pub(super) fn is_pard2(options: &JsonOptions<'_>) -> Result<bool, LoadError> {
    let is_known = |value: &serde_json::Value| TYPES.iter().any(|known| value == known);
    options.check_supported(TYPE, "\"pard\" or \"pard2\"", is_known)?;
    let has_type = options.string(TYPE)?.is_some_and(|value| value == TYPES[1]);
    Ok(options.flag(FLAG)?.unwrap_or_default() || has_type)
}

/// Returns the name of a tensor of the projection; `None` for those of the model.
pub(super) fn name(tensor: Tensor) -> Option<&'static str> {
    match tensor {
        Tensor::Fusion => Some(WEIGHT),
        Tensor::FusionBias => Some(BIAS),
        _ => None,
    }
}

impl Speculator {
    pub(super) fn open_pard2(
        directory: &Path,
        kind: SpeculatorKind,
        mask: TokenId,
        target: &Checkpoint,
    ) -> Result<Self, LoadError> {
        let file = directory.join("config.json");
        let text = read_text(&file)?;
        let options = JsonOptions::parse(&text, &file)?;
        check_names(&options)?;
        let model = Checkpoint::open(directory)?;
        let tensors = projection(directory)?;
        check_model(&options, &model, mask)?;
        let layers = model.architecture();
        let states = states(&options, target.config().num_hidden_layers)?;
        let last = target.config().num_hidden_layers;
        let last_states = states.iter().filter(|&&state| state == last).count();
        let final_norm = match (last_states, states[0] == last) {
            (0, _) => None,
            (1, true) => Some(final_norm(&options, layers, target)?),
            _ => {
                let expected = "the last hidden state only in the first place";
                return Err(options.invalid(LAYERS, &options.displayed(LAYERS), expected));
            }
        };
        let width = states.len() * target.config().hidden_size;
        check_projection(&options, &tensors, [layers.hidden_size, width])?;
        let scale = first(&SCALES, |name| options.number(name))?.map_or(DEFAULT_SCALE, |(_, x)| x);
        if !scale.is_finite() {
            return Err(options.invalid(SCALES[0], &scale, "a finite number"));
        }
        let input = Input::EmbeddingPlusFeature { width, scale, final_norm };
        let layout = Layout { model, feature_layers: states, input };
        let speculator = Self {
            path: directory.to_owned(),
            kind,
            tensors,
            layout: SpeculatorLayout::Pard2(Box::new(layout)),
            target: target.config().clone(),
        };
        speculator.check_target(target, None)?;
        Ok(speculator)
    }
}

/// Rejects options of PARD that are not known. Those of the model are checked with it.
fn check_names(options: &JsonOptions<'_>) -> Result<(), LoadError> {
    options.reject_unknown("a PARD-2 drafter", |name| {
        let known = [FLAG, TYPE, LAYERS, MASK, "pard2_ml"];
        let named = known.iter().chain(&SCALES).chain(&WIDTHS).chain(&BIASES);
        let is_of_pard = name.starts_with("pard") || name.starts_with("spd");
        !is_of_pard || named.into_iter().any(|known| *known == name)
    })
}

fn projection(directory: &Path) -> Result<NamedTensors, LoadError> {
    let [file, pickled] = PROJECTION_FILES.map(|name| directory.join(name));
    match (file.exists(), pickled.exists()) {
        (false, true) => Err(pickle::pickle_error(pickled)),
        (false, false) => {
            let hint = "it has the projection of the target's features; convert `warp_model.bin`, or, to draft from \
                        tokens alone, remove `pard2` and `spd_type` from config.json";
            Err(LoadError::MissingFile { path: file, hint })
        }
        (true, _) => {
            let tensors = NamedTensors::of_files(vec![file])?;
            tensors.reject_unknown("PARD-2's projection", |name| [WEIGHT, BIAS].contains(&name))?;
            Ok(tensors)
        }
    }
}

/// Rejects models whose first layer reads more than the embedding, or which have states instead of
/// a cache.
fn check_model(
    options: &JsonOptions<'_>,
    model: &Checkpoint,
    mask: TokenId,
) -> Result<(), LoadError> {
    let layers = model.architecture();
    if mask as usize >= layers.vocab_size {
        let expected = format!("a token of the drafter's {}", layers.vocab_size);
        return Err(options.invalid(MASK, &mask, &expected));
    }
    let is_plain = layers.positions.is_none()
        && layers.own_input().is_none()
        && layers.factors.embedding == 1.0
        && layers.state_bytes() == 0;
    match is_plain {
        true => Ok(()),
        false => {
            let supported = "a model whose first layer reads the embedding as it is, such as a Llama or a Qwen3";
            Err(options.unsupported("model_type", supported))
        }
    }
}

/// Returns the numbers of the target's layers before the features.
fn states(options: &JsonOptions<'_>, layers: usize) -> Result<Vec<usize>, LoadError> {
    let expected = format!("whole numbers from -{} to {layers}", layers + 1);
    let invalid = || options.invalid(LAYERS, &options.displayed(LAYERS), &expected);
    let count = i64::try_from(layers).map_err(|_| invalid())? + 1;
    let values = options.get(LAYERS);
    let values = values.ok_or_else(|| options.missing(LAYERS, "a list of hidden states"))?;
    let state = |value: &serde_json::Value| {
        let index = value.as_i64().filter(|index| (-count..count).contains(index))?;
        usize::try_from(if index < 0 { index + count } else { index }).ok()
    };
    let states: Option<Vec<usize>> =
        values.as_array().and_then(|values| values.iter().map(state).collect());
    states.filter(|states| !states.is_empty()).ok_or_else(invalid)
}

/// Returns the epsilon of the target's final norm.
fn final_norm(
    options: &JsonOptions<'_>,
    layers: &Architecture,
    target: &Checkpoint,
) -> Result<f32, LoadError> {
    let of_target = target.architecture();
    let norms = [of_target.norm, layers.norm];
    match of_target.final_norm && norms == [Norm::Rms; 2] {
        true => Ok(of_target.norm_epsilon),
        false => {
            let supported =
                "states before the last one, because the final norm of the target is no RMS norm";
            Err(options.unsupported(LAYERS, supported))
        }
    }
}

/// Checks the shape of the projection, and the options that repeat it.
fn check_projection(
    options: &JsonOptions<'_>,
    tensors: &NamedTensors,
    shape: [usize; 2],
) -> Result<(), LoadError> {
    if let Some((name, found)) = first(&WIDTHS, |name| options.size(name))?
        && found != shape[1]
    {
        let expected = format!("{}, the hidden sizes of the target's states together", shape[1]);
        return Err(options.invalid(name, &found, &expected));
    }
    let has_bias = tensors.has(BIAS);
    match first(&BIASES, |name| options.flag(name))? {
        Some((name, found)) if found != has_bias => {
            let expected = format!("{has_bias}, as `{BIAS}` in {FILE} says");
            return Err(options.invalid(name, &found, &expected));
        }
        None if has_bias => {
            let expected = "true, because the projection is stored with a bias";
            return Err(options.missing(BIASES[0], expected));
        }
        _ => {}
    }
    let hint = "the file is incomplete, or belongs to another drafter";
    tensors.rows(WEIGHT, &shape, hint)?;
    Ok(())
}

/// Returns the first of some options that is present, with its name.
fn first<T>(
    names: &[&'static str],
    read: impl Fn(&'static str) -> Result<Option<T>, LoadError>,
) -> Result<Option<(&'static str, T)>, LoadError> {
    for &name in names {
        if let Some(value) = read(name)? {
            return Ok(Some((name, value)));
        }
    }
    Ok(None)
}
