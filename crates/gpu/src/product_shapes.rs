//! Tests of the shapes of products that are used on hardware. Drivers that compute on the processor use others in models.

use crate::device::GpuDevice;
use crate::kernel::{Kernel, ProductShapes};
use crate::matrix::row_bytes;
use crate::parameters::Linear;
use crate::pass::linear_groups;
use forerun_formats::{BlockType, WeightType};
use wgpu::Buffer;

const OUTPUTS: u32 = 7;

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

/// Returns the bits of a product.
fn product(
    device: &GpuDevice,
    kernel: Kernel,
    weights: &Buffer,
    x: &Buffer,
    [rows, inputs]: [u32; 2],
) -> Vec<u32> {
    let bytes = u64::from(rows * OUTPUTS) * 4;
    let y = device.allocate("results", bytes).unwrap();
    let staging = device.allocate_staging("results", bytes).unwrap();
    let parameters = Linear::new([rows, OUTPUTS, inputs]);
    let pipeline = device.pipeline(kernel);
    let bound = pipeline.bind(device.inner(), &[weights, x, x, &y]);
    let groups = linear_groups(kernel, OUTPUTS, rows);
    let mut encoder = device.new_encoder();
    pipeline.record(&mut encoder, [bound].iter(), &parameters, groups);
    encoder.copy_buffer_to_buffer(&y, 0, &staging, 0, bytes);
    let submission = device.submit(encoder);
    let mut bits = Vec::new();
    device
        .read(&staging, bytes, submission, |read| bits = bytemuck::pod_collect_to_vec(read))
        .unwrap();
    bits
}

#[test]
fn products_have_the_same_bits_in_all_shapes() {
    if GpuDevice::adapters().is_empty() {
        return eprintln!("skipped: there is no GPU");
    }
    let device = GpuDevice::open(0).unwrap();
    // An odd number of quarters, and more eighths than two reads of a team.
    let inputs = 516;
    let x = numbers(&device, 17 * u64::from(inputs) * 4);
    for weight_type in [WeightType::Bf16, WeightType::Quantized(BlockType::Q4_K)] {
        let row = row_bytes(weight_type, inputs as usize) as u64;
        let weights = numbers(&device, u64::from(OUTPUTS) * row);
        let simple = Kernel::Linear {
            weights: weight_type,
            rows: 1,
            outputs: 1,
            depth: 1,
            teams: 2,
            shares_inputs: false,
        };
        let expected = product(&device, simple, &weights, &x, [17, inputs]);
        for (shapes, rows) in [ProductShapes::Usual, ProductShapes::Large]
            .into_iter()
            .flat_map(|shapes| [1, 2, 3, 7, 17].map(|rows| (shapes, rows)))
        {
            let kernel = Kernel::linear(weight_type, rows, shapes);
            let found = product(&device, kernel, &weights, &x, [rows, inputs]);
            assert_eq!(found, expected[..(rows * OUTPUTS) as usize], "{kernel:?}, {rows} rows");
        }
        assert!(expected.iter().all(|&bits| f32::from_bits(bits).is_finite()));
        assert!(expected.windows(2).any(|pair| pair[0] != pair[1]));
    }
}
