//! PEARL's draft length: fixed, or chosen from measured times and acceptance.

use crate::DraftLength;
use crate::acceptance::Acceptance;
use crate::cost_curve::CostCurve;
use crate::estimates::{BatchCosts, DraftTime, JobTime, OneRowTime};
use crate::interruptions::Interruptions;
use crate::knowledge::{Forecast, Knowledge, faded};
use crate::pauses::{Pauses, TrialOutlook};
use crate::rounds::ParallelRounds;
use crate::{JobObserver, Policy};

/// Decides how many tokens are drafted during a target forward (PEARL, arXiv 2408.11850, §4.4.1: γ
/// = round(c), where c is the ratio of the target's time to the drafter's).
///
/// The automatic mode goes further than the paper. From recent measurements it chooses the length
/// with the most tokens per second, because long drafts add rows to the next forward, and are worth
/// little if few tokens are accepted. After a rejection it may draft some tokens before the next
/// pass, so that the pass has more than one row. The paper's pre-verify never does, and its
/// ablation always drafts all γ. Drafting pauses while the target alone is faster.
///
/// If other sequences share the passes, times are the job's share of them
/// ([`JobCost::share`](forerun_core::JobCost::share)).
#[derive(Clone, Debug)]
pub struct PearlDraftLength {
    length: usize,
    mode: DraftLength,
    /// Whether a round ends with the target's forward pass while the drafter continues. The paper's
    /// schedule waits for the drafter.
    eager: bool,
    /// The costs of score jobs. The times below are without the rows of neighbours.
    score_costs: BatchCosts,
    /// The time of a forward with one row while the drafter is idle.
    alone: OneRowTime,
    /// The time of a forward with one row while the drafter works.
    while_drafting: OneRowTime,
    /// The same in times of a forward while the drafter is idle, as another method has measured it.
    slowdown: f64,
    /// The time that further rows add to a forward while the drafter is idle, by their number.
    rows: CostCurve,
    draft_time: DraftTime,
    acceptance: Acceptance,
    /// The estimated time for a token.
    token_ns: f64,
    /// γ of the next round and, after a rejection, the number of tokens to draft before the pass.
    next: (usize, usize),
    rounds: u32,
    /// The number of rounds that have tried other numbers of rows.
    explorations: u32,
    /// Whether the next forward is the answer's first one, which computes the prompt.
    first_score: bool,
    pauses: Pauses,
    interruptions: Interruptions,
    /// The time between passes in which nothing is computed, as another method has measured it.
    waited_ns: f64,
    /// The number of tokens that the drafter would have to read if this method went on after
    /// another.
    unread_tokens: usize,
}

/// The factor by which a longer draft has to be faster.
const MIN_GAIN: f64 = 1.001;
/// The draft length before any times are known.
const INITIAL_LENGTH: usize = 3;
/// The number of tokens after a rejection that are looked ahead.
const HORIZON: usize = 48;
/// The number of rounds after which a token is drafted although that does not pay.
const PROBE_EVERY: u32 = 8;
/// The number of rounds for each that tries another number of rows.
const EXPLORE_EVERY: u32 = 16;
/// The factor by which such a round must be faster at best.
const MIN_GAIN_OF_TRIAL: f64 = 1.03;

impl PearlDraftLength {
    /// Creates a policy that always drafts γ = `length` tokens (`Fixed`), or up to `length` tokens
    /// (`Auto`).
    ///
    /// With `eager` a round ends with the target's forward pass. It does not wait for a late
    /// drafter. A drafter that has made a fixed γ tokens makes up to γ more while the target is
    /// busy.
    #[must_use]
    pub fn new(length: usize, mode: DraftLength, eager: bool) -> Self {
        Self {
            length,
            mode,
            eager,
            score_costs: BatchCosts::default(),
            alone: OneRowTime::default(),
            while_drafting: OneRowTime::default(),
            slowdown: 1.0,
            rows: CostCurve::default(),
            draft_time: DraftTime::default(),
            acceptance: Acceptance::default(),
            token_ns: f64::INFINITY,
            next: (INITIAL_LENGTH.min(length), 0),
            rounds: 0,
            explorations: 0,
            first_score: true,
            pauses: Pauses::default(),
            interruptions: Interruptions::default(),
            waited_ns: 0.0,
            unread_tokens: 0,
        }
    }

    /// Returns a copy configured for a drafter that makes `tokens` tokens in one forward
    /// (ParallelSpec, PARD).
    #[must_use]
    pub fn with_tokens_per_forward(self, tokens: usize) -> Self {
        Self { draft_time: self.draft_time.with_tokens_per_forward(tokens), ..self }
    }

    /// Returns a copy configured for a drafter whose forward takes so many passes of the target by
    /// the sizes of the models. An automatic length does not try a slow one to learn that.
    #[must_use]
    pub fn with_expected_passes(self, passes: Option<f64>) -> Self {
        Self { draft_time: self.draft_time.with_expected_passes(passes), ..self }
    }

    /// Returns a copy for a new answer after a prompt of `prompt_tokens` tokens, which keeps the
    /// learned times and acceptance.
    #[must_use]
    pub fn for_new_answer(&self, prompt_tokens: usize) -> Self {
        let draft_time = self.draft_time.for_new_answer(prompt_tokens);
        let pauses = self.pauses.for_new_answer();
        Self { first_score: true, draft_time, pauses, ..self.clone() }
    }

    /// Returns the share of a pass of the target alone at the present load, with the time between
    /// passes; `None` if it is not known.
    fn alone_ns(&self) -> Option<f64> {
        let alone_ns = self.alone.without_neighbours_or(self.one_row_ns(), &self.score_costs);
        let share_ns = || self.score_costs.share_at_load(alone_ns, 1.0) + self.waited_ns;
        alone_ns.is_finite().then(share_ns)
    }

    /// Returns γ of the next round; 0 if the drafter should pause.
    #[must_use]
    pub fn next_length(&self) -> usize {
        let initial = INITIAL_LENGTH.min(self.length);
        match self.mode {
            DraftLength::Fixed => self.length,
            // The drafter reads the prompt with the target, unless earlier answers were faster
            // without it.
            _ if self.first_score => {
                match self.pauses.is_paused() || self.draft_time.is_slow_by_size() {
                    true => 0,
                    false => initial,
                }
            }
            _ if !self.pauses.drafts() => 0,
            _ if !self.draft_time.is_known() => initial,
            _ => self.next.0,
        }
    }

    /// Returns how many tokens to draft before the next pass, if no token is unverified.
    #[must_use]
    pub fn first_length(&self) -> usize {
        let knows = self.next_length() > 0 && self.draft_time.is_known() && !self.first_score;
        let first = if self.mode == DraftLength::Auto && knows { self.next.1 } else { 0 };
        // Only gains are at risk: the target works meanwhile if nothing is drafted first.
        let is_affordable = self.draft_time.estimate_ns(first) <= self.pauses.gained_ns();
        if is_affordable { first } else { 0 }
    }

    /// Returns the maximum number of tokens to draft during one forward, for this γ.
    pub fn max_new(&self, gamma: usize) -> usize {
        match self.mode {
            DraftLength::Fixed if self.eager => 2 * gamma,
            // The job in flight when a round ends counts towards the next round. A drafter that
            // barely keeps up must not become idle because of it.
            DraftLength::Auto
                if self.eager && self.draft_time.estimate_ns(gamma) >= self.score_ns(1.0, &[]) =>
            {
                gamma + self.tokens_per_job(gamma)
            }
            _ => gamma,
        }
    }

    /// Returns how many tokens one draft job should make.
    pub fn tokens_per_job(&self, gamma: usize) -> usize {
        self.acceptance_limited(self.draft_time.tokens_per_job(gamma))
    }

    /// Returns how many of `first` tokens that are drafted before a pass one job should make. The
    /// automatic mode counts on jobs of the usual length.
    pub fn tokens_per_first_job(&self, first: usize) -> usize {
        if self.mode == DraftLength::Auto { self.tokens_per_job(first) } else { first }
    }

    /// Returns the length of a job, if it would be up to `longest` because of times alone.
    fn acceptance_limited(&self, longest: usize) -> usize {
        match self.mode {
            DraftLength::Auto => {
                self.draft_time.whole_forwards(self.acceptance.job_length(longest)).min(longest)
            }
            _ => longest,
        }
    }

    /// Returns, for `n` from 0, the probability that the first `n` tokens after the present text
    /// are accepted.
    fn survival(&self) -> Vec<f64> {
        self.acceptance.survival_in_jobs(HORIZON, self.tokens_per_job(self.cap()))
    }

    /// Returns what estimates say about a trial of drafting.
    fn trial_outlook(&self) -> TrialOutlook {
        let catch_up_ns = self.draft_time.catch_up_ns();
        let speedup = |alone_ns| self.speed_at_best() * alone_ns;
        let speedup_at_best = self.alone_ns_to_beat().map_or(f64::INFINITY, speedup);
        let draft_ns = self.draft_time.estimate_ns(1);
        let further_ns = self.rows.up_to(self.rows.largest()).pop().unwrap_or(0.0);
        let longest_ns = self.alone_ns().map_or(0.0, |alone_ns| alone_ns + further_ns);
        let expected = |alone_ns| alone_ns / self.expected_token_ns();
        let expected_speedup = self.alone_ns_to_beat().map_or(0.0, expected);
        TrialOutlook { speedup_at_best, expected_speedup, catch_up_ns, draft_ns, longest_ns }
    }

    /// Returns the expected time of a token with drafts. While drafting pauses, no lengths are
    /// chosen, so it is computed anew.
    fn expected_token_ns(&self) -> f64 {
        if self.pauses.is_paused() { 1.0 / self.best_speed() } else { self.token_ns }
    }

    /// Returns the most tokens per nanosecond that the estimates expect of any lengths.
    fn best_speed(&self) -> f64 {
        self.best_lengths(&self.survival(), &self.rows.up_to(4 * self.length)).1
    }

    /// Returns the time of the target alone, if the automatic mode knows what to compare with it.
    fn alone_ns_to_beat(&self) -> Option<f64> {
        let decides = self.mode == DraftLength::Auto && self.draft_time.is_known();
        self.alone_ns().filter(|_| decides)
    }

    /// Chooses the lengths of the next round.
    fn choose(&mut self) {
        let Some(alone_ns) = self.alone_ns_to_beat() else { return };
        let survival = self.survival();
        let (best, speed) = self.best_lengths(&survival, &self.rows.up_to(4 * self.length));
        self.token_ns = 1.0 / speed;
        self.next = if speed * alone_ns > MIN_GAIN {
            let explored =
                if self.pauses.drafts() { self.explored(&survival, speed) } else { None };
            explored.unwrap_or(best)
        } else if self.pauses.is_trial() {
            // The estimates may be wrong, or the text may have become easier. Only drafts can show
            // it.
            self.lengths_of_trial(alone_ns)
        } else {
            // The target is better alone, but for a token now and then that shows the acceptance.
            (usize::from(self.rounds.is_multiple_of(PROBE_EVERY)), 0)
        };
    }

    /// Returns the lengths of a trial without a gain in sight: those that have one if the text is
    /// easy now or, if none has, if numbers of rows that were not tried cost no more than fewer
    /// ones.
    fn lengths_of_trial(&self, alone_ns: f64) -> (usize, usize) {
        let per_job = self.tokens_per_job(self.cap());
        let survival = self.acceptance.survival_in_jobs_if_easy(HORIZON, per_job);
        let (lengths, speed) = self.best_lengths(&survival, &self.rows.up_to(4 * self.length));
        if speed * alone_ns > MIN_GAIN {
            return lengths;
        }
        self.best_lengths(&survival, &self.rows.at_best_up_to(4 * self.length)).0
    }

    /// Returns the usual time of a score job with so many rows; `None` if it is not known.
    fn usual_ns(&self, rows: usize, while_drafting: bool) -> Option<f64> {
        // The times of more rows than were tried are not known.
        let further = Some(rows.saturating_sub(1)).filter(|&n| n <= self.rows.largest())?;
        let slowdown = if while_drafting { self.slowdown() } else { 1.0 };
        let one_row_ns = match while_drafting {
            true => self.one_row_ns(),
            false => self.alone.without_neighbours_or(f64::INFINITY, &self.score_costs),
        };
        let ns = one_row_ns + slowdown * self.rows.up_to(further)[further];
        ns.is_finite().then_some(ns)
    }

    fn one_row_ns(&self) -> f64 {
        let costs = &self.score_costs;
        let alone_ns = self.alone.without_neighbours_or(f64::INFINITY, costs);
        self.while_drafting.without_neighbours_or(alone_ns * self.slowdown, costs)
    }

    /// Returns the time of a forward while both models work, in times of one while only one does.
    fn slowdown(&self) -> f64 {
        self.measured_slowdown().unwrap_or(self.slowdown)
    }

    /// Returns the time of a forward with one row while the drafter works, in times of one while it
    /// is idle; `None` if they were not measured.
    fn measured_slowdown(&self) -> Option<f64> {
        let are_known = self.alone.is_known() && self.while_drafting.is_known();
        let alone_ns = self.alone.without_neighbours_or(f64::INFINITY, &self.score_costs);
        are_known.then(|| (self.one_row_ns() / alone_ns).max(1.0))
    }

    /// Forgets some of the slowdown.
    fn fade_slowdown(&mut self) {
        let before = self.slowdown();
        self.while_drafting.scale(faded(before) / before);
        self.slowdown = faded(self.slowdown);
    }

    /// Returns the estimated share of a score job with `rows` rows at the present load, while the
    /// drafter works, with the time between passes; infinite if nothing is known. `further` has the
    /// times of further rows.
    fn score_ns(&self, rows: f64, further: &[f64]) -> f64 {
        let (low, part) = ((rows - 1.0) as usize, rows.fract());
        let at = |index: usize| further.get(index).or(further.last()).copied().unwrap_or(0.0);
        let further_ns = at(low) + part * (at(low + 1) - at(low));
        let ns = self.one_row_ns() + self.slowdown() * further_ns;
        self.score_costs.share_at_load(ns, rows) + self.waited_ns
    }

    /// Returns γ and the number of tokens to draft before a pass without any, with the most tokens
    /// per nanosecond, and that speed. More tokens must be faster by the factor [`MIN_GAIN`].
    /// `further`: the times of further rows.
    fn best_lengths(&self, survival: &[f64], further: &[f64]) -> ((usize, usize), f64) {
        let speed = |length, first| self.speed(length, first, survival, further);
        let better = |best: ((usize, usize), f64), lengths: (usize, usize)| {
            let speed = speed(lengths.0, lengths.1);
            if speed > best.1 * MIN_GAIN { (lengths, speed) } else { best }
        };
        // First γ, and then what is drafted before a pass.
        let first = if self.eager { self.next.1 } else { 0 };
        let best = (1..=self.longest()).map(|length| (length, first)).fold(((1, 0), 0.0), better);
        let longest_first = if self.eager { best.0.0.min(self.length) } else { 0 };
        let firsts = (0..=longest_first).map(|first| (best.0.0, first));
        firsts.fold(((best.0.0, first), 0.0), better)
    }

    /// Returns the lengths that would be faster than `speed` if numbers of rows that were not tried
    /// cost no more than fewer ones, as before a step. Few rounds try them.
    fn explored(&mut self, survival: &[f64], speed: f64) -> Option<(usize, usize)> {
        if self.explorations.saturating_mul(EXPLORE_EVERY) > self.rounds {
            return None;
        }
        let (lengths, at_best) =
            self.best_lengths(survival, &self.rows.at_best_up_to(4 * self.length));
        (at_best > speed * MIN_GAIN_OF_TRIAL).then(|| {
            self.explorations += 1;
            lengths
        })
    }

    /// Returns the tokens per nanosecond if all draft tokens were right, and if more rows than were
    /// tried cost nothing.
    fn speed_at_best(&self) -> f64 {
        let further = self.rows.at_best_up_to(self.cap());
        let speed = |length: usize| {
            let draft_ns = self.draft_time.estimate_ns(length);
            length as f64 / draft_ns.max(self.score_ns(length as f64, &further))
        };
        (1..=self.cap()).map(speed).fold(0.0, f64::max)
    }

    /// Returns the largest γ to consider: about twice as many rows as were tried, because the cost
    /// of more is not known.
    fn longest(&self) -> usize {
        let reach = 2 * self.rows.largest() + INITIAL_LENGTH;
        self.draft_time.whole_forwards(reach).min(self.cap())
    }

    /// Returns the largest γ. As with a fixed γ, an eager drafter may make twice as many tokens.
    fn cap(&self) -> usize {
        if self.eager { 2 * self.length } else { self.length }
    }

    /// Returns the expected tokens per nanosecond with γ = `length` and `first` tokens before the
    /// first pass.
    fn speed(&self, length: usize, first: usize, survival: &[f64], further: &[f64]) -> f64 {
        let (requested, requested_ns) = (length as f64, self.draft_time.estimate_ns(length));
        let score_ns = |rows| self.score_ns(rows, further);
        // A round waits for at least one token, and so for all tokens of its job.
        let (new, min_ns) = match self.eager && requested_ns > 0.0 {
            true => {
                let min_tokens = self.tokens_per_job(length);
                // Without the errors of sums, so that a whole number stays one.
                let in_time = (requested * score_ns(1.0) / requested_ns * 1e6).round() / 1e6;
                let new = in_time.clamp(min_tokens as f64, requested);
                (new, self.draft_time.estimate_ns(min_tokens))
            }
            false => (requested, requested_ns),
        };
        let first_ns = self.draft_time.estimate_ns(first);
        ParallelRounds { survival, first, new, first_ns, min_ns }.speed(score_ns)
    }
}

impl Policy for PearlDraftLength {
    fn knowledge(&self) -> Knowledge {
        let alone_ns = self.alone.without_neighbours_or(self.one_row_ns(), &self.score_costs);
        Knowledge {
            acceptance: Some(self.acceptance.clone()),
            score_costs: self.score_costs,
            plain_ns: alone_ns.is_finite().then_some(alone_ns),
            slowdown: self.measured_slowdown(),
            waited_ns: Some(self.waited_ns),
            rows: self.rows.clone(),
            ..self.draft_time.knowledge()
        }
    }

    fn adopt(&mut self, known: &Knowledge) {
        if let Some(acceptance) = &known.acceptance {
            self.acceptance = acceptance.clone();
        }
        let is_measured = self.alone.is_measured() || self.while_drafting.is_known();
        if let Some(ns) = known.plain_ns {
            if !is_measured {
                self.score_costs = known.score_costs;
            }
            // What drafting costs the target stays as it is.
            let factor = self.alone.replace(ns, &self.score_costs);
            self.while_drafting.scale(factor);
        }
        self.fade_slowdown();
        self.slowdown = known.slowdown.unwrap_or(self.slowdown);
        self.waited_ns = known.waited_ns.unwrap_or(self.waited_ns);
        self.rows.adopt(known.rows.times());
        self.draft_time.adopt(known);
        self.unread_tokens = known.unread_tokens;
    }

    fn start(&mut self, known: &Knowledge, others_ns: f64) {
        self.first_score = false;
        self.draft_time.start(known.unread_tokens);
        self.pauses.start(self.alone_ns(), others_ns);
        self.choose();
    }

    fn forecast(&self, _missed: usize) -> Option<Forecast> {
        let alone_ns = self.alone_ns().filter(|_| self.draft_time.is_known())?;
        let reading_ns = self.draft_time.reading_ns(self.unread_tokens);
        let speed = match self.mode {
            DraftLength::Auto => self.best_speed(),
            _ => self.speed(self.length, 0, &self.survival(), &self.rows.up_to(4 * self.length)),
        };
        Some(Forecast::new(self.mode, speed, alone_ns, reading_ns))
    }
}

impl JobObserver for PearlDraftLength {
    fn observe_score(&mut self, rows: usize, time: &JobTime, while_drafting: bool) {
        if std::mem::take(&mut self.first_score) {
            return;
        }
        let time = &self.interruptions.filter_job(time, self.usual_ns(rows, while_drafting));
        let Some(ns) = self.score_costs.learn(time) else { return };
        // The target alone takes no longer for one row. The pass that measured it may have been
        // cold.
        if while_drafting && ns < self.alone.without_neighbours_or(0.0, &self.score_costs) {
            self.alone.add(time);
        }
        match rows {
            1 if while_drafting => self.while_drafting.add(time),
            1 => {
                self.alone.add(time);
                self.draft_time.expect(self.alone.without_neighbours_or(0.0, &self.score_costs));
            }
            _ if self.one_row_ns().is_finite() => {
                self.rows.add(rows - 1, (ns - self.one_row_ns()).max(0.0) / self.slowdown());
            }
            _ => {}
        }
    }

    fn observe_draft(&mut self, tokens: usize, time: &JobTime) {
        self.pauses.observe_draft(tokens);
        self.draft_time.add(tokens, time);
    }

    fn observe_verdict(&mut self, tested: &[usize], rejected: bool, further: usize) {
        self.acceptance
            .observe_at(tested, tested.len() - usize::from(rejected && !tested.is_empty()));
        self.acceptance.skip(further.saturating_sub(usize::from(rejected)));
    }

    fn observe_round(&mut self, tokens: usize, now_ns: u64, alone: bool) {
        if alone {
            self.draft_time.skip(tokens);
        }
        self.rounds = self.rounds.wrapping_add(1);
        let outlook = self.pauses.needs_outlook().then(|| self.trial_outlook());
        self.pauses.observe(tokens, now_ns, alone, outlook);
        // The next token of the target alone does not wait for lengths that nobody uses.
        if !self.pauses.is_paused() {
            self.choose();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a guess, several tokens were committed that the drafter's were not tested against.
    /// What is known of the present stretch of text fades with each of them.
    #[test]
    fn a_stretch_fades_with_every_token_that_was_not_tested() {
        let acceptance_after = |further| {
            let mut draft_length = PearlDraftLength::new(8, DraftLength::Auto, true);
            (0..30).for_each(|_| draft_length.observe_verdict(&[0], true, 1));
            draft_length.observe_verdict(&[0], true, further);
            draft_length.acceptance.survival(1)[1]
        };
        let after = [1, 2, 5, 20].map(acceptance_after);
        assert!(after.is_sorted_by(|less, more| less < more), "{after:?}");
    }

    /// Simulates rounds in which one token of `run` is wrong, and returns their lengths.
    /// `score_ns`: the time of the first row of a forward, and of each further row.
    fn run(
        draft_length: &mut PearlDraftLength,
        rounds: usize,
        draft_ns: u64,
        score_ns: [u64; 2],
        run: usize,
    ) -> Vec<usize> {
        run_by(draft_length, rounds, |gamma| gamma as u64 * draft_ns, score_ns, run)
    }

    /// Simulates rounds like [`run`], with a function that gives the time of a draft by its length.
    fn run_by(
        draft_length: &mut PearlDraftLength,
        rounds: usize,
        draft_ns: impl Fn(usize) -> u64,
        score_ns: [u64; 2],
        run: usize,
    ) -> Vec<usize> {
        let mut lengths = Vec::new();
        let (mut unverified, mut right, mut now_ns) = (0, 0, 0);
        for _ in 0..rounds {
            let gamma = draft_length.next_length();
            lengths.push(gamma);
            let rows = unverified as u64 + 1;
            let time = score_ns[0] + (rows - 1) * score_ns[1];
            draft_length.observe_score(rows as usize, &JobTime::alone(time), gamma > 0);
            if gamma > 0 {
                draft_length.observe_draft(gamma, &JobTime::alone(draft_ns(gamma)));
            }
            // One draft token of `run` is wrong.
            let tested = unverified + usize::from(gamma > 0);
            let wrong = (0..tested).find(|place| is_wrong(right + place, run));
            let own = wrong.is_some() || gamma == 0;
            // All tokens are as often right at the start of a job as later.
            let positions = vec![0; wrong.map_or(tested, |accepted| accepted + 1)];
            draft_length.observe_verdict(&positions, wrong.is_some(), usize::from(own));
            // A round waits for all draft tokens, or for those of one job.
            let awaited = if draft_length.eager { gamma.min(1) } else { gamma };
            now_ns += time.max(if gamma > 0 { draft_ns(awaited) } else { 0 });
            let committed = wrong.unwrap_or(tested) + usize::from(own);
            draft_length.observe_round(committed, now_ns, unverified == 0 && gamma == 0);
            right += wrong.map_or(tested, |accepted| accepted + 1);
            unverified = if wrong.is_some() || gamma == 0 { 0 } else { gamma - 1 };
        }
        lengths
    }

    fn is_wrong(token: usize, run: usize) -> bool {
        let mixed = (token as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32;
        mixed.is_multiple_of(run as u64)
    }

    /// Returns the most frequent length.
    fn usual(lengths: &[usize]) -> usize {
        let count = |length: usize| lengths.iter().filter(|&&other| other == length).count();
        (0..=64).max_by_key(|&length| count(length)).unwrap_or(0)
    }

    #[test]
    fn a_fixed_length_is_constant() {
        let mut draft_length = PearlDraftLength::new(5, DraftLength::Fixed, true);
        assert!(run(&mut draft_length, 50, 100, [1_000, 20], 9).iter().all(|&length| length == 5));
        assert_eq!((draft_length.max_new(5), draft_length.tokens_per_job(5)), (10, 5));
    }

    #[test]
    fn the_automatic_length_is_near_the_ratio_of_times() {
        // If nearly all tokens are accepted, it pays to wait for a drafter that is almost done.
        for (draft_ns, expected) in [(100_000, 9..=10), (250_000, 4..=4), (450_000, 2..=3)] {
            let mut draft_length = PearlDraftLength::new(16, DraftLength::Auto, true);
            let lengths = run(&mut draft_length, 300, draft_ns, [1_000_000, 0], 40);
            let settled = &lengths[lengths.len() - 100..];
            let drafted = settled.iter().filter(|&&length| length > 0);
            assert!(drafted.clone().all(|length| expected.contains(length)), "{settled:?}");
            assert!(drafted.count() >= 90);
        }
    }

    #[test]
    fn drafters_with_several_tokens_per_forward_make_whole_forwards() {
        let forwards_ns = |gamma: usize| gamma.div_ceil(6) as u64 * 900_000;
        let last = |draft_length: &mut PearlDraftLength| {
            let lengths = run_by(draft_length, 300, forwards_ns, [1_000_000, 10_000], 10);
            lengths.into_iter().rfind(|&length| length > 0)
        };
        let mut policy =
            PearlDraftLength::new(16, DraftLength::Auto, false).with_tokens_per_forward(6);
        assert_eq!(last(&mut policy), Some(6));
        // One job requests all tokens of a forward, and as many forwards as justify its messages.
        assert_eq!([6, 4, 16].map(|gamma| policy.tokens_per_job(gamma)), [6, 4, 6]);
        let unlimited =
            PearlDraftLength::new(16, DraftLength::Fixed, true).with_tokens_per_forward(usize::MAX);
        assert_eq!((unlimited.tokens_per_job(8), unlimited.draft_time.estimate_ns(9)), (8, 0.0));
    }

    #[test]
    fn eager_rounds_allow_a_slower_drafter() {
        let last = |eager: bool| {
            let mut draft_length = PearlDraftLength::new(16, DraftLength::Auto, eager);
            usual(&run(&mut draft_length, 1_000, 700_000, [1_000_000, 0], 3)[500..])
        };
        // Two tokens take 1.4 times as long as a forward pass. Rounds that wait for both reach only
        // 0.97 times the speed of plain decoding.
        assert_eq!((last(true), last(false)), (2, 0));
    }

    #[test]
    fn a_slow_parallel_forward_is_used_for_all_its_tokens() {
        let forwards_ns = |gamma: usize| gamma.div_ceil(6) as u64 * 3_000_000;
        let mut draft_length =
            PearlDraftLength::new(6, DraftLength::Auto, true).with_tokens_per_forward(6);
        let lengths = run_by(&mut draft_length, 300, forwards_ns, [1_000_000, 0], 20);
        // Four or five tokens in the time of three forward passes are more than three.
        assert!(lengths[200..].iter().filter(|&&length| length == 6).count() > 90, "{lengths:?}");
    }

    #[test]
    fn plain_rounds_measure_the_speed_to_beat() {
        let mut draft_length = PearlDraftLength::new(4, DraftLength::Auto, true);
        let lengths = run(&mut draft_length, 2_000, 200_000, [1_000_000, 0], 7);
        let plain = lengths.iter().filter(|&&length| length == 0).count();
        // Six or seven each time, if one verifies what is drafted already: at the start, and once
        // in the two seconds after it, because six plain rounds may cost 0.3 % of the time.
        assert!((12..=15).contains(&plain), "{plain}");
    }

    /// The first three tokens of each job are right, and the fourth one is wrong.
    #[test]
    fn jobs_end_before_positions_at_which_the_drafter_fails() {
        let mut draft_length = PearlDraftLength::new(6, DraftLength::Auto, true);
        (0..3).for_each(|_| draft_length.observe_draft(6, &JobTime::alone(60_000)));
        assert_eq!(draft_length.tokens_per_job(6), 6);
        for _ in 0..100 {
            draft_length.observe_verdict(&[0, 1, 2, 3], true, 1);
        }
        assert_eq!(draft_length.tokens_per_job(6), 3);
    }

    #[test]
    fn expensive_rows_shorten_drafts() {
        let mut cheap = PearlDraftLength::new(16, DraftLength::Auto, true);
        let mut expensive = cheap.clone();
        let last = |lengths: Vec<usize>| lengths.into_iter().rfind(|&length| length > 0);
        let with_cheap = last(run(&mut cheap, 200, 50_000, [1_000_000, 0], 4));
        let with_expensive = last(run(&mut expensive, 200, 50_000, [1_000_000, 250_000], 4));
        assert!(with_expensive < with_cheap, "{with_expensive:?} {with_cheap:?}");
    }

    #[test]
    fn drafting_pauses_if_the_drafter_is_slower_than_the_target() {
        let mut draft_length = PearlDraftLength::new(16, DraftLength::Auto, true);
        let lengths = run(&mut draft_length, 6_000, 3_000_000, [1_000_000, 0], 2);
        let drafting = lengths[20..].iter().filter(|&&length| length > 0).count();
        assert!((1..=20).contains(&drafting), "{drafting}");
        while !draft_length.pauses.is_paused() {
            run(&mut draft_length, 1, 3_000_000, [1_000_000, 0], 2);
        }
        assert_eq!(draft_length.for_new_answer(8).next_length(), 0, "nor does it read the prompt");
    }
}
