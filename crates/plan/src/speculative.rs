//! The schedule of speculative decoding: drafting before each pass of the target.

use crate::SharedGoodput;
use crate::confidence::{Confidence, Stops};
use crate::decaying::DecayingMean;
use crate::lookup_choice::accepted_of;
use crate::outlook::Outlook;
use crate::planner::{Planned, Policy};
use crate::ranked_tree::{DraftSize, TreeLimits, fastest_tree};
use crate::round::Round;
use crate::rounds::tokens_of_round;
use crate::schedule::{Assumption, Candidate, Drafting, Facts, Schedule};
use forerun_core::{DraftShape, StopRule};

/// The first draft length of assisted generation.
const INITIAL_ASSISTED_LENGTH: usize = 5;

/// Decides how many tokens to draft in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftLength {
    /// Always the whole shape.
    Fixed,
    /// Chosen from measured times and acceptance: for a chain, any length up to the shape's.
    /// Drafting pauses when it would slow generation down, and is retried periodically.
    Auto,
    /// Two tokens more if all were accepted, else one less: the schedule of assisted generation in
    /// Hugging Face's transformers.
    Assisted,
}

/// The closed form of draft-then-verify (Leviathan et al. 2023, arXiv 2211.17192, equation 1, for
/// any acceptance).
#[derive(Clone, Debug)]
pub(crate) struct Rounds {
    shape: DraftShape,
    length: DraftLength,
    /// The largest tree, if the automatic mode grows trees.
    trees: Option<TreeLimits>,
    /// Whether chains stop by the drafter's confidence, and whether they may in this answer.
    stops: bool,
    pub(crate) may_stop: bool,
    /// The present length of assisted generation.
    assisted: usize,
    /// The number of nodes of drafts that are not chains.
    nodes: DecayingMean,
}

impl Rounds {
    pub(crate) fn adapts(&self) -> bool {
        self.length == DraftLength::Auto
    }

    fn is_chain(&self) -> bool {
        matches!(self.shape, DraftShape::Chain { .. })
    }

    /// Returns the number of positions that drafts may have.
    fn depth(&self) -> usize {
        self.trees.map_or(self.shape.depth(), |trees| trees.depth)
    }

    /// Returns the shortest draft: its tokens in a row or, of trees that are grown, its nodes.
    fn shortest(&self) -> usize {
        match self.length {
            DraftLength::Fixed => self.shape.length(),
            DraftLength::Assisted => self.assisted.min(self.shape.length()),
            DraftLength::Auto if self.is_chain() || self.trees.is_some() => 1,
            // Another tree is drafted as a whole or not at all.
            DraftLength::Auto => self.shape.length(),
        }
    }

    /// Returns the longest draft to consider. The first one measures the drafter's speed.
    fn longest(&self, facts: Facts<'_>, at_best: bool) -> usize {
        let costs = &facts.drafter.costs;
        let most = self.trees.map_or(self.shape.length(), |trees| trees.nodes);
        let reach = facts.target.reach(1).min(most).max(self.shortest());
        match self.length {
            DraftLength::Auto if at_best => reach,
            DraftLength::Auto if costs.is_known() || costs.tokens_per_forward > 1 => {
                if self.trees.is_some() { reach } else { most }
            }
            _ => self.shortest(),
        }
    }

    /// Returns the confidence by which chains stop, if they do.
    fn confidence<'a>(&self, facts: Facts<'a>) -> Option<&'a Confidence> {
        let confidence = &facts.drafter.confidence;
        (self.stops && self.may_stop && confidence.is_useful()).then_some(confidence)
    }

    /// Returns the times of rounds at the present load, by the size of their drafts.
    fn times<'a>(&self, facts: Facts<'a>, at_best: bool) -> impl Fn(DraftSize) -> f64 + use<'a> {
        let longest = match self.trees {
            Some(trees) => trees.nodes.max(trees.depth),
            None if self.is_chain() => self.shape.length(),
            None => self.nodes_of_tree(),
        };
        let costs = &facts.drafter.costs;
        // One length does not show what further tokens cost. To try that is cheap while there is
        // nothing to read first.
        let is_flat = at_best && costs.is_flat_at_best() && costs.lag == 0;
        let passes = facts.target.passes(longest, false, at_best);
        let drafts = costs.drafts(longest, is_flat);
        move |size: DraftSize| drafts.ns(size) + passes.ns(size.nodes as f64)
    }

    fn nodes_of_tree(&self) -> usize {
        self.nodes.value_or(self.shape.max_nodes() as f64).round() as usize
    }

    pub(crate) fn best(&self, facts: Facts<'_>, assume: Assumption) -> Candidate {
        let outlook = facts.outlook(assume, self.depth(), usize::MAX);
        let times = self.times(facts, assume != Assumption::Usual);
        let longest = self.longest(facts, assume != Assumption::Usual);
        if let Some(trees) = self.trees {
            let limits = TreeLimits { nodes: longest, ..trees };
            let in_one_forward = facts.drafter.costs.tokens_per_forward > 1;
            let least = if in_one_forward { limits.depth } else { 1 };
            let grown = fastest_tree(&outlook, limits, least..=limits.depth, &times);
            let shape = DraftShape::Ranked { children: grown.children };
            return Candidate { draft: Drafting::Round(shape), tokens: grown.tokens, ns: grown.ns };
        }
        // A trial does not stop early: it is about what the estimates do not know.
        let stops = self.confidence(facts).filter(|_| assume == Assumption::Usual);
        let stops = stops.map(Confidence::stops);
        let survival = outlook.survival(self.shape.depth());
        let chain_ns = |length: usize| times(DraftSize::of_chain(length));
        let (survival, stopping_ns) = match stops.as_ref().filter(|_| self.is_chain()) {
            Some(stops) => (stops.survival(&survival), stops.mean_ns(longest, chain_ns)),
            None => (survival, Vec::new()),
        };
        let candidates = (self.shortest()..=longest).map(|length| {
            let (nodes, depth) = match self.is_chain() {
                true => (length, length),
                false => (self.nodes_of_tree(), self.shape.depth()),
            };
            let ns = stopping_ns.get(length.wrapping_sub(1)).copied();
            let ns = ns.unwrap_or_else(|| chain_ns(nodes));
            (length, tokens_of_round(&survival, depth), ns)
        });
        let first = (0, 0.0, f64::INFINITY);
        let (length, tokens, ns) = candidates
            .fold(first, |best, next| if next.1 / next.2 > best.1 / best.2 { next } else { best });
        let rule = match stops {
            Some(stops) => Some(self.stop_rule(&stops, tokens / ns, &outlook, &times)),
            None => self.confidence(facts).map(|_| StopRule::NEVER),
        };
        let shape = match (self.shape.with_draft_tokens(length), rule) {
            (DraftShape::Chain { length }, Some(stop)) => {
                DraftShape::ConfidentChain { length, stop }
            }
            (shape, _) => shape,
        };
        Candidate { draft: Drafting::Round(shape), tokens, ns }
    }

    /// Returns the rule by which a chain stops if drafting has so many tokens per nanosecond.
    fn stop_rule(
        &self,
        stops: &Stops<'_>,
        speed: f64,
        outlook: &Outlook,
        times: impl Fn(DraftSize) -> f64,
    ) -> StopRule {
        let longest = self.shape.length();
        // What a further token costs after a typical chain.
        let typical = stops.mean_length(longest).round().max(2.0) as usize;
        let ns = |length: usize| times(DraftSize::of_chain(length.min(longest)));
        let token_ns = (ns(typical) - ns(1)) / (typical - 1) as f64;
        let first = outlook.survival(1).last().copied().unwrap_or(1.0);
        stops.rule(token_ns * speed, first)
    }

    pub(crate) fn of(&self, facts: Facts<'_>, shape: &DraftShape) -> Candidate {
        let outlook = facts.outlook(Assumption::Usual, self.depth(), usize::MAX);
        let depth = shape.depth();
        let (size, tokens) = match shape {
            DraftShape::Ranked { children } if self.trees.is_some() => {
                let parents = children.iter().filter(|&&count| count > 0).count();
                let size = DraftSize { nodes: children.iter().sum(), depth, parents };
                (size, outlook.tokens_of_ranked(children))
            }
            _ => {
                let nodes = if self.is_chain() { shape.length() } else { self.nodes_of_tree() };
                let survival = outlook.survival(depth);
                let stops = match shape {
                    DraftShape::ConfidentChain { stop, .. } if *stop != StopRule::NEVER => {
                        self.confidence(facts).map(Confidence::stops)
                    }
                    _ => None,
                };
                let survival = match stops {
                    Some(stops) => stops.survival(&survival),
                    None => survival,
                };
                (DraftSize::of_chain(nodes), tokens_of_round(&survival, depth))
            }
        };
        let ns = self.times(facts, false)(size);
        Candidate { draft: Drafting::Round(shape.clone()), tokens, ns }
    }

    /// Learns what a draft had and how much of it was accepted.
    pub(crate) fn learn(&mut self, round: &Round) {
        if round.drafted == 0 || round.looked_up {
            return;
        }
        self.assisted = match round.accepted >= self.assisted {
            true => (self.assisted + 2).min(self.shape.length()),
            false => self.assisted.saturating_sub(1).max(1),
        };
        self.nodes.add(round.drafted as f64);
    }
}

/// Decides the shape of the next draft of speculative decoding.
///
/// The automatic mode drafts the length with the most expected tokens a second after the present
/// text. It can also grow trees, node by node, or stop chains where the drafter is unsure. While no
/// draft is faster than the target alone, drafting pauses.
///
/// If other sequences share the passes, times are the job's share of them
/// ([`JobCost::share`](forerun_core::JobCost::share)), if the others do the same, and a token is
/// worth its row if it brings more than their tokens would ([`SharedGoodput`]). So a draft is as
/// long as is good for all.
#[derive(Clone, Debug)]
pub struct SpeculativeDraftLength {
    planned: Planned,
    shape: DraftShape,
    length: DraftLength,
}

impl SpeculativeDraftLength {
    /// Creates a policy that drafts in `shape`, or in parts of it.
    #[must_use]
    pub fn new(shape: DraftShape, length: DraftLength) -> Self {
        let schedule = Schedule::Rounds(Rounds {
            shape: shape.clone(),
            length,
            trees: None,
            stops: false,
            may_stop: true,
            assisted: INITIAL_ASSISTED_LENGTH,
            nodes: DecayingMean::default(),
        });
        Self { planned: Planned::alone(schedule), shape, length }
    }

    fn change(self, change: impl FnOnce(&mut Rounds)) -> Self {
        self.planned.with_rounds(change);
        self
    }

    /// Returns a copy that grows trees in its automatic mode. Other modes keep the shape.
    #[must_use]
    pub fn growing_trees(self, limits: TreeLimits) -> Self {
        self.change(|rounds| rounds.trees = rounds.adapts().then_some(limits))
    }

    /// Returns a copy whose chains stop where the drafter is unsure, in its automatic mode.
    #[must_use]
    pub fn stopping_by_confidence(self) -> Self {
        self.change(|rounds| rounds.stops = rounds.adapts() && rounds.is_chain())
    }

    /// Sets whether chains may stop by the drafter's confidence in the present answer.
    pub fn set_may_stop(&mut self, may_stop: bool) {
        self.planned.with_rounds(|rounds| rounds.may_stop = may_stop);
    }

    /// Returns whether drafts are trees of ranked candidates that it grows. It learns from their
    /// [`Round::ranked`] then.
    #[must_use]
    pub fn grows_trees(&self) -> bool {
        self.planned.with_rounds(|rounds| rounds.trees.is_some())
    }

    /// Returns a copy that decides by the goodput of all sequences with the same `goodput`.
    #[must_use]
    pub fn with_goodput(self, goodput: SharedGoodput) -> Self {
        self.planned.set_goodput(goodput);
        self
    }

    /// Returns the shape of the next round's draft. Its depth is 0 if no draft should be made.
    #[must_use]
    pub fn next_shape(&self) -> DraftShape {
        let length = match self.length {
            DraftLength::Fixed => self.shape.length(),
            DraftLength::Assisted => self.planned.with_rounds(|rounds| rounds.assisted),
            DraftLength::Auto => match self.planned.draft() {
                Some(Drafting::Round(DraftShape::Ranked { children })) => {
                    return self.tree(children);
                }
                Some(Drafting::Round(shape)) => return self.without_stop(shape),
                _ => 0,
            },
        };
        self.shape.with_draft_tokens(length)
    }

    /// Returns the shape of a tree with these ranked candidates. A drafter that makes all rows in
    /// one pass chooses as many nodes by its probabilities instead, which know more of the text.
    fn tree(&self, children: Vec<usize>) -> DraftShape {
        let in_one_forward = |facts: Facts<'_>| facts.drafter.costs.tokens_per_forward > 1;
        let (limits, nodes) =
            (self.planned.with_rounds(|rounds| rounds.trees), children.iter().sum());
        match limits.filter(|_| nodes > 0 && self.planned.with_facts(in_one_forward)) {
            Some(TreeLimits { depth, .. }) => {
                DraftShape::Top { width: nodes, depth, budget: Some(nodes) }
            }
            None => DraftShape::Ranked { children },
        }
    }

    /// Returns the shape without a stop, if chains may not stop.
    fn without_stop(&self, shape: DraftShape) -> DraftShape {
        match shape {
            DraftShape::ConfidentChain { length, .. }
                if !self.planned.with_rounds(|rounds| rounds.may_stop) =>
            {
                DraftShape::Chain { length }
            }
            shape => shape,
        }
    }

    /// Returns how many of `longest` tokens that were looked up to draft, if each is accepted at
    /// this rate. The automatic mode knows what their rows cost; others take all of them. In the
    /// first round of an answer, a drafter that drafts reads the prompt, and no lookup takes its
    /// place.
    #[must_use]
    pub fn lookup_length(&self, rate: f64, longest: usize) -> usize {
        if self.length != DraftLength::Auto {
            return longest;
        }
        self.planned.with(|state, entry| {
            if state.is_first_step && state.plan.of(entry).is_some() {
                return 0;
            }
            let longest = longest.min(state.target.reach(1));
            let Some(plain_ns) = state.target.plain_share() else { return 0 };
            let passes = state.target.passes(longest, false, false);
            let speeds = (0..=longest).map(|length| {
                (length, (1.0 + accepted_of(rate, length)) / passes.ns(length as f64))
            });
            // Of equal ones, the shortest.
            let best = speeds.rev().max_by(|(_, a), (_, b)| a.total_cmp(b));
            let Some((length, speed)) = best else { return 0 };
            // Now and then, a round without a draft measures the speed to beat.
            let measures_plain =
                state.plan.action.is_none() && state.may_measure_plain(plain_ns - 1.0 / speed);
            if measures_plain { 0 } else { length }
        })
    }

    /// Returns how many tokens rounds with the drafter's next draft are expected to have in the
    /// time of a round with this number of tokens that were looked up. `None` unless the automatic
    /// mode knows. `None` for a trial, too, whose time is not known.
    #[must_use]
    pub fn tokens_in_time_of_lookup(&self, length: usize) -> Option<f64> {
        if self.length != DraftLength::Auto {
            return None;
        }
        self.planned.with(|state, entry| {
            let candidate = state.plan.of(entry).filter(|_| !state.plan.is_trial())?;
            state.target.plain_share()?;
            let lookup_ns = state.target.passes(length, false, false).ns(length as f64);
            let is_known = candidate.ns > 0.0 && lookup_ns > 0.0;
            is_known.then(|| candidate.tokens * lookup_ns / candidate.ns)
        })
    }

    /// Learns from the measurements of a round.
    pub fn observe(&mut self, round: &Round) {
        self.planned.observe_round(round);
    }
}

impl Policy for SpeculativeDraftLength {
    fn planned(&mut self) -> &mut Planned {
        &mut self.planned
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::JobTime;
    use crate::round::RankedRound;
    use forerun_core::{TokenTree, node_of_row};

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
        /// The time of an empty draft.
        empty_ns: u64,
        /// How much longer a draft takes after a round without one.
        cold_ns: u64,
    }

    const PAIR: SimulatedPair = SimulatedPair {
        agreement: 0,
        draft_ns: 100,
        score_ns: (1_000, 20),
        catch_up_ns: 0,
        varies: false,
        finds: 1,
        empty_ns: 0,
        cold_ns: 0,
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
            let cold = if requested && unread > 0 { pair.cold_ns } else { 0 };
            let catch_up =
                if requested { std::mem::take(&mut unread) * pair.catch_up_ns + cold } else { 0 };
            let round = Round {
                requested,
                drafted,
                accepted,
                rejected: drafted > 0 && accepted < shape.depth(),
                draft: JobTime::alone(
                    match draft_length
                        .planned
                        .with_facts(|of| of.drafter.costs.tokens_per_forward > 1)
                    {
                        _ if drafted == 0 => pair.empty_ns * u64::from(requested),
                        true => pair.draft_ns,
                        false => pair.draft_ns * drafted as u64,
                    } + catch_up,
                ),
                score: JobTime::alone(pair.score_ns.0 + pair.score_ns.1 * drafted as u64),
                ..Round::default()
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

    /// Each draft follows a pause, because a second row is as slow as three passes. What reading
    /// costs is known all the same.
    #[test]
    fn reading_is_measured_if_every_draft_follows_a_pause() {
        let pair = SimulatedPair {
            agreement: 2,
            draft_ns: 900,
            score_ns: (1_000, 2_000),
            catch_up_ns: 30,
            ..PAIR
        };
        let (depths, speedup) = run(&mut chain(DraftLength::Auto), 2_000, &pair);
        assert!(speedup > 0.985, "{speedup}");
        assert!(depths.iter().any(|&depth| depth > 0));
    }

    #[test]
    fn a_fixed_length_never_changes() {
        let (depths, _) = run(&mut chain(DraftLength::Fixed), 50, &PAIR);
        assert_eq!(depths, vec![16; 50]);
    }

    /// A cold drafter after one round without a draft says nothing about the time in which it reads
    /// the next prompt.
    #[test]
    fn every_answer_drafts_if_the_drafter_is_good() {
        let pair = SimulatedPair { agreement: 1, draft_ns: 300, cold_ns: 400, ..PAIR };
        for rounds in 20..200 {
            let mut draft_length = chain(DraftLength::Auto);
            run(&mut draft_length, rounds, &pair);
            let (depths, _) = run(&mut draft_length.for_new_answer(300), 20, &pair);
            let drafts = depths.iter().filter(|&&depth| depth > 0).count();
            assert!(drafts >= 18, "after {rounds} rounds: {drafts} of 20");
        }
    }

    #[test]
    fn empty_drafts_do_not_pause_drafting() {
        let pair = SimulatedPair { agreement: 8, draft_ns: 0, finds: 20, ..PAIR };
        let (depths, _) = run(&mut chain(DraftLength::Auto), 2_000, &pair);
        let requested = depths.iter().filter(|&&depth| depth > 0).count();
        assert!(requested > 1_900, "drafts were requested in {requested} of 2,000 rounds");
    }

    /// A drafter that looks at its own confidence may find nothing worth a row, for the price of a
    /// forward.
    #[test]
    fn a_drafter_that_takes_time_and_finds_nothing_is_paused() {
        for (in_one_forward, empty_ns) in [(true, 500), (false, 500), (true, 30)] {
            let pair = SimulatedPair { empty_ns, finds: usize::MAX, ..PAIR };
            let policy = chain(DraftLength::Auto);
            let mut policy =
                if in_one_forward { policy.with_tokens_per_forward(usize::MAX) } else { policy };
            // The first round of all may draft.
            let (depths, speed) = run(&mut policy, 5_000, &pair);
            assert!(speed > 0.98, "{in_one_forward}, {empty_ns}: {speed}");
            let requested = depths.iter().filter(|&&depth| depth > 0).count();
            assert!(requested < 2_500, "{in_one_forward}, {empty_ns}: {requested} of 5,000");
        }
        // Half of a pass in every third round is worth it if the others are right.
        let pair = SimulatedPair { agreement: 8, empty_ns: 300, finds: 3, ..PAIR };
        let (depths, speed) = run(&mut chain(DraftLength::Auto), 3_000, &pair);
        let requested = depths.iter().filter(|&&depth| depth > 0).count();
        assert!(requested > 2_500 && speed > 1.2, "{requested} of 3,000, {speed}");
    }

    /// Prompt lookup without a match takes a thousandth of a pass.
    #[test]
    fn looking_in_vain_is_free_if_it_takes_next_to_no_time() {
        let pair = SimulatedPair { empty_ns: 1, finds: usize::MAX, ..PAIR };
        let (depths, _) = run(&mut chain(DraftLength::Auto), 5_000, &pair);
        let requested = depths.iter().filter(|&&depth| depth > 0).count();
        assert!(requested > 4_900, "{requested} of 5,000");
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
        let in_one_forward = depth(chain(DraftLength::Auto).with_tokens_per_forward(usize::MAX));
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

    /// Simulates rounds with a drafter of which the best token is right for every other token of
    /// the text, and the second one for the others. Returns the last draft, and the speedup over
    /// plain decoding.
    fn run_second(
        policy: &mut SpeculativeDraftLength,
        rounds: usize,
        row_ns: u64,
    ) -> (Vec<usize>, f64) {
        let (mut last, mut tokens, mut ns) = (Vec::new(), 0_usize, 0);
        for _ in 0..rounds {
            let shape = policy.next_shape();
            let DraftShape::Ranked { children } = &shape else { panic!("{shape:?}") };
            let mut tree = TokenTree::new();
            for (row, &count) in children.iter().enumerate() {
                for rank in 0..count {
                    tree.push(node_of_row(row), rank as u32);
                }
            }
            let (mut accepted, mut at) = (Vec::new(), None);
            let rank = |token: usize| ((token * token) % 7 % 2) as u32;
            while let Some(node) = tree.child_with(at, rank(tokens + accepted.len())) {
                accepted.push(node);
                at = Some(node);
            }
            let rejected = tree.children(at).next().is_some();
            let round = Round {
                requested: !tree.is_empty(),
                drafted: tree.len(),
                accepted: accepted.len(),
                rejected,
                draft: JobTime::alone(30 * tree.max_depth() as u64),
                score: JobTime::alone(1_000 + row_ns * tree.len() as u64),
                ranked: Some(RankedRound::new(&tree, &shape, &accepted, rejected)),
                ..Round::default()
            };
            policy.observe(&round);
            tokens += accepted.len() + 1;
            ns += round.draft.duration_ns + round.score.duration_ns;
            last = if tree.is_empty() { last } else { children.clone() };
        }
        (last, (tokens * 1_000) as f64 / ns as f64)
    }

    #[test]
    fn trees_have_the_ranks_that_are_accepted() {
        let grown = |depth, nodes| {
            let shape = DraftShape::Ranked { children: vec![1] };
            let policy = SpeculativeDraftLength::new(shape, DraftLength::Auto);
            policy.growing_trees(TreeLimits { depth, nodes })
        };
        let mut policy = grown(8, 40);
        let (children, speed) = run_second(&mut policy, 3_000, 5);
        assert!(children.iter().all(|&count| count <= 2) && children[0] == 2, "{children:?}");
        assert!(children.iter().filter(|&&count| count == 2).count() > 4, "{children:?}");
        assert!(speed > 2.5, "{speed}");
        // A drafter that makes all rows in one pass chooses as many nodes itself.
        let nodes = policy.next_shape().max_nodes();
        let in_one_pass = policy.with_tokens_per_forward(usize::MAX).next_shape();
        let best = DraftShape::Top { width: nodes, depth: 8, budget: Some(nodes) };
        assert_eq!((in_one_pass, nodes > 8), (best, true));
        // Rows that cost more than they bring are not drafted.
        let (_, speed) = run_second(&mut grown(8, 40), 5_000, 900);
        assert!(speed > 0.97, "{speed}");
    }

    /// Drafts that were looked up, right or wrong, do not change what is known of the drafter.
    #[test]
    fn looked_up_drafts_show_nothing_of_the_drafter() {
        let pair = SimulatedPair { agreement: 5, draft_ns: 50, ..PAIR };
        let mut without = chain(DraftLength::Auto);
        let (usual, _) = run(&mut without, 400, &pair);
        for (accepted, rejected) in [(0, true), (3, true), (8, false)] {
            let mut mixed = chain(DraftLength::Auto);
            let mut depths = Vec::new();
            for _ in 0..400 {
                let (drafted, looked_up) = (8, true);
                let score = JobTime::alone(1_000 + 20 * 8);
                mixed.observe(&Round {
                    drafted,
                    looked_up,
                    accepted,
                    rejected,
                    score,
                    ..Round::default()
                });
                depths.extend(run(&mut mixed, 1, &pair).0);
            }
            let times = |policy: &SpeculativeDraftLength| -> Vec<f64> {
                let ns = |of: Facts<'_>, length| {
                    of.drafter.costs.drafts(16, false).ns(DraftSize::of_chain(length))
                };
                (1..=16).map(|length| policy.planned.with_facts(|of| ns(of, length))).collect()
            };
            for (found, expected) in times(&mixed).iter().zip(times(&without)) {
                assert!((found - expected).abs() < 1.0, "{found} ns, {expected} ns");
            }
            let outlook = mixed.planned.with_facts(|of| of.outlook(Assumption::Usual, 5, 5));
            let first = outlook.survival(5);
            assert!(first[5] > 0.8, "{first:?}");
            let mean = |depths: &[usize]| depths[200..].iter().sum::<usize>() / 200;
            assert_eq!(mean(&depths), mean(&usual), "the drafter's lengths");
        }
    }

    #[test]
    fn looked_up_drafts_are_as_long_as_their_rows_are_worth() {
        assert_eq!(chain(DraftLength::Fixed).lookup_length(0.1, 12), 12);
        let learned = |row_ns| {
            let mut policy = chain(DraftLength::Auto);
            assert_eq!(policy.lookup_length(1.0, 12), 0, "the time of a pass is not known");
            run(
                &mut policy,
                300,
                &SimulatedPair { agreement: 9, score_ns: (1_000, row_ns), ..PAIR },
            );
            policy
        };
        let cheap = learned(20);
        let lengths = [0.0, 0.01, 0.5, 0.95].map(|rate| cheap.lookup_length(rate, 12));
        assert!(lengths[..2] == [0, 0] && (3..8).contains(&lengths[2]), "{lengths:?}");
        assert_eq!(lengths[3], 12);
        let expensive = learned(600);
        assert_eq!(expensive.lookup_length(0.5, 12), 0);
        assert!(expensive.lookup_length(0.99, 12) > 0);
    }

    #[test]
    fn lookups_are_compared_with_the_next_draft() {
        let mut policy = chain(DraftLength::Auto);
        assert_eq!(policy.tokens_in_time_of_lookup(3), None, "no times are known");
        run(&mut policy, 300, &SimulatedPair { agreement: 9, draft_ns: 100, ..PAIR });
        let [short, long] = [3, 12].map(|length| policy.tokens_in_time_of_lookup(length).unwrap());
        // A round drafts nine tokens in the time of a pass, and a lookup takes none.
        assert!((3.0..8.0).contains(&short) && long > short, "{short} {long}");
        let mut fixed = chain(DraftLength::Fixed);
        run(&mut fixed, 300, &PAIR);
        assert_eq!(fixed.tokens_in_time_of_lookup(3), None, "other modes must not know");
    }
}
