//! Presents a model that reads the target's features as an ordinary language model.

use crate::DraftContext;
use forerun_core::{Features, SequenceId};
use forerun_model::{FeatureModel, LanguageModel, Logits, LogitsContext, ModelError};

/// A model on features, together with the features of the current round.
pub(crate) struct FeatureConditioned<M> {
    model: M,
    features: Features,
}

impl<M: FeatureModel> FeatureConditioned<M> {
    pub(crate) fn new(model: M) -> Self {
        Self { model, features: Features::new() }
    }

    /// Returns the model.
    pub(crate) fn model(&self) -> &M {
        &self.model
    }

    /// Stores the features of a round. Returns whether the model can draft with them: it needs those
    /// of every token but the last, which the target has not read, and of at least one token. In an
    /// answer's first round there are none.
    pub(crate) fn take_features(&mut self, context: &DraftContext<'_>) -> bool {
        self.features = context.feedback.features.clone();
        context.tokens.len() >= 2 && self.features.len() + 1 >= context.tokens.len()
    }
}

impl<M: FeatureModel> LanguageModel for FeatureConditioned<M> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.model.context_length()
    }

    fn logits(&mut self, context: &LogitsContext<'_>) -> Result<Logits, ModelError> {
        self.model.logits(context, &self.features)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.features = Features::new();
        self.model.release(sequence);
    }
}
