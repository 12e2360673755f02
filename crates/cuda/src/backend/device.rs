//! Open devices.

use super::COMPUTES_ONLY;
use super::adapter::{describe, features, limits};
use super::buffer::{BufferInner, CudaBuffer, place_for};
use super::commands::CudaEncoder;
use super::errors::Errors;
use super::graphs::Graphs;
use super::pipeline::{
    CudaBindGroup, CudaBindGroupLayout, CudaPipeline, CudaPipelineCache, CudaPipelineLayout,
    CudaShader,
};
use super::queue::{Launches, Work};
use crate::driver::{Context, DeviceInfo, DriverError, Memory, Operation, Place};
use crate::translate::{Translation, translate};
use std::fmt;
use std::future::ready;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use wgpu::custom::{
    BoxDeviceLostCallback, BoxSubmittedWorkDoneCallback, BufferMapCallback, DeviceInterface,
    DispatchBindGroup, DispatchBindGroupLayout, DispatchBlas, DispatchBuffer,
    DispatchCommandEncoder, DispatchComputePipeline, DispatchExternalTexture,
    DispatchPipelineCache, DispatchPipelineLayout, DispatchQuerySet, DispatchRenderBundleEncoder,
    DispatchRenderPipeline, DispatchSampler, DispatchShaderModule, DispatchTexture, DispatchTlas,
    PopErrorScopeFuture,
};
use wgpu::wgt::PollType;
use wgpu::{
    AdapterInfo, AllocatorReport, BindGroupDescriptor, BindGroupLayoutDescriptor,
    BlasGeometrySizeDescriptors, BufferAsyncError, BufferDescriptor, CommandEncoderDescriptor,
    ComputePipelineDescriptor, CreateBlasDescriptor, CreateTlasDescriptor, Device,
    DeviceLostReason, Error, ErrorFilter, ExternalTextureDescriptor, Features, InternalCounters,
    Limits, MeshPipelineDescriptor, PassthroughShaderEntryPoint, PipelineCacheDescriptor,
    PipelineLayoutDescriptor, PollError, PollStatus, QuerySetDescriptor,
    RenderBundleEncoderDescriptor, RenderPipelineDescriptor, SamplerDescriptor, ShaderModule,
    ShaderModuleDescriptor, ShaderModuleDescriptorPassthrough, ShaderRuntimeChecks, ShaderSource,
    TextureDescriptor, TextureView, UncapturedErrorHandler,
};

/// A wait asks the driver all the time for so long, then it sleeps between questions.
const BUSY_WAIT: Duration = Duration::from_micros(200);
const PAUSE: Duration = Duration::from_micros(20);

/// How long a device that is closed may still compute.
const LAST_WAIT: Duration = Duration::from_secs(120);

/// An open device.
#[derive(Debug)]
pub(super) struct CudaDevice(Arc<Inner>);

/// What buffers and the queue share with their device.
pub(super) struct Inner {
    pub(super) context: Arc<dyn Context>,
    info: DeviceInfo,
    pub(super) errors: Errors,
    work: Mutex<Work>,
    loss: Mutex<Loss>,
}

/// Whether a device is lost.
#[derive(Default)]
struct Loss {
    reason: Option<(DeviceLostReason, String)>,
    callback: Option<BoxDeviceLostCallback>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {:?}", self.info.name, self.work)
    }
}

/// Returns the free memory and all memory in bytes of a device of CUDA's. `None` for others, or if
/// the driver does not answer.
#[must_use]
pub fn memory(device: &Device) -> Option<[u64; 2]> {
    device.as_custom::<CudaDevice>()?.0.context.memory().ok()
}

/// Returns what a device of CUDA's was asked to run so far. `None` for others.
#[must_use]
pub fn launches(device: &Device) -> Option<Launches> {
    Some(device.as_custom::<CudaDevice>()?.0.work().launches())
}

/// Returns what compiled code is for: devices of CUDA's with the same key may share it. `None` for
/// other devices.
#[must_use]
pub fn code_key(device: &Device) -> Option<&str> {
    Some(&device.as_custom::<CudaDevice>()?.0.info.code_key)
}

/// Returns the compute capability of a device of CUDA's, such as 90 for 9.0. `None` for others.
#[must_use]
pub fn capability(device: &Device) -> Option<u32> {
    Some(device.as_custom::<CudaDevice>()?.0.info.capability)
}

/// Creates the shader of a kernel in CUDA C: see [`Translation::of_cuda_c`]. Its entry point is
/// `main`.
#[must_use]
pub fn cuda_c_module(device: &Device, source: String, threads: u32) -> ShaderModule {
    let entry_point =
        PassthroughShaderEntryPoint { name: "main".into(), workgroup_size: (threads, 1, 1) };
    // wgpu has no name for CUDA C, and does not use GLSL.
    let descriptor = ShaderModuleDescriptorPassthrough {
        entry_points: vec![entry_point].into(),
        glsl: Some(source.into()),
        ..ShaderModuleDescriptorPassthrough::default()
    };
    // SAFETY: shaders of this backend are trusted, as those in WGSL.
    unsafe { device.create_shader_module_passthrough(descriptor) }
}

impl Inner {
    pub(super) fn new(context: Arc<dyn Context>, info: DeviceInfo) -> Self {
        Self {
            context,
            info,
            errors: Errors::default(),
            work: Mutex::new(Work::new(Graphs::from_environment())),
            loss: Mutex::default(),
        }
    }

    pub(super) fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn loss(&self) -> MutexGuard<'_, Loss> {
        self.loss.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_lost(&self) -> bool {
        self.loss().reason.is_some()
    }

    /// Gives the device up, and says so once.
    fn lose(&self, reason: DeviceLostReason, message: &str) {
        let mut loss = self.loss();
        if loss.reason.is_some() {
            return;
        }
        loss.reason = Some((reason, message.to_owned()));
        let callback = loss.callback.take();
        drop(loss);
        let left = self.work().give_up();
        if let Some(callback) = callback {
            callback(reason, message.to_owned());
        }
        left.call();
    }

    /// Gives the device up after a call of the driver has failed.
    pub(super) fn fail(&self, error: &DriverError) {
        self.lose(DeviceLostReason::Unknown, &error.to_string());
    }

    /// Lets the processor read a buffer when the submissions that use it are done.
    pub(super) fn map_when_done(&self, buffer: &Arc<BufferInner>, callback: BufferMapCallback) {
        let mut work = self.work();
        // A device that is lost after this takes the callback with `give_up`.
        let is_lost = self.is_lost();
        if !is_lost && buffer.can_be_mapped() && !work.will_write(buffer) {
            return work.map_when_done(buffer, callback);
        }
        drop(work);
        if !is_lost {
            self.errors.report_invalid(
                "a buffer cannot be mapped: it is mapped already, destroyed, not for reading, or written by the next submission",
            );
        }
        callback(Err(BufferAsyncError));
    }

    /// Ends the mapping of a buffer. A callback that waits for it is called with an error, as wgpu
    /// does.
    pub(super) fn unmap(&self, buffer: &Arc<BufferInner>) {
        let aborted = self.work().unmap(buffer);
        aborted.call();
    }

    /// Calls when all work so far is done.
    pub(super) fn call_when_done(&self, callback: BoxSubmittedWorkDoneCallback) {
        let mut work = self.work();
        match self.is_lost() {
            true => {
                drop(work);
                callback();
            }
            false => work.call_when_done(callback),
        }
    }

    /// Allocates memory whose content is zero.
    fn allocate(&self, bytes: u64, place: Place) -> Result<Memory, DriverError> {
        let memory = Memory::allocate(&self.context, bytes, place)?;
        if place == Place::Device && bytes > 0 {
            // SAFETY: the memory has so many bytes. Freeing waits for all work of the device (CUDA
            // C++ Programming Guide, "Stream Ordered Memory Allocator").
            unsafe { self.context.run(&Operation::Clear { at: memory.span.address, bytes })? };
        }
        Ok(memory)
    }

    /// Waits until a submission is done, for at most so long.
    fn wait(&self, index: Option<u64>, timeout: Option<Duration>) -> Result<PollStatus, PollError> {
        let begin = Instant::now();
        let mut target = index;
        loop {
            let mut work = self.work();
            let target = *target.get_or_insert(work.submitted);
            if target > work.submitted {
                return Err(PollError::WrongSubmissionIndex(target, work.submitted));
            }
            let is_lost = self.is_lost();
            let retired = if is_lost { Ok(Default::default()) } else { work.retire(self) };
            let is_done = is_lost || work.done >= target;
            let is_empty = work.done == work.submitted;
            drop(work);
            match retired {
                Ok(retired) => retired.call(),
                Err(error) => {
                    self.fail(&error);
                    return Ok(PollStatus::QueueEmpty);
                }
            }
            if is_done {
                return Ok(if is_empty {
                    PollStatus::QueueEmpty
                } else {
                    PollStatus::WaitSucceeded
                });
            }
            let waited = begin.elapsed();
            if timeout.is_some_and(|timeout| waited >= timeout) {
                return Err(PollError::Timeout);
            }
            match waited < BUSY_WAIT {
                true => std::hint::spin_loop(),
                false => thread::sleep(PAUSE),
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Memory is freed when no work uses it any more. If that never happens, or nobody knows, it
        // is lost with the device.
        let is_idle =
            !self.is_lost() && self.wait(None, Some(LAST_WAIT)).is_ok() && !self.is_lost();
        if !is_idle {
            std::mem::forget(std::mem::take(&mut *self.work()));
        }
    }
}

impl CudaDevice {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        Self(inner)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Writes and callbacks refer to buffers, which refer to the work that has them: without
        // this, the memory would never be freed. Unlike wgpu's, the device does not run writes that
        // a queue submits after it is dropped.
        let left = self.0.work().give_up();
        left.call();
    }
}

impl DeviceInterface for CudaDevice {
    fn features(&self) -> Features {
        features()
    }

    fn limits(&self) -> Limits {
        limits(&self.0.info)
    }

    fn adapter_info(&self) -> AdapterInfo {
        describe(&self.0.info)
    }

    fn create_shader_module(
        &self,
        desc: ShaderModuleDescriptor<'_>,
        checks: ShaderRuntimeChecks,
    ) -> DispatchShaderModule {
        let translated = match &desc.source {
            _ if checks.bounds_checks => {
                Err("a shader whose indices are to be checked; CUDA runs trusted ones only"
                    .to_owned())
            }
            ShaderSource::Wgsl(source) => translate(source).map_err(|error| error.to_string()),
            _ => Err("a shader that is not WGSL".to_owned()),
        };
        let translation = translated.map_err(|error| self.0.errors.report_invalid(error)).ok();
        DispatchShaderModule::custom(CudaShader(translation))
    }

    unsafe fn create_shader_module_passthrough(
        &self,
        desc: &ShaderModuleDescriptorPassthrough<'_>,
    ) -> DispatchShaderModule {
        let kernel = match (&desc.glsl, desc.entry_points.first()) {
            (Some(source), Some(entry)) => Translation::of_cuda_c(source, entry.workgroup_size.0),
            _ => None,
        };
        if kernel.is_none() {
            self.0.errors.report_invalid("a shader that is neither WGSL nor a kernel in CUDA C");
        }
        DispatchShaderModule::custom(CudaShader(kernel))
    }

    fn create_bind_group_layout(
        &self,
        desc: &BindGroupLayoutDescriptor<'_>,
    ) -> DispatchBindGroupLayout {
        let layout = CudaBindGroupLayout::new(desc).unwrap_or_else(|| {
            self.0.errors.report_invalid("a layout of something else than storage buffers");
            CudaBindGroupLayout::empty()
        });
        DispatchBindGroupLayout::custom(layout)
    }

    fn create_bind_group(&self, desc: &BindGroupDescriptor<'_>) -> DispatchBindGroup {
        let group = CudaBindGroup::new(desc).unwrap_or_else(|error| {
            self.0.errors.report_invalid(error);
            CudaBindGroup(Arc::default())
        });
        DispatchBindGroup::custom(group)
    }

    fn create_pipeline_layout(&self, _: &PipelineLayoutDescriptor<'_>) -> DispatchPipelineLayout {
        DispatchPipelineLayout::custom(CudaPipelineLayout)
    }

    fn create_render_pipeline(&self, _: &RenderPipelineDescriptor<'_>) -> DispatchRenderPipeline {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn create_mesh_pipeline(&self, _: &MeshPipelineDescriptor<'_>) -> DispatchRenderPipeline {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn create_compute_pipeline(
        &self,
        desc: &ComputePipelineDescriptor<'_>,
    ) -> DispatchComputePipeline {
        let none = CudaShader(None);
        let shader = desc.module.as_custom::<CudaShader>().unwrap_or(&none);
        let cache = desc.cache.and_then(|cache| cache.as_custom::<CudaPipelineCache>());
        DispatchComputePipeline::custom(CudaPipeline::new(&self.0, shader, cache))
    }

    unsafe fn create_pipeline_cache(
        &self,
        desc: &PipelineCacheDescriptor<'_>,
    ) -> DispatchPipelineCache {
        let cache = desc.data.map(CudaPipelineCache::with_data).unwrap_or_default();
        DispatchPipelineCache::custom(cache)
    }

    fn create_buffer(&self, desc: &BufferDescriptor<'_>) -> DispatchBuffer {
        if desc.mapped_at_creation {
            self.0.errors.report_invalid("a buffer that is mapped when it is created");
        }
        let allocated = match self.0.is_lost() {
            true => None,
            false => Some(self.0.allocate(desc.size, place_for(desc.usage))),
        };
        let memory = match allocated {
            None => None,
            Some(Ok(memory)) => Some(memory),
            Some(Err(DriverError::OutOfMemory)) => {
                self.0.errors.report(Error::OutOfMemory { source: "out of memory".into() });
                None
            }
            Some(Err(error)) => {
                self.0.fail(&error);
                None
            }
        };
        let buffer = BufferInner::new(Arc::clone(&self.0), desc.size, memory);
        DispatchBuffer::custom(CudaBuffer(Arc::new(buffer)))
    }

    fn create_texture(&self, _: &TextureDescriptor<'_>) -> DispatchTexture {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn create_external_texture(
        &self,
        _: &ExternalTextureDescriptor<'_>,
        _: &[&TextureView],
    ) -> DispatchExternalTexture {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn create_blas(
        &self,
        _: &CreateBlasDescriptor<'_>,
        _: BlasGeometrySizeDescriptors,
    ) -> (Option<u64>, DispatchBlas) {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn create_tlas(&self, _: &CreateTlasDescriptor<'_>) -> DispatchTlas {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn create_sampler(&self, _: &SamplerDescriptor<'_>) -> DispatchSampler {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn create_query_set(&self, _: &QuerySetDescriptor<'_>) -> DispatchQuerySet {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn create_command_encoder(&self, _: &CommandEncoderDescriptor<'_>) -> DispatchCommandEncoder {
        DispatchCommandEncoder::custom(CudaEncoder::default())
    }

    fn create_render_bundle_encoder(
        &self,
        _: &RenderBundleEncoderDescriptor<'_>,
    ) -> DispatchRenderBundleEncoder {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn set_device_lost_callback(&self, callback: BoxDeviceLostCallback) {
        let mut loss = self.0.loss();
        match loss.reason.clone() {
            Some((reason, message)) => {
                drop(loss);
                callback(reason, message);
            }
            None => loss.callback = Some(callback),
        }
    }

    fn on_uncaptured_error(&self, handler: Arc<dyn UncapturedErrorHandler>) {
        self.0.errors.set_handler(handler);
    }

    fn push_error_scope(&self, filter: ErrorFilter) -> u32 {
        self.0.errors.push(filter)
    }

    fn pop_error_scope(&self, index: u32) -> Pin<Box<dyn PopErrorScopeFuture>> {
        Box::pin(ready(self.0.errors.pop(index)))
    }

    unsafe fn start_graphics_debugger_capture(&self) {}

    unsafe fn stop_graphics_debugger_capture(&self) {}

    fn poll(&self, poll_type: PollType<u64>) -> Result<PollStatus, PollError> {
        match poll_type {
            PollType::Wait { submission_index, timeout } => self.0.wait(submission_index, timeout),
            PollType::Poll => match self.0.wait(None, Some(Duration::ZERO)) {
                Err(PollError::Timeout) => Ok(PollStatus::Poll),
                other => other,
            },
        }
    }

    fn get_internal_counters(&self) -> InternalCounters {
        InternalCounters::default()
    }

    fn generate_allocator_report(&self) -> Option<AllocatorReport> {
        None
    }

    fn destroy(&self) {
        self.0.lose(DeviceLostReason::Destroyed, "it was given up");
    }
}
