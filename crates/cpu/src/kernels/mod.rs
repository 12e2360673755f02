//! The arithmetic of a forward pass.
//!
//! The order of additions for an output element depends only on its own operands. So a row has the
//! same bits for any number of rows in the pass, any number of threads and any tree. Work is split
//! only over outputs (features, heads, rows), never over the terms of a sum:
//!
//! * An output of a linear layer adds its products in ascending order of input features, and its
//!   bias last (`linear.rs`).
//! * A sum over a vector ([`forerun_vector::sum`]) has 16 lanes, with element `i` in lane
//!   `i mod 16`. The lanes are added in a fixed tree. For a row's attention weights, `i` is the
//!   key's absolute position.
//! * An attention score adds its products in ascending order of dimensions, and an attention output
//!   adds its weighted values in ascending order of positions.
//! * A recurrence computes its rows one after another, each from the state of its parent
//!   (`recurrent.rs`).
//!
//! Each element type of the weights and each instruction set counts as a model of its own: results
//! are bit-identical for the same type and instruction set, but not between different ones.

mod activations;
#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod attention_shape;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod block_conv;
mod block_format;
mod block_tile;
mod cached;
mod keys_values;
mod linear;
mod lines;
#[cfg(target_arch = "aarch64")]
mod neon;
mod operands;
mod packed;
mod pointwise;
mod portable;
mod recurrent;
mod shared;

pub(crate) use activations::Activations;
pub(crate) use attention::{Queries, TreeMask, attention};
pub(crate) use attention_shape::AttentionShape;
pub(crate) use block_conv::{BlockConvolution, convolve_block};
pub(crate) use keys_values::KeysValues;
pub(crate) use linear::{Product, linear, linear_group};
pub(crate) use lines::Lines;
pub use packed::PackedMatrix;
pub(crate) use pointwise::{
    NormWeights, Rope, activate, add_scaled, divide, gate_rows, norm_parts, norm_rows, soft_cap,
};
pub(crate) use recurrent::{RecurrentScratch, RecurrentStates, RecurrentWeights, recur};

pub(crate) use forerun_vector::exp;
pub use forerun_vector::{Isa, IsaError};

/// The version of this arithmetic: raise it when any bits of a row change. Rows that another one
/// computed, and that are kept in files, are not read.
pub const ARITHMETIC: u32 = 1;

/// Number of partial sums in a reduction, and of outputs in a packed tile.
pub(crate) const LANES: usize = forerun_vector::LANES;
