//! The papers' losses.
//!
//! A row at anchor `a` and depth `d` of a sequence, both counted from 0, has the label of place
//! `a + d + shift`: the token behind that place, the target's distribution of it, and, for EAGLE, the
//! feature there. Labels beyond the sequence's end are ignored (figure 3's −100).

use super::forward::Drafter;
use super::options::{DrafterOptions, TrainedDrafterKind};
use super::target::{Target, Text};
use crate::data::mixed;
use crate::ops::draft_head::{Distributions, DraftHeadLoss, DraftLabels};
use crate::ops::feature_loss::FeatureLoss;
use crate::ops::groups::Groups;
use crate::ops::{apply, none};
use candle_core::{Device, Result, Tensor};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::{Arc, Mutex};

/// Purposes of random numbers, so that no two share one.
const ANCHORS: u64 = 11;
const NOISE: u64 = 12;

/// A drafter and whom it drafts for.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) drafter: &'a Drafter,
    pub(super) target: &'a Target,
    pub(super) options: &'a DrafterOptions,
}

/// How a loss is taken of a text.
#[derive(Clone, Copy)]
pub(super) struct Objective<'a> {
    pub(super) pair: Pair<'a>,
    /// Share of the divergence from the target's distributions in the cross-entropy.
    pub(super) distillation_share: f32,
    /// What a token's loss counts.
    pub(super) weight: f32,
    /// Whether there will be a backward pass.
    pub(super) train: bool,
}

impl Objective<'_> {
    /// The loss as a scalar. `groups` are those of every sequence; Medusa's heads have no use for
    /// them. `distributions` of the text's places are needed where there is a share for them.
    ///
    /// `L = Σ −λ_k log p(token k)` for Medusa's heads (ParallelSpec, eq. 2) and its replacement, which
    /// begins with the next token (eq. 3); for EAGLE and its replacement, summed over a group,
    /// `SmoothL1(feature) − 0.1 log p(token)` (eq. 4).
    pub(super) fn loss(
        &self,
        text: &Text,
        groups: &Arc<Groups>,
        noise: Option<&[f32]>,
        distributions: Option<&Arc<Distributions>>,
    ) -> Result<Tensor> {
        let Pair { drafter, target, options } = self.pair;
        let (rows, labels) = if drafter.kind == TrainedDrafterKind::Medusa {
            let size = (text.inputs.len(), target.config().hidden_size);
            let features = Tensor::from_slice(&text.features, size, &Device::Cpu)?;
            (drafter.medusa(&features)?, self.labels_of_heads(drafter.size, text))
        } else {
            let tokens = drafter.token_inputs(target, text, noise)?;
            (drafter.masked_rows(&tokens, groups)?, self.labels_of_groups(groups, text))
        };
        let Labels { places, weights } = labels;
        let places: Arc<[u32]> = places.into();
        let soft = distributions.map(|all| (Arc::clone(all), self.distillation_share));
        let scaled = weights.iter().map(|weight| weight * options.classification_weight);
        let head = DraftHeadLoss {
            epsilon: target.config().rms_norm_eps,
            head: Arc::clone(target.head()),
            labels: DraftLabels {
                tokens: places.iter().map(|&place| text.targets[place as usize]).collect(),
                places: Arc::clone(&places),
                weights: scaled.collect(),
                soft,
            },
            train: self.train,
            parts: Arc::new(Mutex::default()),
        };
        let loss = apply(head, [&rows, &drafter.final_norm()?, &none()?])?;
        if !drafter.kind.predicts_features() {
            return Ok(loss);
        }
        let features = FeatureLoss {
            features: Arc::clone(&text.features),
            hidden: target.config().hidden_size,
            places,
            weights: weights.into(),
        };
        loss + apply(features, [&rows, &none()?, &none()?])?
    }

    fn labels_of_heads(&self, heads: usize, text: &Text) -> Labels {
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

    fn labels_of_groups(&self, groups: &Groups, text: &Text) -> Labels {
        let shift = self.pair.options.kind.label_shift();
        // Where not every token opens a group, those that do stand for the others.
        let stands_for = groups.tokens() as f32 / groups.anchors().len().max(1) as f32;
        let mut labels = Labels::default();
        for sequence in 0..text.sequences() {
            for row in 0..groups.rows() {
                let (anchor, depth) = groups.place(row);
                let times = if depth == 0 { 1.0 } else { stands_for };
                let weight = self.weight * times * self.pair.options.position_weight(depth);
                labels.push(text, sequence, anchor + depth + shift, weight);
            }
        }
        labels
    }

    /// The groups that a step trains: the share of the tokens that is asked for, one drawn from each of
    /// equal stretches.
    pub(super) fn groups(&self, tokens: usize, masks: usize, key: [u64; 2]) -> Groups {
        let share = f64::from(self.pair.options.group_share);
        let count = ((tokens as f64 * share).ceil() as usize).clamp(1, tokens);
        let mut random = StdRng::seed_from_u64(mixed(&[key[0], ANCHORS, key[1]]));
        let anchor = |group: usize| {
            random.random_range(group * tokens / count..(group + 1) * tokens / count)
        };
        Groups::new(tokens, masks, (0..count).map(anchor).collect())
    }

    /// Noise for a text's features, if there is to be any.
    pub(super) fn noise(&self, text: &Text, key: [u64; 2]) -> Option<Vec<f32>> {
        let width = self.pair.options.feature_noise * 512.0 / text.context.max(512) as f32;
        let mut random = StdRng::seed_from_u64(mixed(&[key[0], NOISE, key[1]]));
        let number = |_| width * (random.random::<f32>() - 0.5);
        (width > 0.0).then(|| (0..text.features.len()).map(number).collect())
    }
}

/// Of each row, the place of its label and what it counts.
#[derive(Default)]
struct Labels {
    places: Vec<u32>,
    weights: Vec<f32>,
}

impl Labels {
    /// A row whose label lies `place` places behind its sequence's first.
    fn push(&mut self, text: &Text, sequence: usize, place: usize, weight: f32) {
        let is_there = place < text.context;
        let global = sequence * text.context + if is_there { place } else { 0 };
        self.places.push(global as u32);
        self.weights.push(if is_there { weight } else { 0.0 });
    }
}
