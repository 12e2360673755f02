//! When a team's leader works alone: while its helpers lose their cores to other load.

use std::time::{Duration, Instant};

/// A wait for a helper that is longer than this shows that the helper was not scheduled. It is
/// longer than a piece of work takes, and shorter than a scheduler's time slice.
const STALL: Duration = Duration::from_millis(1);
/// The shortest time over which stalls are judged, and the longest one.
const WINDOW: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(100)];
/// How long the leader works alone the first time.
const FIRST: Duration = WINDOW[0];
/// How long it works alone at most, before it tries the helpers again.
const LONGEST: Duration = Duration::from_millis(320);
/// After this many periods without another one, the next one counts as the first.
const CALM_PERIODS: u32 = 4;

/// The state of a team whose helpers are sometimes not scheduled.
///
/// The leader works alone for a period if stalls take so much of the time that it is faster alone: a
/// quarter of it with one helper, if each helper adds a third of the leader's speed, because they
/// share a memory, and other programs take the leader's core, too. If that soon happens again, the
/// period doubles.
#[derive(Debug, Default)]
pub(super) struct Solo {
    /// When the first stall of a window ended, and how long stalls took since then.
    stalled: Option<(Instant, Duration)>,
    /// The length of the last period, and its end.
    period: Option<(Duration, Instant)>,
}

impl Solo {
    /// Returns whether the leader should work alone now.
    pub(super) fn is_active(&mut self) -> bool {
        self.period.is_some() && self.is_active_at(Instant::now())
    }

    fn is_active_at(&mut self, now: Instant) -> bool {
        let Some((length, end)) = self.period else { return false };
        if now >= end + length * CALM_PERIODS {
            self.period = None;
        }
        now < end
    }

    /// Takes note of a run with so many helpers, after which the leader waited for them.
    pub(super) fn after_run(&mut self, helpers: usize, waited: Duration) {
        if waited >= STALL {
            self.after_stall(helpers, waited, Instant::now());
        }
    }

    fn after_stall(&mut self, helpers: usize, waited: Duration, now: Instant) {
        let [shortest, longest] = WINDOW;
        let window = self.stalled.filter(|&(start, _)| now < start + longest);
        // One stall is no evidence.
        let (start, lost) =
            window.map_or((now, Duration::ZERO), |(start, lost)| (start, lost + waited));
        self.stalled = Some((start, lost));
        let bearable = (now - start).mul_f64(helpers as f64 / (helpers + 3) as f64);
        if now - start >= shortest && lost > bearable {
            let length = self.period.map_or(FIRST, |(last, _)| LONGEST.min(last * 2));
            *self = Self { stalled: None, period: Some((length, now + length)) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn the_leader_works_alone_while_stalls_take_most_of_the_time() {
        let (mut solo, mut now) = (Solo::default(), Instant::now());
        solo.after_run(1, STALL / 2);
        assert!(solo.stalled.is_none());
        for doublings in 0..8 {
            for is_enough in [false, false, true] {
                now += millis(8);
                assert!(!solo.is_active_at(now));
                solo.after_stall(1, millis(6), now);
                assert_eq!(solo.is_active_at(now), is_enough);
            }
            let length = LONGEST.min(FIRST * (1 << doublings));
            assert!(solo.is_active_at(now + length - STALL) && !solo.is_active_at(now + length));
            now += length;
        }
        // A calm time ends the memory.
        now += LONGEST * CALM_PERIODS;
        assert!(!solo.is_active_at(now));
        for _ in 0..2 {
            now += millis(20);
            solo.after_stall(1, millis(15), now);
        }
        assert!(solo.is_active_at(now + FIRST - STALL) && !solo.is_active_at(now + FIRST));
    }

    #[test]
    fn a_program_that_needs_a_core_now_and_then_does_not_make_the_leader_work_alone() {
        let (mut solo, mut now) = (Solo::default(), Instant::now());
        for _ in 0..100 {
            now += millis(20);
            solo.after_stall(1, millis(4), now);
            assert!(!solo.is_active_at(now));
        }
    }

    #[test]
    fn many_helpers_are_worth_more_waiting() {
        let now = Instant::now();
        for (helpers, is_active) in [(1, true), (2, false), (15, false)] {
            let mut solo = Solo::default();
            solo.after_stall(helpers, millis(4), now);
            solo.after_stall(helpers, millis(4), now + millis(12));
            assert_eq!(solo.is_active_at(now + millis(12)), is_active, "{helpers} helpers");
        }
    }
}
