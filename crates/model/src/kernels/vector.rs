//! Loops over vectors, written once and compiled for every instruction set.
//!
//! Multiplications and additions are not fused here, and the exponential is a polynomial of our own,
//! so these loops give the same bits on every instruction set.

use super::LANES;
use super::isa::Isa;

/// A loop that is to be compiled for every instruction set. `run` and all that it calls must be
/// `#[inline(always)]`, so that they become part of the functions below.
pub(crate) trait Vectorized {
    fn run(self);
}

/// Runs a loop with the instructions of `isa`.
#[inline]
pub(crate) fn vectorize(isa: Isa, work: impl Vectorized) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
        fn avx512(work: impl Vectorized) {
            work.run();
        }
        #[target_feature(enable = "avx2")]
        fn avx2(work: impl Vectorized) {
            work.run();
        }
        match isa {
            // SAFETY: a team's `Isa` is one that the processor has (`Team::with_isa` checks).
            Isa::Avx512 => return unsafe { avx512(work) },
            // SAFETY: as above.
            Isa::Avx2 => return unsafe { avx2(work) },
            Isa::Portable => (),
        }
    }
    let _ = isa;
    work.run();
}

/// Sixteen partial sums: element `i` of a vector belongs to lane `i mod 16`.
#[derive(Clone, Copy)]
pub(crate) struct Lanes([f32; LANES]);

impl Lanes {
    #[inline(always)]
    pub(crate) fn zero() -> Self {
        Self([0.0; LANES])
    }

    /// Adds the products of two equally long vectors.
    #[inline(always)]
    pub(crate) fn add_products(&mut self, a: &[f32], b: &[f32]) {
        let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
        let (a_rest, b_rest) = (a.remainder(), b.remainder());
        for (a, b) in a.zip(b) {
            for (sum, (a, b)) in self.0.iter_mut().zip(a.iter().zip(b)) {
                *sum += a * b;
            }
        }
        for (sum, (a, b)) in self.0.iter_mut().zip(a_rest.iter().zip(b_rest)) {
            *sum += a * b;
        }
    }

    /// Adds the elements of a vector.
    #[inline(always)]
    pub(crate) fn add_all(&mut self, a: &[f32]) {
        let a = a.chunks_exact(LANES);
        let rest = a.remainder();
        for a in a {
            for (sum, a) in self.0.iter_mut().zip(a) {
                *sum += a;
            }
        }
        for (sum, a) in self.0.iter_mut().zip(rest) {
            *sum += a;
        }
    }

    /// The lanes' sum: halves are added onto halves.
    #[inline(always)]
    pub(crate) fn sum(self) -> f32 {
        let mut lanes = self.0;
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                lanes[lane] += lanes[lane + width];
            }
            width /= 2;
        }
        lanes[0]
    }
}

/// `Σ aᵢ bᵢ` in lanes.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = Lanes::zero();
    lanes.add_products(a, b);
    lanes.sum()
}

/// `eˣ` to about one unit in the last place, by range reduction and a polynomial; below −87.3 it
/// stays at the smallest normal numbers, above 88.3 at the largest.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// 1.5 · 2²³: adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Comparisons, not `clamp`, keep NaN.
    let x = if x < -87.3 { -87.3 } else { x };
    let x = if x > 88.3 { 88.3 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let whole = shifted - ROUND;
    let rest = x - whole * LN_2_HIGH - whole * LN_2_LOW;
    // The coefficients of Cephes' expf.
    let mut power = 1.987_569_1e-4;
    power = power * rest + 1.398_199_9e-3;
    power = power * rest + 8.333_452e-3;
    power = power * rest + 4.166_579_6e-2;
    power = power * rest + 0.166_666_65;
    power = power * rest + 0.5;
    power = power * (rest * rest) + rest + 1.0;
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_shl(23);
    f32::from_bits(power.to_bits().wrapping_add(exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_accurate() {
        let mut worst = 0.0_f64;
        for step in 0..2_000_000 {
            let x = -87.0 + step as f32 * (175.0 / 2_000_000.0);
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 1.5e-7, "relative error {worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-1e9) < 1e-37 && exp(-1e9) >= 0.0);
        assert!(exp(1e9) > 1e38 && exp(1e9).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn lanes_add_as_they_say() {
        let a: Vec<f32> = (0..37).map(|i| (i as f32 * 0.37).sin()).collect();
        let b: Vec<f32> = (0..37).map(|i| (i as f32 * 0.73).cos()).collect();
        let mut lanes = [0.0_f32; 16];
        for index in 0..37 {
            lanes[index % 16] += a[index] * b[index];
        }
        for width in [8, 4, 2, 1] {
            for lane in 0..width {
                lanes[lane] += lanes[lane + width];
            }
        }
        assert_eq!(dot(&a, &b).to_bits(), lanes[0].to_bits());
    }
}
