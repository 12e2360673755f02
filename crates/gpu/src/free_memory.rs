//! The free memory of a GPU, as far as its driver says.

use crate::device::GpuDevice;

impl GpuDevice {
    /// Returns the memory in bytes that this process may still use of the GPU's own. `None` if the driver does not say:
    /// only Vulkan drivers do.
    #[must_use]
    pub fn free_memory(&self) -> Option<u64> {
        vulkan_memory(self.inner())
    }
}

/// Returns what is left of the largest heap: of its budget, which considers other programs, or else of its size.
#[cfg(not(target_vendor = "apple"))]
fn vulkan_memory(device: &wgpu::Device) -> Option<u64> {
    use ash::vk;

    // SAFETY: the handles are only read from, while the device that owns them is alive.
    let device = unsafe { device.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let instance = device.shared_instance();
    if instance.instance_api_version() < vk::API_VERSION_1_1 {
        return None;
    }
    let has_budget = device.enabled_device_extensions().contains(&ash::ext::memory_budget::NAME);
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceMemoryProperties2::default();
    if has_budget {
        properties = properties.push_next(&mut budget);
    }
    let physical = device.raw_physical_device();
    // SAFETY: the instance and its physical device are alive, and its version has the function.
    unsafe {
        instance.raw_instance().get_physical_device_memory_properties2(physical, &mut properties);
    }
    let memory = properties.memory_properties;
    let heaps = memory.memory_heaps_as_slice().iter().enumerate();
    let own = heaps.filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
    let (index, heap) = own.max_by_key(|(_, heap)| heap.size)?;
    match has_budget {
        true => Some(budget.heap_budget[index].saturating_sub(budget.heap_usage[index])),
        false => Some(heap.size),
    }
}

#[cfg(target_vendor = "apple")]
fn vulkan_memory(_device: &wgpu::Device) -> Option<u64> {
    None
}
