//! Devices that several workers have in turn: one pass at a time on each.
//!
//! A worker that has several devices, for a target whose layers are on all of them or for the drafter beside
//! it, goes from one to the next: its thread comes to the device's cores, leads the team there, and leaves.
//! First come, first served.

use crate::{DeviceGroup, StartError};
use forerun_model::{AffinityGuard, ExclusiveDevice, Team, TeamError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A device group that workers have in turn.
pub struct SharedDevice {
    name: Arc<str>,
    team: Arc<Team>,
    /// Where visitors stay; `None` leaves them where they are.
    core: Option<usize>,
    turns: Turns,
}

impl SharedDevice {
    /// The device of a group's cores.
    ///
    /// # Errors
    /// If the team's threads cannot be started or pinned.
    pub fn new(group: &DeviceGroup) -> Result<Arc<Self>, StartError> {
        let name = group.to_string();
        let team = Team::led_by_caller(group.cores());
        let team = team.map_err(|error| StartError::Load {
            worker: name.clone(),
            message: error.to_string(),
        })?;
        let core = group.cores().first().copied();
        Ok(Arc::new(Self::of(&name, team, core)))
    }

    /// A device of one thread, its visitor's, which stays where it is.
    #[must_use]
    pub fn anywhere(name: &str) -> Arc<Self> {
        Arc::new(Self::of(name, Team::single_thread(), None))
    }

    fn of(name: &str, team: Team, core: Option<usize>) -> Self {
        Self { name: name.into(), team: Arc::new(team), core, turns: Turns::default() }
    }

    /// Whether this thread can come to the device's core.
    ///
    /// # Errors
    /// [`TeamError::Pin`] if not.
    pub fn check(&self) -> Result<(), TeamError> {
        self.core.map_or(Ok(()), |core| AffinityGuard::pin_to(core).map(drop))
    }
}

/// A worker's seat on a shared device (see [`Engine::lease`](crate::Engine::seat)): what is computed there
/// shows in the trace.
pub struct DeviceLease {
    device: Arc<SharedDevice>,
    log: VisitLog,
}

impl DeviceLease {
    pub(crate) fn new(device: &Arc<SharedDevice>, log: VisitLog) -> Self {
        Self { device: Arc::clone(device), log }
    }
}

impl ExclusiveDevice for DeviceLease {
    fn team(&self) -> &Arc<Team> {
        &self.device.team
    }

    fn is_free(&self) -> bool {
        self.device.turns.is_free()
    }

    fn visit(&self, work: &mut dyn FnMut()) {
        // Given up last, and even if the work panics.
        let _turn = self.device.turns.wait();
        // The cores were there when the worker started. Should they have gone since, the system has moved
        // the team's threads as well, and the work is the same elsewhere.
        let _stay = self.device.core.and_then(|core| AffinityGuard::pin_to(core).ok());
        let _noted = Noted { lease: self, started: Instant::now() };
        work();
    }
}

/// A visit that is noted when it ends.
struct Noted<'a> {
    lease: &'a DeviceLease,
    started: Instant,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        let device = Arc::clone(&self.lease.device.name);
        let visit = DeviceVisit { device, started: self.started, finished: Instant::now() };
        lock(&self.lease.log.0).push(visit);
    }
}

/// One visit of a device.
#[derive(Clone, Debug)]
pub(crate) struct DeviceVisit {
    pub(crate) device: Arc<str>,
    pub(crate) started: Instant,
    pub(crate) finished: Instant,
}

/// Visits since they were last asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct VisitLog(Arc<Mutex<Vec<DeviceVisit>>>);

impl VisitLog {
    /// Takes out what was noted since the last call.
    pub(crate) fn take(&self) -> Vec<DeviceVisit> {
        std::mem::take(&mut lock(&self.0))
    }
}

/// Whose turn it is.
#[derive(Default)]
struct Turns {
    queue: Mutex<Queue>,
    moved: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Turns that were asked for, and those that have ended.
    asked: u64,
    ended: u64,
}

/// A turn, which ends when it is dropped.
struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits until all who came before are gone.
    fn wait(&self) -> Turn<'_> {
        let mut queue = lock(&self.queue);
        let own = queue.asked;
        queue.asked += 1;
        while queue.ended < own {
            queue = self.moved.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        Turn(self)
    }

    fn is_free(&self) -> bool {
        let queue = lock(&self.queue);
        queue.asked == queue.ended
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        lock(&self.0.queue).ended += 1;
        self.0.moved.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    fn lease(device: &Arc<SharedDevice>) -> DeviceLease {
        DeviceLease::new(device, VisitLog::default())
    }

    #[test]
    fn nobody_meets_anybody() {
        let device = SharedDevice::anywhere("cpu:x");
        let inside = Mutex::new(());
        let visits: Vec<Vec<DeviceVisit>> = thread::scope(|scope| {
            let visitor = || {
                let lease = lease(&device);
                for _ in 0..200 {
                    lease.visit(&mut || drop(inside.try_lock().unwrap()));
                }
                lease.log.take()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(visitor)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut all: Vec<_> = visits.iter().flatten().map(|v| (v.started, v.finished)).collect();
        assert_eq!(all.len(), 800);
        all.sort();
        assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        assert!(lease(&device).is_free());
    }

    #[test]
    fn first_come_first_served() {
        let device = SharedDevice::anywhere("cpu:x");
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let visit = |number: u64| {
                lease(&device).visit(&mut || lock(&order).push(number));
            };
            lease(&device).visit(&mut || {
                for number in 1..=5 {
                    scope.spawn(move || visit(number));
                    while lock(&device.turns.queue).asked <= number {
                        thread::yield_now();
                    }
                }
                assert!(!lease(&device).is_free());
            });
        });
        assert_eq!(*lock(&order), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn who_panics_leaves_all_the_same() {
        let device = SharedDevice::anywhere("cpu:x");
        let lease = lease(&device);
        let fails = AssertUnwindSafe(|| lease.visit(&mut || panic!("out of luck")));
        assert!(catch_unwind(fails).is_err());
        assert!(lease.is_free());
        lease.visit(&mut || ());
        assert_eq!(lease.log.take().len(), 2);
    }
}
