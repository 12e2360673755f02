//! Linear layers on one thread, for different weight types and numbers of rows, with weights in the
//! CPU cache and in memory.
//!
//! `cargo bench -p forerun-cpu --bench linear -- --quick`; without `--quick` it measures longer.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use forerun_cpu::Team;
use forerun_cpu::measure::LinearProbe;
use forerun_formats::{BlockType, WeightType};
use std::time::Duration;

const TYPES: [WeightType; 6] = [
    WeightType::F32,
    WeightType::Bf16,
    WeightType::F16,
    WeightType::INT8,
    WeightType::Quantized(BlockType::Q4_K),
    WeightType::Quantized(BlockType::Q6_K),
];
const ROWS: [usize; 6] = [1, 4, 8, 16, 32, 64];

type MakeProbe = fn(WeightType, usize, usize) -> LinearProbe;

fn linear(criterion: &mut Criterion) {
    let team = Team::single_thread();
    // Sizes are [outputs, inputs].
    let layers: [(&str, MakeProbe, [usize; 2]); 2] = [
        ("linear in cache 1024x1024", LinearProbe::resident, [1024, 1024]),
        ("linear in memory 5632x2048", LinearProbe::new, [5632, 2048]),
    ];
    for (name, make, [outputs, inputs]) in layers {
        let mut group = criterion.benchmark_group(name);
        group.sample_size(20).warm_up_time(Duration::from_millis(500));
        group.measurement_time(Duration::from_secs(2));
        for weight_type in TYPES {
            let mut probe = make(weight_type, outputs, inputs);
            group.throughput(Throughput::Bytes(probe.bytes() as u64));
            for rows in ROWS {
                group.bench_function(BenchmarkId::new(weight_type.to_string(), rows), |bencher| {
                    bencher.iter_custom(|count| {
                        let seconds = (0..count).map(|_| probe.run(&team, rows)).sum();
                        Duration::from_secs_f64(seconds)
                    });
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, linear);
criterion_main!(benches);
