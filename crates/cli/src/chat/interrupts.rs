//! Ctrl-C while an answer comes. (While a line is typed it is a key like any other.)

use crate::interrupts;
use forerun::Canceller;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Interrupts of one answer after which the process ends, whatever it is doing.
const IMPATIENCE: usize = 3;

/// The answer that an interrupt ends.
pub(super) struct Interrupts {
    answer: Arc<Mutex<Option<Under>>>,
}

/// An answer under way.
struct Under {
    canceller: Canceller,
    interrupts: usize,
}

fn lock(answer: &Mutex<Option<Under>>) -> MutexGuard<'_, Option<Under>> {
    answer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Interrupts {
    pub(super) fn listen() -> anyhow::Result<Self> {
        let answer = Arc::new(Mutex::new(None));
        let interrupted = Arc::clone(&answer);
        interrupts::listen(move || match &mut *lock(&interrupted) {
            Some(Under { canceller, interrupts }) => {
                *interrupts += 1;
                canceller.cancel();
                *interrupts >= IMPATIENCE
            }
            // Nothing is under way that could be ended but the process.
            None => true,
        })?;
        Ok(Self { answer })
    }

    /// What the next interrupts cancel.
    pub(super) fn for_new_answer(&self) -> Canceller {
        let canceller = Canceller::new();
        *lock(&self.answer) = Some(Under { canceller: canceller.clone(), interrupts: 0 });
        canceller
    }

    pub(super) fn answer_ended(&self) {
        *lock(&self.answer) = None;
    }
}
