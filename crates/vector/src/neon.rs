//! Lanes in NEON registers. Their methods may only be inlined into functions with NEON enabled,
//! which [`vectorize`](super::vectorize) ensures.

use super::{LANES, Lanes, f16};
use std::arch::aarch64::*;
use std::arch::asm;

/// Sixteen lanes in four registers.
#[derive(Clone, Copy)]
pub(super) struct FourQuads([float32x4_t; 4]);

impl FourQuads {
    #[inline(always)]
    fn zip(self, other: Self, operation: impl Fn(float32x4_t, float32x4_t) -> float32x4_t) -> Self {
        let ([a, b, c, d], [e, f, g, h]) = (self.0, other.0);
        Self([operation(a, e), operation(b, f), operation(c, g), operation(d, h)])
    }
}

impl Lanes for FourQuads {
    const FEW_REGISTERS: bool = true;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: only `vectorize` uses this type, after it checked the processor.
        Self(unsafe { [vdupq_n_f32(value); 4] })
    }

    #[inline(always)]
    fn load(values: &[f32; LANES]) -> Self {
        let at = values.as_ptr();
        // SAFETY: as in `splat`; the array has 16 numbers.
        Self(unsafe {
            [vld1q_f32(at), vld1q_f32(at.add(4)), vld1q_f32(at.add(8)), vld1q_f32(at.add(12))]
        })
    }

    #[inline(always)]
    fn widen(values: &[f16; LANES]) -> Self {
        let at = values.as_ptr().cast::<u16>();
        // SAFETY: as in `splat`; the array has 16 numbers of 16 bits.
        Self(unsafe {
            [
                widen(vld1_u16(at)),
                widen(vld1_u16(at.add(4))),
                widen(vld1_u16(at.add(8))),
                widen(vld1_u16(at.add(12))),
            ]
        })
    }

    #[inline(always)]
    fn store(self, values: &mut [f32; LANES]) {
        for (values, quad) in values.as_chunks_mut::<4>().0.iter_mut().zip(self.0) {
            // SAFETY: as in `splat`; the chunk has four numbers.
            unsafe { vst1q_f32(values.as_mut_ptr(), quad) };
        }
    }

    #[inline(always)]
    fn narrow(self) -> [f16; LANES] {
        let mut narrow = [f16::ZERO; LANES];
        for (halves, quad) in narrow.as_chunks_mut::<4>().0.iter_mut().zip(self.0) {
            let bits: uint16x4_t;
            // SAFETY: as in `splat`; the chunk has room for four numbers of 16 bits. The intrinsic
            // of this instruction is stable from Rust 1.94 on.
            unsafe {
                asm!(
                    "fcvtn {bits:v}.4h, {quad:v}.4s",
                    bits = lateout(vreg) bits, quad = in(vreg) quad,
                    options(pure, nomem, nostack, preserves_flags)
                );
                vst1_u16(halves.as_mut_ptr().cast(), bits);
            }
        }
        narrow
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        self.zip(other, |a, b| unsafe { vaddq_f32(a, b) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: as in `splat`.
        self.zip(other, |a, b| unsafe { vmulq_f32(a, b) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: as in `splat`. `vmaxq_f32` would differ from the other instruction sets in NaN
        // and in the sign of zero.
        self.zip(other, |a, b| unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) })
    }

    #[inline(always)]
    fn mul_add(self, a: Self, b: Self) -> Self {
        let ([s, t, u, v], [e, f, g, h], [i, j, k, l]) = (self.0, a.0, b.0);
        // SAFETY: as in `splat`.
        Self(unsafe {
            [vfmaq_f32(s, e, i), vfmaq_f32(t, f, j), vfmaq_f32(u, g, k), vfmaq_f32(v, h, l)]
        })
    }

    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        self.add(a.mul(b))
    }

    #[inline(always)]
    fn sum(self) -> f32 {
        let [a, b, c, d] = self.0;
        // SAFETY: as in `splat`. Each step adds the upper half onto the lower.
        unsafe {
            let four = vaddq_f32(vaddq_f32(a, c), vaddq_f32(b, d));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }

    #[inline(always)]
    fn largest(self) -> f32 {
        let [a, b, c, d] = self.0;
        // SAFETY: as in `splat`.
        unsafe { vmaxvq_f32(vmaxq_f32(vmaxq_f32(a, b), vmaxq_f32(c, d))) }
    }
}

/// Widens four half-precision numbers.
#[inline(always)]
fn widen(halves: uint16x4_t) -> float32x4_t {
    let quad;
    // SAFETY: only `FourQuads` calls this function, after `vectorize` checked the processor. The
    // intrinsic of this instruction is stable from Rust 1.94 on.
    unsafe {
        asm!(
            "fcvtl {quad:v}.4s, {halves:v}.4h",
            quad = lateout(vreg) quad, halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    quad
}
