//! An open GPU: its memory, its pipelines and its queue.

use crate::adapter::{GpuAdapter, find_adapters};
use crate::error::{GpuError, GpuLoadError};
use crate::kernel::Kernel;
use crate::pipeline::Pipeline;
use crate::probe::Probe;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use wgpu::{
    Adapter, Buffer, BufferDescriptor, BufferUsages, CommandEncoder, Device, DeviceDescriptor,
    ErrorFilter, Features, Limits, MapMode, PollType, Queue, SubmissionIndex,
};

/// The largest part of an upload. The driver holds a copy of it until it is submitted.
const UPLOAD_BYTES: usize = 16 << 20;

/// Storage buffers that the kernels with the most of them use.
const STORAGE_BUFFERS: u32 = 8;

/// Bytes of the kernels' parameters.
pub(crate) const PARAMETER_BYTES: u32 = 64;

/// An open GPU. Models on it share it, and run one after another.
pub struct GpuDevice {
    adapter: GpuAdapter,
    device: Device,
    queue: Queue,
    /// Whether shaders are SPIR-V without contraction. Otherwise the driver compiles WGSL as it likes.
    exact: bool,
    probe: Option<Probe>,
    pipelines: Mutex<HashMap<Kernel, Arc<Pipeline>>>,
    /// Why the device was lost, if it was.
    lost: Arc<Mutex<Option<String>>>,
}

impl GpuDevice {
    /// Returns the GPUs of the machine: those with their own memory first, drivers that compute on the processor
    /// last. It is empty without a driver.
    #[must_use]
    pub fn adapters() -> Vec<GpuAdapter> {
        find_adapters().into_iter().map(|(adapter, _)| adapter).collect()
    }

    /// Opens the GPU with this number among [`GpuDevice::adapters`], and probes its arithmetic.
    ///
    /// # Errors
    /// If there is no such GPU, or it lacks what the kernels need, or its driver refuses.
    pub fn open(index: usize) -> Result<Arc<Self>, GpuError> {
        Self::open_with_limit(index, u64::MAX)
    }

    /// The same, with kernels that address at most so many bytes of a buffer. Larger matrices and results are split, as
    /// on GPUs with such a limit. Tests use it.
    ///
    /// # Errors
    /// As [`GpuDevice::open`].
    pub fn open_with_limit(index: usize, max_binding_bytes: u64) -> Result<Arc<Self>, GpuError> {
        let mut adapters = find_adapters();
        if index >= adapters.len() {
            let names: Vec<String> = adapters.iter().map(|(gpu, _)| gpu.to_string()).collect();
            let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(GpuError::NoAdapter { index, found });
        }
        let (mut description, adapter) = adapters.swap_remove(index);
        description.max_binding_bytes = description.max_binding_bytes.min(max_binding_bytes);
        Self::open_adapter(description, &adapter)
    }

    fn open_adapter(description: GpuAdapter, adapter: &Adapter) -> Result<Arc<Self>, GpuError> {
        let name = || description.name.clone();
        if !adapter.features().contains(Features::IMMEDIATES) {
            return Err(GpuError::MissingFeature {
                adapter: name(),
                feature: "immediate data (push constants)",
            });
        }
        check_limits(&description, &adapter.limits())?;
        let features = adapter.features() & (Features::IMMEDIATES | Features::PASSTHROUGH_SHADERS);
        let opened = pollster::block_on(adapter.request_device(&DeviceDescriptor {
            label: Some("forerun"),
            required_features: features,
            required_limits: adapter.limits(),
            ..DeviceDescriptor::default()
        }));
        let (device, queue) =
            opened.map_err(|error| GpuError::Open { adapter: name(), cause: error.to_string() })?;
        let lost = Arc::new(Mutex::new(None));
        let reason = Arc::clone(&lost);
        device.set_device_lost_callback(move |_, message| {
            *reason.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
        });
        let is_vulkan = adapter.get_info().backend == wgpu::Backend::Vulkan;
        let exact = is_vulkan && features.contains(Features::PASSTHROUGH_SHADERS);
        let mut opened = Self {
            adapter: description,
            device,
            queue,
            exact,
            probe: None,
            pipelines: Mutex::default(),
            lost,
        };
        opened.probe = Some(Probe::run(&opened));
        Ok(Arc::new(opened))
    }

    /// Returns the description of the GPU.
    #[must_use]
    pub fn adapter(&self) -> &GpuAdapter {
        &self.adapter
    }

    /// Returns what the probe found when the GPU was opened.
    ///
    /// # Panics
    /// Never: the probe runs before the device is returned.
    #[must_use]
    pub fn probe(&self) -> &Probe {
        self.probe.as_ref().expect("the probe has run")
    }

    /// Returns whether the shaders forbid the driver to contract and to reorder arithmetic. This is so with
    /// Vulkan only.
    #[must_use]
    pub fn forbids_contraction(&self) -> bool {
        self.exact
    }

    /// Returns the largest number of bytes that a kernel can read from or write to one buffer.
    pub(crate) fn max_binding_bytes(&self) -> u64 {
        self.adapter.max_binding_bytes.min(self.adapter.max_buffer_bytes)
    }

    pub(crate) fn inner(&self) -> &Device {
        &self.device
    }

    /// Returns the pipeline of a kernel, which is built when it is first needed.
    pub(crate) fn pipeline(&self, kernel: Kernel) -> Arc<Pipeline> {
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let build = || Arc::new(Pipeline::new(&self.device, kernel, self.exact));
        Arc::clone(pipelines.entry(kernel).or_insert_with(build))
    }

    /// Allocates memory that kernels can read and write. Its content is zero.
    ///
    /// # Errors
    /// [`GpuLoadError::OutOfMemory`], with `what` is to be stored.
    pub(crate) fn allocate(&self, what: &str, bytes: u64) -> Result<Buffer, GpuLoadError> {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let descriptor = BufferDescriptor {
            label: None,
            size: bytes.max(16).next_multiple_of(16),
            usage,
            mapped_at_creation: false,
        };
        let out_of_memory = || GpuLoadError::OutOfMemory {
            adapter: self.adapter.name.clone(),
            what: what.to_owned(),
            bytes,
        };
        if descriptor.size > self.adapter.max_buffer_bytes {
            return Err(out_of_memory());
        }
        let scope = self.device.push_error_scope(ErrorFilter::OutOfMemory);
        let buffer = self.device.create_buffer(&descriptor);
        match pollster::block_on(scope.pop()) {
            Some(_) => Err(out_of_memory()),
            None => Ok(buffer),
        }
    }

    /// Allocates memory during a pass.
    ///
    /// # Panics
    /// If there is no memory, with a message that names the GPU and what was to be stored. Workers report it as
    /// the failure of a job.
    pub(crate) fn allocate_in_pass(&self, what: &str, bytes: u64) -> Buffer {
        match self.allocate(what, bytes) {
            Ok(buffer) => buffer,
            Err(error) => panic!("{error}"),
        }
    }

    /// Allocates memory from which the processor reads.
    pub(crate) fn allocate_staging(&self, bytes: u64) -> Buffer {
        self.device.create_buffer(&BufferDescriptor {
            label: None,
            size: bytes,
            usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        })
    }

    /// Writes before the next submission. The bytes are a multiple of four.
    pub(crate) fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) {
        self.queue.write_buffer(buffer, offset, bytes);
    }

    /// Writes a large amount, in parts.
    pub(crate) fn upload(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) {
        for (index, part) in bytes.chunks(UPLOAD_BYTES).enumerate() {
            self.write(buffer, offset + (index * UPLOAD_BYTES) as u64, part);
            self.queue.submit([]);
        }
    }

    pub(crate) fn new_encoder(&self) -> CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    pub(crate) fn submit(&self, encoder: CommandEncoder) -> SubmissionIndex {
        self.queue.submit([encoder.finish()])
    }

    /// Waits until a submission has been computed.
    ///
    /// # Panics
    /// If the device was lost, with its name and the driver's reason.
    pub(crate) fn wait(&self, submission: Option<SubmissionIndex>) {
        let polled =
            self.device.poll(PollType::Wait { submission_index: submission, timeout: None });
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match (polled, lost) {
            (_, Some(reason)) => panic!("GPU {}: the device was lost: {reason}", self.adapter.name),
            (Err(error), None) => panic!("GPU {}: waiting failed: {error}", self.adapter.name),
            (Ok(_), None) => {}
        }
    }

    /// Reads the start of a staging buffer to which the submitted commands copy.
    ///
    /// # Panics
    /// If the device was lost.
    pub(crate) fn read(&self, staging: &Buffer, bytes: u64, mut visit: impl FnMut(&[u8])) {
        if bytes == 0 {
            return self.wait(None);
        }
        let slice = staging.slice(..bytes);
        // The outcome is that of `get_mapped_range`.
        slice.map_async(MapMode::Read, |_| ());
        self.wait(None);
        match slice.get_mapped_range() {
            Ok(view) => visit(&view),
            Err(error) => panic!("GPU {}: results cannot be read: {error}", self.adapter.name),
        }
        staging.unmap();
    }
}

fn check_limits(adapter: &GpuAdapter, limits: &Limits) -> Result<(), GpuError> {
    let needed = [
        (
            "number of storage buffers",
            STORAGE_BUFFERS.into(),
            limits.max_storage_buffers_per_shader_stage.into(),
        ),
        ("size of immediate data", PARAMETER_BYTES.into(), u64::from(limits.max_immediate_size)),
        ("workgroup", 64, u64::from(limits.max_compute_invocations_per_workgroup)),
        ("shared memory", 16 << 10, u64::from(limits.max_compute_workgroup_storage_size)),
        ("storage binding", 16 << 20, limits.max_storage_buffer_binding_size),
    ];
    match needed.into_iter().find(|(_, expected, found)| found < expected) {
        Some((limit, expected, found)) => {
            Err(GpuError::Limit { adapter: adapter.name.clone(), limit, expected, found })
        }
        None => Ok(()),
    }
}
