//! What a driver does with float arithmetic, measured when a GPU is opened.

use crate::device::GpuDevice;
use crate::error::GpuFailure;
use crate::kernel::Kernel;
use half::{bf16, f16};
use std::fmt;

/// Numbers that a probe invocation writes. `probe.wgsl` names them.
const RESULTS: usize = 8;

/// The result of `fma` among them.
const FMA: usize = 5;

/// Invocations of the probe: a multiple of the workgroup's 64.
const PAIRS: usize = 1024;

/// What a driver does with float arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Whether `a · b − c` is contracted to one operation although the shader forbids it. Then bits
    /// are not those that the guide defines.
    pub contracts: bool,
    /// Whether sums are reordered although the shader forbids it.
    pub reorders: bool,
    /// Whether WGSL's `fma` rounds once. The kernels do not use it.
    pub fma_is_fused: bool,
    /// Whether subnormal numbers become zero. Bits may then differ from other devices' where they
    /// occur.
    pub flushes_subnormals: bool,
    /// Whether the kernels' divisions, square roots, exponentials and 16-bit numbers have the
    /// defined bits.
    pub functions_are_exact: bool,
    /// A number for the bits of all results, except those of `fma`. GPUs with the same number
    /// computed the same.
    pub fingerprint: u64,
}

impl Probe {
    /// Runs the probe. Fails if the GPU fails.
    pub(crate) fn run(device: &GpuDevice) -> Result<Self, GpuFailure> {
        let pairs = pairs();
        let input = device.allocate("the probe", (PAIRS * 8) as u64)?;
        let bytes = (PAIRS * RESULTS * 4) as u64;
        let output = device.allocate("the probe", bytes)?;
        let staging = device.allocate_staging("the probe", bytes)?;
        device.write(&input, 0, bytemuck::cast_slice(&pairs));
        let pipeline = device.pipeline(Kernel::Probe);
        let group = pipeline.bind(device.inner(), &[&input, &output]);
        let mut encoder = device.new_encoder();
        {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            pass.set_pipeline(&pipeline.pipeline);
            pass.set_bind_group(0, &group, &[]);
            pass.dispatch_workgroups((PAIRS / 64) as u32, 1, 1);
        }
        encoder.copy_buffer_to_buffer(&output, 0, &staging, 0, bytes);
        let submission = device.submit(encoder);
        let mut results = vec![[0.0_f32; RESULTS]; PAIRS];
        device.read(&staging, bytes, submission, |bytes| {
            bytemuck::cast_slice_mut(&mut results).copy_from_slice(bytes);
        })?;
        Ok(Self::of(&pairs, &results))
    }

    fn of(pairs: &[[f32; 2]], results: &[[f32; RESULTS]]) -> Self {
        let both = || pairs.iter().zip(results);
        let differs = |index: usize, expected: fn(f32, f32) -> f32| {
            both().any(|(&[a, b], result)| result[index].to_bits() != expected(a, b).to_bits())
        };
        let halves = |a, b| f16::from_f32(a).to_f32() + bf16::from_f32(b).to_f32();
        let functions = [
            differs(2, |a, b| a / b),
            differs(3, |a, _| a.abs().sqrt()),
            differs(4, |a, _| exponential(a)),
            differs(7, halves),
        ];
        Self {
            contracts: differs(0, |a, b| a * b - b),
            reorders: differs(1, |a, _| (a + 12_582_912.0) - 12_582_912.0),
            fma_is_fused: !differs(FMA, |a, b| a.mul_add(b, -b)),
            flushes_subnormals: differs(6, |a, _| a * 1e-38 * 0.125),
            functions_are_exact: !functions.contains(&true),
            fingerprint: {
                let all = results.iter().flat_map(|result| result.iter().enumerate());
                let all = all.filter(|(index, _)| *index != FMA);
                fingerprint(all.map(|(_, number)| number.to_bits()))
            },
        }
    }

    /// Returns whether the bits of passes are those that the guide defines, except where subnormal
    /// numbers occur.
    #[must_use]
    pub fn has_defined_bits(&self) -> bool {
        !self.contracts && !self.reorders && self.functions_are_exact
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = [
            (self.contracts, "the driver contracts products and sums"),
            (self.reorders, "the driver reorders sums"),
            (!self.functions_are_exact, "functions have other bits"),
            (self.flushes_subnormals, "subnormal numbers become zero"),
        ];
        let found: Vec<&str> = found.into_iter().filter(|pair| pair.0).map(|pair| pair.1).collect();
        match self.has_defined_bits() {
            true => f.write_str("defined bits")?,
            false => f.write_str("bits are the driver's own")?,
        }
        if found.is_empty() { Ok(()) } else { write!(f, " ({})", found.join("; ")) }
    }
}

/// Returns a number for bits (FNV-1a).
pub(crate) fn fingerprint(bits: impl Iterator<Item = u32>) -> u64 {
    bits.flat_map(u32::to_le_bytes).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The exponential of the crate `vector`, which numbers.wgsl repeats.
fn exponential(x: f32) -> f32 {
    forerun_vector::exp(x)
}

/// Returns numbers of many magnitudes, with all bits of their significands in use.
pub(crate) fn numbers(count: usize) -> impl Iterator<Item = f32> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    (0..count).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let significand = 0x3f80_0000 | (state >> 41) as u32;
        let magnitude = ((state >> 32) & 15) as i32 - 8;
        let sign = if state & 1 == 0 { 1.0 } else { -1.0 };
        sign * f32::from_bits(significand) * 2.0_f32.powi(magnitude)
    })
}

fn pairs() -> Vec<[f32; 2]> {
    let all: Vec<f32> = numbers(2 * PAIRS).collect();
    all.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(a: f32, b: f32) -> [f32; RESULTS] {
        [
            a * b - b,
            (a + 12_582_912.0) - 12_582_912.0,
            a / b,
            a.abs().sqrt(),
            exponential(a),
            a.mul_add(b, -b),
            a * 1e-38 * 0.125,
            f16::from_f32(a).to_f32() + bf16::from_f32(b).to_f32(),
        ]
    }

    #[test]
    fn a_driver_that_breaks_a_rule_is_found() {
        let pairs = pairs();
        let run = |index: usize, broken: fn(f32, f32) -> f32| {
            let mut results: Vec<_> = pairs.iter().map(|&[a, b]| exact(a, b)).collect();
            for (result, &[a, b]) in results.iter_mut().zip(&pairs) {
                result[index] = broken(a, b);
            }
            Probe::of(&pairs, &results)
        };
        let good = run(0, |a, b| a * b - b);
        assert_ne!(good.fingerprint, run(1, |a, _| a).fingerprint);
        assert_eq!(good.fingerprint, run(FMA, |a, b| a * b - b).fingerprint);
        assert!(good.has_defined_bits() && good.fma_is_fused && !good.flushes_subnormals);
        assert_eq!(good.to_string(), "defined bits");
        assert!(run(0, |a, b| a.mul_add(b, -b)).contracts);
        assert!(run(1, |a, _| a).reorders);
        assert!(!run(2, |a, b| a * (1.0 / b)).functions_are_exact);
        assert!(!run(FMA, |a, b| a * b - b).fma_is_fused);
        let flushing = run(6, |_, _| 0.0);
        assert_eq!(flushing.to_string(), "defined bits (subnormal numbers become zero)");
    }
}
