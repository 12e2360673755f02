//! Random drafters that belong to a target, for tests: one of each layout that is read.
//!
//! A layer of theirs is the first of a target of the same seed and configuration ([`super::random`]), so
//! that such a drafter is often right where that target has one layer, or further ones that add little.

use std::borrow::Cow;
use std::fs;
use std::io;
use std::path::Path;

use safetensors::tensor::View;
use serde_json::{Value, json};

use super::random::{Normal, RandomDtype, RandomTensor, write_error};
use super::tensor::Tensor;
use crate::config::Config;
use crate::load_error::LoadError;

/// How a drafter is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeculatorLayout {
    /// Medusa as its authors write it: heads with matrices of their own.
    Medusa,
    /// Medusa as vLLM writes it.
    MedusaOfVllm,
    /// Medusa with the target's head for all, as our own.
    MedusaOnTargetHead,
    /// Hydra, whose heads read drafted tokens.
    Hydra,
    /// Hydra++: with dropout in its names, two layers a head, and a layer in front of all heads.
    HydraPlusPlus,
    /// EAGLE, with an embedding of its own, as its authors write it.
    Eagle,
    /// EAGLE with the target's embedding, as our own.
    EagleOnTargetEmbedding,
    /// EAGLE-3, whose head knows every second token.
    Eagle3,
    /// ParallelSpec on tokens.
    ParallelMedusa,
    /// ParallelSpec on the target's features.
    ParallelEagle,
}

/// A random drafter for a target.
pub struct RandomSpeculator<'a> {
    /// How it is stored.
    pub layout: SpeculatorLayout,
    /// The target's configuration; the drafter has one layer of its kind.
    pub target: &'a Config,
    /// The target's seed.
    pub seed: u64,
    /// Masks, or heads.
    pub positions: usize,
    /// SHA-256 of the target's embedding, where it is to be told.
    pub target_embedding_sha256: Option<String>,
}

impl RandomSpeculator<'_> {
    /// Writes its `config.json` and tensors to a directory, created if need be.
    ///
    /// # Errors
    ///
    /// When a file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), LoadError> {
        fs::create_dir_all(dir).map_err(|cause| write_error(dir, cause))?;
        let file = dir.join("config.json");
        fs::write(&file, format!("{:#}\n", self.config_json()))
            .map_err(|cause| write_error(&file, cause))?;
        let name = match self.layout {
            SpeculatorLayout::Medusa => "medusa_lm_head.safetensors",
            SpeculatorLayout::Hydra | SpeculatorLayout::HydraPlusPlus => {
                "hydra_lm_head.safetensors"
            }
            _ => "model.safetensors",
        };
        let file = dir.join(name);
        let mut tensors: Vec<(String, Stored)> =
            self.tensors().into_iter().map(|(name, values)| (name, values.stored())).collect();
        if self.layout == SpeculatorLayout::Eagle3 {
            let offsets = (0..self.draft_tokens() as i64).flat_map(i64::to_le_bytes).collect();
            let (shape, dtype) = (vec![self.draft_tokens()], safetensors::Dtype::I64);
            tensors.push(("d2t".to_owned(), Stored { shape, dtype, bytes: offsets }));
            let known = (0..self.target.vocab_size).map(|token| u8::from(token % 2 == 0)).collect();
            let (shape, dtype) = (vec![self.target.vocab_size], safetensors::Dtype::BOOL);
            tensors.push(("t2d".to_owned(), Stored { shape, dtype, bytes: known }));
        }
        safetensors::serialize_to_file(tensors, None, &file)
            .map_err(|cause| write_error(&file, io::Error::other(cause)))
    }

    /// Tokens that EAGLE-3's head knows: the even ones.
    fn draft_tokens(&self) -> usize {
        self.target.vocab_size.div_ceil(2)
    }

    fn config(&self) -> Config {
        Config { num_hidden_layers: 1, sliding_window: None, ..self.target.clone() }
    }

    fn config_json(&self) -> Value {
        use SpeculatorLayout as L;
        let layer = self.config().to_json(RandomDtype::F32);
        let mut config = match self.layout {
            // Published configurations tell another number of heads than there are.
            L::Medusa | L::MedusaOfVllm => json!({"medusa_num_heads": 2, "medusa_num_layers": 1}),
            L::MedusaOnTargetHead => json!({
                "speculator": "medusa", "version": "2",
                "medusa_num_heads": self.positions, "medusa_num_layers": 1,
            }),
            L::Hydra | L::HydraPlusPlus => json!({
                "hydra_num_heads": 4, "hydra_num_layers": 1, "grounded_heads": true,
                "hydra_head_arch": if self.layout == L::Hydra { "mlp" } else { "prefix-mlp" },
                "hidden_state_offset": 0,
            }),
            L::Eagle | L::EagleOnTargetEmbedding => layer,
            L::Eagle3 => {
                let mut config = layer;
                config["architectures"] = json!(["LlamaForCausalLMEagle3"]);
                config["draft_vocab_size"] = json!(self.draft_tokens());
                config
            }
            L::ParallelMedusa | L::ParallelEagle => {
                let mut config = layer;
                let medusa = self.layout == L::ParallelMedusa;
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

    fn tensors(&self) -> Vec<(String, Values)> {
        use SpeculatorLayout as L;
        let masks = || self.normal("mask_embeddings.weight", [self.positions, self.size()], 1.0);
        match self.layout {
            L::Medusa | L::MedusaOfVllm | L::MedusaOnTargetHead => self.heads(),
            L::Hydra => self.hydra_heads(),
            L::HydraPlusPlus => [self.hydra_heads(), self.hydra_prefix()].concat(),
            L::ParallelMedusa => [self.layer(true), vec![masks()]].concat(),
            L::EagleOnTargetEmbedding => [self.layer(false), self.fusion()].concat(),
            L::Eagle => {
                let embedding = Tensor::Embedding;
                let own = ("embed_tokens.weight".to_owned(), self.of_target(embedding));
                [self.layer(false), self.fusion(), vec![own]].concat()
            }
            L::Eagle3 => self.midlayer(),
            L::ParallelEagle => {
                let shape = [self.positions, self.size()];
                let features = self.normal("mask_features.weight", shape, 0.5);
                [self.layer(false), self.fusion(), vec![masks(), features]].concat()
            }
        }
    }

    fn size(&self) -> usize {
        self.target.hidden_size
    }

    fn of_target(&self, tensor: Tensor) -> Values {
        let values = RandomTensor::of_model(&self.config(), self.seed, tensor).values();
        Values { shape: tensor.shape(&self.config()), values: values.collect() }
    }

    /// The target's first layer under short names, and with norms, its first and the final one.
    fn layer(&self, norms: bool) -> Vec<(String, Values)> {
        let is_wanted = |tensor: &Tensor, name: &str| match tensor {
            Tensor::Embedding | Tensor::Head => false,
            _ => norms || !matches!(name, "norm.weight" | "layers.0.input_layernorm.weight"),
        };
        let all = Tensor::all(&self.config()).map(|tensor| {
            let name = tensor.to_string();
            (tensor, name.strip_prefix("model.").map_or(name.clone(), str::to_owned))
        });
        let wanted = all.filter(|(tensor, name)| is_wanted(tensor, name));
        wanted.map(|(tensor, name)| (name, self.of_target(tensor))).collect()
    }

    /// It hands the embedding on, with a little of the feature.
    fn fusion(&self) -> Vec<(String, Values)> {
        let size = self.size();
        let (name, mut fusion) =
            self.normal("fc.weight", [size, 2 * size], 0.1 / (size as f32).sqrt());
        for row in 0..size {
            fusion.values[row * 2 * size + row] += 1.0;
        }
        let (bias_name, bias) = self.normal("fc.bias", [size, 1], 0.02);
        vec![(name, fusion), (bias_name, Values { shape: vec![size], ..bias })]
    }

    fn midlayer(&self) -> Vec<(String, Values)> {
        let size = self.size();
        let wide = 1.0 / (2.0 * size as f32).sqrt();
        let of_layer = self.layer(true).into_iter().map(|(name, values)| {
            let is_wide = ["q_proj.weight", "k_proj.weight", "v_proj.weight"];
            let outputs = values.shape[0];
            match is_wide.iter().any(|end| name.ends_with(end)) {
                true => self.normal(&name, [outputs, 2 * size], wide),
                false => (name, values),
            }
        });
        let mut tensors: Vec<_> = of_layer
            .map(|(name, values)| (name.replace("layers.0.", "midlayer."), values))
            .collect();
        let (_, norm) = self.normal("hidden_norm", [size, 1], 0.1);
        let near_1 = norm.values.iter().map(|value| 1.0 + value).collect();
        let norm = Values { shape: vec![size], values: near_1 };
        tensors.push(("midlayer.hidden_norm.weight".to_owned(), norm));
        tensors.push(self.normal("fc.weight", [size, 3 * size], 0.5 / (size as f32).sqrt()));
        let head = 2.5 / (size as f32).sqrt();
        tensors.push(self.normal("lm_head.weight", [self.draft_tokens(), size], head));
        tensors
    }

    fn heads(&self) -> Vec<(String, Values)> {
        let (size, of_vllm) = (self.size(), self.layout == SpeculatorLayout::MedusaOfVllm);
        let deviation = 1.0 / (size as f32).sqrt();
        let head = |head: usize| {
            let [weight, bias] = ["weight", "bias"].map(|part| match of_vllm {
                false => format!("{head}.0.linear.{part}"),
                true => format!("blocks.{head}.layers.0.{part}"),
            });
            let mut tensors = vec![self.normal(&weight, [size, size], deviation)];
            if !of_vllm {
                let (name, bias) = self.normal(&bias, [size, 1], 0.5);
                tensors.push((name, Values { shape: vec![size], ..bias }));
            }
            if self.layout != SpeculatorLayout::MedusaOnTargetHead {
                let name = if of_vllm {
                    format!("lm_heads.{head}.weight")
                } else {
                    format!("{head}.1.weight")
                };
                tensors.push(self.normal(&name, [self.target.vocab_size, size], 2.5 * deviation));
            }
            tensors
        };
        (0..self.positions).flat_map(head).collect()
    }

    /// Heads that hand the last token's embedding on, with a little of the rest.
    fn hydra_heads(&self) -> Vec<(String, Values)> {
        let (size, dropout) = (self.size(), self.layout == SpeculatorLayout::HydraPlusPlus);
        let vector = |name: &str, deviation: f32| {
            let (name, vector) = self.normal(name, [size, 1], deviation);
            (name, Values { shape: vec![size], ..vector })
        };
        let head = |head: usize| {
            let wide = (head + 2) * size;
            let deviation = 1.0 / (wide as f32).sqrt();
            let mut tensors = Vec::new();
            let layers = if dropout { 2 } else { 1 };
            for layer in 0..layers {
                let place = if dropout { 2 * layer + 1 } else { layer };
                let inputs = if layer == 0 { wide } else { size };
                let name = |part: &str| format!("hydra_mlp.{head}.{place}.{part}");
                tensors.push(self.normal(&name("linear.weight"), [size, inputs], deviation));
                tensors.push(vector(&name("linear.bias"), 0.3));
                if layer > 0 {
                    continue;
                }
                let carried = name("res_connection.weight");
                let (carried, mut values) = self.normal(&carried, [size, wide], 0.1 * deviation);
                for row in 0..size {
                    values.values[row * wide + wide - size + row] += 1.0;
                }
                tensors.push((carried, values));
                tensors.push(vector(&name("res_connection.bias"), 0.02));
            }
            let name = if dropout { format!("{head}.1") } else { head.to_string() };
            let matrix = format!("hydra_lm_head.{name}.weight");
            let (vocab_size, spread) = (self.target.vocab_size, 2.5 / (size as f32).sqrt());
            tensors.push(self.normal(&matrix, [vocab_size, size], spread));
            let bias = format!("hydra_lm_head.{name}.bias");
            let (bias, values) = self.normal(&bias, [vocab_size, 1], 0.1);
            tensors.push((bias, Values { shape: vec![vocab_size], ..values }));
            tensors
        };
        (0..self.positions).flat_map(head).collect()
    }

    /// The target's first layer with norms, and an embedding that nobody reads.
    fn hydra_prefix(&self) -> Vec<(String, Values)> {
        let embedding = ("embed_tokens.weight".to_owned(), self.of_target(Tensor::Embedding));
        let all = self.layer(true).into_iter().chain([embedding]);
        all.map(|(name, values)| (format!("prefix_embeding_layer.{name}"), values)).collect()
    }

    /// Normal values that follow from the seed and the name.
    fn normal(&self, name: &str, shape: [usize; 2], deviation: f32) -> (String, Values) {
        let key = |key: u64, byte: u8| (key ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let state = name.bytes().fold(self.seed ^ 0xcbf2_9ce4_8422_2325, key);
        let mut normal = Normal { state };
        let values = (0..shape[0] * shape[1]).map(|_| deviation * normal.next()).collect();
        (name.to_owned(), Values { shape: shape.to_vec(), values })
    }
}

/// A tensor of 32-bit floats.
#[derive(Clone)]
struct Values {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Values {
    fn stored(self) -> Stored {
        let bytes = self.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Stored { shape: self.shape, dtype: safetensors::Dtype::F32, bytes }
    }
}

/// A tensor as it is written.
struct Stored {
    shape: Vec<usize>,
    dtype: safetensors::Dtype,
    bytes: Vec<u8>,
}

impl View for Stored {
    fn dtype(&self) -> safetensors::Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}
