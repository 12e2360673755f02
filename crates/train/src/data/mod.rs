//! Text files become documents, documents become shards of tokens, shards become batches.

mod batches;
mod documents;
mod encoder;
mod error;
mod index;
mod permutation;
mod prepare;
mod progress;
mod shards;

pub use batches::{Batch, Batches, Validation, ValidationWindow, bits_per_byte};
pub use documents::{Document, Documents};
pub(crate) use encoder::pieces;
pub use error::DataError;
pub(crate) use permutation::{mixed, uniform};
pub(crate) use prepare::SEPARATOR;
pub use prepare::{Framing, PrepareOptions};
pub use progress::{OnProgress, Phase, Progress};
pub use shards::{Dataset, Split, TokenStream};
