//! Measures memory bandwidth and products with matrices, on the GPU that `FORERUN_GPU` names (by default the first one):
//! `cargo test --release -p forerun-gpu --lib -- --ignored --nocapture kernel_bench`.

use crate::device::GpuDevice;
use crate::kernel::{Kernel, WEIGHT_TYPES};
use crate::matrix::{GROUP_OUTPUTS, row_bytes};
use crate::parameters::Linear;
use crate::product_shapes::numbers;
use forerun_formats::WeightType;
use std::sync::Arc;
use wgpu::{BindGroup, Buffer};

/// Bytes of the weights that are read in turn, so that no cache holds them.
const ROTATION_BYTES: u64 = 512 << 20;

/// Dispatches of a measured round.
const DISPATCHES: usize = 24;

/// The shapes of products that are measured: outputs and inputs.
const SHAPES: [[u32; 2]; 3] = [[28_672, 4096], [4096, 14_336], [4096, 4096]];

fn device() -> Arc<GpuDevice> {
    let index = std::env::var("FORERUN_GPU").map_or(0, |index| index.parse().unwrap());
    GpuDevice::open(index).unwrap()
}

#[test]
#[ignore = "a measurement"]
fn bandwidth() {
    let device = device();
    let gigabytes = device.measure_bandwidth().unwrap() / 1e9;
    println!("{}: {gigabytes:.0} GB/s", device.adapter());
}

#[test]
#[ignore = "a measurement"]
fn products() {
    let device = device();
    let chosen = std::env::var("FORERUN_TYPES").unwrap_or_default();
    for weights in WEIGHT_TYPES {
        if !chosen.is_empty() && !chosen.split(',').any(|name| name == weights.to_string()) {
            continue;
        }
        for [outputs, inputs] in SHAPES {
            measure(&device, weights, outputs, inputs);
        }
    }
}

fn measure(device: &GpuDevice, weights: WeightType, outputs: u32, inputs: u32) {
    let bytes = u64::from(outputs) * row_bytes(weights, inputs as usize) as u64;
    let copies: Vec<Buffer> =
        (0..ROTATION_BYTES.div_ceil(bytes)).map(|_| numbers(device, bytes)).collect();
    let x = numbers(device, 16 * u64::from(inputs) * 4);
    let bias = numbers(device, u64::from(outputs) * 4);
    let y = numbers(device, 16 * u64::from(outputs) * 4);
    println!(
        "{weights} {outputs}×{inputs}, {:.1} MB: GB/s by outputs and depth",
        bytes as f64 / 1e6
    );
    for rows in [1, 2, 4, 8, 16] {
        let mut line = format!("  {rows} rows");
        for (results, depth) in [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)] {
            let kernel = Kernel::Linear { weights, rows, outputs: results, depth };
            let pipeline = device.pipeline(kernel);
            let bind = |copy| pipeline.bind(device.inner(), &[copy, &x, &bias, &y]);
            let bound: Vec<BindGroup> = copies.iter().map(bind).collect();
            let parameters = Linear::new([rows, outputs, inputs]);
            let groups = [outputs.div_ceil(GROUP_OUTPUTS * results), 1, 1];
            let seconds = device
                .fastest_dispatch(&pipeline, &bound, &parameters, groups, DISPATCHES)
                .unwrap();
            line += &format!("  {results}/{depth} {:.0}", bytes as f64 / seconds / 1e9);
        }
        println!("{line}");
    }
}
