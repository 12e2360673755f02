//! Norms, activations and softmax, forward and backward, as SIMD kernels.

use forerun_vector::{Isa, Lanes, Vectorized, dot, exp, sum, vectorize};

/// Computes the RMSNorm of rows (arXiv 1910.07467): `out = x · r · weight` with
/// `r = 1 / √(mean x² + epsilon)`. Writes `r`, `[rows]`, for [`rms_norm_backward`].
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32], r: &mut [f32]) {
    vectorize(Isa::best(), Norm { x, weight, epsilon, out, r });
}

struct Norm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    epsilon: f32,
    out: &'a mut [f32],
    r: &'a mut [f32],
}

impl Vectorized for Norm<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let size = self.weight.len();
        let rows = self.x.chunks_exact(size).zip(self.out.chunks_exact_mut(size));
        for ((x, out), r) in rows.zip(self.r) {
            *r = 1.0 / (dot::<L>(x, x) / size as f32 + self.epsilon).sqrt();
            scale(x, *r, self.weight, out);
        }
    }
}

/// Recomputes the result of [`rms_norm`] from its `r`.
pub(crate) fn rms_norm_recompute(x: &[f32], weight: &[f32], r: &[f32], out: &mut [f32]) {
    vectorize(Isa::best(), NormRecompute { x, weight, r, out });
}

struct NormRecompute<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    r: &'a [f32],
    out: &'a mut [f32],
}

impl Vectorized for NormRecompute<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let size = self.weight.len();
        let rows = self.x.chunks_exact(size).zip(self.out.chunks_exact_mut(size));
        for ((x, out), &r) in rows.zip(self.r) {
            scale(x, r, self.weight, out);
        }
    }
}

#[inline(always)]
fn scale(x: &[f32], r: f32, weight: &[f32], out: &mut [f32]) {
    for ((out, &x), &weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * r * weight;
    }
}

/// Adds the gradient of a norm's input to `dx` and that of its weight to `dweight`, given the
/// gradient `dy` of its result.
pub(crate) fn rms_norm_backward(
    dy: &[f32],
    x: &[f32],
    weight: &[f32],
    r: &[f32],
    dx: &mut [f32],
    dweight: &mut [f32],
) {
    vectorize(Isa::best(), NormBackward { dy, x, weight, r, dx, dweight });
}

struct NormBackward<'a> {
    dy: &'a [f32],
    x: &'a [f32],
    weight: &'a [f32],
    r: &'a [f32],
    dx: &'a mut [f32],
    dweight: &'a mut [f32],
}

impl Vectorized for NormBackward<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let size = self.weight.len();
        let rows = self.dy.chunks_exact(size).zip(self.x.chunks_exact(size));
        let rows = rows.zip(self.dx.chunks_exact_mut(size)).zip(self.r);
        let mut product = vec![0.0; size];
        for (((dy, x), dx), &r) in rows {
            for ((product, &dy), &weight) in product.iter_mut().zip(dy).zip(self.weight) {
                *product = dy * weight;
            }
            let projection = dot::<L>(&product, x) * r * r / size as f32;
            for ((dx, &product), &x) in dx.iter_mut().zip(&product).zip(x) {
                *dx += r * (product - x * projection);
            }
            for ((dweight, &dy), &x) in self.dweight.iter_mut().zip(dy).zip(x) {
                *dweight += dy * x * r;
            }
        }
    }
}

/// Computes `out = silu(gate) · up`. `gate_up`: `[rows, 2, size]`; `out`: `[rows, size]`.
pub(crate) fn swiglu(gate_up: &[f32], size: usize, out: &mut [f32]) {
    vectorize(Isa::best(), Swiglu { gate_up, size, out });
}

struct Swiglu<'a> {
    gate_up: &'a [f32],
    size: usize,
    out: &'a mut [f32],
}

impl Vectorized for Swiglu<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let rows = self.gate_up.chunks_exact(2 * self.size);
        for (gate_up, out) in rows.zip(self.out.chunks_exact_mut(self.size)) {
            let (gate, up) = gate_up.split_at(self.size);
            for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
                *out = gate / (1.0 + exp(-gate)) * up;
            }
        }
    }
}

/// Replaces `gate_up` with its gradient, given the gradient `dout` of [`swiglu`]'s result.
pub(crate) fn swiglu_backward(gate_up: &mut [f32], size: usize, dout: &[f32]) {
    vectorize(Isa::best(), SwigluBackward { gate_up, size, dout });
}

struct SwigluBackward<'a> {
    gate_up: &'a mut [f32],
    size: usize,
    dout: &'a [f32],
}

impl Vectorized for SwigluBackward<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let rows = self.gate_up.chunks_exact_mut(2 * self.size);
        for (gate_up, dout) in rows.zip(self.dout.chunks_exact(self.size)) {
            let (gate, up) = gate_up.split_at_mut(self.size);
            for ((gate, up), &dout) in gate.iter_mut().zip(up).zip(dout) {
                let sigmoid = 1.0 / (1.0 + exp(-*gate));
                let silu = *gate * sigmoid;
                let slope = sigmoid * (1.0 + *gate * (1.0 - sigmoid));
                *gate = dout * *up * slope;
                *up = dout * silu;
            }
        }
    }
}

/// Replaces each score with its exponential relative to the largest one, `exp(score − largest)`.
/// Returns the largest score and the sum of the exponentials.
pub(crate) fn exponentials(scores: &mut [f32]) -> (f32, f32) {
    let mut result = (0.0, 0.0);
    vectorize(Isa::best(), Exponentials { scores, result: &mut result });
    result
}

struct Exponentials<'a> {
    scores: &'a mut [f32],
    result: &'a mut (f32, f32),
}

impl Vectorized for Exponentials<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        let (chunks, rest) = self.scores.as_chunks();
        let largest = chunks
            .iter()
            .fold(L::splat(f32::NEG_INFINITY), |largest, chunk| largest.max(L::load(chunk)))
            .largest();
        let largest = rest.iter().fold(largest, |largest, &score| largest.max(score));
        for score in self.scores.iter_mut() {
            *score = exp(*score - largest);
        }
        *self.result = (largest, sum::<L>(self.scores));
    }
}

/// Replaces each score with `exp(score − offset)`.
pub(crate) fn exponentials_relative_to(scores: &mut [f32], offset: f32) {
    vectorize(Isa::best(), ExponentialsRelativeTo { scores, offset });
}

struct ExponentialsRelativeTo<'a> {
    scores: &'a mut [f32],
    offset: f32,
}

impl Vectorized for ExponentialsRelativeTo<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for score in self.scores {
            *score = exp(*score - self.offset);
        }
    }
}

/// Computes `x ← x · factor`.
pub(crate) fn scale_by(x: &mut [f32], factor: f32) {
    vectorize(Isa::best(), ScaleBy { x, factor });
}

struct ScaleBy<'a> {
    x: &'a mut [f32],
    factor: f32,
}

impl Vectorized for ScaleBy<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for x in self.x {
            *x *= self.factor;
        }
    }
}

/// Computes `x ← x + y`.
pub(crate) fn add(x: &mut [f32], y: &[f32]) {
    vectorize(Isa::best(), Add { x, y });
}

struct Add<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
}

impl Vectorized for Add<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (x, &y) in self.x.iter_mut().zip(self.y) {
            *x += y;
        }
    }
}

/// Computes `x ← x + factor · y`.
pub(crate) fn add_scaled(x: &mut [f32], y: &[f32], factor: f32) {
    vectorize(Isa::best(), AddScaled { x, y, factor });
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
            *x += self.factor * y;
        }
    }
}

/// Replaces the gradient `dp` of a softmax's result `p` with the gradient of its scores,
/// `scale · p · (dp − mean_dp)`, where `mean_dp` is `Σ p · dp`.
pub(crate) fn softmax_backward(p: &[f32], mean_dp: f32, scale: f32, dp: &mut [f32]) {
    vectorize(Isa::best(), SoftmaxBackward { p, mean_dp, scale, dp });
}

struct SoftmaxBackward<'a> {
    p: &'a [f32],
    mean_dp: f32,
    scale: f32,
    dp: &'a mut [f32],
}

impl Vectorized for SoftmaxBackward<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        for (dp, &p) in self.dp.iter_mut().zip(self.p) {
            *dp = self.scale * p * (*dp - self.mean_dp);
        }
    }
}

/// Computes `Σ aᵢ bᵢ`.
pub(crate) fn inner_product(a: &[f32], b: &[f32]) -> f32 {
    let mut result = 0.0;
    vectorize(Isa::best(), InnerProduct { a, b, result: &mut result });
    result
}

struct InnerProduct<'a> {
    a: &'a [f32],
    b: &'a [f32],
    result: &'a mut f32,
}

impl Vectorized for InnerProduct<'_> {
    #[inline(always)]
    fn run<L: Lanes>(self) {
        *self.result = dot::<L>(self.a, self.b);
    }
}
