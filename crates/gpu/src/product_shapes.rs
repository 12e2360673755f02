//! Tests of the shapes of products that are used on hardware. Drivers that compute on the processor
//! use others in models.

use crate::device::GpuDevice;
use crate::kernel::{Kernel, ProductShapes, WEIGHT_TYPES};
use crate::matrix::row_bytes;
use crate::parameters::Linear;
use crate::product::linear_groups;
use crate::testing::gpu;
use forerun_formats::WeightType;
use std::sync::Arc;
use wgpu::Buffer;

/// More than a workgroup has, and not a multiple of it.
const OUTPUTS: u32 = 67;

/// An odd number of quarters, and more than the inputs of a row that teams share at once.
const INPUTS: u32 = 4100;

const MOST_ROWS: u32 = 17;

/// More than warps of tensor cores share.
const MOST_TENSOR_ROWS: u32 = 70;

/// Returns a buffer with numbers of moderate size in every type.
pub(crate) fn numbers(device: &GpuDevice, bytes: u64) -> Buffer {
    let buffer = device.allocate("numbers", bytes).unwrap();
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state & 0x83ff_83ff) | 0x3c00_3c00
    };
    let part: Vec<u32> = (0..bytes.min(16 << 20).div_ceil(4)).map(|_| next()).collect();
    let part: &[u8] = bytemuck::cast_slice(&part);
    let size = bytes as usize;
    for start in (0..size).step_by(part.len()) {
        device.upload(&buffer, start as u64, &part[..part.len().min(size - start)]).unwrap();
    }
    buffer
}

/// A product of a matrix for each of two heads, or of one for all, with a bias, which is added to
/// what is there.
struct Product {
    device: Arc<GpuDevice>,
    weight_type: WeightType,
    heads: u32,
    weights: Buffer,
    x: Buffer,
    y: Buffer,
}

impl Product {
    fn new(device: &Arc<GpuDevice>, weight_type: WeightType, heads: u32) -> Self {
        let row = row_bytes(weight_type, INPUTS as usize) as u64;
        let weights = numbers(device, u64::from(heads * OUTPUTS) * row);
        let x = numbers(device, u64::from(MOST_TENSOR_ROWS * heads * INPUTS) * 4);
        let y = numbers(device, u64::from(MOST_TENSOR_ROWS * heads * OUTPUTS) * 4);
        Self { device: Arc::clone(device), weight_type, heads, weights, x, y }
    }

    fn bits(&self, kernel: Kernel, rows: u32) -> Vec<u32> {
        let Self { device, heads, weights, x, y, .. } = self;
        let bytes = u64::from(rows * heads * OUTPUTS) * 4;
        let result = device.allocate("results", bytes).unwrap();
        let staging = device.allocate_staging("results", bytes).unwrap();
        let parameters = Linear {
            x_stride: heads * INPUTS / 4,
            x_head: INPUTS / 4,
            y_stride: heads * OUTPUTS,
            y_head: OUTPUTS,
            flags: Linear::HAS_BIAS | Linear::ADDS,
            factor: 0.5,
            ..Linear::new([rows, OUTPUTS, INPUTS])
        };
        let pipeline = device.pipeline(kernel);
        let bound = pipeline.bind(device.inner(), &[weights, x, x, &result]);
        let [x_groups, y_groups, _] = linear_groups(kernel, OUTPUTS, rows);
        let mut encoder = device.new_encoder();
        encoder.copy_buffer_to_buffer(y, 0, &result, 0, bytes);
        let groups = [x_groups, y_groups, *heads];
        pipeline.record(&mut encoder, [bound].iter(), &parameters, groups);
        encoder.copy_buffer_to_buffer(&result, 0, &staging, 0, bytes);
        let submission = device.submit(encoder);
        let mut bits = Vec::new();
        device
            .read(&staging, bytes, submission, |read| bits = bytemuck::pod_collect_to_vec(read))
            .unwrap();
        bits
    }

    /// Checks that tensor cores have the same bits in all shapes, near those of the exact product.
    #[cfg(feature = "cuda")]
    fn check_tensor(&self) {
        let weights = self.weight_type;
        let tensor = |rows| Kernel::linear(weights, [rows, OUTPUTS], ProductShapes::Tensor);
        let expected = self.bits(tensor(MOST_TENSOR_ROWS), MOST_TENSOR_ROWS);
        // The tiles of a pass of `of` rows: those of many rows also suit many outputs. Other types
        // than bf16 differ in how they are read.
        let tiles = [[31, 31], [40, 70], [1, 1], [7, 7], [16, 16], [50, 50]];
        let tiles = if weights == WeightType::Bf16 { &tiles[..] } else { &tiles[..3] };
        for &[rows, of] in tiles {
            let found = self.bits(tensor(of), rows);
            assert_eq!(found, expected[..found.len()], "{weights}, {rows} rows of {of}");
        }
        let float = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect::<Vec<_>>();
        let (found, exact) = (
            float(expected),
            float(self.bits(Kernel::linear(weights, [1, OUTPUTS], ProductShapes::Simple), 2)),
        );
        let largest = exact.iter().fold(0.0, |largest: f32, number| largest.max(number.abs()));
        for (found, exact) in found.iter().zip(&exact) {
            assert!((found - exact).abs() < 0.01 * largest, "{weights}: {found} for {exact}");
        }
    }

    /// Checks that all shapes have the bits of the simplest one.
    fn check(&self) {
        let weights = self.weight_type;
        let (rows, outputs, depth, teams, shares_inputs) = (1, 1, 1, 2, false);
        let simple = Kernel::Linear { weights, rows, outputs, depth, teams, shares_inputs };
        let expected = self.bits(simple, MOST_ROWS);
        let mut checked = Vec::new();
        for shapes in [ProductShapes::Usual, ProductShapes::Large] {
            if shapes == ProductShapes::Large && self.device.shared_memory() < 32 << 10 {
                continue;
            }
            for rows in [1, 2, 3, 7, MOST_ROWS] {
                let kernel = Kernel::linear(weights, [rows, OUTPUTS], shapes);
                if checked.contains(&kernel) {
                    continue;
                }
                let found = self.bits(kernel, rows);
                assert_eq!(found, expected[..found.len()], "{kernel:?}, {rows} rows");
                checked.push(kernel);
            }
        }
        assert!(expected.iter().all(|&bits| f32::from_bits(bits).is_finite()));
        assert!(expected.windows(2).any(|pair| pair[0] != pair[1]));
    }
}

#[test]
fn products_have_the_same_bits_in_all_shapes() {
    let Some(device) = gpu() else { return };
    for weight_type in WEIGHT_TYPES {
        Product::new(&device, weight_type, 1).check();
    }
    Product::new(&device, WeightType::Bf16, 2).check();
}

#[cfg(feature = "cuda")]
#[test]
fn tensor_cores_give_a_row_the_same_bits_in_all_shapes() {
    let Some(device) = crate::arithmetic::tests::with_tensor_cores() else { return };
    for weight_type in WEIGHT_TYPES {
        if weight_type != WeightType::F32 {
            Product::new(&device, weight_type, 1).check_tensor();
        }
    }
    Product::new(&device, WeightType::Bf16, 2).check_tensor();
}
