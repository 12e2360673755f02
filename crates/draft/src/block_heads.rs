//! DSpark and DFlash 2: drafts from the rows of a block, which heads correct one position after
//! another.
//!
//! *DSpark: Confidence-Scheduled Speculative Decoding with Semi-Autoregressive Generation*, 2026,
//! arXiv 2607.05147, section 3.
//!
//! 1. One forward computes the logits and the hidden states of all positions of the block, as in
//!    DFlash.
//! 2. For each node of the draft, from the first depth on, the Markov head adds a bias to the
//!    logits of the node's position, which depends on the tokens before it. Tokens are drawn from
//!    the corrected logits, which are also the proposal's distribution.
//! 3. The confidence head gives the probability that the target accepts the token of a position if
//!    it accepts those before it. The product of these along a path is the probability that the
//!    target gets that far. A draft ends before the first depth that no path reaches with a
//!    probability of [`MIN_SURVIVAL`].
//!
//! A confidence depends on the tokens before a position, never on the position's own token. So a
//! draft's end may depend on it, and the output keeps its distribution.
//!
//! DFlash 2 has a selector in place of these heads. It chooses among the tokens with the largest
//! logits of a position, and adds a bias to them. No other tokens are drafted.
//!
//! Deviation: the paper's scheduler chooses the lengths of all requests of a batch for the largest
//! throughput. Here the controller limits the length by measured costs, and the confidences end a
//! draft below that.

use crate::grow::Growth;
use forerun_core::{Draft, RowLogits, TokenId, node_of_row, row_of};
use forerun_lm::{
    BlockCorrection, BlockPosition, EXCLUDED_LOGIT, ForwardBlockHeads, ForwardOutput, ModelError,
};
use std::cmp::Ordering;

/// The least probability with which the target must accept a drafted token and all before it.
/// Checking a token takes a row of the target's pass, which costs about a tenth of a pass on
/// devices that compute several rows at once.
const MIN_SURVIVAL: f32 = 0.1;

/// A block and its rows.
pub(crate) struct Block<'a> {
    /// The logits of the rows that predict, and the hidden states of all rows as features.
    pub(crate) output: &'a ForwardOutput,
    /// The tokens of the block's first rows: the last token with a row of its own, and the tokens
    /// after it. Masks follow.
    pub(crate) tokens: &'a [TokenId],
    /// 0 if each row predicts the token after its place, and 1 if the row of a mask predicts the
    /// token in its place.
    pub(crate) first_row: usize,
    /// Only tokens below it are candidates.
    pub(crate) vocab_size: usize,
}

impl Block<'_> {
    /// Returns the hidden state of the block's row for a position.
    fn hidden(&self, position: usize) -> Result<&[f32], ModelError> {
        let hidden = self.output.features.as_ref().and_then(|rows| rows.row(position));
        hidden.ok_or(ModelError::NoFeatures)
    }

    /// Returns the position of the first token to draft.
    fn first_position(&self) -> usize {
        self.tokens.len() - 1 + self.first_row
    }

    /// Returns the token before a position up to the first one that predicts. The last token of the
    /// context is before its own row if that predicts nothing, as in training.
    fn previous(&self, position: usize) -> TokenId {
        self.tokens[position.saturating_sub(self.first_row)]
    }

    /// Returns the state after the positions before the first one that predicts.
    fn first_state(&self, heads: &mut dyn ForwardBlockHeads) -> Result<Vec<f32>, ModelError> {
        let mut state = Vec::new();
        if heads.is_recurrent() {
            for position in 0..self.first_position() {
                let (hidden, previous) = (self.hidden(position)?, self.previous(position));
                let (state_before, predicts, candidates) = (&state[..], false, &[][..]);
                let read =
                    BlockPosition { hidden, previous, state: state_before, predicts, candidates };
                state = heads.forward(&[read]).pop().unwrap_or_default().state;
            }
        }
        Ok(state)
    }
}

/// Grows a draft from a block's rows, which the heads correct. A failure after the first tokens
/// ends the draft there, because it may depend on them.
pub(crate) fn grow_from_block(
    mut growth: Growth<'_>,
    block: &Block<'_>,
    heads: &mut dyn ForwardBlockHeads,
) -> Result<Draft, ModelError> {
    match grow(&mut growth, block, heads) {
        Ok(()) => Ok(growth.finish()),
        Err(error) => growth.finish_after(error),
    }
}

fn grow(
    growth: &mut Growth<'_>,
    block: &Block<'_>,
    heads: &mut dyn ForwardBlockHeads,
) -> Result<(), ModelError> {
    let by_depth: Vec<&[f32]> = block.output.rows_truncated_to(block.vocab_size).collect();
    let (first, first_state) = (block.first_position(), block.first_state(heads)?);
    // By depth, if the heads choose among some tokens.
    let mut candidates: Vec<Vec<TokenId>> = Vec::new();
    // Of the rows of the tree so far: the states after them, and the probabilities that the target
    // accepts all tokens up to their children.
    let (mut states, mut survival): (Vec<Vec<f32>>, Vec<f32>) = (Vec::new(), Vec::new());
    while let Some((tree, first_row)) = growth.next_rows() {
        debug_assert_eq!(
            first_row,
            states.len(),
            "each depth starts after the rows of the one above"
        );
        let parent_row = |row| node_of_row(row).map(|node| row_of(tree.parent(node)));
        let depth = |row| node_of_row(row).map_or(0, |node| tree.depth(node));
        if let Some(count) = heads.candidates() {
            let new = by_depth.iter().take(depth(tree.len()) + 1).skip(candidates.len());
            candidates.extend(new.map(|logits| best_tokens(logits, count)));
        }
        let candidates_of = |row| candidates.get(depth(row)).map_or(&[][..], Vec::as_slice);
        let positions = (first_row..=tree.len()).map(|row| {
            let previous = match node_of_row(row) {
                Some(node) => tree.token(node),
                None => block.previous(first),
            };
            let state = parent_row(row).map_or(&first_state, |parent| &states[parent]);
            let hidden = block.hidden(first + depth(row))?;
            let candidates = candidates_of(row);
            Ok(BlockPosition { hidden, previous, state, predicts: true, candidates })
        });
        let corrections = heads.forward(&positions.collect::<Result<Vec<_>, ModelError>>()?);
        let mut rows = Vec::with_capacity(corrections.len());
        let mut survives = false;
        for (row, correction) in (first_row..).zip(corrections) {
            let BlockCorrection { logit_bias, confidence, state } = correction;
            let before = parent_row(row).map_or(1.0, |parent| survival[parent]);
            survival.push(before * confidence);
            survives |= before * confidence >= MIN_SURVIVAL;
            states.push(state);
            let logits = by_depth.get(depth(row)).copied().unwrap_or_default();
            rows.push(match candidates_of(row).is_empty() {
                true => corrected(logits, &logit_bias),
                false => corrected_candidates(logits, candidates_of(row), &logit_bias),
            });
        }
        if !survives {
            break;
        }
        growth.advance(&rows.iter().map(RowLogits::from).collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Adds biases to logits.
fn corrected(logits: &[f32], biases: &[f32]) -> Vec<f32> {
    let mut corrected = logits.to_vec();
    corrected.iter_mut().zip(biases).for_each(|(logit, bias)| *logit += bias);
    corrected
}

/// Adds biases to the logits of candidates, and excludes all other tokens. Logits that are not
/// finite stay visible.
fn corrected_candidates(logits: &[f32], candidates: &[TokenId], biases: &[f32]) -> Vec<f32> {
    let excluded = |logit: &f32| if logit.is_finite() { EXCLUDED_LOGIT } else { *logit };
    let mut corrected: Vec<f32> = logits.iter().map(excluded).collect();
    for (&token, bias) in candidates.iter().zip(biases) {
        corrected[token as usize] = logits[token as usize] + bias;
    }
    corrected
}

/// Returns the `count` tokens with the largest logits, best first. Equal logits rank by ascending
/// token id. No token whose logit is NaN is among them.
fn best_tokens(logits: &[f32], count: usize) -> Vec<TokenId> {
    let order = |(a, logit_a): &(TokenId, f32), (b, logit_b): &(TokenId, f32)| {
        logit_b.partial_cmp(logit_a).unwrap_or(Ordering::Equal).then(a.cmp(b))
    };
    let (mut best, mut least): (Vec<(TokenId, f32)>, _) = (Vec::new(), f32::NEG_INFINITY);
    for (token, &logit) in (0..).zip(logits) {
        // Tokens are in ascending order, so those with the least logit of `count` tokens rank after
        // them.
        if logit.is_nan() || best.len() >= count && logit <= least {
            continue;
        }
        best.push((token, logit));
        if count > 0 && best.len() == 2 * count {
            least = best.select_nth_unstable_by(count - 1, order).1.1;
            best.truncate(count);
        }
    }
    best.sort_unstable_by(order);
    best.into_iter().take(count).map(|(token, _)| token).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_tokens_are_those_with_the_largest_logits() {
        let logits = [0.5, 2.0, -1.0, f32::NAN, 2.0, 0.5, -0.0, 0.0];
        assert_eq!(best_tokens(&logits, 1), [1]);
        assert_eq!(best_tokens(&logits, 3), [1, 4, 0]);
        assert_eq!(best_tokens(&logits, 99), [1, 4, 0, 5, 6, 7, 2]);
        assert!(best_tokens(&[], 3).is_empty() && best_tokens(&logits, 0).is_empty());
        // Many ties, and every number of tokens.
        let logits: Vec<f32> = (0..200_u32).map(|token| (token * token % 23) as f32).collect();
        let mut sorted: Vec<TokenId> = (0..200).collect();
        sorted.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        for count in 0..=201 {
            assert_eq!(best_tokens(&logits, count), sorted[..count.min(200)], "{count}");
        }
    }

    #[test]
    fn tokens_that_are_no_candidates_are_excluded_and_broken_logits_stay() {
        let logits = [1.0, f32::NAN, 3.0, 2.0];
        let row = corrected_candidates(&logits, &[2, 3], &[-4.0, 0.5]);
        assert!(row[1].is_nan());
        assert_eq!([row[0], row[2], row[3]], [EXCLUDED_LOGIT, -1.0, 2.5]);
    }
}
