//! CUDA as a backend of wgpu.
//!
//! [`adapters`] returns CUDA's devices as adapters of wgpu. Whoever records, submits and reads
//! through wgpu runs on them without a change. Kernels are in WGSL, as for the other backends:
//! [`translate`] makes CUDA C of them, in which every operation on floats has a defined rounding,
//! and NVRTC compiles that when a pipeline is created.
//!
//! Kernels for tensor cores are written in CUDA C ([`cuda_c_module`]).
//!
//! Only what computing needs is there: buffers, compute pipelines, copies and dispatches. There are
//! no textures, no render passes, no queries. Indices are not checked, so shaders have to be
//! trusted (`create_shader_module_trusted` without `bounds_checks`). The driver and NVRTC are
//! loaded when the process asks for adapters, so nothing is needed to build, or to run without
//! CUDA.
//!
//! **It has never run on a GPU.** What is tested: kernels compile with NVRTC, to PTX without
//! operations that may be contracted; and the emulator ([`emulated_adapter`]) runs the same CUDA C
//! on the processor, through the same backend.

mod backend;
mod driver;
mod emulator;
mod nvidia;
mod nvrtc;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;
mod translate;

pub use backend::{
    GRAPHS_VARIABLE, Launches, capability, code_key, cuda_c_module, is_cuda, launches, memory,
};
pub use nvrtc::{NVRTC_VARIABLE, Nvrtc, Output};
pub use translate::{KERNEL_NAME, TranslateError, Translation, translate};

use emulator::Emulator;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use wgpu::{Adapter, AdapterInfo};

/// Returns CUDA's devices for which kernels can be compiled, in the driver's order. Empty without
/// NVIDIA's driver.
#[must_use]
pub fn adapters() -> Vec<Adapter> {
    nvidia::Nvidia::shared().map(backend::adapters_of).unwrap_or_default()
}

/// Returns CUDA's other devices, and why kernels cannot be compiled for them.
#[must_use]
pub fn unusable() -> Vec<(AdapterInfo, String)> {
    let all = nvidia::Nvidia::shared().map(nvidia::Nvidia::unusable).unwrap_or_default();
    all.into_iter().map(|(info, reason)| (backend::describe(&info), reason)).collect()
}

/// Returns a device that the processor emulates, for tests. Compiled kernels are kept in the folder
/// of the first call. Its tensor cores add in the order with this number: from 2³¹ on in another one
/// for each column, which hardware should not do. `None` without a C++ compiler.
#[must_use]
pub fn emulated_adapter(folder: &Path, order: u32) -> Option<Adapter> {
    static EMULATORS: Mutex<BTreeMap<u32, &'static Emulator>> = Mutex::new(BTreeMap::new());
    let mut emulators = EMULATORS.lock().unwrap_or_else(PoisonError::into_inner);
    let emulator = match emulators.entry(order) {
        Entry::Occupied(known) => *known.get(),
        Entry::Vacant(new) => {
            let emulator = Emulator::new(folder.to_owned(), order)?;
            new.insert(Box::leak(Box::new(emulator)))
        }
    };
    backend::adapters_of(emulator).into_iter().next()
}
