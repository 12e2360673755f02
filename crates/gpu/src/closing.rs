//! GPUs are closed while no thread uses a driver.
//!
//! NVIDIA's Vulkan driver (580.159) hangs for ever if one thread closes a GPU while others submit work to their own GPUs, or
//! compile kernels for them. So a GPU that nobody has any more is closed when another one is opened, and only between such
//! calls of other threads.

use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use wgpu::Device;

/// Held by calls of a driver that must not run while a GPU is closed.
static CALLS: RwLock<()> = RwLock::new(());

/// GPUs that nobody has any more.
static UNUSED: Mutex<Vec<Device>> = Mutex::new(Vec::new());

/// Keeps other threads from closing GPUs until the result is dropped.
pub(crate) fn begin_call() -> RwLockReadGuard<'static, ()> {
    CALLS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Closes a GPU later.
pub(crate) fn close_later(device: Device) {
    UNUSED.lock().unwrap_or_else(PoisonError::into_inner).push(device);
}

/// Closes the GPUs that nobody has any more.
pub(crate) fn close_unused() {
    let unused = std::mem::take(&mut *UNUSED.lock().unwrap_or_else(PoisonError::into_inner));
    if !unused.is_empty() {
        let _alone = CALLS.write().unwrap_or_else(PoisonError::into_inner);
        drop(unused);
    }
}
