//! Grown pairs: a real model as the drafter, and a target that is this model followed by random
//! layers.

use super::synthetic_pair::{SHARPNESS, SYNTHETIC_PAIR};
use super::{RandomTensor, RandomWeights, checked_json, write_error};
use crate::checkpoint::{Checkpoint, Dtype, LoadError, SerializedTensor, write_safetensors};
use crate::config::Config;
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

const DRAFTER_WEIGHTS: &str = "model.safetensors";
/// The target's files: the weights of the real model, and the added layers.
const TARGET_WEIGHTS: [&str; 2] =
    ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

/// The weights of a grown pair. The drafter is a real model. The target consists of its embedding,
/// layers, norm and head, and of random layers after its last one. The outputs of the random layers
/// are multiplied by a factor ε. At ε = 0 the two models agree exactly.
pub struct GrownWeights<'a> {
    model: &'a Checkpoint,
    target: Config,
    seed: u64,
    dtype: Dtype,
}

impl<'a> GrownWeights<'a> {
    /// Adds random layers to a model, so that there are `layers`. All weights are stored as
    /// `dtype`.
    ///
    /// # Errors
    /// When the model has pieces that a plain Llama model lacks, or as many layers already.
    pub fn new(
        model: &'a Checkpoint,
        layers: usize,
        seed: u64,
        dtype: Dtype,
    ) -> Result<Self, LoadError> {
        let config = model.config();
        let refuse = |option, found: &dyn std::fmt::Display, expected: String| {
            LoadError::invalid_option(model.path(), option, found, expected)
        };
        if let Some(piece) = config.unusual_piece() {
            let expected = format!("a Llama model without {piece}, to add random layers to");
            return Err(refuse("model_type", &config.family.model_type(), expected));
        }
        if layers <= config.num_hidden_layers {
            let expected = format!("fewer than the target's {layers}");
            return Err(refuse("num_hidden_layers", &config.num_hidden_layers, expected));
        }
        let target = Config { num_hidden_layers: layers, ..config.clone() };
        Ok(Self { model, target, seed, dtype })
    }

    /// Returns the target's configuration.
    #[must_use]
    pub fn target(&self) -> &Config {
        &self.target
    }

    /// Writes the real model as a Hugging Face directory, without a tokenizer.
    ///
    /// # Errors
    /// When a tensor cannot be read, or a file cannot be written.
    pub fn write_drafter(&self, dir: &Path) -> Result<(), LoadError> {
        self.write_json(dir, self.model.config(), "drafter")?;
        let file = dir.join(DRAFTER_WEIGHTS);
        let architecture = self.model.architecture();
        let mut tensors = Vec::new();
        for tensor in architecture.tensors() {
            let values = self.model.tensor(tensor)?;
            let shape = architecture.shape(tensor);
            let stored = SerializedTensor::new(&values, shape, self.dtype);
            tensors.push((tensor.to_string(), stored));
        }
        write_safetensors(&file, tensors).map_err(|cause| write_error(&file, cause))
    }

    /// Writes all of the target except its random layers, whose weights [`Self::write_layers`]
    /// writes. `drafter` is the directory of the drafter, which shares a file with the target where
    /// the system allows it.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn write_target(&self, dir: &Path, drafter: &Path) -> Result<(), LoadError> {
        self.write_json(dir, &self.target, "target")?;
        let [shared, layers] = TARGET_WEIGHTS;
        let (from, to) = (drafter.join(DRAFTER_WEIGHTS), dir.join(shared));
        let copied = fs::hard_link(&from, &to).or_else(|_| fs::copy(&from, &to).map(drop));
        copied.map_err(|cause| write_error(&to, cause))?;
        let names = |tensors: &mut dyn Iterator<Item = String>, file: &str| -> Vec<_> {
            tensors.map(|name| (name, Value::from(file))).collect()
        };
        let mut map =
            names(&mut self.model.architecture().tensors().map(|t| t.to_string()), shared);
        map.extend(names(&mut self.layers(1.0).into_keys(), layers));
        let map: BTreeMap<String, Value> = map.into_iter().collect();
        let index = json!({ "metadata": {}, "weight_map": map });
        let file = dir.join("model.safetensors.index.json");
        forerun_output::write(&file, format!("{index:#}\n"))
            .map_err(|cause| write_error(&file, cause))
    }

    /// Writes the target's random layers. Their outputs are multiplied by `epsilon`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_layers(&self, dir: &Path, epsilon: f32) -> Result<(), LoadError> {
        let file = dir.join(TARGET_WEIGHTS[1]);
        write_safetensors(&file, self.layers(epsilon)).map_err(|cause| write_error(&file, cause))
    }

    /// Returns the tensors of the random layers by name.
    fn layers(&self, epsilon: f32) -> HashMap<String, RandomTensor> {
        let damped_from = self.model.config().num_hidden_layers;
        let weights = RandomWeights::new(&self.target, self.seed, self.dtype);
        let weights = RandomWeights { damped_from, epsilon, sharpness: SHARPNESS, ..weights };
        let architecture = self.target.architecture();
        let own = self.model.architecture();
        let added = architecture.tensors().filter(|tensor| own.tensors().all(|t| t != *tensor));
        added.map(|tensor| (tensor.to_string(), RandomTensor::new(&weights, tensor))).collect()
    }

    /// Writes the configuration with a label, and the tokens that begin and end a text.
    fn write_json(&self, dir: &Path, config: &Config, role: &str) -> Result<(), LoadError> {
        fs::create_dir_all(dir).map_err(|cause| write_error(dir, cause))?;
        let file = dir.join("config.json");
        let mut options = checked_json(config, self.dtype, &file)?;
        options[SYNTHETIC_PAIR] = json!({ "role": role, "seed": self.seed });
        let generation = json!({
            "bos_token_id": config.bos_token_id,
            "eos_token_id": config.eos_token_ids,
        });
        for (name, json) in [("config.json", options), ("generation_config.json", generation)] {
            let file = dir.join(name);
            forerun_output::write(&file, format!("{json:#}\n"))
                .map_err(|cause| write_error(&file, cause))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
    use crate::checkpoint::{LayerTensor, Tensor};
    use crate::config::Family;

    #[test]
    fn the_target_is_the_model_followed_by_scaled_layers() {
        let folder = tempfile::tempdir().unwrap();
        let [model, target, drafter] =
            ["model", "target", "drafter"].map(|n| folder.path().join(n));
        write_random_checkpoint(&model, &example_config(), 7, RandomDtype::F32).unwrap();
        let model = Checkpoint::open(&model).unwrap();
        let grown = GrownWeights::new(&model, 5, 3, Dtype::F32).unwrap();
        grown.write_drafter(&drafter).unwrap();
        grown.write_target(&target, &drafter).unwrap();
        let down = |layer| Tensor::Layer(layer, LayerTensor::Down);
        let mut previous = Vec::new();
        for (epsilon, factor) in [(0.5, 1.0), (1.0, 2.0)] {
            grown.write_layers(&target, epsilon).unwrap();
            let opened = Checkpoint::open(&target).unwrap();
            assert_eq!(opened.config(), grown.target());
            for tensor in model.architecture().tensors() {
                assert_eq!(opened.tensor(tensor).unwrap(), model.tensor(tensor).unwrap());
            }
            let values = opened.tensor(down(4)).unwrap();
            if factor == 2.0 {
                assert!(
                    values.iter().zip(&previous).all(|(new, old): (_, &f32)| *new == old * 2.0)
                );
            }
            previous = values;
        }
        let opened = Checkpoint::open(&drafter).unwrap();
        for tensor in model.architecture().tensors() {
            assert_eq!(opened.tensor(tensor).unwrap(), model.tensor(tensor).unwrap());
        }
    }

    #[test]
    fn other_models_and_too_few_layers_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let of = |config: &Config| {
            write_random_checkpoint(folder.path(), config, 7, RandomDtype::F32).unwrap();
            Checkpoint::open(folder.path()).unwrap()
        };
        let refused = |checkpoint: &Checkpoint, layers| {
            GrownWeights::new(checkpoint, layers, 3, Dtype::Bf16).err().unwrap().to_string()
        };
        let message = refused(&of(&example_config()), 2);
        assert!(message.contains("\"num_hidden_layers\" is 2; expected fewer"), "{message}");
        let qwen2 = Config { family: Family::Qwen2, qkv_bias: true, ..example_config() };
        let message = refused(&of(&qwen2), 4);
        assert!(message.contains("without biases"), "{message}");
    }
}
