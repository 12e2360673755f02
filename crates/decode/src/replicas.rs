//! The target replicas: which are free, which are slow, and which have failed.

use forerun_core::Ticket;
use std::collections::BTreeMap;

/// Replicas whose jobs take up to this factor as long as those of another one count as equally fast: jobs have different
/// numbers of rows.
const SIMILAR: f64 = 1.5;
/// A job waits for a faster replica if that takes up to this factor as long as the job on a free one.
const WORTH_WAITING: f64 = 1.4;
/// A replica that gets no jobs is tried again when nothing has been learned of it for this many of its jobs' times.
const JOBS_BETWEEN_TRIALS: f64 = 8.0;

/// One target replica.
#[derive(Clone, Copy, Debug)]
struct Replica {
    failed: bool,
    /// The number of its jobs in flight, without cancelled ones.
    active: usize,
    /// The number of its cancelled jobs that have not completed yet.
    cancelled: usize,
    /// The number of committed tokens when it got its last job.
    read: usize,
    /// How long its last two jobs took, in nanoseconds; 0 if that is not known.
    latest_ns: [u64; 2],
    /// When its last job started and should end, on the cluster's clock.
    started_ns: u64,
    ends_ns: f64,
    /// When a job showed last how fast it is.
    observed_ns: u64,
}

impl Default for Replica {
    fn default() -> Self {
        Self {
            failed: false,
            active: 0,
            cancelled: 0,
            read: 0,
            latest_ns: [0; 2],
            started_ns: 0,
            ends_ns: 0.0,
            observed_ns: 0,
        }
    }
}

impl Replica {
    fn missed(&self, frontier: usize) -> usize {
        frontier.saturating_sub(self.read)
    }

    /// Returns how long its active job will still run. One that is late is expected to be as late again.
    fn remaining_ns(&self, now_ns: u64) -> f64 {
        (self.ends_ns - now_ns as f64).abs()
    }

    /// Returns how long its jobs take; 0 if that is not known. A single slow one shows nothing: it may have shared its passes
    /// with the prompt of another answer.
    fn job_ns(&self) -> f64 {
        self.latest_ns[0].min(self.latest_ns[1]) as f64
    }

    fn observe(&mut self, ns: u64, now_ns: u64) {
        (self.latest_ns, self.observed_ns) = ([self.latest_ns[1], ns], now_ns);
    }
}

/// A job that waits for a replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingJob {
    /// The number of committed tokens.
    pub(crate) frontier: usize,
    /// How many of them a replica may have missed to get the job.
    pub(crate) max_missed: usize,
    /// The time on the cluster's clock.
    pub(crate) now_ns: u64,
}

/// All target replicas.
#[derive(Clone)]
pub(crate) struct Replicas {
    all: Vec<Replica>,
    /// The cancelled jobs that have not completed yet, with their replicas.
    cancelled: BTreeMap<Ticket, usize>,
}

impl Replicas {
    pub(crate) fn new(count: usize) -> Self {
        Self { all: vec![Replica::default(); count], cancelled: BTreeMap::new() }
    }

    /// Returns the replicas at the start of a new answer, with the slowness that they have shown.
    pub(crate) fn for_new_answer(&self, count: usize) -> Self {
        let mut new = Self::new(count);
        for (replica, known) in new.all.iter_mut().zip(&self.all) {
            replica.latest_ns = known.latest_ns;
        }
        new
    }

    /// Returns the replica that should get a job: one without an active job, preferably one without a cancelled job, either.
    /// There is none if a faster one that is busy would finish the job earlier, or not much later: then it may get rows that
    /// follow along with it. One that has missed too many tokens
    /// gets no job if there are others.
    pub(crate) fn free(&self, job: &WaitingJob) -> Option<usize> {
        let free = || self.near(job).filter(|(_, replica)| replica.active == 0);
        // Those of unknown speed first, so that it is soon known.
        let fastest = free().map(|(_, replica)| replica.job_ns()).min_by(f64::total_cmp)?;
        let fast = free().filter(|(_, replica)| replica.job_ns() <= fastest * SIMILAR);
        let (index, chosen) = fast.min_by_key(|(_, replica)| replica.cancelled)?;
        let finishes_earlier = |busy: &Replica| {
            let wait_ns = busy.remaining_ns(job.now_ns) + busy.job_ns();
            let is_faster = busy.job_ns() > 0.0 && busy.job_ns() * SIMILAR < chosen.job_ns();
            is_faster && wait_ns < WORTH_WAITING * chosen.job_ns()
        };
        let mut busy = self.near(job).filter(|(_, replica)| replica.active > 0);
        (!busy.any(|(_, replica)| finishes_earlier(replica))).then_some(index)
    }

    /// Returns the healthy replicas that may get a job, because they have not missed too many tokens.
    fn near(&self, job: &WaitingJob) -> impl Iterator<Item = (usize, &Replica)> {
        let frontier = job.frontier;
        let least = self.healthy().map(|(_, replica)| replica.missed(frontier)).min().unwrap_or(0);
        let most = job.max_missed.max(least);
        self.healthy().filter(move |(_, replica)| replica.missed(frontier) <= most)
    }

    /// Returns an idle replica to try a job on, because it was slow, or has missed many tokens and the job `waits`. Nothing
    /// has been learned of it for long.
    pub(crate) fn to_try(&self, job: &WaitingJob, waits: bool) -> Option<usize> {
        let is_due = |replica: &Replica| {
            let idle_ns = job.now_ns.saturating_sub(replica.observed_ns) as f64;
            replica.job_ns() > 0.0 && idle_ns >= JOBS_BETWEEN_TRIALS * replica.job_ns()
        };
        let idle =
            self.healthy().filter(|(_, replica)| replica.active == 0 && replica.cancelled == 0);
        let idle = idle.filter(|(index, _)| waits || !self.is_fast(*index));
        let idle = idle.filter(|(_, replica)| is_due(replica));
        idle.min_by_key(|(_, replica)| replica.observed_ns).map(|(index, _)| index)
    }

    /// Returns the healthy replica with the fewest jobs.
    pub(crate) fn least_busy(&self) -> Option<usize> {
        let jobs = |replica: &Replica| replica.active + replica.cancelled;
        self.healthy().min_by_key(|(_, replica)| jobs(replica)).map(|(index, _)| index)
    }

    /// Returns the number of replicas that are about as fast as the fastest one, at least one.
    pub(crate) fn fast_ones(&self) -> usize {
        self.healthy().filter(|(index, _)| self.is_fast(*index)).count().max(1)
    }

    /// Returns whether the jobs of a replica take about as long as those of the fastest one.
    pub(crate) fn is_fast(&self, index: usize) -> bool {
        self.all[index].job_ns() <= self.fastest_ns() * SIMILAR
    }

    /// Returns how long the jobs of the fastest replica take; infinite if that is not known.
    fn fastest_ns(&self) -> f64 {
        let known = self.healthy().map(|(_, replica)| replica.job_ns()).filter(|ns| *ns > 0.0);
        known.fold(f64::INFINITY, f64::min)
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

    /// Counts a job that was submitted to a replica.
    pub(crate) fn start_job(&mut self, index: usize, job: &WaitingJob) {
        let replica = &mut self.all[index];
        replica.active += 1;
        replica.read = job.frontier;
        replica.started_ns = job.now_ns;
        replica.ends_ns = job.now_ns as f64 + replica.job_ns();
    }

    /// Counts the completion of an active job.
    pub(crate) fn end_job(&mut self, index: usize) {
        self.all[index].active -= 1;
    }

    /// Learns at `now_ns` that a job took `ns` nanoseconds on a replica.
    pub(crate) fn observe(&mut self, index: usize, ns: u64, now_ns: u64) {
        self.all[index].observe(ns, now_ns);
    }

    /// Counts the cancellation of an active job. One that is late shows that its replica is slow.
    pub(crate) fn cancel_job(&mut self, index: usize, ticket: Ticket, now_ns: u64) {
        let replica = &mut self.all[index];
        (replica.active, replica.cancelled) = (replica.active - 1, replica.cancelled + 1);
        let ran_ns = now_ns.saturating_sub(replica.started_ns);
        if ran_ns as f64 > 2.0 * replica.job_ns() && replica.job_ns() > 0.0 {
            replica.observe(ran_ns, now_ns);
        }
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

    /// A job after `frontier` committed tokens, at `now_ns`.
    fn job(frontier: usize, max_missed: usize, now_ns: u64) -> WaitingJob {
        WaitingJob { frontier, max_missed, now_ns }
    }

    /// Returns two replicas whose jobs take 100 ns, and one whose jobs take three times as long.
    fn with_slow_one() -> Replicas {
        let mut replicas = Replicas::new(3);
        for (index, ns) in [100, 100, 300].into_iter().enumerate() {
            (0..2).for_each(|_| replicas.observe(index, ns, 0));
        }
        replicas
    }

    #[test]
    fn free_replicas_have_no_active_job_and_preferably_no_cancelled_one() {
        let (mut replicas, job) = (Replicas::new(3), job(0, 0, 0));
        replicas.start_job(0, &job);
        replicas.start_job(1, &job);
        replicas.cancel_job(1, Ticket(7), 0);
        assert_eq!((replicas.free(&job), replicas.least_busy()), (Some(2), Some(2)));
        replicas.start_job(2, &job);
        assert_eq!((replicas.free(&job), replicas.least_busy()), (Some(1), Some(0)));
        assert!(replicas.end_cancelled_job(Ticket(7)) && !replicas.end_cancelled_job(Ticket(7)));
        assert_eq!(replicas.least_busy(), Some(1));
        assert!(replicas.mark_failed(1) && !replicas.mark_failed(1));
        assert_eq!((replicas.free(&job), replicas.least_busy()), (None, Some(0)));
        replicas.end_job(0);
        assert_eq!(replicas.free(&job), Some(0));
    }

    #[test]
    fn replicas_that_have_missed_much_get_no_job() {
        let mut replicas = Replicas::new(2);
        replicas.start_job(0, &job(90, 32, 0));
        assert_eq!(replicas.free(&job(100, 32, 0)), None, "the other one has missed 100 tokens");
        assert_eq!(replicas.free(&job(100, 100, 0)), Some(1));
        // After a pause, those that were near before it read what they have missed.
        replicas.end_job(0);
        replicas.resume(100, 500, 32);
        assert_eq!(replicas.free(&job(500, 32, 0)), Some(0));
        replicas.start_job(0, &job(500, 32, 0));
        assert_eq!(replicas.free(&job(500, 32, 0)), None);
        assert!(replicas.mark_failed(0));
        assert_eq!(replicas.free(&job(500, 32, 0)), Some(1), "there is no other one");
    }

    #[test]
    fn a_slow_replica_gets_the_jobs_that_it_finishes_first() {
        let mut replicas = with_slow_one();
        assert_eq!(
            (replicas.fast_ones(), replicas.is_fast(1), replicas.is_fast(2)),
            (2, true, false)
        );
        replicas.start_job(0, &job(9, 32, 1_000));
        replicas.start_job(1, &job(9, 32, 1_000));
        assert_eq!(replicas.free(&job(9, 32, 1_000)), None, "the others finish it at 1,200");
        // One that is late is expected to be as late again.
        assert_eq!(replicas.free(&job(9, 32, 1_410)), None);
        assert_eq!(replicas.free(&job(9, 32, 1_430)), Some(2));
        // A slower one, but not by much.
        let mut replicas = with_slow_one();
        (0..2).for_each(|_| replicas.observe(2, 140, 0));
        assert_eq!((replicas.fast_ones(), replicas.is_fast(2)), (3, true));
        replicas.start_job(0, &job(9, 32, 1_000));
        replicas.start_job(1, &job(9, 32, 1_000));
        assert_eq!(replicas.free(&job(9, 32, 1_050)), Some(2));
    }

    #[test]
    fn an_idle_replica_is_tried_again_and_comes_back() {
        let mut replicas = with_slow_one();
        replicas.start_job(0, &job(9, 32, 10_000));
        replicas.start_job(1, &job(9, 32, 10_000));
        assert_eq!(replicas.to_try(&job(9, 32, 2_000), false), None);
        let mut now_ns = 10_000;
        for took_ns in [300, 100] {
            let tried = job(9, 32, now_ns);
            assert_eq!(replicas.to_try(&tried, false), Some(2));
            assert!(!replicas.is_fast(2));
            replicas.start_job(2, &tried);
            assert_eq!(replicas.to_try(&tried, true), None);
            replicas.end_job(2);
            replicas.observe(2, took_ns, now_ns + took_ns);
            assert_eq!(replicas.to_try(&job(9, 32, now_ns + 500), true), None);
            now_ns += 10_000;
        }
        assert!(replicas.is_fast(2) && replicas.for_new_answer(3).is_fast(2));
        assert_eq!(replicas.fast_ones(), 3);
    }

    #[test]
    fn one_slow_job_shows_nothing() {
        let mut replicas = Replicas::new(2);
        (0..2).for_each(|_| replicas.observe(0, 100, 0));
        for (ns, is_fast) in [(100, true), (900, true), (100, true), (900, true), (900, false)] {
            replicas.observe(1, ns, 0);
            assert_eq!(replicas.is_fast(1), is_fast);
        }
    }

    #[test]
    fn a_late_job_that_is_cancelled_shows_that_its_replica_is_slow() {
        let mut replicas = Replicas::new(2);
        (0..4).for_each(|at| replicas.observe(at % 2, 100, 0));
        for (ticket, after_ns, is_fast) in [(3, 150, true), (4, 250, true), (5, 250, false)] {
            replicas.start_job(1, &job(9, 32, 1_000));
            replicas.cancel_job(1, Ticket(ticket), 1_000 + after_ns);
            assert_eq!(replicas.is_fast(1), is_fast);
            assert!(replicas.end_cancelled_job(Ticket(ticket)));
        }
    }
}
