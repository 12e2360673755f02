//! Random drafters for a given target, for tests: one for each supported layout.
//!
//! Their layer is the first layer of a target with the same seed and configuration
//! ([`super::random`]). Such a drafter is therefore often right if the target has only one layer,
//! or if its other layers add little.

mod eagle3_options;

pub use eagle3_options::Eagle3Options;

use super::random::{Normal, RandomDtype, RandomTensor, write_error};
use super::{SerializedTensor, StoredAs, write_safetensors};
use crate::architecture::{BlockConv, FeatureNorm, MarkovKind, QkNorms};
use crate::config::{Config, Family, SlidingLayers, SlidingWindow};
use crate::load_error::LoadError;
use crate::tensor::{LayerTensor, Tensor};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// The rank of random Markov heads and selectors.
const MARKOV_RANK: usize = 8;

/// The number of tokens that a random selector scores.
const CANDIDATES: usize = 5;

/// The convolutions of random drafters. The group size divides the hidden size of all targets.
const CONV: BlockConv = BlockConv { taps: 3, group_size: 4 };

/// The storage layout of a drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeculatorLayout {
    /// Medusa as its authors store it: each head has its own output matrix.
    Medusa,
    /// Medusa as vLLM stores it.
    VllmMedusa,
    /// Medusa with the target's head for all its heads, as forerun trains it.
    SharedHeadMedusa,
    /// Medusa as its authors store it, but each head has a matrix for every second token of the
    /// vocabulary.
    ReducedMedusa,
    /// Hydra, with heads that read drafted tokens.
    Hydra,
    /// Hydra++: tensor names for dropout, two layers per head, and a layer before all heads.
    HydraPlusPlus,
    /// Hydra with the target's head for all its heads, as forerun trains it.
    SharedHeadHydra,
    /// Hydra as forerun trains it, with the rows of the target's head for every second token of the
    /// vocabulary.
    ReducedHydra,
    /// EAGLE with its own embedding, as its authors store it.
    Eagle,
    /// EAGLE with the target's embedding, as forerun trains it.
    SharedEmbeddingEagle,
    /// EAGLE as forerun trains it, with the rows of the target's head for every second token of the
    /// vocabulary.
    ReducedEagle,
    /// EAGLE-3 in its authors' layout, with a head for every second token of the vocabulary.
    Eagle3,
    /// EAGLE-3 with options, and the same head.
    Eagle3With(Eagle3Options),
    /// P-EAGLE in the layout of speculators, with two layers and an own embedding.
    PEagle,
    /// DFlash in z-lab's layout: a layer with a sliding window, and one that sees the whole block.
    DFlash,
    /// JetSpec: DFlash with two layers that are causal.
    JetSpec,
    /// DFlash 2: layers as in [`Self::DFlash`], none of which is causal, with all factors and a cap
    /// of logits.
    DFlash2,
    /// DSpark with a Markov head of this kind: in its authors' layout if that is recurrent,
    /// otherwise in the layout of speculators, with [`Self::ReducedEagle`]'s head if it is gated.
    /// In the block of a vanilla one, the row of a mask predicts the token in its place.
    DSpark(MarkovKind),
    /// PARD-2: a whole model with a projection of the target's first and last hidden states.
    Pard2,
    /// An assistant of a Gemma 4, with as many layers as it.
    Assistant,
    /// ParallelSpec on tokens.
    ParallelMedusa,
    /// ParallelSpec on tokens, with the head of [`Self::ReducedEagle`].
    ReducedParallelMedusa,
    /// ParallelSpec on the target's features.
    ParallelEagle,
    /// ParallelSpec on the target's features, with the head of [`Self::ReducedEagle`].
    ReducedParallelEagle,
}

/// A random drafter for a target.
pub struct RandomSpeculator<'a> {
    /// The storage layout.
    pub layout: SpeculatorLayout,
    /// The target's configuration. The drafter has one layer of the same shape.
    pub target: &'a Config,
    /// The target's seed.
    pub seed: u64,
    /// The number of mask tokens or heads.
    pub positions: usize,
    /// The SHA-256 of the target's embedding, if the drafter's configuration contains it.
    pub target_embedding_sha256: Option<String>,
}

impl RandomSpeculator<'_> {
    /// Writes the drafter's `config.json` and tensors to a directory, which is created if
    /// necessary.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), LoadError> {
        fs::create_dir_all(dir).map_err(|cause| write_error(dir, cause))?;
        let file = dir.join("config.json");
        forerun_output::write(&file, format!("{:#}\n", self.config_json()))
            .map_err(|cause| write_error(&file, cause))?;
        let name = match self.layout {
            SpeculatorLayout::Medusa => "medusa_lm_head.safetensors",
            SpeculatorLayout::Hydra | SpeculatorLayout::HydraPlusPlus => {
                "hydra_lm_head.safetensors"
            }
            _ => "model.safetensors",
        };
        if self.layout == SpeculatorLayout::Pard2 {
            let file = dir.join("warp_model.safetensors");
            let shape = [self.hidden_size(), 2 * self.hidden_size()];
            let deviation = 0.3 / (self.hidden_size() as f32).sqrt();
            let (name, projection) = self.normal("target_proj.weight", shape, deviation);
            let projection = vec![(name, projection.serialized())];
            write_safetensors(&file, projection).map_err(|cause| write_error(&file, cause))?;
        }
        let file = dir.join(name);
        let mut tensors: Vec<(String, SerializedTensor)> =
            self.tensors().into_iter().map(|(name, tensor)| (name, tensor.serialized())).collect();
        use SpeculatorLayout as L;
        let is_eagle3 = matches!(self.layout, L::Eagle3 | L::Eagle3With(_) | L::PEagle);
        let is_reduced = matches!(
            self.layout,
            L::ReducedMedusa
                | L::ReducedHydra
                | L::ReducedEagle
                | L::ReducedParallelMedusa
                | L::ReducedParallelEagle
                | L::DSpark(MarkovKind::Gated)
        );
        if is_eagle3 || is_reduced {
            let offsets = (0..self.draft_vocab_size() as i64).flat_map(i64::to_le_bytes).collect();
            let (shape, dtype) = (vec![self.draft_vocab_size()], safetensors::Dtype::I64);
            tensors.push(("d2t".to_owned(), SerializedTensor { shape, dtype, bytes: offsets }));
        }
        if is_eagle3 {
            let in_head =
                (0..self.target.vocab_size).map(|token| u8::from(token % 2 == 0)).collect();
            let (shape, dtype) = (vec![self.target.vocab_size], safetensors::Dtype::BOOL);
            tensors.push(("t2d".to_owned(), SerializedTensor { shape, dtype, bytes: in_head }));
        }
        write_safetensors(&file, tensors).map_err(|cause| write_error(&file, cause))
    }

    /// Returns the number of tokens in a head that does not have all: the even ones.
    fn draft_vocab_size(&self) -> usize {
        self.target.vocab_size.div_ceil(2)
    }

    fn config(&self) -> Config {
        use SpeculatorLayout as L;
        if matches!(self.layout, L::DFlash | L::DFlash2 | L::JetSpec | L::DSpark(_)) {
            let layers = SlidingLayers::Listed(vec![true, false]);
            let full = [L::JetSpec, L::DSpark(MarkovKind::Recurrent)];
            let slides = !full.contains(&self.layout);
            return Config {
                family: Family::Qwen3,
                qk_norms: QkNorms::Heads,
                num_hidden_layers: 2,
                sliding_window: slides.then_some(SlidingWindow { size: 9, layers }),
                ..self.target.clone()
            };
        }
        if self.layout == L::Assistant {
            return Config {
                shared_keys: None,
                per_layer_input: None,
                experts: None,
                final_logit_softcapping: None,
                tie_word_embeddings: true,
                ..self.target.clone()
            };
        }
        let num_hidden_layers = match self.layout {
            SpeculatorLayout::Eagle3With(options) => options.layers,
            SpeculatorLayout::PEagle => 2,
            _ => 1,
        };
        Config { num_hidden_layers, sliding_window: None, ..self.target.clone() }
    }

    fn config_json(&self) -> Value {
        use SpeculatorLayout as L;
        let layer = self.config().to_json(RandomDtype::F32);
        let mut config = match self.layout {
            // The number of heads is wrong here, as in published configurations.
            L::Medusa | L::VllmMedusa => json!({"medusa_num_heads": 2, "medusa_num_layers": 1}),
            L::ReducedMedusa => json!({
                "medusa_num_heads": self.positions, "medusa_num_layers": 1,
                "draft_vocab_size": self.draft_vocab_size(),
            }),
            L::SharedHeadMedusa => json!({
                "speculator": "medusa", "version": "2",
                "medusa_num_heads": self.positions, "medusa_num_layers": 1,
            }),
            L::Hydra | L::HydraPlusPlus | L::SharedHeadHydra | L::ReducedHydra => json!({
                "hydra_num_heads": 4, "hydra_num_layers": 1, "grounded_heads": true,
                "hydra_head_arch": if self.layout == L::HydraPlusPlus { "prefix-mlp" } else { "mlp" },
                "hidden_state_offset": 0,
            }),
            L::Eagle | L::SharedEmbeddingEagle | L::ReducedEagle => layer,
            L::Eagle3 => {
                let mut config = layer;
                config["architectures"] = json!(["LlamaForCausalLMEagle3"]);
                config["draft_vocab_size"] = json!(self.draft_vocab_size());
                config
            }
            L::Eagle3With(options) => options.config(layer, self.target, self.draft_vocab_size()),
            L::PEagle => json!({
                "speculators_model_type": "peagle", "norm_before_residual": true,
                "mask_token_id": 0, "draft_vocab_size": self.draft_vocab_size(),
                "transformer_layer_config": layer,
            }),
            L::DFlash | L::JetSpec => {
                let mut config = layer;
                config["architectures"] = json!(["DFlashDraftModel"]);
                config["block_size"] = json!(self.positions + 1);
                let last = self.target.num_hidden_layers - 1;
                config["dflash_config"] =
                    json!({"mask_token_id": 0, "target_layer_ids": [0, last]});
                if self.layout == L::JetSpec {
                    config["dflash_config"]["causal_head"] = json!(true);
                }
                config
            }
            L::DFlash2 => self.dflash2_json(layer),
            L::DSpark(kind) => self.dspark_json(kind, layer),
            L::Pard2 => {
                let mut config = layer;
                config["pard_token"] = json!(0);
                config["pard2"] = json!(true);
                config["pard2_scale"] = json!(0.5);
                config["pard2_target_layers"] = json!([-1, 0]);
                config
            }
            L::Assistant => {
                let mut text = layer;
                text["num_kv_shared_layers"] = json!(self.target.num_hidden_layers);
                json!({
                    "architectures": ["Gemma4AssistantForCausalLM"],
                    "model_type": "gemma4_assistant",
                    "backbone_hidden_size": self.hidden_size(), "text_config": text,
                })
            }
            L::ParallelMedusa
            | L::ReducedParallelMedusa
            | L::ParallelEagle
            | L::ReducedParallelEagle => {
                let mut config = layer;
                let medusa = matches!(self.layout, L::ParallelMedusa | L::ReducedParallelMedusa);
                let name = if medusa { "parallelspec-medusa" } else { "parallelspec-eagle" };
                config["speculator"] = json!(name);
                config["n_mask_tokens"] = json!(self.positions);
                config
            }
        };
        if let Some(hash) = &self.target_embedding_sha256 {
            config["target"] = json!("the random target");
            config["target_embedding_sha256"] = json!(hash);
        }
        config
    }

    fn dflash2_json(&self, layer: Value) -> Value {
        let mut config = layer;
        config["architectures"] = json!(["DFlash2DraftModel"]);
        config["is_causal"] = json!(false);
        config["dflash_config"] = json!({
            "block_size": self.positions + 1, "mask_token_id": 0,
            "target_layer_ids": [0, self.target.num_hidden_layers - 1],
            "conv_kernel_size": CONV.taps, "conv_group_size": CONV.group_size,
            "selector_rank": MARKOV_RANK, "selector_top_k": CANDIDATES,
            "input_embedding_scale": 1.5, "output_multiplier": 0.75, "final_logit_softcapping": 20.0,
        });
        config
    }

    fn dspark_json(&self, kind: MarkovKind, layer: Value) -> Value {
        let last = self.target.num_hidden_layers;
        let heads = json!({
            "markov_rank": MARKOV_RANK, "enable_confidence_head": true,
            "markov_head_type": match kind {
                MarkovKind::Vanilla => "vanilla",
                MarkovKind::Gated => "gated",
                MarkovKind::Recurrent => "rnn",
            },
            "confidence_head_with_markov": kind != MarkovKind::Gated, "mask_token_id": 0,
        });
        let mut config = match kind {
            MarkovKind::Recurrent => {
                let mut config = layer;
                config["architectures"] = json!(["Qwen3DSparkModel"]);
                config["block_size"] = json!(self.positions);
                config["target_layer_ids"] = json!([-1, last as i64 - 2]);
                config
            }
            MarkovKind::Vanilla | MarkovKind::Gated => {
                let anchored = kind == MarkovKind::Gated;
                let mut config = json!({
                    "speculators_model_type": "dspark", "sample_from_anchor": anchored,
                    "block_size": if anchored { self.positions } else { self.positions + 1 },
                    "aux_hidden_state_layer_ids": [1, last], "transformer_layer_config": layer,
                });
                if anchored {
                    config["draft_vocab_size"] = json!(self.draft_vocab_size());
                }
                config
            }
        };
        for (name, value) in heads.as_object().into_iter().flatten() {
            config[name] = value.clone();
        }
        config
    }

    fn tensors(&self) -> Vec<(String, FloatTensor)> {
        use SpeculatorLayout as L;
        let masks =
            || self.normal("mask_embeddings.weight", [self.positions, self.hidden_size()], 1.0);
        match self.layout {
            L::Medusa | L::VllmMedusa | L::SharedHeadMedusa | L::ReducedMedusa => {
                self.medusa_heads()
            }
            L::Hydra | L::SharedHeadHydra | L::ReducedHydra => self.hydra_heads(),
            L::HydraPlusPlus => [self.hydra_heads(), self.hydra_prefix_layer()].concat(),
            L::ParallelMedusa | L::ReducedParallelMedusa => {
                [self.layer(true), vec![masks()]].concat()
            }
            L::SharedEmbeddingEagle | L::ReducedEagle => {
                [self.layer(false), self.fusion()].concat()
            }
            L::Eagle => {
                let embedding = self.target_tensor(Tensor::Embedding);
                let embedding = ("embed_tokens.weight".to_owned(), embedding);
                [self.layer(false), self.fusion(), vec![embedding]].concat()
            }
            L::Eagle3 => self.eagle3_tensors("midlayer.", 3),
            L::PEagle => {
                let embedding = self.target_tensor(Tensor::Embedding);
                let width = 3 * self.hidden_size();
                let mut tensors = self.eagle3_tensors("layers.0.", 3);
                tensors.push(("embed_tokens.weight".to_owned(), embedding));
                tensors.push(self.normal("mask_hidden", [1, width], 0.5));
                tensors
            }
            L::Eagle3With(options) => {
                let prefix = if options.speculators { "layers.0." } else { "midlayer." };
                let parts = options.features(self.target).len();
                let mut tensors = self.eagle3_tensors(prefix, parts);
                let size = self.hidden_size();
                match options.feature_norm {
                    FeatureNorm::None => {}
                    FeatureNorm::Whole => {
                        tensors.push(self.norm("input_norm.weight", parts * size));
                    }
                    FeatureNorm::Parts(parts) => tensors.extend(
                        (0..parts).map(|part| self.norm(&format!("fc_norm.{part}.weight"), size)),
                    ),
                }
                tensors
            }
            L::Pard2 => {
                let architecture = self.config().architecture();
                let all = architecture.tensors();
                all.map(|tensor| (tensor.to_string(), self.target_tensor(tensor))).collect()
            }
            L::Assistant => self.assistant(),
            L::DFlash | L::JetSpec => self.block_layers(),
            L::DFlash2 => [self.block_layers(), self.convolutions(), self.selector()].concat(),
            L::DSpark(kind) => [self.block_layers(), self.block_heads(kind)].concat(),
            L::ParallelEagle | L::ReducedParallelEagle => {
                let shape = [self.positions, self.hidden_size()];
                let features = self.normal("mask_features.weight", shape, 0.5);
                [self.layer(false), self.fusion(), vec![masks(), features]].concat()
            }
        }
    }

    fn hidden_size(&self) -> usize {
        self.target.hidden_size
    }

    fn target_tensor(&self, tensor: Tensor) -> FloatTensor {
        let values = RandomTensor::of_model(&self.config(), self.seed, tensor).values();
        FloatTensor { shape: self.config().architecture().shape(tensor), values: values.collect() }
    }

    /// Returns the target's first layer under short names. With `norms`, this includes the layer's
    /// attention norm and the final norm.
    fn layer(&self, norms: bool) -> Vec<(String, FloatTensor)> {
        let is_included = |tensor: &Tensor, name: &str| match tensor {
            Tensor::Embedding | Tensor::Head => false,
            _ => norms || !matches!(name, "norm.weight" | "layers.0.input_layernorm.weight"),
        };
        let architecture = self.config().architecture();
        let all = architecture.tensors().map(|tensor| {
            let name = tensor.to_string();
            (tensor, name.strip_prefix("model.").map_or(name.clone(), str::to_owned))
        });
        let included = all.filter(|(tensor, name)| is_included(tensor, name));
        included.map(|(tensor, name)| (name, self.target_tensor(tensor))).collect()
    }

    /// Returns the target's layers without keys and values, its embedding as the head, and
    /// projections that mostly pass on the embedding and the hidden state.
    fn assistant(&self) -> Vec<(String, FloatTensor)> {
        use LayerTensor as T;
        let (config, size) = (self.config(), self.hidden_size());
        let architecture = config.architecture();
        let is_of_keys = |tensor: &Tensor| {
            let of_keys = [T::Key, T::Value, T::KeyNorm, T::KeyBias, T::ValueBias];
            matches!(tensor, Tensor::Layer(_, part) if of_keys.contains(part))
        };
        let own = architecture.tensors().filter(|tensor| !is_of_keys(tensor));
        let own = own.map(|tensor| {
            let name = StoredAs::of(tensor, &config, &architecture).name;
            (name, self.target_tensor(tensor))
        });
        let (_, fusion) = self.fusion().swap_remove(0);
        let (name, mut post) =
            self.normal("post_projection.weight", [size, size], 0.1 / (size as f32).sqrt());
        (0..size).for_each(|row| post.values[row * size + row] += 1.0);
        own.chain([("pre_projection.weight".to_owned(), fusion), (name, post)]).collect()
    }

    /// Returns a fusion layer that outputs the embedding, with a little of the feature.
    fn fusion(&self) -> Vec<(String, FloatTensor)> {
        let size = self.hidden_size();
        let (name, mut fusion) =
            self.normal("fc.weight", [size, 2 * size], 0.1 / (size as f32).sqrt());
        for row in 0..size {
            fusion.values[row * 2 * size + row] += 1.0;
        }
        let (bias_name, bias) = self.normal("fc.bias", [size, 1], 0.02);
        vec![(name, fusion), (bias_name, FloatTensor { shape: vec![size], ..bias })]
    }

    /// Returns the tensors of EAGLE-3 without options, for this prefix of the first layer's names
    /// and this number of hidden states in a feature.
    fn eagle3_tensors(&self, prefix: &str, parts: usize) -> Vec<(String, FloatTensor)> {
        let size = self.hidden_size();
        let wide_deviation = 1.0 / (2.0 * size as f32).sqrt();
        let layer = self.layer(true).into_iter().map(|(name, tensor)| {
            let wide = ["q_proj.weight", "k_proj.weight", "v_proj.weight"];
            let outputs = tensor.shape[0];
            let is_first = name.starts_with("layers.0.");
            match is_first && wide.iter().any(|suffix| name.ends_with(suffix)) {
                true => self.normal(&name, [outputs, 2 * size], wide_deviation),
                false => (name, tensor),
            }
        });
        let mut tensors: Vec<_> =
            layer.map(|(name, tensor)| (name.replace("layers.0.", prefix), tensor)).collect();
        let (_, norm) = self.norm("hidden_norm", size);
        tensors.push((format!("{prefix}hidden_norm.weight"), norm));
        tensors.push(self.normal("fc.weight", [size, parts * size], 0.5 / (size as f32).sqrt()));
        let head_deviation = 2.5 / (size as f32).sqrt();
        let head_shape = [self.draft_vocab_size(), size];
        tensors.push(self.normal("lm_head.weight", head_shape, head_deviation));
        tensors
    }

    fn block_layers(&self) -> Vec<(String, FloatTensor)> {
        let size = self.hidden_size();
        let fusion = self.normal("fc.weight", [size, 2 * size], 0.5 / (size as f32).sqrt());
        let context_norm = self.norm("hidden_norm.weight", size);
        [self.layer(true), vec![fusion, context_norm]].concat()
    }

    /// Returns convolutions that mostly keep a row as it is.
    fn convolutions(&self) -> Vec<(String, FloatTensor)> {
        let (size, deviation) = (self.hidden_size(), 0.3);
        let mut tensors = Vec::new();
        for layer in 0..self.config().num_hidden_layers {
            for part in ["attention_conv", "mlp_conv"] {
                let prefix = format!("layers.{layer}.{part}");
                let name = format!("{prefix}.base_kernel");
                let (name, mut base) = self.normal(&name, [2 * CONV.taps, size], deviation);
                for first in [0, CONV.taps * size] {
                    base.values[first..][..size].iter_mut().for_each(|value| *value += 1.0);
                }
                tensors.push((name, FloatTensor { shape: vec![2, CONV.taps, size], ..base }));
                let (name, shape) =
                    (format!("{prefix}.kernel_projection.weight"), [CONV.row_width(size), size]);
                tensors.push(self.normal(&name, shape, deviation / (size as f32).sqrt()));
            }
        }
        tensors
    }

    fn selector(&self) -> Vec<(String, FloatTensor)> {
        let (size, rank, vocab_size) = (self.hidden_size(), MARKOV_RANK, self.target.vocab_size);
        let (of_token, of_hidden) = (1.0 / (rank as f32).sqrt(), 1.0 / (size as f32).sqrt());
        let tensor = |name: &str, shape, deviation| {
            self.normal(&format!("candidate_selector.{name}"), shape, deviation)
        };
        vec![
            tensor("predecessor_codebook", [vocab_size, rank], 1.0),
            tensor("successor_codebook", [vocab_size, rank], of_token),
            tensor("hidden_projection.weight", [rank, size], of_hidden),
        ]
    }

    /// Returns heads that are mostly confident.
    fn block_heads(&self, kind: MarkovKind) -> Vec<(String, FloatTensor)> {
        let (size, rank) = (self.hidden_size(), MARKOV_RANK);
        let matrix = |name: &str, outputs, inputs: usize, scale: f32| {
            self.normal(name, [outputs, inputs], scale / (inputs as f32).sqrt())
        };
        let vector = |name: &str, size, mean: f32| {
            let (name, vector) = self.normal(name, [size, 1], 0.5);
            let values = vector.values.iter().map(|value| mean + value).collect();
            (name, FloatTensor { shape: vec![size], values })
        };
        let outputs = match kind {
            MarkovKind::Gated => self.draft_vocab_size(),
            MarkovKind::Vanilla | MarkovKind::Recurrent => self.target.vocab_size,
        };
        let of_kind = |name: &str, outputs, inputs| {
            let [weight, bias] =
                ["weight", "bias"].map(|part| format!("markov_head.{name}.{part}"));
            vec![matrix(&weight, outputs, inputs, 1.0), vector(&bias, outputs, 0.0)]
        };
        let (mixing, confidence_inputs) = match kind {
            MarkovKind::Vanilla => (Vec::new(), size + rank),
            MarkovKind::Gated => (of_kind("gate_proj", rank, size + rank), size),
            MarkovKind::Recurrent => {
                (of_kind("joint_proj", 3 * rank, 2 * rank + size), size + rank)
            }
        };
        let mut tensors = vec![
            self.normal("markov_head.markov_w1.weight", [self.target.vocab_size, rank], 1.0),
            matrix("markov_head.markov_w2.weight", outputs, rank, 1.0),
            matrix("confidence_head.proj.weight", 1, confidence_inputs, 0.5),
            vector("confidence_head.proj.bias", 1, 2.0),
        ];
        if kind == MarkovKind::Gated {
            tensors.push(matrix("lm_head.weight", outputs, size, 2.5));
        }
        [tensors, mixing].concat()
    }

    fn medusa_heads(&self) -> Vec<(String, FloatTensor)> {
        let (size, vllm) = (self.hidden_size(), self.layout == SpeculatorLayout::VllmMedusa);
        let deviation = 1.0 / (size as f32).sqrt();
        let head = |head: usize| {
            let [weight, bias] = ["weight", "bias"].map(|part| match vllm {
                false => format!("{head}.0.linear.{part}"),
                true => format!("blocks.{head}.layers.0.{part}"),
            });
            let mut tensors = vec![self.normal(&weight, [size, size], deviation)];
            if !vllm {
                let (name, bias) = self.normal(&bias, [size, 1], 0.5);
                tensors.push((name, FloatTensor { shape: vec![size], ..bias }));
            }
            if self.layout != SpeculatorLayout::SharedHeadMedusa {
                let name = if vllm {
                    format!("lm_heads.{head}.weight")
                } else {
                    format!("{head}.1.weight")
                };
                let outputs = match self.layout {
                    SpeculatorLayout::ReducedMedusa => self.draft_vocab_size(),
                    _ => self.target.vocab_size,
                };
                tensors.push(self.normal(&name, [outputs, size], 2.5 * deviation));
            }
            tensors
        };
        (0..self.positions).flat_map(head).collect()
    }

    /// Returns heads that output the last token's embedding, with a little of the other inputs.
    fn hydra_heads(&self) -> Vec<(String, FloatTensor)> {
        let (size, dropout) = (self.hidden_size(), self.layout == SpeculatorLayout::HydraPlusPlus);
        let vector = |name: &str, deviation: f32| {
            let (name, vector) = self.normal(name, [size, 1], deviation);
            (name, FloatTensor { shape: vec![size], ..vector })
        };
        let head = |head: usize| {
            let wide = (head + 2) * size;
            let deviation = 1.0 / (wide as f32).sqrt();
            let mut tensors = Vec::new();
            let layers = if dropout { 2 } else { 1 };
            for layer in 0..layers {
                let module = if dropout { 2 * layer + 1 } else { layer };
                let inputs = if layer == 0 { wide } else { size };
                let name = |part: &str| format!("hydra_mlp.{head}.{module}.{part}");
                tensors.push(self.normal(&name("linear.weight"), [size, inputs], deviation));
                tensors.push(vector(&name("linear.bias"), 0.3));
                if layer > 0 {
                    continue;
                }
                let residual = name("res_connection.weight");
                let (residual, mut weight) = self.normal(&residual, [size, wide], 0.1 * deviation);
                for row in 0..size {
                    weight.values[row * wide + wide - size + row] += 1.0;
                }
                tensors.push((residual, weight));
                tensors.push(vector(&name("res_connection.bias"), 0.02));
            }
            use SpeculatorLayout::{ReducedHydra, SharedHeadHydra};
            if let SharedHeadHydra | ReducedHydra = self.layout {
                return tensors;
            }
            let name = if dropout { format!("{head}.1") } else { head.to_string() };
            let matrix = format!("hydra_lm_head.{name}.weight");
            let (vocab_size, deviation) = (self.target.vocab_size, 2.5 / (size as f32).sqrt());
            tensors.push(self.normal(&matrix, [vocab_size, size], deviation));
            let bias_name = format!("hydra_lm_head.{name}.bias");
            let (bias_name, bias) = self.normal(&bias_name, [vocab_size, 1], 0.1);
            tensors.push((bias_name, FloatTensor { shape: vec![vocab_size], ..bias }));
            tensors
        };
        (0..self.positions).flat_map(head).collect()
    }

    /// Returns the target's first layer with norms, and an embedding that is stored but never read.
    fn hydra_prefix_layer(&self) -> Vec<(String, FloatTensor)> {
        let embedding = ("embed_tokens.weight".to_owned(), self.target_tensor(Tensor::Embedding));
        let all = self.layer(true).into_iter().chain([embedding]);
        all.map(|(name, tensor)| (format!("prefix_embeding_layer.{name}"), tensor)).collect()
    }

    /// Returns the weight of a norm: values near 1.
    fn norm(&self, name: &str, size: usize) -> (String, FloatTensor) {
        let (name, norm) = self.normal(name, [size, 1], 0.1);
        let near_1 = norm.values.iter().map(|value| 1.0 + value).collect();
        (name, FloatTensor { shape: vec![size], values: near_1 })
    }

    /// Returns normally distributed values that are determined by the seed and the name.
    fn normal(&self, name: &str, shape: [usize; 2], deviation: f32) -> (String, FloatTensor) {
        let key = |key: u64, byte: u8| (key ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let state = name.bytes().fold(self.seed ^ 0xcbf2_9ce4_8422_2325, key);
        let mut normal = Normal { state };
        let values = (0..shape[0] * shape[1]).map(|_| deviation * normal.next()).collect();
        (name.to_owned(), FloatTensor { shape: shape.to_vec(), values })
    }
}

/// A tensor of 32-bit floats.
#[derive(Clone)]
struct FloatTensor {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl FloatTensor {
    fn serialized(self) -> SerializedTensor {
        let bytes = self.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        SerializedTensor { shape: self.shape, dtype: safetensors::Dtype::F32, bytes }
    }
}
