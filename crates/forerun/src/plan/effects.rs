//! Options that have no effect without another one.

use super::{DraftTokens, Lookup, Method, Options, PlanError, Tree};
use crate::easyspec::LayerStrategy;
use crate::registry::DrafterKind;
use forerun_decode::PearlOptions;

/// Refuses options of drafts that have no effect with this method and drafter.
pub(super) fn check(
    options: &Options,
    method: Method,
    drafter: DrafterKind,
) -> Result<(), PlanError> {
    if options.method.is_some_and(|method| !method.drafts()) {
        // Plain decoding ignores all options of drafts, so that one option switches between a
        // method and its baseline.
        return Ok(());
    }
    let drafts = (method.drafts(), "`draft_model` or `drafter`");
    let pearl = (method == Method::Pearl, "`method = pearl`");
    let easyspec = (drafter == DrafterKind::EasySpec, "`drafter = easyspec`");
    let (parallel, groups) = match options.layers {
        Some(LayerStrategy::Parallel(_)) => (true, false),
        Some(LayerStrategy::Groups(_)) => (false, true),
        None => (false, false),
    };
    let table = [
        ("tree", options.tree != Tree::None, drafts),
        ("draft_tokens", options.draft_tokens != DraftTokens::Auto, drafts),
        ("lookup", options.lookup != Lookup::None, drafts),
        ("additional_drafters", !options.additional_drafters.is_empty(), drafts),
        ("pearl", options.pearl != PearlOptions::default(), pearl),
        ("layer_parallel_size", parallel, easyspec),
        ("layer_groups", groups, easyspec),
        ("calibration", options.calibration.is_some(), easyspec),
    ];
    match table.into_iter().find(|(_, is_set, (has_effect, _))| *is_set && !has_effect) {
        Some((option, _, (_, needed))) => Err(PlanError::NoEffect { option, needed }),
        None => Ok(()),
    }
}
