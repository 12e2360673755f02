//! PEARL: drafts and verifies at the same time.
//!
//! *PEARL: Parallel Speculative Decoding with Adaptive Draft Length*, Liu et al. 2024, arXiv
//! 2408.11850, algorithm 2.
//!
//! 1. While the target scores the unverified draft tokens, the drafter makes γ more tokens after
//!    them (*post-verify*). If there are no unverified tokens, the target scores the next position
//!    anyway (*pre-verify*). Both cases use the same code.
//! 2. The unverified tokens and the first new token are verified. No bonus token is drawn, because
//!    the row after the unverified tokens tests the first new token.
//! 3. If all of them are accepted, the other new tokens are the next round's unverified tokens. After
//!    a rejection, the correction is committed, and the next round starts without unverified tokens.
//!
//! Deviations:
//!
//! * By default a round ends with the target's forward pass. A drafter that finishes early continues
//!   for a while. If it is late, the tokens that it has are verified, and it is not interrupted. In
//!   the paper's schedule, [`PearlSchedule::Paper`], each waits for the other.
//! * A drafter that fails is no longer used, and the target decodes alone. The tokens that it has
//!   drafted are verified.
//! * Caches are not rolled back explicitly.
//! * Every draw has its own key. The published code uses one random number for two positions.

use crate::draft_ahead::DraftAhead;
use crate::{
    AnswerDecoder, DecodeError, Decoder, DecoderOptions, Drafting, MethodEntry, PearlDraftLength,
    PearlOptions, PearlSchedule, Sequence, jobs,
};
use forerun_core::{Cluster, Outcome, Ticket, trace::SpanOutcome, verify};

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "pearl",
    help: "Draft and verify at the same time, on separate devices (PEARL)",
    drafting: Drafting::DuringVerification,
    several_targets: false,
    offers: &[],
    decoder: |options| {
        let eager = options.pearl.schedule == PearlSchedule::Eager;
        let draft_length = PearlDraftLength::new(options.draft_tokens, options.length, eager)
            .with_tokens_per_forward(options.pattern.tokens_per_forward());
        let decoder = Pearl::new(options.pearl, draft_length);
        Box::new(if options.reproducible { decoder.reproducible() } else { decoder })
    },
};

/// Drafts and verifies at the same time.
pub struct Pearl {
    options: PearlOptions,
    draft_length: PearlDraftLength,
    drafting: DraftAhead,
    /// The target's job in flight.
    scoring: Option<Ticket>,
    /// The end of the last completed job, on the cluster's clock.
    now_ns: u64,
}

impl Pearl {
    /// Creates a decoder with this draft-length policy.
    #[must_use]
    pub fn new(options: PearlOptions, draft_length: PearlDraftLength) -> Self {
        Self { options, draft_length, drafting: DraftAhead::new(0), scoring: None, now_ns: 0 }
    }

    /// Returns the decoder in a mode where the text of a seed does not depend on which device
    /// finishes first. With rejection sampling this requires a fixed draft length.
    #[must_use]
    pub fn reproducible(mut self) -> Self {
        if !self.options.post_verify {
            // Otherwise timing decides whether a late token is tested or the bonus token drawn.
            self.options.schedule = PearlSchedule::Paper;
        }
        self.drafting.draft_one_token_per_job();
        self
    }

    /// Returns the draft-length policy with the times and acceptance it has learned.
    #[must_use]
    pub fn draft_length(&self) -> &PearlDraftLength {
        &self.draft_length
    }

    /// Drafts without verifying until the chain has `length` tokens.
    fn draft_alone(
        &mut self,
        sequence: &mut Sequence,
        length: usize,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        loop {
            self.drafting.continue_to(sequence, length, length, cluster)?;
            if self.drafting.is_done(sequence, length) {
                return Ok(());
            }
            let completion = cluster.next_completion()?;
            self.now_ns = self.now_ns.max(completion.finished_ns);
            if let Some((tokens, time)) = self.drafting.handle_completion(sequence, completion)? {
                self.draft_length.observe_draft(tokens, &time);
            }
        }
    }
}

impl Decoder for Pearl {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let gamma = match self.drafting.has_failed() {
            true => 0,
            false => self.draft_length.next_length(),
        };
        let first = if self.options.pre_verify { self.draft_length.first_length() } else { gamma };
        if self.drafting.len() == 0 && first > 0 {
            self.draft_alone(sequence, first, cluster)?;
        }

        // In parallel, the target scores the unverified tokens and the next position …
        let unverified = self.drafting.len();
        let tree = self.drafting.first(unverified);
        let scoring = jobs::submit_score(0, sequence, &[], tree, cluster)?;
        self.scoring = Some(scoring);
        let late = self.drafting.is_busy();
        // … and the drafter makes γ tokens after them.
        let drafts = gamma > 0 && (unverified == 0 || self.options.post_verify);
        let (min_new, max_new, per_job) = match self.options.schedule {
            _ if !drafts => (0, 0, 0),
            PearlSchedule::Eager => {
                (1, self.draft_length.max_new(gamma), self.draft_length.tokens_per_job(gamma))
            }
            PearlSchedule::Paper => (gamma, gamma, gamma),
        };
        let (min_length, max_length) = (unverified + min_new, unverified + max_new);
        let mut scores = None;
        loop {
            if scores.is_none() || self.drafting.len() < min_length {
                self.drafting.continue_to(sequence, max_length, per_job, cluster)?;
            }
            if scores.is_some() && self.drafting.is_done(sequence, min_length) {
                break;
            }
            let completion = cluster.next_completion()?;
            self.now_ns = self.now_ns.max(completion.finished_ns);
            if completion.ticket == scoring {
                self.scoring = None;
                let reply = jobs::score_reply(sequence, unverified, completion)?;
                self.draft_length.observe_score(unverified + 1, &reply.time, drafts || late);
                scores = Some(reply.output);
            } else if let Some((tokens, time)) =
                self.drafting.handle_completion(sequence, completion)?
            {
                self.draft_length.observe_draft(tokens, &time);
            }
        }
        let scores = scores.unwrap_or_default();

        // Verify the unverified tokens and the first new one. There are no rows for further tokens.
        let position = sequence.tokens().len();
        let verdict = verify(self.drafting.chain(), &scores.rows, position, sequence.randomness());
        let accepted = sequence.commit(self.drafting.chain(), &verdict, &scores);
        self.draft_length.observe_verdict(accepted, verdict.rejected, verdict.token.is_some());
        let outcome = if verdict.rejected { SpanOutcome::Rejected } else { SpanOutcome::Accepted };
        cluster.observe(Outcome { ticket: scoring, accepted, outcome });
        self.drafting.accept(accepted, cluster);
        if verdict.token.is_some() {
            self.drafting.restart(verdict.rejected, cluster);
        }
        let committed = sequence.tokens().len() - position;
        let alone = unverified == 0 && !drafts && !late;
        self.draft_length.observe_round(committed, self.now_ns, alone);
        Ok(())
    }

    fn stop(&mut self, cluster: &mut dyn Cluster) {
        self.drafting.restart(false, cluster);
        // A score job is in flight only if a step has failed.
        if let Some(ticket) = self.scoring.take() {
            cluster.cancel(ticket);
        }
    }
}

impl AnswerDecoder for Pearl {
    fn for_next_answer(&self, options: &DecoderOptions, _prompt: usize) -> Box<dyn AnswerDecoder> {
        Box::new(Self::new(options.pearl, self.draft_length.for_new_answer()))
    }
}
