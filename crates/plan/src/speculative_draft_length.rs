//! The draft length of speculative decoding: fixed, or chosen from measured times and acceptance.

use crate::SharedGoodput;
use crate::estimates::{AcceptanceEstimate, BatchCosts, DecayingMean, JobTime, OneRowTime};
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
/// The automatic mode compares the time of rounds with drafting to that of rounds without, by
/// estimates in which older rounds count less. It drafts while that is faster. Otherwise drafting
/// pauses, and is retried in case the text has become easier. A trial is allowed if the time lost by
/// drafting so far plus the expected cost of the trial, including catching up, is at most 3 % of the
/// total time. So a useless drafter costs about 3 %, however slow it is.
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
    phase: Phase,
    /// Whether the next round is the answer's first one, which computes the prompt.
    first_round: bool,
    /// The number of committed tokens that the drafter has not read, because no draft was requested.
    unread_tokens: usize,
    /// The number of rounds since the last one without a draft.
    since_plain: u32,
    elapsed_ns: f64,
    /// The time by which drafting rounds were slower than plain ones, minus the time gained since.
    lost_ns: f64,
    /// The time lost by the current or last trial.
    trial_ns: f64,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Decoding without drafts, to measure the speed to beat.
    Plain,
    /// Drafting to measure, for this many more rounds.
    Trial(u32),
    /// Drafting because it is faster.
    Drafting,
    /// Not drafting because it would be slower.
    Pause,
}

/// The maximum number of drafting rounds in a trial.
const TRIAL_ROUNDS: u32 = 6;
/// The minimum length of a chain in a trial.
const TRIAL_LENGTH: usize = 3;
/// The first draft length of assisted generation.
const INITIAL_ASSISTED_LENGTH: usize = 5;
/// The share of the total time that trials may lose.
const TRIAL_SHARE: f64 = 0.03;
/// The numbers of unread tokens at which the cost of catching up is measured: enough to measure, but
/// cheap.
const CATCH_UP_SAMPLE: std::ops::Range<usize> = 8..32;
/// Drafting rounds after which a plain round measures the speed to beat.
const PLAIN_EVERY: u32 = 64;

impl SpeculativeDraftLength {
    /// Creates a policy that drafts in `shape`, or in parts of it.
    #[must_use]
    pub fn new(shape: DraftShape, length: DraftLength) -> Self {
        Self {
            shape,
            length,
            goodput: SharedGoodput::default(),
            estimates: Estimates::default(),
            phase: Phase::Plain,
            first_round: true,
            unread_tokens: 0,
            since_plain: 0,
            elapsed_ns: 0.0,
            lost_ns: 0.0,
            trial_ns: 0.0,
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
        Self { first_round: true, unread_tokens: prompt_tokens, ..self.clone() }
    }

    /// Returns the shape of the next round's draft. Its depth is 0 if no draft should be made.
    #[must_use]
    pub fn next_shape(&self) -> DraftShape {
        let chain = matches!(self.shape, DraftShape::Chain { .. });
        let length = match (self.length, self.phase) {
            (DraftLength::Fixed, _) => self.shape.length(),
            (DraftLength::Assisted, _) => self.assisted,
            (DraftLength::Auto, Phase::Plain | Phase::Pause) => 0,
            (DraftLength::Auto, _) if !self.goodput.drafts() => 0,
            (DraftLength::Auto, Phase::Trial(_)) if chain => {
                self.best_length(true).max(TRIAL_LENGTH)
            }
            (DraftLength::Auto, Phase::Trial(_)) => self.shape.length(),
            (DraftLength::Auto, Phase::Drafting) if self.since_plain >= PLAIN_EVERY => 0,
            (DraftLength::Auto, Phase::Drafting) => self.best_length(false),
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
        let round_ns = self.estimates.share_of(round);
        self.elapsed_ns += round_ns;
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
        if !self.estimates.learn(round, caught_up) {
            return;
        }
        if round.drafted > 0 {
            self.since_plain += 1;
            let plain_ns = self.estimates.plain_share(round_ns);
            let lost = round_ns - (round.accepted + 1) as f64 * plain_ns;
            self.lost_ns = (self.lost_ns + lost).max(0.0);
            self.trial_ns += lost;
        } else {
            self.since_plain = 0;
        }
        // A round with an empty draft does not show whether drafting pays.
        if round.drafted > 0 || (!round.requested && self.goodput.drafts()) {
            self.update_phase(round.drafted > 0 && caught_up == 0);
        }
    }

    /// Changes to the next phase if the current one is over. `measured`: whether the last round
    /// measured the drafter's usual speed.
    fn update_phase(&mut self, measured: bool) {
        let cannot_pay = measured && self.best_length(true) == 0;
        self.phase = match self.phase {
            Phase::Plain if self.estimates.plain.is_known() => self.start_trial(),
            Phase::Trial(_) if cannot_pay => Phase::Pause,
            Phase::Trial(left) if measured && left > 1 => Phase::Trial(left - 1),
            Phase::Trial(_) | Phase::Drafting if measured && self.best_length(false) == 0 => {
                Phase::Pause
            }
            Phase::Trial(_) if measured => Phase::Drafting,
            Phase::Pause if self.may_try() => self.start_trial(),
            phase => phase,
        };
    }

    fn start_trial(&mut self) -> Phase {
        self.trial_ns = 0.0;
        // The acceptance of earlier text, which may have been easier or harder, must not dominate.
        self.estimates.forget_most();
        Phase::Trial(TRIAL_ROUNDS)
    }

    /// Returns whether another trial stays within its share of the time.
    fn may_try(&self) -> bool {
        // One early trial measures the cost of catching up while there are few tokens to read.
        if !self.estimates.catch_up_ns.is_known() && CATCH_UP_SAMPLE.contains(&self.unread_tokens) {
            return true;
        }
        let catch_up_ns = self.unread_tokens as f64 * self.estimates.catch_up_ns.value_or(0.0);
        let cost_ns = self.trial_ns.max(catch_up_ns);
        self.lost_ns + cost_ns <= TRIAL_SHARE * self.elapsed_ns
    }

    /// Returns the length with the most tokens per second by the current estimates; 0 is plain
    /// decoding. `optimistic` assumes the best acceptance that the estimates allow.
    fn best_length(&self, optimistic: bool) -> usize {
        let length = self.shape.length();
        let lengths = match self.shape {
            DraftShape::Chain { .. } => 1..=length,
            // A tree is drafted as a whole or not at all.
            _ => length..=length,
        };
        let plain = 1.0 / self.estimates.plain_share(1.0);
        let speeds = lengths.map(|length| (length, self.speed(length, optimistic)));
        speeds.fold((0, plain), |best, next| if next.1 > best.1 { next } else { best }).0
    }

    /// Returns the expected tokens per nanosecond with drafts of this length.
    fn speed(&self, length: usize, optimistic: bool) -> f64 {
        let estimates = &self.estimates;
        let is_chain = matches!(self.shape, DraftShape::Chain { .. });
        let (tokens, nodes) = if is_chain {
            // Leviathan et al. 2023, arXiv 2211.17192, equation 1.
            let prior = if optimistic { 2.0 } else { 0.0 };
            let acceptance = estimates.acceptance.rate(prior).min(0.999);
            ((1.0 - acceptance.powi(length as i32 + 1)) / (1.0 - acceptance), length as f64)
        } else {
            let best = self.shape.depth() as f64 + 1.0;
            let tokens = estimates.tokens.value_or(best);
            let nodes = estimates.nodes.value_or(self.shape.max_nodes() as f64);
            (if optimistic { best.min(tokens + 1.0) } else { tokens }, nodes)
        };
        let draft_ns = match self.in_one_forward {
            true => estimates.draft_ns.value_or(0.0),
            false => nodes * estimates.node_ns.value_or(0.0),
        };
        let score_ns = estimates.plain_ns(1.0) + nodes * estimates.row_ns.value_or(0.0);
        let draft_share = estimates.draft_costs.share_at_load(draft_ns, nodes);
        tokens / (draft_share + estimates.score_costs.share_at_load(score_ns, nodes + 1.0))
    }
}

/// Estimates of times and acceptance. Times are without the rows of neighbours.
#[derive(Clone, Debug, Default)]
struct Estimates {
    draft_costs: BatchCosts,
    score_costs: BatchCosts,
    /// The time of a round without a draft.
    plain: OneRowTime,
    /// The time that each further row adds to a target forward.
    row_ns: DecayingMean,
    /// The time of drafting one node.
    node_ns: DecayingMean,
    /// The time of a whole draft.
    draft_ns: DecayingMean,
    /// The time in which a drafter reads one token that it missed during a pause.
    catch_up_ns: DecayingMean,
    /// The number of nodes of a draft.
    nodes: DecayingMean,
    /// The number of tokens committed by a round with a draft.
    tokens: DecayingMean,
    acceptance: AcceptanceEstimate,
}

impl Estimates {
    /// Learns from a round. Returns whether it shows the usual costs.
    fn learn(&mut self, round: &Round, caught_up: usize) -> bool {
        let draft_ns = self.draft_costs.learn(&round.draft);
        let score_ns = self.score_costs.learn(&round.score);
        let (Some(draft_ns), Some(score_ns)) = (draft_ns, score_ns) else { return false };
        if round.drafted == 0 {
            self.plain.add(&round.score);
            return true;
        }
        let nodes = round.drafted as f64;
        if caught_up == 0 {
            self.node_ns.add(draft_ns / nodes);
            self.draft_ns.add(draft_ns);
        } else if self.node_ns.is_known() {
            let usual_ns = nodes * self.node_ns.value_or(0.0);
            self.catch_up_ns.add((draft_ns - usual_ns).max(0.0) / caught_up as f64);
        }
        if self.plain.is_known() {
            self.row_ns.add(((score_ns - self.plain_ns(0.0)) / nodes).max(0.0));
        }
        self.nodes.add(nodes);
        self.tokens.add((round.accepted + 1) as f64);
        self.acceptance.add(round.accepted, round.rejected);
        true
    }

    /// Returns the sequence's share of the time that it and its neighbours spent on a round.
    fn share_of(&self, round: &Round) -> f64 {
        self.draft_costs.share_of(&round.draft) + self.score_costs.share_of(&round.score)
    }

    /// Returns the share of a round without a draft at the present load, or `default` if nothing is
    /// known.
    fn plain_share(&self, default: f64) -> f64 {
        match self.plain.is_known() {
            true => self.score_costs.share_at_load(self.plain_ns(default), 1.0),
            false => default,
        }
    }

    /// Returns the time of a round without a draft, or `default` if nothing is known.
    fn plain_ns(&self, default: f64) -> f64 {
        self.plain.without_neighbours_or(default, &self.score_costs)
    }

    fn forget_most(&mut self) {
        self.acceptance.forget_most();
        self.tokens = DecayingMean::default();
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
        /// A draft is empty except in every `finds`-th round.
        finds: usize,
    }

    const PAIR: SimulatedPair = SimulatedPair {
        agreement: 0,
        draft_ns: 100,
        score_ns: (1_000, 20),
        catch_up_ns: 0,
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
            let accepted = pair.agreement.min(shape.depth()).min(drafted);
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
            let pair = SimulatedPair { agreement: 4, draft_ns: 300, score_ns: (1_000, 1), ..PAIR };
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
