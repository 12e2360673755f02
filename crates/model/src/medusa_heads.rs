//! Medusa heads: each predicts one position from one hidden state of the target.
//!
//! *Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads*, Cai et al.
//! 2024, arXiv 2401.10774, section 2.1.1: `p = head(x + SiLU(W x + b))`, with one or more residual
//! layers.

use crate::kernels::{Activations, exp, linear};
use crate::speculator::MedusaWeights;
use crate::team::Team;
use forerun_core::{SequenceId, node_of_row};
use forerun_lm::{
    BatchEntry, FeatureModel, ForwardOutput, ForwardRequest, LanguageModel, ModelError,
    complete_each,
};
use std::sync::Arc;

/// Medusa heads on a team.
///
/// The row after a node of depth `d` is that of head `d`, whatever the node's token: it depends on the
/// features of the last token that the target has read alone.
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

    /// Returns the number of heads: the largest number of positions that can be drafted.
    #[must_use]
    pub fn n_heads(&self) -> usize {
        self.weights.n_heads()
    }

    fn answer(&mut self, request: &ForwardRequest<'_>) -> Result<ForwardOutput, ModelError> {
        let ForwardRequest { tokens, tree, first_row, .. } = *request;
        let last_read = tokens.len().checked_sub(2).ok_or(ModelError::Empty)?;
        let feature = request.features.and_then(|features| features.rows_from(last_read).next());
        let feature = feature.unwrap_or_default();
        let expected = self.weights.hidden_size;
        if feature.len() != expected {
            let (tokens, token, found) = (last_read + 1, last_read, feature.len());
            return Err(ModelError::Features { tokens, expected, token, found });
        }
        let (n_heads, vocab_size) = (self.n_heads(), self.weights.vocab_size);
        let depth = |row| node_of_row(row).map_or(0, |node| tree.depth(node));
        if tree.max_depth() >= n_heads {
            return Err(ModelError::Context { position: tree.max_depth(), context: n_heads });
        }
        let by_depth = self.head_logits(feature);
        let by_depth: Vec<&[f32]> = by_depth.chunks_exact(vocab_size).collect();
        let rows = (first_row..=tree.len()).flat_map(|row| by_depth[depth(row)]);
        let logits = rows.copied().collect();
        Ok(ForwardOutput { logits, vocab_size, computed_tokens: 1, features: None })
    }

    /// Computes one row of logits per head, given the features of the last token that the target has
    /// read: `[heads, vocab]`.
    fn head_logits(&mut self, feature: &[f32]) -> Vec<f32> {
        let Self { weights, team, states, delta, activations } = self;
        let (size, vocab_size) = (weights.hidden_size, weights.vocab_size);
        states.clear();
        for layers in &weights.layers {
            states.extend_from_slice(feature);
            let first = states.len() - size;
            for layer in layers {
                linear(team, &states[first..], layer, activations, delta);
                for (state, delta) in states[first..].iter_mut().zip(&*delta) {
                    *state += delta / (1.0 + exp(-delta));
                }
            }
        }
        let mut logits = vec![0.0; weights.n_heads() * vocab_size];
        // A head with its own matrix reads one state; the target's matrix reads the states of all heads.
        let inputs = states.chunks_exact(states.len() / weights.heads.len());
        let rows = logits.chunks_exact_mut(weights.n_heads() / weights.heads.len() * vocab_size);
        for ((head, states), rows) in weights.heads.iter().zip(inputs).zip(rows) {
            linear(team, states, head, activations, rows);
        }
        logits
    }
}

impl LanguageModel for MedusaHeads {
    fn vocab_size(&self) -> usize {
        self.weights.vocab_size
    }

    /// Heads have no context of their own.
    fn context_length(&self) -> usize {
        usize::MAX
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| self.answer(request));
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

impl FeatureModel for MedusaHeads {}
