//! What an estimate of the acceptance says about the candidates of the next draft.

use crate::ranks::RANKS;

/// The acceptance of all candidates of a draft after the present text.
#[derive(Clone, Debug)]
pub(crate) struct Outlook {
    /// The probabilities that the last token was in a hard and in an easy stretch.
    pub(crate) states: [f64; 2],
    /// The probabilities that a hard and an easy stretch go on.
    pub(crate) stays: [f64; 2],
    /// By position: how often the best candidate is right in hard and in easy stretches.
    pub(crate) best: Vec<[f64; 2]>,
    /// By position and rank: how often another candidate is right if the best one is wrong.
    pub(crate) others: Vec<[f64; RANKS]>,
}

/// The probability that a path is accepted, by the stretch of its last token.
pub(crate) type PathStates = [f64; 2];

impl Outlook {
    /// Returns the outlook if the best candidate is always right.
    pub(crate) fn certain(depth: usize) -> Self {
        let (best, others) = (vec![[1.0; 2]; depth], vec![[0.0; RANKS]; depth]);
        Self { states: [0.0, 1.0], stays: [1.0; 2], best, others }
    }

    /// Returns the probability that a path is accepted if it goes on with the candidate of a rank.
    /// `position` is that of the candidate.
    pub(crate) fn with_candidate(
        &self,
        path: PathStates,
        position: usize,
        rank: usize,
    ) -> PathStates {
        let [hard, easy] = path;
        let leaves = [hard * (1.0 - self.stays[0]), easy * (1.0 - self.stays[1])];
        let next = [hard * self.stays[0] + leaves[1], easy * self.stays[1] + leaves[0]];
        let best = self.best[position];
        match rank {
            0 => [next[0] * best[0], next[1] * best[1]],
            _ => {
                let share = self.others[position][rank];
                [next[0] * (1.0 - best[0]) * share, next[1] * (1.0 - best[1]) * share]
            }
        }
    }

    /// Returns, for `n` from 0 to `length`, the probability that the best candidates for the first
    /// `n` positions are accepted.
    pub(crate) fn survival(&self, length: usize) -> Vec<f64> {
        let mut path = self.states;
        let mut survival = vec![1.0];
        for position in 0..length.min(self.best.len()) {
            path = self.with_candidate(path, position, 0);
            survival.push(path[0] + path[1]);
        }
        survival
    }

    /// Returns the expected tokens of a round with a tree of ranked candidates
    /// ([`DraftShape::Ranked`](forerun_core::DraftShape::Ranked)).
    pub(crate) fn tokens_of_ranked(&self, children: &[usize]) -> f64 {
        let mut paths = vec![(self.states, 0)];
        let mut tokens = 1.0;
        for (row, &count) in children.iter().enumerate() {
            let Some(&(path, position)) = paths.get(row) else { break };
            for rank in 0..count {
                let path = self.with_candidate(path, position, rank);
                tokens += path[0] + path[1];
                paths.push((path, position + 1));
            }
        }
        tokens
    }
}
