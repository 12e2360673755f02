//! The arithmetic of a forward pass.
//!
//! Every output element has one order of additions that depends on nothing but its own operands,
//! so a row's bits are the same with how many rows, on how many threads and in whatever tree it
//! is computed. Work is split over outputs only (features, heads, rows), never over a sum:
//!
//! * a linear layer's output adds its products in ascending order of input features, and its bias
//!   last (`linear.rs`);
//! * a sum over a vector ([`forerun_vector::sum`]) has 16 lanes, element `i` in lane `i mod 16`, added up
//!   in a fixed tree; over a row's attention weights, `i` is the key's absolute position;
//! * a score adds its products in ascending order of dimensions, an attention output its weighted
//!   values in ascending order of positions.
//!
//! Each element type of the weights is its own model, and so is each instruction set: bits are equal
//! within one, not across.

mod activations;
mod attention;
mod attention_shape;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod keys_values;
mod linear;
mod operands;
mod packed;
mod pointwise;
mod portable;
pub(crate) mod reference;
mod shared;

pub(crate) use activations::Activations;
pub(crate) use attention::{Queries, TreeMask, attention};
pub(crate) use attention_shape::AttentionShape;
pub(crate) use keys_values::KeysValues;
pub(crate) use linear::{Product, linear, linear_group};
pub(crate) use packed::{BLOCK, quantize_weights};
pub use packed::{PackedMatrix, UnknownWeightType, WeightType};
pub(crate) use pointwise::{Rope, add, norm_heads, rms_norm, silu_times};

pub(crate) use forerun_vector::exp;
pub use forerun_vector::{Isa, IsaError};

/// Number of partial sums of a reduction, and of outputs in a packed tile.
pub(crate) const LANES: usize = forerun_vector::LANES;
