//! Threads that come to a core for a while, to lead the team there.

use super::{Team, TeamError, pin_this_thread};
use std::marker::PhantomData;

/// The calling thread's stay on a core. When it ends, the thread may go wherever it could before.
#[derive(Debug)]
pub struct AffinityGuard {
    #[cfg(target_os = "linux")]
    before: rustix::thread::CpuSet,
    /// It is of the thread that began it.
    _thread: PhantomData<*const ()>,
}

impl AffinityGuard {
    /// Brings the calling thread to a core.
    ///
    /// # Errors
    /// [`TeamError::Pin`] if the core does not exist or may not be used.
    pub fn pin_to(core: usize) -> Result<Self, TeamError> {
        #[cfg(target_os = "linux")]
        let before = rustix::thread::sched_getaffinity(None)
            .map_err(|source| TeamError::Pin { core, source: source.into() })?;
        pin_this_thread(core)?;
        Ok(Self {
            #[cfg(target_os = "linux")]
            before,
            _thread: PhantomData,
        })
    }
}

impl Drop for AffinityGuard {
    fn drop(&mut self) {
        // A thread that cannot leave works on all the same.
        #[cfg(target_os = "linux")]
        rustix::thread::sched_setaffinity(None, &self.before).ok();
    }
}

impl Team {
    /// A team led by whoever comes: its other members are pinned to all cores but the first, which is
    /// for the [`AffinityGuard`] of the thread that runs something on the team.
    ///
    /// # Errors
    /// If a core does not exist or may not be used, or a thread cannot be started.
    pub fn led_by_caller(cores: &[usize]) -> Result<Self, TeamError> {
        let mut team = Self::single_thread();
        for (number, &core) in cores.iter().enumerate().skip(1) {
            team.add_helper(number, Some(core))?;
        }
        Ok(team)
    }
}

#[cfg(all(test, target_os = "linux"))]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use rustix::thread::{sched_getaffinity, sched_setaffinity};

    #[test]
    fn a_stay_ends_where_it_began() {
        let body = || {
            let all = sched_getaffinity(None).unwrap();
            let core = (0..rustix::thread::CpuSet::MAX_CPU).find(|&core| all.is_set(core)).unwrap();
            let stay = AffinityGuard::pin_to(core).unwrap();
            let there = sched_getaffinity(None).unwrap();
            assert!(there.count() == 1 && there.is_set(core));
            drop(stay);
            assert_eq!(sched_getaffinity(None).unwrap().count(), all.count());
            assert!(AffinityGuard::pin_to(1_000_000).unwrap_err().to_string().contains("1000000"));
            assert_eq!(sched_getaffinity(None).unwrap().count(), all.count());
            sched_setaffinity(None, &all).unwrap();
        };
        // On a thread of its own: the other tests' are none of its business.
        std::thread::spawn(body).join().unwrap();
    }
}
