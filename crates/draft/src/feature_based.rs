//! Drafts of models that read the target's features.

use crate::{DraftContext, ModelDrafter};
use forerun_core::Draft;
use forerun_lm::{FeatureModel, ForwardRequest, ModelError};

/// Returns whether a context has the features that a model needs: those of every token but the last,
/// which the target has not read, and of at least one token. In an answer's first round there are
/// none.
fn has_features(context: &DraftContext<'_>) -> bool {
    has_features_of(context, context.tokens.len())
}

/// Returns the same for the first `tokens` tokens.
pub(crate) fn has_features_of(context: &DraftContext<'_>, tokens: usize) -> bool {
    tokens >= 2 && context.feedback.features.len() + 1 >= tokens
}

/// Returns the number of first tokens that a model can read: it needs the target's features of all of them but the
/// last, and of at least one. `None` if there are none.
pub(crate) fn readable_tokens(context: &DraftContext<'_>) -> Option<usize> {
    let features = context.feedback.features.len();
    Some(context.tokens.len().min(features + 1)).filter(|&tokens| tokens >= 2)
}

/// Calls `draft` with the contexts for which `can_draft` holds. The drafts of the others are empty.
pub(crate) fn draft_if<'a>(
    contexts: &[DraftContext<'a>],
    can_draft: impl Fn(&DraftContext<'a>) -> bool,
    done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    draft: impl FnOnce(&[DraftContext<'a>], &mut dyn FnMut(usize, Result<Draft, ModelError>)),
) {
    let (mut indices, mut ready) = (Vec::new(), Vec::new());
    for (index, context) in contexts.iter().enumerate() {
        match can_draft(context) {
            true => {
                indices.push(index);
                ready.push(*context);
            }
            false => done(index, Ok(Draft::empty())),
        }
    }
    draft(&ready, &mut |index, result| done(indices[index], result));
}

/// Drafts from the features of the target's tokens and the rows of a model on them.
pub(crate) fn draft_from_features<M: FeatureModel>(
    drafter: &mut ModelDrafter<M>,
    contexts: &[DraftContext<'_>],
    done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
) {
    draft_if(
        contexts,
        |context| has_features(context),
        done,
        |ready, done| {
            let request = |index: usize, request| {
                let features = Some(&ready[index].feedback.features);
                ForwardRequest { features, ..request }
            };
            drafter.draft_with(ready, request, done);
        },
    );
}
