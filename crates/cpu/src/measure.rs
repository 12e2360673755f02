//! Measures the machine's speed at the operations of decoding: reading memory, and linear layers
//! with few rows.
//!
//! Linear layers alternate between copies of their weights that do not fit in the CPU's caches. The
//! results then apply to models in memory.

use crate::kernels::{Activations, Lines, PackedMatrix, linear};
use crate::team::Team;
use forerun_formats::{LoadError, WeightType};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The number of bytes that a bandwidth probe reads.
const PROBE_BYTES: usize = 512 << 20;
/// The minimum total size of a matrix's copies in bytes.
const ROTATION_BYTES: usize = 256 << 20;

/// A probe of the memory bandwidth: memory like that of weights, filled once.
pub struct BandwidthProbe {
    lines: Lines,
}

impl BandwidthProbe {
    /// Allocates and fills 512 MB.
    ///
    /// # Errors
    /// If the system has no memory left.
    pub fn new() -> Result<Self, LoadError> {
        let mut lines = Lines::zeroed(PROBE_BYTES)?;
        for (word, bytes) in (0_u64..).zip(lines.as_bytes_mut().as_chunks_mut().0) {
            *bytes = word.to_ne_bytes();
        }
        Ok(Self { lines })
    }

    /// Reads the memory with all threads of the team, once with each of several patterns. Returns
    /// the bandwidth of the fastest in bytes per second.
    #[must_use]
    pub fn read(&self, team: &Team) -> f64 {
        let seconds = PATTERNS.map(|pattern| self.read_by(pattern, team));
        PROBE_BYTES as f64 / seconds.into_iter().fold(f64::INFINITY, f64::min)
    }

    /// Returns the seconds in which the team reads the memory.
    fn read_by(&self, pattern: Pattern, team: &Team) -> f64 {
        let total = AtomicU64::new(0);
        let started = Instant::now();
        let lines: &[Line] = self.lines.as_bytes().as_chunks().0;
        team.for_each_range(lines.len(), 512, |range| {
            let sum = sum_lines(team, pattern, &lines[range]);
            total.fetch_add(sum, Ordering::Relaxed);
        });
        black_box(total.into_inner());
        started.elapsed().as_secs_f64()
    }
}

/// How a thread reads its part of the memory.
#[derive(Clone, Copy, Debug)]
struct Pattern {
    /// The number of places at which it reads in turn: 1, 2, 4 or 8. A processor prefetches only
    /// within a page, so one place may be slower.
    streams: usize,
    /// How many cache lines ahead it prefetches to the second cache. With 0, only the processor's
    /// own prefetchers work.
    prefetch: usize,
}

/// Which is the fastest differs from processor to processor, by up to a tenth.
const PATTERNS: [Pattern; 6] = [
    Pattern { streams: 1, prefetch: 0 },
    Pattern { streams: 1, prefetch: 64 },
    Pattern { streams: 2, prefetch: 32 },
    Pattern { streams: 4, prefetch: 0 },
    Pattern { streams: 4, prefetch: 32 },
    Pattern { streams: 8, prefetch: 32 },
];

/// A cache line.
type Line = [u8; 64];

/// Sums the lines, which only takes the time of reading them, with the widest available loads.
fn sum_lines(team: &Team, pattern: Pattern, lines: &[Line]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    match team.isa() {
        // SAFETY: the processor supports the team's `Isa`: `Team::with_isa` checks it.
        isa if isa >= crate::kernels::Isa::Avx512 => return unsafe { sum_avx512(pattern, lines) },
        // SAFETY: as above.
        crate::kernels::Isa::Avx2 => return unsafe { sum_avx2(pattern, lines) },
        _ => {}
    }
    let _ = team;
    sum_by(pattern, lines)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn sum_avx512(pattern: Pattern, lines: &[Line]) -> u64 {
    sum_by(pattern, lines)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_avx2(pattern: Pattern, lines: &[Line]) -> u64 {
    sum_by(pattern, lines)
}

#[inline(always)]
fn sum_by(Pattern { streams, prefetch }: Pattern, lines: &[Line]) -> u64 {
    match streams {
        1 => sum_streams::<1>(prefetch, lines),
        2 => sum_streams::<2>(prefetch, lines),
        4 => sum_streams::<4>(prefetch, lines),
        _ => sum_streams::<8>(prefetch, lines),
    }
}

#[inline(always)]
fn sum_streams<const STREAMS: usize>(prefetch: usize, lines: &[Line]) -> u64 {
    let stream = lines.len() / STREAMS;
    let mut sums = [[0_u64; 8]; STREAMS];
    for offset in 0..stream {
        for (number, sums) in sums.iter_mut().enumerate() {
            let line = &lines[number * stream + offset];
            // Also with 0: else the compiler gathers words of several lines, six times as slowly.
            #[cfg(target_arch = "x86_64")]
            {
                use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
                // SAFETY: prefetching is allowed at any address.
                unsafe {
                    _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().wrapping_add(prefetch * 64).cast());
                }
            }
            for (sum, &word) in sums.iter_mut().zip(line.as_chunks().0) {
                *sum = sum.wrapping_add(u64::from_ne_bytes(word));
            }
        }
    }
    let _ = prefetch;
    sums.as_flattened().iter().fold(0, |all, sum| all.wrapping_add(*sum))
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
        let mut copies: Vec<_> = (1..count).map(|_| first.copy()).collect();
        copies.push(first);
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
