//! The arithmetic of a forward pass.
//!
//! Every output element has one order of additions that depends on nothing but its own operands,
//! so a row's bits are the same with how many rows, on how many threads and in whatever tree it
//! is computed. Work is split over outputs only (features, heads, rows), never over a sum:
//!
//! * a linear layer's output adds its products in ascending order of input features;
//! * a sum over a vector ([`lane_sum`]) has 16 lanes, element `i` in lane `i mod 16`, added up
//!   in a fixed tree; over keys, `i` is the key's absolute position;
//! * an attention output adds its weighted values in ascending order of positions.

mod attention;
mod linear;
mod pointwise;
mod shared;

pub(crate) use attention::{AttentionShape, Visible, attention};
pub(crate) use linear::{PackedMatrix, linear};
pub(crate) use pointwise::{Rope, add, rms_norm, silu_times};

/// Number of partial sums of a reduction, and of outputs in a packed tile.
pub(crate) const LANES: usize = 16;

/// The sum of `term(i)` for `i` in `0..count`: lane `i mod 16`, then a fixed tree over the lanes.
#[inline]
pub(crate) fn lane_sum(count: usize, term: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let whole = count / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(start + lane);
        }
    }
    for index in whole..count {
        lanes[index - whole] += term(index);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}
