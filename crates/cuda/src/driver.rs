//! What the backend needs of CUDA: of the driver, or of the emulator.

use crate::translate::Translation;
use std::fmt::Debug;
use std::sync::Arc;

/// A device of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceInfo {
    /// The driver's number for it.
    pub(crate) ordinal: usize,
    pub(crate) name: String,
    /// The driver and its version.
    pub(crate) driver: String,
    /// The device's place on the machine, as PCI numbers it; empty if that is unknown.
    pub(crate) pci_bus_id: String,
    /// The size of its memory in bytes.
    pub(crate) memory_bytes: u64,
    /// The shared memory that a block may have without asking for more, in bytes.
    pub(crate) shared_bytes: u32,
    /// The compute capability, such as 90 for 9.0.
    pub(crate) capability: u32,
    /// Whether its memory is the processor's.
    pub(crate) is_integrated: bool,
    /// Whether the processor computes.
    pub(crate) is_emulated: bool,
    /// What compiled code is for: devices, drivers and compilers with the same one may share it.
    pub(crate) code_key: String,
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DriverError {
    /// There is no memory. The device works on.
    #[error("out of memory")]
    OutOfMemory,
    /// Everything else. The device cannot be used any more if it was open.
    #[error("{0}")]
    Failed(String),
}

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the device.
    Device,
    /// On the host. Devices can write it, and the processor reads it.
    Host,
}

/// A compiled kernel of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel(pub(crate) usize);

/// A moment of a context's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event(pub(crate) usize);

/// Operations of a context that are started together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GraphId(pub(crate) usize);

/// A part of memory that a kernel reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Span {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

/// Work that a context does. Numbers of bytes are 1 at least.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    /// Copies memory, from any place to any place. Both parts do not overlap.
    Copy { from: u64, to: u64, bytes: u64 },
    /// Sets memory on the device to zero.
    Clear { at: u64, bytes: u64 },
    /// Runs a kernel.
    Launch {
        kernel: Kernel,
        threads: u32,
        grid: [u32; 3],
        bindings: Vec<Span>,
        immediates: Vec<u8>,
    },
}

/// A driver.
pub(crate) trait Driver: Debug + Send + Sync + 'static {
    /// Returns the devices that can be opened.
    fn devices(&self) -> Vec<DeviceInfo>;

    /// Opens the device with this [`DeviceInfo::ordinal`].
    fn open(&self, ordinal: usize) -> Result<Arc<dyn Context>, DriverError>;
}

/// An open device. Its work is done in the order of the calls. Calls may come from any thread.
pub(crate) trait Context: Debug + Send + Sync + 'static {
    /// Allocates memory, of which the content is not defined. Addresses are multiples of 256.
    fn allocate(&self, bytes: u64, place: Place) -> Result<u64, DriverError>;

    /// Frees memory.
    ///
    /// # Safety
    /// [`Context::allocate`] of this context has returned the address for this place, and no work
    /// that is not done uses it.
    unsafe fn free(&self, address: u64, place: Place);

    /// Compiles a kernel, or loads `code` that an earlier call has returned for the same
    /// translation and the same [`DeviceInfo::code_key`]. Returns the kernel and its code.
    fn load(
        &self,
        translation: &Translation,
        code: Option<&[u8]>,
    ) -> Result<(Kernel, Vec<u8>), DriverError>;

    /// Copies bytes of the processor to memory: one at least.
    ///
    /// # Safety
    /// The memory has so many bytes. It and `bytes` stay until the work is done.
    unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<(), DriverError>;

    /// Starts an operation.
    ///
    /// # Safety
    /// The memory that it names has so many bytes, and stays until the work is done. A kernel is of
    /// this context, and has these parameters; what it reads and writes is within the spans.
    unsafe fn run(&self, operation: &Operation) -> Result<(), DriverError>;

    /// Creates a graph of copies and launches.
    ///
    /// # Errors
    /// If the driver has no graphs, or refuses this one. The device works on.
    ///
    /// # Safety
    /// As for [`Context::run`], at this moment.
    unsafe fn create_graph(&self, operations: &[Operation]) -> Result<GraphId, DriverError>;

    /// Starts all operations of a graph, in order.
    ///
    /// # Safety
    /// As for [`Context::run`], for each of them. The graph stays until the work is done.
    unsafe fn launch_graph(&self, graph: GraphId) -> Result<(), DriverError>;

    /// Destroys a graph.
    ///
    /// # Safety
    /// [`Context::create_graph`] of this context has returned it, and no work that is not done uses
    /// it.
    unsafe fn destroy_graph(&self, graph: GraphId);

    /// Marks the end of the work so far.
    fn mark(&self) -> Result<Event, DriverError>;

    /// Returns whether the work before an event is done. If so, the event is gone.
    fn has_passed(&self, event: Event) -> Result<bool, DriverError>;

    /// Returns the free memory and all memory of the device in bytes.
    fn memory(&self) -> Result<[u64; 2], DriverError>;
}

/// Memory of a context. It is freed when it is dropped: whoever submits work keeps it until the
/// work is done.
#[derive(Debug)]
pub(crate) struct Memory {
    context: Arc<dyn Context>,
    pub(crate) span: Span,
    place: Place,
}

impl Memory {
    pub(crate) fn allocate(
        context: &Arc<dyn Context>,
        bytes: u64,
        place: Place,
    ) -> Result<Self, DriverError> {
        let address = context.allocate(bytes, place)?;
        Ok(Self { context: Arc::clone(context), span: Span { address, bytes }, place })
    }

    /// Returns the bytes of memory on the host. `None` for other memory.
    ///
    /// # Safety
    /// No work that is not done writes it, and none is submitted that does while the result is
    /// alive.
    pub(crate) unsafe fn bytes(&self) -> Option<&[u8]> {
        if self.place != Place::Host {
            return None;
        }
        let length = usize::try_from(self.span.bytes).ok()?;
        // SAFETY: memory on the host is the process's own, of this size, and was set to zero when
        // it was allocated. The caller promises that nothing writes it.
        Some(unsafe { std::slice::from_raw_parts(self.span.address as *const u8, length) })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it is of this context, and submissions keep what they use until they are done.
        unsafe { self.context.free(self.span.address, self.place) };
    }
}

/// A graph of a context. It is destroyed when it is dropped: whoever launches it keeps it until the
/// work is done.
#[derive(Debug)]
pub(crate) struct Graph {
    context: Arc<dyn Context>,
    id: GraphId,
}

impl Graph {
    /// Creates a graph.
    ///
    /// # Errors
    /// As [`Context::create_graph`].
    ///
    /// # Safety
    /// As for [`Context::create_graph`].
    pub(crate) unsafe fn create(
        context: &Arc<dyn Context>,
        operations: &[Operation],
    ) -> Result<Self, DriverError> {
        // SAFETY: the caller promises the same.
        let id = unsafe { context.create_graph(operations)? };
        Ok(Self { context: Arc::clone(context), id })
    }

    /// Starts the graph's operations.
    ///
    /// # Errors
    /// As [`Context::launch_graph`].
    ///
    /// # Safety
    /// As for [`Context::launch_graph`].
    pub(crate) unsafe fn launch(&self) -> Result<(), DriverError> {
        // SAFETY: the caller promises the same.
        unsafe { self.context.launch_graph(self.id) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: it is of this context, and submissions keep the graph that they launch until they
        // are done.
        unsafe { self.context.destroy_graph(self.id) };
    }
}
