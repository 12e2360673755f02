//! SSD: prepares the next draft for the likely verdicts while the target verifies.
//!
//! *Speculative Speculative Decoding*, Kumar et al. 2026, arXiv 2603.03251 (Saguaro).
//!
//! 1. While the target scores a draft, the drafter names its best tokens after each part of it.
//!    Each is the end of a possible verdict: so many accepted tokens, then this correction or bonus
//!    token.
//! 2. It drafts after the most probable verdicts, all in the same forward passes: each verdict is a
//!    [branch](SequenceId::branch) of the sequence, and branches run together like sequences of
//!    different users.
//! 3. The draft is verified as in speculative decoding. If the verdict was prepared, the next round
//!    starts with its draft. Otherwise the drafter makes one now (the paper's fallback).
//!
//! A prepared draft is the one that the drafter would make after the verdict: tokens are drawn with
//! keys that do not depend on when. So with a fixed draft length the text of a seed is that of
//! speculative decoding. If the length is automatic and changes in between, a prepared draft that
//! is too long is shortened, and one that is too short is used as it is. EasySpec's drafts are an
//! exception: which of their rows are approximate depends on the drafter's last draft. With
//! rejection sampling the text of a seed may then differ from run to run, and its distribution
//! stays the target's.
//!
//! Deviations:
//!
//! * With a lookup, a round may verify a guess from earlier text instead of a draft, prepared or
//!   not ([`crate::lookup`]).
//! * The paper computes the number of tokens to prepare after each part of the draft by a closed
//!   form, a capped geometric series. Here the most probable verdicts under the same model are
//!   taken one by one.
//! * The paper changes the drafter's distribution so that corrections are more often among the
//!   prepared ones (Saguaro sampling). Here drafts stay as they are.

use crate::draft_rounds::{DraftRounds, RoundDraft};
use crate::jobs::{self, DraftRequest, JobReply, wasted};
use crate::method::{AnswerDecoder, DecoderOptions, Drafting, MethodEntry};
use crate::{DecodeError, Decoder, Sequence, SpeculativeDraftLength};
use forerun_core::{
    Cluster, Completion, Draft, DraftShape, Guesser, Need, SequenceId, Ticket, TokenId,
};
use forerun_plan::{Planned, Policy, Share};

/// The entry in [`METHODS`](crate::METHODS).
pub(crate) const METHOD: MethodEntry = MethodEntry {
    name: "ssd",
    help: "Prepare drafts for the likely verdicts during verification, on separate devices (SSD)",
    drafting: Drafting::DuringVerification,
    several_targets: false,
    offers: &[Need::WholeDrafts],
    combines_drafters: false,
    decoder: |options| {
        let options = &options.with_fixed_length_if_reproducible();
        let longest = options.pattern.positions.unwrap_or(options.draft_tokens);
        let shape = DraftShape::Chain { length: longest.min(options.draft_tokens) };
        let rounds = DraftRounds::of_answer(options.draft_length(shape), options);
        Box::new(Ssd { reproducible: options.reproducible, ..Ssd::of_rounds(rounds) })
    },
};

/// Drafts for likely verdicts during verification.
pub struct Ssd {
    rounds: DraftRounds,
    /// The number of verdicts to prepare.
    verdicts: usize,
    acceptance: Share,
    /// Whether a draft may not be shorter because it was prepared, which depends on times. An
    /// assisted length changes with the verdict.
    reproducible: bool,
    /// The jobs of this round that name tokens after a part of the draft, which has this many
    /// tokens.
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
        match self.reply {
            Some(_) => cluster.observe(wasted(self.ticket)),
            None => cluster.cancel(self.ticket),
        }
    }
}

/// The number of verdicts to prepare, unless it is chosen.
const VERDICTS: usize = 8;

impl Ssd {
    /// Creates a decoder with this draft-length policy.
    #[must_use]
    pub fn new(draft_length: SpeculativeDraftLength) -> Self {
        Self::of_rounds(DraftRounds::new(draft_length))
    }

    fn of_rounds(rounds: DraftRounds) -> Self {
        Self {
            rounds,
            verdicts: VERDICTS,
            acceptance: Share::default(),
            reproducible: false,
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

    /// Returns the decoder with a lookup, whose guesses take the place of drafts where they are
    /// expected to be better.
    #[must_use]
    pub fn with_lookup(self, guesser: Box<dyn Guesser>) -> Self {
        Self { rounds: self.rounds.with_lookup(guesser), ..self }
    }

    /// Returns the draft of this round: a guess from earlier text, the prepared draft, or a new
    /// one.
    fn draft(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<RoundDraft, DecodeError> {
        let looked_up = self.rounds.look_up(sequence);
        let shape = self.rounds.next_shape(sequence.remaining());
        let Some(hit) = self.hit.take() else {
            return looked_up.map_or_else(|| self.rounds.draft(sequence, cluster), Ok);
        };
        let depth = shape.map_or(0, |shape| shape.depth());
        if looked_up.is_some() || depth == 0 || self.reproducible && hit.length < depth {
            hit.discard(cluster);
            return looked_up.map_or_else(|| self.rounds.draft(sequence, cluster), Ok);
        }
        sequence.statistics_mut().prepared += 1;
        let reply = match hit.reply {
            Some(reply) => Ok(reply),
            None => jobs::draft_in_flight(self.rounds.drafter, hit.ticket, sequence, cluster),
        };
        let reply = reply.map(|mut reply| {
            reply.output.truncate(depth);
            reply
        });
        self.rounds.of_drafter(reply, sequence)
    }

    /// Returns the most probable verdicts on a draft of `drafted` tokens, best first: for each, the
    /// number of accepted tokens, and the rank of the token after them among the drafter's.
    ///
    /// If tokens are accepted with the rate α, the target's token is the drafter's best one with
    /// this probability, too. It is not among the `f` best ones with probability `(1−α)/f`: the
    /// power law that the paper measures, here with exponent 1.
    fn likely_verdicts(&self, drafted: usize) -> Vec<(usize, usize)> {
        let rate = self.acceptance.value(1.0, 1.0).clamp(0.05, 0.95);
        let of_rank = |rank: usize| match rank {
            0 => rate,
            _ => (1.0 - rate) / (rank * (rank + 1)) as f64,
        };
        let verdicts = (0..=drafted).flat_map(|accepted| {
            // The best token before the end of the draft is the draft's own, so it was not
            // rejected.
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

    /// Submits a draft job on a branch of the sequence. `None` if the drafter is gone, which the
    /// next round reports.
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
        let request =
            DraftRequest { id, ..DraftRequest::new(self.rounds.drafter, sequence, ahead, shape) };
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
            let remaining = sequence.remaining().saturating_sub(accepted + 1);
            if self.rounds.next_shape(remaining).is_none() {
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
        let remaining = sequence.remaining().saturating_sub(accepted + 1);
        let Some(shape) = self.rounds.next_shape(remaining) else { return Ok(()) };
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

    /// Handles a completion of the drafter's. What fails is not prepared: if the drafter fails
    /// after the verdict, too, the next round reports it.
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
            cluster.observe(wasted(ticket));
            return match jobs::draft_reply(self.rounds.drafter, sequence, completion) {
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
        match jobs::draft_reply(self.rounds.drafter, sequence, completion) {
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
        let mut round = self.draft(sequence, cluster)?;
        if let RoundDraft::Drafted(reply) = &mut round {
            // Only the part of drafting that the last verification did not hide costs time. The
            // draft shared its passes with those for other verdicts, which are this sequence's,
            // too.
            reply.time = reply.time.clipped_to_after(self.verified_ns.unwrap_or(0));
        }
        let draft = round.draft();
        if !draft.tree.is_chain() {
            return Err(DecodeError::Answer("the draft is not a chain"));
        }
        let scoring = jobs::submit_score(0, sequence, &[], draft.tree.clone(), cluster)?;
        self.scoring = Some(scoring);
        // 1. Meanwhile, the drafter names tokens after the draft's parts.
        if !matches!(round, RoundDraft::None(_)) && !self.rounds.drafter_failed {
            self.name_tokens(draft, sequence, cluster)?;
        }
        // 2. It drafts after the most probable verdicts.
        let score = loop {
            let completion = cluster.next_completion()?;
            if completion.ticket == scoring {
                break jobs::score_reply(sequence, draft.tree.len(), completion)?;
            }
            self.handle_completion(draft, sequence, completion, cluster)?;
        };
        self.scoring = None;
        // 3. The draft is verified. The draft that was prepared for this verdict is the next one.
        let verdict = sequence.verify_whole(draft, &score.output.rows);
        let accepted = self.rounds.commit(&round, &verdict, &score, sequence, cluster);
        self.keep(accepted, verdict.token, cluster);
        if !self.rounds.has_looked_up {
            let tested = accepted + usize::from(verdict.rejected);
            self.acceptance.add(accepted as f64, tested as f64);
        }
        self.verified_ns = Some(score.time.finished_ns);
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
        let policy = self.rounds.policy.for_new_answer(prompt_tokens);
        Box::new(Self {
            acceptance: self.acceptance,
            reproducible: options.reproducible,
            verdicts: self.verdicts,
            ..Self::of_rounds(DraftRounds::of_answer(policy, options))
        })
    }

    fn planned(&mut self) -> Option<&mut Planned> {
        Some(self.rounds.policy.planned())
    }
}
