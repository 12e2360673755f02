//! How many sequences a worker serves at present.

use crate::{Job, SequenceId};
use std::collections::HashMap;
use std::mem::Discriminant;

/// Counts, for each completed job, the sequences (with their branches) whose jobs of the same kind
/// have completed since its own sequence's last one. They may have run in other batches.
#[derive(Debug, Default)]
pub struct ActiveSequences {
    /// The number of the last completed job of a kind and a sequence.
    last: HashMap<(Discriminant<Job>, SequenceId), u64>,
    completed: u64,
}

impl ActiveSequences {
    /// Counts a completed job. Returns the number of active sequences with its own; 0 if it is the
    /// first one of its sequence, so that the number is unknown.
    pub fn complete(&mut self, job: &Job) -> u64 {
        self.completed += 1;
        let kind = std::mem::discriminant(job);
        let Some(before) = self.last.insert((kind, job.sequence().base()), self.completed) else {
            return 0;
        };
        // The job's own sequence is one of them.
        self.last.iter().filter(|((other, _), last)| *other == kind && **last > before).count()
            as u64
    }

    /// Forgets a sequence.
    pub fn release(&mut self, sequence: SequenceId) {
        self.last.retain(|(_, other), _| *other != sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ScoreJob;

    #[test]
    fn sequences_are_active_until_they_pause_or_end() {
        let mut active = ActiveSequences::default();
        let mut complete = |sequences: &[u64]| -> Vec<u64> {
            sequences.iter().map(|&sequence| active.complete(&job(sequence))).collect()
        };
        assert_eq!(complete(&[1, 2, 3]), [0, 0, 0]);
        assert_eq!(complete(&[1, 2, 3]), [3, 3, 3]);
        // Sequence 1 was served before sequence 2, and not yet since.
        assert_eq!(complete(&[2, 1, 3]), [2, 3, 3]);
        assert_eq!(complete(&[1, 2, 1, 2]), [2, 3, 2, 2]);
        active.release(SequenceId(2));
        assert_eq!(active.complete(&job(1)), 1);
        assert_eq!(active.complete(&job(2)), 0);
    }

    fn job(sequence: u64) -> Job {
        Job::Score(ScoreJob::greedy(SequenceId(sequence), [1]))
    }
}
