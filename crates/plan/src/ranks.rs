//! How often the target's token is one of the drafter's further candidates, by position and by
//! rank.

use crate::acceptance::Tested;
use crate::decaying::{PLACE_DECAY, PRIOR_TESTS, Share, UNTESTED_FADE};

/// The number of ranks with a share of their own: the most candidates after one token.
pub(crate) const RANKS: usize = 10;

/// For each position of a draft and each rank after the best: how often a candidate is right if
/// those before it are wrong.
///
/// This is a hazard rate, so it can be learned from any number of candidates. Before anything is
/// known, the rank of the target's token follows the power law that SSD measures (arXiv
/// 2603.03251), with exponent 1: it is above `n` with probability `1/n`. A later position is like
/// the one before it until it is known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranks {
    /// By position and by rank, without the best candidate.
    rights: Vec<Vec<Share>>,
}

/// Positions after this one count as this one. Trees are seldom deeper.
const LAST_POSITION: usize = 15;

impl Ranks {
    /// Learns from the candidates for a position. One that the drafter did not have is wrong.
    pub(crate) fn observe(&mut self, position: usize, tested: Tested) {
        let position = position.min(LAST_POSITION);
        if tested.accepted == Some(0) {
            return;
        }
        if self.rights.len() <= position {
            self.rights.resize(position + 1, vec![Share::new(PLACE_DECAY); RANKS - 1]);
        }
        for (rank, right) in (1..).zip(&mut self.rights[position]) {
            match tested.accepted {
                Some(accepted) if rank > accepted => return,
                accepted if rank < tested.requested => {
                    right.add(f64::from(u8::from(accepted == Some(rank))), 1.0);
                }
                _ => right.fade(UNTESTED_FADE),
            }
        }
    }

    /// Returns, for each position up to `depth`, the probability of each rank if the best candidate
    /// is wrong. That of rank 0 is not used.
    pub(crate) fn if_best_is_wrong(&self, depth: usize) -> Vec<[f64; RANKS]> {
        let mut right: [f64; RANKS] = std::array::from_fn(|rank| 1.0 / (rank + 1) as f64);
        (0..depth)
            .map(|position| {
                if let Some(rights) = self.rights.get(position) {
                    for (rank, share) in (1..).zip(rights) {
                        right[rank] = share.value(right[rank], PRIOR_TESTS);
                    }
                }
                let (mut left, mut of_rank) = (1.0, [0.0; RANKS]);
                for (of_rank, right) in of_rank.iter_mut().zip(right).skip(1) {
                    *of_rank = left * right;
                    left *= 1.0 - right;
                }
                // A tree that grows by rank needs probabilities that fall.
                for rank in 2..RANKS {
                    of_rank[rank] = of_rank[rank].min(of_rank[rank - 1]);
                }
                of_rank
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_learned_from_any_number_of_candidates() {
        let mut ranks = Ranks::default();
        let before = ranks.if_best_is_wrong(2);
        assert!((before[0][1] - 0.5).abs() < 1e-9 && (before[1][2] - 1.0 / 6.0).abs() < 1e-9);
        // The second candidate is right in every fourth test, and the third one never.
        for round in 0..400 {
            let accepted = (round % 4 == 0).then_some(1);
            ranks.observe(0, Tested { requested: 2 + round % 2, accepted });
        }
        let after = ranks.if_best_is_wrong(2);
        assert!((after[0][1] - 0.25).abs() < 0.05 && after[0][2] < 0.03, "{after:?}");
        assert_eq!(after[0], after[1], "the second position is like the first one");
        // What the drafter does not have is wrong.
        for _ in 0..400 {
            ranks.observe(0, Tested { requested: 2, accepted: None });
        }
        assert!(ranks.if_best_is_wrong(1)[0][1] < 0.05);
        // Candidates that are no longer drafted may be right again.
        for _ in 0..4_000 {
            ranks.observe(0, Tested { requested: 1, accepted: None });
        }
        assert!(ranks.if_best_is_wrong(1)[0][1] > 0.4);
    }
}
