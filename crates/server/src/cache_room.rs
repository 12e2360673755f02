//! Room in the target's caches: which answers compute, and which wait until others have ended.
//!
//! An answer begins when its prompt fits. If the answers in progress outgrow the caches, the newest
//! one pauses: its cache is freed, and computed again when there is room. So the oldest answer
//! always goes on, and caches are not taken from one another in every pass. The states of recurrent
//! layers have a room of their own, which a number of answers share.

use forerun::Canceller;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The room for the tokens of all answers.
pub(crate) struct CacheRoom {
    /// The number of tokens for which there is room; `None` if it is not limited here.
    capacity: Option<usize>,
    /// The number of answers for whose states there is room; `None` if the model has no states.
    most_answers: Option<usize>,
    /// The answers by number. Older ones have smaller numbers.
    answers: Mutex<BTreeMap<u64, Occupant>>,
    changed: Condvar,
}

struct Occupant {
    tokens: usize,
    computes: bool,
}

/// The room of one answer. Dropping it frees the room.
pub(crate) struct Room<'a> {
    of: &'a CacheRoom,
    number: u64,
}

/// How often a waiting answer looks whether it is cancelled.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl CacheRoom {
    pub(crate) fn new(capacity: Option<usize>, most_answers: Option<usize>) -> Self {
        Self { capacity, most_answers, answers: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for room for an answer with this many tokens. Returns early if it is cancelled.
    pub(crate) fn enter(&self, number: u64, tokens: usize, canceller: &Canceller) -> Room<'_> {
        self.lock().insert(number, Occupant { tokens, computes: false });
        let room = Room { of: self, number };
        room.wait(canceller);
        room
    }

    /// Returns the number of answers that wait for room.
    #[cfg(test)]
    fn waiting(&self) -> usize {
        self.lock().values().filter(|answer| !answer.computes).count()
    }

    /// Returns whether a waiting answer can compute: it is the oldest that waits, and fits.
    fn fits(&self, answers: &BTreeMap<u64, Occupant>, number: u64) -> bool {
        let waits = |(_, answer): &(&u64, &Occupant)| !answer.computes;
        if answers.iter().find(waits).is_some_and(|(&oldest, _)| oldest < number) {
            return false;
        }
        let computing = || answers.values().filter(|answer| answer.computes);
        let tokens: usize = computing().map(|answer| answer.tokens).sum();
        let own = answers.get(&number).map_or(0, |answer| answer.tokens);
        let fits = self.capacity.is_none_or(|most| tokens + own <= most);
        let has_states = self.most_answers.is_none_or(|most| computing().count() < most);
        computing().next().is_none() || fits && has_states
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Occupant>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room<'_> {
    /// Counts one more token. Returns whether the answer must pause: free its cache, and
    /// [`wait`](Self::wait).
    pub(crate) fn grow(&self) -> bool {
        let mut answers = self.of.lock();
        if let Some(answer) = answers.get_mut(&self.number) {
            answer.tokens += 1;
        }
        let computing = || answers.iter().filter(|(_, answer)| answer.computes);
        let tokens: usize = computing().map(|(_, answer)| answer.tokens).sum();
        let newest = computing().next_back().is_some_and(|(&newest, _)| newest == self.number);
        let must_pause =
            newest && computing().count() > 1 && self.of.capacity.is_some_and(|most| tokens > most);
        if let Some(answer) = answers.get_mut(&self.number) {
            answer.computes = !must_pause;
        }
        must_pause
    }

    /// Waits for room. Returns early if the answer is cancelled.
    pub(crate) fn wait(&self, canceller: &Canceller) {
        let mut answers = self.of.lock();
        while !self.of.fits(&answers, self.number) && !canceller.is_cancelled() {
            let woken = self.of.changed.wait_timeout(answers, LOOK_EVERY);
            answers = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(answer) = answers.get_mut(&self.number) {
            answer.computes = true;
        }
        self.of.changed.notify_all();
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.of.lock().remove(&self.number);
        self.of.changed.notify_all();
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    #[test]
    fn answers_wait_for_room_in_order_and_the_newest_pauses() {
        let room = CacheRoom::new(Some(100), None);
        let canceller = Canceller::new();
        let first = room.enter(1, 60, &canceller);
        let second = room.enter(2, 38, &canceller);
        assert!(!first.grow() && !second.grow() && !first.grow(), "62 and 39 tokens");
        assert!(second.grow(), "102 tokens, and the second is the newest");
        assert_eq!(room.waiting(), 1);
        let (sender, entered) = mpsc::channel();
        thread::scope(|scope| {
            let third = scope.spawn(|| {
                let third = room.enter(3, 1, &Canceller::new());
                sender.send(3).unwrap();
                drop(third);
            });
            while room.waiting() < 2 {
                thread::yield_now();
            }
            assert!(!first.grow(), "alone, it has no limit");
            thread::sleep(2 * LOOK_EVERY);
            // The third would fit, but the second is older.
            assert!(entered.try_recv().is_err());
            drop(first);
            second.wait(&canceller);
            third.join().unwrap();
        });
        drop(second);
        // One that is larger than all room computes alone.
        drop(room.enter(4, 1_000, &canceller));
        assert_eq!(room.waiting(), 0);
    }

    #[test]
    fn answers_wait_for_room_for_states() {
        let room = CacheRoom::new(None, Some(2));
        let canceller = Canceller::new();
        let first = room.enter(1, 10, &canceller);
        let second = room.enter(2, 10, &canceller);
        assert!(!second.grow());
        thread::scope(|scope| {
            let third = scope.spawn(|| drop(room.enter(3, 10, &Canceller::new())));
            while room.waiting() < 1 {
                thread::yield_now();
            }
            thread::sleep(2 * LOOK_EVERY);
            assert_eq!(room.waiting(), 1);
            drop(first);
            third.join().unwrap();
        });
        drop(second);
        assert_eq!(room.waiting(), 0);
    }

    #[test]
    fn a_cancelled_answer_does_not_wait() {
        let room = CacheRoom::new(Some(10), None);
        let canceller = Canceller::new();
        let _first = room.enter(1, 10, &canceller);
        canceller.cancel();
        drop(room.enter(2, 10, &canceller));
    }
}
