//! An open GPU: its memory, its pipelines and its queue.

use crate::adapter::{AdapterKind, GpuAdapter, find_adapters};
use crate::arithmetic::Arithmetic;
use crate::closing::{Closing, begin_call, close_unused};
use crate::cuda::{self, CudaLaunches};
use crate::error::{GpuError, GpuFailure};
use crate::health::Health;
use crate::kernel::{Kernel, MAX_WORKGROUP, ProductShapes};
use crate::pipeline::Pipeline;
use crate::pipeline_store::PipelineStore;
use crate::probe::Probe;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wgpu::{
    Adapter, CommandEncoder, Device, DeviceDescriptor, DeviceLostReason, Features, Limits,
    PollError, PollType, Queue, SubmissionIndex,
};

/// Storage buffers that the kernels with the most of them use.
const STORAGE_BUFFERS: u32 = 8;

/// Sizes of buffers are multiples of this number of bytes.
pub(crate) const ALIGNMENT: u64 = 16;

/// What times of single kernels need.
const CLOCK: Features = Features::TIMESTAMP_QUERY
    .union(Features::TIMESTAMP_QUERY_INSIDE_ENCODERS)
    .union(Features::TIMESTAMP_QUERY_INSIDE_PASSES);

/// Bytes of the kernels' parameters.
pub(crate) const PARAMETER_BYTES: u32 = 64;

/// How long a submission may last until its driver is taken for hung. A submission should last
/// about 0.1 seconds, but others may be computed before it.
const PATIENCE: Duration = Duration::from_secs(120);
/// The same for drivers that compute on the processor. One product of a large matrix may take
/// minutes there.
const SOFTWARE_PATIENCE: Duration = Duration::from_secs(3600);

/// An open GPU. Models on it share it, and run one after another.
pub struct GpuDevice {
    adapter: GpuAdapter,
    device: Device,
    pub(crate) queue: Queue,
    /// Whether shaders are SPIR-V without contraction.
    compiles_spirv: bool,
    /// Whether shaders forbid contraction. Otherwise the driver compiles WGSL as it likes.
    exact: bool,
    probe: Option<Probe>,
    pub(crate) arithmetic: Arithmetic,
    pipelines: Mutex<HashMap<Kernel, Arc<Pipeline>>>,
    store: Option<PipelineStore>,
    pub(crate) health: Arc<Health>,
    /// The last part of an upload that may still be in progress.
    pub(crate) last_upload: Mutex<Option<SubmissionIndex>>,
    /// The largest binding that the driver allows, in bytes.
    pub(crate) binding_limit: u64,
    /// The number of buffers until there is no memory.
    #[cfg(test)]
    pub(crate) buffers_left: std::sync::atomic::AtomicUsize,
    /// The last field, so that nothing else of the GPU is left when it is closed. Whoever has
    /// buffers drops them before the GPU.
    _closing: Closing,
}

/// How a GPU is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuOptions {
    /// The largest number of bytes that kernels address of a buffer. Larger matrices and results
    /// are split, as on GPUs with such a limit.
    pub max_binding_bytes: u64,
    /// Whether shaders forbid contraction, where the driver allows that. Otherwise, it compiles
    /// WGSL. With CUDA they always do.
    pub forbid_contraction: bool,
    /// The folder in which compiled pipelines are kept for later processes, if the driver gives
    /// them away (Vulkan, CUDA).
    pub pipeline_folder: Option<PathBuf>,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self { max_binding_bytes: u64::MAX, forbid_contraction: true, pipeline_folder: None }
    }
}

impl GpuDevice {
    /// Returns the GPUs of the machine: those with their own memory first, drivers that compute on
    /// the processor last. It is empty without a driver.
    ///
    /// # Errors
    /// [`GpuError::UnknownApi`] or [`GpuError::WithoutCuda`] if an environment variable names an
    /// interface that is unknown, or not in this build.
    pub fn adapters() -> Result<Vec<GpuAdapter>, GpuError> {
        Ok(find_adapters()?.into_iter().map(|(adapter, _)| adapter).collect())
    }

    /// Returns the GPUs that have CUDA's driver only, but no compiler of kernels for it, with what
    /// to do: the name and the reason of each. They are not among [`GpuDevice::adapters`]. It is
    /// empty without the feature `cuda`.
    ///
    /// # Errors
    /// As [`GpuDevice::adapters`].
    pub fn unusable() -> Result<Vec<String>, GpuError> {
        let used: Vec<_> = find_adapters()?.into_iter().map(|(_, adapter)| adapter).collect();
        Ok(cuda::unusable(&used))
    }

    /// Opens the GPU with this number among [`GpuDevice::adapters`], and probes its arithmetic.
    ///
    /// # Errors
    /// If there is no such GPU, or it lacks what the kernels need or the arithmetic that
    /// `FORERUN_GPU_ARITHMETIC` names, or its driver refuses; and as [`GpuDevice::adapters`].
    pub fn open(index: usize) -> Result<Arc<Self>, GpuError> {
        Self::open_with(index, GpuOptions::default())
    }

    /// Opens a GPU with options.
    ///
    /// # Errors
    /// As [`GpuDevice::open`].
    pub fn open_with(index: usize, options: GpuOptions) -> Result<Arc<Self>, GpuError> {
        let mut adapters = find_adapters()?;
        if index >= adapters.len() {
            let names: Vec<String> = adapters.iter().map(|(gpu, _)| gpu.to_string()).collect();
            let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            return Err(GpuError::NoAdapter { index, found });
        }
        let (description, adapter) = adapters.swap_remove(index);
        Self::open_adapter(description, &adapter, options)
    }

    pub(crate) fn open_adapter(
        mut description: GpuAdapter,
        adapter: &Adapter,
        options: GpuOptions,
    ) -> Result<Arc<Self>, GpuError> {
        description.max_binding_bytes =
            description.max_binding_bytes.min(options.max_binding_bytes);
        let name = || description.name.clone();
        if !adapter.features().contains(Features::IMMEDIATES) {
            return Err(GpuError::MissingFeature {
                adapter: name(),
                feature: "immediate data (push constants)",
            });
        }
        check_limits(&description, &adapter.limits())?;
        let used = Features::IMMEDIATES | Features::PASSTHROUGH_SHADERS | Features::PIPELINE_CACHE;
        let features = adapter.features() & (used | CLOCK);
        close_unused();
        let call = begin_call();
        let opened = pollster::block_on(adapter.request_device(&DeviceDescriptor {
            label: Some("forerun"),
            required_features: features,
            required_limits: adapter.limits(),
            ..DeviceDescriptor::default()
        }));
        let (device, queue) =
            opened.map_err(|error| GpuError::Open { adapter: name(), cause: error.to_string() })?;
        drop(call);
        let health = Arc::new(Health::default());
        let on_loss = Arc::clone(&health);
        device
            .set_device_lost_callback(move |reason, message| on_loss.fail(loss(reason, &message)));
        let on_error = Arc::clone(&health);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            on_error.fail(error.to_string());
        }));
        let info = adapter.get_info();
        let is_vulkan = info.backend == wgpu::Backend::Vulkan;
        let open_store = |folder: PathBuf| PipelineStore::open(&device, &info, &folder);
        let store = options.pipeline_folder.and_then(open_store);
        let compiles_spirv = options.forbid_contraction
            && is_vulkan
            && features.contains(Features::PASSTHROUGH_SHADERS);
        let exact = compiles_spirv || cuda::is_cuda(adapter);
        let closing = Closing::new(device.clone(), Arc::clone(&health));
        let mut opened = Self {
            adapter: description,
            device,
            queue,
            compiles_spirv,
            exact,
            probe: None,
            arithmetic: Arithmetic::Exact,
            pipelines: Mutex::default(),
            store,
            health,
            last_upload: Mutex::default(),
            binding_limit: adapter.limits().max_storage_buffer_binding_size,
            #[cfg(test)]
            buffers_left: usize::MAX.into(),
            _closing: closing,
        };
        opened.probe = Some(Probe::run(&opened)?);
        opened.choose_arithmetic()?;
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

    /// Returns the arithmetic of products with matrices.
    #[must_use]
    pub fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// Returns whether the shaders forbid the driver to contract and to reorder arithmetic. This is
    /// so with Vulkan and CUDA only.
    #[must_use]
    pub fn forbids_contraction(&self) -> bool {
        self.exact
    }

    /// Returns what the GPU was asked to run through CUDA since it was opened. `None` for other
    /// interfaces.
    #[must_use]
    pub fn cuda_launches(&self) -> Option<CudaLaunches> {
        cuda::launches(&self.device)
    }

    /// Returns the largest number of bytes that a kernel can read from or write to one buffer, a
    /// multiple of [`ALIGNMENT`].
    pub(crate) fn max_binding_bytes(&self) -> u64 {
        let most = self.adapter.max_binding_bytes.min(self.adapter.max_buffer_bytes);
        most / ALIGNMENT * ALIGNMENT
    }

    /// Returns whether the driver computes on the processor.
    pub(crate) fn is_software(&self) -> bool {
        self.adapter.kind == AdapterKind::Software
    }

    /// Returns the size of the memory that the threads of a workgroup share, in bytes.
    pub(crate) fn shared_memory(&self) -> u32 {
        self.device.limits().max_compute_workgroup_storage_size
    }

    /// Returns whether tensor cores compute what they can.
    pub(crate) fn has_tensor_arithmetic(&self) -> bool {
        matches!(self.arithmetic, Arithmetic::Tensor { .. })
    }

    /// Returns the shapes of products that suit the GPU.
    pub(crate) fn product_shapes(&self) -> ProductShapes {
        if self.has_tensor_arithmetic() {
            ProductShapes::Tensor
        } else if self.is_software() {
            ProductShapes::Simple
        } else if self.shared_memory() < 32 << 10 {
            ProductShapes::Usual
        } else {
            ProductShapes::Large
        }
    }

    /// Returns whether the times of single kernels can be measured.
    pub(crate) fn has_clock(&self) -> bool {
        self.device.features().contains(CLOCK)
    }

    pub(crate) fn inner(&self) -> &Device {
        &self.device
    }

    /// Returns the pipeline of a kernel, which is built when it is first needed.
    pub(crate) fn pipeline(&self, kernel: Kernel) -> Arc<Pipeline> {
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        let build = || {
            let cache = self.store.as_ref().map(|store| &store.cache);
            let _call = begin_call();
            let pipeline = Pipeline::new(&self.device, kernel, self.compiles_spirv, cache);
            self.store.iter().for_each(PipelineStore::add);
            Arc::new(pipeline)
        };
        Arc::clone(pipelines.entry(kernel).or_insert_with(build))
    }

    /// Compiles a kernel from another source in CUDA C.
    #[cfg(all(test, feature = "cuda"))]
    pub(crate) fn replace_source(&self, kernel: Kernel, source: &str) {
        let module = cuda::module(&self.device, source, kernel.workgroup());
        let pipeline = Pipeline::of_module(&self.device, kernel, &module, None);
        let mut pipelines = self.pipelines.lock().unwrap_or_else(PoisonError::into_inner);
        pipelines.insert(kernel, Arc::new(pipeline));
    }

    /// Stores the pipelines that earlier passes have built, unless this pass has built others.
    pub(crate) fn end_pass(&self) {
        self.store.iter().for_each(PipelineStore::end_pass);
    }

    /// Checks that the GPU still works.
    ///
    /// # Errors
    /// [`GpuFailure::Lost`] if it was lost, or an operation failed that should not fail. It never
    /// recovers.
    pub fn check(&self) -> Result<(), GpuFailure> {
        match self.health.failure() {
            Some(reason) => Err(self.lost(reason)),
            None => Ok(()),
        }
    }

    /// Gives the GPU up, as if it was lost. Models on it fail from now on. Tests use it.
    pub fn destroy(&self) {
        self.device.destroy();
    }

    fn lost(&self, reason: String) -> GpuFailure {
        GpuFailure::Lost { adapter: self.adapter.name.clone(), reason }
    }

    /// Notes an error after which the GPU cannot be used, and returns the first one.
    pub(crate) fn fail(&self, reason: String) -> GpuFailure {
        self.health.fail(reason.clone());
        self.lost(self.health.failure().unwrap_or(reason))
    }

    pub(crate) fn new_encoder(&self) -> CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    pub(crate) fn submit(&self, encoder: CommandEncoder) -> SubmissionIndex {
        let _call = begin_call();
        self.queue.submit([encoder.finish()])
    }

    /// Submits what has been written.
    pub(crate) fn submit_writes(&self) -> SubmissionIndex {
        let _call = begin_call();
        self.queue.submit([])
    }

    /// Waits until a submission has been computed. Fails if the GPU has failed, or its driver does
    /// not answer.
    pub(crate) fn wait(&self, submission: SubmissionIndex) -> Result<(), GpuFailure> {
        self.wait_for(submission, if self.is_software() { SOFTWARE_PATIENCE } else { PATIENCE })
    }

    fn wait_for(&self, submission: SubmissionIndex, patience: Duration) -> Result<(), GpuFailure> {
        let wait = PollType::Wait { submission_index: Some(submission), timeout: Some(patience) };
        // wgpu panics if the driver reports the loss here.
        match catch_unwind(AssertUnwindSafe(|| self.device.poll(wait))) {
            Ok(Ok(_)) => self.check(),
            Ok(Err(PollError::WrongSubmissionIndex(..))) => {
                Err(self.fail("its driver accepts no more work".into()))
            }
            Ok(Err(PollError::Timeout)) => {
                let seconds = patience.as_secs();
                Err(self.fail(format!("its driver has not answered for {seconds} seconds")))
            }
            Err(_panic) => Err(self.fail("its driver lost it".into())),
        }
    }
}

fn loss(reason: DeviceLostReason, message: &str) -> String {
    // wgpu gives a device up if its own allocations fail, such as those of command buffers.
    match message.to_lowercase().contains("out of memory") {
        true => "its driver ran out of memory; choose a smaller type or a smaller cache".into(),
        false => format!("it was lost ({reason:?}) {message}").trim_end().to_owned(),
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
        (
            "workgroup",
            MAX_WORKGROUP.into(),
            u64::from(limits.max_compute_invocations_per_workgroup),
        ),
        ("shared memory", 16 << 10, u64::from(limits.max_compute_workgroup_storage_size)),
        ("storage binding", 128 << 20, limits.max_storage_buffer_binding_size),
    ];
    match needed.into_iter().find(|(_, expected, found)| found < expected) {
        Some((limit, expected, found)) => {
            Err(GpuError::Limit { adapter: adapter.name.clone(), limit, expected, found })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::gpu;

    #[test]
    fn a_driver_that_does_not_answer_is_an_error() {
        let Some(device) = gpu() else { return };
        if device.adapter().driver == "emulator" {
            return eprintln!("skipped: the emulator's work is done when it is submitted");
        }
        let bytes = 32 << 20;
        let [from, to] = [(), ()].map(|()| device.allocate("numbers", bytes).unwrap());
        let mut encoder = device.new_encoder();
        // Enough work that it has not ended when it has just been submitted.
        for _ in 0..100 {
            encoder.copy_buffer_to_buffer(&from, 0, &to, 0, bytes);
            encoder.copy_buffer_to_buffer(&to, 0, &from, 0, bytes);
        }
        let submission = device.submit(encoder);
        let error = device.wait_for(submission, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("not answered") && error.contains("target=cpu"), "{error}");
        assert!(device.check().is_err(), "it counts as lost");
    }

    #[test]
    fn a_loss_for_want_of_memory_says_what_to_do() {
        let reason = loss(DeviceLostReason::Unknown, "Out of memory");
        assert!(reason.contains("smaller cache"), "{reason}");
        let reason = loss(DeviceLostReason::Destroyed, "by its owner");
        assert_eq!(reason, "it was lost (Destroyed) by its owner");
    }
}
