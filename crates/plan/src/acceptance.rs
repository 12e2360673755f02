//! How likely draft tokens are accepted: by position in the draft, and in runs.

use crate::decaying::{PLACE_DECAY, PRIOR_TESTS, SLOW_DECAY, Share, TEST_DECAY, UNTESTED_FADE};
use crate::outlook::Outlook;
use crate::ranks::Ranks;
use crate::round::Round;

/// An estimate of the acceptance of chains of draft tokens, learned from verdicts. Older ones count
/// less.
///
/// Text has easy and hard stretches, in which a drafter is mostly right or mostly wrong. So this is
/// a hidden Markov model with two states, one token after another. Its filter gives the probability
/// that the next token is in an easy stretch; rates and transitions are learned online from the
/// filter's posterior (recursive EM: Krishnamurthy and Moore 1993, *On-line estimation of hidden
/// Markov model parameters*, without smoothing). Acceptance also falls with the position in a
/// draft, if the drafter was trained for a few positions, by a factor for each position.
#[derive(Clone, Debug)]
pub(crate) struct Acceptance {
    /// The probability that the last token was in an easy stretch.
    easy: f64,
    /// The acceptance rates in hard and in easy stretches.
    rates: [Share; 2],
    /// The probabilities that a hard or an easy stretch goes on.
    stays: [Share; 2],
    /// By position in the draft, after the first: the accepted tokens, of those that are expected
    /// without the factor.
    factors: Vec<Share>,
    ranks: Ranks,
}

/// The test of all candidates for a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tested {
    /// The number of candidates that were asked for. A drafter may have fewer.
    pub(crate) requested: usize,
    /// The rank of the accepted one, from 0.
    pub(crate) accepted: Option<usize>,
}

/// Positions after this one count as this one. Drafts in one job are shorter.
const LAST_POSITION: usize = 64;

/// The rates in hard and easy stretches before anything is known: far apart, so that tests tell
/// the stretches from each other.
const RATES: [f64; 2] = [0.2, 0.85];
/// The number of tokens that this knowledge is worth: a draft or two outweigh it.
const RATE_TOKENS: f64 = 3.0;
/// The probability that a stretch goes on, before anything is known: it lasts for 33 tokens.
const STAYS: f64 = 0.97;
/// The number of tokens that this knowledge is worth: about one such stretch.
const STAY_TOKENS: f64 = 30.0;
/// The probability of an easy stretch at first: with [`RATES`], a token is accepted with 0.66.
const EASY: f64 = 0.7;
/// The least factor of the last token of a job. Where further jobs are cheap, a position that is
/// this much worse than the first one of the next job is left to that.
const LEAST_FACTOR: f64 = 0.85;
/// The weight of tested tokens that say something: one test, up to rounding.
const KNOWN_TOKENS: f64 = 1.0 - 1e-6;
/// No token is certain, so that a likelihood is never 0.
const CERTAIN: f64 = 0.999;

impl Default for Acceptance {
    fn default() -> Self {
        Self {
            easy: EASY,
            rates: [Share::new(TEST_DECAY); 2],
            stays: [Share::new(SLOW_DECAY); 2],
            factors: Vec::new(),
            ranks: Ranks::default(),
        }
    }
}

impl Acceptance {
    /// Learns that a verdict accepted the first `accepted` of some tokens, and rejected the next
    /// one, if there is one. Each has its position in the job that drafted it, from 0.
    pub(crate) fn observe(&mut self, positions: impl IntoIterator<Item = usize>, accepted: usize) {
        for (index, position) in positions.into_iter().enumerate() {
            self.observe_token(position, index < accepted);
        }
    }

    /// Learns from a round of draft-then-verify.
    pub(crate) fn observe_round(&mut self, round: &Round) {
        match &round.ranked {
            _ if round.looked_up => return self.skip(round.accepted + 1),
            Some(ranked) => self.observe_ranked(&ranked.tested),
            None => {
                let tested = round.accepted + usize::from(round.rejected);
                self.observe(0..if round.has_draft() { tested } else { 0 }, round.accepted);
            }
        }
        if !round.rejected {
            self.skip(1);
        }
    }

    /// Learns from a verdict on a tree whose siblings are in the order of their ranks: the tests of
    /// its positions.
    fn observe_ranked(&mut self, tested: &[Tested]) {
        for (position, &tested) in tested.iter().enumerate() {
            self.observe_token(position, tested.accepted == Some(0));
            self.ranks.observe(position, tested);
        }
    }

    /// Learns that so many tokens were committed without being tested.
    pub(crate) fn skip(&mut self, tokens: usize) {
        for _ in 0..tokens {
            self.easy = self.after(self.easy);
        }
    }

    /// Learns that so many tokens were committed while another drafter was tested. What is known of
    /// this one is about earlier text, so it counts less with each of them.
    pub(crate) fn forget(&mut self, tokens: usize) {
        self.skip(tokens);
        self.rates.iter_mut().for_each(|rate| rate.fade(TEST_DECAY.powi(tokens as i32)));
    }

    /// Returns whether enough tokens were tested to say anything of the text at hand.
    pub(crate) fn is_known(&self) -> bool {
        self.rates.iter().map(Share::weight).sum::<f64>() >= KNOWN_TOKENS
    }

    /// Returns how many of `longest` tokens a job should draft, because a drafter is worse at later
    /// ones.
    pub(crate) fn job_length(&self, longest: usize) -> usize {
        let mut factor = 1.0;
        let is_good = |&position: &usize| {
            factor = self.factor(position, factor);
            factor >= LEAST_FACTOR
        };
        (1..longest.max(1)).take_while(is_good).count() + 1
    }

    /// Returns what the estimate says about the candidates for the next `depth` tokens, of which
    /// each job drafts `per_job`. `is_easy`: whether to expect that the text is in an easy stretch
    /// now.
    pub(crate) fn outlook(&self, is_easy: bool, depth: usize, per_job: usize) -> Outlook {
        let (easy, rates) = (if is_easy { 1.0 } else { self.easy }, self.rates());
        let factors = (0..depth.min(per_job.max(1))).scan(1.0, |before, position| {
            *before = self.factor(position, *before);
            Some(*before)
        });
        let factors: Vec<f64> = factors.collect();
        let best = factors.iter().cycle().take(depth);
        let best = best.map(|factor| rates.map(|rate| (rate * factor).min(CERTAIN))).collect();
        let others = self.ranks.if_best_is_wrong(depth);
        Outlook { states: [1.0 - easy, easy], stays: self.stays(), best, others }
    }

    fn observe_token(&mut self, position: usize, right: bool) {
        let position = position.min(LAST_POSITION);
        let (rates, stays) = (self.rates(), self.stays());
        let factor = (0..=position).fold(1.0, |before, at| self.factor(at, before));
        let likelihood = [0, 1].map(|state| {
            let rate = (rates[state] * factor).clamp(1.0 - CERTAIN, CERTAIN);
            if right { rate } else { 1.0 - rate }
        });
        let found = f64::from(u8::from(right));
        if position > 0 {
            let easy = self.after(self.easy);
            if self.factors.len() < position {
                self.factors.resize(position, Share::new(PLACE_DECAY));
            }
            self.factors[position - 1].add(found, (1.0 - easy) * rates[0] + easy * rates[1]);
            // A position that is no longer drafted is expected to be as good as the one before it.
            self.factors.iter_mut().skip(position).for_each(|factor| factor.fade(UNTESTED_FADE));
        }
        // The probabilities of the last token's state and of this one's together.
        let last = [1.0 - self.easy, self.easy];
        let joint = [0, 1].map(|from: usize| {
            [0, 1].map(|to: usize| {
                let transition = if from == to { stays[from] } else { 1.0 - stays[from] };
                last[from] * transition * likelihood[to]
            })
        });
        let total: f64 = joint.iter().flatten().sum();
        for state in [0, 1] {
            let [of_last, of_this] = [
                (joint[state][0] + joint[state][1]) / total,
                (joint[0][state] + joint[1][state]) / total,
            ];
            self.stays[state].add_weighted(
                joint[state][state] / total / of_last.max(1e-12),
                1.0,
                of_last,
            );
            self.rates[state].add_weighted(found, factor, of_this);
        }
        self.easy = ((joint[0][1] + joint[1][1]) / total).clamp(1e-6, 1.0 - 1e-6);
    }

    /// Returns the probability of an easy stretch one token later.
    fn after(&self, easy: f64) -> f64 {
        let stays = self.stays();
        easy * stays[1] + (1.0 - easy) * (1.0 - stays[0])
    }

    fn rates(&self) -> [f64; 2] {
        let [hard, easy] =
            [0, 1].map(|state| self.rates[state].value(RATES[state], RATE_TOKENS).min(CERTAIN));
        [hard.min(easy), easy.max(hard)]
    }

    fn stays(&self) -> [f64; 2] {
        [0, 1].map(|state| self.stays[state].value(STAYS, STAY_TOKENS).clamp(0.3, 0.999))
    }

    /// Returns the factor of a position after one with the factor `before`.
    fn factor(&self, position: usize, before: f64) -> f64 {
        let factor = position.checked_sub(1).and_then(|at| self.factors.get(at));
        factor.map_or(before, |factor| factor.value(before, PRIOR_TESTS).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Learns from chains of `length` tokens; `right(token)` is whether the draft of a token of the
    /// text is right.
    fn learn(tokens: usize, length: usize, right: impl Fn(usize, usize) -> bool) -> Acceptance {
        let (mut acceptance, mut token) = (Acceptance::default(), 0);
        while token < tokens {
            let wrong = (0..length).find(|&position| !right(token + position, position));
            let accepted = wrong.unwrap_or(length);
            acceptance.observe(0..accepted + usize::from(wrong.is_some()), accepted);
            if wrong.is_none() {
                acceptance.skip(1);
            }
            token += accepted + 1;
        }
        acceptance
    }

    fn survival(acceptance: &Acceptance, length: usize, per_job: usize) -> Vec<f64> {
        acceptance.outlook(false, length, per_job).survival(length)
    }

    /// Returns a number from 0 to 1 that looks random.
    fn mixed(token: usize) -> f64 {
        let mut z = (token as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as f64 / u64::MAX as f64
    }

    #[test]
    fn independent_tokens_have_powers_of_one_rate() {
        for rate in [0.2, 0.5, 0.8, 0.95] {
            let acceptance = learn(20_000, 4, |token, _| mixed(token) < rate);
            let survival = survival(&acceptance, 4, 4);
            for (n, found) in survival.iter().enumerate() {
                let expected = f64::powi(rate, n as i32);
                assert!((found - expected).abs() < 0.12, "{rate}: {survival:?}");
            }
        }
    }

    #[test]
    fn later_positions_may_be_worse() {
        let acceptance = learn(20_000, 6, |token, position| position < 3 && mixed(token) < 0.9);
        let survival = survival(&acceptance, 6, 6);
        assert!(survival[3] > 0.55 && survival[4] < 0.12, "{survival:?}");
    }

    #[test]
    fn stretches_are_followed() {
        // Stretches of 60 tokens.
        let right = |token: usize, _: usize| (token / 60).is_multiple_of(2);
        let easy = learn(60 * 41 - 20, 4, right);
        let hard = learn(60 * 42 - 20, 4, right);
        assert!(survival(&easy, 1, 1)[1] > 0.9, "{easy:?}");
        assert!(survival(&hard, 1, 1)[1] < 0.1, "{hard:?}");
        // Without tests, the stretch may end.
        let mut later = hard.clone();
        later.skip(150);
        assert!(survival(&later, 1, 1)[1] > 0.3, "{later:?}");
    }

    #[test]
    fn jobs_end_before_positions_at_which_the_drafter_fails() {
        let acceptance = learn(20_000, 6, |token, position| position < 3 && mixed(token) < 0.9);
        assert_eq!([1, 2, 6].map(|longest| acceptance.job_length(longest)), [1, 2, 3]);
        let [alone, long] = [1, 6].map(|per_job| survival(&acceptance, 6, per_job)[6]);
        assert!(alone > 0.3 && long < 0.05, "{alone} {long}");
    }
}
