//! Which requests may run: a number of answers at a time, and a queue before them.

use crate::metrics::Metrics;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for answers. They are given in the order of the requests.
pub struct Admission {
    places: Arc<Semaphore>,
    parallel: usize,
    waiting: AtomicUsize,
    queue: usize,
    metrics: Arc<Metrics>,
}

/// Why a request has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full.
    Busy,
    /// The request needs more places than there are.
    TooMany,
}

/// The places of one request. Dropping it frees them.
pub struct Places {
    _permit: OwnedSemaphorePermit,
    count: u64,
    metrics: Arc<Metrics>,
}

impl Drop for Places {
    fn drop(&mut self) {
        self.metrics.running.add(-(self.count as i64));
    }
}

/// A request in the queue.
struct Waiting<'a> {
    admission: &'a Admission,
    count: usize,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.admission.waiting.fetch_sub(self.count, Ordering::Relaxed);
        self.admission.metrics.waiting.add(-(self.count as i64));
    }
}

impl Admission {
    /// Creates `parallel` places, at least one, and a queue for `queue` answers.
    #[must_use]
    pub fn new(parallel: usize, queue: usize, metrics: Arc<Metrics>) -> Self {
        let parallel = parallel.max(1);
        let places = Arc::new(Semaphore::new(parallel));
        Self { places, parallel, waiting: AtomicUsize::new(0), queue, metrics }
    }

    /// The number of places.
    pub(crate) fn parallel(&self) -> usize {
        self.parallel
    }

    /// Waits for the places of `count` answers.
    ///
    /// # Errors
    /// If the queue is full, or there are fewer places than answers.
    pub async fn enter(&self, count: usize) -> Result<Places, Refusal> {
        let permits = u32::try_from(count).ok().filter(|_| count <= self.parallel);
        let permits = permits.ok_or(Refusal::TooMany)?;
        let permit = match Arc::clone(&self.places).try_acquire_many_owned(permits) {
            Ok(permit) => permit,
            Err(_) => {
                let _waiting = self.wait(count).ok_or(Refusal::Busy)?;
                let permit = Arc::clone(&self.places).acquire_many_owned(permits).await;
                // The semaphore is never closed.
                permit.map_err(|_| Refusal::Busy)?
            }
        };
        self.metrics.running.add(count as i64);
        Ok(Places { _permit: permit, count: count as u64, metrics: Arc::clone(&self.metrics) })
    }

    fn wait(&self, count: usize) -> Option<Waiting<'_>> {
        let room = |waiting: usize| Some(waiting + count).filter(|&sum| sum <= self.queue);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, room).ok()?;
        self.metrics.waiting.add(count as i64);
        Some(Waiting { admission: self, count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_and_the_queue_are_limited_and_freed() {
        let metrics = Arc::new(Metrics::default());
        let admission = Arc::new(Admission::new(2, 1, Arc::clone(&metrics)));
        assert_eq!(admission.enter(3).await.err(), Some(Refusal::TooMany));
        let first = admission.enter(2).await.ok();
        assert!(first.is_some());
        assert_eq!((metrics.running.get(), metrics.waiting.get()), (2, 0));
        let waiting = tokio::spawn({
            let admission = Arc::clone(&admission);
            async move { admission.enter(1).await.is_ok() }
        });
        while metrics.waiting.get() == 0 {
            tokio::task::yield_now().await;
        }
        assert_eq!(admission.enter(1).await.err(), Some(Refusal::Busy));
        drop(first);
        assert!(waiting.await.is_ok_and(|entered| entered));
        assert_eq!((metrics.running.get(), metrics.waiting.get()), (0, 0));
        // A request that gives up leaves the queue.
        let _both = admission.enter(2).await;
        let gone = tokio::time::timeout(std::time::Duration::from_millis(1), admission.enter(1));
        assert!(gone.await.is_err());
        assert_eq!(metrics.waiting.get(), 0);
    }
}
