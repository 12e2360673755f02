//! Measures memory bandwidth, products with matrices and what rows of logits take to come home, on
//! the GPU that `FORERUN_GPU` names (by default the first one):
//! `cargo test --release -p forerun-gpu --lib -- --ignored --nocapture kernel_bench`.

use crate::best::{SelectedRows, Selection};
use crate::device::GpuDevice;
use crate::kernel::{Kernel, WEIGHT_TYPES};
use crate::matrix::row_bytes;
use crate::pacer::Pacer;
use crate::parameters::{Linear, Norm};
use crate::product::linear_groups;
use crate::product_shapes::numbers;
use crate::recorder::{BoundBuffers, Recorder};
use forerun_core::{BestTokens, RowLogits, Sampler, Sampling, TokenTree};
use forerun_formats::{BlockType, WeightType};
use std::sync::Arc;
use std::time::Instant;
use wgpu::{BindGroup, Buffer};

/// Bytes of the weights that are read in turn, so that no cache holds them.
const ROTATION_BYTES: u64 = 512 << 20;

/// Dispatches of a measured round.
const DISPATCHES: usize = 24;

/// The shapes of products that are measured: outputs and inputs.
const SHAPES: [[u32; 2]; 3] = [[28_672, 4096], [4096, 14_336], [4096, 4096]];

/// A shape of products: the rows and outputs of a team, its reads at once, the teams of a
/// workgroup, and whether they share inputs.
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
    for weights in WEIGHT_TYPES {
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

/// The time from the logits of a pass to its greedy tokens on the processor: of whole rows, and of
/// selected tokens.
#[test]
#[ignore = "a measurement"]
fn rows_of_logits() {
    const TOKENS: u32 = 128_256;
    let device = device();
    let sampling = Sampling::greedy();
    let sampler = Sampler::new(&sampling, &[], 0);
    let token = |row: RowLogits<'_>| sampler.distribution(row, &TokenTree::new(), None).unwrap();
    for rows in [1, 8, 32] {
        let row_bytes = u64::from(TOKENS) * 4;
        let bytes = u64::from(rows) * row_bytes;
        let (logits, staging) =
            (numbers(&device, bytes), device.allocate_staging("rows", bytes).unwrap());
        let best = device.allocate("tokens", bytes).unwrap();
        let (mut bound, mut pacer) = (BoundBuffers::default(), Pacer::default());
        let mut whole = || {
            let mut recorder = Recorder::new(&device, &mut bound, &mut pacer);
            recorder.copy((&logits, 0), (&staging, 0), bytes);
            let submission = recorder.finish().submission;
            let mut all = vec![0.0; (bytes / 4) as usize];
            let read = |bytes: &[u8]| all.copy_from_slice(bytemuck::cast_slice(bytes));
            device.read(&staging, bytes, submission, read).unwrap();
            let rows = all.chunks(TOKENS as usize);
            rows.map(|row| token(RowLogits::Full(row))).collect::<Vec<_>>()
        };
        let (seconds, expected) = fastest(&mut whole);
        println!("{rows} rows: whole {:.3} ms, {bytes} bytes", seconds * 1e3);
        let (mut bound, mut pacer) = (BoundBuffers::default(), Pacer::default());
        for count in [1, 20] {
            let selection = Selection { count, tokens: TOKENS };
            let (first, stride, between) = (0, TOKENS, rows * count);
            let selected = SelectedRows { rows, first, stride, to: 0, between };
            let bytes = u64::from(rows * count) * 8;
            let mut part = || {
                let mut recorder = Recorder::new(&device, &mut bound, &mut pacer);
                recorder.select_best((&logits, &best), selection, selected);
                recorder.copy((&best, 0), (&staging, 0), bytes);
                let submission = recorder.finish().submission;
                let mut pairs: Vec<[u32; 2]> = Vec::new();
                let read = |bytes: &[u8]| pairs.extend_from_slice(bytemuck::cast_slice(bytes));
                device.read(&staging, bytes, submission, read).unwrap();
                let rows = pairs.chunks(count as usize).map(|row| {
                    let ranked = row.iter().map(|&[token, bits]| (token, f32::from_bits(bits)));
                    BestTokens { ranked: ranked.collect(), tokens: TOKENS as usize }
                });
                rows.map(|row| token(RowLogits::Best(&row))).collect::<Vec<_>>()
            };
            let (seconds, found) = fastest(&mut part);
            assert_eq!(found, expected);
            println!("  best {count}: {:.3} ms, {bytes} bytes", seconds * 1e3);
        }
    }
}

/// Returns the shortest of several times in seconds, and the result.
fn fastest<T>(run: &mut dyn FnMut() -> T) -> (f64, T) {
    let timed = |run: &mut dyn FnMut() -> T| {
        let started = Instant::now();
        let result = run();
        (started.elapsed().as_secs_f64(), result)
    };
    let (mut seconds, mut result) = timed(run);
    for _ in 0..20 {
        let next = timed(run);
        (seconds, result) = (seconds.min(next.0), next.1);
    }
    (seconds, result)
}
