//! Ctrl-C while an answer is generated. (While a line is typed, the line editor handles it.)

use crate::interrupts;
use forerun::Canceller;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of interrupts of one answer after which the process ends.
const INTERRUPTS_TO_EXIT: usize = 3;

/// The answer that an interrupt cancels.
pub(super) struct Interrupts {
    answer: Arc<Mutex<Option<CurrentAnswer>>>,
}

/// An answer that is being generated.
struct CurrentAnswer {
    canceller: Canceller,
    interrupts: usize,
}

fn lock(answer: &Mutex<Option<CurrentAnswer>>) -> MutexGuard<'_, Option<CurrentAnswer>> {
    answer.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Interrupts {
    pub(super) fn listen() -> anyhow::Result<Self> {
        let answer = Arc::new(Mutex::new(None));
        let interrupted = Arc::clone(&answer);
        interrupts::listen(move || match &mut *lock(&interrupted) {
            Some(CurrentAnswer { canceller, interrupts }) => {
                *interrupts += 1;
                canceller.cancel();
                *interrupts >= INTERRUPTS_TO_EXIT
            }
            // There is no answer to cancel, so the process ends.
            None => true,
        })?;
        Ok(Self { answer })
    }

    /// Returns a canceller for the next answer, which interrupts cancel from now on.
    pub(super) fn for_new_answer(&self) -> Canceller {
        let canceller = Canceller::new();
        *lock(&self.answer) = Some(CurrentAnswer { canceller: canceller.clone(), interrupts: 0 });
        canceller
    }

    pub(super) fn answer_ended(&self) {
        *lock(&self.answer) = None;
    }
}
