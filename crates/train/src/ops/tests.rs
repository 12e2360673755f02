//! Compares each operation with its reference, forward and backward, and with finite differences.

use super::attention::Rope;
use super::attention_block::AttentionBlock;
use super::block_head_loss::{BlockHeadLoss, BlockLabels};
use super::context_attention::ContextAttention;
use super::draft_head::{DraftHeadLoss, DraftLabels, FrozenHead};
use super::feature_loss::FeatureLoss;
use super::groups::Groups;
use super::head::HeadLoss;
use super::mlp_block::MlpBlock;
use super::{AttentionShape, LossParts, MlpShape, Targets, Teacher, apply, none, reference};
use candle_core::{Device, Result, Tensor, Var};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

const EPSILON: f32 = 1e-5;

/// Pseudo-random numbers, approximately normal with the given deviation.
fn values(seed: u64, count: usize, deviation: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x1234_5678_9ABC;
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| (0..6).map(|_| uniform() - 0.5).sum::<f32>() * 1.4 * deviation).collect()
}

fn var(seed: u64, shape: &[usize], mean: f32, deviation: f32) -> Var {
    let count = shape.iter().product();
    let values = values(seed, count, deviation).into_iter().map(|value| value + mean).collect();
    Var::from_vec::<_, f32>(values, shape, &Device::Cpu).unwrap()
}

type Operation<'a> = &'a (dyn Fn(&[Tensor]) -> Result<Tensor> + Sync);

/// Returns the operation's result, and the gradients of a fixed weighted sum of it.
fn differentiate(operation: Operation<'_>, inputs: &[Var]) -> (Vec<f32>, Vec<Vec<f32>>) {
    let tensors: Vec<Tensor> = inputs.iter().map(|input| input.as_tensor().clone()).collect();
    let result = operation(&tensors).unwrap();
    let weights = values(99, result.elem_count(), 1.0);
    let weights = Tensor::from_vec(weights, result.shape(), &Device::Cpu).unwrap();
    let gradients = (&result * weights).unwrap().sum_all().unwrap().backward().unwrap();
    let flat = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let gradient = |input: &Var| flat(gradients.get(input).unwrap());
    (flat(&result), inputs.iter().map(gradient).collect())
}

fn assert_close(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let size = b.iter().map(|b| b.abs()).fold(0.0, f32::max).max(1e-3);
    for (index, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= 2e-4 * size, "{what} [{index}]: {a} against {b} of up to {size}");
    }
}

fn assert_same(fused: Operation<'_>, reference: Operation<'_>, inputs: &[Var]) {
    let (a, da) = differentiate(fused, inputs);
    let (b, db) = differentiate(reference, inputs);
    assert_close(&a, &b, "result");
    for (input, (da, db)) in da.iter().zip(&db).enumerate() {
        assert_close(da, db, &format!("gradient of input {input}"));
    }
}

/// Compares the gradients of a few entries with finite differences of the result.
fn assert_differences(operation: Operation<'_>, inputs: &[Var]) {
    let (_, gradients) = differentiate(operation, inputs);
    let value = |inputs: &[Var]| -> f64 {
        let tensors: Vec<Tensor> = inputs.iter().map(|input| input.as_tensor().clone()).collect();
        let result = operation(&tensors).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let weights = values(99, result.len(), 1.0);
        result.iter().zip(&weights).map(|(r, w)| f64::from(*r) * f64::from(*w)).sum()
    };
    for (number, (input, gradient)) in inputs.iter().zip(&gradients).enumerate() {
        let original = input.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let largest = gradient.iter().map(|g| g.abs()).fold(0.0, f32::max);
        for step in 0..7 {
            let index = (step * 7919 + 13) % original.len();
            const H: f32 = 4e-3;
            let at = |sign: f32| {
                let mut moved = original.clone();
                moved[index] += sign * H;
                let moved = Tensor::from_vec(moved, input.shape(), &Device::Cpu).unwrap();
                input.set(&moved).unwrap();
                value(inputs)
            };
            let slope = ((at(1.0) - at(-1.0)) / f64::from(2.0 * H)) as f32;
            let original = Tensor::from_slice(&original, input.shape(), &Device::Cpu).unwrap();
            input.set(&original).unwrap();
            let error = (slope - gradient[index]).abs();
            let bound = 0.02 * largest.max(0.05);
            assert!(error < bound, "input {number} [{index}]: {slope} against {}", gradient[index]);
        }
    }
}

fn rope(shape: AttentionShape, groups: &Groups) -> Arc<Rope> {
    let frequencies: Vec<f32> = (0..shape.head_dim / 2)
        .map(|pair| 10_000_f32.powf(-2.0 * pair as f32 / shape.head_dim as f32))
        .collect();
    Arc::new(Rope::new(&frequencies, groups.tokens() + groups.further_rows() + 3))
}

/// Checks attention with a norm before it, or without one.
fn attention_case(
    shape: AttentionShape,
    groups: &Groups,
    (sequences, normed): (usize, bool),
    seed: u64,
    check: impl Fn(Operation<'_>, Operation<'_>, &[Var]),
) {
    let rope = rope(shape, groups);
    let mut inputs = vec![
        var(seed, &[sequences * groups.rows(), shape.hidden], 0.0, 1.0),
        var(seed + 2, &[shape.weight_count()], 0.0, 0.3),
    ];
    if normed {
        inputs.push(var(seed + 1, &[shape.hidden], 1.0, 0.2));
    }
    let fused = |inputs: &[Tensor]| {
        let groups = Arc::new(groups.clone());
        let block = AttentionBlock { shape, rope: Arc::clone(&rope), groups };
        let norm = inputs.get(2).cloned().map_or_else(none, Ok)?;
        apply(block, [&inputs[0], &norm, &inputs[1]])
    };
    let reference = |inputs: &[Tensor]| {
        reference::attention_block(&shape, groups, &inputs[0], inputs.get(2), &inputs[1])
    };
    check(&fused, &reference, &inputs);
}

/// Checks the attention of draft blocks.
fn context_attention_case(
    shape: AttentionShape,
    groups: &Groups,
    sequences: usize,
    seed: u64,
    check: impl Fn(Operation<'_>, Operation<'_>, &[Var]),
) {
    let rope = rope(shape, groups);
    let inputs = [
        var(seed, &[sequences * groups.rows(), shape.hidden], 0.0, 1.0),
        var(seed + 1, &[shape.hidden + 2 * shape.head_dim], 1.0, 0.2),
        var(seed + 2, &[shape.weight_count()], 0.0, 0.3),
    ];
    let fused = |inputs: &[Tensor]| {
        let (rope, groups) = (Arc::clone(&rope), Arc::new(groups.clone()));
        apply(ContextAttention { shape, rope, groups }, [&inputs[0], &inputs[1], &inputs[2]])
    };
    let reference = |inputs: &[Tensor]| {
        reference::context_attention(&shape, groups, &inputs[0], &inputs[1], &inputs[2])
    };
    check(&fused, &reference, &inputs);
}

/// Pseudo-random anchors, at least one.
fn anchors(tokens: usize, seed: u64) -> Vec<usize> {
    let draws = values(seed + 50, tokens, 1.0);
    (0..tokens).filter(|&token| token == tokens / 2 || draws[token] > -0.4).collect()
}

/// Groups with pseudo-random anchors.
fn groups(tokens: usize, masks: usize, seed: u64) -> Groups {
    Groups::new(tokens, masks, anchors(tokens, seed))
}

fn mlp_case(
    shape: MlpShape,
    rows: usize,
    seed: u64,
    check: impl Fn(Operation<'_>, Operation<'_>, &[Var]),
) {
    let inputs = [
        var(seed, &[rows, shape.hidden], 0.0, 1.0),
        var(seed + 1, &[shape.hidden], 1.0, 0.2),
        var(seed + 2, &[shape.weight_count()], 0.0, 0.3),
    ];
    let fused = |inputs: &[Tensor]| {
        let block = MlpBlock { shape };
        apply(block, [&inputs[0], &inputs[1], &inputs[2]])
    };
    let reference =
        |inputs: &[Tensor]| reference::mlp_block(&shape, &inputs[0], &inputs[1], &inputs[2]);
    check(&fused, &reference, &inputs);
}

fn head_case(
    (hidden, vocab_size, rows): (usize, usize, usize),
    share: Option<f32>,
    seed: u64,
    check: impl Fn(Operation<'_>, Operation<'_>, &[Var]),
) {
    let inputs = [
        var(seed, &[rows, hidden], 0.0, 1.0),
        var(seed + 1, &[hidden], 1.0, 0.2),
        var(seed + 2, &[vocab_size, hidden], 0.0, 0.5),
    ];
    let token = |row: usize| ((row * 31 + seed as usize) % vocab_size) as u32;
    let tokens: Vec<u32> = (0..rows).map(token).collect();
    let weights: Vec<f32> = values(seed + 3, rows, 0.3).iter().map(|w| w.abs()).collect();
    let teacher_hidden = hidden + 3;
    let teacher = share.map(|share| Teacher {
        rows: values(seed + 4, rows * teacher_hidden, 1.0).into(),
        head: values(seed + 5, vocab_size * teacher_hidden, 0.4).into(),
        hidden: teacher_hidden,
        share,
    });
    let targets =
        Targets { tokens: tokens.clone().into(), weights: weights.clone().into(), teacher };
    let parts = Arc::new(Mutex::new(LossParts::default()));
    let fused = |inputs: &[Tensor]| {
        let loss = HeadLoss {
            epsilon: EPSILON,
            targets: targets.clone(),
            train: true,
            parts: Arc::clone(&parts),
        };
        apply(loss, [&inputs[0], &inputs[1], &inputs[2]])
    };
    let reference = |inputs: &[Tensor]| {
        let log_p = reference::log_probabilities(&inputs[0], &inputs[1], &inputs[2], EPSILON)?;
        let mut hard = vec![0.0_f32; rows * vocab_size];
        for (row, &token) in tokens.iter().enumerate() {
            hard[row * vocab_size + token as usize] = 1.0;
        }
        let weights = Tensor::from_slice(&weights, (rows, 1), &Device::Cpu)?;
        let hard = Tensor::from_vec(hard, (rows, vocab_size), &Device::Cpu)?;
        let nll = hard.broadcast_mul(&weights)?.mul(&log_p)?.sum_all()?.neg()?;
        let Some(teacher) = &targets.teacher else { return Ok(nll) };
        let teacher_rows = Tensor::from_slice(&teacher.rows, (rows, teacher_hidden), &Device::Cpu)?;
        let head = Tensor::from_slice(&teacher.head, (vocab_size, teacher_hidden), &Device::Cpu)?;
        let logits = teacher_rows.matmul(&head.t()?)?.exp()?;
        let p = logits.broadcast_div(&logits.sum_keepdim(1)?)?;
        let each = (&p * (p.log()? - log_p)?)?;
        let divergence = each.broadcast_mul(&weights)?.sum_all()?;
        let share = f64::from(teacher.share);
        (divergence * share)? + (nll * (1.0 - share))?
    };
    check(&fused, &reference, &inputs);
}

/// Checks the loss of drafted rows. Several of them predict the token after the same target row.
fn draft_head_case(
    (hidden, vocab_size, rows): (usize, usize, usize),
    share: Option<f32>,
    normed: bool,
    seed: u64,
    check: impl Fn(Operation<'_>, Operation<'_>, &[Var]),
) {
    let target_rows = rows.div_ceil(3);
    let mut inputs = vec![var(seed, &[rows, hidden], 0.0, 1.0)];
    if normed {
        inputs.push(var(seed + 1, &[hidden], 1.0, 0.2));
    }
    let weights = values(seed + 2, vocab_size * hidden, 0.5);
    let head = Arc::new(FrozenHead::new(weights.clone(), hidden));
    let target_hidden = values(seed + 4, target_rows * hidden, 1.0);
    let target_row_of: Vec<u32> = (0..rows).map(|row| (row % target_rows) as u32).collect();
    let tokens: Vec<u32> = (0..rows).map(|row| ((row * 31 + 7) % vocab_size) as u32).collect();
    // Some rows have no label.
    let row_weight = |(row, weight): (usize, &f32)| if row % 5 == 4 { 0.0 } else { weight.abs() };
    let row_weights: Vec<f32> =
        values(seed + 3, rows, 0.3).iter().enumerate().map(row_weight).collect();
    let distributions = Arc::new(head.distributions(&target_hidden));
    let labels = DraftLabels {
        tokens: tokens.clone().into(),
        target_rows: target_row_of.clone().into(),
        weights: row_weights.clone().into(),
        soft: share.map(|share| (Arc::clone(&distributions), share)),
    };
    let fused = |inputs: &[Tensor]| {
        let loss = DraftHeadLoss {
            epsilon: EPSILON,
            head: Arc::clone(&head),
            labels: labels.clone(),
            train: true,
            parts: Arc::new(Mutex::default()),
        };
        let norm = inputs.get(1).cloned().map_or_else(none, Ok)?;
        apply(loss, [&inputs[0], &norm, &none()?])
    };
    let tensor = |values: &[f32], columns: usize| {
        Tensor::from_slice(values, (values.len() / columns, columns), &Device::Cpu)
    };
    let reference = |inputs: &[Tensor]| {
        let head = tensor(&weights, hidden)?;
        let x = match inputs.get(1) {
            Some(norm) => reference::rms_norm(&inputs[0], norm, EPSILON)?,
            None => inputs[0].clone(),
        };
        let log_softmax = |x: &Tensor| {
            let logits = x.matmul(&head.t()?)?;
            logits.broadcast_sub(&logits.exp()?.sum_keepdim(1)?.log()?)
        };
        let log_q = log_softmax(&x)?;
        let weights = tensor(&row_weights, 1)?;
        let mut hard = vec![0.0_f32; rows * vocab_size];
        for (row, &token) in tokens.iter().enumerate() {
            hard[row * vocab_size + token as usize] = 1.0;
        }
        let nll =
            tensor(&hard, vocab_size)?.broadcast_mul(&weights)?.mul(&log_q)?.sum_all()?.neg()?;
        let Some(share) = share.map(f64::from) else { return Ok(nll) };
        let index = Tensor::new(&target_row_of[..], &Device::Cpu)?;
        let log_p = log_softmax(&tensor(&target_hidden, hidden)?)?.index_select(&index, 0)?;
        let each = (log_p.exp()? * (&log_p - log_q)?)?;
        let divergence = each.broadcast_mul(&weights)?.sum_all()?;
        (divergence * share)? + (nll * (1.0 - share))?
    };
    check(&fused, &reference, &inputs);
}

/// Checks the loss of DSpark's rows. If `reduced`, the head has only every second token.
fn block_head_case(
    (hidden, vocab_size, rows, rank): (usize, usize, usize, usize),
    (share, confidence_weight): (f32, f32),
    reduced: bool,
    seed: u64,
    check: impl Fn(Operation<'_>, Operation<'_>, &[Var]),
) {
    let target_rows = rows.div_ceil(3);
    let drafted: Arc<[u32]> = (0..vocab_size as u32).step_by(if reduced { 2 } else { 1 }).collect();
    let outputs = drafted.len();
    let count = (vocab_size + outputs) * rank + hidden + rank + 1;
    let inputs = [
        var(seed, &[rows, hidden], 0.0, 1.0),
        var(seed + 1, &[hidden], 1.0, 0.2),
        var(seed + 2, &[count], 0.0, 0.5),
    ];
    let weights = values(seed + 3, vocab_size * hidden, 0.5);
    let target_head = FrozenHead::new(weights.clone(), hidden);
    let head = Arc::new(target_head.select(&drafted));
    let target_hidden = values(seed + 4, target_rows * hidden, 1.0);
    let target_row_of: Vec<u32> = (0..rows).map(|row| (row % target_rows) as u32).collect();
    let previous: Vec<u32> = (0..rows).map(|row| ((row * 17 + 3) % vocab_size) as u32).collect();
    let tokens = (0..rows).map(|row| ((row * 31 + 7) % vocab_size) as u32);
    let tokens: Vec<Option<u32>> =
        tokens.map(|token| drafted.binary_search(&token).ok().map(|at| at as u32)).collect();
    // Some rows have no label.
    let row_weight = |(row, weight): (usize, &f32)| if row % 5 == 4 { 0.0 } else { weight.abs() };
    let row_weights: Vec<f32> =
        values(seed + 5, rows, 0.3).iter().enumerate().map(row_weight).collect();
    let labels = BlockLabels {
        previous: previous.clone().into(),
        tokens: tokens.clone().into(),
        target_rows: target_row_of.clone().into(),
        weights: row_weights.clone().into(),
        distributions: Arc::new(target_head.distributions(&target_hidden)),
        outputs: reduced.then(|| Arc::clone(&drafted)),
    };
    let fused = |inputs: &[Tensor]| {
        let loss = BlockHeadLoss {
            epsilon: EPSILON,
            head: Arc::clone(&head),
            rank,
            labels: labels.clone(),
            distance_share: share,
            confidence_weight,
            train: true,
        };
        apply(loss, [&inputs[0], &inputs[1], &inputs[2]])
    };
    let reference = |inputs: &[Tensor]| {
        let tensor = |values: &[f32], columns: usize| {
            Tensor::from_slice(values, (values.len() / columns, columns), &Device::Cpu)
        };
        let mut first = 0;
        let mut part = |rows: usize, columns: usize| {
            let part = inputs[2].narrow(0, first, rows * columns)?.reshape((rows, columns));
            first += rows * columns;
            part
        };
        let (embeddings, bias) = (part(vocab_size, rank)?, part(outputs, rank)?);
        let (confidence, confidence_bias) = (part(hidden + rank, 1)?, part(1, 1)?);
        let index = |values: &[u32]| Tensor::new(values, &Device::Cpu);
        let target_head = tensor(&weights, hidden)?;
        let head = target_head.index_select(&index(&drafted)?, 0)?;
        let x = reference::rms_norm(&inputs[0], &inputs[1], EPSILON)?;
        let e = embeddings.index_select(&index(&previous)?, 0)?;
        let logits = (x.matmul(&head.t()?)? + e.matmul(&bias.t()?)?)?;
        let log_q = logits.broadcast_sub(&logits.exp()?.sum_keepdim(1)?.log()?)?;
        let p = tensor(&target_hidden, hidden)?.matmul(&target_head.t()?)?.exp()?;
        let p = p.broadcast_div(&p.sum_keepdim(1)?)?;
        let p = p.index_select(&index(&target_row_of)?, 0)?.index_select(&index(&drafted)?, 1)?;
        let acceptance = log_q.exp()?.minimum(&p)?.sum_keepdim(1)?;
        let mut hard = vec![0.0_f32; rows * outputs];
        for (row, token) in tokens.iter().enumerate() {
            if let Some(token) = token {
                hard[row * outputs + *token as usize] = 1.0;
            }
        }
        let nll = (tensor(&hard, outputs)? * log_q)?.sum_keepdim(1)?.neg()?;
        let logit = Tensor::cat(&[&x, &e], 1)?.matmul(&confidence)?;
        let logit = logit.broadcast_add(&confidence_bias)?;
        let softplus = (logit.exp()? + 1.0)?.log()?;
        let entropy = (softplus - (acceptance.detach() * logit)?)?;
        let (share, of_confidence) = (f64::from(share), f64::from(confidence_weight));
        let distance = ((acceptance * -2.0)? + 2.0)?;
        let each = (((nll * (1.0 - share))? + (distance * share)?)? + (entropy * of_confidence)?)?;
        each.broadcast_mul(&tensor(&row_weights, 1)?)?.sum_all()
    };
    check(&fused, &reference, &inputs);
}

/// Checks the feature loss with distances below and above 1.
fn feature_case(
    (hidden, rows): (usize, usize),
    seed: u64,
    check: impl Fn(Operation<'_>, Operation<'_>, &[Var]),
) {
    let target_rows = rows.div_ceil(2);
    let inputs = [var(seed, &[rows, hidden], 0.0, 1.5)];
    let features = values(seed + 1, target_rows * hidden, 1.0);
    let target_row_of: Vec<u32> = (0..rows).map(|row| (row % target_rows) as u32).collect();
    let row_weight = |(row, weight): (usize, &f32)| if row % 5 == 4 { 0.0 } else { weight.abs() };
    let row_weights: Vec<f32> =
        values(seed + 2, rows, 0.3).iter().enumerate().map(row_weight).collect();
    let fused = |inputs: &[Tensor]| {
        let loss = FeatureLoss {
            features: features.clone().into(),
            hidden,
            target_rows: target_row_of.clone().into(),
            weights: row_weights.clone().into(),
        };
        apply(loss, [&inputs[0], &none()?, &none()?])
    };
    let reference = |inputs: &[Tensor]| {
        let features = Tensor::from_slice(&features, (target_rows, hidden), &Device::Cpu)?;
        let features = features.index_select(&Tensor::new(&target_row_of[..], &Device::Cpu)?, 0)?;
        let distance = (&inputs[0] - features)?;
        let (size, square) = (distance.abs()?, (distance.sqr()? / 2.0)?);
        let each = size.lt(1.0)?.where_cond(&square, &(&size - 0.5)?)?;
        let weights = Tensor::from_slice(&row_weights, (rows, 1), &Device::Cpu)?;
        each.broadcast_mul(&weights)?.sum_all()? / hidden as f64
    };
    check(&fused, &reference, &inputs);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn attention_matches_the_reference(
        (kv_heads, group, pairs) in (1_usize..3, 1_usize..4, 1_usize..9),
        (tokens, sequences, hidden) in (1_usize..150, 1_usize..4, 1_usize..40),
        (masks, normed, seed) in (0_usize..5, any::<bool>(), 0_u64..1000),
    ) {
        let shape = AttentionShape {
            hidden,
            heads: kv_heads * group,
            kv_heads,
            head_dim: 2 * pairs,
            epsilon: EPSILON,
        };
        let groups = if masks == 0 { Groups::causal(tokens) } else { groups(tokens, masks, seed) };
        attention_case(shape, &groups, (sequences, normed), seed, assert_same);
    }

    #[test]
    fn the_attention_of_draft_blocks_matches_the_reference(
        (kv_heads, group, pairs) in (1_usize..3, 1_usize..4, 1_usize..9),
        (tokens, sequences, hidden) in (1_usize..100, 1_usize..4, 1_usize..40),
        (size, seed) in (1_usize..6, 0_u64..1000),
    ) {
        let shape = AttentionShape {
            hidden,
            heads: kv_heads * group,
            kv_heads,
            head_dim: 2 * pairs,
            epsilon: EPSILON,
        };
        let groups = Groups::draft_blocks(tokens, size, anchors(tokens, seed));
        context_attention_case(shape, &groups, sequences, seed, assert_same);
    }

    #[test]
    fn mlp_matches_the_reference(
        (hidden, intermediate, rows) in (1_usize..40, 1_usize..70, 1_usize..1300),
        seed in 0_u64..1000,
    ) {
        mlp_case(MlpShape { hidden, intermediate, epsilon: EPSILON }, rows, seed, assert_same);
    }

    #[test]
    fn head_losses_match_the_reference(
        sizes in (1_usize..40, 2_usize..90, 1_usize..400),
        share in prop_oneof![Just(None), (0.0_f32..=1.0).prop_map(Some)],
        seed in 0_u64..1000,
    ) {
        head_case(sizes, share, seed, assert_same);
    }

    #[test]
    fn block_losses_match_the_reference(
        sizes in (1_usize..40, 2_usize..90, 1_usize..400, 1_usize..9),
        weights in (0.0_f32..=1.0, 0.1_f32..2.0),
        (reduced, seed) in (any::<bool>(), 0_u64..1000),
    ) {
        block_head_case(sizes, weights, reduced, seed, assert_same);
    }

    #[test]
    fn draft_losses_match_the_reference(
        sizes in (1_usize..40, 2_usize..90, 1_usize..400),
        share in prop_oneof![Just(None), (0.0_f32..=1.0).prop_map(Some)],
        (normed, seed) in (any::<bool>(), 0_u64..1000),
    ) {
        draft_head_case(sizes, share, normed, seed, assert_same);
        feature_case((sizes.0, sizes.2), seed, assert_same);
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let shape = AttentionShape { hidden: 12, heads: 4, kv_heads: 2, head_dim: 6, epsilon: EPSILON };
    for (groups, normed) in
        [(Groups::causal(9), true), (groups(7, 2, 3), true), (groups(7, 3, 4), false)]
    {
        let check = |fused: Operation<'_>, _: Operation<'_>, inputs: &[Var]| {
            assert_differences(fused, inputs);
        };
        attention_case(shape, &groups, (2, normed), 5, check);
    }
    let blocks = Groups::draft_blocks(7, 3, vec![0, 2, 5]);
    context_attention_case(shape, &blocks, 2, 5, |fused, _, inputs| {
        assert_differences(fused, inputs);
    });
    let shape = MlpShape { hidden: 12, intermediate: 20, epsilon: EPSILON };
    mlp_case(shape, 9, 6, |fused, _, inputs| assert_differences(fused, inputs));
    feature_case((8, 11), 6, |fused, _, inputs| assert_differences(fused, inputs));
    for (share, reduced) in [(0.0, false), (0.9, false), (0.4, true), (1.0, true)] {
        // The label of a confidence is a constant in the gradient, but not in differences.
        block_head_case((10, 17, 12, 3), (share, 0.0), reduced, 8, |fused, _, inputs| {
            assert_differences(fused, inputs);
        });
    }
    for share in [None, Some(0.0), Some(0.7), Some(1.0)] {
        draft_head_case((10, 17, 12), share, share != Some(0.7), 9, |fused, _, inputs| {
            assert_differences(fused, inputs);
        });
        let sizes = (10, 17, 12);
        head_case(sizes, share, 7, |fused, _, inputs| assert_differences(fused, inputs));
    }
}

/// The number of threads changes only the order of sums over threads.
#[test]
fn thread_count_changes_only_rounding() {
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let shape = MlpShape { hidden: 24, intermediate: 40, epsilon: EPSILON };
    mlp_case(shape, 1100, 8, |fused, _, inputs| {
        let one = pool(1).install(|| differentiate(fused, inputs));
        let again = pool(1).install(|| differentiate(fused, inputs));
        assert_eq!(one, again);
        let three = pool(3).install(|| differentiate(fused, inputs));
        assert_eq!(one.0, three.0, "rows are independent of each other");
        assert_close(&one.1[2], &three.1[2], "gradient of the weights");
    });
}
