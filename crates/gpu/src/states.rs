//! The states of recurrent layers in a GPU's memory.

use crate::device::GpuDevice;
use crate::error::GpuFailure;
use crate::layer_weights::LayerWeights;
use forerun_cache::{StateBefore, StateId, StateStep};
use wgpu::Buffer;

/// The states of all recurrent layers.
pub(crate) struct GpuStates {
    layers: Vec<LayerStates>,
    /// Number of slots beyond which memory is allocated for needed ones only.
    pub(crate) budget: usize,
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

    /// Moves all slots to larger buffers. Fails if there is no memory, or the GPU has failed.
    /// Nothing has changed then.
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
        Self { layers: layers.iter().map(of_layer).collect(), budget: usize::MAX }
    }

    /// Returns the size of a state of all layers in bytes.
    pub(crate) fn state_bytes(&self) -> usize {
        self.layers.iter().flat_map(LayerStates::slot_bytes).sum::<u64>() as usize
    }

    /// Returns the largest number of slots for which no layer's buffer exceeds this size.
    pub(crate) fn max_slots(&self, buffer_bytes: u64) -> usize {
        let largest = self.layers.iter().flat_map(LayerStates::slot_bytes).max();
        (buffer_bytes / largest.unwrap_or(0).max(1)) as usize
    }

    /// Returns the size of the largest buffer.
    #[cfg(test)]
    pub(crate) fn buffer_bytes(&self) -> u64 {
        self.layers.iter().flat_map(|layer| &layer.buffers).map(Buffer::size).max().unwrap_or(0)
    }

    /// Allocates the memory of the first `needed` slots, which kernels can address. Returns whether
    /// buffers were replaced. Fails if there is no memory, or the GPU has failed. All slots keep
    /// their numbers; some layers may have more.
    pub(crate) fn allocate(
        &mut self,
        device: &GpuDevice,
        needed: usize,
    ) -> Result<bool, GpuFailure> {
        let max = self.max_slots(device.max_binding_bytes());
        let has_states = |layer: &&mut LayerStates| layer.numbers != [0, 0];
        let small = self.layers.iter_mut().filter(has_states);
        let mut moved = false;
        for layer in small.filter(|layer| layer.capacity < needed) {
            moved = true;
            let roomy = roomy_capacity(needed, layer.capacity, self.budget, max);
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

/// Returns the number of pages or states to have memory for, so that a cache that grows slowly is
/// moved rarely: a half more than before, but not more than the budget unless these are needed.
pub(crate) fn roomy_capacity(needed: usize, capacity: usize, budget: usize, max: usize) -> usize {
    (capacity + capacity / 2).min(budget).max(needed).min(max)
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

/// Returns how often steps read or write a slot.
pub(crate) fn named_slots(steps: &[[u32; 2]]) -> usize {
    steps.iter().flatten().filter(|slot| **slot < u32::MAX - 1).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{gpu, hybrid, load};
    use std::sync::atomic::Ordering;

    #[test]
    fn slots_are_those_of_kept_states() {
        let kept = |slot| StateBefore::Kept(StateId(slot));
        let steps =
            [(StateBefore::Zero, None), (StateBefore::Running, Some(StateId(4))), (kept(6), None)];
        let steps = steps.map(|(before, after)| step_numbers(&StateStep { before, after }));
        assert_eq!(steps.map(|step| named_slots(&[step])), [0, 1, 1]);
        let both = step_numbers(&StateStep { before: kept(3), after: Some(StateId(0)) });
        assert_eq!(named_slots(&[both, steps[1]]), 3);
    }

    #[test]
    fn without_memory_slots_stay_as_they_are() {
        let Some(device) = gpu() else { return };
        let architecture = hybrid();
        let state_bytes = architecture.state_bytes();
        let weights = load(&device, &architecture);
        let mut states = GpuStates::new(&weights.layers, &weights.empty_pages);
        assert_eq!(states.state_bytes(), state_bytes);
        let capacities = |states: &GpuStates| -> Vec<usize> {
            states.layers.iter().map(|layer| layer.capacity).collect()
        };
        assert!(states.allocate(&device, 4).unwrap());
        assert_eq!(capacities(&states), [4, 0]);
        device.buffers_left.store(1, Ordering::Relaxed);
        let error = states.allocate(&device, 5).unwrap_err().to_string();
        device.buffers_left.store(usize::MAX, Ordering::Relaxed);
        assert!(error.contains("the states of a recurrent layer"), "{error}");
        // A pass with fewer goes on, and a later one may find memory.
        assert!(!states.allocate(&device, 3).unwrap());
        assert_eq!(capacities(&states), [4, 0]);
        assert!(states.allocate(&device, 5).unwrap());
        assert_eq!(capacities(&states), [6, 0]);
        states.budget = 8;
        assert!(states.allocate(&device, 7).unwrap());
        assert_eq!(capacities(&states), [8, 0], "no more than the budget");
        let largest = states.layers[0].slot_bytes()[0].max(states.layers[0].slot_bytes()[1]);
        assert_eq!(states.max_slots(3 * largest + 1), 3);
    }
}
