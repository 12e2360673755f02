//! Whether to draft the guess of a lookup of earlier text in place of the drafter's draft.
//!
//! *SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications*, Oliaro et al. 2025,
//! arXiv 2411.04975: its hybrid with a drafter takes the guess if its score is above a threshold,
//! which should be near the number of tokens that the drafter has accepted.
//!
//! Deviation: nothing has to be set. The threshold is what the drafter had accepted in this answer,
//! and scores are translated to acceptance by how right the guesses with such scores were.

use crate::decaying::Share;

/// What an answer shows of the guesses of a lookup and of the drafts of a drafter.
///
/// All of it is a function of tokens and acceptance, so that seeded text does not depend on times.
#[derive(Clone, Debug)]
pub struct LookupChoice {
    /// The acceptance rates of guessed tokens, by the logarithm of the guess's score.
    rates: [Share; RATES.len()],
    /// The accepted tokens of the drafter's drafts.
    drafter: Share,
}

/// The acceptance rates of the classes of scores, below 2, below 4, and so on, before anything is
/// known. They are a little below those of suffix decoding in greedy answers of SmolLM2-135M to
/// prompts of Spec-Bench (docs/experiments/lookups.md).
const RATES: [f64; 6] = [0.15, 0.25, 0.4, 0.5, 0.75, 0.85];
/// The number of tokens that this knowledge is worth: a guess or two outweigh it.
const RATE_TOKENS: f64 = 2.0;
/// The tokens that a drafter has accepted before anything is known, which is worth one draft.
const DRAFTER_TOKENS: f64 = 1.0;
/// The weight of a round compared with the one after it: ten count, since repeats begin and end.
const DECAY: f64 = 0.9;
/// The least probability with which a token is reached that is worth its row: where memory limits
/// passes, a row costs up to a tenth of one.
const LEAST_CHANCE: f64 = 0.1;

impl Default for LookupChoice {
    fn default() -> Self {
        Self { rates: [Share::new(DECAY); RATES.len()], drafter: Share::new(DECAY) }
    }
}

impl LookupChoice {
    /// Returns the rate at which the tokens of a guess with this score are expected to be accepted,
    /// one after another.
    #[must_use]
    pub fn rate(&self, score: f64) -> f64 {
        let class = class_of(score);
        self.rates[class].value(RATES[class], RATE_TOKENS)
    }

    /// Returns how many tokens of a guess with this rate are worth their rows, as far as times are
    /// not known.
    #[must_use]
    pub fn length(rate: f64) -> usize {
        let chances = std::iter::successors(Some(rate), |chance| Some(chance * rate));
        chances.take(LONGEST).take_while(|&chance| chance >= LEAST_CHANCE).count()
    }

    /// Returns whether a round with the first `length` tokens of a guess with this rate is expected
    /// to have at least as many tokens as the drafter. `drafter_tokens` is how many the drafter is
    /// expected to have in the time of that round; `None` compares with a round of the drafter's
    /// instead.
    #[must_use]
    pub fn prefers_guess(&self, rate: f64, length: usize, drafter_tokens: Option<f64>) -> bool {
        let of_round = || 1.0 + self.drafter.value(DRAFTER_TOKENS, 1.0);
        1.0 + accepted_of(rate, length) >= drafter_tokens.unwrap_or_else(of_round)
    }

    /// Learns how many tokens of a guess were those of the text, and whether the next one was
    /// another.
    pub fn observe_guess(&mut self, score: f64, right: usize, is_wrong_then: bool) {
        let tested = right + usize::from(is_wrong_then);
        self.rates[class_of(score)].add(right as f64, tested as f64);
    }

    /// Learns how many tokens of a draft of the drafter's were accepted.
    pub fn observe_draft(&mut self, accepted: usize) {
        self.drafter.add(accepted as f64, 1.0);
    }
}

/// The longest guess that is drafted.
const LONGEST: usize = 16;

fn class_of(score: f64) -> usize {
    (score.max(1.0).log2() as usize).min(RATES.len() - 1)
}

/// Returns the expected number of accepted tokens of `length`, if each that is tested is accepted
/// at this rate.
pub(crate) fn accepted_of(rate: f64, length: usize) -> f64 {
    (0..length).rev().fold(0.0, |accepted, _| rate * (1.0 + accepted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_is_preferred_while_it_is_right_for_longer_than_the_drafter() {
        let mut choice = LookupChoice::default();
        let prefers = |choice: &LookupChoice, score| {
            let rate = choice.rate(score);
            choice.prefers_guess(rate, LookupChoice::length(rate), None)
        };
        // A long match is trusted at first, a short one is not.
        assert!(prefers(&choice, 64.0) && !prefers(&choice, 4.0));
        // A drafter that is better than a long match.
        (0..20).for_each(|_| choice.observe_draft(8));
        assert!(!prefers(&choice, 64.0));
        // Guesses that turn out to be better still, by their scores.
        (0..20).for_each(|_| choice.observe_guess(40.0, 12, false));
        assert!(prefers(&choice, 64.0) && !prefers(&choice, 16.0));
        // The text changes.
        (0..5).for_each(|_| choice.observe_guess(40.0, 0, true));
        assert!(prefers(&choice, 64.0));
        (0..40).for_each(|_| choice.observe_guess(40.0, 1, true));
        assert!(!prefers(&choice, 64.0));
        // It is worth it if drafts take long, and would not be if they took no time.
        let rate = choice.rate(64.0);
        let length = LookupChoice::length(rate);
        assert!(choice.prefers_guess(rate, length, Some(1.0)));
        assert!(!choice.prefers_guess(rate, length, Some(18.0)));
        // Now the drafter is worse than that.
        (0..60).for_each(|_| choice.observe_draft(0));
        assert!(prefers(&choice, 64.0));
    }

    #[test]
    fn surer_guesses_are_longer() {
        let lengths = [0.05, 0.2, 0.5, 0.8, 0.95, 1.0].map(LookupChoice::length);
        assert_eq!(lengths, [0, 1, 3, 10, 16, 16]);
        assert_eq!(accepted_of(0.5, 3), 0.5 + 0.25 + 0.125);
        assert_eq!((accepted_of(1.0, 4), accepted_of(0.7, 0)), (4.0, 0.0));
    }

    #[test]
    fn scores_have_classes() {
        let classes = [-1.0, 0.3, 1.9, 2.0, 4.0, 31.0, 32.0, 1e9, f64::NAN].map(class_of);
        assert_eq!(classes, [0, 0, 0, 1, 2, 4, 5, 5, 0]);
    }
}
