//! Times of jobs that follow from the sizes of models and drafts, and not from a clock.
//!
//! With rejection sampling, the text of a seed depends on the lengths of drafts, so no measured
//! time may decide them. The decoder of such an answer gives these times to its planner instead.
//! The planner then still follows the acceptance, which is a property of the text, and pauses where
//! drafts do not pay.

use crate::{DecoderOptions, DraftLength};
use forerun_core::{DraftShape, TokenTree};
use forerun_plan::JobTime;

/// The time of a pass of the target over one row. Only ratios matter.
const PASS_NS: u64 = 1_000_000;
/// What a further row adds to a pass, in thousandths of its time over one row. Cores were measured
/// at 20 to 60 with models that are read from memory.
const ROW_PER_MILLE: u64 = 50;

/// A clock on which a job takes the time that its size suggests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NominalTimes {
    /// The time of a forward pass of the drafter over one row.
    draft_pass_ns: u64,
    /// Whether all positions of a draft take one pass.
    in_one_forward: bool,
    now_ns: u64,
}

impl NominalTimes {
    /// Returns the clock of decoders with these options; `None` if they may follow measured times,
    /// or follow none.
    pub(crate) fn of(options: &DecoderOptions) -> Option<Self> {
        let pattern = options.pattern;
        (options.reproducible && options.length == DraftLength::Auto).then(|| Self {
            draft_pass_ns: PASS_NS * u64::from(pattern.pass_per_mille) / 1_000,
            in_one_forward: pattern.one_forward,
            now_ns: 0,
        })
    }

    /// Returns the time of a draft job that was to draft in this shape and made this tree: a pass
    /// for each token in a row, but not for phrases that the drafter keeps, or one pass for all.
    pub(crate) fn draft(&mut self, shape: &DraftShape, tree: &TokenTree) -> JobTime {
        if self.in_one_forward {
            return self.job(self.draft_pass_ns, 1, 0);
        }
        let passes = tree.max_depth().min(shape.length()).max(1);
        self.job(self.draft_pass_ns, passes, tree.len().saturating_sub(passes))
    }

    /// Returns the time of a score job for this number of drafted tokens.
    pub(crate) fn score(&mut self, drafted: usize) -> JobTime {
        self.job(PASS_NS, 1, drafted)
    }

    fn job(&mut self, pass_ns: u64, passes: usize, further_rows: usize) -> JobTime {
        let duration_ns =
            pass_ns * passes as u64 + pass_ns * ROW_PER_MILLE / 1_000 * further_rows as u64;
        self.now_ns += duration_ns;
        JobTime { duration_ns, finished_ns: self.now_ns, ..JobTime::default() }
    }
}
