//! A cluster that measures a decoder's jobs for its policy, so that the decoder need not.

use crate::draft_ahead::ChainVerdict;
use forerun_core::{
    Cluster, ClusterError, Completion, Job, JobOutput, Outcome, Role, SequenceId, Ticket,
};
use forerun_plan::{JobTime, Policy};
use std::collections::BTreeMap;

/// A policy, and what is measured for it.
pub(crate) struct Meter<P> {
    pub(crate) policy: P,
    /// The jobs in flight. Cancelled ones may take cores until they end.
    in_flight: BTreeMap<Ticket, JobInFlight>,
    /// The end of the last completed job, on the cluster's clock.
    now_ns: u64,
    /// Whether the target has had neither drafts nor a drafter at work since the step began.
    is_alone: bool,
}

#[derive(Clone, Copy)]
enum JobInFlight {
    Draft { drafter: usize },
    Score { rows: usize, while_drafting: bool },
    Cancelled,
}

impl<P: Policy> Meter<P> {
    pub(crate) fn new(policy: P) -> Self {
        Self { policy, in_flight: BTreeMap::new(), now_ns: 0, is_alone: true }
    }

    /// Begins a step, whose jobs go to the returned cluster. The policy learns from the jobs of
    /// this drafter. `drafts`: whether there are drafts, or drafters are to work.
    pub(crate) fn begin_step<'a>(
        &'a mut self,
        cluster: &'a mut dyn Cluster,
        drafter: usize,
        drafts: bool,
    ) -> MeteredCluster<'a, P> {
        self.is_alone = !drafts && self.in_flight.is_empty();
        MeteredCluster { cluster, meter: self, drafter, drafts }
    }

    /// Ends a step that has committed `tokens` tokens.
    pub(crate) fn end_step(&mut self, tokens: usize) {
        self.policy.planned().observe_step(tokens, self.now_ns, self.is_alone);
    }

    /// Forgets the jobs in flight, which have been cancelled.
    pub(crate) fn stop(&mut self) {
        self.in_flight.clear();
    }
}

/// The cluster of a decoder during a step.
pub(crate) struct MeteredCluster<'a, P> {
    cluster: &'a mut dyn Cluster,
    meter: &'a mut Meter<P>,
    drafter: usize,
    drafts: bool,
}

impl<P: Policy> MeteredCluster<'_, P> {
    /// Returns the policy with what it has learned so far.
    pub(crate) fn policy(&mut self) -> &mut P {
        &mut self.meter.policy
    }

    /// From now on, drafters are to work during score jobs, or not.
    pub(crate) fn set_drafts(&mut self, drafts: bool) {
        self.drafts = drafts;
    }

    /// Passes on the verdict on the drafter's chain.
    pub(crate) fn observe_verdict(&mut self, verdict: &ChainVerdict) {
        let ChainVerdict { tested, rejected, further } = verdict;
        self.meter.policy.planned().observe_verdict(tested, *rejected, *further);
    }
}

impl<P: Policy> Cluster for MeteredCluster<'_, P> {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        let submitted = match (on, &job) {
            (Role::Drafter(drafter), _) => JobInFlight::Draft { drafter },
            (Role::Target(_), Job::Score(job)) => JobInFlight::Score {
                rows: job.tree.len() + 1,
                while_drafting: self.drafts || !self.meter.in_flight.is_empty(),
            },
            (Role::Target(_), Job::Draft { .. }) => return self.cluster.submit(on, job),
        };
        let ticket = self.cluster.submit(on, job)?;
        self.meter.is_alone &= matches!(submitted, JobInFlight::Score { rows: 1, .. });
        self.meter.in_flight.insert(ticket, submitted);
        Ok(ticket)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.meter.in_flight.entry(ticket).and_modify(|job| *job = JobInFlight::Cancelled);
        self.cluster.cancel(ticket);
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        let completion = self.cluster.next_completion()?;
        self.meter.now_ns = self.meter.now_ns.max(completion.finished_ns);
        let time = JobTime::from(&completion);
        match (self.meter.in_flight.remove(&completion.ticket), &completion.output) {
            (Some(JobInFlight::Draft { drafter }), Ok(JobOutput::Draft(draft)))
                if drafter == self.drafter =>
            {
                self.meter.policy.planned().observe_draft(draft.tree.len(), &time);
            }
            (Some(JobInFlight::Score { rows, while_drafting }), Ok(JobOutput::Score(_))) => {
                self.meter.policy.planned().observe_score(rows, &time, while_drafting);
            }
            _ => {}
        }
        Ok(completion)
    }

    fn observe(&mut self, outcome: Outcome) {
        self.cluster.observe(outcome);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.cluster.release(sequence);
    }
}
