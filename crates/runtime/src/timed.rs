//! When a device group's models ran: the forward passes inside its jobs.

use forerun_core::{FeatureRows, Features, SequenceId};
use forerun_model::{
    FeatureHeads, FeatureModel, LanguageModel, LayerGroups, LayeredModel, Logits, LogitsContext,
    ModelError,
};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// One call of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForwardTiming {
    pub(crate) started: Instant,
    pub(crate) finished: Instant,
    /// Tokens that it computed; 0 if it failed.
    pub(crate) tokens: usize,
}

/// Forward passes since they were last asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForwardLog(Arc<Mutex<Vec<ForwardTiming>>>);

impl ForwardLog {
    /// Takes out what was noted since the last call.
    pub(crate) fn take(&self) -> Vec<ForwardTiming> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, started: Instant, tokens: usize) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.push(ForwardTiming { started, finished: Instant::now(), tokens });
    }
}

/// A model whose forward passes show in the trace (see [`Engine::timed`](crate::Engine::timed)).
pub struct Timed<M> {
    model: M,
    log: ForwardLog,
}

impl<M> Timed<M> {
    pub(crate) fn new(model: M, log: ForwardLog) -> Self {
        Self { model, log }
    }

    fn note(
        &self,
        started: Instant,
        logits: Result<Logits, ModelError>,
    ) -> Result<Logits, ModelError> {
        self.log.note(started, logits.as_ref().map_or(0, |logits| logits.computed_tokens));
        logits
    }
}

impl<M: LanguageModel> LanguageModel for Timed<M> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.model.context_length()
    }

    fn logits(&mut self, context: &LogitsContext<'_>) -> Result<Logits, ModelError> {
        let started = Instant::now();
        let logits = self.model.logits(context);
        self.note(started, logits)
    }

    fn features(&self, sequence: SequenceId, rows: Range<usize>) -> Option<FeatureRows> {
        self.model.features(sequence, rows)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.model.release(sequence);
    }
}

impl<M: FeatureModel> FeatureModel for Timed<M> {
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
        self.note(started, logits)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.model.release(sequence);
    }
}

impl<M: FeatureHeads> FeatureHeads for Timed<M> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn logits(&mut self, features: &[f32]) -> Result<Logits, ModelError> {
        let started = Instant::now();
        let logits = self.model.logits(features);
        self.note(started, logits)
    }
}

impl<M: LayeredModel> LayeredModel for Timed<M> {
    fn layer_parallel_logits(
        &mut self,
        context: &LogitsContext<'_>,
        groups: &LayerGroups,
        exact: usize,
    ) -> Result<Logits, ModelError> {
        let started = Instant::now();
        let logits = self.model.layer_parallel_logits(context, groups, exact);
        self.note(started, logits)
    }
}
