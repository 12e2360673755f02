//! Losses and their gradients, acceptance rates, and overfitting.

use super::*;
use crate::drafter::acceptance::{Acceptance, draft_rows, head_inputs};
use crate::drafter::objective::Objective;
use crate::drafter::weights::{CONFIDENCE, CONFIDENCE_BIAS};
use crate::drafter::{DrafterLearner, PositionAcceptance, mean_accepted_tokens};
use crate::learner::Learner;
use crate::{LearningRateSchedule, Optimizer, OptimizerOptions, TrainOptions};
use forerun_core::testing::is_complete;
use forerun_formats::checkpoint::Dtype;
use std::sync::Arc;

fn options(context: usize) -> TrainOptions {
    TrainOptions {
        context,
        same_windows: false,
        sequences: 2,
        accumulation: 1,
        schedule: LearningRateSchedule {
            peak: 5e-3,
            final_share: 0.1,
            warmup_steps: 20,
            steps: 400,
        },
        optimizer: OptimizerOptions { weight_decay: 0.0, ..OptimizerOptions::default() },
        seed: 3,
        evaluate_every: 0,
        evaluation_tokens: 0,
        save_every: 0,
        distillation_share: 0.0,
    }
}

/// For each kind of drafter, the gradient of every parameter matches finite differences of the
/// loss.
#[test]
fn gradients_agree_with_finite_differences() {
    let cases = TrainedDrafterKind::ALL.map(|kind| [(kind, false), (kind, true)]);
    for (seed, (kind, reduced)) in (0..).zip(cases.into_iter().flatten()) {
        let folder = tempfile::tempdir().unwrap();
        let target = target_of(kind, folder.path(), seed);
        let vocabulary = reduced.then(|| (0..259).step_by(2).collect());
        let drafter = drafter(kind, &target).with_vocabulary(vocabulary, &target).unwrap();
        let text = text(&target, 2, 9);
        let options = DrafterOptions::of(kind, MASKS);
        let anchors = (0..drafter.token_rows(9)).step_by(2).collect();
        let groups = Arc::new(drafter.groups(9, options.masks(), anchors));
        // DSpark needs those of all tokens.
        let head =
            if options.markov_rank.is_some() { target.head() } else { drafter.head(&target) };
        let distributions = Arc::new(head.distributions(&text.features));
        let loss = |train| {
            let pair = pair(&drafter, &target, &options);
            // The label of the confidence is a constant in the gradient, but not in differences.
            let (distillation_share, confidence_weight) = (0.3, 1e-6);
            let objective =
                Objective { pair, distillation_share, confidence_weight, weight: 1.0, train };
            objective.loss(&text, &groups, None, Some(&distributions)).unwrap()
        };
        let gradients = loss(true).backward().unwrap();
        for parameter in drafter.parameters() {
            let gradient = gradients.get(&parameter.values).unwrap();
            let gradient = gradient.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let original = parameter.values.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let size = |index: &usize| gradient[*index].abs();
            let steepest = (0..gradient.len()).max_by(|a, b| size(a).total_cmp(&size(b))).unwrap();
            for index in [steepest, gradient.len() / 2] {
                const H: f32 = 4e-3;
                let at = |sign: f32| {
                    let mut moved = original.clone();
                    moved[index] += sign * H;
                    let shape = parameter.values.shape();
                    let moved = Tensor::from_vec(moved, shape, &Device::Cpu);
                    parameter.values.set(&moved.unwrap()).unwrap();
                    f64::from(loss(false).to_scalar::<f32>().unwrap())
                };
                let slope = ((at(1.0) - at(-1.0)) / f64::from(2.0 * H)) as f32;
                at(0.0);
                let bound = 0.03 * gradient[steepest].abs().max(0.1);
                let what = format!("{kind}, {reduced}, {} [{index}]", parameter.name);
                assert!(
                    (slope - gradient[index]).abs() < bound,
                    "{what}: {slope} against {}",
                    gradient[index]
                );
            }
        }
    }
}

/// Each objective equals its equation, computed in simple loops.
#[test]
fn losses_match_the_papers_equations() {
    const CONTEXT: usize = 10;
    // EAGLE's drafted positions are those of the training-time test.
    let kinds = TrainedDrafterKind::ALL.map(|kind| (kind, 0));
    let kinds = kinds.into_iter().filter(|&(kind, _)| kind != TrainedDrafterKind::Dspark);
    let kinds = kinds.chain([(TrainedDrafterKind::Eagle, 2)]);
    for (seed, (kind, drafted_positions)) in (0..).zip(kinds) {
        let folder = tempfile::tempdir().unwrap();
        let target = target_of(kind, folder.path(), seed);
        let drafter = drafter(kind, &target);
        let text = text(&target, 2, CONTEXT);
        let defaults = DrafterOptions::of(kind, MASKS);
        let options = DrafterOptions { decay: 0.7, drafted_positions, ..defaults };
        let tokens = drafter.token_rows(CONTEXT);
        let masks = options.masks();
        let anchors: Vec<usize> = (0..tokens).collect();
        let groups = Arc::new(drafter.groups(CONTEXT, masks, anchors));
        let pair = pair(&drafter, &target, &options);
        let (distillation_share, confidence_weight) = (0.0, 1.0);
        let objective =
            Objective { pair, distillation_share, confidence_weight, weight: 0.5, train: false };
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
        let is_eagle = kind == TrainedDrafterKind::Eagle;
        let depths = if is_eagle { 1 + drafted_positions } else { options.positions() };
        // Labels beyond the end of the sequence are ignored.
        for anchor in 0..tokens {
            let one = Arc::new(drafter.groups(CONTEXT, masks, vec![anchor]));
            for depth in 0..depths {
                for sequence in 0..2 {
                    let position = anchor + depth + kind.label_shift();
                    if position >= CONTEXT {
                        continue;
                    }
                    let target_row = sequence * CONTEXT + position;
                    let row: Vec<f32> = if kind.has_draft_heads() {
                        let row = sequence * CONTEXT + anchor;
                        drafter.head_rows(&target, &text, &[row]).unwrap().get(depth).unwrap()
                    } else if is_eagle {
                        draft_rows(pair, &text, &[anchor]).unwrap()[depth].get(sequence).unwrap()
                    } else if kind == TrainedDrafterKind::Dflash {
                        let rows = drafter.block_rows(&target, &text, &one).unwrap();
                        rows.get(sequence * MASKS + depth).unwrap()
                    } else {
                        let inputs = drafter.token_inputs(&target, &text, None).unwrap();
                        let rows = drafter.layer_rows_with_masks(&inputs, &one).unwrap();
                        rows.get(sequence * one.rows() + one.row(0, depth)).unwrap()
                    }
                    .to_vec1()
                    .unwrap();
                    let power = depth + usize::from(kind.has_draft_heads());
                    let lambda = 0.5 * 0.7_f64.powi(power as i32);
                    let nll = -log_probability(&row, text.targets[target_row]);
                    if kind.predicts_features() {
                        let feature = &text.features[target_row * hidden..][..hidden];
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

/// DSpark's loss equals its equation, computed in simple loops over all of the target's tokens.
#[test]
fn dsparks_loss_matches_its_equation() {
    const CONTEXT: usize = 10;
    let kind = TrainedDrafterKind::Dspark;
    for (seed, reduced) in [(2, false), (3, true)] {
        let folder = tempfile::tempdir().unwrap();
        let target = target_of(kind, folder.path(), seed);
        let vocabulary = reduced.then(|| (0..259).step_by(2).collect());
        let drafter = drafter(kind, &target).with_vocabulary(vocabulary, &target).unwrap();
        let text = text(&target, 2, CONTEXT);
        let options = DrafterOptions { decay: 0.7, ..DrafterOptions::of(kind, MASKS) };
        let groups = drafter.groups(CONTEXT, options.masks(), (0..CONTEXT).collect());
        let distributions = Arc::new(target.head().distributions(&text.features));
        let pair = pair(&drafter, &target, &options);
        let (distillation_share, confidence_weight) = (0.3, 0.6);
        let objective =
            Objective { pair, distillation_share, confidence_weight, weight: 0.5, train: false };
        let found = objective.loss(&text, &Arc::new(groups), None, Some(&distributions)).unwrap();
        let found = f64::from(found.to_scalar::<f32>().unwrap());

        let values = |name| {
            drafter.weights.require(name).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        let mut expected = 0.0;
        for anchor in 0..CONTEXT {
            let one = Arc::new(drafter.groups(CONTEXT, options.masks(), vec![anchor]));
            let rows = drafter.block_rows(&target, &text, &one).unwrap();
            let rows = head_inputs(&drafter, &rows).unwrap();
            let hidden = target.config().hidden_size;
            for (number, row) in rows.chunks_exact(hidden).enumerate() {
                let (sequence, depth) = (number / MASKS, number % MASKS);
                if anchor + depth >= CONTEXT {
                    continue;
                }
                let target_row = sequence * CONTEXT + anchor + depth;
                let previous = text.inputs[target_row];
                let q = draft_distribution(&drafter, &target, row, previous);
                let p = distributions.of(target_row);
                let token = text.targets[target_row] as usize;
                let nll = if q[token] > 0.0 { -q[token].ln() } else { 0.0 };
                let distance: f64 = p.iter().zip(&q).map(|(&p, q)| (f64::from(p) - q).abs()).sum();
                let acceptance = 1.0 - 0.5 * distance;
                let ([embeddings, _], rank) = drafter.markov_head().unwrap().unwrap();
                let embedding = &embeddings[previous as usize * rank..][..rank];
                let read = row.iter().chain(embedding).zip(values(CONFIDENCE));
                let logit: f32 = read.map(|(x, weight)| x * weight).sum();
                let logit = f64::from(logit + values(CONFIDENCE_BIAS)[0]);
                let confidence = 1.0 / (1.0 + (-logit).exp());
                let entropy =
                    -acceptance * confidence.ln() - (1.0 - acceptance) * (1.0 - confidence).ln();
                let weight = 0.5 * 0.7_f64.powi(depth as i32);
                expected += weight * (0.7 * nll + 0.3 * distance + 0.6 * entropy);
            }
        }
        assert!((found - expected).abs() < 1e-4 * expected, "{found} against {expected}");
    }
}

/// Computes a drafter's probabilities of all the target's tokens after an input of its head and the
/// token before.
fn draft_distribution(drafter: &Drafter, target: &Target, row: &[f32], previous: u32) -> Vec<f64> {
    let head = drafter.head(target);
    let mut logits = vec![0.0; head.vocab_size()];
    head.logits(row, &mut logits);
    if let Some(([embeddings, weights], rank)) = drafter.markov_head().unwrap() {
        let embedding = &embeddings[previous as usize * rank..][..rank];
        for (logit, weights) in logits.iter_mut().zip(weights.chunks_exact(rank)) {
            *logit += weights.iter().zip(embedding).map(|(w, e)| w * e).sum::<f32>();
        }
    }
    let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    let mut probabilities = vec![0.0; target.config().vocab_size];
    for (output, logit) in logits.into_iter().enumerate() {
        probabilities[drafter.token_of(output)] = f64::from(logit).exp() / sum;
    }
    probabilities
}

/// A Markov head keeps its rows when the drafter's tokens change.
#[test]
fn a_markov_head_keeps_the_rows_of_its_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let kind = TrainedDrafterKind::Dspark;
    let target = target_of(kind, &folder.path().join("target"), 3);
    let drafter = drafter(kind, &target);
    let rows = |drafter: &Drafter| {
        let ([_, weights], rank) = drafter.markov_head().unwrap().unwrap();
        weights.chunks(rank).map(<[f32]>::to_vec).collect::<Vec<_>>()
    };
    let all = rows(&drafter);
    let even = drafter.with_vocabulary(Some((0..259).step_by(2).collect()), &target).unwrap();
    assert_eq!(rows(&even), all.iter().step_by(2).cloned().collect::<Vec<_>>());
    let written = folder.path().join("drafter");
    even.export(&target, &written, Dtype::F32).unwrap();
    let options = DrafterOptions::of(kind, MASKS);
    let tokens = Some([3, 4].into());
    let other = DrafterLearner::continued(&target, options, tokens, &written).unwrap();
    assert_eq!(rows(other.drafter()), [vec![0.0; 64], all[4].clone()]);
}

/// A folder for features serves other hidden states after a change of layers.
#[test]
fn a_feature_cache_follows_the_layers_that_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let batch = batch(1, 8);
    let read = |target: &Target| target.read(&batch).unwrap().layer_features.to_vec();
    let mut cached = target(&folder.path().join("target"), 2)
        .with_feature_cache(&folder.path().join("cache"))
        .unwrap();
    for layers in [&[1][..], &[2], &[1, 2], &[1]] {
        let plain = target(&folder.path().join("target"), 2).with_feature_layers(layers).unwrap();
        cached = cached.with_feature_layers(layers).unwrap();
        assert_eq!(read(&cached), read(&plain), "{layers:?}");
        assert_eq!(read(&cached), read(&plain), "{layers:?}");
    }
}

/// A block drafter continues only with the same token for masks and the same hidden states of the
/// target.
#[test]
fn a_block_drafter_keeps_its_mask_and_the_layers_that_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let kind = TrainedDrafterKind::Dflash;
    let target = target_of(kind, &folder.path().join("target"), 2);
    let written = folder.path().join("drafter");
    drafter(kind, &target).export(&target, &written, Dtype::F32).unwrap();
    let options = DrafterOptions::of(kind, MASKS);
    let assert_refused = |options| {
        let error = DrafterLearner::continued(&target, options, None, &written).err().unwrap();
        assert!(error.to_string().contains("both must be the same"), "{error}");
    };
    assert_refused(DrafterOptions { layers: Some(1), ..options });
    let file = written.join("config.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(config["dflash_config"]["mask_token_id"], target.mask_token());
    config["dflash_config"]["mask_token_id"] = 7.into();
    std::fs::write(&file, config.to_string()).unwrap();
    assert_refused(options);
    std::fs::write(&file, text).unwrap();
    let target = target.with_feature_layers(&[2]).unwrap();
    let error = DrafterLearner::continued(&target, options, None, &written).err().unwrap();
    let error = error.to_string();
    assert!(error.contains("[1, 2]") && error.contains("[2] of the target"), "{error}");
    for layers in [&[][..], &[0], &[3]] {
        let target = super::target(&folder.path().join("again"), 2);
        let error = target.with_feature_layers(layers).err().unwrap().to_string();
        assert!(error.contains(&format!("after layers {layers:?}")), "{error}");
    }
}

/// Blocks do not see each other: the rows of a block do not depend on other blocks of the pass, nor
/// on tokens after its anchor.
#[test]
fn the_rows_of_a_block_depend_on_nothing_after_its_anchor() {
    for kind in [TrainedDrafterKind::Dflash, TrainedDrafterKind::Dspark] {
        assert_rows_depend_on_nothing_after_their_anchor(kind);
    }
}

fn assert_rows_depend_on_nothing_after_their_anchor(kind: TrainedDrafterKind) {
    const CONTEXT: usize = 12;
    let folder = tempfile::tempdir().unwrap();
    let target = target_of(kind, folder.path(), 3);
    let drafter = drafter(kind, &target);
    let whole = batch(1, CONTEXT);
    let other = Batch {
        inputs: whole
            .inputs
            .iter()
            .enumerate()
            .map(|(at, &t)| if at > 4 { 5 } else { t })
            .collect(),
        ..whole.clone()
    };
    let options = DrafterOptions::of(kind, MASKS);
    let first_block = |batch: &Batch, anchors: &[usize]| {
        let text = target.read(batch).unwrap();
        let rows = draft_rows(pair(&drafter, &target, &options), &text, anchors).unwrap();
        let row = |row: Tensor| row.get(0).unwrap().to_vec1::<f32>().unwrap();
        rows.into_iter().map(row).collect::<Vec<_>>()
    };
    let expected = first_block(&whole, &[4]);
    for found in [first_block(&whole, &[4, 5, 9]), first_block(&other, &[4, 6])] {
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!((found - expected).abs() < 1e-5, "{found}, expected {expected}");
        }
    }
}

/// Texts that the target generates greedily, from different first tokens.
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

/// Trains a drafter on a single batch and returns its acceptance rates on that batch.
fn overfit(kind: TrainedDrafterKind, reduced: bool) -> Vec<PositionAcceptance> {
    const CONTEXT: usize = 20;
    let folder = tempfile::tempdir().unwrap();
    let target = target_of(kind, folder.path(), 4);
    let batch = greedy_batch(&target, 2, CONTEXT);
    let options = options(CONTEXT);
    // On such a short text, noise would prevent overfitting.
    let defaults = DrafterOptions::of(kind, MASKS);
    let drafter_options = DrafterOptions { feature_noise: 0.0, group_share: 1.0, ..defaults };
    // A reduced vocabulary has the batch's tokens and a few more.
    let in_batch = |token: &u32| token.is_multiple_of(5) || batch.targets.contains(token);
    let vocabulary = reduced.then(|| (0..259).filter(in_batch).collect());
    let learner = DrafterLearner::random(&target, drafter_options, vocabulary, 1).unwrap();
    let mut optimizer = Optimizer::new(options.optimizer, learner.parameters());
    for step in 0..options.schedule.steps {
        let (loss, _) = learner.loss(&batch, step, &options).unwrap();
        let gradients = loss.backward().unwrap();
        let gradient = |parameter: &crate::Parameter| {
            let gradient = gradients.get(&parameter.values).unwrap();
            gradient.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        let gradients: Vec<_> = optimizer.parameters().iter().map(gradient).collect();
        optimizer.step(&gradients, options.schedule.rate(step) as f32).unwrap();
    }
    let text = target.read(&batch).unwrap();
    let distributions = target.head().distributions(&text.features);
    let draft_count = CONTEXT + 1 - drafter_options.positions() - kind.label_shift();
    let anchors: Vec<usize> = (0..draft_count).collect();
    let mut acceptance = Acceptance::default();
    let pair = pair(learner.drafter(), &target, &drafter_options);
    acceptance.add(pair, &text, &anchors, &distributions).unwrap();
    acceptance.rates()
}

/// Every kind of drafter overfits on greedy text of a target of 55,000 parameters. Every second
/// kind has a reduced vocabulary; with `FORERUN_CASES`, all kinds have both vocabularies
/// (`just training`).
#[test]
fn a_drafter_overfits_a_single_batch() {
    let runs = TrainedDrafterKind::ALL.map(|kind| [(kind, false), (kind, true)]);
    let is_complete = is_complete();
    let is_run = |&(number, (_, reduced)): &(usize, (TrainedDrafterKind, bool))| {
        is_complete || (number / 2 % 2 == 1) == reduced
    };
    for (_, (kind, reduced)) in runs.into_iter().flatten().enumerate().filter(is_run) {
        let acceptance = overfit(kind, reduced);
        for (position, rates) in acceptance.iter().enumerate() {
            assert!(rates.agreement > 0.95, "{kind}, position {position}: {acceptance:?}");
        }
        let tokens = mean_accepted_tokens(acceptance.iter().map(|rates| rates.agreement));
        assert!(tokens > 0.9 * (1 + acceptance.len()) as f64, "{kind}: {tokens}");
    }
}

/// The acceptance rates equal those computed draft by draft in simple loops.
#[test]
fn acceptance_matches_a_simple_reference() {
    const CONTEXT: usize = 14;
    for kind in TrainedDrafterKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let target = target_of(kind, folder.path(), 4);
        let drafter = drafter(kind, &target);
        let options = DrafterOptions::of(kind, MASKS);
        let text = target.read(&greedy_batch(&target, 2, CONTEXT)).unwrap();
        let anchors = [0, 1, 5, 9];
        let pair = pair(&drafter, &target, &options);
        let distributions = target.head().distributions(&text.features);
        let mut acceptance = Acceptance::default();
        acceptance.add(pair, &text, &anchors, &distributions).unwrap();

        let hidden = target.config().hidden_size;
        let target_softmax = |row: &[f32]| -> Vec<f64> {
            let mut logits = vec![0.0; target.config().vocab_size];
            target.head().logits(row, &mut logits);
            let e: Vec<f64> = logits.iter().map(|&logit| f64::from(logit).exp()).collect();
            let sum: f64 = e.iter().sum();
            e.iter().map(|e| e / sum).collect()
        };
        let best = |p: &[f64]| (0..p.len()).rev().max_by(|&a, &b| p[a].total_cmp(&p[b])).unwrap();
        let rows = draft_rows(pair, &text, &anchors).unwrap();
        let rows: Vec<Vec<f32>> =
            rows.iter().map(|rows| head_inputs(&drafter, rows).unwrap()).collect();
        let mut sums = vec![[0.0_f64; 4]; options.positions()];
        for draft in 0..2 * anchors.len() {
            let (sequence, anchor) = (draft / anchors.len(), anchors[draft % anchors.len()]);
            let (mut weight, mut agreed) = (1.0, 1.0);
            for (position, sums) in sums.iter_mut().enumerate() {
                let target_row = sequence * CONTEXT + anchor + position + kind.label_shift();
                let row = &rows[position][draft * hidden..][..hidden];
                let q = draft_distribution(&drafter, &target, row, text.inputs[target_row]);
                let p = target_softmax(&text.features[target_row * hidden..][..hidden]);
                let token = text.targets[target_row] as usize;
                let overlap: f64 = q.iter().zip(&p).map(|(q, p)| q.min(*p)).sum();
                let agrees = f64::from(u8::from(best(&q) == best(&p)));
                let terms = [weight, weight * overlap, agreed, agreed * agrees];
                sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
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
fn mean_accepted_tokens_follow_from_the_rates() {
    assert_eq!(mean_accepted_tokens([]), 1.0);
    assert_eq!(mean_accepted_tokens([0.5, 0.5, f64::NAN, 0.5]), 1.75);
    assert_eq!(mean_accepted_tokens([1.0; 4]), 5.0);
}

#[test]
fn an_exported_drafter_loads_only_for_its_own_target() {
    for kind in TrainedDrafterKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let target = target_of(kind, &folder.path().join("target"), 2);
        let drafter = drafter(kind, &target);
        let written = folder.path().join("drafter");
        drafter.export(&target, &written, Dtype::F32).unwrap();
        let read = Drafter::load(&written, &target).unwrap();
        assert_eq!((read.kind(), read.slots()), (kind, drafter.slots()));
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

/// A run can start with an exported drafter, in bf16 too, with its own tokens or others, but only
/// with one of its kind.
#[test]
fn a_run_starts_with_the_weights_of_a_drafter_of_its_kind() {
    let folder = tempfile::tempdir().unwrap();
    let target = target_of(TrainedDrafterKind::Dflash, &folder.path().join("target"), 2);
    for kind in TrainedDrafterKind::ALL {
        let given = drafter(kind, &target);
        let written = folder.path().join(kind.to_string());
        given.export(&target, &written, Dtype::Bf16).unwrap();
        let options = DrafterOptions::of(kind, MASKS);
        let learner = DrafterLearner::continued(&target, options, None, &written).unwrap();
        for (a, b) in given.parameters().iter().zip(learner.parameters()) {
            let values = |parameter: &crate::Parameter| {
                parameter.values.flatten_all().unwrap().to_vec1::<f32>().unwrap()
            };
            let rounded: Vec<f32> =
                values(a).into_iter().map(|value| half::bf16::from_f32(value).to_f32()).collect();
            assert_eq!((&a.name, rounded), (&b.name, values(&b)));
        }
        for other in TrainedDrafterKind::ALL.into_iter().filter(|&other| other != kind) {
            let options = DrafterOptions::of(other, MASKS);
            let error = DrafterLearner::continued(&target, options, None, &written).err().unwrap();
            let (error, expected) = (error.to_string(), format!("and {other}"));
            assert!(error.contains(&expected) && error.contains("is to be trained"), "{error}");
        }
        if kind != TrainedDrafterKind::Eagle {
            let options = DrafterOptions::of(kind, MASKS + 1);
            let error = DrafterLearner::continued(&target, options, None, &written).err().unwrap();
            assert!(error.to_string().contains(&format!("with {MASKS}")), "{error}");
        }
    }
    let eagle = folder.path().join("eagle");
    let options = DrafterOptions::of(TrainedDrafterKind::Eagle, MASKS);
    let tokens: Arc<[u32]> = (3..9).collect();
    let learner =
        DrafterLearner::continued(&target, options, Some(Arc::clone(&tokens)), &eagle).unwrap();
    let found: Vec<u32> =
        (0..tokens.len()).map(|output| learner.drafter().token_of(output) as u32).collect();
    assert_eq!(found, *tokens);
}

/// A vocabulary of all tokens changes nothing, and one without a token never drafts it. Tokens
/// survive a file.
#[test]
fn a_reduced_vocabulary_drafts_only_its_tokens() {
    const CONTEXT: usize = 14;
    for kind in TrainedDrafterKind::ALL {
        let folder = tempfile::tempdir().unwrap();
        let target = target_of(kind, folder.path(), 4);
        let options = DrafterOptions::of(kind, MASKS);
        let text = target.read(&greedy_batch(&target, 2, CONTEXT)).unwrap();
        let distributions = target.head().distributions(&text.features);
        let rates = |tokens: Option<Arc<[u32]>>| {
            let drafter = drafter(kind, &target).with_vocabulary(tokens, &target).unwrap();
            let mut acceptance = Acceptance::default();
            let pair = pair(&drafter, &target, &options);
            acceptance.add(pair, &text, &[0, 1, 5], &distributions).unwrap();
            (drafter, acceptance.rates().remove(0))
        };
        let (_, all) = rates(None);
        let (_, listed) = rates(Some((0..259).collect()));
        assert!((all.overlap - listed.overlap).abs() < 1e-6, "{all:?} {listed:?}");
        assert_eq!(all.agreement, listed.agreement);
        // Without the tokens of the text, no greedy draft is right.
        let even_without: Arc<[u32]> =
            (0..259).step_by(2).filter(|token| !text.targets.contains(token)).collect();
        let (drafter, other) = rates(Some(Arc::clone(&even_without)));
        assert_eq!(other.agreement, 0.0);
        assert!(other.overlap < 1.0 && drafter.output_of(text.targets[3]).is_none());
        let out = folder.path().join("drafter");
        drafter.export(&target, &out, Dtype::F32).unwrap();
        let read = Drafter::load(&out, &target).unwrap();
        let tokens: Vec<u32> =
            (0..even_without.len()).map(|output| read.token_of(output) as u32).collect();
        assert_eq!(tokens, *even_without);
    }
}

/// A cached text has the bits of a computed one, for another target too, and a damaged file is
/// reported.
#[test]
fn features_are_computed_once() {
    let folder = tempfile::tempdir().unwrap();
    let (cache, batch) = (folder.path().join("cache"), batch(3, 20));
    for seed in [1, 2] {
        let computed = target(&folder.path().join(seed.to_string()), seed).read(&batch).unwrap();
        for _ in 0..2 {
            let target = Target::open(&folder.path().join(seed.to_string())).unwrap();
            let target = target.with_feature_cache(&cache).unwrap();
            assert_eq!(target.read(&batch).unwrap().features, computed.features);
        }
    }
    let targets: Vec<_> = std::fs::read_dir(&cache).unwrap().map(|entry| entry.unwrap()).collect();
    assert_eq!(targets.len(), 2);
    let paths = |folder: &Path| {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.collect::<Vec<_>>()
    };
    let files = paths(&targets[0].path()).into_iter().flat_map(|folder| paths(&folder));
    let files: Vec<_> = files.collect();
    assert_eq!(files.len(), 3);
    for file in files {
        std::fs::write(file, [0; 8]).unwrap();
    }
    let of_folder = |seed: u32| Target::open(&folder.path().join(seed.to_string())).unwrap();
    let errors = [1, 2].map(|seed| {
        let target = of_folder(seed).with_feature_cache(&cache).unwrap();
        target.read(&batch).err().map(|error| error.to_string())
    });
    assert_eq!(errors.iter().flatten().count(), 1);
    let message = errors.into_iter().flatten().next().unwrap();
    assert!(message.contains("has 8 bytes, not the features of 20 tokens: delete it"), "{message}");
}
