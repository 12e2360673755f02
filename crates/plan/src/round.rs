//! The measurements of a round of draft-then-verify.

use crate::acceptance::Tested;
use crate::batch_costs::JobTime;
use crate::ranked_tree::DraftSize;
use forerun_core::{DraftShape, Node, TokenTree};

/// The measurements of one round.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Whether a draft was requested.
    pub requested: bool,
    /// The number of drafted tokens.
    pub drafted: usize,
    /// Whether the draft was looked up in earlier text. It took no time then, and shows nothing of
    /// the drafter.
    pub looked_up: bool,
    /// The number of draft tokens that were committed.
    pub accepted: usize,
    /// Whether a draft token was rejected.
    pub rejected: bool,
    /// The drafter's confidence in each token of a chain, if it knows.
    pub confidences: Vec<f32>,
    /// The time of the draft job, if there was one.
    pub draft: JobTime,
    /// The time of the score job.
    pub score: JobTime,
    /// When the round ended, on the cluster's clock, for traces. Nothing is decided by it.
    pub ended_ns: u64,
    /// The verdict on a tree of ranked candidates, if it was one.
    pub ranked: Option<RankedRound>,
}

/// A verdict on a tree of ranked candidates.
#[derive(Clone, Debug)]
pub struct RankedRound {
    size: DraftSize,
    pub(crate) tested: Vec<Tested>,
}

impl RankedRound {
    /// Creates the verdict on a tree in a shape: the accepted path, and whether all candidates
    /// after it were rejected.
    #[must_use]
    pub fn new(tree: &TokenTree, shape: &DraftShape, accepted: &[Node], rejected: bool) -> Self {
        let children: &[usize] = match shape {
            DraftShape::Ranked { children } => children,
            _ => &[],
        };
        let parents = [None].into_iter().chain(accepted.iter().copied().map(Some));
        let next = accepted.iter().copied().map(Some).chain(rejected.then_some(None));
        let mut row = 0;
        let tests = parents.zip(next).map(|(parent, accepted)| {
            let siblings = || tree.children(parent);
            let requested = children.get(row).map_or(0, |&count| count).max(siblings().count());
            let accepted = accepted.and_then(|node| siblings().position(|sibling| sibling == node));
            if let Some(rank) = accepted {
                row = 1 + children.iter().take(row).sum::<usize>() + rank;
            }
            Tested { requested, accepted }
        });
        Self { size: DraftSize::of(tree), tested: tests.collect() }
    }
}

impl Round {
    /// Returns whether the drafter has drafted something.
    pub(crate) fn has_draft(&self) -> bool {
        self.drafted > 0 && !self.looked_up
    }

    /// Returns the size of what the drafter has made.
    pub(crate) fn draft_size(&self) -> DraftSize {
        if self.looked_up { DraftSize::default() } else { self.size() }
    }

    /// Returns the size of the draft. What is not a tree of ranked candidates counts as a chain.
    pub(crate) fn size(&self) -> DraftSize {
        self.ranked.as_ref().map_or(DraftSize::of_chain(self.drafted), |ranked| ranked.size)
    }

    /// Returns the time in which neither drafter nor target worked for a sequence without
    /// neighbours.
    pub(crate) fn waited_ns(&self, last_ns: u64) -> u64 {
        let busy_ns = self.draft.duration_ns + self.score.duration_ns;
        let round_ns = self.score.finished_ns.saturating_sub(last_ns);
        let waited_ns = round_ns.saturating_sub(busy_ns);
        // Otherwise, something else took the time.
        let is_usual = self.score.cost.active_sequences <= 1 && waited_ns < busy_ns;
        if is_usual { waited_ns } else { 0 }
    }
}
