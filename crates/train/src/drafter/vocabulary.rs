//! A reduced vocabulary of a drafter: the rows of the target's head for the most frequent tokens
//! (EAGLE-3, arXiv 2503.01840, in its published checkpoints).

use super::target::Target;
use crate::data::{Dataset, Split};
use crate::ops::draft_head::FrozenHead;
use std::cmp::Reverse;
use std::sync::Arc;

/// The tokens that a drafter can draft, and their part of the target's head.
pub(super) struct DraftVocabulary {
    /// The target's tokens in the order of the head's outputs, which is ascending.
    tokens: Arc<[u32]>,
    head: Arc<FrozenHead>,
}

impl DraftVocabulary {
    pub(super) fn new(tokens: Arc<[u32]>, target: &Target) -> Self {
        let head = Arc::new(target.head().select(&tokens));
        Self { tokens, head }
    }

    /// Returns the target's tokens in the order of the head's outputs.
    pub(super) fn tokens(&self) -> &Arc<[u32]> {
        &self.tokens
    }

    /// Returns the part of the target's head.
    pub(super) fn head(&self) -> &Arc<FrozenHead> {
        &self.head
    }

    /// Returns the head's output for one of the target's tokens; `None` if the drafter cannot draft
    /// it.
    pub(super) fn output(&self, token: u32) -> Option<u32> {
        self.tokens.binary_search(&token).ok().map(|output| output as u32)
    }

    /// Returns the target's token of one of the head's outputs.
    pub(super) fn token(&self, output: usize) -> usize {
        self.tokens[output] as usize
    }

    /// Returns the tensor `d2t`: for each output, the distance to the target's token.
    pub(super) fn offsets(&self) -> Vec<i64> {
        (0..).zip(&*self.tokens).map(|(output, &token)| i64::from(token) - output).collect()
    }

    /// Returns the tokens that `d2t` describes; `None` if they are not ascending tokens below
    /// `vocab_size`.
    pub(super) fn tokens_of(offsets: &[i64], vocab_size: usize) -> Option<Arc<[u32]>> {
        let token = |(output, offset): (i64, &i64)| {
            u32::try_from(output.checked_add(*offset)?).ok().filter(|&t| (t as usize) < vocab_size)
        };
        let tokens: Option<Arc<[u32]>> = (0..).zip(offsets).map(token).collect();
        tokens.filter(|tokens| tokens.is_sorted_by(|one, next| one < next))
    }
}

/// Returns the `size` most frequent tokens of the training text, in ascending order.
pub(crate) fn most_frequent_tokens(
    dataset: &Dataset,
    vocab_size: usize,
    size: usize,
) -> Arc<[u32]> {
    const AT_ONCE: usize = 1 << 16;
    let (stream, mut counts) = (dataset.tokens(Split::Training), vec![0_u64; vocab_size]);
    let mut part = Vec::new();
    for start in (0..stream.len()).step_by(AT_ONCE) {
        part.clear();
        stream.read(start, AT_ONCE, &mut part);
        for &token in &part {
            if let Some(count) = counts.get_mut(token as usize) {
                *count += 1;
            }
        }
    }
    let mut tokens: Vec<u32> = (0..vocab_size as u32).collect();
    tokens.sort_by_key(|&token| (Reverse(counts[token as usize]), token));
    tokens.truncate(size);
    tokens.sort_unstable();
    tokens.into()
}
