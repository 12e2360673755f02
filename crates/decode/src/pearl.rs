//! PEARL: drafts and verifies at the same time.
//!
//! *PEARL: Parallel Speculative Decoding with Adaptive Draft Length*, Liu et al. 2024, arXiv
//! 2408.11850, algorithm 2. Its two modes are one here: *pre-verify* is a round without unverified
//! tokens, *post-verify* one with some. The paper's `x` includes the unverified tokens; here only
//! tested tokens are committed. A *row* is the target's distribution of one token.
//!
//! 1. Lines 5–8 and 24–28: the drafter makes γ tokens after the committed and the unverified ones.
//! 2. Lines 10 and 29, at the same time as 1: the target scores the unverified tokens. Its rows are
//!    those of each unverified token and of the first new one.
//! 3. Lines 11 and 30–32: these tokens are tested, each with its own row (`verify` in
//!    `crates/core/src/verify.rs`). The paper's p₁ to pγ are the rows of x₂ to xγ₊₁: x₁ was tested
//!    in the round before.
//! 4. Lines 12–14 and 33–36, if all are accepted: they are committed, and the other new tokens are
//!    the next round's unverified ones. No bonus token is drawn, because the last row has tested
//!    the first new token.
//! 5. Lines 15–19 and 37–41, after a rejection: the accepted tokens and the correction are
//!    committed, the rest is dropped, and the next round has no unverified tokens.
//!
//! Deviations:
//!
//! * By default a round ends with the target's forward pass. A drafter that finishes early
//!   continues for a while. If it is late, the tokens that it has are verified, and it is not
//!   interrupted. In the paper's schedule, [`PearlSchedule::Paper`], each waits for the other.
//! * γ follows measured times and acceptance, down to 0, where the target decodes alone. The
//!   drafter may make some tokens before a pass that would have none.
//! * A drafter that fails is no longer used. The tokens that it has drafted are verified.
//! * Caches are not rolled back explicitly.
//! * Every draw has its own key. The published code uses one random number for two positions.

use crate::draft_ahead::{DraftAhead, DraftedLengths};
use crate::metered_cluster::Meter;
use crate::method::{AnswerDecoder, DecoderOptions, Drafting, MethodEntry};
use crate::{DecodeError, Decoder, PearlOptions, PearlSchedule, Sequence, jobs};
use forerun_core::{Cluster, Need, Ticket, verify};
use forerun_plan::{PearlDraftLength, Planned, Policy};

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "pearl",
    help: "Draft and verify at the same time, on separate devices (PEARL)",
    drafting: Drafting::DuringVerification,
    several_targets: false,
    offers: &[Need::Features, Need::SeveralDrafters],
    combines_drafters: false,
    decoder: |options| {
        let options = &options.with_fixed_length_if_reproducible();
        let eager = options.pearl.schedule == PearlSchedule::Eager;
        let draft_length = PearlDraftLength::new(options.draft_tokens, options.length, eager)
            .with_tokens_per_forward(options.pattern.tokens_per_forward())
            .with_expected_passes(options.expected_passes);
        let decoder = Pearl::new(options.pearl, draft_length).with_drafter(options.drafter);
        Box::new(if options.reproducible { decoder.reproducible() } else { decoder })
    },
};

/// Drafts and verifies at the same time.
pub struct Pearl {
    options: PearlOptions,
    /// The unverified tokens, and the drafter that continues them.
    drafts: DraftAhead,
    meter: Meter<PearlDraftLength>,
    /// The target's job in flight.
    scoring: Option<Ticket>,
}

impl Pearl {
    /// Creates a decoder with this draft-length policy.
    #[must_use]
    pub fn new(options: PearlOptions, draft_length: PearlDraftLength) -> Self {
        let (drafts, meter) = (DraftAhead::new(0), Meter::new(draft_length));
        Self { options, drafts, meter, scoring: None }
    }

    /// Returns the decoder with the drafter of this index. Call it first: it resets settings for
    /// the drafter.
    #[must_use]
    pub fn with_drafter(self, drafter: usize) -> Self {
        Self { drafts: DraftAhead::new(drafter), ..self }
    }

    /// Returns the decoder in a mode where the text of a seed does not depend on which device
    /// finishes first. With rejection sampling this requires a fixed draft length.
    #[must_use]
    pub fn reproducible(mut self) -> Self {
        if !self.options.post_verify {
            // Otherwise timing decides whether a late token is tested or the bonus token drawn.
            self.options.schedule = PearlSchedule::Paper;
        }
        self.drafts.draft_one_token_per_job();
        self
    }

    /// Returns the draft-length policy with the times and acceptance it has learned.
    #[must_use]
    pub fn draft_length(&self) -> &PearlDraftLength {
        &self.meter.policy
    }
}

impl Decoder for Pearl {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let (position, drafts) = (sequence.tokens().len(), &mut self.drafts);
        let gamma = if drafts.has_failed() { 0 } else { self.meter.policy.next_length() };
        let cluster = &mut self.meter.begin_step(cluster, drafts.drafter(), gamma > 0);
        if drafts.is_empty() {
            // Nothing is drafted first, unless the policy expects a gain from it. Without
            // pre-verify, the target waits for all γ tokens.
            let pre_verify = self.options.pre_verify;
            let first = if pre_verify { cluster.policy().first_length() } else { gamma };
            let per_job = cluster.policy().tokens_per_first_job(first);
            drafts.draft(first, per_job, sequence, cluster)?;
        }
        let (unverified, nodes) = (drafts.tree(), drafts.len());
        let lengths = DraftedLengths::during_pass(self.options, gamma, nodes, cluster.policy());
        cluster.set_drafts(lengths.max > nodes);
        // 2. The target scores the unverified tokens and the next position.
        let scoring = jobs::submit_score(0, sequence, &[], unverified, cluster)?;
        self.scoring = Some(scoring);
        // 1. Meanwhile, the drafter makes γ tokens after them.
        let scores = drafts.draft_until_scored(scoring, nodes, &lengths, sequence, cluster)?;
        self.scoring = None;
        // 3. The tokens that have a row are tested: the unverified ones and the first new one.
        let verdict = verify(drafts.chain(), &scores.rows, position, sequence.randomness());
        // 4. and 5. Accepted tokens are committed, or a correction. The other new tokens are
        // unverified now, or dropped.
        jobs::commit(drafts.chain(), &verdict, &scores, [scoring], sequence, cluster);
        let verdict = drafts.advance(&sequence.tokens()[position..], cluster);
        cluster.observe_verdict(&verdict);
        self.meter.end_step(sequence.tokens().len() - position);
        Ok(())
    }

    fn stop(&mut self, cluster: &mut dyn Cluster) {
        self.drafts.restart(false, cluster);
        self.meter.stop();
        // A score job is in flight only if a step has failed.
        if let Some(ticket) = self.scoring.take() {
            cluster.cancel(ticket);
        }
    }
}

impl DraftedLengths {
    /// Returns what to draft while the target scores `unverified` tokens.
    fn during_pass(
        options: PearlOptions,
        gamma: usize,
        unverified: usize,
        policy: &PearlDraftLength,
    ) -> Self {
        let (min, max, per_job) = match options.schedule {
            _ if gamma == 0 || unverified > 0 && !options.post_verify => (0, 0, 0),
            PearlSchedule::Eager => (1, policy.max_new(gamma), policy.tokens_per_job(gamma)),
            PearlSchedule::Paper => (gamma, gamma, gamma),
        };
        Self { min: unverified + min, max: unverified + max, per_job }
    }
}

impl AnswerDecoder for Pearl {
    fn for_next_answer(
        &self,
        options: &DecoderOptions,
        prompt_tokens: usize,
    ) -> Box<dyn AnswerDecoder> {
        let draft_length = self.meter.policy.for_new_answer(prompt_tokens);
        Box::new(Self::new(options.pearl, draft_length).with_drafter(options.drafter))
    }

    fn planned(&mut self) -> Option<&mut Planned> {
        Some(self.meter.policy.planned())
    }

    fn has_failed_drafter(&self) -> bool {
        self.drafts.has_failed()
    }
}
