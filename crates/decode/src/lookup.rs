//! Drafts from earlier text, in the rounds where more of their tokens are expected to be accepted
//! than of the drafter's.
//!
//! *SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications*, Oliaro et al. 2025,
//! arXiv 2411.04975: the hybrid of suffix decoding with another drafter.
//!
//! The decoder chooses, not a drafter around the drafter. It alone knows which tokens were
//! accepted, how many may still follow, and whether the drafter pauses, and a guess needs no
//! worker.
//!
//! 1. Guess the tokens after the text by looking them up in it. That needs no forward pass.
//! 2. If a round with the guess is expected to have at least as many tokens as one with a draft of
//!    the drafter's, verify the guess. The drafter reads its tokens before its next draft. The
//!    automatic draft length compares tokens a second instead, with those that it expects of the
//!    drafter's next draft.
//! 3. Otherwise, the drafter drafts.
//! 4. Compare each guess with the committed tokens, whether it was drafted or not
//!    ([`LookupChoice`]).
//!
//! The guess is a function of the tokens before it, so it is verified as a deterministic draft. The
//! choice depends on committed tokens, on which candidates they accepted, in the automatic mode on
//! times, and on no draw for a later position. So the text keeps the target's distribution. Where
//! the text of a seed depends on drafts, these times are nominal, so that text does not depend on a
//! clock.

use crate::{DecoderOptions, Sequence, SpeculativeDraftLength, draft_ahead::common_prefix_len};
use forerun_core::{Draft, Guess, Guesser, TokenId, TokenTree};
use forerun_plan::LookupChoice;

/// The lookup of one answer.
pub(crate) struct Lookup {
    guesser: Box<dyn Guesser>,
    choice: LookupChoice,
    /// The guess of this round.
    guess: Guess,
}

/// The number of tokens to guess. They are more than are drafted, because their score shows how
/// good the evidence is.
const GUESSED_TOKENS: usize = 64;

impl Lookup {
    /// Creates a lookup for an answer that has not begun.
    pub(crate) fn new(guesser: Box<dyn Guesser>) -> Self {
        Self { guesser, choice: LookupChoice::default(), guess: Guess::default() }
    }

    /// Returns the lookup of an answer with these options, if they have one.
    pub(crate) fn of(options: &DecoderOptions) -> Option<Self> {
        options.lookup.map(|make| Self::new(make()))
    }

    /// Guesses the tokens after the sequence. Returns them as a draft if they are expected to be
    /// better than the drafter's, or if it does not draft in this round.
    pub(crate) fn draft(
        &mut self,
        sequence: &mut Sequence,
        draft_length: &SpeculativeDraftLength,
        drafter_drafts: bool,
    ) -> Option<Draft> {
        self.guess = self.guesser.guess(sequence.tokens(), sequence.prompt_len(), GUESSED_TOKENS);
        let rate = self.choice.rate(self.guess.score);
        // The target adds a token of its own, so a draft never needs the last position.
        let room = sequence.remaining().saturating_sub(1).min(self.guess.tokens.len());
        let length = draft_length.lookup_length(rate, LookupChoice::length(rate).min(room));
        let is_better = || {
            let drafter_tokens = draft_length.tokens_in_time_of_lookup(length);
            self.choice.prefers_guess(rate, length, drafter_tokens)
        };
        if length == 0 || drafter_drafts && !is_better() {
            return None;
        }
        sequence.statistics_mut().count_lookup(length);
        let tree = TokenTree::chain(&self.guess.tokens[..length]);
        Some(Draft::deterministic(tree))
    }

    /// Learns from the tokens that a round has committed. `accepted`: the number of the drafter's
    /// tokens among them, if it has drafted.
    pub(crate) fn observe(&mut self, committed: &[TokenId], accepted: Option<usize>) {
        let Guess { tokens, score } = std::mem::take(&mut self.guess);
        let right = common_prefix_len(&tokens, committed);
        if !tokens.is_empty() {
            let is_wrong_then = right < tokens.len().min(committed.len());
            self.choice.observe_guess(score, right, is_wrong_then);
        }
        if let Some(accepted) = accepted {
            self.choice.observe_draft(accepted);
        }
    }
}
