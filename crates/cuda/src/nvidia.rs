//! NVIDIA's driver, which is loaded when it is needed. **It has never run on a GPU.**

#[macro_use]
mod functions;
mod graphs;

use crate::driver::{
    Context, DeviceInfo, Driver, DriverError, Event, GraphId, Kernel, Operation, Place, Span,
};
use crate::nvrtc::{Nvrtc, Output};
use crate::translate::{KERNEL_NAME, Translation};
use functions::{Functions, Handle, Status, number};
use graphs::GraphFunctions;
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ops::Deref;
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

#[cfg(not(windows))]
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];
#[cfg(windows)]
const NAMES: [&str; 1] = ["nvcuda.dll"];

/// The driver of the oldest CUDA that is supported, 11.2: the first whose NVRTC returns cubins.
const OLDEST_VERSION: c_int = 11_020;

/// NVIDIA's driver.
#[derive(Debug)]
pub(crate) struct Nvidia {
    functions: Arc<Functions>,
    /// `None` if the driver has none.
    graph_functions: Option<Arc<GraphFunctions>>,
    /// The version of CUDA that it is for.
    version: [i32; 2],
    /// The compiler, or why there is none.
    nvrtc: Arc<Result<Nvrtc, String>>,
}

/// A device of the driver.
struct Found {
    device: c_int,
    info: DeviceInfo,
    /// What kernels are compiled to, or why they cannot be.
    target: Result<Output, String>,
}

impl Nvidia {
    /// Returns the driver of this process. `None` if there is none, or it is too old, or it finds
    /// no device.
    pub(crate) fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<Nvidia>> = OnceLock::new();
        SHARED.get_or_init(Self::load).as_ref()
    }

    fn load() -> Option<Self> {
        // SAFETY: the driver's library runs nothing when it is loaded that needs anything of this
        // process.
        let library = NAMES.iter().find_map(|name| unsafe { Library::new(name) }.ok())?;
        let library = Arc::new(library);
        let functions = Functions::load(&library).ok()?;
        let graph_functions = GraphFunctions::load(&library).ok().map(Arc::new);
        let mut version = 0;
        // SAFETY: the driver is initialised before all other calls; `version` is a place for a
        // number.
        let is_usable =
            unsafe { (functions.initialise)(0) == 0 && (functions.version)(&raw mut version) == 0 };
        if !is_usable || version < OLDEST_VERSION {
            return None;
        }
        let version = [version / 1000, version % 1000 / 10];
        let nvrtc = Arc::new(Nvrtc::load(Some(version)));
        Some(Self { functions: Arc::new(functions), graph_functions, version, nvrtc })
    }

    fn find(&self, ordinal: usize) -> Result<Found, DriverError> {
        let f = &*self.functions;
        let mut device = 0;
        // SAFETY: `device` is a place for a number.
        f.check("cuDeviceGet", unsafe { (f.device)(&raw mut device, ordinal as c_int) })?;
        let attribute = |which: c_int| {
            let mut value = 0;
            // SAFETY: `value` is a place for a number, and the device exists.
            let status = unsafe { (f.device_attribute)(&raw mut value, which, device) };
            f.check("cuDeviceGetAttribute", status).map(|()| value.unsigned_abs())
        };
        let text = |call: &str, read: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> Status| {
            let mut bytes = [0_u8; 256];
            // SAFETY: there is room for so many bytes, and the device exists.
            let status = unsafe { read(bytes.as_mut_ptr().cast(), 255, device) };
            let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
            f.check(call, status).map(|()| text.to_string_lossy().into_owned())
        };
        let mut memory = 0;
        // SAFETY: it is a place for a size.
        f.check("cuDeviceTotalMem", unsafe { (f.device_memory)(&raw mut memory, device) })?;
        let capability =
            attribute(number::CAPABILITY_MAJOR)? * 10 + attribute(number::CAPABILITY_MINOR)?;
        let nvrtc = (*self.nvrtc).as_ref();
        let compiler = nvrtc.map_or_else(
            |_| "no NVRTC".to_owned(),
            |nvrtc| format!("NVRTC {}.{}", nvrtc.version()[0], nvrtc.version()[1]),
        );
        let driver = format!("CUDA {}.{}, {compiler}", self.version[0], self.version[1]);
        let info = DeviceInfo {
            ordinal,
            name: text("cuDeviceGetName", f.device_name)?,
            pci_bus_id: text("cuDeviceGetPCIBusId", f.device_bus).unwrap_or_default(),
            memory_bytes: memory as u64,
            shared_bytes: attribute(number::SHARED_BYTES)?,
            capability,
            is_integrated: attribute(number::INTEGRATED)? != 0,
            is_emulated: false,
            code_key: format!("sm_{capability}, {driver}"),
            driver,
        };
        let supported = nvrtc.map_err(Clone::clone).and_then(Nvrtc::capabilities);
        let target = supported.and_then(|supported| {
            target(capability, &supported).ok_or_else(|| {
                format!(
                    "{compiler} does not compile for a GPU of compute capability {}.{}: install another version",
                    capability / 10,
                    capability % 10
                )
            })
        });
        Ok(Found { device, info, target })
    }

    /// Returns all devices that answer.
    fn all(&self) -> Vec<Found> {
        let mut count = 0;
        // SAFETY: `count` is a place for a number.
        if unsafe { (self.functions.device_count)(&raw mut count) } != 0 {
            return Vec::new();
        }
        let ordinals = 0..usize::try_from(count).unwrap_or(0);
        ordinals.filter_map(|ordinal| self.find(ordinal).ok()).collect()
    }

    /// Returns the devices for which no kernels can be compiled, and why.
    pub(crate) fn unusable(&self) -> Vec<(DeviceInfo, String)> {
        let all = self.all().into_iter();
        all.filter_map(|found| Some((found.info, found.target.err()?))).collect()
    }
}

impl Driver for Nvidia {
    fn devices(&self) -> Vec<DeviceInfo> {
        let all = self.all().into_iter();
        all.filter(|found| found.target.is_ok()).map(|found| found.info).collect()
    }

    fn open(&self, ordinal: usize) -> Result<Arc<dyn Context>, DriverError> {
        let Found { device, target, .. } = self.find(ordinal)?;
        let target = target.map_err(DriverError::Failed)?;
        let functions = Arc::clone(&self.functions);
        let f = &*functions;
        let mut context = ptr::null_mut();
        // SAFETY: the device exists, and `context` is a place for a handle.
        let status = unsafe { (f.retain_context)(&raw mut context, device) };
        f.check("cuDevicePrimaryCtxRetain", status)?;
        let mut opened = Device {
            functions: Arc::clone(&functions),
            graph_functions: self.graph_functions.clone(),
            device,
            context: Pointer(context),
            stream: Pointer(ptr::null_mut()),
            target,
            nvrtc: Arc::clone(&self.nvrtc),
            modules: Mutex::default(),
            events: Mutex::default(),
        };
        let _entered = Entered::new(f, opened.context)?;
        // SAFETY: the context is current, and `stream` is a place for a handle.
        let status = unsafe { (f.create_stream)(&raw mut opened.stream.0, number::NON_BLOCKING) };
        f.check("cuStreamCreate", status)?;
        Ok(Arc::new(opened))
    }
}

/// Returns what a device's kernels are compiled to: machine code of exactly its capability, or else
/// PTX of the nearest older one, which the driver compiles. Machine code of an older capability may
/// be that of Tegra, such as 8.7, which other GPUs do not load.
fn target(capability: u32, supported: &[u32]) -> Option<Output> {
    if supported.contains(&capability) {
        return Some(Output::Cubin(capability));
    }
    supported.iter().copied().filter(|own| *own < capability).max().map(Output::Ptx)
}

/// A handle of the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pointer(Handle);

// SAFETY: the driver's functions take its handles on any thread. Only the driver follows them.
unsafe impl Send for Pointer {}
// SAFETY: as above.
unsafe impl Sync for Pointer {}

/// An open device.
#[derive(Debug)]
struct Device {
    functions: Arc<Functions>,
    graph_functions: Option<Arc<GraphFunctions>>,
    device: c_int,
    context: Pointer,
    /// All work is on one stream, so it is done in order.
    stream: Pointer,
    target: Output,
    nvrtc: Arc<Result<Nvrtc, String>>,
    modules: Mutex<Vec<Pointer>>,
    /// Events that may be used again.
    events: Mutex<Vec<Pointer>>,
}

/// The driver's functions, while a context is that of the calling thread. Then the thread has its
/// earlier context again: the process may use CUDA itself, as with PyTorch.
struct Entered<'a> {
    functions: &'a Functions,
    /// It ends on the thread on which it began.
    _thread: PhantomData<*const ()>,
}

impl<'a> Entered<'a> {
    /// Makes a context that of the calling thread.
    fn new(functions: &'a Functions, context: Pointer) -> Result<Self, DriverError> {
        // SAFETY: the context exists: it is that of an open device.
        let status = unsafe { (functions.push_context)(context.0) };
        functions.check("cuCtxPushCurrent", status)?;
        Ok(Self { functions, _thread: PhantomData })
    }
}

impl Deref for Entered<'_> {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        self.functions
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut context = ptr::null_mut();
        // SAFETY: `new` has pushed a context of this thread, and `context` is a place for a handle.
        // Errors have no one to go to.
        unsafe { (self.functions.pop_context)(&raw mut context) };
    }
}

/// The parameters of a kernel, as the driver reads them: as many bytes of each as the kernel
/// declares, before a call returns.
struct KernelParameters<'a> {
    parameters: Vec<*mut c_void>,
    _read: PhantomData<(&'a [Span], &'a [u8])>,
}

impl<'a> KernelParameters<'a> {
    fn new(bindings: &'a [Span], immediates: &'a [u8]) -> Self {
        let address = |span: &Span| (&raw const span.address).cast_mut().cast();
        let immediates = (!immediates.is_empty()).then(|| immediates.as_ptr().cast_mut().cast());
        let parameters = bindings.iter().map(address).chain(immediates).collect();
        Self { parameters, _read: PhantomData }
    }

    fn as_mut_ptr(&mut self) -> *mut *mut c_void {
        self.parameters.as_mut_ptr()
    }
}

impl Device {
    fn enter(&self) -> Result<Entered<'_>, DriverError> {
        Entered::new(&self.functions, self.context)
    }

    fn load_code(&self, code: &[u8]) -> Result<Kernel, DriverError> {
        let f = self.enter()?;
        let name =
            CString::new(KERNEL_NAME).map_err(|error| DriverError::Failed(error.to_string()))?;
        let (mut module, mut function) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the code is what NVRTC has returned: a cubin, or PTX with a zero at its end.
        f.check("cuModuleLoadData", unsafe {
            (f.load_module)(&raw mut module, code.as_ptr().cast())
        })?;
        self.modules.lock().unwrap_or_else(PoisonError::into_inner).push(Pointer(module));
        // SAFETY: the module is loaded, and the name ends with a zero.
        f.check("cuModuleGetFunction", unsafe {
            (f.function)(&raw mut function, module, name.as_ptr())
        })?;
        Ok(Kernel(function as usize))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // Memory and submissions keep the device, so nothing is left. Errors have no one to go to.
        if let Ok(f) = self.enter() {
            let events =
                std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner));
            let modules =
                std::mem::take(&mut *self.modules.lock().unwrap_or_else(PoisonError::into_inner));
            // SAFETY: the stream's work ends first; then nobody uses the events, the modules and
            // the stream any more.
            unsafe {
                if !self.stream.0.is_null() {
                    (f.wait_for_stream)(self.stream.0);
                    (f.destroy_stream)(self.stream.0);
                }
                events.iter().for_each(|event| {
                    (f.destroy_event)(event.0);
                });
                modules.iter().for_each(|module| {
                    (f.unload_module)(module.0);
                });
            }
        }
        // SAFETY: `open` has retained the context once.
        unsafe { (self.functions.release_context)(self.device) };
    }
}

impl Context for Device {
    fn allocate(&self, bytes: u64, place: Place) -> Result<u64, DriverError> {
        let f = self.enter()?;
        let size = usize::try_from(bytes.max(1)).map_err(|_| DriverError::OutOfMemory)?;
        match place {
            Place::Device => {
                let mut address = 0;
                // SAFETY: `address` is a place for an address.
                f.check("cuMemAlloc", unsafe { (f.allocate)(&raw mut address, size) })?;
                Ok(address)
            }
            Place::Host => {
                let mut address = ptr::null_mut();
                // SAFETY: `address` is a place for a pointer.
                f.check("cuMemAllocHost", unsafe { (f.allocate_host)(&raw mut address, size) })?;
                // SAFETY: it has just been allocated with this size.
                unsafe { address.cast::<u8>().write_bytes(0, size) };
                Ok(address as u64)
            }
        }
    }

    unsafe fn free(&self, address: u64, place: Place) {
        let Ok(f) = self.enter() else { return };
        // SAFETY: the caller promises that the address is of this context and place, and that
        // nothing uses it. If the device has failed, the call fails, and the memory is lost with
        // the device.
        unsafe {
            match place {
                Place::Device => (f.free)(address),
                Place::Host => (f.free_host)(address as *mut c_void),
            }
        };
    }

    fn load(
        &self,
        translation: &Translation,
        code: Option<&[u8]>,
    ) -> Result<(Kernel, Vec<u8>), DriverError> {
        if let Some(code) = code
            // Code that cannot be loaded is compiled again.
            && let Ok(kernel) = self.load_code(code)
        {
            return Ok((kernel, code.to_vec()));
        }
        let nvrtc = (*self.nvrtc).as_ref().map_err(|error| DriverError::Failed(error.clone()))?;
        let code = nvrtc.compile(&translation.cuda_source(), self.target);
        let code = code.map_err(DriverError::Failed)?;
        Ok((self.load_code(&code)?, code))
    }

    unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<(), DriverError> {
        let f = self.enter()?;
        // SAFETY: the caller promises that both have so many bytes, and stay.
        f.check("cuMemcpyHtoDAsync", unsafe {
            (f.write)(to, bytes.as_ptr().cast(), bytes.len(), self.stream.0)
        })
    }

    unsafe fn run(&self, operation: &Operation) -> Result<(), DriverError> {
        let f = self.enter()?;
        match operation {
            // SAFETY: the caller promises that both have so many bytes, and stay. Memory on the
            // host has one address for the processor and for the device, because all devices that
            // are supported have unified addresses.
            Operation::Copy { from, to, bytes } => f.check("cuMemcpyAsync", unsafe {
                (f.copy)(*to, *from, *bytes as usize, self.stream.0)
            }),
            // SAFETY: the caller promises that the memory has so many bytes, and stays.
            Operation::Clear { at, bytes } => f.check("cuMemsetD8Async", unsafe {
                (f.clear)(*at, 0, *bytes as usize, self.stream.0)
            }),
            Operation::Launch { kernel, threads, grid: [x, y, z], bindings, immediates } => {
                let mut parameters = KernelParameters::new(bindings, immediates);
                // SAFETY: the caller promises that the kernel is of this context and has these
                // parameters.
                f.check("cuLaunchKernel", unsafe {
                    (f.launch)(
                        kernel.0 as Handle,
                        *x,
                        *y,
                        *z,
                        *threads,
                        1,
                        1,
                        0,
                        self.stream.0,
                        parameters.as_mut_ptr(),
                        ptr::null_mut(),
                    )
                })
            }
        }
    }

    unsafe fn create_graph(&self, operations: &[Operation]) -> Result<GraphId, DriverError> {
        let no_graphs = || DriverError::Failed("CUDA: the driver has no graphs".into());
        let graphs = self.graph_functions.as_ref().ok_or_else(no_graphs)?;
        let f = self.enter()?;
        // SAFETY: the caller promises the same.
        unsafe { graphs.create_graph(&f, (self.context, self.stream), operations) }
    }

    unsafe fn launch_graph(&self, graph: GraphId) -> Result<(), DriverError> {
        let f = self.enter()?;
        let graphs = self.graph_functions.as_ref();
        // SAFETY: the caller promises the same.
        graphs.map_or(Ok(()), |graphs| unsafe { graphs.launch_graph(&f, self.stream, graph) })
    }

    unsafe fn destroy_graph(&self, graph: GraphId) {
        if let (Ok(_entered), Some(graphs)) = (self.enter(), &self.graph_functions) {
            // SAFETY: the caller promises the same. If the device has failed, the graph is lost
            // with it.
            unsafe { graphs.destroy_graph(graph) };
        }
    }

    fn mark(&self) -> Result<Event, DriverError> {
        let f = self.enter()?;
        let free = self.events.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut event = free.map_or(ptr::null_mut(), |event| event.0);
        if event.is_null() {
            // SAFETY: the context is current, and `event` is a place for a handle.
            let status = unsafe { (f.create_event)(&raw mut event, number::DISABLE_TIMING) };
            f.check("cuEventCreate", status)?;
        }
        // SAFETY: both are of this context.
        f.check("cuEventRecord", unsafe { (f.record_event)(event, self.stream.0) })?;
        Ok(Event(event as usize))
    }

    fn has_passed(&self, event: Event) -> Result<bool, DriverError> {
        let f = self.enter()?;
        // SAFETY: `mark` has returned the event, which has not passed before.
        let status = unsafe { (f.query_event)(event.0 as Handle) };
        if status == number::NOT_READY {
            return Ok(false);
        }
        f.check("cuEventQuery", status)?;
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.push(Pointer(event.0 as Handle));
        Ok(true)
    }

    fn memory(&self) -> Result<[u64; 2], DriverError> {
        let f = self.enter()?;
        let (mut free, mut all) = (0, 0);
        // SAFETY: both are places for sizes.
        f.check("cuMemGetInfo", unsafe { (f.memory)(&raw mut free, &raw mut all) })?;
        Ok([free as u64, all as u64])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_compiled_for_the_exact_capability_or_to_ptx_of_an_older_one() {
        // 87 and 101 are Tegra's.
        let supported = [75, 80, 86, 87, 90, 100, 101];
        let target = |capability| target(capability, &supported);
        assert_eq!(target(80), Some(Output::Cubin(80)));
        assert_eq!(target(87), Some(Output::Cubin(87)));
        assert_eq!(target(89), Some(Output::Ptx(87)));
        assert_eq!(target(103), Some(Output::Ptx(101)));
        assert_eq!(target(70), None);
    }
}
