//! Kernels through wgpu, on an emulated device.

mod arithmetic;
mod faults;
mod graphs;
mod late;
mod tensor;

use crate::{cuda_c_module, emulated_adapter};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use wgpu::{
    Adapter, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, BindGroupLayoutDescriptor,
    BindGroupLayoutEntry, BindingType, Buffer, BufferBindingType, BufferDescriptor, BufferUsages,
    ComputePassDescriptor, ComputePipeline, ComputePipelineDescriptor, Device, DeviceDescriptor,
    MapMode, PipelineCompilationOptions, PipelineLayoutDescriptor, PollType, Queue,
    ShaderModuleDescriptor, ShaderRuntimeChecks, ShaderSource, ShaderStages, SubmissionIndex,
};

/// The folder of the tests' compiled kernels.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cuda-emulator")
}

/// An open device, and what went wrong on it.
struct Opened {
    device: Device,
    queue: Queue,
    errors: Arc<Mutex<Vec<String>>>,
}

/// Opens an emulated device. `None`, with a message, without a C++ compiler.
fn open() -> Option<Opened> {
    open_with_order(0)
}

/// The same with an order in which tensor cores add.
fn open_with_order(order: u32) -> Option<Opened> {
    match emulated_adapter(&folder(), order) {
        Some(adapter) => Some(Opened::new(&adapter)),
        None => {
            println!("skipped: the emulator needs a C++ compiler on x86-64 or aarch64");
            None
        }
    }
}

impl Opened {
    fn new(adapter: &Adapter) -> Self {
        let descriptor = DeviceDescriptor {
            required_features: adapter.features(),
            required_limits: adapter.limits(),
            ..DeviceDescriptor::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).unwrap();
        let errors = Arc::new(Mutex::new(Vec::new()));
        let (of_errors, of_loss) = (Arc::clone(&errors), Arc::clone(&errors));
        let add = |errors: &Mutex<Vec<String>>, error: String| {
            errors.lock().unwrap_or_else(PoisonError::into_inner).push(error);
        };
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            add(&of_errors, error.to_string());
        }));
        device.set_device_lost_callback(move |reason, message| {
            add(&of_loss, format!("lost ({reason:?}): {message}"));
        });
        Self { device, queue, errors }
    }

    fn errors(&self) -> Vec<String> {
        std::mem::take(&mut *self.errors.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Compiles a kernel that reads binding 0 and writes binding 1: in WGSL, or of 32 threads in
    /// CUDA C.
    fn pipeline(&self, source: &str, immediate_size: u32) -> (BindGroupLayout, ComputePipeline) {
        let entry = |binding, read_only| BindGroupLayoutEntry {
            binding,
            visibility: ShaderStages::COMPUTE,
            ty: BindingType::Buffer {
                ty: BufferBindingType::Storage { read_only },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let entries = [entry(0, true), entry(1, false)];
        let descriptor = BindGroupLayoutDescriptor { label: None, entries: &entries };
        let layout = self.device.create_bind_group_layout(&descriptor);
        let of_pipeline = self.device.create_pipeline_layout(&PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&layout)],
            immediate_size,
        });
        let descriptor =
            ShaderModuleDescriptor { label: None, source: ShaderSource::Wgsl(source.into()) };
        let module = match source.contains("\nKERNEL(") {
            true => cuda_c_module(&self.device, source.to_owned(), 32),
            // SAFETY: the emulator checks indices, and the tests' loops end.
            false => unsafe {
                let checks = ShaderRuntimeChecks::unchecked();
                self.device.create_shader_module_trusted(descriptor, checks)
            },
        };
        let pipeline = self.device.create_compute_pipeline(&ComputePipelineDescriptor {
            label: None,
            layout: Some(&of_pipeline),
            module: &module,
            entry_point: Some("main"),
            compilation_options: PipelineCompilationOptions::default(),
            cache: None,
        });
        (layout, pipeline)
    }

    fn buffer(&self, size: usize, usage: BufferUsages) -> Buffer {
        self.device.create_buffer(&BufferDescriptor {
            label: None,
            size: size as u64,
            usage,
            mapped_at_creation: false,
        })
    }

    /// Records and submits one dispatch. Returns a buffer with a copy of the output.
    fn submit(
        &self,
        source: &str,
        input: &[u32],
        output: usize,
        groups: u32,
        immediates: &[u32],
    ) -> Buffer {
        let immediates: Vec<u8> = immediates.iter().flat_map(|word| word.to_le_bytes()).collect();
        let (layout, pipeline) = self.pipeline(source, immediates.len() as u32);
        let from = self.buffer(input.len() * 4, BufferUsages::STORAGE | BufferUsages::COPY_DST);
        let bytes: Vec<u8> = input.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.queue.write_buffer(&from, 0, &bytes);
        let to = self.buffer(output * 4, BufferUsages::STORAGE | BufferUsages::COPY_SRC);
        let staging = self.buffer(output * 4, BufferUsages::MAP_READ | BufferUsages::COPY_DST);
        let group = self.device.create_bind_group(&BindGroupDescriptor {
            label: None,
            layout: &layout,
            entries: &[
                BindGroupEntry { binding: 0, resource: from.as_entire_binding() },
                BindGroupEntry { binding: 1, resource: to.as_entire_binding() },
            ],
        });
        let mut encoder = self.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&ComputePassDescriptor::default());
            pass.set_pipeline(&pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.set_immediates(0, &immediates);
            pass.dispatch_workgroups(groups, 1, 1);
        }
        encoder.copy_buffer_to_buffer(&to, 0, &staging, 0, (output * 4) as u64);
        self.queue.submit([encoder.finish()]);
        staging
    }

    /// Waits for all work, and reads a buffer.
    fn read(&self, staging: &Buffer) -> Vec<u32> {
        self.read_after(staging, None)
    }

    /// Waits for a submission, or for all work, and reads a buffer.
    fn read_after(&self, staging: &Buffer, submission_index: Option<SubmissionIndex>) -> Vec<u32> {
        staging.slice(..).map_async(MapMode::Read, |_| ());
        self.device.poll(PollType::Wait { submission_index, timeout: None }).unwrap();
        let view = staging.slice(..).get_mapped_range().unwrap();
        let words = view.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
        words.collect()
    }

    /// Runs a kernel that reads `array<u32>` at binding 0 and writes `array<u32>` at binding 1.
    fn run(&self, source: &str, input: &[u32], output: usize, groups: u32) -> Vec<u32> {
        self.read(&self.submit(source, input, output, groups, &[]))
    }
}
