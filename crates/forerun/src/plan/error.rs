//! Errors of options: combinations that do not work.

use super::Method;
use crate::registry::DrafterKind;
use forerun_core::Need;
use forerun_formats::SpeculatorKind;
use forerun_runtime::PlacementError;

/// Why [`Options`](super::Options) make no plan: they contradict each other, or do not fit this
/// machine.
///
/// Messages name options in backticks, by the fields of [`Options`](super::Options).
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum PlanError {
    /// The drafter needs a draft model, but none is named.
    #[error("the drafter \"{0}\" needs a checkpoint: set `draft_model`")]
    NoDraftModel(DrafterKind),
    /// An option has no effect without another one.
    #[error("`{option}` has no effect without {needed}: set that, or leave `{option}` out")]
    NoEffect {
        /// The option's name.
        option: &'static str,
        /// The other option, in backticks.
        needed: &'static str,
    },
    /// EasySpec drafts on pipeline stages.
    #[error(
        "the drafter easyspec computes several layers at the same time, but the placement puts these on the pipeline stages \
         {0}; write \"+\" in place of \"/\", or draft with `drafter = model`"
    )]
    EasySpecOnStages(String),
    /// The method needs a drafter, but none is set.
    #[error(
        "the method {0} needs a drafter: set `draft_model`, or `drafter = prompt-lookup`, or \
         `method = autoregressive`"
    )]
    NoDrafter(Method),
    /// A draft model is named, but the chosen drafter does not use one.
    #[error(
        "`draft_model` is set, but `drafter = {0}` does not use a model: leave one of them out"
    )]
    UnusedDraftModel(DrafterKind),
    /// More threads than cores, or none.
    #[error(
        "`threads` is {found}, but it must be 1 to {cores}, the number of cores that this process may use"
    )]
    Threads {
        /// The number of threads.
        found: usize,
        /// The number of cores.
        cores: usize,
    },
    /// Both the number of threads and the cores are set.
    #[error(
        "`threads` and `placement` are both set, but a placement names its cores: leave one out"
    )]
    ThreadsAndPlacement,
    /// A value is out of range.
    #[error("`{option}` is {found}, but it must be {expected}")]
    Range {
        /// The option's name.
        option: &'static str,
        /// Its value.
        found: String,
        /// The possible values.
        expected: &'static str,
    },
    /// Several drafters are set, but the method uses only one.
    #[error(
        "the method {0} has one drafter: leave `additional_drafters` out, or set another method, such as \
         `method = auto`"
    )]
    SingleDrafter(Method),
    /// Several drafters take turns, but one of them learns from how the target verifies all of its
    /// own drafts.
    #[error(
        "several drafters take turns, but the drafter {0} learns from all of its own drafts: use another drafter, or leave \
         `additional_drafters` out"
    )]
    SeveralAndFeedback(DrafterKind),
    /// A tree is requested, but the method drafts while earlier tokens are still unverified, which
    /// works with chains only.
    #[error("the method {0} drafts chains: leave `tree` out, or set `method = speculative`")]
    ChainsOnly(Method),
    /// The drafter needs something that the method does not offer.
    #[error("{drafter} {}: set `method = speculative`, or use another drafter", lack(*.need, *.method))]
    DrafterNeeds {
        /// The drafter, such as `the drafter lookahead` or `Medusa heads`.
        drafter: String,
        /// What it needs.
        need: Need,
        /// The method.
        method: Method,
    },
    /// The drafter decides the shape of its trees, so they cannot grow.
    #[error(
        "`tree = auto` has no effect on the drafter {0}, which decides the shape of its drafts: leave `tree` out"
    )]
    OwnTree(DrafterKind),
    /// A tree that grows has no number of draft tokens that could follow assisted generation.
    #[error(
        "`tree = auto` chooses the size of each draft: set `draft_tokens` to `auto`, or to the largest depth"
    )]
    AssistedTree,
    /// Assisted draft lengths follow the outcome of whole drafts, but the method does not verify
    /// whole drafts.
    #[error(
        "`draft_tokens = assisted` follows the outcome of whole drafts, and the method {0} has none: \
         set `method = speculative`, or `draft_tokens = auto`"
    )]
    AssistedNeedsRounds(Method),
    /// A lookup takes the place of whole drafts, but the method has none.
    #[error(
        "`lookup` takes the place of whole drafts, and the method {0} has none: set `method = speculative` or \
         `method = ssd`, or leave `lookup` out"
    )]
    LookupNeedsRounds(Method),
    /// A lookup takes the place of some drafts, but the drafter learns from how the target verifies
    /// all of its own.
    #[error(
        "`lookup` takes the place of some drafts, but the drafter {0} learns from all of its own: use another drafter, or \
         leave `lookup` out"
    )]
    LookupAndFeedback(DrafterKind),
    /// The drafter reads the target's hidden states and must stay on one device, but the placement
    /// gives it several.
    #[error(
        "{0} needs one device, but the placement gives it several: give it one of its own, as in \
         `placement = drafter=cpu:0,target=cpu:1/cpu:2`"
    )]
    NeedsSingleDevice(SpeculatorKind),
    /// Some layers of the target are to be on a GPU, but its placement is no GPU with cores.
    #[error(
        "`gpu_layers` splits a target between a GPU and cores, but the placement is {placement}: write, for example, \
         `placement = target=gpu:0/cpu:0-7`, or leave `gpu_layers` out"
    )]
    Unsplit {
        /// The placement.
        placement: String,
    },
    /// `gpu_layers` would put layers on a drafter's GPU, which the placement does not say.
    #[error(
        "`gpu_layers` would put layers of the target on a drafter's GPU: to let them share it, leave `gpu_layers` out and \
         write `placement = {placement}`; otherwise name another GPU, as in `target=gpu:1/cpu:0-7`"
    )]
    SharesGpuOfDrafter {
        /// The placement with these layers.
        placement: String,
    },
    /// The placement is wrong.
    #[error(transparent)]
    Placement(#[from] PlacementError),
}

/// Says what a drafter needs, and why a method does not offer it.
fn lack(need: Need, method: Method) -> String {
    match need {
        Need::Features | Need::VerifiedPrefix => format!(
            "reads hidden states of the target, but the method {method} drafts after tokens that the \
             target has not processed"
        ),
        Need::Feedback => format!(
            "learns from the target's last pass, which the method {method} does not wait for"
        ),
        Need::Trees => format!("drafts trees, and the method {method} verifies chains"),
        Need::WholeDrafts => {
            format!("follows the outcome of whole drafts, and the method {method} has none")
        }
        Need::SeveralDrafters => {
            format!("needs other drafters in addition, and the method {method} has one drafter")
        }
    }
}
