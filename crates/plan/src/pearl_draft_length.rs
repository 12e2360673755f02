//! PEARL's draft length: fixed, or chosen from measured times and acceptance.

use crate::DraftLength;
use crate::estimates::{
    AcceptanceEstimate, BatchCosts, DecayingMean, DraftTime, JobTime, OneRowTime,
};
use crate::pauses::Pauses;

/// Decides how many tokens are drafted during a target forward (PEARL, arXiv 2408.11850, §4.3: γ =
/// round(c), where c is the ratio of the target's time to the drafter's).
///
/// The automatic mode goes further than the paper. From recent measurements it chooses the length
/// with the most tokens per second, because long drafts add rows to the next forward, and are
/// worth little if few tokens are accepted. Drafting pauses while the target alone is faster.
///
/// If other sequences share the passes, times are the job's share of them
/// ([`JobCost::share`](forerun_core::JobCost::share)).
#[derive(Clone, Debug)]
pub struct PearlDraftLength {
    length: usize,
    mode: DraftLength,
    /// Whether a round ends with the target's forward pass while the drafter continues. The paper's
    /// schedule waits for the drafter.
    eager: bool,
    /// The costs of score jobs. The times below are without the rows of neighbours.
    score_costs: BatchCosts,
    /// The time of a forward with one row while the drafter is idle.
    alone: OneRowTime,
    /// The time of a forward with one row while the drafter works.
    while_drafting: OneRowTime,
    /// The time that each further row adds to a forward.
    row_ns: DecayingMean,
    draft_time: DraftTime,
    acceptance: AcceptanceEstimate,
    /// Whether the next forward is the answer's first one, which computes the prompt.
    first_score: bool,
    pauses: Pauses,
}

/// The factor by which a longer draft has to be faster.
const MIN_GAIN: f64 = 1.001;
/// The draft length before any times are known.
const INITIAL_LENGTH: usize = 3;

impl PearlDraftLength {
    /// Creates a policy that always drafts γ = `length` tokens (`Fixed`), or up to `length` tokens
    /// (`Auto`).
    ///
    /// With `eager` a round ends with the target's forward pass. It does not wait for a late
    /// drafter. A drafter that has made a fixed γ tokens makes up to γ more while the target is
    /// busy.
    #[must_use]
    pub fn new(length: usize, mode: DraftLength, eager: bool) -> Self {
        Self {
            length,
            mode,
            eager,
            score_costs: BatchCosts::default(),
            alone: OneRowTime::default(),
            while_drafting: OneRowTime::default(),
            row_ns: DecayingMean::default(),
            draft_time: DraftTime::default(),
            acceptance: AcceptanceEstimate::default(),
            first_score: true,
            pauses: Pauses::default(),
        }
    }

    /// Returns a copy configured for a drafter that makes `tokens` tokens in one forward
    /// (ParallelSpec, PARD).
    #[must_use]
    pub fn with_tokens_per_forward(self, tokens: usize) -> Self {
        Self { draft_time: self.draft_time.with_tokens_per_forward(tokens), ..self }
    }

    /// Returns a copy for a new answer, which keeps the learned times and acceptance.
    #[must_use]
    pub fn for_new_answer(&self) -> Self {
        let (draft_time, pauses) = (self.draft_time.for_new_answer(), self.pauses.for_new_answer());
        Self { first_score: true, draft_time, pauses, ..self.clone() }
    }

    /// Returns γ of the next round; 0 if the drafter should pause.
    #[must_use]
    pub fn next_length(&self) -> usize {
        let initial = INITIAL_LENGTH.min(self.length);
        match self.mode {
            DraftLength::Fixed => self.length,
            _ if self.first_score => initial,
            _ if !self.pauses.drafts() => 0,
            _ if !self.draft_time.is_known() => initial,
            _ => self.best_length(),
        }
    }

    /// Returns the maximum number of tokens to draft during one forward, for this γ.
    pub fn max_new(&self, gamma: usize) -> usize {
        match self.mode {
            DraftLength::Fixed if self.eager => 2 * gamma,
            // The job in flight when a round ends counts towards the next round. A drafter that
            // barely keeps up must not become idle because of it.
            DraftLength::Auto
                if self.eager && self.draft_time.estimate_ns(gamma) >= self.score_ns(1.0) =>
            {
                gamma + self.tokens_per_job(gamma)
            }
            _ => gamma,
        }
    }

    /// Returns how many tokens one draft job should make.
    pub fn tokens_per_job(&self, gamma: usize) -> usize {
        self.draft_time.tokens_per_job(gamma)
    }

    /// Learns the time of a score job with `rows` rows. `while_drafting`: whether the drafter worked
    /// at the same time.
    pub fn observe_score(&mut self, rows: usize, time: &JobTime, while_drafting: bool) {
        if std::mem::take(&mut self.first_score) {
            return;
        }
        let Some(ns) = self.score_costs.learn(time) else { return };
        match rows {
            1 if while_drafting => self.while_drafting.add(time),
            1 => self.alone.add(time),
            _ if self.one_row_ns().is_finite() => {
                self.row_ns.add(((ns - self.one_row_ns()) / (rows - 1) as f64).max(0.0));
            }
            _ => {}
        }
    }

    /// Learns how long a draft job of `tokens` tokens took.
    pub fn observe_draft(&mut self, tokens: usize, time: &JobTime) {
        self.draft_time.add(tokens, time);
    }

    /// Learns that a round has committed `tokens` tokens at `now_ns`, on the cluster's clock. `alone`: whether
    /// the target had neither drafts nor a drafter beside it.
    pub fn observe_round(&mut self, tokens: usize, now_ns: u64, alone: bool) {
        self.pauses.observe(tokens, now_ns, alone);
    }

    /// Learns from a verdict.
    pub fn observe_verdict(&mut self, accepted: usize, rejected: bool) {
        self.acceptance.add(accepted, rejected);
    }

    fn one_row_ns(&self) -> f64 {
        let costs = &self.score_costs;
        let alone_ns = self.alone.without_neighbours_or(f64::INFINITY, costs);
        self.while_drafting.without_neighbours_or(alone_ns, costs)
    }

    /// Returns the estimated share of a score job with `rows` rows at the present load, while the
    /// drafter works; infinite if nothing is known.
    fn score_ns(&self, rows: f64) -> f64 {
        let ns = self.one_row_ns() + (rows - 1.0) * self.row_ns.value_or(0.0);
        self.score_costs.share_at_load(ns, rows)
    }

    /// Returns the length with the most tokens per second. A longer draft must be faster by the factor
    /// [`MIN_GAIN`].
    fn best_length(&self) -> usize {
        let speeds = (2..=self.length).map(|length| (length, self.speed(length)));
        let first = (1, self.speed(1));
        speeds.fold(first, |best, next| if next.1 > best.1 * MIN_GAIN { next } else { best }).0
    }

    /// Returns the expected tokens per nanosecond with γ = `length`.
    ///
    /// There are two kinds of rounds. Let α be the acceptance rate, and n the number of drafted
    /// tokens: γ, or fewer if the round ends with the target's forward pass. A round without
    /// unverified tokens (pre-verify) commits one token. With probability α, the next round has
    /// n − 1 unverified tokens (post-verify). Such a round commits `1 + α + … + α^(n−1)` tokens, and
    /// is followed by another one with probability `α^n`.
    fn speed(&self, length: usize) -> f64 {
        let alpha = self.acceptance.rate(1.0).min(0.999);
        let (requested, requested_ns) = (length as f64, self.draft_time.estimate_ns(length));
        // A round waits for at least one token, and so for all tokens of its job.
        let (drafted, min_draft_ns) = match self.eager && requested_ns > 0.0 {
            true => {
                let min_tokens = self.tokens_per_job(length);
                let in_time = requested * self.score_ns(1.0) / requested_ns;
                let drafted = in_time.clamp(min_tokens as f64, requested);
                (drafted, self.draft_time.estimate_ns(min_tokens))
            }
            false => (requested, requested_ns),
        };
        let pre_ns = min_draft_ns.max(self.score_ns(1.0));
        let post_ns = min_draft_ns.max(self.score_ns(drafted));
        let all = alpha.powf(drafted);
        // The share of post-verify rounds in the long run.
        let post = if length == 1 { 0.0 } else { alpha / (alpha + 1.0 - all) };
        let tokens = (1.0 - post) + post * (1.0 - all) / (1.0 - alpha);
        tokens / ((1.0 - post) * pre_ns + post * post_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates rounds in which every `run`-th token is rejected, and returns their lengths.
    /// `score_ns`: the time of the first row of a forward, and of each further row.
    fn run(
        draft_length: &mut PearlDraftLength,
        rounds: usize,
        draft_ns: u64,
        score_ns: [u64; 2],
        run: usize,
    ) -> Vec<usize> {
        run_by(draft_length, rounds, |gamma| gamma as u64 * draft_ns, score_ns, run)
    }

    /// Simulates rounds like [`run`], with a function that gives the time of a draft by its length.
    fn run_by(
        draft_length: &mut PearlDraftLength,
        rounds: usize,
        draft_ns: impl Fn(usize) -> u64,
        score_ns: [u64; 2],
        run: usize,
    ) -> Vec<usize> {
        let mut lengths = Vec::new();
        let (mut unverified, mut right, mut now_ns) = (0, 0, 0);
        for _ in 0..rounds {
            let gamma = draft_length.next_length();
            lengths.push(gamma);
            let rows = unverified as u64 + 1;
            let time = score_ns[0] + (rows - 1) * score_ns[1];
            draft_length.observe_score(rows as usize, &JobTime::alone(time), gamma > 0);
            if gamma > 0 {
                draft_length.observe_draft(gamma, &JobTime::alone(draft_ns(gamma)));
            }
            // The draft of every `run`-th token of the text is wrong.
            let tested = unverified + usize::from(gamma > 0);
            let wrong = (0..tested).find(|place| (right + place) % run == run - 1);
            draft_length.observe_verdict(wrong.unwrap_or(tested), wrong.is_some());
            // A round waits for all draft tokens, or for those of one job.
            let awaited = if draft_length.eager { gamma.min(1) } else { gamma };
            now_ns += time.max(if gamma > 0 { draft_ns(awaited) } else { 0 });
            let own = usize::from(wrong.is_some() || gamma == 0);
            let committed = wrong.unwrap_or(tested) + own;
            draft_length.observe_round(committed, now_ns, unverified == 0 && gamma == 0);
            right += wrong.map_or(tested, |accepted| accepted + 1);
            unverified = if wrong.is_some() || gamma == 0 { 0 } else { gamma - 1 };
        }
        lengths
    }

    #[test]
    fn a_fixed_length_is_constant() {
        let mut draft_length = PearlDraftLength::new(5, DraftLength::Fixed, true);
        assert!(run(&mut draft_length, 50, 100, [1_000, 20], 9).iter().all(|&length| length == 5));
        assert_eq!((draft_length.max_new(5), draft_length.tokens_per_job(5)), (10, 5));
    }

    #[test]
    fn the_automatic_length_is_near_the_ratio_of_times() {
        // If nearly all tokens are accepted, it pays to wait for a drafter that is almost done.
        for (draft_ns, expected) in [(100_000, 9..=10), (250_000, 4..=4), (450_000, 2..=3)] {
            let mut draft_length = PearlDraftLength::new(16, DraftLength::Auto, true);
            let lengths = run(&mut draft_length, 300, draft_ns, [1_000_000, 0], 40);
            let settled = &lengths[lengths.len() - 100..];
            let drafted = settled.iter().filter(|&&length| length > 0);
            assert!(drafted.clone().all(|length| expected.contains(length)), "{settled:?}");
            assert!(drafted.count() >= 90);
        }
    }

    #[test]
    fn drafters_with_several_tokens_per_forward_make_whole_forwards() {
        let forwards_ns = |gamma: usize| gamma.div_ceil(6) as u64 * 900_000;
        let last = |draft_length: &mut PearlDraftLength| {
            let lengths = run_by(draft_length, 300, forwards_ns, [1_000_000, 10_000], 10);
            lengths.into_iter().rfind(|&length| length > 0)
        };
        let mut policy =
            PearlDraftLength::new(16, DraftLength::Auto, false).with_tokens_per_forward(6);
        assert_eq!(last(&mut policy), Some(6));
        // One job requests all tokens of a forward, and as many forwards as justify its messages.
        assert_eq!([6, 4, 16].map(|gamma| policy.tokens_per_job(gamma)), [6, 4, 6]);
        let unlimited =
            PearlDraftLength::new(16, DraftLength::Fixed, true).with_tokens_per_forward(usize::MAX);
        assert_eq!((unlimited.tokens_per_job(8), unlimited.draft_time.estimate_ns(9)), (8, 0.0));
    }

    #[test]
    fn eager_rounds_allow_a_slower_drafter() {
        let last = |eager: bool| {
            let mut draft_length = PearlDraftLength::new(16, DraftLength::Auto, eager);
            run(&mut draft_length, 300, 700_000, [1_000_000, 0], 3).last().copied()
        };
        // Two tokens take 1.4 times as long as a forward pass. Rounds that wait for both reach only
        // 0.97 times the speed of plain decoding.
        assert_eq!((last(true), last(false)), (Some(2), Some(0)));
    }

    #[test]
    fn a_slow_parallel_forward_is_used_for_all_its_tokens() {
        let forwards_ns = |gamma: usize| gamma.div_ceil(6) as u64 * 3_000_000;
        let mut draft_length =
            PearlDraftLength::new(6, DraftLength::Auto, true).with_tokens_per_forward(6);
        let lengths = run_by(&mut draft_length, 300, forwards_ns, [1_000_000, 0], 20);
        // Four or five tokens in the time of three forward passes are more than three.
        assert!(lengths[200..].iter().filter(|&&length| length == 6).count() > 90, "{lengths:?}");
    }

    #[test]
    fn plain_rounds_measure_the_speed_to_beat() {
        let mut draft_length = PearlDraftLength::new(4, DraftLength::Auto, true);
        let lengths = run(&mut draft_length, 2_000, 200_000, [1_000_000, 0], 7);
        let plain = lengths.iter().filter(|&&length| length == 0).count();
        // Six or seven each time, if one verifies what is drafted already: at the start, and twice in the two
        // seconds after it, because six plain rounds may cost 0.5 % of the time.
        assert!((18..=21).contains(&plain), "{plain}");
    }

    #[test]
    fn expensive_rows_shorten_drafts() {
        let mut cheap = PearlDraftLength::new(16, DraftLength::Auto, true);
        let mut expensive = cheap.clone();
        let last = |lengths: Vec<usize>| lengths.into_iter().rfind(|&length| length > 0);
        let with_cheap = last(run(&mut cheap, 200, 50_000, [1_000_000, 0], 4));
        let with_expensive = last(run(&mut expensive, 200, 50_000, [1_000_000, 250_000], 4));
        assert!(with_expensive < with_cheap, "{with_expensive:?} {with_cheap:?}");
    }

    #[test]
    fn drafting_pauses_if_the_drafter_is_slower_than_the_target() {
        let mut draft_length = PearlDraftLength::new(16, DraftLength::Auto, true);
        let lengths = run(&mut draft_length, 400, 3_000_000, [1_000_000, 0], 2);
        let drafting = lengths[20..].iter().filter(|&&length| length > 0).count();
        assert!((1..=10).contains(&drafting), "{drafting}");
    }
}
