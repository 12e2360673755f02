//! Reading and packing the weights of a random model, for different weight types, from a file in
//! the page cache.
//!
//! `cargo bench -p forerun-cpu --bench load -- --quick`; without `--quick` it measures longer.

#![expect(clippy::unwrap_used, reason = "benches")]

mod common;

use common::{mid, random};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use forerun_cpu::Weights;
use forerun_formats::WeightType;
use std::time::Duration;

fn load(criterion: &mut Criterion) {
    let (_folder, checkpoint) = random(&mid()).unwrap();
    let mut group = criterion.benchmark_group("load mid");
    group.sample_size(20).warm_up_time(Duration::from_millis(500));
    group.measurement_time(Duration::from_secs(2));
    group.throughput(Throughput::Bytes(checkpoint.weights_bytes()));
    for weight_type in [WeightType::F32, WeightType::Bf16, WeightType::F16, WeightType::INT8] {
        group.bench_function(weight_type.to_string(), |bencher| {
            // The weights are dropped outside the measured time.
            bencher.iter_with_large_drop(|| Weights::load_as(&checkpoint, weight_type).unwrap());
        });
    }
    group.finish();
}

criterion_group!(benches, load);
criterion_main!(benches);
