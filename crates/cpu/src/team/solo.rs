//! When a team's leader works alone: while its helpers lose their cores to other load.

use std::time::{Duration, Instant};

/// A wait for a helper that is longer than this shows that the helper was not scheduled. It is
/// longer than a piece of work takes, and shorter than a scheduler's time slice.
const STALL: Duration = Duration::from_millis(1);
/// How long the leader works alone after the first stall.
const FIRST: Duration = Duration::from_millis(10);
/// How long it works alone at most, before it tries the helpers again.
const LONGEST: Duration = Duration::from_millis(320);
/// After this many periods without a stall, the next one counts as the first.
const CALM_PERIODS: u32 = 4;

/// The state of a team whose helpers are sometimes not scheduled.
///
/// After a stall the leader works alone for a period. If the helpers then stall again soon, the
/// period doubles.
#[derive(Debug, Default)]
pub(super) struct Solo {
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

    /// Takes note of a run with the helpers, after which the leader waited for them.
    pub(super) fn after_run(&mut self, waited: Duration) {
        if waited >= STALL {
            self.after_stall(Instant::now());
        }
    }

    fn after_stall(&mut self, now: Instant) {
        let length = self.period.map_or(FIRST, |(last, _)| LONGEST.min(last * 2));
        self.period = Some((length, now + length));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leader_works_alone_after_a_stall() {
        let mut solo = Solo::default();
        solo.after_run(STALL / 2);
        assert!(!solo.is_active());
        solo.after_run(STALL);
        let length = |solo: &Solo| solo.period.map(|(length, _)| length);
        assert_eq!(length(&solo), Some(FIRST));
        let now = Instant::now();
        for doublings in 1..8 {
            solo.after_stall(now);
            let expected = LONGEST.min(FIRST * (1 << doublings));
            assert_eq!(length(&solo), Some(expected));
            assert!(
                solo.is_active_at(now + expected - STALL) && !solo.is_active_at(now + expected)
            );
        }
        // A calm time ends the memory.
        let later = now + LONGEST * (1 + CALM_PERIODS);
        assert!(!solo.is_active_at(later));
        solo.after_stall(later);
        assert_eq!(length(&solo), Some(FIRST));
    }
}
