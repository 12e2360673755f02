//! The target replicas of DSI: a free list, and the jobs in flight.

use crate::score_task::ScoreTask;
use crate::{DecodeError, Sequence, jobs};
use forerun_core::{Cluster, ClusterError, Completion, JobError, Role, Scores, Ticket};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// One target replica.
#[derive(Clone, Copy, Debug, Default)]
struct Replica {
    failed: bool,
    /// The number of tokens that were committed when the last of its completed jobs was submitted;
    /// 0 before its first completed job. A cancelled job may have read the prompt, or not.
    read: usize,
}

/// A replica reads a prompt of more tokens alone, before it gets rows: a job with rows may be
/// cancelled, and what it has read is lost.
const MAX_PROMPT_WITH_ROWS: usize = 8;

/// A job that was submitted to a replica.
struct ReplicaJob {
    replica: usize,
    task: ScoreTask,
}

/// All target replicas.
pub(crate) struct Replicas {
    all: Vec<Replica>,
    active: BTreeMap<Ticket, ReplicaJob>,
    /// Jobs in flight whose scores are not used: cancelled ones, and those in which a replica reads
    /// what it has missed.
    unused: BTreeMap<Ticket, ReplicaJob>,
    /// Whether the first replica has read all committed tokens, because another method has used it.
    first_has_read_all: bool,
}

/// What the completion of a job means.
pub(crate) enum Completed {
    /// The scores of a task.
    Scores(ScoreTask, Scores),
    /// The task of a failed replica, for another one.
    Lost(ScoreTask),
    /// It was not an active job of a replica's.
    Other(Completion),
}

impl Replicas {
    pub(crate) fn new(count: usize) -> Self {
        let (active, unused) = (BTreeMap::new(), BTreeMap::new());
        let all = vec![Replica::default(); count];
        Self { all, active, unused, first_has_read_all: false }
    }

    /// Returns whether a replica is free: it has no active job, has read the prompt if that is
    /// long, and has missed at most `max_lag` committed tokens.
    pub(crate) fn has_free(&self, max_lag: usize, sequence: &Sequence) -> bool {
        self.idle().any(|replica| !self.must_read(replica, max_lag, sequence))
    }

    /// Returns whether no replica has completed a job.
    pub(crate) fn have_read_nothing(&self) -> bool {
        self.healthy().all(|replica| self.all[replica].read == 0)
    }

    /// Returns whether a replica should read what it has missed before it gets rows.
    fn must_read(&self, replica: usize, max_lag: usize, sequence: &Sequence) -> bool {
        match self.all[replica].read {
            0 if sequence.prompt_len() > MAX_PROMPT_WITH_ROWS => true,
            _ => self.lag(replica) > max_lag,
        }
    }

    fn idle(&self) -> impl Iterator<Item = usize> {
        self.healthy().filter(|&replica| jobs_of(replica, &self.active) == 0)
    }

    /// Returns how many committed tokens a replica has not read that another one has.
    fn lag(&self, replica: usize) -> usize {
        let most = self.healthy().map(|other| self.all[other].read).max().unwrap_or(0);
        most.saturating_sub(self.all[replica].read)
    }

    /// Submits jobs in which idle replicas read a long prompt, or the tokens of which they have
    /// missed more than `max_lag`. No row waits for these jobs, and no rejection cancels them.
    pub(crate) fn catch_up(
        &mut self,
        max_lag: usize,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let begins = |&replica: &usize| {
            self.must_read(replica, max_lag, sequence) && jobs_of(replica, &self.unused) == 0
        };
        for replica in self.idle().filter(begins).collect::<Vec<_>>() {
            let task = ScoreTask::next_row(sequence.tokens().len());
            if let Some(ticket) = self.try_submit(replica, &task, sequence, cluster)? {
                self.unused.insert(ticket, ReplicaJob { replica, task });
            }
        }
        Ok(())
    }

    /// Returns the indices of the replicas that have not failed.
    pub(crate) fn healthy(&self) -> impl Iterator<Item = usize> {
        (0..self.all.len()).filter(|&index| !self.all[index].failed)
    }

    /// Returns the replica that should get a job: the one with the fewest active jobs, then one
    /// that need not read first, then the one with the fewest unused jobs, which may still run,
    /// then the one that has read the most committed tokens, because it reads the others before
    /// the job's rows.
    fn best(&self, max_lag: usize, sequence: &Sequence) -> Option<usize> {
        self.healthy().min_by_key(|&replica| {
            let [active, unused] = [&self.active, &self.unused].map(|jobs| jobs_of(replica, jobs));
            let must_read = self.must_read(replica, max_lag, sequence);
            (active, must_read, unused, Reverse(self.all[replica].read))
        })
    }

    /// Submits a task to the best replica.
    pub(crate) fn submit(
        &mut self,
        task: ScoreTask,
        max_lag: usize,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        if std::mem::take(&mut self.first_has_read_all) {
            self.all.iter_mut().take(1).for_each(|first| first.read = sequence.tokens().len());
        }
        while let Some(replica) = self.best(max_lag, sequence) {
            if let Some(ticket) = self.try_submit(replica, &task, sequence, cluster)? {
                self.active.insert(ticket, ReplicaJob { replica, task });
                return Ok(());
            }
        }
        Err(DecodeError::Cluster(ClusterError::WorkerGone(Role::Target(0))))
    }

    /// Submits a task to a replica. If its worker has stopped, it is no longer used: returns
    /// `None`.
    fn try_submit(
        &mut self,
        replica: usize,
        task: &ScoreTask,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<Option<Ticket>, DecodeError> {
        let (ahead, tree) = task.request(sequence.tokens().len());
        match jobs::submit_score(replica, sequence, ahead, tree, cluster) {
            Err(DecodeError::Cluster(gone @ ClusterError::WorkerGone(_))) => {
                self.drop_failed(replica, &gone.to_string(), sequence);
                Ok(None)
            }
            ticket => ticket.map(Some),
        }
    }

    /// Handles a completion. A replica whose job has failed is no longer used.
    ///
    /// # Errors
    /// If it was the last replica.
    pub(crate) fn complete(
        &mut self,
        sequence: &mut Sequence,
        completion: Completion,
    ) -> Result<Completed, DecodeError> {
        let ticket = completion.ticket;
        let (active, unused) = (self.active.remove(&ticket), self.unused.remove(&ticket));
        let is_used = active.is_some();
        let Some(ReplicaJob { replica, task }) = active.or(unused) else {
            return Ok(Completed::Other(completion));
        };
        match &completion.output {
            Ok(_) => {
                let read = &mut self.all[replica].read;
                *read = task.committed.max(*read);
            }
            Err(error @ (JobError::Failed { .. } | JobError::Panicked { .. })) => {
                self.drop_failed(replica, &error.to_string(), sequence);
                if is_used && self.healthy().next().is_some() {
                    return Ok(Completed::Lost(task));
                }
            }
            Err(_) => {}
        }
        if !is_used {
            return Ok(Completed::Other(completion));
        }
        let reply = jobs::score_reply(sequence, task.rows() - 1, completion)?;
        Ok(Completed::Scores(task, reply.output))
    }

    /// Cancels the active jobs whose task is not to be kept.
    pub(crate) fn retain(&mut self, keep: impl Fn(&ScoreTask) -> bool, cluster: &mut dyn Cluster) {
        let dropped =
            self.active.iter().filter(|(_, job)| !keep(&job.task)).map(|(&ticket, _)| ticket);
        for ticket in dropped.collect::<Vec<_>>() {
            cluster.cancel(ticket);
            self.unused.extend(self.active.remove_entry(&ticket));
        }
    }

    /// Cancels the jobs in which replicas read what they have missed.
    pub(crate) fn stop_catching_up(&self, cluster: &mut dyn Cluster) {
        self.unused.keys().for_each(|&ticket| cluster.cancel(ticket));
    }

    /// Forgets unused jobs, after cancelling them. Another method may go on, on the first replica,
    /// and get their completions.
    pub(crate) fn stop(&mut self, cluster: &mut dyn Cluster) {
        self.stop_catching_up(cluster);
        self.unused.clear();
        self.first_has_read_all = true;
    }

    fn drop_failed(&mut self, replica: usize, reason: &str, sequence: &mut Sequence) {
        if !std::mem::replace(&mut self.all[replica].failed, true) {
            let message = format!("target replica {replica} failed: {reason}");
            sequence.statistics_mut().failures.push(message);
        }
    }
}

fn jobs_of(replica: usize, jobs: &BTreeMap<Ticket, ReplicaJob>) -> usize {
    jobs.values().filter(|job| job.replica == replica).count()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::Limits;
    use forerun_core::{Job, JobCost, JobOutput, Outcome, Role, Sampling, SequenceId};

    /// A cluster that takes note of the replicas that got jobs.
    #[derive(Default)]
    struct Recorder(Vec<usize>);

    impl Cluster for Recorder {
        fn submit(&mut self, on: Role, _job: Job) -> Result<Ticket, ClusterError> {
            let Role::Target(replica) = on else { panic!("not a replica: {on:?}") };
            self.0.push(replica);
            Ok(Ticket(self.0.len() as u64 - 1))
        }

        fn cancel(&mut self, _ticket: Ticket) {}

        fn next_completion(&mut self) -> Result<Completion, ClusterError> {
            Err(ClusterError::Idle)
        }

        fn observe(&mut self, _outcome: Outcome) {}

        fn release(&mut self, _sequence: SequenceId) {}
    }

    struct Setup {
        replicas: Replicas,
        sequence: Sequence,
        cluster: Recorder,
    }

    fn sequence(tokens: usize) -> Sequence {
        let limits = Limits { max_tokens: 9, context_length: 999, eos: vec![] };
        Sequence::new(SequenceId(0), vec![1; tokens], Sampling::greedy(), limits)
    }

    impl Setup {
        fn new(replicas: usize) -> Self {
            let (replicas, cluster) = (Replicas::new(replicas), Recorder::default());
            Self { replicas, sequence: sequence(1), cluster }
        }

        /// Submits a task after `committed` tokens. Returns its ticket and replica.
        fn submit(&mut self, committed: usize) -> (Ticket, usize) {
            self.sequence = sequence(committed);
            let task = ScoreTask::next_row(committed);
            self.replicas.submit(task, MAX_LAG, &mut self.sequence, &mut self.cluster).unwrap();
            (Ticket(self.cluster.0.len() as u64 - 1), self.cluster.0[self.cluster.0.len() - 1])
        }

        fn complete(&mut self, ticket: Ticket, output: Result<JobOutput, JobError>) -> Completed {
            let (started_ns, finished_ns, cost) = (0, 1, JobCost::default());
            let completion = Completion { ticket, output, started_ns, finished_ns, cost };
            self.replicas.complete(&mut self.sequence, completion).unwrap()
        }
    }

    fn scores() -> Result<JobOutput, JobError> {
        let rows = vec![forerun_core::Distribution::point(1)];
        Ok(JobOutput::Score(Scores { rows, ..Scores::default() }))
    }

    fn failure() -> Result<JobOutput, JobError> {
        Err(JobError::Panicked { worker: "replica".to_owned(), message: "out of order".to_owned() })
    }

    const MAX_LAG: usize = 99;

    #[test]
    fn jobs_go_to_idle_replicas_first_and_then_to_those_without_cancelled_jobs() {
        let mut setup = Setup::new(3);
        assert_eq!((setup.submit(1).1, setup.submit(2).1), (0, 1));
        setup.replicas.retain(|task| task.committed == 1, &mut setup.cluster);
        assert_eq!((setup.submit(3).1, setup.submit(4).1), (2, 1));
        assert!(!setup.replicas.has_free(MAX_LAG, &setup.sequence));
    }

    #[test]
    fn the_replica_that_has_read_the_most_is_preferred() {
        let mut setup = Setup::new(3);
        let tickets = [90, 100, 80].map(|committed| setup.submit(committed).0);
        for ticket in tickets {
            assert!(matches!(setup.complete(ticket, scores()), Completed::Scores(..)));
        }
        assert_eq!([setup.submit(200).1, setup.submit(300).1, setup.submit(400).1], [1, 0, 2]);
        // Another method decodes with the first one.
        setup.replicas.retain(|_| false, &mut setup.cluster);
        setup.replicas.stop(&mut setup.cluster);
        assert_eq!(setup.submit(500).1, 0);
    }

    #[test]
    fn replicas_that_lag_behind_read_before_they_get_jobs() {
        let mut setup = Setup::new(2);
        let (ticket, replica) = setup.submit(100);
        assert_eq!(replica, 0);
        setup.complete(ticket, scores());
        assert_eq!(setup.submit(101).1, 0, "the other one has read nothing");
        assert!(!setup.replicas.has_free(MAX_LAG, &setup.sequence));
        for _ in 0..2 {
            setup.replicas.catch_up(MAX_LAG, &mut setup.sequence, &mut setup.cluster).unwrap();
        }
        assert_eq!(setup.cluster.0, [0, 0, 1]);
        assert!(matches!(setup.complete(Ticket(2), scores()), Completed::Other(_)));
        assert!(setup.replicas.has_free(MAX_LAG, &setup.sequence));
        assert_eq!(setup.submit(102).1, 1);
    }

    #[test]
    fn replicas_read_a_long_prompt_at_once_and_rows_go_to_those_that_have() {
        let mut setup = Setup::new(3);
        assert!(setup.replicas.have_read_nothing());
        let (first, replica) = setup.submit(50);
        assert_eq!(replica, 0);
        let catch_up = |setup: &mut Setup| {
            let Setup { replicas, sequence, cluster } = setup;
            replicas.catch_up(usize::MAX, sequence, cluster).unwrap();
        };
        catch_up(&mut setup);
        catch_up(&mut setup);
        assert_eq!(setup.cluster.0, [0, 1, 2]);
        // A rejection cancels none of them.
        setup.replicas.retain(|task| task.committed == 50, &mut setup.cluster);
        assert!(!setup.replicas.has_free(usize::MAX, &setup.sequence));
        assert!(matches!(setup.complete(first, scores()), Completed::Scores(..)));
        assert!(!setup.replicas.have_read_nothing());
        let (row, replica) = setup.submit(51);
        assert_eq!(replica, 0, "the others are still reading");
        // A cancelled job says nothing about what a replica has read.
        setup.complete(Ticket(1), Err(JobError::Cancelled));
        assert!(!setup.replicas.has_free(usize::MAX, &setup.sequence));
        setup.complete(Ticket(2), scores());
        setup.complete(row, scores());
        assert_eq!((setup.submit(52).1, setup.submit(53).1), (0, 2));
    }

    #[test]
    fn replicas_read_a_short_prompt_with_their_first_rows() {
        let mut setup = Setup::new(2);
        assert_eq!(setup.submit(8).1, 0);
        let Setup { replicas, sequence, cluster } = &mut setup;
        replicas.catch_up(usize::MAX, sequence, cluster).unwrap();
        assert_eq!(cluster.0, [0]);
        assert!(replicas.has_free(usize::MAX, sequence));
    }

    #[test]
    fn a_replica_that_fails_to_catch_up_is_no_longer_used() {
        let mut setup = Setup::new(2);
        let (ticket, _) = setup.submit(100);
        setup.complete(ticket, scores());
        setup.replicas.catch_up(MAX_LAG, &mut setup.sequence, &mut setup.cluster).unwrap();
        assert!(matches!(setup.complete(Ticket(1), failure()), Completed::Other(_)));
        assert_eq!(setup.replicas.healthy().collect::<Vec<_>>(), [0]);
        assert_eq!(setup.sequence.statistics().failures.len(), 1);
    }

    #[test]
    fn the_task_of_a_failed_replica_is_lost_once() {
        let mut setup = Setup::new(2);
        let (ticket, first) = setup.submit(1);
        assert!(matches!(setup.complete(ticket, failure()), Completed::Lost(_)));
        let failures = &setup.sequence.statistics().failures;
        assert!(failures.len() == 1 && failures[0].contains("replica 0"), "{failures:?}");
        let (ticket, second) = setup.submit(1);
        assert_eq!((first, second, setup.replicas.healthy().count()), (0, 1, 1));
        assert!(matches!(setup.complete(Ticket(9), scores()), Completed::Other(_)));
        assert!(matches!(setup.complete(ticket, scores()), Completed::Scores(..)));
    }
}
