//! Lookahead decoding: the target guesses its own n-grams.
//!
//! *Break the Sequential Dependency of LLM Inference Using Lookahead Decoding*, Fu et al. 2024, arXiv
//! 2402.02057, algorithm 2, with the settings of Spec-Bench: n-grams of 5, a window of 7, 7 guesses.
//!
//! 1. A window holds the Jacobi trajectories of the next positions: `N − 1` levels of `W` columns, the
//!    token of level `l` and column `i` guessed for the position `i + l + 1` tokens ahead. It sees level 0
//!    up to its column, and its own column's levels before it: a path of a tree.
//! 2. So one forward of the target scores the window beside the verified guesses. What it makes of the last
//!    level is the next level, and each column with it an n-gram for the pool.
//! 3. Guesses are the pool's n-grams that begin with the last token, the latest first.
//! 4. All are candidates of one tree, verified as deterministic ones. The oldest level goes, and the
//!    window moves on by what was accepted.
//!
//! Deviations: where a guess and the window begin alike they share nodes, and a window token may be
//! accepted as any other. Tokens that fill the window are the sequence's own, by a fixed rule instead of
//! chance.

use crate::answer_tracker::AnswerTracker;
use crate::{DraftContext, Drafter};
use forerun_core::{Draft, DraftShape, Proposal, SequenceId, TokenId, TokenTree, VerifiedDraft};
use forerun_model::ModelError;
use std::collections::{HashMap, VecDeque};

/// Tokens of an n-gram (N).
const NGRAM: usize = 5;
/// Columns of the window (W).
const WINDOW: usize = 7;
/// N-grams that are guessed, and kept for one first token (G).
const GUESSES: usize = 7;

/// Drafts n-grams that the target has guessed itself.
#[derive(Default)]
pub struct LookaheadDrafter {
    /// By sequence, its present answer.
    sequences: HashMap<SequenceId, (AnswerTracker, Trajectories)>,
}

/// What is kept of an answer.
struct Trajectories {
    /// By level: a guess for each column.
    levels: VecDeque<Vec<TokenId>>, // [NGRAM − 1][WINDOW]
    /// By their first token: what follows it in n-grams, the latest last.
    pool: HashMap<TokenId, VecDeque<Vec<TokenId>>>,
    /// Tokens of the sequence when the window was made.
    len: usize,
}

impl LookaheadDrafter {
    /// The largest depth of a draft: the window's last column, with all levels.
    pub const DEPTH: usize = WINDOW + NGRAM - 2;
    /// Nodes of a draft at the most: those of the window and of all guesses.
    pub const NODES: usize = (WINDOW + GUESSES) * (NGRAM - 1);

    /// A drafter that has seen nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Trajectories {
    fn new(tokens: &[TokenId]) -> Self {
        let level = |level| (0..WINDOW).map(|column| filler(tokens, level, column)).collect();
        let levels = (0..NGRAM - 1).map(level).collect();
        Self { levels, pool: HashMap::new(), len: tokens.len() }
    }

    /// The tokens on the path to a level's guess in a column.
    fn path(&self, level: usize, column: usize) -> impl Iterator<Item = TokenId> + '_ {
        let first = self.levels[0][..=column].iter().copied();
        first.chain((1..=level).map(move |level| self.levels[level][column]))
    }

    /// Learns what the target made of the window, and moves it on to the present tokens.
    fn advance(&mut self, last_draft: &VerifiedDraft, tokens: &[TokenId]) {
        let last = NGRAM - 2;
        let new = (0..WINDOW).map(|column| last_draft.token_after(self.path(last, column)));
        let new: Vec<Option<TokenId>> = new.collect();
        for (column, &token) in new.iter().enumerate() {
            let Some(token) = token else { continue };
            let first = self.levels[0][column];
            let rest = (1..=last).map(|level| self.levels[level][column]).chain([token]).collect();
            self.add(first, rest);
        }
        let fill = |(column, token): (usize, Option<TokenId>)| {
            token.unwrap_or_else(|| filler(tokens, last, column))
        };
        self.levels.pop_front();
        self.levels.push_back(new.into_iter().enumerate().map(fill).collect());
        // A level less is a position further; what was accepted are columns.
        let accepted = tokens.len().saturating_sub(self.len + 1).min(WINDOW);
        for (level, guesses) in self.levels.iter_mut().enumerate() {
            guesses.drain(..accepted);
            let missing = guesses.len()..WINDOW;
            guesses.extend(missing.map(|column| filler(tokens, level, column)));
        }
        self.len = tokens.len();
    }

    /// Adds an n-gram to the pool, as its latest.
    fn add(&mut self, first: TokenId, rest: Vec<TokenId>) {
        let known = self.pool.entry(first).or_default();
        known.retain(|other| *other != rest);
        if known.len() == GUESSES {
            known.pop_front();
        }
        known.push_back(rest);
    }
}

/// Some token of the sequence.
fn filler(tokens: &[TokenId], level: usize, column: usize) -> TokenId {
    let place = (tokens.len() * 31 + level * WINDOW + column) * 7919;
    tokens.get(place % tokens.len().max(1)).copied().unwrap_or(0)
}

/// Adds a chain from the prefix on, sharing the nodes that are there, down to `depth`.
fn insert(tree: &mut TokenTree, chain: impl Iterator<Item = TokenId>, depth: usize) {
    chain.take(depth).fold(None, |at, token| {
        let known = tree.child_with(at, token);
        Some(known.unwrap_or_else(|| tree.push(at, token)))
    });
}

impl Drafter for LookaheadDrafter {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let DraftContext { sequence, tokens, shape, feedback, .. } = *context;
        let anew = || (AnswerTracker::default(), Trajectories::new(tokens));
        let (answer, own) = self.sequences.entry(sequence).or_insert_with(anew);
        if !answer.continues(context) {
            *own = Trajectories::new(tokens);
        } else if let Some(last_draft) = &feedback.last_draft {
            own.advance(last_draft, tokens);
        }
        let last = tokens.last().copied().unwrap_or(0);
        let guesses = own.pool.get(&last).into_iter().flatten().rev();
        let mut tree = TokenTree::new();
        if let DraftShape::Chain { length } = *shape {
            // No tree, no window: the latest guess is all.
            for guess in guesses.take(1) {
                insert(&mut tree, guess.iter().copied(), length);
            }
        } else {
            for guess in guesses {
                insert(&mut tree, guess.iter().copied(), shape.depth());
            }
            for column in 0..WINDOW {
                insert(&mut tree, own.path(NGRAM - 2, column), shape.depth());
            }
        }
        Ok(Draft { tree, proposal: Proposal::Deterministic })
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

    /// The token that a target always takes behind another.
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

    /// Drafts behind tokens of which so many are the prompt.
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
        };
        drafter.draft(&context).unwrap().tree
    }

    /// Rounds of a target whose token depends on the one before: its trajectories find the text ahead of
    /// it, so that rounds come to commit several tokens.
    #[test]
    fn trajectories_converge_to_what_the_target_says() {
        let mut drafter = LookaheadDrafter::new();
        let (mut tokens, mut feedback, mut lengths) =
            (vec![1, 2, 7], TargetFeedback::default(), Vec::new());
        for _ in 0..40 {
            let tree = draft(&mut drafter, &tokens, &feedback);
            assert!(tree.len() <= LookaheadDrafter::NODES);
            for node in 0..tree.len() {
                let twins = tree.children(tree.parent(node));
                assert_eq!(twins.filter(|&twin| tree.token(twin) == tree.token(node)).count(), 1);
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
        assert_eq!(lengths[0], 1, "nothing is known at first");
        let late: usize = lengths[20..].iter().sum();
        assert!(late >= 60, "{lengths:?}");
    }

    /// A chat's turns share a sequence: one answer's n-grams are not the next one's.
    #[test]
    fn an_answer_knows_nothing_of_earlier_ones() {
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
    fn a_new_text_begins_anew_and_a_short_one_is_no_matter() {
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
