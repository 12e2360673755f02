//! Scoring: the target's distributions for a tree of candidates.

use crate::{ForwardRequest, LanguageModel, ModelError};
use forerun_core::{
    Distribution, FeatureRows, RowLogprobs, Sampler, Sampling, Scores, SequenceId, TokenId,
    TokenTree, node_of_row,
};
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

    /// Returns what all rows have in common.
    #[must_use]
    pub fn sampler(&self) -> Sampler<'a> {
        self.sampling.sampler(self.tokens, self.prompt_len)
    }

    /// Converts a row of logits, `[vocab_size]`, to a distribution, with log-probabilities if they are
    /// requested. Rows can be converted in any order and in parallel.
    ///
    /// # Errors
    /// [`ModelError::Sampling`] if the logits cannot be sampled from.
    pub fn row(
        &self,
        sampler: &Sampler<'_>,
        row: usize,
        logits: &[f32],
    ) -> Result<ScoredRow, ModelError> {
        let at = node_of_row(row);
        let distribution = sampler.distribution(logits, self.tree, at)?;
        let position = self.tokens.len() + at.map_or(0, |node| self.tree.depth(node));
        let logprobs =
            self.logprobs.map(|top| RowLogprobs::new(logits, &distribution, top, position));
        Ok(ScoredRow { distribution, logprobs: logprobs.transpose()? })
    }

    /// Combines the rows of a request, in order, with the features of the model's output.
    ///
    /// # Errors
    /// [`ModelError::NoFeatures`] if the output has no features although the request asks for them.
    pub fn scores(
        &self,
        rows: impl IntoIterator<Item = ScoredRow>,
        features: Option<FeatureRows>,
    ) -> Result<Scores, ModelError> {
        if self.features_from.is_some() && features.is_none() {
            return Err(ModelError::NoFeatures);
        }
        let (rows, logprobs): (Vec<_>, Vec<_>) =
            rows.into_iter().map(|row| (row.distribution, row.logprobs)).unzip();
        let logprobs = self.logprobs.map(|_| logprobs.into_iter().flatten().collect());
        Ok(Scores { rows, logprobs, features })
    }
}

/// A row of a scored tree.
#[derive(Clone, Debug)]
pub struct ScoredRow {
    /// The distribution to sample from.
    pub distribution: Distribution,
    /// The log-probabilities, if they were requested.
    pub logprobs: Option<RowLogprobs>,
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
    let sampler = request.sampler();
    let rows = output.rows().enumerate().map(|(row, logits)| request.row(&sampler, row, logits));
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    request.scores(rows, output.features)
}
