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
//! * The authors' code calibrates only after a mismatch. Here every round does, as in the paper.
//! * The cache tracks which entries are approximate. A round states which tokens must be exact, and
//!   nothing is rolled back.
//! * If drafting runs ahead of verification, jobs have few tokens. A job that extends the last
//!   draft may then belong to the same round.
//! * An answer starts with an exact forward, whatever was drafted on its sequence before, so equal
//!   requests give equal drafts.

use crate::{DraftContext, Drafter, ModelDrafter, single_draft};
use forerun_core::{Draft, SequenceId, TokenId, TokenTree};
use forerun_lm::{ForwardRequest, LayerGroups, LayerOrder, LayeredModel, ModelError};
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

/// Decides whether rounds start with an exact forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CalibrationPolicy {
    /// Every round does: all tokens before the draft are exact.
    #[default]
    EveryRound,
    /// None does: all tokens are approximate. The paper's ablation.
    Never,
}

/// A text that does not name a calibration policy.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{found:?} is not one of every-round, never")]
pub struct UnknownCalibrationPolicy {
    found: String,
}

impl FromStr for CalibrationPolicy {
    type Err = UnknownCalibrationPolicy;

    fn from_str(text: &str) -> Result<Self, UnknownCalibrationPolicy> {
        match text {
            "every-round" => Ok(Self::EveryRound),
            "never" => Ok(Self::Never),
            _ => Err(UnknownCalibrationPolicy { found: text.to_owned() }),
        }
    }
}

impl fmt::Display for CalibrationPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EveryRound => "every-round",
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
    /// The last draft of each sequence, if rounds have several jobs.
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

    /// Returns the number of tokens that must be exact in the forwards of a draft: those at the
    /// start of its round.
    fn exact_tokens(&self, context: &DraftContext<'_>) -> usize {
        if self.calibration == CalibrationPolicy::Never {
            return 0;
        }
        let now = context.tokens.len();
        // Ignore drafts of other answers. An answer without tokens yet has no draft.
        let begun = now > context.prompt_len;
        let is_same_round = |last: &&LastDraft| {
            begun
                && last.prompt_len == context.prompt_len
                && last.is_extended_to(context.tokens)
                && now < last.round_start + self.round_length
        };
        let last = self.last_drafts.get(&context.sequence).filter(is_same_round);
        last.map_or(now, |last| last.round_start)
    }

    /// Returns whether a round depends on the last draft.
    fn needs_last_draft(&self) -> bool {
        self.calibration == CalibrationPolicy::EveryRound && self.round_length > 1
    }
}

impl<M: LayeredModel> Drafter for LayerParallelDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        single_draft(|done| self.draft_batch(std::slice::from_ref(context), done))
    }

    fn draft_batch(
        &mut self,
        contexts: &[DraftContext<'_>],
        done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    ) {
        let exact: Vec<usize> = contexts.iter().map(|context| self.exact_tokens(context)).collect();
        let needs_last_draft = self.needs_last_draft();
        let Self { drafter, groups, last_drafts, .. } = self;
        let request = |index: usize, request| ForwardRequest {
            order: LayerOrder::Groups(groups),
            exact_tokens: exact[index],
            ..request
        };
        drafter.draft_with(contexts, request, &mut |index, draft| {
            if let (true, Ok(draft)) = (needs_last_draft, &draft) {
                let last = last_drafts.entry(contexts[index].sequence).or_default();
                last.record(&contexts[index], exact[index], &draft.tree);
            }
            done(index, draft);
        });
    }

    fn record_forced(&mut self, context: &DraftContext<'_>, forced: &[TokenId]) {
        if self.needs_last_draft() {
            let (start, tree) = (self.exact_tokens(context), TokenTree::chain(forced));
            let last = self.last_drafts.entry(context.sequence).or_default();
            last.record(context, start, &tree);
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        self.last_drafts.remove(&sequence);
        self.drafter.release(sequence);
    }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_is_extended_by_its_own_tokens() {
        let mut tree = TokenTree::chain(&[3, 4]);
        tree.push(None, 5);
        let last = LastDraft { tokens: vec![1, 2], prompt_len: 2, round_start: 2, tree };
        // A bonus token, a correction and different tokens before the draft do not extend it.
        for (tokens, extends) in [
            (&[1, 2, 3, 4][..], true),
            (&[1, 2, 5], true),
            (&[1, 2], true),
            (&[1, 2, 3, 4, 9], false),
            (&[1, 2, 9], false),
            (&[1], false),
            (&[1, 9, 3, 4], false),
        ] {
            assert_eq!(last.is_extended_to(tokens), extends, "{tokens:?}");
        }
    }

    #[test]
    fn policies_are_parsed_and_errors_list_the_valid_ones() {
        for name in ["every-round", "never"] {
            assert_eq!(
                name.parse::<CalibrationPolicy>().map(|c| c.to_string()),
                Ok(name.to_owned())
            );
        }
        let error = "on-mismatch".parse::<CalibrationPolicy>().map_err(|error| error.to_string());
        assert!(error.is_err_and(|error| error.contains("every-round, never")));
    }
}
