//! Norms, rotary position embedding (RoPE) and activation functions.

use super::Isa;
use super::shared::SharedSlice;
use crate::team::Team;
use forerun_formats::{Activation, Attention, Mlp, Norm};
use forerun_vector::{Lanes, Vectorized, dot, exp, gelu, gelu_tanh, sigmoid, sum, tanh, vectorize};

/// Computes the norm of every row: `x / rms(x) · weight`, or of the row without its mean, plus the
/// bias. `x`, `out`: `[rows, weight.len()]`.
pub(crate) fn norm_rows(isa: Isa, kind: Norm, x: &[f32], norm: &NormWeights, out: &mut [f32]) {
    vectorize(isa, NormRows { kind, x, norm, out });
}

/// The weights of a norm of rows.
#[derive(Clone)]
pub(crate) struct NormWeights {
    pub(crate) weight: Vec<f32>,       // [size]
    pub(crate) bias: Option<Vec<f32>>, // [size]
    pub(crate) epsilon: f32,
}

struct NormRows<'a> {
    kind: Norm,
    x: &'a [f32],
    norm: &'a NormWeights,
    out: &'a mut [f32],
}

impl Vectorized for NormRows<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let NormWeights { weight, bias, epsilon } = self.norm;
        let size = weight.len();
        for (x, out) in self.x.chunks_exact(size).zip(self.out.chunks_exact_mut(size)) {
            out.copy_from_slice(x);
            scale::<L>(self.kind, out, weight, *epsilon);
            if let Some(bias) = bias {
                for (out, &bias) in out.iter_mut().zip(bias) {
                    *out += bias;
                }
            }
        }
    }
}

/// Computes the norm of a vector in place, without a bias.
#[inline(always)]
fn scale<L: Lanes>(kind: Norm, x: &mut [f32], weight: &[f32], epsilon: f32) {
    if kind.is_layer_norm() {
        let mean = sum::<L>(x) / x.len() as f32;
        for x in x.iter_mut() {
            *x -= mean;
        }
    }
    let mean_square = dot::<L>(x, x) / x.len() as f32;
    let scale = 1.0 / (mean_square + epsilon).sqrt();
    for (x, &weight) in x.iter_mut().zip(weight) {
        *x = *x * scale * weight;
    }
}

/// Computes the norm of parts of a row in place, each of `width` numbers. `x`: `[parts, width]`.
/// Either all parts have the same weights, or each has its own.
pub(crate) fn norm_parts(
    isa: Isa,
    kind: Norm,
    x: &mut [f32],
    (weights, width): (&[f32], usize),
    epsilon: f32,
) {
    vectorize(isa, NormParts { kind, x, weights, width, epsilon });
}

struct NormParts<'a> {
    kind: Norm,
    x: &'a mut [f32],
    weights: &'a [f32],
    width: usize,
    epsilon: f32,
}

impl Vectorized for NormParts<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let weights = self.weights.chunks_exact(self.width).cycle();
        for (part, weight) in self.x.chunks_exact_mut(self.width).zip(weights) {
            scale::<L>(self.kind, part, weight, self.epsilon);
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

/// Multiplies rows by sigmoids: `x *= sigmoid(gates)`. `x`: `[rows, width]`. The gates are the
/// numbers from `first` on of rows of `stride` numbers.
pub(crate) fn gate_rows(
    team: &Team,
    x: &mut [f32],
    width: usize,
    gates: &[f32],
    (first, stride): (usize, usize),
) {
    let rows = x.len() / width;
    let x = SharedSlice::new(x);
    team.for_each_range(rows, 1, |range| {
        for row in range {
            // SAFETY: members write to disjoint rows.
            let x = unsafe { x.range_mut(row * width..(row + 1) * width) };
            let gates = &gates[row * stride + first..][..width];
            vectorize(team.isa(), Gate { x, gates });
        }
    });
}

struct Gate<'a> {
    x: &'a mut [f32],
    gates: &'a [f32],
}

impl Vectorized for Gate<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (x, &gate) in self.x.iter_mut().zip(self.gates) {
            *x *= sigmoid(gate);
        }
    }
}

/// Limits numbers: `x = cap · tanh(x / cap)`.
pub(crate) fn soft_cap(isa: Isa, x: &mut [f32], cap: f32) {
    vectorize(isa, SoftCap { x, cap });
}

struct SoftCap<'a> {
    x: &'a mut [f32],
    cap: f32,
}

impl Vectorized for SoftCap<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for x in self.x.iter_mut() {
            *x = self.cap * tanh(*x / self.cap);
        }
    }
}

/// Computes the inner activations of an MLP: `out = activation(gate) · up`, with `x`:
/// `[rows, 2, size]`, or without a gate `out = activation(x)`, with `x`: `[rows, size]`. `out`:
/// `[rows, size]`.
pub(crate) fn activate(team: &Team, mlp: &Mlp, x: &[f32], out: &mut [f32]) {
    let size = mlp.intermediate_size;
    let (activation, width) = (mlp.activation, if mlp.gated { 2 * size } else { size });
    let out = SharedSlice::new(out);
    team.for_each_range(size, 64, |range| {
        for (row, x) in x.chunks_exact(width).enumerate() {
            let (first, second) = x.split_at(size);
            let up = mlp.gated.then(|| &second[range.clone()]);
            // SAFETY: members write to disjoint ranges of every row.
            let out = unsafe { out.range_mut(row * size + range.start..row * size + range.end) };
            vectorize(team.isa(), Activate { activation, x: &first[range.clone()], up, out });
        }
    });
}

struct Activate<'a> {
    activation: Activation,
    x: &'a [f32],
    /// What the activations are multiplied by, if there is a gate.
    up: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl Vectorized for Activate<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        match self.activation {
            Activation::Silu => self.each(silu, |up| up),
            Activation::Gelu => self.each(gelu, |up| up),
            Activation::GeluTanh => self.each(gelu_tanh, |up| up),
            Activation::Relu => self.each(relu, |up| up),
            Activation::ClampedSwiglu { limit } => self.each(
                #[inline(always)]
                |gate| {
                    // A comparison keeps NaN.
                    let gate = if gate > limit { limit } else { gate };
                    gate / (1.0 + exp(-1.702 * gate))
                },
                #[inline(always)]
                |up| up.clamp(-limit, limit) + 1.0,
            ),
        }
    }
}

impl Activate<'_> {
    #[inline(always)]
    fn each(self, activation: impl Fn(f32) -> f32, of_up: impl Fn(f32) -> f32) {
        match self.up {
            Some(up) => {
                for ((out, &x), &up) in self.out.iter_mut().zip(self.x).zip(up) {
                    *out = activation(x) * of_up(up);
                }
            }
            None => {
                for (out, &x) in self.out.iter_mut().zip(self.x) {
                    *out = activation(x);
                }
            }
        }
    }
}

/// Returns `max(x, 0)`, or NaN.
#[inline(always)]
fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

#[inline(always)]
pub(super) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// Rotary position embedding (Su et al. 2021) of the pairs `(i, i + dims/2)` of the first `dims`
/// numbers of a head.
#[derive(PartialEq)]
pub(crate) struct Rope {
    /// The frequency of each pair: `[dims/2]`.
    frequencies: Vec<f32>,
    /// The factor of rotated numbers.
    amplitude: f32,
    head_dim: usize,
}

impl Rope {
    /// Creates the position embedding of an attention layer, if it has one.
    pub(crate) fn new(attention: &Attention) -> Option<Self> {
        let (rope, head_dim) = (attention.rope.as_ref()?, attention.head_dim);
        let frequencies = (0..rope.dims / 2).map(|pair| rope.frequency(pair)).collect();
        Some(Self { frequencies, amplitude: rope.amplitude(), head_dim })
    }

    /// Writes the cosines, then the sines, of one position to `table`: `[2, dims/2]`.
    pub(crate) fn table(&self, position: usize, table: &mut [f32]) {
        let (cosines, sines) = table.split_at_mut(self.frequencies.len());
        for ((cosine, sine), frequency) in cosines.iter_mut().zip(sines).zip(&self.frequencies) {
            let angle = f64::from(position as f32 * frequency);
            *cosine = angle.cos() as f32 * self.amplitude;
            *sine = angle.sin() as f32 * self.amplitude;
        }
    }

    /// Returns the length of a position's table.
    pub(crate) fn table_len(&self) -> usize {
        2 * self.frequencies.len()
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
        let half = self.table.len() / 2;
        let (cosines, sines) = self.table.split_at(half);
        for head in self.heads.chunks_exact_mut(self.head_dim) {
            let (low, high) = head[..2 * half].split_at_mut(half);
            for (((low, high), &cosine), &sine) in low.iter_mut().zip(high).zip(cosines).zip(sines)
            {
                let (a, b) = (*low, *high);
                *low = a * cosine - b * sine;
                *high = b * cosine + a * sine;
            }
        }
    }
}
