//! Speculative decoding: draft, then verify.
//!
//! *Fast Inference from Transformers via Speculative Decoding*, Leviathan et al. 2023, arXiv
//! 2211.17192, algorithm 1; *Accelerating Large Language Model Decoding with Speculative Sampling*,
//! Chen et al. 2023, arXiv 2302.01318, algorithm 2; with trees as in SpecInfer, arXiv 2305.09781.
//!
//! 1. The drafter proposes γ tokens (or a tree) behind the committed ones.
//! 2. The target scores all of them in one forward.
//! 3. The longest accepted path is committed, and one token of the target's own behind it: the
//!    correction where a candidate was rejected, else the bonus.
//!
//! Deviation: γ may adapt to measured times and acceptance, down to no draft at all.

use crate::{
    DecodeError, Decoder, Sequence, SpeculativeDraftLength, jobs, speculative_draft_length::Round,
};
use forerun_core::{Cluster, Draft, Outcome, trace::SpanOutcome, verify};

/// Draft, then verify, in turn.
pub struct Speculative {
    draft_length: SpeculativeDraftLength,
}

impl Speculative {
    /// A decoder whose drafts are as the controller wants them.
    #[must_use]
    pub fn new(draft_length: SpeculativeDraftLength) -> Self {
        Self { draft_length }
    }

    /// The controller, with what it has learned.
    #[must_use]
    pub fn draft_length(&self) -> &SpeculativeDraftLength {
        &self.draft_length
    }
}

impl Decoder for Speculative {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        // The target adds a token of its own, so a draft never needs the last place.
        let shape =
            self.draft_length.next_shape().truncated(sequence.remaining().saturating_sub(1));
        let asked = match shape.depth() {
            0 => None,
            _ => Some(jobs::draft(sequence, cluster, shape)?),
        };
        let empty = Draft::empty();
        let draft = asked.as_ref().map_or(&empty, |answer| &answer.output);
        let score = jobs::score(sequence, cluster, &draft.tree)?;
        let position = sequence.tokens().len();
        let verdict = verify(draft, &score.output.rows, position, sequence.randomness());
        let accepted = sequence.commit(draft, &verdict, &score.output);
        self.draft_length.observe(&Round {
            asked: asked.is_some(),
            drafted: draft.tree.len(),
            accepted,
            rejected: verdict.rejected,
            draft_ns: asked.as_ref().map_or(0, |answer| answer.duration_ns),
            score_ns: score.duration_ns,
        });
        let fate = if verdict.rejected { SpanOutcome::Rejected } else { SpanOutcome::Accepted };
        for ticket in asked.map(|answer| answer.ticket).into_iter().chain([score.ticket]) {
            cluster.observe(Outcome { ticket, accepted, fate });
        }
        Ok(())
    }
}
