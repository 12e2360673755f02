//! Target replicas: who is free, who has failed.

use forerun_core::Ticket;
use std::collections::BTreeMap;

/// One target replica.
#[derive(Clone, Copy, Debug, Default)]
struct Replica {
    failed: bool,
    /// Its jobs whose rows are wanted.
    wanted: usize,
    /// Its jobs that were cancelled, but have not completed yet.
    ending: usize,
}

/// All target replicas.
pub(crate) struct Replicas {
    all: Vec<Replica>,
    /// Jobs that were cancelled, but have not completed yet, and where they run.
    ending: BTreeMap<Ticket, usize>,
}

impl Replicas {
    pub(crate) fn new(count: usize) -> Self {
        Self { all: vec![Replica::default(); count], ending: BTreeMap::new() }
    }

    /// One without a wanted job, best one that is not still ending another.
    pub(crate) fn free(&self) -> Option<usize> {
        let free = self.alive().filter(|(_, own)| own.wanted == 0);
        free.min_by_key(|(_, own)| own.ending).map(|(index, _)| index)
    }

    /// The one with the least to do, busy or not.
    pub(crate) fn least_busy(&self) -> Option<usize> {
        self.alive().min_by_key(|(_, own)| own.wanted + own.ending).map(|(index, _)| index)
    }

    fn alive(&self) -> impl Iterator<Item = (usize, &Replica)> {
        self.all.iter().enumerate().filter(|(_, own)| !own.failed)
    }

    /// A job was sent to it.
    pub(crate) fn begin(&mut self, index: usize) {
        self.all[index].wanted += 1;
    }

    /// A wanted job has completed.
    pub(crate) fn end(&mut self, index: usize) {
        self.all[index].wanted -= 1;
    }

    /// A wanted job was cancelled.
    pub(crate) fn cancel(&mut self, index: usize, ticket: Ticket) {
        let own = &mut self.all[index];
        (own.wanted, own.ending) = (own.wanted - 1, own.ending + 1);
        self.ending.insert(ticket, index);
    }

    /// Whether what has completed is a job that was cancelled.
    pub(crate) fn has_ended(&mut self, ticket: Ticket) -> bool {
        let index = self.ending.remove(&ticket);
        if let Some(index) = index {
            self.all[index].ending -= 1;
        }
        index.is_some()
    }

    /// It has failed, and is left out from now on. Returns whether that is news.
    pub(crate) fn fail(&mut self, index: usize) -> bool {
        !std::mem::replace(&mut self.all[index].failed, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_free_has_no_wanted_job_and_best_none_at_all() {
        let mut replicas = Replicas::new(3);
        replicas.begin(0);
        replicas.begin(1);
        replicas.cancel(1, Ticket(7));
        assert_eq!((replicas.free(), replicas.least_busy()), (Some(2), Some(2)));
        replicas.begin(2);
        assert_eq!((replicas.free(), replicas.least_busy()), (Some(1), Some(0)));
        assert!(replicas.has_ended(Ticket(7)) && !replicas.has_ended(Ticket(7)));
        assert_eq!(replicas.least_busy(), Some(1));
        assert!(replicas.fail(1) && !replicas.fail(1));
        assert_eq!((replicas.free(), replicas.least_busy()), (None, Some(0)));
        replicas.end(0);
        assert_eq!(replicas.free(), Some(0));
    }
}
