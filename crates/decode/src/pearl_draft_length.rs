//! PEARL's draft length: as asked, or as measured times advise.

use crate::DraftLength;
use crate::estimates::{AcceptanceEstimate, Mean, TokenTime};

/// Decides how many tokens are drafted beside a target forward (PEARL, §4.3: γ = round(c), c being the
/// target's time over the drafter's).
///
/// The automatic mode goes further than the paper: of all lengths it takes the one of the most tokens a
/// second by what was measured lately, since long drafts make the next forward longer (cost by rows) and
/// are worth little where few tokens are accepted. Where no length is faster than plain decoding, drafting
/// pauses, and is tried again now and then. Plain rounds show what drafting has to beat.
#[derive(Clone, Debug)]
pub struct PearlDraftLength {
    length: usize,
    mode: DraftLength,
    /// Whether a round ends with the target's pass and the drafter goes on meanwhile (not the paper's).
    eager: bool,
    /// A forward with one row while the drafter stands still, and while it works.
    alone_ns: Mean,
    while_drafting_ns: Mean,
    /// What each row more adds.
    row_ns: Mean,
    /// Drafting a token.
    token_time: TokenTime,
    acceptance: AcceptanceEstimate,
    /// The answer's first forward, which computes the prompt, is still to come.
    first_score: bool,
    /// Rounds since the last one without drafting, and since the last one with it.
    since_plain: u32,
    since_draft: u32,
}

/// Rounds with drafting after which one without it shows anew what drafting has to beat.
const PLAIN_EVERY: u32 = 64;
/// Rounds without drafting after which it is tried again.
const TRY_EVERY: u32 = 48;
/// How much faster a longer draft has to be.
const WORTH: f64 = 1.001;
/// Draft length while nothing is known.
const FIRST_LENGTH: usize = 3;

impl PearlDraftLength {
    /// Always γ tokens (`Fixed`), or up to so many (`Auto`). With `eager` a round ends with the target's
    /// pass: a drafter that is late is not waited for, and one that is done with a fixed γ makes as many
    /// again while the target is still busy.
    #[must_use]
    pub fn new(length: usize, mode: DraftLength, eager: bool) -> Self {
        Self {
            length,
            mode,
            eager,
            alone_ns: Mean::default(),
            while_drafting_ns: Mean::default(),
            row_ns: Mean::default(),
            token_time: TokenTime::default(),
            acceptance: AcceptanceEstimate::default(),
            first_score: true,
            since_plain: 0,
            since_draft: 0,
        }
    }

    /// The same for a drafter that makes so many tokens in one forward (ParallelSpec, PARD).
    #[must_use]
    pub fn with_tokens_per_forward(self, tokens: usize) -> Self {
        Self { token_time: self.token_time.with_tokens_per_forward(tokens), ..self }
    }

    /// The same with all that it has learned, for a new answer.
    #[must_use]
    pub fn for_new_answer(&self) -> Self {
        let token_time = self.token_time.for_new_answer();
        Self { first_score: true, token_time, ..self.clone() }
    }

    /// γ of the next round, in which the target scores so many unverified tokens; 0 if the drafter should
    /// rest.
    #[must_use]
    pub fn next_length(&self, unverified: usize) -> usize {
        if self.mode == DraftLength::Fixed {
            return self.length;
        }
        let first = FIRST_LENGTH.min(self.length);
        if self.first_score {
            return first;
        }
        // Nothing unverified is left behind for a plain round, unless it is long overdue.
        let overdue = if unverified == 0 { PLAIN_EVERY } else { 2 * PLAIN_EVERY };
        if !self.alone_ns.is_known() || self.since_plain >= overdue {
            return 0;
        }
        if !self.token_time.is_known() {
            return first;
        }
        match self.best_length() {
            0 if self.since_draft >= TRY_EVERY => 1,
            best => best,
        }
    }

    /// Tokens that may be drafted beside one forward where γ is so much.
    pub(crate) fn most(&self, gamma: usize) -> usize {
        match self.mode {
            DraftLength::Fixed if self.eager => 2 * gamma,
            // What is under way as a round ends counts among the next one's: a drafter that hardly keeps up
            // must not stand still for it.
            DraftLength::Auto if self.eager && self.token_time.of(gamma) >= self.one_row_ns() => {
                gamma + self.at_once(gamma)
            }
            _ => gamma,
        }
    }

    /// Tokens that one draft job should make.
    pub(crate) fn at_once(&self, gamma: usize) -> usize {
        self.token_time.at_once(gamma)
    }

    /// Learns what a forward of so many rows took, and whether the drafter worked beside it.
    pub(crate) fn observe_score(&mut self, rows: usize, ns: u64, while_drafting: bool) {
        let ns = ns as f64;
        self.since_plain = if while_drafting || rows > 1 { self.since_plain + 1 } else { 0 };
        self.since_draft = if while_drafting { 0 } else { self.since_draft + 1 };
        if std::mem::take(&mut self.first_score) {
            return;
        }
        match rows {
            1 if while_drafting => self.while_drafting_ns.add(ns),
            1 => self.alone_ns.add(ns),
            _ if self.one_row_ns().is_finite() => {
                self.row_ns.add(((ns - self.one_row_ns()) / (rows - 1) as f64).max(0.0));
            }
            _ => {}
        }
    }

    /// Learns what so many draft tokens took.
    pub(crate) fn observe_draft(&mut self, tokens: usize, ns: u64) {
        self.token_time.add(tokens, ns);
    }

    /// Learns from a verdict.
    pub(crate) fn observe_verdict(&mut self, accepted: usize, rejected: bool) {
        self.acceptance.add(accepted, rejected);
    }

    fn one_row_ns(&self) -> f64 {
        self.while_drafting_ns.or(self.alone_ns.or(f64::INFINITY))
    }

    /// The length of the most tokens a second; 0 is plain decoding. More tokens must be worth something.
    fn best_length(&self) -> usize {
        let plain = 1.0 / self.alone_ns.or(f64::INFINITY);
        let speeds = (1..=self.length).map(|length| (length, self.speed(length)));
        speeds.fold((0, plain), |best, next| if next.1 > best.1 * WORTH { next } else { best }).0
    }

    /// Expected tokens a nanosecond with γ = `length`.
    ///
    /// Rounds are of two kinds. Without unverified tokens a round commits one token, and with the
    /// probability α of acceptance the next one has n − 1 unverified ones, n being the tokens that were
    /// drafted: γ, or fewer where the round ends with the target's pass. Such a round commits
    /// `1 + α + … + α^(n−1)` tokens, and is followed by another such with probability `α^n`.
    fn speed(&self, length: usize) -> f64 {
        let alpha = self.acceptance.rate(1.0).min(0.999);
        let score_ns = |rows: f64| self.one_row_ns() + (rows - 1.0) * self.row_ns.or(0.0);
        let (asked, asked_ns) = (length as f64, self.token_time.of(length));
        // At least one token is waited for, and what its job makes with it.
        let (drafted, least_ns) = match self.eager && asked_ns > 0.0 {
            true => {
                let least = self.at_once(length);
                let in_time = asked * score_ns(1.0) / asked_ns;
                (in_time.clamp(least as f64, asked), self.token_time.of(least))
            }
            false => (asked, asked_ns),
        };
        let (pre_ns, post_ns) = (least_ns.max(score_ns(1.0)), least_ns.max(score_ns(drafted)));
        let all = alpha.powf(drafted);
        // Shares of the two kinds in the long run.
        let post = if length == 1 { 0.0 } else { alpha / (alpha + 1.0 - all) };
        let tokens = (1.0 - post) + post * (1.0 - all) / (1.0 - alpha);
        tokens / ((1.0 - post) * pre_ns + post * post_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of a world in which every token is accepted with a fixed pattern.
    fn run(
        draft_length: &mut PearlDraftLength,
        rounds: usize,
        draft_ns: u64,
        score_ns: [u64; 2],
        run: usize,
    ) -> Vec<usize> {
        run_by(draft_length, rounds, |gamma| gamma as u64 * draft_ns, score_ns, run)
    }

    /// The same, with the time of a draft by its length.
    fn run_by(
        draft_length: &mut PearlDraftLength,
        rounds: usize,
        draft_ns: impl Fn(usize) -> u64,
        score_ns: [u64; 2],
        run: usize,
    ) -> Vec<usize> {
        let mut lengths = Vec::new();
        let (mut unverified, mut right) = (0, 0);
        for _ in 0..rounds {
            let gamma = draft_length.next_length(unverified);
            lengths.push(gamma);
            let rows = unverified as u64 + 1;
            draft_length.observe_score(
                rows as usize,
                score_ns[0] + (rows - 1) * score_ns[1],
                gamma > 0,
            );
            if gamma > 0 {
                draft_length.observe_draft(gamma, draft_ns(gamma));
            }
            // Every `run`-th token of the text is drafted wrongly.
            let tested = unverified + usize::from(gamma > 0);
            let wrong = (0..tested).find(|place| (right + place) % run == run - 1);
            draft_length.observe_verdict(wrong.unwrap_or(tested), wrong.is_some());
            right += wrong.map_or(tested, |accepted| accepted + 1);
            unverified = if wrong.is_some() || gamma == 0 { 0 } else { gamma - 1 };
        }
        lengths
    }

    #[test]
    fn a_fixed_length_stays() {
        let mut draft_length = PearlDraftLength::new(5, DraftLength::Fixed, true);
        assert!(run(&mut draft_length, 50, 100, [1_000, 20], 9).iter().all(|&length| length == 5));
        assert_eq!((draft_length.most(5), draft_length.at_once(5)), (10, 5));
    }

    #[test]
    fn the_automatic_length_is_near_the_ratio_of_times() {
        // Where nearly all is accepted, a drafter that is nearly done is worth waiting for.
        for (draft_ns, expected) in [(100_000, 9..=10), (250_000, 4..=4), (450_000, 2..=3)] {
            let mut draft_length = PearlDraftLength::new(16, DraftLength::Auto, true);
            let lengths = run(&mut draft_length, 300, draft_ns, [1_000_000, 0], 40);
            let settled = &lengths[lengths.len() - 20..];
            let drafted = settled.iter().filter(|&&length| length > 0);
            assert!(drafted.clone().all(|length| expected.contains(length)), "{settled:?}");
            assert!(drafted.count() >= 18);
        }
    }

    #[test]
    fn a_drafter_of_several_tokens_a_forward_is_asked_for_as_many() {
        let forwards_ns = |gamma: usize| gamma.div_ceil(6) as u64 * 900_000;
        let last = |draft_length: &mut PearlDraftLength| {
            let lengths = run_by(draft_length, 300, forwards_ns, [1_000_000, 10_000], 10);
            lengths.into_iter().rfind(|&length| length > 0)
        };
        let mut knowing =
            PearlDraftLength::new(16, DraftLength::Auto, false).with_tokens_per_forward(6);
        assert_eq!(last(&mut knowing), Some(6));
        // All of a forward's tokens are asked for in one job, and as many forwards as a job is worth.
        assert_eq!((knowing.at_once(6), knowing.at_once(4), knowing.at_once(16)), (6, 4, 6));
        let quick =
            PearlDraftLength::new(16, DraftLength::Fixed, true).with_tokens_per_forward(usize::MAX);
        assert_eq!((quick.at_once(8), quick.token_time.of(9)), (8, 0.0));
    }

    #[test]
    fn a_drafter_that_is_not_waited_for_may_be_late() {
        let last = |eager: bool| {
            let mut draft_length = PearlDraftLength::new(16, DraftLength::Auto, eager);
            run(&mut draft_length, 300, 700_000, [1_000_000, 0], 3).last().copied()
        };
        // Two tokens take 1.4 times as long as a pass, and 0.97 of their gain is what waiting costs.
        assert_eq!((last(true), last(false)), (Some(2), Some(0)));
    }

    #[test]
    fn a_forward_that_is_waited_for_gives_all_that_it_makes() {
        let forwards_ns = |gamma: usize| gamma.div_ceil(6) as u64 * 3_000_000;
        let mut draft_length =
            PearlDraftLength::new(6, DraftLength::Auto, true).with_tokens_per_forward(6);
        let lengths = run_by(&mut draft_length, 300, forwards_ns, [1_000_000, 0], 20);
        // Four or five tokens in three passes' time are more than three, two are fewer.
        assert!(lengths[200..].iter().filter(|&&length| length == 6).count() > 90, "{lengths:?}");
    }

    #[test]
    fn a_plain_round_leaves_nothing_unverified_behind() {
        let mut draft_length = PearlDraftLength::new(4, DraftLength::Auto, true);
        run(&mut draft_length, 8, 200_000, [1_000_000, 0], 7);
        let (mut plain, mut rounds) = (Vec::new(), 0);
        while plain.len() < 4 {
            let unverified = if rounds % 3 == 0 { 0 } else { 3 };
            let gamma = draft_length.next_length(unverified);
            if gamma == 0 {
                plain.push(unverified);
            }
            draft_length.observe_score(unverified + 1, 1_000_000, gamma > 0);
            rounds += 1;
        }
        assert_eq!(plain, [0; 4]);
        assert!((4 * 60..4 * 70).contains(&rounds), "{rounds}");
    }

    #[test]
    fn rows_that_cost_much_shorten_it() {
        let mut cheap = PearlDraftLength::new(16, DraftLength::Auto, true);
        let mut dear = cheap.clone();
        let last = |lengths: Vec<usize>| lengths.into_iter().rfind(|&length| length > 0);
        let of_cheap = last(run(&mut cheap, 200, 50_000, [1_000_000, 0], 4));
        let of_dear = last(run(&mut dear, 200, 50_000, [1_000_000, 250_000], 4));
        assert!(of_dear < of_cheap, "{of_dear:?} {of_cheap:?}");
    }

    #[test]
    fn a_drafter_that_is_slower_than_the_target_rests() {
        let mut draft_length = PearlDraftLength::new(16, DraftLength::Auto, true);
        let lengths = run(&mut draft_length, 400, 3_000_000, [1_000_000, 0], 2);
        let drafting = lengths[20..].iter().filter(|&&length| length > 0).count();
        assert!((1..=10).contains(&drafting), "{drafting}");
    }
}
