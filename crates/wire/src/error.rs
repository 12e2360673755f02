//! Errors in messages from the other end.

use forerun_core::{InvalidDistribution, Ticket};

/// A message that cannot be read. The two ends may then differ in what they hold, so the connection
/// must be closed.
#[derive(Clone, Debug, thiserror::Error, PartialEq)]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum WireError {
    /// The message is from another version of this crate.
    #[error(
        "the message has format {found}, but this process reads format {expected}: run the same \
         version of forerun on both sides"
    )]
    Format { expected: u8, found: u8 },
    /// The message is empty, truncated or corrupted.
    #[error("the message is truncated or corrupted: {0}")]
    Malformed(String),
    /// The message can be read, but makes no sense.
    #[error("the message is invalid: {0}")]
    Invalid(&'static str),
    /// The message is about a job that is not in flight.
    #[error("the message is about the job {}, which is not in flight on this connection", .0.0)]
    UnknownJob(Ticket),
}

impl From<postcard::Error> for WireError {
    fn from(error: postcard::Error) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl From<InvalidDistribution> for WireError {
    fn from(_: InvalidDistribution) -> Self {
        Self::Invalid("a distribution needs ascending tokens, each with a positive, finite weight")
    }
}
