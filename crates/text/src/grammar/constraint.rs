//! The constraint that a grammar puts on one answer.

use super::compiler::{CompiledGrammar, stuck};
use super::{GrammarError, GrammarKind};
use forerun_core::{TokenConstraint, TokenId, TokenMask};
use llguidance::Matcher;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most masks that are kept: more than the rows of the largest tree.
const KEPT: usize = 256;

/// A grammar, for the tokens of one answer.
///
/// One matcher moves to the prefix that is asked for: back to what both have in common, and then
/// forward. So a row costs as many steps as it is away from the last one.
pub struct GrammarConstraint {
    grammar: Arc<CompiledGrammar>,
    /// They end the answer, and have no text.
    end_tokens: Vec<TokenId>,
    state: Mutex<State>,
}

struct State {
    matcher: Matcher,
    /// The tokens that the matcher has read.
    read: Vec<TokenId>,
    /// What follows the last prefixes.
    kept: HashMap<Arc<[TokenId]>, Continuation>,
    /// The prefixes in `kept`, the oldest first.
    order: VecDeque<Arc<[TokenId]>>,
}

/// What may follow a prefix of the answer.
#[derive(Clone)]
enum Continuation {
    /// These tokens. If the text is complete, end tokens are among them.
    Tokens(TokenMask),
    /// Nothing, because the prefix is forbidden itself.
    Forbidden,
    /// Nothing, for this reason. The answer has to end.
    Stuck(String),
}

impl GrammarConstraint {
    pub(super) fn new(grammar: Arc<CompiledGrammar>, end_tokens: Vec<TokenId>) -> Self {
        let matcher = grammar.start();
        let state =
            State { matcher, read: Vec::new(), kept: HashMap::new(), order: VecDeque::new() };
        Self { grammar, end_tokens, state: Mutex::new(state) }
    }

    /// Returns why an answer that has ended is not complete. `answer` includes its end token.
    #[must_use]
    pub fn error_of(&self, answer: &[TokenId]) -> Option<GrammarError> {
        let (last, before) = answer.split_last()?;
        if !self.end_tokens.contains(last) {
            return None;
        }
        match self.continuation(before) {
            Continuation::Stuck(reason) => {
                let kind = self.grammar.kind;
                Some(GrammarError::Stuck { kind, after: before.len(), reason })
            }
            Continuation::Tokens(_) | Continuation::Forbidden => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ends_within(&self, answer: &[TokenId]) -> bool {
        answer.iter().any(|token| self.end_tokens.contains(token))
    }

    fn continuation(&self, answer: &[TokenId]) -> Continuation {
        let mut state = self.state();
        if let Some(kept) = state.kept.get(answer) {
            return kept.clone();
        }
        let found = match state.seek(&self.grammar, answer) {
            Ok(true) => self.continuation_here(&mut state),
            Ok(false) => Continuation::Forbidden,
            Err(reason) => {
                state.start_over(&self.grammar);
                Continuation::Stuck(reason)
            }
        };
        state.keep(answer, &found);
        found
    }

    /// Returns what may follow the tokens that the matcher has read.
    fn continuation_here(&self, state: &mut State) -> Continuation {
        if state.matcher.is_stopped() && !state.matcher.is_error() {
            return Continuation::Tokens(TokenMask::of(self.end_tokens.iter().copied()));
        }
        match state.matcher.compute_mask() {
            Ok(mask) => {
                let end = self.grammar.vocabulary.end();
                let mut words = mask.as_slice().to_vec();
                let ends = mask.is_allowed(end);
                for &token in &self.end_tokens {
                    let (word, bit) = (&mut words[token as usize / 32], 1 << (token % 32));
                    // Else a model's end token with a text of its own would end an answer early.
                    *word = if ends { *word | bit } else { *word & !bit };
                }
                if let Some(word) = words.get_mut(end as usize / 32) {
                    *word &= !(1 << (end % 32));
                }
                if let Some(names) = &self.grammar.names {
                    names.exclude_repeated(&state.read, &self.grammar.vocabulary, &mut words);
                }
                Continuation::Tokens(TokenMask::from_words(words))
            }
            Err(error) => {
                state.start_over(&self.grammar);
                Continuation::Stuck(stuck(&error.to_string()))
            }
        }
    }
}

impl State {
    /// Moves the matcher to `answer`. Returns whether the grammar allows these tokens.
    ///
    /// # Errors
    /// Why the matcher failed. It has to start over then.
    fn seek(&mut self, grammar: &CompiledGrammar, answer: &[TokenId]) -> Result<bool, String> {
        let reason = |error: &dyn fmt::Display| stuck(&error.to_string());
        let common = self.read.iter().zip(answer).take_while(|(a, b)| a == b).count();
        let back = self.read.len() - common;
        if back > 0 {
            self.matcher.rollback(back).map_err(|error| reason(&error))?;
            self.read.truncate(common);
        }
        for &token in &answer[common..] {
            if !grammar.vocabulary.is_known(token) {
                return Ok(false);
            }
            let read = self.matcher.try_consume_tokens(&[token]);
            if read.map_err(|error| reason(&error))? == 0 {
                return Ok(false);
            }
            self.read.push(token);
        }
        Ok(true)
    }

    fn start_over(&mut self, grammar: &CompiledGrammar) {
        self.matcher = grammar.start();
        self.read.clear();
    }

    fn keep(&mut self, answer: &[TokenId], found: &Continuation) {
        if self.order.len() == KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.kept.remove(&oldest);
        }
        let answer: Arc<[TokenId]> = answer.into();
        self.order.push_back(Arc::clone(&answer));
        self.kept.insert(answer, found.clone());
    }
}

impl TokenConstraint for GrammarConstraint {
    fn allowed(&self, answer: &[TokenId]) -> Option<TokenMask> {
        let ends = || TokenMask::of(self.end_tokens.iter().copied());
        if self.ends_within(answer) {
            return Some(ends());
        }
        match self.continuation(answer) {
            Continuation::Tokens(mask) => Some(mask),
            Continuation::Forbidden => None,
            Continuation::Stuck(_) => Some(ends()),
        }
    }

    fn forced(&self, answer: &[TokenId], limit: usize) -> Vec<TokenId> {
        let mut state = self.state();
        if self.ends_within(answer) || !matches!(state.seek(&self.grammar, answer), Ok(true)) {
            return Vec::new();
        }
        // A copy, because the search for forced bytes changes the matcher.
        let bytes = state.matcher.clone().compute_ff_bytes();
        drop(state);
        let mut tokens = self.grammar.spell(answer.last().copied(), &bytes);
        tokens.truncate(limit);
        tokens
    }
}

impl fmt::Debug for GrammarConstraint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind: GrammarKind = self.grammar.kind;
        formatter.debug_struct("GrammarConstraint").field("kind", &kind).finish_non_exhaustive()
    }
}
