//! The GPUs of the machine.

use crate::cuda;
use crate::error::GpuError;
use std::fmt;
use std::sync::OnceLock;
use wgpu::{Adapter, Backend, Backends, DeviceType, Instance, InstanceDescriptor};

/// A GPU that a driver offers. If it has a Vulkan driver, its other drivers do not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuAdapter {
    /// Its number, from 0: `gpu:0` in placements.
    pub index: usize,
    /// Its name, as the driver reports it.
    pub name: String,
    /// The interface to the driver: Vulkan, Direct3D 12, Metal or CUDA.
    pub backend: String,
    /// The driver and its version.
    pub driver: String,
    /// What kind of device it is.
    pub kind: AdapterKind,
    /// The largest buffer in bytes.
    pub max_buffer_bytes: u64,
    /// The largest part of a buffer that a shader can read, in bytes. Larger matrices are split.
    pub max_binding_bytes: u64,
    /// The smallest and the largest number of invocations that run in lockstep.
    pub subgroup_sizes: [u32; 2],
}

/// What kind of device an adapter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterKind {
    /// A GPU with its own memory.
    Discrete,
    /// A GPU that shares the processor's memory.
    Integrated,
    /// A GPU of a virtual machine.
    Virtual,
    /// A driver that computes on the processor, such as lavapipe.
    Software,
    /// Unknown.
    Other,
}

impl fmt::Display for AdapterKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Discrete => "discrete GPU",
            Self::Integrated => "integrated GPU",
            Self::Virtual => "virtual GPU",
            Self::Software => "software",
            Self::Other => "unknown kind",
        })
    }
}

impl fmt::Display for GpuAdapter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gpu:{} {} ({}, {})", self.index, self.name, self.kind, self.backend)
    }
}

impl GpuAdapter {
    /// Returns whether its memory is the processor's.
    #[must_use]
    pub fn shares_main_memory(&self) -> bool {
        matches!(self.kind, AdapterKind::Integrated | AdapterKind::Software)
    }

    /// Returns whether forerun has never run on a GPU through this interface: with all but Vulkan.
    /// Software has been tested.
    #[must_use]
    pub fn is_untried(&self) -> bool {
        self.backend != "Vulkan" && self.kind != AdapterKind::Software
    }

    pub(crate) fn new(index: usize, adapter: &Adapter) -> Self {
        let (info, limits) = (adapter.get_info(), adapter.limits());
        Self {
            index,
            name: info.name,
            backend: match info.backend {
                _ if cuda::is_cuda(adapter) => "CUDA".to_owned(),
                Backend::Dx12 => "Direct3D 12".to_owned(),
                other => format!("{other:?}"),
            },
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            kind: match info.device_type {
                DeviceType::DiscreteGpu => AdapterKind::Discrete,
                DeviceType::IntegratedGpu => AdapterKind::Integrated,
                DeviceType::VirtualGpu => AdapterKind::Virtual,
                DeviceType::Cpu => AdapterKind::Software,
                DeviceType::Other => AdapterKind::Other,
            },
            max_buffer_bytes: limits.max_buffer_size,
            max_binding_bytes: limits.max_storage_buffer_binding_size,
            subgroup_sizes: [info.subgroup_min_size, info.subgroup_max_size],
        }
    }
}

/// The interface of an adapter's driver, and the numbers of its vendor and of its model.
type Identity = (Backend, u32, u32);

/// Returns whether an adapter is a GPU that also has a Vulkan driver. Only Vulkan lets shaders
/// forbid contraction.
fn is_duplicate((backend, vendor, model): Identity, all: &[Identity]) -> bool {
    backend != Backend::Vulkan && all.contains(&(Backend::Vulkan, vendor, model))
}

/// Returns the connection to the drivers. A process has one, because several threads that open and
/// close their own crash some drivers.
fn instance() -> &'static Instance {
    static INSTANCE: OnceLock<Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        let mut descriptor = InstanceDescriptor::new_without_display_handle();
        descriptor.backends = Backends::VULKAN | Backends::DX12 | Backends::METAL;
        Instance::new(descriptor)
    })
}

/// Returns the adapters of all drivers. Each GPU is there once: through Vulkan if it can be, and
/// through CUDA only if it has no other driver.
fn all_adapters() -> Vec<Adapter> {
    let mut adapters = pollster::block_on(instance().enumerate_adapters(Backends::all()));
    let identity = |adapter: &Adapter| {
        let info = adapter.get_info();
        (info.backend, info.vendor, info.device)
    };
    let all: Vec<Identity> = adapters.iter().map(identity).collect();
    adapters.retain(|adapter| !is_duplicate(identity(adapter), &all));
    let others: Vec<_> = adapters.iter().map(Adapter::get_info).collect();
    let of_cuda = cuda::adapters().into_iter();
    adapters.extend(of_cuda.filter(|it| !cuda::is_offered_by(&it.get_info(), &others)));
    adapters
}

/// Returns the adapters with their descriptions: GPUs with their own memory first, software last,
/// and otherwise in the order of the drivers. Fails if an environment variable names an interface
/// that is unknown, or not in this build.
pub(crate) fn find_adapters() -> Result<Vec<(GpuAdapter, Adapter)>, GpuError> {
    let mut adapters = cuda::chosen_adapters()?.unwrap_or_else(all_adapters);
    adapters.sort_by_key(|adapter| match adapter.get_info().device_type {
        DeviceType::DiscreteGpu => 0,
        DeviceType::IntegratedGpu => 1,
        DeviceType::VirtualGpu => 2,
        DeviceType::Other => 3,
        DeviceType::Cpu => 4,
    });
    let describe = |(index, adapter)| (GpuAdapter::new(index, &adapter), adapter);
    Ok(adapters.into_iter().enumerate().map(describe).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_with_a_vulkan_driver_counts_once() {
        let all = [
            (Backend::Vulkan, 1, 7),
            (Backend::Dx12, 1, 7),
            (Backend::Dx12, 2, 7),
            (Backend::Vulkan, 1, 7),
            (Backend::Metal, 0, 0),
        ];
        let kept: Vec<Identity> = all.into_iter().filter(|own| !is_duplicate(*own, &all)).collect();
        assert_eq!(kept, [all[0], all[2], all[3], all[4]]);
    }
}
