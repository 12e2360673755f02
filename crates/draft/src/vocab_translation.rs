//! A drafter with another vocabulary than the target's: drafts are translated by their text.
//!
//! *Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for Heterogeneous
//! Vocabularies*, Timor et al. 2025, arXiv 2502.05202, algorithm 2 (string-level exact match).
//!
//! 1. The sequence's text is put into the drafter's tokens; its cache finds by itself what it holds.
//! 2. The drafter continues with its own tokens, a chain.
//! 3. Their text is put into the target's tokens, and these are verified.
//!
//! Deviation: the drafter takes its most probable token instead of a sample, so that candidates are a
//! function of the tokens before them, and are verified as such under every rule. Where target and
//! drafter are coupled, a drafter token shares the noise of the target token with which its text
//! begins. Filters and penalties are the target's alone.

use crate::{DraftContext, Drafter};
use forerun_core::{
    Draft, DraftShape, Proposal, Sampling, SequenceId, TokenId, TokenTree, Verification,
};
use forerun_model::{LanguageModel, LogitsContext, ModelError};
use std::collections::HashMap;
use std::sync::Arc;

/// Puts tokens of one vocabulary into those of another.
pub trait VocabTranslator: Send + Sync {
    /// What was translated of one sequence, so that only what is new has to be.
    type Progress: Default + Send;

    /// The drafter's tokens that spell what the target's do; none while the text ends within a
    /// character.
    fn to_drafter<'a>(&self, progress: &'a mut Self::Progress, tokens: &[TokenId])
    -> &'a [TokenId];

    /// The target's tokens, behind those translated last, that spell what the drafter's `drafted`
    /// do, up to the first that its model does not know; none where no token of the target begins
    /// there.
    fn to_target(&self, progress: &Self::Progress, drafted: &[TokenId]) -> Vec<TokenId>;

    /// The target token with which a drafter token's text begins, if there is one.
    fn counterpart(&self, token: TokenId) -> Option<TokenId>;

    /// Whether a drafter token ends a text.
    fn is_end(&self, token: TokenId) -> bool;
}

/// Drafts with a language model of another vocabulary.
pub struct VocabTranslationDrafter<M, T: VocabTranslator> {
    model: M,
    translator: Arc<T>,
    progress: HashMap<SequenceId, T::Progress>,
}

impl<M: LanguageModel, T: VocabTranslator> VocabTranslationDrafter<M, T> {
    /// A drafter that asks `model`, whose tokens `translator` knows.
    pub fn new(model: M, translator: Arc<T>) -> Self {
        Self { model, translator, progress: HashMap::new() }
    }
}

impl<M: LanguageModel, T: VocabTranslator> Drafter for VocabTranslationDrafter<M, T> {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let DraftContext { sequence, tokens, sampling, cancel, .. } = *context;
        let DraftShape::Chain { length } = *context.shape else { return Ok(Draft::empty()) };
        let Self { model, translator, progress } = self;
        let progress = progress.entry(sequence).or_default();
        let mut own = translator.to_drafter(progress, tokens).to_vec();
        // A tokenizer may have more tokens than its model.
        if own.iter().any(|&token| token as usize >= model.vocab_size()) {
            return Ok(Draft::empty());
        }
        let start = own.len();
        // As many as spell `length` tokens of the target, by their ratio so far.
        let wanted = (length * start).div_ceil(tokens.len().max(1)).clamp(length / 2, 4 * length);
        let room = model.context_length().saturating_sub(start.saturating_sub(1));
        let mut translated = Vec::new();
        while start > 0 && own.len() < start + wanted.min(room) {
            let behind = LogitsContext { cancel, ..LogitsContext::next_token(sequence, &own) };
            let logits = model.logits(&behind)?;
            let position = tokens.len() + translated.len();
            let Some(row) = logits.rows().next() else { break };
            let token = most_probable(&**translator, sampling, row, position);
            own.push(token);
            translated = translator.to_target(progress, &own[start..]);
            if translated.len() >= length || translator.is_end(token) {
                break;
            }
        }
        translated.truncate(length);
        Ok(Draft { tree: TokenTree::chain(&translated), proposal: Proposal::Deterministic })
    }

    fn release(&mut self, sequence: SequenceId) {
        self.progress.remove(&sequence);
        self.model.release(sequence);
    }
}

/// Noise above this is as good as never drawn: once in ten million times.
const MOST_NOISE: f32 = 16.0;

/// The drafter's most probable token, perturbed by the target's noise where both are coupled.
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
        if !coupled || (logit - peak) / sampling.temperature < -MOST_NOISE {
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
