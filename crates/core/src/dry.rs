//! The DRY penalty: tokens that would continue a repetition of the text become less probable, the
//! more the longer the repetition is (p-e-w 2024, text-generation-webui #5677). Names, defaults and
//! results are those of llama.cpp.

use crate::TokenId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The options of the DRY penalty.
///
/// A token that followed an earlier occurrence of the text's last `n` tokens loses `multiplier *
/// base^(n - allowed_length)` of its logit, for the largest `n` of at least `allowed_length`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dry {
    /// The penalty of the shortest repetition; 0 disables it.
    pub multiplier: f32,
    /// By how much each further token multiplies the penalty, at least 1.
    pub base: f32,
    /// The number of tokens that may occur again before a continuation is penalised.
    pub allowed_length: usize,
    /// The number of last tokens among which repetitions are looked for, in prompt and answer;
    /// `None` looks among all.
    pub penalty_last_n: Option<usize>,
    /// Texts across which nothing counts as a repetition.
    pub sequence_breakers: Vec<String>,
}

impl Default for Dry {
    fn default() -> Self {
        Self {
            multiplier: 0.0,
            base: 1.75,
            allowed_length: 2,
            penalty_last_n: None,
            sequence_breakers: ["\n", ":", "\"", "*"].map(str::to_owned).into(),
        }
    }
}

impl Dry {
    /// The most sequence breakers, and the most bytes of one, as in llama.cpp.
    pub const MOST_BREAKERS: usize = 40;

    /// Returns whether there is a penalty.
    #[must_use]
    pub fn applies(&self) -> bool {
        self.multiplier > 0.0 && self.penalty_last_n != Some(0)
    }

    /// Returns the tokens to penalise after a text, each with what its logit loses. `breakers` are
    /// the token sequences of the breakers, sorted.
    pub(crate) fn penalties(
        &self,
        text: &[TokenId],
        breakers: &[Vec<TokenId>],
    ) -> BTreeMap<TokenId, f32> {
        let mut longest: BTreeMap<TokenId, usize> = BTreeMap::new();
        let last_n = self.penalty_last_n.unwrap_or(text.len()).min(text.len());
        let text = &text[text.len() - last_n..];
        let limit = unbroken(text, breakers);
        if limit >= self.allowed_length {
            for (end, repeated) in common_suffixes(text).into_iter().enumerate().skip(1) {
                let repeated = repeated.min(limit);
                if repeated >= self.allowed_length {
                    let length = longest.entry(text[end]).or_default();
                    *length = repeated.max(*length);
                }
            }
        }
        // A token that is a breaker by itself is never penalised, as in llama.cpp.
        let breaks = |token| breakers.binary_search_by(|breaker| breaker[..].cmp(&[token])).is_ok();
        longest.retain(|&token, _| !breaks(token));
        let penalty = |repeated| self.penalty(repeated - self.allowed_length);
        longest.into_iter().map(|(token, repeated)| (token, penalty(repeated))).collect()
    }

    /// Returns the multiplier times a power of the base, with the same bits on every machine.
    fn penalty(&self, exponent: usize) -> f32 {
        let mut penalty = self.multiplier;
        for _ in 0..exponent {
            let next = penalty * self.base;
            if next == penalty {
                break;
            }
            penalty = next;
        }
        penalty
    }
}

/// Returns the number of tokens after the last breaker.
fn unbroken(text: &[TokenId], breakers: &[Vec<TokenId>]) -> usize {
    for (start, token) in text.iter().enumerate().rev() {
        let first = breakers.partition_point(|breaker| breaker.first() < Some(token));
        let same = breakers[first..].iter().take_while(|breaker| breaker.first() == Some(token));
        let found = same.filter(|breaker| text[start..].starts_with(breaker));
        if let Some(length) = found.map(Vec::len).max() {
            return text.len() - start - length;
        }
    }
    text.len()
}

/// Returns for each `end` below the length how many tokens before it equal the last ones of the
/// text: the Z-algorithm from right to left.
fn common_suffixes(text: &[TokenId]) -> Vec<usize> {
    let len = text.len();
    let mut common = vec![0; len];
    // The match that begins leftmost: `text[left..right]` are the last tokens of the text.
    let (mut left, mut right) = (len, len);
    for end in (1..len).rev() {
        let known = if end > left { common[len - (right - end)].min(end - left) } else { 0 };
        let same = |&length: &usize| text[end - 1 - length] == text[len - 1 - length];
        let more = (known..end).take_while(same).count();
        common[end] = known + more;
        if end - common[end] < left {
            (left, right) = (end - common[end], end);
        }
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_suffixes_agree_with_plain_loops() {
        for number in 0..3_000_u32 {
            let text: Vec<TokenId> = (0..number % 11).map(|at| (number >> at) & 1).collect();
            let plain = |end: usize| {
                (0..end).take_while(|&at| text[end - 1 - at] == text[text.len() - 1 - at]).count()
            };
            let plain: Vec<usize> = (0..text.len()).map(plain).collect();
            assert_eq!(common_suffixes(&text), plain, "{text:?}");
        }
    }

    /// Repetitions of letters; `|` is a breaker, and so is `<>`.
    #[test]
    fn continuations_of_repetitions_lose_by_their_length() {
        let tokens = |text: &str| -> Vec<TokenId> { text.bytes().map(TokenId::from).collect() };
        let breakers = [tokens("<>"), tokens("|")];
        let dry = Dry { multiplier: 0.5, base: 2.0, ..Dry::default() };
        let last_six = Dry { penalty_last_n: Some(6), ..dry.clone() };
        let any = Dry { allowed_length: 0, ..dry.clone() };
        type Penalties<'a> = &'a [(u8, f32)];
        let cases: [(&Dry, &str, Penalties<'_>); 11] = [
            (&dry, "", &[]),
            (&dry, "abcxab", &[(b'c', 0.5)]),
            (&dry, "abcabdeab", &[(b'c', 0.5), (b'd', 0.5)]),
            (&dry, "xabcyabdzxab", &[(b'c', 1.0), (b'd', 0.5)]),
            (&dry, "aaaa", &[(b'a', 1.0)]),
            (&dry, "ab|cdab|c", &[]),
            (&dry, "ab|xab", &[]),
            (&dry, "bc<>abcdabc", &[(b'd', 1.0), (b'<', 0.5)]),
            (&last_six, "abcdefab", &[]),
            (&last_six, "zabcdab", &[(b'c', 0.5)]),
            (&any, "ab", &[(b'b', 0.5)]),
        ];
        for (dry, text, expected) in cases {
            let expected = expected.iter().map(|&(token, loss)| (TokenId::from(token), loss));
            let found = dry.penalties(&tokens(text), &breakers);
            assert_eq!(found, expected.collect(), "{text:?}");
        }
    }
}
