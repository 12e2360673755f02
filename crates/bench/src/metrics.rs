//! Metrics of answers: pure functions of what was recorded.
//!
//! Each is computed over the answers of one configuration to one category in one repeat (a [`Pool`]);
//! means and standard deviations are taken over repeats. Counting follows vLLM and llama.cpp; where
//! published tables differ from each other, the definition here says which one it is.

use crate::record::{AnswerRecord, TurnRecord};
use crate::times::Round;
use serde::{Deserialize, Serialize};

/// Answers of one configuration, each turn beside autoregressive decoding's answer to the same turn in
/// the same repeat.
#[derive(Clone, Debug, Default)]
pub struct Pool<'a> {
    turns: Vec<(&'a TurnRecord, &'a TurnRecord)>,
    peak_memory_bytes: Option<u64>,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Tokens per second over those of autoregressive decoding, for the same turn in the same repeat:
    /// the geometric mean over turns, so that a ratio and its inverse weigh the same. Spec-Bench
    /// divides means instead, and counts the baseline's tokens by tokenizing its text again; here
    /// both are the engine's own.
    SpeedRatio,
    /// Tokens of all answers over the time of all answers, the prompts' included.
    TokensPerSecond,
    /// Variance of tokens per second over answers (EasySpec, table 4).
    TokensPerSecondVariance,
    /// Time to first token: the mean, in milliseconds.
    FirstTokenMs,
    /// Time per output token behind the first, `(total − first) / (tokens − 1)` as vLLM has it: the
    /// mean over answers of at least two tokens, in milliseconds.
    PerTokenMs,
    /// Median of the times between a token and the one before it in an answer, in milliseconds.
    /// Tokens of one step arrive together, so all but the first of them come after 0.
    InterTokenP50Ms,
    /// The 99th percentile (nearest rank) of the same.
    InterTokenP99Ms,
    /// MAT, τ: tokens committed over target forwards that committed any, the target's own token
    /// included; for draft-then-verify 1 + accepted/drafts, as vLLM and llama.cpp have it.
    MeanAcceptedTokens,
    /// Tokens committed over all target forwards, the prompts' and cancelled ones included.
    TokensPerForward,
    /// Accepted draft tokens over rejections: how many are accepted between two rejections, over
    /// several target forwards. PEARL's (arXiv 2408.11850) "mean accepted tokens".
    MeanRunLength,
    /// Accepted draft tokens over tested ones; those behind a rejection were not tested.
    AcceptanceRate,
    /// Target forwards.
    TargetForwards,
    /// Drafter forwards.
    DrafterForwards,
    /// Share of the time in which only a drafter computed; for shares, see
    /// [`Times`](crate::times::Times).
    DraftShare,
    /// Share in which only the target computed.
    VerifyShare,
    /// Share in which both computed.
    BothShare,
    /// Share in which no job ran.
    WaitingShare,
    /// Share in which jobs ran that did not compute.
    OtherShare,
    /// Milliseconds a token in which a drafter computed, alone or not.
    DraftMsPerToken,
    /// Milliseconds a token in which the target computed, alone or not.
    VerifyMsPerToken,
    /// Median of how long draft jobs ran in a round that drafted, in milliseconds; for rounds, see
    /// [`Round`].
    DraftMsPerRound,
    /// Median of what a round took over the longer of its drafting and verifying; for rounds, see
    /// [`Round`].
    RoundP50,
    /// The 90th percentile of the same.
    RoundP90,
    /// Draft tokens that were not accepted over all draft tokens.
    WastedDraftShare,
    /// Draft tokens that were not accepted.
    WastedDraftTokens,
    /// Rows that the target scored beyond those that committed a token.
    WastedTargetRows,
    /// Peak of the process's memory while it answered, in MB.
    PeakMemoryMb,
}

impl Metric {
    /// All of them, in the order of tables.
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

    /// Those whose spread over prompts is told (EasySpec, table 4).
    pub const OVER_PROMPTS: [Self; 4] =
        [Self::SpeedRatio, Self::TokensPerSecond, Self::MeanAcceptedTokens, Self::AcceptanceRate];

    /// The parts of the time.
    pub const SHARES: [Self; 5] = [
        Self::DraftShare,
        Self::VerifyShare,
        Self::BothShare,
        Self::WaitingShare,
        Self::OtherShare,
    ];

    /// Its heading in tables, with the unit.
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
            Self::BothShare => "both %",
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

    /// Whether it is a share, which tables show in per cent.
    #[must_use]
    pub fn is_share(self) -> bool {
        self.heading().ends_with('%')
    }

    /// Its value, if there is anything to measure.
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

/// Of answers, each with the baseline's to the same prompt in the same repeat.
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
    /// Adds an answer and the baseline's to the same prompt in the same repeat.
    pub fn add(&mut self, answer: &'a AnswerRecord, baseline: &'a AnswerRecord) {
        self.turns.extend(answer.turns.iter().zip(&baseline.turns));
        self.peak_memory_bytes = self.peak_memory_bytes.max(answer.peak_memory_bytes);
    }

    /// For every depth of drafts, accepted over tested; `None` where none was tested.
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

    /// Turns that were answered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.turns.len()
    }

    /// Whether there is none.
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

    /// Milliseconds a token of two parts; nobody knows those of a peer.
    fn ms_per_token(&self, [one, other]: [usize; 2]) -> Option<f64> {
        let known = self.all_parts() > 0.0;
        let parts = self.part(one) + self.part(other);
        ratio(parts / 1e6, self.tokens()).filter(|_| known)
    }

    fn speed_ratio(&self) -> Option<f64> {
        let logarithm = |(own, plain): &(&TurnRecord, &TurnRecord)| {
            (own.tokens_per_second() / plain.tokens_per_second()).ln()
        };
        // Without a token there is no speed.
        let both = |(own, plain): &&(&TurnRecord, &TurnRecord)| {
            !own.tokens.is_empty() && !plain.tokens.is_empty()
        };
        mean(self.turns.iter().filter(both).map(logarithm)).map(f64::exp)
    }

    /// Tokens per second of every answer.
    fn speeds(&self) -> Vec<f64> {
        let speed = |turn: &TurnRecord| ratio(turn.tokens.len() as f64, turn.total_ns as f64 / 1e9);
        self.own().filter_map(speed).collect()
    }

    fn gaps_ms(&self) -> Vec<f64> {
        self.own().flat_map(gaps_ns).map(|gap| gap as f64 / 1e6).collect()
    }

    /// How long rounds drafted.
    fn drafting_ms(&self) -> Vec<f64> {
        let rounds = self.own().flat_map(|turn| &turn.rounds);
        rounds.map(|round| round.draft_ns as f64 / 1e6).collect()
    }

    /// What rounds took over the longer of drafting and verifying.
    fn rounds(&self) -> Vec<f64> {
        let rounds = self.own().flat_map(|turn| &turn.rounds);
        rounds.map(Round::over_the_longer).collect()
    }
}

/// Times between each token behind the first and the one before it.
fn gaps_ns(turn: &TurnRecord) -> Vec<u64> {
    let mut times = Vec::new();
    for commit in &turn.commits {
        times.extend(std::iter::repeat_n(commit.at_ns, commit.tokens));
    }
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

fn per_token_ms(turn: &TurnRecord) -> Option<f64> {
    let behind = turn.tokens.len().checked_sub(2)? + 1;
    Some((turn.total_ns.saturating_sub(turn.first_token_ns())) as f64 / 1e6 / behind as f64)
}

/// `part / whole`, if there is a whole.
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

/// That of a sample: there is none of a single value.
fn variance(values: &[f64]) -> Option<f64> {
    let measured = Measured::of(values)?;
    measured.deviation.map(|deviation| deviation * deviation)
}

/// The nearest-rank percentile: the smallest value that at least this share does not exceed.
fn percentile(mut values: Vec<f64>, share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() as f64 * share).ceil() as usize;
    values.get(rank.max(1) - 1).copied()
}

/// A metric over repeats, or over prompts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The mean.
    pub mean: f64,
    /// The sample standard deviation; `None` for a single value.
    pub deviation: Option<f64>,
}

impl Measured {
    /// Mean and deviation of some values, if there are any.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mean = mean(values.iter().copied())?;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt());
        Some(Self { mean, deviation })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::record::Counts;
    use crate::testing::{answer, turn};
    use crate::times::Times;

    const MS: u64 = 1_000_000;

    /// Ten tokens in four steps of 10 ms each: 3 accepted and the bonus, 1 accepted and a correction, 0
    /// accepted and a correction, 2 accepted and a correction; drafts of 3, 3, 3, 4 tokens.
    fn drafted() -> AnswerRecord {
        let mut turn = turn(&[(10 * MS, 4), (20 * MS, 2), (30 * MS, 1), (40 * MS, 3)]);
        turn.counts = Counts {
            committed: 10,
            committing_forwards: 4,
            target_forwards: 5,
            drafter_forwards: 13,
            draft_tokens: 13,
            tested: vec![4, 3, 2],
            accepted: vec![3, 2, 1],
            scored_rows: 17,
        };
        turn.times = Times {
            draft_ns: 8 * MS,
            verify_ns: 16 * MS,
            both_ns: 4 * MS,
            waiting_ns: 10 * MS,
            other_ns: 2 * MS,
        };
        answer("drafted", "p", 0, turn)
    }

    /// Ten tokens, one every 8 ms.
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
    fn metrics_of_a_scripted_answer_are_those_by_hand() {
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
    fn plain_decoding_is_its_own_measure_and_has_no_drafts() {
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
    fn nobody_knows_where_a_peers_time_went() {
        let mut peer = drafted();
        peer.turns[0].times = Times::default();
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
    fn the_time_of_drafting_is_that_of_the_middle_round() {
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
    fn ratios_are_taken_pair_by_pair() {
        // Twice as fast once and half as fast once is no gain, however long the answers are.
        let (fast, slow) = (turn(&[(10, 4)]), turn(&[(4000, 4)]));
        let (plain_fast, plain_slow) = (turn(&[(20, 4)]), turn(&[(2000, 4)]));
        let records = [fast, slow, plain_fast, plain_slow].map(|turn| answer("x", "p", 0, turn));
        let mut pool = Pool::default();
        pool.add(&records[0], &records[2]);
        pool.add(&records[1], &records[3]);
        assert_near(Metric::SpeedRatio, &pool, 1.0);
    }

    #[test]
    fn short_and_missing_answers_measure_what_they_can() {
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
    fn percentiles_are_nearest_ranks_and_deviations_those_of_samples() {
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
