//! Guesses, which cost no forward pass.

use crate::TokenId;

/// Proposes tokens after a text without a model, such as those that followed its last tokens
/// earlier.
///
/// It serves a single answer.
pub trait Guesser: Send {
    /// Guesses up to `length` tokens after `tokens`, which begin with a prompt of `prompt_len`
    /// tokens. The guess must be a function of `tokens`.
    fn guess(&mut self, tokens: &[TokenId], prompt_len: usize, length: usize) -> Guess;
}

/// The tokens that a [`Guesser`] proposes. By default there are none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Guess {
    /// The tokens, in a row.
    pub tokens: Vec<TokenId>,
    /// How good the evidence is. Of two guesses of a guesser, the one with the higher score is
    /// usually right for longer.
    pub score: f64,
}
