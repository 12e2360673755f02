//! When a worker starts a batch, and with how many sequences.
//!
//! A sequence comes back for its next pass after some time, in which another device drafts for it.
//! Sequences can take turns, all in one pass, or be two groups, one of which is verified while the
//! drafter works for the other (*MineDraft*, Tang et al. 2026, arXiv 2603.18016). Two groups hide
//! the drafting, but a pass of each takes its fixed time once more, such as that of reading the
//! weights. So a target waits for sequences that come back within the fixed time, and makes two
//! groups of them if they stay away longer.

use crate::batch::{MAX_BATCH, QueuedJob, next_batch, next_role};
use crate::{Role, SequenceId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Decides when a worker starts its next batch. Times are nanoseconds on one clock.
#[derive(Debug, Default)]
pub struct Batcher {
    visits: BTreeMap<SequenceId, Visits>,
    times: BTreeMap<Role, BatchTimes>,
    /// Since when the jobs in the queue have waited for others.
    waits_since: Option<u64>,
    running: Option<Batch>,
}

/// What is known of a sequence.
#[derive(Debug, Default)]
struct Visits {
    /// The number of its jobs that have no answer yet.
    jobs: usize,
    /// When the first of them arrived, or will arrive.
    came_ns: u64,
    /// When its last job was answered.
    left_ns: Option<u64>,
    /// The usual time until it comes back.
    away_ns: Option<f64>,
    /// The roles that have answered one of its jobs, and have so read its prompt.
    roles: Vec<Role>,
}

#[derive(Debug)]
struct Batch {
    role: Role,
    sequences: usize,
    started_ns: u64,
    /// Whether its time shows what a batch usually costs: no job reads a prompt, or ends early.
    is_usual: bool,
}

/// What a new time away counts if it is longer than usual, and if it is shorter. Drafts have
/// different lengths, and all sequences of a pass wait for the longest.
const LONGER_AWAY: f64 = 0.5;
const SHORTER_AWAY: f64 = 0.2;
/// The part of a batch's time that is always waited for sequences that come at about the same time.
const WAIT_PART: f64 = 0.1;

/// The part of all sequences that a batch has at most if there are several groups. They meet once,
/// to show what a larger batch costs.
const LARGEST_GROUP: f64 = 0.75;

impl Batcher {
    /// Learns that a job has arrived in the worker's queue.
    pub fn arrive(&mut self, sequence: SequenceId, at_ns: u64) {
        let visits = self.visits.entry(sequence.base()).or_default();
        visits.jobs += 1;
        if visits.jobs > 1 {
            return;
        }
        visits.came_ns = at_ns;
        if let Some(left_ns) = visits.left_ns {
            let new = at_ns.saturating_sub(left_ns) as f64;
            let usual = visits.away_ns.unwrap_or(new);
            let counts = if new > usual { LONGER_AWAY } else { SHORTER_AWAY };
            visits.away_ns = Some(usual + counts * (new - usual));
        }
    }

    /// Learns that a job has left: it was answered, or it was cancelled or has failed.
    pub fn leave(&mut self, sequence: SequenceId, is_answered: bool, at_ns: u64) {
        let Some(visits) = self.visits.get_mut(&sequence.base()) else { return };
        visits.jobs = visits.jobs.saturating_sub(1);
        visits.left_ns = Some(at_ns);
        if let Some(batch) = &mut self.running {
            batch.is_usual &= is_answered;
            if is_answered && !visits.roles.contains(&batch.role) {
                visits.roles.push(batch.role);
            }
        }
    }

    /// Forgets a sequence.
    pub fn release(&mut self, sequence: SequenceId) {
        self.visits.remove(&sequence);
    }

    /// Learns that the last batch has ended.
    pub fn end(&mut self, at_ns: u64) {
        if let Some(batch) = self.running.take().filter(|batch| batch.is_usual) {
            let ns = at_ns.saturating_sub(batch.started_ns) as f64;
            self.times.entry(batch.role).or_default().add(batch.sequences as f64, ns);
        }
    }

    /// Removes the jobs from the queue that run next, together: jobs for the same role, one for each
    /// sequence; none if it is empty.
    ///
    /// # Errors
    /// The time until which the jobs should wait for others. Ask again then, or when one arrives.
    pub fn next<J: QueuedJob>(
        &mut self,
        queue: &mut VecDeque<J>,
        now_ns: u64,
    ) -> Result<Vec<J>, u64> {
        let Some(role) = next_role(queue) else {
            self.waits_since = None;
            return Ok(Vec::new());
        };
        let most = self.most(role, queue, now_ns)?;
        let batch = next_batch(queue, role, most);
        self.waits_since = None;
        let reads_no_prompt = |job: &J| {
            let visits = self.visits.get(&job.sequence().base());
            !job.has_started() && visits.is_some_and(|visits| visits.roles.contains(&job.role()))
        };
        let is_usual = batch.iter().all(reads_no_prompt);
        let sequences = sequences(&batch).len();
        self.running = Some(Batch { role, sequences, started_ns: now_ns, is_usual });
        Ok(batch)
    }

    /// Returns the largest number of jobs in the next batch, if it starts now.
    fn most<J: QueuedJob>(
        &mut self,
        role: Role,
        queue: &VecDeque<J>,
        now_ns: u64,
    ) -> Result<usize, u64> {
        let Some(times) = self.times.get(&role) else { return Ok(MAX_BATCH) };
        let ready = sequences(queue);
        let fixed_ns = times.fixed_ns();
        let (due, away) = self.others(&ready, now_ns as f64 - fixed_ns);
        let all = (ready.len() + due.len()) as f64;
        let away_ns = away.iter().sum::<f64>() / away.len().max(1) as f64;
        let whole_ns = times.ns_of(all);
        // Those that come back at once join the others in the next pass anyway.
        let least_ns = WAIT_PART * whole_ns;
        let is_awaited_long = times.is_known() || times.sequences.value() < LARGEST_GROUP * all;
        // If `s` of all stay away for `w`, and bring two tokens each, a pass that waits has `all + s`
        // tokens in `fixed + w`. Without waiting they are in every second pass, and two passes have
        // `2 all` tokens. So waiting pays if `w < fixed * s / all`.
        let staying = away.iter().filter(|&&away_ns| away_ns > least_ns).count() as f64;
        let wait_ns = match is_awaited_long {
            true => (fixed_ns * staying / all).max(least_ns),
            false => least_ns,
        };
        // The drafter, or a target that is faster than it, is not what the others wait for.
        let (wait_ns, groups) = match role.target() {
            Some(_) if away_ns <= fixed_ns => (wait_ns, 1),
            Some(_) if away_ns <= whole_ns => (wait_ns, 2),
            _ => (least_ns, 1),
        };
        let until_ns = self.waits_since.unwrap_or(now_ns) as f64 + wait_ns;
        let is_awaited = due.iter().any(|&due_ns| due_ns < until_ns);
        let group = (ready.len() + due.len()).div_ceil(groups);
        if ready.len() < group && is_awaited && (now_ns as f64) < until_ns {
            self.waits_since.get_or_insert(now_ns);
            return Err(until_ns.ceil() as u64);
        }
        // A sequence may have several jobs, in branches.
        let jobs = queue.len().div_ceil(ready.len());
        Ok(if groups == 1 { MAX_BATCH } else { (group * jobs).min(MAX_BATCH) })
    }

    /// Returns when other sequences will come back, and how long each stays away, also of those that
    /// are ready. Those that should have come before `since_ns` have paused.
    fn others(&self, ready: &BTreeSet<SequenceId>, since_ns: f64) -> (Vec<f64>, Vec<f64>) {
        let (mut due, mut away) = (Vec::new(), Vec::new());
        for (sequence, visits) in &self.visits {
            let (Some(left_ns), Some(away_ns)) = (visits.left_ns, visits.away_ns) else { continue };
            let due_ns = match visits.jobs {
                0 => left_ns as f64 + away_ns,
                _ => visits.came_ns as f64,
            };
            let is_ready = ready.contains(sequence);
            if is_ready || due_ns >= since_ns {
                away.push(away_ns);
            }
            if !is_ready && due_ns >= since_ns {
                due.push(due_ns);
            }
        }
        (due, away)
    }
}

/// Returns the sequences of jobs.
fn sequences<'a, J: QueuedJob + 'a>(jobs: impl IntoIterator<Item = &'a J>) -> BTreeSet<SequenceId> {
    jobs.into_iter().map(|job| job.sequence().base()).collect()
}

/// A mean of values, in which later ones count more; 0 if there are none.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        (self.sum, self.weight) = (self.sum * DECAY + value, self.weight * DECAY + 1.0);
    }

    fn value(self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { 0.0 }
    }
}

/// The weight of a batch compared with the next one: 50 count.
const DECAY: f64 = 0.98;
/// The least variance of the number of sequences, relative to its square, to compute the time of
/// each: one batch of 50 with half of them is enough.
const LEAST_VARIANCE: f64 = 0.002;

/// The times of batches, as a linear function of the number of sequences.
#[derive(Clone, Copy, Debug, Default)]
struct BatchTimes {
    sequences: Mean,
    ns: Mean,
    squares: Mean,
    products: Mean,
    /// The time of each sequence, as it was last measured.
    sequence_ns: Option<f64>,
}

impl BatchTimes {
    fn add(&mut self, sequences: f64, ns: f64) {
        self.sequences.add(sequences);
        self.ns.add(ns);
        self.squares.add(sequences * sequences);
        self.products.add(sequences * ns);
        let (sequences, ns) = (self.sequences.value(), self.ns.value());
        let variance = self.squares.value() - sequences * sequences;
        if variance > LEAST_VARIANCE * sequences * sequences {
            let covariance = self.products.value() - sequences * ns;
            self.sequence_ns = Some((covariance / variance).clamp(0.0, ns / sequences));
        }
    }

    /// Returns the time of a batch with so many sequences.
    fn ns_of(&self, sequences: f64) -> f64 {
        let further = sequences - self.sequences.value();
        (self.ns.value() + further * self.sequence_ns.unwrap_or(0.0)).max(0.0)
    }

    /// Returns whether the times of a sequence and of the rest are known.
    fn is_known(&self) -> bool {
        self.sequence_ns.is_some()
    }

    /// Returns the part of the time that does not depend on the number of sequences: all of it, as
    /// far as is known, before their number has changed.
    fn fixed_ns(&self) -> f64 {
        self.sequence_ns.map_or(self.ns.value(), |_| self.ns_of(0.0))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const TARGET: Role = Role::Target(0);

    struct Waiting(u64);

    impl QueuedJob for Waiting {
        fn role(&self) -> Role {
            TARGET
        }

        fn sequence(&self) -> SequenceId {
            SequenceId(self.0)
        }

        fn has_started(&self) -> bool {
            false
        }
    }

    /// A worker whose batches take 1,000 ns and 500 for each of four sequences.
    #[derive(Default)]
    struct Worker {
        batcher: Batcher,
        queue: VecDeque<Waiting>,
        now_ns: u64,
    }

    impl Worker {
        fn arrive(&mut self, sequences: &[u64]) {
            for &sequence in sequences {
                self.batcher.arrive(SequenceId(sequence), self.now_ns);
                self.queue.push_back(Waiting(sequence));
            }
        }

        /// Runs the next batch. Returns its sequences, or until when they wait.
        fn run(&mut self) -> Result<Vec<u64>, u64> {
            let batch = self.batcher.next(&mut self.queue, self.now_ns)?;
            self.now_ns += 1_000 + 500 * batch.len() as u64;
            for job in &batch {
                self.batcher.leave(job.sequence(), true, self.now_ns);
            }
            self.batcher.end(self.now_ns);
            Ok(batch.into_iter().map(|job| job.0).collect())
        }

        /// Runs batches whose sequences come back after `away_ns`.
        fn run_all(rounds: usize, away_ns: u64) -> Self {
            let mut worker = Self::default();
            for round in 0..rounds {
                worker.now_ns += away_ns;
                worker.arrive(if round == 2 { &[0, 1] } else { &[0, 1, 2, 3] });
                while !worker.queue.is_empty() {
                    worker.now_ns = worker.run().map_or_else(|until| until, |_| worker.now_ns);
                }
            }
            worker
        }
    }

    #[test]
    fn a_target_waits_for_sequences_that_come_back_within_the_fixed_time() {
        let mut worker = Worker::run_all(20, 310);
        worker.now_ns += 310;
        worker.arrive(&[0, 1]);
        let wait_ns = worker.run().unwrap_err() - worker.now_ns;
        assert!((990..=1_010).contains(&wait_ns), "{wait_ns}");
        worker.now_ns += 200;
        worker.arrive(&[2, 3]);
        assert_eq!(worker.run(), Ok(vec![0, 1, 2, 3]));
    }

    #[test]
    fn sequences_that_pause_are_awaited_once_and_released_ones_no_longer() {
        let mut worker = Worker::run_all(20, 310);
        worker.now_ns += 310;
        worker.arrive(&[0, 1]);
        worker.now_ns = worker.run().unwrap_err();
        assert_eq!(worker.run(), Ok(vec![0, 1]));
        worker.arrive(&[0, 1]);
        assert_eq!(worker.run(), Ok(vec![0, 1]));
        worker.arrive(&[0]);
        assert!(worker.run().unwrap_err() > worker.now_ns);
        (1..4).for_each(|sequence| worker.batcher.release(SequenceId(sequence)));
        assert_eq!(worker.run(), Ok(vec![0]));
    }

    #[test]
    fn batches_of_cancelled_jobs_do_not_show_the_fixed_time() {
        let mut worker = Worker::run_all(20, 310);
        for _ in 0..20 {
            worker.now_ns += 310;
            worker.arrive(&[0, 1, 2, 3]);
            let batch = worker.batcher.next(&mut worker.queue, worker.now_ns).unwrap();
            for job in batch {
                worker.batcher.leave(job.sequence(), false, worker.now_ns);
            }
            worker.batcher.end(worker.now_ns);
        }
        worker.now_ns += 310;
        worker.arrive(&[0, 1]);
        let wait_ns = worker.run().unwrap_err() - worker.now_ns;
        assert!((990..=1_010).contains(&wait_ns), "{wait_ns}");
    }

    /// Half of the sequences draft. They are awaited for half of the fixed time, and the others not.
    #[test]
    fn sequences_that_come_back_at_once_wait_less() {
        let mut worker = Worker::run_all(20, 310);
        for _ in 0..20 {
            worker.arrive(&[0, 1]);
            worker.now_ns += 310;
            worker.arrive(&[2, 3]);
            worker.run().unwrap();
        }
        worker.arrive(&[0, 1]);
        let wait_ns = worker.run().unwrap_err() - worker.now_ns;
        assert!((490..=510).contains(&wait_ns), "{wait_ns}");
    }

    #[test]
    fn sequences_that_stay_away_longer_are_two_groups() {
        let mut worker = Worker::run_all(4, 1_050);
        worker.now_ns += 1_050;
        worker.arrive(&[0, 1, 2, 3]);
        assert_eq!((worker.run(), worker.run()), (Ok(vec![0, 1]), Ok(vec![2, 3])));
    }
}
