//! A team split into sub-teams, which run different work at the same time.

use super::{Cursor, Leader, OPEN, Run, Shared, Team, helper_loop, lock};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The sub-teams of a team. Every member on the team's own cores belongs to exactly one.
pub(crate) struct SubTeams {
    sub_teams: Vec<SubTeam>,
    /// The leader of the whole team, for while it works alone. Members of a sub-team size their
    /// buffers by the sub-team, so the leader must not compute an item as the whole team.
    alone: Team,
}

/// A contiguous range of the team's members. The first of them is the sub-team's leader.
struct SubTeam {
    members: Range<usize>,
    team: Team,
    /// For each member, the number of the run that last dismissed it.
    seen: Vec<AtomicUsize>,
    /// The next item of this sub-team's range.
    cursor: Cursor,
}

impl Team {
    /// Splits the team into `count` sub-teams of about equal size, but no more than it has members.
    pub(crate) fn sub_teams(&self, count: usize) -> SubTeams {
        let own = self.own_members();
        let count = count.clamp(1, own);
        let sub_team = |index| {
            let members = own * index / count..own * (index + 1) / count;
            let team = self.part(members.clone());
            let seen = members.clone().map(|_| AtomicUsize::new(0)).collect();
            SubTeam { members, team, seen, cursor: Cursor::default() }
        };
        SubTeams { sub_teams: (0..count).map(sub_team).collect(), alone: self.part(0..1) }
    }

    /// Creates a team of some of the members, the first of which leads.
    fn part(&self, members: Range<usize>) -> Self {
        Self {
            isa: self.isa,
            shared: Arc::new(Shared::new()),
            // Member 0, the leader of the whole team, is never a helper.
            helpers: self.helpers[members.start..members.end - 1].to_vec(),
            cursors: members.map(|_| Cursor::default()).collect(),
            lent: None,
            handles: Vec::new(),
            leader_lock: Mutex::new(Leader::default()),
        }
    }

    /// Calls `work(sub_team, index, &mut a[index], &mut b[index])` once for every index of `a`, on
    /// all sub-teams at the same time.
    ///
    /// Each sub-team starts with a contiguous range of indices, which depends only on the number of
    /// items and of sub-teams. A sub-team that has finished its own range takes items from the
    /// others.
    ///
    /// # Panics
    /// If `work` panics (once all sub-teams have finished), or if `a` is longer than `b`.
    pub(crate) fn for_each_pair<A: Send, B: Send>(
        &self,
        sub_teams: &SubTeams,
        a: &mut [A],
        b: &mut [B],
        work: impl Fn(&Self, usize, &mut A, &mut B) + Sync,
    ) {
        assert!(a.len() <= b.len(), "items come in pairs");
        if self.is_solo() {
            let items = a.iter_mut().zip(b).enumerate();
            return items.for_each(|(index, (a, b))| work(&sub_teams.alone, index, a, b));
        }
        let (count, sub_teams) = (a.len(), &sub_teams.sub_teams[..]);
        let start = |index: usize| count * index / sub_teams.len();
        for (index, sub_team) in sub_teams.iter().enumerate() {
            sub_team.cursor.0.store(start(index), Ordering::Relaxed);
        }
        let (a, b) = (SharedItems::new(a), SharedItems::new(b));
        self.run(&|member| {
            let own = sub_teams.iter().position(|sub_team| sub_team.members.contains(&member));
            let Some(index) = own else { return };
            let sub_team = &sub_teams[index];
            let rank = member - sub_team.members.start;
            if rank > 0 {
                let seen = &sub_team.seen[rank];
                let seen_before = seen.load(Ordering::Relaxed);
                let dismissed = helper_loop(&sub_team.team.shared, rank, seen_before, &|| false);
                seen.store(dismissed, Ordering::Relaxed);
                return;
            }
            let _dismissal = DismissOnDrop(&sub_team.team);
            for owner in (index..sub_teams.len()).chain(0..index) {
                let next = || sub_teams[owner].cursor.0.fetch_add(1, Ordering::Relaxed);
                let end = start(owner + 1);
                for item in std::iter::from_fn(|| Some(next()).filter(|&item| item < end)) {
                    // SAFETY: a cursor hands out each index only once, and the sub-teams' ranges of
                    // indices do not overlap.
                    let (a, b) = unsafe { (a.get(item), b.get(item)) };
                    work(&sub_team.team, item, a, b);
                }
            }
        });
    }
}

/// Returns a sub-team's helpers to the whole team when it is dropped, also during a panic.
struct DismissOnDrop<'a>(&'a Team);

impl Drop for DismissOnDrop<'_> {
    fn drop(&mut self) {
        let _leader = lock(&self.0.leader_lock);
        let shared = &self.0.shared;
        // SAFETY: this thread is the leader. The last run is closed, and no helper is inside.
        unsafe { *shared.current.get() = None::<Run> };
        shared.absent.store(self.0.helpers.len(), Ordering::Relaxed);
        shared.inside.store(OPEN, Ordering::Release);
        shared.run.fetch_add(1, Ordering::Release);
        self.0.helpers.iter().for_each(std::thread::Thread::unpark);
    }
}

/// A mutable slice shared between threads, each of which accesses items that it has claimed.
struct SharedItems<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer comes from an exclusive borrow, and the callers of `get` guarantee that no
// two threads access the same item.
unsafe impl<T: Send> Sync for SharedItems<'_, T> {}

impl<'a, T> SharedItems<'a, T> {
    fn new(items: &'a mut [T]) -> Self {
        Self { start: items.as_mut_ptr(), len: items.len(), borrow: PhantomData }
    }

    /// Returns one item.
    ///
    /// # Safety
    /// There must never be two references to the same item at the same time.
    #[expect(clippy::mut_from_ref, reason = "the caller guarantees that references are unique")]
    unsafe fn get(&self, index: usize) -> &mut T {
        assert!(index < self.len, "item {index} of {}", self.len);
        // SAFETY: the index is within the borrowed slice, and the caller guarantees that no other
        // reference to this item exists.
        unsafe { &mut *self.start.add(index) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn sub_teams_process_every_item_once_and_include_every_member() {
        for members in 1..=5 {
            let team = Team::unpinned(members).unwrap();
            for count in 1..=6 {
                let sub_teams = team.sub_teams(count);
                let sizes: Vec<usize> =
                    sub_teams.sub_teams.iter().map(|own| own.team.members()).collect();
                assert_eq!(sizes.iter().sum::<usize>(), members);
                assert_eq!(sizes.len(), count.min(members));
                for round in 0..40 {
                    let mut hits = vec![0; 7];
                    let mut pieces = vec![vec![0_u8; 20]; 7];
                    team.for_each_pair(
                        &sub_teams,
                        &mut hits,
                        &mut pieces,
                        |sub_team, index, hit, pieces| {
                            if (index + round) % 5 == 0 {
                                // Long enough for the others to park.
                                std::thread::sleep(std::time::Duration::from_micros(300));
                            }
                            let (len, pieces) = (pieces.len(), SharedItems::new(pieces));
                            for _ in 0..3 {
                                sub_team.for_each_piece(len, |_, piece| {
                                    // SAFETY: every piece is handed out only once.
                                    unsafe { *pieces.get(piece) += 1 };
                                });
                            }
                            *hit += 1;
                        },
                    );
                    assert!(hits.iter().all(|&hit| hit == 1), "{members} in {count}");
                    assert!(pieces.iter().flatten().all(|&piece| piece == 3));
                    // The whole team still works.
                    team.for_each_range(3, 1, |range| assert!(range.end <= 3));
                }
            }
        }
    }

    #[test]
    fn a_panic_in_a_sub_team_reaches_the_leader_and_the_team_still_works() {
        let team = Team::unpinned(4).unwrap();
        let sub_teams = team.sub_teams(2);
        for failing in 0..4 {
            let mut items = [(); 2];
            let mut others = [(); 2];
            let run = |team: &Team, index: usize| {
                team.run(&|member| {
                    assert_ne!(2 * index + member, failing, "member {failing} fails");
                });
            };
            let all = AssertUnwindSafe(|| {
                team.for_each_pair(&sub_teams, &mut items, &mut others, |team, index, _, _| {
                    run(team, index);
                });
            });
            let panic = catch_unwind(all).unwrap_err();
            let message = panic.downcast_ref::<String>().unwrap();
            assert!(message.contains("fails"), "{message}");
            team.for_each_pair(&sub_teams, &mut items, &mut others, |team, _, _, _| {
                team.run(&|_| ());
            });
        }
    }
}
