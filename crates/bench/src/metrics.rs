//! Metrics of answers: pure functions of the recorded answers.
//!
//! A metric is computed over a [`Pool`]: the answers of one configuration to one category in one
//! repeat. Means and standard deviations are taken over repeats. The definitions follow vLLM and
//! llama.cpp. If published tables use different definitions, the documentation of the metric names
//! the one used here.

use crate::record::{AnswerRecord, TurnRecord};
use crate::times::Round;
use serde::{Deserialize, Serialize};

/// Answers of one configuration. Each turn is paired with the baseline's answer to the same turn in
/// the same repeat.
#[derive(Clone, Debug, Default)]
pub struct Pool<'a> {
    turns: Vec<(&'a TurnRecord, &'a TurnRecord)>,
    peak_memory_bytes: Option<u64>,
}

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Speedup: tokens per second divided by those of autoregressive decoding for the same turn in
    /// the same repeat. It is the geometric mean over turns, so that a ratio and its inverse have
    /// the same weight. Spec-Bench divides means instead, and counts the baseline's tokens by
    /// tokenizing its text again; here both counts are the engine's own.
    SpeedRatio,
    /// Tokens of all answers divided by the time of all answers, including the prompts.
    TokensPerSecond,
    /// Variance of tokens per second over answers (EasySpec, table 4).
    TokensPerSecondVariance,
    /// Time to first token (TTFT): mean in milliseconds.
    FirstTokenMs,
    /// Time per output token (TPOT) after the first one, `(total − first) / (tokens − 1)` as in
    /// vLLM: mean over answers of at least two tokens, in milliseconds.
    PerTokenMs,
    /// Inter-token latency: median of the time between two consecutive tokens of an answer, in
    /// milliseconds. Tokens of one step arrive together, so all but the first of them have a
    /// latency of 0.
    InterTokenP50Ms,
    /// 99th percentile (nearest rank) of the inter-token latency.
    InterTokenP99Ms,
    /// Mean accepted tokens (MAT, τ): committed tokens, including the target's own, divided by the
    /// target passes that committed any. For speculative decoding this is 1 + accepted/drafts, as
    /// in vLLM and llama.cpp.
    MeanAcceptedTokens,
    /// Committed tokens divided by all target passes, including those for prompts and cancelled
    /// ones.
    TokensPerForward,
    /// Accepted draft tokens divided by rejections: the number of tokens accepted between two
    /// rejections, over several target passes. PEARL (arXiv 2408.11850) calls this "mean accepted
    /// tokens".
    MeanRunLength,
    /// Accepted draft tokens divided by tested ones. Tokens after a rejection are not tested.
    AcceptanceRate,
    /// Number of target passes.
    TargetForwards,
    /// Number of drafter passes.
    DrafterForwards,
    /// Share of the time in which only a drafter computed. For the shares, see
    /// [`TimeBreakdown`](crate::times::TimeBreakdown).
    DraftShare,
    /// Share of the time in which only the target computed.
    VerifyShare,
    /// Share of the time in which drafter and target computed.
    BothShare,
    /// Share of the time in which no job ran.
    WaitingShare,
    /// Share of the time in which jobs ran, but none computed.
    OtherShare,
    /// Time per token in which a drafter computed, alone or not, in milliseconds.
    DraftMsPerToken,
    /// Time per token in which the target computed, alone or not, in milliseconds.
    VerifyMsPerToken,
    /// Median time of draft jobs in a round that drafted, in milliseconds. For rounds, see
    /// [`Round`].
    DraftMsPerRound,
    /// Median of the duration of a round divided by the longer of its drafting and verifying. For
    /// rounds, see [`Round`].
    RoundP50,
    /// 90th percentile of the same ratio.
    RoundP90,
    /// Share of draft tokens that were not accepted.
    WastedDraftShare,
    /// Number of draft tokens that were not accepted.
    WastedDraftTokens,
    /// Number of rows that the target scored beyond those that committed a token.
    WastedTargetRows,
    /// Peak memory of the process during an answer, in MB.
    PeakMemoryMb,
}

impl Metric {
    /// All metrics in the order of tables.
    pub const ALL: [Self; 27] = [
        Self::SpeedRatio,
        Self::TokensPerSecond,
        Self::TokensPerSecondVariance,
        Self::FirstTokenMs,
        Self::PerTokenMs,
        Self::InterTokenP50Ms,
        Self::InterTokenP99Ms,
        Self::MeanAcceptedTokens,
        Self::TokensPerForward,
        Self::MeanRunLength,
        Self::AcceptanceRate,
        Self::TargetForwards,
        Self::DrafterForwards,
        Self::DraftShare,
        Self::VerifyShare,
        Self::BothShare,
        Self::WaitingShare,
        Self::OtherShare,
        Self::DraftMsPerToken,
        Self::VerifyMsPerToken,
        Self::DraftMsPerRound,
        Self::RoundP50,
        Self::RoundP90,
        Self::WastedDraftShare,
        Self::WastedDraftTokens,
        Self::WastedTargetRows,
        Self::PeakMemoryMb,
    ];

    /// The metrics that are also reported over prompts (EasySpec, table 4).
    pub const OVER_PROMPTS: [Self; 4] =
        [Self::SpeedRatio, Self::TokensPerSecond, Self::MeanAcceptedTokens, Self::AcceptanceRate];

    /// The shares of the time, in the order of
    /// [`TimeBreakdown::NAMES`](crate::times::TimeBreakdown::NAMES).
    pub const SHARES: [Self; 5] = [
        Self::DraftShare,
        Self::VerifyShare,
        Self::BothShare,
        Self::WaitingShare,
        Self::OtherShare,
    ];

    /// Returns the heading in tables, with the unit.
    #[must_use]
    pub fn heading(self) -> &'static str {
        match self {
            Self::SpeedRatio => "speed ×",
            Self::TokensPerSecond => "tokens/s",
            Self::TokensPerSecondVariance => "tokens/s variance",
            Self::FirstTokenMs => "TTFT ms",
            Self::PerTokenMs => "TPOT ms",
            Self::InterTokenP50Ms => "inter-token p50 ms",
            Self::InterTokenP99Ms => "inter-token p99 ms",
            Self::MeanAcceptedTokens => "MAT",
            Self::TokensPerForward => "tokens/forward",
            Self::MeanRunLength => "run length",
            Self::AcceptanceRate => "accepted %",
            Self::TargetForwards => "target forwards",
            Self::DrafterForwards => "drafter forwards",
            Self::DraftShare => "draft %",
            Self::VerifyShare => "verify %",
            Self::BothShare => "together %",
            Self::WaitingShare => "waiting %",
            Self::OtherShare => "other %",
            Self::DraftMsPerToken => "draft ms/token",
            Self::VerifyMsPerToken => "verify ms/token",
            Self::DraftMsPerRound => "draft ms/round",
            Self::RoundP50 => "round/longer p50",
            Self::RoundP90 => "round/longer p90",
            Self::WastedDraftShare => "drafts wasted %",
            Self::WastedDraftTokens => "draft tokens wasted",
            Self::WastedTargetRows => "target rows wasted",
            Self::PeakMemoryMb => "peak MB",
        }
    }

    /// Returns what the metric means, in a sentence or two.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::SpeedRatio => {
                "Speedup: tokens per second divided by those of plain (autoregressive) decoding for the \
                 same prompt in the same repeat; geometric mean over prompts."
            }
            Self::TokensPerSecond => {
                "Tokens of all answers divided by their time, including the prompts."
            }
            Self::TokensPerSecondVariance => "Variance of tokens per second over answers.",
            Self::FirstTokenMs => "Time to first token: mean over answers.",
            Self::PerTokenMs => {
                "Time per output token after the first one: mean over answers of at least two tokens."
            }
            Self::InterTokenP50Ms => {
                "Median time between two consecutive tokens of an answer. Tokens of one step arrive \
                 together, so all but the first of them have 0."
            }
            Self::InterTokenP99Ms => {
                "99th percentile of the time between two consecutive tokens of an answer."
            }
            Self::MeanAcceptedTokens => {
                "Mean accepted tokens: committed tokens, including the target's own, per target pass \
                 that committed any."
            }
            Self::TokensPerForward => {
                "Committed tokens per target pass, including passes for prompts and cancelled ones."
            }
            Self::MeanRunLength => {
                "Draft tokens accepted between two rejections (PEARL's mean accepted tokens)."
            }
            Self::AcceptanceRate => {
                "Accepted draft tokens divided by tested ones. Tokens after a rejection are not tested."
            }
            Self::TargetForwards => "Number of forward passes of the target.",
            Self::DrafterForwards => "Number of forward passes of drafters.",
            Self::DraftShare => "Share of the time in which only a drafter computed.",
            Self::VerifyShare => "Share of the time in which only the target computed.",
            Self::BothShare => "Share of the time in which drafter and target computed.",
            Self::WaitingShare => "Share of the time in which no job ran.",
            Self::OtherShare => {
                "Share of the time in which jobs ran, but did not compute (sampling, caches)."
            }
            Self::DraftMsPerToken => "Time in which a drafter computed, alone or not, per token.",
            Self::VerifyMsPerToken => "Time in which the target computed, alone or not, per token.",
            Self::DraftMsPerRound => "Median time of draft jobs in a round that drafted.",
            Self::RoundP50 => {
                "Median duration of a round divided by the longer of its drafting and verifying; 1 is \
                 perfect overlap."
            }
            Self::RoundP90 => {
                "90th percentile of the duration of a round divided by the longer of its drafting and \
                 verifying."
            }
            Self::WastedDraftShare => "Share of draft tokens that were not accepted.",
            Self::WastedDraftTokens => "Number of draft tokens that were not accepted.",
            Self::WastedTargetRows => {
                "Rows that the target computed beyond those that committed a token."
            }
            Self::PeakMemoryMb => "Peak memory of the process during an answer.",
        }
    }

    /// Returns whether tables show the metric in per cent.
    #[must_use]
    pub fn is_share(self) -> bool {
        self.heading().ends_with('%')
    }

    /// Computes the metric for a pool, or `None` if there is nothing to measure.
    #[must_use]
    pub fn of(self, pool: &Pool<'_>) -> Option<f64> {
        match self {
            Self::SpeedRatio => pool.speed_ratio(),
            Self::TokensPerSecond => ratio(pool.tokens(), pool.total_ns() / 1e9),
            Self::TokensPerSecondVariance => variance(&pool.speeds()),
            Self::FirstTokenMs => mean(pool.own().map(|turn| turn.first_token_ns() as f64 / 1e6)),
            Self::PerTokenMs => mean(pool.own().filter_map(per_token_ms)),
            Self::InterTokenP50Ms => percentile(pool.gaps_ms(), 0.5),
            Self::InterTokenP99Ms => percentile(pool.gaps_ms(), 0.99),
            Self::MeanAcceptedTokens => {
                ratio(pool.committed(), pool.sum(|c| c.committing_forwards))
            }
            Self::TokensPerForward => ratio(pool.committed(), pool.sum(|c| c.target_forwards)),
            Self::MeanRunLength => ratio(pool.accepted(), pool.tested() - pool.accepted()),
            Self::AcceptanceRate => ratio(pool.accepted(), pool.tested()),
            Self::TargetForwards => pool.if_any(pool.sum(|c| c.target_forwards)),
            Self::DrafterForwards => pool.if_any(pool.sum(|c| c.drafter_forwards)),
            Self::DraftShare => pool.share(0),
            Self::VerifyShare => pool.share(1),
            Self::BothShare => pool.share(2),
            Self::WaitingShare => pool.share(3),
            Self::OtherShare => pool.share(4),
            Self::DraftMsPerToken => pool.ms_per_token([0, 2]),
            Self::DraftMsPerRound => percentile(pool.drafting_ms(), 0.5),
            Self::RoundP50 => percentile(pool.rounds(), 0.5),
            Self::RoundP90 => percentile(pool.rounds(), 0.9),
            Self::VerifyMsPerToken => pool.ms_per_token([1, 2]),
            Self::WastedDraftShare => ratio(pool.wasted(), pool.sum(|c| c.draft_tokens)),
            Self::WastedDraftTokens => pool.if_any(pool.wasted()),
            Self::WastedTargetRows => {
                pool.if_any((pool.sum(|c| c.scored_rows) - pool.committed()).max(0.0))
            }
            Self::PeakMemoryMb => pool.peak_memory_bytes.map(|bytes| bytes as f64 / 1e6),
        }
    }
}

/// Collects pairs of an answer and the baseline's answer to the same prompt in the same repeat.
impl<'a> FromIterator<(&'a AnswerRecord, &'a AnswerRecord)> for Pool<'a> {
    fn from_iter<T>(answers: T) -> Self
    where
        T: IntoIterator<Item = (&'a AnswerRecord, &'a AnswerRecord)>,
    {
        let mut pool = Self::default();
        answers.into_iter().for_each(|(answer, baseline)| pool.add(answer, baseline));
        pool
    }
}

impl<'a> Pool<'a> {
    /// Adds an answer and the baseline's answer to the same prompt in the same repeat.
    pub fn add(&mut self, answer: &'a AnswerRecord, baseline: &'a AnswerRecord) {
        self.turns.extend(answer.turns.iter().zip(&baseline.turns));
        self.peak_memory_bytes = self.peak_memory_bytes.max(answer.peak_memory_bytes);
    }

    /// Returns the acceptance rate for each depth of drafts: accepted tokens divided by tested
    /// ones, or `None` if none was tested.
    #[must_use]
    pub fn acceptance_per_position(&self) -> Vec<Option<f64>> {
        let depths = self.own().map(|turn| turn.counts.tested.len()).max().unwrap_or(0);
        let at = |counts: &[u64], depth| counts.get(depth).copied().unwrap_or(0);
        let rate = |depth| {
            ratio(
                self.own().map(|turn| at(&turn.counts.accepted, depth)).sum::<u64>() as f64,
                self.own().map(|turn| at(&turn.counts.tested, depth)).sum::<u64>() as f64,
            )
        };
        (0..depths).map(rate).collect()
    }

    /// Returns the number of answered turns.
    #[must_use]
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// Returns whether the pool has no turns.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    fn own(&self) -> impl Iterator<Item = &'a TurnRecord> + '_ {
        self.turns.iter().map(|turns| turns.0)
    }

    fn if_any(&self, value: f64) -> Option<f64> {
        (!self.is_empty()).then_some(value)
    }

    fn sum(&self, count: impl Fn(&crate::record::Counts) -> u64) -> f64 {
        self.own().map(|turn| count(&turn.counts)).sum::<u64>() as f64
    }

    fn committed(&self) -> f64 {
        self.sum(|counts| counts.committed)
    }

    fn accepted(&self) -> f64 {
        self.sum(|counts| counts.accepted.iter().sum())
    }

    fn tested(&self) -> f64 {
        self.sum(|counts| counts.tested.iter().sum())
    }

    fn wasted(&self) -> f64 {
        self.sum(|counts| counts.draft_tokens) - self.accepted()
    }

    fn tokens(&self) -> f64 {
        self.own().map(|turn| turn.tokens.len()).sum::<usize>() as f64
    }

    fn total_ns(&self) -> f64 {
        self.own().map(|turn| turn.total_ns).sum::<u64>() as f64
    }

    fn part(&self, part: usize) -> f64 {
        self.own().map(|turn| turn.times.parts()[part]).sum::<u64>() as f64
    }

    fn share(&self, part: usize) -> Option<f64> {
        ratio(self.part(part), self.all_parts())
    }

    fn all_parts(&self) -> f64 {
        (0..5).map(|part| self.part(part)).sum()
    }

    /// Returns the milliseconds per token of two parts of the time, or `None` for peers, whose
    /// times are not broken down.
    fn ms_per_token(&self, [one, other]: [usize; 2]) -> Option<f64> {
        let is_known = self.all_parts() > 0.0;
        let parts = self.part(one) + self.part(other);
        ratio(parts / 1e6, self.tokens()).filter(|_| is_known)
    }

    fn speed_ratio(&self) -> Option<f64> {
        let logarithm = |(own, plain): &(&TurnRecord, &TurnRecord)| {
            (own.tokens_per_second() / plain.tokens_per_second()).ln()
        };
        // Without a token there is no speed.
        let have_tokens = |(own, plain): &&(&TurnRecord, &TurnRecord)| {
            !own.tokens.is_empty() && !plain.tokens.is_empty()
        };
        mean(self.turns.iter().filter(have_tokens).map(logarithm)).map(f64::exp)
    }

    /// Returns the tokens per second of every answer.
    fn speeds(&self) -> Vec<f64> {
        let speed = |turn: &TurnRecord| ratio(turn.tokens.len() as f64, turn.total_ns as f64 / 1e9);
        self.own().filter_map(speed).collect()
    }

    fn gaps_ms(&self) -> Vec<f64> {
        self.own().flat_map(gaps_ns).map(|gap| gap as f64 / 1e6).collect()
    }

    /// Returns the drafting times of all rounds in milliseconds.
    fn drafting_ms(&self) -> Vec<f64> {
        let rounds = self.own().flat_map(|turn| &turn.rounds);
        rounds.map(|round| round.draft_ns as f64 / 1e6).collect()
    }

    /// Returns the durations of all rounds, each divided by the longer of drafting and verifying.
    fn rounds(&self) -> Vec<f64> {
        let rounds = self.own().flat_map(|turn| &turn.rounds);
        rounds.map(Round::ratio_to_longer_phase).collect()
    }
}

/// Returns the times between consecutive tokens in nanoseconds.
fn gaps_ns(turn: &TurnRecord) -> Vec<u64> {
    let mut times = Vec::new();
    for commit in &turn.commits {
        times.extend(std::iter::repeat_n(commit.at_ns, commit.tokens));
    }
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

fn per_token_ms(turn: &TurnRecord) -> Option<f64> {
    let after_first = turn.tokens.len().checked_sub(2)? + 1;
    Some((turn.total_ns.saturating_sub(turn.first_token_ns())) as f64 / 1e6 / after_first as f64)
}

/// Returns `part / whole`, or `None` if `whole` is not positive.
fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0);
    for value in values {
        sum += value;
        count += 1;
    }
    ratio(sum, f64::from(count))
}

/// Returns the sample variance, or `None` for less than two values.
fn variance(values: &[f64]) -> Option<f64> {
    Measured::of(values)?.deviation.map(|deviation| deviation * deviation)
}

/// Returns the nearest-rank percentile: the smallest value such that at least this share of the
/// values does not exceed it.
pub(crate) fn percentile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.max(1) - 1).copied()
}

/// The mean and the standard deviation of a metric over repeats or prompts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The mean.
    pub mean: f64,
    /// The sample standard deviation; `None` for a single value.
    pub deviation: Option<f64>,
}

impl Measured {
    /// Returns the mean and the deviation of some values, or `None` if there are no values.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mean = mean(values.iter().copied())?;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt());
        Some(Self { mean, deviation })
    }
}

impl From<Measured> for forerun_draw::Value {
    fn from(Measured { mean, deviation }: Measured) -> Self {
        Self { mean, deviation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Counts;
    use crate::testing::{answer, turn};
    use crate::times::TimeBreakdown;

    const MS: u64 = 1_000_000;

    /// Returns an answer of ten tokens in four steps of 10 ms: 3 accepted and the bonus, 1 accepted
    /// and a correction, 0 accepted and a correction, 2 accepted and a correction; drafts of 3, 3,
    /// 3, 4 tokens.
    fn drafted() -> AnswerRecord {
        let mut turn = turn(&[(10 * MS, 4), (20 * MS, 2), (30 * MS, 1), (40 * MS, 3)]);
        turn.counts = Counts {
            committed: 10,
            committing_forwards: 4,
            target_forwards: 5,
            overruns: 0,
            drafter_forwards: 13,
            draft_tokens: 13,
            tested: vec![4, 3, 2],
            accepted: vec![3, 2, 1],
            scored_rows: 17,
        };
        turn.times = TimeBreakdown {
            draft_ns: 8 * MS,
            verify_ns: 16 * MS,
            both_ns: 4 * MS,
            waiting_ns: 10 * MS,
            other_ns: 2 * MS,
        };
        answer("drafted", "p", 0, turn)
    }

    /// Returns an answer of ten tokens, one every 8 ms.
    fn plain() -> AnswerRecord {
        let commits: Vec<_> = (1..=10).map(|step| (step * 8 * MS, 1)).collect();
        let mut turn = turn(&commits);
        turn.counts = Counts {
            committed: 10,
            committing_forwards: 10,
            target_forwards: 10,
            scored_rows: 10,
            ..Counts::default()
        };
        answer("plain", "p", 0, turn)
    }

    fn assert_near(metric: Metric, pool: &Pool<'_>, expected: f64) {
        let value = metric.of(pool).unwrap();
        assert!((value - expected).abs() < 1e-9, "{metric:?}: {value}, expected {expected}");
    }

    #[test]
    fn metrics_have_the_values_computed_by_hand() {
        let (drafted, plain) = (drafted(), plain());
        let mut pool = Pool::default();
        pool.add(&drafted, &plain);
        for (metric, expected) in [
            (Metric::SpeedRatio, 2.0),
            (Metric::TokensPerSecond, 250.0),
            (Metric::FirstTokenMs, 10.0),
            (Metric::PerTokenMs, 30.0 / 9.0),
            // Gaps: 0 0 0 10 0 10 10 0 0.
            (Metric::InterTokenP50Ms, 0.0),
            (Metric::InterTokenP99Ms, 10.0),
            (Metric::MeanAcceptedTokens, 2.5),
            (Metric::TokensPerForward, 2.0),
            (Metric::MeanRunLength, 6.0 / 3.0),
            (Metric::AcceptanceRate, 6.0 / 9.0),
            (Metric::TargetForwards, 5.0),
            (Metric::DrafterForwards, 13.0),
            (Metric::DraftShare, 0.2),
            (Metric::VerifyShare, 0.4),
            (Metric::BothShare, 0.1),
            (Metric::WaitingShare, 0.25),
            (Metric::OtherShare, 0.05),
            (Metric::DraftMsPerToken, 1.2),
            (Metric::VerifyMsPerToken, 2.0),
            (Metric::WastedDraftShare, 7.0 / 13.0),
            (Metric::WastedDraftTokens, 7.0),
            (Metric::WastedTargetRows, 7.0),
            (Metric::PeakMemoryMb, 1.0),
        ] {
            assert_near(metric, &pool, expected);
        }
        let rates = pool.acceptance_per_position();
        assert_eq!(rates, [Some(0.75), Some(2.0 / 3.0), Some(0.5)]);
    }

    #[test]
    fn plain_decoding_has_a_speed_ratio_of_one_and_no_drafts() {
        let plain = plain();
        let mut pool = Pool::default();
        pool.add(&plain, &plain);
        assert_near(Metric::SpeedRatio, &pool, 1.0);
        assert_near(Metric::MeanAcceptedTokens, &pool, 1.0);
        assert_near(Metric::PerTokenMs, &pool, 8.0);
        for metric in [Metric::AcceptanceRate, Metric::MeanRunLength, Metric::WastedDraftShare] {
            assert_eq!(metric.of(&pool), None, "{metric:?}");
        }
        assert!(pool.acceptance_per_position().is_empty());
    }

    #[test]
    fn times_of_peers_are_not_broken_down() {
        let mut peer = drafted();
        peer.turns[0].times = TimeBreakdown::default();
        let plain = plain();
        let mut pool = Pool::default();
        pool.add(&peer, &plain);
        assert_near(Metric::SpeedRatio, &pool, 2.0);
        let times = [Metric::DraftMsPerToken, Metric::VerifyMsPerToken];
        for metric in Metric::SHARES.into_iter().chain(times) {
            assert_eq!(metric.of(&pool), None, "{metric:?}");
        }
    }

    #[test]
    fn drafting_time_per_round_is_a_median() {
        let round = |draft_ns| Round { round_ns: 9_000_000, draft_ns, score_ns: 4_000_000 };
        let mut own = turn(&[(10, 4)]);
        own.rounds = [2_000_000, 500_000, 6_000_000].map(round).to_vec();
        let records = [own, turn(&[(10, 4)])].map(|turn| answer("x", "p", 0, turn));
        let mut pool = Pool::default();
        pool.add(&records[1], &records[1]);
        assert_eq!(Metric::DraftMsPerRound.of(&pool), None);
        pool.add(&records[0], &records[1]);
        assert_near(Metric::DraftMsPerRound, &pool, 2.0);
        assert_near(Metric::RoundP50, &pool, 2.25);
    }

    #[test]
    fn speed_ratios_are_averaged_geometrically() {
        // Twice as fast once and half as fast once is no gain, whatever the lengths of the answers.
        let (fast, slow) = (turn(&[(10, 4)]), turn(&[(4000, 4)]));
        let (plain_fast, plain_slow) = (turn(&[(20, 4)]), turn(&[(2000, 4)]));
        let records = [fast, slow, plain_fast, plain_slow].map(|turn| answer("x", "p", 0, turn));
        let mut pool = Pool::default();
        pool.add(&records[0], &records[2]);
        pool.add(&records[1], &records[3]);
        assert_near(Metric::SpeedRatio, &pool, 1.0);
    }

    #[test]
    fn short_and_empty_answers_have_only_some_metrics() {
        let (one, none) = (answer("x", "p", 0, turn(&[(5, 1)])), answer("x", "p", 0, turn(&[])));
        let mut pool = Pool::default();
        assert!(pool.is_empty() && Metric::ALL.iter().all(|metric| metric.of(&pool).is_none()));
        pool.add(&one, &one);
        assert_eq!(Metric::PerTokenMs.of(&pool), None);
        assert_eq!(Metric::InterTokenP99Ms.of(&pool), None);
        pool.add(&none, &none);
        assert_near(Metric::SpeedRatio, &pool, 1.0);
        assert_eq!(pool.len(), 2);
    }

    #[test]
    fn percentiles_use_the_nearest_rank_and_deviations_are_of_samples() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(values.clone(), 0.5), Some(100.0));
        assert_eq!(percentile(values, 0.99), Some(198.0));
        assert_eq!(percentile(vec![], 0.5), None);
        let measured = Measured::of(&[1.0, 2.0, 3.0]).unwrap();
        assert_eq!((measured.mean, measured.deviation), (2.0, Some(1.0)));
        assert_eq!(Measured::of(&[4.0]).unwrap().deviation, None);
        assert!((variance(&[1.0, 5.0]).unwrap() - 8.0).abs() < 1e-9);
        assert_eq!((variance(&[4.0]), variance(&[])), (None, None));
        assert_eq!(Measured::of(&[]), None);
    }
}
