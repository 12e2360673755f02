//! The thread pool of a device group: pinned threads that execute one function together.
//!
//! The thread that calls [`Team::run`] is member 0, the leader. The other members are helper
//! threads. A helper spins for some microseconds while it waits for work, because the next kernel
//! usually follows at once, and then parks. So an idle team costs nothing and does not disturb
//! other load.
//!
//! [`Team::for_each_piece`] balances load by work stealing: a member that has finished its own
//! pieces takes pieces from the others, so that one slow core does not hold up the whole team.
//!
//! On a busy machine a helper may not be scheduled for milliseconds. So helpers *join* such a run:
//! the leader takes all pieces that nobody has taken, and waits only for helpers that are in the
//! middle of a piece. If it has to wait for long, a helper has lost its core, and the leader works
//! alone for a while (`solo.rs`). If threads wait for their cores for much of the time, the team is
//! smaller for a while (`preferred_cores.rs`).
//!
//! Teams that work at the same time may help each other with their idle cores (`lent_cores.rs`).

mod affinity_guard;
mod lent_cores;
#[cfg(target_os = "linux")]
mod preferred_cores;
mod solo;
mod sub_teams;

pub use affinity_guard::{AffinityGuard, move_this_thread};
pub use lent_cores::LentCores;
pub(crate) use sub_teams::SubTeams;

use crate::kernels::Isa;
use solo::Solo;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a waiting thread spins before it parks: longer than the gap between two kernels of a
/// forward pass, and short enough not to disturb other load.
const SPIN_TIME: Duration = Duration::from_micros(100);
/// Iterations of the spin loop between two readings of the clock.
const SPINS_PER_CLOCK_CHECK: u32 = 16;

/// Work for a team: a function of the member's number.
type Work<'a> = dyn Fn(usize) + Sync + 'a;

/// A team of threads, which may be pinned to cores.
pub struct Team {
    isa: Isa,
    shared: Arc<Shared>,
    /// The members other than the leader: first those on the team's own cores.
    helpers: Vec<Thread>,
    /// The cores of other teams on which the remaining helpers run.
    lent: Option<LentToTeam>,
    /// The join handles of the helpers that this team owns; empty for a sub-team, which borrows the
    /// members of another team.
    handles: Vec<JoinHandle<()>>,
    /// The next piece of each member's range in [`Team::for_each_piece`].
    cursors: Vec<Cursor>,
    /// Held by the leader during a run: a team runs one function at a time.
    leader_lock: Mutex<Leader>,
}

/// A team's part in the exchange of cores.
struct LentToTeam {
    cores: Arc<LentCores>,
    /// The team's index.
    team: usize,
    /// The number of members on cores of other teams.
    members: usize,
}

/// What a team's leader remembers between runs.
#[derive(Default)]
struct Leader {
    solo: Solo,
    /// When the leader works without the cores of other teams.
    without_lent: Solo,
    #[cfg(target_os = "linux")]
    cores: Option<preferred_cores::PreferredCores>,
}

impl Leader {
    /// Returns how many of the team's members should take part in the next run.
    fn active_members(&mut self, members: usize) -> usize {
        #[cfg(target_os = "linux")]
        let members =
            self.cores.as_mut().map_or(members, preferred_cores::PreferredCores::before_run);
        if members > 1 && self.solo.is_active() { 1 } else { members }
    }
}

/// The next unclaimed piece of a range, on a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Cursor(AtomicUsize);

/// An error while starting or pinning a team's threads.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum TeamError {
    /// The operating system refused to pin a thread.
    #[error(
        "cannot pin a thread to core {core}: {cause}; check that the core is online and that this \
         process may use it"
    )]
    Pin { core: usize, cause: std::io::Error },
    /// The operating system refused to start a thread.
    #[error("cannot start a thread of a device group: {0}")]
    Spawn(std::io::Error),
}

struct Shared {
    /// Number of the current run; helpers start to work when it changes.
    run: AtomicUsize,
    /// The current run. The leader writes it while no helper is inside. Helpers read it while they
    /// are.
    current: UnsafeCell<Option<Run>>,
    /// The number of helpers inside the current run, plus [`OPEN`] while they may enter.
    inside: AtomicUsize,
    /// The number of members that are invited to the current run. Other helpers sleep.
    invited: AtomicUsize,
    /// Invited helpers that have not entered and left the current run yet.
    absent: AtomicUsize,
    stop: AtomicBool,
    /// The first panic of a helper in this run.
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

/// The bit of [`Shared::inside`] that lets helpers enter the run.
const OPEN: usize = 1 << (usize::BITS - 1);

/// One run, as helpers see it.
struct Run {
    work: &'static Work<'static>,
    /// The value of [`Shared::run`] during this run. The run opens just before it has that value.
    number: usize,
    leader: Thread,
}

// SAFETY: every field except `current` is `Sync`, and `inside` orders all access to `current` as
// the field's documentation describes.
unsafe impl Sync for Shared {}

impl Team {
    /// Creates a team of one member, the calling thread, without pinning it.
    ///
    /// Like every team, it uses the best available instruction set, or the one that `FORERUN_ISA`
    /// names ([`Isa::from_environment`]).
    #[must_use]
    pub fn single_thread() -> Self {
        let isa = Isa::from_environment().unwrap_or_else(|_| Isa::best());
        Self {
            isa,
            shared: Arc::new(Shared::new()),
            helpers: Vec::new(),
            lent: None,
            handles: Vec::new(),
            cursors: vec![Cursor::default()],
            leader_lock: Mutex::new(Leader::default()),
        }
    }

    /// Returns the same team with the kernels of another instruction set.
    ///
    /// # Panics
    /// If the processor does not support it.
    #[must_use]
    pub fn with_isa(mut self, isa: Isa) -> Self {
        assert!(isa <= Isa::best(), "this processor does not support {isa}");
        self.isa = isa;
        self
    }

    /// Returns the instruction set of the team's kernels.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Creates a team of `members` threads that are not pinned to any core.
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

    /// Creates a team with one member per core, each pinned to its core. The calling thread is
    /// pinned to the first core.
    ///
    /// # Errors
    /// [`TeamError`] if a core does not exist or may not be used, or a thread cannot be started.
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

    /// Creates a team with one member per core. The members, of which the calling thread is the
    /// first, keep to their cores as long as no other load needs these; then the system places
    /// them. Also if the system refuses a core, or does not say how long threads wait.
    ///
    /// # Errors
    /// [`TeamError::Spawn`] if a thread cannot be started.
    pub fn preferring(cores: &[usize]) -> Result<Self, TeamError> {
        let team = Self::unpinned(cores.len())?;
        // The system places a single thread well.
        if !team.helpers.is_empty() {
            team.prefer(cores);
        }
        Ok(team)
    }

    /// Keeps the members to these cores, as [`Self::preferring`] says.
    fn prefer(&self, cores: &[usize]) {
        #[cfg(target_os = "linux")]
        {
            let threads = Mutex::new(vec![rustix::thread::gettid(); cores.len()]);
            self.run(&|member| lock(&threads)[member] = rustix::thread::gettid());
            let cores = preferred_cores::PreferredCores::take(&lock(&threads), cores);
            lock(&self.leader_lock).cores = cores;
        }
        #[cfg(not(target_os = "linux"))]
        let _ = cores;
    }

    /// Creates one of several teams that help each other with their idle cores. The team's members
    /// keep to its cores as those of [`Team::preferring`] do. Mark the time in which the team has
    /// work with [`Team::start_work`].
    ///
    /// # Errors
    /// [`TeamError::Spawn`] if a thread cannot be started.
    ///
    /// # Panics
    /// If the exchange has no team with this index.
    pub fn lending(lent: &Arc<LentCores>, index: usize) -> Result<Self, TeamError> {
        let cores = lent.cores(index);
        let mut team = Self::unpinned(cores.len())?;
        // A single thread keeps to its core, too: a helper spins on another one.
        team.prefer(cores);
        let own = team.members();
        for (number, core) in (own..).zip(lent.of_others(index)) {
            // If the system refuses the core, it places the thread.
            let place = move || {
                pin_this_thread(core).ok();
                Ok(())
            };
            let exchange = Arc::clone(lent);
            team.add_helper_by(number, place, move || !exchange.works(index))?;
        }
        let members = team.members() - own;
        team.lent = Some(LentToTeam { cores: Arc::clone(lent), team: index, members });
        Ok(team)
    }

    /// Marks the time in which the team has work and needs its own cores: until the result is
    /// dropped. In the rest of the time other teams may use them. No effect on a team that does not
    /// lend.
    pub fn start_work(&self) -> AtWork<'_> {
        if let Some(lent) = &self.lent {
            lent.cores.start_work(lent.team);
        }
        AtWork(self)
    }

    fn add_helper(&mut self, number: usize, core: Option<usize>) -> Result<(), TeamError> {
        self.add_helper_by(number, move || core.map_or(Ok(()), pin_this_thread), || false)
    }

    /// Adds a helper thread, which first calls `place`. While it waits for the next run and
    /// `yields()` is true, it lets other threads have its core.
    fn add_helper_by(
        &mut self,
        number: usize,
        place: impl FnOnce() -> Result<(), TeamError> + Send + 'static,
        yields: impl Fn() -> bool + Send + 'static,
    ) -> Result<(), TeamError> {
        let shared = Arc::clone(&self.shared);
        let (report, pinned) = std::sync::mpsc::sync_channel(1);
        let body = move || {
            let outcome = place();
            let ready = outcome.is_ok();
            // A closed channel means that the team is being dropped.
            if report.send(outcome).is_ok() && ready {
                helper_loop(&shared, number, 0, &yields);
            }
        };
        let name = format!("forerun-team-{number}");
        let handle = thread::Builder::new()
            .name(name)
            .stack_size(2 << 20)
            .spawn(body)
            .map_err(TeamError::Spawn)?;
        self.helpers.push(handle.thread().clone());
        self.handles.push(handle);
        self.cursors.push(Cursor::default());
        pinned.recv().unwrap_or(Ok(()))
    }

    /// Returns the number of members, including those on cores that other teams lend.
    #[must_use]
    pub fn members(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Returns the number of members on the team's own cores.
    #[must_use]
    pub fn own_members(&self) -> usize {
        self.members() - self.lent.as_ref().map_or(0, |lent| lent.members)
    }

    /// Returns the number of runs of the whole team so far, each of which ends with a barrier.
    /// Always 0 for a team of one.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.shared.run.load(Ordering::Relaxed)
    }

    /// Calls `work(member)` once on every member on the team's own cores and returns when all calls
    /// have returned.
    ///
    /// # Panics
    /// If a member panics: the panic resumes on the calling thread once all members have returned.
    pub fn run(&self, work: &Work<'_>) {
        if self.own_members() == 1 {
            return work(0);
        }
        let _leader = lock(&self.leader_lock);
        self.lead(work, self.own_members(), Attendance::All);
    }

    /// Executes one run with the first `members`; the calling thread must hold `leader_lock`.
    /// Returns how long the leader waited for helpers after its own work.
    fn lead(&self, work: &Work<'_>, members: usize, attendance: Attendance) -> Duration {
        let shared = &self.shared;
        // SAFETY: only the lifetime changes. Helpers use the reference only while they are inside
        // the run. This function neither returns nor unwinds (it catches the leader's own panic)
        // before the run is closed and all helpers have left it.
        let static_work = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
        let number = shared.run.load(Ordering::Relaxed).wrapping_add(1);
        let run = Run { work: static_work, number, leader: thread::current() };
        // SAFETY: this thread is the leader. The last run is closed, and no helper is inside.
        unsafe { *shared.current.get() = Some(run) };
        let helpers = &self.helpers[..members - 1];
        shared.invited.store(members, Ordering::Relaxed);
        shared.absent.store(helpers.len(), Ordering::Relaxed);
        shared.inside.store(OPEN, Ordering::Release);
        shared.run.fetch_add(1, Ordering::Release);
        helpers.iter().for_each(Thread::unpark);
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        let mut waited = Duration::ZERO;
        if attendance == Attendance::All {
            waited += wait_until(|| shared.absent.load(Ordering::Acquire) == 0);
        }
        shared.inside.fetch_and(!OPEN, Ordering::AcqRel);
        waited += wait_until(|| shared.inside.load(Ordering::Acquire) == 0);
        let theirs = lock(&shared.panic).take();
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
        waited
    }

    /// Calls `work(member, piece)` once for every piece of `0..count`.
    ///
    /// Each member that takes part starts with a contiguous range of pieces. A member that has
    /// finished its own range takes pieces from the others.
    pub fn for_each_piece(&self, count: usize, work: impl Fn(usize, usize) + Sync) {
        if self.helpers.is_empty() {
            return (0..count).for_each(|piece| work(0, piece));
        }
        let mut leader = lock(&self.leader_lock);
        let own = leader.active_members(self.own_members());
        let lent = self.lent_members(&mut leader, own, count);
        let members = own + lent;
        if members == 1 {
            return (0..count).for_each(|piece| work(0, piece));
        }
        let start = |member: usize| count * member / members;
        for (member, cursor) in self.cursors.iter().enumerate() {
            cursor.0.store(start(member), Ordering::Relaxed);
        }
        let pieces = |member| {
            for owner in (member..members).chain(0..member) {
                let next = || self.cursors[owner].0.fetch_add(1, Ordering::Relaxed);
                let end = start(owner + 1);
                let pieces = std::iter::from_fn(|| Some(next()).filter(|&piece| piece < end));
                pieces.for_each(|piece| work(member, piece));
            }
        };
        let waited = self.lead(&pieces, members, Attendance::Optional);
        let alone = if lent > 0 { &mut leader.without_lent } else { &mut leader.solo };
        alone.after_run(members - 1, waited);
    }

    /// Returns how many members on cores of other teams should take part in a run with `count`
    /// pieces and `own` members on the team's own cores.
    fn lent_members(&self, leader: &mut Leader, own: usize, count: usize) -> usize {
        match &self.lent {
            // Members take part in the order of their numbers.
            Some(lent) if own == self.own_members() && count > own => {
                let lent = lent.cores.borrow_idle(lent.team);
                if lent > 0 && leader.without_lent.is_active() { 0 } else { lent }
            }
            _ => 0,
        }
    }

    /// Returns whether the leader works alone for now, because helpers have lost their cores.
    fn is_solo(&self) -> bool {
        lock(&self.leader_lock).active_members(self.own_members()) == 1
    }

    /// Splits `0..count` into one contiguous range per member, at multiples of `grain`, and calls
    /// `work(range)` once for each range that is not empty. A range may be computed by another
    /// member.
    pub fn for_each_range(
        &self,
        count: usize,
        grain: usize,
        work: impl Fn(std::ops::Range<usize>) + Sync,
    ) {
        let members = self.members();
        let grains = count.div_ceil(grain);
        self.for_each_piece(members, |_, piece| {
            let from = grains * piece / members * grain;
            let to = (grains * (piece + 1) / members * grain).min(count);
            if from < to {
                work(from..to);
            }
        });
    }
}

/// The time in which a team has work (see [`Team::start_work`]).
pub struct AtWork<'a>(&'a Team);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        if let Some(lent) = &self.0.lent {
            lent.cores.end_work(lent.team);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.run.fetch_add(1, Ordering::Release);
        for handle in self.handles.drain(..) {
            handle.thread().unpark();
            // The run in which a helper panicked has already reported the panic.
            drop(handle.join());
        }
    }
}

impl Shared {
    /// Creates the state of a team that has not run yet.
    fn new() -> Self {
        Self {
            run: AtomicUsize::new(0),
            current: UnsafeCell::new(None),
            inside: AtomicUsize::new(0),
            invited: AtomicUsize::new(usize::MAX),
            absent: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
        }
    }

    /// Enters the current run, unless it is closed.
    fn enter(&self) -> bool {
        let enter = |inside: usize| (inside & OPEN != 0).then(|| inside + 1);
        self.inside.fetch_update(Ordering::AcqRel, Ordering::Relaxed, enter).is_ok()
    }
}

/// Who must take part in a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attendance {
    /// Every member, once.
    All,
    /// The leader, and the helpers that are in time.
    Optional,
}

/// The main loop of a helper: waits for a run after `seen`, takes part in it and repeats. Ends when
/// the team stops, or when a run without work dismisses the helper. Returns the number of the run
/// that ended the loop.
fn helper_loop(
    shared: &Shared,
    number: usize,
    mut seen: usize,
    yields: &dyn Fn() -> bool,
) -> usize {
    loop {
        wait_until_invited(shared, number, seen, yields);
        seen = shared.run.load(Ordering::Acquire);
        if shared.stop.load(Ordering::Relaxed) {
            return seen;
        }
        if !shared.enter() {
            // The others have done all the work.
            continue;
        }
        // SAFETY: this helper is inside the run.
        let current = unsafe { &*shared.current.get() };
        // It may be a later run, of a smaller team. The leader does not wait for this helper then.
        let is_invited = number < shared.invited.load(Ordering::Relaxed);
        // A guard, so that the helper leaves even if dropping a second panic's payload panics.
        let leader = current.as_ref().map(|run| run.leader.clone());
        let _leave = LeaveOnDrop { shared, leader, is_invited };
        let Some(Run { work, number: run, .. }) = current else { return seen };
        // It may be a later run than the one that was seen, also one whose number `shared.run` does
        // not have yet. It must not be entered again, or the leader would count this helper twice.
        seen = *run;
        if !is_invited {
            continue;
        }
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| work(number))) {
            lock(&shared.panic).get_or_insert(panic);
        }
    }
}

/// Waits until there is a run after `seen` to which the helper is invited, or until the team stops.
/// Between runs without it, it does not spin.
fn wait_until_invited(shared: &Shared, number: usize, seen: usize, yields: &dyn Fn() -> bool) {
    let is_new = || (1..OPEN).contains(&shared.run.load(Ordering::Acquire).wrapping_sub(seen));
    let is_called = || {
        let is_invited = || number < shared.invited.load(Ordering::Relaxed);
        is_new() && (is_invited() || shared.stop.load(Ordering::Relaxed))
    };
    wait_until(|| {
        let is_new = is_new();
        if !is_new && yields() {
            thread::yield_now();
        }
        is_new
    });
    while !is_called() {
        thread::park();
    }
}

/// Makes a helper leave a run when it is dropped.
struct LeaveOnDrop<'a> {
    shared: &'a Shared,
    leader: Option<Thread>,
    is_invited: bool,
}

impl Drop for LeaveOnDrop<'_> {
    fn drop(&mut self) {
        // The leader may wait for either. Once nobody is inside it may start the next run.
        let was_last = self.is_invited && self.shared.absent.fetch_sub(1, Ordering::AcqRel) == 1;
        let was_alone = self.shared.inside.fetch_sub(1, Ordering::AcqRel) == 1;
        if let Some(leader) = self.leader.as_ref().filter(|_| was_last || was_alone) {
            leader.unpark();
        }
    }
}

/// Spins for a while, then parks until `done()` is true. The thread that makes it true must unpark
/// the waiting thread. Returns how long it took.
fn wait_until(done: impl Fn() -> bool) -> Duration {
    if done() {
        return Duration::ZERO;
    }
    let started = Instant::now();
    while started.elapsed() < SPIN_TIME {
        for _ in 0..SPINS_PER_CLOCK_CHECK {
            if done() {
                return started.elapsed();
            }
            std::hint::spin_loop();
        }
    }
    while !done() {
        thread::park();
    }
    started.elapsed()
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
    pin(core).map_err(|error| TeamError::Pin { core, cause: error.into() })
}

/// Does nothing: threads are pinned on Linux only. Other systems' schedulers keep busy threads
/// apart.
#[cfg(not(target_os = "linux"))]
fn pin_this_thread(_core: usize) -> Result<(), TeamError> {
    Ok(())
}

#[cfg(test)]
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
    fn runs_of_fewer_members_leave_the_others_out() {
        let team = Team::unpinned(3).unwrap();
        for round in 0..300 {
            let members = 1 + round * 7 % 3;
            let counts: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
            let count = |member: usize| _ = counts[member].fetch_add(1, Ordering::Relaxed);
            {
                let _leader = lock(&team.leader_lock);
                team.lead(&count, members, Attendance::All);
            }
            if round % 50 == 20 {
                // Long enough for the helpers to park.
                thread::sleep(Duration::from_millis(2));
            }
            let counts: Vec<usize> = counts.iter().map(|n| n.load(Ordering::Relaxed)).collect();
            assert_eq!(counts, [1, usize::from(members > 1), usize::from(members > 2)]);
        }
    }

    /// More threads than cores, so that helpers often come late, also to a run that opens meanwhile.
    #[test]
    fn members_work_once_beside_other_load() {
        let (team, stop) = (Team::unpinned(4).unwrap(), AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            let once = |round: usize| {
                let members = 2 + round * 7 % 3;
                let counts: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
                let count = |member: usize| _ = counts[member].fetch_add(1, Ordering::Relaxed);
                let leader = lock(&team.leader_lock);
                // A helper that comes too late for this run may enter the next one.
                team.lead(&|_| (), 4, Attendance::Optional);
                team.lead(&count, members, Attendance::All);
                drop(leader);
                let counts = counts.iter().map(|n| n.load(Ordering::Relaxed));
                counts.eq((0..4).map(|member| usize::from(member < members)))
            };
            let wrong = (0..3_000).find(|&round| !once(round));
            stop.store(true, Ordering::Relaxed);
            assert_eq!(wrong, None, "the run in which a member did not work once");
        });
    }

    #[test]
    fn idle_teams_help_others() {
        let lent = LentCores::new(vec![vec![0], vec![1]]);
        let teams = [0, 1].map(|index| Team::lending(&lent, index).unwrap());
        assert!(teams.iter().all(|team| (team.own_members(), team.members()) == (1, 2)));
        let members_of_a_run = |team: &Team| {
            let helped = AtomicBool::new(false);
            team.for_each_piece(40, |member, _| {
                helped.fetch_or(member > 0, Ordering::Relaxed);
                thread::sleep(Duration::from_micros(50));
            });
            1 + usize::from(helped.into_inner())
        };
        // The other team's core may be slow to come: these are minutes at least.
        let is_helped = |team| (0..100_000).any(|_| members_of_a_run(team) == 2);
        let first = teams[0].start_work();
        assert!(is_helped(&teams[0]));
        let second = teams[1].start_work();
        assert!((0..20).all(|_| members_of_a_run(&teams[0]) == 1));
        assert!((0..20).all(|_| members_of_a_run(&teams[1]) == 1));
        drop(first);
        assert!(is_helped(&teams[1]));
        drop(second);
        // Only own members run what every member has to do.
        teams[0].run(&|member| assert_eq!(member, 0));
    }

    /// Otherwise the system may place it where one of its helpers spins.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_borrows_cores_keeps_to_its_own() {
        let body = || {
            let allowed = rustix::thread::sched_getaffinity(None).unwrap();
            let cores: Vec<usize> =
                (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
            let &[first, second, ..] = &cores[..] else { return };
            let lent = LentCores::new(vec![vec![second], vec![first]]);
            let team = Team::lending(&lent, 0).unwrap();
            let kept = rustix::thread::sched_getaffinity(None).unwrap();
            assert!(kept.count() == 1 && kept.is_set(second) && team.members() == 2);
        };
        thread::spawn(body).join().unwrap();
    }

    #[test]
    fn ranges_cover_everything_once_for_every_grain() {
        let team = Team::unpinned(2).unwrap();
        for count in [0, 1, 15, 16, 17, 100] {
            let hits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            team.for_each_range(count, 16, |range| {
                assert_eq!(range.start % 16, 0);
                for hit in &hits[range] {
                    hit.fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(hits.iter().all(|hit| hit.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn every_piece_is_done_once_even_if_a_member_is_slow() {
        let team = Team::unpinned(3).unwrap();
        for count in [0, 1, 2, 3, 50] {
            let hits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            team.for_each_piece(count, |member, piece| {
                if member == 1 {
                    thread::sleep(Duration::from_millis(1));
                }
                hits[piece].fetch_add(1, Ordering::Relaxed);
            });
            assert!(hits.iter().all(|hit| hit.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn a_members_panic_reaches_the_leader_and_the_team_still_works() {
        let team = Team::unpinned(2).unwrap();
        for failing in 0..2 {
            let run = || team.run(&|member| assert_ne!(member, failing, "member {failing} fails"));
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
