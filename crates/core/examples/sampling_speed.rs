//! Measures the cost of sampling in microseconds per row, by vocabulary size and options.
//!
//! Run it with `cargo run --release -p forerun-core --example sampling_speed`. Logits follow Zipf's
//! law with a peaked and a flat exponent, in shuffled order. Each figure is the median of 25 runs,
//! which rotate over 8 rows. So rows come from the outer caches, as after a forward pass.

#![expect(clippy::unwrap_used, reason = "a measurement")]

use forerun_core::{
    Distribution, Key, KeyedRandomness, Purpose, RowLogprobs, Sampler, Sampling, SamplingOptions,
    TokenId, TokenTree, Verification,
};
use std::hint::black_box;
use std::time::Instant;

const ROWS: usize = 8;
const RUNS: usize = 25;
const NOISE: KeyedRandomness = KeyedRandomness { seed: 1, sample: 0 };

/// Returns logits `−exponent · ln(rank)` with a little noise, in shuffled order.
fn row(vocab_size: usize, exponent: f64, number: usize) -> Vec<f32> {
    let mut order: Vec<TokenId> = (0..vocab_size as TokenId).collect();
    let shuffle = |token: &TokenId| NOISE.gumbel(number, *token).to_bits();
    order.sort_by_key(shuffle);
    let mut logits = vec![0.0; vocab_size];
    for (rank, token) in order.into_iter().enumerate() {
        let noise = 0.1 * NOISE.gumbel(number + ROWS, token);
        logits[token as usize] = (10.0 - exponent * (rank as f64 + 1.0).ln() + noise) as f32;
    }
    logits
}

/// Prints the median time that `work` takes for one row.
fn measure<T>(name: &str, mut work: impl FnMut(usize) -> T) {
    let mut times: Vec<f64> = (0..RUNS)
        .map(|run| {
            let started = Instant::now();
            black_box(work(run % ROWS));
            started.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!("  {name:<34} {:>9.1} µs", times[RUNS / 2]);
}

fn main() {
    let sampling = |temperature, top_k, top_p| Sampling {
        options: SamplingOptions { temperature, top_k, top_p, ..SamplingOptions::default() },
        ..Sampling::greedy()
    };
    for vocab_size in [8_000, 152_000] {
        for (kind, exponent) in [("peaked", 3.0), ("flat", 1.1)] {
            println!("{vocab_size} tokens, {kind}");
            let rows: Vec<_> = (0..ROWS).map(|number| row(vocab_size, exponent, number)).collect();
            let unfiltered = sampling(1.0, 0, 1.0);
            let prefix: Vec<TokenId> = (0..1000).map(|at| at * at % 997).collect();
            let penalised = Sampling {
                options: SamplingOptions { repetition_penalty: 1.1, ..SamplingOptions::default() },
                ..Sampling::greedy()
            };
            let coupled = Sampling { verification: Verification::Coupled, ..unfiltered.clone() };
            let tree = TokenTree::new();
            for (name, sampling) in [
                ("greedy", Sampling::greedy()),
                ("temperature", unfiltered.clone()),
                ("top-k 50", sampling(1.0, 50, 1.0)),
                ("top-p 0.9", sampling(1.0, 0, 0.9)),
                ("top-k 50, top-p 0.9", sampling(1.0, 50, 0.9)),
                (
                    "min-p 0.05",
                    Sampling {
                        options: SamplingOptions { min_p: 0.05, ..unfiltered.options.clone() },
                        ..unfiltered.clone()
                    },
                ),
                ("temperature, coupled", coupled.clone()),
                ("greedy, repetition penalty", penalised.clone()),
            ] {
                let sampler = Sampler::new(&sampling, &prefix, prefix.len() / 2);
                measure(name, |row| sampler.distribution(&rows[row], &tree, None).unwrap());
            }
            for (name, sampling) in [
                ("greedy", Sampling::greedy()),
                ("temperature", unfiltered.clone()),
                ("coupled", coupled),
            ] {
                let name = format!("8 candidates, {name}");
                let sampler = Sampler::new(&sampling, &prefix, 0);
                measure(&name, |row| sampler.candidates(&rows[row], &tree, None, 8).unwrap());
            }
            measure("counting 1000 penalised tokens", |_| {
                black_box(Sampler::new(&penalised, &prefix, 0));
            });
            let point = Distribution::point(5);
            measure("20 log-probabilities", |row| RowLogprobs::new(&rows[row], &point, 20, 0));
            let sampler = Sampler::new(&unfiltered, &prefix, 0);
            let distribution = |row: &Vec<f32>| sampler.distribution(row, &tree, None).unwrap();
            let distributions: Vec<Distribution> = rows.iter().map(distribution).collect();
            let key = |position| Key { position, purpose: Purpose::Sample, candidate: 0 };
            measure("drawing a token", |row| distributions[row].pick(&NOISE, key(row)));
            measure("residual", |row| {
                distributions[row].residual(&distributions[(row + 1) % ROWS])
            });
            measure("removing a token", |row| distributions[row].without(5));
        }
    }
}
