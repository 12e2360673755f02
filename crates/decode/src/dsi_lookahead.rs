//! DSI's lookahead: as asked, or by the paper's sizing rule from measured times.

use crate::DraftLength;
use crate::estimates::{Mean, TokenTime};

/// Decides how many draft tokens make a verification task.
///
/// A target forward of t₂ and a draft token of t₁ need `⌈t₂ / (lookahead · t₁)⌉` replicas to keep up
/// (DSI, equation 1). The automatic mode takes the smallest lookahead that needs no more replicas than
/// there are; t₂ is what jobs took of late, with all the rows that replicas had to compute. A drafter that
/// makes several tokens in one forward (ParallelSpec, PARD) is reckoned by its forwards, and asked for
/// whole ones.
#[derive(Clone, Debug)]
pub struct DsiLookahead {
    length: usize,
    mode: DraftLength,
    replicas: usize,
    score_ns: Mean,
    token_time: TokenTime,
    /// The answer's first jobs, which compute the prompt, are still to come.
    first_scores: usize,
}

/// Lookahead while nothing is known.
const FIRST_LENGTH: usize = 4;

impl DsiLookahead {
    /// Always `length` tokens (`Fixed`), or up to so many (`Auto`), for so many target replicas.
    #[must_use]
    pub fn new(length: usize, mode: DraftLength, replicas: usize) -> Self {
        Self {
            length: length.max(1),
            mode,
            replicas: replicas.max(1),
            score_ns: Mean::default(),
            token_time: TokenTime::default(),
            first_scores: replicas,
        }
    }

    /// The same for a drafter that makes so many tokens in one forward.
    #[must_use]
    pub fn with_tokens_per_forward(self, tokens: usize) -> Self {
        Self { token_time: self.token_time.with_tokens_per_forward(tokens), ..self }
    }

    /// The same with all that it has learned, for a new answer.
    #[must_use]
    pub fn for_new_answer(&self) -> Self {
        let token_time = self.token_time.for_new_answer();
        Self { first_scores: self.replicas, token_time, ..self.clone() }
    }

    /// Draft tokens of a verification task.
    #[must_use]
    pub fn length(&self) -> usize {
        let known = self.score_ns.is_known() && self.token_time.is_known();
        match self.mode {
            DraftLength::Fixed | DraftLength::Assisted => self.length,
            DraftLength::Auto if !known => FIRST_LENGTH.min(self.length),
            DraftLength::Auto => {
                let ratio = self.score_ns.or(0.0) / self.token_time.or(1.0).max(1.0);
                // Rounding must not ask for another forward.
                let forwards = (ratio / self.replicas as f64 - 1e-6).ceil() as usize;
                self.token_time.in_forwards(forwards.max(1)).min(self.length)
            }
        }
    }

    /// Tokens that the drafter may be ahead of the committed ones: what all replicas verify, and the
    /// tasks that are drafted meanwhile.
    pub(crate) fn most(&self) -> usize {
        self.length() * (self.replicas + 2)
    }

    /// Tokens that one draft job should make.
    pub(crate) fn at_once(&self) -> usize {
        self.token_time.at_once(self.length())
    }

    /// Learns what a replica's job took.
    pub(crate) fn observe_score(&mut self, ns: u64) {
        match self.first_scores {
            0 => self.score_ns.add(ns as f64),
            // A replica's first job holds the prompt.
            _ => self.first_scores -= 1,
        }
    }

    /// Learns what so many draft tokens took.
    pub(crate) fn observe_draft(&mut self, tokens: usize, ns: u64) {
        self.token_time.add(tokens, ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(replicas: usize, score_ns: u64, token_ns: u64) -> DsiLookahead {
        let mut lookahead = DsiLookahead::new(64, DraftLength::Auto, replicas);
        assert_eq!(lookahead.length(), 4);
        for _ in 0..20 {
            lookahead.observe_score(score_ns);
            lookahead.observe_draft(1, token_ns);
        }
        lookahead
    }

    #[test]
    fn the_smallest_lookahead_that_the_replicas_keep_up_with() {
        // The paper's example: a drafter of a tenth of the time needs 5 replicas at lookahead 2.
        assert_eq!(learned(5, 1_000, 100).length(), 2);
        assert_eq!(learned(10, 1_000, 100).length(), 1);
        assert_eq!(learned(1, 1_000, 100).length(), 10);
        assert_eq!(learned(4, 1_000, 100).length(), 3);
        // A drafter slower than the target, and one out of proportion.
        assert_eq!(learned(1, 1_000, 5_000).length(), 1);
        assert_eq!(learned(1, 1_000_000, 1).length(), 64);
    }

    #[test]
    fn a_drafter_of_several_tokens_a_forward_is_asked_for_whole_forwards() {
        let learned = |per_forward: usize, replicas| {
            let lookahead = DsiLookahead::new(64, DraftLength::Auto, replicas);
            let mut lookahead = lookahead.with_tokens_per_forward(per_forward);
            for _ in 0..20 {
                lookahead.observe_score(10_000_000);
                lookahead.observe_draft(4, 4_u64.div_ceil(per_forward as u64) * 1_000_000);
            }
            (lookahead.length(), lookahead.at_once())
        };
        // A target forward takes ten of the drafter's, which the replicas share.
        assert_eq!((learned(1, 5), learned(4, 5), learned(4, 10)), ((2, 1), (8, 4), (4, 4)));
        assert_eq!(learned(4, 1), (40, 4));
        // One that makes any number at once.
        assert_eq!(learned(usize::MAX, 5), (64, 64));
    }

    #[test]
    fn a_fixed_lookahead_stays_and_bounds_what_is_ahead() {
        let mut lookahead = DsiLookahead::new(5, DraftLength::Fixed, 3);
        lookahead.observe_score(1_000);
        assert_eq!((lookahead.length(), lookahead.most()), (5, 25));
    }
}
