//! Cores that a team keeps while no other load needs them.
//!
//! A thread that stays on its core keeps its caches, and is never placed on a core where another
//! member spins. But beside other load it waits for its core while another one may be free, and the
//! others wait for it. So the team watches how long its threads wait for a core, as the kernel
//! counts it. Threads that wait for long take no part in its work for a while, and the system
//! places the others.

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Runs between two readings of the clock.
const RUNS_PER_CLOCK_CHECK: u32 = 256;
/// The shortest time over which waiting is measured. It is longer than a scheduler's time slice.
const WINDOW: Duration = Duration::from_millis(20);
/// A member that waits for this share of a window has no core of its own in it. With one busy
/// thread of the same priority on its core, it waits for half of the time.
const LOST_SHARE: f64 = 0.3;
/// A core is lost after so many windows in a row. Another program that runs for a moment costs less
/// than a smaller team.
const LOST_WINDOWS: u32 = 2;
/// How long the team is smaller the first time.
const FIRST: Duration = Duration::from_millis(100);
/// A core that is lost again after at most so many windows was never free. Windows of large models
/// are long.
const SOON_WINDOWS: u32 = 8;
/// How long it is smaller at most, before it tries all members again.
const LONGEST: Duration = Duration::from_secs(8);

/// The cores of a team, one for each member.
#[derive(Debug)]
pub(super) struct PreferredCores {
    members: Vec<Member>,
    /// Where the threads may run otherwise.
    anywhere: CpuSet,
    /// The number of members that take part.
    active: usize,
    turns: Turns,
    runs: u32,
    window_start: Instant,
    /// Whether the threads were sent to their cores in this window. If a thread sleeps then, the
    /// kernel counts the rest of its sleep as waiting for its core (seen with Linux 6.18).
    is_settling: bool,
}

#[derive(Debug)]
struct Member {
    thread: Pid,
    core: usize,
    /// The kernel's statistics of the thread's scheduling.
    statistics: File,
    /// How long the thread had waited for a core when the window began, in nanoseconds.
    waited_ns: u64,
}

impl PreferredCores {
    /// Keeps each of `threads` on its core. Returns `None`, without any effect, if the system does
    /// not say how long they wait, or refuses a core.
    pub(super) fn take(threads: &[Pid], cores: &[usize]) -> Option<Self> {
        let member = |(&thread, &core): (&Pid, &usize)| {
            let path = format!("/proc/self/task/{}/schedstat", thread.as_raw_nonzero());
            let statistics = File::open(path).ok()?;
            let waited_ns = waited_ns(&statistics)?;
            Some(Member { thread, core, statistics, waited_ns })
        };
        let taken = Self {
            members: threads.iter().zip(cores).map(member).collect::<Option<_>>()?,
            anywhere: sched_getaffinity(None).ok()?,
            active: cores.len(),
            turns: Turns::default(),
            runs: 0,
            window_start: Instant::now(),
            is_settling: true,
        };
        if !taken.stay() {
            taken.leave();
            return None;
        }
        Some(taken)
    }

    /// Takes note of a run of the team. Now and then leaves the cores, or returns to them. Returns
    /// the number of members that should take part in the next runs.
    #[inline]
    pub(super) fn before_run(&mut self) -> usize {
        self.runs = self.runs.wrapping_add(1);
        if self.runs.is_multiple_of(RUNS_PER_CLOCK_CHECK) {
            let window = self.window_start.elapsed();
            if window >= WINDOW {
                self.end_window(window);
            }
        }
        self.active
    }

    fn end_window(&mut self, window: Duration) {
        let mut lost = 0;
        for member in &mut self.members {
            let waited = waited_ns(&member.statistics).unwrap_or(member.waited_ns);
            let waiting = waited.saturating_sub(member.waited_ns);
            lost += usize::from(waiting as f64 > LOST_SHARE * window.as_nanos() as f64);
            member.waited_ns = waited;
        }
        let now = Instant::now();
        self.window_start = now;
        let is_settled = !std::mem::take(&mut self.is_settling);
        match self.turns.after_window(is_settled && lost > 0, now) {
            Some(Turn::Leave) => {
                self.leave();
                self.active = (self.members.len() - lost).max(1);
            }
            Some(Turn::Return) => {
                self.stay();
                self.is_settling = true;
                self.active = self.members.len();
            }
            None => (),
        }
    }

    /// Keeps every member on its core. Returns whether the system allows it.
    fn stay(&self) -> bool {
        self.members.iter().all(|member| {
            let mut core = CpuSet::new();
            // The set holds only so many cores.
            if member.core >= CpuSet::MAX_CPU {
                return false;
            }
            core.set(member.core);
            sched_setaffinity(Some(member.thread), &core).is_ok()
        })
    }

    fn leave(&self) {
        for member in &self.members {
            // A failure is harmless: the thread then stays on its core and keeps working.
            sched_setaffinity(Some(member.thread), &self.anywhere).ok();
        }
    }
}

/// Returns how long a thread has waited for a core since its start: the second number of its
/// statistics.
fn waited_ns(statistics: &File) -> Option<u64> {
    let mut bytes = [0; 64];
    let length = statistics.read_at(&mut bytes, 0).ok()?;
    let text = std::str::from_utf8(&bytes[..length]).ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}

/// When a team stays on its cores. After a loss of some it leaves all of them for a period. If it
/// loses them again soon after its return, the period doubles.
#[derive(Debug, Default)]
struct Turns {
    /// The number of windows in a row in which a member had no core of its own.
    lost_windows: u32,
    /// The number of windows since the last return.
    windows_since_return: u32,
    /// The length of the last period away, and its end.
    period: Option<(Duration, Instant)>,
    is_away: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Turn {
    Leave,
    Return,
}

impl Turns {
    /// Decides at the end of a window. `lost`: whether a member had no core of its own in it.
    fn after_window(&mut self, lost: bool, now: Instant) -> Option<Turn> {
        self.lost_windows = if lost { self.lost_windows + 1 } else { 0 };
        self.windows_since_return = self.windows_since_return.saturating_add(1);
        match self.period {
            Some((_, end)) if self.is_away => {
                self.is_away = now < end;
                (self.lost_windows, self.windows_since_return) = (0, 0);
                (!self.is_away).then_some(Turn::Return)
            }
            _ if self.lost_windows >= LOST_WINDOWS => {
                let is_soon = self.windows_since_return <= SOON_WINDOWS;
                let again = self.period.filter(|(length, end)| is_soon || now < *end + *length);
                let length = again.map_or(FIRST, |(last, _)| LONGEST.min(last * 2));
                self.period = Some((length, now + length));
                self.is_away = true;
                Some(Turn::Leave)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_team_leaves_its_cores_for_longer_and_longer() {
        let mut turns = Turns::default();
        let mut now = Instant::now();
        assert_eq!(turns.after_window(false, now), None);
        // Windows of a large model are longer than the first periods.
        let window = 3 * FIRST;
        for doublings in 0..8 {
            // The first window after a return is not judged.
            assert_eq!(turns.after_window(false, now), None);
            now += window;
            assert_eq!(turns.after_window(true, now), None);
            now += window;
            assert_eq!(turns.after_window(true, now), Some(Turn::Leave));
            let length = LONGEST.min(FIRST * (1 << doublings));
            // While the team is away, its waiting says nothing about its cores.
            assert_eq!(turns.after_window(true, now + length / 2), None);
            now += length;
            assert_eq!(turns.after_window(true, now), Some(Turn::Return));
        }
        // A calm time ends the memory.
        for calm in 0..SOON_WINDOWS {
            assert_eq!(turns.after_window(false, now + LONGEST / 2 + calm * FIRST), None);
        }
        assert_eq!(turns.after_window(true, now + LONGEST), None);
        assert_eq!(turns.after_window(true, now + LONGEST), Some(Turn::Leave));
        assert_eq!(turns.period, Some((FIRST, now + LONGEST + FIRST)));
    }

    #[test]
    fn a_moment_of_other_work_does_not_make_the_team_smaller() {
        let (mut turns, now) = (Turns::default(), Instant::now());
        for lost in [true, false, true, false, false, true, false] {
            assert_eq!(turns.after_window(lost, now), None);
        }
    }

    #[test]
    fn threads_stay_on_their_cores_and_may_leave_them() {
        let body = || {
            let all = sched_getaffinity(None).unwrap();
            let core = (0..CpuSet::MAX_CPU).find(|&core| all.is_set(core)).unwrap();
            let this = rustix::thread::gettid();
            let cores = PreferredCores::take(&[this], &[core]).unwrap();
            let now = sched_getaffinity(None).unwrap();
            assert!(now.count() == 1 && now.is_set(core));
            cores.leave();
            assert_eq!(sched_getaffinity(None).unwrap(), all);
            assert!(cores.stay());
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            cores.leave();
            // A core that does not exist changes nothing.
            assert!(PreferredCores::take(&[this], &[1_000_000]).is_none());
            assert_eq!(sched_getaffinity(None).unwrap(), all);
        };
        // On a thread of its own, so that the affinity of other tests' threads does not matter.
        std::thread::spawn(body).join().unwrap();
    }

    #[test]
    fn the_kernel_counts_how_long_a_thread_waits() {
        let statistics = File::open("/proc/thread-self/schedstat").unwrap();
        assert!(waited_ns(&statistics).is_some());
    }
}
