//! Which of the waiting jobs run together.

use crate::{Role, SequenceId};
use std::collections::VecDeque;

/// The maximum number of jobs that run together.
pub const MAX_BATCH: usize = 64;

/// A job in the queue of a worker.
pub trait QueuedJob {
    /// Returns the role that the job is for.
    fn role(&self) -> Role;

    /// Returns the sequence that the job belongs to.
    fn sequence(&self) -> SequenceId;

    /// Returns whether the job has run in part, and waits to continue.
    fn has_started(&self) -> bool;
}

/// Returns whether both jobs are for the same sequence and role. Such jobs run one after another.
fn are_alike(first: &impl QueuedJob, second: &impl QueuedJob) -> bool {
    first.role() == second.role() && first.sequence() == second.sequence()
}

/// Returns whether a job may join a batch of jobs for its role: its sequence is not in the batch
/// yet.
fn may_join<B: QueuedJob>(batch: &[B], job: &impl QueuedJob) -> bool {
    batch.iter().all(|other| other.role() == job.role() && !are_alike(other, job))
}

/// Returns the role whose jobs run next: that of the oldest job. But a verification waits for the
/// drafts of other sequences, so that all of them are verified in one pass.
pub(crate) fn next_role<J: QueuedJob>(queue: &VecDeque<J>) -> Option<Role> {
    let is_verified = |sequence: SequenceId| {
        let mut verifications = queue.iter().filter(|job| job.role().target().is_some());
        verifications.any(|job| job.sequence().base() == sequence.base())
    };
    let is_awaited = |job: &&J| job.role().target().is_none() && !is_verified(job.sequence());
    let oldest = queue.front()?.role();
    let awaited = oldest.target().and_then(|_| queue.iter().find(is_awaited));
    Some(awaited.map_or(oldest, QueuedJob::role))
}

/// Removes at most `most` jobs for a role from the queue that run together: one for each sequence. A
/// sequence's jobs for a role run in order, so one that has started comes first.
pub(crate) fn next_batch<J: QueuedJob>(queue: &mut VecDeque<J>, role: Role, most: usize) -> Vec<J> {
    let mut batch: Vec<J> = Vec::new();
    let mut index = 0;
    while index < queue.len() && batch.len() < most {
        let job = &queue[index];
        let comes_first = |other: &J| other.has_started() && are_alike(other, job);
        let waits = !job.has_started() && queue.iter().any(comes_first);
        match job.role() == role && may_join(&batch, job) && !waits {
            true => batch.extend(queue.remove(index)),
            false => index += 1,
        }
    }
    batch
}

#[cfg(test)]
mod tests {
    use super::{MAX_BATCH, QueuedJob};
    use crate::{Role, SequenceId};
    use std::collections::VecDeque;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Waiting(Role, u64, bool);

    impl QueuedJob for Waiting {
        fn role(&self) -> Role {
            self.0
        }

        fn sequence(&self) -> SequenceId {
            SequenceId(self.1)
        }

        fn has_started(&self) -> bool {
            self.2
        }
    }

    fn next_batch(queue: &mut VecDeque<Waiting>) -> Vec<Waiting> {
        let role = super::next_role(queue);
        role.map_or_else(Vec::new, |role| super::next_batch(queue, role, MAX_BATCH))
    }

    const TARGET: Role = Role::Target(0);
    const DRAFTER: Role = Role::Drafter(0);

    #[test]
    fn the_oldest_job_runs_with_those_of_other_sequences_for_its_role() {
        let job = |role, sequence| Waiting(role, sequence, false);
        let waiting = [(TARGET, 3), (DRAFTER, 1), (TARGET, 1), (TARGET, 3), (TARGET, 2)];
        let mut queue: VecDeque<_> = waiting.map(|(role, id)| job(role, id)).into();
        assert_eq!(next_batch(&mut queue), [job(TARGET, 3), job(TARGET, 1), job(TARGET, 2)]);
        assert_eq!(next_batch(&mut queue), [job(DRAFTER, 1)]);
        assert_eq!(next_batch(&mut queue), [job(TARGET, 3)]);
        assert_eq!(next_batch(&mut queue), []);
    }

    #[test]
    fn a_verification_waits_for_the_drafts_of_other_sequences() {
        let job = |role, sequence| Waiting(role, sequence, false);
        let (plain, ahead) = (job(TARGET, 1), job(DRAFTER, 1));
        let drafts = [job(DRAFTER, 2), job(DRAFTER, 3)];
        let mut queue: VecDeque<_> = [plain, ahead].into_iter().chain(drafts).collect();
        assert_eq!(next_batch(&mut queue), [ahead, drafts[0], drafts[1]]);
        queue.extend([ahead, job(TARGET, 2), job(TARGET, 3)]);
        assert_eq!(next_batch(&mut queue), [plain, job(TARGET, 2), job(TARGET, 3)]);
        assert_eq!(next_batch(&mut queue), [ahead]);
    }

    #[test]
    fn a_job_that_has_started_comes_before_later_ones_of_its_sequence() {
        let (later, started) = (Waiting(TARGET, 1, false), Waiting(TARGET, 1, true));
        let drafting = Waiting(DRAFTER, 1, false);
        let mut queue: VecDeque<_> = [later, drafting, Waiting(TARGET, 2, false), started].into();
        assert_eq!(next_batch(&mut queue), [Waiting(TARGET, 2, false), started]);
        assert_eq!(next_batch(&mut queue), [later]);
        assert_eq!(next_batch(&mut queue), [drafting]);
    }

    #[test]
    fn a_batch_has_at_most_64_jobs() {
        let mut queue: VecDeque<_> = (0..100).map(|id| Waiting(TARGET, id, false)).collect();
        assert_eq!([next_batch(&mut queue).len(), next_batch(&mut queue).len()], [64, 36]);
    }
}
