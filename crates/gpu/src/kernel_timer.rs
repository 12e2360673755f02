//! Times of the kernels of passes, by the GPU's own clock.

use crate::device::GpuDevice;
use crate::error::GpuFailure;
use crate::kernel::Kernel;
use std::collections::HashMap;
use wgpu::{Buffer, BufferUsages, CommandEncoder, ComputePass, QuerySet, SubmissionIndex};

/// The largest number of marks of a pass. Later dispatches are not measured.
const MARKS: u32 = 4096;

const MARK_BYTES: u64 = 8;

/// The time of one kind of kernel in passes.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelTime {
    /// The kernel.
    pub kernel: String,
    /// How often it ran.
    pub dispatches: usize,
    /// Its time, with the wait for the dispatch before it.
    pub seconds: f64,
}

/// Measures the time between the ends of dispatches.
pub(crate) struct KernelTimer {
    clock: QuerySet,
    resolved: Buffer, // [MARKS]: u64
    staging: Buffer,  // [MARKS]: u64
    /// The kernels whose ends are the marks of the present pass; `None` is the start of a sequence
    /// of dispatches.
    marks: Vec<Option<Kernel>>,
    totals: HashMap<Kernel, (usize, f64)>,
}

impl KernelTimer {
    /// Returns a timer; `None` if the GPU has no clock that kernels can be measured with. Fails if
    /// the GPU has failed, or has no memory.
    pub(crate) fn new(device: &GpuDevice) -> Result<Option<Self>, GpuFailure> {
        if !device.has_clock() {
            return Ok(None);
        }
        let clock = device.inner().create_query_set(&wgpu::QuerySetDescriptor {
            label: None,
            ty: wgpu::QueryType::Timestamp,
            count: MARKS,
        });
        let bytes = u64::from(MARKS) * MARK_BYTES;
        let usage = BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC;
        let resolved = device.allocate_for("times of kernels", bytes, usage)?;
        let staging = device.allocate_staging("times of kernels", bytes)?;
        Ok(Some(Self { clock, resolved, staging, marks: Vec::new(), totals: HashMap::new() }))
    }

    /// Marks the end of a dispatch, or the start of a sequence of them.
    pub(crate) fn mark(&mut self, dispatches: &mut ComputePass<'_>, kernel: Option<Kernel>) {
        if self.marks.len() < MARKS as usize {
            dispatches.write_timestamp(&self.clock, self.marks.len() as u32);
            self.marks.push(kernel);
        }
    }

    /// Records what makes the times readable, after the last dispatch of a pass.
    pub(crate) fn resolve(&self, encoder: &mut CommandEncoder) {
        let marks = self.marks.len() as u32;
        encoder.resolve_query_set(&self.clock, 0..marks, &self.resolved, 0);
        let bytes = u64::from(marks) * MARK_BYTES;
        encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.staging, 0, bytes);
    }

    /// Reads the times of the pass that ends with `submission`. Fails if the GPU has failed.
    pub(crate) fn collect(
        &mut self,
        device: &GpuDevice,
        submission: SubmissionIndex,
    ) -> Result<(), GpuFailure> {
        let tick = f64::from(device.queue.get_timestamp_period()) * 1e-9;
        let marks = std::mem::take(&mut self.marks);
        let totals = &mut self.totals;
        device.read(&self.staging, marks.len() as u64 * MARK_BYTES, submission, |bytes| {
            let times: Vec<u64> = bytemuck::pod_collect_to_vec(bytes);
            for (pair, kernel) in times.windows(2).zip(marks.iter().skip(1)) {
                if let Some(kernel) = kernel {
                    let (dispatches, seconds) = totals.entry(*kernel).or_default();
                    *dispatches += 1;
                    *seconds += pair[1].saturating_sub(pair[0]) as f64 * tick;
                }
            }
        })
    }

    /// Returns the times of all kernels, the longest first.
    pub(crate) fn times(&self) -> Vec<KernelTime> {
        let time = |(kernel, &(dispatches, seconds)): (&Kernel, &(usize, f64))| KernelTime {
            kernel: format!("{kernel:?}"),
            dispatches,
            seconds,
        };
        let mut times: Vec<KernelTime> = self.totals.iter().map(time).collect();
        times.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
        times
    }

    /// Forgets what has been measured.
    pub(crate) fn clear(&mut self) {
        self.marks.clear();
        self.totals.clear();
    }
}
