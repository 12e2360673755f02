//! A forward pass on several devices in turn: a target's layers on all of them (pipeline parallelism), a
//! whole drafter on the first or the last.
//!
//! *PEARL: Parallel Speculative Decoding with Adaptive Draft Length*, Liu et al. 2024, arXiv
//! 2408.11850, appendix G. While the target is on its first devices, the drafter computes on the last one,
//! and when the target comes there, on the first.
//!
//! Devices share memory here. So a stage has its own layers' weights and cache entries by reading no
//! others, and the drafter's cache is one: what a device reads of it that another has written is shipped
//! when it is read. A row's bits are those of one device, since every layer is computed as there.

use crate::config::Config;
use crate::features::FeatureSource;
use crate::forward::{Cancelled, Forward, Inputs, Pass};
use crate::kv_cache::KvCache;
use crate::team::Team;
use crate::transformer::Transformer;
use crate::weights::Weights;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A device that several models have in turn.
pub trait ExclusiveDevice {
    /// The device's threads, but for the first, which is the visitor's.
    fn team(&self) -> &Arc<Team>;

    /// Whether nobody is there, or waits for it.
    fn is_free(&self) -> bool;

    /// Calls `work` once on the calling thread, while nobody else is there.
    fn visit(&self, work: &mut dyn FnMut());
}

/// More stages than layers.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "a model of {n_layers} layer{} cannot be cut into {stages} stages: name at most {n_layers} device{} \
     for it, one before each '/'",
    if *n_layers == 1 { "" } else { "s" },
    if *n_layers == 1 { "" } else { "s" }
)]
pub struct PipelineError {
    /// Layers of the model.
    pub n_layers: usize,
    /// Stages that were asked for.
    pub stages: usize,
}

/// A model whose layers are on several devices: each has some of them, one behind the other.
pub struct PipelineParallelModel {
    stages: Vec<Stage>,
}

/// Some of the layers, and where they are.
struct Stage {
    layers: Range<usize>,
    model: Transformer,
    place: Box<dyn ExclusiveDevice>,
}

impl PipelineParallelModel {
    /// Cuts a model into a stage for each place, such that a pass takes about the same time on each: the
    /// head goes with the last layers.
    ///
    /// # Errors
    /// If there are more places than layers.
    ///
    /// # Panics
    /// If there is no place: a programming error.
    pub fn new(
        weights: &Arc<Weights>,
        places: Vec<Box<dyn ExclusiveDevice>>,
    ) -> Result<Self, PipelineError> {
        assert!(!places.is_empty(), "a pipeline has a stage");
        let (n_layers, stages) = (weights.layers.len(), places.len());
        if stages > n_layers {
            return Err(PipelineError { n_layers, stages });
        }
        let head = weights.head().bytes();
        let layer = weights.bytes_read().saturating_sub(head) / n_layers;
        let stage = |(layers, place): (Range<usize>, Box<dyn ExclusiveDevice>)| {
            let model = Transformer::new(Arc::clone(weights), Arc::clone(place.team()));
            Stage { layers, model, place }
        };
        let stages = cut(n_layers, stages, layer, head).into_iter().zip(places).map(stage);
        Ok(Self { stages: stages.collect() })
    }

    /// The same model, whose caches keep each token's features.
    #[must_use]
    pub fn with_features(self, features: &FeatureSource) -> Self {
        let with =
            |stage: Stage| Stage { model: stage.model.with_features(features.clone()), ..stage };
        Self { stages: self.stages.into_iter().map(with).collect() }
    }

    /// The layers of each stage.
    pub fn layers(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.stages.iter().map(|stage| stage.layers.clone())
    }
}

/// Cuts layers of so many bytes each, with a head behind the last, into stages of about equal size.
fn cut(n_layers: usize, stages: usize, layer: usize, head: usize) -> Vec<Range<usize>> {
    let (layer, whole) = (layer.max(1), n_layers * layer.max(1) + head);
    let mut first = 0;
    let mut ranges = Vec::with_capacity(stages);
    for index in 1..=stages {
        // Each stage has a layer, and leaves one for each that follows.
        let nearest = (whole * index / stages + layer / 2) / layer;
        let end = nearest.clamp(first + 1, n_layers - (stages - index));
        ranges.push(first..if index == stages { n_layers } else { end });
        first = end;
    }
    ranges
}

impl Forward for PipelineParallelModel {
    fn config(&self) -> &Config {
        self.stages[0].model.config()
    }

    fn embedded_tokens(&self) -> usize {
        self.stages[0].model.embedded_tokens()
    }

    fn new_cache(&self) -> KvCache {
        self.stages[0].model.new_cache()
    }

    /// The cache holds what it held before until the last stage is done.
    fn forward(&mut self, pass: &Pass<'_>, cache: &mut KvCache) -> Result<&[f32], Cancelled> {
        let last = self.stages.len() - 1;
        for index in 0..=last {
            let (before, from_here) = self.stages.split_at_mut(index);
            let Stage { layers, model, place } = &mut from_here[0];
            // What the stage before hands on.
            let hidden = before.last().map(|stage| stage.model.hidden());
            let inputs = hidden.map(|hidden| Inputs { hidden, embeddings: &[] });
            let pass = Pass { inputs: inputs.or(pass.inputs), ..*pass };
            let mut outcome = Ok(());
            place.visit(&mut || {
                outcome = model.run_layers(&pass, layers.clone(), cache);
                if index == last && outcome.is_ok() {
                    model.finish(&pass, cache);
                }
            });
            outcome?;
        }
        Ok(self.stages[last].model.last_logits())
    }
}

/// How the passes of a [`AlternatingModel`] are shared out among its devices. Clones are one: whoever drafts tells
/// it, and the shuttle asks.
#[derive(Clone, Debug)]
pub struct PassAssignment(Arc<AtomicUsize>);

/// Every pass goes where nobody is.
const WHERE_NOBODY_IS: usize = usize::MAX;

impl Default for PassAssignment {
    /// Every pass goes where nobody is, and rather to the last device.
    fn default() -> Self {
        Self(Arc::new(AtomicUsize::new(WHERE_NOBODY_IS)))
    }
}

impl PassAssignment {
    /// The next `count` passes that make a token are for the last device, those behind them for the
    /// first; `None` sends every pass where nobody is.
    pub fn assign_to_last(&self, count: Option<usize>) {
        self.0.store(count.unwrap_or(WHERE_NOBODY_IS), Ordering::Relaxed);
    }

    /// Passes left for the last device, if they are counted.
    fn left(&self) -> Option<usize> {
        Some(self.0.load(Ordering::Relaxed)).filter(|&left| left != WHERE_NOBODY_IS)
    }

    /// One of them is made.
    fn count(&self) {
        if let Some(left) = self.left() {
            self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        }
    }
}

/// A whole model on two devices, of which each pass has one.
pub struct AlternatingModel {
    first: DeviceModel,
    last: DeviceModel,
    sharing: PassAssignment,
}

/// The model on one of them.
struct DeviceModel {
    model: Transformer,
    place: Box<dyn ExclusiveDevice>,
}

impl AlternatingModel {
    /// A model at two places, the first and the last of those that it shares with another one's layers.
    #[must_use]
    pub fn new(
        weights: &Arc<Weights>,
        [first, last]: [Box<dyn ExclusiveDevice>; 2],
        sharing: PassAssignment,
    ) -> Self {
        let home = |place: Box<dyn ExclusiveDevice>| {
            let model = Transformer::new(Arc::clone(weights), Arc::clone(place.team()));
            DeviceModel { model, place }
        };
        Self { first: home(first), last: home(last), sharing }
    }

    /// Where the next pass is computed.
    fn next_home(&mut self) -> &mut DeviceModel {
        let to_last = match self.sharing.left() {
            Some(left) => left > 0,
            None => self.last.place.is_free() || !self.first.place.is_free(),
        };
        if to_last { &mut self.last } else { &mut self.first }
    }
}

impl Forward for AlternatingModel {
    fn config(&self) -> &Config {
        self.first.model.config()
    }

    fn embedded_tokens(&self) -> usize {
        self.first.model.embedded_tokens()
    }

    fn new_cache(&self) -> KvCache {
        self.first.model.new_cache()
    }

    fn forward(&mut self, pass: &Pass<'_>, cache: &mut KvCache) -> Result<&[f32], Cancelled> {
        let sharing = self.sharing.clone();
        let DeviceModel { model, place } = self.next_home();
        // A part of a prompt makes no token.
        if pass.first_wanted < pass.tree.len() {
            sharing.count();
        }
        let mut outcome = Ok(());
        place.visit(&mut || {
            outcome = model.forward(pass, cache).map(|_logits| ());
        });
        outcome?;
        Ok(model.last_logits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_about_equal_and_none_is_empty() {
        let sizes = |n_layers, stages, head| -> Vec<usize> {
            let ranges = cut(n_layers, stages, 10, head);
            assert_eq!(ranges.first().map(|range| range.start), Some(0));
            assert_eq!(ranges.last().map(|range| range.end), Some(n_layers));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            ranges.iter().map(Range::len).collect()
        };
        assert_eq!(sizes(12, 2, 0), [6, 6]);
        assert_eq!(sizes(12, 4, 0), [3, 3, 3, 3]);
        // A head that is as large as two layers.
        assert_eq!(sizes(12, 2, 20), [7, 5]);
        assert_eq!(sizes(22, 4, 15), [6, 6, 6, 4]);
        // One that is larger than all of them.
        assert_eq!(sizes(3, 2, 500), [2, 1]);
        assert_eq!(sizes(3, 3, 500), [1, 1, 1]);
        assert_eq!(sizes(5, 1, 7), [5]);
        assert_eq!(sizes(2, 2, 1), [1, 1]);
    }

    #[test]
    fn shares_are_counted_down() {
        let sharing = PassAssignment::default();
        sharing.count();
        assert_eq!(sharing.left(), None);
        sharing.assign_to_last(Some(2));
        let lefts: Vec<_> = (0..4)
            .map(|_| {
                sharing.count();
                sharing.clone().left()
            })
            .collect();
        assert_eq!(lefts, [Some(1), Some(0), Some(0), Some(0)]);
    }
}
