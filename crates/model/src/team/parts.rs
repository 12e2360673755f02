//! A team split into smaller ones that work at the same time, each on something of its own.

use super::{Cursor, Run, Shared, Team, help, lock};
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The teams that a team's members form among themselves.
pub(crate) struct Parts {
    parts: Vec<Part>,
}

/// Neighbouring members of the whole team; the first of them leads.
struct Part {
    members: Range<usize>,
    team: Team,
    /// The run at which each member was last dismissed.
    seen: Vec<AtomicUsize>,
    /// Where this part's share of the items goes on.
    cursor: Cursor,
}

impl Team {
    /// Splits the team into `count` parts of about equal size, at most one a member.
    pub(crate) fn parts(&self, count: usize) -> Parts {
        let count = count.clamp(1, self.members());
        let part = |index| {
            let members = self.members() * index / count..self.members() * (index + 1) / count;
            let shared = Shared {
                run: AtomicUsize::new(0),
                current: UnsafeCell::new(None),
                pending: AtomicUsize::new(0),
                stop: AtomicBool::new(false),
                panic: Mutex::new(None),
            };
            // The leader of the whole team, member 0, helps nobody: it leads a part.
            let helpers = self.helpers[members.start..members.end - 1].to_vec();
            let team = Self {
                isa: self.isa,
                shared: Arc::new(shared),
                cursors: members.clone().map(|_| Cursor::default()).collect(),
                helpers,
                handles: Vec::new(),
                leading: Mutex::new(()),
            };
            let seen = members.clone().map(|_| AtomicUsize::new(0)).collect();
            Part { members, team, seen, cursor: Cursor::default() }
        };
        Parts { parts: (0..count).map(part).collect() }
    }

    /// Calls `work(team, index, a, b)` once for every pair of items of the same index, on all parts
    /// of this team at the same time. Each part has neighbouring items, always the same ones for the
    /// same number, and helps others when it is done with them.
    ///
    /// # Panics
    /// If `work` panics, once all parts are done; or if there are more of `a` than of `b`.
    pub(crate) fn each<A: Send, B: Send>(
        &self,
        parts: &Parts,
        a: &mut [A],
        b: &mut [B],
        work: impl Fn(&Self, usize, &mut A, &mut B) + Sync,
    ) {
        assert!(a.len() <= b.len(), "items come in pairs");
        let (count, parts) = (a.len(), &parts.parts[..]);
        let start = |part: usize| count * part / parts.len();
        for (index, part) in parts.iter().enumerate() {
            part.cursor.0.store(start(index), Ordering::Relaxed);
        }
        let (a, b) = (Items::new(a), Items::new(b));
        self.run(&|member| {
            let mine = parts.iter().position(|part| part.members.contains(&member));
            let Some(index) = mine else { return };
            let part = &parts[index];
            let rank = member - part.members.start;
            if rank > 0 {
                let seen = &part.seen[rank];
                let dismissed = help(&part.team.shared, rank, seen.load(Ordering::Relaxed));
                seen.store(dismissed, Ordering::Relaxed);
                return;
            }
            let _dismissal = Dismissal(&part.team);
            for owner in (index..parts.len()).chain(0..index) {
                let next = || parts[owner].cursor.0.fetch_add(1, Ordering::Relaxed);
                let end = start(owner + 1);
                for item in std::iter::from_fn(|| Some(next()).filter(|&item| item < end)) {
                    // SAFETY: a cursor gives out every number once, and parts' ranges of numbers do
                    // not overlap.
                    let (a, b) = unsafe { (a.get(item), b.get(item)) };
                    work(&part.team, item, a, b);
                }
            }
        });
    }
}

/// Sends a part's helpers back to the whole team, even from a panic.
struct Dismissal<'a>(&'a Team);

impl Drop for Dismissal<'_> {
    fn drop(&mut self) {
        let _leading = lock(&self.0.leading);
        // SAFETY: this thread leads, and the helpers of the last run have reported.
        unsafe { *self.0.shared.current.get() = None::<Run> };
        self.0.shared.run.fetch_add(1, Ordering::Release);
        self.0.helpers.iter().for_each(std::thread::Thread::unpark);
    }
}

/// A slice whose items go to whoever claims them.
struct Items<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer comes from an exclusive borrow, and the callers of `get` promise that no two
// threads have the same item.
unsafe impl<T: Send> Sync for Items<'_, T> {}

impl<'a, T> Items<'a, T> {
    fn new(items: &'a mut [T]) -> Self {
        Self { start: items.as_mut_ptr(), len: items.len(), borrow: PhantomData }
    }

    /// One item.
    ///
    /// # Safety
    /// No item may be had twice at the same time.
    #[expect(clippy::mut_from_ref, reason = "that no two are the same is the caller's promise")]
    unsafe fn get(&self, index: usize) -> &mut T {
        assert!(index < self.len, "item {index} of {}", self.len);
        // SAFETY: the index is within the borrowed slice, and the item nobody else's.
        unsafe { &mut *self.start.add(index) }
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn parts_have_every_item_once_and_all_their_members() {
        for members in 1..=5 {
            let team = Team::unpinned(members).unwrap();
            for count in 1..=6 {
                let parts = team.parts(count);
                let sizes: Vec<usize> = parts.parts.iter().map(|p| p.team.members()).collect();
                assert_eq!(sizes.iter().sum::<usize>(), members);
                assert_eq!(sizes.len(), count.min(members));
                for round in 0..40 {
                    let mut hits = vec![0; 7];
                    let mut pieces = vec![vec![0_u8; 20]; 7];
                    team.each(&parts, &mut hits, &mut pieces, |part, index, hit, pieces| {
                        if (index + round) % 5 == 0 {
                            // Long enough for others to park.
                            std::thread::sleep(std::time::Duration::from_micros(300));
                        }
                        let (len, pieces) = (pieces.len(), Items::new(pieces));
                        for _ in 0..3 {
                            part.share(len, |_, piece| {
                                // SAFETY: every piece is shared out once.
                                unsafe { *pieces.get(piece) += 1 };
                            });
                        }
                        *hit += 1;
                    });
                    assert!(hits.iter().all(|&hit| hit == 1), "{members} in {count}");
                    assert!(pieces.iter().flatten().all(|&piece| piece == 3));
                    // The whole team is as it was.
                    team.split(3, 1, |range| assert!(range.end <= 3));
                }
            }
        }
    }

    #[test]
    fn a_panic_in_a_part_reaches_the_leader_and_the_team_goes_on() {
        let team = Team::unpinned(4).unwrap();
        let parts = team.parts(2);
        for guilty in 0..4 {
            let mut items = [(); 2];
            let mut others = [(); 2];
            let run = |team: &Team, index: usize| {
                team.run(&|member| assert_ne!(2 * index + member, guilty, "member {guilty} fails"));
            };
            let all = AssertUnwindSafe(|| {
                team.each(&parts, &mut items, &mut others, |team, index, _, _| run(team, index));
            });
            let panic = catch_unwind(all).unwrap_err();
            let message = panic.downcast_ref::<String>().unwrap();
            assert!(message.contains("fails"), "{message}");
            team.each(&parts, &mut items, &mut others, |team, _, _, _| team.run(&|_| ()));
        }
    }
}
