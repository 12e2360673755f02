//! Drafters, also those that fail.

use crate::tables::{DRAFT_MODEL, FailingTable, LayerParallelTable};
use forerun_core::{Draft, SequenceId, TokenId};
use forerun_draft::{
    CalibrationPolicy, DraftContext, Drafter, LayerParallelDrafter, ModelDrafter, PromptLookup,
};
use forerun_lm::fake::TableModel;
use forerun_lm::{LayerGroups, ModelError};

pub(crate) fn model_drafter() -> Box<dyn Drafter> {
    Box::new(ModelDrafter::new(DRAFT_MODEL))
}

pub(crate) fn layer_parallel_drafter(calibration: CalibrationPolicy) -> Box<dyn Drafter> {
    let groups = LayerGroups::of_sizes(&[2]);
    Box::new(LayerParallelDrafter::new(LayerParallelTable(DRAFT_MODEL), groups, calibration))
}

/// Makes a drafter for every run.
pub(crate) type Make<'a> = &'a dyn Fn() -> Box<dyn Drafter>;

pub(crate) fn other_drafter() -> Box<dyn Drafter> {
    Box::new(ModelDrafter::new(TableModel { seed: 5, ..DRAFT_MODEL }))
}

pub(crate) fn lookup_drafter() -> Box<dyn Drafter> {
    Box::new(PromptLookup)
}

/// A drafter that fails at its job with this number, and at all later ones.
pub(crate) struct FailingDrafter {
    pub(crate) drafter: Box<dyn Drafter>,
    pub(crate) jobs_left: usize,
}

impl Drafter for FailingDrafter {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        self.jobs_left = self.jobs_left.checked_sub(1).ok_or(ModelError::Empty)?;
        self.drafter.draft(context)
    }

    /// A job whose tokens are all forced is a job, too. Else it would depend on draft tokens that
    /// are never tested when the drafter fails, and new ones are drawn with the same keys.
    fn record_forced(&mut self, context: &DraftContext<'_>, forced: &[TokenId]) {
        if forced.len() == context.shape.depth() {
            self.jobs_left = self.jobs_left.saturating_sub(1);
        }
        self.drafter.record_forced(context, forced);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.drafter.release(sequence);
    }
}

/// Returns a model drafter that fails on a token that it has drawn.
pub(crate) fn failing_on(token: TokenId) -> Box<dyn Drafter> {
    Box::new(ModelDrafter::new(FailingTable { table: DRAFT_MODEL, token }))
}

pub(crate) fn failing_after(jobs_left: usize, drafter: Make<'_>) -> Box<dyn Drafter> {
    Box::new(FailingDrafter { drafter: drafter(), jobs_left })
}
