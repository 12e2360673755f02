//! The second half of a layer: the dense MLP, and the experts of a mixture.

use super::routing::{Choice, Routing};
use super::rows::Adapted;
use crate::adapters::{AdapterScratch, Projected};
use crate::kernels::{
    Activations, NormWeights, PackedMatrix, Product, activate, add_scaled, linear, linear_group,
    norm_rows,
};
use crate::team::Team;
use crate::tensor_parallel::{LayerWidths, Members, Widths};
use crate::weights::{PackedExperts, PackedMlp};
use forerun_formats::Norm;
use forerun_vector::sigmoid;

/// The buffers of the MLP and of the experts.
#[derive(Default)]
pub(super) struct MlpBlock {
    gate_up: Vec<f32>,          // [rows, 2, intermediate]
    pub(super) inner: Vec<f32>, // [rows, intermediate]
    dense: Vec<f32>,            // [rows, hidden]
    shared_gate: Vec<f32>,      // [rows]
    normed: Vec<f32>,           // [rows, hidden]
    activations: Activations,
    adapters: AdapterScratch,
    mixture: Mixture,
}

/// The buffers of the experts. A choice is an expert that a row has chosen; those of an expert
/// follow one another.
#[derive(Default)]
struct Mixture {
    router_input: Vec<f32>, // [rows, hidden]
    input: Vec<f32>,        // [rows, hidden]
    scores: Vec<f32>,       // [rows, experts]
    routing: Routing,
    x: Vec<f32>,       // [choices, hidden]
    gate_up: Vec<f32>, // [choices, 2, intermediate]
    inner: Vec<f32>,   // [choices, intermediate]
    out: Vec<f32>,     // [choices, hidden]
    /// The inputs of the experts that are computed together.
    activations: [Activations; EXPERTS_TOGETHER],
}

/// The number of experts that are computed together.
const EXPERTS_TOGETHER: usize = 8;

/// Who computes the products: a team, and the other members that compute their other outputs, if
/// there are any.
#[derive(Clone, Copy)]
pub(super) struct Workers<'a> {
    pub(super) team: &'a Team,
    pub(super) members: Option<(&'a Members, &'a LayerWidths)>,
}

impl Workers<'_> {
    fn gather(
        &self,
        values: &mut Vec<f32>,
        rows: usize,
        widths: impl FnOnce(&LayerWidths) -> &Widths,
    ) {
        if let Some((members, of_layer)) = self.members {
            members.gather(values, rows, widths(of_layer));
        }
    }
}

impl MlpBlock {
    /// Computes what the dense MLP and the experts add to the hidden state. They read `x`, unless
    /// experts have norms of their own. `hidden`, `x`, `delta`: `[rows, hidden]`.
    pub(super) fn run(
        &mut self,
        workers: Workers<'_>,
        (mlp, experts): (Option<&PackedMlp>, Option<&PackedExperts>),
        adapted: Adapted<'_>,
        (hidden, x): (&[f32], &[f32]),
        delta: &mut Vec<f32>,
    ) {
        let team = workers.team;
        match (mlp, experts) {
            (None, None) => delta.fill(0.0),
            (Some(mlp), None) => self.dense(workers, mlp, adapted, x, delta),
            (None, Some(experts)) => self.experts(workers, experts, [hidden, x], delta),
            (Some(mlp), Some(experts)) => {
                self.experts(workers, experts, [hidden, x], delta);
                let mut dense = std::mem::take(&mut self.dense);
                self.dense(workers, mlp, adapted, x, &mut dense);
                self.apply_shared_gate(team, experts, x, &mut dense);
                if let Some(norms) = &experts.norms {
                    self.norm(team, &norms.dense_output, &mut dense);
                }
                add_scaled(team.isa(), delta, &dense, 1.0);
                self.dense = dense;
            }
        }
    }

    /// Computes what the experts add alone: `delta` is `[rows, hidden]`. The others are as in
    /// [`Self::run`].
    pub(super) fn experts(
        &mut self,
        workers: Workers<'_>,
        experts: &PackedExperts,
        [hidden, x]: [&[f32]; 2],
        delta: &mut [f32],
    ) {
        self.mixture.run(workers, experts, &mut self.activations, (hidden, x), delta);
        if let Some(norms) = &experts.norms {
            self.norm(workers.team, &norms.output, delta);
        }
    }

    fn norm(&mut self, team: &Team, norm: &NormWeights, rows: &mut [f32]) {
        rms_norm(team, rows, norm, &mut self.normed);
        rows.copy_from_slice(&self.normed);
    }

    fn dense(
        &mut self,
        workers: Workers<'_>,
        mlp: &PackedMlp,
        adapted: Adapted<'_>,
        x: &[f32],
        out: &mut Vec<f32>,
    ) {
        let Self { gate_up, inner, activations, adapters, .. } = self;
        let team = workers.team;
        let size = mlp.shape.intermediate_size;
        let rows = x.len() / mlp.gate_up.inputs();
        gate_up.resize(rows * if mlp.shape.gated { 2 * size } else { size }, 0.0);
        inner.resize(rows * size, 0.0);
        Product { x, weights: mlp.gate_up.matrices(), activations, out: gate_up }.compute(team);
        adapted.add(team, Projected::GateUp, x, gate_up, adapters);
        activate(team, &mlp.shape, gate_up, inner);
        workers.gather(inner, rows, |widths| &widths.inner);
        out.resize(rows * mlp.down.outputs(), 0.0);
        Product { x: inner, weights: mlp.down.matrices(), activations, out }.compute(team);
        adapted.add(team, Projected::Down, inner, out, adapters);
        workers.gather(out, rows, |widths| &widths.mlp);
    }

    /// Multiplies the output of the dense MLP by the sigmoid of a projection of its input, if the
    /// layer does so.
    fn apply_shared_gate(
        &mut self,
        team: &Team,
        experts: &PackedExperts,
        x: &[f32],
        dense: &mut [f32],
    ) {
        let Some(gate) = &experts.shared_gate else { return };
        let Self { shared_gate, activations, .. } = self;
        let size = gate.inputs();
        shared_gate.resize(x.len() / size, 0.0);
        linear(team, x, gate, activations, shared_gate);
        for (row, gate) in dense.chunks_exact_mut(size).zip(shared_gate) {
            let factor = sigmoid(*gate);
            row.iter_mut().for_each(|value| *value *= factor);
        }
    }
}

impl Mixture {
    /// Computes the experts. Each is read once for all rows that have chosen it, and a row adds its
    /// experts in their order.
    fn run(
        &mut self,
        workers: Workers<'_>,
        packed: &PackedExperts,
        router_activations: &mut Activations,
        (hidden, mut x): (&[f32], &[f32]),
        delta: &mut [f32],
    ) {
        let team = workers.team;
        let Self { scores, routing, x: gathered, gate_up, inner, out, activations, .. } = self;
        let (size, mlp) = (packed.router.inputs(), &packed.shape.mlp);
        scores.resize(x.len() / size * packed.shape.n_experts, 0.0);
        let mut router_x = x;
        if let Some(norm) = &packed.router_norm {
            rms_norm(team, hidden, norm, &mut self.router_input);
            router_x = &self.router_input;
        }
        if let Some(norms) = &packed.norms {
            rms_norm(team, hidden, &norms.input, &mut self.input);
            x = &self.input;
        }
        linear(team, router_x, &packed.router, router_activations, scores);
        let (correction, scales) = (packed.correction.as_deref(), packed.scales.as_deref());
        let choices = routing.choose(&packed.shape, scores, correction, scales);
        gathered.clear();
        let rows = choices.iter().map(|choice| &x[choice.row * size..][..size]);
        rows.for_each(|row| gathered.extend_from_slice(row));
        let width = if mlp.gated { 2 * mlp.intermediate_size } else { mlp.intermediate_size };
        gate_up.resize(choices.len() * width, 0.0);
        inner.resize(choices.len() * mlp.intermediate_size, 0.0);
        let outputs = packed.experts.first().map_or(0, |expert| expert.down.outputs());
        out.resize(choices.len() * outputs, 0.0);
        let weights = |expert: usize| packed.experts[expert].gate_up.matrices();
        project(team, choices, weights, (gathered, gate_up), activations);
        activate(team, mlp, gate_up, inner);
        workers.gather(inner, choices.len(), |widths| &widths.expert_inner);
        let weights = |expert: usize| packed.experts[expert].down.matrices();
        project(team, choices, weights, (inner, out), activations);
        workers.gather(out, choices.len(), |widths| &widths.mlp);
        delta.fill(0.0);
        for (choice, output) in choices.iter().zip(out.chunks_exact(size)) {
            let row = &mut delta[choice.row * size..][..size];
            add_scaled(team.isa(), row, output, choice.weight);
        }
    }
}

/// Computes the RMS norm of rows.
fn rms_norm(team: &Team, rows: &[f32], norm: &NormWeights, out: &mut Vec<f32>) {
    out.resize(rows.len(), 0.0);
    norm_rows(team.isa(), Norm::Rms, rows, norm, out);
}

/// Computes the products of each chosen expert with the rows that have chosen it. `x`, `out`:
/// `[choices, …]`.
fn project<'a>(
    team: &Team,
    choices: &[Choice],
    weights: impl Fn(usize) -> &'a [PackedMatrix],
    (mut x, mut out): (&[f32], &mut [f32]),
    activations: &mut [Activations; EXPERTS_TOGETHER],
) {
    let [inputs, outputs] = [x.len(), out.len()].map(|length| length / choices.len().max(1));
    let mut experts = choices.chunk_by(|a, b| a.expert == b.expert).peekable();
    while experts.peek().is_some() {
        // The buffers come first: once they run out, no expert has been taken.
        let products =
            activations.iter_mut().zip(experts.by_ref()).map(|(activations, choices)| {
                let (rows, rest) = x.split_at(choices.len() * inputs);
                x = rest;
                let (results, rest) =
                    std::mem::take(&mut out).split_at_mut(choices.len() * outputs);
                out = rest;
                Product { x: rows, weights: weights(choices[0].expert), activations, out: results }
            });
        linear_group(team, products);
    }
}
