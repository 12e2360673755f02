//! CUDA devices that the processor emulates, for tests.
//!
//! The same CUDA C that NVRTC compiles is compiled as C++ by the system's compiler, with `emulator.hpp` in place of CUDA. Work is
//! done when it is submitted. Indices outside buffers and arrays, and barriers that not all threads of a block reach, are failures.

use crate::driver::{Context, DeviceInfo, Driver, DriverError, Event, Kernel, Place, Span};
use crate::translate::Translation;
use libloading::Library;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fs, io};

/// Memory of an emulated device in bytes.
const MEMORY_BYTES: u64 = 2 << 30;

/// Addresses are multiples of it, as in CUDA.
const ALIGNMENT: usize = 256;

/// Options of the compiler. Nothing is contracted, as with CUDA's functions for arithmetic.
const OPTIONS: [&str; 8] = [
    "-std=c++17",
    "-O1",
    "-w",
    "-fPIC",
    "-shared",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fvisibility=hidden",
];

/// Emulates a device. Compiled kernels are kept in a folder.
#[derive(Debug)]
pub(crate) struct Emulator {
    compiler: PathBuf,
    folder: PathBuf,
}

impl Emulator {
    /// Returns an emulator that keeps kernels in a folder. `None` without a C++ compiler: the program that the environment variable
    /// `CXX` names, or `c++`.
    pub(crate) fn new(folder: PathBuf) -> Option<Self> {
        let compiler = std::env::var_os("CXX").map_or_else(|| "c++".into(), PathBuf::from);
        let answer = Command::new(&compiler).arg("--version").output().ok()?;
        let is_known = cfg!(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")));
        (answer.status.success() && is_known).then_some(Self { compiler, folder })
    }
}

impl Driver for Emulator {
    fn devices(&self) -> Vec<DeviceInfo> {
        vec![DeviceInfo {
            ordinal: 0,
            name: "emulated CUDA device".into(),
            driver: "emulator".into(),
            pci_bus_id: String::new(),
            memory_bytes: MEMORY_BYTES,
            shared_bytes: 48 << 10,
            is_integrated: true,
            is_emulated: true,
            code_key: "emulator".into(),
        }]
    }

    fn open(&self, _: usize) -> Result<Arc<dyn Context>, DriverError> {
        Ok(Arc::new(Emulated {
            compiler: self.compiler.clone(),
            folder: self.folder.clone(),
            state: Mutex::default(),
        }))
    }
}

/// The kernel's function: bindings, immediates and the size of the grid. Returns what went wrong, or null.
type Launch = unsafe extern "C" fn(*const Binding, *const c_void, u32, u32, u32) -> *const c_char;

#[repr(C)]
struct Binding {
    items: *mut c_void,
    bytes: u64,
}

/// One kernel at a time: loaded kernels have variables of their own, also those that several devices have loaded.
static ALONE: Mutex<()> = Mutex::new(());

#[derive(Debug)]
struct Emulated {
    compiler: PathBuf,
    folder: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    kernels: Vec<(Launch, Library)>,
    /// The sizes of allocations by their addresses.
    allocated: HashMap<u64, Layout>,
    used: u64,
}

impl Emulated {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the library of a kernel, which is compiled unless it is in the folder.
    fn compile(&self, source: &str) -> Result<PathBuf, DriverError> {
        let mut hasher = DefaultHasher::new();
        (source, OPTIONS, &self.compiler).hash(&mut hasher);
        let library = self.folder.join(format!("{:016x}.so", hasher.finish()));
        if library.exists() {
            return Ok(library);
        }
        let failed = |error: io::Error| {
            DriverError::Failed(format!("the emulator cannot write {}: {error}", library.display()))
        };
        fs::create_dir_all(&self.folder).map_err(failed)?;
        // Several tests may compile the same kernel at the same time, so a file gets its name when it is complete.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let own = |ending: &str| {
            library.with_extension(format!("{}.{number}.{ending}", std::process::id()))
        };
        let (text, object) = (own("cpp"), own("so"));
        fs::write(&text, source).map_err(failed)?;
        let output =
            Command::new(&self.compiler).args(OPTIONS).arg(&text).arg("-o").arg(&object).output();
        let output = output.map_err(failed)?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(DriverError::Failed(format!("{}: {errors}", text.display())));
        }
        fs::rename(&object, &library).map_err(failed)?;
        let _ = fs::remove_file(&text);
        Ok(library)
    }
}

/// Loads a compiled kernel.
fn load_library(path: &Path) -> Result<(Launch, Library), DriverError> {
    let failed =
        |error: libloading::Error| DriverError::Failed(format!("{}: {error}", path.display()));
    // SAFETY: the emulator has compiled the library, which runs nothing when it is loaded.
    let library = unsafe { Library::new(path) }.map_err(failed)?;
    // SAFETY: `emulator.hpp` defines the function with this type.
    let launch = *unsafe { library.get::<Launch>(b"launch\0") }.map_err(failed)?;
    Ok((launch, library))
}

impl Context for Emulated {
    fn allocate(&self, bytes: u64, place: Place) -> Result<u64, DriverError> {
        let mut state = self.lock();
        if bytes > MEMORY_BYTES.saturating_sub(state.used) {
            return Err(DriverError::OutOfMemory);
        }
        let size = usize::try_from(bytes.max(1)).map_err(|_| DriverError::OutOfMemory)?;
        let layout =
            Layout::from_size_align(size, ALIGNMENT).map_err(|_| DriverError::OutOfMemory)?;
        // SAFETY: the size is not zero.
        let address = unsafe { alloc_zeroed(layout) };
        if address.is_null() {
            return Err(DriverError::OutOfMemory);
        }
        if place == Place::Device {
            // Whoever reads it before it is cleared finds NaNs.
            // SAFETY: it has just been allocated with this size.
            unsafe { address.write_bytes(0xff, size) };
        }
        state.allocated.insert(address as u64, layout);
        state.used += bytes;
        Ok(address as u64)
    }

    unsafe fn free(&self, address: u64, _: Place) {
        let mut state = self.lock();
        if let Some(layout) = state.allocated.remove(&address) {
            state.used = state.used.saturating_sub(layout.size() as u64);
            // SAFETY: `allocate` has returned the address for this layout, and nobody uses it any more.
            unsafe { dealloc(address as *mut u8, layout) };
        }
    }

    fn load(
        &self,
        translation: &Translation,
        _: Option<&[u8]>,
    ) -> Result<(Kernel, Vec<u8>), DriverError> {
        let library = self.compile(&translation.emulator_source())?;
        let mut state = self.lock();
        state.kernels.push(load_library(&library)?);
        // Libraries stay in the emulator's own folder.
        Ok((Kernel(state.kernels.len() - 1), Vec::new()))
    }

    unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<(), DriverError> {
        // SAFETY: the caller promises that the memory has so many bytes.
        unsafe { (to as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    unsafe fn copy(&self, from: u64, to: u64, bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the caller promises that both have so many bytes, and do not overlap.
        unsafe { (to as *mut u8).copy_from_nonoverlapping(from as *const u8, bytes as usize) };
        Ok(())
    }

    unsafe fn clear(&self, at: u64, bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the caller promises that the memory has so many bytes.
        unsafe { (at as *mut u8).write_bytes(0, bytes as usize) };
        Ok(())
    }

    unsafe fn launch(
        &self,
        kernel: Kernel,
        _: u32,
        [x, y, z]: [u32; 3],
        bindings: &[Span],
        immediates: &[u8],
    ) -> Result<(), DriverError> {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.lock();
        let Some((launch, _)) = state.kernels.get(kernel.0) else {
            return Err(DriverError::Failed("a kernel that is not loaded".into()));
        };
        let binding =
            |span: &Span| Binding { items: span.address as *mut c_void, bytes: span.bytes };
        let bindings: Vec<Binding> = bindings.iter().map(binding).collect();
        // The structure of the immediates has alignments of at most 16 bytes.
        let mut aligned = [0_u128; 16];
        for (words, bytes) in aligned.iter_mut().zip(immediates.chunks(16)) {
            let mut word = [0; 16];
            word[..bytes.len()].copy_from_slice(bytes);
            *words = u128::from_ne_bytes(word);
        }
        // SAFETY: the caller promises that the kernel has these parameters. It checks all indices, and `ALONE` keeps others from its
        // variables.
        let failure = unsafe { launch(bindings.as_ptr(), aligned.as_ptr().cast(), x, y, z) };
        if failure.is_null() {
            return Ok(());
        }
        // SAFETY: it is a string of the library's that the next call may change, which `ALONE` prevents.
        let failure = unsafe { CStr::from_ptr(failure) };
        Err(DriverError::Failed(format!("a kernel failed: {}", failure.to_string_lossy())))
    }

    fn mark(&self) -> Result<Event, DriverError> {
        Ok(Event(0))
    }

    fn has_passed(&self, _: Event) -> Result<bool, DriverError> {
        Ok(true)
    }

    fn memory(&self) -> Result<[u64; 2], DriverError> {
        Ok([MEMORY_BYTES.saturating_sub(self.lock().used), MEMORY_BYTES])
    }
}
