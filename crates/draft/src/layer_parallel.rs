//! A language model whose layers are computed several at a time as the drafter.
//!
//! *EasySpec: Layer-Parallel Speculative Decoding for Efficient Multi-GPU Utilization*, Wu et al.
//! 2025, arXiv 2502.02493, algorithm 2 and section 3.2.
//!
//! 1. Bonus calibration: a round opens with an exact forward over the tokens accepted since the last
//!    and the bonus token. Everything fuzzy was dropped before, accepted or not.
//! 2. Its last row proposes the first depth of the draft.
//! 3. Each further depth is a layer-parallel forward: the layers of a group read one hidden state.
//! 4. Verification makes up for what approximate rows get wrong; it never knows of them.
//!
//! Deviations: a draft is verified as its kind demands, where the authors' code accepts the most
//! probable candidates with min(1, target/draft), which changes the output's distribution. Their code
//! calibrates only behind a mismatch; here that is one of several policies. Which rows are fuzzy is
//! the cache's knowledge: a round says which tokens must be exact, and nothing is rolled back. Where
//! drafting runs ahead of verification, a job that lengthens the last draft may belong to its round, since
//! such jobs are of few tokens. An answer opens with an exact forward whatever was drafted before it on the
//! same sequence, so that equal requests are drafted alike.

use crate::{DraftContext, Drafter, ModelDrafter};
use forerun_core::{Draft, SequenceId, TokenId, TokenTree};
use forerun_model::{LanguageModel, LayerGroups, LayeredModel, Logits, LogitsContext, ModelError};
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// When a round opens with an exact forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CalibrationPolicy {
    /// Always: every token before the draft is exact.
    #[default]
    EveryRound,
    /// Only where the tokens are not a continuation of the last draft, which is kept otherwise.
    OnMismatch,
    /// Only the prompt is exact.
    PrefillOnly,
    /// Nothing is.
    Never,
}

/// A text that names no policy.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{found:?} is not one of every-round, on-mismatch, prefill-only, never")]
pub struct UnknownCalibrationPolicy {
    found: String,
}

impl FromStr for CalibrationPolicy {
    type Err = UnknownCalibrationPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownCalibrationPolicy> {
        match text {
            "every-round" => Ok(Self::EveryRound),
            "on-mismatch" => Ok(Self::OnMismatch),
            "prefill-only" => Ok(Self::PrefillOnly),
            "never" => Ok(Self::Never),
            _ => Err(UnknownCalibrationPolicy { found: text.to_owned() }),
        }
    }
}

impl fmt::Display for CalibrationPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EveryRound => "every-round",
            Self::OnMismatch => "on-mismatch",
            Self::PrefillOnly => "prefill-only",
            Self::Never => "never",
        })
    }
}

/// Drafts with a language model by groups of its layers.
pub struct LayerParallelDrafter<M> {
    /// It asks for rows as it always does; they come as this round wants them.
    drafter: ModelDrafter<LayerParallel<M>>,
    calibration: CalibrationPolicy,
    /// Tokens that make a round, if several jobs lengthen one draft.
    round: usize,
    /// Where the policy asks for it: each sequence's last draft.
    last: HashMap<SequenceId, LastDraft>,
}

impl<M: LayeredModel> LayerParallelDrafter<M> {
    /// A drafter that asks `model`, all of whose layers are in `groups`.
    pub fn new(model: M, groups: LayerGroups, calibration: CalibrationPolicy) -> Self {
        let drafter = ModelDrafter::new(LayerParallel { model, groups, exact: 0 });
        Self { drafter, calibration, round: 1, last: HashMap::new() }
    }

    /// The same, but jobs that go on with one draft are of one round until it has `tokens` tokens; otherwise
    /// every job opens a round.
    #[must_use]
    pub fn with_round_length(self, tokens: usize) -> Self {
        Self { round: tokens.max(1), ..self }
    }

    /// The same for a target whose vocabulary may have another size.
    #[must_use]
    pub fn with_vocab_size(self, vocab_size: usize) -> Self {
        Self { drafter: self.drafter.with_vocab_size(vocab_size), ..self }
    }

    /// The model. Tests look at its caches.
    #[must_use]
    pub fn model(&self) -> &M {
        &self.drafter.model().model
    }

    /// How many tokens a round's forwards must have exactly before them.
    fn exact_tokens(&self, context: &DraftContext<'_>) -> usize {
        // Of the same answer, which is not at its beginning.
        let begun = context.tokens.len() > context.prompt_len;
        let is_of_it = |last: &&LastDraft| begun && last.prompt_len == context.prompt_len;
        let last = self.last.get(&context.sequence).filter(is_of_it);
        let continues = || last.is_some_and(|last| last.is_continued_by(context.tokens));
        let opening = || {
            let last = last?;
            let goes_on = last.is_lengthened_to(context.tokens);
            (goes_on && context.tokens.len() < last.opened + self.round).then_some(last.opened)
        };
        match self.calibration {
            CalibrationPolicy::EveryRound => opening().unwrap_or(context.tokens.len()),
            CalibrationPolicy::OnMismatch if continues() => 0,
            CalibrationPolicy::OnMismatch => context.tokens.len(),
            CalibrationPolicy::PrefillOnly => context.prompt_len.min(context.tokens.len()),
            CalibrationPolicy::Never => 0,
        }
    }
}

impl<M: LayeredModel> Drafter for LayerParallelDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let exact = self.exact_tokens(context);
        self.drafter.model_mut().exact = exact;
        let draft = self.drafter.draft(context)?;
        let remembers = match self.calibration {
            CalibrationPolicy::EveryRound => self.round > 1,
            CalibrationPolicy::OnMismatch => true,
            CalibrationPolicy::PrefillOnly | CalibrationPolicy::Never => false,
        };
        if remembers {
            let last = self.last.entry(context.sequence).or_default();
            last.remember(context, exact, &draft.tree);
        }
        Ok(draft)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.last.remove(&sequence);
        self.drafter.release(sequence);
    }
}

/// A round's model: what is asked of it is computed by groups of layers, behind `exact` exact tokens.
struct LayerParallel<M> {
    model: M,
    groups: LayerGroups,
    exact: usize,
}

impl<M: LayeredModel> LanguageModel for LayerParallel<M> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.model.context_length()
    }

    fn logits(&mut self, context: &LogitsContext<'_>) -> Result<Logits, ModelError> {
        self.model.layer_parallel_logits(context, &self.groups, self.exact)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.model.release(sequence);
    }
}

/// What was drafted last, and behind what.
#[derive(Default)]
struct LastDraft {
    tokens: Vec<TokenId>,
    /// How many of them are the prompt.
    prompt_len: usize,
    /// How many of them stood before the round that it is of.
    opened: usize,
    tree: TokenTree,
}

impl LastDraft {
    fn remember(&mut self, context: &DraftContext<'_>, opened: usize, tree: &TokenTree) {
        (self.prompt_len, self.opened) = (context.prompt_len, opened);
        self.tokens.clear();
        self.tokens.extend_from_slice(context.tokens);
        self.tree.copy_from(tree, tree.len());
    }

    /// Whether `tokens` are those of the draft and nothing else: what comes behind them lengthens it.
    fn is_lengthened_to(&self, tokens: &[TokenId]) -> bool {
        let Some(behind) = tokens.strip_prefix(&self.tokens[..]) else { return false };
        let mut at = None;
        behind.iter().all(|&token| {
            at = self.tree.child_with(at, token);
            at.is_some()
        })
    }

    /// Whether nothing in `tokens` contradicts the draft: they go along one of its paths as far as it
    /// leads, or they themselves do.
    fn is_continued_by(&self, tokens: &[TokenId]) -> bool {
        let Some(behind) = tokens.strip_prefix(&self.tokens[..]) else { return false };
        let mut at = None;
        for &token in behind {
            if self.tree.children(at).next().is_none() {
                return true;
            }
            match self.tree.child_with(at, token) {
                Some(node) => at = Some(node),
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_continued_by_what_does_not_contradict_it() {
        let mut tree = TokenTree::chain(&[3, 4]);
        tree.push(None, 5);
        let last = LastDraft { tokens: vec![1, 2], prompt_len: 2, opened: 2, tree };
        let table: &[(&[TokenId], bool)] = &[
            // All of a path accepted, and the bonus token.
            (&[1, 2, 3, 4, 9], true),
            (&[1, 2, 5, 9], true),
            (&[1, 2, 5, 9, 9], true),
            // A part of it, as where drafting goes on behind unverified tokens.
            (&[1, 2, 3], true),
            (&[1, 2], true),
            // A correction.
            (&[1, 2, 9], false),
            (&[1, 2, 3, 9], false),
            // Another text.
            (&[1], false),
            (&[1, 9, 3, 4], false),
        ];
        for &(tokens, continues) in table {
            assert_eq!(last.is_continued_by(tokens), continues, "{tokens:?}");
        }
        // Of these, only what was drafted lengthens it: not the bonus token.
        for (tokens, lengthens) in [
            (&[1, 2, 3, 4][..], true),
            (&[1, 2, 5], true),
            (&[1, 2], true),
            (&[1, 2, 3, 4, 9], false),
            (&[1, 2, 9], false),
            (&[1], false),
        ] {
            assert_eq!(last.is_lengthened_to(tokens), lengthens, "{tokens:?}");
        }
        let none = LastDraft { tokens: vec![1], prompt_len: 1, opened: 1, tree: TokenTree::new() };
        assert!(none.is_continued_by(&[1, 2]), "nothing was drafted, so nothing was rejected");
    }

    #[test]
    fn policies_are_read_and_unknown_ones_listed() {
        for name in ["every-round", "on-mismatch", "prefill-only", "never"] {
            assert_eq!(
                name.parse::<CalibrationPolicy>().map(|c| c.to_string()),
                Ok(name.to_owned())
            );
        }
        let error = "sometimes".parse::<CalibrationPolicy>().map_err(|error| error.to_string());
        assert!(error.is_err_and(|error| error.contains("on-mismatch")));
    }
}
