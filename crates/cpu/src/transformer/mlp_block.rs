//! The second half of a layer: the dense MLP, and the experts of a mixture.

use super::routing::Routing;
use crate::kernels::{Activations, Product, activate, add_scaled, linear, linear_group};
use crate::team::Team;
use crate::weights::{PackedExperts, PackedMlp};
use forerun_vector::sigmoid;

/// The buffers of the MLP and of the experts.
#[derive(Default)]
pub(super) struct MlpBlock {
    gate_up: Vec<f32>,          // [rows, 2, intermediate]
    pub(super) inner: Vec<f32>, // [rows, intermediate]
    dense: Vec<f32>,            // [rows, hidden]
    scores: Vec<f32>,           // [rows, experts]
    shared_gate: Vec<f32>,      // [rows]
    routing: Routing,
    /// One for each expert that some row of the pass has chosen.
    experts: Vec<ExpertRows>,
    activations: Activations,
}

/// The rows of a pass that have chosen an expert.
#[derive(Default)]
struct ExpertRows {
    expert: usize,
    rows: Vec<usize>,
    weights: Vec<f32>, // [rows]
    x: Vec<f32>,       // [rows, hidden]
    gate_up: Vec<f32>, // [rows, 2, intermediate]
    inner: Vec<f32>,   // [rows, intermediate]
    out: Vec<f32>,     // [rows, hidden]
    activations: Activations,
}

impl MlpBlock {
    /// Computes what the dense MLP and the experts add to the hidden state. `x`, `delta`: `[rows, hidden]`.
    pub(super) fn run(
        &mut self,
        team: &Team,
        (mlp, experts): (Option<&PackedMlp>, Option<&PackedExperts>),
        x: &[f32],
        delta: &mut [f32],
    ) {
        match (mlp, experts) {
            (None, None) => delta.fill(0.0),
            (Some(mlp), None) => self.dense(team, mlp, x, delta),
            (None, Some(experts)) => self.mixture(team, experts, x, delta),
            (Some(mlp), Some(experts)) => {
                self.mixture(team, experts, x, delta);
                let mut dense = std::mem::take(&mut self.dense);
                dense.resize(delta.len(), 0.0);
                self.dense(team, mlp, x, &mut dense);
                self.apply_shared_gate(team, experts, x, &mut dense);
                add_scaled(team.isa(), delta, &dense, 1.0);
                self.dense = dense;
            }
        }
    }

    fn dense(&mut self, team: &Team, mlp: &PackedMlp, x: &[f32], out: &mut [f32]) {
        let Self { gate_up, inner, activations, .. } = self;
        let size = mlp.shape.intermediate_size;
        let rows = x.len() / mlp.gate_up.inputs();
        gate_up.resize(rows * if mlp.shape.gated { 2 * size } else { size }, 0.0);
        inner.resize(rows * size, 0.0);
        Product { x, weights: mlp.gate_up.matrices(), activations, out: gate_up }.compute(team);
        activate(team, &mlp.shape, gate_up, inner);
        Product { x: inner, weights: mlp.down.matrices(), activations, out }.compute(team);
    }

    /// Multiplies the output of the dense MLP by the sigmoid of a projection of its input, if the layer does so.
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

    /// Computes the experts. Each is read once for all rows that have chosen it, and a row adds its experts
    /// in their order.
    fn mixture(&mut self, team: &Team, packed: &PackedExperts, x: &[f32], out: &mut [f32]) {
        let size = packed.router.inputs();
        let rows = x.len() / size;
        self.scores.resize(rows * packed.shape.n_experts, 0.0);
        linear(team, x, &packed.router, &mut self.activations, &mut self.scores);
        let active = self.gather(packed, x, size);
        let experts = &mut self.experts[..active];
        let inner = packed.shape.mlp.intermediate_size;
        let width = if packed.shape.mlp.gated { 2 * inner } else { inner };
        for expert in &mut *experts {
            let rows = expert.rows.len();
            expert.gate_up.resize(rows * width, 0.0);
            expert.inner.resize(rows * inner, 0.0);
            expert.out.resize(rows * size, 0.0);
        }
        linear_group(
            team,
            experts.iter_mut().map(|rows| {
                let ExpertRows { expert, x, gate_up, activations, .. } = rows;
                let weights = packed.experts[*expert].gate_up.matrices();
                Product { x, weights, activations, out: gate_up }
            }),
        );
        for ExpertRows { gate_up, inner, .. } in &mut *experts {
            activate(team, &packed.shape.mlp, gate_up, inner);
        }
        linear_group(
            team,
            experts.iter_mut().map(|rows| {
                let ExpertRows { expert, inner, out, activations, .. } = rows;
                let weights = packed.experts[*expert].down.matrices();
                Product { x: inner, weights, activations, out }
            }),
        );
        out.fill(0.0);
        for expert in experts {
            let outputs = expert.out.chunks_exact(size).zip(&expert.weights);
            for (&row, (output, &weight)) in expert.rows.iter().zip(outputs) {
                add_scaled(team.isa(), &mut out[row * size..][..size], output, weight);
            }
        }
    }

    /// Gathers the rows of each chosen expert. Returns the number of these experts.
    fn gather(&mut self, packed: &PackedExperts, x: &[f32], size: usize) -> usize {
        let Self { routing, scores, experts, .. } = self;
        let choices = routing.choose(&packed.shape, scores, packed.correction.as_deref());
        let mut active = 0;
        for choice in choices {
            if active == 0 || experts[active - 1].expert != choice.expert {
                if active == experts.len() {
                    experts.push(ExpertRows::default());
                }
                let next = &mut experts[active];
                next.expert = choice.expert;
                next.rows.clear();
                next.weights.clear();
                next.x.clear();
                active += 1;
            }
            let expert = &mut experts[active - 1];
            expert.rows.push(choice.row);
            expert.weights.push(choice.weight);
            expert.x.extend_from_slice(&x[choice.row * size..][..size]);
        }
        active
    }
}
