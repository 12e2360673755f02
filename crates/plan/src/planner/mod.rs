//! Decides what to draft next: one rule for all methods and drafters.
//!
//! A method is a [`Schedule`](crate::schedule::Schedule) whose closed form says how fast it is,
//! from what is known of costs and acceptance. After each step, the planner takes the fastest of
//! all, or the target alone ([`decide`]). What the estimates do not know is taken at its best: an
//! action that would then be faster is tried ([`trial`]), if the [`Ledger`] affords what the trial
//! is expected to lose. So to pause, to try again, to try more rows or another drafter, and to
//! change the method are one decision.

mod account;
mod decide;
mod entry;
mod learn;
mod plan;
mod planned;
mod trial;

pub use planned::{Planned, Policy};

use crate::SharedGoodput;
use crate::costs::TargetCosts;
use crate::decaying::DecayingMean;
use crate::interruptions::Interruptions;
use crate::ledger::Ledger;
use crate::schedule::{Assumption, Candidate, Drafter, Facts};
use entry::Entry;
use forerun_core::trace::Decision;
use learn::{Cycle, Step};
use plan::Plan;

/// What is known, and what is done.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) target: TargetCosts,
    drafters: Vec<Drafter>,
    entries: Vec<Entry>,
    pub(crate) ledger: Ledger,
    goodput: SharedGoodput,
    pub(crate) plan: Plan,
    /// What was decided in the present answer after its first step, and the end of its last step.
    decisions: Vec<Decision>,
    ended_ns: u64,
    /// Whether the next step is the answer's first one, which computes the prompt.
    pub(crate) is_first_step: bool,
    /// The end of the answer's last step.
    last_ns: Option<u64>,
    /// The steps with drafts and their time since the target last worked alone.
    since_plain: (u32, f64),
    paused_steps: u32,
    /// The number of steps of a turn and the schedule whose turn it is, if they take turns, and the
    /// number of its steps so far.
    turns: Option<(u32, usize)>,
    turn_steps: u32,
    step: Step,
    cycle: Cycle,
    /// The usual times of steps that draft ahead.
    step_ns: DecayingMean,
    interruptions: Interruptions,
}

impl State {
    pub(crate) fn facts(&self, entry: usize) -> Facts<'_> {
        Facts { target: &self.target, drafter: &self.drafters[self.entries[entry].drafter] }
    }

    fn is_in_rounds(&self, entry: usize) -> bool {
        self.entries[entry].schedule.is_in_rounds()
    }

    /// Returns a candidate with the measured pace of its schedule.
    fn paced(&self, entry: usize, candidate: Candidate) -> Candidate {
        Candidate { ns: candidate.ns * self.entries[entry].pace.factor(), ..candidate }
    }

    /// Returns what a schedule would draft, at its pace.
    fn best(&self, entry: usize, assume: Assumption) -> Candidate {
        let current = self.plan.of(entry).map(|candidate| &candidate.draft);
        self.paced(entry, self.entries[entry].schedule.best(self.facts(entry), assume, current))
    }

    /// Returns the time before a schedule works at its usual speed
    /// ([`Schedule::start_ns`](crate::schedule::Schedule::start_ns)).
    fn start_ns(&self, entry: usize, guess: bool) -> f64 {
        self.entries[entry].schedule.start_ns(self.facts(entry), guess).max(0.0)
    }

    /// Returns whether a drafter that drafts ahead reads the prompt while the target does, unless
    /// earlier answers were faster without it.
    pub(crate) fn reads_prompt(&self, entry: usize) -> bool {
        self.is_first_step
            && !self.target.has_settled()
            && !self.is_in_rounds(entry)
            && !self.facts(entry).drafter.costs.is_slow_by_size()
    }

    /// Returns the schedules that may be used.
    fn entries(&self) -> impl Iterator<Item = usize> {
        let turn = self.turns.map(|(_, turn)| turn);
        let may_work = move |entry: &usize| turn.is_none_or(|turn| turn == *entry);
        (0..self.entries.len()).filter(|&entry| !self.entries[entry].has_failed).filter(may_work)
    }

    /// Begins an answer to a prompt of so many tokens. What was learned stays.
    fn begin_answer(&mut self, prompt_tokens: usize) {
        (self.is_first_step, self.last_ns) = (true, None);
        self.decisions.clear();
        self.since_plain = (0, 0.0);
        (self.step, self.cycle) = (Step::default(), Cycle::default());
        self.entries.iter_mut().for_each(|entry| entry.has_failed = false);
        self.drafters.iter_mut().for_each(|drafter| drafter.costs.lag = 0);
        // Drafting at once may pay, also if the last answer ended with a measurement.
        let next = self.decide();
        if next.action.is_some() && !next.is_trial() {
            self.plan = next;
        }
        self.drafters.iter_mut().for_each(|drafter| drafter.costs.lag = prompt_tokens);
    }
}
