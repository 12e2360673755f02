//! Devices that several workers share. Only one pass runs on a device at a time.
//!
//! A worker whose model is placed on several devices uses one after another. This applies to a
//! target with its layers split between devices, and to a drafter that alternates between two of
//! them. To use a device, the worker's thread pins itself to the device's first core and leads the
//! device's team. Workers get a device in the order in which they request it.

use crate::{DeviceGroup, StartError};
use forerun_cpu::{AffinityGuard, ExclusiveDevice, Team, TeamError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A device group that several workers share.
pub struct SharedDevice {
    name: Arc<str>,
    team: Arc<Team>,
    /// The core to which the calling thread is pinned while it uses the device; `None` for no
    /// pinning.
    core: Option<usize>,
    fifo: FifoLock,
}

impl SharedDevice {
    /// Creates the device of a group's cores.
    ///
    /// # Errors
    /// [`StartError::Load`] if the team's threads cannot be started or pinned.
    pub fn new(group: &DeviceGroup) -> Result<Arc<Self>, StartError> {
        let name = group.to_string();
        let team = Team::led_by_caller(group.cores());
        let team = team.map_err(|error| StartError::Load {
            worker: name.clone(),
            message: error.to_string(),
        })?;
        let core = group.cores().first().copied();
        Ok(Arc::new(Self::with_team(&name, team, core)))
    }

    /// Creates a device without cores of its own, which runs work on the calling thread without
    /// pinning it.
    #[must_use]
    pub fn unpinned(name: &str) -> Arc<Self> {
        Arc::new(Self::with_team(name, Team::single_thread(), None))
    }

    fn with_team(name: &str, team: Team, core: Option<usize>) -> Self {
        Self { name: name.into(), team: Arc::new(team), core, fifo: FifoLock::default() }
    }

    /// Checks that the calling thread can be pinned to the device's first core.
    ///
    /// # Errors
    /// [`TeamError::Pin`] if it cannot.
    pub fn check(&self) -> Result<(), TeamError> {
        self.core.map_or(Ok(()), |core| AffinityGuard::pin_to(core).map(drop))
    }
}

/// A worker's access to a shared device (see [`Engine::lease`](crate::Engine::lease)). Every use of
/// the device appears in the trace.
pub struct DeviceLease {
    device: Arc<SharedDevice>,
    log: DeviceUseLog,
}

impl DeviceLease {
    pub(crate) fn new(device: &Arc<SharedDevice>, log: DeviceUseLog) -> Self {
        Self { device: Arc::clone(device), log }
    }
}

impl ExclusiveDevice for DeviceLease {
    fn team(&self) -> &Arc<Team> {
        &self.device.team
    }

    fn is_free(&self) -> bool {
        self.device.fifo.is_free()
    }

    fn run_exclusive(&self, work: &mut dyn FnMut()) {
        // Dropped last, and even if the work panics.
        let _exclusive = self.device.fifo.acquire();
        // The core was available when the worker started. If it has since been taken away, the
        // system has moved the team's threads, too, and the work runs elsewhere with the same
        // results.
        let _pinned = self.device.core.and_then(|core| AffinityGuard::pin_to(core).ok());
        let _record = RecordOnDrop { lease: self, started: Instant::now() };
        work();
    }
}

/// Records the use of a device when it is dropped.
struct RecordOnDrop<'a> {
    lease: &'a DeviceLease,
    started: Instant,
}

impl Drop for RecordOnDrop<'_> {
    fn drop(&mut self) {
        let device = Arc::clone(&self.lease.device.name);
        let used = DeviceUseTiming { device, started: self.started, finished: Instant::now() };
        lock(&self.lease.log.0).push(used);
    }
}

#[derive(Clone, Debug)]
pub(crate) struct DeviceUseTiming {
    pub(crate) device: Arc<str>,
    pub(crate) started: Instant,
    pub(crate) finished: Instant,
}

/// A log of device uses, which [`DeviceUseLog::take`] empties.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceUseLog(Arc<Mutex<Vec<DeviceUseTiming>>>);

impl DeviceUseLog {
    /// Removes and returns the uses recorded since the last call.
    pub(crate) fn take(&self) -> Vec<DeviceUseTiming> {
        std::mem::take(&mut lock(&self.0))
    }
}

/// A lock that is granted in the order of the requests.
#[derive(Default)]
struct FifoLock {
    queue: Mutex<Queue>,
    released: Condvar,
}

#[derive(Default)]
struct Queue {
    /// Number of requests so far.
    requests: u64,
    /// Number of requests that have been granted and released.
    releases: u64,
}

/// Releases a [`FifoLock`] when it is dropped.
struct FifoGuard<'a>(&'a FifoLock);

impl FifoLock {
    /// Waits until all earlier requests have been released.
    fn acquire(&self) -> FifoGuard<'_> {
        let mut queue = lock(&self.queue);
        let earlier = queue.requests;
        queue.requests += 1;
        while queue.releases < earlier {
            queue = self.released.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        FifoGuard(self)
    }

    fn is_free(&self) -> bool {
        let queue = lock(&self.queue);
        queue.requests == queue.releases
    }
}

impl Drop for FifoGuard<'_> {
    fn drop(&mut self) {
        lock(&self.0.queue).releases += 1;
        self.0.released.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    fn lease(device: &Arc<SharedDevice>) -> DeviceLease {
        DeviceLease::new(device, DeviceUseLog::default())
    }

    #[test]
    fn only_one_thread_uses_a_device_at_a_time() {
        let device = SharedDevice::unpinned("cpu:x");
        let inside = Mutex::new(());
        let uses: Vec<Vec<DeviceUseTiming>> = thread::scope(|scope| {
            let user = || {
                let lease = lease(&device);
                for _ in 0..200 {
                    lease.run_exclusive(&mut || drop(inside.try_lock().unwrap()));
                }
                lease.log.take()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(user)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut all: Vec<_> =
            uses.iter().flatten().map(|used| (used.started, used.finished)).collect();
        assert_eq!(all.len(), 800);
        all.sort();
        assert!(all.windows(2).all(|pair| pair[0].1 <= pair[1].0));
        assert!(lease(&device).is_free());
    }

    #[test]
    fn a_device_is_granted_in_order_of_requests() {
        let device = SharedDevice::unpinned("cpu:x");
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let use_device = |number: u64| {
                lease(&device).run_exclusive(&mut || lock(&order).push(number));
            };
            lease(&device).run_exclusive(&mut || {
                for number in 1..=5 {
                    scope.spawn(move || use_device(number));
                    while lock(&device.fifo.queue).requests <= number {
                        thread::yield_now();
                    }
                }
                assert!(!lease(&device).is_free());
            });
        });
        assert_eq!(*lock(&order), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_panic_releases_the_device() {
        let device = SharedDevice::unpinned("cpu:x");
        let lease = lease(&device);
        let fails = AssertUnwindSafe(|| lease.run_exclusive(&mut || panic!("the model panics")));
        assert!(catch_unwind(fails).is_err());
        assert!(lease.is_free());
        lease.run_exclusive(&mut || ());
        assert_eq!(lease.log.take().len(), 2);
    }
}
