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
//! * With a lookup, a round may verify a guess from earlier text instead of a draft ([`crate::lookup`]).
//! * If the drafter fails, the target decodes alone for the rest of the answer.

use crate::{
    AnswerDecoder, DecodeError, Decoder, DecoderOptions, Drafting, MethodEntry, Sequence,
    SpeculativeDraftLength, auto,
    jobs::{self, DraftRequest, JobReply},
    lookup::Lookup,
    nominal_times::NominalTimes,
};
use forerun_core::{
    Cluster, Draft, DraftShape, Guesser, Need, Outcome, Verification, trace::SpanOutcome,
};
use forerun_plan::{Forecast, JobTime, Knowledge, RankedRound, Round, TreeLimits};

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
    decoder: |options| auto::fastest(&[(Drafting::BeforeVerification, with_one_drafter)], options),
};

/// Builds a decoder with the first drafter of the options.
pub(crate) fn with_one_drafter(options: &DecoderOptions) -> Box<dyn AnswerDecoder> {
    let longest = options.pattern.positions.unwrap_or(options.draft_tokens);
    let longest = longest.min(options.draft_tokens);
    let policy = options.draft_length(options.shape.with_draft_tokens(longest));
    // How sure a drafter is differs in the last bits between kinds of devices, and a reproducible text must not.
    let policy = if options.reproducible { policy } else { policy.stopping_by_confidence() };
    let decoder = Speculative::new(match options.trees {
        Some(TreeLimits { depth, nodes }) => {
            policy.growing_trees(TreeLimits { depth: depth.min(longest), nodes })
        }
        None => policy,
    });
    let (lookup, nominal_times) = (Lookup::of(options), NominalTimes::of(options));
    let decoder = Speculative { lookup, nominal_times, drafter: options.drafter, ..decoder };
    Box::new(match options.calibrates_during_verification {
        true => decoder.calibrating(),
        false => decoder,
    })
}

/// Drafts and verifies alternately.
pub struct Speculative {
    /// The index of the drafter.
    drafter: usize,
    draft_length: SpeculativeDraftLength,
    /// Whether the drafter calibrates its draft while the target verifies it.
    calibrates: bool,
    /// Whether the drafter has failed. It gets no more jobs of this answer.
    drafter_failed: bool,
    lookup: Option<Lookup>,
    /// Whether the last step verified tokens that were looked up.
    has_looked_up: bool,
    /// The times that the draft length is chosen by, if these are not the measured ones.
    nominal_times: Option<NominalTimes>,
}

impl Speculative {
    /// Creates a decoder with this draft-length policy.
    #[must_use]
    pub fn new(draft_length: SpeculativeDraftLength) -> Self {
        Self {
            drafter: 0,
            draft_length,
            calibrates: false,
            drafter_failed: false,
            lookup: None,
            has_looked_up: false,
            nominal_times: None,
        }
    }

    /// Returns the decoder with the drafter of this index.
    #[must_use]
    pub fn with_drafter(self, drafter: usize) -> Self {
        Self { drafter, ..self }
    }

    /// Returns the decoder with a lookup, whose guesses take the place of drafts where they are expected to be better.
    #[must_use]
    pub fn with_lookup(self, guesser: Box<dyn Guesser>) -> Self {
        Self { lookup: Some(Lookup::new(guesser)), ..self }
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

    /// Returns the shape of the drafter's next draft; `None` if it does not draft.
    fn next_shape(&self, sequence: &Sequence) -> Option<DraftShape> {
        // The target adds a token of its own, so a draft never needs the last position.
        let room = sequence.remaining().saturating_sub(1);
        let shape = self.draft_length.next_shape().truncated(room);
        (!self.drafter_failed && shape.depth() > 0).then_some(shape)
    }

    /// Returns the draft that was looked up; `None` if this is the drafter's round.
    fn look_up(&mut self, sequence: &mut Sequence) -> Option<Draft> {
        let drafter_drafts = self.next_shape(sequence).is_some();
        self.lookup.as_mut()?.draft(sequence, &self.draft_length, drafter_drafts)
    }

    /// Returns the drafter's reply; `None` without a draft.
    fn draft(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<Option<JobReply<Draft>>, DecodeError> {
        let Some(shape) = self.next_shape(sequence) else { return Ok(None) };
        match jobs::draft(self.drafter, sequence, cluster, shape) {
            Ok(reply) => Ok(Some(reply)),
            Err(error) => {
                sequence.report_failed_drafter(self.drafter, &jobs::drafter_failure(error)?);
                self.drafter_failed = true;
                Ok(None)
            }
        }
    }
}

impl Speculative {
    /// Returns the times of a draft and of the pass that verifies it, from which the draft length learns: the measured ones, or
    /// nominal ones.
    fn round_times(
        &mut self,
        reply: Option<&JobReply<Draft>>,
        score: JobTime,
        drafted: usize,
    ) -> [JobTime; 2] {
        let Some(nominal) = &mut self.nominal_times else {
            return [reply.map(|reply| reply.time).unwrap_or_default(), score];
        };
        let shape = self.draft_length.next_shape();
        let draft = reply.map(|reply| nominal.draft(&shape, &reply.output.tree));
        [draft.unwrap_or_default(), nominal.score(drafted)]
    }

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
        let request = DraftRequest::new(self.drafter, sequence, tokens, nothing);
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
        // With rejection sampling, positions that were drafted and not tested are drawn with the same numbers in the next round. So
        // nothing may depend on how they were drawn, as the end of a chain does.
        let sampling = sequence.sampling();
        let draws_again = sampling.verification == Verification::Rejection;
        self.draft_length.set_may_stop(!draws_again || sampling.is_deterministic());
        let before = sequence.tokens().len();
        let looked_up = self.look_up(sequence);
        self.has_looked_up = looked_up.is_some();
        let reply = match looked_up {
            Some(_) => None,
            None => self.draft(sequence, cluster)?,
        };
        let (empty, drafted) = (Draft::empty(), reply.as_ref().map(|reply| &reply.output));
        let draft = looked_up.as_ref().or(drafted).unwrap_or(&empty);
        let scoring = jobs::submit_score(0, sequence, &[], draft.tree.clone(), cluster)?;
        if looked_up.is_none() {
            self.calibrate(draft, sequence, cluster)?;
        }
        let score = jobs::score_in_flight(scoring, draft.tree.len(), sequence, cluster)?;
        let verdict = sequence.verify_whole(draft, &score.output.rows);
        let accepted = sequence.commit(draft, &verdict, &score.output);
        if let Some(lookup) = &mut self.lookup {
            let of_drafter = drafted.filter(|draft| !draft.tree.is_empty()).map(|_| accepted);
            lookup.observe(&sequence.tokens()[before..], of_drafter);
        }
        let [draft_time, score_time] =
            self.round_times(reply.as_ref(), score.time, draft.tree.len());
        let grows_tree = self.draft_length.grows_trees() && looked_up.is_none();
        self.draft_length.observe(&Round {
            requested: reply.is_some(),
            drafted: draft.tree.len(),
            looked_up: looked_up.is_some(),
            accepted,
            rejected: verdict.rejected,
            confidences: drafted.map(|draft| draft.confidences.clone()).unwrap_or_default(),
            draft: draft_time,
            score: score_time,
            ranked: grows_tree.then(|| {
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
        options: &DecoderOptions,
        prompt_tokens: usize,
    ) -> Box<dyn AnswerDecoder> {
        let draft_length = self.draft_length.for_new_answer(prompt_tokens);
        let (lookup, nominal_times) = (Lookup::of(options), NominalTimes::of(options));
        let Self { calibrates, drafter, .. } = *self;
        Box::new(Self { calibrates, drafter, lookup, nominal_times, ..Self::new(draft_length) })
    }

    fn knowledge(&self) -> Option<Knowledge> {
        Some(self.draft_length.knowledge())
    }

    fn adopt(&mut self, known: &Knowledge) {
        self.draft_length.adopt(known);
    }

    fn start(&mut self, _known: &Knowledge, others_ns: f64) {
        self.draft_length.start(others_ns);
    }

    fn has_looked_up(&self) -> bool {
        self.has_looked_up
    }

    fn forecast(&self, _missed: usize) -> Option<Forecast> {
        self.draft_length.forecast()
    }

    fn has_failed_drafter(&self) -> bool {
        self.drafter_failed
    }
}
