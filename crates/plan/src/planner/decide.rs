//! The rule: what is expected to be the fastest, or a trial of what might be faster.

use super::State;
use super::plan::{Plan, Reason};
use super::trial::Rival;
use crate::schedule::{Assumption, Candidate};

/// The factor by which drafting in rounds must be faster than the target alone to begin: reading
/// what was missed comes first.
const MIN_GAIN: f64 = 1.005;
/// The factor by which something must be faster than what is drafted now, and drafting ahead than
/// the target alone. A change costs the drafts in flight, so chance must not cause it.
pub(super) const MIN_GAIN_OF_CHANGE: f64 = 1.03;
/// The number of tokens in which a change must pay for its start: about an answer.
const HORIZON_OF_CHANGE: f64 = 256.0;
/// The number of steps for which a method that drafts ahead is tried, or pauses: decisions take
/// time, in which a small target could go on.
pub(super) const STEPS_AHEAD: u32 = 8;
/// The number of steps with drafts, at least, after which the target works alone, to measure the
/// speed to beat. One step in 25 is one of 20 that count (`DECAY`).
const PLAIN_EVERY: u32 = 24;
/// The share of the time since then that such a step may lose: drafts that double the speed are
/// interrupted every 330 tokens.
const PLAIN_SHARE: f64 = 0.003;
/// The number of such steps after drafting ahead, whose jobs in flight end in the first one.
const PLAIN_STEPS: u32 = 3;

impl State {
    /// Decides what to do in the next step.
    pub(super) fn decide(&self) -> Plan {
        let Some(plain_ns) = self.plain_ns() else { return Plan::measure(1) };
        let alone = Rival { drafting: None, token_ns: plain_ns, plain_ns };
        let Some((entry, best)) = self.fastest() else {
            return self.trial(alone).unwrap_or(Plan::alone(Reason::TargetIsFaster));
        };
        let can_pause = self.can_pause();
        let objection = if can_pause { self.objection(entry, &best, plain_ns) } else { None };
        let drafting = Rival { drafting: Some(entry), token_ns: 1.0 / best.speed(), plain_ns };
        if can_pause && matches!(objection, None | Some(Reason::ReadingCosts)) {
            let steps = if self.is_in_rounds(entry) { 1 } else { PLAIN_STEPS };
            if self.may_measure_plain(f64::from(steps) * (plain_ns - drafting.token_ns)) {
                return Plan::measure(steps);
            }
        }
        match objection {
            None => self.trial(drafting).unwrap_or(Plan::draft(entry, best)),
            Some(reason) => self.trial(alone).unwrap_or(Plan::alone(reason)),
        }
    }

    /// Returns whether the target may work alone. Fixed drafts never pause.
    fn can_pause(&self) -> bool {
        self.entries.iter().all(|entry| entry.schedule.adapts())
    }

    /// Returns the time of a token of the target alone, if it is known well enough.
    fn plain_ns(&self) -> Option<f64> {
        self.target.plain_share().filter(|_| self.target.has_settled() || !self.can_pause())
    }

    /// Returns the schedule that is expected to be the fastest, with what it drafts, of those about
    /// which enough is known.
    fn fastest(&self) -> Option<(usize, Candidate)> {
        let known = self.entries().filter(|&entry| self.is_known(entry));
        let usual = known.map(|entry| (entry, self.best(entry, Assumption::Usual)));
        usual.max_by(|(a, first), (b, second)| {
            self.speed_with_start(*a, first).total_cmp(&self.speed_with_start(*b, second))
        })
    }

    /// Returns why the target is to work alone although a schedule is the fastest one that drafts;
    /// `None` if it may draft.
    fn objection(&self, entry: usize, best: &Candidate, plain_ns: f64) -> Option<Reason> {
        let is_faster = best.speed() * plain_ns > self.gain_to_draft(entry);
        match is_faster {
            false => Some(Reason::TargetIsFaster),
            true if !self.ledger.may_draft(plain_ns) => Some(Reason::HasLost),
            true => (!self.may_start(entry, plain_ns)).then_some(Reason::ReadingCosts),
        }
    }

    /// Returns whether the costs and the acceptance of a schedule's drafter are known and, if there
    /// are others, what drafting ahead costs.
    fn is_known(&self, entry: usize) -> bool {
        let has_worked = self.entries.len() == 1
            || self.is_in_rounds(entry)
            || self.entries[entry].steps >= STEPS_AHEAD;
        let drafter = self.facts(entry).drafter;
        has_worked && drafter.costs.is_known() && drafter.acceptance.is_known()
    }

    /// Returns the speed of a candidate with the time of its start.
    fn speed_with_start(&self, entry: usize, candidate: &Candidate) -> f64 {
        let token_ns = 1.0 / candidate.speed();
        match self.plan.of(entry) {
            Some(_) => MIN_GAIN_OF_CHANGE / token_ns,
            None => 1.0 / (token_ns + self.start_ns(entry, false) / HORIZON_OF_CHANGE),
        }
    }

    /// Returns the factor by which a schedule must be faster than the target alone.
    fn gain_to_draft(&self, entry: usize) -> f64 {
        match self.is_in_rounds(entry) {
            true if self.facts(entry).drafter.costs.lag > 0 => MIN_GAIN,
            true => 1.0,
            false if self.plan.of(entry).is_some() => 1.0 / MIN_GAIN_OF_CHANGE,
            false => MIN_GAIN_OF_CHANGE,
        }
    }

    /// Returns whether a drafter may read what it has missed.
    fn may_start(&self, entry: usize, plain_ns: f64) -> bool {
        let start_ns = self.start_ns(entry, false);
        let certain = self.best(entry, Assumption::Certain).speed() * plain_ns;
        start_ns < 2.0 * plain_ns || self.ledger.may_catch_up(start_ns, certain, plain_ns)
    }

    /// Returns whether a measurement of the target alone is due that loses so much time.
    pub(crate) fn may_measure_plain(&self, lost_ns: f64) -> bool {
        let (steps, ns) = self.since_plain;
        steps >= PLAIN_EVERY && lost_ns <= PLAIN_SHARE * ns
    }
}
