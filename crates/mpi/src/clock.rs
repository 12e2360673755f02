//! The clock of another rank, as seen from this one.

use std::collections::VecDeque;

/// The number of exchanges that an offset is taken from.
const WINDOW: usize = 32;

/// The shortest time over which drift is measured, in nanoseconds.
const SHORTEST_DRIFT_NS: u64 = 1_000_000_000;

/// How the clock of another rank differs from that of this one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClockReport {
    /// The rank.
    pub rank: usize,
    /// Its time minus the time of this process, in nanoseconds. Both count from the start of their
    /// process.
    pub offset_ns: i64,
    /// The largest error of the offset: half of the shortest round trip, in nanoseconds.
    pub uncertainty_ns: u64,
    /// How much faster its clock runs, in parts per million; `None` if it was observed for less
    /// than a second.
    pub drift_ppm: Option<f64>,
}

/// One exchange of times.
#[derive(Clone, Copy, Debug)]
struct Exchange {
    /// The middle of the round trip on this process's clock, in nanoseconds.
    at_ns: u64,
    offset_ns: i64,
    round_trip_ns: u64,
}

/// Estimates the offset of another clock, as NTP does: in an exchange, the other clock was read in
/// the middle of the round trip, give or take half of it. Of the last exchanges, the one with the
/// shortest round trip counts.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    recent: VecDeque<Exchange>,
    /// The best of the first exchanges.
    first: Option<Exchange>,
    count: usize,
}

impl Clock {
    /// Adds an exchange that started and ended at these times of this process, and read the other
    /// clock in between.
    pub(crate) fn add(&mut self, started_ns: u64, ended_ns: u64, other_ns: u64) {
        let round_trip_ns = ended_ns.saturating_sub(started_ns);
        let at_ns = started_ns + round_trip_ns / 2;
        let exchange =
            Exchange { at_ns, offset_ns: other_ns.wrapping_sub(at_ns) as i64, round_trip_ns };
        self.count += 1;
        if self.recent.len() == WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(exchange);
        if self.count <= WINDOW / 4 {
            self.first = self.best();
        }
    }

    fn best(&self) -> Option<Exchange> {
        self.recent.iter().min_by_key(|exchange| exchange.round_trip_ns).copied()
    }

    /// Converts a time of the other clock to this process's clock.
    pub(crate) fn to_own(&self, other_ns: u64) -> u64 {
        other_ns.saturating_add_signed(-self.best().map_or(0, |best| best.offset_ns))
    }

    pub(crate) fn report(&self, rank: usize) -> Option<ClockReport> {
        let (first, best) = (self.first?, self.best()?);
        let elapsed_ns = best.at_ns.saturating_sub(first.at_ns);
        let drift = (best.offset_ns - first.offset_ns) as f64 / elapsed_ns as f64 * 1e6;
        Some(ClockReport {
            rank,
            offset_ns: best.offset_ns,
            uncertainty_ns: best.round_trip_ns.div_ceil(2),
            drift_ppm: (elapsed_ns >= SHORTEST_DRIFT_NS).then_some(drift),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_round_trip_counts() {
        let mut clock = Clock::default();
        assert_eq!((clock.to_own(7), clock.report(1)), (7, None));
        // The other clock is 1,000 ns ahead. Slow answers are on the way back for longer.
        clock.add(0, 900, 1_050);
        clock.add(10_000, 10_020, 11_010);
        clock.add(20_000, 20_400, 21_050);
        assert_eq!(clock.to_own(31_000), 30_000);
        let report = ClockReport { rank: 1, offset_ns: 1_000, uncertainty_ns: 10, drift_ppm: None };
        assert_eq!(clock.report(1), Some(report));
        // A clock that is behind.
        let mut clock = Clock::default();
        clock.add(5_000, 5_000, 2_000);
        assert_eq!((clock.to_own(2_500), clock.to_own(0)), (5_500, 3_000));
    }

    #[test]
    fn drift_is_the_change_of_the_offset() {
        let mut clock = Clock::default();
        for second in 0..100_u64 {
            let now = second * 1_000_000_000;
            // 20 parts per million fast.
            clock.add(now, now + 1_000, now + 500 + second * 20_000);
        }
        let drift = clock.report(3).and_then(|report| report.drift_ppm).unwrap_or_default();
        assert!((drift - 20.0).abs() < 0.01, "{drift}");
    }
}
