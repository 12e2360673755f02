//! The drafts of speculative decoding: of a fixed shape, or chosen from measured times and
//! acceptance.

use crate::confidence::{Confidence, Stops};
use crate::estimates::slow_pass;
use crate::knowledge::{Forecast, Knowledge, READ_TOKENS};
use crate::ledger::Ledger;
use crate::lookup_choice::accepted_of;
use crate::outlook::Outlook;
use crate::ranked_tree::{DraftSize, TreeLimits, fastest_tree};
use crate::round::Round;
use crate::round_estimates::{RoundEstimates, RoundTimes};
use crate::{Policy, SharedGoodput, rounds};
use forerun_core::{DraftShape, StopRule};

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

/// Decides the shape of the next draft.
///
/// The automatic mode drafts the length with the most expected tokens a second after the present
/// text. It knows the times of drafts and passes by their number of tokens, and the acceptance by
/// position and in easy and hard stretches of the text ([`Acceptance`](crate::Acceptance)). It can
/// also grow trees: node by node, the candidate that is accepted most often, as long as that gives
/// more tokens a second. Or chains can stop where the drafter is unsure: it learns how often tokens
/// are accepted by the drafter's confidence in them. While no draft is faster than the target
/// alone, drafting pauses. It resumes when the hard stretch may be over, or to try: all trials
/// together may lose 0.6 % of the time, and 5 % of what drafting has gained. Whatever the estimates
/// say, drafting pauses while it has lost more than 0.8 % of the time and the time of 14 passes.
///
/// If other sequences share the passes, times are the job's share of them
/// ([`JobCost::share`](forerun_core::JobCost::share)). So a draft is as long as is good for all
/// sequences together, if the others do the same. Whether they draft at all, they decide together
/// ([`SharedGoodput`]).
#[derive(Clone, Debug)]
pub struct SpeculativeDraftLength {
    shape: DraftShape,
    length: DraftLength,
    /// The largest tree, if the automatic mode grows trees.
    trees: Option<TreeLimits>,
    /// What the drafter's confidence says, if chains stop by it, and whether they may in the
    /// present answer.
    confidence: Option<Confidence>,
    may_stop: bool,
    goodput: SharedGoodput,
    estimates: RoundEstimates,
    ledger: Ledger,
    /// The next draft in the automatic mode, and whether it is a trial.
    next: Next,
    /// Whether the next round is the answer's first one, which computes the prompt.
    first_round: bool,
    /// The number of committed tokens that the drafter has not read, because drafting paused.
    unread_tokens: usize,
    /// The time since the last round without a draft, and the number of rounds.
    since_plain_ns: f64,
    since_plain: u32,
    /// The end of the answer's last round, if it has had one.
    last_ns: Option<u64>,
    /// The current length of assisted generation.
    assisted: usize,
}

#[derive(Clone, Debug, Default)]
struct Next {
    /// `None` without a draft.
    shape: Option<DraftShape>,
    is_trial: bool,
    /// The expected time of the round.
    ns: f64,
}

/// A draft that may be made, with the expected tokens and time of its round.
struct Choice {
    shape: DraftShape,
    size: DraftSize,
    tokens: f64,
    ns: f64,
}

/// The first draft length of assisted generation.
const INITIAL_ASSISTED_LENGTH: usize = 5;
/// The numbers of unread tokens at which the cost of catching up is measured: enough to measure,
/// but cheap.
const CATCH_UP_SAMPLE: std::ops::Range<usize> = READ_TOKENS..32;
/// The share of the time that rounds without a draft may lose. They measure the speed to beat.
const PLAIN_SHARE: f64 = 0.003;
/// Drafting rounds after which there may be such a round.
const PLAIN_EVERY: u32 = 24;
/// A drafter that cannot pay however right it is is tried as if a trial cost so many times as much.
const HOPELESS: f64 = 4.0;
/// The factor by which drafting must be faster to resume.
const MIN_GAIN: f64 = 1.005;
/// The factor by which a length with more rows than were tried must be faster, if they cost
/// nothing, to be tried.
const MIN_GAIN_OF_TRIAL: f64 = 1.03;

impl SpeculativeDraftLength {
    /// Creates a policy that drafts in `shape`, or in parts of it.
    #[must_use]
    pub fn new(shape: DraftShape, length: DraftLength) -> Self {
        Self {
            shape,
            length,
            goodput: SharedGoodput::default(),
            trees: None,
            confidence: None,
            may_stop: true,
            estimates: RoundEstimates::default(),
            ledger: Ledger::default(),
            next: Next::default(),
            first_round: true,
            unread_tokens: 0,
            since_plain_ns: 0.0,
            since_plain: 0,
            last_ns: None,
            assisted: INITIAL_ASSISTED_LENGTH,
        }
    }

    /// Returns a copy configured for a drafter that makes all positions in one forward.
    #[must_use]
    pub fn in_one_forward(mut self) -> Self {
        self.estimates.in_one_forward = true;
        self
    }

    /// Returns a copy configured for a drafter whose forward takes so many passes of the target by
    /// the sizes of the models. The automatic mode does not try a slow one to learn that.
    #[must_use]
    pub fn with_expected_passes(mut self, passes: Option<f64>) -> Self {
        self.estimates.slow_pass = slow_pass(passes);
        self
    }

    /// Returns a copy that grows trees in its automatic mode. Other modes keep the shape.
    #[must_use]
    pub fn growing_trees(self, limits: TreeLimits) -> Self {
        Self { trees: (self.length == DraftLength::Auto).then_some(limits), ..self }
    }

    /// Returns a copy whose chains stop where the drafter is unsure, in its automatic mode.
    #[must_use]
    pub fn stopping_by_confidence(mut self) -> Self {
        let stops = self.length == DraftLength::Auto && self.is_chain();
        self.confidence = stops.then(Confidence::default);
        self
    }

    /// Sets whether chains may stop by the drafter's confidence in the present answer.
    pub fn set_may_stop(&mut self, may_stop: bool) {
        self.may_stop = may_stop;
        if let Some(shape) = &mut self.next.shape
            && let DraftShape::ConfidentChain { length, .. } = *shape
            && !may_stop
        {
            *shape = DraftShape::Chain { length };
        }
    }

    /// Returns whether drafts are trees of ranked candidates that it grows. It learns from their
    /// [`Round::ranked`] then.
    #[must_use]
    pub fn grows_trees(&self) -> bool {
        self.trees.is_some()
    }

    /// Returns a copy that decides by the goodput of all sequences with the same `goodput`.
    #[must_use]
    pub fn with_goodput(self, goodput: SharedGoodput) -> Self {
        Self { goodput, ..self }
    }

    /// Returns a copy for a new answer after a prompt of `prompt_tokens` tokens, which keeps the
    /// learned times and acceptance. It drafts at once if that is expected to pay, also if the last
    /// answer ended with a round that measured the target alone.
    #[must_use]
    pub fn for_new_answer(&self, prompt_tokens: usize) -> Self {
        let before_prompt =
            Self { unread_tokens: 0, since_plain_ns: 0.0, since_plain: 0, ..self.clone() };
        let next = before_prompt.decide();
        let next = if next.shape.is_some() && !next.is_trial { next } else { self.next.clone() };
        let (first_round, last_ns) = (true, None);
        Self { first_round, last_ns, unread_tokens: prompt_tokens, next, ..before_prompt }
    }

    /// Returns the shape of the next round's draft. Its depth is 0 if no draft should be made.
    #[must_use]
    pub fn next_shape(&self) -> DraftShape {
        let length = match self.length {
            DraftLength::Fixed => self.shape.length(),
            DraftLength::Assisted => self.assisted,
            DraftLength::Auto => match &self.next.shape {
                Some(shape) if self.goodput.drafts() => return shape.clone(),
                _ => 0,
            },
        };
        self.shape.with_draft_tokens(length)
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
        if self.first_round && self.next.shape.is_some() {
            return 0;
        }
        // The cost of many more rows than were tried is not known.
        let longest = longest.min(2 * self.estimates.rows.largest() + 1);
        let shares = self.estimates.pass_shares(longest).unwrap_or_default();
        let speeds = shares.iter().enumerate();
        let speeds = speeds.map(|(length, ns)| (length, (1.0 + accepted_of(rate, length)) / ns));
        // Of equal ones, the shortest.
        let best = speeds.rev().max_by(|(_, a), (_, b)| a.total_cmp(b));
        let Some((length, speed)) = best else { return 0 };
        // Now and then, a round without a draft measures the speed to beat.
        let lost_ns = self.estimates.plain_share().map_or(0.0, |plain_ns| plain_ns - 1.0 / speed);
        let measures_plain = self.next.shape.is_none()
            && self.since_plain >= PLAIN_EVERY
            && lost_ns <= PLAIN_SHARE * self.since_plain_ns;
        if measures_plain { 0 } else { length }
    }

    /// Returns how many tokens rounds with the drafter's next draft are expected to have in the
    /// time of a round with this number of tokens that were looked up. `None` unless the automatic
    /// mode knows. `None` for a trial, too, whose time is not known.
    #[must_use]
    pub fn tokens_in_time_of_lookup(&self, length: usize) -> Option<f64> {
        let Next { shape, is_trial, ns } = &self.next;
        let shape = shape.as_ref().filter(|_| self.length == DraftLength::Auto && !is_trial)?;
        let lookup_ns = self.estimates.pass_shares(length)?.pop()?;
        let tokens = self.tokens(&self.estimates.acceptance.outlook(self.depth()), shape);
        (*ns > 0.0 && lookup_ns > 0.0).then(|| tokens * lookup_ns / ns)
    }

    /// Learns from the measurements of a round.
    pub fn observe(&mut self, round: &Round) {
        if round.drafted > 0 && !round.looked_up {
            self.assisted = match round.accepted >= self.assisted {
                true => (self.assisted + 2).min(self.shape.length()),
                false => self.assisted.saturating_sub(1).max(1),
            };
        }
        self.observe_confidences(round);
        let last_ns = self.last_ns.replace(round.score.finished_ns);
        // A draft that had to read many tokens first does not show the drafter's usual speed. Those
        // of a lookup in its place are a part of its usual work.
        let caught_up = if round.requested { self.unread_tokens } else { 0 };
        if round.requested {
            self.unread_tokens = 0;
        } else if !(round.looked_up && self.unread_tokens == 0 && self.drafts()) {
            self.unread_tokens += round.accepted + 1;
        }
        let (sequences, now_ns) = (round.score.cost.active_sequences, round.score.finished_ns);
        if sequences > 0 && self.length == DraftLength::Auto {
            self.goodput.observe(sequences, round.accepted + 1, now_ns);
        }
        if std::mem::take(&mut self.first_round) {
            return;
        }
        let round = &self.estimates.without_interruptions(round, caught_up);
        let waited_ns = last_ns.map_or(0, |last_ns| round.waited_ns(last_ns)) as f64;
        let round_ns = self.estimates.share_of(round) + waited_ns;
        if !self.estimates.learn(round, caught_up, waited_ns) {
            return self.ledger.add_alone(round_ns);
        }
        if round.drafted > 0 {
            self.since_plain += 1;
            self.since_plain_ns += round_ns;
        }
        if round.looked_up {
            // The drafter neither lost nor gained time.
            self.ledger.add_alone(round_ns);
        } else if round.drafted > 0 {
            let plain_ns = self.estimates.plain_share().unwrap_or(round_ns);
            let plain_ns = (round.accepted + 1) as f64 * plain_ns;
            let catch_up_ns = caught_up as f64 * self.estimates.catch_up_ns.value_or(0.0);
            let catch_up_ns = catch_up_ns.min(round_ns);
            self.ledger.add_drafting(round_ns - catch_up_ns, plain_ns, self.next.is_trial);
            self.ledger.add_catch_up(catch_up_ns);
        } else {
            (self.since_plain, self.since_plain_ns) = (0, 0.0);
            // The target has worked alone, after a drafter that found nothing. Looking costs what
            // it took, which is next to nothing without a model.
            let draft_ns = self.estimates.draft_share_of(round).min(round_ns);
            if round.requested && draft_ns > 0.0 {
                self.ledger.add_drafting(round_ns, round_ns - draft_ns, self.next.is_trial);
            } else {
                self.ledger.add_alone(round_ns);
            }
        }
        self.next = self.decide();
    }

    /// Returns whether this round is to have a draft.
    fn drafts(&self) -> bool {
        self.length != DraftLength::Auto || self.next.shape.is_some()
    }

    /// Decides the next draft.
    fn decide(&self) -> Next {
        let none = Next::default();
        let may_draft = self.depth() > 0 && self.estimates.knows_plain();
        let plain_ns = self.estimates.plain_share().filter(|_| may_draft);
        let Some(plain_ns) = plain_ns else { return none };
        let acceptance = &self.estimates.acceptance;
        let (usual, least) = self.times();
        let at_best = self.best(&Outlook::certain(self.depth()), &least, self.reach(), None);
        let speedup_at_best = at_best.speed() * plain_ns;
        let is_hopeless = speedup_at_best <= 1.0;
        let token_ns = match is_hopeless {
            // To measure what reading costs is not worth it.
            true => self.estimates.reading_ns(),
            false => self.estimates.catch_up_ns.value_or(0.0),
        };
        let catch_up_ns = self.unread_tokens as f64 * token_ns;
        let may_catch_up = self.ledger.may_catch_up(catch_up_ns, speedup_at_best, plain_ns);

        let now = acceptance.outlook(self.depth());
        let stops = self.stops();
        let best = self.best(&now, &usual, self.longest(), stops.as_ref());
        let gain = if self.unread_tokens > 0 { MIN_GAIN } else { 1.0 };
        if best.speed() * plain_ns > gain && self.ledger.may_draft(plain_ns) {
            let measures_plain = self.since_plain >= PLAIN_EVERY
                && plain_ns - 1.0 / best.speed() <= PLAIN_SHARE * self.since_plain_ns;
            if measures_plain || !(may_catch_up || catch_up_ns < 2.0 * plain_ns) {
                return none;
            }
            let other = self.best(&now, &least, self.reach(), None);
            let is_trial = other.speed() > best.speed() * MIN_GAIN_OF_TRIAL
                && self.ledger.may_try(usual.ns(other.size) - other.ns, plain_ns);
            if is_trial {
                return self.trial(other);
            }
            let rule = stops.map(|stops| self.stop_rule(&stops, best.speed(), &now, &usual));
            let shape = Some(stopping(best.shape, rule));
            return Next { ns: best.ns, shape, is_trial };
        }

        // One early trial measures the cost of catching up while there are few tokens to read.
        if !self.estimates.catch_up_ns.is_known()
            && self.estimates.draft.is_known()
            && !is_hopeless
            && CATCH_UP_SAMPLE.contains(&self.unread_tokens)
        {
            let shortest = self.best(&now, &usual, self.shortest(), None);
            return self.trial(shortest);
        }
        let if_easy = acceptance.outlook_if_easy(self.depth());
        let trial = self.best(&if_easy, &least, self.reach(), None);
        let hopeless = if is_hopeless { HOPELESS } else { 1.0 };
        let lost_ns = usual.ns(trial.size) - self.tokens(&now, &trial.shape) * plain_ns;
        let is_trial = may_catch_up && self.ledger.may_try(hopeless * lost_ns.max(0.0), plain_ns);
        if is_trial { self.trial(trial) } else { none }
    }

    /// Returns a draft as a trial. It does not stop early, because it is about what the estimates
    /// do not know.
    fn trial(&self, choice: Choice) -> Next {
        let rule = self.useful_confidence().map(|_| StopRule::NEVER);
        Next { ns: choice.ns, shape: Some(stopping(choice.shape, rule)), is_trial: true }
    }

    /// Returns how often chains go on, if they stop by the drafter's confidence.
    fn stops(&self) -> Option<Stops<'_>> {
        self.useful_confidence().map(Confidence::stops)
    }

    fn useful_confidence(&self) -> Option<&Confidence> {
        self.confidence.as_ref().filter(|confidence| self.may_stop && confidence.is_useful())
    }

    /// Returns the rule by which a chain stops if drafting has so many tokens per nanosecond.
    fn stop_rule(
        &self,
        stops: &Stops<'_>,
        speed: f64,
        now: &Outlook,
        times: &RoundTimes<'_>,
    ) -> StopRule {
        let longest = self.shape.length();
        // What a further token costs after a typical chain.
        let typical = stops.mean_length(longest).round().max(2.0) as usize;
        let ns = |length: usize| times.ns(DraftSize::of_chain(length.min(longest)));
        let token_ns = (ns(typical) - ns(1)) / (typical - 1) as f64;
        let first = now.survival(1).last().copied().unwrap_or(1.0);
        stops.rule(token_ns * speed, first)
    }

    /// Learns from the drafter's confidences.
    fn observe_confidences(&mut self, round: &Round) {
        let (Some(confidence), Some(DraftShape::ConfidentChain { length, stop })) =
            (&mut self.confidence, &self.next.shape)
        else {
            return;
        };
        if round.requested && round.drafted > 0 && !round.looked_up {
            let Round { confidences, accepted, rejected, .. } = round;
            let rule = (!self.next.is_trial).then_some(*stop);
            confidence.observe((*length, rule), confidences, *accepted, *rejected);
        }
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
            DraftLength::Auto if self.is_chain() || self.grows_trees() => 1,
            // Another tree is drafted as a whole or not at all.
            DraftLength::Auto => self.shape.length(),
        }
    }

    /// Returns the longest draft. The first one measures the drafter's speed.
    fn longest(&self) -> usize {
        let knows_drafter = self.estimates.draft.is_known() || self.estimates.in_one_forward;
        match self.trees {
            _ if !knows_drafter || self.length != DraftLength::Auto => self.shortest(),
            // The cost of many more rows than were tried is not known.
            Some(_) => self.reach(),
            None => self.shape.length(),
        }
    }

    /// Returns the longest draft of a trial: at most about twice as many rows as were tried,
    /// because the cost of more is not known.
    fn reach(&self) -> usize {
        let reach = 2 * self.estimates.rows.largest() + 1;
        let most = self.trees.map_or(self.shape.length(), |trees| trees.nodes);
        reach.min(most).max(self.shortest())
    }

    fn is_chain(&self) -> bool {
        matches!(self.shape, DraftShape::Chain { .. })
    }

    /// Returns the usual times of rounds, and the least that are possible.
    fn times(&self) -> (RoundTimes<'_>, RoundTimes<'_>) {
        let longest = match self.trees {
            Some(trees) => trees.nodes.max(trees.depth),
            None if self.is_chain() => self.shape.length(),
            None => self.estimates.nodes_or(self.shape.max_nodes()),
        };
        // One length does not show what further tokens cost: the job itself may take most of the
        // time. To try that is cheap while there is nothing to read first.
        let is_flat = self.estimates.draft.has_one_point() && self.unread_tokens == 0;
        (self.estimates.times(longest), self.estimates.times_at_best(longest, is_flat))
    }

    /// Returns the expected tokens of a round with a draft.
    fn tokens(&self, outlook: &Outlook, shape: &DraftShape) -> f64 {
        match shape {
            DraftShape::Ranked { children } if self.grows_trees() => {
                outlook.tokens_of_ranked(children)
            }
            DraftShape::ConfidentChain { length, stop } if *stop != StopRule::NEVER => {
                let survival = outlook.survival(*length);
                let stopping = self.stops().map(|stops| stops.survival(&survival));
                rounds::tokens_of_round(&stopping.unwrap_or(survival), *length)
            }
            _ => rounds::tokens_of_round(&outlook.survival(shape.depth()), shape.depth()),
        }
    }

    /// Returns the draft with the most tokens per nanosecond, of those up to `longest`. `stops`:
    /// how often chains go on.
    fn best(
        &self,
        outlook: &Outlook,
        times: &RoundTimes<'_>,
        longest: usize,
        stops: Option<&Stops<'_>>,
    ) -> Choice {
        if let Some(trees) = self.trees {
            let limits = TreeLimits { nodes: longest, ..trees };
            let least = if self.estimates.in_one_forward { limits.depth } else { 1 };
            let grown = fastest_tree(outlook, limits, least..=limits.depth, |size| times.ns(size));
            let shape = DraftShape::Ranked { children: grown.children };
            return Choice { shape, size: grown.size, tokens: grown.tokens, ns: grown.ns };
        }
        let (whole, survival) = (self.shape.depth(), outlook.survival(self.shape.depth()));
        let is_chain = self.is_chain();
        let chain_ns = |length: usize| times.ns(DraftSize::of_chain(length));
        let (survival, stopping_ns) = match stops.filter(|_| is_chain) {
            Some(stops) => (stops.survival(&survival), stops.mean_ns(longest, chain_ns)),
            None => (survival, Vec::new()),
        };
        let choices = (self.shortest()..=longest).map(|length| {
            let nodes =
                if is_chain { length } else { self.estimates.nodes_or(self.shape.max_nodes()) };
            let size = DraftSize::of_chain(nodes);
            let tokens = rounds::tokens_of_round(&survival, if is_chain { length } else { whole });
            let ns = stopping_ns.get(length.wrapping_sub(1)).copied();
            (length, size, tokens, ns.unwrap_or_else(|| times.ns(size)))
        });
        let first = (0, DraftSize::default(), 0.0, f64::INFINITY);
        let best = choices.fold(
            first,
            |best, next| {
                if next.2 / next.3 > best.2 / best.3 { next } else { best }
            },
        );
        let (length, size, tokens, ns) = best;
        Choice { shape: self.shape.with_draft_tokens(length), size, tokens, ns }
    }
}

/// Returns a chain that stops by a rule, if there is one. Other shapes stay as they are.
fn stopping(shape: DraftShape, rule: Option<StopRule>) -> DraftShape {
    match (shape, rule) {
        (DraftShape::Chain { length }, Some(stop)) => DraftShape::ConfidentChain { length, stop },
        (shape, _) => shape,
    }
}

impl Choice {
    /// Returns the expected tokens per nanosecond.
    fn speed(&self) -> f64 {
        self.tokens / self.ns
    }
}

impl Policy for SpeculativeDraftLength {
    fn knowledge(&self) -> Knowledge {
        self.estimates.knowledge(self.unread_tokens)
    }

    fn adopt(&mut self, known: &Knowledge) {
        self.estimates.adopt(known);
        self.unread_tokens = known.unread_tokens;
    }

    fn start(&mut self, _known: &Knowledge, others_ns: f64) {
        (self.first_round, self.last_ns) = (false, None);
        self.ledger.add_alone(others_ns);
        self.next = self.decide();
    }

    fn forecast(&self, _missed: usize) -> Option<Forecast> {
        let plain_ns = self.estimates.plain_share().filter(|_| self.estimates.draft.is_known())?;
        let (usual, _) = self.times();
        let outlook = self.estimates.acceptance.outlook(self.depth());
        let speed = self.best(&outlook, &usual, self.longest(), self.stops().as_ref()).speed();
        let reading_ns = self.unread_tokens as f64 * self.estimates.reading_ns();
        Some(Forecast::new(self.length, speed, plain_ns, reading_ns))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::estimates::JobTime;
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
                ranked: None,
                confidences: Vec::new(),
                requested,
                drafted,
                looked_up: false,
                accepted,
                rejected: drafted > 0 && accepted < shape.depth(),
                draft: JobTime::alone(
                    match draft_length.estimates.in_one_forward {
                        _ if drafted == 0 => pair.empty_ns * u64::from(requested),
                        true => pair.draft_ns,
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

    /// A drafter that looks at its own confidence may find nothing worth a row, for the price of a
    /// forward.
    #[test]
    fn a_drafter_that_takes_time_and_finds_nothing_is_paused() {
        for (in_one_forward, empty_ns) in [(true, 500), (false, 500), (true, 30)] {
            let pair = SimulatedPair { empty_ns, finds: usize::MAX, ..PAIR };
            let policy = chain(DraftLength::Auto);
            let mut policy = if in_one_forward { policy.in_one_forward() } else { policy };
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
                looked_up: false,
                accepted: accepted.len(),
                rejected,
                confidences: Vec::new(),
                draft: JobTime::alone(30 * tree.max_depth() as u64),
                score: JobTime::alone(1_000 + row_ns * tree.len() as u64),
                ranked: Some(RankedRound::new(&tree, &shape, &accepted, rejected)),
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
        let (children, speed) = run_second(&mut grown(8, 40), 3_000, 5);
        assert!(children.iter().all(|&count| count <= 2) && children[0] == 2, "{children:?}");
        assert!(children.iter().filter(|&&count| count == 2).count() > 4, "{children:?}");
        assert!(speed > 2.5, "{speed}");
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
            let times = |policy: &SpeculativeDraftLength| policy.estimates.draft.up_to(16);
            for (found, expected) in times(&mixed).iter().zip(times(&without)) {
                assert!((found - expected).abs() < 1.0, "{found} ns, {expected} ns");
            }
            let first = mixed.estimates.acceptance.survival(5);
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
        let pair = SimulatedPair { agreement: 9, draft_ns: 100, ..PAIR };
        run(&mut policy, 300, &pair);
        let with = |next: Next| SpeculativeDraftLength { next, ..policy.clone() };
        let of_length = |length, ns, is_trial| {
            with(Next { shape: Some(DraftShape::Chain { length }), is_trial, ns })
        };
        let tokens = |length, ns, looked_up| {
            of_length(length, ns, false).tokens_in_time_of_lookup(looked_up).unwrap()
        };
        // Most tokens are right, and a longer lookup takes longer.
        let pass_ns = policy.estimates.pass_shares(12).unwrap();
        assert!((1.5..=2.0).contains(&tokens(1, pass_ns[3], 3)), "{}", tokens(1, pass_ns[3], 3));
        assert!(tokens(8, pass_ns[3], 3) > 4.0);
        assert!(tokens(1, pass_ns[3], 12) > tokens(1, pass_ns[3], 3));
        // A draft takes time, and a lookup none.
        assert!(tokens(1, 2.0 * pass_ns[3], 3) <= 1.0);
        // The time of a trial is not known, and other modes must not know.
        assert_eq!(of_length(1, pass_ns[3], true).tokens_in_time_of_lookup(3), None);
        assert_eq!(with(Next::default()).tokens_in_time_of_lookup(3), None);
        let fixed =
            SpeculativeDraftLength { length: DraftLength::Fixed, ..of_length(1, 1.0, false) };
        assert_eq!(fixed.tokens_in_time_of_lookup(3), None);
    }

    #[test]
    fn estimates_carry_over_to_the_next_answer() {
        let mut draft_length = chain(DraftLength::Auto);
        run(&mut draft_length, 100, &SimulatedPair { agreement: 5, ..PAIR });
        let next = draft_length.for_new_answer(10);
        assert!(next.next_shape().depth() >= 4);
    }
}
