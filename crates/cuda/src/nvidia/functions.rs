//! The functions of NVIDIA's driver.

use crate::driver::DriverError;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::Arc;

/// `CUresult`
pub(super) type Status = c_int;
pub(super) type Address = u64;
pub(super) type Handle = *mut c_void;

/// Numbers of `cuda.h`.
pub(super) mod number {
    use super::{Status, c_int, c_uint};
    pub(crate) const OUT_OF_MEMORY: Status = 2;
    pub(crate) const NOT_READY: Status = 600;
    pub(crate) const SHARED_BYTES: c_int = 8;
    pub(crate) const INTEGRATED: c_int = 18;
    pub(crate) const CAPABILITY_MAJOR: c_int = 75;
    pub(crate) const CAPABILITY_MINOR: c_int = 76;
    /// A stream that does not wait for the default one.
    pub(crate) const NON_BLOCKING: c_uint = 1;
    /// An event without a time.
    pub(crate) const DISABLE_TIMING: c_uint = 2;
    pub(crate) const UNIFIED_MEMORY: c_uint = 4;
}

/// Declares functions of the driver, with the types of `cuda.h`.
macro_rules! functions {
    (
        $(#[$about:meta])*
        $name:ident {
            $($field:ident = $symbol:literal: fn($($argument:ty),* $(,)?);)*
        }
    ) => {
        $(#[$about])*
        pub(super) struct $name {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> Status,)*
            _library: Arc<Library>,
        }

        impl $name {
            pub(super) fn load(library: &Arc<Library>) -> Result<Self, libloading::Error> {
                Ok(Self {
                    // SAFETY: `cuda.h` declares the functions with these types.
                    $($field: *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }?,)*
                    _library: Arc::clone(library),
                })
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    };
}

functions! {
    /// The driver's functions.
    Functions {
        initialise = "cuInit": fn(c_uint);
        version = "cuDriverGetVersion": fn(*mut c_int);
        error_name = "cuGetErrorName": fn(Status, *mut *const c_char);
        device_count = "cuDeviceGetCount": fn(*mut c_int);
        device = "cuDeviceGet": fn(*mut c_int, c_int);
        device_name = "cuDeviceGetName": fn(*mut c_char, c_int, c_int);
        device_memory = "cuDeviceTotalMem_v2": fn(*mut usize, c_int);
        device_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, c_int);
        device_bus = "cuDeviceGetPCIBusId": fn(*mut c_char, c_int, c_int);
        retain_context = "cuDevicePrimaryCtxRetain": fn(*mut Handle, c_int);
        release_context = "cuDevicePrimaryCtxRelease_v2": fn(c_int);
        push_context = "cuCtxPushCurrent_v2": fn(Handle);
        pop_context = "cuCtxPopCurrent_v2": fn(*mut Handle);
        memory = "cuMemGetInfo_v2": fn(*mut usize, *mut usize);
        allocate = "cuMemAlloc_v2": fn(*mut Address, usize);
        free = "cuMemFree_v2": fn(Address);
        allocate_host = "cuMemAllocHost_v2": fn(*mut *mut c_void, usize);
        free_host = "cuMemFreeHost": fn(*mut c_void);
        write = "cuMemcpyHtoDAsync_v2": fn(Address, *const c_void, usize, Handle);
        copy = "cuMemcpyAsync": fn(Address, Address, usize, Handle);
        clear = "cuMemsetD8Async": fn(Address, u8, usize, Handle);
        load_module = "cuModuleLoadData": fn(*mut Handle, *const c_void);
        unload_module = "cuModuleUnload": fn(Handle);
        function = "cuModuleGetFunction": fn(*mut Handle, Handle, *const c_char);
        launch = "cuLaunchKernel":
            fn(
                Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void,
                *mut *mut c_void
            );
        create_stream = "cuStreamCreate": fn(*mut Handle, c_uint);
        wait_for_stream = "cuStreamSynchronize": fn(Handle);
        destroy_stream = "cuStreamDestroy_v2": fn(Handle);
        create_event = "cuEventCreate": fn(*mut Handle, c_uint);
        record_event = "cuEventRecord": fn(Handle, Handle);
        query_event = "cuEventQuery": fn(Handle);
        destroy_event = "cuEventDestroy_v2": fn(Handle);
    }
}

impl Functions {
    pub(super) fn check(&self, call: &str, status: Status) -> Result<(), DriverError> {
        match status {
            0 => Ok(()),
            number::OUT_OF_MEMORY => Err(DriverError::OutOfMemory),
            status => {
                let mut name: *const c_char = ptr::null();
                // SAFETY: `name` is a place for a pointer to a constant string.
                let known = unsafe { (self.error_name)(status, &raw mut name) } == 0;
                let name = match known && !name.is_null() {
                    // SAFETY: the driver returns a constant string.
                    true => unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned(),
                    false => format!("error {status}"),
                };
                Err(DriverError::Failed(format!("CUDA: {call} failed: {name}")))
            }
        }
    }
}
