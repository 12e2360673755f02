//! The decoding statistics of a sequence.
//!
//! The mean number of accepted tokens (MAT, τ) is the number of committed tokens per target forward
//! that committed any, including the target's own token. For draft-then-verify it is
//! `1 + accepted / drafts`, as vLLM and llama.cpp define it. The acceptance rate is the share of
//! tested draft tokens that were accepted (α of Leviathan et al. 2023, arXiv 2211.17192). A draft
//! token is tested if all tokens before it were accepted.

/// The counters of one sequence. Times are those that devices spent on its jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The number of tokens committed after the prompt.
    pub committed: u64,
    /// The number of target forwards that committed a token.
    pub target_forwards: u64,
    /// The number of rounds that verified at least one draft token.
    pub drafts: u64,
    /// The number of these drafts that SSD had prepared before the verdict on the draft before.
    pub prepared: u64,
    /// The number of these drafts that were looked up in earlier text, in rounds without the
    /// drafter.
    pub lookups: u64,
    /// The number of drafted tokens, tested or not.
    pub draft_tokens: u64,
    /// By drafter: how many of them it has drafted. The others were looked up. Drafters at the end
    /// may be missing if they have drafted nothing.
    pub draft_tokens_by_drafter: Vec<u64>,
    /// By depth, starting at 0: the number of rounds in which the draft token at this depth was
    /// tested. All tokens before it were accepted then, and the sequence had not ended.
    pub tested: Vec<u64>,
    /// By depth, starting at 0: the number of rounds in which the draft token was accepted.
    pub accepted: Vec<u64>,
    /// The time of draft jobs, in nanoseconds.
    pub draft_ns: u64,
    /// The time of score jobs, in nanoseconds.
    pub score_ns: u64,
    /// Drafters and target replicas that failed, and why, once each. Decoding continued without
    /// them.
    pub failures: Vec<String>,
}

impl Statistics {
    /// Counts a draft of the drafter with this index.
    pub(crate) fn count_draft(&mut self, drafter: usize, tokens: usize, duration_ns: u64) {
        self.draft_tokens += tokens as u64;
        self.draft_ns += duration_ns;
        if self.draft_tokens_by_drafter.len() <= drafter {
            self.draft_tokens_by_drafter.resize(drafter + 1, 0);
        }
        self.draft_tokens_by_drafter[drafter] += tokens as u64;
    }

    /// Counts a draft that was looked up in earlier text, which takes no time.
    pub(crate) fn count_lookup(&mut self, tokens: usize) {
        self.lookups += 1;
        self.draft_tokens += tokens as u64;
    }

    /// Counts a round that verified up to `drafted` tokens.
    pub(crate) fn count_round(
        &mut self,
        drafted: usize,
        accepted: usize,
        rejected: bool,
        committed: usize,
    ) {
        self.committed += committed as u64;
        self.target_forwards += u64::from(committed > 0);
        self.drafts += u64::from(drafted > 0);
        let tested = accepted + usize::from(rejected);
        if self.tested.len() < tested {
            self.tested.resize(tested, 0);
            self.accepted.resize(tested, 0);
        }
        self.tested[..tested].iter_mut().for_each(|count| *count += 1);
        self.accepted[..accepted].iter_mut().for_each(|count| *count += 1);
    }

    /// Returns the mean number of accepted tokens (MAT, τ): committed tokens per target forward. It
    /// counts the target's own token, so plain decoding has 1. 0 if nothing was committed.
    #[must_use]
    pub fn mean_accepted_tokens(&self) -> f64 {
        ratio(self.committed, self.target_forwards)
    }

    /// Returns the number of accepted draft tokens divided by that of tested ones; 0 if none were
    /// tested.
    #[must_use]
    pub fn acceptance_rate(&self) -> f64 {
        ratio(self.accepted.iter().sum(), self.tested.iter().sum())
    }

    /// Returns the acceptance rate of each draft position.
    #[must_use]
    pub fn acceptance_per_position(&self) -> Vec<f64> {
        self.accepted.iter().zip(&self.tested).map(|(&a, &t)| ratio(a, t)).collect()
    }

    /// Adds the counters of another sequence.
    pub fn add(&mut self, other: &Self) {
        self.committed += other.committed;
        self.target_forwards += other.target_forwards;
        self.drafts += other.drafts;
        self.prepared += other.prepared;
        self.lookups += other.lookups;
        self.draft_tokens += other.draft_tokens;
        self.draft_ns += other.draft_ns;
        self.score_ns += other.score_ns;
        self.failures.extend_from_slice(&other.failures);
        for (own_counts, other_counts) in [
            (&mut self.draft_tokens_by_drafter, &other.draft_tokens_by_drafter),
            (&mut self.tested, &other.tested),
            (&mut self.accepted, &other.accepted),
        ] {
            own_counts.resize(own_counts.len().max(other_counts.len()), 0);
            own_counts.iter_mut().zip(other_counts).for_each(|(own, other)| *own += other);
        }
    }
}

/// Returns `part / whole`; 0 if `whole` is 0.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_match_the_published_definitions() {
        let mut statistics = Statistics::default();
        statistics.count_draft(1, 7, 40);
        statistics.count_round(3, 3, false, 4); // all accepted, and a bonus token
        statistics.count_round(3, 1, true, 2); // rejected at the second
        statistics.count_round(3, 0, true, 1); // rejected at once
        statistics.count_round(0, 0, false, 1); // no draft
        assert_eq!(statistics.mean_accepted_tokens(), 2.0);
        assert_eq!(statistics.drafts, 3);
        assert_eq!((statistics.draft_tokens, statistics.draft_ns), (7, 40));
        assert_eq!(statistics.draft_tokens_by_drafter, [0, 7]);
        assert_eq!(statistics.tested, [3, 2, 1]);
        assert_eq!(statistics.accepted, [2, 1, 1]);
        assert_eq!(statistics.acceptance_rate(), 4.0 / 6.0);
        assert_eq!(statistics.acceptance_per_position(), [2.0 / 3.0, 0.5, 1.0]);
        let mut sum = statistics.clone();
        sum.add(&statistics);
        sum.count_draft(0, 1, 0);
        assert_eq!(sum.draft_tokens_by_drafter, [1, 14]);
        assert_eq!((sum.committed, sum.tested), (16, vec![6, 4, 2]));
        assert_eq!(Statistics::default().acceptance_rate(), 0.0);
    }
}
