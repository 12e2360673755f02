//! The arithmetic of products with matrices: exact, or that of tensor cores.
//!
//! PTX does not say in which order tensor cores add. Row invariance needs less: that they add
//! equally for all columns, of which each is a row of a pass. When a GPU is opened, random numbers
//! are multiplied in passes of all widths. Tensor cores are not used if any row has other bits in
//! one of them.

use crate::cuda;
use crate::device::GpuDevice;
use crate::error::{GpuError, GpuFailure};
use crate::matrix::{GpuMatrix, MatrixPart, row_bytes};
use crate::pacer::Pacer;
use crate::probe::{fingerprint, numbers};
use crate::product::{ProductRows, Store};
use crate::recorder::{BoundBuffers, Recorder};
use forerun_formats::WeightType;
use half::bf16;
use std::fmt;
use std::ops::Range;

/// The environment variable that names the arithmetic of products: `exact`, the default, or
/// `tensor`.
pub(crate) const ARITHMETIC: &str = "FORERUN_GPU_ARITHMETIC";

/// The oldest compute capability with the instruction.
const OLDEST_CAPABILITY: u32 = 80;

/// Rows of the probe: more than those of a pass whose warps share rows, and not a multiple of a
/// tile.
const ROWS: u32 = 75;

/// Outputs and inputs of the probe: not multiples of a tile, and more inputs than parts.
const OUTPUTS: usize = 40;
const INPUTS: usize = 300;

/// The arithmetic of products with matrices. Replicas of a model need equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Every sum has the order that the guide defines, on every GPU.
    Exact,
    /// Tensor cores add up products, in an order that GPUs of one generation share. Activations are
    /// rounded to bf16 for them.
    Tensor {
        /// The compute capability, such as 90 for 9.0.
        capability: u32,
        /// A number for the bits that the probe found.
        fingerprint: u64,
    },
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact arithmetic"),
            Self::Tensor { capability, .. } => {
                let [major, minor] = [capability / 10, capability % 10];
                write!(f, "tensor arithmetic (compute capability {major}.{minor})")
            }
        }
    }
}

impl GpuDevice {
    /// Chooses the arithmetic that [`ARITHMETIC`] names, or exact.
    ///
    /// # Errors
    /// If it is unknown, or the GPU fails, or it does not have the arithmetic that is named.
    pub(crate) fn choose_arithmetic(&mut self) -> Result<(), GpuError> {
        let named = std::env::var_os(ARITHMETIC).unwrap_or_default();
        match named.to_str() {
            Some("" | "exact") => return Ok(()),
            Some("tensor") => {}
            _ => return Err(GpuError::UnknownArithmetic(named.to_string_lossy().into_owned())),
        }
        let refusal = self.use_tensor_cores().map_err(GpuError::TensorProbe)?;
        let Some(reason) = refusal else { return Ok(()) };
        Err(GpuError::NoTensorArithmetic { adapter: self.adapter().name.clone(), reason })
    }

    /// Uses tensor cores for products. Returns why not, if they are not used.
    ///
    /// # Errors
    /// If the GPU fails.
    fn use_tensor_cores(&mut self) -> Result<Option<&'static str>, GpuFailure> {
        let capability = cuda::capability(self.inner()).filter(|own| *own >= OLDEST_CAPABILITY);
        let Some(capability) = capability else {
            return Ok(Some("it needs CUDA and compute capability 8.0"));
        };
        self.arithmetic = Arithmetic::Tensor { capability, fingerprint: 0 };
        match probe(self)? {
            Some(fingerprint) => {
                self.arithmetic = Arithmetic::Tensor { capability, fingerprint };
                Ok(None)
            }
            None => {
                self.arithmetic = Arithmetic::Exact;
                Ok(Some("they gave a row other bits in another pass"))
            }
        }
    }
}

/// Multiplies random numbers on tensor cores in passes of all widths. Returns a number for the
/// results; `None` if a row has different ones.
fn probe(device: &GpuDevice) -> Result<Option<u64>, GpuFailure> {
    let what = "the probe of tensor cores";
    let upload = |bytes: &[u8]| {
        let buffer = device.allocate(what, bytes.len() as u64)?;
        device.write(&buffer, 0, bytes);
        Ok::<_, GpuFailure>(buffer)
    };
    let weight_type = WeightType::Bf16;
    let bf16s = OUTPUTS * row_bytes(weight_type, INPUTS) / size_of::<bf16>();
    let weights: Vec<u8> =
        numbers(bf16s).flat_map(|number| bf16::from_f32(number).to_le_bytes()).collect();
    let x: Vec<f32> = numbers(ROWS as usize * INPUTS).collect();
    let (weights, x) = (upload(&weights)?, upload(bytemuck::cast_slice(&x))?);
    let part = MatrixPart { weight_type, first_output: 0, outputs: OUTPUTS, weights, bias: None };
    let matrix = GpuMatrix { inputs: INPUTS, outputs: OUTPUTS, parts: vec![part] };

    // All rows, and then each width from 1 on, in different places.
    let widths = (1..=ROWS).map(|width| {
        let first = width * 7 % (ROWS - width + 1);
        first..first + width
    });
    let widths: Vec<_> = std::iter::once(0..ROWS).chain(widths).collect();
    let rows: u32 = widths.iter().map(|rows| rows.len() as u32).sum();
    let bytes = (rows as usize * OUTPUTS * size_of::<f32>()) as u64;
    let (y, staging) = (device.allocate(what, bytes)?, device.allocate_staging(what, bytes)?);
    let (mut bound, mut pacer) = (BoundBuffers::default(), Pacer::default());
    let mut recorder = Recorder::new(device, &mut bound, &mut pacer);
    let mut first_y = 0;
    for rows in &widths {
        let rows = ProductRows { first_y, ..ProductRows::range(rows.clone(), INPUTS) };
        recorder.product(&matrix, (&x, &y), (rows, Store::Set), &x);
        first_y += rows.rows;
    }
    recorder.copy((&y, 0), (&staging, 0), bytes);
    let submission = recorder.finish().submission;
    let mut bits: Vec<u32> = Vec::new();
    device.read(&staging, bytes, submission, |read| {
        bits = bytemuck::pod_collect_to_vec(read);
    })?;
    let (all, others) = bits.split_at(ROWS as usize * OUTPUTS);
    let of_rows =
        |rows: &Range<u32>| &all[rows.start as usize * OUTPUTS..rows.end as usize * OUTPUTS];
    let expected = widths[1..].iter().flat_map(of_rows);
    Ok(expected.eq(others).then(|| fingerprint(all.iter().copied())))
}

#[cfg(all(test, feature = "cuda"))]
pub(crate) mod tests {
    use super::*;
    use crate::adapter::GpuAdapter;
    use crate::device::GpuOptions;
    use crate::kernel::Kernel;
    use crate::tensor_tiles::{LEAST_ROUNDED_ROWS, TensorTiles};
    use std::path::Path;
    use std::sync::Arc;

    /// Opens the emulated device whose tensor cores add in the order with this number. `None`, with
    /// a message, without a C++ compiler.
    fn emulated(order: u32) -> Option<GpuDevice> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/cuda-emulator");
        let adapter = forerun_cuda::emulated_adapter(&folder, order);
        if adapter.is_none() {
            println!("skipped: the emulator needs a C++ compiler on x86-64 or aarch64");
        }
        let adapter = adapter?;
        let description = GpuAdapter::new(0, &adapter);
        let opened = GpuDevice::open_adapter(description, &adapter, GpuOptions::default());
        Arc::into_inner(opened.unwrap())
    }

    /// Opens a device with tensor cores: hardware if CUDA is chosen, or the emulator.
    pub(crate) fn with_tensor_cores() -> Option<Arc<GpuDevice>> {
        match std::env::var_os(cuda::API) {
            Some(_) => GpuDevice::open(0).ok(),
            None => emulated(0).map(Arc::new),
        }
    }

    #[test]
    fn tensor_cores_whose_columns_differ_are_refused() {
        let found = [0, 7, 1 << 31].map(|order| {
            let mut device = emulated(order)?;
            assert_eq!(device.arithmetic, Arithmetic::Exact, "the default");
            let refusal = device.use_tensor_cores().unwrap();
            assert_eq!(refusal.is_some(), device.arithmetic == Arithmetic::Exact);
            Some(device.arithmetic)
        });
        let [Some(usual), Some(other), Some(uneven)] = found else { return };
        assert!(matches!(usual, Arithmetic::Tensor { capability: 80, .. }));
        assert!(matches!(other, Arithmetic::Tensor { .. }) && other != usual);
        assert_eq!(uneven, Arithmetic::Exact);
    }

    /// Each mutant sums in another order in some passes: with another split of the inputs, parts or
    /// steps in another order, or one part.
    #[test]
    fn kernels_that_sum_by_rows_are_found() {
        for (rows, original, mutant) in [
            (1, "(units + PARTS - 1) / PARTS;", "(units + PARTS - 1) / PARTS * (1 + p.rows / 4);"),
            (9, "parts[part][column]", "parts[PARTS - 1 - part][column]"),
            (
                33,
                "MULTIPLY_BF16(sums[o][r], a[o][piece][step], b[step])",
                "MULTIPLY_BF16(sums[o][r], a[o][piece][STEPS - 1 - step], b[STEPS - 1 - step])",
            ),
            (65, "(unit + 1) % of_part == 0 || unit + 1 == end", "unit + 1 == end"),
        ] {
            let Some(mut device) = emulated(0) else { return };
            let kernel = Kernel::TensorLinear {
                weights: WeightType::Bf16,
                tiles: TensorTiles::new(rows, OUTPUTS as u32),
                has_rounded_inputs: rows >= LEAST_ROUNDED_ROWS,
            };
            let source = kernel.source();
            assert!(source.contains(original), "{original}");
            device.replace_source(kernel, &source.replace(original, mutant));
            assert!(device.use_tensor_cores().unwrap().is_some(), "{mutant}");
        }
    }
}
