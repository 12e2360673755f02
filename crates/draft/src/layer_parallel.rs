//! EasySpec: a language model drafts with several of its layers computed in parallel.
//!
//! *EasySpec: Layer-Parallel Speculative Decoding for Efficient Multi-GPU Utilization*, Wu et al.
//! 2025, arXiv 2502.02493, algorithm 2 and section 3.2.
//!
//! 1. Bonus calibration: a round starts with an exact forward over the tokens committed since the
//!    last calibration. All approximate cache entries were dropped before, accepted or not.
//! 2. The last row of this forward proposes the first depth of the draft.
//! 3. Algorithm 2: each further depth is a layer-parallel forward. The attention of all layers of a
//!    group reads the same hidden state. Then their MLPs run in order.
//! 4. Verification is exact, so approximate rows cost acceptance but never change the output.
//!
//! This file decides what must be exact. The passes are the models': step 1 is
//! `CachedTransformer::plan` in `crates/model/src/cached_transformer.rs`, which also knows which
//! cache entries are approximate. Step 3 is `run_group` in `crates/cpu/src/transformer.rs`: its
//! `attention_blocks` is the first loop of algorithm 2, and its `mlp_blocks` the second. The
//! shortest version is `run` in `crates/reference/src/device.rs`.
//!
//! Deviations:
//!
//! * The authors' code accepts the most probable candidates with probability min(1, target/draft),
//!   which changes the distribution of the output. Here they are verified as deterministic
//!   candidates.
//! * The authors' code calibrates only after a mismatch. Here that is one of several policies.
//!   Another one calibrates the draft while the target verifies it, so that the next round need
//!   not.
//! * The cache tracks which entries are approximate. A round states which tokens must be exact, and
//!   nothing is rolled back.
//! * If drafting runs ahead of verification, jobs have few tokens. A job that extends the last
//!   draft may then belong to the same round.
//! * An answer starts with an exact forward, whatever was drafted on its sequence before, so equal
//!   requests give equal drafts.

use crate::{DraftContext, Drafter, ModelDrafter, single_draft};
use forerun_core::{Draft, DraftShape, SequenceId, TokenId, TokenTree};
use forerun_lm::{ForwardRequest, LayerGroups, LayerOrder, LayeredModel, ModelError};
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// Decides when a round starts with an exact forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CalibrationPolicy {
    /// In every round: all tokens before the draft are exact.
    #[default]
    EveryRound,
    /// While the target verifies: a job of depth 0 makes the draft's rows exact, and the rows of
    /// accepted tokens stay so. A round then starts in groups of layers: only the row of the last
    /// token is approximate. What no such job has made exact, the round does.
    DuringVerification,
    /// Only if the tokens do not continue the last draft. Otherwise the draft's cache entries are
    /// kept.
    OnMismatch,
    /// Never after the prompt: only the prompt is exact.
    PrefillOnly,
    /// Never: all tokens are approximate.
    Never,
}

/// A text that does not name a calibration policy.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "{found:?} is not one of every-round, during-verification, on-mismatch, prefill-only, never"
)]
pub struct UnknownCalibrationPolicy {
    found: String,
}

impl FromStr for CalibrationPolicy {
    type Err = UnknownCalibrationPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownCalibrationPolicy> {
        match text {
            "every-round" => Ok(Self::EveryRound),
            "during-verification" => Ok(Self::DuringVerification),
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
            Self::DuringVerification => "during-verification",
            Self::OnMismatch => "on-mismatch",
            Self::PrefillOnly => "prefill-only",
            Self::Never => "never",
        })
    }
}

/// Drafts with a language model that runs groups of its layers in parallel.
pub struct LayerParallelDrafter<M> {
    /// Grows drafts as from any model. The requests state which rows are exact.
    drafter: ModelDrafter<M>,
    groups: LayerGroups,
    calibration: CalibrationPolicy,
    /// The number of tokens in a round, if several jobs extend one draft.
    round_length: usize,
    /// The last draft of each sequence, if the policy needs it.
    last_drafts: HashMap<SequenceId, LastDraft>,
}

impl<M: LayeredModel> LayerParallelDrafter<M> {
    /// Creates a drafter that uses `model`. `groups` must contain all its layers.
    pub fn new(model: M, groups: LayerGroups, calibration: CalibrationPolicy) -> Self {
        let drafter = ModelDrafter::new(model);
        Self { drafter, groups, calibration, round_length: 1, last_drafts: HashMap::new() }
    }

    /// Returns the drafter with rounds of up to `tokens` tokens: jobs that extend one draft belong
    /// to one round until it has that many. By default every job starts a round.
    #[must_use]
    pub fn with_round_length(self, tokens: usize) -> Self {
        Self { round_length: tokens.max(1), ..self }
    }

    /// Returns the drafter for a target with `vocab_size` tokens.
    #[must_use]
    pub fn with_vocab_size(self, vocab_size: usize) -> Self {
        Self { drafter: self.drafter.with_vocab_size(vocab_size), ..self }
    }

    /// Returns the model. Tests inspect its caches.
    #[must_use]
    pub fn model(&self) -> &M {
        self.drafter.model()
    }

    /// Returns the round of a draft.
    fn round(&self, context: &DraftContext<'_>) -> Round {
        // Ignore drafts of other answers. An answer without tokens yet has no draft.
        let begun = context.tokens.len() > context.prompt_len;
        let is_same_answer = |last: &&LastDraft| begun && last.prompt_len == context.prompt_len;
        let last = self.last_drafts.get(&context.sequence).filter(is_same_answer);
        let now = context.tokens.len();
        let continued = || last.filter(|last| last.is_continued_by(context.tokens));
        let extended = || {
            let is_same_round = |last: &&LastDraft| {
                last.is_extended_to(context.tokens) && now < last.round_start + self.round_length
            };
            last.filter(is_same_round)
        };
        let starting = |last: Option<&LastDraft>| last.map_or(now, |last| last.round_start);
        let exact_from = |start| Round { start, exact_tokens: start };
        match self.calibration {
            CalibrationPolicy::EveryRound => exact_from(starting(extended())),
            CalibrationPolicy::DuringVerification if is_calibration(context) => exact_from(now),
            CalibrationPolicy::DuringVerification => {
                let start = starting(extended());
                let is_prompt = start <= context.prompt_len;
                Round { start, exact_tokens: if is_prompt { start } else { start - 1 } }
            }
            CalibrationPolicy::OnMismatch => exact_from(starting(continued())),
            CalibrationPolicy::PrefillOnly => exact_from(context.prompt_len.min(now)),
            CalibrationPolicy::Never => exact_from(0),
        }
    }

    /// Returns whether the policy depends on the last draft.
    fn needs_last_draft(&self) -> bool {
        match self.calibration {
            CalibrationPolicy::EveryRound | CalibrationPolicy::DuringVerification => {
                self.round_length > 1
            }
            CalibrationPolicy::OnMismatch => true,
            CalibrationPolicy::PrefillOnly | CalibrationPolicy::Never => false,
        }
    }
}

impl<M: LayeredModel> Drafter for LayerParallelDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        single_draft(|done| self.draft_batch(std::slice::from_ref(context), done))
    }

    fn draft_batch<'a>(
        &mut self,
        contexts: &[DraftContext<'a>],
        done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    ) {
        let rounds: Vec<Round> = contexts.iter().map(|context| self.round(context)).collect();
        let needs_last_draft = self.needs_last_draft();
        // A forward needs a row to compute: that of the last token, whose draft is not used.
        static ONE_TOKEN: DraftShape = DraftShape::Chain { length: 1 };
        let calibrates = self.calibration == CalibrationPolicy::DuringVerification;
        let with_shape = |context: &DraftContext<'a>| match calibrates && is_calibration(context) {
            true => DraftContext { shape: &ONE_TOKEN, ..*context },
            false => *context,
        };
        let to_compute: Vec<DraftContext<'_>> = contexts.iter().map(with_shape).collect();
        let Self { drafter, groups, last_drafts, .. } = self;
        let request = |index: usize, request| {
            let exact_tokens = rounds[index].exact_tokens;
            let order = LayerOrder::Groups(groups);
            ForwardRequest { order, exact_tokens, ..request }
        };
        drafter.draft_with(&to_compute, request, &mut |index, draft| {
            if is_calibration(&contexts[index]) {
                return done(index, draft.map(|_| Draft::empty()));
            }
            if let (true, Ok(draft)) = (needs_last_draft, &draft) {
                let last = last_drafts.entry(contexts[index].sequence).or_default();
                last.record(&contexts[index], rounds[index].start, &draft.tree);
            }
            done(index, draft);
        });
    }

    fn record_forced(&mut self, context: &DraftContext<'_>, forced: &[TokenId]) {
        if self.needs_last_draft() {
            let (start, tree) = (self.round(context).start, TokenTree::chain(forced));
            let last = self.last_drafts.entry(context.sequence).or_default();
            last.record(context, start, &tree);
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        self.last_drafts.remove(&sequence);
        self.drafter.release(sequence);
    }
}

/// Returns whether a job drafts nothing, and so only reads its tokens.
fn is_calibration(context: &DraftContext<'_>) -> bool {
    context.shape.depth() == 0
}

/// A round of drafts.
#[derive(Clone, Copy)]
struct Round {
    /// The number of tokens when it started.
    start: usize,
    /// The number of tokens that must be exact in its forwards.
    exact_tokens: usize,
}

/// The last draft of a sequence, and the tokens before it.
#[derive(Default)]
struct LastDraft {
    /// The tokens before the draft.
    tokens: Vec<TokenId>,
    /// The number of them that are the prompt.
    prompt_len: usize,
    /// The number of them that were there when the draft's round started.
    round_start: usize,
    tree: TokenTree,
}

impl LastDraft {
    /// Records a draft's tree.
    fn record(&mut self, context: &DraftContext<'_>, round_start: usize, tree: &TokenTree) {
        (self.prompt_len, self.round_start) = (context.prompt_len, round_start);
        self.tokens.clear();
        self.tokens.extend_from_slice(context.tokens);
        self.tree.copy_from(tree, tree.len());
    }

    /// Returns whether `tokens` ends with a path of the draft, so that tokens drafted after it
    /// extend the draft.
    fn is_extended_to(&self, tokens: &[TokenId]) -> bool {
        let Some(new) = tokens.strip_prefix(&self.tokens[..]) else { return false };
        let mut at = None;
        new.iter().all(|&token| {
            at = self.tree.child_with(at, token);
            at.is_some()
        })
    }

    /// Returns whether `tokens` agrees with the draft: its new tokens follow a path of the draft,
    /// until either of them ends.
    fn is_continued_by(&self, tokens: &[TokenId]) -> bool {
        let Some(new) = tokens.strip_prefix(&self.tokens[..]) else { return false };
        let mut at = None;
        for &token in new {
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
    fn a_draft_is_continued_by_tokens_that_agree_with_it() {
        let mut tree = TokenTree::chain(&[3, 4]);
        tree.push(None, 5);
        let last = LastDraft { tokens: vec![1, 2], prompt_len: 2, round_start: 2, tree };
        let table: &[(&[TokenId], bool)] = &[
            // A whole path was accepted, followed by the bonus token.
            (&[1, 2, 3, 4, 9], true),
            (&[1, 2, 5, 9], true),
            (&[1, 2, 5, 9, 9], true),
            // A part of a path, as when drafting continues after unverified tokens.
            (&[1, 2, 3], true),
            (&[1, 2], true),
            // A correction.
            (&[1, 2, 9], false),
            (&[1, 2, 3, 9], false),
            // Different tokens before the draft.
            (&[1], false),
            (&[1, 9, 3, 4], false),
        ];
        for &(tokens, continues) in table {
            assert_eq!(last.is_continued_by(tokens), continues, "{tokens:?}");
        }
        // Only draft tokens extend the draft; a bonus token does not.
        for (tokens, extends) in [
            (&[1, 2, 3, 4][..], true),
            (&[1, 2, 5], true),
            (&[1, 2], true),
            (&[1, 2, 3, 4, 9], false),
            (&[1, 2, 9], false),
            (&[1], false),
        ] {
            assert_eq!(last.is_extended_to(tokens), extends, "{tokens:?}");
        }
        let tree = TokenTree::new();
        let none = LastDraft { tokens: vec![1], prompt_len: 1, round_start: 1, tree };
        assert!(none.is_continued_by(&[1, 2]), "nothing was drafted, so nothing was rejected");
    }

    #[test]
    fn policies_are_parsed_and_errors_list_the_valid_ones() {
        for name in ["every-round", "during-verification", "on-mismatch", "prefill-only", "never"] {
            assert_eq!(
                name.parse::<CalibrationPolicy>().map(|c| c.to_string()),
                Ok(name.to_owned())
            );
        }
        let error = "sometimes".parse::<CalibrationPolicy>().map_err(|error| error.to_string());
        assert!(error.is_err_and(|error| error.contains("on-mismatch")));
    }
}
