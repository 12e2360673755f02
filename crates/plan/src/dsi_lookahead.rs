//! DSI's lookahead: fixed, or by the paper's sizing rule from measured times.

use crate::DraftLength;
use crate::acceptance::Acceptance;
use crate::cost_curve::CostCurve;
use crate::decaying::DecayingMean;
use crate::estimates::{BatchCosts, DraftTime, JobTime};
use crate::interruptions::Interruptions;
use crate::knowledge::{Forecast, Knowledge, READ_TOKENS, READING_SHARE, faded};
use crate::pauses::{Pauses, TrialOutlook};
use crate::rounds::Pipeline;
use crate::{JobObserver, Policy};

/// Decides how many draft tokens one verification task has.
///
/// If a target forward takes t₂ and a draft token takes t₁, then `⌈t₂ / (lookahead · t₁)⌉` replicas
/// keep up with the drafter (DSI, arXiv 2405.14105, equation 1). If rows cost nothing, the best
/// lookahead is the smallest that needs no more replicas than there are. The automatic mode uses
/// the one with the most expected tokens a second, from recent times of jobs by their rows, and
/// from the acceptance.
///
/// If other sequences share the passes, t₁ and t₂ are the job's share of them
/// ([`JobCost::share`](forerun_core::JobCost::share)).
///
/// For a drafter that makes several tokens in one forward (ParallelSpec, PARD), t₁ is the time of a
/// forward, and the lookahead is a multiple of its tokens.
///
/// The automatic mode also pauses drafting while the target alone is faster.
#[derive(Clone, Debug)]
pub struct DsiLookahead {
    length: usize,
    mode: DraftLength,
    /// The number of replicas that have not failed.
    replicas: usize,
    all_replicas: usize,
    score_costs: BatchCosts,
    /// The time of a job with one row while nothing is drafted.
    alone: DecayingMean,
    /// The time of jobs by their number of rows, while drafters work.
    scores: CostCurve,
    /// The time of a job while drafters work, in times of one while they are idle, as another
    /// method has measured it.
    slowdown: f64,
    /// The time that further rows add to a job while drafters are idle, as another method has
    /// measured it.
    known_rows: CostCurve,
    acceptance: Acceptance,
    /// The lookahead of the automatic mode.
    next: usize,
    /// The expected speed of the best lookahead, in tokens per nanosecond.
    speed: f64,
    /// The number of draft tokens after the committed ones that pay for the time that drafting them
    /// takes from the target.
    ahead_that_pays: usize,
    draft_time: DraftTime,
    /// The number of tokens of the present pause.
    unread_tokens: usize,
    /// The number of the answer's jobs to ignore: the first ones compute the prompt.
    prompt_scores: usize,
    pauses: Pauses,
    interruptions: Interruptions,
    /// The number of verdicts while drafting, and of those while another lookahead was tried.
    verdicts: u32,
    explorations: u32,
    /// The number of verdicts that are left to try another lookahead, if one is tried now.
    verdicts_left: Option<u32>,
    /// The time between passes in which nothing is computed, as another method has measured it.
    waited_ns: f64,
    /// The number of tokens that the drafter would have to read if this method went on after
    /// another.
    drafter_lag: usize,
    /// Whether a job since the last step also read tokens that its replica had missed.
    has_read: bool,
    /// The number of tokens that a replica read in the last job in which it read several, and the
    /// time of that job.
    last_reading: Option<(usize, f64)>,
}

/// The lookahead before any times are known.
const INITIAL_LENGTH: usize = 4;
/// The number of tokens after a rejection that are looked ahead, at least.
const HORIZON: usize = 48;
/// The number of verdicts for each with more rows than were tried.
const EXPLORE_EVERY: u32 = 16;
/// The number of verdicts, at most, for which such a lookahead is tried at once.
const EXPLORED_VERDICTS: u32 = 8;
/// The factor by which such a lookahead must be faster at best.
const MIN_GAIN_OF_TRIAL: f64 = 1.03;
/// A lookahead is about as fast as another one within this factor.
const MIN_GAIN: f64 = 1.001;

impl DsiLookahead {
    /// Creates a policy for `replicas` target replicas: always `length` tokens (`Fixed`), or up to
    /// `length` tokens (`Auto`).
    #[must_use]
    pub fn new(length: usize, mode: DraftLength, replicas: usize) -> Self {
        Self {
            length: length.max(1),
            mode,
            replicas: replicas.max(1),
            all_replicas: replicas.max(1),
            score_costs: BatchCosts::default(),
            alone: DecayingMean::default(),
            scores: CostCurve::with_fixed_part(),
            slowdown: 1.0,
            known_rows: CostCurve::default(),
            acceptance: Acceptance::default(),
            next: INITIAL_LENGTH.min(length.max(1)),
            speed: 0.0,
            ahead_that_pays: usize::MAX,
            draft_time: DraftTime::default(),
            unread_tokens: 0,
            prompt_scores: replicas,
            pauses: Pauses::default(),
            interruptions: Interruptions::default(),
            verdicts: 0,
            explorations: 0,
            verdicts_left: None,
            waited_ns: 0.0,
            drafter_lag: 0,
            has_read: false,
            last_reading: None,
        }
    }

    /// Returns a copy configured for a drafter that makes `tokens` tokens in one forward.
    #[must_use]
    pub fn with_tokens_per_forward(self, tokens: usize) -> Self {
        Self { draft_time: self.draft_time.with_tokens_per_forward(tokens), ..self }
    }

    /// Returns a copy configured for a drafter whose forward takes so many passes of the target by
    /// the sizes of the models. An automatic lookahead does not try a slow one to learn that.
    #[must_use]
    pub fn with_expected_passes(self, passes: Option<f64>) -> Self {
        Self { draft_time: self.draft_time.with_expected_passes(passes), ..self }
    }

    /// Returns a copy for a new answer after a prompt of `prompt_tokens` tokens, which keeps the
    /// learned times.
    #[must_use]
    pub fn for_new_answer(&self, prompt_tokens: usize) -> Self {
        let draft_time = self.draft_time.for_new_answer(prompt_tokens);
        let pauses = self.pauses.for_new_answer();
        let (prompt_scores, unread_tokens) = (self.all_replicas, prompt_tokens);
        Self { prompt_scores, unread_tokens, draft_time, pauses, ..self.clone() }
    }

    /// Returns the share of a pass of the target alone at the present load, with the time between
    /// passes; `None` if it is not known.
    fn alone_ns(&self) -> Option<f64> {
        let share_ns = || self.score_costs.share_at_load(self.plain_ns(), 1.0) + self.waited_ns;
        self.knows_target().then(share_ns)
    }

    /// Returns the time of a job with one row while drafters are idle; 0 if nothing is known.
    fn plain_ns(&self) -> f64 {
        self.alone.value_or(self.scores.up_to(1)[1] / self.slowdown)
    }

    /// Returns the time of a job with one row while drafters work; 0 if nothing is known.
    fn one_row_ns(&self) -> f64 {
        match self.measured_one_row_ns() {
            Some(ns) => ns,
            None if self.alone.is_known() => self.plain_ns() * self.slowdown,
            None => self.scores.up_to(1)[1],
        }
    }

    /// Returns the time of a job while drafters work, in times of one while they are idle.
    fn slowdown(&self) -> f64 {
        self.measured_slowdown().unwrap_or(self.slowdown)
    }

    fn measured_slowdown(&self) -> Option<f64> {
        Some((self.measured_one_row_ns()? / self.alone.value()?).max(1.0))
    }

    fn measured_one_row_ns(&self) -> Option<f64> {
        self.scores.measured().find(|&(rows, _)| rows == 1).map(|(_, ns)| ns)
    }

    /// Forgets some of the slowdown.
    fn fade_slowdown(&mut self) {
        let before = self.slowdown();
        self.scores.scale(faded(before) / before);
        self.slowdown = faded(self.slowdown);
    }

    fn knows_target(&self) -> bool {
        self.scores.is_known() || self.alone.is_known()
    }

    /// Returns whether to draft now. Otherwise the target is faster alone.
    #[must_use]
    pub fn drafts(&self) -> bool {
        self.mode != DraftLength::Auto || self.pauses.drafts()
    }

    /// Returns the number of draft tokens in a verification task.
    #[must_use]
    pub fn length(&self) -> usize {
        if self.mode == DraftLength::Auto { self.next } else { self.length }
    }

    /// Returns the largest number of rows of a job that takes drafts that have accumulated.
    #[must_use]
    pub fn max_rows(&self) -> usize {
        match self.mode {
            DraftLength::Auto => self.next.max(2),
            _ => self.max_ahead(),
        }
    }

    /// Sets the number of target replicas that have not failed, if the lookahead follows measured
    /// times.
    pub fn set_replicas(&mut self, count: usize) {
        if self.mode == DraftLength::Auto {
            self.replicas = count.max(1);
        }
    }

    /// Returns the lookahead with the most expected tokens per nanosecond, and that speed.
    fn best_length(&self) -> (usize, f64) {
        self.best_length_after(&self.survival())
    }

    /// Returns the same, with the probabilities that the first tokens are accepted.
    fn best_length_after(&self, survival: &[f64]) -> (usize, f64) {
        self.best_length_with(survival, &self.scores.up_to(self.length))
    }

    /// Returns the same if jobs take these times by their rows.
    fn best_length_with(&self, survival: &[f64], scores: &[f64]) -> (usize, f64) {
        // The cost of many more rows than were tried is not known.
        let reach = self.draft_time.whole_forwards(2 * self.scores.largest() + 1).min(self.length);
        let speeds: Vec<f64> = (1..=reach).map(|rows| self.speed(rows, survival, scores)).collect();
        let least = speeds.iter().fold(0.0, |best: f64, &speed| best.max(speed)) / MIN_GAIN;
        // Of those that are about as fast, the one with which the replicas just keep up.
        let keeps_up = |&rows: &usize| {
            self.draft_time.estimate_ns(rows) * self.replicas as f64
                >= self.score_ns(rows, scores) * (1.0 - 1e-6)
        };
        let enough = (1..=reach).find(keeps_up).unwrap_or(reach);
        let enough = self.draft_time.whole_forwards(enough);
        let fast = (1..=reach).filter(|&rows| speeds[rows - 1] >= least);
        let best = fast.min_by_key(|rows| rows.abs_diff(enough)).unwrap_or(1);
        (best, speeds[best - 1])
    }

    /// Returns the expected tokens per nanosecond with jobs of so many rows.
    fn speed(&self, rows: usize, survival: &[f64], scores: &[f64]) -> f64 {
        let (replicas, draft_ns) = (self.replicas, self.draft_time.estimate_ns(rows));
        Pipeline { survival, replicas, rows, draft_ns }.speed(|rows| self.score_ns(rows, scores))
    }

    /// Returns the share of a job of so many rows at the present load, with the time between jobs.
    fn score_ns(&self, rows: usize, scores: &[f64]) -> f64 {
        self.score_costs.share_at_load(scores[rows], rows as f64) + self.waited_ns
    }

    /// Returns how many tokens the drafter may be ahead of the rows that were submitted: those of
    /// the next job, or of two if several replicas work. More would only take cores from the
    /// target.
    #[must_use]
    pub fn max_waiting(&self) -> usize {
        match self.mode {
            DraftLength::Auto => self.replicas.min(2) * self.max_rows(),
            _ => usize::MAX,
        }
    }

    /// Returns how many tokens the drafter may be ahead of the committed ones: the tokens that all
    /// replicas verify, and those of two more tasks, which are drafted in the meantime. The
    /// automatic mode drafts fewer if drafting takes cores from the target.
    pub fn max_ahead(&self) -> usize {
        (self.length() * (self.replicas + 2)).min(self.ahead_that_pays)
    }

    /// Returns how many tokens one draft job should make.
    pub fn tokens_per_job(&self) -> usize {
        self.job_length(self.length())
    }

    /// Returns how many of `longest` tokens a job should draft.
    fn job_length(&self, longest: usize) -> usize {
        let by_times = self.draft_time.tokens_per_job(longest);
        match self.mode {
            DraftLength::Auto => {
                self.draft_time.whole_forwards(self.acceptance.job_length(by_times)).min(by_times)
            }
            _ => by_times,
        }
    }

    /// Returns, for `n` from 0, the probability that the first `n` tokens after the present text
    /// are accepted.
    fn survival(&self) -> Vec<f64> {
        let horizon = HORIZON.max(4 * self.length);
        self.acceptance.survival_in_jobs(horizon, self.job_length(self.length))
    }

    /// Returns the usual time of a job of so many rows; `None` if it is not known.
    fn usual_ns(&self, rows: usize, while_drafting: bool) -> Option<f64> {
        if rows <= 1 && !while_drafting {
            return self.alone.value();
        }
        // The times of more rows than were tried are not known.
        let is_known = self.scores.is_known() && rows <= self.scores.largest();
        is_known.then(|| self.scores.up_to(rows)[rows])
    }

    fn observe_alone(&mut self, ns: f64) {
        self.alone.add(ns);
        self.draft_time.expect(self.plain_ns());
        if !self.scores.is_known() {
            self.scores.adopt(std::iter::once((1, self.one_row_ns())));
        }
    }

    /// Returns the mean time of further rows of a job.
    fn row_ns(&self) -> f64 {
        let longest = self.scores.largest();
        let scores = self.scores.up_to(longest.max(1));
        (scores[longest] - scores[1]) / longest.saturating_sub(1).max(1) as f64
    }

    /// Returns the time in which a replica reads a token that it missed.
    fn reading_ns(&self) -> f64 {
        let plain_ns = self.plain_ns();
        match self.last_reading {
            Some((tokens, ns)) => (ns - plain_ns).max(0.0) / tokens as f64,
            None => self.row_ns().max(READING_SHARE * plain_ns),
        }
    }

    /// Returns how many committed tokens a replica may lag behind to get a job: what it reads in
    /// the time of a pass. More would hold up the job.
    #[must_use]
    pub fn max_lag(&self) -> usize {
        let one_ns = self.scores.up_to(1)[1];
        let row_ns = self.row_ns().max(READING_SHARE * one_ns);
        match self.mode {
            DraftLength::Auto if row_ns > 0.0 => ((one_ns / row_ns) as usize).max(self.max_ahead()),
            _ => usize::MAX,
        }
    }

    /// Returns what a trial might gain, and what it costs to read the tokens of a pause.
    fn outlook(&self) -> TrialOutlook {
        // All replicas but one have to read the tokens, at the same time. That slows down the other
        // one if they share cores.
        let unread_tokens = if self.all_replicas > 1 { self.unread_tokens as f64 } else { 0.0 };
        let lost_share = 1.0 - 1.0 / self.slowdown();
        let reading_ns = lost_share * unread_tokens * self.reading_ns();
        let catch_up_ns = self.draft_time.catch_up_ns() + reading_ns;
        let Some(alone_ns) = self.alone_ns().filter(|_| self.knows_times()) else {
            return TrialOutlook { catch_up_ns, ..TrialOutlook::default() };
        };
        let scores = self.scores.at_best_up_to(self.length);
        let speed = |rows: usize| {
            let share_ns = self.score_costs.share_at_load(scores[rows], rows as f64);
            let job_ns = (share_ns + self.waited_ns) / self.replicas as f64;
            rows as f64 / self.draft_time.estimate_ns(rows).max(job_ns)
        };
        let at_best = (1..=self.length).map(speed).fold(0.0, f64::max);
        let speedup_at_best = at_best * alone_ns;
        let draft_ns = self.draft_time.estimate_ns(1);
        let longest_ns = scores[self.scores.largest().min(self.length)];
        let expected_speedup = self.expected_speed() * alone_ns;
        TrialOutlook { speedup_at_best, expected_speedup, catch_up_ns, draft_ns, longest_ns }
    }

    fn knows_times(&self) -> bool {
        self.scores.is_known() && self.draft_time.is_known()
    }

    fn decide(&mut self) {
        // The next token of the target alone does not wait for a lookahead that nobody uses.
        if self.mode != DraftLength::Auto || !self.knows_times() || self.pauses.is_paused() {
            return;
        }
        let survival = self.survival();
        let (best, speed) = self.best_length_after(&survival);
        let explored = self.verdicts_left.and_then(|_| self.lookahead_to_explore(&survival, speed));
        // Scores may have shown that there is nothing to gain.
        self.verdicts_left = self.verdicts_left.filter(|_| explored.is_some());
        (self.next, self.speed) = (explored.unwrap_or(best), speed);
        // A trial is about what the estimates do not know.
        let is_trial = explored.is_some() || self.pauses.is_trial();
        self.ahead_that_pays = match is_trial {
            true => usize::MAX,
            false => self.draft_time.tokens_that_pay(&survival, self.slowdown(), speed),
        };
    }

    /// Returns the expected speed of the best lookahead. While drafting pauses, none is decided, so
    /// it is computed anew.
    fn expected_speed(&self) -> f64 {
        if self.pauses.is_paused() { self.best_length().1 } else { self.speed }
    }

    /// After a verdict, decides whether to try the lookahead that would be the fastest if numbers
    /// of rows that were not tried cost no more than fewer ones, as before a step. That takes few
    /// of the verdicts.
    fn explore(&mut self) {
        if !self.knows_times() || !self.drafts() {
            self.verdicts_left = None;
            return self.decide();
        }
        self.verdicts = self.verdicts.saturating_add(1);
        let may_begin = self.explorations.saturating_mul(EXPLORE_EVERY) <= self.verdicts;
        self.verdicts_left = match self.verdicts_left {
            Some(left) if left > 0 => Some(left - 1),
            _ => may_begin.then_some(EXPLORED_VERDICTS - 1),
        };
        self.decide();
        self.explorations += u32::from(self.verdicts_left.is_some());
    }

    /// Returns the lookahead to try, if it may be faster than the best known one, with its `speed`.
    fn lookahead_to_explore(&self, survival: &[f64], speed: f64) -> Option<usize> {
        let scores = self.scores.at_best_up_to(self.length);
        let (rows, at_best) = self.best_length_with(survival, &scores);
        (at_best > speed * MIN_GAIN_OF_TRIAL).then_some(rows)
    }
}

impl Policy for DsiLookahead {
    fn knowledge(&self) -> Knowledge {
        let (one_ns, slowdown) = (self.one_row_ns(), self.slowdown());
        let further =
            |(rows, ns): (usize, f64)| (rows.saturating_sub(1), (ns - one_ns).max(0.0) / slowdown);
        let is_measured = |rows: usize| self.scores.measured().any(|(other, _)| other == rows + 1);
        let known = self.known_rows.times().filter(|&(rows, _)| !is_measured(rows));
        let mut rows = CostCurve::default();
        rows.adopt(self.scores.measured().map(further).chain(known));
        Knowledge {
            acceptance: Some(self.acceptance.clone()),
            score_costs: self.score_costs,
            plain_ns: self.knows_target().then(|| self.plain_ns()),
            slowdown: self.measured_slowdown(),
            waited_ns: Some(self.waited_ns),
            rows,
            ..self.draft_time.knowledge()
        }
    }

    fn adopt(&mut self, known: &Knowledge) {
        if let Some(acceptance) = &known.acceptance {
            self.acceptance = acceptance.clone();
        }
        if let Some(alone_ns) = known.plain_ns {
            if !self.scores.is_measured() && !self.alone.is_measured() {
                self.score_costs = known.score_costs;
            }
            // What drafting costs the target stays as it is.
            self.scores.scale(alone_ns / self.alone.value_or(alone_ns));
            self.alone.replace(alone_ns);
            self.fade_slowdown();
            self.slowdown = known.slowdown.unwrap_or(self.slowdown);
            self.known_rows = known.rows.clone();
            let (one_ns, slowdown) = (self.one_row_ns(), self.slowdown());
            let further = known.rows.times().map(|(rows, ns)| (rows + 1, one_ns + slowdown * ns));
            self.scores.adopt(std::iter::once((1, one_ns)).chain(further));
        }
        self.waited_ns = known.waited_ns.unwrap_or(self.waited_ns);
        self.draft_time.adopt(known);
        self.drafter_lag = known.unread_tokens;
    }

    fn start(&mut self, known: &Knowledge, others_ns: f64) {
        (self.prompt_scores, self.unread_tokens) = (0, known.unread_tokens);
        self.verdicts_left = None;
        self.draft_time.start(known.unread_tokens);
        self.pauses.start(self.alone_ns(), others_ns);
        self.decide();
    }

    fn forecast(&self, missed: usize) -> Option<Forecast> {
        let alone_ns = self.alone_ns().filter(|_| self.draft_time.is_known())?;
        let speed = match self.mode {
            DraftLength::Auto => self.best_length().1,
            _ => self.speed(self.length, &self.survival(), &self.scores.up_to(self.length)),
        };
        let missed = if self.replicas > 1 { missed as f64 } else { 0.0 };
        let reading_ns = missed * self.reading_ns();
        let drafter_ns = self.draft_time.reading_ns(self.drafter_lag);
        let forecast = Forecast::new(self.mode, speed, alone_ns, drafter_ns.max(reading_ns));
        Some(forecast.starting_at(alone_ns * self.slowdown()))
    }
}

impl JobObserver for DsiLookahead {
    fn observe_score(&mut self, rows: usize, time: &JobTime, while_drafting: bool) {
        let own_rows = time.cost.own_rows.checked_div(time.cost.passes).unwrap_or(0);
        let read = (time.cost.own_rows as usize).saturating_sub(rows);
        self.has_read |= read > 0;
        if read >= READ_TOKENS {
            let ns = self.score_costs.alone_ns(time);
            self.last_reading = ns.map(|ns| (read, ns)).or(self.last_reading);
        }
        match self.prompt_scores {
            0 => {
                let usual_ns = self.usual_ns(rows.max(own_rows as usize), while_drafting);
                let time = &self.interruptions.filter_job(time, usual_ns);
                if let Some(ns) = self.score_costs.learn(time) {
                    // The target alone takes no longer for one row. The pass that measured it may
                    // have been cold.
                    if while_drafting && ns < self.alone.value_or(0.0) {
                        self.alone.add(ns);
                    }
                    match rows.max(own_rows as usize) {
                        1 if !while_drafting => self.observe_alone(ns),
                        rows => self.scores.add(rows, ns),
                    }
                    self.decide();
                }
            }
            // A replica's first job computes the prompt.
            _ => self.prompt_scores -= 1,
        }
    }

    fn observe_draft(&mut self, tokens: usize, time: &JobTime) {
        self.pauses.observe_draft(tokens);
        self.draft_time.add(tokens, time);
        self.decide();
    }

    fn observe_verdict(&mut self, tested: &[usize], rejected: bool, further: usize) {
        self.acceptance
            .observe_at(tested, tested.len() - usize::from(rejected && !tested.is_empty()));
        self.acceptance.skip(further.saturating_sub(usize::from(rejected)));
        self.explore();
    }

    fn observe_round(&mut self, tokens: usize, now_ns: u64, alone: bool) {
        if alone {
            self.draft_time.skip(tokens);
            self.unread_tokens += tokens;
        } else {
            self.unread_tokens = 0;
        }
        if std::mem::take(&mut self.has_read) && alone {
            return self.pauses.skip(now_ns);
        }
        let was_paused = self.pauses.is_paused();
        let outlook = self.pauses.needs_outlook().then(|| self.outlook());
        self.pauses.observe(tokens, now_ns, alone, outlook);
        if was_paused {
            self.decide();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(replicas: usize, score_ns: u64, token_ns: u64) -> DsiLookahead {
        let mut lookahead = DsiLookahead::new(64, DraftLength::Auto, replicas);
        assert_eq!(lookahead.length(), 4);
        for _ in 0..20 {
            lookahead.observe_score(64, &JobTime::alone(score_ns), true);
            lookahead.observe_draft(1, &JobTime::alone(token_ns));
        }
        lookahead
    }

    #[test]
    fn the_lookahead_is_the_smallest_that_the_replicas_keep_up_with() {
        // The paper's example: a drafter ten times as fast needs 5 replicas at lookahead 2.
        assert_eq!(learned(5, 1_000, 100).length(), 2);
        assert_eq!(learned(10, 1_000, 100).length(), 1);
        assert_eq!(learned(1, 1_000, 100).length(), 10);
        assert_eq!(learned(4, 1_000, 100).length(), 3);
        // A drafter slower than the target, and an extremely fast one.
        assert_eq!(learned(1, 1_000, 5_000).length(), 1);
        assert_eq!(learned(1, 1_000_000, 1).length(), 64);
    }

    #[test]
    fn drafters_with_several_tokens_per_forward_make_whole_forwards() {
        let learned = |per_forward: usize, replicas| {
            let lookahead = DsiLookahead::new(64, DraftLength::Auto, replicas);
            let mut lookahead = lookahead.with_tokens_per_forward(per_forward);
            for _ in 0..20 {
                lookahead.observe_score(64, &JobTime::alone(10_000_000), true);
                let draft_ns = 4_u64.div_ceil(per_forward as u64) * 1_000_000;
                lookahead.observe_draft(4, &JobTime::alone(draft_ns));
            }
            (lookahead.length(), lookahead.tokens_per_job())
        };
        // A target forward takes as long as ten drafter forwards, which the replicas share.
        assert_eq!((learned(1, 5), learned(4, 5), learned(4, 10)), ((2, 1), (8, 4), (4, 4)));
        assert_eq!(learned(4, 1), (40, 4));
        // A drafter that makes any number of tokens at once.
        assert_eq!(learned(usize::MAX, 5), (64, 64));
    }

    /// Up to three rows cost a pass each; of more, nothing is known.
    #[test]
    fn few_verdicts_try_other_lookaheads() {
        let known = Knowledge { rows: CostCurve::default(), ..Knowledge::of_target(1e6) };
        let mut lookahead = DsiLookahead::new(16, DraftLength::Auto, 1);
        lookahead.adopt(&known);
        lookahead.start(&known, 0.0);
        (0..200).for_each(|_| lookahead.observe_verdict(&[0], false, 0));
        for (rows, ns) in [(1, 1_000_000), (3, 3_000_000)] {
            lookahead.observe_score(rows, &JobTime::alone(ns), true);
        }
        let mut explored = 0;
        for _ in 0..1_600 {
            lookahead.observe_verdict(&[0], false, 0);
            // Jobs never have as many rows, so the trial never ends by itself.
            let (chosen, is_trial) = (lookahead.length(), lookahead.verdicts_left.is_some());
            explored += u32::from(is_trial);
            lookahead.observe_draft(1, &JobTime::alone(100_000));
            assert!(!is_trial || lookahead.length() == chosen, "it lasts until the next verdict");
        }
        assert!(explored > 0);
        assert!(explored <= 1_800 / EXPLORE_EVERY + EXPLORED_VERDICTS, "{explored}");
        assert_eq!(lookahead.verdicts, 1_800);
    }

    #[test]
    fn a_trial_ends_when_a_job_has_its_rows() {
        let mut lookahead = DsiLookahead::new(16, DraftLength::Auto, 1);
        lookahead.start(&Knowledge::of_target(1e6), 0.0);
        lookahead.pauses.start(Some(1e6), 0.0);
        for _ in 0..30 {
            lookahead.observe_score(2, &JobTime::alone(1_000_000), true);
            lookahead.observe_draft(1, &JobTime::alone(50_000));
        }
        lookahead.observe_score(4, &JobTime::alone(3_000_000), true);
        assert_eq!(lookahead.verdicts_left, None, "scores and drafts start no trial");
        lookahead.observe_verdict(&[0], false, 0);
        assert!(lookahead.verdicts_left.is_some());
        let rows = lookahead.length();
        lookahead.observe_score(rows, &JobTime::alone(50_000_000), true);
        assert!(lookahead.verdicts_left.is_none() || lookahead.length() < rows, "{lookahead:?}");
    }

    #[test]
    fn all_replicas_read_the_next_prompt() {
        let mut lookahead = DsiLookahead::new(16, DraftLength::Auto, 3);
        lookahead.set_replicas(1);
        assert_eq!(lookahead.for_new_answer(9).prompt_scores, 3);
    }

    /// The first replica reads a prompt of 100 tokens, which takes ten passes.
    #[test]
    fn reading_is_measured() {
        let mut lookahead = DsiLookahead::new(16, DraftLength::Auto, 2);
        let mut reading = JobTime::alone(11_000);
        reading.cost.add_pass(101, 101, 1, 11_000);
        lookahead.observe_score(1, &reading, false);
        lookahead.observe_round(1, 20_000, true);
        for step in 1..=3 {
            lookahead.observe_score(1, &JobTime::alone(1_000), false);
            lookahead.observe_round(1, 20_000 + step * 1_000, true);
        }
        assert_eq!(lookahead.reading_ns(), 100.0);
    }

    /// A draft token takes a fifth of a pass. If half of that is lost to the target, improbable
    /// tokens are not drafted.
    #[test]
    fn a_drafter_that_takes_cores_from_the_target_stops_at_improbable_tokens() {
        let max_ahead = |slowdown| {
            let known = Knowledge { slowdown: Some(slowdown), ..Knowledge::of_target(1e6) };
            let mut lookahead = DsiLookahead::new(16, DraftLength::Auto, 1);
            lookahead.start(&known, 0.0);
            lookahead.adopt(&known);
            for verdict in 0..400 {
                lookahead.observe_verdict(&[0], verdict % 4 == 0, usize::from(verdict % 4 == 0));
                lookahead.observe_draft(1, &JobTime::alone(200_000));
            }
            (lookahead.length(), lookahead.max_ahead())
        };
        let (rows, ahead) = max_ahead(1.0);
        assert_eq!(ahead, 3 * rows, "cores of its own");
        let (rows, ahead) = max_ahead(2.0);
        assert!(
            (3..3 * rows / 2).contains(&ahead),
            "cores of the target: {ahead} after jobs of {rows}"
        );
    }

    #[test]
    fn a_fixed_lookahead_is_constant_and_bounds_the_drafts() {
        let mut lookahead = DsiLookahead::new(5, DraftLength::Fixed, 3);
        lookahead.observe_score(1, &JobTime::alone(1_000), true);
        assert_eq!((lookahead.length(), lookahead.max_ahead()), (5, 25));
    }
}
