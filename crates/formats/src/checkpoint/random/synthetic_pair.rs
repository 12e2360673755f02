//! Synthetic pairs: a target of any size and a drafter with a chosen acceptance rate.

use super::{RandomDtype, RandomWeights};
use crate::checkpoint::LoadError;
use crate::config::Config;
use serde_json::json;
use std::path::Path;

/// The key in `config.json` that marks the models of a synthetic pair. Other programs ignore it.
pub const SYNTHETIC_PAIR: &str = "forerun_made_pair";

/// The factor by which queries are larger than in a random model. Larger queries sharpen attention:
/// a row attends to a few positions, so the text depends on more than its last tokens.
pub(super) const SHARPNESS: f32 = 4.0;

/// The weights of a synthetic pair. The target's first layers, embedding, norm and head are the
/// drafter's. The outputs of the target's other layers are multiplied by a factor ε. At ε = 0 the
/// two models agree exactly. The larger ε is, the more of the drafter's tokens the target rejects.
#[derive(Clone, Copy, Debug)]
pub struct SyntheticWeights<'a> {
    /// The target's shape.
    pub target: &'a Config,
    /// The number of the drafter's layers.
    pub draft_layers: usize,
    /// The factor that multiplies the outputs of the drafter's layers after the first. The smaller
    /// it is, the more similar are the hidden states that neighbouring layers read, as in trained
    /// models.
    pub residual: f32,
    /// The seed that determines the weights.
    pub seed: u64,
    /// The type in which the weights are stored.
    pub dtype: RandomDtype,
}

impl SyntheticWeights<'_> {
    /// Writes the drafter as a Hugging Face directory, with a byte tokenizer.
    ///
    /// # Errors
    /// The errors of [`write_random_checkpoint`](super::write_random_checkpoint).
    pub fn write_drafter(&self, dir: &Path) -> Result<(), LoadError> {
        let config = Config { num_hidden_layers: self.draft_layers, ..self.target.clone() };
        let label = json!({ "role": "drafter", "seed": self.seed });
        self.weights(&config, 1.0, label).write(dir)
    }

    /// Writes the target. The outputs of its layers after the drafter's are multiplied by
    /// `epsilon`.
    ///
    /// # Errors
    /// The errors of [`write_random_checkpoint`](super::write_random_checkpoint).
    pub fn write_target(&self, dir: &Path, epsilon: f32) -> Result<(), LoadError> {
        let label = json!({
            "role": "target", "seed": self.seed, "draft_layers": self.draft_layers,
            "epsilon": epsilon,
        });
        self.weights(self.target, epsilon, label).write(dir)
    }

    fn weights<'a>(
        &self,
        config: &'a Config,
        epsilon: f32,
        label: serde_json::Value,
    ) -> RandomWeights<'a> {
        let (damped_from, residual) = (self.draft_layers, self.residual);
        let weights = RandomWeights::new(config, self.seed, self.dtype);
        let (sharpness, label) = (SHARPNESS, Some(label));
        RandomWeights { damped_from, epsilon, residual, sharpness, label, ..weights }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::random::example_config;
    use crate::checkpoint::{Checkpoint, LayerTensor, Tensor};

    #[test]
    fn the_target_contains_the_drafter_and_scaled_layers() {
        let folder = tempfile::tempdir().unwrap();
        let (target, drafter) = (folder.path().join("target"), folder.path().join("drafter"));
        let config = Config { num_hidden_layers: 4, ..example_config() };
        let (dtype, residual) = (RandomDtype::Bf16, 0.25);
        let weights =
            SyntheticWeights { target: &config, draft_layers: 2, residual, seed: 7, dtype };
        weights.write_drafter(&drafter).unwrap();
        weights.write_target(&target, 0.5).unwrap();
        let label = std::fs::read_to_string(target.join("config.json")).unwrap();
        let label: serde_json::Value = serde_json::from_str(&label).unwrap();
        assert_eq!(label[SYNTHETIC_PAIR]["epsilon"], 0.5);
        let [target, drafter] = [target, drafter].map(|dir| Checkpoint::open(&dir).unwrap());
        assert_eq!([&target, &drafter].map(|c| c.config().num_hidden_layers), [4, 2]);
        for tensor in drafter.architecture().tensors() {
            assert_eq!(target.tensor(tensor).unwrap(), drafter.tensor(tensor).unwrap(), "{tensor}");
        }
        let root_mean_square = |layer, part| {
            let values = target.tensor(Tensor::Layer(layer, part)).unwrap();
            let squares: f32 = values.iter().map(|value| value * value).sum();
            (squares / values.len() as f32).sqrt()
        };
        let near = |a: f32, b: f32| (a / b - 1.0).abs() < 0.1;
        for (layer, factor) in [(1, 0.25), (2, 0.5), (3, 0.5)] {
            for part in [LayerTensor::Down, LayerTensor::Output] {
                assert!(near(root_mean_square(layer, part), factor * root_mean_square(0, part)));
            }
            let [up, first_up] = [layer, 0].map(|layer| root_mean_square(layer, LayerTensor::Up));
            assert!(near(up, first_up));
        }
        let [query, key] =
            [LayerTensor::Query, LayerTensor::Key].map(|part| root_mean_square(1, part));
        assert!(near(query, SHARPNESS * key));
    }
}
