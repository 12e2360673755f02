//! Timings of the forward passes within a worker's jobs.

use forerun_core::{FeatureRows, Features, SequenceId};
use forerun_model::{
    FeatureHeads, FeatureModel, LanguageModel, LayerGroups, LayeredModel, Logits, LogitsContext,
    ModelError,
};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The timing of one call of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForwardTiming {
    pub(crate) started: Instant,
    pub(crate) finished: Instant,
    /// Number of tokens computed; 0 if the call failed.
    pub(crate) tokens: usize,
}

/// A log of forward passes, which [`ForwardLog::take`] empties.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForwardLog(Arc<Mutex<Vec<ForwardTiming>>>);

impl ForwardLog {
    /// Removes and returns the forward passes recorded since the last call.
    pub(crate) fn take(&self) -> Vec<ForwardTiming> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn record(&self, started: Instant, tokens: usize) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.push(ForwardTiming { started, finished: Instant::now(), tokens });
    }
}

/// A model whose forward passes appear in the trace (see [`Engine::timed`](crate::Engine::timed)).
pub struct TimedModel<M> {
    model: M,
    log: ForwardLog,
}

impl<M> TimedModel<M> {
    pub(crate) fn new(model: M, log: ForwardLog) -> Self {
        Self { model, log }
    }

    fn record(
        &self,
        started: Instant,
        logits: Result<Logits, ModelError>,
    ) -> Result<Logits, ModelError> {
        self.log.record(started, logits.as_ref().map_or(0, |logits| logits.computed_tokens));
        logits
    }
}

impl<M: LanguageModel> LanguageModel for TimedModel<M> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.model.context_length()
    }

    fn logits(&mut self, context: &LogitsContext<'_>) -> Result<Logits, ModelError> {
        let started = Instant::now();
        let logits = self.model.logits(context);
        self.record(started, logits)
    }

    fn features(&self, sequence: SequenceId, rows: Range<usize>) -> Option<FeatureRows> {
        self.model.features(sequence, rows)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.model.release(sequence);
    }
}

impl<M: FeatureModel> FeatureModel for TimedModel<M> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.model.context_length()
    }

    fn logits(
        &mut self,
        context: &LogitsContext<'_>,
        features: &Features,
    ) -> Result<Logits, ModelError> {
        let started = Instant::now();
        let logits = self.model.logits(context, features);
        self.record(started, logits)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.model.release(sequence);
    }
}

impl<M: FeatureHeads> FeatureHeads for TimedModel<M> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn logits(&mut self, features: &[f32]) -> Result<Logits, ModelError> {
        let started = Instant::now();
        let logits = self.model.logits(features);
        self.record(started, logits)
    }
}

impl<M: LayeredModel> LayeredModel for TimedModel<M> {
    fn layer_parallel_logits(
        &mut self,
        context: &LogitsContext<'_>,
        groups: &LayerGroups,
        exact: usize,
    ) -> Result<Logits, ModelError> {
        let started = Instant::now();
        let logits = self.model.layer_parallel_logits(context, groups, exact);
        self.record(started, logits)
    }
}
