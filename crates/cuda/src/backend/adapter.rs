//! Devices that can be opened.

use super::COMPUTES_ONLY;
use super::device::{CudaDevice, Inner};
use super::queue::CudaQueue;
use crate::driver::{DeviceInfo, Driver};
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use wgpu::custom::{
    AdapterInterface, DispatchDevice, DispatchQueue, DispatchSurface, RequestDeviceFuture,
};
use wgpu::{
    Adapter, AdapterInfo, Backend, CooperativeMatrixProperties, DeviceDescriptor, DeviceType,
    DownlevelCapabilities, Features, Limits, PresentationTimestamp, RequestDeviceError,
    TextureFormat, TextureFormatFeatures,
};

/// The number of NVIDIA as a vendor of PCI devices.
const NVIDIA: u32 = 0x10de;

/// The largest part of a buffer that kernels address: their indices have 32 bits.
const MAX_BINDING_BYTES: u64 = (4 << 30) - 16;

/// Blocks of a grid in each direction. CUDA allows more in the first one.
pub(super) const MAX_BLOCKS: u32 = 65_535;

/// The size of immediates in bytes.
pub(super) const IMMEDIATE_BYTES: usize = 128;

/// A device that can be opened.
#[derive(Debug)]
pub(super) struct CudaAdapter {
    driver: &'static dyn Driver,
    info: DeviceInfo,
}

/// Returns whether an adapter is one of CUDA's, or of its emulator.
#[must_use]
pub fn is_cuda(adapter: &Adapter) -> bool {
    adapter.as_custom::<CudaAdapter>().is_some()
}

/// Returns a driver's devices.
pub(crate) fn adapters_of(driver: &'static impl Driver) -> Vec<Adapter> {
    let infos = driver.devices().into_iter();
    infos.map(|info| Adapter::from_custom(CudaAdapter { driver, info })).collect()
}

/// Returns the features of all devices.
pub(super) fn features() -> Features {
    Features::IMMEDIATES | Features::PIPELINE_CACHE
}

/// Returns the limits of a device.
pub(super) fn limits(info: &DeviceInfo) -> Limits {
    Limits {
        max_storage_buffers_per_shader_stage: 16,
        max_storage_buffer_binding_size: info.memory_bytes.min(MAX_BINDING_BYTES),
        max_buffer_size: info.memory_bytes,
        max_compute_workgroup_storage_size: info.shared_bytes,
        max_compute_invocations_per_workgroup: 1024,
        max_compute_workgroup_size_x: 1024,
        max_compute_workgroups_per_dimension: MAX_BLOCKS,
        max_immediate_size: IMMEDIATE_BYTES as u32,
        ..Limits::default()
    }
}

/// Describes a device.
pub(crate) fn describe(info: &DeviceInfo) -> AdapterInfo {
    let device_type = match (info.is_emulated, info.is_integrated) {
        (true, _) => DeviceType::Cpu,
        (false, true) => DeviceType::IntegratedGpu,
        (false, false) => DeviceType::DiscreteGpu,
    };
    // wgpu has no name for CUDA.
    AdapterInfo {
        name: info.name.clone(),
        vendor: NVIDIA,
        device_pci_bus_id: info.pci_bus_id.clone(),
        driver: info.driver.clone(),
        // All of its GPUs have warps of this size.
        subgroup_min_size: 32,
        subgroup_max_size: 32,
        ..AdapterInfo::new(device_type, Backend::Noop)
    }
}

impl AdapterInterface for CudaAdapter {
    fn request_device(
        &self,
        descriptor: &DeviceDescriptor<'_>,
    ) -> Pin<Box<dyn RequestDeviceFuture>> {
        let has_all = features().contains(descriptor.required_features)
            && descriptor.required_limits.check_limits(&limits(&self.info));
        if !has_all {
            let error = "the device does not have all required features and limits";
            return Box::pin(ready(Err(RequestDeviceError::from_message(error.to_owned()))));
        }
        let opened = self.driver.open(self.info.ordinal).map(|context| {
            let inner = Arc::new(Inner::new(context, self.info.clone()));
            let queue = DispatchQueue::custom(CudaQueue::new(Arc::clone(&inner)));
            (DispatchDevice::custom(CudaDevice::new(inner)), queue)
        });
        let opened = opened.map_err(|error| RequestDeviceError::from_message(error.to_string()));
        Box::pin(ready(opened))
    }

    fn is_surface_supported(&self, _: &DispatchSurface) -> bool {
        false
    }

    fn features(&self) -> Features {
        features()
    }

    fn limits(&self) -> Limits {
        limits(&self.info)
    }

    fn downlevel_capabilities(&self) -> DownlevelCapabilities {
        DownlevelCapabilities::default()
    }

    fn get_info(&self) -> AdapterInfo {
        describe(&self.info)
    }

    fn get_texture_format_features(&self, _: TextureFormat) -> TextureFormatFeatures {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn get_presentation_timestamp(&self) -> PresentationTimestamp {
        PresentationTimestamp::INVALID_TIMESTAMP
    }

    fn cooperative_matrix_properties(&self) -> Vec<CooperativeMatrixProperties> {
        Vec::new()
    }
}
