//! What a method may do next, and what that is expected to bring.

use crate::acceptance::Acceptance;
use crate::confidence::Confidence;
use crate::costs::{DrafterCosts, TargetCosts};
use crate::outlook::Outlook;
use crate::{dsi::Pipeline, pearl::Parallel, speculative::Rounds};
use forerun_core::DraftShape;

/// The number of tokens after a rejection that methods which draft ahead look ahead. Nine of ten
/// chains end before, if 0.95 of the tokens are accepted.
pub(crate) const HORIZON: usize = 48;

/// The number of tokens that methods which draft ahead draft before any times are known: few, and
/// enough to show what rows cost.
pub(crate) const FIRST_LENGTH: usize = 3;

/// Of drafts that are about as fast, within this factor, one is taken that is better in ways that
/// the estimates do not know. They are not exact to a thousandth.
pub(crate) const ABOUT_AS_FAST: f64 = 1.001;

/// A method with its options. Each has a closed form: the tokens and the time of a *cycle*, from one
/// rejection to the next, or of a round.
#[derive(Clone, Debug)]
pub(crate) enum Schedule {
    Rounds(Rounds),
    Parallel(Parallel),
    Pipeline(Pipeline),
}

/// What is known of a drafter.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drafter {
    /// The numbers of its model and of its device. Drafters with one model share what is known of
    /// acceptance.
    pub(crate) model: usize,
    pub(crate) place: usize,
    /// The number of tokens since it was last tested.
    pub(crate) untested: usize,
    pub(crate) costs: DrafterCosts,
    pub(crate) acceptance: Acceptance,
    pub(crate) confidence: Confidence,
}

/// What is known of a target and a drafter.
#[derive(Clone, Copy)]
pub(crate) struct Facts<'a> {
    pub(crate) target: &'a TargetCosts,
    pub(crate) drafter: &'a Drafter,
}

/// What to take for granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assumption {
    /// What the estimates say.
    Usual,
    /// That, but numbers of rows and tokens that were not tried cost no more than fewer ones.
    Cheap,
    /// That, and the text is in an easy stretch.
    Easy,
    /// That, and the drafter is always right.
    Certain,
}

/// What to draft.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Drafting {
    /// Before the next pass, in this shape.
    Round(DraftShape),
    /// During each pass, so many tokens (PEARL's γ); `first` of them before a pass that would have
    /// none.
    Parallel { gamma: usize, first: usize },
    /// During all passes, of which each verifies so many rows (DSI's lookahead), and up to `ahead`
    /// tokens after the committed ones.
    Pipeline { rows: usize, ahead: usize },
}

/// What to draft, with the expected tokens and time of a cycle.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) draft: Drafting,
    pub(crate) tokens: f64,
    pub(crate) ns: f64,
}

impl Candidate {
    /// Returns the expected tokens per nanosecond.
    pub(crate) fn speed(&self) -> f64 {
        self.tokens / self.ns
    }
}

impl Facts<'_> {
    /// Returns what is assumed of the next `depth` candidates, of which each job drafts `per_job`.
    pub(crate) fn outlook(&self, assume: Assumption, depth: usize, per_job: usize) -> Outlook {
        match assume {
            Assumption::Certain => Outlook::certain(depth),
            _ => self.drafter.acceptance.outlook(assume == Assumption::Easy, depth, per_job),
        }
    }

    /// Returns how many of `longest` tokens one job of a drafter that drafts ahead should make:
    /// whole forwards that arrive early, but not positions at which it fails.
    pub(crate) fn tokens_per_job(&self, longest: usize) -> usize {
        let by_times = self.drafter.costs.tokens_per_job(longest);
        let by_acceptance = self.drafter.acceptance.job_length(by_times);
        self.drafter.costs.whole_forwards(by_acceptance).min(by_times)
    }
}

impl Schedule {
    /// Returns what to draft for the most tokens per nanosecond. `current`: what is drafted now.
    pub(crate) fn best(
        &self,
        facts: Facts<'_>,
        assume: Assumption,
        current: Option<&Drafting>,
    ) -> Candidate {
        match self {
            Self::Rounds(rounds) => rounds.best(facts, assume),
            Self::Parallel(parallel) => parallel.best(facts, assume, current),
            Self::Pipeline(pipeline) => pipeline.best(facts, assume),
        }
    }

    /// Returns the expected tokens and time of a cycle with this draft.
    pub(crate) fn of(&self, facts: Facts<'_>, draft: &Drafting) -> Candidate {
        match (self, draft) {
            (Self::Rounds(rounds), Drafting::Round(shape)) => rounds.of(facts, shape),
            (Self::Parallel(parallel), &Drafting::Parallel { gamma, first }) => {
                parallel.of(facts, gamma, first)
            }
            (Self::Pipeline(pipeline), &Drafting::Pipeline { rows, .. }) => {
                pipeline.of(facts, rows)
            }
            // A draft is that of its own schedule.
            _ => self.best(facts, Assumption::Usual, None),
        }
    }

    /// Returns the time of a cycle with this draft in which so many tokens are accepted; 0 if it is
    /// another schedule's.
    pub(crate) fn cycle_ns(&self, facts: Facts<'_>, draft: &Drafting, accepted: usize) -> f64 {
        match (self, draft) {
            (Self::Parallel(parallel), &Drafting::Parallel { gamma, first }) => {
                parallel.cycle_ns(facts, (gamma, first), accepted)
            }
            (Self::Pipeline(pipeline), &Drafting::Pipeline { rows, .. }) => {
                pipeline.cycle_ns(facts, rows, accepted)
            }
            _ => 0.0,
        }
    }

    /// Returns whether what it drafts follows what is learned. Otherwise it always drafts.
    pub(crate) fn adapts(&self) -> bool {
        match self {
            Self::Rounds(rounds) => rounds.adapts(),
            Self::Parallel(parallel) => parallel.adapts(),
            Self::Pipeline(pipeline) => pipeline.adapts(),
        }
    }

    /// Returns whether a step verifies a whole draft, so that the next one may do something else
    /// without a loss.
    pub(crate) fn is_in_rounds(&self) -> bool {
        matches!(self, Self::Rounds(_))
    }

    /// Returns the time in which the drafter, and replicas, read what they have missed before this
    /// works at its usual speed, as far as the target waits for it. `guess`: whether to guess what
    /// was not measured; otherwise it counts as nothing.
    pub(crate) fn start_ns(&self, facts: Facts<'_>, guess: bool) -> f64 {
        let costs = &facts.drafter.costs;
        let is_known = costs.knows_reading() || costs.is_slow_by_size() || guess;
        let drafter_ns = if is_known { costs.lag_ns() } else { 0.0 };
        let slowed = 1.0 - 1.0 / facts.target.slowdown();
        let plain_ns = facts.target.plain_ns();
        match self {
            Self::Rounds(_) => drafter_ns,
            // A pass goes on meanwhile.
            Self::Parallel(_) => drafter_ns - (1.0 - slowed) * plain_ns.min(drafter_ns),
            Self::Pipeline(pipeline) => {
                let lag = if pipeline.has_replicas() { costs.lag as f64 } else { 0.0 };
                slowed * (drafter_ns + lag * facts.target.reading_ns())
            }
        }
    }
}
