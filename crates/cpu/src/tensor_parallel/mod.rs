//! Tensor parallelism: several members compute each layer together, with the bits of one device.
//!
//! Each member has some of the outputs of every matrix ([`Share`]), and computes them over all
//! inputs, in the order of additions of one device. Then the members gather each other's outputs:
//! before the output projection of attention, before the second projection of the MLP, and after
//! both. They never add partial sums. So every member has the hidden states of all rows, and keys
//! and values of its own heads.
//!
//! The members run the same passes. The leader ([`TensorParallelModel`]) is the model that others
//! see. It sends the other members ([`TensorParallelFollower`]) the rows of each pass, and what
//! happens to the pages of its caches. They reach each other by an [`Exchange`]: that of threads is
//! [`ThreadExchange`].

mod exchange;
mod follower;
mod leader;
mod members;
mod message;
mod received_passes;
mod sent_passes;
mod share;
mod threads;

pub use exchange::{Exchange, ExchangeError, LEADER, Recipients, Take};
pub use follower::TensorParallelFollower;
pub use leader::TensorParallelModel;
pub(crate) use members::Members;
pub(crate) use message::{PageOperation, PassMessage};
pub(crate) use received_passes::{ReceivedPass, ReceivedPasses};
pub(crate) use sent_passes::SentPasses;
pub use share::Share;
pub(crate) use share::{LayerWidths, Widths};
pub use threads::ThreadExchange;
