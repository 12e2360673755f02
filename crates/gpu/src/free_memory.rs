//! The free memory of a GPU, as far as its driver says.

use crate::cuda;
use crate::device::GpuDevice;

impl GpuDevice {
    /// Returns the memory in bytes that this process may still use of the GPU's own. `None` if the
    /// driver does not say: only CUDA and Vulkan drivers with budgets (`VK_EXT_memory_budget`) do.
    #[must_use]
    pub fn free_memory(&self) -> Option<u64> {
        self.heap()?.free
    }

    /// Returns the most memory in bytes that may be free. Without a budget, it is the size of the
    /// GPU's memory.
    pub(crate) fn memory_limit(&self) -> Option<u64> {
        let heap = self.heap()?;
        Some(heap.free.unwrap_or(heap.size))
    }

    fn heap(&self) -> Option<Heap> {
        match cuda::memory(self.inner()) {
            Some([free, size]) => Some(Heap { size, free: Some(free) }),
            None => heap(self.inner()),
        }
    }
}

/// The largest heap of a GPU's own memory, in bytes.
struct Heap {
    size: u64,
    /// What is left of its budget, which considers other programs.
    free: Option<u64>,
}

#[cfg(not(target_vendor = "apple"))]
fn heap(device: &wgpu::Device) -> Option<Heap> {
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
    let free =
        has_budget.then(|| budget.heap_budget[index].saturating_sub(budget.heap_usage[index]));
    Some(Heap { size: heap.size, free })
}

#[cfg(target_vendor = "apple")]
fn heap(_device: &wgpu::Device) -> Option<Heap> {
    None
}
