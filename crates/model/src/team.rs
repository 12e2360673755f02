//! A device group's threads: a pinned team that runs one piece of work at a time, together.
//!
//! The thread that calls [`Team::run`] is member 0. The others wait for work by spinning for some
//! microseconds, since the next kernel usually follows at once, and then park, so that a team that
//! has nothing to do costs nothing and does not disturb other load. Shared work comes in pieces: a
//! member that is done with its own takes over what others have left, so that one whose core is
//! disturbed does not hold up all.

mod affinity_guard;
mod parts;

pub use affinity_guard::AffinityGuard;
pub(crate) use parts::Parts;

use crate::kernels::Isa;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a waiting thread spins before it parks: longer than what a forward pass does between
/// two kernels, shorter than what other load would notice.
const SPIN: Duration = Duration::from_micros(100);
/// Turns of the spinning loop between two looks at the clock.
const TURNS: u32 = 16;

/// Work as the members see it: a function of the member's number.
type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// A team of threads, pinned to their cores where cores are named.
pub struct Team {
    isa: Isa,
    shared: Arc<Shared>,
    /// The other members.
    helpers: Vec<Thread>,
    /// Those of them that end with the team; a part of a team has none.
    handles: Vec<JoinHandle<()>>,
    /// Where each member's part of shared work goes on.
    cursors: Vec<Cursor>,
    /// Held during a run: a team does one thing at a time.
    leading: Mutex<()>,
}

/// The next piece of a member's part, on a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Cursor(AtomicUsize);

/// A team whose threads could not be had.
#[derive(Debug, thiserror::Error)]
pub enum TeamError {
    /// The operating system refused to pin a thread.
    #[error("cannot pin a thread to core {core}: {source}; is the core online and allowed here?")]
    Pin {
        /// The core.
        core: usize,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The operating system refused a thread.
    #[error("cannot start a thread for a team: {0}")]
    Spawn(std::io::Error),
}

struct Shared {
    /// Number of the current run; a change tells helpers that there is work.
    run: AtomicUsize,
    /// The current run. The leader writes it while no helper works; helpers read it between the
    /// change of `run` and their reports.
    current: UnsafeCell<Option<Run>>,
    /// Helpers that have not reported yet.
    pending: AtomicUsize,
    stop: AtomicBool,
    /// The first panic of a helper in this run.
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

/// What helpers need to know of a run.
struct Run {
    work: &'static Work<'static>,
    leader: Thread,
}

// SAFETY: everything but `current` is made to be shared, and `run` and `pending` order all access to
// `current`: see its documentation.
unsafe impl Sync for Shared {}

impl Team {
    /// One member, the caller itself, not pinned. Like every team it uses the best instructions, or
    /// those that `FORERUN_ISA` names ([`Isa::from_environment`]).
    #[must_use]
    pub fn single_thread() -> Self {
        let isa = Isa::from_environment().unwrap_or_else(|_| Isa::best());
        let shared = Shared {
            run: AtomicUsize::new(0),
            current: UnsafeCell::new(None),
            pending: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        };
        Self {
            isa,
            shared: Arc::new(shared),
            helpers: Vec::new(),
            handles: Vec::new(),
            cursors: vec![Cursor::default()],
            leading: Mutex::new(()),
        }
    }

    /// The same team with the kernels of another instruction set.
    ///
    /// # Panics
    /// If the processor does not have it.
    #[must_use]
    pub fn with_isa(mut self, isa: Isa) -> Self {
        assert!(isa <= Isa::best(), "this processor has no {isa}");
        self.isa = isa;
        self
    }

    /// The instruction set of its kernels.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// `members` threads, not pinned to any core.
    ///
    /// # Errors
    /// [`TeamError::Spawn`] if a thread cannot be started.
    pub fn unpinned(members: usize) -> Result<Self, TeamError> {
        let mut team = Self::single_thread();
        for number in 1..members {
            team.add_helper(number, None)?;
        }
        Ok(team)
    }

    /// One member a core, each pinned to its own; the calling thread is pinned to the first.
    ///
    /// # Errors
    /// If a core does not exist or may not be used, or a thread cannot be started.
    pub fn pinned(cores: &[usize]) -> Result<Self, TeamError> {
        let mut team = Self::single_thread();
        for (number, &core) in cores.iter().enumerate() {
            if number == 0 {
                pin_this_thread(core)?;
            } else {
                team.add_helper(number, Some(core))?;
            }
        }
        Ok(team)
    }

    fn add_helper(&mut self, number: usize, core: Option<usize>) -> Result<(), TeamError> {
        let shared = Arc::clone(&self.shared);
        let (report, pinned) = std::sync::mpsc::sync_channel(1);
        let body = move || {
            let outcome = core.map_or(Ok(()), pin_this_thread);
            let ready = outcome.is_ok();
            // A closed channel means that nobody waits any more, and the team is being dropped.
            if report.send(outcome).is_ok() && ready {
                help(&shared, number, 0);
            }
        };
        let name = format!("forerun-team-{number}");
        let handle = thread::Builder::new().name(name).spawn(body).map_err(TeamError::Spawn)?;
        self.helpers.push(handle.thread().clone());
        self.handles.push(handle);
        self.cursors.push(Cursor::default());
        pinned.recv().unwrap_or(Ok(()))
    }

    /// Number of members.
    #[must_use]
    pub fn members(&self) -> usize {
        self.helpers.len() + 1
    }

    /// How often all members have worked together so far, and so waited for each other. A team of one
    /// never does.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.shared.run.load(Ordering::Relaxed)
    }

    /// Calls `work(member)` once on every member and returns when all have returned.
    ///
    /// # Panics
    /// If a member panics, the panic goes on here once all members have returned.
    pub fn run(&self, work: &Work<'_>) {
        if self.helpers.is_empty() {
            return work(0);
        }
        let _leading = lock(&self.leading);
        self.lead(work);
    }

    /// A run, once this thread leads.
    fn lead(&self, work: &Work<'_>) {
        // SAFETY: only the lifetime changes. Helpers use the reference only between the change of
        // `run` below and their reports, and this function does not return (nor unwind: the leader's
        // own panic is caught) before all have reported.
        let work_anywhere =
            unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
        let run = Run { work: work_anywhere, leader: thread::current() };
        // SAFETY: this thread leads, and the helpers of the last run have reported.
        unsafe { *self.shared.current.get() = Some(run) };
        self.shared.pending.store(self.helpers.len(), Ordering::Relaxed);
        self.shared.run.fetch_add(1, Ordering::Release);
        for helper in &self.helpers {
            helper.unpark();
        }
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        wait_until(|| self.shared.pending.load(Ordering::Acquire) == 0);
        let theirs = lock(&self.shared.panic).take();
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Calls `work(member, piece)` once for every piece of `0..count`. Each member has a part of
    /// neighbouring pieces, always the same ones for the same count, and helps others when it is
    /// done with them.
    pub fn share(&self, count: usize, work: impl Fn(usize, usize) + Sync) {
        if self.helpers.is_empty() {
            return (0..count).for_each(|piece| work(0, piece));
        }
        let _leading = lock(&self.leading);
        let members = self.members();
        let start = |member: usize| count * member / members;
        for (member, cursor) in self.cursors.iter().enumerate() {
            cursor.0.store(start(member), Ordering::Relaxed);
        }
        self.lead(&|member| {
            for owner in (member..members).chain(0..member) {
                let next = || self.cursors[owner].0.fetch_add(1, Ordering::Relaxed);
                let end = start(owner + 1);
                let pieces = std::iter::from_fn(|| Some(next()).filter(|&piece| piece < end));
                pieces.for_each(|piece| work(member, piece));
            }
        });
    }

    /// Runs `work` over `0..count` split into one contiguous range a member, cut at multiples of
    /// `grain`.
    pub fn split(&self, count: usize, grain: usize, work: impl Fn(std::ops::Range<usize>) + Sync) {
        let members = self.members();
        let grains = count.div_ceil(grain);
        self.run(&|member| {
            let from = grains * member / members * grain;
            let to = (grains * (member + 1) / members * grain).min(count);
            if from < to {
                work(from..to);
            }
        });
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.run.fetch_add(1, Ordering::Release);
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // A helper's panics were reported by the run in which they happened.
            drop(handle.join());
        }
    }
}

/// A helper's life: wait for the run behind the one `seen` last, take part, report; until the team
/// stops or, without work, dismisses it. Returns the run that ended it.
fn help(shared: &Shared, number: usize, mut seen: usize) -> usize {
    loop {
        wait_until(|| shared.run.load(Ordering::Acquire) != seen);
        seen = shared.run.load(Ordering::Acquire);
        if shared.stop.load(Ordering::Relaxed) {
            return seen;
        }
        // SAFETY: a run has begun, and this helper has not reported yet.
        let current = unsafe { &*shared.current.get() };
        let Some(Run { work, leader }) = current else { return seen };
        // Reports even if the payload of a second panic panics when it is dropped.
        let _report = Report { shared, leader: leader.clone() };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(number))) {
            lock(&shared.panic).get_or_insert(panic);
        }
    }
}

/// A helper's report that it is done with a run.
struct Report<'a> {
    shared: &'a Shared,
    leader: Thread,
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        if self.shared.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.leader.unpark();
        }
    }
}

/// Spins for a while, then parks until `done`; whoever makes it true unparks the waiter.
fn wait_until(done: impl Fn() -> bool) {
    if done() {
        return;
    }
    let started = Instant::now();
    while started.elapsed() < SPIN {
        for _ in 0..TURNS {
            if done() {
                return;
            }
            std::hint::spin_loop();
        }
    }
    while !done() {
        thread::park();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(target_os = "linux")]
fn pin_this_thread(core: usize) -> Result<(), TeamError> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let pin = |core| {
        if core >= CpuSet::MAX_CPU {
            return Err(rustix::io::Errno::INVAL);
        }
        let mut set = CpuSet::new();
        set.set(core);
        sched_setaffinity(None, &set)
    };
    pin(core).map_err(|source| TeamError::Pin { core, source: source.into() })
}

/// Other systems have no such call; their schedulers keep busy threads apart by themselves.
#[cfg(not(target_os = "linux"))]
fn pin_this_thread(_core: usize) -> Result<(), TeamError> {
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn every_member_works_once_in_every_run() {
        for members in 1..=3 {
            let team = Team::unpinned(members).unwrap();
            let counts: Vec<AtomicUsize> = (0..members).map(|_| AtomicUsize::new(0)).collect();
            for round in 0..300 {
                team.run(&|member| {
                    counts[member].fetch_add(1, Ordering::Relaxed);
                });
                if round % 100 == 50 {
                    // Long enough for the helpers to park.
                    thread::sleep(Duration::from_millis(2));
                }
            }
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 300));
            assert_eq!(team.runs(), if members == 1 { 0 } else { 300 });
        }
    }

    #[test]
    fn a_split_covers_everything_once_whatever_the_grain() {
        let team = Team::unpinned(2).unwrap();
        for count in [0, 1, 15, 16, 17, 100] {
            let hits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            team.split(count, 16, |range| {
                assert_eq!(range.start % 16, 0);
                for hit in &hits[range] {
                    hit.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(hits.iter().all(|hit| hit.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn pieces_are_done_once_even_if_a_member_is_slow() {
        let team = Team::unpinned(3).unwrap();
        for count in [0, 1, 2, 3, 50] {
            let hits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            team.share(count, |member, piece| {
                if member == 1 {
                    thread::sleep(Duration::from_millis(1));
                }
                hits[piece].fetch_add(1, Ordering::Relaxed);
            });
            assert!(hits.iter().all(|hit| hit.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_members_panic_reaches_the_leader_and_the_team_goes_on() {
        let team = Team::unpinned(2).unwrap();
        for guilty in 0..2 {
            let run = || team.run(&|member| assert_ne!(member, guilty, "member {guilty} fails"));
            let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
            let message = panic.downcast_ref::<String>().unwrap();
            assert!(message.contains("fails"), "{message}");
            team.run(&|_| ());
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_core_that_does_not_exist_is_an_error() {
        for core in [1_000, 1_000_000] {
            let error = thread::spawn(move || Team::pinned(&[core]).err()).join().unwrap();
            assert!(error.unwrap().to_string().contains(&core.to_string()));
        }
    }
}
