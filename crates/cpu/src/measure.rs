//! Measures the machine's speed at the operations of decoding: reading memory, and linear layers
//! with few rows.
//!
//! Linear layers alternate between copies of their weights that do not fit in the CPU's caches. The
//! results then apply to models in memory.

use crate::kernels::{Activations, PackedMatrix, linear};
use crate::team::Team;
use forerun_formats::WeightType;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The number of bytes that a bandwidth probe reads.
const PROBE_BYTES: usize = 512 << 20;
/// The prefetch distance in words of a stream.
#[cfg(target_arch = "x86_64")]
const PREFETCH: usize = 256;
/// The minimum total size of a matrix's copies in bytes.
const ROTATION_BYTES: usize = 256 << 20;

/// A probe of the memory bandwidth: a region of memory, filled once.
pub struct BandwidthProbe {
    words: Vec<u64>,
}

impl Default for BandwidthProbe {
    fn default() -> Self {
        Self::new()
    }
}

impl BandwidthProbe {
    /// Allocates and fills 512 MB.
    #[must_use]
    pub fn new() -> Self {
        Self { words: (0..PROBE_BYTES as u64 / 8).collect() }
    }

    /// Reads the memory once with all threads of the team. Returns the bandwidth in bytes per
    /// second.
    #[must_use]
    pub fn read(&self, team: &Team) -> f64 {
        let total = AtomicU64::new(0);
        let started = Instant::now();
        team.for_each_range(self.words.len(), 4096, |range| {
            let sum = sum_words(team, &self.words[range]);
            total.fetch_add(sum, Ordering::Relaxed);
        });
        black_box(total.into_inner());
        PROBE_BYTES as f64 / started.elapsed().as_secs_f64()
    }
}

/// Sums the words, which only takes the time of reading them, with the widest available loads.
fn sum_words(team: &Team, words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if team.isa() >= crate::kernels::Isa::Avx512 {
        // SAFETY: the processor supports the team's `Isa`: `Team::with_isa` checks it.
        return unsafe { sum_avx512(words) };
    }
    let _ = team;
    words.iter().fold(0, |sum: u64, &word| sum.wrapping_add(word))
}

/// Sums two streams in parallel, as the kernels do. One stream alone is 10 % slower, because the
/// processor prefetches only within a page.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn sum_avx512(words: &[u64]) -> u64 {
    use std::arch::x86_64::*;
    /// The number of words in a cache line.
    const LINE: usize = 8;
    const STREAMS: usize = 2;
    let stream = words.len() / STREAMS / LINE * LINE;
    let mut sums = [_mm512_setzero_si512(); STREAMS];
    for offset in (0..stream).step_by(LINE) {
        for (number, sum) in sums.iter_mut().enumerate() {
            let line = &words[number * stream + offset..][..LINE];
            // SAFETY: a line has 8 words, and prefetching is allowed at any address.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(PREFETCH).cast());
                *sum = _mm512_add_epi64(*sum, _mm512_loadu_si512(line.as_ptr().cast()));
            }
        }
    }
    let sum = sums.into_iter().fold(_mm512_setzero_si512(), |a, b| _mm512_add_epi64(a, b));
    _mm512_reduce_add_epi64(sum) as u64
}

/// A linear layer for measurements, with weights in memory or in a CPU cache.
pub struct LinearProbe {
    copies: Vec<PackedMatrix>,
    next: usize,
    activations: Activations,
    x: Vec<f32>,
    out: Vec<f32>,
}

/// The most copies of a layer. Very small ones need more to exceed the caches, but nobody measures
/// their bandwidth.
const MOST_COPIES: usize = 4096;

impl LinearProbe {
    /// Creates a layer of pseudo-random weights, with enough copies to exceed the CPU's caches.
    #[must_use]
    pub fn new(weight_type: WeightType, outputs: usize, inputs: usize) -> Self {
        Self::with_copies(weight_type, outputs, inputs, ROTATION_BYTES)
    }

    /// Creates a layer with one copy of its weights, which stays in a CPU cache if it fits.
    #[must_use]
    pub fn resident(weight_type: WeightType, outputs: usize, inputs: usize) -> Self {
        Self::with_copies(weight_type, outputs, inputs, 1)
    }

    /// Creates a layer with copies of its weights that together have at least `min_bytes` bytes.
    fn with_copies(
        weight_type: WeightType,
        outputs: usize,
        inputs: usize,
        min_bytes: usize,
    ) -> Self {
        let value = |index: usize| ((index * 7_919 + 13) % 1_009) as f32 / 1_009.0 - 0.5;
        let weights: Vec<f32> = (0..outputs * inputs).map(value).collect();
        let first = PackedMatrix::pack(weight_type, &weights, inputs);
        let count = min_bytes.div_ceil(first.bytes().max(1)).min(MOST_COPIES);
        let mut copies = vec![first];
        copies.resize_with(count, || PackedMatrix::pack(weight_type, &weights, inputs));
        Self {
            copies,
            next: 0,
            activations: Activations::default(),
            x: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Returns the size of one copy of the packed weights in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.copies[0].bytes()
    }

    /// Runs the layer on `rows` rows with the next copy of its weights. Returns the time in
    /// seconds.
    pub fn run(&mut self, team: &Team, rows: usize) -> f64 {
        let weights = &self.copies[self.next % self.copies.len()];
        self.next += 1;
        self.x.resize(rows * weights.inputs(), 0.25);
        self.out.resize(rows * weights.outputs(), 0.0);
        let started = Instant::now();
        linear(team, &self.x, weights, &mut self.activations, &mut self.out);
        black_box(&self.out);
        started.elapsed().as_secs_f64()
    }
}
