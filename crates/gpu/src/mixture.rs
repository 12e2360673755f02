//! The dispatches of a mixture of experts.
//!
//! They are seven: the router, the choice of experts, tiles of rows with the same expert, the gate
//! and up projection, the activation, the down projection, and the weighted sum. A tile has at most
//! eight rows, and a product reads its expert once. A projection whose experts do not fit in one
//! buffer is a dispatch for each.
//!
//! The choice stays on the GPU, since reading it back would cost a wait in every layer. The outputs
//! of experts are stored and then added in ascending order: atomic additions have no order.

use crate::error::GpuFailure;
use crate::expert_matrix::ExpertMatrix;
use crate::kernel::{EXPERT_OUTPUTS, Kernel, TEAMS};
use crate::layer_weights::ExpertWeights;
use crate::parameters::{self, Route};
use crate::pass::{MAX_EXPERT_ROWS, PassRun};
use crate::product::Store;
use forerun_formats::{Experts, Weighting};
use forerun_model::ExpertsElsewhere;
use wgpu::Buffer;

/// How the rows of a pass are distributed over experts.
#[derive(Clone, Copy)]
pub(crate) struct Distribution {
    /// Number of choices: of rows and their experts.
    pub(crate) choices: u32,
    /// The largest number of choices in a tile.
    tile: u32,
    /// The largest number of tiles.
    pub(crate) tiles: u32,
}

impl Distribution {
    pub(crate) fn new(experts: &Experts, rows: u32) -> Self {
        let choices = rows * experts.router.experts_per_token as u32;
        let tile = rows.next_power_of_two().min(MAX_EXPERT_ROWS);
        // Each expert may have one tile that is not full.
        let tiles = choices.min(choices / tile + experts.n_experts as u32);
        Self { choices, tile, tiles }
    }
}

/// The experts of layers that are on another device.
pub(crate) struct ElsewhereExperts<'a> {
    pub(crate) compute: &'a mut ExpertsElsewhere<'a>,
    pub(crate) staging: &'a Buffer,
    /// Where their inputs are in the staging buffer, in bytes.
    pub(crate) start: u64,
    pub(crate) states: Vec<f32>, // [2, rows, hidden]
    pub(crate) output: Vec<f32>, // [rows, hidden]
}

impl PassRun<'_> {
    /// Records a mixture of experts: its output goes to `y`. `x`, `y`: `[rows, hidden]`. Fails if
    /// the experts are on another device, and the GPU has failed.
    pub(crate) fn mixture(
        &mut self,
        layer: usize,
        experts: &ExpertWeights,
        (x, y): (&Buffer, &Buffer),
        store: Store,
    ) -> Result<(), GpuFailure> {
        if experts.are_elsewhere() {
            return self.mixture_elsewhere(layer, (x, y), store);
        }
        let (scratch, rows) = (self.scratch, self.row_count());
        let shape = &experts.shape;
        let distribution = Distribution::new(shape, rows);
        let (hidden, normed) = (scratch.hidden.get(), scratch.normed.get());
        let router_input = match &experts.router_norm {
            Some(norm) => {
                self.norm(norm, (hidden, normed), Store::Set);
                normed
            }
            None => x,
        };
        self.linear(&experts.router, router_input, scratch.scores.get(), Store::Set);
        self.route(experts);
        let x = match &experts.norms {
            Some(norms) => {
                self.norm(&norms.input, (hidden, normed), Store::Set);
                normed
            }
            None => x,
        };
        let parameters = parameters::Tiles {
            experts: shape.n_experts as u32,
            choices: distribution.choices,
            tile: distribution.tile,
            tiles: distribution.tiles,
            layer: layer as u32,
        };
        let choices = scratch.choices.get();
        let buffers = [choices, scratch.members.get(), scratch.tiles.get(), scratch.loads.get()];
        self.recorder.dispatch(Kernel::Tiles, &buffers, &parameters, [1, 1, 1]);
        let (projected, inner) = (scratch.projected.get(), scratch.inner.get());
        let outputs = scratch.expert_outputs.get();
        let chosen = shape.router.experts_per_token as u32;
        self.expert_products(&experts.gate_up, (x, projected), distribution, chosen);
        self.activation(&shape.mlp, (projected, inner), distribution.choices);
        self.expert_products(&experts.down, (inner, outputs), distribution, 1);
        self.add_expert_work(experts, distribution);
        match &experts.norms {
            None => self.mix_experts(chosen, (outputs, y), store),
            Some(norms) => {
                self.mix_experts(chosen, (outputs, normed), Store::Set);
                self.norm(&norms.output, (normed, y), store);
            }
        }
        Ok(())
    }

    /// Lets another device compute a mixture of experts, with its norms, from the hidden states and
    /// `x`. Waits for both.
    fn mixture_elsewhere(
        &mut self,
        layer: usize,
        (x, y): (&Buffer, &Buffer),
        store: Store,
    ) -> Result<(), GpuFailure> {
        let (scratch, recorder) = (self.scratch, &mut self.recorder);
        let elsewhere = self.elsewhere.as_mut().expect("another device with the experts");
        let ElsewhereExperts { compute, staging, start, states, output } = elsewhere;
        let numbers = self.rows.rows.len() * self.weights.architecture().hidden_size;
        let bytes = (numbers * size_of::<f32>()) as u64;
        recorder.copy((scratch.hidden.get(), 0), (staging, *start), bytes);
        recorder.copy((x, 0), (staging, *start + bytes), bytes);
        recorder.read(staging, *start + 2 * bytes, |read| {
            states.clear();
            states.extend_from_slice(bytemuck::cast_slice(&read[*start as usize..]));
        })?;
        let (hidden, inputs) = states.split_at(numbers);
        compute(layer, [hidden, inputs], output);
        let added = scratch.expert_outputs.get();
        let to = if matches!(store, Store::Set) { y } else { added };
        recorder.device().write(to, 0, bytemuck::cast_slice(output));
        if let Store::Add(factor) = store {
            self.add(added, y, factor);
        }
        Ok(())
    }

    /// Records the weighted sum of the experts' outputs.
    fn mix_experts(&mut self, chosen: u32, (outputs, y): (&Buffer, &Buffer), store: Store) {
        let width = self.weights.architecture().hidden_size as u32;
        let (adds, factor) = store.parts();
        let parameters = parameters::Mix { width, chosen, adds: adds.into(), factor };
        let groups = [width.div_ceil(64), self.row_count(), 1];
        let buffers = [self.scratch.choices.get(), outputs, y];
        self.recorder.dispatch(Kernel::Mix, &buffers, &parameters, groups);
    }

    fn route(&mut self, experts: &ExpertWeights) {
        let (shape, router) = (&experts.shape, experts.shape.router);
        let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
        let groups = router.groups;
        let parameters = Route {
            experts: shape.n_experts as u32,
            chosen: router.experts_per_token as u32,
            weighting: match router.weighting {
                Weighting::Softmax => 0,
                Weighting::SoftmaxOfChosen => 1,
                Weighting::Sigmoid => 2,
            },
            flags: flag(router.normalised, Route::NORMALISED)
                | flag(router.correction, Route::HAS_CORRECTION)
                | flag(router.expert_scales, Route::HAS_FACTORS),
            scale: router.scale,
            groups: groups.map_or(0, |groups| groups.n_groups) as u32,
            chosen_groups: groups.map_or(0, |groups| groups.groups_per_token) as u32,
            scored: groups.map_or(0, |groups| groups.experts_scored) as u32,
        };
        let adjustments = experts.adjustments.as_ref().unwrap_or(&self.weights.unused);
        let buffers = [self.scratch.scores.get(), adjustments, self.scratch.choices.get()];
        self.recorder.dispatch(Kernel::Route, &buffers, &parameters, [self.row_count(), 1, 1]);
    }

    /// Records products with the chosen experts. `sharing` successive choices have the same input.
    fn expert_products(
        &mut self,
        matrix: &ExpertMatrix,
        (x, y): (&Buffer, &Buffer),
        distribution: Distribution,
        sharing: u32,
    ) {
        let scratch = self.scratch;
        for part in &matrix.parts {
            let parameters = parameters::Experts {
                quarters: (matrix.inputs / 4) as u32,
                first_expert: part.first_expert as u32,
                experts: part.experts as u32,
                outputs: part.outputs as u32,
                y_offset: part.first_output as u32,
                y_stride: matrix.outputs as u32,
                sharing,
                has_bias: part.bias.is_some().into(),
            };
            let bias = part.bias.as_ref().unwrap_or(&self.weights.unused);
            let (members, tiles) = (scratch.members.get(), scratch.tiles.get());
            let buffers = [&part.weights, x, bias, members, tiles, y];
            let kernel = Kernel::Experts { weights: part.weight_type, rows: distribution.tile };
            let groups =
                [(part.outputs as u32).div_ceil(TEAMS * EXPERT_OUTPUTS), distribution.tiles, 1];
            self.recorder.dispatch(kernel, &buffers, &parameters, groups);
        }
    }

    /// Adds the expected work of an expert's products. How many experts are read is known when the
    /// pass has ended.
    fn add_expert_work(&mut self, experts: &ExpertWeights, distribution: Distribution) {
        let distinct = experts.shape.expected_distinct(self.rows.rows.len());
        let choices_each = f64::from(distribution.choices) / distinct.max(1.0);
        let tiles_each = (choices_each / f64::from(distribution.tile)).ceil();
        let work = distinct * tiles_each * experts.expert_bytes() as f64;
        self.recorder.add_work(work as u64);
    }

    /// Records `y[row] *= sigmoid(x[row] · gate)`: the gate of a dense MLP next to experts.
    pub(crate) fn shared_gate(&mut self, experts: &ExpertWeights, x: &Buffer, y: &Buffer) {
        let Some(gate) = &experts.shared_gate else { return };
        let gates = self.scratch.gates.get();
        self.linear(gate, x, gates, Store::Set);
        self.gate((gates, 1), y, self.weights.architecture().hidden_size as u32);
    }
}
