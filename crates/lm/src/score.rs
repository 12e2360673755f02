//! Scoring: the target's distributions for a tree of candidates.

use crate::{ForwardOutput, ForwardRequest, LanguageModel, ModelError};
use forerun_core::{RowLogprobs, Sampling, Scores, SequenceId, TokenId, TokenTree, node_of_row};
use std::sync::atomic::AtomicBool;

/// A request to score a tree.
#[derive(Clone, Copy)]
pub struct ScoreRequest<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// All tokens before the first row.
    pub tokens: &'a [TokenId],
    /// Number of leading tokens that belong to the prompt.
    pub prompt_len: usize,
    /// Candidates after `tokens`.
    pub tree: &'a TokenTree,
    /// The request's sampling options.
    pub sampling: &'a Sampling,
    /// Number of most likely tokens per row for which to return log-probabilities; `None` for no
    /// log-probabilities.
    pub logprobs: Option<usize>,
    /// The first token for which to return features; `None` for no features.
    pub features_from: Option<usize>,
    /// Set to cancel the request.
    pub cancel: &'a AtomicBool,
}

impl<'a> ScoreRequest<'a> {
    /// Returns the request to the model.
    #[must_use]
    pub fn forward(&self) -> ForwardRequest<'a> {
        let Self { sequence, tokens, tree, features_from, cancel, .. } = *self;
        ForwardRequest { features_from, cancel, ..ForwardRequest::new(sequence, tokens, tree) }
    }

    /// Converts the model's output to distributions of the token after the prefix and after each
    /// node.
    ///
    /// # Errors
    /// [`ModelError::Sampling`] if the logits cannot be sampled from, [`ModelError::NoFeatures`] if
    /// the output has no features although the request asks for them.
    pub fn scores(&self, output: ForwardOutput) -> Result<Scores, ModelError> {
        let sampler = self.sampling.sampler(self.tokens, self.prompt_len);
        let mut scores = Scores {
            rows: Vec::new(),
            logprobs: self.logprobs.map(|_| Vec::new()),
            features: None,
        };
        for (row, logits) in output.rows().enumerate() {
            let at = node_of_row(row);
            let distribution = sampler.distribution(logits, self.tree, at)?;
            if let (Some(logprobs), Some(top)) = (&mut scores.logprobs, self.logprobs) {
                let position = self.tokens.len() + at.map_or(0, |node| self.tree.depth(node));
                logprobs.push(RowLogprobs::new(logits, &distribution, top, position)?);
            }
            scores.rows.push(distribution);
        }
        scores.features = output.features;
        match self.features_from.is_some() && scores.features.is_none() {
            true => Err(ModelError::NoFeatures),
            false => Ok(scores),
        }
    }
}

/// Scores a tree by itself.
///
/// # Errors
/// See [`ModelError`].
pub fn score(
    model: &mut dyn LanguageModel,
    request: &ScoreRequest<'_>,
) -> Result<Scores, ModelError> {
    let output = model.logits(&request.forward())?;
    request.scores(output)
}
