//! Prompt lookup: n-grams of the text so far.
//!
//! *Prompt Lookup Decoding*, Saxena 2023, <https://github.com/apoorvumang/prompt-lookup-decoding>;
//! "n-gram" speculation in vLLM.
//!
//! 1. Search the sequence for earlier occurrences of its last tokens.
//! 2. Propose the tokens that followed them. Longer matches come first, then those with a complete
//!    continuation, then more recent ones. In text that repeats itself, the latest match is cut
//!    short by the end of the text.
//! 3. Verify the candidates as deterministic ones, because they are a function of the tokens.
//!
//! Deviation: a tree can hold several continuations.

use crate::{DraftContext, Drafter};
use forerun_core::{Draft, DraftShape, SequenceId, TokenId, TokenTree};
use forerun_lm::ModelError;

/// The published settings: n-grams of up to 3 tokens, and up to 10 proposed tokens.
const MAX_NGRAM: usize = 3;
const MAX_TOKENS: usize = 10;

/// Drafts by searching the sequence for its last tokens. It needs no model and stores nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct PromptLookup;

impl Drafter for PromptLookup {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let width = match context.shape {
            DraftShape::Chain { .. } | DraftShape::ConfidentChain { .. } => 1,
            DraftShape::Top { width, .. } | DraftShape::Phrases { width, .. } => *width,
            DraftShape::Sampled { branching: counts } | DraftShape::Ranked { children: counts } => {
                counts.first().copied().unwrap_or(0)
            }
        };
        let depth = context.shape.depth().min(MAX_TOKENS);
        let budget = context.shape.max_nodes();
        let mut tree = TokenTree::new();
        for continuation in continuations(context.tokens, depth).take(width) {
            tree.insert_path(None, continuation.iter().copied(), budget);
        }
        Ok(Draft::deterministic(tree))
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

/// Iterates over the continuations of earlier occurrences of the last n-gram: the longest n first,
/// then complete continuations of `depth` tokens, then the most recent.
fn continuations(tokens: &[TokenId], depth: usize) -> impl Iterator<Item = &[TokenId]> {
    let end = tokens.len();
    let longest = MAX_NGRAM.min(end.saturating_sub(1));
    (1..=longest).rev().flat_map(move |n| {
        let ngram = &tokens[end - n..];
        let matches = move |start: &usize| &tokens[*start..start + n] == ngram;
        let complete = (end - n + 1).saturating_sub(depth).min(end - n);
        let starts = (0..complete).rev().chain((complete..end - n).rev());
        starts.filter(matches).map(move |start| &tokens[start + n..end.min(start + n + depth)])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_core::{KeyedRandomness, Sampling, TargetFeedback};
    use std::sync::atomic::AtomicBool;

    fn draft(tokens: &[TokenId], shape: &DraftShape) -> TokenTree {
        let context = DraftContext {
            sequence: SequenceId(0),
            tokens,
            prompt_len: tokens.len(),
            sampling: &Sampling::greedy(),
            randomness: &KeyedRandomness { seed: 0, sample: 0 },
            shape,
            feedback: &TargetFeedback::default(),
            cancel: &AtomicBool::new(false),
            tokens_on_last_device: None,
        };
        PromptLookup.draft(&context).map(|draft| draft.tree).unwrap_or_default()
    }

    #[test]
    fn the_longest_and_then_latest_match_is_continued() {
        let chain = DraftShape::Chain { length: 3 };
        assert_eq!(draft(&[1, 2, 3, 4, 9, 1, 2, 3], &chain), TokenTree::chain(&[4, 9, 1]));
        assert_eq!(draft(&[5, 7, 5, 8, 5], &chain), TokenTree::chain(&[7, 5, 8]));
        assert_eq!(draft(&[4; 9], &chain), TokenTree::chain(&[4; 3]));
        // A longer match precedes a later, shorter one.
        assert_eq!(draft(&[1, 2, 6, 2, 7, 1, 2], &chain), TokenTree::chain(&[6, 2, 7]));
        assert_eq!(draft(&[1, 2, 3], &chain), TokenTree::new());
        assert_eq!(draft(&[1], &chain), TokenTree::new());
    }

    #[test]
    fn a_tree_holds_several_continuations() {
        let tree = draft(&[5, 7, 5, 8, 5], &DraftShape::Top { width: 2, depth: 2, budget: None });
        assert_eq!(tree.tokens(), [8, 5, 7, 5]);
        assert_eq!(tree.children(None).count(), 2);
    }
}
