//! A pool of n-grams by their first token, which Lookahead decoding and Ouroboros use.

use forerun_core::TokenId;
use std::collections::{HashMap, VecDeque};

/// The latest `CAPACITY` n-grams for each first token.
#[derive(Default)]
pub(crate) struct NgramPool<const CAPACITY: usize> {
    /// By first token: the tokens after it, the latest n-gram last.
    by_first: HashMap<TokenId, VecDeque<Vec<TokenId>>>,
}

impl<const CAPACITY: usize> NgramPool<CAPACITY> {
    /// Adds an n-gram as the latest one. If the pool is full for its first token, the oldest one is
    /// removed.
    pub(crate) fn add(&mut self, first: TokenId, rest: &[TokenId]) {
        let known = self.by_first.entry(first).or_default();
        known.retain(|other| *other != rest);
        if known.len() == CAPACITY {
            known.pop_front();
        }
        known.push_back(rest.to_vec());
    }

    /// Iterates over the continuations of a token, the latest first.
    pub(crate) fn continuations(&self, first: TokenId) -> impl Iterator<Item = &[TokenId]> {
        self.by_first.get(&first).into_iter().flatten().rev().map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_n_grams_are_kept_once_each() {
        let mut pool = NgramPool::<3>::default();
        for token in [1, 2, 3, 4, 2] {
            pool.add(9, &[token, token]);
        }
        assert_eq!(pool.continuations(9).collect::<Vec<_>>(), [[2, 2], [4, 4], [3, 3]]);
        assert_eq!(pool.continuations(1).count(), 0);
    }
}
