//! What jobs cost on the target and on a drafter. Each fact is learned once, for all methods.

use crate::batch_costs::{BatchCosts, JobTime, OneRowTime};
use crate::cost_curve::CostCurve;
use crate::decaying::DecayingMean;
use crate::interruptions::Interruptions;
use crate::ranked_tree::DraftSize;

/// The time in which a model reads a token that it missed, as a share of a pass over one row, until
/// it is measured: a pass over 33 rows takes twice as long as one over one row.
const READING_SHARE: f64 = 0.03;
/// A job that reads at least so many missed tokens first shows what reading costs. With fewer, it
/// may take longer for other reasons, such as cold caches, and shows nothing.
pub(crate) const READ_TOKENS: usize = 8;
/// Early passes that take more than so many times as long as the next one are cold: times of warm
/// passes differ by less.
const COLD: f64 = 1.1;
/// What remains of a measured slowdown, beyond 1, after a pass of the target alone: other programs
/// may have been its cause. After 230 passes, half of it is left.
const KEPT_SLOWDOWN: f64 = 0.997;
/// A drafter is slow by the sizes of the models if its forward takes so many passes of the target.
/// Sizes are not times, so one that might be as fast as the target is tried.
const SLOW_PASS: f64 = 1.5;
/// The duration of a draft job, in nanoseconds, for which the cost of messages is negligible: they
/// take a few microseconds between threads.
const MIN_JOB_NS: f64 = 100_000.0;

/// The times of the target's passes, in nanoseconds without the rows of neighbours.
#[derive(Clone, Debug, Default)]
pub(crate) struct TargetCosts {
    pub(crate) batch: BatchCosts,
    /// A pass over one row, while no drafter works and while one does.
    alone: OneRowTime,
    while_drafting: OneRowTime,
    /// Whether the first passes, each of which was cold, have ended.
    has_settled: bool,
    /// What further rows add to a pass, by their number, while no drafter works and while one does.
    rows: [CostCurve; 2],
    /// The time between passes of the target alone in which nothing is computed.
    waited_ns: DecayingMean,
    /// What a round takes from other sequences beyond its share: the time in which all of them
    /// together would commit its tokens, less that share.
    pub(crate) rent_ns: f64,
    /// The tokens that a replica read in its last job that read many, and the time of that job.
    last_reading: Option<(usize, f64)>,
    interruptions: Interruptions,
}

impl TargetCosts {
    /// Learns the time of a pass over `rows` rows.
    pub(crate) fn learn(&mut self, rows: usize, time: &JobTime, while_drafting: bool) {
        let time = &self.interruptions.filter_job(time, self.usual_ns(rows, while_drafting));
        let Some(ns) = self.batch.learn(time) else { return };
        let is_plain = rows <= 1 && !while_drafting;
        if is_plain && !self.has_settled {
            return self.settle(time, ns);
        }
        // The target alone takes no longer for one row. What measured it may have been cold.
        if is_plain || self.alone.is_known() && ns < self.plain_ns() {
            self.alone.add(time);
        }
        match rows {
            0 | 1 if while_drafting => self.while_drafting.add(time),
            0 | 1 => self.fade_slowdown(),
            _ if self.alone.is_known() || self.while_drafting.is_known() => {
                let further_ns = (ns - self.one_row_ns(while_drafting)).max(0.0);
                self.learn_rows(rows - 1, further_ns, while_drafting);
            }
            // One row takes no longer than several.
            _ => self.alone.add(time),
        }
    }

    fn learn_rows(&mut self, further: usize, ns: f64, while_drafting: bool) {
        let slowdown = self.slowdown();
        let [alone, drafting] = &mut self.rows;
        let scaled = |curve: &CostCurve, factor: f64| -> Vec<(usize, f64)> {
            curve.times().map(|(rows, ns)| (rows, factor * ns)).collect()
        };
        match while_drafting {
            true => drafting.add(further, ns),
            false if alone.is_measured() => alone.add(further, ns),
            // What was measured while drafting may have other causes.
            false => {
                *alone = CostCurve::default();
                alone.add(further, ns);
            }
        }
        if !alone.is_measured() {
            alone.adopt(scaled(drafting, 1.0 / slowdown).into_iter());
        }
        drafting.adopt(scaled(alone, slowdown).into_iter());
    }

    /// Learns from one of the first passes over one row.
    fn settle(&mut self, time: &JobTime, ns: f64) {
        self.has_settled = self.alone.is_known() && self.plain_ns() <= COLD * ns;
        match self.has_settled {
            true => self.alone.add(time),
            false => self.alone.replace(ns),
        }
    }

    /// Learns the time of a job in which a replica also read `tokens` tokens that it had missed.
    pub(crate) fn learn_reading(&mut self, tokens: usize, time: &JobTime) {
        if tokens >= READ_TOKENS {
            let ns = self.batch.alone_ns(time);
            self.last_reading = ns.map(|ns| (tokens, ns)).or(self.last_reading);
        }
    }

    /// Learns the time of a step of the target alone in which nothing was computed.
    pub(crate) fn learn_waiting(&mut self, ns: f64) {
        self.waited_ns.add(ns);
    }

    /// Returns whether the time of a pass over one row is known well enough to compare drafts with
    /// it.
    pub(crate) fn has_settled(&self) -> bool {
        self.has_settled
    }

    /// Returns the share of a pass of the target alone at the present load, with the time between
    /// passes; `None` if it is not known.
    pub(crate) fn plain_share(&self) -> Option<f64> {
        let is_known = self.alone.is_known() || self.while_drafting.is_known();
        is_known.then(|| self.share(self.plain_ns(), 1.0))
    }

    /// Returns the time of a pass over one row while no drafter works; 0 if nothing is known.
    pub(crate) fn plain_ns(&self) -> f64 {
        self.alone.without_neighbours_or(self.while_drafting_ns(0.0), &self.batch)
    }

    fn while_drafting_ns(&self, default: f64) -> f64 {
        self.while_drafting.without_neighbours_or(default, &self.batch)
    }

    fn one_row_ns(&self, while_drafting: bool) -> f64 {
        let plain_ns = self.plain_ns();
        if while_drafting { self.while_drafting_ns(plain_ns) } else { plain_ns }
    }

    /// Returns the time of a pass while a drafter works, in times of one while none does.
    pub(crate) fn slowdown(&self) -> f64 {
        let plain_ns = self.plain_ns();
        if plain_ns > 0.0 { (self.while_drafting_ns(plain_ns) / plain_ns).max(1.0) } else { 1.0 }
    }

    fn fade_slowdown(&mut self) {
        if self.while_drafting.is_known() {
            let slowdown = self.slowdown();
            self.while_drafting.scale((1.0 + KEPT_SLOWDOWN * (slowdown - 1.0)) / slowdown);
        }
    }

    /// Returns the usual time of a pass; `None` for more rows than were tried.
    fn usual_ns(&self, rows: usize, while_drafting: bool) -> Option<f64> {
        let further = rows.saturating_sub(1);
        let one_row = if while_drafting { &self.while_drafting } else { &self.alone };
        let rows = &self.rows[usize::from(while_drafting)];
        (one_row.is_known() && further <= rows.largest())
            .then(|| self.one_row_ns(while_drafting) + rows.at(further))
    }

    /// Returns the share of a pass that takes `ns` for `rows` rows, with the time between passes.
    fn share(&self, ns: f64, rows: f64) -> f64 {
        self.batch.share_at_load(ns, rows) + self.waited_ns.value_or(0.0) + self.rent_ns
    }

    /// Returns the times of passes over up to `longest` further rows. `at_best`: numbers of rows
    /// that were not tried cost no more than fewer ones.
    pub(crate) fn passes(&self, longest: usize, while_drafting: bool, at_best: bool) -> Passes<'_> {
        let rows = self.rows[usize::from(while_drafting)].up_to(longest, at_best);
        Passes { costs: self, one_row_ns: self.one_row_ns(while_drafting), rows }
    }

    /// Returns the largest number of further rows to consider, `first` before any were tried. The
    /// cost of many more than were tried is not known.
    pub(crate) fn reach(&self, first: usize) -> usize {
        2 * self.most_rows() + first
    }

    /// Returns the largest number of further rows that was tried.
    pub(crate) fn most_rows(&self) -> usize {
        self.rows.iter().map(CostCurve::largest).max().unwrap_or(0)
    }

    /// Returns the time in which a replica reads a token that it missed.
    pub(crate) fn reading_ns(&self) -> f64 {
        match self.last_reading {
            Some((tokens, ns)) => (ns - self.plain_ns()).max(0.0) / tokens as f64,
            None => self.row_ns(),
        }
    }

    /// Returns the mean time of a further row of a pass, or of a token that is read.
    pub(crate) fn row_ns(&self) -> f64 {
        let most = self.rows[0].largest().max(1);
        (self.rows[0].at(most) / most as f64).max(READING_SHARE * self.plain_ns())
    }
}

/// The times of passes by their number of rows.
pub(crate) struct Passes<'a> {
    costs: &'a TargetCosts,
    one_row_ns: f64,
    rows: Vec<f64>,
}

impl Passes<'_> {
    /// Returns the share of a pass with so many rows after the first one at the present load. The
    /// number may be a mean.
    pub(crate) fn ns(&self, further: f64) -> f64 {
        let (low, part) = (further as usize, further.fract());
        let at = |index: usize| self.rows.get(index).or(self.rows.last()).copied().unwrap_or(0.0);
        let further_ns = at(low) + part * (at(low + 1) - at(low));
        self.costs.share(self.one_row_ns + further_ns, further + 1.0)
    }
}

/// The times of a drafter's jobs, in nanoseconds without the rows of neighbours.
#[derive(Clone, Debug, Default)]
pub(crate) struct DrafterCosts {
    pub(crate) batch: BatchCosts,
    /// The number of tokens in a row that one forward makes; 0 counts as 1.
    pub(crate) tokens_per_forward: usize,
    /// The time of a forward in passes of the target that the sizes of the models suggest, and in
    /// nanoseconds once a pass is known.
    expected_passes: Option<f64>,
    expected_ns: f64,
    /// The time of a job by its number of forwards, while the target is idle and while it works.
    forwards: [CostCurve; 2],
    /// What a further row adds to a forward.
    row_ns: DecayingMean,
    /// The time in which it reads a token that it missed.
    reading_ns: DecayingMean,
    /// The least time of a forward in a job that read a few tokens first: until the usual time is
    /// known, it takes its place.
    forward_after_reading_ns: Option<f64>,
    /// The number of committed tokens that it has not read.
    pub(crate) lag: usize,
    interruptions: Interruptions,
}

impl DrafterCosts {
    fn per_forward(&self) -> usize {
        self.tokens_per_forward.max(1)
    }

    /// Expects a forward to take so many passes of the target, by the sizes of the models. If that
    /// is slow, it counts until it is measured.
    pub(crate) fn expect_passes(&mut self, passes: Option<f64>) {
        self.expected_passes = passes;
    }

    /// Learns the time of a pass of the target, from which that of a slow drafter is expected.
    pub(crate) fn expect(&mut self, plain_ns: f64) {
        self.expected_ns = self.expected_passes.unwrap_or(0.0) * plain_ns;
        if self.is_slow_by_size() {
            self.adopt_forward(self.expected_ns);
        }
    }

    /// Expects reading to take as long as on another device, until it is measured.
    pub(crate) fn adopt(&mut self, other: &Self) {
        if let Some(ns) = other.reading_ns.value() {
            self.reading_ns.adopt(ns);
        }
    }

    fn adopt_forward(&mut self, ns: f64) {
        for forwards in self.forwards.iter_mut().filter(|forwards| !forwards.is_measured()) {
            forwards.adopt(std::iter::once((1, ns)));
        }
    }

    fn is_measured(&self) -> bool {
        self.forwards.iter().any(CostCurve::is_measured)
    }

    pub(crate) fn is_slow_by_size(&self) -> bool {
        self.expected_passes.is_some_and(|passes| passes >= SLOW_PASS) && !self.is_measured()
    }

    /// Learns the time of a job that made a draft of a size, 0 if it found nothing, after reading
    /// `lag` tokens that it had missed. `ahead`: whether the target worked at the same time.
    pub(crate) fn learn(&mut self, size: DraftSize, time: &JobTime, lag: usize, ahead: bool) {
        let (forwards, further_rows) = self.forwards_of(size);
        let at = usize::from(ahead);
        let is_tried = (1..=self.forwards[at].largest()).contains(&forwards);
        let usual_ns = (lag == 0 && is_tried).then(|| self.usual_ns(size, ahead));
        let time = self.interruptions.filter_job(time, usual_ns);
        let Some(ns) = self.batch.learn(&time) else { return };
        if forwards == 0 {
            if lag > 0 {
                self.reading_ns.add(ns / lag as f64);
            }
            return;
        }
        if lag > 0 {
            return self.learn_reading(size, ns, lag, ahead);
        }
        if self.forwards[at].is_known() && further_rows > 0 {
            let forwards_ns = self.forwards[at].at(forwards);
            let row_ns = (ns - forwards_ns) / further_rows as f64;
            self.row_ns.add(row_ns.clamp(0.0, forwards_ns / forwards as f64));
        }
        let ns = (ns - self.rows_ns(further_rows)).max(0.0);
        if !self.forwards[at].is_measured() {
            self.forwards[at] = CostCurve::default();
        }
        self.forwards[at].add(forwards, ns);
        // Until the other time is measured, it is the same.
        if !self.forwards[1 - at].is_measured() {
            let known: Vec<(usize, f64)> = self.forwards[at].times().collect();
            self.forwards[1 - at].adopt(known.into_iter());
        }
    }

    fn learn_reading(&mut self, size: DraftSize, ns: f64, lag: usize, ahead: bool) {
        let forwards = self.forwards_of(size).0 as f64;
        if lag < READ_TOKENS {
            let least_ns = self.forward_after_reading_ns.unwrap_or(f64::INFINITY);
            let forward_ns = least_ns.min(ns / forwards);
            self.forward_after_reading_ns = Some(forward_ns);
            return self.adopt_forward(forward_ns);
        }
        let usual_ns = match self.is_measured() {
            true => Some(self.usual_ns(size, ahead)),
            false => self.forward_after_reading_ns.map(|ns| ns * forwards),
        };
        if let Some(usual_ns) = usual_ns {
            self.reading_ns.add((ns - usual_ns).max(0.0) / lag as f64);
        }
    }

    pub(crate) fn is_known(&self) -> bool {
        self.forwards[0].is_known()
    }

    /// Returns whether jobs had only one number of forwards, so that what further ones cost is not
    /// known: the job itself may take most of the time.
    pub(crate) fn is_flat_at_best(&self) -> bool {
        self.forwards[0].has_one_point()
    }

    pub(crate) fn knows_reading(&self) -> bool {
        self.reading_ns.is_known()
    }

    /// Returns the time in which it reads what it has missed.
    pub(crate) fn lag_ns(&self) -> f64 {
        self.reading_ns(self.lag)
    }

    /// Returns the time in which it reads so many tokens that it has missed.
    pub(crate) fn reading_ns(&self, tokens: usize) -> f64 {
        let forward_ns = if self.is_known() { self.forward_ns() } else { self.expected_ns };
        let guess_ns = || READING_SHARE * forward_ns;
        tokens as f64 * self.reading_ns.value().unwrap_or_else(guess_ns)
    }

    /// Returns the time of a job with one forward; 0 if nothing is known.
    pub(crate) fn forward_ns(&self) -> f64 {
        self.forwards[0].at(1)
    }

    /// Returns the number of forwards, and of their rows after the first of each.
    fn forwards_of(&self, size: DraftSize) -> (usize, usize) {
        let forwards = size.depth.div_ceil(self.per_forward());
        let further =
            if self.per_forward() > 1 { 0 } else { size.parents.saturating_sub(size.depth) };
        (forwards, further)
    }

    fn rows_ns(&self, further_rows: usize) -> f64 {
        further_rows as f64 * self.row_ns.value_or(0.0)
    }

    fn usual_ns(&self, size: DraftSize, ahead: bool) -> f64 {
        let (forwards, further_rows) = self.forwards_of(size);
        self.forwards[usize::from(ahead)].at(forwards) + self.rows_ns(further_rows)
    }

    /// Returns the times of drafts of up to `longest` tokens in a row. `at_best`: numbers of
    /// forwards that were not tried cost no more than fewer ones.
    pub(crate) fn drafts(&self, longest: usize, at_best: bool) -> Drafts<'_> {
        let forwards = longest.div_ceil(self.per_forward());
        Drafts { costs: self, ns: self.forwards[0].up_to(forwards, at_best) }
    }

    /// Returns the same while the target works.
    pub(crate) fn drafts_ahead(&self, longest: usize) -> Drafts<'_> {
        let forwards = longest.div_ceil(self.per_forward());
        Drafts { costs: self, ns: self.forwards[1].up_to(forwards, false) }
    }

    /// Returns the number of tokens that the forwards for `tokens` tokens make.
    pub(crate) fn whole_forwards(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.per_forward()).saturating_mul(self.per_forward())
    }

    /// Returns how many tokens one job should make, up to `max`: few enough to arrive early, but
    /// enough to justify the messages of a job, and whole forwards.
    pub(crate) fn tokens_per_job(&self, max: usize) -> usize {
        let forwards = match self.forward_ns() {
            ns if ns > 0.0 => ((MIN_JOB_NS / ns.max(1.0)) as usize).max(1),
            _ => 1,
        };
        forwards.saturating_mul(self.per_forward()).clamp(1, max.max(1))
    }
}

/// The times of drafts by their size.
pub(crate) struct Drafts<'a> {
    costs: &'a DrafterCosts,
    /// By the number of forwards.
    ns: Vec<f64>,
}

impl Drafts<'_> {
    /// Returns the share of a draft that is made in one job at the present load.
    pub(crate) fn ns(&self, size: DraftSize) -> f64 {
        let (forwards, further_rows) = self.costs.forwards_of(size);
        let ns = self.ns[forwards.min(self.ns.len() - 1)] + self.costs.rows_ns(further_rows);
        self.costs.batch.share_at_load(ns, size.parents as f64)
    }

    /// Returns the share of `tokens` tokens in a row that jobs of `per_job` tokens make.
    pub(crate) fn in_jobs_ns(&self, tokens: usize, per_job: usize) -> f64 {
        let job_ns = |tokens: usize| self.ns(DraftSize::of_chain(tokens));
        let (jobs, rest) = (tokens / per_job.max(1), tokens % per_job.max(1));
        jobs as f64 * job_ns(per_job) + if rest > 0 { job_ns(rest) } else { 0.0 }
    }
}
