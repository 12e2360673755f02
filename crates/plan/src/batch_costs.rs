//! How long jobs ran, and what of that was the cost of their neighbours' rows.

use crate::costs::READ_TOKENS;
use crate::decaying::DecayingMean;
use forerun_core::{Completion, JobCost};

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

/// The variance of the number of rows that is needed to measure the time of a row: that of numbers
/// that differ by one as often as not.
const MIN_ROW_VARIANCE: f64 = 0.25;
/// Neighbours with this many times the rows of recent passes are reading a prompt, unless they are
/// few. Drafts of several lengths are within it.
const UNUSUAL_FACTOR: f64 = 4.0;
/// How quickly larger passes become usual: by a factor of two in 14 passes.
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
        let usual = UNUSUAL_FACTOR * (self.recent_rows.max(alike) + READ_TOKENS as f64);
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

    /// Returns the number of sequences that share the worker.
    pub(crate) fn load(&self) -> f64 {
        let together = self.sequences.value_or(1.0);
        together.max(self.active.value_or(together))
    }

    /// Takes over the load of another worker, whose sequences are the same.
    pub(crate) fn adopt_load(&mut self, other: &Self) {
        self.active = other.active;
    }

    /// Returns a job's share at the present load, if all sequences that the worker serves do the
    /// same, in one pass. Without its neighbours' rows, the job would compute `rows` rows in `ns`
    /// nanoseconds.
    pub(crate) fn share_at_load(&self, ns: f64, rows: f64) -> f64 {
        let part = 1.0 / self.load();
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
    /// Takes a time without neighbours in place of all so far.
    pub(crate) fn replace(&mut self, ns: f64) {
        self.ns.replace(ns);
        self.neighbour_rows.replace(0.0);
    }

    /// Multiplies all times so far.
    pub(crate) fn scale(&mut self, factor: f64) {
        self.ns.scale(factor);
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
