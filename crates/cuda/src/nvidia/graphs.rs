//! Graphs of NVIDIA's driver: chains of nodes in the order of their operations. **They have never
//! run on a GPU.**
//!
//! They are created node by node. Recording a stream would also record what other threads put on
//! it, such as the clearing of new memory.

use super::functions::{Address, Functions, Handle, Status, number};
use super::{KernelParameters, Pointer};
use crate::driver::{DriverError, GraphId, Operation};
use libloading::Library;
use std::ffi::{c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::Arc;

functions! {
    /// The driver's functions for graphs. The first drivers that have all are those of CUDA 11.4.
    GraphFunctions {
        create = "cuGraphCreate": fn(*mut Handle, c_uint);
        add_kernel = "cuGraphAddKernelNode":
            fn(*mut Handle, Handle, *const Handle, usize, *const KernelNode);
        add_copy = "cuGraphAddMemcpyNode":
            fn(*mut Handle, Handle, *const Handle, usize, *const CopyNode, Handle);
        instantiate = "cuGraphInstantiateWithFlags": fn(*mut Handle, Handle, c_ulonglong);
        upload = "cuGraphUpload": fn(Handle, Handle);
        destroy = "cuGraphDestroy": fn(Handle);
        launch = "cuGraphLaunch": fn(Handle, Handle);
        destroy_instance = "cuGraphExecDestroy": fn(Handle);
    }
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`
#[repr(C)]
pub(super) struct KernelNode {
    kernel: Handle,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
}

/// `CUDA_MEMCPY3D_v2`
#[repr(C)]
pub(super) struct CopyNode {
    from: CopyEnd,
    to: CopyEnd,
    bytes: usize,
    height: usize,
    depth: usize,
}

/// The source or the destination in `CUDA_MEMCPY3D_v2`.
#[repr(C)]
struct CopyEnd {
    /// `XInBytes`, `Y`, `Z` and `LOD`
    first: [usize; 4],
    memory_type: c_uint,
    host: *const c_void,
    device: Address,
    array: Handle,
    reserved: *const c_void,
    pitch: usize,
    height: usize,
}

impl CopyEnd {
    /// Returns the end of a copy in memory of the device or of the host: both have unified
    /// addresses.
    fn at(address: Address) -> Self {
        Self {
            first: [0; 4],
            memory_type: number::UNIFIED_MEMORY,
            host: ptr::null(),
            device: address,
            array: ptr::null_mut(),
            reserved: ptr::null(),
            pitch: 0,
            height: 0,
        }
    }
}

/// A graph that is being created, or that was instantiated: either is destroyed when it is dropped.
struct Owned<'a> {
    handle: Handle,
    destroy: unsafe extern "C" fn(Handle) -> Status,
    /// The functions stay loaded.
    _functions: &'a GraphFunctions,
}

impl Owned<'_> {
    /// Returns the handle, which is the caller's from now on.
    fn into_handle(self) -> Handle {
        let handle = self.handle;
        std::mem::forget(self);
        handle
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // SAFETY: the driver has returned the handle, and nobody else has it. Errors have no one to
        // go to.
        unsafe { (self.destroy)(self.handle) };
    }
}

impl GraphFunctions {
    /// Creates a graph of operations for a stream. The context is that of the calling thread.
    ///
    /// # Safety
    /// As for `Context::create_graph`.
    pub(super) unsafe fn create_graph(
        &self,
        f: &Functions,
        (context, stream): (Pointer, Pointer),
        operations: &[Operation],
    ) -> Result<GraphId, DriverError> {
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is a place for a handle.
        f.check("cuGraphCreate", unsafe { (self.create)(&raw mut handle, 0) })?;
        let graph = Owned { handle, destroy: self.destroy, _functions: self };
        let mut last = None;
        for operation in operations {
            // SAFETY: the caller promises the same.
            let node = unsafe { self.add_node(f, context, (graph.handle, last), operation)? };
            last = Some(node);
        }
        let mut handle = ptr::null_mut();
        // SAFETY: the graph is complete, and `handle` is a place for a handle.
        let status = unsafe { (self.instantiate)(&raw mut handle, graph.handle, 0) };
        f.check("cuGraphInstantiateWithFlags", status)?;
        let instance = Owned { handle, destroy: self.destroy_instance, _functions: self };
        // After this, the device has all that a launch needs. Otherwise the graph is not used.
        // SAFETY: both are of the context.
        f.check("cuGraphUpload", unsafe { (self.upload)(instance.handle, stream.0) })?;
        Ok(GraphId(instance.into_handle() as usize))
    }

    /// Adds a node after the last one.
    ///
    /// # Safety
    /// As for `Context::create_graph`.
    unsafe fn add_node(
        &self,
        f: &Functions,
        context: Pointer,
        (graph, last): (Handle, Option<Handle>),
        operation: &Operation,
    ) -> Result<Handle, DriverError> {
        let mut node = ptr::null_mut();
        let before = last.as_slice();
        match operation {
            Operation::Launch { kernel, threads, grid, bindings, immediates } => {
                let mut parameters = KernelParameters::new(bindings, immediates);
                let description = KernelNode {
                    kernel: kernel.0 as Handle,
                    grid: *grid,
                    block: [*threads, 1, 1],
                    shared_bytes: 0,
                    parameters: parameters.as_mut_ptr(),
                    extra: ptr::null_mut(),
                };
                // SAFETY: the caller promises that the kernel has these parameters, which the
                // driver copies.
                f.check("cuGraphAddKernelNode", unsafe {
                    (self.add_kernel)(
                        &raw mut node,
                        graph,
                        before.as_ptr(),
                        before.len(),
                        &raw const description,
                    )
                })?;
            }
            Operation::Copy { from, to, bytes } => {
                let description = CopyNode {
                    from: CopyEnd::at(*from),
                    to: CopyEnd::at(*to),
                    bytes: *bytes as usize,
                    height: 1,
                    depth: 1,
                };
                // SAFETY: the caller promises that both memories have so many bytes. The driver
                // copies the description.
                f.check("cuGraphAddMemcpyNode", unsafe {
                    (self.add_copy)(
                        &raw mut node,
                        graph,
                        before.as_ptr(),
                        before.len(),
                        &raw const description,
                        context.0,
                    )
                })?;
            }
            Operation::Clear { .. } => {
                return Err(DriverError::Failed("graphs clear no memory".into()));
            }
        }
        Ok(node)
    }

    /// Launches a graph on a stream.
    ///
    /// # Safety
    /// As for `Context::launch_graph`.
    pub(super) unsafe fn launch_graph(
        &self,
        f: &Functions,
        stream: Pointer,
        graph: GraphId,
    ) -> Result<(), DriverError> {
        // SAFETY: `create_graph` has returned the graph, and the stream is of the same context.
        f.check("cuGraphLaunch", unsafe { (self.launch)(graph.0 as Handle, stream.0) })
    }

    /// Destroys a graph.
    ///
    /// # Safety
    /// As for `Context::destroy_graph`.
    pub(super) unsafe fn destroy_graph(&self, graph: GraphId) {
        // SAFETY: `create_graph` has returned the graph, and nobody uses it any more. Errors have
        // no one to go to.
        unsafe { (self.destroy_instance)(graph.0 as Handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The offsets in `cuda.h` of CUDA 13 for 64 bits.
    #[test]
    fn structures_are_those_of_the_driver() {
        assert_eq!(size_of::<KernelNode>(), 56);
        let offsets = [
            offset_of!(KernelNode, grid),
            offset_of!(KernelNode, block),
            offset_of!(KernelNode, shared_bytes),
            offset_of!(KernelNode, parameters),
            offset_of!(KernelNode, extra),
        ];
        assert_eq!(offsets, [8, 20, 32, 40, 48]);
        assert_eq!(size_of::<CopyNode>(), 200);
        let offsets = [
            offset_of!(CopyNode, from.memory_type),
            offset_of!(CopyNode, from.host),
            offset_of!(CopyNode, from.device),
            offset_of!(CopyNode, from.pitch),
            offset_of!(CopyNode, to),
            offset_of!(CopyNode, to.device),
            offset_of!(CopyNode, bytes),
            offset_of!(CopyNode, height),
            offset_of!(CopyNode, depth),
        ];
        assert_eq!(offsets, [32, 40, 48, 72, 88, 136, 176, 184, 192]);
    }
}
