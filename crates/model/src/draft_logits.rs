//! Logits of heads that do not have all the tokens of the vocabulary.

use crate::forward::OutputRows;
use forerun_core::{BestTokens, RowUse};
use forerun_formats::Architecture;
use forerun_lm::EXCLUDED_LOGIT;

/// Returns what is read of the head's outputs if this is read of rows of the whole vocabulary.
pub(crate) fn head_use(architecture: &Architecture, rows_for: RowUse) -> RowUse {
    match (&architecture.head_tokens, rows_for) {
        (Some(of_outputs), RowUse::Best { count, tokens }) => {
            // If the outputs are in the order of their tokens, equal logits rank alike.
            match of_outputs.is_sorted() {
                true => {
                    let outputs = of_outputs.partition_point(|&token| (token as usize) < tokens);
                    RowUse::best(count, outputs)
                }
                false => RowUse::Full,
            }
        }
        _ => rows_for,
    }
}

/// Converts the head's rows to rows of the whole vocabulary, of which this is read.
pub(crate) fn expand_rows(
    architecture: &Architecture,
    rows: OutputRows,
    rows_for: RowUse,
) -> OutputRows {
    let Some(of_outputs) = &architecture.head_tokens else { return rows };
    let vocab_size = architecture.vocab_size;
    let OutputRows { logits, best } = rows;
    let mut expanded = vec![EXCLUDED_LOGIT; logits.len() / of_outputs.len() * vocab_size];
    let rows = expanded.chunks_exact_mut(vocab_size).zip(logits.chunks_exact(of_outputs.len()));
    for (expanded, head_row) in rows {
        for (&token, &logit) in of_outputs.iter().zip(head_row) {
            expanded[token as usize] = logit;
        }
    }
    let tokens = match rows_for {
        RowUse::Full => vocab_size,
        RowUse::Best { tokens, .. } => tokens,
    };
    let best = best.into_iter().map(|row| BestTokens {
        ranked: row.ranked.iter().map(|&(at, logit)| (of_outputs[at as usize], logit)).collect(),
        tokens,
    });
    OutputRows { logits: expanded, best: best.collect() }
}
