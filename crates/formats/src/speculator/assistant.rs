//! The storage layout of Gemma 4's assistants: `google/gemma-4-*-it-assistant`, and transformers'
//! `Gemma4AssistantForCausalLM`.
//!
//! The layers are those of a Gemma 4 without keys and values: they attend to the keys and values of
//! the target's last layer of their kind, with a window or without, that has some of its own.
//! `pre_projection` reads `cat(embedding, hidden)` of the target: the embedding of the last token
//! times the target's factor, and the last hidden state after the final norm. `post_projection` of
//! the normed output stands for the hidden state in the next row. The embedding of the assistant is
//! its head. As transformers' does, it drafts all tokens at the position of the last one.
//!
//! In llama.cpp's GGUF files (`gemma4-assistant`), `nextn.pre_projection` and
//! `nextn.post_projection` are the projections, and the other names are those of a Gemma 4.
//!
//! `masked_embedding` has centroids of the tokens' embeddings. With them, transformers computes the
//! logits of some tokens and gives all others the same. forerun computes all logits, as llama.cpp.

use super::eagle3::options::NEUTRAL;
use super::{Layout as SpeculatorLayout, Speculator, SpeculatorKind};
use crate::architecture::{
    Architecture, Attention, Factors, FeatureSource, Head, Input, Layer, MlpInput, Rope,
};
use crate::checkpoint::{
    Checkpoint, LoadError, NamedTensors, StoredAs, Tensor, TensorRows, TensorSource,
};
use crate::config::{Config, Family};
use crate::json_options::JsonOptions;
use crate::weight_type::WeightType;
use serde_json::Value;
use std::path::Path;

/// What options that have to fit the target must have.
const TARGET: &str = "that of its target";

const OWNER: &str = "an assistant of Gemma 4";
const PRE_PROJECTION: &str = "pre_projection.weight";
const POST_PROJECTION: &str = "post_projection.weight";
const HEAD: &str = "lm_head.weight";

/// The tensors that are not read.
const CENTROIDS: &str = "masked_embedding.";

const TARGET_SIZE: &str = "backbone_hidden_size";
const TEXT: &str = "text_config";
const SHARED_LAYERS: &str = "num_kv_shared_layers";

/// The options next to those of the layers. Those of centroids and of tokens that stand for images
/// and sounds change nothing here.
const OPTIONS: &[&str] = &[
    TARGET_SIZE,
    TEXT,
    "audio_token_id",
    "boa_token_id",
    "boi_token_id",
    "centroid_intermediate_top_k",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "image_token_id",
    "num_centroids",
    "use_ordered_embeddings",
    "video_token_id",
];

/// What is stored for an assistant, next to its target.
pub(super) struct Layout {
    own: Own,
    target: Checkpoint,
    /// The target's layers whose keys and values are read.
    sources: Vec<usize>,
    architecture: Architecture,
}

/// Where an assistant's own tensors are.
enum Own {
    /// Among the drafter's tensors, under the names of a Gemma 4 with this configuration.
    Named(Box<Config>),
    /// In a GGUF file.
    Gguf(Box<Checkpoint>),
}

pub(super) fn is_assistant(tensors: &NamedTensors) -> bool {
    [PRE_PROJECTION, POST_PROJECTION].iter().all(|name| tensors.has(name))
}

impl Layout {
    /// Reads the options of `file`. Fails when an option is missing, invalid or not known, or does
    /// not fit the target or the tensors.
    pub(super) fn read(
        options: &JsonOptions<'_>,
        file: &Path,
        tensors: &NamedTensors,
        target: &Checkpoint,
    ) -> Result<Self, LoadError> {
        options.reject_unknown(OWNER, |name| OPTIONS.contains(&name) || NEUTRAL.contains(&name))?;
        let text = options.object(TEXT)?;
        let text = text.ok_or_else(|| options.missing(TEXT, "the options of its layers"))?;
        let size = options.required_size(TARGET_SIZE)?;
        let layers = text.required_size("num_hidden_layers")?;
        let all_share = |value: &Value| value == 0 || value == layers;
        text.check_supported(SHARED_LAYERS, "all layers", all_share)?;
        let config = Config::parse(&text.without(SHARED_LAYERS), file)?;
        if config.family != Family::Gemma4 {
            return Err(text.unsupported("model_type", "\"gemma4_text\""));
        }
        let alone =
            Architecture { shares_embedding: true, head: Head::Own, ..alone(&config, size) };
        let layout = Self::new(Own::Named(Box::new(config)), alone, target, file)?;
        layout.check_tensors(tensors)?;
        Ok(layout)
    }

    /// Reads a GGUF file.
    fn read_gguf(file: &Path, target: &Checkpoint) -> Result<Self, LoadError> {
        let own = Checkpoint::open_assistant(file)?;
        let alone = own.architecture().clone();
        let alone = Architecture { shares_embedding: true, head: Head::Own, ..alone };
        Self::new(Own::Gguf(Box::new(own)), alone, target, file)
    }

    fn new(
        own: Own,
        alone: Architecture,
        target: &Checkpoint,
        file: &Path,
    ) -> Result<Self, LoadError> {
        let of_target = target.config();
        let unsupported = |(option, found, supported)| LoadError::UnsupportedOption {
            file: file.to_owned(),
            option,
            found,
            supported,
        };
        if of_target.family != Family::Gemma4 {
            let family = of_target.family.to_string();
            return Err(unsupported((
                "model_type",
                format!("for a Gemma 4, not {family}"),
                TARGET,
            )));
        }
        let (sources, architecture) =
            on_target(alone, target.architecture()).map_err(unsupported)?;
        Ok(Self { own, target: Checkpoint::open(target.path())?, sources, architecture })
    }

    fn check_tensors(&self, tensors: &NamedTensors) -> Result<(), LoadError> {
        let names = self.architecture.tensors().map(|tensor| self.stored(tensors, tensor));
        let names: Vec<String> = names.flatten().map(|stored| stored.name).collect();
        tensors.reject_unknown("this assistant", |name| {
            names.iter().any(|known| known == name)
                || name.starts_with(CENTROIDS)
                || name == self.embedding()
        })
    }

    fn embedding(&self) -> String {
        Tensor::Embedding.to_string()
    }

    /// Returns what the drafter computes.
    pub(super) fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// Returns the features that the drafter reads: the inputs of the layers with the keys and
    /// values, and the last hidden state, before the final norm.
    pub(super) fn features(&self) -> FeatureSource {
        let last = self.target.config().num_hidden_layers;
        FeatureSource::Layers(self.sources.iter().copied().chain([last]).collect())
    }

    /// Returns the target's tensor that is a tensor of the drafter, if it is the target's.
    pub(super) fn of_target(&self, tensor: Tensor) -> Option<Tensor> {
        match tensor {
            Tensor::FeatureNorm => Some(Tensor::FinalNorm),
            Tensor::Layer(layer, part) => Some(Tensor::Layer(*self.sources.get(layer)?, part)),
            _ => None,
        }
    }

    /// Returns the same tensor of the assistant alone.
    fn alone(&self, tensor: Tensor) -> Tensor {
        match tensor {
            Tensor::Layer(layer, part) => Tensor::Layer(layer - self.sources.len(), part),
            other => other,
        }
    }

    /// Returns how a tensor is stored under a name, if it is not the target's.
    fn stored(&self, tensors: &NamedTensors, tensor: Tensor) -> Option<StoredAs> {
        let Own::Named(config) = &self.own else { return None };
        if self.of_target(tensor).is_some() {
            return None;
        }
        let mut stored = StoredAs::of(self.alone(tensor), config, &config.architecture());
        stored.name = match tensor {
            Tensor::Fusion => PRE_PROJECTION.to_owned(),
            Tensor::Prediction => POST_PROJECTION.to_owned(),
            Tensor::Head if !tensors.has(HEAD) => self.embedding(),
            _ => stored.name,
        };
        stored.shape = self.architecture.shape(tensor);
        Some(stored)
    }

    /// Returns the rows of a tensor, of the target or its own.
    pub(super) fn rows<'a>(
        &'a self,
        tensors: &'a NamedTensors,
        (tensor, shape): (Tensor, &[usize]),
        hint: &'static str,
    ) -> Result<TensorRows<'a>, LoadError> {
        match (self.of_target(tensor), &self.own, self.stored(tensors, tensor)) {
            (Some(of_target), ..) => self.target.rows(of_target),
            (None, Own::Gguf(own), _) => own.rows(self.alone(tensor)),
            (None, _, Some(stored)) => tensors.rows_of(&stored, shape, hint),
            (None, ..) => self.target.rows(tensor),
        }
    }

    /// Returns whether a tensor is stored, with the target or with it.
    pub(super) fn has(&self, tensors: &NamedTensors, tensor: Tensor) -> bool {
        match (self.of_target(tensor), &self.own) {
            (Some(_), _) => true,
            (None, Own::Gguf(own)) => own.has(self.alone(tensor)),
            (None, Own::Named(_)) => {
                self.stored(tensors, tensor).is_some_and(|stored| tensors.has(&stored.name))
            }
        }
    }

    /// Returns the smallest type of floats that loses nothing of the assistant's own matrices.
    pub(super) fn float_type(&self, tensors: &NamedTensors) -> Result<WeightType, LoadError> {
        match &self.own {
            Own::Gguf(own) => own.float_type(),
            Own::Named(_) => Ok(WeightType::lossless(tensors.matrix_dtypes(|_| true)?)),
        }
    }
}

/// Returns what an assistant for a target with this hidden size stores: its layers attend to keys
/// and values elsewhere.
pub(crate) fn alone(config: &Config, width: usize) -> Architecture {
    let mut own = config.architecture();
    let attentions = own.layers.iter_mut().filter_map(|layer| layer.attention.as_mut());
    attentions.for_each(|attention| attention.keys_of = Some(0));
    // transformers has no limit of logits.
    Architecture { input: Input::TargetKeys { width }, logit_cap: None, ..own }
}

/// An option of an assistant that does not fit its target, its value, and what fits.
type Misfit = (&'static str, String, &'static str);

/// Returns the target's layers with the keys and values that an assistant's layers attend to, and
/// what it computes: first the keys and values of these layers, and then its own layers.
fn on_target(
    alone: Architecture,
    target: &Architecture,
) -> Result<(Vec<usize>, Architecture), Misfit> {
    let width = alone.embedding_width();
    let sizes = [
        (TARGET_SIZE, width, target.hidden_size),
        ("vocab_size", alone.vocab_size, target.vocab_size),
    ];
    if let Some((option, found, _)) = sizes.into_iter().find(|(_, found, of)| found != of) {
        return Err((option, found.to_string(), TARGET));
    }
    if alone.norm_epsilon != target.norm_epsilon {
        return Err(("rms_norm_eps", alone.norm_epsilon.to_string(), TARGET));
    }
    if alone.own_input().is_some() {
        return Err(("hidden_size_per_layer_input", "not 0".to_owned(), "0"));
    }
    let mut sources: Vec<usize> = Vec::new();
    let mut layers = Vec::new();
    for mut layer in alone.layers.iter().cloned() {
        if layer.experts.is_some() {
            return Err(("enable_moe_block", "true".to_owned(), "false"));
        }
        let Some(attention) = &mut layer.attention else { continue };
        if attention.window == Some(1) {
            let supported = "at least 2, because rows do not see themselves";
            return Err(("sliding_window", "1".to_owned(), supported));
        }
        let source = source(target, attention);
        let Some((source, of_target)) = source else {
            let supported = "the kinds of the target's layers with keys and values";
            return Err(("layer_types", "another kind".to_owned(), supported));
        };
        let sizes = |attention: &Attention| (attention.n_kv_heads, attention.head_dim);
        if sizes(attention) != sizes(of_target) {
            let (heads, width) = sizes(attention);
            return Err(("num_key_value_heads", format!("{heads} (of {width})"), TARGET));
        }
        if !rotate_alike(attention.rope.as_ref(), of_target.rope.as_ref()) {
            return Err(("rope_parameters", "other values".to_owned(), TARGET));
        }
        let known = sources.iter().position(|known| *known == source);
        attention.keys_of = Some(known.unwrap_or(sources.len()));
        if known.is_none() {
            sources.push(source);
        }
        layers.push(layer);
    }
    let keys = sources.iter().map(|source| only_keys(&target.layers[*source]));
    let architecture = Architecture {
        context_length: alone.context_length.min(target.context_length),
        factors: Factors { embedding: target.factors.embedding, ..alone.factors },
        layers: keys.chain(layers).collect(),
        ..alone
    };
    Ok((sources, architecture))
}

/// Returns the target's last layer with keys and values of its own that has a window, or none, as
/// the attention has.
fn source<'a>(target: &'a Architecture, attention: &Attention) -> Option<(usize, &'a Attention)> {
    let layers = target.layers.iter().enumerate().rev();
    let mut attentions =
        layers.filter_map(|(index, layer)| Some((index, layer.attention.as_ref()?)));
    attentions.find(|(_, of_target)| {
        of_target.keys_of.is_none() && of_target.window.is_some() == attention.window.is_some()
    })
}

/// Returns whether two position embeddings are equal, even if their files describe them differently.
fn rotate_alike(one: Option<&Rope>, other: Option<&Rope>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return one == other };
    let has_same = |pair| one.frequency(pair) == other.frequency(pair);
    (one.dims, one.amplitude()) == (other.dims, other.amplitude())
        && (0..one.dims / 2).all(has_same)
}

/// Returns the part of a layer that computes keys and values.
fn only_keys(layer: &Layer) -> Layer {
    let attention = layer.attention.clone();
    Layer {
        attention: attention.map(|attention| Attention { n_heads: 0, ..attention }),
        attention_output_norm: false,
        mlp_input: MlpInput::Unnormed,
        mlp: None,
        experts: None,
        mlp_output_norm: false,
        own_input: None,
        scalar: false,
        ..layer.clone()
    }
}

impl Speculator {
    pub(super) fn open_assistant(
        directory: &Path,
        (options, file): (&JsonOptions<'_>, &Path),
        tensors: NamedTensors,
        target: &Checkpoint,
    ) -> Result<Self, LoadError> {
        let layout = Layout::read(options, file, &tensors, target)?;
        Ok(Self::of_assistant(directory, tensors, layout))
    }

    pub(super) fn open_gguf_assistant(file: &Path, target: &Checkpoint) -> Result<Self, LoadError> {
        let layout = Layout::read_gguf(file, target)?;
        Ok(Self::of_assistant(file, NamedTensors::of_files(Vec::new())?, layout))
    }

    fn of_assistant(path: &Path, tensors: NamedTensors, layout: Layout) -> Self {
        let (path, target) = (path.to_owned(), layout.target.config().clone());
        let layout = SpeculatorLayout::Assistant(Box::new(layout));
        Self { path, kind: SpeculatorKind::Assistant, tensors, layout, target }
    }
}
