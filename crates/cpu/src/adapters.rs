//! Adapters on the CPU: their packed matrices, and what they add to projections.

use crate::kernels::{Activations, PackedMatrix, add_scaled, linear};
use crate::team::Team;
use forerun_formats::checkpoint::{LayerTensor, Tensor};
use forerun_formats::{Adapter, Architecture, LowRankUpdate, WeightType};

/// A projection of a layer: its index in [`LayerTensor::PROJECTIONS`].
#[derive(Clone, Copy)]
pub(crate) enum Projected {
    QueriesKeysValues,
    Output,
    GateUp,
    Down,
}

/// The packed matrices of an adapter, in f32.
pub struct AdapterWeights {
    /// `[layers][Projected]`.
    layers: Vec<[Vec<PackedUpdate>; 4]>,
}

/// What an adapter adds to some outputs of a projection.
struct PackedUpdate {
    down: PackedMatrix, // [rank, inputs]
    up: PackedMatrix,   // [outputs, rank]
    /// The projection's output to which the first one is added.
    first_output: usize,
}

/// The buffers of an update.
#[derive(Default)]
pub(crate) struct AdapterScratch {
    inner: Vec<f32>, // [rows, rank]
    added: Vec<f32>, // [rows, outputs]
    activations: Activations,
}

impl AdapterWeights {
    /// Packs an adapter that was read for a model of this architecture.
    #[must_use]
    pub fn pack(adapter: &Adapter, architecture: &Architecture) -> Self {
        let mut layers: Vec<[Vec<PackedUpdate>; 4]> = Vec::new();
        layers.resize_with(architecture.layers.len(), Default::default);
        for LowRankUpdate { layer, tensor, rank, down, up } in &adapter.updates {
            let projections = LayerTensor::PROJECTIONS.into_iter().zip(&mut layers[*layer]);
            for (tensors, updates) in projections.filter(|(tensors, _)| tensors.contains(tensor)) {
                let before = tensors.iter().take_while(|other| *other != tensor);
                let stored = before
                    .filter(|other| architecture.layers[*layer].has(**other, architecture.norm));
                let outputs = stored.map(|other| architecture.shape(Tensor::Layer(*layer, *other)));
                updates.push(PackedUpdate {
                    first_output: outputs.map(|shape| shape[0]).sum(),
                    down: PackedMatrix::pack(WeightType::F32, down, down.len() / rank),
                    up: PackedMatrix::pack(WeightType::F32, up, *rank),
                });
            }
        }
        Self { layers }
    }

    /// Returns the bytes of a packed adapter.
    #[must_use]
    pub fn packed_bytes(adapter: &Adapter) -> usize {
        let bytes = |shape| PackedMatrix::packed_bytes(WeightType::F32, shape);
        let updates = adapter.updates.iter().map(|LowRankUpdate { rank, down, up, .. }| {
            bytes([*rank, down.len() / rank]) + bytes([up.len() / rank, *rank])
        });
        updates.sum()
    }

    /// Adds the updates of a projection of some rows. `x`: `[rows, inputs]`, `out`:
    /// `[rows, outputs]`. A row's bits depend on this row alone.
    pub(crate) fn add(
        &self,
        team: &Team,
        (layer, projected): (usize, Projected),
        x: &[f32],
        out: &mut [f32],
        scratch: &mut AdapterScratch,
    ) {
        let AdapterScratch { inner, added, activations } = scratch;
        for PackedUpdate { down, up, first_output } in &self.layers[layer][projected as usize] {
            let rows = x.len() / down.inputs();
            inner.resize(rows * down.outputs(), 0.0);
            added.resize(rows * up.outputs(), 0.0);
            linear(team, x, down, activations, inner);
            linear(team, inner, up, activations, added);
            let width = out.len() / rows;
            for (row, added) in out.chunks_exact_mut(width).zip(added.chunks_exact(up.outputs())) {
                add_scaled(team.isa(), &mut row[*first_output..][..up.outputs()], added, 1.0);
            }
        }
    }
}
