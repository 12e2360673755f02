//! GPUs are closed while no thread calls a driver.
//!
//! NVIDIA's Vulkan driver (580.159) hangs for ever if one thread closes a GPU while others submit
//! work to their own GPUs, or compile kernels for them. So a GPU that nobody has any more is closed
//! between such calls of other threads: at once, or else when another GPU is opened or given up.
//! One that has failed stays open until the process ends, because its driver may not answer.

use crate::health::Health;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use wgpu::Device;

/// Held during calls of a driver: those that submit work, allocate memory, compile kernels or open
/// a GPU. Others were not seen to hang.
static CALLS: RwLock<()> = RwLock::new(());

/// GPUs that nobody has any more.
static UNUSED: Mutex<Vec<Device>> = Mutex::new(Vec::new());

/// Keeps other threads from closing GPUs until the result is dropped. A thread has one result at a
/// time.
pub(crate) fn begin_call() -> RwLockReadGuard<'static, ()> {
    CALLS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Closes a GPU when it is dropped, or later if other threads call a driver.
pub(crate) struct Closing {
    device: Option<Device>,
    health: Arc<Health>,
}

impl Closing {
    pub(crate) fn new(device: Device, health: Arc<Health>) -> Self {
        Self { device: Some(device), health }
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let Some(device) = self.device.take() else { return };
        if self.health.failure().is_some() {
            return std::mem::forget(device);
        }
        unused().push(device);
        close_unused();
    }
}

/// Closes the GPUs that nobody has any more, unless other threads call a driver now.
pub(crate) fn close_unused() {
    // Waiting for those calls would keep new ones from beginning.
    let alone = match CALLS.try_write() {
        Ok(alone) => alone,
        Err(TryLockError::Poisoned(error)) => error.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    let closed = std::mem::take(&mut *unused());
    drop(closed);
    drop(alone);
}

fn unused() -> MutexGuard<'static, Vec<Device>> {
    UNUSED.lock().unwrap_or_else(PoisonError::into_inner)
}
