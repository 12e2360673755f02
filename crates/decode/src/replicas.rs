//! The target replicas: which of them are free, and which have failed.

use forerun_core::Ticket;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// One target replica.
#[derive(Clone, Copy, Debug, Default)]
struct Replica {
    failed: bool,
    /// The number of its jobs in flight, without cancelled ones.
    active: usize,
    /// The number of committed tokens that its completed jobs have read.
    read: usize,
}

/// A cancelled job that has not completed yet.
#[derive(Clone, Copy, Debug)]
struct CancelledJob {
    replica: usize,
    /// The number of tokens that were committed before it.
    committed: usize,
}

/// All target replicas.
pub(crate) struct Replicas {
    all: Vec<Replica>,
    cancelled: BTreeMap<Ticket, CancelledJob>,
}

impl Replicas {
    pub(crate) fn new(count: usize) -> Self {
        Self { all: vec![Replica::default(); count], cancelled: BTreeMap::new() }
    }

    /// Returns the replica that should get a job. It has no active job. Those with the fewest
    /// cancelled jobs come first, because these may still run, then those that have read the most
    /// committed tokens, because they read the others before the job's rows.
    pub(crate) fn free(&self) -> Option<usize> {
        let free = self.healthy().filter(|&index| self.all[index].active == 0);
        free.min_by_key(|&index| (self.cancelled_jobs(index), Reverse(self.all[index].read)))
    }

    /// Returns the healthy replica with the fewest jobs.
    pub(crate) fn least_busy(&self) -> Option<usize> {
        self.healthy().min_by_key(|&index| self.all[index].active + self.cancelled_jobs(index))
    }

    /// Returns the indices of the replicas that have not failed.
    pub(crate) fn healthy(&self) -> impl Iterator<Item = usize> {
        (0..self.all.len()).filter(|&index| !self.all[index].failed)
    }

    fn cancelled_jobs(&self, index: usize) -> usize {
        self.cancelled.values().filter(|job| job.replica == index).count()
    }

    /// Counts a job that was submitted to a replica.
    pub(crate) fn start_job(&mut self, index: usize) {
        self.all[index].active += 1;
    }

    /// Counts the completion of an active job. It has read `committed` tokens, unless it has failed.
    pub(crate) fn end_job(&mut self, index: usize, committed: Option<usize>) {
        let replica = &mut self.all[index];
        replica.active -= 1;
        replica.read = replica.read.max(committed.unwrap_or(0));
    }

    /// Counts the cancellation of an active job after `committed` tokens.
    pub(crate) fn cancel_job(&mut self, index: usize, ticket: Ticket, committed: usize) {
        self.all[index].active -= 1;
        self.cancelled.insert(ticket, CancelledJob { replica: index, committed });
    }

    /// Counts the completion of a cancelled job, if `ticket` is one. It may have ended before it was
    /// cancelled.
    pub(crate) fn end_cancelled_job(&mut self, ticket: Ticket, has_ended_before: bool) {
        if let Some(CancelledJob { replica, committed }) = self.cancelled.remove(&ticket)
            && has_ended_before
        {
            self.all[replica].read = self.all[replica].read.max(committed);
        }
    }

    /// Goes on after another method. That decodes with the first replica, so no other one has read
    /// more, and it may have received the completions of cancelled jobs.
    pub(crate) fn start_after_others(&mut self) {
        self.cancelled.clear();
        let most = self.all.iter().map(|replica| replica.read).max().unwrap_or(0);
        self.all.iter_mut().take(1).for_each(|replica| replica.read = most);
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
        replicas.start_job(0);
        replicas.start_job(1);
        replicas.cancel_job(1, Ticket(7), 0);
        assert_eq!((replicas.free(), replicas.least_busy()), (Some(2), Some(2)));
        replicas.start_job(2);
        assert_eq!((replicas.free(), replicas.least_busy()), (Some(1), Some(0)));
        replicas.end_cancelled_job(Ticket(7), true);
        assert_eq!(replicas.least_busy(), Some(1));
        assert!(replicas.mark_failed(1) && !replicas.mark_failed(1));
        assert_eq!((replicas.free(), replicas.least_busy()), (None, Some(0)));
        replicas.end_job(0, Some(0));
        assert_eq!((replicas.free(), replicas.healthy().count()), (Some(0), 2));
    }

    #[test]
    fn the_replica_that_has_read_the_most_is_preferred() {
        let mut replicas = Replicas::new(3);
        assert_eq!(replicas.free(), Some(0));
        for (index, committed) in [(0, Some(90)), (1, Some(100)), (2, None)] {
            replicas.start_job(index);
            replicas.end_job(index, committed);
        }
        assert_eq!(replicas.free(), Some(1));
        // A cancelled job has read its tokens if it had ended before.
        for (ticket, has_ended_before, free) in [(0, false, 1), (1, true, 2)] {
            replicas.start_job(2);
            replicas.cancel_job(2, Ticket(ticket), 200);
            replicas.end_cancelled_job(Ticket(ticket), has_ended_before);
            assert_eq!(replicas.free(), Some(free));
        }
        replicas.start_job(2);
        replicas.cancel_job(2, Ticket(2), 300);
        replicas.start_after_others();
        assert_eq!(replicas.free(), Some(0), "another method has decoded with it");
        replicas.end_cancelled_job(Ticket(2), true);
        assert_eq!(replicas.free(), Some(0), "it was forgotten");
    }
}
