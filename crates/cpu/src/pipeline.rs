//! Models on several devices: a target with its layers split between the devices (pipeline
//! parallelism), and a drafter that alternates between the first device and the last.
//!
//! *PEARL: Parallel Speculative Decoding with Adaptive Draft Length*, Liu et al. 2024, arXiv
//! 2408.11850, appendix G. While the target runs on its first devices, the drafter runs on the last one.
//! While the target runs on the last device, the drafter runs on the first.
//!
//! The devices share memory, so nothing is partitioned explicitly. A stage accesses only the weights and
//! cache entries of its own layers. The drafter has a single cache: the hardware transfers entries that
//! another device has written when they are read. Every layer is computed exactly as on a single device,
//! so the results are bit-identical.

use crate::cpu_pages::CpuPages;
use crate::team::Team;
use crate::transformer::Transformer;
use crate::weights::Weights;
use forerun_formats::{Architecture, FeatureSource};
use forerun_lm::DeviceChoice;
use forerun_model::{CacheOverflow, Forward, Pass, PassError, PassOutput};
use std::ops::Range;
use std::sync::Arc;

/// A device that several models share. Only one of them uses it at a time.
pub trait ExclusiveDevice {
    /// Returns the device's team. The calling thread is its leader.
    fn team(&self) -> &Arc<Team>;

    /// Returns whether the device is neither in use nor waited for.
    fn is_free(&self) -> bool;

    /// Waits until the device is free, and then calls `work` once on the calling thread. Nothing else
    /// uses the device during the call.
    fn run_exclusive(&self, work: &mut dyn FnMut());
}

/// The error for a pipeline with more stages than the model has layers.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "a model of {n_layers} layer{} cannot be split into {stages} pipeline stages; in `placement`, \
     separate at most {n_layers} device group{} by '/' for it",
    if *n_layers == 1 { "" } else { "s" },
    if *n_layers == 1 { "" } else { "s" }
)]
pub struct PipelineError {
    /// Number of layers of the model.
    pub n_layers: usize,
    /// Number of requested stages.
    pub stages: usize,
}

/// A model whose layers are split into pipeline stages, each on its own device.
pub struct PipelineParallelModel {
    stages: Vec<Stage>,
    /// The keys and values of the last pass that the cache cannot hold.
    overflows: Vec<CacheOverflow>,
}

/// A range of the layers, and the device that runs them.
struct Stage {
    layers: Range<usize>,
    model: Transformer,
    device: Box<dyn ExclusiveDevice>,
}

impl PipelineParallelModel {
    /// Splits a model into one stage per device, so that a pass takes about the same time on each. The
    /// last stage also computes the head.
    ///
    /// # Errors
    /// [`PipelineError`] if there are more devices than layers.
    ///
    /// # Panics
    /// If `devices` is empty: a programming error.
    pub fn new(
        weights: &Arc<Weights>,
        devices: Vec<Box<dyn ExclusiveDevice>>,
    ) -> Result<Self, PipelineError> {
        assert!(!devices.is_empty(), "a pipeline needs at least one stage");
        let (n_layers, stages) = (weights.n_layers(), devices.len());
        if stages > n_layers {
            return Err(PipelineError { n_layers, stages });
        }
        let head = weights.head.bytes();
        let layer = weights.bytes_read(1).saturating_sub(head) / n_layers;
        let stage = |(layers, device): (Range<usize>, Box<dyn ExclusiveDevice>)| {
            let model = Transformer::new(Arc::clone(weights), Arc::clone(device.team()));
            Stage { layers, model, device }
        };
        let cuts: Vec<usize> = (1..n_layers).collect();
        let layers = partition_layers((&cuts, n_layers), stages, layer, head);
        let stages = layers.into_iter().zip(devices).map(stage);
        Ok(Self { stages: stages.collect(), overflows: Vec::new() })
    }

    /// Returns the same model, configured so that new storages store each token's features.
    #[must_use]
    pub fn with_features(self, features: &FeatureSource) -> Self {
        let with =
            |stage: Stage| Stage { model: stage.model.with_features(features.clone()), ..stage };
        Self { stages: self.stages.into_iter().map(with).collect(), ..self }
    }

    /// Returns the layers of each stage.
    pub fn layers(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.stages.iter().map(|stage| stage.layers.clone())
    }
}

/// Splits layers of `layer` bytes each, followed by a head of `head` bytes, into stages of about equal
/// size. `cuts` are the layers with which a stage other than the first may begin: at least `stages - 1`, in ascending
/// order; they are given with the number of layers.
pub(crate) fn partition_layers(
    (cuts, n_layers): (&[usize], usize),
    stages: usize,
    layer: usize,
    head: usize,
) -> Vec<Range<usize>> {
    let (layer, whole) = (layer.max(1), n_layers * layer.max(1) + head);
    let (mut first, mut cuts) = (0, cuts);
    let mut ranges = Vec::with_capacity(stages);
    for index in 1..stages {
        let nearest = (whole * index / stages + layer / 2) / layer;
        // Leaves a cut for each later stage but the last.
        let possible = cuts[..=cuts.len() - (stages - index)].iter().enumerate();
        let chosen = possible.min_by_key(|(_, cut)| cut.abs_diff(nearest));
        let Some((at, &end)) = chosen else { break };
        ranges.push(first..end);
        (first, cuts) = (end, &cuts[at + 1..]);
    }
    ranges.push(first..n_layers);
    ranges
}

impl Forward for PipelineParallelModel {
    type Storage = CpuPages;

    fn architecture(&self) -> &Architecture {
        self.stages[0].model.architecture()
    }

    fn new_storage(&self) -> CpuPages {
        self.stages[0].model.new_storage()
    }

    fn forward(
        &mut self,
        pass: &Pass<'_>,
        storage: &mut CpuPages,
    ) -> Result<PassOutput<'_>, PassError> {
        let last = self.stages.len() - 1;
        self.overflows.clear();
        for index in 0..=last {
            let (before, from_here) = self.stages.split_at_mut(index);
            let Stage { layers, model, device } = &mut from_here[0];
            // The previous stage's output.
            let hidden = before.last().map(|stage| stage.model.hidden());
            let mut outcome = Ok(());
            device.run_exclusive(&mut || {
                outcome = model.run_layers(pass, hidden, layers.clone(), storage);
                if index == last && outcome.is_ok() {
                    model.finish(pass, storage);
                }
            });
            outcome?;
            self.overflows.extend_from_slice(model.output().overflows);
        }
        Ok(PassOutput { overflows: &self.overflows, ..self.stages[last].model.output() })
    }
}

/// A whole model on two devices. Each pass runs on one of them.
pub struct AlternatingModel {
    first: DeviceModel,
    last: DeviceModel,
}

/// The model on one device.
struct DeviceModel {
    model: Transformer,
    device: Box<dyn ExclusiveDevice>,
}

impl AlternatingModel {
    /// Creates a model on two devices: the first and the last of those that hold another model's layers.
    #[must_use]
    pub fn new(weights: &Arc<Weights>, [first, last]: [Box<dyn ExclusiveDevice>; 2]) -> Self {
        let on_device = |device: Box<dyn ExclusiveDevice>| {
            let model = Transformer::new(Arc::clone(weights), Arc::clone(device.team()));
            DeviceModel { model, device }
        };
        Self { first: on_device(first), last: on_device(last) }
    }

    /// Returns the device for a pass.
    fn device(&mut self, choice: DeviceChoice) -> &mut DeviceModel {
        let is_last = match choice {
            DeviceChoice::First => false,
            DeviceChoice::Last => true,
            DeviceChoice::AnyFree => self.last.device.is_free() || !self.first.device.is_free(),
        };
        if is_last { &mut self.last } else { &mut self.first }
    }
}

impl Forward for AlternatingModel {
    type Storage = CpuPages;

    fn architecture(&self) -> &Architecture {
        self.first.model.architecture()
    }

    fn new_storage(&self) -> CpuPages {
        self.first.model.new_storage()
    }

    fn forward(
        &mut self,
        pass: &Pass<'_>,
        storage: &mut CpuPages,
    ) -> Result<PassOutput<'_>, PassError> {
        let DeviceModel { model, device } = self.device(pass.device);
        let mut outcome = Ok(());
        device.run_exclusive(&mut || {
            outcome = model.forward(pass, storage).map(|_output| ());
        });
        outcome?;
        Ok(model.output())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_have_about_equal_sizes_and_none_is_empty() {
        let sizes = |n_layers, stages, head| -> Vec<usize> {
            let cuts: Vec<usize> = (1..n_layers).collect();
            let ranges = partition_layers((&cuts, n_layers), stages, 10, head);
            assert_eq!(ranges.first().map(|range| range.start), Some(0));
            assert_eq!(ranges.last().map(|range| range.end), Some(n_layers));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            ranges.iter().map(Range::len).collect()
        };
        assert_eq!(sizes(12, 2, 0), [6, 6]);
        assert_eq!(sizes(12, 4, 0), [3, 3, 3, 3]);
        // A head as large as two layers.
        assert_eq!(sizes(12, 2, 20), [7, 5]);
        assert_eq!(sizes(22, 4, 15), [6, 6, 6, 4]);
        // A head larger than all layers together.
        assert_eq!(sizes(3, 2, 500), [2, 1]);
        assert_eq!(sizes(3, 3, 500), [1, 1, 1]);
        assert_eq!(sizes(5, 1, 7), [5]);
        assert_eq!(sizes(2, 2, 1), [1, 1]);
        // Stages that may begin with some layers only.
        assert_eq!(partition_layers((&[1, 2, 5], 9), 2, 10, 0), [0..5, 5..9]);
        assert_eq!(partition_layers((&[1, 2], 9), 3, 10, 0), [0..1, 1..2, 2..9]);
        assert_eq!(partition_layers((&[], 9), 1, 10, 0), vec![0..9; 1]);
    }
}
