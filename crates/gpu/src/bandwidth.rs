//! The bandwidth of a GPU's memory.

use crate::device::GpuDevice;
use crate::error::GpuFailure;
use crate::kernel::Kernel;
use crate::parameters::Read;
use crate::pipeline::Pipeline;
use bytemuck::Pod;
use std::time::Instant;
use wgpu::BindGroup;

/// Bytes that are read: more than caches hold.
const BYTES: u64 = 1 << 30;
/// The same for drivers that compute on the processor.
const SOFTWARE_BYTES: u64 = 1 << 26;

const THREADS: u32 = 1 << 18;
const DISPATCHES: usize = 8;
const ROUNDS: usize = 5;

impl GpuDevice {
    /// Measures the bandwidth of the GPU's memory, in bytes read a second: the best of some reads
    /// of a large buffer.
    ///
    /// # Errors
    /// If the GPU fails, or has no memory for the buffer.
    pub fn measure_bandwidth(&self) -> Result<f64, GpuFailure> {
        let bytes = if self.is_software() { SOFTWARE_BYTES } else { BYTES };
        let bytes = bytes.min(self.max_binding_bytes());
        let input = self.allocate("measuring the bandwidth", bytes)?;
        let output = self.allocate("measuring the bandwidth", u64::from(THREADS) * 4)?;
        let pipeline = self.pipeline(Kernel::Read);
        let bound = pipeline.bind(self.inner(), &[&input, &output]);
        let parameters = Read { vectors: (bytes / 16) as u32, threads: THREADS };
        let groups = [THREADS / 64, 1, 1];
        let seconds =
            self.fastest_dispatch(&pipeline, &[bound], &parameters, groups, DISPATCHES)?;
        Ok(bytes as f64 / seconds)
    }

    /// Returns the seconds of a dispatch: the best of some rounds of `dispatches`, which take turns
    /// with the bindings and of which each waits for the one before it. Fails if the GPU fails.
    pub(crate) fn fastest_dispatch(
        &self,
        pipeline: &Pipeline,
        bindings: &[BindGroup],
        parameters: &impl Pod,
        groups: [u32; 3],
        dispatches: usize,
    ) -> Result<f64, GpuFailure> {
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            let mut encoder = self.new_encoder();
            let in_turn = bindings.iter().cycle().take(dispatches);
            pipeline.record(&mut encoder, in_turn, parameters, groups);
            let started = Instant::now();
            let submission = self.submit(encoder);
            self.wait(submission)?;
            best = best.min(started.elapsed().as_secs_f64() / dispatches as f64);
        }
        Ok(best)
    }
}
