//! The options of random EAGLE-3 drafters.

use crate::architecture::FeatureNorm;
use crate::config::Config;
use serde_json::{Value, json};

/// The layout and the options of an EAGLE-3 drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eagle3Options {
    /// Whether the layout is that of vLLM's speculators, with three features, or the authors', with
    /// two.
    pub speculators: bool,
    /// Number of layers.
    pub layers: usize,
    /// The norm of features before their projection.
    pub feature_norm: FeatureNorm,
    /// Whether the first layer adds to the normed hidden state.
    pub norm_before_residual: bool,
    /// Whether the next row reads the hidden state after the final norm.
    pub norm_output: bool,
}

impl Eagle3Options {
    /// Returns both layouts with all combinations of options. The number of layers alternates.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for speculators in [false, true] {
            let parts = if speculators { 3 } else { 2 };
            for feature_norm in [FeatureNorm::None, FeatureNorm::Whole, FeatureNorm::Parts(parts)] {
                for flags in 0..4 {
                    let (norm_before_residual, norm_output) = (flags & 1 == 1, flags & 2 == 2);
                    let layers = if speculators { 1 + all.len() % 2 } else { 1 };
                    all.push(Self {
                        speculators,
                        layers,
                        feature_norm,
                        norm_before_residual,
                        norm_output,
                    });
                }
            }
        }
        all
    }

    /// The target's layers before each feature, as speculators count them.
    pub(super) fn features(self, target: &Config) -> Vec<usize> {
        let layers = target.num_hidden_layers;
        if self.speculators { vec![layers, 0, layers / 2] } else { vec![layers, 1] }
    }

    /// Returns the drafter's configuration. `layer` is that of its layers.
    pub(super) fn config(self, layer: Value, target: &Config, draft_vocab_size: usize) -> Value {
        let features = self.features(target);
        let mut config = match self.speculators {
            true => json!({
                "model_type": "speculator_model",
                "architectures": ["Eagle3DraftModel"],
                "speculators_model_type": "eagle3",
                "speculators_version": "0.5.0",
                "speculators_config": {
                    "algorithm": "eagle3",
                    "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
                },
                "target_hidden_size": null,
                "eagle_aux_hidden_state_layer_ids": features,
                "transformer_layer_config": layer,
            }),
            false => {
                let mut config = layer;
                let indices: Vec<usize> = features.iter().map(|layers| layers - 1).collect();
                config["architectures"] = json!(["LlamaForCausalLMEagle3"]);
                config["eagle_config"] = json!({"eagle_aux_hidden_state_layer_ids": indices});
                config
            }
        };
        config["draft_vocab_size"] = json!(draft_vocab_size);
        config["norm_before_residual"] = json!(self.norm_before_residual);
        config["norm_output"] = json!(self.norm_output);
        config["norm_before_fc"] = json!(self.feature_norm == FeatureNorm::Whole);
        config["fc_norm"] = json!(matches!(self.feature_norm, FeatureNorm::Parts(_)));
        config
    }
}
