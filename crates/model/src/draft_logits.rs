//! Logits of heads that do not have all the tokens of the vocabulary.

use crate::forward::OutputRows;
use forerun_core::{BestTokens, RowUse};
use forerun_formats::Architecture;
use forerun_lm::EXCLUDED_LOGIT;

/// Returns what is read of the head's outputs if this is read of rows of the whole vocabulary.
pub(crate) fn head_use(architecture: &Architecture, rows_for: RowUse) -> RowUse {
    match (&architecture.head_tokens, rows_for) {
        (Some(of_outputs), RowUse::Best { count, tokens }) => {
            // If the outputs are in the order of their tokens, equal logits rank alike. A token of several outputs would be
            // among the best more than once.
            match of_outputs.is_sorted_by(|token, next| token < next) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_formats::checkpoint::random::example_config;
    use forerun_lm::Progress;

    fn with_head(of_outputs: &[u32]) -> Architecture {
        Architecture { head_tokens: Some(of_outputs.into()), ..example_config().architecture() }
    }

    #[test]
    fn only_outputs_in_the_strict_order_of_their_tokens_are_selected() {
        let best_two = RowUse::best(2, 200);
        let of = |of_outputs: &[u32]| head_use(&with_head(of_outputs), best_two);
        assert_eq!(of(&[3, 5, 8, 199, 200]), RowUse::Best { count: 2, tokens: 4 });
        assert_eq!(of(&[3, 8, 5, 199, 200]), RowUse::Full);
        assert_eq!(of(&[3, 5, 5, 8, 199]), RowUse::Full);
        assert_eq!(head_use(&with_head(&[3, 5, 8]), RowUse::Full), RowUse::Full);
        assert_eq!(head_use(&example_config().architecture(), best_two), best_two);
    }

    #[test]
    fn a_token_of_several_outputs_is_in_a_row_once() {
        let architecture = with_head(&[3, 5, 5, 8]);
        let rows = OutputRows { logits: vec![1.0, 2.0, 4.0, 3.0], best: Vec::new() };
        let mut progress = Progress::default();
        expand_rows(&architecture, rows, RowUse::best(2, 200)).add_to(&mut progress);
        assert_eq!(BestTokens::of(&progress.logits, 3).ranked, [(5, 4.0), (8, 3.0), (3, 1.0)]);
    }
}
