//! The draft length of speculative decoding: fixed, or chosen from measured times and acceptance.

use crate::acceptance::Acceptance;
use crate::cost_curve::CostCurve;
use crate::decaying::DecayingMean;
use crate::estimates::{BatchCosts, JobTime, OneRowTime};
use crate::ledger::Ledger;
use crate::{SharedGoodput, rounds};
use forerun_core::DraftShape;

/// Decides how many tokens to draft in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftLength {
    /// Always the whole shape.
    Fixed,
    /// Chosen from measured times and acceptance: for a chain, any length up to the shape's. Drafting
    /// pauses when it would slow generation down, and is retried periodically.
    Auto,
    /// Two tokens more if all were accepted, else one less: the schedule of assisted generation in
    /// Hugging Face's transformers.
    Assisted,
}

/// Decides the shape of the next draft.
///
/// The automatic mode drafts the length with the most expected tokens a second after the present text. It knows the
/// times of drafts and passes by their number of tokens, and the acceptance by position and in easy and hard stretches
/// of the text ([`Acceptance`]). While no length is faster than the target alone, drafting pauses. It
/// resumes when the hard stretch may be over, or to try: all trials together may lose 0.6 % of the
/// time, and 5 % of what drafting has gained. Whatever the estimates say, drafting pauses while it has lost
/// more than 0.8 % of the time and the time of 14 passes.
///
/// If other sequences share the passes, times are the job's share of them
/// ([`JobCost::share`](forerun_core::JobCost::share)). So a draft is as long as is good for all
/// sequences together, if the others do the same. Whether they draft at all, they decide together
/// ([`SharedGoodput`]).
#[derive(Clone, Debug)]
pub struct SpeculativeDraftLength {
    shape: DraftShape,
    length: DraftLength,
    goodput: SharedGoodput,
    estimates: Estimates,
    ledger: Ledger,
    /// The length of the next draft in the automatic mode, and whether it is a trial.
    next: Next,
    /// Whether the next round is the answer's first one, which computes the prompt.
    first_round: bool,
    /// The number of committed tokens that the drafter has not read, because no draft was requested.
    unread_tokens: usize,
    /// The time since the last round without a draft, and the number of rounds.
    since_plain_ns: f64,
    since_plain: u32,
    /// The end of the answer's last round, if it has had one.
    last_ns: Option<u64>,
    /// The current length of assisted generation.
    assisted: usize,
    /// Whether the drafter makes all positions in one forward, so that longer drafts take no longer.
    in_one_forward: bool,
}

/// The measurements of one round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    /// Whether a draft was requested.
    pub requested: bool,
    /// The number of drafted tokens.
    pub drafted: usize,
    /// The number of draft tokens that were committed.
    pub accepted: usize,
    /// Whether a draft token was rejected.
    pub rejected: bool,
    /// The time of the draft job, if there was one.
    pub draft: JobTime,
    /// The time of the score job.
    pub score: JobTime,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Next {
    length: usize,
    is_trial: bool,
}

/// The first draft length of assisted generation.
const INITIAL_ASSISTED_LENGTH: usize = 5;
/// The numbers of unread tokens at which the cost of catching up is measured: enough to measure, but
/// cheap.
const CATCH_UP_SAMPLE: std::ops::Range<usize> = 8..32;
/// The share of the time that rounds without a draft may lose. They measure the speed to beat.
const PLAIN_SHARE: f64 = 0.003;
/// Drafting rounds after which there may be such a round.
const PLAIN_EVERY: u32 = 24;
/// A drafter that cannot pay however right it is is tried as if a trial cost so many times as much.
const HOPELESS: f64 = 4.0;
/// The factor by which drafting must be faster to resume.
const MIN_GAIN: f64 = 1.005;
/// The factor by which a length with more rows than were tried must be faster, if they cost nothing, to be tried.
const MIN_GAIN_OF_TRIAL: f64 = 1.03;

impl SpeculativeDraftLength {
    /// Creates a policy that drafts in `shape`, or in parts of it.
    #[must_use]
    pub fn new(shape: DraftShape, length: DraftLength) -> Self {
        Self {
            shape,
            length,
            goodput: SharedGoodput::default(),
            estimates: Estimates::default(),
            ledger: Ledger::default(),
            next: Next::default(),
            first_round: true,
            unread_tokens: 0,
            since_plain_ns: 0.0,
            since_plain: 0,
            last_ns: None,
            assisted: INITIAL_ASSISTED_LENGTH,
            in_one_forward: false,
        }
    }

    /// Returns a copy configured for a drafter that makes all positions in one forward.
    #[must_use]
    pub fn in_one_forward(self) -> Self {
        Self { in_one_forward: true, ..self }
    }

    /// Returns a copy that decides by the goodput of all sequences with the same `goodput`.
    #[must_use]
    pub fn with_goodput(self, goodput: SharedGoodput) -> Self {
        Self { goodput, ..self }
    }

    /// Returns a copy for a new answer after a prompt of `prompt_tokens` tokens, which keeps the
    /// learned times and acceptance.
    #[must_use]
    pub fn for_new_answer(&self, prompt_tokens: usize) -> Self {
        Self { first_round: true, last_ns: None, unread_tokens: prompt_tokens, ..self.clone() }
    }

    /// Returns the shape of the next round's draft. Its depth is 0 if no draft should be made.
    #[must_use]
    pub fn next_shape(&self) -> DraftShape {
        let length = match self.length {
            DraftLength::Fixed => self.shape.length(),
            DraftLength::Assisted => self.assisted,
            DraftLength::Auto if !self.goodput.drafts() => 0,
            DraftLength::Auto => self.next.length,
        };
        self.shape.with_draft_tokens(length)
    }

    /// Learns from the measurements of a round.
    pub fn observe(&mut self, round: &Round) {
        if round.drafted > 0 {
            self.assisted = match round.accepted >= self.assisted {
                true => (self.assisted + 2).min(self.shape.length()),
                false => self.assisted.saturating_sub(1).max(1),
            };
        }
        let last_ns = self.last_ns.replace(round.score.finished_ns);
        // A draft that had to read many tokens first does not show the drafter's usual speed.
        let caught_up = if round.requested { self.unread_tokens } else { 0 };
        self.unread_tokens =
            if round.requested { 0 } else { self.unread_tokens + round.accepted + 1 };
        let (sequences, now_ns) = (round.score.cost.active_sequences, round.score.finished_ns);
        if sequences > 0 && self.length == DraftLength::Auto {
            self.goodput.observe(sequences, round.accepted + 1, now_ns);
        }
        if std::mem::take(&mut self.first_round) {
            return;
        }
        let waited_ns = last_ns.map_or(0, |last_ns| round.waited_ns(last_ns)) as f64;
        let round_ns = self.estimates.share_of(round) + waited_ns;
        if !self.estimates.learn(round, caught_up, waited_ns, self.in_one_forward) {
            return self.ledger.add_alone(round_ns);
        }
        if round.drafted > 0 {
            self.since_plain += 1;
            self.since_plain_ns += round_ns;
            let plain_ns = self.estimates.plain_share().unwrap_or(round_ns);
            let plain_ns = (round.accepted + 1) as f64 * plain_ns;
            let catch_up_ns = caught_up as f64 * self.estimates.catch_up_ns.value_or(0.0);
            let catch_up_ns = catch_up_ns.min(round_ns);
            self.ledger.add_drafting(round_ns - catch_up_ns, plain_ns, self.next.is_trial);
            self.ledger.add_catch_up(catch_up_ns);
        } else {
            (self.since_plain, self.since_plain_ns) = (0, 0.0);
            self.ledger.add_alone(round_ns);
        }
        self.next = self.decide();
    }

    /// Decides the length of the next draft.
    fn decide(&self) -> Next {
        let none = Next::default();
        let plain_ns = self.estimates.plain_share().filter(|_| self.shape.length() > 0);
        let Some(plain_ns) = plain_ns else { return none };
        let (depth, acceptance) = (self.shape.depth(), &self.estimates.acceptance);
        let (usual, least) = (self.estimates.times(self, false), self.estimates.times(self, true));
        let speedup_at_best = self.best(&vec![1.0; depth + 1], &least, self.reach()).1 * plain_ns;
        let catch_up_ns = self.unread_tokens as f64 * self.estimates.catch_up_ns.value_or(0.0);
        let may_catch_up = self.ledger.may_catch_up(catch_up_ns, speedup_at_best);

        let now = acceptance.of_first(depth);
        let (length, speed) = self.best(&now, &usual, self.longest());
        let gain = if self.unread_tokens > 0 { MIN_GAIN } else { 1.0 };
        if speed * plain_ns > gain && self.ledger.may_draft(plain_ns) {
            let measures_plain = self.since_plain >= PLAIN_EVERY
                && plain_ns - 1.0 / speed <= PLAIN_SHARE * self.since_plain_ns;
            if measures_plain || !(may_catch_up || catch_up_ns < 2.0 * plain_ns) {
                return none;
            }
            let (other, other_speed) = self.best(&now, &least, self.reach());
            let is_trial = other_speed > speed * MIN_GAIN_OF_TRIAL
                && self.ledger.may_try(usual[other] - least[other], plain_ns);
            return Next { length: if is_trial { other } else { length }, is_trial };
        }

        // One early trial measures the cost of catching up while there are few tokens to read.
        if !self.estimates.catch_up_ns.is_known()
            && self.estimates.draft.is_known()
            && CATCH_UP_SAMPLE.contains(&self.unread_tokens)
        {
            return Next { length: self.shortest(), is_trial: true };
        }
        let easy = acceptance.of_first_if_easy(depth);
        let (length, _) = self.best(&easy, &least, self.reach());
        let hopeless = if speedup_at_best > 1.0 { 1.0 } else { HOPELESS };
        let lost_ns = usual[length] - self.tokens(&now, length) * plain_ns;
        let is_trial = may_catch_up && self.ledger.may_try(hopeless * lost_ns.max(0.0), plain_ns);
        if is_trial { Next { length, is_trial } } else { none }
    }

    /// Returns the shortest draft.
    fn shortest(&self) -> usize {
        // A tree is drafted as a whole or not at all.
        if self.is_chain() { 1 } else { self.shape.length() }
    }

    /// Returns the longest draft. The first one measures the drafter's speed.
    fn longest(&self) -> usize {
        match self.estimates.draft.is_known() || self.in_one_forward {
            true => self.shape.length(),
            false => self.shortest(),
        }
    }

    /// Returns the longest draft of a trial: at most about twice as many rows as were tried, because the cost of more is
    /// not known.
    fn reach(&self) -> usize {
        let reach = 2 * self.estimates.rows.largest() + 1;
        reach.clamp(self.shortest(), self.longest())
    }

    fn is_chain(&self) -> bool {
        matches!(self.shape, DraftShape::Chain { .. })
    }

    /// Returns the expected tokens of a round with a draft of this length.
    fn tokens(&self, of_first: &[f64], length: usize) -> f64 {
        let depth = if self.is_chain() { length } else { self.shape.depth() };
        rounds::tokens_of_round(of_first, depth)
    }

    /// Returns the length, up to `longest`, with the most tokens per nanosecond, and that speed.
    fn best(&self, of_first: &[f64], times: &[f64], longest: usize) -> (usize, f64) {
        let speed = |length: usize| self.tokens(of_first, length) / times[length];
        let speeds = (self.shortest()..=longest).map(|length| (length, speed(length)));
        speeds.fold((0, 0.0), |best, next| if next.1 > best.1 { next } else { best })
    }
}

impl Round {
    /// Returns the time in which neither drafter nor target worked for a sequence without neighbours.
    fn waited_ns(&self, last_ns: u64) -> u64 {
        let busy_ns = self.draft.duration_ns + self.score.duration_ns;
        let round_ns = self.score.finished_ns.saturating_sub(last_ns);
        let waited_ns = round_ns.saturating_sub(busy_ns);
        // Otherwise, something else took the time.
        let is_usual = self.score.cost.active_sequences <= 1 && waited_ns < busy_ns;
        if is_usual { waited_ns } else { 0 }
    }
}

/// Estimates of times and acceptance. Times are without the rows of neighbours.
#[derive(Clone, Debug, Default)]
struct Estimates {
    draft_costs: BatchCosts,
    score_costs: BatchCosts,
    /// The time of a round without a draft.
    plain: OneRowTime,
    /// The time that further rows add to a target forward, by their number.
    rows: CostCurve,
    /// The time of a draft by its number of nodes; in one forward, that of any draft.
    draft: CostCurve,
    /// The time in which a drafter reads one token that it missed during a pause.
    catch_up_ns: DecayingMean,
    /// The number of nodes of a draft that is not a chain.
    nodes: DecayingMean,
    /// The time in which nothing was computed, in rounds without a draft and with one.
    waited_ns: [DecayingMean; 2],
    acceptance: Acceptance,
}

impl Estimates {
    /// Learns from a round. Returns whether it shows the usual costs.
    fn learn(
        &mut self,
        round: &Round,
        caught_up: usize,
        waited_ns: f64,
        in_one_forward: bool,
    ) -> bool {
        let passes = if in_one_forward { 1 } else { round.drafted };
        if round.drafted > 0 {
            self.acceptance.observe(0, round.accepted, round.rejected);
        }
        if !round.rejected {
            self.acceptance.skip(1);
        }
        let draft_ns = self.draft_costs.learn(&round.draft);
        let score_ns = self.score_costs.learn(&round.score);
        let (Some(draft_ns), Some(score_ns)) = (draft_ns, score_ns) else { return false };
        self.waited_ns[usize::from(round.drafted > 0)].add(waited_ns);
        if round.drafted == 0 {
            self.plain.add(&round.score);
            return true;
        }
        if caught_up == 0 {
            self.draft.add(passes, draft_ns);
        } else if self.draft.is_known() {
            let usual_ns = self.draft.up_to(passes)[passes];
            self.catch_up_ns.add((draft_ns - usual_ns).max(0.0) / caught_up as f64);
        }
        if let Some(plain_ns) = self.plain_ns() {
            self.rows.add(round.drafted, (score_ns - plain_ns).max(0.0));
        }
        self.nodes.add(round.drafted as f64);
        true
    }

    /// Returns the sequence's share of the time that it and its neighbours spent on a round.
    fn share_of(&self, round: &Round) -> f64 {
        self.draft_costs.share_of(&round.draft) + self.score_costs.share_of(&round.score)
    }

    /// Returns the share of a round without a draft at the present load; `None` if nothing is known.
    fn plain_share(&self) -> Option<f64> {
        let ns = self.plain_ns()?;
        Some(self.score_costs.share_at_load(ns, 1.0) + self.waited_ns[0].value_or(0.0))
    }

    /// Returns the time of a round without a draft; `None` if nothing is known.
    fn plain_ns(&self) -> Option<f64> {
        self.plain.is_known().then(|| self.plain.without_neighbours_or(0.0, &self.score_costs))
    }

    /// Returns the shares of rounds with drafts of 0 and more tokens, at the present load. `at_best`: if numbers of rows
    /// that were not tried cost no more than fewer rows.
    fn times(&self, policy: &SpeculativeDraftLength, at_best: bool) -> Vec<f64> {
        let length = policy.shape.length();
        let whole = self.nodes.value_or(policy.shape.max_nodes() as f64).round() as usize;
        let longest = if policy.is_chain() { length } else { whole };
        let rows =
            if at_best { self.rows.at_best_up_to(longest) } else { self.rows.up_to(longest) };
        // One length does not show what further tokens cost: the job itself may take most of the time. To try that is
        // cheap while there is nothing to read first.
        let is_flat = at_best && self.draft.has_one_point() && policy.unread_tokens == 0;
        let drafts = match is_flat {
            true => self.draft.at_best_up_to(longest),
            false => self.draft.up_to(longest),
        };
        let waited_ns = self.waited_ns[1].value_or(self.waited_ns[0].value_or(0.0));
        let time = |length: usize| {
            let nodes = if policy.is_chain() { length } else { whole };
            let passes = if policy.in_one_forward { nodes.min(1) } else { nodes };
            let draft_ns = self.draft_costs.share_at_load(drafts[passes], nodes as f64);
            let score_ns = self.plain_ns().unwrap_or(0.0) + rows[nodes];
            let score_ns = self.score_costs.share_at_load(score_ns, nodes as f64 + 1.0);
            draft_ns + score_ns + waited_ns
        };
        (0..=length).map(time).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulated pair of models. The first `agreement` tokens of every draft are right.
    struct SimulatedPair {
        agreement: usize,
        draft_ns: u64,
        /// The time of a forward with one row, and of each further row.
        score_ns: (u64, u64),
        catch_up_ns: u64,
        /// Whether up to twelve more tokens are right, depending on the round.
        varies: bool,
        /// A draft is empty except in every `finds`-th round.
        finds: usize,
    }

    const PAIR: SimulatedPair = SimulatedPair {
        agreement: 0,
        draft_ns: 100,
        score_ns: (1_000, 20),
        catch_up_ns: 0,
        varies: false,
        finds: 1,
    };

    /// Simulates rounds. Returns the depths of their drafts, and the speedup over plain decoding.
    fn run(
        draft_length: &mut SpeculativeDraftLength,
        rounds: usize,
        pair: &SimulatedPair,
    ) -> (Vec<usize>, f64) {
        let (mut depths, mut time, mut tokens, mut unread) = (Vec::new(), 0, 0, 0);
        for number in 0..rounds {
            let shape = draft_length.next_shape();
            let requested = shape.depth() > 0;
            let drafted = if number % pair.finds == 0 { shape.max_nodes() } else { 0 };
            let agreement = pair.agreement + if pair.varies { number * 7 % 13 } else { 0 };
            let accepted = agreement.min(shape.depth()).min(drafted);
            unread = if requested { unread } else { unread + 1 };
            let catch_up =
                if requested { std::mem::take(&mut unread) * pair.catch_up_ns } else { 0 };
            let round = Round {
                requested,
                drafted,
                accepted,
                rejected: drafted > 0 && accepted < shape.depth(),
                draft: JobTime::alone(
                    match draft_length.in_one_forward {
                        true => pair.draft_ns * u64::from(drafted > 0),
                        false => pair.draft_ns * drafted as u64,
                    } + catch_up,
                ),
                score: JobTime::alone(pair.score_ns.0 + pair.score_ns.1 * drafted as u64),
            };
            draft_length.observe(&round);
            depths.push(shape.depth());
            time += round.draft.duration_ns + round.score.duration_ns;
            tokens += accepted as u64 + 1;
        }
        (depths, (tokens * pair.score_ns.0) as f64 / time as f64)
    }

    fn chain(length: DraftLength) -> SpeculativeDraftLength {
        SpeculativeDraftLength::new(DraftShape::Chain { length: 16 }, length)
    }

    #[test]
    fn a_fixed_length_never_changes() {
        let (depths, _) = run(&mut chain(DraftLength::Fixed), 50, &PAIR);
        assert_eq!(depths, vec![16; 50]);
    }

    #[test]
    fn a_good_drafter_makes_long_drafts_in_nearly_all_rounds() {
        let pair = SimulatedPair { agreement: 16, draft_ns: 50, ..PAIR };
        let mut draft_length = chain(DraftLength::Auto);
        let (depths, _) = run(&mut draft_length, 3_000, &pair);
        assert_eq!(depths[..2], [0, 0]);
        let plain = depths[100..].iter().filter(|&&depth| depth == 0).count();
        assert!(plain <= 50, "{plain} plain rounds of 2,900");
        assert!(depths[100..].iter().all(|&depth| depth == 0 || depth >= 12));
        assert!(run(&mut draft_length, 1_000, &pair).1 > 7.0);
    }

    #[test]
    fn a_useless_drafter_costs_little_however_slow_it_is() {
        for draft_ns in [200, 1_000, 10_000] {
            for catch_up_ns in [0, 300, 1_000] {
                let pair = SimulatedPair { draft_ns, catch_up_ns, ..PAIR };
                let mut draft_length = chain(DraftLength::Auto);
                run(&mut draft_length, 200, &pair);
                let (_, speed) = run(&mut draft_length, 5_000, &pair);
                assert!(speed > 0.95, "{draft_ns}, {catch_up_ns}: {speed}");
            }
        }
    }

    #[test]
    fn drafting_resumes_when_the_drafter_becomes_good() {
        for catch_up_ns in [0, 10, 20] {
            let mut draft_length = chain(DraftLength::Auto);
            run(&mut draft_length, 3_000, &SimulatedPair { catch_up_ns, ..PAIR });
            run(&mut draft_length, 3_000, &SimulatedPair { agreement: 5, catch_up_ns, ..PAIR });
            let easy = SimulatedPair { agreement: 5, catch_up_ns, ..PAIR };
            let (depths, speed) = run(&mut draft_length, 1_000, &easy);
            assert!(speed > 2.0, "{catch_up_ns}: {speed}, {:?}", &depths[..50]);
        }
    }

    #[test]
    fn empty_drafts_do_not_pause_drafting() {
        let pair = SimulatedPair { agreement: 8, draft_ns: 0, finds: 20, ..PAIR };
        let (depths, _) = run(&mut chain(DraftLength::Auto), 2_000, &pair);
        let requested = depths.iter().filter(|&&depth| depth > 0).count();
        assert!(requested > 1_900, "drafts were requested in {requested} of 2,000 rounds");
    }

    /// Longer drafts cost such a drafter nothing, so only the target's rows limit them.
    #[test]
    fn drafts_made_in_one_forward_are_longer() {
        let depth = |mut draft_length: SpeculativeDraftLength| {
            let pair = SimulatedPair {
                agreement: 2,
                varies: true,
                draft_ns: 300,
                score_ns: (1_000, 1),
                ..PAIR
            };
            let (depths, _) = run(&mut draft_length, 300, &pair);
            depths[200..].iter().sum::<usize>() / 100
        };
        let one_by_one = depth(chain(DraftLength::Auto));
        let in_one_forward = depth(chain(DraftLength::Auto).in_one_forward());
        assert!(one_by_one < 8 && in_one_forward > 12, "{one_by_one} against {in_one_forward}");
    }

    /// The schedule of Hugging Face's transformers: 5, then two more or one less.
    #[test]
    fn assisted_generation_drafts_more_after_a_success_and_less_after_a_failure() {
        let mut draft_length = chain(DraftLength::Assisted);
        let (depths, _) = run(&mut draft_length, 8, &SimulatedPair { agreement: 99, ..PAIR });
        assert_eq!(depths, [5, 7, 9, 11, 13, 15, 16, 16], "up to the chain's length");
        let (depths, _) = run(&mut draft_length, 17, &SimulatedPair { agreement: 2, ..PAIR });
        assert_eq!(depths, [16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 4, 3]);
        let (depths, _) = run(&mut draft_length, 3, &SimulatedPair { agreement: 0, ..PAIR });
        assert_eq!(depths, [2, 1, 1]);
    }

    #[test]
    fn a_tree_is_drafted_whole_or_not_at_all() {
        let shape = DraftShape::Top { width: 2, depth: 3, budget: None };
        let bad = SimulatedPair { draft_ns: 700, ..PAIR };
        let mut draft_length = SpeculativeDraftLength::new(shape.clone(), DraftLength::Auto);
        let (depths, speed) = run(&mut draft_length, 3_000, &bad);
        assert!(depths.iter().all(|&depth| depth == 0 || depth == 3));
        assert!(speed > 0.95, "{speed}");
        let mut draft_length = SpeculativeDraftLength::new(shape, DraftLength::Auto);
        let (_, speed) = run(&mut draft_length, 1_000, &SimulatedPair { agreement: 3, ..PAIR });
        assert!(speed > 2.0, "{speed}");
    }

    #[test]
    fn estimates_carry_over_to_the_next_answer() {
        let mut draft_length = chain(DraftLength::Auto);
        run(&mut draft_length, 100, &SimulatedPair { agreement: 5, ..PAIR });
        let next = draft_length.for_new_answer(10);
        assert!(next.next_shape().depth() >= 4);
    }
}
