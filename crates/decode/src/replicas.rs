//! The target replicas: which are free, and which have failed.

use forerun_core::Ticket;
use std::collections::BTreeMap;

/// One target replica.
#[derive(Clone, Copy, Debug, Default)]
struct Replica {
    failed: bool,
    /// The number of its jobs in flight, without cancelled ones.
    active: usize,
    /// The number of its cancelled jobs that have not completed yet.
    cancelled: usize,
    /// The number of committed tokens when it got its last job.
    read: usize,
}

/// All target replicas.
pub(crate) struct Replicas {
    all: Vec<Replica>,
    /// The cancelled jobs that have not completed yet, with their replicas.
    cancelled: BTreeMap<Ticket, usize>,
}

impl Replicas {
    pub(crate) fn new(count: usize) -> Self {
        Self { all: vec![Replica::default(); count], cancelled: BTreeMap::new() }
    }

    /// Returns a replica without an active job, preferably one without a cancelled job, either. `frontier`: the number of
    /// committed tokens. One that has missed more than `max_missed` of them gets no job if there are others.
    pub(crate) fn free(&self, frontier: usize, max_missed: usize) -> Option<usize> {
        let missed = |replica: &Replica| frontier.saturating_sub(replica.read);
        let least = self.healthy().map(|(_, replica)| missed(replica)).min().unwrap_or(0);
        let is_near = |replica: &Replica| missed(replica) <= max_missed.max(least);
        let free = self.healthy().filter(|(_, replica)| replica.active == 0 && is_near(replica));
        free.min_by_key(|(_, replica)| replica.cancelled).map(|(index, _)| index)
    }

    /// Returns the healthy replica with the fewest jobs.
    pub(crate) fn least_busy(&self) -> Option<usize> {
        let jobs = |replica: &Replica| replica.active + replica.cancelled;
        self.healthy().min_by_key(|(_, replica)| jobs(replica)).map(|(index, _)| index)
    }

    fn healthy(&self) -> impl Iterator<Item = (usize, &Replica)> {
        self.all.iter().enumerate().filter(|(_, replica)| !replica.failed)
    }

    /// Lets replicas have jobs again after a pause from `paused_at` to `frontier` committed tokens, but for those that had
    /// missed more than `max_missed` before.
    pub(crate) fn resume(&mut self, paused_at: usize, frontier: usize, max_missed: usize) {
        for replica in &mut self.all {
            if paused_at.saturating_sub(replica.read) <= max_missed {
                replica.read = frontier;
            }
        }
    }

    /// Counts a job that was submitted to a replica after `frontier` committed tokens.
    pub(crate) fn start_job(&mut self, index: usize, frontier: usize) {
        self.all[index].active += 1;
        self.all[index].read = frontier;
    }

    /// Counts the completion of an active job.
    pub(crate) fn end_job(&mut self, index: usize) {
        self.all[index].active -= 1;
    }

    /// Counts the cancellation of an active job.
    pub(crate) fn cancel_job(&mut self, index: usize, ticket: Ticket) {
        let replica = &mut self.all[index];
        (replica.active, replica.cancelled) = (replica.active - 1, replica.cancelled + 1);
        self.cancelled.insert(ticket, index);
    }

    /// Counts the completion of a cancelled job. Returns whether `ticket` is one.
    pub(crate) fn end_cancelled_job(&mut self, ticket: Ticket) -> bool {
        let index = self.cancelled.remove(&ticket);
        if let Some(index) = index {
            self.all[index].cancelled -= 1;
        }
        index.is_some()
    }

    /// Marks a replica as failed, so that it gets no more jobs. Returns whether it was healthy.
    pub(crate) fn mark_failed(&mut self, index: usize) -> bool {
        !std::mem::replace(&mut self.all[index].failed, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_replicas_have_no_active_job_and_preferably_no_cancelled_one() {
        let mut replicas = Replicas::new(3);
        replicas.start_job(0, 0);
        replicas.start_job(1, 0);
        replicas.cancel_job(1, Ticket(7));
        assert_eq!((replicas.free(0, 0), replicas.least_busy()), (Some(2), Some(2)));
        replicas.start_job(2, 0);
        assert_eq!((replicas.free(0, 0), replicas.least_busy()), (Some(1), Some(0)));
        assert!(replicas.end_cancelled_job(Ticket(7)) && !replicas.end_cancelled_job(Ticket(7)));
        assert_eq!(replicas.least_busy(), Some(1));
        assert!(replicas.mark_failed(1) && !replicas.mark_failed(1));
        assert_eq!((replicas.free(0, 0), replicas.least_busy()), (None, Some(0)));
        replicas.end_job(0);
        assert_eq!(replicas.free(0, 0), Some(0));
    }

    #[test]
    fn replicas_that_have_missed_much_get_no_job() {
        let mut replicas = Replicas::new(2);
        replicas.start_job(0, 90);
        assert_eq!(replicas.free(100, 32), None, "the other one has missed 100 tokens");
        assert_eq!(replicas.free(100, 100), Some(1));
        // After a pause, those that were near before it read what they have missed.
        replicas.end_job(0);
        replicas.resume(100, 500, 32);
        assert_eq!(replicas.free(500, 32), Some(0));
        replicas.start_job(0, 500);
        assert_eq!(replicas.free(500, 32), None);
        assert!(replicas.mark_failed(0));
        assert_eq!(replicas.free(500, 32), Some(1), "there is no other one");
    }
}
