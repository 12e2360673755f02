//! Drafts of models that read the target's features.

use crate::{DraftContext, ModelDrafter};
use forerun_core::Draft;
use forerun_lm::{FeatureModel, ForwardRequest, ModelError};

/// Returns the number of first tokens that a model can read: it needs the target's features of all
/// of them but the last, and of at least one. `None` if there are none.
pub(crate) fn readable_tokens(context: &DraftContext<'_>) -> Option<usize> {
    let features = context.feedback.features.len();
    Some(context.tokens.len().min(features + 1)).filter(|&tokens| tokens >= 2)
}

/// Calls `draft` with the contexts that a model can read, and the number of first tokens that it
/// reads in each. The drafts of the others are empty: in an answer's first round there are no
/// features.
pub(crate) fn draft_readable<'a>(
    contexts: &[DraftContext<'a>],
    done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    draft: impl FnOnce(&[DraftContext<'a>], &[usize], &mut dyn FnMut(usize, Result<Draft, ModelError>)),
) {
    let (mut indices, mut ready, mut read) = (Vec::new(), Vec::new(), Vec::new());
    for (index, context) in contexts.iter().enumerate() {
        match readable_tokens(context) {
            Some(tokens) => {
                indices.push(index);
                ready.push(*context);
                read.push(tokens);
            }
            None => done(index, Ok(Draft::empty())),
        }
    }
    draft(&ready, &read, &mut |index, result| done(indices[index], result));
}

/// Drafts with a model from the features of the first `read` tokens of each context. The tokens
/// after them become nodes of the requests' trees.
pub(crate) fn draft_from_features<M: FeatureModel>(
    drafter: &mut ModelDrafter<M>,
    contexts: &[DraftContext<'_>],
    read: &[usize],
    done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
) {
    let request = |index: usize, request| {
        let DraftContext { feedback, tokens, sampling, .. } = contexts[index];
        let (features, tokens) = (Some(&feedback.features), &tokens[..read[index]]);
        ForwardRequest { features, tokens, adapter: sampling.adapter, ..request }
    };
    drafter.draft_with(contexts, request, done);
}
