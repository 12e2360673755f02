//! Random checkpoints for tests and benchmarks: any size without a download, and pairs of drafter
//! and target that agree often enough to exercise speculative decoding.

mod families;
mod grown_pair;
mod synthetic_pair;
mod tokenizer;

use super::row_layout::RowLayout;
use super::safetensors_file::SafetensorsFile;
use super::stored_names::StoredAs;
use super::tensor_rows::TensorRows;
use super::weight_file::WeightFile;
use super::{Dtype, TensorSource, write_safetensors};
use crate::architecture::{Architecture, QkNorms};
use crate::block_type::BlockType;
use crate::blocks::quantize;
use crate::config::{
    Config, Family, MixtureLayers, NormPlacement, RecurrentLayers, RopeScaling, SlidingLayers,
    SlidingWindow,
};
use crate::load_error::LoadError;
use crate::speculator::mtp;
use crate::tensor::{LayerTensor, Tensor};
use crate::weight_type::WeightType;
use half::{bf16, f16};
use safetensors::tensor::View;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::f64::consts::TAU;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;

pub use super::Dtype as RandomDtype;
pub use grown_pair::GrownWeights;
pub use synthetic_pair::{SYNTHETIC_PAIR, SyntheticWeights};
pub use tokenizer::byte_pair_tokenizer;

/// The token that the written tokenizer puts before a text.
pub const BOS: u32 = 256;
/// The token that ends a text.
pub const EOS: u32 = 257;
/// The smallest vocabulary that holds the written tokenizer: 256 bytes, [`BOS`] and [`EOS`].
pub const MIN_VOCAB_SIZE: usize = 258;

/// Returns a small configuration with 2 layers, grouped queries, sizes that are not multiples of a
/// SIMD width, and a vocabulary one token larger than the tokenizer's.
pub fn example_config() -> Config {
    Config {
        hidden_size: 48,
        intermediate_size: 100,
        num_hidden_layers: 2,
        num_attention_heads: 6,
        num_key_value_heads: 3,
        head_dim: 8,
        vocab_size: 259,
        max_position_embeddings: 512,
        bos_token_id: Some(BOS),
        eos_token_ids: vec![EOS],
        ..Config::plain_llama()
    }
}

/// Returns variants of [`example_config`] of every family that together have every supported
/// feature: both kinds of scaled RoPE, layers without RoPE, every bias, norms of queries and keys,
/// constant factors, and sliding windows (shorter than a SIMD width, and not a multiple of one) in
/// some and in all layers.
pub fn example_families() -> Vec<Config> {
    let llama = Config {
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        rope_scaling: RopeScaling::Linear { factor: 4.0 },
        ..example_config()
    };
    let mistral = Config {
        family: Family::Mistral,
        sliding_window: Some(SlidingWindow { size: 21, layers: SlidingLayers::From(0) }),
        ..example_config()
    };
    let qwen2 = Config {
        family: Family::Qwen2,
        qkv_bias: true,
        tie_word_embeddings: true,
        sliding_window: Some(SlidingWindow { size: 5, layers: SlidingLayers::From(1) }),
        ..example_config()
    };
    let layers = SlidingLayers::Listed(vec![true, false]);
    let qwen3 = Config {
        family: Family::Qwen3,
        head_dim: 10,
        qkv_bias: true,
        output_bias: true,
        qk_norms: QkNorms::Heads,
        rope_scaling: RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 32,
        },
        sliding_window: Some(SlidingWindow { size: 33, layers }),
        ..example_config()
    };
    let granite = Config {
        family: Family::Granite,
        attention_multiplier: Some(0.21),
        embedding_multiplier: 1.7,
        residual_multiplier: 0.6,
        logits_scaling: 0.7,
        mlp_bias: true,
        ..example_config()
    };
    let smollm3 = Config {
        family: Family::SmolLm3,
        tie_word_embeddings: true,
        rope_layers: Some(vec![true, false]),
        sliding_window: Some(SlidingWindow {
            size: 19,
            layers: SlidingLayers::Listed(vec![false, true]),
        }),
        ..example_config()
    };
    let mut families = vec![llama, mistral, qwen2, qwen3, granite, smollm3];
    families.extend(families::dense());
    families.extend(families::mixtures());
    families.extend(families::hybrids());
    families
}

/// Writes a Hugging Face directory (`config.json`, `generation_config.json`, `model.safetensors`,
/// `tokenizer.json`) with random weights. The directory is created if necessary. `seed` alone
/// determines the weights: matrices are normally distributed with standard deviation 1/√inputs, and
/// norms are near 1 (except the final norm of a tied model). The head is scaled so that logits have
/// a standard deviation of 2 to 3. Greedy text then varies, and sampling has several likely tokens.
///
/// # Errors
/// When the configuration is not a valid model of its family, its vocabulary is smaller than
/// [`MIN_VOCAB_SIZE`], or a file cannot be written.
pub fn write_random_checkpoint(
    dir: &Path,
    config: &Config,
    seed: u64,
    dtype: RandomDtype,
) -> Result<(), LoadError> {
    RandomWeights::new(config, seed, dtype).write(dir)
}

/// Writes the checkpoint of [`write_random_checkpoint`] with a random MTP head
/// ([`Speculator::open_mtp`](crate::Speculator::open_mtp)).
///
/// # Errors
/// The errors of [`write_random_checkpoint`].
pub fn write_random_checkpoint_with_mtp(
    dir: &Path,
    config: &Config,
    seed: u64,
    dtype: RandomDtype,
) -> Result<(), LoadError> {
    RandomWeights { has_mtp: true, ..RandomWeights::new(config, seed, dtype) }.write(dir)
}

/// Multiplies a tensor of a safetensors file in f32, so that tests can make a model's numbers
/// large.
///
/// # Errors
/// When the file cannot be read or written, or has no such tensor.
pub fn scale_tensor(file: &Path, tensor: &str, factor: f32) -> Result<(), LoadError> {
    let read = |cause| LoadError::Read { path: file.to_owned(), cause };
    let mut bytes = fs::read(file).map_err(read)?;
    let parsed = SafetensorsFile::parse(&bytes, file)?;
    let missing = || LoadError::MissingTensor {
        file: file.to_owned(),
        tensor: tensor.to_owned(),
        hint: "it cannot be scaled",
    };
    let range = parsed.tensors.get(tensor).ok_or_else(missing)?.bytes.clone();
    let (numbers, _) = bytes[range].as_chunks_mut::<4>();
    for number in numbers {
        *number = (f32::from_le_bytes(*number) * factor).to_le_bytes();
    }
    fs::write(file, bytes).map_err(|cause| write_error(file, cause))
}

/// Writes a target and a drafter for it, in f32. The drafter is that of
/// [`write_random_checkpoint`]. The target has the same layers, embedding, norm and head, followed
/// by `extra_layers` more layers (with RoPE) with output and down projections scaled by `epsilon`.
/// At 0 the two models agree exactly. The larger `epsilon` is, the more of the drafter's tokens the
/// target rejects.
///
/// # Errors
/// The errors of [`write_random_checkpoint`].
pub fn write_random_pair(
    target_dir: &Path,
    drafter_dir: &Path,
    drafter_config: &Config,
    extra_layers: usize,
    epsilon: f32,
    seed: u64,
) -> Result<(), LoadError> {
    write_random_checkpoint(drafter_dir, drafter_config, seed, RandomDtype::F32)?;
    let damped_from = drafter_config.num_hidden_layers;
    let mut config = drafter_config.clone();
    config.num_hidden_layers = damped_from.saturating_add(extra_layers);
    if let Some(has_rope) = &mut config.rope_layers {
        let any = has_rope.contains(&true);
        has_rope.resize(config.num_hidden_layers, any);
    }
    if let Some(SlidingWindow { layers: SlidingLayers::Listed(listed), .. }) =
        &mut config.sliding_window
    {
        // The last layer of a Gemma 4 never has a window.
        listed.resize(config.num_hidden_layers, config.family != Family::Gemma4);
    }
    if let Some(RecurrentLayers { layers, .. }) = &mut config.recurrent {
        layers.resize(config.num_hidden_layers, true);
    }
    if let Some(MixtureLayers { dense, .. }) = &mut config.experts
        && !dense.is_empty()
    {
        dense.resize(config.num_hidden_layers, false);
    }
    if let Some(shared) = &mut config.shared_keys {
        shared.layers = shared.layers.saturating_add(extra_layers);
    }
    let weights = RandomWeights::new(&config, seed, RandomDtype::F32);
    RandomWeights { damped_from, epsilon, ..weights }.write(target_dir)
}

/// The weights of a random model. Each tensor has its own generator, keyed by its name, so two
/// models with the same seed share all tensors that both of them have.
struct RandomWeights<'a> {
    config: &'a Config,
    seed: u64,
    dtype: RandomDtype,
    /// The first layer with outputs multiplied by `epsilon`. All later layers have them, too.
    damped_from: usize,
    epsilon: f32,
    /// The factor for the outputs of the layers before `damped_from`, except the first layer.
    residual: f32,
    /// The factor for queries. The larger it is, the fewer positions a row attends to.
    sharpness: f32,
    /// Whether an MTP head is written, too.
    has_mtp: bool,
    /// The value of [`SYNTHETIC_PAIR`] in `config.json`.
    label: Option<Value>,
}

impl<'a> RandomWeights<'a> {
    fn new(config: &'a Config, seed: u64, dtype: RandomDtype) -> Self {
        let (damped_from, epsilon, residual, sharpness) = (usize::MAX, 1.0, 1.0, 1.0);
        let (has_mtp, label) = (false, None);
        Self { config, seed, dtype, damped_from, epsilon, residual, sharpness, has_mtp, label }
    }

    fn write(&self, dir: &Path) -> Result<(), LoadError> {
        let config_file = dir.join("config.json");
        self.config.validate(&config_file)?;
        if self.config.vocab_size < MIN_VOCAB_SIZE {
            let found = &self.config.vocab_size;
            let expected = format!("at least {MIN_VOCAB_SIZE} for the byte tokenizer");
            return Err(LoadError::invalid_option(&config_file, "vocab_size", found, expected));
        }
        let mut options = checked_json(self.config, self.dtype, &config_file)?;
        fs::create_dir_all(dir).map_err(|cause| write_error(dir, cause))?;
        let generation = json!({
            "bos_token_id": self.config.bos_token_id,
            "eos_token_id": self.config.eos_token_ids,
        });
        if let Some(label) = &self.label {
            options[SYNTHETIC_PAIR] = label.clone();
        }
        let json_files = [
            ("config.json", options),
            ("generation_config.json", generation),
            ("tokenizer.json", byte_pair_tokenizer(MIN_VOCAB_SIZE)),
        ];
        for (name, json) in json_files {
            let file = dir.join(name);
            forerun_output::write(&file, format!("{json:#}\n"))
                .map_err(|cause| write_error(&file, cause))?;
        }

        let file = dir.join("model.safetensors");
        let architecture = self.config.architecture();
        let mut stored: BTreeMap<String, RandomStored> = BTreeMap::new();
        let of_target = architecture.tensors().map(|tensor| {
            let stored_as = StoredAs::of(tensor, self.config, &architecture);
            (RandomTensor::new(self, tensor), stored_as)
        });
        let mtp = self.has_mtp.then(|| RandomTensor::of_mtp_head(self)).into_iter().flatten();
        for (random, stored_as) in of_target.chain(mtp) {
            let entry = stored.entry(stored_as.name.clone()).or_insert_with(|| RandomStored {
                shape: stored_as.shape.clone(),
                parts: Vec::new(),
            });
            entry.parts.push((random, stored_as));
        }
        write_safetensors(&file, stored).map_err(|cause| write_error(&file, cause))
    }

    fn mean_and_deviation(&self, tensor: Tensor) -> (f32, f32) {
        let hidden = self.config.hidden_size as f32;
        let head = 2.5 / hidden.sqrt();
        match tensor {
            Tensor::Embedding | Tensor::Positions if self.config.tie_word_embeddings => (0.0, head),
            Tensor::Embedding | Tensor::Positions => (0.0, 1.0),
            Tensor::LayerInputs => (0.0, 1.0),
            Tensor::LayerInputProjection => (0.0, 1.0),
            Tensor::LayerInputNorm => (1.0, 0.1),
            Tensor::Head => (0.0, head),
            // Random signs. Otherwise the most probable token after any token would be the same
            // token.
            Tensor::FinalNorm if self.config.tie_word_embeddings => (0.0, 1.0),
            Tensor::FinalNorm => (1.0, 0.1),
            Tensor::FinalNormBias | Tensor::HeadBias => (0.0, 0.3),
            // Complete models have no tensors of drafters.
            Tensor::MaskEmbeddings
            | Tensor::MaskFeatures
            | Tensor::Fusion
            | Tensor::FusionBias
            | Tensor::ContextNorm
            | Tensor::EmbeddingNorm
            | Tensor::FeatureNorm
            | Tensor::FeaturePartNorm(_)
            | Tensor::DraftHead(..)
            | Tensor::BlockHead(_) => (0.0, 1.0),
            Tensor::Expert(layer, _, part) => {
                let dense = self.mean_and_deviation(Tensor::Layer(layer, part.dense()));
                match self.config.architecture().shape(tensor)[..] {
                    // Inputs may differ from those of a dense MLP.
                    [_, inputs] => {
                        (0.0, self.damping(layer, part.dense()) / (inputs as f32).sqrt())
                    }
                    _ => dense,
                }
            }
            // Scores of experts differ clearly, also if the router's input is divided by √hidden.
            Tensor::Layer(_, LayerTensor::Router) if self.has_router_norms() => (0.0, 2.0),
            Tensor::Layer(_, LayerTensor::Router) => (0.0, 2.0 / hidden.sqrt()),
            Tensor::Layer(_, LayerTensor::RouterCorrection | LayerTensor::Sinks) => (0.0, 0.3),
            // Some heads remember a few positions, and others many.
            Tensor::Layer(_, LayerTensor::DecayRate) => (-1.5, 1.0),
            Tensor::Layer(_, LayerTensor::DecayBias) => (0.0, 0.5),
            Tensor::Layer(layer, part) => {
                let is_query = matches!(part, LayerTensor::Query | LayerTensor::QueryUp);
                let sharpness = if is_query { self.sharpness } else { 1.0 };
                let scale = self.damping(layer, part) * sharpness;
                match self.config.architecture().shape(tensor)[..] {
                    [_, inputs] => (0.0, scale / (inputs as f32).sqrt()),
                    _ if part.is_bias() => (0.0, scale * 0.3),
                    // A norm of what is added is damped with it.
                    _ => (self.damping(layer, part), 0.1 * self.damping(layer, part)),
                }
            }
        }
    }

    /// Whether routers have norms of their own.
    fn has_router_norms(&self) -> bool {
        self.config.experts.as_ref().is_some_and(|layers| layers.experts.router.own_norm)
    }

    /// Returns the factor of a layer's outputs, which is 1 for its other tensors.
    fn damping(&self, layer: usize, part: LayerTensor) -> f32 {
        use LayerTensor as T;
        let is_output = match self.config.norm_placement {
            NormPlacement::After | NormPlacement::Around => {
                matches!(part, T::AttentionOutputNorm | T::MlpOutputNorm | T::InputNorm)
            }
            _ => matches!(part, T::Output | T::OutputBias | T::MixerOutput | T::Down | T::DownBias),
        };
        match layer {
            _ if !is_output => 1.0,
            _ if layer >= self.damped_from => self.epsilon,
            0 => 1.0,
            _ => self.residual,
        }
    }
}

/// Returns the contents of `config.json`, the `file`. Fails when they do not describe the whole
/// configuration.
fn checked_json(config: &Config, dtype: RandomDtype, file: &Path) -> Result<Value, LoadError> {
    let json = config.to_json(dtype);
    let read_back = Config::parse(&json.to_string(), file)?;
    if (Config { suggested_sampling: config.suggested_sampling, ..read_back }) == *config {
        return Ok(json);
    }
    let (found, expected) = (
        config.family.model_type(),
        "a family that supports all other options of the configuration",
    );
    Err(LoadError::invalid_option(file, "model_type", &found, expected))
}

/// A random tensor. Its values are generated when it is written, so only one tensor is in memory.
pub(super) struct RandomTensor {
    shape: Vec<usize>,
    dtype: RandomDtype,
    mean: f32,
    deviation: f32,
    key: u64,
}

impl RandomTensor {
    fn new(weights: &RandomWeights<'_>, tensor: Tensor) -> Self {
        let (mean, deviation) = weights.mean_and_deviation(tensor);
        // FNV-1a of the name, on top of the seed.
        let key =
            tensor.to_string().bytes().fold(weights.seed ^ 0xcbf2_9ce4_8422_2325, |key, byte| {
                (key ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
        Self {
            shape: weights.config.architecture().shape(tensor),
            dtype: weights.dtype,
            mean,
            deviation,
            key,
        }
    }

    /// Creates the tensors of an MTP head for a model.
    fn of_mtp_head(target: &RandomWeights<'_>) -> Vec<(Self, StoredAs)> {
        let layout = mtp::Layout::of(target.config);
        let weights = RandomWeights::new(layout.config(), target.seed, target.dtype);
        let architecture = layout.architecture();
        let random = |tensor| {
            let shape = architecture.shape(tensor);
            let of_target = Self::new(&weights, layout.in_target(tensor));
            let random = match (tensor, &shape[..]) {
                (Tensor::Layer(..) | Tensor::Expert(..), _) => of_target,
                (_, &[_, inputs]) => {
                    let deviation = 1.0 / (inputs as f32).sqrt();
                    Self { shape, mean: 0.0, deviation, ..of_target }
                }
                _ => Self { shape, mean: 1.0, deviation: 0.3, ..of_target },
            };
            (random, layout.stored_as(tensor))
        };
        architecture.tensors().map(random).collect()
    }

    pub(super) fn of_model(config: &Config, seed: u64, tensor: Tensor) -> Self {
        Self::new(&RandomWeights::new(config, seed, RandomDtype::F32), tensor)
    }

    /// Returns the tensor's values, row-major.
    pub(super) fn values(&self) -> impl Iterator<Item = f32> + use<> {
        let (mut normal, mean, deviation) = (Normal { state: self.key }, self.mean, self.deviation);
        let count: usize = self.shape.iter().product();
        (0..count).map(move |_| mean + deviation * normal.next())
    }

    /// Copies a value, less what a reader adds to it.
    fn store(&self, value: &[u8], offset: f32, out: &mut [u8]) {
        match (self.dtype, value) {
            (RandomDtype::Bf16, &[low, high]) if offset != 0.0 => {
                let value = bf16::from_le_bytes([low, high]).to_f32() - offset;
                out.copy_from_slice(&bf16::from_f32(value).to_le_bytes());
            }
            (RandomDtype::F16, &[low, high]) if offset != 0.0 => {
                let value = f16::from_le_bytes([low, high]).to_f32() - offset;
                out.copy_from_slice(&f16::from_f32(value).to_le_bytes());
            }
            (_, &[a, b, c, d]) => {
                let value = f32::from_le_bytes([a, b, c, d]) - offset;
                out.copy_from_slice(&value.to_le_bytes());
            }
            _ => out.copy_from_slice(value),
        }
    }

    fn element_bytes(&self) -> usize {
        match self.dtype {
            RandomDtype::F32 | RandomDtype::Block(_) => size_of::<f32>(),
            RandomDtype::Bf16 | RandomDtype::F16 => size_of::<u16>(),
        }
    }

    fn fill(&self, first: usize, bytes: &mut [u8]) {
        let mut normal = Normal::skipping(self.key, first);
        for bytes in bytes.chunks_exact_mut(self.element_bytes()) {
            let value = self.mean + self.deviation * normal.next();
            match self.dtype {
                RandomDtype::F32 | RandomDtype::Block(_) => {
                    bytes.copy_from_slice(&value.to_le_bytes());
                }
                RandomDtype::Bf16 => bytes.copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
                RandomDtype::F16 => bytes.copy_from_slice(&f16::from_f32(value).to_le_bytes()),
            }
        }
    }
}

/// A stored tensor that consists of one or several tensors of the model.
struct RandomStored {
    shape: Vec<usize>,
    parts: Vec<(RandomTensor, StoredAs)>,
}

impl View for RandomStored {
    fn dtype(&self) -> safetensors::Dtype {
        self.parts.first().map_or(safetensors::Dtype::F32, |(part, _)| part.dtype())
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        if let [(part, StoredAs { layout: RowLayout::PLAIN, expert: None, .. })] = &self.parts[..] {
            return part.data();
        }
        let mut bytes = vec![0; self.data_len()];
        for (part, stored_as) in &self.parts {
            let size = part.element_bytes();
            let (values, columns) = match part.shape[..] {
                [_, columns] => (part.data(), columns),
                // The values of a vector have the order of rows.
                _ => (part.data(), 1),
            };
            let [expert, n_experts] = stored_as.expert.unwrap_or([0, 1]);
            let part_bytes = bytes.len() / n_experts;
            let bytes = &mut bytes[expert * part_bytes..][..part_bytes];
            for (row, values) in values.chunks_exact(columns * size).enumerate() {
                let index = stored_as.layout.index(row);
                for (column, value) in values.chunks_exact(size).enumerate() {
                    let at = match stored_as.layout.transposed {
                        Some(outputs) => column * outputs + index,
                        None => index * columns + column,
                    };
                    part.store(value, stored_as.layout.offset, &mut bytes[at * size..][..size]);
                }
            }
        }
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        let size = self.parts.first().map_or(0, |(part, _)| part.element_bytes());
        self.shape.iter().product::<usize>() * size
    }
}

/// The number of values that a thread generates at a time.
const CHUNK_VALUES: usize = 1 << 16;

impl View for RandomTensor {
    fn dtype(&self) -> safetensors::Dtype {
        match self.dtype {
            RandomDtype::F32 | RandomDtype::Block(_) => safetensors::Dtype::F32,
            RandomDtype::Bf16 => safetensors::Dtype::BF16,
            RandomDtype::F16 => safetensors::Dtype::F16,
        }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let mut bytes = vec![0; self.data_len()];
        let chunk_bytes = CHUNK_VALUES * self.element_bytes();
        let n_chunks = bytes.len().div_ceil(chunk_bytes);
        let chunks = Mutex::new(bytes.chunks_mut(chunk_bytes).enumerate());
        let work = || {
            loop {
                let next = chunks.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((chunk, bytes)) = next else { return };
                self.fill(chunk * CHUNK_VALUES, bytes);
            }
        };
        thread::scope(|scope| {
            let cores = thread::available_parallelism().map_or(1, usize::from);
            for _ in 1..cores.min(n_chunks) {
                // If a thread cannot be started, the others do its work.
                drop(thread::Builder::new().spawn_scoped(scope, work));
            }
            work();
        });
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.element_bytes()
    }
}

/// A generator of normally distributed values: the Box–Muller transform of Steele's SplitMix64.
pub(super) struct Normal {
    pub(super) state: u64,
}

impl Normal {
    /// SplitMix64's increment of the state.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// Creates a generator that has skipped `values` values. Each value takes two random numbers.
    fn skipping(key: u64, values: usize) -> Self {
        Self { state: key.wrapping_add(Self::STEP.wrapping_mul(2 * values as u64)) }
    }

    pub(super) fn next(&mut self) -> f32 {
        let (radius, angle) = (self.uniform(), self.uniform());
        ((-2.0 * radius.ln()).sqrt() * (TAU * angle).cos()) as f32
    }

    /// Returns a number in (0, 1], so its logarithm is finite.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(Self::STEP);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        ((bits >> 11) + 1) as f64 / (1u64 << 53) as f64
    }
}

/// What errors call the file of random tensors.
const RANDOM_TENSORS: &str = "random tensors";

/// Random tensors of any architecture, in memory: for tests of devices.
pub struct RandomTensors {
    tensors: HashMap<Tensor, (Vec<usize>, WeightFile)>,
}

impl RandomTensors {
    /// Creates the tensors of an architecture. They depend on the seed.
    #[must_use]
    pub fn new(architecture: &Architecture, seed: u64) -> Self {
        let tensor = |(index, tensor): (u64, Tensor)| {
            let shape = architecture.shape(tensor);
            let (mean, deviation) = match (tensor, &shape[..]) {
                (Tensor::Layer(_, part), [_]) if part.is_bias() => (0.0, 0.3),
                (Tensor::Expert(..) | Tensor::FinalNormBias | Tensor::HeadBias, [_])
                | (
                    Tensor::Layer(
                        _,
                        LayerTensor::RouterCorrection | LayerTensor::Sinks | LayerTensor::DecayBias,
                    ),
                    [_],
                ) => (0.0, 0.3),
                (Tensor::Layer(_, LayerTensor::Router), _) => (0.0, 0.4),
                (Tensor::Layer(_, LayerTensor::DecayRate), _) => (-1.5, 1.0),
                (_, [_]) => (1.0, 0.1),
                (
                    Tensor::Embedding
                    | Tensor::Positions
                    | Tensor::LayerInputs
                    | Tensor::MaskEmbeddings
                    | Tensor::MaskFeatures,
                    _,
                ) => (0.0, 1.0),
                (_, shape) => (0.0, 1.0 / (shape.last().copied().unwrap_or(1) as f32).sqrt()),
            };
            let state = seed.wrapping_add(index).wrapping_mul(0x2545_f491_4f6c_dd1d);
            let mut normal = Normal { state };
            let values = (0..shape.iter().product()).map(|_| mean + deviation * normal.next());
            let bytes = values.flat_map(f32::to_le_bytes).collect();
            (tensor, (shape, WeightFile::from_bytes(RANDOM_TENSORS.into(), bytes)))
        };
        Self { tensors: (0..).zip(architecture.tensors()).map(tensor).collect() }
    }
}

impl TensorSource for RandomTensors {
    fn has(&self, tensor: Tensor) -> bool {
        self.tensors.contains_key(&tensor)
    }

    fn rows(&self, tensor: Tensor, _shape: &[usize]) -> Result<TensorRows<'_>, LoadError> {
        let missing = || LoadError::MissingTensor {
            file: RANDOM_TENSORS.into(),
            tensor: tensor.to_string(),
            hint: "the architecture does not have it",
        };
        let (shape, file) = self.tensors.get(&tensor).ok_or_else(missing)?;
        Ok(TensorRows {
            file,
            tensor: tensor.to_string(),
            bytes: 0..file.bytes().len(),
            dtype: Dtype::F32,
            rows: shape.iter().rev().skip(1).product(),
            columns: shape.last().copied().unwrap_or(0),
            layout: RowLayout::PLAIN,
            is_vector: shape.len() == 1,
            quantized: None,
            assembled: None,
        })
    }

    fn float_type(&self) -> Result<WeightType, LoadError> {
        Ok(WeightType::F32)
    }
}

/// Tensors of any architecture whose matrices begin with the same random weights, so that models of
/// billions of weights are made at once: for measurements.
pub struct RepeatedTensors {
    tensors: HashSet<Tensor>,
    matrices: WeightFile,
    vectors: WeightFile,
    dtype: Dtype,
}

impl RepeatedTensors {
    /// The number of different weights.
    const WEIGHTS: usize = 1 << 20;

    /// Creates the tensors of an architecture: matrices in blocks of a type, or bf16, and vectors of
    /// ones.
    #[must_use]
    pub fn new(architecture: &Architecture, block_type: Option<BlockType>) -> Self {
        let mut normal = Normal { state: 5 };
        let weights: Vec<f32> = (0..Self::WEIGHTS).map(|_| 0.02 * normal.next()).collect();
        let (mut bytes, dtype) = (Vec::new(), block_type.map_or(Dtype::Bf16, Dtype::Block));
        match block_type {
            Some(block_type) => quantize(block_type, &weights, None, &mut bytes),
            None => {
                let weights = weights.into_iter().map(bf16::from_f32);
                bytes.extend(weights.flat_map(bf16::to_le_bytes));
            }
        }
        let (mut most_weights, mut longest) = (0, 0);
        for tensor in architecture.tensors() {
            match architecture.shape(tensor)[..] {
                [length] => longest = length.max(longest),
                ref shape => most_weights = shape.iter().product::<usize>().max(most_weights),
            }
        }
        let file = |bytes| WeightFile::from_bytes(RANDOM_TENSORS.into(), bytes);
        Self {
            tensors: architecture.tensors().collect(),
            matrices: file(bytes.repeat(most_weights.div_ceil(Self::WEIGHTS))),
            vectors: file(1.0_f32.to_le_bytes().repeat(longest)),
            dtype,
        }
    }
}

impl TensorSource for RepeatedTensors {
    fn has(&self, tensor: Tensor) -> bool {
        self.tensors.contains(&tensor)
    }

    fn rows(&self, tensor: Tensor, shape: &[usize]) -> Result<TensorRows<'_>, LoadError> {
        let is_vector = shape.len() == 1;
        let (file, dtype) =
            if is_vector { (&self.vectors, Dtype::F32) } else { (&self.matrices, self.dtype) };
        Ok(TensorRows {
            file,
            tensor: tensor.to_string(),
            bytes: 0..file.bytes().len(),
            dtype,
            rows: shape.iter().rev().skip(1).product(),
            columns: shape.last().copied().unwrap_or(0),
            layout: RowLayout::PLAIN,
            is_vector,
            quantized: None,
            assembled: None,
        })
    }

    fn float_type(&self) -> Result<WeightType, LoadError> {
        Ok(WeightType::Bf16)
    }
}

pub(super) fn write_error(path: &Path, cause: io::Error) -> LoadError {
    LoadError::Write { path: path.to_owned(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Checkpoint;

    #[test]
    fn written_checkpoints_open() {
        let directory = tempfile::tempdir().unwrap();
        for config in example_families().into_iter().chain([example_config()]) {
            for dtype in [RandomDtype::F32, RandomDtype::Bf16, RandomDtype::F16] {
                write_random_checkpoint(directory.path(), &config, 1, dtype).unwrap();
                let checkpoint = Checkpoint::open(directory.path()).unwrap();
                assert_eq!(*checkpoint.config(), config);
                for tensor in config.architecture().tensors() {
                    let elements: usize = checkpoint.shape(tensor).iter().product();
                    assert_eq!(checkpoint.tensor(tensor).unwrap().len(), elements);
                    assert_eq!(checkpoint.dtype(tensor).unwrap(), dtype);
                }
            }
        }
    }

    #[test]
    fn options_that_a_family_lacks_are_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let config = Config { qk_norms: QkNorms::Heads, ..example_config() };
        let error = write_random_checkpoint(directory.path(), &config, 1, RandomDtype::F32);
        let message = error.unwrap_err().to_string();
        let expected = "\"model_type\" is llama; expected a family that supports";
        assert!(message.contains(expected), "{message}");
    }

    #[test]
    fn values_have_the_intended_mean_and_variance() {
        let directory = tempfile::tempdir().unwrap();
        write_random_checkpoint(directory.path(), &example_config(), 3, RandomDtype::F32).unwrap();
        let checkpoint = Checkpoint::open(directory.path()).unwrap();
        let values = checkpoint.tensor(Tensor::Embedding).unwrap();
        let mean = values.iter().sum::<f32>() / values.len() as f32;
        let variance = values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }

    #[test]
    fn chunks_of_a_tensor_equal_the_whole() {
        let config = Config { vocab_size: 3000, ..example_config() };
        let weights = RandomWeights::new(&config, 5, RandomDtype::F32);
        let tensor = RandomTensor::new(&weights, Tensor::Embedding);
        assert!(tensor.data_len() > 2 * CHUNK_VALUES * size_of::<f32>());
        let mut whole = vec![0; tensor.data_len()];
        tensor.fill(0, &mut whole);
        assert!(tensor.data().as_ref() == whole);
    }

    #[test]
    fn a_pair_shares_the_tensors_of_the_drafter() {
        let directory = tempfile::tempdir().unwrap();
        let (target, drafter) = (directory.path().join("target"), directory.path().join("drafter"));
        let config = example_config();
        write_random_pair(&target, &drafter, &config, 2, 0.0, 7).unwrap();
        let (target, drafter) =
            (Checkpoint::open(&target).unwrap(), Checkpoint::open(&drafter).unwrap());
        assert_eq!(target.config().num_hidden_layers, 4);
        for tensor in config.architecture().tensors() {
            assert_eq!(target.tensor(tensor).unwrap(), drafter.tensor(tensor).unwrap(), "{tensor}");
        }
        let down = target.tensor(Tensor::Layer(2, LayerTensor::Down)).unwrap();
        assert!(down.iter().all(|value| *value == 0.0));
        let up = |layer| target.tensor(Tensor::Layer(layer, LayerTensor::Up)).unwrap();
        assert_ne!(up(2), up(3));
    }

    #[test]
    fn a_vocabulary_too_small_for_bytes_is_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let mut config = example_config();
        config.vocab_size = 257;
        config.eos_token_ids.clear();
        let error = write_random_checkpoint(directory.path(), &config, 1, RandomDtype::F32);
        let message = error.unwrap_err().to_string();
        assert!(message.contains("\"vocab_size\" is 257; expected at least 258"), "{message}");
    }
}
