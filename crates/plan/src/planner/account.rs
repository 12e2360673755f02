//! The end of a step: its account, and what comes next.

use super::State;
use super::decide::STEPS_AHEAD;
use super::learn::Cycle;
use super::plan::{Plan, Reason};
use super::trial::HOPELESS;
use crate::ledger::TRIAL_PASSES;
use crate::schedule::Assumption;
use forerun_core::trace::Decision;

/// How a step got its tokens.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// By the target alone, or by guesses from earlier text.
    Alone,
    Drafted,
    /// By the target alone after a drafter that found nothing in so many nanoseconds.
    Empty(f64),
}

impl State {
    /// Accounts for a step of `tokens` tokens that took `ns` and ended at `now_ns`, and decides
    /// about the next one.
    pub(super) fn end_step(&mut self, tokens: usize, ns: f64, now_ns: u64, kind: Kind) {
        self.record_decision(now_ns);
        let plain_ns = self.target.plain_share().unwrap_or(ns / tokens.max(1) as f64);
        let lost_ns = match kind {
            Kind::Alone => {
                self.ledger.add_alone(ns);
                0.0
            }
            Kind::Empty(draft_ns) => {
                self.ledger.add_drafting(ns, ns - draft_ns);
                draft_ns
            }
            Kind::Drafted => {
                self.ledger.add_drafting(ns, tokens as f64 * plain_ns);
                ns - tokens as f64 * self.plan.rival_ns
            }
        };
        if self.plan.is_trial() {
            match self.plan.has_begun {
                true => self.ledger.add_trial(lost_ns),
                false => self.ledger.add_catch_up(lost_ns.max(0.0)),
            }
        }
        self.plan.lost_ns += lost_ns;
        let is_paused = self.plan.action.is_none() && self.plan.reason != Reason::MeasuresTarget;
        self.paused_steps = if is_paused { self.paused_steps.wrapping_add(1) } else { 0 };
        let is_ahead = !self.entries.iter().any(|entry| entry.schedule.is_in_rounds());
        let decides = self.paused_steps.is_multiple_of(STEPS_AHEAD) || self.plan.steps > 0;
        if !is_ahead || decides {
            self.decide_next(plain_ns, matches!(kind, Kind::Empty(_)));
        }
    }

    /// Records what was decided for a step that has ended at `now_ns`.
    fn record_decision(&mut self, now_ns: u64) {
        let (reason, start_ns) = (self.plan.reason.words(), self.ended_ns);
        self.ended_ns = now_ns;
        match self.decisions.last_mut() {
            Some(last) if last.reason == reason => {
                (last.steps, last.end_ns) = (last.steps + 1, now_ns);
            }
            _ => self.decisions.push(Decision {
                reason: reason.to_owned(),
                drafts: self.plan.action.is_some(),
                steps: 1,
                start_ns,
                end_ns: now_ns,
            }),
        }
    }

    /// Decides about the next step, unless a measurement or a trial goes on.
    fn decide_next(&mut self, plain_ns: f64, is_empty: bool) {
        if let [entry] = self.entries.as_slice()
            && !entry.schedule.adapts()
        {
            return;
        }
        self.count_turn();
        if self.plan.action.is_none() && self.plan.steps > 0 {
            self.plan.steps -= 1;
            return;
        }
        let next = self.decide();
        let Some(entry) = self.plan.entry().filter(|_| self.plan.is_trial()) else {
            return self.begin(next);
        };
        let goes_on = next.of(entry).is_some() && !next.is_trial();
        let has_lost = self.plan.lost_ns > TRIAL_PASSES * plain_ns;
        if goes_on || has_lost || is_empty || self.plan.steps == 0 {
            if !self.is_in_rounds(entry) {
                // One that ends before it has begun would have lost more.
                let factor = if self.plan.has_begun { 1.0 } else { HOPELESS };
                self.entries[entry].trial_ns = factor * self.plan.lost_ns.max(0.0);
            }
            return self.begin(next);
        }
        self.plan.action = Some((entry, self.best(entry, Assumption::Easy)));
        self.plan.steps -= u32::from(self.plan.has_begun);
    }

    /// Does as planned from now on.
    fn begin(&mut self, plan: Plan) {
        if plan.entry() != self.plan.entry() {
            self.cycle = Cycle::default();
            // Rounds count what reading takes when it happens.
            if let Some(next) = plan.entry().filter(|&next| !self.is_in_rounds(next)) {
                self.ledger.add_catch_up(self.start_ns(next, false));
            }
        }
        self.plan = plan;
    }

    /// Ends a step of a turn, if schedules take turns.
    fn count_turn(&mut self) {
        let Some((steps, turn)) = self.turns else { return };
        self.turn_steps += 1;
        if self.turn_steps < steps && !self.entries[turn].has_failed {
            return;
        }
        self.turn_steps = 0;
        let count = self.entries.len();
        let mut others = (1..=count).map(|after| (turn + after) % count);
        let next = others.find(|&other| !self.entries[other].has_failed);
        self.turns = Some((steps, next.unwrap_or(turn)));
        self.plan = self.decide();
    }
}
