//! Estimates from recent rounds. Older rounds count less.

use crate::decaying::DecayingMean;
use crate::interruptions::Interruptions;
use crate::knowledge::{Knowledge, READING_SHARE};
use forerun_core::{Completion, JobCost};

/// The weight of a round relative to the round after it.
const DECAY: f64 = 0.95;

/// An estimate of the acceptance rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct AcceptanceEstimate {
    accepted: f64,
    tested: f64,
}

impl AcceptanceEstimate {
    /// Counts a verdict.
    pub fn add(&mut self, accepted: usize, rejected: bool) {
        self.accepted = self.accepted * DECAY + accepted as f64;
        self.tested = self.tested * DECAY + (accepted + usize::from(rejected)) as f64;
    }

    /// Returns the acceptance rate as if `prior` more tokens had been accepted; 1 if nothing is
    /// known.
    pub fn rate(&self, prior: f64) -> f64 {
        let tested = self.tested + prior;
        if tested > 0.0 { (self.accepted + prior) / tested } else { 1.0 }
    }

    /// Reduces the weight of all rounds so far, so that the next ones dominate.
    pub fn forget_most(&mut self) {
        self.accepted *= 0.1;
        self.tested *= 0.1;
    }
}

/// How long a job ran, and what its passes cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct JobTime {
    /// How long the job ran, in nanoseconds.
    pub duration_ns: u64,
    /// When the job ended, on the cluster's clock.
    pub finished_ns: u64,
    /// What its passes cost.
    pub cost: JobCost,
}

impl From<&Completion> for JobTime {
    fn from(completion: &Completion) -> Self {
        Self {
            duration_ns: completion.duration_ns(),
            finished_ns: completion.finished_ns,
            cost: completion.cost,
        }
    }
}

impl JobTime {
    /// Returns the part of the job's time that was after `start_ns` on the cluster's clock, because
    /// other work hid the rest. It counts as the job's own, whoever shared its passes.
    #[must_use]
    pub fn clipped_to_after(self, start_ns: u64) -> Self {
        let duration_ns = self.duration_ns.min(self.finished_ns.saturating_sub(start_ns));
        Self { duration_ns, cost: JobCost::default(), ..self }
    }
}

#[cfg(test)]
impl JobTime {
    /// Returns the time of a job that ran for `ns` nanoseconds without neighbours.
    pub(crate) fn alone(ns: u64) -> Self {
        Self { duration_ns: ns, ..Self::default() }
    }
}

/// Separates the cost of a job's own rows from that of its neighbours' rows.
///
/// The time of passes is modelled as a linear function of their rows. For jobs without neighbours
/// the model has no effect: all their time is their own.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BatchCosts {
    // The means over passes without a neighbour's prompt.
    rows: DecayingMean,
    ns: DecayingMean,
    squared_rows: DecayingMean,
    rows_times_ns: DecayingMean,
    /// The time of a row, as it was last measured.
    row_ns: f64,
    /// The number of rows of the smallest recent passes.
    recent_rows: f64,
    /// The number of sequences in a pass.
    sequences: DecayingMean,
    /// The number of sequences that the worker serves, in these passes or in others.
    active: DecayingMean,
}

/// The variance of the number of rows that is needed to measure the time of a row.
const MIN_ROW_VARIANCE: f64 = 0.25;
/// Neighbours with this many times the rows of recent passes, and 32 more, are reading a prompt.
const UNUSUAL_FACTOR: f64 = 4.0;
const UNUSUAL_ROWS: f64 = 32.0;
/// How quickly larger passes become usual.
const RECENT_GROWTH: f64 = 1.05;

impl BatchCosts {
    /// Learns from the passes of a job. Returns the nanoseconds that the job would have taken
    /// without the rows of its neighbours; `None` if a neighbour was reading a prompt, so that the
    /// passes do not show the usual costs.
    pub(crate) fn learn(&mut self, time: &JobTime) -> Option<f64> {
        let cost = &time.cost;
        let alone_ns = self.alone_ns(time);
        if cost.passes > 0 {
            let per_pass = |count: u64| count as f64 / cost.passes as f64;
            let (rows, ns) = (per_pass(cost.batch_rows), per_pass(cost.busy_ns));
            let sequences = per_pass(cost.batch_sequences);
            self.recent_rows = rows.min(self.recent_rows * RECENT_GROWTH + 1.0);
            self.sequences.add(sequences);
            if cost.active_sequences > 0 {
                self.active.add(cost.active_sequences as f64);
            }
            alone_ns?;
            self.rows.add(rows);
            self.ns.add(ns);
            self.squared_rows.add(rows * rows);
            self.rows_times_ns.add(rows * ns);
            self.fit();
        }
        Some(time.duration_ns as f64 * cost.without_neighbours(self.row_ns))
    }

    /// Returns the nanoseconds that a job would have taken without the rows of its neighbours;
    /// `None` if a neighbour was reading a prompt.
    pub(crate) fn alone_ns(&self, time: &JobTime) -> Option<f64> {
        let cost = &time.cost;
        let per_pass = |count: u64| count as f64 / cost.passes.max(1) as f64;
        // The neighbours may do as this sequence does, or as in recent passes.
        let alike = per_pass(cost.own_rows) * per_pass(cost.batch_sequences);
        let usual = UNUSUAL_FACTOR * self.recent_rows.max(alike) + UNUSUAL_ROWS;
        let is_usual = per_pass(cost.neighbour_rows()) <= usual;
        is_usual.then(|| time.duration_ns as f64 * cost.without_neighbours(self.row_ns))
    }

    /// Fits the time of a row to the passes by least squares, if they differ enough in rows.
    fn fit(&mut self) {
        let (rows, ns) = (self.rows.value_or(0.0), self.ns.value_or(0.0));
        let variance = self.squared_rows.value_or(0.0) - rows * rows;
        if variance >= MIN_ROW_VARIANCE {
            let covariance = self.rows_times_ns.value_or(0.0) - rows * ns;
            self.row_ns = (covariance / variance).clamp(0.0, ns / rows);
        }
    }

    /// Returns a job's share of the nanoseconds that it and its neighbours ran: the time of its own
    /// rows, and an equal part of the rest.
    pub(crate) fn share_of(&self, time: &JobTime) -> f64 {
        time.duration_ns as f64 * time.cost.share(self.row_ns)
    }

    /// Returns a job's share at the present load, if all sequences that the worker serves do the
    /// same, in one pass. Without its neighbours' rows, the job would compute `rows` rows in `ns`
    /// nanoseconds.
    pub(crate) fn share_at_load(&self, ns: f64, rows: f64) -> f64 {
        let together = self.sequences.value_or(1.0);
        let part = 1.0 / together.max(self.active.value_or(together));
        ns * part + (self.row_ns * rows).min(ns) * (1.0 - part)
    }
}

/// The mean time of jobs that compute one row each, with any number of neighbours.
///
/// What the neighbours' rows cost may become known later, so it is subtracted from the mean.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OneRowTime {
    ns: DecayingMean,
    neighbour_rows: DecayingMean,
}

impl OneRowTime {
    /// Takes a later time without neighbours that was measured elsewhere. Returns by which factor
    /// it differs.
    pub(crate) fn replace(&mut self, ns: f64, costs: &BatchCosts) -> f64 {
        let before_ns = self.without_neighbours_or(ns, costs);
        self.ns.replace(ns);
        self.neighbour_rows.replace(0.0);
        if before_ns > 0.0 { ns / before_ns } else { 1.0 }
    }

    /// Multiplies all times so far.
    pub(crate) fn scale(&mut self, factor: f64) {
        self.ns.scale(factor);
    }

    pub(crate) fn is_measured(&self) -> bool {
        self.ns.is_measured()
    }

    pub(crate) fn add(&mut self, time: &JobTime) {
        self.ns.add(time.duration_ns as f64);
        self.neighbour_rows.add(time.cost.neighbour_rows() as f64);
    }

    pub(crate) fn is_known(&self) -> bool {
        self.ns.is_known()
    }

    /// Returns the time in nanoseconds without the rows of neighbours, or `default` if nothing is
    /// known.
    pub(crate) fn without_neighbours_or(&self, default: f64, costs: &BatchCosts) -> f64 {
        if !self.is_known() {
            return default;
        }
        let (ns, neighbour_rows) = (self.ns.value_or(0.0), self.neighbour_rows.value_or(0.0));
        // The job's own row takes at least as long as each of the others.
        (ns - costs.row_ns * neighbour_rows).max(ns / (1.0 + neighbour_rows))
    }
}

/// An estimate of the time that drafting takes, without the rows of neighbours.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftTime {
    /// The time of one forward.
    forward_ns: DecayingMean,
    costs: BatchCosts,
    /// The number of tokens that the drafter makes in one forward.
    tokens_per_forward: usize,
    /// The time of a forward in passes of the target that the sizes of the models suggest, if that
    /// is slow.
    slow_pass: Option<f64>,
    /// Whether the answer's first draft, which computes the prompt, has been observed.
    begun: bool,
    /// The number of committed tokens that the drafter has not read, because it paused.
    unread_tokens: usize,
    /// The time in which it reads one of them.
    catch_up_ns: DecayingMean,
    /// The time, forwards and unread tokens of a job before the usual speed was known.
    first_catch_up: Option<(f64, f64, usize)>,
    interruptions: Interruptions,
}

impl Default for DraftTime {
    fn default() -> Self {
        Self {
            forward_ns: DecayingMean::default(),
            costs: BatchCosts::default(),
            tokens_per_forward: 1,
            slow_pass: None,
            begun: false,
            unread_tokens: 0,
            catch_up_ns: DecayingMean::default(),
            first_catch_up: None,
            interruptions: Interruptions::default(),
        }
    }
}

/// A drafter is slow by the sizes of the models if its forward takes so many passes of the target.
/// Sizes are not times, and a drafter that might be as fast as the target is tried.
const SLOW_PASS: f64 = 1.5;
/// The duration of a draft job, in nanoseconds, for which the cost of messages is negligible.
const MIN_JOB_NS: f64 = 100_000.0;
/// Tokens of a pause that cost no noticeable time to read.
const UNREAD_TOKENS: usize = 2;

/// Returns the expected time of a drafter's forward, in passes of the target, if it is slow by
/// that.
pub(crate) fn slow_pass(expected_passes: Option<f64>) -> Option<f64> {
    expected_passes.filter(|&passes| passes >= SLOW_PASS)
}

impl DraftTime {
    /// Returns a copy for a new answer after a prompt of `prompt_tokens` tokens.
    pub(crate) fn for_new_answer(self, prompt_tokens: usize) -> Self {
        Self { begun: false, unread_tokens: prompt_tokens, ..self }
    }

    /// Returns a copy configured for a drafter that makes `tokens` tokens in one forward.
    pub(crate) fn with_tokens_per_forward(self, tokens: usize) -> Self {
        Self { tokens_per_forward: tokens.max(1), ..self }
    }

    /// Returns a copy configured for a drafter whose forward takes so many passes of the target by
    /// the sizes of the models. If that is slow, it counts until it is measured.
    pub(crate) fn with_expected_passes(self, passes: Option<f64>) -> Self {
        Self { slow_pass: slow_pass(passes), ..self }
    }

    /// Learns the time of a pass of the target alone, from which the drafter's is expected if that
    /// is slow and was not measured.
    pub(crate) fn expect(&mut self, plain_ns: f64) {
        if let Some(passes) = self.slow_pass.filter(|_| !self.forward_ns.is_measured()) {
            self.forward_ns.adopt(passes * plain_ns);
        }
    }

    /// Returns whether the drafter is slower than the target by the sizes of the models, and was
    /// not measured.
    pub(crate) fn is_slow_by_size(&self) -> bool {
        self.slow_pass.is_some() && !self.forward_ns.is_measured()
    }

    /// Learns how long a draft job of `tokens` tokens took. A job that had to read tokens of a
    /// pause first shows what that costs, and not the usual speed.
    pub(crate) fn add(&mut self, tokens: usize, time: &JobTime) {
        if tokens == 0 {
            return;
        }
        let unread_tokens = std::mem::take(&mut self.unread_tokens);
        if !std::mem::replace(&mut self.begun, true) {
            return;
        }
        let forwards = tokens.div_ceil(self.tokens_per_forward) as f64;
        let usual_ns = self.forward_ns.value().filter(|_| unread_tokens <= UNREAD_TOKENS);
        let usual_ns = usual_ns.map(|forward_ns| forwards * forward_ns);
        let time = self.interruptions.filter_job(time, usual_ns);
        let Some(ns) = self.costs.learn(&time) else { return };
        if unread_tokens <= UNREAD_TOKENS {
            if self.is_slow_by_size() {
                self.forward_ns = DecayingMean::default();
            }
            self.forward_ns.add(ns / forwards);
            if let Some((ns, forwards, unread_tokens)) = self.first_catch_up.take() {
                self.learn_catch_up(ns, forwards, unread_tokens);
            }
        } else if self.is_known() && !self.is_slow_by_size() {
            self.learn_catch_up(ns, forwards, unread_tokens);
        } else {
            self.first_catch_up = Some((ns, forwards, unread_tokens));
        }
    }

    /// Learns what it has not measured from another method.
    pub(crate) fn adopt(&mut self, known: &Knowledge) {
        if let Some(ns) = known.forward_ns.filter(|_| !self.forward_ns.is_measured()) {
            self.forward_ns.adopt(ns);
            self.costs = known.draft_costs;
        }
        if let Some(ns) = known.catch_up_ns {
            self.catch_up_ns.adopt(ns);
        }
    }

    /// Starts in the middle of an answer, with a drafter that has not read so many committed
    /// tokens.
    pub(crate) fn start(&mut self, unread_tokens: usize) {
        (self.begun, self.unread_tokens) = (true, unread_tokens);
    }

    /// Returns what other methods can use of what is known of the drafter, and nothing of the
    /// target.
    pub(crate) fn knowledge(&self) -> Knowledge {
        Knowledge {
            forward_ns: self.forward_ns.value(),
            draft_costs: self.costs,
            catch_up_ns: self.catch_up_ns.value(),
            unread_tokens: self.unread_tokens,
            ..Knowledge::default()
        }
    }

    fn learn_catch_up(&mut self, ns: f64, forwards: f64, unread_tokens: usize) {
        let usual_ns = forwards * self.forward_ns.value_or(0.0);
        self.catch_up_ns.add((ns - usual_ns).max(0.0) / unread_tokens as f64);
    }

    /// Learns that `tokens` tokens were committed while the drafter paused.
    pub(crate) fn skip(&mut self, tokens: usize) {
        self.unread_tokens += tokens;
    }

    /// Returns the estimated time, in nanoseconds, in which the drafter reads the tokens of its
    /// pause.
    pub(crate) fn catch_up_ns(&self) -> f64 {
        if self.is_slow_by_size() {
            return self.reading_ns(self.unread_tokens);
        }
        self.unread_tokens as f64 * self.catch_up_ns.value_or(0.0)
    }

    /// Returns the estimated time, in nanoseconds, in which the drafter reads so many tokens that
    /// it missed.
    pub(crate) fn reading_ns(&self, tokens: usize) -> f64 {
        let usual_ns = READING_SHARE * self.forward_ns.value_or(0.0);
        tokens as f64 * self.catch_up_ns.value_or(usual_ns)
    }

    /// Returns the estimated share, in nanoseconds, of drafting `tokens` tokens in one job at the
    /// present load; 0 if nothing is known.
    pub(crate) fn estimate_ns(&self, tokens: usize) -> f64 {
        let ns = tokens.div_ceil(self.tokens_per_forward) as f64 * self.forward_ns.value_or(0.0);
        self.costs.share_at_load(ns, tokens as f64)
    }

    /// Returns how many draft tokens after the committed ones pay for the time that drafting them
    /// takes from the target, whose passes take `slowdown` times as long while it drafts: those
    /// that are likely enough to be committed. `survival`: for `n` from 0, the probability that the
    /// first `n` are. `speed`: the committed tokens per nanosecond.
    pub(crate) fn tokens_that_pay(&self, survival: &[f64], slowdown: f64, speed: f64) -> usize {
        let per_forward = self.whole_forwards(1);
        let lost_ns = (1.0 - 1.0 / slowdown) * self.estimate_ns(per_forward) / per_forward as f64;
        if lost_ns <= 0.0 {
            return usize::MAX;
        }
        let pays = |&probability: &f64| probability > lost_ns * speed;
        // Of tokens after the last of these, nothing is known.
        let first = survival.iter().skip(1).position(|probability| !pays(probability));
        first.map_or(usize::MAX, |count| self.whole_forwards(count.max(1)))
    }

    /// Returns the number of tokens that the forwards for `tokens` tokens make.
    pub(crate) fn whole_forwards(&self, tokens: usize) -> usize {
        self.tokens_in_forwards(tokens.div_ceil(self.tokens_per_forward))
    }

    /// Returns the number of tokens that `forwards` forwards make.
    pub(crate) fn tokens_in_forwards(&self, forwards: usize) -> usize {
        forwards.saturating_mul(self.tokens_per_forward)
    }

    pub(crate) fn is_known(&self) -> bool {
        self.forward_ns.is_known()
    }

    /// Returns how many tokens one draft job should make, up to `max`: few enough to arrive early,
    /// but enough to justify the messages of a job, and whole forwards.
    pub(crate) fn tokens_per_job(&self, max: usize) -> usize {
        let forwards = MIN_JOB_NS / self.forward_ns.value_or(MIN_JOB_NS).max(1.0);
        self.tokens_in_forwards((forwards as usize).max(1)).clamp(1, max.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drafter_counts_as_slow_by_its_size_until_it_is_measured() {
        let expected = |passes| {
            let mut time =
                DraftTime::default().with_expected_passes(Some(passes)).for_new_answer(10);
            time.expect(1_000.0);
            time
        };
        assert!(!expected(1.4).is_known() && !expected(1.4).is_slow_by_size(), "it is tried");
        let mut slow = expected(4.0);
        assert_eq!((slow.is_slow_by_size(), slow.estimate_ns(2)), (true, 8_000.0));
        slow.expect(500.0);
        assert_eq!(slow.estimate_ns(2), 4_000.0, "the first pass was cold");
        assert_eq!(slow.catch_up_ns(), 10.0 * READING_SHARE * 2_000.0);
        // The first draft reads the prompt, the second one what was missed in a pause.
        slow.add(1, &JobTime::alone(9_000));
        slow.skip(20);
        slow.add(1, &JobTime::alone(5_000));
        assert!(slow.is_slow_by_size());
        slow.add(1, &JobTime::alone(3_000));
        assert_eq!((slow.is_slow_by_size(), slow.estimate_ns(1)), (false, 3_000.0));
        slow.skip(10);
        assert_eq!(slow.catch_up_ns(), 1_000.0, "a tenth of a microsecond for each of 20 tokens");
    }
}
