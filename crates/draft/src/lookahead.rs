//! Lookahead decoding: the target generates its own n-grams.
//!
//! *Break the Sequential Dependency of LLM Inference Using Lookahead Decoding*, Fu et al. 2024,
//! arXiv 2402.02057, algorithm 2. The settings are those of Spec-Bench: n-grams of N = 5 tokens, a
//! window of W = 7 columns, and G = 7 guesses.
//!
//! 1. A window holds the Jacobi trajectories of the next positions: `N − 1` levels of `W` columns.
//!    The token of level `l` and column `i` is a guess for the position `i + l + 1` tokens ahead.
//!    It attends to level 0 up to its column, and to the earlier levels of its column. This is a
//!    path of a tree.
//! 2. So one forward of the target scores the window together with the n-grams to verify. Its
//!    tokens after the last level are the next level. Each column with its new token is an n-gram
//!    for the pool.
//! 3. The guesses are the pool's n-grams that start with the last token, the latest first.
//! 4. Guesses and window are candidates of one tree, verified as deterministic ones. Then the
//!    oldest level is dropped, and the window moves on by the accepted tokens.
//!
//! Deviations: guesses and window share nodes if they start with the same tokens, and a token of
//! the window can be accepted like any other. The tokens that fill the window are taken from the
//! sequence by a fixed rule; the paper draws them at random.

use crate::answer_tracker::AnswerTracker;
use crate::ngram_pool::NgramPool;
use crate::{DefaultShape, DraftContext, Drafter, DrafterTraits};
use forerun_core::{Draft, DraftShape, Need, SequenceId, TokenId, TokenTree, VerifiedDraft};
use forerun_lm::ModelError;
use std::collections::{HashMap, VecDeque};

/// The number of tokens in an n-gram (N).
const NGRAM: usize = 5;
/// The number of columns of the window (W).
const WINDOW: usize = 7;
/// The number of n-grams that are kept for a first token, and verified in a round (G).
const GUESSES: usize = 7;

/// What lookahead decoding needs. Its window is always a tree.
pub const LOOKAHEAD_TRAITS: DrafterTraits = DrafterTraits {
    needs: &[Need::Feedback, Need::Trees],
    shape: DefaultShape::Tree { depth: LookaheadDrafter::DEPTH, nodes: LookaheadDrafter::NODES },
};

/// Drafts n-grams that the target has generated.
#[derive(Default)]
pub struct LookaheadDrafter {
    /// The current answer of each sequence.
    sequences: HashMap<SequenceId, (AnswerTracker, Trajectories)>,
}

/// The window and the n-grams of an answer.
struct Trajectories {
    /// The window: by level, a guess for each column.
    levels: VecDeque<Vec<TokenId>>, // [NGRAM − 1][WINDOW]
    pool: NgramPool<GUESSES>,
    /// The number of tokens of the sequence when the window was made.
    len: usize,
}

impl LookaheadDrafter {
    /// The largest depth of a draft: the window's last column with all levels.
    pub const DEPTH: usize = WINDOW + NGRAM - 2;
    /// The maximum number of nodes of a draft: those of the window and of all guesses.
    pub const NODES: usize = (WINDOW + GUESSES) * (NGRAM - 1);

    /// Creates a drafter without any n-grams.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Trajectories {
    fn new(tokens: &[TokenId]) -> Self {
        let level = |level| (0..WINDOW).map(|column| filler(tokens, level, column)).collect();
        let levels = (0..NGRAM - 1).map(level).collect();
        Self { levels, pool: NgramPool::default(), len: tokens.len() }
    }

    /// Iterates over the tokens on the path to a level's guess in a column.
    fn path(&self, level: usize, column: usize) -> impl Iterator<Item = TokenId> + '_ {
        let first = self.levels[0][..=column].iter().copied();
        first.chain((1..=level).map(move |level| self.levels[level][column]))
    }

    /// Adds the n-grams that the target made of the window to the pool, and moves the window on to
    /// the current tokens.
    fn advance(&mut self, last_draft: &VerifiedDraft, tokens: &[TokenId]) {
        let last = NGRAM - 2;
        let new = (0..WINDOW).map(|column| last_draft.token_after(self.path(last, column)));
        let new: Vec<Option<TokenId>> = new.collect();
        for (column, &token) in new.iter().enumerate() {
            let Some(token) = token else { continue };
            let first = self.levels[0][column];
            let rest = (1..=last).map(|level| self.levels[level][column]).chain([token]);
            self.pool.add(first, &rest.collect::<Vec<TokenId>>());
        }
        let fill = |(column, token): (usize, Option<TokenId>)| {
            token.unwrap_or_else(|| filler(tokens, last, column))
        };
        self.levels.pop_front();
        self.levels.push_back(new.into_iter().enumerate().map(fill).collect());
        // Dropping a level moves the window by one position, each further token by one column.
        let accepted = tokens.len().saturating_sub(self.len + 1).min(WINDOW);
        for (level, guesses) in self.levels.iter_mut().enumerate() {
            guesses.drain(..accepted);
            let missing = guesses.len()..WINDOW;
            guesses.extend(missing.map(|column| filler(tokens, level, column)));
        }
        self.len = tokens.len();
    }
}

/// Returns a token of the sequence to fill a place of the window, by a fixed rule.
fn filler(tokens: &[TokenId], level: usize, column: usize) -> TokenId {
    let place = (tokens.len() * 31 + level * WINDOW + column) * 7919;
    tokens.get(place % tokens.len().max(1)).copied().unwrap_or(0)
}

impl Drafter for LookaheadDrafter {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let DraftContext { sequence, tokens, shape, feedback, .. } = *context;
        let new = || (AnswerTracker::default(), Trajectories::new(tokens));
        let (answer, trajectories) = self.sequences.entry(sequence).or_insert_with(new);
        if !answer.continues(context) {
            *trajectories = Trajectories::new(tokens);
        } else if let Some(last_draft) = &feedback.last_draft {
            trajectories.advance(last_draft, tokens);
        }
        let last = tokens.last().copied().unwrap_or(0);
        let mut guesses = trajectories.pool.continuations(last);
        let mut tree = TokenTree::new();
        if let DraftShape::Chain { length } | DraftShape::ConfidentChain { length, .. } = *shape {
            // A chain has no room for the window, and only one guess.
            if let Some(guess) = guesses.next() {
                tree.insert_path(None, guess.iter().copied().take(length), usize::MAX);
            }
        } else {
            for guess in guesses {
                tree.insert_path(None, guess.iter().copied().take(shape.depth()), usize::MAX);
            }
            for column in 0..WINDOW {
                let path = trajectories.path(NGRAM - 2, column).take(shape.depth());
                tree.insert_path(None, path, usize::MAX);
            }
        }
        Ok(Draft::deterministic(tree))
    }

    fn release(&mut self, sequence: SequenceId) {
        self.sequences.remove(&sequence);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use forerun_core::{KeyedRandomness, Sampling, TargetFeedback};
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    /// Returns the token that the simulated target generates after `token`.
    fn next(token: TokenId) -> TokenId {
        (token * 5 + 3) % 101
    }

    fn draft(
        drafter: &mut LookaheadDrafter,
        tokens: &[TokenId],
        feedback: &TargetFeedback,
    ) -> TokenTree {
        draft_after(3, drafter, tokens, feedback)
    }

    /// Drafts after `tokens`, of which the first `prompt_len` are the prompt.
    fn draft_after(
        prompt_len: usize,
        drafter: &mut LookaheadDrafter,
        tokens: &[TokenId],
        feedback: &TargetFeedback,
    ) -> TokenTree {
        let context = DraftContext {
            sequence: SequenceId(0),
            tokens,
            prompt_len,
            sampling: &Sampling::greedy(),
            randomness: &KeyedRandomness { seed: 0, sample: 0 },
            shape: &DraftShape::Top { width: 7, depth: LookaheadDrafter::DEPTH, budget: None },
            feedback,
            cancel: &AtomicBool::new(false),
            tokens_on_last_device: None,
        };
        drafter.draft(&context).unwrap().tree
    }

    /// Each token of the target depends on the one before it. The trajectories find the text ahead,
    /// so later rounds commit several tokens.
    #[test]
    fn trajectories_converge_to_the_targets_text() {
        let mut drafter = LookaheadDrafter::new();
        let (mut tokens, mut feedback, mut lengths) =
            (vec![1, 2, 7], TargetFeedback::default(), Vec::new());
        for _ in 0..40 {
            let tree = draft(&mut drafter, &tokens, &feedback);
            assert!(tree.len() <= LookaheadDrafter::NODES);
            for node in 0..tree.len() {
                let mut siblings = tree.children(tree.parent(node));
                assert!(
                    siblings.all(|other| other == node || tree.token(other) != tree.token(node))
                );
            }
            let last = *tokens.last().unwrap();
            let rows = [last].into_iter().chain(tree.tokens().iter().copied()).map(next);
            let before = tokens.len();
            tokens.push(next(last));
            let mut at = None;
            while let Some(node) = tree.child_with(at, *tokens.last().unwrap()) {
                at = Some(node);
                tokens.push(next(tree.token(node)));
            }
            lengths.push(tokens.len() - before);
            feedback.last_draft = Some(Arc::new(VerifiedDraft { tokens: rows.collect(), tree }));
        }
        assert_eq!(lengths[0], 1, "the pool is empty at first");
        let late: usize = lengths[20..].iter().sum();
        assert!(late >= 60, "{lengths:?}");
    }

    /// The turns of a chat share a sequence, but not their n-grams.
    #[test]
    fn n_grams_of_earlier_answers_are_not_used() {
        let mut drafter = LookaheadDrafter::new();
        let (mut tokens, mut feedback) = (vec![1, 2, 7], TargetFeedback::default());
        for _ in 0..8 {
            let tree = draft(&mut drafter, &tokens, &feedback);
            let rows = tokens.last().into_iter().chain(tree.tokens()).map(|&token| next(token));
            feedback.last_draft = Some(Arc::new(VerifiedDraft { tokens: rows.collect(), tree }));
            tokens.push(next(tokens[tokens.len() - 1]));
        }
        tokens.extend([7, 7]);
        let rewritten = [&[4][..], &tokens[1..]].concat();
        for (prompt_len, tokens) in [(5, &tokens), (3, &rewritten)] {
            let fresh = draft_after(prompt_len, &mut LookaheadDrafter::new(), tokens, &feedback);
            assert_eq!(draft_after(prompt_len, &mut drafter, tokens, &feedback), fresh);
        }
    }

    #[test]
    fn another_text_resets_the_window_and_short_texts_work() {
        let mut drafter = LookaheadDrafter::new();
        let first = draft(&mut drafter, &[4], &TargetFeedback::default());
        assert!(first.tokens().iter().all(|&token| token == 4));
        draft(&mut drafter, &[4, 5, 6, 7], &TargetFeedback::default());
        let again = draft(&mut drafter, &[4], &TargetFeedback::default());
        assert_eq!(again, first);
        drafter.release(SequenceId(0));
        assert!(drafter.sequences.is_empty());
    }
}
