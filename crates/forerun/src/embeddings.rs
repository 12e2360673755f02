//! Embeddings of texts.

use crate::engine::Engine;
use crate::error::ForerunError;
use forerun_core::{
    FeatureRows, Job, JobOutput, MAX_BATCH, Role, Sampling, ScoreJob, SequenceId, TokenId,
    TokenTree,
};
use forerun_decode::DecodeError;
use forerun_formats::{Pooling, PoolingMode};
use forerun_runtime::{Canceller, ClusterHandle};
use forerun_text::SpecialTokens;

impl Engine {
    /// Returns the embeddings of texts: vectors of length 1, whose products are the texts'
    /// similarities. The checkpoint says how they are made of the hidden states
    /// (sentence-transformers' `modules.json`, a GGUF file's `pooling_type`). The texts share
    /// forward passes. An embedding has the same bits whatever the other texts are.
    ///
    /// ```no_run
    /// let engine = forerun::Engine::open("all-MiniLM-L6-v2")?;
    /// let [one, other] = &engine.embed(&["A cat sleeps.", "A kitten naps."])?[..] else { return Ok(()) };
    /// let similarity: f32 = one.iter().zip(other).map(|(x, y)| x * y).sum();
    /// # Ok::<(), forerun::ForerunError>(())
    /// ```
    ///
    /// # Errors
    /// If the model is not one for embeddings, a text has no tokens or more than the model reads,
    /// or a job fails.
    pub fn embed(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>, ForerunError> {
        let texts = texts.iter().map(|text| self.encode_to_embed(text.as_ref(), false));
        self.embed_tokens(&texts.collect::<Result<Vec<_>, _>>()?, &Canceller::new())
    }

    /// Encodes a text for [`Engine::embed_tokens`]. If it is too long and `truncates`, its last
    /// tokens are left out, but not the special tokens at its end.
    ///
    /// # Errors
    /// If the model is not one for embeddings, the text is too long, or it cannot be encoded.
    pub fn encode_to_embed(
        &self,
        text: &str,
        truncates: bool,
    ) -> Result<Vec<TokenId>, ForerunError> {
        self.pooling()?;
        let (most, tokenizer) = (self.config().max_position_embeddings, self.tokenizer());
        let text = match truncates {
            true => tokenizer.beginning(text, most)?,
            false => text,
        };
        if !truncates && let Some(long) = tokenizer.too_long(text, most.saturating_add(1))? {
            return Err(self.text_too_long(long.tokens));
        }
        let encode = |add| tokenizer.encode_with(text, SpecialTokens { add, parse: true });
        let mut tokens = encode(true)?;
        if truncates && tokens.len() > most {
            let own = encode(false)?;
            let mut starts = 0..=tokens.len().saturating_sub(own.len());
            let start = starts.find(|start| tokens[*start..].starts_with(&own));
            let end = start.map_or_else(Vec::new, |start| tokens.split_off(start + own.len()));
            tokens.truncate(most.saturating_sub(end.len()));
            tokens.extend(end);
        }
        Ok(tokens)
    }

    /// Returns the embeddings of texts as [`Engine::embed`] does, of their tokens. Nothing is added
    /// to them. `canceller` stops the computation from another thread.
    ///
    /// # Errors
    /// As [`Engine::embed`], if a token is not in the vocabulary, or if the computation is
    /// cancelled.
    pub fn embed_tokens(
        &self,
        texts: &[Vec<TokenId>],
        canceller: &Canceller,
    ) -> Result<Vec<Vec<f32>>, ForerunError> {
        let pooling = self.pooling()?;
        let vocab_size = self.config().vocab_size;
        for text in texts {
            if text.is_empty() {
                return Err(ForerunError::EmptyPrompt);
            }
            if text.len() > self.config().max_position_embeddings {
                return Err(self.text_too_long(text.len()));
            }
            if let Some(&token) = text.iter().find(|token| **token as usize >= vocab_size) {
                return Err(ForerunError::UnknownToken { token, vocab_size });
            }
        }
        let mut cluster = self.workers().cluster(canceller);
        let mut embeddings = Vec::with_capacity(texts.len());
        for batch in texts.chunks(MAX_BATCH) {
            let batch: Vec<_> = batch.iter().map(|text| (self.new_sequence(), text)).collect();
            let pooled = embed_batch(&mut *cluster, pooling.mode, &batch);
            if pooled.is_err() {
                cluster.cancel_and_wait();
            }
            for (sequence, _) in batch {
                cluster.release(sequence);
                // Nobody reads what was recorded of it.
                drop(self.take_trace_of(sequence));
            }
            embeddings.extend(pooled?);
        }
        Ok(embeddings)
    }

    fn text_too_long(&self, tokens: usize) -> ForerunError {
        let context = self.config().max_position_embeddings;
        ForerunError::TextTooLong { tokens, context, model: self.plan().model().clone() }
    }

    /// Returns how the model makes embeddings.
    fn pooling(&self) -> Result<Pooling, ForerunError> {
        let model = || self.plan().model().clone();
        self.config().pooling.ok_or_else(|| ForerunError::NoEmbeddings { model: model() })
    }
}

/// Returns the embedding of each text. The hidden states of a text are dropped as soon as they are
/// pooled.
fn embed_batch(
    cluster: &mut dyn ClusterHandle,
    mode: PoolingMode,
    texts: &[(SequenceId, &Vec<TokenId>)],
) -> Result<Vec<Vec<f32>>, DecodeError> {
    let first_row = |tokens: &[TokenId]| match mode {
        PoolingMode::Last => tokens.len() - 1,
        PoolingMode::Mean | PoolingMode::First => 0,
    };
    let mut tickets = Vec::new();
    for &(sequence, tokens) in texts {
        let job = Job::Score(ScoreJob {
            sequence,
            tokens: tokens[..].into(),
            prompt_len: tokens.len(),
            tree: TokenTree::new(),
            sampling: Sampling::greedy(),
            logprobs: None,
            features_from: Some(first_row(tokens)),
        });
        tickets.push(cluster.submit(Role::Target(0), job)?);
    }
    let mut embeddings = vec![None; texts.len()];
    for _ in texts {
        let completion = cluster.next_completion()?;
        let JobOutput::Score(scores) = completion.output? else {
            return Err(DecodeError::Answer("expected scores"));
        };
        if let Some(index) = tickets.iter().position(|ticket| *ticket == completion.ticket) {
            let tokens = texts[index].1;
            let rows = tokens.len() - first_row(tokens);
            let features = scores.features.filter(|features| features.len() == rows);
            embeddings[index] = features.map(|features| pool(mode, &features));
        }
    }
    let embeddings = embeddings.into_iter().collect::<Option<Vec<_>>>();
    embeddings.ok_or(DecodeError::Answer("hidden states are missing"))
}

/// Returns the vector that stands for the rows, scaled to length 1.
fn pool(mode: PoolingMode, rows: &FeatureRows) -> Vec<f32> {
    let row = |index| rows.row(index).unwrap_or_default();
    let mut pooled = match mode {
        PoolingMode::First => row(0).to_vec(),
        PoolingMode::Last => row(rows.len().saturating_sub(1)).to_vec(),
        PoolingMode::Mean => (1..rows.len()).fold(row(0).to_vec(), |mut sum, index| {
            sum.iter_mut().zip(row(index)).for_each(|(sum, x)| *sum += x);
            sum
        }),
    };
    let length = pooled.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    // As in PyTorch: a vector of zeros stays one.
    pooled.iter_mut().for_each(|x| *x = (f64::from(*x) / length.max(1e-12)) as f32);
    pooled
}
