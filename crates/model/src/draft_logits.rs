//! Logits of heads that do not have all the tokens of the vocabulary.

use crate::forward::OutputRows;
use forerun_core::{BestTokens, RowUse, TokenId};
use forerun_formats::{Architecture, DraftHeads};
use forerun_lm::EXCLUDED_LOGIT;
use std::sync::Arc;

/// The outputs of a head, which may be fewer than the tokens of the vocabulary.
pub(crate) struct HeadOutputs {
    /// The tokens of the outputs, if they are not all tokens.
    tokens: Option<Arc<[TokenId]>>,
    vocab_size: usize,
}

impl From<&Architecture> for HeadOutputs {
    fn from(model: &Architecture) -> Self {
        Self { tokens: model.head_tokens.clone(), vocab_size: model.vocab_size }
    }
}

impl From<&DraftHeads> for HeadOutputs {
    fn from(heads: &DraftHeads) -> Self {
        Self { tokens: heads.head_tokens.clone(), vocab_size: heads.vocab_size }
    }
}

impl HeadOutputs {
    pub(crate) fn count(&self) -> usize {
        self.tokens.as_ref().map_or(self.vocab_size, |tokens| tokens.len())
    }

    /// Returns what is read of the outputs if this is read of rows of the whole vocabulary.
    pub(crate) fn read_for(&self, rows_for: RowUse) -> RowUse {
        match (&self.tokens, rows_for) {
            (Some(of_outputs), RowUse::Best { count, tokens }) => {
                // If the outputs are in the order of their tokens, equal logits rank alike. A token
                // of several outputs would be among the best more than once.
                match of_outputs.is_sorted_by(|token, next| token < next) {
                    true => {
                        let outputs =
                            of_outputs.partition_point(|&token| (token as usize) < tokens);
                        RowUse::best(count, outputs)
                    }
                    false => RowUse::Full,
                }
            }
            _ => rows_for,
        }
    }

    /// Converts rows of the outputs to rows of the whole vocabulary, of which this is read.
    pub(crate) fn expand(&self, rows: OutputRows, rows_for: RowUse) -> OutputRows {
        let Self { tokens: Some(of_outputs), vocab_size } = self else { return rows };
        let vocab_size = *vocab_size;
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
        let ranked = |row: &BestTokens| {
            row.ranked.iter().map(|&(at, logit)| (of_outputs[at as usize], logit)).collect()
        };
        let best = best.into_iter().map(|row| BestTokens { ranked: ranked(&row), tokens });
        OutputRows { logits: expanded, best: best.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forerun_lm::Progress;

    fn head(tokens: Option<&[TokenId]>) -> HeadOutputs {
        HeadOutputs { tokens: tokens.map(Arc::from), vocab_size: 259 }
    }

    #[test]
    fn only_outputs_in_the_strict_order_of_their_tokens_are_selected() {
        let best_two = RowUse::best(2, 200);
        let of = |of_outputs: &[TokenId]| head(Some(of_outputs)).read_for(best_two);
        assert_eq!(of(&[3, 5, 8, 199, 200]), RowUse::Best { count: 2, tokens: 4 });
        assert_eq!(of(&[3, 8, 5, 199, 200]), RowUse::Full);
        assert_eq!(of(&[3, 5, 5, 8, 199]), RowUse::Full);
        assert_eq!(head(Some(&[3, 5, 8])).read_for(RowUse::Full), RowUse::Full);
        assert_eq!(head(None).read_for(best_two), best_two);
    }

    #[test]
    fn a_token_of_several_outputs_is_in_a_row_once() {
        let head = head(Some(&[3, 5, 5, 8]));
        let rows = OutputRows { logits: vec![1.0, 2.0, 4.0, 3.0], best: Vec::new() };
        let mut progress = Progress::default();
        head.expand(rows, RowUse::best(2, 200)).add_to(&mut progress);
        assert_eq!(BestTokens::of(&progress.logits, 3).ranked, [(5, 4.0), (8, 3.0), (3, 1.0)]);
    }
}
