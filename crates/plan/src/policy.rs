//! What the policies of all methods have in common.

use crate::{Forecast, JobTime, Knowledge};

/// Decides how much a method drafts. Policies of different methods pass on what they learn.
pub trait Policy {
    /// Returns what other methods can use of what it has learned.
    fn knowledge(&self) -> Knowledge;

    /// Learns the acceptance, the time of the target alone, and the times that it has not measured,
    /// from another method.
    fn adopt(&mut self, known: &Knowledge);

    /// Starts in the middle of an answer, after other methods that worked for `others_ns`
    /// nanoseconds. The last of them had this knowledge.
    fn start(&mut self, known: &Knowledge, others_ns: f64);

    /// Returns what it expects of the next tokens; `None` if the costs are not known. `missed`: the
    /// number of tokens that were committed since it last worked.
    fn forecast(&self, missed: usize) -> Option<Forecast>;
}

/// A policy of a method that drafts while it verifies. It learns from jobs and verdicts one by one.
pub trait JobObserver: Policy {
    /// Learns the time of a score job of `rows` rows. `while_drafting`: whether drafters worked at
    /// the same time.
    fn observe_score(&mut self, rows: usize, time: &JobTime, while_drafting: bool);

    /// Learns how long a draft job of `tokens` tokens took.
    fn observe_draft(&mut self, tokens: usize, time: &JobTime);

    /// Learns from a verdict on the drafter's tokens. `tested`: the positions of the tested tokens
    /// in the jobs that drafted them, from 0. All but a rejected last one were accepted. `further`:
    /// the number of tokens that were committed after the accepted ones. After them the drafter
    /// starts afresh.
    fn observe_verdict(&mut self, tested: &[usize], rejected: bool, further: usize);

    /// Learns that a step has committed `tokens` tokens at `now_ns`, on the cluster's clock.
    /// `alone`: whether the target had neither drafts nor a drafter that ran at the same time.
    fn observe_round(&mut self, tokens: usize, now_ns: u64, alone: bool);
}
