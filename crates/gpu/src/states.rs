//! The states of recurrent layers in a GPU's memory.

use crate::device::GpuDevice;
use crate::error::GpuFailure;
use crate::layer_weights::LayerWeights;
use forerun_cache::{StateBefore, StateId, StateStep};
use wgpu::Buffer;

/// The states of all recurrent layers.
pub(crate) struct GpuStates {
    layers: Vec<LayerStates>,
    /// Number of slots that have been reserved.
    reserved: usize,
}

/// The states of a layer, which has none if it has attention.
struct LayerStates {
    /// Numbers of a state: the last inputs of the convolution, and the matrices.
    numbers: [usize; 2],
    /// Number of slots with memory.
    capacity: usize,
    buffers: [Buffer; 2], // [slots, kernel − 1, channels]; [slots, n_value_heads, key_dim, value_dim]
}

impl LayerStates {
    fn slot_bytes(&self) -> [u64; 2] {
        self.numbers.map(|numbers| (numbers * size_of::<f32>()) as u64)
    }

    /// Moves all slots to larger buffers.
    ///
    /// # Errors
    /// If there is no memory, or the GPU has failed. Nothing has changed then.
    fn grow(&mut self, device: &GpuDevice, capacity: usize) -> Result<(), GpuFailure> {
        let bytes = self.slot_bytes();
        self.buffers = device.move_to_larger(
            "the states of a recurrent layer",
            &self.buffers,
            bytes.map(|bytes| [self.capacity as u64 * bytes, capacity as u64 * bytes]),
        )?;
        self.capacity = capacity;
        Ok(())
    }
}

impl GpuStates {
    /// Creates a storage without states. Layers have the buffers `empty` until they have states.
    pub(crate) fn new(layers: &[LayerWeights], empty: &[Buffer; 2]) -> Self {
        let of_layer = |layer: &LayerWeights| LayerStates {
            numbers: layer
                .recurrent()
                .map_or([0, 0], |mixer| [mixer.shape.conv_values(), mixer.shape.matrix_values()]),
            capacity: 0,
            buffers: empty.clone(),
        };
        Self { layers: layers.iter().map(of_layer).collect(), reserved: 0 }
    }

    /// Returns the size of a state of all layers in bytes.
    pub(crate) fn state_bytes(&self) -> usize {
        self.layers.iter().flat_map(LayerStates::slot_bytes).sum::<u64>() as usize
    }

    /// Notes that a slot is needed.
    pub(crate) fn reserve(&mut self, state: StateId) {
        self.reserved = self.reserved.max(state.index() + 1);
    }

    /// Allocates the memory of all slots that have been reserved. Returns whether buffers were replaced.
    ///
    /// # Errors
    /// If there is no memory, or the GPU has failed. All slots keep their numbers; some layers may have more.
    pub(crate) fn allocate(&mut self, device: &GpuDevice) -> Result<bool, GpuFailure> {
        let needed = self.reserved;
        let has_states = |layer: &&mut LayerStates| layer.numbers != [0, 0];
        let small = self.layers.iter_mut().filter(has_states);
        let mut moved = false;
        for layer in small.filter(|layer| layer.capacity < needed) {
            moved = true;
            // A half more than before, so that they are moved rarely.
            let roomy = (layer.capacity + layer.capacity / 2).max(needed);
            match layer.grow(device, roomy) {
                Err(GpuFailure::OutOfMemory { .. }) if roomy > needed => {
                    layer.grow(device, needed)?;
                }
                grown => grown?,
            }
        }
        Ok(moved)
    }

    /// Returns a layer's states: the inputs of its convolution, and its matrices.
    pub(crate) fn layer(&self, layer: usize) -> [&Buffer; 2] {
        self.layers[layer].buffers.each_ref()
    }
}

/// Returns a row's step as kernels read it: the struct of `states.wgsl`.
pub(crate) fn step_numbers(step: &StateStep) -> [u32; 2] {
    let before = match step.before {
        StateBefore::Zero => u32::MAX,
        StateBefore::Running => u32::MAX - 1,
        StateBefore::Kept(StateId(slot)) => slot,
    };
    [before, step.after.map_or(u32::MAX, |StateId(slot)| slot)]
}
