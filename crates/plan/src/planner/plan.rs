//! What the planner decides, and why.

use crate::schedule::Candidate;

/// What to do next, and why.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    /// The schedule, and what it drafts; `None` for the target alone.
    pub(crate) action: Option<(usize, Candidate)>,
    pub(super) reason: Reason,
    /// The number of further steps for which nothing is decided, or a trial goes on.
    pub(super) steps: u32,
    /// The time of a token otherwise, if this is a trial, and the time that it has lost.
    pub(super) rival_ns: f64,
    pub(super) lost_ns: f64,
    /// Whether a draft has arrived. A trial that drafts ahead lasts for some steps after that.
    pub(super) has_begun: bool,
}

/// Why the planner drafts, or does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reason {
    #[default]
    TargetIsFaster,
    Fastest,
    Trial,
    MeasuresTarget,
    HasLost,
    ReadingCosts,
}

impl Reason {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::TargetIsFaster => "no draft is expected to be faster than the target alone",
            Self::Fastest => "drafting is expected to be the fastest",
            Self::Trial => "it is tried whether this is faster",
            Self::MeasuresTarget => "the speed of the target alone is measured",
            Self::HasLost => "drafting has lost more time than it may",
            Self::ReadingCosts => "the drafter would have to read for too long",
        }
    }
}

impl Plan {
    /// Drafts what is expected to be the fastest.
    pub(super) fn draft(entry: usize, candidate: Candidate) -> Self {
        Self { action: Some((entry, candidate)), reason: Reason::Fastest, ..Self::default() }
    }

    /// Has the target work alone.
    pub(super) fn alone(reason: Reason) -> Self {
        Self { reason, ..Self::default() }
    }

    /// Measures the target alone for so many steps.
    pub(super) fn measure(steps: u32) -> Self {
        Self { reason: Reason::MeasuresTarget, steps: steps - 1, ..Self::default() }
    }

    /// Returns what a schedule drafts, if it is the one that does.
    pub(crate) fn of(&self, entry: usize) -> Option<&Candidate> {
        self.action.as_ref().filter(|(at, _)| *at == entry).map(|(_, candidate)| candidate)
    }

    /// Returns the schedule that drafts.
    pub(super) fn entry(&self) -> Option<usize> {
        self.action.as_ref().map(|(entry, _)| *entry)
    }

    pub(crate) fn is_trial(&self) -> bool {
        self.reason == Reason::Trial
    }
}
