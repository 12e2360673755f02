//! A drafter with another vocabulary than the target's. Drafts are translated as text.
//!
//! *Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
//! Vocabularies*, Timor et al. 2025, arXiv 2502.05202, algorithm 2 (string-level exact match).
//!
//! 1. The text of the sequence is encoded with the drafter's tokenizer.
//! 2. The drafter continues it with a chain of its own tokens.
//! 3. The text of the chain is encoded with the target's tokenizer, and the resulting tokens are
//!    verified.
//!
//! Deviations:
//!
//! * The drafter takes its most probable token instead of a sample. So candidates are a function of
//!   the tokens before them, and are verified as such by every rule.
//! * With coupled verification, a drafter token uses the noise of the target token with which its
//!   text starts.
//! * Filters and penalties apply to the target only.

use crate::{DraftContext, Drafter};
use forerun_core::{Draft, DraftShape, Sampling, SequenceId, TokenId, TokenTree, Verification};
use forerun_lm::{ForwardRequest, LanguageModel, ModelError};
use std::collections::HashMap;
use std::sync::Arc;

/// Translates tokens between the vocabularies of target and drafter.
pub trait VocabTranslator: Send + Sync {
    /// The translation of a sequence so far, so that only new tokens have to be translated.
    type Progress: Default + Send;

    /// Returns the drafter's tokens for the text of the target's `tokens`. The result is empty if
    /// the text ends within a character.
    fn to_drafter<'a>(&self, progress: &'a mut Self::Progress, tokens: &[TokenId])
    -> &'a [TokenId];

    /// Returns the target's tokens, after those of the last [`to_drafter`](Self::to_drafter), for
    /// the text of the drafter's `drafted`, up to the first one that the target's model does not
    /// have. The result is empty if no token of the target starts there.
    fn to_target(&self, progress: &Self::Progress, drafted: &[TokenId]) -> Vec<TokenId>;

    /// Returns the target token with which the text of a drafter token starts, if there is one.
    fn counterpart(&self, token: TokenId) -> Option<TokenId>;

    /// Returns whether a drafter token ends a text.
    fn is_end(&self, token: TokenId) -> bool;
}

/// Drafts with a language model of another vocabulary.
pub struct VocabTranslationDrafter<M, T: VocabTranslator> {
    model: M,
    translator: Arc<T>,
    progress: HashMap<SequenceId, T::Progress>,
}

impl<M: LanguageModel, T: VocabTranslator> VocabTranslationDrafter<M, T> {
    /// Creates a drafter that uses `model`. `translator` must translate to the model's tokens.
    pub fn new(model: M, translator: Arc<T>) -> Self {
        Self { model, translator, progress: HashMap::new() }
    }
}

impl<M: LanguageModel, T: VocabTranslator> Drafter for VocabTranslationDrafter<M, T> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let DraftContext { sequence, tokens, sampling, cancel, .. } = *context;
        let (DraftShape::Chain { length } | DraftShape::ConfidentChain { length, .. }) =
            *context.shape
        else {
            return Ok(Draft::empty());
        };
        let Self { model, translator, progress } = self;
        let progress = progress.entry(sequence).or_default();
        let mut drafter_tokens = translator.to_drafter(progress, tokens).to_vec();
        // A tokenizer may have more tokens than its model.
        if drafter_tokens.iter().any(|&token| token as usize >= model.vocab_size()) {
            return Ok(Draft::empty());
        }
        let start = drafter_tokens.len();
        // Estimate how many drafter tokens give `length` target tokens, by the ratio so far.
        let needed = (length * start).div_ceil(tokens.len().max(1)).clamp(length / 2, 4 * length);
        let room = model.context_length().saturating_sub(start.saturating_sub(1));
        let mut translated = Vec::new();
        while start > 0 && drafter_tokens.len() < start + needed.min(room) {
            let next = ForwardRequest::next_token(sequence, &drafter_tokens);
            let output = model.logits(&ForwardRequest { cancel, ..next })?;
            let position = tokens.len() + translated.len();
            let Some(row) = output.rows().next() else { break };
            let token = most_probable(&**translator, sampling, row, position);
            drafter_tokens.push(token);
            translated = translator.to_target(progress, &drafter_tokens[start..]);
            if translated.len() >= length || translator.is_end(token) {
                break;
            }
        }
        translated.truncate(length);
        Ok(Draft::deterministic(TokenTree::chain(&translated)))
    }

    fn release(&mut self, sequence: SequenceId) {
        self.progress.remove(&sequence);
        self.model.release(sequence);
    }
}

/// Larger noise practically never occurs: about once in ten million draws.
const MAX_NOISE: f32 = 16.0;

/// Returns the drafter's most probable token. With coupled verification, the target's noise is
/// added to the scores.
fn most_probable(
    translator: &impl VocabTranslator,
    sampling: &Sampling,
    logits: &[f32],
    position: usize,
) -> TokenId {
    let coupled = sampling.temperature > 0.0 && sampling.verification == Verification::Coupled;
    let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let score = |(token, &logit): (usize, &f32)| {
        let token = token as TokenId;
        if !coupled || (logit - peak) / sampling.temperature < -MAX_NOISE {
            return (token, f64::from(logit - peak));
        }
        let noise = translator.counterpart(token);
        let noise = noise.map_or(0.0, |token| sampling.randomness.gumbel(position, token));
        (token, f64::from((logit - peak) / sampling.temperature) + noise)
    };
    let first = (0, f64::NEG_INFINITY);
    let scores = logits.iter().enumerate().map(score);
    scores.fold(first, |best, next| if next.1 > best.1 { next } else { best }).0
}
