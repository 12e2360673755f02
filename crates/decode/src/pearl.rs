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
//! * With [`PreVerify::PromptLookup`] and [`PreVerify::Suffix`], the pass without unverified tokens scores guesses
//!   from earlier text, too. So it may commit several tokens. Each of its rows tests the drafter's token first, then
//!   the guess.
//! * By default a round ends with the target's forward pass. A drafter that finishes early continues
//!   for a while. If it is late, the tokens that it has are verified, and it is not interrupted. In
//!   the paper's schedule, [`PearlSchedule::Paper`], each waits for the other.
//! * A drafter that fails is no longer used, and the target decodes alone. The tokens that it has
//!   drafted are verified.
//! * Caches are not rolled back explicitly.
//! * Every draw has its own key. The published code uses one random number for two positions.

use crate::chain::common_prefix_len;
use crate::draft_ahead::DraftAhead;
use crate::{
    AnswerDecoder, DecodeError, Decoder, DecoderOptions, Drafting, MethodEntry, PearlDraftLength,
    PearlOptions, PearlSchedule, PreVerify, Sequence, auto, jobs,
};
use forerun_core::{
    Cluster, Draft, Guesser, Need, Outcome, Proposal, Scores, Ticket, TokenId, TokenTree, Verdict,
    trace::SpanOutcome, verify_candidates,
};
use forerun_plan::{Forecast, Knowledge};
use std::collections::BTreeMap;

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "pearl",
    help: "Draft and verify at the same time, on separate devices (PEARL)",
    drafting: Drafting::DuringVerification,
    several_targets: false,
    offers: &[Need::Features, Need::SeveralDrafters],
    decoder: |options| auto::fastest(&[(Drafting::DuringVerification, with_one_drafter)], options),
};

/// Builds a decoder with the first drafter of the options.
pub(crate) fn with_one_drafter(options: &DecoderOptions) -> Box<dyn AnswerDecoder> {
    let options = &options.with_fixed_length_if_reproducible();
    let eager = options.pearl.schedule == PearlSchedule::Eager;
    let draft_length = PearlDraftLength::new(options.draft_tokens, options.length, eager)
        .with_tokens_per_forward(options.pattern.tokens_per_forward())
        .with_expected_passes(options.expected_passes);
    let mut decoder = Pearl::new(options.pearl, draft_length).with_drafter(options.drafter);
    decoder.guesser = options.guesser.map(|make| make());
    Box::new(if options.reproducible { decoder.reproducible() } else { decoder })
}

/// Drafts and verifies at the same time.
pub struct Pearl {
    options: PearlOptions,
    draft_length: PearlDraftLength,
    drafting: DraftAhead,
    /// What guesses tokens for passes without unverified tokens.
    guesser: Option<Box<dyn Guesser>>,
    /// Whether to wait for the draft tokens that compete with guesses.
    waits_for_drafter: bool,
    /// The target's job in flight.
    scoring: Option<Ticket>,
    /// The end of the last completed job, on the cluster's clock.
    now_ns: u64,
}

impl Pearl {
    /// Creates a decoder with this draft-length policy.
    #[must_use]
    pub fn new(options: PearlOptions, draft_length: PearlDraftLength) -> Self {
        Self {
            options,
            draft_length,
            drafting: DraftAhead::new(0),
            guesser: None,
            waits_for_drafter: false,
            scoring: None,
            now_ns: 0,
        }
    }

    /// Returns the decoder with the drafter of this index. Call it first: it resets settings for the drafter.
    #[must_use]
    pub fn with_drafter(self, drafter: usize) -> Self {
        Self { drafting: DraftAhead::new(drafter), ..self }
    }

    /// Returns the decoder with a source of guesses, which options without guesses ignore.
    #[must_use]
    pub fn with_guesser(self, guesser: Box<dyn Guesser>) -> Self {
        Self { guesser: Some(guesser), ..self }
    }

    /// Returns the decoder in a mode where the text of a seed does not depend on which device
    /// finishes first. With rejection sampling this requires a fixed draft length.
    #[must_use]
    pub fn reproducible(mut self) -> Self {
        if !self.options.post_verify || self.options.pre_verify.guesses() {
            // Otherwise timing decides whether a late token is tested or the bonus token drawn, and
            // which passes have guesses.
            self.options.schedule = PearlSchedule::Paper;
        }
        self.drafting.draft_one_token_per_job();
        self.waits_for_drafter = true;
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
        let per_job = self.draft_length.tokens_per_first_job(length);
        loop {
            self.drafting.continue_to(sequence, length, per_job, cluster)?;
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

/// What to draft during a pass, in tokens after the committed ones.
struct DuringPass {
    /// The round waits for so many.
    min: usize,
    max: usize,
    per_job: usize,
    /// Whether the drafter works during the pass.
    works: bool,
}

impl Pearl {
    /// Drafts until the scores of a tree of `nodes` nodes have arrived and enough is drafted.
    fn draft_until_scored(
        &mut self,
        sequence: &mut Sequence,
        nodes: usize,
        drafts: &DuringPass,
        cluster: &mut dyn Cluster,
    ) -> Result<Scores, DecodeError> {
        let DuringPass { min, max, per_job, works } = *drafts;
        let mut scores = None;
        loop {
            if scores.is_none() || self.drafting.len() < min {
                self.drafting.continue_to(sequence, max, per_job, cluster)?;
            }
            if self.drafting.is_done(sequence, min)
                && let Some(scores) = scores.take()
            {
                return Ok(scores);
            }
            let completion = cluster.next_completion()?;
            self.now_ns = self.now_ns.max(completion.finished_ns);
            if self.scoring == Some(completion.ticket) {
                self.scoring = None;
                let reply = jobs::score_reply(sequence, nodes, completion)?;
                self.draft_length.observe_score(nodes + 1, &reply.time, works);
                scores = Some(reply.output);
            } else if let Some((tokens, time)) =
                self.drafting.handle_completion(sequence, completion)?
            {
                self.draft_length.observe_draft(tokens, &time);
            }
        }
    }

    /// Returns up to `length` guessed tokens after the committed ones.
    fn guess(&mut self, sequence: &Sequence, length: usize) -> Vec<TokenId> {
        if length == 0 {
            return Vec::new();
        }
        let guesser = self.guesser.as_mut().filter(|_| self.options.pre_verify.guesses());
        // The sequence's last token is always the target's own.
        let length = length.min(sequence.remaining().saturating_sub(1));
        guesser.map_or_else(Vec::new, |guesser| {
            let mut guess = guesser.guess(sequence.tokens(), sequence.prompt_len(), length).tokens;
            guess.truncate(length);
            guess
        })
    }

    /// Verifies the drafter's chain and the guess, whose tree was scored, and commits the accepted tokens. There are no
    /// rows for draft tokens that were not scored, but the last row tests the next one. Returns the verdict and the
    /// number of committed candidates.
    fn verify(
        &self,
        sequence: &mut Sequence,
        scored: TokenTree,
        scores: &Scores,
    ) -> (Verdict, usize) {
        let (mut tree, chain) = (scored, self.drafting.chain());
        let mut at = None;
        let mut drawn = BTreeMap::new();
        for (place, &token) in chain.tree.tokens().iter().enumerate() {
            let node = tree.child_with(at, token).unwrap_or_else(|| tree.push(at, token));
            if let Proposal::Sampled(rows) = &chain.proposal {
                drawn.insert(node, &rows[place]);
            }
            at = Some(node);
        }
        let (position, randomness) = (sequence.tokens().len(), sequence.randomness());
        let drawn_from = |node| drawn.get(&node).copied();
        let verdict = verify_candidates(&tree, &drawn_from, &scores.rows, position, randomness);
        let draft = Draft::deterministic(tree);
        let accepted = sequence.commit(&draft, &verdict, scores);
        (verdict, accepted)
    }

    /// Continues the drafter's chain after the committed tokens, or restarts it there.
    fn advance(&mut self, committed: &[TokenId], cluster: &mut dyn Cluster) {
        let agreed = common_prefix_len(self.drafting.tokens(), committed);
        let rejected = agreed < committed.len() && agreed < self.drafting.len();
        let further = committed.len() - agreed;
        let tested = self.drafting.positions(agreed + usize::from(rejected));
        self.draft_length.observe_verdict(&tested, rejected, further);
        self.drafting.accept(agreed, cluster);
        if further > 0 {
            self.drafting.restart(rejected, cluster);
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
        let first = match self.options.pre_verify {
            PreVerify::Off => gamma,
            _ => self.draft_length.first_length(),
        };
        if self.drafting.len() == 0 && first > 0 {
            self.draft_alone(sequence, first, cluster)?;
        }

        // In parallel, the target scores the unverified tokens and the next position …
        let unverified = self.drafting.len();
        let length = if unverified == 0 { self.draft_length.guess_length(gamma) } else { 0 };
        let guess = self.guess(sequence, length);
        sequence.statistics_mut().count_guess(guess.len());
        let tree = match guess.is_empty() {
            true => self.drafting.first(unverified),
            false => TokenTree::chain(&guess),
        };
        let nodes = tree.len();
        let scored = tree.clone();
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
        let (mut min_length, mut max_length) = (unverified + min_new, unverified + max_new);
        if drafts && self.waits_for_drafter && !guess.is_empty() {
            min_length = min_length.max(guess.len() + 1);
            max_length = max_length.max(min_length);
        }
        let works = drafts || late;
        let during = DuringPass { min: min_length, max: max_length, per_job, works };
        let scores = self.draft_until_scored(sequence, nodes, &during, cluster)?;

        let position = sequence.tokens().len();
        let (verdict, accepted) = self.verify(sequence, scored, &scores);
        let outcome = if verdict.rejected { SpanOutcome::Rejected } else { SpanOutcome::Accepted };
        cluster.observe(Outcome { ticket: scoring, accepted, outcome });
        let own = verdict.token.is_some();
        self.advance(&sequence.tokens()[position..], cluster);
        if !guess.is_empty() {
            self.draft_length.observe_guess(sequence.tokens().len() - position, own);
        }
        let committed = sequence.tokens().len() - position;
        let alone = nodes == 0 && !works;
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
    fn for_next_answer(
        &self,
        options: &DecoderOptions,
        prompt_tokens: usize,
    ) -> Box<dyn AnswerDecoder> {
        let decoder = Self::new(options.pearl, self.draft_length.for_new_answer(prompt_tokens));
        let decoder = decoder.with_drafter(options.drafter);
        Box::new(Self { guesser: options.guesser.map(|make| make()), ..decoder })
    }

    fn knowledge(&self) -> Option<Knowledge> {
        Some(self.draft_length.knowledge())
    }

    fn adopt(&mut self, known: &Knowledge) {
        self.draft_length.adopt(known);
    }

    fn start(&mut self, known: &Knowledge, others_ns: f64) {
        self.draft_length.start(known, others_ns);
    }

    fn forecast(&self, _missed: usize) -> Option<Forecast> {
        self.draft_length.forecast()
    }

    fn has_failed_drafter(&self) -> bool {
        self.drafting.has_failed()
    }
}
