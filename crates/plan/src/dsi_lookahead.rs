//! DSI's lookahead: fixed, or by the paper's sizing rule from measured times.

use crate::DraftLength;
use crate::estimates::{BatchCosts, DecayingMean, DraftTime, JobTime};
use crate::pauses::Pauses;

/// Decides how many draft tokens one verification task has.
///
/// If a target forward takes t₂ and a draft token takes t₁, then `⌈t₂ / (lookahead · t₁)⌉` replicas
/// keep up with the drafter (DSI, arXiv 2405.14105, equation 1). The automatic mode uses the
/// smallest lookahead that needs no more replicas than there are. It takes t₂ from recent jobs, with
/// all the rows that they computed.
///
/// If other sequences share the passes, t₁ and t₂ are the job's share of them
/// ([`JobCost::share`](forerun_core::JobCost::share)).
///
/// For a drafter that makes several tokens in one forward (ParallelSpec, PARD), t₁ is the time of a
/// forward, and the lookahead is a multiple of its tokens.
///
/// The automatic mode also pauses drafting while the target alone is faster.
#[derive(Clone, Debug)]
pub struct DsiLookahead {
    length: usize,
    mode: DraftLength,
    replicas: usize,
    score_costs: BatchCosts,
    score_ns: DecayingMean,
    draft_time: DraftTime,
    /// The number of the answer's jobs to ignore: the first ones compute the prompt.
    prompt_scores: usize,
    pauses: Pauses,
}

/// The lookahead before any times are known.
const INITIAL_LENGTH: usize = 4;

impl DsiLookahead {
    /// Creates a policy for `replicas` target replicas: always `length` tokens (`Fixed`), or up to
    /// `length` tokens (`Auto`).
    #[must_use]
    pub fn new(length: usize, mode: DraftLength, replicas: usize) -> Self {
        Self {
            length: length.max(1),
            mode,
            replicas: replicas.max(1),
            score_costs: BatchCosts::default(),
            score_ns: DecayingMean::default(),
            draft_time: DraftTime::default(),
            prompt_scores: replicas,
            pauses: Pauses::default(),
        }
    }

    /// Returns a copy configured for a drafter that makes `tokens` tokens in one forward.
    #[must_use]
    pub fn with_tokens_per_forward(self, tokens: usize) -> Self {
        Self { draft_time: self.draft_time.with_tokens_per_forward(tokens), ..self }
    }

    /// Returns a copy for a new answer, which keeps the learned times.
    #[must_use]
    pub fn for_new_answer(&self) -> Self {
        let (draft_time, pauses) = (self.draft_time.for_new_answer(), self.pauses.for_new_answer());
        Self { prompt_scores: self.replicas, draft_time, pauses, ..self.clone() }
    }

    /// Returns whether to draft now. Otherwise the target is faster alone.
    #[must_use]
    pub fn drafts(&self) -> bool {
        self.mode != DraftLength::Auto || self.pauses.drafts()
    }

    /// Returns the number of draft tokens in a verification task.
    #[must_use]
    pub fn length(&self) -> usize {
        let known = self.score_ns.is_known() && self.draft_time.is_known();
        match self.mode {
            DraftLength::Fixed | DraftLength::Assisted => self.length,
            DraftLength::Auto if !known => INITIAL_LENGTH.min(self.length),
            DraftLength::Auto => {
                let ratio =
                    self.score_ns.value_or(0.0) / self.draft_time.forward_ns_or(1.0).max(1.0);
                // Rounding errors must not add another forward.
                let forwards = (ratio / self.replicas as f64 - 1e-6).ceil() as usize;
                self.draft_time.tokens_in_forwards(forwards.max(1)).min(self.length)
            }
        }
    }

    /// Returns how many tokens the drafter may be ahead of the committed ones: the tokens that all
    /// replicas verify, and those of two more tasks, which are drafted in the meantime.
    pub fn max_ahead(&self) -> usize {
        self.length() * (self.replicas + 2)
    }

    /// Returns how many tokens one draft job should make.
    pub fn tokens_per_job(&self) -> usize {
        self.draft_time.tokens_per_job(self.length())
    }

    /// Learns the time of a replica's job.
    pub fn observe_score(&mut self, time: &JobTime) {
        match self.prompt_scores {
            0 if self.score_costs.learn(time).is_some() => {
                self.score_ns.add(self.score_costs.share_of(time));
            }
            0 => {}
            // A replica's first job computes the prompt.
            _ => self.prompt_scores -= 1,
        }
    }

    /// Learns that `tokens` tokens were committed at `now_ns`, on the cluster's clock. `alone`: whether the
    /// target had neither drafts nor a drafter beside it.
    pub fn observe_step(&mut self, tokens: usize, now_ns: u64, alone: bool) {
        self.pauses.observe(tokens, now_ns, alone);
    }

    /// Learns how long a draft job of `tokens` tokens took.
    pub fn observe_draft(&mut self, tokens: usize, time: &JobTime) {
        self.draft_time.add(tokens, time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(replicas: usize, score_ns: u64, token_ns: u64) -> DsiLookahead {
        let mut lookahead = DsiLookahead::new(64, DraftLength::Auto, replicas);
        assert_eq!(lookahead.length(), 4);
        for _ in 0..20 {
            lookahead.observe_score(&JobTime::alone(score_ns));
            lookahead.observe_draft(1, &JobTime::alone(token_ns));
        }
        lookahead
    }

    #[test]
    fn the_lookahead_is_the_smallest_that_the_replicas_keep_up_with() {
        // The paper's example: a drafter ten times as fast needs 5 replicas at lookahead 2.
        assert_eq!(learned(5, 1_000, 100).length(), 2);
        assert_eq!(learned(10, 1_000, 100).length(), 1);
        assert_eq!(learned(1, 1_000, 100).length(), 10);
        assert_eq!(learned(4, 1_000, 100).length(), 3);
        // A drafter slower than the target, and an extremely fast one.
        assert_eq!(learned(1, 1_000, 5_000).length(), 1);
        assert_eq!(learned(1, 1_000_000, 1).length(), 64);
    }

    #[test]
    fn drafters_with_several_tokens_per_forward_make_whole_forwards() {
        let learned = |per_forward: usize, replicas| {
            let lookahead = DsiLookahead::new(64, DraftLength::Auto, replicas);
            let mut lookahead = lookahead.with_tokens_per_forward(per_forward);
            for _ in 0..20 {
                lookahead.observe_score(&JobTime::alone(10_000_000));
                let draft_ns = 4_u64.div_ceil(per_forward as u64) * 1_000_000;
                lookahead.observe_draft(4, &JobTime::alone(draft_ns));
            }
            (lookahead.length(), lookahead.tokens_per_job())
        };
        // A target forward takes as long as ten drafter forwards, which the replicas share.
        assert_eq!((learned(1, 5), learned(4, 5), learned(4, 10)), ((2, 1), (8, 4), (4, 4)));
        assert_eq!(learned(4, 1), (40, 4));
        // A drafter that makes any number of tokens at once.
        assert_eq!(learned(usize::MAX, 5), (64, 64));
    }

    #[test]
    fn a_fixed_lookahead_is_constant_and_bounds_the_drafts() {
        let mut lookahead = DsiLookahead::new(5, DraftLength::Fixed, 3);
        lookahead.observe_score(&JobTime::alone(1_000));
        assert_eq!((lookahead.length(), lookahead.max_ahead()), (5, 25));
    }
}
