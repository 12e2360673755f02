//! Logits of heads that do not have all the tokens of the vocabulary.

use forerun_formats::Architecture;
use forerun_lm::EXCLUDED_LOGIT;

/// Converts the head's logits to logits of the whole vocabulary.
pub(crate) fn expand_logits(
    architecture: &Architecture,
    logits: &[f32], // [rows, head outputs]
) -> Vec<f32> {
    let Some(tokens) = &architecture.head_tokens else { return logits.to_vec() };
    let vocab_size = architecture.vocab_size;
    let mut expanded = vec![EXCLUDED_LOGIT; logits.len() / tokens.len() * vocab_size];
    let rows = expanded.chunks_exact_mut(vocab_size).zip(logits.chunks_exact(tokens.len()));
    for (expanded, head_row) in rows {
        for (&token, &logit) in tokens.iter().zip(head_row) {
            expanded[token as usize] = logit;
        }
    }
    expanded
}
