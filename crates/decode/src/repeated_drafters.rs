//! A cluster whose drafters are those on the target's devices, with the indices after all others.

use forerun_core::{Cluster, ClusterError, Completion, Job, Outcome, Role, SequenceId, Ticket};

pub(crate) struct RepeatedDrafters<'a> {
    pub(crate) cluster: &'a mut dyn Cluster,
    /// What is added to a drafter's index.
    pub(crate) offset: usize,
}

impl Cluster for RepeatedDrafters<'_> {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        let on = match on {
            Role::Drafter(index) => Role::Drafter(index + self.offset),
            Role::Target(_) => on,
        };
        self.cluster.submit(on, job)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.cluster.cancel(ticket);
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        self.cluster.next_completion()
    }

    fn observe(&mut self, outcome: Outcome) {
        self.cluster.observe(outcome);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.cluster.release(sequence);
    }
}
