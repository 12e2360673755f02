//! Timings of the forward passes within a worker's jobs.

use crate::pace::{PacedPasses, PassTimes};
use forerun_core::SequenceId;
use forerun_lm::{BatchEntry, FeatureModel, LanguageModel, LayeredModel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The part of a forward pass that belongs to one sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForwardTiming {
    pub(crate) sequence: SequenceId,
    pub(crate) started: Instant,
    pub(crate) finished: Instant,
    /// Number of tokens computed for the sequence; 0 if its request failed.
    pub(crate) tokens: usize,
    /// Number of tokens computed for all sequences of the pass.
    pub(crate) batch_tokens: usize,
    /// Number of sequences in the pass.
    pub(crate) sequences: usize,
    /// Whether it took longer than on the device that sets its pace.
    pub(crate) is_late: bool,
}

/// A log of forward passes.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForwardLog(Arc<Mutex<Vec<ForwardTiming>>>);

impl ForwardLog {
    /// Removes and returns the parts of recorded passes that belong to a sequence.
    pub(crate) fn take_of(&self, sequence: SequenceId) -> Vec<ForwardTiming> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.extract_if(.., |timing| timing.sequence == sequence).collect()
    }

    fn record(&self, timings: impl Iterator<Item = ForwardTiming>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(timings);
    }
}

/// A model whose forward passes appear in the trace (see [`Engine::timed`](crate::Engine::timed)).
pub struct TimedModel<M> {
    model: M,
    log: ForwardLog,
    pace: Option<PacedPasses>,
}

impl<M> TimedModel<M> {
    pub(crate) fn new(model: M, log: ForwardLog) -> Self {
        Self { model, log, pace: None }
    }

    /// Returns the model with passes that take at least these times, if there are any.
    #[must_use]
    pub fn paced(mut self, times: Option<&PassTimes>) -> Self {
        self.pace = times.cloned().map(PacedPasses::new);
        self
    }
}

impl<M: LanguageModel> LanguageModel for TimedModel<M> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.model.context_length()
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        let before =
            |entry: &BatchEntry<'_>| (!entry.is_complete()).then(|| entry.computed_tokens());
        let before: Vec<Option<usize>> = batch.iter().map(before).collect();
        let was_cancelled: Vec<bool> =
            batch.iter().map(|entry| entry.request.is_cancelled()).collect();
        let started = Instant::now();
        self.model.forward(batch);
        let is_late = self.pace.as_mut().is_some_and(|pace| {
            let computed = batch.iter().zip(&before).zip(was_cancelled);
            let computed = computed.map(|((entry, before), was_cancelled)| {
                let tokens = entry.computed_tokens().saturating_sub((*before)?);
                (tokens > 0 || !was_cancelled).then_some(tokens)
            });
            pace.pad(started, batch, computed)
        });
        let finished = Instant::now();
        let parts = batch.iter().zip(before).filter_map(|(entry, before)| {
            let tokens = entry.computed_tokens().saturating_sub(before?);
            let took_part = tokens > 0 || entry.is_complete();
            took_part.then_some((entry.request.sequence, tokens))
        });
        let parts: Vec<(SequenceId, usize)> = parts.collect();
        let (batch_tokens, sequences) = (parts.iter().map(|part| part.1).sum(), parts.len());
        self.log.record(parts.into_iter().map(|(sequence, tokens)| ForwardTiming {
            sequence,
            started,
            finished,
            tokens,
            batch_tokens,
            sequences,
            is_late,
        }));
    }

    fn release(&mut self, sequence: SequenceId) {
        self.model.release(sequence);
        self.pace.iter_mut().for_each(|pace| pace.release(sequence));
    }
}

impl<M: FeatureModel> FeatureModel for TimedModel<M> {}

impl<M: LayeredModel> LayeredModel for TimedModel<M> {}
