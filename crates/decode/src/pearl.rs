//! PEARL: drafting and verification at the same time.
//!
//! *PEARL: Parallel Speculative Decoding with Adaptive Draft Length*, Liu et al. 2024, arXiv
//! 2408.11850, algorithm 2.
//!
//! 1. While the target scores the draft tokens that are not verified yet, the drafter makes γ more
//!    behind them (*post-verify*). Where there are none, the target scores the next position all the
//!    same (*pre-verify*): it is the same code.
//! 2. The unverified tokens and the first new one are verified. No bonus token is drawn: the row behind
//!    the unverified tokens tests the first new one.
//! 3. If all are accepted, the other new ones are the next round's unverified tokens. A rejection
//!    commits the correction, and the next round starts without any.
//!
//! Deviations: by default a round ends with the target's pass. The drafter, if it is done first, goes on
//! for a while; if it is late, what it has is verified, and it is not interrupted. The paper's schedule,
//! in which both wait for one another, is [`PearlSchedule::Paper`]. Caches are not rolled back by either
//! side, and every draw has its own key; the published code reuses one for two positions.

use crate::draft_ahead::DraftAhead;
use crate::{DecodeError, Decoder, PearlDraftLength, PearlOptions, PearlSchedule, Sequence, jobs};
use forerun_core::{Cluster, Outcome, Ticket, trace::SpanOutcome, verify};

/// Drafts and verifies at the same time.
pub struct Pearl {
    options: PearlOptions,
    draft_length: PearlDraftLength,
    drafting: DraftAhead,
    /// The target's job under way.
    scoring: Option<Ticket>,
}

impl Pearl {
    /// A decoder whose draft length is as `draft_length` wants it.
    #[must_use]
    pub fn new(options: PearlOptions, draft_length: PearlDraftLength) -> Self {
        Self { options, draft_length, drafting: DraftAhead::new(0), scoring: None }
    }

    /// The same in a way that does not depend on who is done first: with rejection sampling and a fixed
    /// length, a seed's text is then the same at every speed of the devices.
    #[must_use]
    pub fn reproducible(mut self) -> Self {
        if !self.options.post_verify {
            // A late token would be tested in one run, and the bonus be drawn in another.
            self.options.schedule = PearlSchedule::Paper;
        }
        Self { drafting: self.drafting.one_token_per_job(), ..self }
    }

    /// The pace, with what it has learned.
    #[must_use]
    pub fn draft_length(&self) -> &PearlDraftLength {
        &self.draft_length
    }

    /// Lets the drafter work alone until the chain is as long as asked.
    fn draft_alone(
        &mut self,
        sequence: &mut Sequence,
        length: usize,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        while !self.drafting.is_done(sequence, length) {
            self.drafting.continue_to(sequence, length, length, cluster)?;
            let completion = cluster.next_completion()?;
            self.drafting.take(sequence, completion)?;
        }
        Ok(())
    }
}

impl Decoder for Pearl {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let gamma = self.draft_length.next_length(self.drafting.len());
        if self.drafting.len() == 0 && !self.options.pre_verify {
            self.draft_alone(sequence, gamma, cluster)?;
        }

        // At the same time: the target scores what is unverified and the next position …
        let unverified = self.drafting.len();
        let tree = self.drafting.first(unverified);
        let scoring = jobs::submit_score(0, sequence, &[], tree, cluster)?;
        self.scoring = Some(scoring);
        let late = self.drafting.is_busy();
        // … and the drafter makes γ tokens behind it.
        let drafts = gamma > 0 && (unverified == 0 || self.options.post_verify);
        let (least, most, at_once) = match self.options.schedule {
            _ if !drafts => (0, 0, 0),
            PearlSchedule::Eager => {
                (1, self.draft_length.most(gamma), self.draft_length.at_once(gamma))
            }
            PearlSchedule::Paper => (gamma, gamma, gamma),
        };
        let (least, most) = (unverified + least, unverified + most);
        let mut scores = None;
        while scores.is_none() || !self.drafting.is_done(sequence, least) {
            if scores.is_none() || self.drafting.len() < least {
                self.drafting.continue_to(sequence, most, at_once, cluster)?;
            }
            let completion = cluster.next_completion()?;
            if completion.ticket == scoring {
                self.scoring = None;
                let answer = jobs::take_scores(sequence, unverified, completion)?;
                self.draft_length.observe_score(unverified + 1, answer.duration_ns, drafts || late);
                scores = Some(answer.output);
            } else if let Some((tokens, ns)) = self.drafting.take(sequence, completion)? {
                self.draft_length.observe_draft(tokens, ns);
            }
        }
        let scores = scores.unwrap_or_default();

        // Verify the unverified tokens and the first new one: there are rows for no more.
        let position = sequence.tokens().len();
        let verdict = verify(self.drafting.chain(), &scores.rows, position, sequence.randomness());
        let accepted = sequence.commit(self.drafting.chain(), &verdict, &scores);
        self.draft_length.observe_verdict(accepted, verdict.rejected);
        let fate = if verdict.rejected { SpanOutcome::Rejected } else { SpanOutcome::Accepted };
        cluster.observe(Outcome { ticket: scoring, accepted, fate });
        self.drafting.accept(accepted, cluster);
        if verdict.token.is_some() {
            self.drafting.restart(verdict.rejected, cluster);
        }
        Ok(())
    }

    fn stop(&mut self, cluster: &mut dyn Cluster) {
        self.drafting.restart(false, cluster);
        // Only where the drafter has failed meanwhile.
        if let Some(ticket) = self.scoring.take() {
            cluster.cancel(ticket);
        }
    }
}
