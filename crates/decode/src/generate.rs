//! The only loop.

use crate::{DecodeError, Finish, Sequence};
use forerun_core::{Cluster, TokenId};
use std::ops::ControlFlow;

/// A way of getting tokens committed.
pub trait Decoder {
    /// Commits at least one token, or fails.
    ///
    /// # Errors
    /// If a job fails or the cluster cannot serve.
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError>;

    /// Cancels the jobs that are still under way for tokens that nobody will need.
    fn stop(&mut self, _cluster: &mut dyn Cluster) {}
}

/// Decodes until the sequence ends. `on_tokens` sees the tokens of every step as they are
/// committed, and may stop the sequence. The sequence's caches stay on the workers: whoever will
/// not continue it calls [`Cluster::release`].
///
/// # Errors
/// If a step fails; what was committed before stays in the sequence.
pub fn generate(
    decoder: &mut dyn Decoder,
    sequence: &mut Sequence,
    cluster: &mut dyn Cluster,
    mut on_tokens: impl FnMut(&[TokenId]) -> ControlFlow<()>,
) -> Result<Finish, DecodeError> {
    loop {
        if let Some(finish) = sequence.finish() {
            return Ok(finish);
        }
        let before = sequence.tokens().len();
        decoder.step(sequence, cluster)?;
        if sequence.tokens().len() == before {
            return Err(DecodeError::Answer("a step committed nothing"));
        }
        if on_tokens(&sequence.tokens()[before..]).is_break() {
            sequence.stop();
        }
    }
}
