//! Earlier answers of an engine, in which suffix decoding also finds continuations.
//!
//! It is a drafter of its own, because its speed tells users whether others got similar answers. It
//! holds answers, not prompts, as in the paper.

use crate::suffix_automaton::{State, SuffixAutomaton};
use forerun_core::TokenId;

/// The token after each answer. No vocabulary has it.
pub(crate) const END_OF_ANSWER: TokenId = TokenId::MAX;

/// The largest number of tokens of each half, with one after each answer.
const HALF: usize = 32_768;

/// The latest answers, up to 65,536 tokens. That is at most about 14 MB.
///
/// It consists of two halves. When the newer one is full, it takes the place of the older one. So
/// no answer has to be removed from counts.
#[derive(Default)]
pub(crate) struct AnswerPool<const CONTEXT: usize> {
    newer: SuffixAutomaton<CONTEXT>,
    older: SuffixAutomaton<CONTEXT>,
}

impl<const CONTEXT: usize> AnswerPool<CONTEXT> {
    /// Adds an answer, or its end if it is longer than a half.
    pub(crate) fn add(&mut self, answer: &[TokenId]) {
        let answer = &answer[answer.len().saturating_sub(HALF - 1)..];
        if answer.is_empty() {
            return;
        }
        if self.newer.tokens().len() + answer.len() + 1 > HALF {
            self.older = std::mem::take(&mut self.newer);
        }
        for &token in answer.iter().chain([&END_OF_ANSWER]) {
            self.newer.push(token);
        }
    }

    /// Iterates over the suffixes of a text that occur in answers, as
    /// [`SuffixAutomaton::repeated_suffixes`] does over those of its own text. Those of the newer
    /// half come first.
    pub(crate) fn matches(
        &self,
        text: &[TokenId],
    ) -> impl Iterator<Item = (&SuffixAutomaton<CONTEXT>, State, usize)> {
        let halves = [&self.newer, &self.older].into_iter();
        halves.flat_map(move |half| {
            half.suffixes_of(text).map(move |(state, matched)| (half, state, matched))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suffix_automaton::tests::{Dice, occurrences};

    #[test]
    fn matches_equal_a_search_through_the_answers() {
        let mut found = 0;
        for seed in 0..200 {
            let mut dice = Dice(seed);
            let alphabet = 1 + dice.below(3);
            let (mut pool, mut all) = (AnswerPool::<4>::default(), Vec::new());
            for _ in 0..6 {
                let (mut answer, mut text) = (Vec::new(), Vec::new());
                dice.edit(&mut answer, alphabet);
                pool.add(&answer);
                if !answer.is_empty() {
                    all.extend(answer.iter().chain([&END_OF_ANSWER]).copied());
                }
                dice.edit(&mut text, alphabet);
                // Suffixes with the same state occur at the same places. Only the longest is
                // listed.
                let occurring = (1..=text.len().min(4)).rev().map(|len| &text[text.len() - len..]);
                let occurring: Vec<_> =
                    occurring.filter(|suffix| occurrences(&all, suffix) > 0).collect();
                let places = |suffix: &[TokenId]| {
                    let ends = suffix.len()..=all.len();
                    ends.filter(|&end| all[..end].ends_with(suffix)).collect::<Vec<_>>()
                };
                let mut expected: Vec<_> =
                    occurring.iter().map(|suffix| (places(suffix), suffix.len())).collect();
                expected.dedup_by(|(later, _), (earlier, _)| later == earlier);
                let lengths: Vec<_> = pool.matches(&text).map(|(.., matched)| matched).collect();
                let expected: Vec<_> = expected.into_iter().map(|(_, len)| len).collect();
                assert_eq!(lengths, expected, "{text:?} in {all:?}");
                found += lengths.len();
            }
        }
        assert!(found > 500, "{found}");
    }

    #[test]
    fn the_latest_answers_are_kept() {
        let mut pool = AnswerPool::<4>::default();
        let answer = |first| (first..first + 10_000).collect::<Vec<TokenId>>();
        for first in [0, 100_000, 200_000, 300_000, 400_000, 500_000] {
            pool.add(&answer(first));
        }
        // The halves have three answers each.
        assert_eq!(pool.matches(&[5, 100_005]).count(), 1);
        pool.add(&answer(600_000));
        assert_eq!(pool.matches(&[100_005]).count(), 0);
        assert_eq!(pool.matches(&[300_005]).count(), 1);
        assert_eq!(pool.matches(&[600_005]).count(), 1);
        // An answer that is too long keeps its end.
        pool.add(&vec![7; 3 * HALF]);
        assert_eq!(pool.newer.tokens().len(), HALF);
        pool.add(&[]);
        assert_eq!(pool.newer.tokens().len(), HALF);
    }
}
