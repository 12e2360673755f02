//! SIMD loops, written once and compiled for every instruction set.
//!
//! [`Lanes::mul_add`] is the only operation with results that depend on the instruction set,
//! because some sets fuse the multiplication and the addition ([`Isa::is_fused`]). The exponential
//! is a polynomial of our own. So loops without `mul_add` give the same bits on every instruction
//! set.
//!
//! The kernels of `model` and the sampling in `core` share this crate. It uses processor
//! instructions and nothing else.

#[cfg(target_arch = "x86_64")]
mod amx;
mod isa;
#[cfg(target_arch = "aarch64")]
mod neon;

pub use isa::{Isa, IsaError};

use half::f16;

/// The number of lanes of a vector, and of partial sums in a reduction.
pub const LANES: usize = 16;

/// A loop to compile for every instruction set.
///
/// `run` and all functions that it calls must be `#[inline(always)]`. Only then [`vectorize`]
/// compiles them with the instructions of each set.
pub trait Vectorized {
    /// Runs the loop with the lanes of one instruction set.
    fn run<L: Lanes>(self);
}

/// Runs a loop with the instructions of `isa`, or with the best ones below it that the processor
/// supports.
#[inline]
pub fn vectorize(isa: Isa, work: impl Vectorized) {
    let isa = isa.min(Isa::best());
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]
        fn avx512(work: impl Vectorized) {
            work.run::<x86::Zmm>();
        }
        #[target_feature(enable = "avx2,fma,f16c")]
        fn avx2(work: impl Vectorized) {
            work.run::<x86::TwoYmm>();
        }
        match isa {
            // SAFETY: `Isa::best` checked that the processor supports these features.
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => return unsafe { avx512(work) },
            // SAFETY: as above.
            Isa::Avx2 => return unsafe { avx2(work) },
            Isa::Portable => (),
        }
    }
    #[cfg(target_arch = "aarch64")]
    if isa == Isa::Neon {
        #[target_feature(enable = "neon")]
        fn neon(work: impl Vectorized) {
            work.run::<neon::FourQuads>();
        }
        // SAFETY: `Isa::best` checked that the processor supports NEON.
        return unsafe { neon(work) };
    }
    let _ = isa;
    work.run::<[f32; LANES]>();
}

/// A vector of sixteen numbers. In a reduction, lane `i mod 16` takes element `i`.
pub trait Lanes: Copy {
    /// Whether the processor's registers hold only about four vectors of sums next to their terms.
    const FEW_REGISTERS: bool = false;

    /// Creates a vector with the same number in every lane.
    fn splat(value: f32) -> Self;
    /// Reads sixteen numbers.
    fn load(values: &[f32; LANES]) -> Self;
    /// Reads sixteen half-precision numbers.
    fn widen(values: &[f16; LANES]) -> Self;
    /// Writes sixteen numbers.
    fn store(self, values: &mut [f32; LANES]);
    /// Rounds to half precision: to the nearest number, ties to even.
    fn narrow(self) -> [f16; LANES];
    /// Returns `self + other`.
    fn add(self, other: Self) -> Self;
    /// Returns `self · other`.
    fn mul(self, other: Self) -> Self;
    /// Returns the larger number of each lane. If one of the two is NaN, the result is either.
    fn max(self, other: Self) -> Self;
    /// Returns `self + a · b`, with the product rounded.
    fn add_product(self, a: Self, b: Self) -> Self;
    /// Returns `self + a · b`. The product is rounded only if the instruction set does not fuse.
    fn mul_add(self, a: Self, b: Self) -> Self;

    /// Returns the sum of the lanes, adding the upper half onto the lower half.
    #[inline(always)]
    fn sum(self) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        sum_halves(lanes)
    }

    /// Returns the largest number. No lane may be NaN.
    #[inline(always)]
    fn largest(self) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(&mut lanes);
        lanes.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
}

#[inline(always)]
fn sum_halves(mut lanes: [f32; LANES]) -> f32 {
    for width in [8, 4, 2, 1] {
        let (low, high) = lanes.split_at_mut(width);
        for (low, high) in low.iter_mut().zip(high) {
            *low += *high;
        }
    }
    lanes[0]
}

impl Lanes for [f32; LANES] {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        [value; LANES]
    }

    #[inline(always)]
    fn load(values: &[f32; LANES]) -> Self {
        *values
    }

    #[inline(always)]
    fn store(self, values: &mut [f32; LANES]) {
        *values = self;
    }

    #[inline(always)]
    fn widen(values: &[f16; LANES]) -> Self {
        values.map(f16::to_f32)
    }

    #[inline(always)]
    fn narrow(self) -> [f16; LANES] {
        self.map(f16::from_f32)
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] + other[lane])
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        std::array::from_fn(|lane| self[lane] * other[lane])
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        let larger = |a, b| if a > b { a } else { b };
        std::array::from_fn(|lane| larger(self[lane], other[lane]))
    }

    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        self.add_product(a, b)
    }

    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        std::array::from_fn(|lane| self[lane] + a[lane] * b[lane])
    }
}

/// Lanes in SIMD registers. Their methods may only be inlined into functions with the features
/// enabled, which [`vectorize`] ensures.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LANES, Lanes, f16};
    use std::arch::x86_64::*;

    #[derive(Clone, Copy)]
    pub(super) struct Zmm(__m512);

    impl Lanes for Zmm {
        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: only `vectorize` uses this type, after it checked the processor.
            Self(unsafe { _mm512_set1_ps(value) })
        }

        #[inline(always)]
        fn load(values: &[f32; LANES]) -> Self {
            // SAFETY: as in `splat`; the array has 16 numbers.
            Self(unsafe { _mm512_loadu_ps(values.as_ptr()) })
        }

        #[inline(always)]
        fn store(self, values: &mut [f32; LANES]) {
            // SAFETY: as in `load`.
            unsafe { _mm512_storeu_ps(values.as_mut_ptr(), self.0) }
        }

        #[inline(always)]
        fn widen(values: &[f16; LANES]) -> Self {
            // SAFETY: as in `splat`; the array has 16 numbers of 16 bits.
            Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(values.as_ptr().cast())) })
        }

        #[inline(always)]
        fn narrow(self) -> [f16; LANES] {
            let mut narrow = [f16::ZERO; LANES];
            // SAFETY: as in `splat`; the array has room for 16 numbers of 16 bits.
            unsafe {
                let bits = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0);
                _mm256_storeu_si256(narrow.as_mut_ptr().cast(), bits);
            }
            narrow
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: as in `splat`.
            Self(unsafe { _mm512_add_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            // SAFETY: as in `splat`.
            Self(unsafe { _mm512_mul_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn max(self, other: Self) -> Self {
            // SAFETY: as in `splat`.
            Self(unsafe { _mm512_max_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn mul_add(self, a: Self, b: Self) -> Self {
            // SAFETY: as in `splat`.
            Self(unsafe { _mm512_fmadd_ps(a.0, b.0, self.0) })
        }

        #[inline(always)]
        fn add_product(self, a: Self, b: Self) -> Self {
            // SAFETY: as in `splat`.
            Self(unsafe { _mm512_add_ps(self.0, _mm512_mul_ps(a.0, b.0)) })
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            // SAFETY: as in `splat`. Each step moves the upper half onto the lower.
            unsafe {
                let by_8 =
                    _mm512_add_ps(self.0, _mm512_shuffle_f32x4::<0b01_00_11_10>(self.0, self.0));
                let by_4 = _mm512_add_ps(by_8, _mm512_shuffle_f32x4::<0b10_11_00_01>(by_8, by_8));
                let four = _mm512_castps512_ps128(by_4);
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
            }
        }

        #[inline(always)]
        fn largest(self) -> f32 {
            // SAFETY: as in `splat`. Each step moves the upper half onto the lower.
            unsafe {
                let by_8 =
                    _mm512_max_ps(self.0, _mm512_shuffle_f32x4::<0b01_00_11_10>(self.0, self.0));
                let by_4 = _mm512_max_ps(by_8, _mm512_shuffle_f32x4::<0b10_11_00_01>(by_8, by_8));
                largest_of_four(_mm512_castps512_ps128(by_4))
            }
        }
    }

    #[inline(always)]
    fn largest_of_four(four: __m128) -> f32 {
        // SAFETY: every x86-64 processor supports these instructions.
        unsafe {
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[derive(Clone, Copy)]
    pub(super) struct TwoYmm([__m256; 2]);

    impl Lanes for TwoYmm {
        #[inline(always)]
        fn splat(value: f32) -> Self {
            // SAFETY: only `vectorize` uses this type, after it checked the processor.
            Self(unsafe { [_mm256_set1_ps(value); 2] })
        }

        #[inline(always)]
        fn load(values: &[f32; LANES]) -> Self {
            let at = values.as_ptr();
            // SAFETY: as in `splat`; the array has 16 numbers.
            Self(unsafe { [_mm256_loadu_ps(at), _mm256_loadu_ps(at.add(8))] })
        }

        #[inline(always)]
        fn store(self, values: &mut [f32; LANES]) {
            let at = values.as_mut_ptr();
            // SAFETY: as in `load`.
            unsafe {
                _mm256_storeu_ps(at, self.0[0]);
                _mm256_storeu_ps(at.add(8), self.0[1]);
            }
        }

        #[inline(always)]
        fn widen(values: &[f16; LANES]) -> Self {
            let at = values.as_ptr().cast::<__m128i>();
            // SAFETY: as in `splat`; the array has 16 numbers of 16 bits.
            Self(unsafe {
                [_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at.add(1)))]
            })
        }

        #[inline(always)]
        fn narrow(self) -> [f16; LANES] {
            let mut narrow = [f16::ZERO; LANES];
            let at = narrow.as_mut_ptr().cast::<__m128i>();
            // SAFETY: as in `splat`; the array has room for 16 numbers of 16 bits.
            unsafe {
                _mm_storeu_si128(at, _mm256_cvtps_ph::<0>(self.0[0]));
                _mm_storeu_si128(at.add(1), _mm256_cvtps_ph::<0>(self.0[1]));
            }
            narrow
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            let ([a, b], [c, d]) = (self.0, other.0);
            // SAFETY: as in `splat`.
            Self(unsafe { [_mm256_add_ps(a, c), _mm256_add_ps(b, d)] })
        }

        #[inline(always)]
        fn mul(self, other: Self) -> Self {
            let ([a, b], [c, d]) = (self.0, other.0);
            // SAFETY: as in `splat`.
            Self(unsafe { [_mm256_mul_ps(a, c), _mm256_mul_ps(b, d)] })
        }

        #[inline(always)]
        fn max(self, other: Self) -> Self {
            let ([a, b], [c, d]) = (self.0, other.0);
            // SAFETY: as in `splat`.
            Self(unsafe { [_mm256_max_ps(a, c), _mm256_max_ps(b, d)] })
        }

        #[inline(always)]
        fn mul_add(self, a: Self, b: Self) -> Self {
            let ([a, b], [c, d], [low, high]) = (a.0, b.0, self.0);
            // SAFETY: as in `splat`.
            Self(unsafe { [_mm256_fmadd_ps(a, c, low), _mm256_fmadd_ps(b, d, high)] })
        }

        #[inline(always)]
        fn add_product(self, a: Self, b: Self) -> Self {
            // SAFETY: as in `splat`.
            self.add(Self(unsafe {
                [_mm256_mul_ps(a.0[0], b.0[0]), _mm256_mul_ps(a.0[1], b.0[1])]
            }))
        }

        #[inline(always)]
        fn sum(self) -> f32 {
            // SAFETY: as in `splat`. Each step moves the upper half onto the lower.
            unsafe {
                let eight = _mm256_add_ps(self.0[0], self.0[1]);
                let (low, high) =
                    (_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
                let four = _mm_add_ps(low, high);
                let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
            }
        }

        #[inline(always)]
        fn largest(self) -> f32 {
            // SAFETY: as in `splat`.
            unsafe {
                let eight = _mm256_max_ps(self.0[0], self.0[1]);
                let (low, high) =
                    (_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
                largest_of_four(_mm_max_ps(low, high))
            }
        }
    }
}

/// Returns `Σ aᵢ bᵢ`, with one partial sum for each lane.
#[inline(always)]
pub fn dot<L: Lanes>(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks(), b.as_chunks());
    let mut sums = L::splat(0.0);
    for (a, b) in a.iter().zip(b) {
        sums = sums.add_product(L::load(a), L::load(b));
    }
    if a_rest.is_empty() {
        return sums.sum();
    }
    let mut lanes = [0.0; LANES];
    sums.store(&mut lanes);
    for (sum, (a, b)) in lanes.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *sum += a * b;
    }
    sum_halves(lanes)
}

/// Returns `Σ aᵢ`, with one partial sum for each lane.
#[inline(always)]
pub fn sum<L: Lanes>(a: &[f32]) -> f32 {
    let (chunks, rest) = a.as_chunks();
    let sums = chunks.iter().fold(L::splat(0.0), |sums, chunk| sums.add(L::load(chunk)));
    let mut lanes = [0.0; LANES];
    sums.store(&mut lanes);
    for (sum, a) in lanes.iter_mut().zip(rest) {
        *sum += a;
    }
    sum_halves(lanes)
}

/// Returns `eˣ` to about one unit in the last place, by range reduction and a polynomial.
///
/// Below −80 the result is 0. Such small weights change no sum, and would lead to subnormal
/// products, which take processors about a hundred times as long. Arguments above 88.3 are treated
/// as 88.3, so the result is always finite.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    /// 1.5 · 2²³. Adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Comparisons keep NaN.
    let vanishes = x < -80.0;
    let x = if vanishes { -80.0 } else { x };
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
    let result = f32::from_bits(power.to_bits().wrapping_add(exponent));
    if vanishes { 0.0 } else { result }
}

/// Returns the hyperbolic tangent, to about 10⁻⁷.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    1.0 - 2.0 / (exp(2.0 * x) + 1.0)
}

/// Returns `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Returns `ln(1 + exp(x))`, to about 3 · 10⁻⁷ of the result. With `y = exp(−|x|)` it is
/// `max(x, 0) + ln(1 + y)`, and `ln(1 + y) = 2 artanh(y / (2 + y))` by its Taylor series, whose
/// argument is at most 1/3. It needs only operations that every device rounds correctly, unlike the
/// system's logarithm.
#[inline(always)]
#[must_use]
pub fn softplus(x: f32) -> f32 {
    let y = exp(-x.abs());
    let ratio = y / (2.0 + y);
    let square = ratio * ratio;
    let mut sum = 0.066_666_67;
    sum = sum * square + 0.076_923_08;
    sum = sum * square + 0.090_909_09;
    sum = sum * square + 0.111_111_11;
    sum = sum * square + 0.142_857_15;
    sum = sum * square + 0.2;
    sum = sum * square + 0.333_333_34;
    let twice = 2.0 * ratio;
    // The comparison keeps NaN.
    let positive = if x < 0.0 { 0.0 } else { x };
    positive + (twice + twice * square * sum)
}

/// Returns GELU (Hendrycks & Gimpel 2016), `x/2 · (1 + erf(x/√2))`, to about 10⁻⁷ · x. The error
/// function is that of Abramowitz & Stegun 7.1.26.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let mut sum = 1.061_405_4;
    sum = sum * t - 1.453_152;
    sum = sum * t + 1.421_413_7;
    sum = sum * t - 0.284_496_74;
    sum = sum * t + 0.254_829_6;
    let erf = 1.0 - sum * t * exp(-z * z);
    let erf = if x < 0.0 { -erf } else { erf };
    0.5 * x * (1.0 + erf)
}

/// Returns GELU's approximation by a hyperbolic tangent.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    /// √(2/π).
    const SCALE: f32 = 0.797_884_6;
    0.5 * x * (1.0 + tanh(SCALE * (x + 0.044_715 * x * x * x)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_are_accurate() {
        for step in -200_000..200_000 {
            let x = step as f32 / 10_000.0;
            let wide = f64::from(x);
            let close = |found: f32, expected: f64, error: f64| {
                assert!((f64::from(found) - expected).abs() <= error, "{x}: {found} {expected}");
            };
            close(tanh(x), wide.tanh(), 3e-7);
            close(sigmoid(x), 1.0 / (1.0 + (-wide).exp()), 3e-7);
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044_715 * wide.powi(3));
            close(gelu_tanh(x), 0.5 * wide * (1.0 + inner.tanh()), 2e-6);
        }
        // From tables of the normal distribution.
        for (x, expected) in
            [(1.0, 0.841_344_7), (-1.0, -0.158_655_3), (2.0, 1.954_499_7), (0.0, 0.0)]
        {
            assert!((gelu(x) - expected).abs() < 1e-6, "{x}: {}", gelu(x));
        }
    }

    #[test]
    fn the_exponential_is_accurate() {
        let mut worst = 0.0_f64;
        for step in 0..2_000_000 {
            let x = -80.0 + step as f32 * (168.0 / 2_000_000.0);
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 1.5e-7, "relative error {worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!((exp(-80.1), exp(-1e9), exp(f32::NEG_INFINITY)), (0.0, 0.0, 0.0));
        assert!(exp(1e9) > 1e38 && exp(1e9).is_finite());
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn softplus_is_accurate() {
        let mut worst = 0.0_f64;
        for step in 0..2_000_000 {
            let x = -80.0 + step as f32 * (180.0 / 2_000_000.0);
            let exact = f64::from(x).exp().ln_1p();
            worst = worst.max((f64::from(softplus(x)) - exact).abs() / exact);
        }
        assert!(worst < 3e-7, "relative error {worst:e}");
        assert_eq!((softplus(-1e9), softplus(1e9)), (0.0, 1e9));
        assert!(softplus(f32::NAN).is_nan());
    }

    /// Computes sums, and the largest of each pair of vectors.
    struct Sums<'a> {
        a: &'a [f32],
        b: &'a [f32],
        sums: &'a mut [f32; 2],
        largest: &'a mut Vec<f32>,
    }

    impl Vectorized for Sums<'_> {
        #[inline(always)]
        fn run<L: Lanes>(self) {
            *self.sums = [dot::<L>(self.a, self.b), sum::<L>(self.a)];
            let pairs = self.a.as_chunks().0.iter().zip(self.b.as_chunks().0);
            self.largest.extend(pairs.map(|(a, b)| L::load(a).max(L::load(b)).largest()));
        }
    }

    #[test]
    fn reductions_have_the_documented_order_on_every_instruction_set() {
        for len in [0, 1, 15, 16, 17, 37, 64, 100] {
            let a: Vec<f32> = (0..len).map(|i| (i as f32 * 0.37).sin()).collect();
            let b: Vec<f32> = (0..len).map(|i| (i as f32 * 0.73).cos()).collect();
            let mut lanes = [[0.0_f32; 16]; 2];
            for index in 0..len {
                lanes[0][index % 16] += a[index] * b[index];
                lanes[1][index % 16] += a[index];
            }
            for width in [8, 4, 2, 1] {
                for lane in 0..width {
                    lanes[0][lane] += lanes[0][lane + width];
                    lanes[1][lane] += lanes[1][lane + width];
                }
            }
            for isa in Isa::available() {
                let (mut sums, mut largest) = ([f32::NAN; 2], Vec::new());
                vectorize(isa, Sums { a: &a, b: &b, sums: &mut sums, largest: &mut largest });
                let expected = [lanes[0][0], lanes[1][0]];
                assert_eq!(sums.map(f32::to_bits), expected.map(f32::to_bits), "{len} on {isa}");
                let of_both = a.chunks_exact(16).zip(b.chunks_exact(16));
                let expected = of_both
                    .map(|(a, b)| a.iter().chain(b).copied().fold(f32::NEG_INFINITY, f32::max));
                assert_eq!(largest, expected.collect::<Vec<_>>(), "{len} on {isa}");
            }
        }
    }
}
