//! PEARL's schedule: drafting during each pass of the target.

use crate::DraftLength;
use crate::costs::{Drafts, Passes};
use crate::planner::{Planned, Policy, State};
use crate::rounds::ParallelRounds;
use crate::schedule::{
    ABOUT_AS_FAST, Assumption, Candidate, Drafting, FIRST_LENGTH, Facts, HORIZON, Schedule,
};

/// The closed form of PEARL (arXiv 2408.11850).
#[derive(Clone, Debug)]
pub(crate) struct Parallel {
    longest: usize,
    mode: DraftLength,
    /// Whether a round ends with the target's pass while the drafter goes on. The paper's schedule
    /// waits for the drafter.
    eager: bool,
}

impl Parallel {
    pub(crate) fn adapts(&self) -> bool {
        self.mode == DraftLength::Auto
    }

    /// Returns the largest γ: an eager drafter may make twice as many tokens, as with a fixed γ.
    fn cap(&self) -> usize {
        if self.eager { 2 * self.longest } else { self.longest }
    }

    pub(crate) fn best(
        &self,
        facts: Facts<'_>,
        assume: Assumption,
        current: Option<&Drafting>,
    ) -> Candidate {
        let terms = Terms::new(self, facts, assume);
        if !self.adapts() {
            return terms.candidate(self.longest, 0);
        }
        let reach = facts.target.reach(FIRST_LENGTH);
        let longest = facts.drafter.costs.whole_forwards(reach).min(self.cap());
        let first = match current {
            Some(&Drafting::Parallel { first, .. }) if self.eager => first,
            _ => 0,
        };
        // Short drafts waste less.
        let better = |best: Candidate, next: Candidate| {
            if next.speed() > best.speed() * ABOUT_AS_FAST { next } else { best }
        };
        // First γ, and then what is drafted before a pass.
        let lengths = (1..=longest).map(|gamma| terms.candidate(gamma, first));
        let Some(best) = lengths.reduce(better) else { return terms.candidate(1, 0) };
        let Drafting::Parallel { gamma, .. } = best.draft else { return best };
        let most = if self.eager { gamma.min(self.longest) } else { 0 };
        let firsts = (0..=most).map(|first| terms.candidate(gamma, first));
        firsts.reduce(better).unwrap_or(best)
    }

    pub(crate) fn of(&self, facts: Facts<'_>, gamma: usize, first: usize) -> Candidate {
        Terms::new(self, facts, Assumption::Usual).candidate(gamma, first)
    }

    pub(crate) fn cycle_ns(
        &self,
        facts: Facts<'_>,
        (gamma, first): (usize, usize),
        accepted: usize,
    ) -> f64 {
        let terms = Terms::new(self, facts, Assumption::Usual);
        terms.rounds(gamma, first).ns_of(accepted, |rows| terms.passes.ns(rows - 1.0))
    }
}

/// What the speed of all lengths follows from.
struct Terms<'a> {
    schedule: &'a Parallel,
    facts: Facts<'a>,
    survival: Vec<f64>,
    passes: Passes<'a>,
    drafts: Drafts<'a>,
    /// Those that are made while the target is idle.
    first_drafts: Drafts<'a>,
}

impl<'a> Terms<'a> {
    fn new(schedule: &'a Parallel, facts: Facts<'a>, assume: Assumption) -> Self {
        let per_job = facts.tokens_per_job(schedule.cap());
        let survival = facts.outlook(assume, HORIZON, per_job).survival(HORIZON);
        let passes = facts.target.passes(4 * schedule.longest, true, assume != Assumption::Usual);
        let drafts = facts.drafter.costs.drafts_ahead(schedule.cap());
        let first_drafts = facts.drafter.costs.drafts(schedule.longest, false);
        Self { schedule, facts, survival, passes, drafts, first_drafts }
    }

    fn candidate(&self, gamma: usize, first: usize) -> Candidate {
        let (tokens, ns) = self.rounds(gamma, first).cycle(|rows| self.passes.ns(rows - 1.0));
        Candidate { draft: Drafting::Parallel { gamma, first }, tokens, ns }
    }

    fn rounds(&self, gamma: usize, first: usize) -> ParallelRounds<'_> {
        let per_job = self.facts.tokens_per_job(gamma);
        let gamma_ns = self.drafts.in_jobs_ns(gamma, per_job);
        // A round waits for at least one token, and so for all tokens of its job.
        let (new, min_ns) = match self.schedule.eager && gamma_ns > 0.0 {
            true => {
                // Without the errors of sums, so that a whole number stays one.
                let in_time = gamma as f64 * self.passes.ns(0.0) / gamma_ns;
                let in_time = (in_time * 1e6).round() / 1e6;
                let new = in_time.clamp(per_job as f64, gamma as f64);
                (new, self.drafts.in_jobs_ns(per_job, per_job))
            }
            false => (gamma as f64, gamma_ns),
        };
        let first_ns = self.first_drafts.in_jobs_ns(first, per_job);
        ParallelRounds { survival: &self.survival, first, new, first_ns, min_ns }
    }
}

/// Decides how many tokens PEARL drafts during a pass of the target (arXiv 2408.11850, §4.4.1: γ =
/// round(c), where c is the ratio of the target's time to the drafter's).
///
/// The automatic mode goes further than the paper: it takes the length with the most tokens a
/// second, because long drafts add rows to the next pass and are worth little if few tokens are
/// accepted. After a rejection it may draft some tokens before the next pass, so that the pass has
/// more than one row. The paper's pre-verify never does, and its ablation always drafts all γ.
/// Drafting pauses while the target alone is faster.
#[derive(Clone, Debug)]
pub struct PearlDraftLength {
    planned: Planned,
    schedule: Parallel,
}

impl PearlDraftLength {
    /// Creates a policy that always drafts γ = `length` tokens (`Fixed`), or up to `length` tokens
    /// (`Auto`).
    ///
    /// With `eager` a round ends with the target's pass. It does not wait for a late drafter. A
    /// drafter that has made a fixed γ tokens makes up to γ more while the target is busy.
    #[must_use]
    pub fn new(length: usize, mode: DraftLength, eager: bool) -> Self {
        let schedule = Parallel { longest: length, mode, eager };
        Self { planned: Planned::alone(Schedule::Parallel(schedule.clone())), schedule }
    }

    /// Returns γ of the next round; 0 if the drafter should pause.
    #[must_use]
    pub fn next_length(&self) -> usize {
        let Parallel { longest, mode, .. } = self.schedule;
        if mode == DraftLength::Fixed {
            return longest;
        }
        match self.planned.draft() {
            Some(Drafting::Parallel { gamma, .. }) => gamma,
            // The drafter reads the prompt with the target, unless earlier answers were faster
            // without it.
            _ if self.planned.with(State::reads_prompt) => FIRST_LENGTH.min(longest),
            _ => 0,
        }
    }

    /// Returns how many tokens to draft before the next pass, if no token is unverified.
    #[must_use]
    pub fn first_length(&self) -> usize {
        let first = match self.planned.draft() {
            Some(Drafting::Parallel { first, .. }) if self.schedule.adapts() => first,
            _ => return 0,
        };
        // Only gains are at risk: the target works meanwhile if nothing is drafted first.
        let has_gained = self.planned.with(|state, entry| {
            let facts = state.facts(entry);
            let drafts = facts.drafter.costs.drafts(first, false);
            drafts.in_jobs_ns(first, facts.tokens_per_job(first)) <= state.ledger.gained_ns()
        });
        if has_gained { first } else { 0 }
    }

    /// Returns the maximum number of tokens to draft during one pass, for this γ.
    #[must_use]
    pub fn max_new(&self, gamma: usize) -> usize {
        let Parallel { mode, eager, .. } = self.schedule;
        match mode {
            DraftLength::Fixed if eager => 2 * gamma,
            // The job in flight when a round ends counts towards the next round. A drafter that
            // barely keeps up must not become idle because of it.
            DraftLength::Auto if eager && self.barely_keeps_up(gamma) => {
                gamma + self.tokens_per_job(gamma)
            }
            _ => gamma,
        }
    }

    fn barely_keeps_up(&self, gamma: usize) -> bool {
        self.planned.with_facts(|facts| {
            let gamma_ns = facts
                .drafter
                .costs
                .drafts_ahead(gamma)
                .in_jobs_ns(gamma, facts.tokens_per_job(gamma));
            gamma_ns >= facts.target.passes(0, true, false).ns(0.0)
        })
    }

    /// Returns how many tokens one draft job should make.
    #[must_use]
    pub fn tokens_per_job(&self, gamma: usize) -> usize {
        self.planned.with_facts(|facts| match self.schedule.adapts() {
            true => facts.tokens_per_job(gamma),
            false => facts.drafter.costs.tokens_per_job(gamma),
        })
    }

    /// Returns how many of `first` tokens that are drafted before a pass one job should make. The
    /// automatic mode counts on jobs of the usual length.
    #[must_use]
    pub fn tokens_per_first_job(&self, first: usize) -> usize {
        if self.schedule.adapts() { self.tokens_per_job(first) } else { first }
    }
}

impl Policy for PearlDraftLength {
    fn planned(&mut self) -> &mut Planned {
        &mut self.planned
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobTime;

    /// After a guess, several tokens were committed that the drafter's were not tested against.
    /// What is known of the present stretch of text fades with each of them.
    #[test]
    fn a_stretch_fades_with_every_token_that_was_not_tested() {
        let acceptance_after = |further| {
            let mut draft_length = PearlDraftLength::new(8, DraftLength::Auto, true);
            (0..30).for_each(|_| draft_length.planned().observe_verdict(&[0], true, 1));
            draft_length.planned().observe_verdict(&[0], true, further);
            let outlook = draft_length.planned.with_facts(|of| of.outlook(Assumption::Usual, 1, 1));
            outlook.survival(1)[1]
        };
        let after = [1, 2, 5, 20].map(acceptance_after);
        assert!(after.is_sorted_by(|less, more| less < more), "{after:?}");
    }

    /// Simulates rounds in which one token of `run` is wrong, and returns their lengths.
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
            draft_length.planned().observe_score(rows as usize, &JobTime::alone(time), gamma > 0);
            if gamma > 0 {
                draft_length.planned().observe_draft(gamma, &JobTime::alone(draft_ns(gamma)));
            }
            // One draft token of `run` is wrong.
            let tested = unverified + usize::from(gamma > 0);
            let wrong = (0..tested).find(|place| is_wrong(right + place, run));
            let own = wrong.is_some() || gamma == 0;
            // All tokens are as often right at the start of a job as later.
            let positions = vec![0; wrong.map_or(tested, |accepted| accepted + 1)];
            draft_length.planned().observe_verdict(&positions, wrong.is_some(), usize::from(own));
            // A round waits for all draft tokens, or for those of one job.
            let awaited = if draft_length.schedule.eager { gamma.min(1) } else { gamma };
            now_ns += time.max(if gamma > 0 { draft_ns(awaited) } else { 0 });
            let committed = wrong.unwrap_or(tested) + usize::from(own);
            draft_length.planned().observe_step(committed, now_ns, unverified == 0 && gamma == 0);
            right += wrong.map_or(tested, |accepted| accepted + 1);
            unverified = if wrong.is_some() || gamma == 0 { 0 } else { gamma - 1 };
        }
        lengths
    }

    fn is_wrong(token: usize, run: usize) -> bool {
        let mixed = (token as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32;
        mixed.is_multiple_of(run as u64)
    }

    /// Returns the most frequent length.
    fn usual(lengths: &[usize]) -> usize {
        let count = |length: usize| lengths.iter().filter(|&&other| other == length).count();
        (0..=64).max_by_key(|&length| count(length)).unwrap_or(0)
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
        assert_eq!(unlimited.tokens_per_job(8), 8);
    }

    #[test]
    fn eager_rounds_allow_a_slower_drafter() {
        let last = |eager: bool| {
            let mut draft_length = PearlDraftLength::new(16, DraftLength::Auto, eager);
            usual(&run(&mut draft_length, 1_000, 700_000, [1_000_000, 0], 3)[500..])
        };
        // Two tokens take 1.4 times as long as a forward pass. Rounds that wait for both reach only
        // 0.97 times the speed of plain decoding.
        assert_eq!((last(true), last(false)), (2, 0));
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
        // Three or four each time, if one verifies what is drafted already: at the start, and two or
        // three times in the two seconds after it, because plain rounds may cost 0.3 % of the time.
        assert!((9..=15).contains(&plain), "{plain}");
    }

    /// The first three tokens of each job are right, and the fourth one is wrong.
    #[test]
    fn jobs_end_before_positions_at_which_the_drafter_fails() {
        let mut draft_length = PearlDraftLength::new(6, DraftLength::Auto, true);
        (0..3).for_each(|_| draft_length.planned().observe_draft(6, &JobTime::alone(60_000)));
        assert_eq!(draft_length.tokens_per_job(6), 6);
        for _ in 0..100 {
            draft_length.planned().observe_verdict(&[0, 1, 2, 3], true, 1);
        }
        assert_eq!(draft_length.tokens_per_job(6), 3);
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
        let drafting_rounds = |draft_length: &mut PearlDraftLength| {
            let lengths = run(draft_length, 6_000, 3_000_000, [1_000_000, 0], 2);
            lengths[20..].iter().filter(|&&length| length > 0).count()
        };
        let drafting = drafting_rounds(&mut draft_length);
        assert!(drafting <= 20, "{drafting}");
        while draft_length.next_length() > 0 {
            run(&mut draft_length, 1, 3_000_000, [1_000_000, 0], 2);
        }
        let mut next = draft_length.for_new_answer(8);
        assert_eq!(next.next_length(), 0, "nor does it read the prompt");
        // It is tried again where it would have little to read.
        let drafting = drafting_rounds(&mut next);
        assert!((1..=30).contains(&drafting), "{drafting}");
    }
}
