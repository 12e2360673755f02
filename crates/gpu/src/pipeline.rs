//! Kernels, compiled for a device.

use crate::cuda;
use crate::device::PARAMETER_BYTES;
use crate::kernel::{Access, Kernel};
use bytemuck::Pod;
use std::borrow::Cow;
use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, BindGroupLayoutDescriptor,
    BindGroupLayoutEntry, BindingType, Buffer, BufferBindingType, CommandEncoder,
    ComputePassDescriptor, ComputePipeline, ComputePipelineDescriptor, Device, PipelineCache,
    PipelineCompilationOptions, PipelineLayoutDescriptor, ShaderModule, ShaderModuleDescriptor,
    ShaderRuntimeChecks, ShaderSource, ShaderStages,
};
#[cfg(not(target_vendor = "apple"))]
use wgpu::{PassthroughShaderEntryPoint, ShaderModuleDescriptorPassthrough};

/// The name of every kernel's entry point.
const ENTRY_POINT: &str = "main";

/// A kernel, compiled for a device.
pub(crate) struct Pipeline {
    layout: BindGroupLayout,
    pub(crate) pipeline: ComputePipeline,
}

impl Pipeline {
    /// Compiles a kernel: as SPIR-V without contraction, or as WGSL, from which CUDA C without
    /// contraction is made, or as CUDA C. The driver may find it in `cache`, or adds it.
    pub(crate) fn new(
        device: &Device,
        kernel: Kernel,
        as_spirv: bool,
        cache: Option<&PipelineCache>,
    ) -> Self {
        let module = if kernel.is_cuda_c() {
            cuda::module(device, &kernel.source(), kernel.workgroup())
        } else if as_spirv {
            exact_module(device, kernel)
        } else {
            module(device, kernel.source())
        };
        Self::of_module(device, kernel, &module, cache)
    }

    /// Creates the pipeline of a compiled kernel.
    pub(crate) fn of_module(
        device: &Device,
        kernel: Kernel,
        module: &ShaderModule,
        cache: Option<&PipelineCache>,
    ) -> Self {
        let entry = |(binding, access): (usize, &Access)| BindGroupLayoutEntry {
            binding: binding as u32,
            visibility: ShaderStages::COMPUTE,
            ty: BindingType::Buffer {
                ty: BufferBindingType::Storage { read_only: *access == Access::Read },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let entries: Vec<_> = kernel.accesses().iter().enumerate().map(entry).collect();
        let layout = device.create_bind_group_layout(&BindGroupLayoutDescriptor {
            label: None,
            entries: &entries,
        });
        let pipeline_layout = device.create_pipeline_layout(&PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: PARAMETER_BYTES,
        });
        let name = format!("{kernel:?}");
        let pipeline = device.create_compute_pipeline(&ComputePipelineDescriptor {
            label: Some(&name),
            layout: Some(&pipeline_layout),
            module,
            entry_point: Some(ENTRY_POINT),
            compilation_options: PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..PipelineCompilationOptions::default()
            },
            cache,
        });
        Self { layout, pipeline }
    }

    /// Records one dispatch for each of the bindings, in order.
    pub(crate) fn record<'a>(
        &self,
        encoder: &mut CommandEncoder,
        bindings: impl Iterator<Item = &'a BindGroup>,
        parameters: &impl Pod,
        [x, y, z]: [u32; 3],
    ) {
        let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
        pass.set_pipeline(&self.pipeline);
        pass.set_immediates(0, bytemuck::bytes_of(parameters));
        for binding in bindings {
            pass.set_bind_group(0, binding, &[]);
            pass.dispatch_workgroups(x, y, z);
        }
    }

    /// Binds buffers, in the order of the kernel's bindings.
    pub(crate) fn bind(&self, device: &Device, buffers: &[&Buffer]) -> BindGroup {
        let numbered = (0..).zip(buffers);
        let entries = numbered.map(|(binding, buffer)| BindGroupEntry {
            binding,
            resource: buffer.as_entire_binding(),
        });
        let entries: Vec<_> = entries.collect();
        device.create_bind_group(&BindGroupDescriptor {
            label: None,
            layout: &self.layout,
            entries: &entries,
        })
    }
}

/// Compiles a kernel as SPIR-V whose arithmetic the driver may not change.
#[cfg(not(target_vendor = "apple"))]
fn exact_module(device: &Device, kernel: Kernel) -> ShaderModule {
    let entry_point = PassthroughShaderEntryPoint {
        name: Cow::Borrowed(ENTRY_POINT),
        workgroup_size: (kernel.workgroup(), 1, 1),
    };
    let descriptor = ShaderModuleDescriptorPassthrough {
        entry_points: Cow::Owned(vec![entry_point]),
        spirv: Some(Cow::Owned(crate::spirv::compile(&kernel.source()))),
        ..ShaderModuleDescriptorPassthrough::default()
    };
    // SAFETY: naga has validated the module, and only decorations were added. Its kernels index
    // buffers within the sizes that passes give them, end their loops, and write shared memory
    // before they read it.
    unsafe { device.create_shader_module_passthrough(descriptor) }
}

/// SPIR-V is for Vulkan, which is not used on Apple's systems.
#[cfg(target_vendor = "apple")]
fn exact_module(_device: &Device, _kernel: Kernel) -> ShaderModule {
    unreachable!("no adapter has Vulkan")
}

/// Compiles a kernel as WGSL, without checks in loops.
fn module(device: &Device, source: String) -> ShaderModule {
    let descriptor =
        ShaderModuleDescriptor { label: None, source: ShaderSource::Wgsl(Cow::Owned(source)) };
    // SAFETY: as in `exact_module`.
    unsafe { device.create_shader_module_trusted(descriptor, ShaderRuntimeChecks::unchecked()) }
}
