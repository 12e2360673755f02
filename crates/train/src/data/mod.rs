//! Prepares training data: reads documents from text files, encodes them into shards of tokens, and
//! draws batches from the shards.

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
pub(crate) use permutation::{hash_words, uniform};
pub(crate) use prepare::SEPARATOR;
pub use prepare::{Framing, PrepareOptions};
pub use progress::{OnProgress, Phase, Progress};
pub use shards::{Dataset, Split, TokenStream};
