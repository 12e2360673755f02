//! Speculative decoding: drafts, then verifies.
//!
//! *Fast Inference from Transformers via Speculative Decoding*, Leviathan et al. 2023, arXiv
//! 2211.17192, algorithm 1; *Accelerating Large Language Model Decoding with Speculative Sampling*,
//! Chen et al. 2023, arXiv 2302.01318, algorithm 2; *SpecInfer: Accelerating Generative Large
//! Language Model Serving with Tree-based Speculative Inference and Verification*, Miao et al.
//! 2023, arXiv 2305.09781, for trees.
//!
//! 1. The drafter proposes γ tokens, or a tree, after the committed ones.
//! 2. The target scores all of them in one forward.
//! 3. The longest accepted path is committed, followed by one token of the target's own: the
//!    correction if a candidate was rejected, else the bonus token.
//!
//! Deviations:
//!
//! * γ can adapt to measured times and acceptance, down to 0, and so can the tree.
//! * With a lookup, a round may verify a guess from earlier text instead of a draft
//!   ([`crate::lookup`]).
//! * If the drafter fails, the target decodes alone for the rest of the answer.

use crate::draft_rounds::DraftRounds;
use crate::jobs;
use crate::method::{AnswerDecoder, DecoderOptions, Drafting, MethodEntry};
use crate::{DecodeError, Decoder, Sequence, SpeculativeDraftLength};
use forerun_core::{Cluster, Guesser, Need, Verification};
use forerun_plan::{Planned, Policy, TreeLimits};

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "speculative",
    help: "Draft, then verify the draft in one forward pass of the target",
    drafting: Drafting::BeforeVerification,
    several_targets: false,
    offers: &[
        Need::Features,
        Need::VerifiedPrefix,
        Need::Feedback,
        Need::Trees,
        Need::WholeDrafts,
        Need::SeveralDrafters,
    ],
    combines_drafters: false,
    decoder: |options| {
        let longest = options.pattern.positions.unwrap_or(options.draft_tokens);
        let longest = longest.min(options.draft_tokens);
        let mut policy = options.draft_length(options.shape.with_draft_tokens(longest));
        // How sure a drafter is differs in the last bits between kinds of devices, and a
        // reproducible text must not.
        if !options.reproducible {
            policy = policy.stopping_by_confidence();
        }
        if let Some(TreeLimits { depth, nodes }) = options.trees {
            policy = policy.growing_trees(TreeLimits { depth: depth.min(longest), nodes });
        }
        Box::new(Speculative { rounds: DraftRounds::of_answer(policy, options) })
    },
};

/// Drafts and verifies alternately.
pub struct Speculative {
    rounds: DraftRounds,
}

impl Speculative {
    /// Creates a decoder with this draft-length policy.
    #[must_use]
    pub fn new(draft_length: SpeculativeDraftLength) -> Self {
        Self { rounds: DraftRounds::new(draft_length) }
    }

    /// Returns the decoder with the drafter of this index.
    #[must_use]
    pub fn with_drafter(mut self, drafter: usize) -> Self {
        self.rounds.drafter = drafter;
        self
    }

    /// Returns the decoder with a lookup, whose guesses take the place of drafts where they are
    /// expected to be better.
    #[must_use]
    pub fn with_lookup(self, guesser: Box<dyn Guesser>) -> Self {
        Self { rounds: self.rounds.with_lookup(guesser) }
    }

    /// Returns the draft-length policy with the times and acceptance it has learned.
    #[must_use]
    pub fn draft_length(&self) -> &SpeculativeDraftLength {
        &self.rounds.policy
    }
}

impl Decoder for Speculative {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        // With rejection sampling, positions that were drafted and not tested are drawn with the
        // same numbers in the next round. So nothing may depend on how they were drawn, as the end
        // of a chain does.
        let sampling = sequence.sampling();
        let draws_again = sampling.verification == Verification::Rejection;
        self.rounds.policy.set_may_stop(!draws_again || sampling.is_deterministic());
        // 1. The drafter proposes tokens.
        let round = match self.rounds.look_up(sequence) {
            Some(looked_up) => looked_up,
            None => self.rounds.draft(sequence, cluster)?,
        };
        // 2. The target scores all of them.
        let score = jobs::score(sequence, cluster, &round.draft().tree)?;
        // 3. The longest accepted path is committed, and a token of the target's own.
        let verdict = sequence.verify_whole(round.draft(), &score.output.rows);
        self.rounds.commit(&round, &verdict, &score, sequence, cluster);
        Ok(())
    }
}

impl AnswerDecoder for Speculative {
    fn for_next_answer(
        &self,
        options: &DecoderOptions,
        prompt_tokens: usize,
    ) -> Box<dyn AnswerDecoder> {
        let policy = self.rounds.policy.for_new_answer(prompt_tokens);
        Box::new(Self { rounds: DraftRounds::of_answer(policy, options) })
    }

    fn planned(&mut self) -> Option<&mut Planned> {
        Some(self.rounds.policy.planned())
    }

    fn has_failed_drafter(&self) -> bool {
        self.rounds.drafter_failed
    }
}
