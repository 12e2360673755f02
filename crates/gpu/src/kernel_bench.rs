//! Measures memory bandwidth and products with matrices, on the GPU that `FORERUN_GPU` names (by default the first one):
//! `cargo test --release -p forerun-gpu --lib -- --ignored --nocapture kernel_bench`.

use crate::device::GpuDevice;
use crate::kernel::{Kernel, WEIGHT_TYPES};
use crate::matrix::row_bytes;
use crate::parameters::{Linear, Norm};
use crate::product::linear_groups;
use crate::product_shapes::numbers;
use forerun_formats::{BlockType, WeightType};
use std::sync::Arc;
use wgpu::{BindGroup, Buffer};

/// Bytes of the weights that are read in turn, so that no cache holds them.
const ROTATION_BYTES: u64 = 512 << 20;

/// Dispatches of a measured round.
const DISPATCHES: usize = 24;

/// The shapes of products that are measured: outputs and inputs.
const SHAPES: [[u32; 2]; 3] = [[28_672, 4096], [4096, 14_336], [4096, 4096]];

/// A shape of products: the rows and outputs of a team, its reads at once, the teams of a workgroup, and whether they
/// share inputs.
type Tile = ([u32; 4], bool);

/// The shapes that are measured with a pass of as many rows.
const TILES: [Tile; 22] = [
    ([1, 1, 2, 2], false),
    ([1, 2, 2, 8], false),
    ([1, 1, 2, 8], true),
    ([1, 1, 4, 8], true),
    ([1, 2, 2, 8], true),
    ([2, 1, 1, 2], false),
    ([2, 1, 2, 8], true),
    ([2, 2, 2, 8], true),
    ([4, 2, 2, 2], false),
    ([4, 2, 1, 8], true),
    ([4, 2, 2, 8], true),
    ([4, 4, 1, 4], true),
    ([8, 2, 2, 2], false),
    ([8, 2, 1, 8], true),
    ([8, 2, 2, 8], true),
    ([8, 2, 1, 4], true),
    ([8, 4, 1, 4], true),
    ([8, 4, 1, 8], true),
    ([16, 2, 2, 2], false),
    ([16, 2, 1, 8], true),
    ([16, 4, 1, 4], true),
    ([16, 4, 1, 8], true),
];

/// The shapes that are measured with the rows of a prompt.
const PROMPT_TILES: [Tile; 5] = [
    ([8, 2, 2, 2], false),
    ([8, 4, 1, 8], true),
    ([16, 2, 1, 8], true),
    ([16, 4, 1, 4], true),
    ([16, 4, 1, 8], true),
];

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

/// A matrix, inputs and results of a product that is measured.
struct Product {
    copies: Vec<Buffer>,
    bytes: u64,
    others: [Buffer; 3],
    weights: WeightType,
    shape: [u32; 2],
}

impl Product {
    fn new(device: &GpuDevice, weights: WeightType, shape: [u32; 2], rows: u32) -> Self {
        let [outputs, inputs] = shape.map(u64::from);
        let bytes = outputs * row_bytes(weights, inputs as usize) as u64;
        let copies = ROTATION_BYTES.div_ceil(bytes);
        let copies = (0..copies).map(|_| numbers(device, bytes)).collect();
        let rows = u64::from(rows) * 4;
        let others = [rows * inputs, outputs * 4, rows * outputs];
        let others = others.map(|bytes| numbers(device, bytes));
        Self { copies, bytes, others, weights, shape }
    }

    /// Returns the seconds of a product with so many rows.
    fn seconds(&self, device: &GpuDevice, rows: u32, tile: Tile) -> f64 {
        let (([tile_rows, each, depth, teams], shares_inputs), weights) = (tile, self.weights);
        let kernel =
            Kernel::Linear { weights, rows: tile_rows, outputs: each, depth, teams, shares_inputs };
        let pipeline = device.pipeline(kernel);
        let [x, bias, y] = &self.others;
        let bind = |copy| pipeline.bind(device.inner(), &[copy, x, bias, y]);
        let bound: Vec<BindGroup> = self.copies.iter().map(bind).collect();
        let [outputs, inputs] = self.shape;
        let parameters = Linear::new([rows, outputs, inputs]);
        let groups = linear_groups(kernel, outputs, rows);
        device.fastest_dispatch(&pipeline, &bound, &parameters, groups, DISPATCHES).unwrap()
    }
}

fn measure(device: &GpuDevice, weights: WeightType, outputs: u32, inputs: u32) {
    let product = Product::new(device, weights, [outputs, inputs], 16);
    println!(
        "{weights} {outputs}×{inputs}, {:.1} MB: GB/s by rows, outputs, depth and teams",
        product.bytes as f64 / 1e6
    );
    for rows in [1, 2, 4, 8, 16] {
        let mut line = format!("  {rows} rows");
        for tile in TILES.into_iter().filter(|([of, ..], _)| *of == rows) {
            let speed = product.bytes as f64 / product.seconds(device, rows, tile) / 1e9;
            line += &format!("  {} {speed:.0}", name(tile));
        }
        println!("{line}");
    }
}

fn name(([rows, outputs, depth, teams], shares_inputs): Tile) -> String {
    let shared = if shares_inputs { " shared" } else { "" };
    format!("{rows}/{outputs}/{depth}/{teams}{shared}")
}

#[test]
#[ignore = "a measurement"]
fn prompts() {
    const ROWS: u32 = 128;
    let device = device();
    for weights in [WeightType::Bf16, WeightType::INT8, WeightType::Quantized(BlockType::Q4_K)] {
        for shape in SHAPES {
            let product = Product::new(&device, weights, shape, ROWS);
            let mut line = format!("{weights} {}×{}, TFLOP/s at {ROWS} rows:", shape[0], shape[1]);
            let operations = 2.0 * f64::from(ROWS) * f64::from(shape[0]) * f64::from(shape[1]);
            for tile in PROMPT_TILES {
                let seconds = product.seconds(&device, ROWS, tile);
                line += &format!("  {} {:.1}", name(tile), operations / seconds / 1e12);
            }
            println!("{line}");
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn dispatches() {
    let device = device();
    let [x, y] = [(), ()].map(|()| numbers(&device, 1 << 20));
    let measure = |kernel: Kernel, buffers: &[&Buffer], parameters: [u32; 5], groups| {
        let pipeline = device.pipeline(kernel);
        let bound = [pipeline.bind(device.inner(), buffers)];
        let seconds = device
            .fastest_dispatch(&pipeline, &bound, &parameters, groups, 20 * DISPATCHES)
            .unwrap();
        println!("{kernel:?} {parameters:?} {groups:?}: {:.2} µs", seconds * 1e6);
    };
    let one = 1.0_f32.to_bits();
    for [len, groups] in [[64, 1], [1 << 16, 1 << 10]] {
        measure(Kernel::Add, &[&x, &y], [len, one, 0, 0, 0], [groups, 1, 1]);
    }
    for width in [64, 2048, 4096, 8192] {
        let parameters = [width, Norm::HAS_WEIGHTS, one, one, 0];
        measure(Kernel::Norm, &[&x, &x, &x, &x, &y], parameters, [1, 1, 1]);
    }
}
