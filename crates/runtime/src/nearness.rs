//! Keeps a decoder's thread near the worker with which it takes turns.
//!
//! If a decoder waits for each job before it submits the next one, its thread and the worker's
//! never work at the same time. On one core, they wake each other within a few microseconds. On two
//! cores, each sleeps while the other works, and to wake a core takes tens of microseconds in
//! virtual machines. The system leaves a thread where it has slept, so it is moved once.

use forerun_cpu::move_this_thread;

/// Decides when the thread of a decoder moves.
#[derive(Debug)]
pub(crate) struct Nearness {
    /// The worker of the last job, and its number of jobs in turn.
    worker: Option<usize>,
    jobs: u32,
    /// The number of jobs in turn before the thread moves.
    patience: u32,
}

/// The patience before the first move. It doubles with each, because other load may move the thread
/// back.
const PATIENCE: u32 = 8;
const MOST_PATIENCE: u32 = 1 << 20;

impl Default for Nearness {
    fn default() -> Self {
        Self { worker: None, jobs: 0, patience: PATIENCE }
    }
}

impl Nearness {
    /// Learns that a worker has completed a job, and moves the calling thread to `core`, that of
    /// the worker's first thread, if they take turns. `in_turn`: whether this is the decoder's only
    /// job, and the decoder the only one.
    pub(crate) fn observe(&mut self, worker: usize, core: Option<usize>, in_turn: bool) {
        let same = self.worker.replace(worker) == Some(worker);
        self.jobs = if same && in_turn { self.jobs + 1 } else { 0 };
        if let Some(core) = core.filter(|_| self.jobs >= self.patience) {
            self.jobs = 0;
            if move_this_thread(core) {
                self.patience = (2 * self.patience).min(MOST_PATIENCE);
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    #[test]
    fn a_thread_moves_to_the_worker_with_which_it_takes_turns() {
        let body = || {
            let all = sched_getaffinity(None).unwrap();
            let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core)).collect();
            let [first, .., last] = cores[..] else { return };
            let mut set = CpuSet::new();
            set.set(first);
            let mut nearness = Nearness::default();
            // It does not take turns with one of several workers, or if there are other jobs.
            (0..100).for_each(|job| nearness.observe(job % 2, Some(last), true));
            (0..100).for_each(|_| nearness.observe(0, Some(last), false));
            assert_eq!(nearness.patience, PATIENCE);
            // Other load may move it there before, so that it has nothing to do.
            let moves = |_| {
                sched_setaffinity(None, &set).unwrap();
                sched_setaffinity(None, &all).unwrap();
                (0..=PATIENCE).for_each(|_| nearness.observe(0, Some(last), true));
                nearness.patience == 2 * PATIENCE
            };
            assert!((0..1_000).any(moves));
            assert_eq!(sched_getaffinity(None).unwrap().count(), all.count());
        };
        // On a thread of its own, so that the affinity of other tests' threads does not matter.
        std::thread::spawn(body).join().unwrap();
    }
}
