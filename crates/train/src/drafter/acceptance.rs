//! What drafts are worth on a given text: for each position of a draft, how much of it the target
//! would accept where it accepted all positions before.
//!
//! The text leads: positions behind the first are judged on the text's own tokens. A draft whose
//! sampled tokens are accepted follows the text with the probability `Π min(draft, target)` over
//! the text's tokens, so a sample of the target's counts `Π min(1, draft / target)` as a draft that got
//! so far; a greedy draft counts where its tokens, the target's and the text's are the same. On text
//! that the target wrote (sampled, or greedily) these are the acceptance rates of a chain; on other text
//! they tell how a drafter gets on.

use super::forward::Drafter;
use super::objective::Pair;
use super::options::TrainedDrafterKind;
use super::target::{Target, Text};
use crate::metrics::number_or_null;
use crate::ops::draft_head::{Distributions, LOGIT_ROWS};
use crate::ops::elementwise::{exponentials, rms_norm, scale_by};
use crate::ops::groups::Groups;
use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What a position of drafts is worth where all positions before it were accepted. Not a number where
/// none was.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PositionAcceptance {
    /// Probability that a sampled token is accepted at temperature 1: `Σ min(draft, target)`.
    #[serde(deserialize_with = "number_or_null")]
    pub overlap: f64,
    /// Share of drafts whose most probable token is the target's.
    #[serde(deserialize_with = "number_or_null")]
    pub agreement: f64,
}

/// Tokens that a target forward yields with drafts of these acceptance rates: `1 + Σ Π rates`.
#[must_use]
pub fn mean_accepted_tokens(rates: impl IntoIterator<Item = f64>) -> f64 {
    let mut reached = 1.0;
    rates.into_iter().fold(1.0, |sum, rate| {
        reached *= if rate.is_finite() { rate } else { 0.0 };
        sum + reached
    })
}

/// Sums over drafts, by position.
#[derive(Clone, Debug, Default)]
pub(super) struct Acceptance {
    positions: Vec<Sums>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    weight: f64,
    overlap: f64,
    reached: f64,
    agreed: f64,
}

/// How far a draft got.
#[derive(Clone, Copy, Debug)]
struct Draft {
    weight: f64,
    agrees: bool,
}

/// A position's judgement.
struct Judged {
    overlap: f64,
    agrees: bool,
    /// What the draft counts behind it.
    next: Draft,
}

impl Acceptance {
    /// Adds the drafts behind `anchors` (token rows of each sequence).
    pub(super) fn add(
        &mut self,
        pair: Pair<'_>,
        text: &Text,
        anchors: &[usize],
        distributions: &Distributions,
    ) -> Result<()> {
        let Pair { drafter, target, options } = pair;
        let rows = drafts(pair, text, anchors)?;
        let mut drafts = vec![Draft { weight: 1.0, agrees: true }; rows[0].dim(0)?];
        self.positions.resize(rows.len(), Sums::default());
        for (position, (rows, sums)) in rows.iter().zip(&mut self.positions).enumerate() {
            let places = (0..text.sequences()).flat_map(|sequence| {
                let first = sequence * text.context + position + options.kind.label_shift();
                anchors.iter().map(move |anchor| first + anchor)
            });
            let places: Vec<usize> = places.collect();
            let rows = normed(drafter, rows)?;
            let judged = judge(target, &rows, &drafts, |draft| {
                let place = places[draft];
                (distributions.of(place), text.targets[place] as usize)
            });
            for (draft, judged) in drafts.iter_mut().zip(judged) {
                sums.weight += draft.weight;
                sums.overlap += draft.weight * judged.overlap;
                sums.reached += f64::from(u8::from(draft.agrees));
                sums.agreed += f64::from(u8::from(draft.agrees && judged.agrees));
                *draft = judged.next;
            }
        }
        Ok(())
    }

    /// The rates of each position.
    pub(super) fn rates(&self) -> Vec<PositionAcceptance> {
        let rates = |sums: &Sums| PositionAcceptance {
            overlap: sums.overlap / sums.weight,
            agreement: sums.agreed / sums.reached,
        };
        self.positions.iter().map(rates).collect()
    }
}

/// Judges one position of all drafts: `rows` are what the head takes, `label` gives the target's
/// distribution and the text's token for a draft.
fn judge<'a>(
    target: &Target,
    rows: &[f32],
    drafts: &[Draft],
    label: impl Fn(usize) -> (&'a [f32], usize) + Sync,
) -> Vec<Judged> {
    let (hidden, vocab_size) = (target.config().hidden_size, target.head().vocab_size());
    let blocks = rows.par_chunks(LOGIT_ROWS * hidden).zip(drafts.par_chunks(LOGIT_ROWS));
    let judged = blocks.enumerate().map(|(block, (rows, drafts))| {
        let mut logits = vec![0.0; drafts.len() * vocab_size];
        target.head().logits(rows, &mut logits);
        let each = logits.chunks_exact_mut(vocab_size).zip(drafts).enumerate();
        let one = |(row, (probabilities, draft)): (usize, (&mut [f32], &Draft))| {
            let (_, sum) = exponentials(probabilities);
            scale_by(probabilities, 1.0 / sum);
            let (of_target, token) = label(block * LOGIT_ROWS + row);
            let common: f32 = probabilities.iter().zip(of_target).map(|(q, p)| q.min(*p)).sum();
            let best = most_probable(probabilities);
            let agrees = best == most_probable(of_target);
            let ratio = f64::from(probabilities[token]) / f64::from(of_target[token]);
            let next = Draft {
                weight: draft.weight * ratio.min(1.0),
                agrees: draft.agrees && agrees && best == token,
            };
            Judged { overlap: f64::from(common), agrees, next }
        };
        each.map(one).collect::<Vec<_>>()
    });
    judged.collect::<Vec<_>>().into_iter().flatten().collect()
}

/// The first of the largest.
fn most_probable(probabilities: &[f32]) -> usize {
    let largest = probabilities.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    probabilities.iter().position(|&p| p == largest).unwrap_or(0)
}

/// Rows as the target's head takes them.
pub(super) fn normed(drafter: &Drafter, rows: &Tensor) -> Result<Vec<f32>> {
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

/// The rows of each position of drafts, `[sequences · anchors, hidden]`, on the text's own tokens.
/// EAGLE drafts position after position, each from the features that it predicted for those before.
pub(super) fn drafts(pair: Pair<'_>, text: &Text, anchors: &[usize]) -> Result<Vec<Tensor>> {
    let Pair { drafter, target, options } = pair;
    let positions = options.positions();
    if drafter.kind == TrainedDrafterKind::Medusa {
        let size = (text.inputs.len(), target.config().hidden_size);
        let features = Tensor::from_slice(&text.features, size, &Device::Cpu)?;
        let rows = drafter.medusa(&features.index_select(&at(anchors, text, text.context)?, 0)?)?;
        let own = text.sequences() * anchors.len();
        return (0..positions).map(|head| rows.narrow(0, head * own, own)).collect();
    }
    let tokens = drafter.token_inputs(target, text, None)?.detach();
    let rows_of = |rows: &Tensor, groups: &Groups, depth| {
        let of_depth: Vec<usize> =
            (0..anchors.len()).map(|group| groups.row(group, depth)).collect();
        rows.index_select(&at(&of_depth, text, groups.rows())?, 0)
    };
    let groups =
        |masks| Arc::new(Groups::new(drafter.token_rows(text.context), masks, anchors.to_vec()));
    if drafter.kind.has_masks() {
        let groups = groups(positions - 1);
        let rows = drafter.masked_rows(&tokens, &groups)?.detach();
        return (0..positions).map(|depth| rows_of(&rows, &groups, depth)).collect();
    }
    let (mut drafts, mut behind) = (Vec::new(), Vec::new());
    for depth in 0..positions {
        let groups = groups(depth);
        let rows = drafter.rows(&tokens, &behind, &groups)?.detach();
        let own = rows_of(&rows, &groups, depth)?;
        // Row `a` is of token `a + 1`, and predicts the feature there.
        let next = (0..text.sequences()).flat_map(|sequence| {
            let first = sequence * text.context + depth + 1;
            anchors.iter().map(move |anchor| text.targets[first + anchor])
        });
        let next: Vec<u32> = next.collect();
        behind.push(drafter.drafted_inputs(target, &next, &own)?.detach());
        drafts.push(own);
    }
    Ok(drafts)
}

/// Rows of every sequence, each of `rows`, as indices.
fn at(own: &[usize], text: &Text, rows: usize) -> Result<Tensor> {
    let of = |sequence: usize| own.iter().map(move |row| (sequence * rows + row) as u32);
    Tensor::new((0..text.sequences()).flat_map(of).collect::<Vec<_>>(), &Device::Cpu)
}
