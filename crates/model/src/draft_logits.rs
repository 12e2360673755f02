//! Logits of heads that do not have all the tokens of the vocabulary.

use forerun_formats::Architecture;

/// The logit of a token that is not in the head: it is finite, but its probability is 0.
const EXCLUDED_LOGIT: f32 = -1e9;

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
