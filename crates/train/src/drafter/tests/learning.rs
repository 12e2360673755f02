//! Losses, their gradients, and what a drafter can learn by heart.

use super::*;
use crate::drafter::acceptance::{Acceptance, drafts, normed};
use crate::drafter::objective::Objective;
use crate::drafter::{DrafterLearner, PositionAcceptance, mean_accepted_tokens};
use crate::learner::Learner;
use crate::ops::groups::Groups;
use crate::{AdamW, AdamWOptions, LearningRateSchedule, TrainOptions};
use std::sync::Arc;

fn options(context: usize) -> TrainOptions {
    TrainOptions {
        context,
        sequences: 2,
        accumulation: 1,
        schedule: LearningRateSchedule {
            peak: 5e-3,
            final_share: 0.1,
            warmup_steps: 20,
            steps: 400,
        },
        optimizer: AdamWOptions { weight_decay: 0.0, ..AdamWOptions::default() },
        seed: 3,
        evaluate_every: 0,
        evaluation_tokens: 0,
        save_every: 0,
        distillation_share: 0.0,
    }
}

/// The loss of each kind changes with every parameter as its gradient says.
#[test]
fn gradients_agree_with_finite_differences() {
    for (seed, kind) in (0..).zip(TrainedDrafterKind::ALL) {
        let folder = tempfile::tempdir().unwrap();
        let target = target(folder.path(), seed);
        let drafter = drafter(kind, &target);
        let text = text(&target, 2, 9);
        let options = DrafterOptions::of(kind, MASKS);
        let masks = if kind.has_masks() { MASKS } else { 0 };
        let tokens = drafter.token_rows(9);
        let groups = Arc::new(Groups::new(tokens, masks, (0..tokens).step_by(2).collect()));
        let distributions = Arc::new(target.head().distributions(&text.features));
        let loss = |train| {
            let pair = pair(&drafter, &target, &options);
            let objective = Objective { pair, distillation_share: 0.3, weight: 1.0, train };
            objective.loss(&text, &groups, None, Some(&distributions)).unwrap()
        };
        let gradients = loss(true).backward().unwrap();
        for parameter in drafter.parameters() {
            let gradient = gradients.get(&parameter.values).unwrap();
            let gradient = gradient.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let original = parameter.values.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let size = |place: &usize| gradient[*place].abs();
            let steepest = (0..gradient.len()).max_by(|a, b| size(a).total_cmp(&size(b))).unwrap();
            for place in [steepest, gradient.len() / 2] {
                const H: f32 = 4e-3;
                let at = |sign: f32| {
                    let mut moved = original.clone();
                    moved[place] += sign * H;
                    let shape = parameter.values.shape();
                    let moved = Tensor::from_vec(moved, shape, &Device::Cpu);
                    parameter.values.set(&moved.unwrap()).unwrap();
                    f64::from(loss(false).to_scalar::<f32>().unwrap())
                };
                let slope = ((at(1.0) - at(-1.0)) / f64::from(2.0 * H)) as f32;
                at(0.0);
                let bound = 0.03 * gradient[steepest].abs().max(0.1);
                let what = format!("{kind}, {} [{place}]", parameter.name);
                assert!(
                    (slope - gradient[place]).abs() < bound,
                    "{what}: {slope} against {}",
                    gradient[place]
                );
            }
        }
    }
}

/// The objective is the sum of what its equations name, in plain loops.
#[test]
fn losses_are_those_of_the_equations() {
    const CONTEXT: usize = 10;
    for (seed, kind) in (0..).zip(TrainedDrafterKind::ALL) {
        let folder = tempfile::tempdir().unwrap();
        let target = target(folder.path(), seed);
        let drafter = drafter(kind, &target);
        let text = text(&target, 2, CONTEXT);
        let options = DrafterOptions { decay: 0.7, ..DrafterOptions::of(kind, MASKS) };
        let tokens = drafter.token_rows(CONTEXT);
        let masks = if kind.has_masks() { MASKS } else { 0 };
        let anchors: Vec<usize> = (0..tokens).collect();
        let groups = Arc::new(Groups::new(tokens, masks, anchors));
        let pair = pair(&drafter, &target, &options);
        let objective = Objective { pair, distillation_share: 0.0, weight: 0.5, train: false };
        let found = objective.loss(&text, &groups, None, None).unwrap();
        let found = f64::from(found.to_scalar::<f32>().unwrap());

        let hidden = target.config().hidden_size;
        let norm = drafter.final_norm().unwrap().to_vec1::<f32>().unwrap();
        let log_probability = |row: &[f32], token: u32| {
            let mut row = row.to_vec();
            if !norm.is_empty() {
                let square: f32 = row.iter().map(|x| x * x).sum();
                let r = (square / hidden as f32 + drafter.config.rms_norm_eps).sqrt();
                row.iter_mut().zip(&norm).for_each(|(x, w)| *x *= w / r);
            }
            let mut logits = vec![0.0; target.config().vocab_size];
            target.head().logits(&row, &mut logits);
            let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
            f64::from(logits[token as usize]) - sum.ln()
        };
        let mut expected = 0.0;
        let depths = if kind == TrainedDrafterKind::Eagle { 1 } else { options.positions() };
        // Every draft whose first label is there; labels beyond the end are ignored.
        for anchor in 0..tokens {
            let one = Groups::new(tokens, masks, vec![anchor]);
            for depth in 0..depths {
                for sequence in 0..2 {
                    let place = anchor + depth + kind.label_shift();
                    if place >= CONTEXT {
                        continue;
                    }
                    let place = sequence * CONTEXT + place;
                    let row: Vec<f32> = if kind == TrainedDrafterKind::Medusa {
                        let size = (2 * CONTEXT, hidden);
                        let features = Tensor::from_slice(&text.features, size, &Device::Cpu);
                        let rows = drafter.medusa(&features.unwrap()).unwrap();
                        rows.get((depth * 2 + sequence) * CONTEXT + anchor).unwrap()
                    } else {
                        let inputs = drafter.token_inputs(&target, &text, None).unwrap();
                        let rows = drafter.masked_rows(&inputs, &Arc::new(one.clone())).unwrap();
                        rows.get(sequence * one.rows() + one.row(0, depth)).unwrap()
                    }
                    .to_vec1()
                    .unwrap();
                    let power = if kind == TrainedDrafterKind::Medusa { depth + 1 } else { depth };
                    let lambda = 0.5 * 0.7_f64.powi(power as i32);
                    let nll = -log_probability(&row, text.targets[place]);
                    if kind.predicts_features() {
                        let feature = &text.features[place * hidden..][..hidden];
                        let smooth = row.iter().zip(feature).map(|(x, f)| {
                            let d = f64::from((x - f).abs());
                            if d < 1.0 { 0.5 * d * d } else { d - 0.5 }
                        });
                        expected += lambda * smooth.sum::<f64>() / hidden as f64;
                        expected += lambda * 0.1 * nll;
                    } else {
                        expected += lambda * nll;
                    }
                }
            }
        }
        assert!((found - expected).abs() < 1e-4 * expected, "{kind}: {found} against {expected}");
    }
}

/// What the target itself writes, greedily, behind different first tokens.
fn greedy_batch(target: &Target, rows: usize, context: usize) -> Batch {
    let (mut inputs, mut targets) = (Vec::new(), Vec::new());
    for row in 0..rows {
        let mut tokens = vec![token(row + 1)];
        while tokens.len() <= context {
            let one = Batch {
                inputs: tokens.clone(),
                targets: tokens.clone(),
                rows: 1,
                context: tokens.len(),
            };
            let features = target.read(&one).unwrap().features;
            let last = &features[features.len() - target.config().hidden_size..];
            let mut logits = vec![0.0; target.config().vocab_size];
            target.head().logits(last, &mut logits);
            let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
            tokens.push(best.unwrap() as u32);
        }
        inputs.extend_from_slice(&tokens[..context]);
        targets.extend_from_slice(&tokens[1..]);
    }
    Batch { inputs, targets, rows, context }
}

/// Trains a drafter on one batch alone; returns what its drafts on it are worth.
fn overfit(kind: TrainedDrafterKind) -> Vec<PositionAcceptance> {
    const CONTEXT: usize = 20;
    let folder = tempfile::tempdir().unwrap();
    let target = target(folder.path(), 4);
    let batch = greedy_batch(&target, 2, CONTEXT);
    let options = options(CONTEXT);
    // On so short a text noise would hide what there is to learn.
    let of_drafter = DrafterOptions { feature_noise: 0.0, ..DrafterOptions::of(kind, MASKS) };
    let learner = DrafterLearner::random(&target, of_drafter, 1).unwrap();
    let mut optimizer = AdamW::new(options.optimizer, learner.parameters());
    for step in 0..options.schedule.steps {
        let (loss, _) = learner.loss(&batch, step, &options).unwrap();
        let gradients = loss.backward().unwrap();
        let of = |parameter: &crate::Parameter| {
            let gradient = gradients.get(&parameter.values).unwrap();
            gradient.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        let gradients: Vec<_> = optimizer.parameters().iter().map(of).collect();
        optimizer.step(&gradients, options.schedule.rate(step) as f32).unwrap();
    }
    let text = target.read(&batch).unwrap();
    let distributions = target.head().distributions(&text.features);
    let drafts = CONTEXT + 1 - of_drafter.positions() - kind.label_shift();
    let anchors: Vec<usize> = (0..drafts).collect();
    let mut acceptance = Acceptance::default();
    let pair = pair(learner.drafter(), &target, &of_drafter);
    acceptance.add(pair, &text, &anchors, &distributions).unwrap();
    acceptance.rates()
}

/// A target of 55,000 parameters, its own greedy text, the papers' losses.
#[test]
fn one_batch_can_be_learnt_by_heart() {
    for kind in TrainedDrafterKind::ALL {
        let acceptance = overfit(kind);
        for (position, rates) in acceptance.iter().enumerate() {
            assert!(rates.agreement > 0.95, "{kind}, position {position}: {acceptance:?}");
        }
        let tokens = mean_accepted_tokens(acceptance.iter().map(|rates| rates.agreement));
        assert!(tokens > 0.9 * (1 + acceptance.len()) as f64, "{kind}: {tokens}");
    }
}

/// Acceptance in plain loops: draft by draft along the text, until it is certain to have left it.
#[test]
fn acceptance_is_that_of_drafts_along_the_text() {
    const CONTEXT: usize = 14;
    for kind in TrainedDrafterKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let target = target(folder.path(), 4);
        let drafter = drafter(kind, &target);
        let options = DrafterOptions::of(kind, MASKS);
        let text = target.read(&greedy_batch(&target, 2, CONTEXT)).unwrap();
        let anchors = [0, 1, 5, 9];
        let pair = pair(&drafter, &target, &options);
        let distributions = target.head().distributions(&text.features);
        let mut acceptance = Acceptance::default();
        acceptance.add(pair, &text, &anchors, &distributions).unwrap();

        let hidden = target.config().hidden_size;
        let softmax = |row: &[f32]| -> Vec<f64> {
            let mut logits = vec![0.0; target.config().vocab_size];
            target.head().logits(row, &mut logits);
            let e: Vec<f64> = logits.iter().map(|&logit| f64::from(logit).exp()).collect();
            let sum: f64 = e.iter().sum();
            e.iter().map(|e| e / sum).collect()
        };
        let best = |p: &[f64]| (0..p.len()).rev().max_by(|&a, &b| p[a].total_cmp(&p[b])).unwrap();
        let rows = drafts(pair, &text, &anchors).unwrap();
        let rows: Vec<Vec<f32>> = rows.iter().map(|rows| normed(&drafter, rows).unwrap()).collect();
        let mut sums = vec![[0.0_f64; 4]; options.positions()];
        for draft in 0..2 * anchors.len() {
            let (sequence, anchor) = (draft / anchors.len(), anchors[draft % anchors.len()]);
            let (mut weight, mut agreed) = (1.0, 1.0);
            for (position, sums) in sums.iter_mut().enumerate() {
                let place = sequence * CONTEXT + anchor + position + kind.label_shift();
                let q = softmax(&rows[position][draft * hidden..][..hidden]);
                let p = softmax(&text.features[place * hidden..][..hidden]);
                let token = text.targets[place] as usize;
                let overlap: f64 = q.iter().zip(&p).map(|(q, p)| q.min(*p)).sum();
                let agrees = f64::from(u8::from(best(&q) == best(&p)));
                let of_draft = [weight, weight * overlap, agreed, agreed * agrees];
                sums.iter_mut().zip(of_draft).for_each(|(sum, own)| *sum += own);
                weight *= (q[token] / p[token]).min(1.0);
                agreed *= if best(&q) == token { agrees } else { 0.0 };
            }
        }
        for (rates, [weight, overlap, reached, agreed]) in acceptance.rates().iter().zip(sums) {
            assert!((rates.overlap - overlap / weight).abs() < 1e-4, "{kind}: {rates:?}");
            let agreement = agreed / reached;
            let same = (rates.agreement - agreement).abs() < 1e-9;
            assert!(same || rates.agreement.is_nan() && agreement.is_nan(), "{kind}: {rates:?}");
        }
    }
}

#[test]
fn tokens_per_forward_follow_from_the_rates() {
    assert_eq!(mean_accepted_tokens([]), 1.0);
    assert_eq!(mean_accepted_tokens([0.5, 0.5, f64::NAN, 0.5]), 1.75);
    assert_eq!(mean_accepted_tokens([1.0; 4]), 5.0);
}

#[test]
fn a_drafter_survives_its_files_and_knows_its_target() {
    for kind in TrainedDrafterKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let target = target(&folder.path().join("target"), 2);
        let drafter = drafter(kind, &target);
        let written = folder.path().join("drafter");
        drafter.export(&target, &written, forerun_model::checkpoint::Dtype::F32).unwrap();
        let read = Drafter::load(&written, &target).unwrap();
        assert_eq!((read.kind(), read.size()), (kind, drafter.size()));
        for (a, b) in drafter.parameters().iter().zip(read.parameters()) {
            let values = |parameter: &crate::Parameter| {
                parameter.values.flatten_all().unwrap().to_vec1::<f32>().unwrap()
            };
            assert_eq!((&a.name, values(a)), (&b.name, values(&b)));
        }
        let other = super::target(&folder.path().join("other"), 3);
        let error = Drafter::load(&written, &other).err().unwrap().to_string();
        assert!(error.contains("another target, target"), "{error}");
        std::fs::remove_file(written.join("model.safetensors")).unwrap();
        let error = Drafter::load(&written, &target).err().unwrap().to_string();
        assert!(error.contains("model.safetensors"), "{error}");
    }
}
