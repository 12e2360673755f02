//! What methods that draft before they verify have in common: how much to draft, whether a guess
//! from earlier text takes the draft's place, and what a round teaches the policy.

use crate::jobs::{self, JobReply};
use crate::lookup::Lookup;
use crate::method::DecoderOptions;
use crate::nominal_times::NominalTimes;
use crate::{DecodeError, Sequence, SpeculativeDraftLength};
use forerun_core::{Cluster, Draft, DraftShape, Guesser, Scores, Verdict};
use forerun_plan::{JobTime, RankedRound, Round};

/// The rounds of an answer.
pub(crate) struct DraftRounds {
    pub(crate) policy: SpeculativeDraftLength,
    /// The index of the drafter.
    pub(crate) drafter: usize,
    /// Whether the drafter has failed. It gets no more jobs of this answer.
    pub(crate) drafter_failed: bool,
    lookup: Option<Lookup>,
    /// Whether the last round verified tokens that were looked up.
    pub(crate) has_looked_up: bool,
    /// The times that the policy learns from, if these are not the measured ones.
    nominal_times: Option<NominalTimes>,
}

/// The draft of a round.
pub(crate) enum RoundDraft {
    /// The round has none.
    None(Draft),
    /// It was looked up in earlier text.
    LookedUp(Draft),
    /// The drafter has made it.
    Drafted(JobReply<Draft>),
}

impl RoundDraft {
    pub(crate) fn draft(&self) -> &Draft {
        match self {
            Self::None(draft) | Self::LookedUp(draft) => draft,
            Self::Drafted(reply) => &reply.output,
        }
    }

    fn reply(&self) -> Option<&JobReply<Draft>> {
        if let Self::Drafted(reply) = self { Some(reply) } else { None }
    }
}

impl DraftRounds {
    /// Creates the rounds of decoders without options.
    pub(crate) fn new(policy: SpeculativeDraftLength) -> Self {
        Self {
            policy,
            drafter: 0,
            drafter_failed: false,
            lookup: None,
            has_looked_up: false,
            nominal_times: None,
        }
    }

    /// Creates the rounds of an answer.
    pub(crate) fn of_answer(policy: SpeculativeDraftLength, options: &DecoderOptions) -> Self {
        let (lookup, nominal_times) = (Lookup::of(options), NominalTimes::of(options));
        Self { drafter: options.drafter, lookup, nominal_times, ..Self::new(policy) }
    }

    /// Returns the rounds with a lookup.
    pub(crate) fn with_lookup(self, guesser: Box<dyn Guesser>) -> Self {
        Self { lookup: Some(Lookup::new(guesser)), ..self }
    }

    /// Returns the shape of the drafter's draft if `remaining` more tokens may be committed; `None`
    /// if it does not draft.
    pub(crate) fn next_shape(&self, remaining: usize) -> Option<DraftShape> {
        // The target adds a token of its own, so a draft never needs the last position.
        let shape = self.policy.next_shape().truncated(remaining.saturating_sub(1));
        (!self.drafter_failed && shape.depth() > 0).then_some(shape)
    }

    /// Begins a round. Returns the draft that was looked up; `None` if it is the drafter's round.
    pub(crate) fn look_up(&mut self, sequence: &mut Sequence) -> Option<RoundDraft> {
        let remaining = sequence.remaining();
        let drafter_drafts = self.lookup.is_some() && self.next_shape(remaining).is_some();
        let lookup = self.lookup.as_mut();
        let draft = lookup.and_then(|it| it.draft(sequence, &self.policy, drafter_drafts));
        self.has_looked_up = draft.is_some();
        draft.map(RoundDraft::LookedUp)
    }

    /// Has the drafter draft, and waits for it.
    pub(crate) fn draft(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<RoundDraft, DecodeError> {
        match self.next_shape(sequence.remaining()) {
            Some(shape) => {
                let reply = jobs::draft(self.drafter, sequence, cluster, shape);
                self.of_drafter(reply, sequence)
            }
            None => Ok(RoundDraft::None(Draft::empty())),
        }
    }

    /// Returns a draft of the drafter's. If it has failed, it is no longer used, and there is none.
    pub(crate) fn of_drafter(
        &mut self,
        reply: Result<JobReply<Draft>, DecodeError>,
        sequence: &mut Sequence,
    ) -> Result<RoundDraft, DecodeError> {
        match reply {
            Ok(reply) => Ok(RoundDraft::Drafted(reply)),
            Err(error) => {
                sequence.report_failed_drafter(self.drafter, &jobs::drafter_failure(error)?);
                self.drafter_failed = true;
                Ok(RoundDraft::None(Draft::empty()))
            }
        }
    }

    /// Commits the verdict on a round's draft, and learns from it. Returns how many draft tokens
    /// were committed.
    pub(crate) fn commit(
        &mut self,
        round: &RoundDraft,
        verdict: &Verdict,
        score: &JobReply<Scores>,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> usize {
        let (before, draft) = (sequence.tokens().len(), round.draft());
        let tickets = round.reply().map(|reply| reply.ticket).into_iter().chain([score.ticket]);
        let accepted = jobs::commit(draft, verdict, &score.output, tickets, sequence, cluster);
        let drafted = draft.tree.len();
        if let Some(lookup) = &mut self.lookup {
            let of_drafter = (round.reply().is_some() && drafted > 0).then_some(accepted);
            lookup.observe(&sequence.tokens()[before..], of_drafter);
        }
        let [draft_time, score_time] = self.times(round, score.time);
        let ranked = (self.policy.grows_trees() && !self.has_looked_up).then(|| {
            let shape = self.policy.next_shape();
            RankedRound::new(&draft.tree, &shape, &verdict.accepted, verdict.rejected)
        });
        self.policy.observe(&Round {
            requested: round.reply().is_some(),
            drafted,
            looked_up: self.has_looked_up,
            accepted,
            rejected: verdict.rejected,
            confidences: round.reply().map(|it| it.output.confidences.clone()).unwrap_or_default(),
            draft: draft_time,
            score: score_time,
            ended_ns: score.time.finished_ns,
            ranked,
        });
        accepted
    }

    /// Returns the times of a draft and of the pass that verified it: measured or nominal ones.
    fn times(&mut self, round: &RoundDraft, score: JobTime) -> [JobTime; 2] {
        let Some(nominal) = &mut self.nominal_times else {
            return [round.reply().map(|reply| reply.time).unwrap_or_default(), score];
        };
        let shape = self.policy.next_shape();
        let draft = round.reply().map(|reply| nominal.draft(&shape, &reply.output.tree));
        [draft.unwrap_or_default(), nominal.score(round.draft().tree.len())]
    }
}
