//! Temporary pinning of a thread to a core, so that it can lead the team of a shared device.

use super::{Team, TeamError, pin_this_thread};
use std::marker::PhantomData;

/// A guard that pins the calling thread to a core and restores its previous affinity when dropped.
#[derive(Debug)]
pub struct AffinityGuard {
    #[cfg(target_os = "linux")]
    previous: rustix::thread::CpuSet,
    /// Makes the guard `!Send`: the thread that created it must drop it.
    _not_send: PhantomData<*const ()>,
}

impl AffinityGuard {
    /// Pins the calling thread to a core.
    ///
    /// # Errors
    /// [`TeamError::Pin`] if the core does not exist or may not be used.
    pub fn pin_to(core: usize) -> Result<Self, TeamError> {
        #[cfg(target_os = "linux")]
        let previous = rustix::thread::sched_getaffinity(None)
            .map_err(|error| TeamError::Pin { core, cause: error.into() })?;
        pin_this_thread(core)?;
        Ok(Self {
            #[cfg(target_os = "linux")]
            previous,
            _not_send: PhantomData,
        })
    }
}

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        // A failure is harmless: the thread then stays on its core and keeps working.
        #[cfg(target_os = "linux")]
        rustix::thread::sched_setaffinity(None, &self.previous).ok();
    }
}

/// Moves the calling thread to a core, unless it is there or may not run there. The system may move
/// it away again. Returns whether it was moved. On systems other than Linux, it stays where it is.
#[must_use]
pub fn move_this_thread(core: usize) -> bool {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu};
        let may_run = |allowed: CpuSet| core < CpuSet::MAX_CPU && allowed.is_set(core);
        sched_getcpu() != core
            && sched_getaffinity(None).is_ok_and(may_run)
            && AffinityGuard::pin_to(core).is_ok()
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = core;
        false
    }
}

impl Team {
    /// Creates a team that any thread can lead. Its helpers are pinned to all cores except the
    /// first. The first core is for the leader: a thread that runs work on the team pins itself
    /// there with an [`AffinityGuard`].
    ///
    /// # Errors
    /// [`TeamError`] if a core does not exist or may not be used, or a thread cannot be started.
    pub fn led_by_caller(cores: &[usize]) -> Result<Self, TeamError> {
        let mut team = Self::single_thread();
        for (number, &core) in cores.iter().enumerate().skip(1) {
            team.add_helper(number, Some(core))?;
        }
        Ok(team)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use rustix::thread::{sched_getaffinity, sched_setaffinity};

    #[test]
    fn dropping_the_guard_restores_the_affinity() {
        let body = || {
            let all = sched_getaffinity(None).unwrap();
            let core = (0..rustix::thread::CpuSet::MAX_CPU).find(|&core| all.is_set(core)).unwrap();
            let guard = AffinityGuard::pin_to(core).unwrap();
            let pinned = sched_getaffinity(None).unwrap();
            assert!(pinned.count() == 1 && pinned.is_set(core));
            drop(guard);
            assert_eq!(sched_getaffinity(None).unwrap().count(), all.count());
            assert!(AffinityGuard::pin_to(1_000_000).unwrap_err().to_string().contains("1000000"));
            assert_eq!(sched_getaffinity(None).unwrap().count(), all.count());
            sched_setaffinity(None, &all).unwrap();
        };
        // On a thread of its own, so that the affinity of other tests' threads does not matter.
        std::thread::spawn(body).join().unwrap();
    }
}
