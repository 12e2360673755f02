//! What a step teaches about costs and acceptance.

use super::State;
use super::account::Kind;
use crate::costs::READ_TOKENS;
use crate::ranked_tree::DraftSize;
use crate::round::Round;
use crate::schedule::{Candidate, Drafter, Drafting, Facts, Schedule};
use forerun_core::DraftShape;

/// The mean number of sequences from which on they compete for rows.
const TWO_SEQUENCES: f64 = 1.5;
/// The share of the time of a pass of the target alone that a sequence may be spared at most, if
/// its drafts are worse than those of others.
const MOST_REBATE: f64 = 0.5;

/// What happened in the present step of a schedule that drafts ahead.
#[derive(Clone, Debug, Default)]
pub(super) struct Step {
    /// The number of drafted tokens, if drafts were requested.
    pub(super) drafted: Option<usize>,
    /// Whether a job also read tokens that its replica had missed.
    pub(super) has_read: bool,
    /// The time of the target's jobs.
    pub(super) busy_ns: f64,
}

/// The present cycle of a schedule that drafts ahead, from one rejection to the next.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cycle {
    ns: f64,
    accepted: usize,
    /// Whether it began with a rejection, and has ended with one.
    is_whole: bool,
    pub(super) has_ended: bool,
}

impl State {
    /// Takes note of tokens that all drafters but one, which has worked, have not read, and what
    /// one place shows of the same model in another.
    fn count_missed(&mut self, drafter: usize, tokens: usize) {
        let worked = std::mem::take(&mut self.drafters[drafter]);
        let others = self.drafters.iter_mut().enumerate().filter(|(index, _)| *index != drafter);
        for (_, other) in others {
            if other.model == worked.model {
                other.acceptance.clone_from(&worked.acceptance);
                other.confidence.clone_from(&worked.confidence);
                other.costs.adopt(&worked.costs);
            } else {
                other.acceptance.forget(tokens);
                other.untested += tokens;
            }
            other.costs.lag += tokens;
        }
        self.drafters[drafter] = worked;
    }

    /// Learns from a round of draft-then-verify.
    pub(super) fn observe_round(&mut self, entry: usize, round: &Round) {
        let drafter = self.entries[entry].drafter;
        let has_draft = round.has_draft();
        self.plan.has_begun = true;
        if let Schedule::Rounds(rounds) = &mut self.entries[entry].schedule {
            rounds.learn(round);
        }
        self.learn_confidence(entry, round);
        let Drafter { costs, acceptance, .. } = &mut self.drafters[drafter];
        let last_ns = self.last_ns.replace(round.score.finished_ns);
        let tokens = round.accepted + 1;
        let lag = if round.requested { std::mem::take(&mut costs.lag) } else { 0 };
        // A lookup in place of a draft is a part of the drafter's usual work.
        let is_usual = round.looked_up && costs.lag == 0 && self.plan.of(entry).is_some();
        if !(round.requested || is_usual) {
            costs.lag += tokens;
        }
        if std::mem::take(&mut self.is_first_step) {
            self.ended_ns = round.ended_ns;
            return self.count_missed(drafter, tokens);
        }
        acceptance.observe_round(round);
        let is_first_reading = !costs.knows_reading();
        if round.requested {
            costs.learn(round.draft_size(), &round.draft, lag, false);
        }
        let draft_ns = costs.batch.share_of(&round.draft);
        self.target.learn(round.drafted + 1, &round.score, false);
        self.drafters[drafter].costs.batch.adopt_load(&self.target.batch);
        self.expect_costs();
        let waited_ns = last_ns.map_or(0, |last_ns| round.waited_ns(last_ns)) as f64;
        if !has_draft {
            self.target.learn_waiting(waited_ns);
        }
        let rent_ns = self.target.rent_ns;
        let ns = draft_ns + self.target.batch.share_of(&round.score) + waited_ns + rent_ns;
        let lag_ns = match lag >= READ_TOKENS {
            // What reading costs was not known.
            true if is_first_reading => draft_ns,
            true => self.drafters[drafter].costs.reading_ns(lag).min(ns),
            false => 0.0,
        };
        let expected_ns = self.expected_ns(entry, round.drafted, round.size());
        let ns = self.interruptions.filter(ns - lag_ns, expected_ns);
        self.goodput.add(tokens, ns - rent_ns);
        if has_draft
            && lag == 0
            && let Some(expected_ns) = expected_ns
            && !self.plan.is_trial()
        {
            self.entries[entry].pace.add(ns, expected_ns);
        }
        let kind = match has_draft {
            true => Kind::Drafted,
            // The target has worked alone, after a drafter that found nothing.
            false if round.requested && !round.looked_up && draft_ns > 0.0 => {
                Kind::Empty(draft_ns.min(ns))
            }
            false => Kind::Alone,
        };
        self.ledger.add_catch_up(lag_ns);
        let untested = &mut self.drafters[drafter].untested;
        *untested = if has_draft { 0 } else { *untested + tokens };
        match round.drafted > 0 {
            true => self.count_drafting(ns + lag_ns),
            false => self.since_plain = (0, 0.0),
        }
        self.count_missed(drafter, tokens);
        self.learn_rent();
        self.end_step(tokens, ns, round.ended_ns, kind);
    }

    /// Charges a round for the tokens that the others would have committed in its place. At this
    /// rent, what is drafted now is as fast as all sequences together. What is faster gives all of
    /// them more tokens per second.
    fn learn_rent(&mut self) {
        self.target.rent_ns = 0.0;
        let (Some(speed), Some(plain_ns)) = (self.goodput.speed(), self.target.plain_share())
        else {
            return;
        };
        if self.target.batch.load() < TWO_SEQUENCES {
            return;
        }
        let (tokens, ns) = match &self.plan.action {
            Some((entry, Candidate { draft, .. })) => {
                let of_entry = self.entries[*entry].schedule.of(self.facts(*entry), draft);
                let candidate = self.paced(*entry, of_entry);
                (candidate.tokens, candidate.ns)
            }
            None => (1.0, plain_ns),
        };
        self.target.rent_ns = (tokens / speed - ns).max(-MOST_REBATE * plain_ns);
    }

    /// Learns from the confidences of a chain that could stop by them.
    fn learn_confidence(&mut self, entry: usize, round: &Round) {
        let planned = self.plan.of(entry).map(|candidate| &candidate.draft);
        if let Some(Drafting::Round(DraftShape::ConfidentChain { length, stop })) = planned
            && round.requested
            && round.has_draft()
        {
            let rule = (!self.plan.is_trial()).then_some(*stop);
            let confidence = &mut self.drafters[self.entries[entry].drafter].confidence;
            confidence.observe((*length, rule), &round.confidences, round.accepted, round.rejected);
        }
    }

    /// Counts a step with drafts since the target last worked alone.
    fn count_drafting(&mut self, ns: f64) {
        let (steps, before_ns) = self.since_plain;
        self.since_plain = (steps + 1, before_ns + ns);
    }

    /// Expects slow drafters to take as long as the target's time and the sizes of the models say.
    pub(super) fn expect_costs(&mut self) {
        let plain_ns = self.target.plain_ns();
        self.drafters.iter_mut().for_each(|drafter| drafter.costs.expect(plain_ns));
    }

    /// Returns the expected time of a round with a draft of this size; `None` if it is not known.
    fn expected_ns(&self, entry: usize, drafted: usize, size: DraftSize) -> Option<f64> {
        let Facts { target, drafter } = self.facts(entry);
        target.plain_share()?;
        if drafted > target.most_rows() || drafted > 0 && !drafter.costs.is_known() {
            return None;
        }
        let draft_ns =
            if drafted > 0 { drafter.costs.drafts(size.depth, false).ns(size) } else { 0.0 };
        Some(draft_ns + target.passes(drafted, false, false).ns(drafted as f64))
    }

    /// Learns that a step of a schedule that drafts ahead has ended.
    pub(super) fn observe_step(&mut self, entry: usize, tokens: usize, now_ns: u64, alone: bool) {
        let Step { drafted, has_read, busy_ns } = std::mem::take(&mut self.step);
        // Its times are those on the clock, and no shares.
        self.target.rent_ns = 0.0;
        let drafter = self.entries[entry].drafter;
        let Drafter { costs, untested, .. } = &mut self.drafters[drafter];
        match drafted {
            _ if alone => costs.lag += tokens,
            Some(_) => costs.lag = 0,
            // It reads what it has missed.
            None => {}
        }
        *untested = if drafted > Some(0) { 0 } else { *untested + tokens };
        self.plan.has_begun |= alone || drafted.is_some();
        self.count_missed(drafter, tokens);
        let last_ns = self.last_ns.replace(now_ns);
        if std::mem::take(&mut self.is_first_step) {
            self.ended_ns = now_ns;
            return;
        }
        let Some(last_ns) = last_ns else { return };
        // The target has read text, which says nothing of speeds.
        if has_read && alone {
            return;
        }
        let ns = now_ns.saturating_sub(last_ns) as f64;
        let usual_ns = match alone {
            true => self.target.plain_share(),
            false => self.step_ns.value().map(|usual_ns| {
                let most = self.target.most_rows();
                usual_ns.max(self.target.passes(most, true, false).ns(most as f64))
            }),
        };
        let waited_ns = ns - busy_ns;
        let ns = self.interruptions.filter(ns, usual_ns);
        let kind = match alone {
            true => {
                // Otherwise, something else took the time.
                let is_usual = (0.0..busy_ns).contains(&waited_ns);
                self.target.learn_waiting(if is_usual { waited_ns } else { 0.0 });
                self.since_plain = (0, 0.0);
                Kind::Alone
            }
            false => {
                self.step_ns.add(ns);
                self.count_drafting(ns);
                self.entries[entry].steps = self.entries[entry].steps.saturating_add(1);
                self.learn_pace(entry, tokens, ns);
                let is_empty = drafted == Some(0) && self.plan.is_trial();
                if is_empty { Kind::Empty(0.0) } else { Kind::Drafted }
            }
        };
        self.end_step(tokens, ns, now_ns, kind);
    }

    /// Compares the time of a cycle, when it has ended, with the closed form.
    fn learn_pace(&mut self, entry: usize, tokens: usize, ns: f64) {
        self.cycle.ns += ns;
        self.cycle.accepted += tokens;
        if !std::mem::take(&mut self.cycle.has_ended) {
            return;
        }
        let Cycle { ns, accepted, is_whole, .. } = self.cycle;
        if let Some(Candidate { draft, .. }) = self.plan.of(entry).filter(|_| is_whole) {
            let (facts, schedule) = (self.facts(entry), &self.entries[entry].schedule);
            let expected_ns = schedule.cycle_ns(facts, draft, accepted.saturating_sub(1));
            if expected_ns > 0.0 {
                self.entries[entry].pace.add(ns, expected_ns);
            }
        }
        self.cycle = Cycle { is_whole: true, ..Cycle::default() };
    }
}
