//! The inputs that layers have next to the hidden state.

use super::inputs::embed;
use super::rows::new_tokens;
use crate::kernels::{Activations, activate, linear, norm_parts};
use crate::team::Team;
use crate::tensor_parallel::Members;
use crate::weights::{PackedOwnInput, Weights};
use forerun_formats::OwnInput;
use forerun_model::Pass;

/// The inputs that layers have next to the hidden state, and what is computed from them.
#[derive(Default)]
pub(super) struct OwnInputs {
    embeddings: Vec<f32>, // [rows, hidden]
    inputs: Vec<f32>,     // [rows, layers, width]
    stored: Vec<f32>,     // [layers, width]
    gate: Vec<f32>,       // [rows, width]
    gate_input: Vec<f32>, // [rows, 2, width]
    gated: Vec<f32>,      // [rows, width]
    activations: Activations,
}

impl OwnInputs {
    /// Computes the inputs of all layers, if they have any.
    pub(super) fn compute(
        &mut self,
        (weights, team): (&Weights, &Team),
        members: Option<&Members>,
        pass: &Pass<'_>,
    ) {
        let architecture = weights.architecture();
        let (Some(packed), Some(OwnInput { width, .. })) =
            (&weights.inputs.own, architecture.own_input())
        else {
            return;
        };
        let Self { embeddings, inputs, stored, activations, .. } = self;
        let tokens = || new_tokens(pass);
        embeddings.clear();
        tokens().for_each(|token| embed(weights, &[token], embeddings));
        if let Some(members) = members {
            let size = architecture.hidden_size;
            members.gather_tokens(embeddings, size, &weights.vocabulary, &mut tokens());
        }
        let (rows, all) = (tokens().count(), architecture.own_inputs_width());
        inputs.resize(rows * all, 0.0);
        stored.resize(all, 0.0);
        linear(team, embeddings, &packed.projection, activations, inputs);
        let scale = 1.0 / (architecture.hidden_size as f32).sqrt();
        let factor = (width as f32).sqrt();
        for (row, token) in inputs.chunks_exact_mut(all).zip(tokens()) {
            row.iter_mut().for_each(|x| *x *= scale);
            let norm = (&packed.norm[..], width);
            norm_parts(team.isa(), architecture.norm, row, norm, architecture.norm_epsilon);
            packed.stored(token, stored);
            for (x, stored) in row.iter_mut().zip(&*stored) {
                *x = (*x + stored * factor) * std::f32::consts::FRAC_1_SQRT_2;
            }
        }
    }

    /// Computes `out = up(activation(gate(hidden)) · input)`, with the inputs of a layer.
    pub(super) fn project(
        &mut self,
        team: &Team,
        packed: &PackedOwnInput,
        layer: usize,
        hidden: &[f32],  // [rows, hidden]
        out: &mut [f32], // [rows, hidden]
    ) {
        let Self { inputs, gate, gate_input, gated, activations, .. } = self;
        let width = packed.gate.outputs();
        let rows = hidden.len() / packed.gate.inputs();
        let stride = inputs.len() / rows.max(1);
        gate.resize(rows * width, 0.0);
        linear(team, hidden, &packed.gate, activations, gate);
        gate_input.clear();
        for (gate, inputs) in gate.chunks_exact(width).zip(inputs.chunks_exact(stride.max(1))) {
            gate_input.extend_from_slice(gate);
            gate_input.extend_from_slice(&inputs[layer * width..][..width]);
        }
        gated.resize(rows * width, 0.0);
        activate(team, &packed.shape, gate_input, gated);
        linear(team, gated, &packed.up, activations, out);
    }
}
