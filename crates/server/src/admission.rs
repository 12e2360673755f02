//! Which requests may run: a number of answers at a time, and a queue before them.

use crate::metrics::Metrics;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for answers.
///
/// Each answer has a place of its own, so a request may have more answers than there are places:
/// they take places as these become free. A request waits for one place at a time, and waiting
/// requests take turns. So a request with many answers does not hold up those that come later, and
/// requests cannot wait for one another.
pub struct Admission {
    shared: Arc<Shared>,
}

struct Shared {
    /// The free places. They are given in the order in which answers begin to wait.
    places: Arc<Semaphore>,
    /// The number of requests that wait for their first place.
    waiting: AtomicUsize,
    queue: usize,
}

/// A request is refused, because as many others wait as the queue has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server is busy and its queue is full: try again later")]
pub struct QueueFull;

/// A request that may run. Dropping it leaves the queue.
pub struct Admitted {
    shared: Arc<Shared>,
    /// The place of the first answer, if one was free.
    first: Option<OwnedSemaphorePermit>,
    /// Whether the request is in the queue.
    in_queue: bool,
    /// The number of answers that have no place yet.
    waiting: usize,
    /// What counts the answers.
    metrics: Arc<Metrics>,
}

/// The place of one answer. Dropping it frees it.
pub struct Place {
    _permit: OwnedSemaphorePermit,
    metrics: Arc<Metrics>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.metrics.running.add(-1);
    }
}

impl Admission {
    /// Creates `parallel` places, at least one, and a queue for `queue` requests.
    #[must_use]
    pub fn new(parallel: usize, queue: usize) -> Self {
        let places = Arc::new(Semaphore::new(parallel.max(1)));
        Self { shared: Arc::new(Shared { places, waiting: AtomicUsize::new(0), queue }) }
    }

    /// Admits a request with `answers` answers, whose places come from [`Admitted::place`]. They
    /// are counted in `metrics`.
    ///
    /// # Errors
    /// If no place is free and the queue is full.
    pub fn enter(&self, answers: usize, metrics: &Arc<Metrics>) -> Result<Admitted, QueueFull> {
        let shared = Arc::clone(&self.shared);
        let first = Arc::clone(&shared.places).try_acquire_owned().ok();
        let in_queue = first.is_none();
        if in_queue {
            let room = |waiting: usize| (waiting < shared.queue).then_some(waiting + 1);
            let entered = shared.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
            entered.map_err(|_| QueueFull)?;
        }
        metrics.waiting.add(answers as i64);
        Ok(Admitted { shared, first, in_queue, waiting: answers, metrics: Arc::clone(metrics) })
    }
}

impl Admitted {
    /// Waits for the place of the next answer. Call it once for each answer.
    pub async fn place(&mut self) -> Place {
        let permit = match self.first.take() {
            Some(permit) => permit,
            None => match Arc::clone(&self.shared.places).acquire_owned().await {
                Ok(permit) => permit,
                Err(_) => unreachable!("the semaphore is never closed"),
            },
        };
        self.leave_queue();
        let metrics = Arc::clone(&self.metrics);
        if self.waiting > 0 {
            self.waiting -= 1;
            metrics.waiting.add(-1);
        }
        metrics.running.add(1);
        Place { _permit: permit, metrics }
    }

    fn leave_queue(&mut self) {
        if std::mem::take(&mut self.in_queue) {
            self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.leave_queue();
        self.metrics.waiting.add(-(self.waiting as i64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    fn admission(parallel: usize, queue: usize) -> (Admission, Arc<Metrics>) {
        (Admission::new(parallel, queue), Arc::new(Metrics::default()))
    }

    fn load(metrics: &Metrics) -> (i64, i64) {
        (metrics.running.get(), metrics.waiting.get())
    }

    #[tokio::test]
    async fn places_and_the_queue_are_limited_and_freed() -> Result<(), QueueFull> {
        let (admission, metrics) = admission(1, 1);
        let first = admission.enter(1, &metrics)?.place().await;
        assert_eq!(load(&metrics), (1, 0));
        let mut waiting = admission.enter(1, &metrics)?;
        assert_eq!(load(&metrics), (1, 1));
        assert_eq!(admission.enter(1, &metrics).err(), Some(QueueFull));
        drop(first);
        let second = waiting.place().await;
        assert_eq!(load(&metrics), (1, 0));
        // A request that gives up leaves the queue.
        let mut gone = admission.enter(3, &metrics)?;
        assert!(timeout(Duration::from_millis(1), gone.place()).await.is_err());
        assert_eq!(load(&metrics), (1, 3));
        drop(gone);
        assert_eq!(load(&metrics), (1, 0));
        drop(second);
        assert_eq!(load(&metrics), (0, 0));
        Ok(())
    }

    #[tokio::test]
    async fn more_answers_than_places_wait_and_requests_take_turns() -> Result<(), QueueFull> {
        let (admission, metrics) = admission(2, 2);
        let mut large = admission.enter(5, &metrics)?;
        let mut held = vec![large.place().await, large.place().await];
        assert_eq!(load(&metrics), (2, 3));
        let (sender, mut entered) = tokio::sync::mpsc::unbounded_channel();
        let small = admission.enter(2, &metrics)?;
        for (name, mut request, answers) in [("large", large, 3), ("small", small, 2)] {
            let sender = sender.clone();
            tokio::spawn(async move {
                for _ in 0..answers {
                    let place = request.place().await;
                    sender.send((name, place)).ok();
                }
            });
            tokio::task::yield_now().await;
        }
        drop(sender);
        let mut order = Vec::new();
        while held.pop().is_some() {
            if let Some((name, place)) = entered.recv().await {
                order.push(name);
                held.insert(0, place);
            }
        }
        assert_eq!(order, ["large", "small", "large", "small", "large"]);
        assert_eq!(load(&metrics), (0, 0));
        Ok(())
    }
}
