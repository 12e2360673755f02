//! The planner from outside: what jobs took and which tokens were accepted goes in, what to draft
//! and why comes out.

use forerun_core::DraftShape;
use forerun_plan::{DraftLength, JobTime, PearlDraftLength, Policy, Round, SpeculativeDraftLength};

const PASS_NS: u64 = 1_000_000;
const LONGEST: usize = 16;

const TARGET_IS_FASTER: &str = "no draft is expected to be faster than the target alone";
const FASTEST: &str = "drafting is expected to be the fastest";
const TRIAL: &str = "it is tried whether this is faster";
const MEASURES_TARGET: &str = "the speed of the target alone is measured";
const HAS_LOST: &str = "drafting has lost more time than it may";
const READING_COSTS: &str = "the drafter would have to read for too long";

/// A drafter and a target. Times are in thousandths of a pass of the target over one row.
#[derive(Clone, Copy)]
struct Pair {
    /// The acceptance of each token.
    acceptance: f64,
    draft: u64,
    /// What a further row adds to a pass.
    row: u64,
    /// The time in which the drafter reads a token that it has missed.
    reading: u64,
    /// The time of a pass, and of one while the drafter works.
    pass: u64,
    pass_while_drafting: u64,
}

const PAIR: Pair = Pair {
    acceptance: 0.8,
    draft: 100,
    row: 20,
    reading: 0,
    pass: 1_000,
    pass_while_drafting: 1_000,
};

/// What happens between a policy and its models.
#[derive(Default)]
struct Answer {
    now_ns: u64,
    /// The tokens that the drafter has not read.
    unread: u64,
    random: u64,
    /// By step: the drafted tokens.
    lengths: Vec<usize>,
    tokens: usize,
}

impl Answer {
    fn after_prompt(tokens: u64) -> Self {
        Self { unread: tokens, ..Self::default() }
    }

    /// Returns whether a token of this acceptance is accepted.
    fn accepts(&mut self, acceptance: f64) -> bool {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        ((self.random >> 33) as f64 / (1_u64 << 31) as f64) < acceptance
    }

    /// Returns how many of `drafted` tokens are accepted.
    fn accepted(&mut self, drafted: usize, acceptance: f64) -> usize {
        (0..drafted).take_while(|_| self.accepts(acceptance)).count()
    }

    fn job(&mut self, per_mille: u64) -> JobTime {
        let duration_ns = PASS_NS / 1_000 * per_mille;
        self.now_ns += duration_ns;
        JobTime { duration_ns, finished_ns: self.now_ns, ..JobTime::default() }
    }

    /// Decodes in rounds. `acceptance`: by the number of drafts so far since the last pause.
    fn rounds_with(
        &mut self,
        policy: &mut SpeculativeDraftLength,
        count: usize,
        pair: Pair,
        acceptance: impl Fn(usize) -> f64,
    ) {
        let mut since_pause = 0;
        for _ in 0..count {
            let drafted = policy.next_shape().depth();
            let requested = drafted > 0;
            let read = if requested { std::mem::take(&mut self.unread) } else { 0 };
            let draft = self.job(pair.draft * drafted as u64 + pair.reading * read);
            let score = self.job(pair.pass + pair.row * drafted as u64);
            let accepted = self.accepted(drafted, acceptance(since_pause));
            since_pause = if requested { since_pause + 1 } else { 0 };
            let (rejected, ended_ns) = (accepted < drafted, score.finished_ns);
            policy.observe(&Round {
                requested,
                drafted,
                accepted,
                rejected,
                draft,
                score,
                ended_ns,
                ..Round::default()
            });
            self.unread += if requested { 0 } else { 1 };
            self.tokens += accepted + 1;
            self.lengths.push(drafted);
        }
    }

    fn rounds(&mut self, policy: &mut SpeculativeDraftLength, count: usize, pair: Pair) {
        self.rounds_with(policy, count, pair, |_| pair.acceptance);
    }

    /// Decodes in steps whose drafts are made during the pass.
    fn pearl_steps(&mut self, policy: &mut PearlDraftLength, count: usize, pair: Pair) {
        let mut unverified = 0;
        for _ in 0..count {
            let gamma = policy.next_length();
            let pass = if gamma > 0 { pair.pass_while_drafting } else { pair.pass };
            let score = self.job(pass + pair.row * unverified as u64);
            let alone = gamma == 0 && unverified == 0;
            policy.planned().observe_score(unverified + 1, &score, gamma > 0);
            if gamma > 0 {
                let duration_ns = PASS_NS / 1_000 * pair.draft * gamma as u64;
                let draft = JobTime { duration_ns, ..score };
                policy.planned().observe_draft(gamma, &draft);
            }
            // The pass verifies the tokens of the step before, and the first one of this step.
            let tested = unverified + usize::from(gamma > 0);
            let accepted = self.accepted(tested, pair.acceptance);
            let further = usize::from(accepted < tested || gamma == 0);
            let positions = vec![0; tested.min(accepted + 1)];
            policy.planned().observe_verdict(&positions, accepted < tested, further);
            policy.planned().observe_step(accepted + further, self.now_ns, alone);
            unverified = if further > 0 { 0 } else { gamma - 1 };
            self.tokens += accepted + further;
            self.lengths.push(gamma);
        }
    }

    /// Returns the time that was lost compared with the target alone, in passes.
    fn lost_passes(&self) -> f64 {
        self.now_ns as f64 / PASS_NS as f64 - self.tokens as f64
    }

    fn share_with_drafts(&self) -> f64 {
        let with = self.lengths.iter().filter(|&&length| length > 0).count();
        with as f64 / self.lengths.len() as f64
    }

    /// Returns the mean length of the drafts in the last `count` steps.
    fn mean_length(&self, count: usize) -> f64 {
        let last = &self.lengths[self.lengths.len() - count..];
        let drafts: Vec<usize> = last.iter().copied().filter(|&length| length > 0).collect();
        drafts.iter().sum::<usize>() as f64 / drafts.len().max(1) as f64
    }
}

fn rounds() -> SpeculativeDraftLength {
    SpeculativeDraftLength::new(DraftShape::Chain { length: LONGEST }, DraftLength::Auto)
}

fn pearl() -> PearlDraftLength {
    PearlDraftLength::new(LONGEST, DraftLength::Auto, true)
}

/// Returns the number of steps with a reason.
fn steps(policy: &mut impl Policy, reason: &str) -> u64 {
    let decisions = policy.planned().decisions();
    decisions.iter().filter(|decision| decision.reason == reason).map(|of| of.steps).sum()
}

/// Returns the most frequent reason.
fn usual_reason(policy: &mut impl Policy) -> &'static str {
    let reasons = [TARGET_IS_FASTER, FASTEST, TRIAL, MEASURES_TARGET, HAS_LOST, READING_COSTS];
    let counts = reasons.map(|reason| (steps(policy, reason), reason));
    counts.into_iter().max().map_or("", |(_, reason)| reason)
}

#[test]
fn it_drafts_where_that_pays_and_says_why() {
    let slowed = Pair { pass_while_drafting: 1_200, ..PAIR };
    for (case, pair, usual) in [
        ("a good drafter", PAIR, FASTEST),
        ("one that takes cores from the target", slowed, FASTEST),
        ("one that is rarely right", Pair { acceptance: 0.05, ..slowed }, TARGET_IS_FASTER),
        ("one as slow as the target", Pair { draft: 1_500, ..slowed }, TARGET_IS_FASTER),
        ("rows that cost passes", Pair { row: 900, ..slowed }, TARGET_IS_FASTER),
    ] {
        let (mut of_rounds, mut of_pearl) = (rounds(), pearl());
        let (mut answer, mut pearls) = (Answer::default(), Answer::default());
        answer.rounds(&mut of_rounds, 2_000, pair);
        pearls.pearl_steps(&mut of_pearl, 2_000, pair);
        let found = [
            ("rounds", usual_reason(&mut of_rounds), &answer),
            ("PEARL", usual_reason(&mut of_pearl), &pearls),
        ];
        for (method, reason, answer) in found {
            let (share, lost) = (answer.share_with_drafts(), answer.lost_passes());
            let case =
                format!("{case}, {method}: {share} of the steps have drafts, {lost} passes lost");
            assert_eq!(reason, usual, "{case}");
            let is_usual = if usual == FASTEST { share > 0.9 } else { share < 0.3 && lost < 60.0 };
            assert!(is_usual, "{case}");
        }
        assert!(steps(&mut of_rounds, MEASURES_TARGET) > 0, "{case}");
    }
}

#[test]
fn drafts_are_longer_the_more_tokens_are_accepted() {
    let lengths = [0.3, 0.6, 0.8, 0.95].map(|acceptance| {
        let mut answer = Answer::default();
        answer.rounds(&mut rounds(), 2_000, Pair { acceptance, ..PAIR });
        answer.mean_length(1_000)
    });
    assert!(lengths.is_sorted_by(|short, long| short < long), "{lengths:?}");
    assert!(lengths[0] < 2.5 && lengths[3] > 8.0, "{lengths:?}");
}

#[test]
fn it_pauses_in_hard_text_and_comes_back_in_easy_text() {
    let pair = |acceptance| Pair { acceptance, pass_while_drafting: 1_200, ..PAIR };
    let [hard, easy] = [0.02, 0.9].map(pair);
    let (mut of_rounds, mut of_pearl) = (rounds(), pearl());
    for (text, pair, count) in [("easy", easy, 300), ("hard", hard, 1_500), ("easy", easy, 1_500)] {
        let (mut answer, mut pearls) = (Answer::default(), Answer::default());
        (of_rounds, of_pearl) = (of_rounds.for_new_answer(0), of_pearl.for_new_answer(0));
        answer.rounds(&mut of_rounds, count, pair);
        pearls.pearl_steps(&mut of_pearl, count, pair);
        let shares = [answer.share_with_drafts(), pearls.share_with_drafts()];
        let is_usual = |&share: &f64| if text == "hard" { share < 0.4 } else { share > 0.7 };
        assert!(shares.iter().all(is_usual), "{text}: {shares:?} of the steps have drafts");
    }
}

/// The accounts of the guide: 14 passes and 0.8 % of the time, beyond which only trials go on, 3
/// passes and 0.6 % for these, and for reading 3 passes and up to three times 0.7 %.
#[test]
fn the_ledger_bounds_what_drafting_loses() {
    for draft in [30, 300, 3_000] {
        for reading in [0, 30, 300] {
            let pair = Pair { acceptance: 0.0, draft, reading, ..PAIR };
            let mut answer = Answer::default();
            answer.rounds(&mut rounds(), 5_000, pair);
            let of_reading = if reading > 0 { 3.0 + 0.021 * 5_000.0 } else { 0.0 };
            // Nothing is known before the first draft.
            let most = 17.0 + 0.014 * 5_000.0 + of_reading + draft as f64 / 1_000.0;
            let lost = answer.lost_passes();
            assert!(lost < most, "{draft}, {reading}: {lost} of {most} passes");
        }
    }
}

/// Drafts are right after each pause until the planner counts on them.
#[test]
fn drafting_that_loses_by_bad_luck_ends() {
    let (mut policy, mut answer) = (rounds(), Answer::default());
    let pair = Pair { draft: 300, ..PAIR };
    let acceptance = |since_pause| if since_pause < 6 { 1.0 } else { 0.0 };
    answer.rounds_with(&mut policy, 5_000, pair, acceptance);
    assert!(answer.lost_passes() < 14.0 + 0.008 * 5_000.0, "{}", answer.lost_passes());
}

/// The last answer has ended in hard text, and this one is easy. Reading a token takes a tenth of a
/// pass.
#[test]
fn a_long_prompt_is_not_read_for_some_tokens() {
    let pair = Pair { reading: 100, ..PAIR };
    let (mut policy, mut first) = (rounds(), Answer::default());
    first.rounds(&mut policy, 400, pair);
    first.rounds(&mut policy, 400, Pair { acceptance: 0.02, ..pair });
    for (prompt, reads) in [(10, true), (3_000, false)] {
        let mut policy = policy.for_new_answer(prompt);
        let mut answer = Answer::after_prompt(prompt as u64);
        answer.rounds(&mut policy, 300, pair);
        assert_eq!(answer.share_with_drafts() > 0.0, reads, "{prompt}: {:?}", answer.lengths);
        assert_eq!(steps(&mut policy, READING_COSTS) == 0, reads, "{prompt}");
    }
}

#[test]
fn the_next_answer_begins_with_what_was_learned() {
    let (mut of_rounds, mut of_pearl) = (rounds(), pearl());
    Answer::default().rounds(&mut of_rounds, 300, PAIR);
    Answer::default().pearl_steps(&mut of_pearl, 300, PAIR);
    let lengths = [of_rounds.next_shape().depth(), of_pearl.next_length()];
    let (mut of_rounds, mut of_pearl) = (of_rounds.for_new_answer(10), of_pearl.for_new_answer(10));
    let next = [of_rounds.next_shape().depth(), of_pearl.next_length()];
    assert!(next.iter().zip(lengths).all(|(&next, last)| next.abs_diff(last) <= 2 && next > 0));
    assert_eq!(of_rounds.planned().decisions(), [], "reasons are those of one answer");
    assert_eq!(of_pearl.planned().decisions(), []);
}

/// Methods with one drafter know what another one has measured. What one says of its drafter stays
/// its own.
#[test]
fn joined_methods_share_the_facts_of_their_drafter() {
    let (mut of_rounds, pair) = (rounds(), Pair { acceptance: 1.0, draft: 10, ..PAIR });
    Answer::default().rounds(&mut of_rounds, 300, pair);
    for (model, per_job) in [(0, 10), (1, 1)] {
        let mut of_pearl = pearl();
        of_pearl.planned().join(of_rounds.planned(), model, model);
        assert_eq!(of_pearl.tokens_per_job(LONGEST), per_job, "jobs of 100 µs, drafter {model}");
    }
}

#[test]
fn a_joined_drafter_keeps_its_tokens_per_forward() {
    for (case, model, per_job) in [("the same drafter", 0, 4), ("another one", 1, 6)] {
        let mut of_pearl = pearl().with_tokens_per_forward(6);
        of_pearl.planned().join(rounds().with_tokens_per_forward(4).planned(), model, model);
        assert_eq!(of_pearl.tokens_per_job(LONGEST), per_job, "{case}");
    }
}

#[test]
fn a_device_that_became_slower_is_noticed() {
    let slow_drafter = Pair { draft: 1_500, ..PAIR };
    let slow_target = Pair { pass: 5_000, pass_while_drafting: 5_000, ..PAIR };
    let mut lengths = Vec::new();
    for pair in [slow_drafter, PAIR, slow_target] {
        let (mut policy, mut answer) = (rounds(), Answer::default());
        answer.rounds(&mut policy, 500, PAIR);
        answer.rounds(&mut policy, 1_000, pair);
        lengths.push(answer.lengths[1_000..].iter().sum::<usize>() as f64 / 500.0);
    }
    assert!(lengths[0] < 0.2 && lengths[1] > 2.0 && lengths[2] > 1.3 * lengths[1], "{lengths:?}");
}

/// Idle cores of the drafter help the target, so drafting during a pass slows it down.
#[test]
fn drafting_ahead_must_pay_for_the_cores_that_it_takes() {
    let shares = [1_000, 1_300, 2_800].map(|pass_while_drafting| {
        let (mut policy, mut answer) = (pearl(), Answer::default());
        answer.pearl_steps(
            &mut policy,
            2_000,
            Pair { acceptance: 0.6, pass_while_drafting, ..PAIR },
        );
        answer.share_with_drafts()
    });
    assert!(shares[0] > 0.9 && shares[1] > 0.9 && shares[2] < 0.1, "{shares:?}");
}

#[test]
fn decisions_follow_one_another_in_time() {
    let (mut of_rounds, mut of_pearl) = (rounds(), pearl());
    let (mut answer, mut pearls) = (Answer::default(), Answer::default());
    answer.rounds(&mut of_rounds, 200, PAIR);
    pearls.pearl_steps(&mut of_pearl, 200, PAIR);
    let of_methods = [of_rounds.planned().decisions(), of_pearl.planned().decisions()];
    for (decisions, now_ns) in of_methods.iter().zip([answer.now_ns, pearls.now_ns]) {
        let neighbours = || decisions.windows(2);
        assert!(neighbours().all(|pair| pair[0].end_ns == pair[1].start_ns), "{decisions:?}");
        assert!(neighbours().all(|pair| pair[0].reason != pair[1].reason), "{decisions:?}");
        assert_eq!(decisions.last().map(|last| last.end_ns), Some(now_ns));
        assert_eq!(decisions.iter().map(|decision| decision.steps).sum::<u64>(), 199);
        let drafts = |reason: &str| [FASTEST, TRIAL].contains(&reason);
        assert!(decisions.iter().all(|decision| decision.drafts == drafts(&decision.reason)));
    }
    let mut fixed =
        SpeculativeDraftLength::new(DraftShape::Chain { length: 4 }, DraftLength::Fixed);
    Answer::default().rounds(&mut fixed, 50, PAIR);
    assert_eq!(fixed.planned().decisions(), [], "fixed drafts have no reasons");
}
