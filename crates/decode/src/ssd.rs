//! SSD: prepares the next draft for the likely verdicts while the target verifies.
//!
//! *Speculative Speculative Decoding*, Kumar et al. 2026, arXiv 2603.03251 (Saguaro).
//!
//! 1. While the target scores a draft, the drafter names its best tokens after each part of it. Each is
//!    the end of a possible verdict: so many accepted tokens, then this correction or bonus token.
//! 2. It drafts after the most probable verdicts, all in the same forward passes: each verdict is a
//!    [branch](SequenceId::branch) of the sequence, and branches run together like sequences of different users.
//! 3. The draft is verified as in speculative decoding. If the verdict was prepared, the next round
//!    starts with its draft. Otherwise the drafter makes one now (the paper's fallback).
//!
//! A prepared draft is the one that the drafter would make after the verdict: tokens are drawn with keys
//! that do not depend on when. So with a fixed draft length the text of a seed is that of speculative decoding. If the
//! length is automatic and changes in between, a prepared draft that is too long is shortened, and one that is too
//! short is used as it is. EasySpec's drafts are an exception: which of their rows are
//! approximate depends on the drafter's last draft. With rejection sampling the text of a seed may then differ from
//! run to run, and its distribution stays the target's.
//!
//! Deviations:
//!
//! * With a lookup, a round may verify a guess from earlier text instead of a draft, prepared or not ([`crate::lookup`]).
//! * The paper computes the number of tokens to prepare after each part of the draft by a closed form, a
//!   capped geometric series. Here the most probable verdicts under the same model are taken one by one.
//! * The paper changes the drafter's distribution so that corrections are more often among the prepared ones
//!   (Saguaro sampling). Here drafts stay as they are.

use crate::{
    AnswerDecoder, DecodeError, Decoder, DecoderOptions, Drafting, MethodEntry, Sequence,
    SpeculativeDraftLength,
    jobs::{self, DraftRequest, JobReply},
    lookup::Lookup,
};
use forerun_core::{
    Cluster, Completion, Draft, DraftShape, Guesser, Need, Outcome, SequenceId, Ticket, TokenId,
    trace::SpanOutcome,
};
use forerun_plan::{AcceptanceEstimate, Round};

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "ssd",
    help: "Prepare drafts for the likely verdicts during verification, on separate devices (SSD)",
    drafting: Drafting::DuringVerification,
    several_targets: false,
    offers: &[Need::WholeDrafts],
    decoder: |options| {
        let options = &options.with_fixed_length_if_reproducible();
        let longest = options.pattern.positions.unwrap_or(options.draft_tokens);
        let shape = DraftShape::Chain { length: longest.min(options.draft_tokens) };
        let reproducible = options.reproducible;
        let lookup = Lookup::of(options);
        Box::new(Ssd { reproducible, lookup, ..Ssd::new(options.draft_length(shape)) })
    },
};

/// Drafts for likely verdicts during verification.
pub struct Ssd {
    draft_length: SpeculativeDraftLength,
    /// The number of verdicts to prepare.
    verdicts: usize,
    acceptance: AcceptanceEstimate,
    /// Whether the drafter has failed. It gets no more jobs of this answer.
    drafter_failed: bool,
    /// Whether a draft may not be shorter because it was prepared, which depends on times. An assisted length changes with
    /// the verdict.
    reproducible: bool,
    lookup: Option<Lookup>,
    /// The jobs of this round that name tokens after a part of the draft, which has this many tokens.
    naming: Vec<(Ticket, usize)>,
    prepared: Vec<Prepared>,
    /// The number of drafts of this round that were submitted.
    submitted: usize,
    /// The draft for the last verdict, if it was prepared.
    hit: Option<Prepared>,
    /// The target's job in flight.
    scoring: Option<Ticket>,
    /// The end of the answer's last verification, on the cluster's clock.
    verified_ns: Option<u64>,
    /// The sequence, and the number of its branches that have caches.
    branches: Option<(SequenceId, usize)>,
}

/// A draft after a possible verdict.
struct Prepared {
    accepted: usize,
    token: TokenId,
    ticket: Ticket,
    /// The number of tokens that were asked for.
    length: usize,
    /// The reply, if it has arrived.
    reply: Option<JobReply<Draft>>,
}

impl Prepared {
    /// Ends its job, whose output is not used.
    fn discard(&self, cluster: &mut dyn Cluster) {
        let ticket = self.ticket;
        match self.reply {
            Some(_) => {
                cluster.observe(Outcome { ticket, accepted: 0, outcome: SpanOutcome::Wasted });
            }
            None => cluster.cancel(ticket),
        }
    }
}

/// The drafter that this method uses.
const DRAFTER: usize = 0;

/// The number of verdicts to prepare, unless it is chosen.
const VERDICTS: usize = 8;

impl Ssd {
    /// Creates a decoder with this draft-length policy.
    #[must_use]
    pub fn new(draft_length: SpeculativeDraftLength) -> Self {
        Self {
            draft_length,
            verdicts: VERDICTS,
            acceptance: AcceptanceEstimate::default(),
            drafter_failed: false,
            reproducible: false,
            lookup: None,
            naming: Vec::new(),
            prepared: Vec::new(),
            submitted: 0,
            hit: None,
            scoring: None,
            verified_ns: None,
            branches: None,
        }
    }

    /// Returns the decoder with another number of verdicts to prepare.
    #[must_use]
    pub fn with_verdicts(self, verdicts: usize) -> Self {
        Self { verdicts, ..self }
    }

    /// Returns the decoder with a lookup, whose guesses take the place of drafts where they are expected to be better.
    #[must_use]
    pub fn with_lookup(self, guesser: Box<dyn Guesser>) -> Self {
        Self { lookup: Some(Lookup::new(guesser)), ..self }
    }

    /// Returns the draft that was looked up, for which the prepared one is discarded; `None` if this is the drafter's
    /// round.
    fn look_up(&mut self, sequence: &mut Sequence, cluster: &mut dyn Cluster) -> Option<Draft> {
        let shape = self.next_shape(sequence.remaining());
        let drafter_drafts = !self.drafter_failed && shape.depth() > 0;
        let lookup = self.lookup.as_mut()?;
        let looked_up = lookup.draft(sequence, &self.draft_length, drafter_drafts)?;
        self.hit.take().iter().for_each(|unused| unused.discard(cluster));
        Some(looked_up)
    }

    /// Returns the draft of this round: the prepared one, or a new one. `None` without a draft.
    fn draft(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<Option<JobReply<Draft>>, DecodeError> {
        let shape = self.next_shape(sequence.remaining());
        let hit = self.hit.take();
        let is_wanted = !self.drafter_failed && shape.depth() > 0;
        let reply = match hit {
            Some(hit) if is_wanted && !(self.reproducible && hit.length < shape.depth()) => {
                sequence.statistics_mut().prepared += 1;
                let reply = match hit.reply {
                    Some(reply) => Ok(reply),
                    None => jobs::draft_in_flight(DRAFTER, hit.ticket, sequence, cluster),
                };
                reply.map(|mut reply| {
                    reply.output.truncate(shape.depth());
                    reply
                })
            }
            other => {
                other.iter().for_each(|unused| unused.discard(cluster));
                if !is_wanted {
                    return Ok(None);
                }
                jobs::draft(DRAFTER, sequence, cluster, shape)
            }
        };
        match reply {
            Ok(reply) => Ok(Some(reply)),
            Err(error) => {
                sequence.report_failed_drafter(DRAFTER, &jobs::drafter_failure(error)?);
                self.drafter_failed = true;
                Ok(None)
            }
        }
    }

    /// Returns the shape of a draft if so many more tokens may be committed.
    fn next_shape(&self, remaining: usize) -> DraftShape {
        // The target adds a token of its own, so a draft never needs the last position.
        self.draft_length.next_shape().truncated(remaining.saturating_sub(1))
    }

    /// Returns the most probable verdicts on a draft of `drafted` tokens, best first: for each, the number of
    /// accepted tokens, and the rank of the token after them among the drafter's.
    ///
    /// If tokens are accepted with the rate α, the target's token is the drafter's best one with this
    /// probability, too. It is not among the `f` best ones with probability `(1−α)/f`: the power law that the paper
    /// measures, here with exponent 1.
    fn likely_verdicts(&self, drafted: usize) -> Vec<(usize, usize)> {
        let rate = self.acceptance.rate(1.0).clamp(0.05, 0.95);
        let of_rank = |rank: usize| match rank {
            0 => rate,
            _ => (1.0 - rate) / (rank * (rank + 1)) as f64,
        };
        let verdicts = (0..=drafted).flat_map(|accepted| {
            // The best token before the end of the draft is the draft's own, so it was not rejected.
            let first = usize::from(accepted < drafted);
            (first..=self.verdicts).map(move |rank| (accepted, rank))
        });
        let probability =
            |&(accepted, rank): &(usize, usize)| rate.powi(accepted as i32) * of_rank(rank);
        let mut verdicts: Vec<_> = verdicts.collect();
        verdicts.sort_by(|a, b| probability(b).total_cmp(&probability(a)));
        verdicts.truncate(self.verdicts);
        verdicts
    }

    /// Submits a draft job on a branch of the sequence. `None` if the drafter is gone, which the next round
    /// reports.
    fn submit(
        &mut self,
        branch: usize,
        sequence: &Sequence,
        ahead: &[TokenId],
        shape: DraftShape,
        cluster: &mut dyn Cluster,
    ) -> Result<Option<Ticket>, DecodeError> {
        let used = self.branches.map_or(0, |(_, used)| used);
        self.branches = Some((sequence.id(), used.max(branch + 1)));
        let id = sequence.id().branch(branch as u16);
        let request = DraftRequest { id, ..DraftRequest::new(DRAFTER, sequence, ahead, shape) };
        match jobs::submit_draft(request, sequence, cluster) {
            Ok(ticket) => Ok(Some(ticket)),
            Err(error) => jobs::drafter_failure(error).map(|_| None),
        }
    }

    /// Has the drafter name its best tokens after the parts of the draft where likely verdicts end.
    fn name_tokens(
        &mut self,
        draft: &Draft,
        sequence: &Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let tokens = draft.tree.tokens();
        let verdicts = self.likely_verdicts(tokens.len());
        for accepted in (0..=tokens.len()).rev() {
            let ranks = verdicts.iter().filter(|(of, _)| *of == accepted).map(|(_, rank)| rank);
            let Some(last) = ranks.max() else { continue };
            if self.next_shape(sequence.remaining().saturating_sub(accepted + 1)).depth() == 0 {
                continue;
            }
            let shape = DraftShape::Top { width: last + 1, depth: 1, budget: None };
            let ticket = self.submit(accepted, sequence, &tokens[..accepted], shape, cluster)?;
            self.naming.extend(ticket.map(|ticket| (ticket, accepted)));
        }
        Ok(())
    }

    /// Has the drafter draft after verdicts that end with the tokens that it has named.
    fn prepare(
        &mut self,
        draft: &Draft,
        (accepted, named): (usize, &[TokenId]),
        sequence: &Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let tokens = draft.tree.tokens();
        let shape = self.next_shape(sequence.remaining().saturating_sub(accepted + 1));
        let verdicts = self.likely_verdicts(tokens.len());
        let wanted = verdicts.iter().filter(|(of, _)| *of == accepted).count();
        let others = named.iter().filter(|token| tokens.get(accepted) != Some(token));
        for &token in others.take(wanted) {
            // The first draft after this part continues on the branch that has named its token.
            let first = self.prepared.iter().all(|prepared| prepared.accepted != accepted);
            let number = if first { accepted } else { tokens.len() + 1 + self.submitted };
            let ahead = [&tokens[..accepted], &[token]].concat();
            let ticket = self.submit(number, sequence, &ahead, shape.clone(), cluster)?;
            let Some(ticket) = ticket else { return Ok(()) };
            self.submitted += 1;
            let length = shape.depth();
            self.prepared.push(Prepared { accepted, token, ticket, length, reply: None });
        }
        Ok(())
    }

    /// Handles a completion of the drafter's. What fails is not prepared: if the drafter fails after the
    /// verdict, too, the next round reports it.
    fn handle_completion(
        &mut self,
        draft: &Draft,
        sequence: &mut Sequence,
        completion: Completion,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let ticket = completion.ticket;
        if let Some(index) = self.naming.iter().position(|(naming, _)| *naming == ticket) {
            let (_, accepted) = self.naming.swap_remove(index);
            cluster.observe(Outcome { ticket, accepted: 0, outcome: SpanOutcome::Wasted });
            return match jobs::draft_reply(DRAFTER, sequence, completion) {
                Ok(named) => {
                    let named = (accepted, named.output.tree.tokens());
                    self.prepare(draft, named, sequence, cluster)
                }
                Err(error) => jobs::drafter_failure(error).map(|_| ()),
            };
        }
        let Some(index) = self.prepared.iter().position(|prepared| prepared.ticket == ticket)
        else {
            return Ok(());
        };
        match jobs::draft_reply(DRAFTER, sequence, completion) {
            Ok(reply) => self.prepared[index].reply = Some(reply),
            Err(error) => {
                jobs::drafter_failure(error)?;
                self.prepared.swap_remove(index);
            }
        }
        Ok(())
    }

    /// Keeps the draft that was prepared for a verdict, and discards the others.
    fn keep(&mut self, accepted: usize, token: Option<TokenId>, cluster: &mut dyn Cluster) {
        for (ticket, _) in self.naming.drain(..) {
            cluster.cancel(ticket);
        }
        self.submitted = 0;
        for prepared in std::mem::take(&mut self.prepared) {
            let is_hit = prepared.accepted == accepted && Some(prepared.token) == token;
            match is_hit && self.hit.is_none() {
                true => self.hit = Some(prepared),
                false => prepared.discard(cluster),
            }
        }
    }
}

impl Decoder for Ssd {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let before = sequence.tokens().len();
        let looked_up = self.look_up(sequence, cluster);
        let reply = match looked_up {
            Some(_) => None,
            None => self.draft(sequence, cluster)?,
        };
        let (empty, drafted) = (Draft::empty(), reply.as_ref().map(|reply| &reply.output));
        let draft = looked_up.as_ref().or(drafted).unwrap_or(&empty);
        if !draft.tree.is_chain() {
            return Err(DecodeError::Answer("the draft is not a chain"));
        }

        // While the target scores the draft, the drafter prepares the next one.
        let tree = draft.tree.clone();
        let scoring = jobs::submit_score(0, sequence, &[], tree, cluster)?;
        self.scoring = Some(scoring);
        if reply.is_some() || looked_up.is_some() && !self.drafter_failed {
            self.name_tokens(draft, sequence, cluster)?;
        }
        let score = loop {
            let completion = cluster.next_completion()?;
            if completion.ticket == scoring {
                self.scoring = None;
                break jobs::score_reply(sequence, draft.tree.len(), completion)?;
            }
            self.handle_completion(draft, sequence, completion, cluster)?;
        };

        let verdict = sequence.verify_whole(draft, &score.output.rows);
        let accepted = sequence.commit(draft, &verdict, &score.output);
        self.keep(accepted, verdict.token, cluster);
        if let Some(lookup) = &mut self.lookup {
            let of_drafter = drafted.filter(|draft| !draft.tree.is_empty()).map(|_| accepted);
            lookup.observe(&sequence.tokens()[before..], of_drafter);
        }
        if looked_up.is_none() {
            self.acceptance.add(accepted, verdict.rejected);
        }
        // Only the part of drafting that the last verification did not hide costs time. The draft shared its passes with
        // those for other verdicts, which are this sequence's, too.
        let start_ns = self.verified_ns.replace(score.time.finished_ns).unwrap_or(0);
        self.draft_length.observe(&Round {
            requested: reply.is_some(),
            drafted: draft.tree.len(),
            looked_up: looked_up.is_some(),
            accepted,
            rejected: verdict.rejected,
            confidences: Vec::new(),
            draft: reply.as_ref().map(|reply| reply.time.own_after(start_ns)).unwrap_or_default(),
            score: score.time,
            ranked: None,
        });
        let outcome = if verdict.rejected { SpanOutcome::Rejected } else { SpanOutcome::Accepted };
        for ticket in reply.map(|reply| reply.ticket).into_iter().chain([scoring]) {
            cluster.observe(Outcome { ticket, accepted, outcome });
        }
        Ok(())
    }

    fn stop(&mut self, cluster: &mut dyn Cluster) {
        self.keep(0, None, cluster);
        if let Some(hit) = self.hit.take() {
            hit.discard(cluster);
        }
        // A score job is in flight only if a step has failed.
        if let Some(ticket) = self.scoring.take() {
            cluster.cancel(ticket);
        }
        if let Some((sequence, used)) = self.branches.take() {
            (0..used).for_each(|branch| cluster.release(sequence.branch(branch as u16)));
        }
    }
}

impl AnswerDecoder for Ssd {
    fn for_next_answer(
        &self,
        options: &DecoderOptions,
        prompt_tokens: usize,
    ) -> Box<dyn AnswerDecoder> {
        let decoder = Self::new(self.draft_length.for_new_answer(prompt_tokens));
        let lookup = Lookup::of(options);
        Box::new(Self {
            acceptance: self.acceptance,
            reproducible: options.reproducible,
            lookup,
            ..decoder.with_verdicts(self.verdicts)
        })
    }
}
