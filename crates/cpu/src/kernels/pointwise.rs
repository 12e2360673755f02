//! Norms, rotary position embedding (RoPE) and activation functions.

use super::Isa;
use super::shared::SharedSlice;
use crate::team::Team;
use forerun_formats::Attention;
use forerun_vector::{Lanes, Vectorized, dot, exp, vectorize};

/// Computes the RMSNorm of every row: `x / rms(x) · weight`. `x`, `out`: `[rows, weight.len()]`.
pub(crate) fn rms_norm(isa: Isa, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    vectorize(isa, RmsNorm { x, weight, epsilon, out });
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    epsilon: f32,
    out: &'a mut [f32],
}

impl Vectorized for RmsNorm<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let size = self.weight.len();
        for (x, out) in self.x.chunks_exact(size).zip(self.out.chunks_exact_mut(size)) {
            let scale = rms_scale::<L>(x, self.epsilon);
            for ((out, &x), &weight) in out.iter_mut().zip(x).zip(self.weight) {
                *out = x * scale * weight;
            }
        }
    }
}

/// Returns the factor that scales a vector's root mean square to 1.
#[inline(always)]
fn rms_scale<L: Lanes>(x: &[f32], epsilon: f32) -> f32 {
    let mean = dot::<L>(x, x) / x.len() as f32;
    1.0 / (mean + epsilon).sqrt()
}

/// Computes the RMSNorm of every head in place. `heads`: `[n_heads, weight.len()]`.
pub(crate) fn norm_heads(isa: Isa, heads: &mut [f32], weight: &[f32], epsilon: f32) {
    vectorize(isa, NormHeads { heads, weight, epsilon });
}

struct NormHeads<'a> {
    heads: &'a mut [f32],
    weight: &'a [f32],
    epsilon: f32,
}

impl Vectorized for NormHeads<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for head in self.heads.chunks_exact_mut(self.weight.len()) {
            let scale = rms_scale::<L>(head, self.epsilon);
            for (x, &weight) in head.iter_mut().zip(self.weight) {
                *x = *x * scale * weight;
            }
        }
    }
}

/// Computes `x += y · factor`. The product is rounded.
pub(crate) fn add_scaled(isa: Isa, x: &mut [f32], y: &[f32], factor: f32) {
    vectorize(isa, AddScaled { x, y, factor });
}

struct AddScaled<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
    factor: f32,
}

impl Vectorized for AddScaled<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (x, &y) in self.x.iter_mut().zip(self.y) {
            *x += y * self.factor;
        }
    }
}

/// Computes `x /= divisor`.
pub(crate) fn divide(isa: Isa, x: &mut [f32], divisor: f32) {
    vectorize(isa, Divide { x, divisor });
}

struct Divide<'a> {
    x: &'a mut [f32],
    divisor: f32,
}

impl Vectorized for Divide<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for x in self.x.iter_mut() {
            *x /= self.divisor;
        }
    }
}

/// Computes `out = silu(gate) · up`. `gate_up`: `[rows, 2, size]`, `out`: `[rows, size]`.
pub(crate) fn silu_times(team: &Team, gate_up: &[f32], size: usize, out: &mut [f32]) {
    let out = SharedSlice::new(out);
    team.for_each_range(size, 64, |range| {
        for (row, gate_up) in gate_up.chunks_exact(2 * size).enumerate() {
            let (gate, up) = gate_up.split_at(size);
            // SAFETY: members write to disjoint ranges of every row.
            let out = unsafe { out.range_mut(row * size + range.start..row * size + range.end) };
            vectorize(
                team.isa(),
                SiluTimes { gate: &gate[range.clone()], up: &up[range.clone()], out },
            );
        }
    });
}

struct SiluTimes<'a> {
    gate: &'a [f32],
    up: &'a [f32],
    out: &'a mut [f32],
}

impl Vectorized for SiluTimes<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for ((out, &gate), &up) in self.out.iter_mut().zip(self.gate).zip(self.up) {
            *out = gate / (1.0 + exp(-gate)) * up;
        }
    }
}

/// Rotary position embedding (Su et al. 2021) of the pairs `(i, i + head_dim/2)`.
#[derive(PartialEq)]
pub(crate) struct Rope {
    /// The frequency of each pair: `[head_dim/2]`.
    frequencies: Vec<f32>,
    head_dim: usize,
}

impl Rope {
    /// Creates the position embedding of an attention layer, if it has one.
    pub(crate) fn new(attention: &Attention) -> Option<Self> {
        let (rope, head_dim) = (attention.rope.as_ref()?, attention.head_dim);
        let frequencies = (0..head_dim / 2).map(|pair| rope.frequency(pair, head_dim));
        Some(Self { frequencies: frequencies.collect(), head_dim })
    }

    /// Writes the cosines, then the sines, of one position to `table`: `[2, head_dim/2]`.
    pub(crate) fn table(&self, position: usize, table: &mut [f32]) {
        let (cosines, sines) = table.split_at_mut(self.head_dim / 2);
        for ((cosine, sine), frequency) in cosines.iter_mut().zip(sines).zip(&self.frequencies) {
            let angle = f64::from(position as f32 * frequency);
            *cosine = angle.cos() as f32;
            *sine = angle.sin() as f32;
        }
    }

    /// Returns the length of a position's table.
    pub(crate) fn table_len(&self) -> usize {
        self.head_dim / 2 * 2
    }

    /// Rotates all heads of one row in place: `[n_heads, head_dim]`.
    pub(crate) fn rotate(&self, isa: Isa, heads: &mut [f32], table: &[f32]) {
        vectorize(isa, Rotate { heads, table, head_dim: self.head_dim });
    }
}

struct Rotate<'a> {
    heads: &'a mut [f32],
    table: &'a [f32],
    head_dim: usize,
}

impl Vectorized for Rotate<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let half = self.head_dim / 2;
        let (cosines, sines) = self.table.split_at(half);
        for head in self.heads.chunks_exact_mut(self.head_dim) {
            let (low, high) = head.split_at_mut(half);
            for (((low, high), &cosine), &sine) in low.iter_mut().zip(high).zip(cosines).zip(sines)
            {
                let (a, b) = (*low, *high);
                *low = a * cosine - b * sine;
                *high = b * cosine + a * sine;
            }
        }
    }
}
