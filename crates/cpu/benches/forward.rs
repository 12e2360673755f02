//! Whole forward passes of random models on one thread, for different numbers of rows and of past
//! tokens. More past tokens make attention slower.
//!
//! `cargo bench -p forerun-cpu --bench forward -- --quick`; without `--quick` it measures longer.

#![expect(clippy::unwrap_used, reason = "benches")]

mod common;

use common::{CONTEXT, mid, random};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use forerun_cpu::{Team, Transformer, Weights};
use forerun_formats::checkpoint::random::example_config;
use forerun_formats::{Config, WeightType};
use forerun_model::ModelProbe;
use std::sync::Arc;
use std::time::Duration;

const ROWS: [usize; 2] = [1, 8];
const PASTS: [usize; 2] = [128, 2048];

/// A model of 0.6 million parameters, which fits in the CPU cache.
fn tiny() -> Config {
    Config {
        hidden_size: 128,
        intermediate_size: 352,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 32,
        vocab_size: 1024,
        max_position_embeddings: CONTEXT,
        ..example_config()
    }
}

fn forward(criterion: &mut Criterion) {
    for (name, config) in [("tiny", tiny()), ("mid", mid())] {
        let (_folder, checkpoint) = random(&config).unwrap();
        for weight_type in [WeightType::F32, WeightType::Bf16, WeightType::INT8] {
            let weights = Arc::new(Weights::load_as(&checkpoint, weight_type).unwrap());
            let mut group = criterion.benchmark_group(format!("forward {name} {weight_type}"));
            group.sample_size(20).warm_up_time(Duration::from_millis(500));
            group.measurement_time(Duration::from_secs(2));
            for past in PASTS {
                let team = Arc::new(Team::single_thread());
                let model = Transformer::new(Arc::clone(&weights), team);
                let mut probe = ModelProbe::new(model, past, ROWS[1]);
                assert_eq!(probe.past(), past);
                for rows in ROWS {
                    let id = BenchmarkId::new(format!("past {past}"), rows);
                    group.bench_function(id, |bencher| {
                        bencher.iter_custom(|count| {
                            let seconds = (0..count).map(|_| probe.run(rows)).sum();
                            Duration::from_secs_f64(seconds)
                        });
                    });
                }
            }
            group.finish();
        }
    }
}

criterion_group!(benches, forward);
criterion_main!(benches);
