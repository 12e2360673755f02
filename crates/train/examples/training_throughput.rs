//! Measures training throughput in tokens per second, and as a share of the CPU's peak throughput
//! in matrix products.
//!
//! `cargo run --release -p forerun-train --example training_throughput -- [hidden layers intermediate heads kv_heads vocabulary context sequences]`

#![expect(clippy::unwrap_used, reason = "an example")]

use candle_core::{Device, Tensor};
use forerun_formats::checkpoint::random::example_config;
use forerun_formats::{Config, Family};
use forerun_train::{Llama, Optimizer, OptimizerOptions, Targets};
use std::time::Instant;

fn main() {
    let arguments: Vec<usize> =
        std::env::args().skip(1).map(|size| size.parse().unwrap()).collect();
    let size = |index: usize, default| arguments.get(index).copied().unwrap_or(default);
    let (hidden, heads) = (size(0, 256), size(3, 8));
    let (context, sequences) = (size(6, 512), size(7, 8));
    let config = Config {
        family: Family::Llama,
        hidden_size: hidden,
        num_hidden_layers: size(1, 8),
        intermediate_size: size(2, 704),
        num_attention_heads: heads,
        num_key_value_heads: size(4, 4),
        head_dim: hidden / heads,
        vocab_size: size(5, 4096),
        max_position_embeddings: context,
        tie_word_embeddings: true,
        ..example_config()
    };
    let model = Llama::random(&config, 1).unwrap();
    let mut optimizer = Optimizer::new(OptimizerOptions::default(), model.parameters());
    let tokens = context * sequences;
    let token = |index: usize| ((index * 7919 + 13) % config.vocab_size) as u32;
    let inputs: Vec<u32> = (0..tokens).map(token).collect();
    let targets: Vec<u32> = (1..=tokens).map(token).collect();
    let mut seconds = [0.0; 4];
    let rounds = 6;
    for round in 0..rounds + 2 {
        let mut last = Instant::now();
        let mut lap = |part: usize| {
            let now = Instant::now();
            if round >= 2 {
                seconds[part] += (now - last).as_secs_f64() / f64::from(rounds);
            }
            last = now;
        };
        let hidden = model.hidden(&inputs, context).unwrap();
        lap(0);
        let (loss, _) = model.loss(&hidden, Targets::mean_of(targets.clone()), true).unwrap();
        lap(1);
        let gradients = loss.backward().unwrap();
        lap(2);
        let gradients: Vec<Vec<f32>> = optimizer
            .parameters()
            .iter()
            .map(|parameter| {
                let gradient = gradients.get(&parameter.values).unwrap();
                gradient.flatten_all().unwrap().to_vec1::<f32>().unwrap()
            })
            .collect();
        optimizer.step(&gradients, 1e-3).unwrap();
        lap(3);
    }
    let total: f64 = seconds.iter().sum();
    let per_token = 6.0 * model.product_weights() as f64;
    let rate = tokens as f64 * per_token / total / 1e9;
    let limit = peak_gflops();
    println!(
        "{:.2}M weights in matrix products, {tokens} tokens per pass",
        model.product_weights() as f64 / 1e6
    );
    println!(
        "forward pass of the layers {:.3} s, head {:.3} s, backward pass {:.3} s, optimizer {:.3} s",
        seconds[0], seconds[1], seconds[2], seconds[3]
    );
    println!(
        "{:.0} tokens/s, {rate:.0} of {limit:.0} GFLOP/s: {:.0} %",
        tokens as f64 / total,
        100.0 * rate / limit
    );
}

/// Measures the throughput of candle's large matrix products in GFLOP/s: the best of several runs.
fn peak_gflops() -> f64 {
    let (m, n, k) = (2048, 2048, 1024);
    let random = |rows, columns| Tensor::rand(-1_f32, 1.0, (rows, columns), &Device::Cpu).unwrap();
    let (a, b) = (random(m, k), random(k, n));
    (0..10)
        .map(|_| {
            let start = Instant::now();
            let _ = a.matmul(&b).unwrap();
            2.0 * (m * n * k) as f64 / start.elapsed().as_secs_f64() / 1e9
        })
        .fold(0.0, f64::max)
}
