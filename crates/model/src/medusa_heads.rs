//! Medusa heads: each predicts one position from one hidden state of the target.
//!
//! *Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads*, Cai et al.
//! 2024, arXiv 2401.10774, section 2.1.1: `p = head(x + SiLU(W x + b))`, with one or more residual
//! layers.

use crate::kernels::{Activations, exp, linear};
use crate::language_model::{FeatureHeads, Logits, ModelError};
use crate::speculator::MedusaWeights;
use crate::team::Team;
use std::sync::Arc;

/// Medusa heads on a team.
pub struct MedusaHeads {
    weights: Arc<MedusaWeights>,
    team: Arc<Team>,
    states: Vec<f32>, // [heads, hidden]
    delta: Vec<f32>,  // [hidden]
    activations: Activations,
}

impl MedusaHeads {
    /// Creates heads that run on `team`.
    #[must_use]
    pub fn new(weights: Arc<MedusaWeights>, team: Arc<Team>) -> Self {
        let (states, delta) = (Vec::new(), vec![0.0; weights.hidden_size]);
        Self { weights, team, states, delta, activations: Activations::default() }
    }
}

impl FeatureHeads for MedusaHeads {
    fn vocab_size(&self) -> usize {
        self.weights.vocab_size
    }

    fn logits(&mut self, features: &[f32]) -> Result<Logits, ModelError> {
        let Self { weights, team, states, delta, activations } = self;
        let (size, vocab_size) = (weights.hidden_size, weights.vocab_size);
        if features.len() != size {
            let (expected, found) = (size, features.len());
            return Err(ModelError::Features { tokens: 1, expected, token: 0, found });
        }
        states.clear();
        for layers in &weights.layers {
            states.extend_from_slice(features);
            let first = states.len() - size;
            for layer in layers {
                linear(team, &states[first..], layer, activations, delta);
                for (state, delta) in states[first..].iter_mut().zip(&*delta) {
                    *state += delta / (1.0 + exp(-delta));
                }
            }
        }
        let mut values = vec![0.0; weights.n_heads() * vocab_size];
        // A head with its own matrix reads one state; the target's matrix reads the states of all heads.
        let inputs = states.chunks_exact(states.len() / weights.heads.len());
        let rows = values.chunks_exact_mut(weights.n_heads() / weights.heads.len() * vocab_size);
        for ((head, states), rows) in weights.heads.iter().zip(inputs).zip(rows) {
            linear(team, states, head, activations, rows);
        }
        Ok(Logits { values, vocab_size, computed_tokens: 1 })
    }
}
