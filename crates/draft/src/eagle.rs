//! EAGLE: a layer predicts the target's next feature from its features so far.
//!
//! *EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty*, Li et al. 2024, arXiv
//! 2401.15077, section 3; *EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees*,
//! Li et al. 2024, arXiv 2406.16858, section 4.
//!
//! 1. The target has read all committed tokens but the last. Their features come with the job.
//! 2. The input of a row is a token and the feature before it. The output is the next feature, and
//!    the target's head gives the next token's distribution from it.
//! 3. Further rows continue from a candidate and the predicted feature that it was drawn from.
//! 4. Chains and static trees are EAGLE's. The tree of the best of all considered nodes is
//!    EAGLE-2's: it expands nodes by the probability of their path, and reranks all of them.
//! 5. The next round starts with the target's features of the accepted tokens. Rows with predicted
//!    features are dropped.
//!
//! Deviations:
//!
//! * A draft may continue another one before the target has verified it, for PEARL. It then
//!   continues with the features that were predicted, also after the target's come: to compute the
//!   draft's rows again takes as long as drafting it. Only a draft that starts afresh uses the
//!   target's.
//! * Tokens that others drafted, such as those that a grammar determines, are read with predicted
//!   features, too.
//! * EAGLE's code draws the siblings of its sampled trees without replacement. Here they are drawn
//!   independently. Trees of the most probable candidates are verified as in EAGLE's code.

use crate::feature_based::{draft_from_features, draft_readable};
use crate::{DraftContext, Drafter, ModelDrafter, single_draft};
use forerun_core::{Draft, SequenceId, TokenId};
use forerun_lm::{FeatureModel, ModelError};
use std::collections::HashMap;

/// Drafts with a layer that reads the target's features.
pub struct EagleDrafter<M> {
    /// Grows drafts as from any model. The rows also depend on features.
    drafter: ModelDrafter<M>,
    /// The last drafts, which may be continued.
    last: HashMap<SequenceId, LastDraft>,
}

/// A chain that was drafted, with all tokens before it.
struct LastDraft {
    /// The number of first tokens that were read with the target's features.
    read: usize,
    tokens: Vec<TokenId>,
}

impl LastDraft {
    /// Returns whether `tokens` are this draft's, or go on after it. `readable`: how many can be
    /// read with the target's features. A draft is not continued once the target has read it.
    fn goes_on_to(&self, tokens: &[TokenId], readable: usize) -> bool {
        (self.read..=self.tokens.len()).contains(&readable) && tokens.starts_with(&self.tokens)
    }
}

impl<M: FeatureModel> EagleDrafter<M> {
    /// Creates a drafter that uses `model`.
    pub fn new(model: M) -> Self {
        Self { drafter: ModelDrafter::new(model), last: HashMap::new() }
    }

    /// Returns the model. Tests inspect its caches.
    #[must_use]
    pub fn model(&self) -> &M {
        self.drafter.model()
    }
}

impl<M: FeatureModel> Drafter for EagleDrafter<M> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        single_draft(|done| self.draft_batch(std::slice::from_ref(context), done))
    }

    fn draft_batch(
        &mut self,
        contexts: &[DraftContext<'_>],
        done: &mut dyn FnMut(usize, Result<Draft, ModelError>),
    ) {
        let Self { drafter, last } = self;
        draft_readable(contexts, done, |ready, readable, done| {
            let read = ready.iter().zip(readable).map(|(context, &readable)| {
                let continued = last.remove(&context.sequence);
                let continued =
                    continued.filter(|draft| draft.goes_on_to(context.tokens, readable));
                continued.map_or(readable, |draft| draft.read)
            });
            let read: Vec<usize> = read.collect();
            draft_from_features(drafter, ready, &read, &mut |index, result| {
                if let Ok(draft) = &result
                    && draft.tree.is_chain()
                {
                    let DraftContext { sequence, tokens, .. } = ready[index];
                    let tokens = [tokens, draft.tree.tokens()].concat();
                    last.insert(sequence, LastDraft { read: read[index], tokens });
                }
                done(index, result);
            });
        });
    }

    fn release(&mut self, sequence: SequenceId) {
        self.last.remove(&sequence);
        self.drafter.release(sequence);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use forerun_core::{
        DraftShape, FeatureRows, Features, KeyedRandomness, Node, Sampling, TargetFeedback,
        node_of_row,
    };
    use forerun_lm::fake::{TableModel, row_prefix};
    use forerun_lm::{BatchEntry, ForwardOutput, ForwardRequest, LanguageModel, complete_each};
    use std::sync::atomic::AtomicBool;

    const VOCAB: usize = 7;

    /// Its rows are a function of the feature before the last token, and of the path from there.
    #[derive(Default)]
    struct Model {
        /// The number of tokens of each request.
        requests: Vec<usize>,
    }

    impl LanguageModel for Model {
        fn vocab_size(&self) -> usize {
            VOCAB
        }

        fn context_length(&self) -> usize {
            64
        }

        fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
            complete_each(batch, |request| {
                let ForwardRequest { tokens, tree, first_row, .. } = *request;
                self.requests.push(tokens.len());
                let mut features = request.features.unwrap().rows_from(tokens.len() - 2);
                let feature = features.next().unwrap()[0] as TokenId;
                let row = |at: Option<Node>| {
                    let path = row_prefix(&tokens[tokens.len() - 1..], tree, at);
                    TableModel::new(3, VOCAB, 4.0).row(&[&[feature], &path[..]].concat())
                };
                let logits = (first_row..=tree.len()).map(node_of_row).flat_map(row).collect();
                let computed_tokens = tree.len();
                Ok(ForwardOutput {
                    logits,
                    best: Vec::new(),
                    vocab_size: VOCAB,
                    computed_tokens,
                    features: None,
                })
            });
        }

        fn release(&mut self, _sequence: SequenceId) {}
    }

    impl FeatureModel for Model {}

    /// Drafts a chain after `tokens`, of which the first `known` have features.
    fn draft(
        drafter: &mut EagleDrafter<Model>,
        tokens: &[TokenId],
        known: usize,
        length: usize,
    ) -> Vec<TokenId> {
        let mut features = Features::new();
        features.push(FeatureRows::new(1, (0..known).map(|token| token as f32).collect()));
        let draft = drafter.draft(&DraftContext {
            sequence: SequenceId(0),
            tokens,
            prompt_len: tokens.len(),
            sampling: &Sampling::greedy(),
            randomness: &KeyedRandomness { seed: 0, sample: 0 },
            shape: &DraftShape::Chain { length },
            feedback: &TargetFeedback { features, last_draft: None },
            cancel: &AtomicBool::new(false),
            tokens_on_last_device: None,
        });
        draft.unwrap().tree.tokens().to_vec()
    }

    #[test]
    fn a_draft_that_is_continued_is_the_one_that_would_have_been_made_at_once() {
        let prompt = [1, 2, 3, 4];
        let whole = draft(&mut EagleDrafter::new(Model::default()), &prompt, 3, 5);
        let mut drafter = EagleDrafter::new(Model::default());
        let mut tokens = prompt.to_vec();
        // Meanwhile the target verifies the first tokens.
        for (known, length) in [(3, 2), (3, 1), (5, 2)] {
            let further = draft(&mut drafter, &tokens, known, length);
            assert_eq!(further.len(), length);
            tokens.extend(further);
        }
        assert_eq!(tokens[prompt.len()..], whole);
        assert_eq!(drafter.model().requests, [4; 5]);
        // After a correction it starts with the target's features.
        tokens.pop();
        tokens.push((whole[4] + 1) % VOCAB as TokenId);
        assert_eq!(draft(&mut drafter, &tokens, 8, 1).len(), 1);
        assert_eq!(drafter.model().requests.last(), Some(&9));
        assert!(draft(&mut drafter, &tokens, 0, 1).is_empty(), "the first round");
    }

    /// As after forced tokens, or after a restart of the worker.
    #[test]
    fn tokens_that_it_has_not_drafted_are_read_with_predicted_features() {
        let prompt = [1, 2, 3, 4];
        let mut drafter = EagleDrafter::new(Model::default());
        let first = draft(&mut drafter, &prompt, 3, 2);
        let tokens = [&prompt[..], &first, &[5, 6]].concat();
        let after = draft(&mut drafter, &tokens, 4, 2);
        assert_eq!(drafter.model().requests, [4; 4]);
        let fresh = |known| {
            let mut drafter = EagleDrafter::new(Model::default());
            (draft(&mut drafter, &tokens, known, 2), drafter.drafter.model().requests[0])
        };
        assert_eq!(fresh(3), (after.clone(), 4));
        assert_eq!(fresh(5).1, 6);
        // Once the target has read a draft, the next one starts afresh, also after further tokens.
        let drafted = [&tokens[..], &after].concat();
        for further in [&[0, 3][..], &[0]] {
            let tokens = [&drafted[..], further].concat();
            draft(&mut drafter, &tokens, drafted.len(), 1);
            assert_eq!(drafter.model().requests.last(), Some(&(drafted.len() + 1)));
        }
    }
}
