//! The slow reference: models that a reader can check line by line.
//!
//! It shares no loop with any other device, but adds in the order that the other device documents:
//! the order is a parameter ([`Arithmetic`]). The two must therefore agree bit for bit. Tests use
//! it as their oracle, in two forms:
//!
//! * [`ReferenceModel::logits`] takes a whole sequence and returns all its logits. It has no cache,
//!   no batch and no tree.
//! * [`ReferenceDevice`], [`ReferenceHeads`] and [`ReferenceBlockHeads`] are devices like any
//!   other: they compute passes over batches and pages.

mod arithmetic;
mod block_conv;
mod block_heads;
mod device;
mod heads;
mod latent;
mod matrix;
mod recurrent;
mod routing;
mod weights;
mod whole_sequence;

pub use arithmetic::{Arithmetic, Bf16Products};
pub use block_heads::ReferenceBlockHeads;
pub use device::{ReferenceDevice, ReferenceLayers, ReferencePages};
pub use heads::ReferenceHeads;
pub use matrix::Matrix;
pub use weights::ReferenceModel;
