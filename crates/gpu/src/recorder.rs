//! Recording of a pass's dispatches.

use crate::cost::PassCost;
use crate::device::GpuDevice;
use crate::error::GpuFailure;
use crate::kernel::Kernel;
use crate::kernel_timer::KernelTimer;
use crate::pacer::Pacer;
use crate::parameters::{Round, groups_of_elements};
use crate::scratch::GrowingBuffer;
use bytemuck::Pod;
use std::collections::HashMap;
use std::time::Instant;
use wgpu::{
    BindGroup, Buffer, CommandEncoder, ComputePass, ComputePassDescriptor, SubmissionIndex,
};

/// So many dispatches are submitted early, so that the GPU computes while the rest of the pass is
/// recorded.
const EARLY_DISPATCHES: usize = 64;

/// Bindings of buffers to kernels that earlier passes made.
#[derive(Default)]
pub(crate) struct BoundBuffers {
    groups: HashMap<(Kernel, Vec<Buffer>), BindGroup>,
    /// The inputs of the last product, rounded.
    rounded: GrowingBuffer, // [rows, inputs]
}

impl BoundBuffers {
    /// Forgets all bindings, because buffers were replaced.
    pub(crate) fn clear(&mut self) {
        self.groups.clear();
    }
}

/// Work that was submitted, and for which nobody has waited yet.
pub(crate) struct Submitted {
    pub(crate) submission: SubmissionIndex,
    /// The work in bytes that are read.
    pub(crate) work: u64,
    /// When the first part of the work was submitted.
    pub(crate) since: Instant,
}

/// Records dispatches, in order. Each sees what the ones before it wrote. Submits them in parts, at
/// most two of which are in progress: the next one is recorded while the GPU computes one.
pub(crate) struct Recorder<'a> {
    device: &'a GpuDevice,
    bound: &'a mut BoundBuffers,
    pacer: &'a mut Pacer,
    encoder: CommandEncoder,
    /// The work that has been recorded and not submitted, in bytes that are read.
    work: u64,
    last: Option<Submitted>,
    /// The open sequence of dispatches.
    dispatches: Option<ComputePass<'static>>,
    /// Measures each dispatch, if that is asked for.
    timer: Option<&'a mut KernelTimer>,
    pub(crate) cost: PassCost,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(
        device: &'a GpuDevice,
        bound: &'a mut BoundBuffers,
        pacer: &'a mut Pacer,
    ) -> Self {
        let (encoder, cost) = (device.new_encoder(), PassCost::default());
        Self {
            device,
            bound,
            pacer,
            encoder,
            work: 0,
            last: None,
            dispatches: None,
            timer: None,
            cost,
        }
    }

    /// Returns the recorder, which measures each dispatch if there is a timer.
    pub(crate) fn with_timer(self, timer: Option<&'a mut KernelTimer>) -> Self {
        Self { timer, ..self }
    }

    pub(crate) fn device(&self) -> &'a GpuDevice {
        self.device
    }

    /// Adds to the work that has been recorded: the bytes that the last dispatch reads.
    pub(crate) fn add_work(&mut self, bytes: u64) {
        self.work += bytes;
    }

    /// Records a dispatch of `groups` workgroups. `buffers` are in the order of the kernel's
    /// bindings.
    pub(crate) fn dispatch(
        &mut self,
        kernel: Kernel,
        buffers: &[&Buffer],
        parameters: &impl Pod,
        groups: [u32; 3],
    ) {
        let key = (kernel, buffers.iter().map(|&buffer| buffer.clone()).collect());
        let device = self.device;
        let bind = || device.pipeline(kernel).bind(device.inner(), buffers);
        let group = self.bound.groups.entry(key).or_insert_with(bind).clone();
        self.record(kernel, &group, bytemuck::bytes_of(parameters), groups);
    }

    /// The same for buffers that no later pass uses.
    pub(crate) fn dispatch_once(
        &mut self,
        kernel: Kernel,
        buffers: &[&Buffer],
        parameters: &impl Pod,
        groups: [u32; 3],
    ) {
        let group = self.device.pipeline(kernel).bind(self.device.inner(), buffers);
        self.record(kernel, &group, bytemuck::bytes_of(parameters), groups);
    }

    /// Records the rounding of inputs to bf16, from a quarter of `x` on. Returns the buffer with the
    /// result; `None` if there is no memory for it.
    pub(crate) fn rounded(&mut self, x: &Buffer, [first, quarters]: [u32; 2]) -> Option<Buffer> {
        let bytes = u64::from(quarters) * 8;
        if self.bound.rounded.reserve(self.device, bytes).ok()? {
            self.bound.clear();
        }
        let rounded = self.bound.rounded.get().clone();
        let groups = groups_of_elements(quarters);
        self.dispatch(Kernel::Round, &[x, &rounded], &Round { first, quarters }, groups);
        Some(rounded)
    }

    fn record(
        &mut self,
        kernel: Kernel,
        group: &BindGroup,
        parameters: &[u8],
        [x, y, z]: [u32; 3],
    ) {
        let is_early = self.cost.submissions == 0 && self.cost.dispatches == EARLY_DISPATCHES;
        if self.pacer.is_enough(self.work) || is_early {
            self.submit_part();
        }
        let pipeline = self.device.pipeline(kernel);
        let begin = || {
            let descriptor = ComputePassDescriptor::default();
            let mut dispatches = self.encoder.begin_compute_pass(&descriptor).forget_lifetime();
            if let Some(timer) = &mut self.timer {
                timer.mark(&mut dispatches, None);
            }
            dispatches
        };
        let dispatches = self.dispatches.get_or_insert_with(begin);
        dispatches.set_pipeline(&pipeline.pipeline);
        dispatches.set_bind_group(0, group, &[]);
        dispatches.set_immediates(0, parameters);
        dispatches.dispatch_workgroups(x, y, z);
        if let Some(timer) = &mut self.timer {
            timer.mark(dispatches, Some(kernel));
        }
        self.cost.dispatches += 1;
    }

    /// Records a copy between buffers.
    pub(crate) fn copy(&mut self, (from, start): (&Buffer, u64), to: (&Buffer, u64), bytes: u64) {
        self.dispatches = None;
        if bytes > 0 {
            self.encoder.copy_buffer_to_buffer(from, start, to.0, to.1, bytes);
        }
    }

    /// Submits what has been recorded, and waits until the part before it has been computed.
    fn submit_part(&mut self) {
        let part = self.submit();
        if let Some(Submitted { submission, work, since }) = self.last.replace(part)
            // Whoever reads the results finds that the GPU has failed.
            && self.device.wait(submission).is_ok()
        {
            self.pacer.observe(work, since);
        }
    }

    /// Submits what has been recorded since the last submission.
    fn submit(&mut self) -> Submitted {
        self.dispatches = None;
        let encoder = std::mem::replace(&mut self.encoder, self.device.new_encoder());
        self.cost.submissions += 1;
        let since = Instant::now();
        let submission = self.device.submit(encoder);
        Submitted { submission, work: std::mem::take(&mut self.work), since }
    }

    /// Submits the rest. Returns all work that may still be in progress: the pacer learns from it
    /// when it has ended.
    pub(crate) fn finish(&mut self) -> Submitted {
        self.dispatches = None;
        if let Some(timer) = &self.timer {
            timer.resolve(&mut self.encoder);
        }
        self.submit_all()
    }

    /// Submits the rest, and returns all work that may still be in progress.
    fn submit_all(&mut self) -> Submitted {
        let rest = self.submit();
        match self.last.take() {
            Some(last) => Submitted { work: last.work + rest.work, since: last.since, ..rest },
            None => rest,
        }
    }

    /// Submits what has been recorded, and reads the start of a staging buffer once that has been
    /// computed. More can be recorded then. Fails if the GPU has failed.
    pub(crate) fn read(
        &mut self,
        staging: &Buffer,
        bytes: u64,
        visit: impl FnOnce(&[u8]),
    ) -> Result<(), GpuFailure> {
        let Submitted { submission, work, since } = self.submit_all();
        self.device.read(staging, bytes, submission, visit)?;
        self.pacer.observe(work, since);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::Add;
    use crate::testing::gpu;

    #[test]
    fn the_last_submission_has_the_work_that_nobody_has_waited_for() {
        let Some(device) = gpu() else { return };
        let [x, y] = [(), ()].map(|()| device.allocate("numbers", 1024).unwrap());
        let (mut bound, mut pacer) = (BoundBuffers::default(), Pacer::default());
        let mut recorder = Recorder::new(&device, &mut bound, &mut pacer);
        let parameters = Add { len: 256, factor: 1.0 };
        // At first, a submission has 200 MB.
        for megabytes in [300, 250, 70] {
            recorder.dispatch(Kernel::Add, &[&x, &y], &parameters, [4, 1, 1]);
            recorder.add_work(megabytes * 1_000_000);
        }
        let Submitted { submission, work, since } = recorder.finish();
        assert_eq!((work, recorder.cost.submissions), (320_000_000, 3));
        device.wait(submission).unwrap();
        assert!(since.elapsed() > std::time::Duration::ZERO);
    }
}
