//! Decides what to draft next: one rule for all methods and drafters.
//!
//! A method is a [`Schedule`] whose closed form says how fast it is, from what is known of costs
//! and acceptance. After each step, the planner takes the fastest of all, or the target alone. What
//! the estimates do not know is taken at its best: an action that would then be faster is tried, if
//! the [`Ledger`] affords what the trial is expected to lose. So to pause, to try again, to try more
//! rows or another drafter, and to change the method are one decision.

use crate::JobTime;
use crate::costs::{READ_TOKENS, TargetCosts};
use crate::decaying::{CHAIN_DECAY, DecayingMean};
use crate::interruptions::Interruptions;
use crate::ledger::{Ledger, TRIAL_PASSES};
use crate::ranked_tree::DraftSize;
use crate::round::Round;
use crate::schedule::{Assumption, Candidate, Drafter, Drafting, Facts, Schedule};
use crate::speculative::Rounds;
use forerun_core::DraftShape;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The factor by which drafting must be faster than the target alone to begin, and by which a trial
/// or another schedule must be faster than the present one.
const MIN_GAIN: f64 = 1.005;
const MIN_GAIN_OF_CHANGE: f64 = 1.03;
/// Drafters are tried in the order of the time for which they were not tested, in so many tokens.
const UNTESTED_TOKENS: usize = 64;
/// The number of tokens in which a change must pay for its start.
const HORIZON_OF_CHANGE: f64 = 256.0;
/// The number of steps for which a method that drafts ahead is tried, or pauses: decisions take
/// time, in which a small target could go on.
const STEPS_AHEAD: u32 = 8;
/// A drafter that cannot pay however right it is is tried as if a trial cost so many times as much.
const HOPELESS: f64 = 3.0;
/// The speedup that the ledger expects of a trial at least: estimates may be out of date.
const LEAST_SPEEDUP: f64 = 1.125;
/// The number of steps with drafts, at least, after which the target works alone, to measure the
/// speed to beat, and of windows of what is faster together, after which the other is measured; and
/// the share of the time since then that a step may lose.
pub(crate) const PLAIN_EVERY: u32 = 24;
const PLAIN_SHARE: f64 = 0.003;
/// The number of such steps after drafting ahead, whose jobs in flight end in the first one.
const PLAIN_STEPS: u32 = 3;
/// The number of cycles that a closed form is worth.
const FORM_CYCLES: f64 = 8.0;

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

#[derive(Clone, Debug)]
struct Entry {
    schedule: Schedule,
    /// The index of its drafter.
    drafter: usize,
    /// Whether its drafter has failed in the present answer.
    has_failed: bool,
    pace: Pace,
    /// The number of steps in which it has drafted ahead.
    steps: u32,
    /// The time that its last trial has lost.
    trial_ns: f64,
}

/// How long cycles take, compared with the closed form.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    measured_ns: f64,
    expected_ns: f64,
    cycles: f64,
}

impl Pace {
    fn add(&mut self, measured_ns: f64, expected_ns: f64) {
        self.measured_ns = self.measured_ns * CHAIN_DECAY + measured_ns;
        self.expected_ns = self.expected_ns * CHAIN_DECAY + expected_ns;
        self.cycles = self.cycles * CHAIN_DECAY + 1.0;
    }

    fn factor(&self) -> f64 {
        if self.expected_ns <= 0.0 {
            return 1.0;
        }
        let measured = self.measured_ns / self.expected_ns;
        (measured * self.cycles + FORM_CYCLES) / (self.cycles + FORM_CYCLES)
    }
}

/// What to do next, and why.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// The schedule, and what it drafts; `None` for the target alone.
    pub(crate) action: Option<(usize, Candidate)>,
    reason: Reason,
    /// The number of further steps for which nothing is decided, or a trial goes on.
    steps: u32,
    /// The time of a token otherwise, if this is a trial, and the time that it has lost.
    rival_ns: f64,
    lost_ns: f64,
    /// Whether a draft has arrived. A trial that drafts ahead lasts for some steps after that.
    has_begun: bool,
}

/// Why the planner drafts, or does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    #[default]
    TargetIsFaster,
    Fastest,
    Trial,
    MeasuresTarget,
    HasLost,
    ReadingCosts,
}

/// The steps of an answer for which the planner decided the same for one reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decisions {
    /// The reason in words.
    pub reason: String,
    /// Whether drafts were made; otherwise the target worked alone.
    pub drafts: bool,
    /// The number of steps.
    pub steps: u64,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TargetIsFaster => "no draft is expected to be faster than the target alone",
            Self::Fastest => "drafting is expected to be the fastest",
            Self::Trial => "it is tried whether this is faster",
            Self::MeasuresTarget => "the speed of the target alone is measured",
            Self::HasLost => "drafting has lost more time than it may",
            Self::ReadingCosts => "the drafter would have to read for too long",
        })
    }
}

impl Plan {
    fn draft(entry: usize, candidate: Candidate) -> Self {
        Self { action: Some((entry, candidate)), reason: Reason::Fastest, ..Self::default() }
    }

    /// Measures the target alone for so many steps.
    fn measure(steps: u32) -> Self {
        Self { reason: Reason::MeasuresTarget, steps: steps - 1, ..Self::default() }
    }

    /// Returns what a schedule drafts, if it is the one that does.
    pub(crate) fn of(&self, entry: usize) -> Option<&Candidate> {
        self.action.as_ref().filter(|(at, _)| *at == entry).map(|(_, candidate)| candidate)
    }

    /// Returns the schedule that drafts.
    fn entry(&self) -> Option<usize> {
        self.action.as_ref().map(|(entry, _)| *entry)
    }

    pub(crate) fn is_trial(&self) -> bool {
        self.reason == Reason::Trial
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) target: TargetCosts,
    drafters: Vec<Drafter>,
    entries: Vec<Entry>,
    pub(crate) ledger: Ledger,
    pub(crate) plan: Plan,
    /// The number of steps of the present answer by their reasons.
    decisions: BTreeMap<Reason, u64>,
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

/// What happened in the present step of a schedule that drafts ahead.
#[derive(Clone, Debug, Default)]
struct Step {
    /// The number of drafted tokens, if drafts were requested.
    drafted: Option<usize>,
    /// Whether a job also read tokens that its replica had missed.
    has_read: bool,
    /// The time of the target's jobs.
    busy_ns: f64,
}

/// The present cycle.
#[derive(Clone, Copy, Debug, Default)]
struct Cycle {
    ns: f64,
    accepted: usize,
    /// Whether it began with a rejection, and has ended with one.
    is_whole: bool,
    has_ended: bool,
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

    /// Returns what a schedule would draft.
    fn best(&self, entry: usize, assume: Assumption) -> Candidate {
        let current = self.plan.of(entry).map(|candidate| &candidate.draft);
        self.paced(entry, self.entries[entry].schedule.best(self.facts(entry), assume, current))
    }

    fn start_ns(&self, entry: usize, guess: bool) -> f64 {
        self.entries[entry].schedule.start_ns(self.facts(entry), guess).max(0.0)
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

    /// Returns the factor by which a schedule must be faster than the target alone. To begin and to
    /// end drafting ahead costs the drafts in flight, so chance must not cause it.
    fn gain_to_draft(&self, entry: usize) -> f64 {
        match self.is_in_rounds(entry) {
            true if self.facts(entry).drafter.costs.lag > 0 => MIN_GAIN,
            true => 1.0,
            false if self.plan.of(entry).is_some() => 1.0 / MIN_GAIN_OF_CHANGE,
            false => MIN_GAIN_OF_CHANGE,
        }
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

    /// Decides what to do in the next step.
    fn decide(&self) -> Plan {
        let can_pause = self.entries.iter().all(|entry| entry.schedule.adapts());
        let plain_ns =
            self.target.plain_share().filter(|_| self.target.has_settled() || !can_pause);
        let Some(plain_ns) = plain_ns else { return Plan::measure(1) };
        let known = self.entries().filter(|&entry| self.is_known(entry));
        let usual = known.map(|entry| (entry, self.best(entry, Assumption::Usual)));
        let best = usual.max_by(|(a, first), (b, second)| {
            self.speed_with_start(*a, first).total_cmp(&self.speed_with_start(*b, second))
        });
        let mut reason = Reason::TargetIsFaster;
        if let Some((entry, best)) = best {
            let token_ns = 1.0 / best.speed();
            let is_faster = best.speed() * plain_ns > self.gain_to_draft(entry);
            let may_draft = is_faster && self.ledger.may_draft(plain_ns);
            let steps = if self.is_in_rounds(entry) { 1 } else { PLAIN_STEPS };
            let lost_ns = f64::from(steps) * (plain_ns - token_ns);
            if can_pause && may_draft && self.may_measure_plain(lost_ns) {
                return Plan::measure(steps);
            }
            if !can_pause || may_draft && self.may_start(entry, plain_ns) {
                let trial = self.trial(plain_ns, token_ns, Some(entry));
                return trial.unwrap_or(Plan::draft(entry, best));
            }
            reason = match (is_faster, may_draft) {
                (false, _) => Reason::TargetIsFaster,
                (true, false) => Reason::HasLost,
                (true, true) => Reason::ReadingCosts,
            };
        }
        self.trial(plain_ns, plain_ns, None).unwrap_or(Plan { reason, ..Plan::default() })
    }

    /// Returns whether a drafter may read what it has missed.
    fn may_start(&self, entry: usize, plain_ns: f64) -> bool {
        let start_ns = self.start_ns(entry, false);
        let certain = self.best(entry, Assumption::Certain).speed() * plain_ns;
        start_ns < 2.0 * plain_ns || self.ledger.may_catch_up(start_ns, certain, plain_ns)
    }

    /// Returns a trial of what would be faster at best than the usual time of a token, if the
    /// ledger affords it. `drafting`: the schedule that is used otherwise, if one drafts.
    fn trial(&self, plain_ns: f64, token_ns: f64, drafting: Option<usize>) -> Option<Plan> {
        let drafter = drafting.map(|entry| self.entries[entry].drafter);
        let candidates = self.entries().filter_map(|entry| {
            // What is drafted shows the text.
            let shows_text = drafter == Some(self.entries[entry].drafter);
            let assume = if shows_text { Assumption::Cheap } else { Assumption::Easy };
            let best = self.best(entry, assume);
            let is_faster = drafting.is_none() || best.speed() * token_ns > MIN_GAIN_OF_CHANGE;
            (is_faster && self.affords(entry, &best, plain_ns, token_ns, drafting))
                .then_some((entry, best))
        });
        // A drafter that was not tested for long comes first, and of equal ones the first.
        let untested = |entry: usize| self.facts(entry).drafter.untested / UNTESTED_TOKENS;
        let candidates: Vec<(usize, Candidate)> = candidates.collect();
        let (entry, best) = candidates.into_iter().rev().max_by(|(at, a), (other, b)| {
            untested(*at).cmp(&untested(*other)).then(a.speed().total_cmp(&b.speed()))
        })?;
        let steps = match self.is_in_rounds(entry) {
            // A first draft that reads what it has missed does not show the usual time.
            true if !self.facts(entry).drafter.costs.is_known() => 2,
            true => 1,
            false => STEPS_AHEAD,
        };
        let (reason, steps) = (Reason::Trial, steps - 1);
        let lost_ns = -self.waiting_ns(entry, plain_ns, token_ns);
        Some(Plan { reason, steps, rival_ns: token_ns, lost_ns, ..Plan::draft(entry, best) })
    }

    /// Returns what a trial that drafts ahead loses while the drafter reads and the target works
    /// alone, compared with a token in `token_ns`.
    fn waiting_ns(&self, entry: usize, plain_ns: f64, token_ns: f64) -> f64 {
        match self.is_in_rounds(entry) {
            true => 0.0,
            false => {
                self.facts(entry).drafter.costs.lag_ns() * (1.0 - token_ns / plain_ns).max(0.0)
            }
        }
    }

    fn affords(
        &self,
        entry: usize,
        trial: &Candidate,
        plain_ns: f64,
        token_ns: f64,
        drafting: Option<usize>,
    ) -> bool {
        let (of_entry, costs) = (&self.entries[entry], &self.facts(entry).drafter.costs);
        let certain = self.best(entry, Assumption::Certain).speed() * plain_ns;
        let is_hopeless = certain <= 1.0;
        // An early trial measures what reading costs while there is little to read, but enough.
        if drafting.is_none()
            && !is_hopeless
            && costs.is_known()
            && !costs.knows_reading()
            && of_entry.schedule.is_in_rounds()
            && (READ_TOKENS..4 * READ_TOKENS).contains(&costs.lag)
        {
            return true;
        }
        // To measure what reading costs is worth it if there is no other drafter.
        let guess = is_hopeless || drafting.is_some();
        let drafts_anyway = drafting == Some(entry);
        let start_ns = match drafts_anyway {
            true => 0.0,
            false => self.start_ns(entry, guess) + self.waiting_ns(entry, plain_ns, token_ns),
        };
        // What it might gain, compared with what would be done otherwise. What the estimates say
        // may be wrong or out of date, so that it may read, too, but rarely.
        let speedup = if drafting.is_none() { certain } else { trial.speed() * token_ns };
        if !self.ledger.may_catch_up(start_ns, speedup.max(LEAST_SPEEDUP), plain_ns) {
            return false;
        }
        let usual = of_entry.schedule.of(self.facts(entry), &trial.draft);
        let usual = self.paced(entry, usual);
        let loss_ns = match drafts_anyway {
            true => (usual.ns - trial.ns).max(0.0),
            false => (usual.ns - usual.tokens * token_ns).max(of_entry.trial_ns),
        };
        let loss_ns = if is_hopeless { HOPELESS * loss_ns } else { loss_ns };
        self.ledger.may_try(loss_ns, plain_ns)
    }

    /// Returns whether a measurement of the target alone is due that loses so much time.
    pub(crate) fn may_measure_plain(&self, lost_ns: f64) -> bool {
        let (steps, ns) = self.since_plain;
        steps >= PLAIN_EVERY && lost_ns <= PLAIN_SHARE * ns
    }

    /// Learns from a round of draft-then-verify.
    fn observe_round(&mut self, entry: usize, round: &Round) {
        let drafter = self.entries[entry].drafter;
        let Drafter { costs, acceptance, confidence, .. } = &mut self.drafters[drafter];
        let has_draft = round.drafted > 0 && !round.looked_up;
        self.plan.has_begun = true;
        if let Schedule::Rounds(rounds) = &mut self.entries[entry].schedule {
            rounds.learn(round);
        }
        let planned = self.plan.of(entry);
        if let Some(Drafting::Round(DraftShape::ConfidentChain { length, stop })) =
            planned.map(|candidate| &candidate.draft)
            && round.requested
            && has_draft
        {
            let rule = (!self.plan.is_trial()).then_some(*stop);
            confidence.observe((*length, rule), &round.confidences, round.accepted, round.rejected);
        }
        let last_ns = self.last_ns.replace(round.score.finished_ns);
        let tokens = round.accepted + 1;
        let lag = if round.requested { std::mem::take(&mut costs.lag) } else { 0 };
        // A lookup in place of a draft is a part of the drafter's usual work.
        if !(round.requested || round.looked_up && costs.lag == 0 && planned.is_some()) {
            costs.lag += tokens;
        }
        if std::mem::take(&mut self.is_first_step) {
            return self.count_missed(drafter, tokens);
        }
        match &round.ranked {
            _ if round.looked_up => acceptance.skip(tokens),
            Some(ranked) => acceptance.observe_ranked(&ranked.tested),
            None if has_draft => {
                let tested = round.accepted + usize::from(round.rejected);
                acceptance.observe(0..tested, round.accepted);
            }
            None => {}
        }
        if !round.rejected && !round.looked_up {
            acceptance.skip(1);
        }
        let is_first_reading = !costs.knows_reading();
        if round.requested {
            costs.learn(round.draft_size(), &round.draft, lag, false);
        }
        let draft_ns = costs.batch.share_of(&round.draft);
        self.target.learn(round.drafted + 1, &round.score, false);
        self.expect_costs();
        let waited_ns = last_ns.map_or(0, |last_ns| round.waited_ns(last_ns)) as f64;
        if !has_draft {
            self.target.learn_waiting(waited_ns);
        }
        let ns = draft_ns + self.target.batch.share_of(&round.score) + waited_ns;
        let lag_ns = match lag >= READ_TOKENS {
            // What reading costs was not known.
            true if is_first_reading => draft_ns,
            true => self.drafters[drafter].costs.reading_ns(lag).min(ns),
            false => 0.0,
        };
        let expected_ns = self.expected_ns(entry, round.drafted, round.size());
        let ns = self.interruptions.filter(ns - lag_ns, expected_ns);
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
        self.end_step(tokens, ns, kind);
    }

    fn count_drafting(&mut self, ns: f64) {
        let (steps, before_ns) = self.since_plain;
        self.since_plain = (steps + 1, before_ns + ns);
    }

    /// Expects slow drafters to take as long as the target's time and the sizes of the models say.
    fn expect_costs(&mut self) {
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

    /// Accounts for a step of `tokens` tokens, and decides about the next one.
    fn end_step(&mut self, tokens: usize, ns: f64, kind: Kind) {
        *self.decisions.entry(self.plan.reason).or_default() += 1;
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

    /// Learns that a step of a schedule that drafts ahead has ended.
    fn observe_step(&mut self, entry: usize, tokens: usize, now_ns: u64, alone: bool) {
        let Step { drafted, has_read, busy_ns } = std::mem::take(&mut self.step);
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
        self.end_step(tokens, ns, kind);
    }

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

/// How a step got its tokens.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// By the target alone, or by guesses from earlier text.
    Alone,
    Drafted,
    /// By the target alone after a drafter that found nothing in so many nanoseconds.
    Empty(f64),
}

impl Planned {
    /// Creates a planner with a single schedule.
    pub(crate) fn alone(schedule: Schedule) -> Self {
        let entry = Entry {
            schedule,
            drafter: 0,
            has_failed: false,
            pace: Pace::default(),
            steps: 0,
            trial_ns: 0.0,
        };
        let state = State {
            drafters: vec![Drafter::default()],
            entries: vec![entry],
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

    /// Returns why it drafted or did not in this answer, the most frequent reason first. Fixed
    /// drafts have none.
    #[must_use]
    pub fn decisions(&self) -> Vec<Decisions> {
        let state = self.lock();
        if !state.entries[self.entry].schedule.adapts() {
            return Vec::new();
        }
        let mut decisions: Vec<(Reason, u64)> = state.decisions.clone().into_iter().collect();
        decisions.sort_by_key(|&(_, steps)| Reverse(steps));
        let of_reason = |(reason, steps): (Reason, u64)| Decisions {
            reason: reason.to_string(),
            drafts: matches!(reason, Reason::Fastest | Reason::Trial),
            steps,
        };
        decisions.into_iter().map(of_reason).collect()
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
