//! Random checkpoints for tests and benchmarks: any size without a download, and pairs of drafter
//! and target that agree often enough to exercise speculative decoding.

mod adapter;
mod examples;
mod families;
mod grown_pair;
mod in_memory;
mod random_tensor;
mod synthetic_pair;
mod tokenizer;

use super::safetensors_file::SafetensorsFile;
use super::stored_names::StoredAs;
use super::write_safetensors;
use crate::config::{
    Config, Family, MixtureLayers, NormPlacement, RecurrentLayers, SlidingLayers, SlidingWindow,
};
use crate::load_error::LoadError;
use crate::tensor::{LayerTensor, Tensor};
use random_tensor::RandomStored;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

pub use super::Dtype as RandomDtype;
pub use adapter::write_random_adapter;
pub use examples::{example_config, example_families};
pub use grown_pair::GrownWeights;
pub use in_memory::{RandomTensors, RepeatedTensors};
pub(super) use random_tensor::{Normal, RandomTensor};
pub use synthetic_pair::{SYNTHETIC_PAIR, SyntheticWeights};
pub use tokenizer::byte_pair_tokenizer;

/// The token that the written tokenizer puts before a text.
pub const BOS: u32 = 256;
/// The token that ends a text.
pub const EOS: u32 = 257;
/// The smallest vocabulary that holds the written tokenizer: 256 bytes, [`BOS`] and [`EOS`].
pub const MIN_VOCAB_SIZE: usize = 258;

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
            Tensor::Embedding | Tensor::Positions | Tensor::TokenTypes => (0.0, 1.0),
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
            | Tensor::Prediction
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

pub(super) fn write_error(path: &Path, cause: io::Error) -> LoadError {
    LoadError::Write { path: path.to_owned(), cause }
}

#[cfg(test)]
mod tests {
    use super::random_tensor::CHUNK_VALUES;
    use super::*;
    use crate::architecture::QkNorms;
    use crate::checkpoint::Checkpoint;
    use safetensors::tensor::View;

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
