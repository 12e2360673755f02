//! Cores that idle teams lend to others.
//!
//! A drafter and a target that work at the same time have cores of their own. But one of them is
//! often idle: a drafter that pauses, a replica without rows to compute, a target that waits for
//! the first draft. Meanwhile its cores help the others. Results do not change, because no result
//! depends on the number of threads.
//!
//! A team asks before every piece of work, so its helpers leave a core as soon as the owner returns
//! to work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The cores of several teams, which help each other while they are idle.
#[derive(Debug)]
pub struct LentCores(Vec<Group>);

#[derive(Debug)]
struct Group {
    cores: Vec<usize>,
    /// Whether the owner works.
    is_busy: AtomicBool,
    /// The team that the cores help: its index, or [`NOBODY`].
    borrower: AtomicUsize,
}

const NOBODY: usize = usize::MAX;

impl LentCores {
    /// Creates the exchange between teams with these cores.
    #[must_use]
    pub fn new(teams: Vec<Vec<usize>>) -> Arc<Self> {
        let group = |cores| Group {
            cores,
            is_busy: AtomicBool::new(false),
            borrower: AtomicUsize::new(NOBODY),
        };
        Arc::new(Self(teams.into_iter().map(group).collect()))
    }

    pub(super) fn cores(&self, team: usize) -> &[usize] {
        &self.0[team].cores
    }

    /// Returns the cores that the others may lend to a team, in the order in which it gets them.
    pub(super) fn of_others(&self, team: usize) -> impl Iterator<Item = usize> {
        self.others(team).flat_map(|group| group.cores.iter().copied())
    }

    /// Borrows the idle cores for a team, up to the first group that is busy. Returns how many
    /// there are.
    #[inline]
    pub(super) fn borrow_idle(&self, team: usize) -> usize {
        self.others(team).take_while(|group| group.lend_to(team)).map(|g| g.cores.len()).sum()
    }

    /// Takes note that a team has work, and needs its own cores.
    pub(super) fn start_work(&self, team: usize) {
        self.0[team].is_busy.store(true, Ordering::Relaxed);
    }

    /// Takes note that a team has no work, and returns what it has borrowed.
    pub(super) fn end_work(&self, team: usize) {
        for group in self.others(team) {
            // It fails if the cores help nobody, or another team.
            let (now, free) = (team, NOBODY);
            group.borrower.compare_exchange(now, free, Ordering::Relaxed, Ordering::Relaxed).ok();
        }
        self.0[team].is_busy.store(false, Ordering::Relaxed);
    }

    pub(super) fn works(&self, team: usize) -> bool {
        self.0[team].is_busy.load(Ordering::Relaxed)
    }

    fn others(&self, team: usize) -> impl Iterator<Item = &Group> {
        self.0.iter().enumerate().filter(move |&(index, _)| index != team).map(|(_, group)| group)
    }
}

impl Group {
    #[inline]
    fn lend_to(&self, team: usize) -> bool {
        if self.is_busy.load(Ordering::Relaxed) {
            return false;
        }
        let now = self.borrower.load(Ordering::Relaxed);
        now == team
            || now == NOBODY
                && self
                    .borrower
                    .compare_exchange(NOBODY, team, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_cores_help_one_team_at_a_time() {
        let lent = LentCores::new(vec![vec![0], vec![1, 2], vec![3]]);
        lent.start_work(1);
        assert_eq!(lent.of_others(1).collect::<Vec<_>>(), [0, 3]);
        assert_eq!(lent.borrow_idle(1), 2);
        assert_eq!([0, 1, 2].map(|team| lent.works(team)), [false, true, false]);
        // The third team finds the second one busy, and the first one's cores lent.
        lent.start_work(2);
        assert_eq!(lent.borrow_idle(2), 0);
        // Cores whose owner works are not lent, nor those after them.
        assert_eq!(lent.borrow_idle(1), 1);
        lent.start_work(0);
        assert_eq!(lent.borrow_idle(1), 0);
        lent.end_work(0);
        assert_eq!(lent.borrow_idle(1), 1);
        lent.end_work(1);
        assert_eq!(lent.borrow_idle(2), 3);
        lent.end_work(2);
        assert!(lent.0.iter().all(|group| group.borrower.load(Ordering::Relaxed) == NOBODY));
    }
}
