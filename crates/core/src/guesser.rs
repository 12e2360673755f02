//! Guesses, which cost no forward pass.

use crate::TokenId;

/// Proposes tokens after a text without a model, such as those that followed its last tokens earlier.
///
/// It serves a single answer.
pub trait Guesser: Send {
    /// Returns up to `length` tokens after `tokens`, which begin with a prompt of `prompt_len` tokens. They must be a
    /// function of `tokens`.
    fn guess(&mut self, tokens: &[TokenId], prompt_len: usize, length: usize) -> Vec<TokenId>;
}
