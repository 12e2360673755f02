//! The training objectives of Medusa (arXiv 2401.10774, §2.2.1), Hydra (arXiv 2402.05109, the
//! same), EAGLE (arXiv 2401.15077, §3.2), ParallelSpec (arXiv 2410.05589, equations 2 to 4), DFlash
//! (arXiv 2602.06036, equation 4) and DSpark (arXiv 2607.05147, §3, with the weights of its
//! authors' code).
//!
//! A row at anchor `a` and depth `d` of a sequence, both counted from 0, is labelled by the target
//! row `a + d + shift` of that sequence: by the token after it, by the target's distribution of
//! that token, and for EAGLE by the feature of the row. Labels beyond the end of the sequence are
//! ignored (−100 in ParallelSpec's figure 3).

use super::acceptance::{drafted_inputs, predicted_features};
use super::forward::Drafter;
use super::options::{DrafterOptions, TrainedDrafterKind};
use super::target::{Target, Text};
use crate::data::hash_words;
use crate::ops::block_head_loss::{BlockHeadLoss, BlockLabels};
use crate::ops::draft_head::{Distributions, DraftHeadLoss, DraftLabels};
use crate::ops::feature_loss::FeatureLoss;
use crate::ops::groups::Groups;
use crate::ops::{apply, none};
use candle_core::{Result, Tensor, bail};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::{Arc, Mutex};

/// Purposes of random numbers. Each purpose has its own stream.
const ANCHORS: u64 = 11;
const NOISE: u64 = 12;

/// A drafter, its target, and the options of its training.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) drafter: &'a Drafter,
    pub(super) target: &'a Target,
    pub(super) options: &'a DrafterOptions,
}

/// The training objective of a drafter.
#[derive(Clone, Copy)]
pub(super) struct Objective<'a> {
    pub(super) pair: Pair<'a>,
    /// The share of the divergence from the target's distributions in the classification loss. For
    /// DSpark, it is that of the distance.
    pub(super) distillation_share: f32,
    /// The weight of the loss of DSpark's confidence head, relative to that of its tokens.
    pub(super) confidence_weight: f32,
    /// The weight of a token's loss.
    pub(super) weight: f32,
    /// Whether there will be a backward pass.
    pub(super) train: bool,
}

impl Objective<'_> {
    /// Computes the loss of a text as a scalar.
    ///
    /// - Medusa's and Hydra's heads: `L = Σ −λ_k log p(token k)` (ParallelSpec, equation 2).
    /// - ParallelSpec in place of Medusa: the same, and the next token in addition (equation 3).
    /// - EAGLE, perhaps with drafted positions in its groups, and ParallelSpec in its place:
    ///   `SmoothL1(feature) − 0.1 log p(token)`, summed over a group (equation 4).
    /// - DFlash: `Σ −w_k log p(token k)` over the masks of a block (its equation 4).
    /// - DSpark: see [`BlockHeadLoss`], with the same weights.
    ///
    /// `groups` are the rows of each sequence; heads on one feature ignore them. `noise` is added
    /// to the features that the drafter reads. `distributions` are those of the text's target rows;
    /// they are required if `distillation_share` is above 0, and for DSpark, which needs those of
    /// all the target's tokens.
    pub(super) fn loss(
        &self,
        text: &Text,
        groups: &Arc<Groups>,
        noise: Option<&[f32]>,
        distributions: Option<&Arc<Distributions>>,
    ) -> Result<Tensor> {
        let Pair { drafter, target, options } = self.pair;
        let kind = drafter.kind();
        let (rows, labels) = match kind {
            kind if kind.has_draft_heads() => {
                let all: Vec<usize> = (0..text.inputs.len()).collect();
                let rows = drafter.head_rows(target, text, &all)?;
                (rows, self.head_labels(drafter.slots(), text))
            }
            TrainedDrafterKind::Dflash => {
                (drafter.block_rows(target, text, groups)?, self.block_labels(groups, text))
            }
            TrainedDrafterKind::Dspark => return self.block_head_loss(text, groups, distributions),
            _ => {
                let tokens = drafter.token_inputs(target, text, noise)?;
                let rows = match kind.has_masks() {
                    true => drafter.layer_rows_with_masks(&tokens, groups)?,
                    false => self.rows_with_drafts(text, &tokens, groups)?,
                };
                (rows, self.group_labels(groups, text))
            }
        };
        let Labels { target_rows, weights } = labels;
        let target_rows: Arc<[u32]> = target_rows.into();
        let token = |&row: &u32| drafter.output_of(text.targets[row as usize]);
        let tokens: Vec<Option<u32>> = target_rows.iter().map(token).collect();
        let soft = distributions.map(|all| (Arc::clone(all), self.distillation_share));
        // Tokens that the drafter cannot draft have no token loss.
        let scaled = weights.iter().zip(&tokens).map(|(weight, token)| match token {
            Some(_) => weight * options.classification_weight,
            None => 0.0,
        });
        let head = DraftHeadLoss {
            epsilon: target.config().rms_norm_eps,
            head: Arc::clone(drafter.head(target)),
            labels: DraftLabels {
                tokens: tokens.iter().map(|token| token.unwrap_or(0)).collect(),
                target_rows: Arc::clone(&target_rows),
                weights: scaled.collect(),
                soft,
            },
            train: self.train,
            parts: Arc::new(Mutex::default()),
        };
        let loss = apply(head, [&rows, &drafter.final_norm()?, &none()?])?;
        if !kind.predicts_features() {
            return Ok(loss);
        }
        let features = FeatureLoss {
            features: Arc::clone(&text.features),
            hidden: target.config().hidden_size,
            target_rows,
            weights: weights.into(),
        };
        loss + apply(features, [&rows, &none()?, &none()?])?
    }

    /// Computes the loss of DSpark. The token before each position is that of the text.
    fn block_head_loss(
        &self,
        text: &Text,
        groups: &Arc<Groups>,
        distributions: Option<&Arc<Distributions>>,
    ) -> Result<Tensor> {
        let Pair { drafter, target, options } = self.pair;
        let (Some(rank), Some(distributions)) = (options.markov_rank, distributions) else {
            bail!("DSpark's loss needs its options and the target's distributions")
        };
        let rows = drafter.block_rows(target, text, groups)?;
        let Labels { target_rows, weights } = self.block_labels(groups, text);
        let token = |&row: &u32| drafter.output_of(text.targets[row as usize]);
        let weights = weights.iter().map(|weight| weight * options.classification_weight);
        let loss = BlockHeadLoss {
            epsilon: target.config().rms_norm_eps,
            head: Arc::clone(drafter.head(target)),
            rank,
            labels: BlockLabels {
                previous: target_rows.iter().map(|&row| text.inputs[row as usize]).collect(),
                tokens: target_rows.iter().map(token).collect(),
                target_rows: target_rows.into(),
                weights: weights.collect(),
                distributions: Arc::clone(distributions),
                outputs: drafter.vocabulary.as_ref().map(|some| Arc::clone(some.tokens())),
            },
            distance_share: self.distillation_share,
            confidence_weight: self.confidence_weight,
            train: self.train,
        };
        apply(loss, [&rows, &drafter.final_norm()?, &drafter.head_weights()?])
    }

    /// Computes EAGLE's rows for token inputs, followed by rows that read the features which the
    /// drafter itself predicts (training-time test: EAGLE-3, arXiv 2503.01840, §3.2; HASS, arXiv
    /// 2408.15766, §3.2). The gradient does not flow through these features.
    fn rows_with_drafts(
        &self,
        text: &Text,
        tokens: &Tensor,
        groups: &Arc<Groups>,
    ) -> Result<Tensor> {
        let anchors = groups.anchors();
        let inputs = tokens.detach();
        let predicted =
            predicted_features(self.pair, text, &inputs, anchors, groups.further_rows())?;
        let drafts = predicted
            .iter()
            .enumerate()
            .map(|(depth, features)| drafted_inputs(self.pair, text, anchors, depth + 1, features));
        let drafts = drafts.collect::<Result<Vec<_>>>()?;
        self.pair.drafter.layer_rows(tokens, &drafts, groups)
    }

    fn head_labels(&self, heads: usize, text: &Text) -> Labels {
        let mut labels = Labels::default();
        for head in 0..heads {
            let weight = self.weight * self.pair.options.position_weight(head);
            for sequence in 0..text.sequences() {
                for row in 0..text.context {
                    labels.push(text, sequence, row + head + 1, weight);
                }
            }
        }
        labels
    }

    fn group_labels(&self, groups: &Groups, text: &Text) -> Labels {
        let shift = self.pair.options.kind.label_shift();
        // If only some tokens open groups, their masks also represent those of the other tokens.
        let anchor_weight = groups.tokens() as f32 / groups.anchors().len().max(1) as f32;
        let mut labels = Labels::default();
        for sequence in 0..text.sequences() {
            for row in 0..groups.rows() {
                let (anchor, depth) = groups.anchor_and_depth(row);
                let factor = if depth == 0 { 1.0 } else { anchor_weight };
                let weight = self.weight * factor * self.pair.options.position_weight(depth);
                labels.push(text, sequence, anchor + depth + shift, weight);
            }
        }
        labels
    }

    /// Returns the labels of the rows of blocks that predict tokens. The first one predicts the
    /// token after the anchor.
    fn block_labels(&self, groups: &Groups, text: &Text) -> Labels {
        let (anchors, first) = (groups.anchors(), self.pair.options.kind.first_predicting_row());
        let anchor_weight = groups.tokens() as f32 / anchors.len().max(1) as f32;
        let mut labels = Labels::default();
        for sequence in 0..text.sequences() {
            for position in 0..groups.further_rows() - first {
                let factor = self.pair.options.position_weight(position);
                let weight = self.weight * anchor_weight * factor;
                for &anchor in anchors {
                    labels.push(text, sequence, anchor + position, weight);
                }
            }
        }
        labels
    }

    /// Samples the anchors of a step. The tokens are cut into equal ranges, their number given by
    /// `group_share`, and one anchor is drawn from each range.
    pub(super) fn sample_anchors(&self, tokens: usize, key: [u64; 2]) -> Vec<usize> {
        let share = f64::from(self.pair.options.group_share);
        let count = ((tokens as f64 * share).ceil() as usize).clamp(1, tokens);
        let mut random = StdRng::seed_from_u64(hash_words(&[key[0], ANCHORS, key[1]]));
        let anchor = |group: usize| {
            random.random_range(group * tokens / count..(group + 1) * tokens / count)
        };
        (0..count).map(anchor).collect()
    }

    /// Samples the noise for a text's features; `None` if `feature_noise` is 0.
    pub(super) fn sample_noise(&self, text: &Text, key: [u64; 2]) -> Option<Vec<f32>> {
        let width = self.pair.options.feature_noise * 512.0 / text.context.max(512) as f32;
        let mut random = StdRng::seed_from_u64(hash_words(&[key[0], NOISE, key[1]]));
        let value = |_| width * (random.random::<f32>() - 0.5);
        (width > 0.0).then(|| (0..text.features.len()).map(value).collect())
    }
}

/// The labels of rows: for each row, the target row that labels it, and the weight of its loss.
#[derive(Default)]
struct Labels {
    target_rows: Vec<u32>,
    weights: Vec<f32>,
}

impl Labels {
    /// Adds a row that is labelled by the target row at `position` of its sequence. A position
    /// beyond the end gets the weight 0.
    fn push(&mut self, text: &Text, sequence: usize, position: usize, weight: f32) {
        let exists = position < text.context;
        let target_row = sequence * text.context + if exists { position } else { 0 };
        self.target_rows.push(target_row as u32);
        self.weights.push(if exists { weight } else { 0.0 });
    }
}
