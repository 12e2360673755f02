//! Speculative decoding: drafts, then verifies.
//!
//! *Fast Inference from Transformers via Speculative Decoding*, Leviathan et al. 2023, arXiv
//! 2211.17192, algorithm 1; *Accelerating Large Language Model Decoding with Speculative Sampling*,
//! Chen et al. 2023, arXiv 2302.01318, algorithm 2; *SpecInfer: Accelerating Generative Large
//! Language Model Serving with Tree-based Speculative Inference and Verification*, Miao et al. 2023,
//! arXiv 2305.09781, for trees.
//!
//! 1. The drafter proposes γ tokens, or a tree, after the committed ones.
//! 2. The target scores all of them in one forward.
//! 3. The longest accepted path is committed, followed by one token of the target's own: the
//!    correction if a candidate was rejected, else the bonus token.
//!
//! Deviations:
//!
//! * γ can adapt to measured times and acceptance, down to 0, and so can the tree.
//! * If the drafter fails, the target decodes alone for the rest of the answer.

use crate::{
    AnswerDecoder, DecodeError, Decoder, DecoderOptions, Drafting, MethodEntry, Sequence,
    SpeculativeDraftLength,
    jobs::{self, DraftRequest, JobReply},
};
use forerun_core::{Cluster, Draft, DraftShape, Need, Outcome, trace::SpanOutcome};
use forerun_plan::{RankedRound, Round, TreeLimits};

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "speculative",
    help: "Draft, then verify the draft in one forward pass of the target",
    drafting: Drafting::BeforeVerification,
    several_targets: false,
    offers: &[Need::Features, Need::VerifiedPrefix, Need::Feedback, Need::Trees, Need::WholeDrafts],
    decoder: |options| {
        let longest = options.pattern.positions.unwrap_or(options.draft_tokens);
        let longest = longest.min(options.draft_tokens);
        let policy = options.draft_length(options.shape.with_draft_tokens(longest));
        let decoder = Speculative::new(match options.trees {
            Some(TreeLimits { depth, nodes }) => {
                policy.growing_trees(TreeLimits { depth: depth.min(longest), nodes })
            }
            None => policy,
        });
        Box::new(match options.calibrates_during_verification {
            true => decoder.calibrating(),
            false => decoder,
        })
    },
};

/// Drafts and verifies alternately.
pub struct Speculative {
    draft_length: SpeculativeDraftLength,
    /// Whether the drafter calibrates its draft while the target verifies it.
    calibrates: bool,
    /// Whether the drafter has failed. It gets no more jobs of this answer.
    drafter_failed: bool,
}

/// The drafter that this method uses.
const DRAFTER: usize = 0;

impl Speculative {
    /// Creates a decoder with this draft-length policy.
    #[must_use]
    pub fn new(draft_length: SpeculativeDraftLength) -> Self {
        Self { draft_length, calibrates: false, drafter_failed: false }
    }

    /// Returns the decoder configured to have the drafter read each draft while the target verifies it, so that
    /// EasySpec's next round starts with exact rows. It pays if they have separate cores.
    #[must_use]
    pub fn calibrating(self) -> Self {
        Self { calibrates: true, ..self }
    }

    /// Returns the draft-length policy with the times and acceptance it has learned.
    #[must_use]
    pub fn draft_length(&self) -> &SpeculativeDraftLength {
        &self.draft_length
    }

    /// Returns the drafter's reply; `None` without a draft.
    fn draft(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<Option<JobReply<Draft>>, DecodeError> {
        // The target adds a token of its own, so a draft never needs the last position.
        let shape =
            self.draft_length.next_shape().truncated(sequence.remaining().saturating_sub(1));
        if self.drafter_failed || shape.depth() == 0 {
            return Ok(None);
        }
        match jobs::draft(DRAFTER, sequence, cluster, shape) {
            Ok(reply) => Ok(Some(reply)),
            Err(error) => {
                sequence.report_failed_drafter(DRAFTER, &jobs::drafter_failure(error)?);
                self.drafter_failed = true;
                Ok(None)
            }
        }
    }
}

impl Speculative {
    /// Has the drafter read a chain that it has drafted. Nobody waits for it: if it fails, so does the next draft.
    fn calibrate(
        &self,
        draft: &Draft,
        sequence: &Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        if !self.calibrates || draft.tree.is_empty() || !draft.tree.is_chain() {
            return Ok(());
        }
        let (tokens, nothing) = (draft.tree.tokens(), DraftShape::Chain { length: 0 });
        let request = DraftRequest::new(DRAFTER, sequence, tokens, nothing);
        match jobs::submit_draft(request, sequence, cluster) {
            Ok(_) => Ok(()),
            Err(error) => jobs::drafter_failure(error).map(|_| ()),
        }
    }
}

impl Decoder for Speculative {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let reply = self.draft(sequence, cluster)?;
        let empty = Draft::empty();
        let draft = reply.as_ref().map_or(&empty, |reply| &reply.output);
        let scoring = jobs::submit_score(0, sequence, &[], draft.tree.clone(), cluster)?;
        self.calibrate(draft, sequence, cluster)?;
        let score = jobs::score_in_flight(scoring, draft.tree.len(), sequence, cluster)?;
        let verdict = sequence.verify_whole(draft, &score.output.rows);
        let accepted = sequence.commit(draft, &verdict, &score.output);
        self.draft_length.observe(&Round {
            requested: reply.is_some(),
            drafted: draft.tree.len(),
            accepted,
            rejected: verdict.rejected,
            draft: reply.as_ref().map(|reply| reply.time).unwrap_or_default(),
            score: score.time,
            ranked: self.draft_length.grows_trees().then(|| {
                RankedRound::new(
                    &draft.tree,
                    &self.draft_length.next_shape(),
                    &verdict.accepted,
                    verdict.rejected,
                )
            }),
        });
        let outcome = if verdict.rejected { SpanOutcome::Rejected } else { SpanOutcome::Accepted };
        for ticket in reply.map(|reply| reply.ticket).into_iter().chain([score.ticket]) {
            cluster.observe(Outcome { ticket, accepted, outcome });
        }
        Ok(())
    }
}

impl AnswerDecoder for Speculative {
    fn for_next_answer(
        &self,
        _options: &DecoderOptions,
        prompt_tokens: usize,
    ) -> Box<dyn AnswerDecoder> {
        let draft_length = self.draft_length.for_new_answer(prompt_tokens);
        Box::new(Self { calibrates: self.calibrates, ..Self::new(draft_length) })
    }
}
