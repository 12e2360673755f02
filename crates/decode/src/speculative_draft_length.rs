//! How much to draft: as asked, or as measured times and acceptance advise.

use crate::estimates::{AcceptanceEstimate, Mean};
use forerun_core::DraftShape;

/// How many tokens are drafted a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftLength {
    /// Always the whole shape.
    Fixed,
    /// As many as pay (for a chain, up to its length), none where drafting does not pay.
    Auto,
    /// Two more where all of them were accepted, else one less (assisted generation, as Hugging Face's
    /// transformers schedules it).
    Assisted,
}

/// Decides the shape of the next draft.
///
/// The automatic mode compares the time of drafting rounds with that of plain ones, by estimates in
/// which old rounds fade. It drafts while that pays. Where it does not, drafting is tried again now
/// and then, in case the text has become easier: whenever the time lost by drafting so far and the
/// expected cost of another trial, catching up included, stay within three hundredths of all time.
/// So a hopeless drafter costs about that much, however slow it is.
#[derive(Clone, Debug)]
pub struct SpeculativeDraftLength {
    shape: DraftShape,
    length: DraftLength,
    estimates: Estimates,
    phase: Phase,
    /// The present answer's first round, which computes the prompt, is still to come.
    first_round: bool,
    /// Tokens that the drafter has not seen, since it was not asked for a while.
    missed: usize,
    /// Rounds since the last one without a draft.
    since_plain: u32,
    elapsed_ns: f64,
    /// Time by which drafting rounds were slower than plain ones, less what they have won since.
    lost_ns: f64,
    /// Time lost by the present or the last trial.
    trial_ns: f64,
    /// Where assisted generation is at.
    assisted: usize,
    /// Whether the drafter makes all positions in one forward, so that more of them cost it nothing.
    in_one_forward: bool,
}

/// What one round measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Round {
    /// Whether a draft was asked for.
    pub(crate) asked: bool,
    /// Tokens drafted.
    pub(crate) drafted: usize,
    /// Tokens of the draft that were committed.
    pub(crate) accepted: usize,
    pub(crate) rejected: bool,
    pub(crate) draft_ns: u64,
    pub(crate) score_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Plain rounds, to learn what a draft has to beat.
    Plain,
    /// Drafting to learn, this many rounds more.
    Trial(u32),
    /// Drafting because it pays.
    Drafting,
    /// Not drafting because it does not.
    Pause,
}

/// Drafting rounds of a trial, at the most.
const TRIAL_ROUNDS: u32 = 6;
/// Length of a trial's chain while nothing is known.
const TRIAL_LENGTH: usize = 3;
/// Tokens with which assisted generation begins.
const FIRST_ASSISTED: usize = 5;
/// Share of all time that trials may lose.
const TRIAL_SHARE: f64 = 0.03;
/// Missed tokens that are few, but enough to measure.
const CATCH_UP_SAMPLE: std::ops::Range<usize> = 8..32;
/// Drafting rounds after which a plain one shows anew what drafting has to beat.
const PLAIN_EVERY: u32 = 64;

impl SpeculativeDraftLength {
    /// A controller that drafts in `shape`.
    #[must_use]
    pub fn new(shape: DraftShape, length: DraftLength) -> Self {
        Self {
            shape,
            length,
            estimates: Estimates::default(),
            phase: Phase::Plain,
            first_round: true,
            missed: 0,
            since_plain: 0,
            elapsed_ns: 0.0,
            lost_ns: 0.0,
            trial_ns: 0.0,
            assisted: FIRST_ASSISTED,
            in_one_forward: false,
        }
    }

    /// The same for a drafter that makes all positions in one forward.
    #[must_use]
    pub fn in_one_forward(self) -> Self {
        Self { in_one_forward: true, ..self }
    }

    /// The same with all that it has learned, for a new answer.
    #[must_use]
    pub fn for_new_answer(&self, prompt_tokens: usize) -> Self {
        Self { first_round: true, missed: prompt_tokens, ..self.clone() }
    }

    /// The shape of the next round's draft; its depth is 0 if none should be made.
    #[must_use]
    pub fn next_shape(&self) -> DraftShape {
        let chain = matches!(self.shape, DraftShape::Chain { .. });
        let length = match (self.length, self.phase) {
            (DraftLength::Fixed, _) => self.shape.length(),
            (DraftLength::Assisted, _) => self.assisted,
            (DraftLength::Auto, Phase::Plain | Phase::Pause) => 0,
            (DraftLength::Auto, Phase::Trial(_)) if chain => {
                self.best_length(true).max(TRIAL_LENGTH)
            }
            (DraftLength::Auto, Phase::Trial(_)) => self.shape.length(),
            (DraftLength::Auto, Phase::Drafting) if self.since_plain >= PLAIN_EVERY => 0,
            (DraftLength::Auto, Phase::Drafting) => self.best_length(false),
        };
        self.shape.with_draft_tokens(length)
    }

    /// Learns from a round.
    pub(crate) fn observe(&mut self, round: &Round) {
        if round.drafted > 0 {
            self.assisted = match round.accepted >= self.assisted {
                true => (self.assisted + 2).min(self.shape.length()),
                false => self.assisted.saturating_sub(1).max(1),
            };
        }
        let round_ns = (round.draft_ns + round.score_ns) as f64;
        self.elapsed_ns += round_ns;
        // Catching up with tokens that it missed says nothing of a drafter's usual speed.
        let caught_up = if round.asked { self.missed } else { 0 };
        self.missed = if round.asked { 0 } else { self.missed + round.accepted + 1 };
        if std::mem::take(&mut self.first_round) {
            return;
        }
        self.estimates.learn(round, caught_up);
        if round.drafted > 0 {
            self.since_plain += 1;
            let lost =
                round_ns - (round.accepted + 1) as f64 * self.estimates.plain_ns.or(round_ns);
            self.lost_ns = (self.lost_ns + lost).max(0.0);
            self.trial_ns += lost;
        } else {
            self.since_plain = 0;
        }
        // A round whose draft was empty tells nothing about drafting.
        if round.drafted > 0 || !round.asked {
            self.turn(round.drafted > 0 && caught_up == 0);
        }
    }

    /// Goes on to the next phase where the present one is over.
    fn turn(&mut self, measured: bool) {
        let hopeless = measured && self.best_length(true) == 0;
        self.phase = match self.phase {
            Phase::Plain if self.estimates.plain_ns.is_known() => self.start_trial(),
            Phase::Trial(_) if hopeless => Phase::Pause,
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
        // What is known of an easier or a harder text must not decide alone.
        self.estimates.forget_most();
        Phase::Trial(TRIAL_ROUNDS)
    }

    /// Whether another trial stays within its share of the time.
    fn may_try(&self) -> bool {
        // One early trial shows what catching up costs, while there is little to catch up with.
        if !self.estimates.catch_up_ns.is_known() && CATCH_UP_SAMPLE.contains(&self.missed) {
            return true;
        }
        let catch_up_ns = self.missed as f64 * self.estimates.catch_up_ns.or(0.0);
        let cost_ns = self.trial_ns.max(catch_up_ns);
        self.lost_ns + cost_ns <= TRIAL_SHARE * self.elapsed_ns
    }

    /// The length of the most tokens a second by the present estimates, or by the best that they
    /// allow; 0 is plain decoding.
    fn best_length(&self, optimistic: bool) -> usize {
        let length = self.shape.length();
        let lengths = match self.shape {
            DraftShape::Chain { .. } => 1..=length,
            // Of a tree there is all or nothing.
            _ => length..=length,
        };
        let plain = 1.0 / self.estimates.plain_ns.or(1.0);
        let speeds = lengths.map(|length| (length, self.speed(length, optimistic)));
        speeds.fold((0, plain), |best, next| if next.1 > best.1 { next } else { best }).0
    }

    /// Expected tokens a nanosecond with drafts of this length.
    fn speed(&self, length: usize, optimistic: bool) -> f64 {
        let estimates = &self.estimates;
        let is_chain = matches!(self.shape, DraftShape::Chain { .. });
        let (tokens, nodes) = if is_chain {
            // Leviathan 2023, equation 1.
            let doubt = if optimistic { 2.0 } else { 0.0 };
            let acceptance = estimates.acceptance.rate(doubt).min(0.999);
            ((1.0 - acceptance.powi(length as i32 + 1)) / (1.0 - acceptance), length as f64)
        } else {
            let best = self.shape.depth() as f64 + 1.0;
            let tokens = estimates.tokens.or(best);
            let nodes = estimates.nodes.or(self.shape.max_nodes() as f64);
            (if optimistic { best.min(tokens + 1.0) } else { tokens }, nodes)
        };
        let draft_ns = match self.in_one_forward {
            true => estimates.draft_ns.or(0.0),
            false => nodes * estimates.node_ns.or(0.0),
        };
        let score_ns = estimates.plain_ns.or(1.0) + nodes * estimates.row_ns.or(0.0);
        tokens / (draft_ns + score_ns)
    }
}

/// What is known of times and acceptance.
#[derive(Clone, Debug, Default)]
struct Estimates {
    /// A round without a draft.
    plain_ns: Mean,
    /// What each row more adds to a target forward.
    row_ns: Mean,
    /// Drafting a node.
    node_ns: Mean,
    /// A draft as a whole.
    draft_ns: Mean,
    /// Catching up with a token, where the drafter was not asked for a while.
    catch_up_ns: Mean,
    /// Nodes of a draft.
    nodes: Mean,
    /// Tokens committed by a round with a draft.
    tokens: Mean,
    acceptance: AcceptanceEstimate,
}

impl Estimates {
    fn learn(&mut self, round: &Round, caught_up: usize) {
        let (draft_ns, score_ns) = (round.draft_ns as f64, round.score_ns as f64);
        if round.drafted == 0 {
            self.plain_ns.add(score_ns);
            return;
        }
        let nodes = round.drafted as f64;
        if caught_up == 0 {
            self.node_ns.add(draft_ns / nodes);
            self.draft_ns.add(draft_ns);
        } else if self.node_ns.is_known() {
            let usual_ns = nodes * self.node_ns.or(0.0);
            self.catch_up_ns.add((draft_ns - usual_ns).max(0.0) / caught_up as f64);
        }
        if self.plain_ns.is_known() {
            self.row_ns.add(((score_ns - self.plain_ns.or(0.0)) / nodes).max(0.0));
        }
        self.nodes.add(nodes);
        self.tokens.add((round.accepted + 1) as f64);
        self.acceptance.add(round.accepted, round.rejected);
    }

    fn forget_most(&mut self) {
        self.acceptance.forget_most();
        self.tokens = Mean::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pair of models as the controller sees it: every draft is right up to `agreement` tokens.
    struct World {
        agreement: usize,
        draft_ns: u64,
        /// Times of a forward with one row, and of each row more.
        score_ns: (u64, u64),
        catch_up_ns: u64,
        /// Every how many rounds a lookup finds something.
        finds: usize,
    }

    const WORLD: World =
        World { agreement: 0, draft_ns: 100, score_ns: (1_000, 20), catch_up_ns: 0, finds: 1 };

    /// What a run of rounds came to: depths, and tokens a nanosecond over plain decoding's.
    fn run(
        draft_length: &mut SpeculativeDraftLength,
        rounds: usize,
        world: &World,
    ) -> (Vec<usize>, f64) {
        let (mut depths, mut time, mut tokens, mut missed) = (Vec::new(), 0, 0, 0);
        for number in 0..rounds {
            let shape = draft_length.next_shape();
            let asked = shape.depth() > 0;
            let drafted = if number % world.finds == 0 { shape.max_nodes() } else { 0 };
            let accepted = world.agreement.min(shape.depth()).min(drafted);
            missed = if asked { missed } else { missed + 1 };
            let catch_up = if asked { std::mem::take(&mut missed) * world.catch_up_ns } else { 0 };
            let round = Round {
                asked,
                drafted,
                accepted,
                rejected: drafted > 0 && accepted < shape.depth(),
                draft_ns: match draft_length.in_one_forward {
                    true => world.draft_ns * u64::from(drafted > 0),
                    false => world.draft_ns * drafted as u64,
                } + catch_up,
                score_ns: world.score_ns.0 + world.score_ns.1 * drafted as u64,
            };
            draft_length.observe(&round);
            depths.push(shape.depth());
            time += round.draft_ns + round.score_ns;
            tokens += accepted as u64 + 1;
        }
        (depths, (tokens * world.score_ns.0) as f64 / time as f64)
    }

    fn chain(length: DraftLength) -> SpeculativeDraftLength {
        SpeculativeDraftLength::new(DraftShape::Chain { length: 16 }, length)
    }

    #[test]
    fn a_fixed_length_never_changes() {
        let (depths, _) = run(&mut chain(DraftLength::Fixed), 50, &WORLD);
        assert_eq!(depths, vec![16; 50]);
    }

    #[test]
    fn a_good_drafter_is_given_rope_and_kept() {
        let world = World { agreement: 16, draft_ns: 50, ..WORLD };
        let mut draft_length = chain(DraftLength::Auto);
        let (depths, _) = run(&mut draft_length, 3_000, &world);
        assert_eq!(depths[..2], [0, 0]);
        let plain = depths[100..].iter().filter(|&&depth| depth == 0).count();
        assert!(plain <= 50, "{plain} plain rounds of 2,900");
        assert!(depths[100..].iter().all(|&depth| depth == 0 || depth >= 12));
        assert!(run(&mut draft_length, 1_000, &world).1 > 7.0);
    }

    #[test]
    fn a_hopeless_drafter_costs_little_however_slow_it_is() {
        for draft_ns in [200, 1_000, 10_000] {
            for catch_up_ns in [0, 300, 1_000] {
                let world = World { draft_ns, catch_up_ns, ..WORLD };
                let mut draft_length = chain(DraftLength::Auto);
                run(&mut draft_length, 200, &world);
                let (_, speed) = run(&mut draft_length, 5_000, &world);
                assert!(speed > 0.95, "{draft_ns}, {catch_up_ns}: {speed}");
            }
        }
    }

    #[test]
    fn a_drafter_that_becomes_good_is_taken_back() {
        for catch_up_ns in [0, 10, 20] {
            let mut draft_length = chain(DraftLength::Auto);
            run(&mut draft_length, 3_000, &World { catch_up_ns, ..WORLD });
            run(&mut draft_length, 3_000, &World { agreement: 5, catch_up_ns, ..WORLD });
            let easy = World { agreement: 5, catch_up_ns, ..WORLD };
            let (depths, speed) = run(&mut draft_length, 1_000, &easy);
            assert!(speed > 2.0, "{catch_up_ns}: {speed}, {:?}", &depths[..50]);
        }
    }

    #[test]
    fn rounds_in_which_nothing_is_found_decide_nothing() {
        let world = World { agreement: 8, draft_ns: 0, finds: 20, ..WORLD };
        let (depths, _) = run(&mut chain(DraftLength::Auto), 2_000, &world);
        let asked = depths.iter().filter(|&&depth| depth > 0).count();
        assert!(asked > 1_900, "asked {asked} times of 2,000");
    }

    /// What costs the drafter nothing more is drafted as far as it is of use.
    #[test]
    fn a_drafter_that_makes_all_at_once_is_asked_for_more() {
        let depth = |mut draft_length: SpeculativeDraftLength| {
            let world = World { agreement: 4, draft_ns: 300, score_ns: (1_000, 1), ..WORLD };
            let (depths, _) = run(&mut draft_length, 300, &world);
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
        let (depths, _) = run(&mut draft_length, 8, &World { agreement: 99, ..WORLD });
        assert_eq!(depths, [5, 7, 9, 11, 13, 15, 16, 16], "up to the chain's length");
        let (depths, _) = run(&mut draft_length, 17, &World { agreement: 2, ..WORLD });
        assert_eq!(depths, [16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 4, 3]);
        let (depths, _) = run(&mut draft_length, 3, &World { agreement: 0, ..WORLD });
        assert_eq!(depths, [2, 1, 1]);
    }

    #[test]
    fn a_tree_is_drafted_whole_or_not_at_all() {
        let shape = DraftShape::Top { width: 2, depth: 3, budget: None };
        let bad = World { draft_ns: 700, ..WORLD };
        let mut draft_length = SpeculativeDraftLength::new(shape.clone(), DraftLength::Auto);
        let (depths, speed) = run(&mut draft_length, 3_000, &bad);
        assert!(depths.iter().all(|&depth| depth == 0 || depth == 3));
        assert!(speed > 0.95, "{speed}");
        let mut draft_length = SpeculativeDraftLength::new(shape, DraftLength::Auto);
        let (_, speed) = run(&mut draft_length, 1_000, &World { agreement: 3, ..WORLD });
        assert!(speed > 2.0, "{speed}");
    }

    #[test]
    fn what_was_learned_serves_the_next_answer() {
        let mut draft_length = chain(DraftLength::Auto);
        run(&mut draft_length, 100, &World { agreement: 5, ..WORLD });
        let next = draft_length.for_new_answer(10);
        assert!(next.next_shape().depth() >= 4);
    }
}
