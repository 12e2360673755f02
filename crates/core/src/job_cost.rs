//! What the forward passes of a job cost, and the job's share of them.

use serde::{Deserialize, Serialize};

/// The cost of the forward passes that a job took part in.
///
/// A pass may serve the jobs of several sequences. All numbers are sums over the passes. A row is a
/// token that a pass computes.
///
/// The methods assume that a pass over `r` rows takes `a + b · r` nanoseconds: reading the weights
/// takes `a` once for all sequences, and each row takes `b` (`row_ns`). A job without neighbours
/// has all of its passes to itself, whatever `b` is.
///
/// ```rust
/// use forerun_core::JobCost;
///
/// // A pass of 10 rows for four sequences takes 1,200 ns: 1,000 and 20 for each row. One of the
/// // rows is the job's own.
/// let cost =
///     JobCost { passes: 1, own_rows: 1, batch_rows: 10, batch_sequences: 4, busy_ns: 1_200, ..JobCost::default() };
/// // Its share is its own row and a quarter of the rest.
/// assert_eq!(cost.share(20.0) * 1_200.0, 20.0 + 1_000.0 / 4.0);
/// // Without the other nine rows, the pass would have taken 1,020 ns.
/// assert_eq!(cost.without_neighbours(20.0) * 1_200.0, 1_020.0);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCost {
    /// The number of passes; 0 if the worker does not record passes.
    pub passes: u64,
    /// The number of rows that were computed for the job itself.
    pub own_rows: u64,
    /// The number of rows of all sequences in these passes, including the job's own.
    pub batch_rows: u64,
    /// The number of sequences in each pass, including the job's own.
    pub batch_sequences: u64,
    /// The time of the passes in nanoseconds.
    pub busy_ns: u64,
    /// The number of sequences that the worker serves at present, including the job's own, in these
    /// passes or in others; 0 if it is unknown.
    pub active_sequences: u64,
}

impl JobCost {
    /// Adds a pass of `ns` nanoseconds that computed `own_rows` for the job, and `batch_rows` for
    /// all `sequences` together.
    pub fn add_pass(&mut self, own_rows: usize, batch_rows: usize, sequences: usize, ns: u64) {
        self.passes += 1;
        self.own_rows += own_rows as u64;
        self.batch_rows += batch_rows as u64;
        self.batch_sequences += sequences as u64;
        self.busy_ns += ns;
    }

    /// Returns the number of rows that were computed for other sequences.
    #[must_use]
    pub fn neighbour_rows(&self) -> u64 {
        self.batch_rows.saturating_sub(self.own_rows)
    }

    /// Returns the job's share of the passes' time: the time of its own rows, and of the rest an
    /// equal part for each sequence. It is 1 for a job without neighbours.
    #[must_use]
    pub fn share(&self, row_ns: f64) -> f64 {
        if self.batch_sequences == 0 {
            return 1.0;
        }
        let part = self.passes as f64 / self.batch_sequences as f64;
        let rows_above_average = self.own_rows as f64 - self.batch_rows as f64 * part;
        part + self.time_share_of_a_row(row_ns) * rows_above_average
    }

    /// Returns the share of the passes' time that they would have taken without the rows of other
    /// sequences. It is 1 for a job without neighbours.
    #[must_use]
    pub fn without_neighbours(&self, row_ns: f64) -> f64 {
        1.0 - self.time_share_of_a_row(row_ns) * self.neighbour_rows() as f64
    }

    /// Returns the share of the passes' time that one row takes. All rows together take no more
    /// than the whole time.
    fn time_share_of_a_row(&self, row_ns: f64) -> f64 {
        let largest = 1.0 / self.batch_rows.max(1) as f64;
        (row_ns.max(0.0) / self.busy_ns.max(1) as f64).min(largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the costs of jobs with these rows, which share one pass.
    fn shared(rows: &[usize], ns: u64) -> Vec<JobCost> {
        let cost = |&own: &usize| {
            let mut cost = JobCost::default();
            cost.add_pass(own, rows.iter().sum(), rows.len(), ns);
            cost
        };
        rows.iter().map(cost).collect()
    }

    #[test]
    fn a_job_without_neighbours_has_the_whole_time() {
        let mut alone = JobCost::default();
        for row_ns in [0.0, 7.0, 1e9] {
            assert_eq!((alone.share(row_ns), alone.without_neighbours(row_ns)), (1.0, 1.0));
            alone.add_pass(3, 3, 1, 100);
        }
    }

    #[test]
    fn shares_add_up_to_the_whole_time() {
        for row_ns in [0.0, 1.0, 20.0, 1e9] {
            let total: f64 =
                shared(&[1, 5, 9, 1], 1_000).iter().map(|cost| cost.share(row_ns)).sum();
            assert!((total - 1.0).abs() < 1e-12, "{row_ns}: {total}");
        }
    }

    #[test]
    fn without_neighbours_the_time_depends_on_the_own_rows_only() {
        for neighbour in [0, 1, 8, 60] {
            let costs = shared(&[2, neighbour], 1_000 + 30 * (2 + neighbour as u64));
            let alone_ns = costs[0].without_neighbours(30.0) * costs[0].busy_ns as f64;
            assert!((alone_ns - 1_060.0).abs() < 1e-9, "{neighbour}: {alone_ns}");
            let share_ns = costs[0].share(30.0) * costs[0].busy_ns as f64;
            assert!((share_ns - 560.0).abs() < 1e-9, "{neighbour}: {share_ns}");
        }
    }

    #[test]
    fn rows_never_take_more_than_the_whole_time() {
        let cost = shared(&[1, 3], 100)[0];
        assert_eq!((cost.share(1e9), cost.without_neighbours(1e9)), (0.25, 0.25));
        assert_eq!((cost.share(-5.0), cost.without_neighbours(-5.0)), (0.5, 1.0));
    }
}
