//! When a device group's models ran: the forward passes inside its jobs.

use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_model::{LanguageModel, Logits, ModelError};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Starts and ends of forward passes.
#[derive(Clone, Debug, Default)]
pub(crate) struct ForwardLog(Arc<Mutex<Vec<(Instant, Instant)>>>);

impl ForwardLog {
    /// Takes out what was noted since the last call.
    pub(crate) fn take(&self) -> Vec<(Instant, Instant)> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, started: Instant) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.push((started, Instant::now()));
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
}

impl<M: LanguageModel> LanguageModel for Timed<M> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.model.context_length()
    }

    fn logits(
        &mut self,
        sequence: SequenceId,
        tokens: &[TokenId],
        tree: &TokenTree,
        first_row: usize,
        cancel: &AtomicBool,
    ) -> Result<Logits, ModelError> {
        let started = Instant::now();
        let logits = self.model.logits(sequence, tokens, tree, first_row, cancel);
        self.log.note(started);
        logits
    }

    fn release(&mut self, sequence: SequenceId) {
        self.model.release(sequence);
    }
}
