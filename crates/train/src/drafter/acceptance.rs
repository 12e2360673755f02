//! Acceptance rates of a drafter on a given text: for each position of a draft, the probability
//! that the target accepts it if it accepted all positions before it.
//!
//! Drafts are teacher-forced: each position after the first is conditioned on the tokens of the
//! text, not on drafted ones. Drafts are therefore weighted by the probability that they reach a
//! position:
//!
//! - Sampling: a draft whose tokens are all accepted follows the text with probability
//!   `Π min(draft, target)` over the text's tokens. The text itself was sampled from the target, so
//!   the weight of a draft is `Π min(1, draft / target)`.
//! - Greedy: a draft counts while its tokens, the target's and the text's are the same.
//!
//! On text that the target generated (by sampling, or greedily) these are the acceptance rates of a
//! chain. On other text they only indicate the drafter's progress.

use super::forward::Drafter;
use super::objective::Pair;
use super::target::Text;
use crate::metrics::PositionAcceptance;
use crate::ops::block_head_loss::MarkovBias;
use crate::ops::draft_head::{Distributions, FrozenHead, LOGIT_ROWS};
use crate::ops::elementwise::{exponentials, rms_norm, scale_by};
use crate::ops::groups::Groups;
use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Returns the mean number of tokens per target forward for drafts of the given acceptance rates:
/// `1 + Σ Π rates`. A rate that is not finite counts as 0.
#[must_use]
pub fn mean_accepted_tokens(rates: impl IntoIterator<Item = f64>) -> f64 {
    let mut reached = 1.0;
    rates.into_iter().fold(1.0, |sum, rate| {
        reached *= if rate.is_finite() { rate } else { 0.0 };
        sum + reached
    })
}

/// Acceptance statistics, summed over drafts, for each position.
#[derive(Clone, Debug, Default)]
pub(super) struct Acceptance {
    positions: Vec<Sums>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    /// Weights of the sampled drafts that reach the position.
    weight: f64,
    /// Their overlaps, weighted.
    overlap: f64,
    /// Greedy drafts that reach the position.
    reached: f64,
    /// Those of them that agree with the target there.
    agreed: f64,
}

/// The state of a draft before a position.
#[derive(Clone, Copy, Debug)]
struct DraftState {
    /// The weight of the sampled draft.
    weight: f64,
    /// Whether the greedy draft has agreed so far.
    agrees: bool,
}

/// The evaluation of one position of a draft.
struct PositionResult {
    overlap: f64,
    agrees: bool,
    /// The state of the draft after the position.
    next: DraftState,
}

impl Acceptance {
    /// Adds the drafts after `anchors`, which are token rows of each sequence.
    pub(super) fn add(
        &mut self,
        pair: Pair<'_>,
        text: &Text,
        anchors: &[usize],
        distributions: &Distributions,
    ) -> Result<()> {
        let Pair { drafter, target, options } = pair;
        let rows = draft_rows(pair, text, anchors)?;
        let markov = drafter.markov_head()?;
        let bias = markov
            .as_ref()
            .map(|([embeddings, weights], rank)| MarkovBias::new(embeddings, weights, *rank));
        let mut drafts = vec![DraftState { weight: 1.0, agrees: true }; rows[0].dim(0)?];
        self.positions.resize(rows.len(), Sums::default());
        for (position, (rows, sums)) in rows.iter().zip(&mut self.positions).enumerate() {
            let target_rows = (0..text.sequences()).flat_map(|sequence| {
                let first = sequence * text.context + position + options.kind.label_shift();
                anchors.iter().map(move |anchor| first + anchor)
            });
            let target_rows: Vec<usize> = target_rows.collect();
            let inputs = HeadInputs {
                head: drafter.head(target),
                rows: head_inputs(drafter, rows)?,
                // A Markov head reads the text's token before the position.
                previous: target_rows.iter().map(|&row| text.inputs[row]).collect(),
                bias: bias.as_ref(),
            };
            let results = evaluate_position(drafter, &inputs, &drafts, |draft| {
                let target_row = target_rows[draft];
                (distributions.of(target_row), text.targets[target_row] as usize)
            });
            for (draft, result) in drafts.iter_mut().zip(results) {
                sums.weight += draft.weight;
                sums.overlap += draft.weight * result.overlap;
                sums.reached += f64::from(u8::from(draft.agrees));
                sums.agreed += f64::from(u8::from(draft.agrees && result.agrees));
                *draft = result.next;
            }
        }
        Ok(())
    }

    /// Returns the acceptance rates of each position.
    pub(super) fn rates(&self) -> Vec<PositionAcceptance> {
        let rates = |sums: &Sums| PositionAcceptance {
            overlap: sums.overlap / sums.weight,
            agreement: sums.agreed / sums.reached,
        };
        self.positions.iter().map(rates).collect()
    }
}

/// The inputs of the head for one position of all drafts.
struct HeadInputs<'a> {
    head: &'a FrozenHead,
    /// `[drafts, hidden]`.
    rows: Vec<f32>,
    /// The token before the position of each draft.
    previous: Vec<u32>,
    bias: Option<&'a MarkovBias<'a>>,
}

impl HeadInputs<'_> {
    /// Returns the logits of some drafts: `[drafts, outputs]`.
    fn logits(&self, drafts: Range<usize>) -> Vec<f32> {
        let hidden = self.rows.len() / self.previous.len();
        let mut logits = vec![0.0; drafts.len() * self.head.vocab_size()];
        self.head.logits(&self.rows[drafts.start * hidden..drafts.end * hidden], &mut logits);
        if let Some(bias) = self.bias {
            bias.add(&self.previous[drafts], &mut logits);
        }
        logits
    }
}

/// Evaluates one position of all drafts. `label` returns the target's distribution and the text's
/// token for a draft.
fn evaluate_position<'a>(
    drafter: &Drafter,
    inputs: &HeadInputs<'_>,
    drafts: &[DraftState],
    label: impl Fn(usize) -> (&'a [f32], usize) + Sync,
) -> Vec<PositionResult> {
    let vocab_size = inputs.head.vocab_size();
    let results = drafts.par_chunks(LOGIT_ROWS).enumerate().map(|(block, drafts)| {
        let first = block * LOGIT_ROWS;
        let mut logits = inputs.logits(first..first + drafts.len());
        let draft_logits = logits.chunks_exact_mut(vocab_size).zip(drafts).enumerate();
        let evaluate = |(row, (draft_p, draft)): (usize, (&mut [f32], &DraftState))| {
            let (_, sum) = exponentials(draft_p);
            scale_by(draft_p, 1.0 / sum);
            let (target_p, token) = label(first + row);
            let overlap = |(output, q): (usize, &f32)| q.min(target_p[drafter.token_of(output)]);
            let overlap: f32 = draft_p.iter().enumerate().map(overlap).sum();
            let best = drafter.token_of(argmax(draft_p));
            let agrees = best == argmax(target_p);
            let of_token =
                drafter.output_of(token as u32).map_or(0.0, |output| draft_p[output as usize]);
            let ratio = f64::from(of_token) / f64::from(target_p[token]);
            let next = DraftState {
                weight: draft.weight * ratio.min(1.0),
                agrees: draft.agrees && agrees && best == token,
            };
            PositionResult { overlap: f64::from(overlap), agrees, next }
        };
        draft_logits.map(evaluate).collect::<Vec<_>>()
    });
    results.collect::<Vec<_>>().into_iter().flatten().collect()
}

/// Returns the index of the largest probability, the first one among equals.
fn argmax(probabilities: &[f32]) -> usize {
    let largest = probabilities.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    probabilities.iter().position(|&p| p == largest).unwrap_or(0)
}

/// Applies the drafter's final norm, if it has one, to rows: the inputs of the target's head.
pub(super) fn head_inputs(drafter: &Drafter, rows: &Tensor) -> Result<Vec<f32>> {
    let rows = rows.flatten_all()?.to_vec1::<f32>()?;
    let norm = drafter.final_norm()?.to_vec1::<f32>()?;
    if norm.is_empty() {
        return Ok(rows);
    }
    let mut out = vec![0.0; rows.len()];
    let mut r = vec![0.0; rows.len() / norm.len()];
    rms_norm(&rows, &norm, drafter.config.rms_norm_eps, &mut out, &mut r);
    Ok(out)
}

/// Computes the drafter's rows for each position of drafts, `[sequences · anchors, hidden]` each,
/// conditioned on the tokens of the text.
///
/// EAGLE drafts autoregressively: each position reads the features that it predicted for the
/// positions before.
pub(super) fn draft_rows(pair: Pair<'_>, text: &Text, anchors: &[usize]) -> Result<Vec<Tensor>> {
    let Pair { drafter, target, options } = pair;
    let positions = options.positions();
    if drafter.kind().has_draft_heads() {
        let in_sequence =
            |sequence: usize| anchors.iter().map(move |row| sequence * text.context + row);
        let at: Vec<usize> = (0..text.sequences()).flat_map(in_sequence).collect();
        let (rows, count) = (drafter.head_rows(target, text, &at)?, at.len());
        return (0..positions).map(|head| rows.narrow(0, head * count, count)).collect();
    }
    if drafter.kind().has_blocks() {
        let groups = Arc::new(drafter.groups(text.context, options.masks(), anchors.to_vec()));
        let rows = drafter.block_rows(target, text, &groups)?.detach();
        let blocks = anchors.len();
        let at = |position: usize| (position * blocks..(position + 1) * blocks).collect::<Vec<_>>();
        let at_position =
            |position| rows.index_select(&row_indices(&at(position), text, positions * blocks)?, 0);
        return (0..positions).map(at_position).collect();
    }
    let tokens = drafter.token_inputs(target, text, None)?.detach();
    if !drafter.kind().has_masks() {
        return predicted_features(pair, text, &tokens, anchors, positions);
    }
    let rows = drafter.token_rows(text.context);
    let groups = Arc::new(Groups::new(rows, positions - 1, anchors.to_vec()));
    let rows = drafter.layer_rows_with_masks(&tokens, &groups)?.detach();
    (0..positions).map(|depth| rows_at_depth(&rows, text, &groups, depth)).collect()
}

/// Lets EAGLE draft after `anchors` along the text, and returns the features that it predicts for
/// each position, `[sequences · anchors, hidden]` each, without gradients. `tokens` are the layer's
/// inputs for the text.
pub(super) fn predicted_features(
    pair: Pair<'_>,
    text: &Text,
    tokens: &Tensor,
    anchors: &[usize],
    positions: usize,
) -> Result<Vec<Tensor>> {
    let drafter = pair.drafter;
    let (mut predicted, mut inputs) = (Vec::new(), Vec::new());
    for depth in 0..positions {
        if let Some(features) = predicted.last() {
            inputs.push(drafted_inputs(pair, text, anchors, depth, features)?.detach());
        }
        let rows = drafter.token_rows(text.context);
        let groups = Arc::new(Groups::new(rows, depth, anchors.to_vec()));
        let rows = drafter.layer_rows(tokens, &inputs, &groups)?.detach();
        predicted.push(rows_at_depth(&rows, text, &groups, depth)?);
    }
    Ok(predicted)
}

/// Computes EAGLE's inputs at a depth of drafts, 1 or more, from the features that it predicted for
/// the depth before: `[sequences · anchors, hidden]`. The tokens are those of the text.
pub(super) fn drafted_inputs(
    pair: Pair<'_>,
    text: &Text,
    anchors: &[usize],
    depth: usize,
    features: &Tensor,
) -> Result<Tensor> {
    // Row `a` reads token `a + 1`, and predicts the feature at that position. No label exists
    // beyond the text's end.
    let targets = text.targets.chunks_exact(text.context);
    let token = |targets: &[u32], anchor: usize| targets.get(anchor + depth).copied().unwrap_or(0);
    let tokens =
        targets.flat_map(|targets| anchors.iter().map(move |&anchor| token(targets, anchor)));
    pair.drafter.drafted_inputs(pair.target, &tokens.collect::<Vec<_>>(), features)
}

/// Returns the rows of a depth of all groups: `[sequences · groups, hidden]`.
fn rows_at_depth(rows: &Tensor, text: &Text, groups: &Groups, depth: usize) -> Result<Tensor> {
    let at_depth: Vec<usize> =
        (0..groups.anchors().len()).map(|group| groups.row(group, depth)).collect();
    rows.index_select(&row_indices(&at_depth, text, groups.rows())?, 0)
}

/// Returns the indices of the given rows in every sequence. Each sequence has `sequence_rows` rows.
fn row_indices(rows: &[usize], text: &Text, sequence_rows: usize) -> Result<Tensor> {
    let indices =
        |sequence: usize| rows.iter().map(move |row| (sequence * sequence_rows + row) as u32);
    Tensor::new((0..text.sequences()).flat_map(indices).collect::<Vec<_>>(), &Device::Cpu)
}
