//! What methods see of the planner: what to draft, and where to report what happened.

use super::State;
use super::entry::Entry;
use super::plan::Plan;
use crate::costs::READ_TOKENS;
use crate::ranked_tree::DraftSize;
use crate::round::Round;
use crate::schedule::{Drafter, Drafting, Facts, Schedule};
use crate::speculative::Rounds;
use crate::{JobTime, SharedGoodput};
use forerun_core::trace::Decision;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A method's place among the schedules of a planner. A clone is a place in a copy of the planner.
#[derive(Debug)]
pub struct Planned {
    state: Arc<Mutex<State>>,
    entry: usize,
}

impl Clone for Planned {
    fn clone(&self) -> Self {
        let state = self.lock().clone();
        Self { state: Arc::new(Mutex::new(state)), entry: self.entry }
    }
}

impl Planned {
    /// Creates a planner with a single schedule.
    pub(crate) fn alone(schedule: Schedule) -> Self {
        let state = State {
            drafters: vec![Drafter::default()],
            entries: vec![Entry::new(schedule)],
            plan: Plan::measure(1),
            is_first_step: true,
            ..State::default()
        };
        Self { state: Arc::new(Mutex::new(state)), entry: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins the planner of other methods. `model`: a number of its drafter;
    /// `place`: the device of the drafter, which has costs of its own.
    pub fn join(&mut self, others: &Self, model: usize, place: usize) {
        let own = self.lock().clone();
        let mut state = others.lock();
        let known = state.drafters.iter().position(|it| (it.model, it.place) == (model, place));
        let drafter = known.unwrap_or_else(|| {
            let drafter = own.drafters[own.entries[self.entry].drafter].clone();
            state.drafters.push(Drafter { model, place, ..drafter });
            state.drafters.len() - 1
        });
        state.entries.push(Entry { drafter, ..own.entries[self.entry].clone() });
        let entry = state.entries.len() - 1;
        drop(state);
        *self = Self { state: Arc::clone(&others.state), entry };
    }

    /// Sets the numbers of its drafter and of the drafter's device.
    pub fn set_drafter(&mut self, model: usize, place: usize) {
        self.with_drafter(|drafter| (drafter.model, drafter.place) = (model, place));
    }

    /// Decides by the goodput of all sequences with the same `goodput`.
    pub(crate) fn set_goodput(&self, goodput: SharedGoodput) {
        self.lock().goodput = goodput;
    }

    /// Goes on in the same planner as another method, with which it was before.
    pub fn share(&mut self, others: &Self) {
        self.state = Arc::clone(&others.state);
    }

    /// Returns the index of the method that is to work; `None` if the target is to work alone, so
    /// that any may. The first prompt is for one whose drafter reads it while the target does.
    #[must_use]
    pub fn working(&self) -> Option<usize> {
        let state = self.lock();
        let reads_prompt = || (0..state.entries.len()).find(|&entry| state.reads_prompt(entry));
        state.turns.map(|(_, turn)| turn).or(state.plan.entry()).or_else(reads_prompt)
    }

    /// Excludes its drafter from the rest of the answer, because it has failed.
    pub fn exclude(&self) {
        let mut state = self.lock();
        let drafter = state.entries[self.entry].drafter;
        let same = state.entries.iter_mut().filter(|entry| entry.drafter == drafter);
        same.for_each(|entry| entry.has_failed = true);
    }

    /// From now on, methods take turns of `steps` steps. Their speeds do not matter.
    pub fn take_turns(&self, steps: u32) {
        self.lock().turns = Some((steps, 0));
    }

    /// Reads the planner's state. The index is that of this method's schedule.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&State, usize) -> T) -> T {
        read(&self.lock(), self.entry)
    }

    pub(crate) fn with_facts<T>(&self, read: impl FnOnce(Facts<'_>) -> T) -> T {
        read(self.lock().facts(self.entry))
    }

    pub(crate) fn with_schedule<T>(&self, change: impl FnOnce(&mut Schedule) -> T) -> T {
        change(&mut self.lock().entries[self.entry].schedule)
    }

    pub(crate) fn with_rounds<T: Default>(&self, change: impl FnOnce(&mut Rounds) -> T) -> T {
        self.with_schedule(|schedule| match schedule {
            Schedule::Rounds(rounds) => change(rounds),
            _ => T::default(),
        })
    }

    fn with_drafter<T>(&self, change: impl FnOnce(&mut Drafter) -> T) -> T {
        let mut state = self.lock();
        let drafter = state.entries[self.entry].drafter;
        change(&mut state.drafters[drafter])
    }

    /// Returns what this method is to draft; `None` if it is to use the target alone, or another
    /// method works.
    pub(crate) fn draft(&self) -> Option<Drafting> {
        self.with(|state, entry| state.plan.of(entry).map(|candidate| candidate.draft.clone()))
    }

    pub(crate) fn observe_round(&self, round: &Round) {
        self.lock().observe_round(self.entry, round);
    }

    /// Learns the time of a score job of `rows` rows of a method that drafts while it verifies.
    /// `while_drafting`: whether other jobs ran at the same time.
    pub fn observe_score(&self, rows: usize, time: &JobTime, while_drafting: bool) {
        let mut state = self.lock();
        if state.is_first_step {
            return;
        }
        let own_rows = time.cost.own_rows.checked_div(time.cost.passes).unwrap_or(0) as usize;
        let read = (time.cost.own_rows as usize).saturating_sub(rows);
        state.step.has_read |= read > 0;
        state.step.busy_ns += time.duration_ns as f64;
        state.target.learn_reading(read, time);
        if read < READ_TOKENS {
            state.target.learn(rows.max(own_rows), time, while_drafting);
        }
        state.expect_costs();
    }

    /// Learns how long such a method's draft job of `tokens` tokens took.
    pub fn observe_draft(&self, tokens: usize, time: &JobTime) {
        *self.lock().step.drafted.get_or_insert(0) += tokens;
        self.with_drafter(|Drafter { costs, .. }| {
            let lag = std::mem::take(&mut costs.lag);
            // A token or two of a pause cost no noticeable time.
            let lag = if lag <= 2 { 0 } else { lag };
            costs.learn(DraftSize::of_chain(tokens), time, lag, true);
        });
    }

    /// Learns from a verdict on such a drafter's tokens. `tested`: the positions of the tested
    /// tokens in the jobs that drafted them, from 0. All but a rejected last one were accepted.
    /// `further`: the number of tokens that were committed after the accepted ones. After them the
    /// drafter starts afresh.
    pub fn observe_verdict(&self, tested: &[usize], rejected: bool, further: usize) {
        self.with_drafter(|Drafter { acceptance, .. }| {
            let accepted = tested.len() - usize::from(rejected && !tested.is_empty());
            acceptance.observe(tested.iter().copied(), accepted);
            acceptance.skip(further.saturating_sub(usize::from(rejected)));
        });
        self.lock().cycle.has_ended |= further > 0;
    }

    /// Learns that a step of such a method has committed `tokens` tokens at `now_ns`, on the
    /// cluster's clock. `alone`: whether the target had neither drafts nor a drafter that ran at the
    /// same time.
    pub fn observe_step(&self, tokens: usize, now_ns: u64, alone: bool) {
        self.lock().observe_step(self.entry, tokens, now_ns, alone);
    }

    /// Returns what was decided in this answer, and why, in the order of the steps. Fixed drafts
    /// have no reasons.
    #[must_use]
    pub fn decisions(&self) -> Vec<Decision> {
        let state = self.lock();
        match state.entries[self.entry].schedule.adapts() {
            true => state.decisions.clone(),
            false => Vec::new(),
        }
    }
}

/// A policy that follows a planner.
pub trait Policy: Clone {
    /// Returns its place in the planner.
    fn planned(&mut self) -> &mut Planned;

    /// Returns a copy for a new answer after a prompt of `prompt_tokens` tokens, which keeps the
    /// learned times and acceptance.
    #[must_use]
    fn for_new_answer(&self, prompt_tokens: usize) -> Self {
        let mut next = self.clone();
        next.planned().lock().begin_answer(prompt_tokens);
        next
    }

    /// Returns the policy for a drafter that makes `tokens` tokens in one forward (ParallelSpec,
    /// PARD).
    #[must_use]
    fn with_tokens_per_forward(mut self, tokens: usize) -> Self {
        self.planned().with_drafter(|drafter| drafter.costs.tokens_per_forward = tokens);
        self
    }

    /// Returns the policy for a drafter whose forward takes so many passes of the target by the
    /// sizes of the models. An automatic length does not try a slow one to learn that.
    #[must_use]
    fn with_expected_passes(mut self, passes: Option<f64>) -> Self {
        self.planned().with_drafter(|drafter| drafter.costs.expect_passes(passes));
        self
    }
}
