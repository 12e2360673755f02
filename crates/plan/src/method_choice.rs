//! Which of several methods and drafters to use next, by predicted and measured speeds.

use crate::decaying::{DecayingMean, Speed};
use crate::interruptions::Interruptions;
use crate::knowledge::Forecast;

/// How a step of a method got its tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepKind {
    /// Nothing was drafted.
    Alone,
    /// Drafts were requested.
    Drafted,
    /// The target verified guesses from earlier text instead of drafts, which shows nothing of the
    /// method or its drafter.
    LookedUp,
}

/// Chooses the method with the least expected time of a token.
///
/// Each method predicts its time from what is known of costs and acceptance. While it is used, its
/// measured time is compared with the prediction, and the ratio corrects later ones. So a method
/// that cannot be faster is never tried. One that is expected to be faster is used, and left again
/// if it is not. Methods that predict nothing, and those that are nearly as fast, are tried now and
/// then, as far as an account of lost time allows. A method with a drafter of which nothing is
/// known predicts nothing.
#[derive(Clone, Debug)]
pub struct MethodChoice {
    candidates: Vec<Candidate>,
    current: usize,
    /// Whether the current candidate is on trial.
    is_trial: bool,
    /// Whether this trial is about a drafter of which nothing was known.
    tries_drafter: bool,
    /// The number of steps since the current candidate's turn began.
    steps: u32,
    /// The time that the current trial has lost, compared with the best other candidate.
    trial_ns: f64,
    /// The time that is left until the current candidate has read what others have committed.
    starting_ns: f64,
    /// The correction of the candidate's predictions when its turn began.
    trial_correction: f64,
    /// The time that all trials have lost.
    lost_ns: f64,
    elapsed_ns: f64,
    /// The time that was gained, compared with the target alone.
    gained_ns: f64,
    /// The end of the answer's last step, if it has had one.
    last_ns: Option<u64>,
    /// The time of a step of the present candidate.
    step_ns: DecayingMean,
    interruptions: Interruptions,
    /// The number of steps after which the next candidate works, if they take turns.
    turn_steps: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// The first candidate with the same drafter.
    first: usize,
    /// Whether its drafter has failed in the present answer, so that it is not used.
    is_excluded: bool,
    /// Its speed while it was used, and the speed that it predicted for the same steps.
    measured: Speed,
    predicted: Speed,
    /// The weight of these steps.
    weight: f64,
    /// The mean of its latest predictions.
    outlook: Speed,
    /// Whether it expects to draft, the time before it works at its usual speed, and the time of a
    /// token meanwhile.
    drafts: bool,
    start_ns: f64,
    starting_ns: f64,
    /// Whether it pauses by itself while drafts are not faster than the target alone.
    can_pause: bool,
    /// The number of its latest forecasts in which it expected to be no faster than the target
    /// alone, and the time of a token of that.
    paused_steps: u32,
    alone_ns: f64,
    /// The number of its latest steps in which nothing was drafted, because it paused by itself.
    alone_steps: u32,
    /// The time that its last trial lost.
    trial_ns: f64,
    /// The number of its turns.
    turns: u32,
}

impl Default for Candidate {
    fn default() -> Self {
        let speed = Speed::with_decay(SPEED_DECAY);
        Self {
            first: 0,
            is_excluded: false,
            measured: speed,
            predicted: speed,
            weight: 0.0,
            outlook: Speed::with_decay(OUTLOOK_DECAY),
            drafts: true,
            start_ns: 0.0,
            starting_ns: f64::INFINITY,
            can_pause: true,
            paused_steps: 0,
            alone_ns: 0.0,
            alone_steps: 0,
            trial_ns: 0.0,
            turns: 0,
        }
    }
}

/// The weight of a step's speed compared with the one after it. A change costs the drafts in
/// flight, so chance must not cause it.
const SPEED_DECAY: f64 = 0.985;
/// The weight of a step's prediction compared with the one after it.
const OUTLOOK_DECAY: f64 = 0.93;
/// The weight of a correction compared with one step later, while another candidate is used.
const CORRECTION_DECAY: f64 = 0.995;
/// The number of steps that a prediction without a correction is worth. With fewer, a few
/// rejections in a row would be taken for a slow method.
const PREDICTION_STEPS: f64 = 50.0;
/// The number of steps without drafts after which a candidate has paused, although it predicts to
/// be faster.
const ALONE_STEPS: u32 = 32;
/// The number of steps that a correction is worth after such a pause, and after a trial that has
/// lost too much.
const CERTAIN_STEPS: f64 = 200.0;
/// Steps at the beginning of a turn that do not show a candidate's speed.
const SETTLING_STEPS: u32 = 2;
/// The same of the first turn of a candidate that predicts nothing, because it measures whether to
/// draft at all.
const FIRST_SETTLING_STEPS: u32 = 20;
/// The number of forecasts without a gain after which the first candidate goes on.
const PAUSED_STEPS: u32 = 4;
/// The number of steps of a trial.
const TRIAL_STEPS: u32 = 32;
/// The number of steps between two forecasts.
const FORECAST_EVERY: u32 = 4;
/// After so many steps of a new drafter's trial, its expected time may be too long by a factor of 2. The doubt shrinks with further steps.
const DOUBTED_STEPS: f64 = 2.0;
/// A trial ends early if it has lost the time of so many tokens once its candidate has settled,
/// unless that is still expected to be the fastest: a few rejections in a row cost as much.
const TRIAL_LOSS: f64 = 8.0;
/// A trial loses the time of so many tokens at most.
const MOST_TRIAL_LOSS: f64 = 16.0;
/// The share of the time that trials may lose.
const TRIAL_SHARE: f64 = 0.01;
/// The share of what was gained that trials of unknown drafters may lose in addition.
const GAIN_SHARE: f64 = 0.02;
/// The factor by which another candidate must be faster to be used instead.
const MIN_GAIN: f64 = 1.03;
/// The number of tokens in which a change must pay for its start.
const HORIZON: f64 = 256.0;
/// Changes may lose the time of so many tokens, in addition to the share of trials, and what is
/// gained with so many tokens.
const CHANGE_LOSS: f64 = 12.0;
const GAIN_TOKENS: f64 = 24.0;

impl Candidate {
    /// Returns the expected time of a token; `None` if nothing is known.
    fn token_ns(&self) -> Option<f64> {
        match self.outlook.token_ns() {
            Some(predicted_ns) if self.drafts => Some(predicted_ns * self.correction()),
            // Without drafts it is as fast as the target alone.
            Some(predicted_ns) => Some(predicted_ns),
            None => self.measured.token_ns(),
        }
    }

    /// Returns the measured time of a token, in predicted times.
    fn correction(&self) -> f64 {
        let ratio = self.measured.token_ns().zip(self.predicted.token_ns());
        let Some(ratio) = ratio.map(|(measured, predicted)| measured / predicted) else {
            return 1.0;
        };
        (ratio * self.weight + PREDICTION_STEPS) / (self.weight + PREDICTION_STEPS)
    }

    /// Learns whether a step had no drafts. If it has decoded for long with the target alone,
    /// although it predicted to be faster, its measured speed counts more than what it predicts.
    fn observe_drafting(&mut self, is_alone: bool) {
        self.alone_steps = if is_alone && self.drafts { self.alone_steps + 1 } else { 0 };
        if self.alone_steps == ALONE_STEPS {
            self.weight = self.weight.max(CERTAIN_STEPS);
        }
    }

    /// Forgets what it has predicted, because nothing is known of its drafter any more.
    fn forget_predictions(&mut self) {
        self.outlook = Speed::with_decay(OUTLOOK_DECAY);
        (self.measured, self.predicted) =
            (Speed::with_decay(SPEED_DECAY), Speed::with_decay(SPEED_DECAY));
        (self.weight, self.turns) = (0.0, 0);
    }

    /// Returns how much of `ns` nanoseconds of its start is lost, compared with a method that takes
    /// `token_ns` for a token.
    fn start_loss_ns(&self, ns: f64, token_ns: f64) -> f64 {
        ns * (1.0 - token_ns / self.starting_ns).max(0.0)
    }

    /// Returns whether it has predicted its speed.
    fn predicts(&self) -> bool {
        self.outlook.token_ns().is_some()
    }
}

impl MethodChoice {
    /// Creates a choice between methods with these drafters, at least one. It begins with the
    /// first.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn new(drafters: &[usize]) -> Self {
        let candidate = |drafter: &usize| {
            let first = drafters.iter().position(|other| other == drafter).unwrap_or(0);
            Candidate { first, ..Candidate::default() }
        };
        let mut candidates: Vec<Candidate> = drafters.iter().map(candidate).collect();
        candidates[0].turns = 1;
        Self {
            candidates,
            current: 0,
            is_trial: false,
            tries_drafter: false,
            steps: 0,
            trial_ns: 0.0,
            starting_ns: 0.0,
            trial_correction: 1.0,
            lost_ns: 0.0,
            elapsed_ns: 0.0,
            gained_ns: 0.0,
            step_ns: DecayingMean::default(),
            interruptions: Interruptions::default(),
            last_ns: None,
            turn_steps: None,
        }
    }

    /// Returns the choice with candidates that take turns of `steps` steps, whatever their speeds.
    #[must_use]
    pub fn taking_turns(self, steps: u32) -> Self {
        Self { turn_steps: Some(steps), ..self }
    }

    /// Returns the index of the candidate that makes the next step.
    #[must_use]
    pub fn current(&self) -> usize {
        self.current
    }

    /// Expects that a candidate which predicts nothing takes `start_ns` nanoseconds before it works
    /// at its usual speed, and `starting_ns` for a token meanwhile (infinite if the target waits).
    pub fn expect_start(&mut self, candidate: usize, start_ns: f64, starting_ns: f64) {
        let candidate = &mut self.candidates[candidate];
        (candidate.start_ns, candidate.starting_ns) = (start_ns, starting_ns);
    }

    /// Excludes a candidate from the rest of the answer, because its drafter has failed. If it is
    /// the current one, the next observation changes to another one that is not excluded, if there
    /// is one.
    pub fn exclude(&mut self, candidate: usize) {
        self.candidates[candidate].is_excluded = true;
    }

    /// Returns whether new forecasts are worth their time after the next step. Otherwise the last
    /// ones do.
    ///
    /// Forecasts of three methods take some microseconds, in which a small model could go on. After
    /// the first steps of a turn they change slowly.
    #[must_use]
    pub fn needs_forecasts(&self) -> bool {
        if self.candidates.iter().all(|candidate| candidate.is_excluded) {
            return false;
        }
        let is_new = self.last_ns.is_none() || self.is_trial || self.steps < TRIAL_STEPS;
        is_new || self.steps.is_multiple_of(FORECAST_EVERY)
    }

    /// Returns a copy for the next answer, which keeps what it has learned.
    #[must_use]
    pub fn for_next_answer(&self) -> Self {
        let mut next = Self { last_ns: None, ..self.clone() };
        for candidate in &mut next.candidates {
            // The first one to work reads the prompt, which is a part of any answer.
            (candidate.is_excluded, candidate.start_ns) = (false, 0.0);
        }
        if next.turn_steps.is_none() {
            next.use_best(true);
        }
        next
    }

    /// Learns that a step of the current candidate has committed `tokens` tokens at `now_ns`, and
    /// chooses the candidate of the next step. `forecasts`: what each candidate expects, if it can
    /// say. An answer's first step, which computes the prompt, only starts the clock.
    pub fn observe(
        &mut self,
        tokens: usize,
        now_ns: u64,
        kind: StepKind,
        forecasts: &[Option<Forecast>],
    ) {
        if let Some(turn_steps) = self.turn_steps {
            return self.take_turns(turn_steps);
        }
        let are_new = self.needs_forecasts();
        let last_ns = self.last_ns.replace(now_ns);
        // The first steps of a trial show costs that only its candidate has. So all expect afresh.
        let is_afresh = self.is_trial && self.steps < SETTLING_STEPS;
        for (candidate, forecast) in self.candidates.iter_mut().zip(forecasts) {
            if let Some(forecast) = forecast {
                if is_afresh {
                    candidate.outlook = Speed::with_decay(OUTLOOK_DECAY);
                }
                candidate.outlook.add(tokens, forecast.token_ns * tokens as f64);
                (candidate.drafts, candidate.can_pause) = (forecast.drafts, forecast.can_pause);
                (candidate.start_ns, candidate.starting_ns) =
                    (forecast.start_ns, forecast.starting_ns);
            } else if candidate.predicts() {
                candidate.forget_predictions();
            }
        }
        if self.candidates[self.current].is_excluded {
            return self.leave_failed();
        }
        let Some(last_ns) = last_ns else { return };
        let ns = now_ns.saturating_sub(last_ns) as f64;
        let ns = self.interruptions.filter_step(ns, &mut self.step_ns, 0.0);
        self.elapsed_ns += ns;
        if kind == StepKind::LookedUp {
            return;
        }
        self.steps += 1;
        let current = &mut self.candidates[self.current];
        if let Some(Some(forecast)) = forecasts.get(self.current) {
            current.alone_ns = forecast.alone_ns;
            let gained_ns = tokens as f64 * forecast.alone_ns - ns;
            self.gained_ns = (self.gained_ns + gained_ns).max(0.0);
            let is_slow = !current.drafts || current.token_ns() > Some(forecast.alone_ns);
            // The same forecast says nothing more.
            if are_new {
                current.paused_steps = if is_slow { current.paused_steps + 1 } else { 0 };
            }
        }
        let starting_ns = self.starting_ns.clamp(0.0, ns);
        let has_settled = self.learn(tokens, ns, forecasts);
        let is_alone = kind == StepKind::Alone;
        self.candidates[self.current].observe_drafting(is_alone && has_settled);
        let pauses = self.should_pause();
        let lost_tokens = self.record_loss(tokens, ns, starting_ns, has_settled);
        if !self.is_trial {
            return if pauses { self.pause() } else { self.choose() };
        }
        let is_certain = lost_tokens > MOST_TRIAL_LOSS;
        let is_over = is_certain || self.steps >= TRIAL_STEPS || self.expects_less();
        if pauses || is_over || (has_settled && lost_tokens > TRIAL_LOSS) {
            let current = &mut self.candidates[self.current];
            current.trial_ns = self.trial_ns.max(0.0);
            if is_certain {
                current.weight = current.weight.max(CERTAIN_STEPS);
            }
            if pauses { self.pause() } else { self.use_best(is_over) }
        }
    }

    /// Counts a step of a turn of `turn_steps`. After the last one, or if the current candidate is
    /// excluded, the next candidate works.
    fn take_turns(&mut self, turn_steps: u32) {
        self.steps += 1;
        if self.steps < turn_steps && !self.candidates[self.current].is_excluded {
            return;
        }
        let count = self.candidates.len();
        let mut others = (1..=count).map(|after| (self.current + after) % count);
        if let Some(next) = others.find(|&other| !self.candidates[other].is_excluded) {
            self.begin(next, false);
        }
    }

    /// Goes on with the fastest candidate that is not excluded, or with the first one if no speed
    /// is known.
    fn leave_failed(&mut self) {
        let first = self.candidates.iter().position(|candidate| !candidate.is_excluded);
        let next = self.fastest_other().map(|(other, _)| other).or(first);
        if let Some(next) = next {
            self.begin(next, false);
        }
    }

    /// Counts what a step has lost. Returns how many tokens a trial could have had in the time that
    /// it has lost, apart from the `starting_ns` nanoseconds of the step that its start was
    /// expected to take.
    fn record_loss(&mut self, tokens: usize, ns: f64, starting_ns: f64, has_settled: bool) -> f64 {
        let Some(best_ns) = self.best_ns(has_settled) else { return 0.0 };
        let lost_ns = ns - tokens as f64 * best_ns;
        let start_ns = self.candidates[self.current].start_loss_ns(starting_ns, best_ns);
        // It may have started faster than expected.
        self.trial_ns += lost_ns - start_ns.min(lost_ns.max(0.0));
        self.lost_ns = (self.lost_ns + lost_ns).max(0.0);
        self.trial_ns / best_ns
    }

    /// Learns the speed of the current candidate. Returns whether it has settled.
    fn learn(&mut self, tokens: usize, ns: f64, forecasts: &[Option<Forecast>]) -> bool {
        for (index, candidate) in self.candidates.iter_mut().enumerate() {
            if index != self.current {
                candidate.weight *= CORRECTION_DECAY;
            }
        }
        let current = &mut self.candidates[self.current];
        let is_first = current.turns <= 1 && !current.predicts();
        let settling_steps = if is_first { FIRST_SETTLING_STEPS } else { SETTLING_STEPS };
        self.starting_ns -= ns;
        if self.is_trial && self.starting_ns > 0.0 {
            self.steps = self.steps.min(settling_steps);
        }
        let has_settled = self.steps > settling_steps;
        if has_settled {
            let forecast = forecasts.get(self.current).copied().flatten();
            // What a method expects of the target alone needs no correction.
            if forecast.is_none_or(|forecast| forecast.drafts) {
                current.measured.add(tokens, ns);
            }
            if let Some(forecast) = forecast.filter(|forecast| forecast.drafts) {
                current.predicted.add(tokens, forecast.token_ns * tokens as f64);
                current.weight = current.weight * SPEED_DECAY + 1.0;
            }
        }
        has_settled
    }

    /// Goes on with the current candidate, or with one that is faster, or begins a trial.
    fn choose(&mut self) {
        let Some(current_ns) = self.candidates[self.current].token_ns() else { return };
        // The fastest one of all may have to read for too long.
        let others = self.known_others();
        let worthy = others.filter(|&(at, ns)| self.is_worth_changing(at, ns, current_ns));
        let fastest = worthy.min_by(|a, b| {
            self.token_ns_with_startup(*a).total_cmp(&self.token_ns_with_startup(*b))
        });
        if let Some((faster, _)) = fastest {
            self.candidates[faster].turns += 1;
            return self.begin(faster, true);
        }
        // Those that predict nothing are tried.
        let others = (0..self.candidates.len()).filter(|&other| other != self.current);
        let unpredicted = others.filter(|&other| {
            let other = &self.candidates[other];
            !other.predicts() && !other.is_excluded
        });
        let next = unpredicted.min_by_key(|&other| self.candidates[other].turns);
        let Some(next) = next.filter(|_| self.steps >= TRIAL_STEPS) else { return };
        let candidate = &self.candidates[next];
        let start_ns = candidate.start_loss_ns(candidate.start_ns, current_ns);
        let lost_ns = self.lost_ns + candidate.trial_ns + start_ns;
        // Without a trial, nothing will ever be known of another drafter.
        let has_other_drafter = self.candidates[next].first != self.candidates[self.current].first;
        let may_lose_ns = match has_other_drafter {
            true => self.may_lose_ns(current_ns) + GAIN_SHARE * self.gained_ns,
            false => TRIAL_SHARE * self.elapsed_ns,
        };
        if lost_ns <= may_lose_ns {
            self.candidates[next].measured = Speed::with_decay(SPEED_DECAY);
            self.candidates[next].turns += 1;
            self.begin(next, true);
            self.tries_drafter = has_other_drafter;
        }
    }

    /// Returns whether a candidate is expected to be faster than the current one, also with what
    /// the change costs, and whether changes have not lost too much.
    fn is_worth_changing(&self, other: usize, token_ns: f64, current_ns: f64) -> bool {
        let other = &self.candidates[other];
        let start_ns = other.start_loss_ns(other.start_ns, current_ns);
        let gain_ns = current_ns - MIN_GAIN * token_ns;
        gain_ns > 0.0
            && start_ns < HORIZON * gain_ns
            && self.lost_ns + start_ns <= self.may_lose_ns(current_ns) + GAIN_TOKENS * gain_ns
    }

    /// Returns the time that changes may have lost if a token takes `current_ns`.
    fn may_lose_ns(&self, current_ns: f64) -> f64 {
        TRIAL_SHARE * self.elapsed_ns + CHANGE_LOSS * current_ns
    }

    /// Returns whether the current candidate expects to be no faster than the target alone, as it
    /// has for some steps, or does not draft. Then the first candidate with its drafter is used: it
    /// learns with the least effort when drafts pay again.
    fn should_pause(&self) -> bool {
        let current = &self.candidates[self.current];
        let alone_ns = current.alone_ns;
        let least = if self.is_trial { SETTLING_STEPS } else { PAUSED_STEPS };
        let can_pause = current.can_pause && !self.candidates[current.first].is_excluded;
        can_pause
            && self.current != current.first
            && (current.alone_steps >= ALONE_STEPS
                || current.paused_steps >= least
                    && current.token_ns().is_some_and(|ns| ns > alone_ns / MIN_GAIN))
    }

    /// Returns whether the candidate on trial, which was expected to be faster, expects less by
    /// now. Measured speeds of so few steps do not count, because the number of tokens of a step
    /// varies. Nor do small differences if its drafter was unknown, before enough of its tokens are
    /// tested.
    fn expects_less(&self) -> bool {
        let own_ns = self.candidates[self.current].outlook.token_ns();
        let own_ns = own_ns.map(|ns| ns * self.trial_correction);
        let doubt =
            if self.tries_drafter { DOUBTED_STEPS / f64::from(self.steps.max(1)) } else { 0.0 };
        let is_slower = |(ns, (_, other_ns)): (f64, (usize, f64))| ns > other_ns * (1.0 + doubt);
        self.steps >= SETTLING_STEPS && own_ns.zip(self.fastest_other()).is_some_and(is_slower)
    }

    fn pause(&mut self) {
        self.begin(self.candidates[self.current].first, false);
    }

    fn begin(&mut self, candidate: usize, is_trial: bool) {
        self.trial_correction = self.candidates[candidate].correction();
        (self.current, self.is_trial, self.steps, self.trial_ns) = (candidate, is_trial, 0, 0.0);
        self.tries_drafter = false;
        let candidate = &mut self.candidates[candidate];
        (candidate.paused_steps, candidate.alone_steps) = (0, 0);
        self.starting_ns = candidate.start_ns;
        self.step_ns = DecayingMean::default();
    }

    /// Uses the fastest candidate, if that is faster by the factor [`MIN_GAIN`]. Otherwise a trial
    /// that `is_over` ends.
    fn use_best(&mut self, is_over: bool) {
        let own_ns = self.candidates[self.current].token_ns();
        let other = self
            .fastest_other()
            .filter(|&(_, token_ns)| own_ns.is_none_or(|own_ns| token_ns * MIN_GAIN < own_ns));
        match other {
            Some((other, _)) => self.begin(other, false),
            None => self.is_trial &= !is_over,
        }
    }

    /// Returns the time of a token with which the last step is compared: in a trial, that of the
    /// best rival. Without one, nothing is lost. The first steps after a trial may be slower than
    /// usual, because a change costs the drafts in flight.
    fn best_ns(&self, has_settled: bool) -> Option<f64> {
        match (self.is_trial, has_settled) {
            (true, _) => self.rival_ns(),
            (false, false) => self.candidates[self.current].token_ns(),
            (false, true) => None,
        }
    }

    /// Returns the least expected time of a token with another candidate, or with the target alone
    /// if methods pause.
    fn rival_ns(&self) -> Option<f64> {
        let current = &self.candidates[self.current];
        let alone_ns = Some(current.alone_ns).filter(|&ns| ns > 0.0 && current.can_pause);
        let other_ns = self.fastest_other().map(|(_, ns)| ns);
        other_ns.into_iter().chain(alone_ns).min_by(f64::total_cmp)
    }

    /// Returns the fastest other candidate whose speed is known, and the nanoseconds of a token
    /// with those of its start.
    fn fastest_other(&self) -> Option<(usize, f64)> {
        let others = self.known_others().map(|other| (other.0, self.token_ns_with_startup(other)));
        others.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Returns the nanoseconds of a token of a candidate, with the time that its start loses in the
    /// tokens after it.
    fn token_ns_with_startup(&self, (at, token_ns): (usize, f64)) -> f64 {
        let candidate = &self.candidates[at];
        token_ns + candidate.start_loss_ns(candidate.start_ns, token_ns) / HORIZON
    }

    /// Returns the other candidates whose speed is known, with the nanoseconds of a token.
    fn known_others(&self) -> impl Iterator<Item = (usize, f64)> {
        let others = self.candidates.iter().enumerate().filter(|&(at, _)| at != self.current);
        // One that would not draft is not faster than the current one, which pauses by itself.
        let others = others.filter(|(_, other)| other.drafts && !other.is_excluded);
        others.filter_map(|(at, other)| Some((at, other.token_ns()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DraftLength;

    /// Returns the forecast of a method that starts at once, if the target takes 1,000 ns for a
    /// token.
    fn expects(token_ns: f64, drafts: bool) -> Forecast {
        let (alone_ns, start_ns, starting_ns) = (1_000.0, 0.0, f64::INFINITY);
        Forecast { token_ns, drafts, alone_ns, start_ns, starting_ns, can_pause: true }
    }

    /// Decodes `tokens` tokens. `token_ns(candidate, position)` is the time of a token. Returns the
    /// time, and the number of tokens of each candidate.
    fn decode(
        choice: &mut MethodChoice,
        tokens: usize,
        token_ns: impl Fn(usize, usize) -> u64,
    ) -> (u64, Vec<usize>) {
        let (mut now, mut position, mut by) = (0, 0, vec![0; choice.candidates.len()]);
        let unknown = vec![None; choice.candidates.len()];
        choice.observe(1, now, StepKind::Drafted, &unknown);
        while position < tokens {
            let (current, count) = (choice.current, 1 + position % 3);
            now += count as u64 * token_ns(current, position);
            by[current] += count;
            position += count;
            choice.observe(count, now, StepKind::Drafted, &unknown);
        }
        (now, by)
    }

    #[test]
    fn the_fastest_is_used() {
        for fastest in 0..3 {
            let token_ns = |candidate, _| if candidate == fastest { 500 } else { 1_000 };
            let (ns, by) = decode(&mut MethodChoice::new(&[0; 3]), 10_000, token_ns);
            assert!(ns < 5_400_000, "{fastest}: {ns} ns, {by:?}");
        }
    }

    #[test]
    fn candidates_can_take_turns() {
        let mut choice = MethodChoice::new(&[0; 3]).taking_turns(2);
        let mut used = Vec::new();
        for step in 0..10 {
            if step == 8 {
                choice.exclude(1);
            }
            used.push(choice.current());
            choice.observe(1, step, StepKind::Drafted, &[None; 3]);
        }
        // The second one fails in its second turn, and is left.
        assert_eq!(used, [0, 0, 1, 1, 2, 2, 0, 0, 1, 2]);
        assert_eq!(choice.for_next_answer().current(), choice.current(), "the turn goes on");
    }

    #[test]
    fn slow_ones_cost_little() {
        for slow in [1_100, 2_000, 20_000] {
            let token_ns = |candidate, _| if candidate == 0 { 1_000 } else { slow };
            let (ns, by) = decode(&mut MethodChoice::new(&[0; 3]), 20_000, token_ns);
            assert!(ns < 20_400_000, "{slow}: {ns} ns, {by:?}");
            assert!(by[1] > 0 && by[2] > 0, "they are tried: {by:?}");
        }
    }

    #[test]
    fn the_choice_follows_the_text() {
        // Every 4,000 tokens another one is the fastest.
        let token_ns = |candidate: usize, position: usize| {
            if position / 4_000 % 2 == candidate { 500 } else { 1_000 }
        };
        let (ns, by) = decode(&mut MethodChoice::new(&[0; 2]), 40_000, token_ns);
        // The best choice takes 20 ms, a constant one 30 ms.
        assert!(ns < 22_500_000, "{ns} ns, {by:?}");
    }

    #[test]
    fn an_answer_begins_with_new_forecasts() {
        let mut choice = MethodChoice::new(&[0]);
        let forecast = Forecast::new(DraftLength::Auto, 2e-3, 1_000.0, 0.0);
        for step in 0..TRIAL_STEPS + 2 {
            choice.observe(1, u64::from(step) * 1_000, StepKind::Drafted, &[Some(forecast)]);
        }
        assert!(!choice.needs_forecasts());
        assert!(choice.for_next_answer().needs_forecasts());
    }

    #[test]
    fn the_next_answer_begins_with_the_best() {
        let mut choice = MethodChoice::new(&[0; 3]);
        decode(&mut choice, 3_000, |candidate, _| if candidate == 2 { 500 } else { 1_000 });
        let next = choice.for_next_answer();
        assert_eq!((next.current, next.last_ns, next.is_trial), (2, None, false));
    }

    /// Decodes 4,000 tokens of 1,000 ns with the first candidate. The second one predicts
    /// `token_ns` and reads for `start_ns` first, and takes `real_ns`. Returns the tokens of both.
    fn decode_predicted(second: Forecast, real_ns: u64) -> Vec<usize> {
        let (mut choice, mut now, mut by) = (MethodChoice::new(&[0; 2]), 0, vec![0; 2]);
        let first = expects(1_000.0, true);
        for _ in 0..4_000 {
            choice.observe(1, now, StepKind::Drafted, &[Some(first), Some(second)]);
            let current = choice.current();
            now += if current == 0 { 1_000 } else { real_ns };
            by[current] += 1;
        }
        by
    }

    #[test]
    fn only_what_may_be_faster_is_used() {
        let predicts = |token_ns| expects(token_ns, true);
        assert_eq!(decode_predicted(predicts(1_500.0), 500)[1], 0, "it cannot win");
        assert_eq!(decode_predicted(predicts(990.0), 990)[1], 0, "a tie");
        assert!(decode_predicted(predicts(500.0), 500)[1] > 3_900, "it wins");
        let plain = Forecast { drafts: false, ..predicts(500.0) };
        assert_eq!(decode_predicted(plain, 500)[1], 0, "both pause by themselves");
        let late = Forecast { start_ns: 1e6, ..predicts(900.0) };
        assert_eq!(decode_predicted(late, 900)[1], 0, "it reads longer than it gains");
    }

    #[test]
    fn a_trial_without_a_rival_loses_nothing() {
        let mut choice = MethodChoice::new(&[0; 2]);
        let own = Forecast { alone_ns: 2_000.0, ..expects(1_000.0, true) };
        choice.observe(1, 0, StepKind::Drafted, &[None, Some(own)]);
        choice.begin(1, true);
        (1..=u64::from(TRIAL_STEPS)).for_each(|step| {
            choice.observe(1, 1_000 * step, StepKind::Drafted, &[None, Some(own)]);
        });
        assert_eq!((choice.lost_ns, choice.current, choice.is_trial), (0.0, 1, false));
    }

    #[test]
    fn the_first_goes_on_while_others_would_pause() {
        let mut choice = MethodChoice::new(&[0; 2]);
        let drafting = expects(500.0, true);
        let pausing = expects(1_000.0, false);
        choice.observe(1, 0, StepKind::Drafted, &[Some(pausing), Some(drafting)]);
        choice.begin(1, false);
        let mut now = 0;
        let mut observe = |choice: &mut MethodChoice, ns, second| {
            now += ns;
            choice.observe(1, now, StepKind::Drafted, &[Some(pausing), Some(second)]);
        };
        (0..50).for_each(|_| observe(&mut choice, 500, drafting));
        // One bad forecast is not enough, nor are several while it is as fast as before.
        observe(&mut choice, 1_000, pausing);
        assert_eq!(choice.current, 1);
        observe(&mut choice, 500, drafting);
        (0..100).for_each(|_| observe(&mut choice, 1_000, pausing));
        assert_eq!(choice.current, 0);
    }

    /// The first method's drafts are slower than it expects, so it pauses. Then it is as fast as
    /// the target alone, and the second one, which would be hardly faster, must not take turns with
    /// it.
    #[test]
    fn a_method_that_pauses_is_as_fast_as_the_target_alone() {
        let mut choice = MethodChoice::new(&[0; 2]);
        let mut now = 0;
        for step in 0..500 {
            let (first, ns) = match step < 80 {
                true => (expects(900.0, true), 1_400),
                false => (expects(1_000.0, false), 1_000),
            };
            now += ns;
            choice.observe(
                1,
                now,
                StepKind::Drafted,
                &[Some(first), Some(expects(990.0, step >= 80))],
            );
            assert_eq!(choice.current, 0, "{step}");
        }
        assert!(choice.candidates[0].correction() > 1.2);
        assert_eq!(choice.candidates[0].token_ns().map(f64::round), Some(1_000.0));
    }

    /// The second method predicts that drafts pay, but has paused, because they did not.
    #[test]
    fn one_that_has_paused_by_itself_is_left() {
        let mut choice = MethodChoice::new(&[0; 2]);
        let forecast =
            |token_ns, drafts| Some(Forecast { starting_ns: 1e3, ..expects(token_ns, drafts) });
        let forecasts = [forecast(1_000.0, false), forecast(900.0, true)];
        choice.observe(1, 0, StepKind::Alone, &forecasts);
        let mut by = [0; 2];
        for step in 1..=500 {
            by[choice.current] += 1;
            choice.observe(1, 1_000 * step, StepKind::Alone, &forecasts);
        }
        assert!((1..200).contains(&by[1]), "{by:?}");
    }

    /// The second method has to read text first. Meanwhile it is as fast as the target alone, and
    /// so is the first one.
    #[test]
    fn reading_costs_nothing_if_the_target_goes_on() {
        let decode = |starting_ns| {
            let mut choice = MethodChoice::new(&[0; 2]);
            let first = Forecast { starting_ns, ..expects(1_000.0, false) };
            let (mut now, mut left_ns, mut by) = (0, 100_000, [0; 2]);
            for _ in 0..1_000 {
                let is_second = choice.current == 1;
                let is_reading = is_second && left_ns > 0;
                let ns = if is_second && !is_reading { 700 } else { 1_000 };
                left_ns -= if is_reading { ns } else { 0 };
                now += ns as u64;
                by[choice.current] += 1;
                let start_ns = if is_second { 0.0 } else { 100_000.0 };
                let second = Forecast { token_ns: 700.0, drafts: true, start_ns, ..first };
                let kind = if is_second { StepKind::Drafted } else { StepKind::Alone };
                choice.observe(1, now, kind, &[Some(first), Some(second)]);
            }
            (by[1], choice.candidates[1].correction())
        };
        let (steps, correction) = decode(1_000.0);
        assert!(steps > 990 && (correction - 1.0).abs() < 1e-6, "{steps} {correction}");
        assert_eq!(decode(f64::INFINITY).0, 0, "the target would wait");
    }

    /// Two methods with a drafter each. The second drafter is better, but first tried by chance,
    /// and forgotten again and again.
    #[test]
    fn unknown_drafters_are_tried() {
        let decode = |second_ns: f64, doubts: f64| {
            let (mut choice, mut now, mut by) = (MethodChoice::new(&[0, 1]), 0.0, [0; 2]);
            let mut idle = 1_000;
            for _ in 0..4_000 {
                let is_second = choice.current == 1;
                idle = if is_second { 0 } else { idle + 1 };
                by[choice.current] += 1;
                now += if is_second { second_ns } else { 700.0 };
                // At first, it expects less than it is worth.
                let expected = second_ns * if choice.steps < 4 { doubts } else { 1.0 };
                let second = (idle < 500).then(|| expects(expected, true));
                choice.observe(
                    1,
                    now as u64,
                    StepKind::Drafted,
                    &[Some(expects(700.0, true)), second],
                );
            }
            (by, now)
        };
        let (by, _) = decode(500.0, 1.8);
        assert!(by[1] > 3_900, "{by:?}");
        let (by, ns) = decode(2_000.0, 1.0);
        assert!(by[1] > 10 && ns < 1.02 * 4_000.0 * 700.0, "{by:?} {ns}");
    }

    #[test]
    fn a_pause_is_that_of_the_drafter() {
        let mut choice = MethodChoice::new(&[0, 1, 0, 1]);
        let forecasts = [1_000.0, 1_000.0, 1_000.0, 500.0].map(|ns| Some(expects(ns, ns < 1e3)));
        choice.observe(1, 0, StepKind::Drafted, &forecasts);
        choice.begin(3, false);
        let pausing = [Some(expects(1_000.0, false)); 4];
        (1..100).for_each(|step| choice.observe(1, 1_000 * step, StepKind::Alone, &pausing));
        assert_eq!(choice.current, 1);
    }

    #[test]
    fn a_drafter_that_fails_is_left_for_the_rest_of_the_answer() {
        let mut choice = MethodChoice::new(&[0, 1, 0, 1]);
        let forecasts = [500.0, 900.0, 400.0, 800.0].map(|ns| Some(expects(ns, true)));
        let mut now = 0;
        let mut step = |choice: &mut MethodChoice| {
            now += 1_000;
            choice.observe(1, now, StepKind::Drafted, &forecasts);
            choice.current
        };
        step(&mut choice);
        [0, 2].into_iter().for_each(|candidate| choice.exclude(candidate));
        assert_eq!(step(&mut choice), 3, "the fastest with the other drafter");
        assert!((0..500).all(|_| step(&mut choice) == 3));
        let mut alone = choice.clone();
        alone.exclude(3);
        assert!((0..500).all(|_| step(&mut alone) == 1), "another place of the drafter");
        alone.exclude(1);
        assert!((0..500).all(|_| step(&mut alone) == 1), "there is no other");
        assert_eq!(choice.for_next_answer().current, 2);
    }

    /// The fastest method would have to read for long.
    #[test]
    fn the_second_fastest_is_used_if_the_fastest_starts_slowly() {
        let (mut choice, mut now) = (MethodChoice::new(&[0; 3]), 0);
        let late = Forecast { start_ns: 1e6, ..expects(400.0, true) };
        let forecasts = [expects(1_000.0, true), expects(500.0, true), late].map(Some);
        for _ in 0..100 {
            choice.observe(1, now, StepKind::Drafted, &forecasts);
            now += if choice.current == 0 { 1_000 } else { 500 };
        }
        assert_eq!(choice.current, 1);
    }

    /// Looked-up rounds take another time than drafts.
    #[test]
    fn lookups_show_nothing_of_a_candidate() {
        let mut choice = MethodChoice::new(&[0, 1]);
        let forecasts = [500.0, 510.0].map(|ns| Some(expects(ns, true)));
        let mut now = 0;
        for step in 0..1_000 {
            let (ns, kind) = match step % 3 {
                0 => (100, StepKind::LookedUp),
                1 => (2_000, StepKind::LookedUp),
                _ => (500, StepKind::Drafted),
            };
            now += ns;
            choice.observe(1, now, kind, &forecasts);
            assert_eq!(choice.current, 0);
        }
        assert!((choice.candidates[0].correction() - 1.0).abs() < 1e-6);
    }

    /// Each answer begins with a prompt that the second drafter would have to read first.
    #[test]
    fn a_drafter_that_would_read_for_long_is_tried_when_that_is_affordable() {
        let tried_after = |start_ns: f64| {
            let (mut choice, mut now) = (MethodChoice::new(&[0, 1]), 0);
            let forecasts = [Some(Forecast { alone_ns: 500.0, ..expects(500.0, true) }), None];
            (0..20_000).find(|_| {
                now += 500;
                choice.expect_start(1, start_ns, f64::INFINITY);
                choice.observe(1, now, StepKind::Drafted, &forecasts);
                choice.current == 1
            })
        };
        let [short, long] = [0.0, 50_000.0].map(tried_after);
        assert!(short.is_some_and(|steps| steps < 50), "{short:?}");
        // 1 % of the time of 9,000 tokens, and the time of 12.
        assert!(long.is_some_and(|steps| (8_000..10_000).contains(&steps)), "{long:?}");
    }

    #[test]
    fn a_trial_does_not_end_because_its_drafter_reads() {
        let mut choice = MethodChoice::new(&[0, 1]);
        let first = Some(Forecast { alone_ns: 1_000.0, ..expects(500.0, true) });
        choice.expect_start(1, 20_000.0, f64::INFINITY);
        choice.observe(1, 0, StepKind::Drafted, &[first, None]);
        choice.begin(1, true);
        choice.tries_drafter = true;
        let second = Some(expects(200.0, true));
        choice.observe(1, 20_500, StepKind::Drafted, &[first, second]);
        assert_eq!((choice.current, choice.lost_ns), (1, 20_000.0), "the loss counts");
        for step in 1..100 {
            choice.observe(1, 20_500 + 200 * step, StepKind::Drafted, &[first, second]);
            assert_eq!(choice.current, 1, "{step}");
        }
    }

    /// Half of the expected time of reading is enough. The rest is no credit for drafts that are
    /// slow.
    #[test]
    fn a_start_that_is_shorter_than_expected_is_no_credit() {
        let mut choice = MethodChoice::new(&[0, 1]);
        let first = Some(expects(500.0, true));
        choice.expect_start(1, 20_000.0, f64::INFINITY);
        choice.observe(1, 0, StepKind::Drafted, &[first, None]);
        choice.begin(1, true);
        choice.tries_drafter = true;
        let mut now = 10_000;
        let second = Some(expects(400.0, true));
        for _ in 0..15 {
            choice.observe(1, now, StepKind::Drafted, &[first, second]);
            assert!(choice.trial_ns >= 0.0, "{}", choice.trial_ns);
            now += 600;
        }
    }

    /// Both methods have a fixed number of draft tokens and are slower than the target alone.
    #[test]
    fn methods_that_never_pause_do_not_take_turns() {
        let mut choice = MethodChoice::new(&[0; 2]);
        let fixed = |ns| Some(Forecast { can_pause: false, ..expects(ns, true) });
        let forecasts = [fixed(1_500.0), fixed(1_200.0)];
        let (mut now, mut changes) = (0, 0);
        for _ in 0..1_000 {
            let before = choice.current;
            choice.observe(1, now, StepKind::Drafted, &forecasts);
            changes += usize::from(choice.current != before);
            now += if choice.current == 0 { 1_500 } else { 1_200 };
        }
        assert_eq!((choice.current, changes), (1, 1));
    }

    #[test]
    fn a_wrong_prediction_is_corrected() {
        let by = decode_predicted(expects(500.0, true), 2_000);
        assert!((1..=120).contains(&by[1]), "{by:?}");
    }
}
