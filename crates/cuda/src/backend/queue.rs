//! Submissions.

use super::COMPUTES_ONLY;
use super::buffer::{BufferInner, CudaBuffer};
use super::commands::{Command, CudaCommandBuffer, Part, check};
use super::device::Inner;
use super::graphs::Graphs;
use super::kept::Kept;
use crate::driver::{DriverError, Event, Operation};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use wgpu::custom::{
    BoxSubmittedWorkDoneCallback, BufferMapCallback, DispatchBlas, DispatchBuffer,
    DispatchCommandBuffer, DispatchQueueWriteBuffer, DispatchSurfaceOutputDetail, QueueInterface,
};
use wgpu::{BufferAsyncError, BufferSize, Extent3d, TexelCopyBufferLayout, TexelCopyTextureInfo};

/// The queue of a device.
#[derive(Debug)]
pub(super) struct CudaQueue {
    device: Arc<Inner>,
}

/// Bytes that are written before the commands of the next submission.
#[derive(Debug)]
struct Write {
    to: Part,
    data: Vec<u8>,
}

/// Submitted work that may not be done.
#[derive(Debug)]
struct Submission {
    index: u64,
    event: Event,
    /// What the work reads and writes.
    _kept: Kept,
}

/// Why work does not run.
enum Fault {
    /// wgpu's rules exclude it.
    Invalid(String),
    Driver(DriverError),
}

impl From<DriverError> for Fault {
    fn from(error: DriverError) -> Self {
        Self::Driver(error)
    }
}

/// What is called when work is done.
enum Callback {
    Map(Arc<BufferInner>, BufferMapCallback),
    Done(BoxSubmittedWorkDoneCallback),
}

impl Callback {
    /// Maps the buffer, if it is one that waits for that. Returns what is left to call, with an
    /// error if it will not be mapped.
    ///
    /// A thread that finds its work done may read the buffer at once, while another thread still
    /// has this result. So it is called under the lock of the work.
    fn finish(self, is_aborted: bool) -> Finished {
        match self {
            Self::Map(_, callback) if is_aborted => Box::new(|| callback(Err(BufferAsyncError))),
            Self::Map(buffer, callback) => {
                let outcome = buffer.finish_mapping();
                Box::new(move || callback(outcome))
            }
            Self::Done(callback) => callback,
        }
    }
}

/// A callback that is called without a lock, because it may call wgpu.
type Finished = Box<dyn FnOnce() + Send>;

/// The work of a device.
#[derive(Default)]
pub(super) struct Work {
    writes: Vec<Write>,
    submissions: VecDeque<Submission>,
    /// The number of the last submission.
    pub(super) submitted: u64,
    /// The number of the last submission that is done.
    pub(super) done: u64,
    /// What is called when the submission with a number is done.
    callbacks: Vec<(u64, Callback)>,
    graphs: Graphs,
    /// Number of operations that were launched one by one, and of graphs that were launched.
    launched: [u64; 2],
}

/// What a device was asked to run so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launches {
    /// Number of kernels, copies and clears that were launched one by one.
    pub operations: u64,
    /// Number of launches of graphs, which have many operations each.
    pub graphs: u64,
    /// Number of graphs that were created.
    pub created_graphs: u64,
    /// Why no graphs are created any more, if so: they are turned off, or the driver has refused
    /// one.
    pub no_graphs: Option<String>,
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} submissions", self.done, self.submitted)
    }
}

/// What is dropped and called after the lock of the work was given back.
#[derive(Default)]
pub(super) struct Retired {
    submissions: Vec<Submission>,
    callbacks: Vec<Finished>,
}

impl Retired {
    /// Frees what was kept, then calls.
    pub(super) fn call(self) {
        drop(self.submissions);
        self.callbacks.into_iter().for_each(|callback| callback());
    }
}

impl Work {
    pub(super) fn new(graphs: Graphs) -> Self {
        Self { graphs, ..Self::default() }
    }

    /// Returns what the device was asked to run so far.
    pub(super) fn launches(&self) -> Launches {
        let ([operations, graphs], created_graphs) = (self.launched, self.graphs.created);
        Launches { operations, graphs, created_graphs, no_graphs: self.graphs.off.clone() }
    }

    /// Adds what is called when all work so far is done.
    pub(super) fn call_when_done(&mut self, callback: BoxSubmittedWorkDoneCallback) {
        self.callbacks.push((self.submitted, Callback::Done(callback)));
    }

    /// Adds what is called when a buffer is mapped: when the submissions that use it are done.
    /// Later ones do not matter: whoever waits for the buffer's own submission may read it then.
    pub(super) fn map_when_done(&mut self, buffer: &Arc<BufferInner>, callback: BufferMapCallback) {
        buffer.request_mapping();
        self.callbacks.push((buffer.last_use(), Callback::Map(Arc::clone(buffer), callback)));
    }

    /// Ends the mapping of a buffer. Returns the callback that waits for it.
    pub(super) fn unmap(&mut self, buffer: &Arc<BufferInner>) -> Retired {
        buffer.end_mapping();
        let is_aborted = |(_, callback): &mut (u64, Callback)| match callback {
            Callback::Map(own, _) => Arc::ptr_eq(own, buffer),
            Callback::Done(_) => false,
        };
        let aborted = self.callbacks.extract_if(.., is_aborted);
        let callbacks = aborted.map(|(_, callback)| callback.finish(true)).collect();
        Retired { callbacks, ..Retired::default() }
    }

    /// Returns whether the next submission writes a buffer before its commands.
    pub(super) fn will_write(&self, buffer: &Arc<BufferInner>) -> bool {
        self.writes.iter().any(|write| Arc::ptr_eq(&write.to.buffer, buffer))
    }

    /// Takes away the submissions that are done.
    pub(super) fn retire(&mut self, device: &Inner) -> Result<Retired, DriverError> {
        let mut retired = Retired::default();
        while let Some(first) = self.submissions.front() {
            if !device.context.has_passed(first.event)? {
                break;
            }
            self.done = first.index;
            retired.submissions.extend(self.submissions.pop_front());
        }
        let done = self.done;
        let finished = self.callbacks.extract_if(.., |(index, _)| *index <= done);
        retired.callbacks.extend(finished.map(|(_, callback)| callback.finish(false)));
        Ok(retired)
    }

    /// Takes away all callbacks, because the device is lost. Submissions keep their memory: nobody
    /// knows what still runs.
    pub(super) fn give_up(&mut self) -> Retired {
        self.writes.clear();
        let callbacks = self.callbacks.drain(..).map(|(_, callback)| callback.finish(true));
        Retired { callbacks: callbacks.collect(), ..Retired::default() }
    }

    /// Runs the writes so far and commands.
    fn submit(&mut self, device: &Inner, commands: &[Command]) -> Result<(), Fault> {
        let mut kept = Kept::of(self.submitted + 1);
        let run = self.run(device, commands, &mut kept);
        // After an error, what was started before it still runs.
        let event = match device.context.mark() {
            Ok(event) => event,
            Err(error) => {
                // Nobody will know when the work is done, so its memory is lost with the device.
                std::mem::forget(kept);
                return Err(error.into());
            }
        };
        self.submitted += 1;
        self.submissions.push_back(Submission { index: self.submitted, event, _kept: kept });
        run
    }

    fn run(&mut self, device: &Inner, commands: &[Command], kept: &mut Kept) -> Result<(), Fault> {
        let context = &device.context;
        let operations: Result<Vec<Operation>, String> =
            commands.iter().filter_map(|command| kept.operation(command).transpose()).collect();
        if let Ok(operations) = &operations {
            // SAFETY: as below. `kept` has no other memory yet.
            kept.graph = unsafe { self.graphs.find(context, operations, &kept.memory) };
        }
        for Write { to, data } in self.writes.drain(..) {
            // What is destroyed needs no bytes.
            let Some(to) = kept.span(&to.buffer, to.offset, data.len() as u64) else { continue };
            kept.data.push(data);
            let data = kept.data.last().map(Vec::as_slice).unwrap_or_default();
            // SAFETY: `has_part` was asked when it was written, and `kept` keeps both until the
            // work is done.
            unsafe { context.write(to.address, data)? };
        }
        let operations = operations.map_err(Fault::Invalid)?;
        let [single, graphs] = &mut self.launched;
        // SAFETY: `check` has found that buffers and kernels are of this device, `has_part` that
        // parts are in their buffers, and `copy` that the parts of a copy are of different ones.
        // The translation of a kernel says which parameters it has. Kernels index buffers within
        // the sizes that passes give them, as with the other backends. `kept` keeps the buffers and
        // the graph until the work is done, and the graph has the same operations.
        unsafe {
            match &kept.graph {
                Some(graph) => {
                    *graphs += 1;
                    graph.launch()?;
                }
                None => {
                    *single += operations.len() as u64;
                    operations.iter().try_for_each(|operation| context.run(operation))?;
                }
            }
        }
        Ok(())
    }
}

impl CudaQueue {
    pub(super) fn new(device: Arc<Inner>) -> Self {
        Self { device }
    }
}

impl QueueInterface for CudaQueue {
    fn write_buffer(&self, buffer: &DispatchBuffer, offset: u64, data: &[u8]) {
        let buffer = buffer.as_custom::<CudaBuffer>();
        let is_own = |buffer: &&CudaBuffer| Arc::ptr_eq(&buffer.0.device, &self.device);
        match buffer.filter(is_own) {
            Some(buffer) if buffer.0.has_part(offset, data.len() as u64) => {
                let write = Write {
                    to: Part { buffer: Arc::clone(&buffer.0), offset },
                    data: data.to_vec(),
                };
                let mut work = self.device.work();
                if !buffer.0.is_free() {
                    drop(work);
                    self.device.errors.report_invalid("bytes are written to a mapped buffer");
                } else if !data.is_empty() && !self.device.is_lost() {
                    work.writes.push(write);
                }
            }
            _ => self.device.errors.report_invalid("bytes are written outside a buffer"),
        }
    }

    fn create_staging_buffer(&self, _: BufferSize) -> Option<DispatchQueueWriteBuffer> {
        None
    }

    fn validate_write_buffer(&self, _: &DispatchBuffer, _: u64, _: BufferSize) -> Option<()> {
        None
    }

    fn write_staging_buffer(&self, _: &DispatchBuffer, _: u64, _: &DispatchQueueWriteBuffer) {
        unreachable!("there are no staging buffers")
    }

    fn write_texture(
        &self,
        _: TexelCopyTextureInfo<'_>,
        _: &[u8],
        _: TexelCopyBufferLayout,
        _: Extent3d,
    ) {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn submit(&self, command_buffers: &mut dyn Iterator<Item = DispatchCommandBuffer>) -> u64 {
        let mut commands = Vec::new();
        for buffer in command_buffers {
            let own = buffer.as_custom::<CudaCommandBuffer>().map(CudaCommandBuffer::take);
            commands.extend(own.unwrap_or_default());
        }
        let mut work = self.device.work();
        if self.device.is_lost() {
            return work.submitted;
        }
        // Buffers may be mapped until the work is locked. If one command is wrong, none runs, but
        // the writes before them do.
        let mut wrong = check(&commands, &self.device).err();
        if wrong.is_some() {
            commands.clear();
        }
        let outcome = work.submit(&self.device, &commands);
        let index = work.submitted;
        drop(work);
        match outcome {
            Err(Fault::Driver(error)) => self.device.fail(&error),
            Err(Fault::Invalid(what)) => wrong = Some(what),
            Ok(()) => {}
        }
        if let Some(wrong) = wrong {
            self.device.errors.report_invalid(wrong);
        }
        index
    }

    fn get_timestamp_period(&self) -> f32 {
        1.0
    }

    fn on_submitted_work_done(&self, callback: BoxSubmittedWorkDoneCallback) {
        self.device.call_when_done(callback);
    }

    fn compact_blas(&self, _: &DispatchBlas) -> (Option<u64>, DispatchBlas) {
        unreachable!("{COMPUTES_ONLY}")
    }

    fn present(&self, _: &DispatchSurfaceOutputDetail) {
        unreachable!("{COMPUTES_ONLY}")
    }
}
