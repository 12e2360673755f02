//! How fast this machine is at what decoding needs: reading memory, and linear layers of few rows.
//!
//! Weights rotate over copies that no cache holds, so that a figure is that of a model in memory.

use crate::kernels::{Activations, PackedMatrix, WeightType, linear};
use crate::team::Team;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes that a bandwidth probe reads.
const PROBE_BYTES: usize = 512 << 20;
/// How far ahead it asks for them, in words of a stream.
#[cfg(target_arch = "x86_64")]
const PREFETCH: usize = 256;
/// Bytes over which a matrix's copies are spread, at the least.
const ROTATION_BYTES: usize = 256 << 20;

/// Memory to read, filled once.
pub struct BandwidthProbe {
    words: Vec<u64>,
}

impl Default for BandwidthProbe {
    fn default() -> Self {
        Self::new()
    }
}

impl BandwidthProbe {
    /// Takes and touches 512 MB.
    #[must_use]
    pub fn new() -> Self {
        Self { words: (0..PROBE_BYTES as u64 / 8).collect() }
    }

    /// Reads everything once with all members of the team; bytes a second.
    #[must_use]
    pub fn read(&self, team: &Team) -> f64 {
        let total = AtomicU64::new(0);
        let started = Instant::now();
        team.split(self.words.len(), 4096, |range| {
            let sum = sum_words(team, &self.words[range]);
            total.fetch_add(sum, Ordering::Relaxed);
        });
        black_box(total.into_inner());
        PROBE_BYTES as f64 / started.elapsed().as_secs_f64()
    }
}

/// A sum that does nothing but read, by the widest loads there are.
fn sum_words(team: &Team, words: &[u64]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if team.isa() == crate::kernels::Isa::Avx512 {
        // SAFETY: a team's `Isa` is one that the processor has (`Team::with_isa` checks).
        return unsafe { sum_avx512(words) };
    }
    let _ = team;
    words.iter().fold(0, |sum: u64, &word| sum.wrapping_add(word))
}

/// Reads two streams at once, as the kernels do: one alone falls 10 % short, since the processor
/// fetches ahead only within a page.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn sum_avx512(words: &[u64]) -> u64 {
    use std::arch::x86_64::*;
    /// Words of a cache line.
    const LINE: usize = 8;
    const STREAMS: usize = 2;
    let stream = words.len() / STREAMS / LINE * LINE;
    let mut sums = [_mm512_setzero_si512(); STREAMS];
    for at in (0..stream).step_by(LINE) {
        for (number, sum) in sums.iter_mut().enumerate() {
            let line = &words[number * stream + at..][..LINE];
            // SAFETY: a line has 8 words; prefetching may point anywhere.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().wrapping_add(PREFETCH).cast());
                *sum = _mm512_add_epi64(*sum, _mm512_loadu_si512(line.as_ptr().cast()));
            }
        }
    }
    let sum = sums.into_iter().fold(_mm512_setzero_si512(), |a, b| _mm512_add_epi64(a, b));
    _mm512_reduce_add_epi64(sum) as u64
}

/// A linear layer to be measured, from memory or from a cache.
pub struct LinearProbe {
    copies: Vec<PackedMatrix>,
    next: usize,
    activations: Activations,
    x: Vec<f32>,
    out: Vec<f32>,
}

impl LinearProbe {
    /// A layer of pseudo-random weights, in as many copies as no cache holds.
    #[must_use]
    pub fn new(weight_type: WeightType, outputs: usize, inputs: usize) -> Self {
        Self::spread(weight_type, outputs, inputs, ROTATION_BYTES)
    }

    /// The same layer in one copy, which stays in whatever cache has room for it.
    #[must_use]
    pub fn resident(weight_type: WeightType, outputs: usize, inputs: usize) -> Self {
        Self::spread(weight_type, outputs, inputs, 1)
    }

    /// Copies of a layer that take so many bytes together, at the least.
    fn spread(weight_type: WeightType, outputs: usize, inputs: usize, bytes: usize) -> Self {
        let value = |index: usize| ((index * 7_919 + 13) % 1_009) as f32 / 1_009.0 - 0.5;
        let weights: Vec<f32> = (0..outputs * inputs).map(value).collect();
        let first = PackedMatrix::pack(weight_type, &weights, inputs);
        let count = bytes.div_ceil(first.bytes());
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

    /// Bytes of the packed weights.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.copies[0].bytes()
    }

    /// Seconds of one product with this many rows, by the next copy.
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
