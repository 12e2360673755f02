//! Models on several devices: a target with its layers split between the devices (pipeline
//! parallelism), and a drafter that alternates between the first device and the last.
//!
//! *PEARL: Parallel Speculative Decoding with Adaptive Draft Length*, Liu et al. 2024, arXiv
//! 2408.11850, appendix G. While the target runs on its first devices, the drafter runs on the last
//! one. While the target runs on the last device, the drafter runs on the first.
//!
//! The devices share memory, so nothing is partitioned explicitly. A stage accesses only the
//! weights and cache entries of its own layers. The drafter has a single cache: the hardware
//! transfers entries that another device has written when they are read. Every layer is computed
//! exactly as on a single device, so the results are bit-identical.

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

    /// Waits until the device is free, and then calls `work` once on the calling thread. Nothing
    /// else uses the device during the call.
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
    /// Splits a model into one stage per device, so that the largest stage is as small as possible:
    /// in the bytes that a pass over one row reads. The last stage also computes the head.
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
        // What a pass over one row reads: a row of the embedding, and the experts that the row
        // chooses.
        let layers = weights.layers(0..n_layers).iter().map(|layer| layer.bytes_read(1)).collect();
        let sizes = LayerSizes { layers, first: 0, last: weights.head.bytes() };
        let stage = |(layers, device): (Range<usize>, Box<dyn ExclusiveDevice>)| {
            let model = Transformer::new(Arc::clone(weights), Arc::clone(device.team()));
            Stage { layers, model, device }
        };
        let cuts: Vec<usize> = (1..n_layers).collect();
        let layers = sizes.divide(&cuts, stages);
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

/// The sizes by which a model is divided into stages, in bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct LayerSizes {
    /// Those of the layers.
    pub(crate) layers: Vec<usize>,
    /// What the first stage has in addition to its layers.
    pub(crate) first: usize,
    /// What the last stage has in addition to its layers.
    pub(crate) last: usize,
}

impl LayerSizes {
    /// Divides the layers into stages so that the largest stage is as small as possible. `cuts` are
    /// the layers with which a stage other than the first may begin: at least `stages - 1`, in
    /// ascending order.
    ///
    /// The fullest device decides whether a model fits. Dynamic programming over the cuts is exact,
    /// also where layers must stay together; filling stages one by one is not.
    ///
    /// # Panics
    /// If there are fewer cuts: a programming error.
    pub(crate) fn divide(&self, cuts: &[usize], stages: usize) -> Vec<Range<usize>> {
        let n_layers = self.layers.len();
        let ends = [&[0], cuts, &[n_layers]].concat();
        let before: Vec<usize> = ends.iter().map(|end| self.layers[..*end].iter().sum()).collect();
        let size = |from: usize, to: usize| {
            let first = if from == 0 { self.first } else { 0 };
            let last = if to + 1 == ends.len() { self.last } else { 0 };
            before[to] - before[from] + first + last
        };
        // The best division of the layers before each end into the stages so far.
        let mut best = vec![None; ends.len()];
        best[0] = Some(Division::default());
        for _ in 0..stages {
            let longer = |to: usize| {
                let divisions = (0..to).filter_map(|from| {
                    let division: &Division = best[from].as_ref()?;
                    Some((division, from, division.cost_with(size(from, to))))
                });
                let (division, from, _) = divisions.min_by_key(|(.., cost)| *cost)?;
                Some(division.with(ends[from]..ends[to], size(from, to)))
            };
            best = (0..ends.len()).map(longer).collect();
        }
        let division = best.pop().flatten().expect("a cut before each stage but the first");
        division.stages
    }
}

/// A division of some of the first layers.
#[derive(Clone, Default)]
struct Division {
    stages: Vec<Range<usize>>,
    cost: DivisionCost,
}

/// The size of the largest stage, and the sum of the squares of all sizes: of two divisions with
/// the same largest stage, the more even one is better.
type DivisionCost = (usize, u128);

impl Division {
    /// Returns the cost with another stage of this size.
    fn cost_with(&self, size: usize) -> DivisionCost {
        (self.cost.0.max(size), self.cost.1 + (size as u128).pow(2))
    }

    /// Returns the division with another stage of this size.
    fn with(&self, layers: Range<usize>, size: usize) -> Self {
        let mut stages = self.stages.clone();
        stages.push(layers);
        Self { stages, cost: self.cost_with(size) }
    }
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

struct DeviceModel {
    model: Transformer,
    device: Box<dyn ExclusiveDevice>,
}

impl AlternatingModel {
    /// Creates a model on two devices: the first and the last of those that hold another model's
    /// layers.
    #[must_use]
    pub fn new(weights: &Arc<Weights>, [first, last]: [Box<dyn ExclusiveDevice>; 2]) -> Self {
        let on_device = |device: Box<dyn ExclusiveDevice>| {
            let model = Transformer::new(Arc::clone(weights), Arc::clone(device.team()));
            DeviceModel { model, device }
        };
        Self { first: on_device(first), last: on_device(last) }
    }

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

    fn sizes(layers: &[usize], first: usize, last: usize) -> LayerSizes {
        LayerSizes { layers: layers.to_vec(), first, last }
    }

    #[test]
    fn stages_of_equal_layers_have_about_equal_sizes() {
        let numbers = |n_layers: usize, stages, first, last| -> Vec<usize> {
            let cuts: Vec<usize> = (1..n_layers).collect();
            let ranges = sizes(&vec![10; n_layers], first, last).divide(&cuts, stages);
            ranges.iter().map(Range::len).collect()
        };
        assert_eq!(numbers(12, 2, 0, 0), [6, 6]);
        assert_eq!(numbers(12, 4, 0, 0), [3, 3, 3, 3]);
        // A head as large as two layers, and an embedding as large as four.
        assert_eq!(numbers(12, 2, 0, 20), [7, 5]);
        assert_eq!(numbers(12, 2, 40, 20), [5, 7]);
        assert_eq!(numbers(22, 4, 0, 15), [6, 6, 6, 4]);
        // A head larger than all layers together.
        assert_eq!(numbers(3, 2, 0, 500), [2, 1]);
        assert_eq!(numbers(6, 3, 0, 500), [2, 3, 1]);
        assert_eq!(numbers(3, 3, 0, 500), [1, 1, 1]);
        assert_eq!(numbers(5, 1, 9, 7), [5]);
        assert_eq!(numbers(2, 2, 0, 1), [1, 1]);
        // Of two divisions with the same largest stage, the more even one.
        let mut even = numbers(10, 4, 0, 0);
        even.sort_unstable();
        assert_eq!(even, [2, 2, 3, 3]);
        // Stages that may begin with some layers only.
        assert_eq!(sizes(&[10; 9], 0, 0).divide(&[1, 2, 5], 2), [0..5, 5..9]);
        assert_eq!(sizes(&[10; 9], 0, 0).divide(&[1, 2], 3), [0..1, 1..2, 2..9]);
        assert_eq!(sizes(&[10; 9], 0, 0).divide(&[], 1), vec![0..9; 1]);
    }

    #[test]
    fn stages_of_unequal_layers_are_divided_by_their_bytes() {
        // Small dense layers before large ones with experts, and layers that alternate.
        assert_eq!(
            sizes(&[1, 1, 1, 9, 9, 9], 0, 0).divide(&[1, 2, 3, 4, 5], 3),
            [0..4, 4..5, 5..6]
        );
        assert_eq!(sizes(&[1, 9, 1, 9, 1, 9], 2, 2).divide(&[1, 2, 3, 4, 5], 2), [0..3, 3..6]);
        // All divisions of layers of other sizes.
        fn largest(
            sizes: &LayerSizes,
            cuts: &[usize],
            from: usize,
            stages: usize,
        ) -> Option<usize> {
            let first = if from == 0 { sizes.first } else { 0 };
            let of = |layers: Range<usize>| sizes.layers[layers].iter().sum::<usize>() + first;
            if stages == 1 {
                return Some(of(from..sizes.layers.len()) + sizes.last);
            }
            let later = (0..cuts.len()).filter_map(|at| {
                let rest = largest(sizes, &cuts[at + 1..], cuts[at], stages - 1)?;
                Some(rest.max(of(from..cuts[at])))
            });
            later.min()
        }
        let mut state = 1_usize;
        let mut next = |below: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) % below
        };
        for _ in 0..300 {
            let layers: Vec<usize> = (0..1 + next(9)).map(|_| next(20)).collect();
            let sizes = LayerSizes { layers, first: next(30), last: next(30) };
            let cuts: Vec<usize> = (1..sizes.layers.len()).filter(|_| next(4) > 0).collect();
            for stages in 1..=cuts.len() + 1 {
                let ranges = sizes.divide(&cuts, stages);
                assert_eq!((ranges.len(), ranges[0].start), (stages, 0));
                assert_eq!(ranges[stages - 1].end, sizes.layers.len());
                assert!(
                    ranges.windows(2).all(|pair| {
                        pair[0].end == pair[1].start && cuts.contains(&pair[1].start)
                    })
                );
                let size = |range: &Range<usize>| {
                    let first = if range.start == 0 { sizes.first } else { 0 };
                    let is_last = range.end == sizes.layers.len();
                    let last = if is_last { sizes.last } else { 0 };
                    sizes.layers[range.clone()].iter().sum::<usize>() + first + last
                };
                let expected = largest(&sizes, &cuts, 0, stages);
                assert_eq!(ranges.iter().map(size).max(), expected, "{sizes:?} {cuts:?} {stages}");
            }
        }
    }
}
