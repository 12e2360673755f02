//! The target replicas: which are free, which are slow, and which have failed.
//!
//! A job goes to the replica that is expected to finish it first. A fixed share for each replica by
//! its speed would not do: rows are used in order, so a slow replica with its share of the jobs at
//! the frontier would set the pace. Trials of slow replicas are for those with hardware of their
//! own: where replicas share cores, they slow down the others.

use forerun_core::Ticket;
use std::collections::BTreeMap;

/// Replicas whose jobs take up to this factor as long as those of another one count as equally fast: jobs have different
/// numbers of rows.
const SIMILAR: f64 = 1.5;
/// A job waits for a faster replica if that takes up to this factor as long as the job on a free one.
const WORTH_WAITING: f64 = 1.4;
/// A replica that gets no jobs is tried again when nothing has been learned of it for this many of its jobs' times.
const JOBS_BETWEEN_TRIALS: f64 = 8.0;

/// A job that reads more tokens than this first shows nothing of its replica's speed.
const MOST_UNREAD: usize = 64;
/// A job that is cancelled when it has run for this factor of its expected time shows that its replica is slow.
const LATE: f64 = 2.0;

/// One target replica.
#[derive(Clone, Copy, Debug, Default)]
struct Replica {
    failed: bool,
    /// The number of its jobs in flight, without cancelled ones.
    active: usize,
    /// The number of its cancelled jobs that have not completed yet.
    cancelled: usize,
    /// The number of committed tokens that its completed jobs have read, and that its last job reads.
    read: usize,
    reads_to: usize,
    /// Whether its last job only reads tokens.
    only_reads: bool,
    /// How long its last two jobs would have taken with one row, in nanoseconds; 0 if that is not known.
    latest_ns: [f64; 2],
    last_job: Option<LastJob>,
    /// When its last trial ended, or a job showed how fast it is.
    observed_ns: u64,
    /// Whether the next trial follows at once, because the last one only read tokens.
    continues_trial: bool,
}

/// The last job that a replica got.
#[derive(Clone, Copy, Debug)]
struct LastJob {
    /// When it started, on the cluster's clock.
    started_ns: u64,
    /// How long it should take; 0 if that is not known.
    expected_ns: f64,
    /// The time in times of a job with one row.
    size: f64,
    /// The number of tokens that it reads first.
    unread: usize,
}

impl Replica {
    /// Returns how many of the `frontier` committed tokens it has missed. Those that an active job reads first count as read, unless
    /// the job only reads them: it may take long.
    fn missed(&self, frontier: usize) -> usize {
        let scores = self.active > 0 && !self.only_reads;
        frontier.saturating_sub(if scores { self.read.max(self.reads_to) } else { self.read })
    }

    /// Returns how long its last job will still run. One that is late is expected to be as late again.
    fn remaining_ns(&self, now_ns: Option<u64>) -> f64 {
        let Some((job, now_ns)) = self.last_job.zip(now_ns) else { return 0.0 };
        (job.started_ns as f64 + job.expected_ns - now_ns as f64).abs()
    }

    /// Returns how long its jobs take with one row, if that is known. A single slow one shows nothing: it may have shared
    /// its passes with the prompt of another answer.
    fn known_ns(&self) -> Option<f64> {
        Some(self.latest_ns[0].min(self.latest_ns[1])).filter(|ns| *ns > 0.0)
    }

    fn observe(&mut self, ns: f64, now_ns: u64) {
        (self.latest_ns, self.observed_ns) = ([self.latest_ns[1], ns], now_ns);
        self.continues_trial = false;
    }
}

/// A job that waits for a replica.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitingJob {
    /// The number of committed tokens.
    pub(crate) frontier: usize,
    /// How many of them a replica may have missed to get the job.
    pub(crate) max_missed: usize,
    /// The time on the cluster's clock, if it is known.
    pub(crate) now_ns: Option<u64>,
    /// How long it takes, in times of a job with one row.
    pub(crate) size: f64,
}

/// All target replicas.
#[derive(Clone)]
pub(crate) struct Replicas {
    all: Vec<Replica>,
    /// The cancelled jobs that have not completed yet, with their replicas and the number of tokens that were committed before
    /// them.
    cancelled: BTreeMap<Ticket, (usize, usize)>,
}

impl Replicas {
    pub(crate) fn new(count: usize) -> Self {
        Self { all: vec![Replica::default(); count], cancelled: BTreeMap::new() }
    }

    /// Returns the replicas at the start of a new answer, with the slowness that they have shown.
    pub(crate) fn for_new_answer(&self, count: usize) -> Self {
        let mut new = Self::new(count);
        for (replica, known) in new.all.iter_mut().zip(&self.all) {
            (replica.latest_ns, replica.observed_ns) = (known.latest_ns, known.observed_ns);
        }
        new
    }

    /// Returns the replica that should get a job: one without an active job, preferably one without a cancelled job, either.
    /// There is none if a faster one that is busy would finish the job earlier, or not much later: then it may get rows that
    /// follow along with it. One that has missed too many tokens gets no job if there are others.
    pub(crate) fn free(&self, job: &WaitingJob) -> Option<usize> {
        let job_ns = |replica: &Replica| self.one_row_ns(replica) * job.size;
        let free = || self.near(job).filter(|(_, replica)| replica.active == 0);
        let fastest = free().map(|(_, replica)| job_ns(replica)).min_by(f64::total_cmp)?;
        let fast = free().filter(|(_, replica)| job_ns(replica) <= fastest * SIMILAR);
        // Those of unknown speed first, so that it is soon known.
        let preference = |replica: &Replica| (replica.cancelled, replica.known_ns().is_some());
        let (index, chosen) = fast.min_by_key(|(_, replica)| preference(replica))?;
        let cancelled_ns = if chosen.cancelled > 0 { chosen.remaining_ns(job.now_ns) } else { 0.0 };
        let ends_ns = cancelled_ns + job_ns(chosen);
        let finishes_earlier = |busy: &Replica| {
            let is_faster = job_ns(busy) * SIMILAR < job_ns(chosen);
            is_faster && busy.remaining_ns(job.now_ns) + job_ns(busy) < WORTH_WAITING * ends_ns
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

    /// Returns an idle replica to try a job on, because it was slow, and nothing has been learned of it for long.
    pub(crate) fn to_try(&self, job: &WaitingJob) -> Option<usize> {
        let now_ns = job.now_ns?;
        let is_due = |replica: &Replica| {
            let idle_ns = now_ns.saturating_sub(replica.observed_ns) as f64;
            let is_long = |ns| replica.continues_trial || idle_ns >= JOBS_BETWEEN_TRIALS * ns;
            replica.known_ns().is_some_and(is_long)
        };
        let idle =
            self.healthy().filter(|(_, replica)| replica.active == 0 && replica.cancelled == 0);
        let idle = idle.filter(|(index, _)| !self.is_fast(*index));
        let idle = idle.filter(|(_, replica)| is_due(replica));
        idle.min_by_key(|(_, replica)| replica.observed_ns).map(|(index, _)| index)
    }

    /// Returns the healthy replica with the fewest jobs.
    pub(crate) fn least_busy(&self) -> Option<usize> {
        let jobs = |replica: &Replica| replica.active + replica.cancelled;
        self.healthy().min_by_key(|(_, replica)| jobs(replica)).map(|(index, _)| index)
    }

    /// Returns the number of replicas that get jobs like this one, because they are about as fast as the fastest one and have
    /// not missed too many tokens; at least one.
    pub(crate) fn fast_ones(&self, job: &WaitingJob) -> usize {
        self.near(job).filter(|(index, _)| self.is_fast(*index)).count().max(1)
    }

    /// Returns whether the jobs of a replica take about as long as those of the fastest one.
    pub(crate) fn is_fast(&self, index: usize) -> bool {
        self.one_row_ns(&self.all[index]) <= self.fastest_ns() * SIMILAR
    }

    /// Returns whether a replica's last job, which is in flight, is expected to end no later than a new one would on the fastest
    /// replica. So it is if nothing is known.
    pub(crate) fn ends_before(&self, index: usize, new: &WaitingJob) -> bool {
        let new_ns = self.fastest_ns() * new.size;
        new_ns == 0.0 || self.all[index].remaining_ns(new.now_ns) <= new_ns
    }

    /// Returns how long a replica's jobs take with one row: as those of the fastest one if that is not known.
    fn one_row_ns(&self, replica: &Replica) -> f64 {
        replica.known_ns().unwrap_or_else(|| self.fastest_ns())
    }

    /// Returns how long the jobs of the fastest replica take with one row; 0 if nothing is known.
    fn fastest_ns(&self) -> f64 {
        let known = self.healthy().filter_map(|(_, replica)| replica.known_ns());
        known.min_by(f64::total_cmp).unwrap_or(0.0)
    }

    fn healthy(&self) -> impl Iterator<Item = (usize, &Replica)> {
        self.all.iter().enumerate().filter(|(_, replica)| !replica.failed)
    }

    /// Returns the idle replicas that have missed too many tokens to get a job, and how many. Slow ones are left out, because they
    /// would get no jobs anyway.
    pub(crate) fn far(&self, job: &WaitingJob) -> Vec<(usize, usize)> {
        let near: Vec<usize> = self.near(job).map(|(index, _)| index).collect();
        let idle =
            self.healthy().filter(|(_, replica)| replica.active == 0 && replica.cancelled == 0);
        let far = idle.filter(|(index, _)| !near.contains(index) && self.is_fast(*index));
        far.map(|(index, replica)| (index, replica.missed(job.frontier))).collect()
    }

    /// Counts `frontier` committed tokens as read by all replicas, as at the start of an answer, whose prompt all read at once.
    pub(crate) fn assume_read(&mut self, frontier: usize) {
        self.all.iter_mut().for_each(|replica| replica.read = frontier);
    }

    /// Counts `frontier` committed tokens as read by the first replica, with which other methods decode.
    pub(crate) fn assume_read_by_first(&mut self, frontier: usize) {
        self.all.iter_mut().take(1).for_each(|replica| replica.read = frontier);
    }

    /// Counts a job that was submitted to a replica only to let it read tokens.
    pub(crate) fn start_reading(&mut self, index: usize, job: &WaitingJob) {
        self.start_job(index, job);
        self.all[index].only_reads = true;
    }

    /// Counts a job that was submitted to a replica.
    pub(crate) fn start_job(&mut self, index: usize, job: &WaitingJob) {
        let (expected_ns, size) = (self.one_row_ns(&self.all[index]) * job.size, job.size);
        let replica = &mut self.all[index];
        let unread = job.frontier.saturating_sub(replica.read);
        let started = |started_ns| LastJob { started_ns, expected_ns, size, unread };
        replica.last_job = job.now_ns.map(started);
        replica.active += 1;
        (replica.reads_to, replica.only_reads) = (job.frontier, false);
    }

    /// Counts the completion of an active job. `succeeded`: whether it has read its tokens.
    pub(crate) fn end_job(&mut self, index: usize, succeeded: bool) {
        let replica = &mut self.all[index];
        replica.active -= 1;
        if succeeded {
            replica.read = replica.read.max(replica.reads_to);
        }
    }

    /// Learns at `now_ns` that a job would have taken `ns` nanoseconds with one row on a replica.
    pub(crate) fn observe(&mut self, index: usize, ns: f64, now_ns: u64) {
        self.all[index].observe(ns, now_ns);
    }

    /// Counts at `now_ns` a trial that showed nothing. The next one follows at once, but not a third one.
    pub(crate) fn end_trial_in_vain(&mut self, index: usize, now_ns: u64) {
        let replica = &mut self.all[index];
        replica.observed_ns = now_ns;
        replica.continues_trial = !replica.continues_trial;
    }

    /// Counts the cancellation of an active job. One that is late at `now_ns` shows that its replica is slow, unless it had
    /// to read many tokens.
    pub(crate) fn cancel_job(&mut self, index: usize, ticket: Ticket, now_ns: Option<u64>) {
        let replica = &mut self.all[index];
        (replica.active, replica.cancelled) = (replica.active - 1, replica.cancelled + 1);
        self.cancelled.insert(ticket, (index, replica.reads_to));
        let Some((job, now_ns)) = replica.last_job.zip(now_ns) else { return };
        let ran_ns = now_ns.saturating_sub(job.started_ns) as f64;
        let is_late = job.expected_ns > 0.0 && ran_ns > LATE * job.expected_ns;
        if is_late && job.unread <= MOST_UNREAD && !replica.only_reads {
            replica.observe(ran_ns / job.size, now_ns);
        }
    }

    /// Counts the completion of a cancelled job, which may have ended before it was cancelled. Returns whether `ticket` is one.
    pub(crate) fn end_cancelled_job(&mut self, ticket: Ticket, has_ended_before: bool) -> bool {
        let Some((index, read)) = self.cancelled.remove(&ticket) else { return false };
        let replica = &mut self.all[index];
        replica.cancelled -= 1;
        if has_ended_before {
            replica.read = replica.read.max(read);
        }
        true
    }

    /// Forgets the cancelled jobs, whose completions nobody may have received.
    pub(crate) fn forget_cancelled(&mut self) {
        self.cancelled.clear();
        self.all.iter_mut().for_each(|replica| replica.cancelled = 0);
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
        WaitingJob { frontier, max_missed, now_ns: Some(now_ns), size: 1.0 }
    }

    /// Returns two replicas whose jobs take 100 ns, and one whose jobs take three times as long.
    fn with_slow_one() -> Replicas {
        let mut replicas = Replicas::new(3);
        for (index, ns) in [100.0, 100.0, 300.0].into_iter().enumerate() {
            (0..2).for_each(|_| replicas.observe(index, ns, 0));
        }
        replicas
    }

    #[test]
    fn free_replicas_have_no_active_job_and_preferably_no_cancelled_one() {
        let (mut replicas, job) = (Replicas::new(3), job(0, 0, 0));
        replicas.start_job(0, &job);
        replicas.start_job(1, &job);
        replicas.cancel_job(1, Ticket(7), Some(0));
        assert_eq!((replicas.free(&job), replicas.least_busy()), (Some(2), Some(2)));
        replicas.start_job(2, &job);
        assert_eq!((replicas.free(&job), replicas.least_busy()), (Some(1), Some(0)));
        assert!(
            replicas.end_cancelled_job(Ticket(7), true)
                && !replicas.end_cancelled_job(Ticket(7), true)
        );
        assert_eq!(replicas.least_busy(), Some(1));
        assert!(replicas.mark_failed(1) && !replicas.mark_failed(1));
        assert_eq!((replicas.free(&job), replicas.least_busy()), (None, Some(0)));
        replicas.end_job(0, true);
        assert_eq!(replicas.free(&job), Some(0));
    }

    #[test]
    fn replicas_that_have_missed_much_get_no_job() {
        let mut replicas = Replicas::new(2);
        replicas.start_job(0, &job(90, 32, 0));
        assert_eq!(replicas.free(&job(100, 32, 0)), None, "the other one has missed 100 tokens");
        assert_eq!(replicas.free(&job(100, 100, 0)), Some(1));
        assert_eq!(replicas.far(&job(100, 32, 0)), [(1, 100)]);
        replicas.end_job(0, true);
        assert_eq!(replicas.free(&job(500, 32, 0)), Some(0), "it has missed less");
        replicas.start_job(0, &job(500, 32, 0));
        assert_eq!(replicas.free(&job(500, 32, 0)), None);
        replicas.start_reading(1, &job(500, 32, 0));
        assert_eq!(replicas.fast_ones(&job(500, 32, 0)), 1, "it still reads");
        replicas.end_job(1, true);
        assert_eq!(replicas.free(&job(510, 32, 0)), Some(1), "it has read");
        replicas.all[1].read = 0;
        assert!(replicas.mark_failed(0));
        assert_eq!(replicas.free(&job(500, 32, 0)), Some(1), "there is no other one");
    }

    #[test]
    fn an_answer_begins_with_all_replicas_and_goes_on_after_another_method_with_the_first() {
        let mut replicas = Replicas::new(3);
        replicas.assume_read(200);
        replicas.start_job(0, &job(200, 32, 0));
        assert_eq!(replicas.free(&job(201, 32, 0)), Some(1));
        replicas.end_job(0, true);
        replicas.assume_read_by_first(900);
        assert_eq!(replicas.free(&job(901, 32, 0)), Some(0));
        assert_eq!(replicas.far(&job(901, 32, 0)), [(1, 701), (2, 701)]);
    }

    #[test]
    fn cancelled_jobs_have_read_nothing_unless_they_had_ended() {
        let mut replicas = Replicas::new(2);
        replicas.start_job(0, &job(100, 32, 0));
        replicas.start_job(1, &job(50, 32, 0));
        replicas.cancel_job(1, Ticket(1), Some(0));
        replicas.start_job(1, &job(100, 32, 0));
        assert!(replicas.end_cancelled_job(Ticket(1), true));
        replicas.cancel_job(1, Ticket(2), Some(0));
        assert!(replicas.far(&job(100, 32, 0)).is_empty(), "it may stand still");
        assert!(replicas.end_cancelled_job(Ticket(2), false));
        assert_eq!(replicas.far(&job(100, 32, 0)), [(1, 50)]);
    }

    #[test]
    fn slow_replicas_do_not_read_what_they_missed() {
        let mut replicas = with_slow_one();
        replicas.assume_read_by_first(500);
        assert_eq!(replicas.far(&job(500, 32, 0)), [(1, 500)]);
    }

    #[test]
    fn nothing_waits_for_a_replica_that_reads() {
        let mut replicas = with_slow_one();
        replicas.all[2].read = 50;
        replicas.start_reading(0, &job(50, 32, 1_000));
        replicas.start_reading(1, &job(50, 32, 1_000));
        assert_eq!(replicas.free(&job(50, 32, 1_000)), Some(2), "the fast ones read");
        for ticket in 0..3 {
            replicas.cancel_job(0, Ticket(ticket), Some(9_000));
            replicas.start_reading(0, &job(50, 32, 1_000));
        }
        assert!(replicas.is_fast(0), "reading shows no speed");
    }

    #[test]
    fn a_slow_replica_gets_the_jobs_that_it_finishes_first() {
        let mut replicas = with_slow_one();
        assert_eq!(
            (replicas.fast_ones(&job(9, 32, 0)), replicas.is_fast(1), replicas.is_fast(2)),
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
        (0..2).for_each(|_| replicas.observe(2, 140.0, 0));
        assert_eq!((replicas.fast_ones(&job(9, 32, 0)), replicas.is_fast(2)), (3, true));
        replicas.start_job(0, &job(9, 32, 1_000));
        replicas.start_job(1, &job(9, 32, 1_000));
        assert_eq!(replicas.free(&job(9, 32, 1_050)), Some(2));
    }

    #[test]
    fn a_job_in_flight_may_end_before_a_new_one() {
        let mut replicas = with_slow_one();
        replicas.start_job(0, &WaitingJob { size: 1.5, ..job(9, 32, 1_000) });
        replicas.start_job(2, &job(9, 32, 1_000));
        let ends_before = |index, now_ns| replicas.ends_before(index, &job(9, 32, now_ns));
        assert!(!ends_before(0, 1_040) && ends_before(0, 1_050) && ends_before(0, 1_150));
        assert!(!ends_before(2, 1_190) && ends_before(2, 1_200));
        // It is late, and expected to be as late again.
        assert!(!ends_before(0, 1_260));
        assert!(Replicas::new(1).ends_before(0, &job(9, 32, 1_000)));
    }

    #[test]
    fn an_idle_replica_is_tried_again_and_comes_back() {
        let mut replicas = with_slow_one();
        replicas.start_job(0, &job(9, 32, 10_000));
        replicas.start_job(1, &job(9, 32, 10_000));
        assert_eq!(replicas.to_try(&job(9, 32, 2_000)), None);
        let mut now_ns = 10_000;
        for took_ns in [300, 100] {
            let tried = job(9, 32, now_ns);
            assert_eq!(replicas.to_try(&tried), Some(2));
            assert!(!replicas.is_fast(2));
            replicas.start_job(2, &tried);
            assert_eq!(replicas.to_try(&tried), None);
            replicas.end_job(2, true);
            replicas.observe(2, took_ns as f64, now_ns + took_ns);
            assert_eq!(replicas.to_try(&job(9, 32, now_ns + 500)), None);
            now_ns += 10_000;
        }
        assert!(replicas.is_fast(2) && replicas.for_new_answer(3).is_fast(2));
        assert_eq!(replicas.fast_ones(&job(9, 32, 0)), 3);
    }

    #[test]
    fn one_slow_job_shows_nothing() {
        let mut replicas = Replicas::new(2);
        (0..2).for_each(|_| replicas.observe(0, 100.0, 0));
        for (ns, is_fast) in
            [(100.0, true), (900.0, true), (100.0, true), (900.0, true), (900.0, false)]
        {
            replicas.observe(1, ns, 0);
            assert_eq!(replicas.is_fast(1), is_fast);
        }
    }

    #[test]
    fn a_late_job_that_is_cancelled_shows_that_its_replica_is_slow() {
        let mut replicas = Replicas::new(2);
        (0..4).for_each(|at| replicas.observe(at % 2, 100.0, 0));
        for (ticket, after_ns, is_fast) in [(3, 150, true), (4, 250, true), (5, 250, false)] {
            replicas.start_job(1, &job(9, 32, 1_000));
            replicas.cancel_job(1, Ticket(ticket), Some(1_000 + after_ns));
            assert_eq!(replicas.is_fast(1), is_fast);
            assert!(replicas.end_cancelled_job(Ticket(ticket), true));
        }
    }

    #[test]
    fn jobs_that_read_much_or_are_stopped_show_no_slowness() {
        let mut replicas = Replicas::new(2);
        (0..4).for_each(|at| replicas.observe(at % 2, 100.0, 0));
        let mut cancel = |job: &WaitingJob, now_ns| {
            for ticket in 0..3 {
                replicas.start_job(1, job);
                replicas.cancel_job(1, Ticket(ticket), now_ns);
                assert!(replicas.end_cancelled_job(Ticket(ticket), true));
                replicas.all[1].read = 0;
            }
            replicas.is_fast(1)
        };
        assert!(cancel(&job(500, 32, 1_000), Some(9_000)), "they read 500 tokens");
        assert!(cancel(&job(9, 32, 1_000), None), "they were stopped");
        assert!(cancel(&WaitingJob { now_ns: None, ..job(9, 32, 0) }, Some(9_000)), "no clock");
        assert!(cancel(&WaitingJob { size: 50.0, ..job(9, 32, 1_000) }, Some(9_000)), "many rows");
        assert!(!cancel(&job(9, 32, 1_000), Some(9_000)));
    }

    #[test]
    fn replicas_of_unknown_speed_count_as_the_fastest() {
        let mut replicas = Replicas::new(3);
        (0..2).for_each(|_| replicas.observe(0, 100.0, 0));
        (0..2).for_each(|_| replicas.observe(2, 300.0, 0));
        assert_eq!(replicas.free(&job(9, 32, 1_000)), Some(1), "so that its speed is soon known");
        replicas.start_job(0, &job(9, 32, 1_000));
        replicas.start_job(1, &job(9, 32, 1_000));
        replicas.end_job(0, true);
        replicas.mark_failed(0);
        assert_eq!(replicas.free(&job(9, 32, 1_050)), Some(2), "nothing is known of the other one");
        let mut replicas = with_slow_one();
        replicas.all[1].latest_ns = [0.0; 2];
        replicas.start_job(0, &job(9, 32, 900));
        replicas.start_job(1, &job(9, 32, 1_000));
        (replicas.all[0].read, replicas.all[0].reads_to) = (0, 0);
        replicas.all[2].read = 9;
        assert_eq!(replicas.free(&job(9, 5, 1_050)), None, "the unknown one ends at 1,200");
        // A late one that is cancelled is no longer unknown.
        for ticket in 0..2 {
            replicas.cancel_job(1, Ticket(ticket), Some(1_900));
            assert!(replicas.end_cancelled_job(Ticket(ticket), true));
            replicas.start_job(1, &job(9, 32, 1_000));
        }
        assert!(!replicas.is_fast(1));
    }

    #[test]
    fn cancelled_jobs_that_still_run_delay_a_replica_and_may_be_forgotten() {
        let mut replicas = with_slow_one();
        replicas.start_job(0, &job(9, 32, 1_000));
        replicas.start_job(1, &job(9, 32, 1_000));
        replicas.start_job(2, &job(9, 32, 1_290));
        replicas.cancel_job(2, Ticket(3), Some(1_300));
        // The others are late by 300 ns.
        assert_eq!(replicas.free(&job(9, 32, 1_400)), None, "the slow one ends at 1,890");
        replicas.forget_cancelled();
        assert_eq!(replicas.free(&job(9, 32, 1_450)), Some(2));
        assert!(!replicas.end_cancelled_job(Ticket(3), true));
    }

    #[test]
    fn trials_that_show_nothing_are_repeated_once() {
        let mut replicas = with_slow_one();
        replicas.end_trial_in_vain(2, 10_000);
        assert_eq!(replicas.to_try(&job(9, 32, 10_001)), Some(2));
        replicas.end_trial_in_vain(2, 11_000);
        assert_eq!(replicas.to_try(&job(9, 32, 11_001)), None);
        assert_eq!(replicas.to_try(&job(9, 32, 11_000 + 8 * 300)), Some(2));
        assert_eq!(replicas.to_try(&WaitingJob { now_ns: None, ..job(9, 32, 0) }), None);
    }

    #[test]
    fn those_that_have_missed_much_do_not_count_as_fast() {
        let mut replicas = Replicas::new(3);
        replicas.start_job(0, &job(100, 32, 0));
        replicas.start_job(1, &job(90, 32, 0));
        assert_eq!([32, 100].map(|missed| replicas.fast_ones(&job(100, missed, 0))), [2, 3]);
    }
}
