//! Pairs that were made: a target of any size, and a drafter that is right as often as asked.

use std::path::Path;

use serde_json::json;

use super::{RandomDtype, RandomWeights};
use crate::checkpoint::LoadError;
use crate::config::Config;

/// The name under which the `config.json` of a made model says that it is one. Other programs pass
/// over it.
pub const SYNTHETIC_PAIR: &str = "forerun_made_pair";

/// How much sharper attention is than in a random model: with queries so long a row attends to a few
/// positions, so that text depends on more than its last tokens.
const SHARPNESS: f32 = 4.0;

/// The weights of a pair. The target's first layers, embedding, norm and head are the drafter's; what
/// its further layers add is multiplied by some ε. At 0 the two agree exactly, and the larger ε is, the
/// more of the drafter's tokens the target rejects.
#[derive(Clone, Copy, Debug)]
pub struct SyntheticWeights<'a> {
    /// The target's shape.
    pub target: &'a Config,
    /// Layers of the drafter.
    pub draft_layers: usize,
    /// What the drafter's layers behind the first add is multiplied by this. The less that is, the more
    /// alike are the hidden states that neighbouring layers read, as in trained models.
    pub residual: f32,
    /// What the weights follow from.
    pub seed: u64,
    /// The type in which they are stored.
    pub dtype: RandomDtype,
}

impl SyntheticWeights<'_> {
    /// Writes the drafter as a Hugging Face directory, with a tokenizer of bytes.
    ///
    /// # Errors
    ///
    /// As [`write_random_checkpoint`](super::write_random_checkpoint).
    pub fn write_drafter(&self, dir: &Path) -> Result<(), LoadError> {
        let config = Config { num_hidden_layers: self.draft_layers, ..self.target.clone() };
        let label = json!({ "role": "drafter", "seed": self.seed });
        self.weights(&config, 1.0, label).write(dir)
    }

    /// Writes the target, whose layers behind the drafter's count `epsilon` times.
    ///
    /// # Errors
    ///
    /// As [`write_random_checkpoint`](super::write_random_checkpoint).
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
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::checkpoint::random::example_config;
    use crate::checkpoint::{Checkpoint, LayerTensor, Tensor};

    #[test]
    fn the_target_is_the_drafter_and_more() {
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
        for tensor in Tensor::all(drafter.config()) {
            assert_eq!(target.tensor(tensor).unwrap(), drafter.tensor(tensor).unwrap(), "{tensor}");
        }
        let spread = |layer, part| {
            let values = target.tensor(Tensor::Layer(layer, part)).unwrap();
            let squares: f32 = values.iter().map(|value| value * value).sum();
            (squares / values.len() as f32).sqrt()
        };
        let near = |a: f32, b: f32| (a / b - 1.0).abs() < 0.1;
        for (layer, share) in [(1, 0.25), (2, 0.5), (3, 0.5)] {
            assert!(near(spread(layer, LayerTensor::Down), share * spread(0, LayerTensor::Down)));
            assert!(near(
                spread(layer, LayerTensor::Output),
                share * spread(0, LayerTensor::Output)
            ));
            assert!(near(spread(layer, LayerTensor::Up), spread(0, LayerTensor::Up)));
        }
        assert!(near(spread(1, LayerTensor::Query), SHARPNESS * spread(1, LayerTensor::Key)));
    }
}
