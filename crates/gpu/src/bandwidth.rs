//! The bandwidth of a GPU's memory.

use crate::device::GpuDevice;
use crate::error::GpuFailure;
use crate::kernel::Kernel;
use crate::parameters::Read;
use std::time::Instant;

/// Bytes that are read: more than caches hold.
const BYTES: u64 = 1 << 30;
/// The same for drivers that compute on the processor.
const SOFTWARE_BYTES: u64 = 1 << 26;

const THREADS: u32 = 1 << 18;
const DISPATCHES: u32 = 8;
const ROUNDS: usize = 5;

impl GpuDevice {
    /// Measures the bandwidth of the GPU's memory, in bytes read a second: the best of some reads of a large buffer.
    ///
    /// # Errors
    /// If the GPU fails, or has no memory for the buffer.
    pub fn measure_bandwidth(&self) -> Result<f64, GpuFailure> {
        let is_software = self.adapter().kind == crate::AdapterKind::Software;
        let bytes = if is_software { SOFTWARE_BYTES } else { BYTES };
        let bytes = bytes.min(self.max_binding_bytes());
        let input = self.allocate("measuring the bandwidth", bytes)?;
        let output = self.allocate("measuring the bandwidth", u64::from(THREADS) * 4)?;
        let pipeline = self.pipeline(Kernel::Read);
        let bound = pipeline.bind(self.inner(), &[&input, &output]);
        let parameters = Read { vectors: (bytes / 16) as u32, threads: THREADS };
        let mut best = f64::INFINITY;
        for _ in 0..ROUNDS {
            let mut encoder = self.new_encoder();
            {
                let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
                pass.set_pipeline(&pipeline.pipeline);
                pass.set_bind_group(0, &bound, &[]);
                pass.set_immediates(0, bytemuck::bytes_of(&parameters));
                for _ in 0..DISPATCHES {
                    pass.dispatch_workgroups(THREADS / 64, 1, 1);
                }
            }
            let started = Instant::now();
            let submission = self.submit(encoder);
            self.wait(submission)?;
            best = best.min(started.elapsed().as_secs_f64() / f64::from(DISPATCHES));
        }
        Ok(bytes as f64 / best)
    }
}
