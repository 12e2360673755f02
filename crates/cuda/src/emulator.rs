//! CUDA devices that the processor emulates, for tests.
//!
//! The same CUDA C that NVRTC compiles is compiled as C++ by the system's compiler, with
//! `emulator.hpp` in place of CUDA. Work is done when it is submitted. Indices outside buffers and
//! arrays, and barriers that not all threads of a block reach, are failures. So are launches of a
//! graph whose memory was freed, even if other memory has the address now.

use crate::driver::{
    Context, DeviceInfo, Driver, DriverError, Event, GraphId, Kernel, Operation, Place, Span,
};
use crate::translate::Translation;
use libloading::Library;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, HashMap};
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
#[derive(Clone, Debug)]
pub(crate) struct Emulator {
    compiler: PathBuf,
    folder: PathBuf,
    /// The number of the order in which tensor cores add.
    order: u32,
}

impl Emulator {
    /// Returns an emulator that keeps kernels in a folder. Its tensor cores add in one of many
    /// orders: from 2³¹ on in another one for each column, which hardware should not do. `None`
    /// without a C++ compiler: the program that the environment variable `CXX` names, or `c++`.
    pub(crate) fn new(folder: PathBuf, order: u32) -> Option<Self> {
        let compiler = std::env::var_os("CXX").map_or_else(|| "c++".into(), PathBuf::from);
        let answer = Command::new(&compiler).arg("--version").output().ok()?;
        let is_known = cfg!(all(unix, any(target_arch = "x86_64", target_arch = "aarch64")));
        (answer.status.success() && is_known).then_some(Self { compiler, folder, order })
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
            capability: 80,
            is_integrated: true,
            is_emulated: true,
            code_key: "emulator".into(),
        }]
    }

    fn open(&self, _: usize) -> Result<Arc<dyn Context>, DriverError> {
        Ok(Arc::new(Emulated { emulator: self.clone(), state: Mutex::default() }))
    }
}

/// The kernel's function: bindings, immediates and the size of the grid. Returns what went wrong,
/// or null.
type Launch = unsafe extern "C" fn(*const Binding, *const c_void, u32, u32, u32) -> *const c_char;

#[repr(C)]
struct Binding {
    items: *mut c_void,
    bytes: u64,
}

/// One kernel at a time: loaded kernels have variables of their own, also those that several
/// devices have loaded.
static ALONE: Mutex<()> = Mutex::new(());

#[derive(Debug)]
struct Emulated {
    emulator: Emulator,
    state: Mutex<State>,
}

/// Freed blocks of at most so many bytes are allocated again first, as drivers do it. So many of
/// them are kept.
const REUSED_BYTES: usize = 1 << 20;
const REUSED_BLOCKS: usize = 32;

#[derive(Debug, Default)]
struct State {
    kernels: Vec<(Launch, Library)>,
    /// Allocations by their addresses.
    allocated: BTreeMap<u64, Allocation>,
    /// Number of allocations so far.
    allocations: u64,
    /// Freed blocks, the oldest first.
    freed: Vec<(u64, Layout)>,
    used: u64,
    graphs: HashMap<GraphId, RecordedGraph>,
    /// Number of graphs so far.
    created_graphs: usize,
}

#[derive(Debug)]
struct Allocation {
    /// No other one of the device has it.
    number: u64,
    layout: Layout,
}

/// A graph as it was when it was created.
#[derive(Debug)]
struct RecordedGraph {
    operations: Vec<Operation>,
    /// The memory that it names: addresses, and the numbers of the allocations.
    memory: Vec<(u64, u64)>,
}

impl State {
    /// Returns the number of the allocation with an address.
    fn allocation(&self, address: u64) -> Option<u64> {
        let (start, allocation) = self.allocated.range(..=address).next_back()?;
        (address - start < allocation.layout.size() as u64).then_some(allocation.number)
    }

    /// Returns a block: the one that was freed last, if there is one of this layout. `None` without
    /// memory.
    fn block(&mut self, layout: Layout) -> Option<u64> {
        if let Some(at) = self.freed.iter().rposition(|(_, freed)| *freed == layout) {
            return Some(self.freed.remove(at).0);
        }
        // SAFETY: the size is not zero.
        let address = unsafe { alloc_zeroed(layout) };
        (!address.is_null()).then_some(address as u64)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        for (address, layout) in &self.freed {
            // SAFETY: it was allocated with this layout, and nobody uses it any more.
            unsafe { dealloc(*address as *mut u8, *layout) };
        }
    }
}

/// Returns the addresses that an operation names.
fn addresses(operation: &Operation) -> Vec<u64> {
    match operation {
        Operation::Copy { from, to, .. } => vec![*from, *to],
        Operation::Clear { at, .. } => vec![*at],
        Operation::Launch { bindings, .. } => bindings.iter().map(|span| span.address).collect(),
    }
}

impl Emulated {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the library of a kernel, which is compiled unless it is in the folder.
    fn compile(&self, source: &str) -> Result<PathBuf, DriverError> {
        let mut hasher = DefaultHasher::new();
        let Emulator { compiler, folder, .. } = &self.emulator;
        (source, OPTIONS, compiler).hash(&mut hasher);
        let library = folder.join(format!("{:016x}.so", hasher.finish()));
        if library.exists() {
            return Ok(library);
        }
        let failed = |error: io::Error| {
            DriverError::Failed(format!("the emulator cannot write {}: {error}", library.display()))
        };
        fs::create_dir_all(folder).map_err(failed)?;
        // Several tests may compile the same kernel at the same time, so a file gets its name when
        // it is complete.
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let own = |ending: &str| {
            library.with_extension(format!("{}.{number}.{ending}", std::process::id()))
        };
        let (text, object) = (own("cpp"), own("so"));
        fs::write(&text, source).map_err(failed)?;
        let output =
            Command::new(compiler).args(OPTIONS).arg(&text).arg("-o").arg(&object).output();
        let output = output.map_err(failed)?;
        if !output.status.success() {
            let errors = String::from_utf8_lossy(&output.stderr);
            return Err(DriverError::Failed(format!("{}: {errors}", text.display())));
        }
        fs::rename(&object, &library).map_err(failed)?;
        let _ = fs::remove_file(&text);
        Ok(library)
    }

    /// Runs a kernel.
    ///
    /// # Safety
    /// As for [`Context::run`].
    unsafe fn launch(
        &self,
        kernel: Kernel,
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
        // SAFETY: the caller promises that the kernel has these parameters. It checks all indices,
        // and `ALONE` keeps others from its variables.
        let failure = unsafe { launch(bindings.as_ptr(), aligned.as_ptr().cast(), x, y, z) };
        if failure.is_null() {
            return Ok(());
        }
        // SAFETY: it is a string of the library's that the next call may change, which `ALONE`
        // prevents.
        let failure = unsafe { CStr::from_ptr(failure) };
        Err(DriverError::Failed(format!("a kernel failed: {}", failure.to_string_lossy())))
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
        let address = state.block(layout).ok_or(DriverError::OutOfMemory)?;
        // Whoever reads memory of the device before it is cleared finds NaNs.
        let content = if place == Place::Device { 0xff } else { 0 };
        // SAFETY: it has just been allocated with this size.
        unsafe { (address as *mut u8).write_bytes(content, size) };
        state.allocations += 1;
        let allocation = Allocation { number: state.allocations, layout };
        state.allocated.insert(address, allocation);
        state.used += bytes;
        Ok(address)
    }

    unsafe fn free(&self, address: u64, _: Place) {
        let mut state = self.lock();
        let Some(Allocation { layout, .. }) = state.allocated.remove(&address) else { return };
        state.used = state.used.saturating_sub(layout.size() as u64);
        let mut returned = Some((address, layout));
        if layout.size() <= REUSED_BYTES {
            state.freed.extend(returned.take());
            if state.freed.len() > REUSED_BLOCKS {
                returned = Some(state.freed.remove(0));
            }
        }
        if let Some((address, layout)) = returned {
            // SAFETY: `allocate` has returned the address for this layout, and nobody uses it any
            // more.
            unsafe { dealloc(address as *mut u8, layout) };
        }
    }

    fn load(
        &self,
        translation: &Translation,
        _: Option<&[u8]>,
    ) -> Result<(Kernel, Vec<u8>), DriverError> {
        let library = self.compile(&translation.emulator_source(self.emulator.order))?;
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

    unsafe fn run(&self, operation: &Operation) -> Result<(), DriverError> {
        match operation {
            Operation::Copy { from, to, bytes } => {
                let (from, to) = (*from as *const u8, *to as *mut u8);
                // SAFETY: the caller promises that both have so many bytes, and do not overlap.
                unsafe { to.copy_from_nonoverlapping(from, *bytes as usize) };
                Ok(())
            }
            Operation::Clear { at, bytes } => {
                // SAFETY: the caller promises that the memory has so many bytes.
                unsafe { (*at as *mut u8).write_bytes(0, *bytes as usize) };
                Ok(())
            }
            Operation::Launch { kernel, grid, bindings, immediates, .. } => {
                // SAFETY: the caller promises that the kernel has these parameters.
                unsafe { self.launch(*kernel, *grid, bindings, immediates) }
            }
        }
    }

    unsafe fn create_graph(&self, operations: &[Operation]) -> Result<GraphId, DriverError> {
        let mut state = self.lock();
        let number = |address| {
            let number = state.allocation(address).map(|number| (address, number));
            number
                .ok_or_else(|| DriverError::Failed("a graph names memory that is not there".into()))
        };
        let memory = operations.iter().flat_map(addresses).map(number);
        let memory = memory.collect::<Result<_, DriverError>>()?;
        state.created_graphs += 1;
        let id = GraphId(state.created_graphs);
        state.graphs.insert(id, RecordedGraph { operations: operations.to_vec(), memory });
        Ok(id)
    }

    unsafe fn launch_graph(&self, graph: GraphId) -> Result<(), DriverError> {
        let operations = {
            let state = self.lock();
            let unknown = || DriverError::Failed("a graph that is not there".into());
            let recorded = state.graphs.get(&graph).ok_or_else(unknown)?;
            let is_same =
                |(address, number): &(u64, u64)| state.allocation(*address) == Some(*number);
            if !recorded.memory.iter().all(is_same) {
                let freed = "a graph uses memory that was freed after it was created";
                return Err(DriverError::Failed(freed.into()));
            }
            recorded.operations.clone()
        };
        // SAFETY: the caller promises it for all operations of the graph.
        operations.iter().try_for_each(|operation| unsafe { self.run(operation) })
    }

    unsafe fn destroy_graph(&self, graph: GraphId) {
        self.lock().graphs.remove(&graph);
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
