//! Interruptions: moments in which the machine does something else.

use crate::batch_costs::JobTime;

/// Takes interruptions out of measured times, so that they are not taken for the cost of what was
/// interrupted.
///
/// Something that takes much longer than usual counts with its usual time, as long as that is rare.
/// If it becomes frequent, it is a cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interruptions {
    /// The number of interruptions that may be taken out at present.
    left: f64,
}

/// A time of at least this many usual times is an interruption. The costs of drafts differ by less.
const UNUSUAL: f64 = 3.0;
/// The most interruptions that are taken out one after another: an interruption may last for a few
/// jobs.
const MAX_FILTERED: f64 = 8.0;
/// The interruptions that may be taken out before anything usual was measured.
const INITIAL_FILTERED: f64 = 2.0;
/// The interruptions that may be taken out for each usual time: if more than a tenth of the times
/// is unusual, that is a cost.
const FILTERED_PER_TIME: f64 = 0.1;

impl Default for Interruptions {
    fn default() -> Self {
        Self { left: INITIAL_FILTERED }
    }
}

impl Interruptions {
    /// Returns a time without an interruption. `usual_ns`: the usual time, if it is known.
    pub(crate) fn filter(&mut self, ns: f64, usual_ns: Option<f64>) -> f64 {
        let is_unusual = |&usual_ns: &f64| usual_ns > 0.0 && ns > UNUSUAL * usual_ns;
        let Some(usual_ns) = usual_ns.filter(is_unusual) else {
            self.left = (self.left + FILTERED_PER_TIME).min(MAX_FILTERED);
            return ns;
        };
        if self.left < 1.0 {
            return ns;
        }
        self.left -= 1.0;
        usual_ns
    }

    /// Returns the time of a job without an interruption. Those of jobs that share their passes
    /// stay as they are.
    pub(crate) fn filter_job(&mut self, time: &JobTime, usual_ns: Option<f64>) -> JobTime {
        if time.cost.batch_sequences > time.cost.passes {
            return *time;
        }
        let duration_ns = self.filter(time.duration_ns as f64, usual_ns) as u64;
        JobTime { duration_ns, ..*time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_times_count_as_usual_and_frequent_ones_as_they_are() {
        let mut interruptions = Interruptions::default();
        let mut without = |ns| interruptions.filter(ns, Some(10.0));
        assert_eq!([29.0, 500.0, 500.0, 500.0].map(&mut without), [29.0, 10.0, 10.0, 500.0]);
        (0..20).for_each(|_| assert_eq!(without(11.0), 11.0));
        assert_eq!([500.0, 500.0, 500.0].map(&mut without), [10.0, 10.0, 500.0]);
        assert_eq!(interruptions.filter(500.0, None), 500.0, "nothing is known");
    }
}
