//! The log-probabilities of given tokens.

use crate::engine::Engine;
use crate::error::ForerunError;
use crate::request::{Request, RequestError};
use forerun_core::{
    AdapterId, Job, JobOutput, Role, Sampling, SamplingOptions, ScoreJob, SequenceId, TokenId,
    TokenLogprob, TokenTree, node_of_row,
};
use forerun_decode::DecodeError;
use forerun_runtime::{Canceller, ClusterHandle};

/// The rows of a job. Their logits are in memory at the same time.
const ROWS: usize = 32;

impl Engine {
    /// Returns the target's log-probability of each token of `continuation`, given the tokens
    /// before it, and those of the `top` most probable tokens at its place. The first of them
    /// follows `prompt`. Nothing is added to the prompt.
    ///
    /// These are the numbers that [`Request::logprobs`](crate::Request::logprobs) reports for
    /// generated tokens, to the last bit. The drafter has no part in it. `canceller` stops the
    /// computation from another thread.
    ///
    /// ```
    /// use forerun::{Canceller, Engine, RandomPair};
    ///
    /// let pair = RandomPair::make()?;
    /// let engine = Engine::open(pair.target())?;
    /// let tokens = engine.tokenizer().encode("Once upon a time")?;
    /// let scores = engine.score(&tokens[..1], &tokens[1..], 0, &Canceller::new())?;
    /// let logprob: f32 = scores.iter().map(|score| score.logprob).sum();
    /// assert!(scores.len() == tokens.len() - 1 && logprob < 0.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the prompt is empty, prompt and continuation are longer than the context and one token,
    /// `top` is above [`Request::MAX_LOGPROBS`], a token before the last is not in the vocabulary, or a job
    /// fails or is cancelled.
    pub fn score(
        &self,
        prompt: &[TokenId],
        continuation: &[TokenId],
        top: usize,
        canceller: &Canceller,
    ) -> Result<Vec<TokenLogprob>, ForerunError> {
        self.score_with(None, (prompt, continuation), top, canceller)
    }

    /// Returns the target's log-probabilities as [`Engine::score`] does, with an adapter.
    pub(crate) fn score_with(
        &self,
        adapter: Option<AdapterId>,
        (prompt, continuation): (&[TokenId], &[TokenId]),
        top: usize,
        canceller: &Canceller,
    ) -> Result<Vec<TokenLogprob>, ForerunError> {
        if prompt.is_empty() {
            return Err(ForerunError::EmptyPrompt);
        }
        if top > Request::MAX_LOGPROBS {
            return Err(RequestError::Logprobs(top).into());
        }
        let tokens = [prompt, continuation].concat();
        let context = self.config().max_position_embeddings;
        // The last token is only predicted.
        if tokens.len() > context + 1 {
            let (tokens, context) = (tokens.len(), context + 1);
            let model = self.plan().model().clone();
            return Err(ForerunError::TextTooLong { tokens, context, model });
        }
        self.check_generates()?;
        let (sequence, prompt_len) = (self.new_sequence(), prompt.len());
        let text = Text { sequence, adapter, prompt_len, tokens };
        let mut cluster = self.workers().cluster(canceller);
        let mut scores = Vec::with_capacity(continuation.len());
        let ended = text.score(&mut *cluster, top, &mut scores);
        cluster.release(text.sequence);
        // Nobody reads what was recorded of it.
        drop(self.take_trace_of(text.sequence));
        ended?;
        Ok(scores)
    }
}

/// A text whose tokens after the prompt are scored.
struct Text {
    sequence: SequenceId,
    adapter: Option<AdapterId>,
    prompt_len: usize,
    tokens: Vec<TokenId>,
}

impl Text {
    fn score(
        &self,
        cluster: &mut dyn ClusterHandle,
        top: usize,
        scores: &mut Vec<TokenLogprob>,
    ) -> Result<(), DecodeError> {
        for start in (self.prompt_len..self.tokens.len()).step_by(ROWS) {
            let scored = &self.tokens[start..self.tokens.len().min(start + ROWS)];
            let tree = TokenTree::chain(&scored[..scored.len() - 1]);
            let job = Job::Score(ScoreJob {
                sequence: self.sequence,
                tokens: self.tokens[..start].into(),
                prompt_len: self.prompt_len,
                tree,
                // Rows at temperature 1 have all tokens, so that each of them has a
                // log-probability.
                sampling: Sampling {
                    options: SamplingOptions { temperature: 1.0, ..SamplingOptions::default() },
                    adapter: self.adapter,
                    ..Sampling::greedy()
                },
                logprobs: Some(top),
                features_from: None,
            });
            cluster.submit(Role::Target(0), job)?;
            let JobOutput::Score(rows) = cluster.next_completion()?.output? else {
                return Err(DecodeError::Answer("expected scores"));
            };
            for (row, &token) in scored.iter().enumerate() {
                let score = rows.logprob(node_of_row(row), token);
                scores.push(score.ok_or(DecodeError::Answer("a row is missing"))?);
            }
        }
        Ok(())
    }
}
