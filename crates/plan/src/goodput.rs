//! What the rows of a pass are worth among sequences that share it: the tokens that all of them
//! together commit in that time, their *goodput* (*Optimizing Speculative Decoding for Serving
//! Large Language Models Using Goodput*, Liu et al. 2024, arXiv 2406.14066).
//!
//! All drafted positions of all sequences compete for rows. The best ones are those that are
//! accepted more often than the tokens that their rows and forwards would bring elsewhere. So each
//! sequence can decide by itself, if it knows that price.

use crate::decaying::{Share, TEST_DECAY};
use std::sync::{Arc, Mutex, PoisonError};

/// The goodput of the sequences of one engine, which they measure together.
#[derive(Clone, Debug)]
pub struct SharedGoodput(Arc<Mutex<Share>>);

impl Default for SharedGoodput {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Share::new(TEST_DECAY))))
    }
}

impl SharedGoodput {
    /// Learns that a sequence has committed tokens in a round with this share of the time. The
    /// shares of all sequences add up to the time.
    pub(crate) fn add(&self, tokens: usize, ns: f64) {
        self.lock().add(tokens as f64, ns);
    }

    /// Returns the tokens per nanosecond of all sequences together, if they are known.
    pub(crate) fn speed(&self) -> Option<f64> {
        let shared = self.lock();
        (shared.weight() > 0.0).then(|| shared.value(0.0, 0.0))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Share> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
