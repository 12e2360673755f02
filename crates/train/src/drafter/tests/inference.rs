//! The rows that training computes equal those of inference. The reference implementation reads the
//! exported files and computes one causal sequence per draft, its tokens followed by its masks, in
//! simple loops in f64.

use super::*;
use crate::Llama;
use crate::drafter::acceptance::draft_rows;
use crate::ops::groups::Groups;
use forerun_formats::Checkpoint;
use forerun_lm::EXCLUDED_LOGIT;
use safetensors::SafeTensors;
use serde_json::Value;
use std::sync::Arc;

/// An exported drafter or target, read without the trainer's code.
struct StoredModel {
    config: Value,
    bytes: Vec<u8>,
}

impl StoredModel {
    fn read(folder: &Path) -> Self {
        let config = std::fs::read(folder.join("config.json")).unwrap();
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        Self { config: serde_json::from_slice(&config).unwrap(), bytes }
    }

    fn size(&self, option: &str) -> usize {
        self.config[option].as_u64().unwrap() as usize
    }

    /// Returns the rows of a matrix, or a vector as one row.
    fn tensor(&self, name: &str) -> Option<Vec<Vec<f64>>> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = file.tensor(name).ok()?;
        let values = tensor.data().as_chunks::<4>().0.iter();
        let values: Vec<f64> = values.map(|b| f64::from(f32::from_le_bytes(*b))).collect();
        Some(values.chunks(*tensor.shape().last().unwrap()).map(<[f64]>::to_vec).collect())
    }

    fn vector(&self, name: &str) -> Option<Vec<f64>> {
        self.tensor(name).map(|mut rows| rows.remove(0))
    }

    fn product(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let inner = |row: &Vec<f64>| row.iter().zip(x).map(|(w, x)| w * x).sum();
        self.tensor(&format!("{name}.weight")).unwrap().iter().map(inner).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let Some(weight) = self.vector(&format!("{name}.weight")) else { return x.to_vec() };
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let epsilon = self.config["rms_norm_eps"].as_f64().unwrap();
        x.iter().zip(weight).map(|(x, w)| x / (mean + epsilon).sqrt() * w).collect()
    }

    fn fc(&self, embedding: &[f64], feature: &[f64]) -> Vec<f64> {
        let product = self.product("fc", &[embedding, feature].concat());
        add(&product, &self.vector("fc.bias").unwrap())
    }

    fn rotated(&self, x: &[f64], position: usize) -> Vec<f64> {
        let (pairs, theta) = (x.len() / 2, self.config["rope_theta"].as_f64().unwrap());
        let mut out = x.to_vec();
        for pair in 0..pairs {
            let angle = position as f64 * theta.powf(-(pair as f64) / pairs as f64);
            let (a, b) = (x[pair], x[pair + pairs]);
            out[pair] = a * angle.cos() - b * angle.sin();
            out[pair + pairs] = b * angle.cos() + a * angle.sin();
        }
        out
    }

    /// Computes the rows of a block after all layers, from the context rows of the tokens before it
    /// and its inputs.
    fn block_rows(&self, contexts: &[Vec<f64>], inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let mut block = inputs.to_vec();
        for layer in 0..self.size("num_hidden_layers") {
            block = self.block_layer(layer, contexts, &block);
        }
        block
    }

    fn block_layer(
        &self,
        layer: usize,
        contexts: &[Vec<f64>],
        block: &[Vec<f64>],
    ) -> Vec<Vec<f64>> {
        let (head_dim, heads) = (self.size("head_dim"), self.size("num_attention_heads"));
        let shared = heads / self.size("num_key_value_heads");
        let name = |part: &str| format!("layers.{layer}.{part}");
        let normed: Vec<_> = block.iter().map(|x| self.norm(&name("input_layernorm"), x)).collect();
        let read: Vec<_> = contexts.iter().chain(&normed).collect();
        let keys: Vec<_> =
            read.iter().map(|x| self.product(&name("self_attn.k_proj"), x)).collect();
        let values: Vec<_> =
            read.iter().map(|x| self.product(&name("self_attn.v_proj"), x)).collect();
        let of = |x: &[f64], head: usize| x[head * head_dim..(head + 1) * head_dim].to_vec();
        let row = |(slot, x): (usize, &Vec<f64>)| {
            let queries = self.product(&name("self_attn.q_proj"), &normed[slot]);
            let mut out = Vec::new();
            for head in 0..heads {
                let query = self.norm(&name("self_attn.q_norm"), &of(&queries, head));
                let query = self.rotated(&query, contexts.len() + slot);
                let score = |(position, key): (usize, &Vec<f64>)| {
                    let key = self.norm(&name("self_attn.k_norm"), &of(key, head / shared));
                    let key = self.rotated(&key, position);
                    let inner: f64 = query.iter().zip(key).map(|(q, k)| q * k).sum();
                    (inner / (head_dim as f64).sqrt()).exp()
                };
                let scores: Vec<f64> = keys.iter().enumerate().map(score).collect();
                let total: f64 = scores.iter().sum();
                for index in 0..head_dim {
                    let value = |row: usize| values[row][head / shared * head_dim + index];
                    out.push((0..scores.len()).map(|row| scores[row] / total * value(row)).sum());
                }
            }
            let x = add(x, &self.product(&name("self_attn.o_proj"), &out));
            add(&x, &self.mlp(layer, &x))
        };
        block.iter().enumerate().map(row).collect()
    }

    fn mlp(&self, layer: usize, x: &[f64]) -> Vec<f64> {
        let name = |part: &str| format!("layers.{layer}.{part}");
        let normed = self.norm(&name("post_attention_layernorm"), x);
        let gate = self.product(&name("mlp.gate_proj"), &normed);
        let up = self.product(&name("mlp.up_proj"), &normed);
        let inner: Vec<f64> =
            gate.iter().zip(up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
        self.product(&name("mlp.down_proj"), &inner)
    }

    /// Computes the layer's last row for a causal sequence of inputs.
    fn last_row(&self, inputs: &[Vec<f64>]) -> Vec<f64> {
        let (head_dim, heads) = (self.size("head_dim"), self.size("num_attention_heads"));
        let shared = heads / self.size("num_key_value_heads");
        let normed: Vec<_> =
            inputs.iter().map(|x| self.norm("layers.0.input_layernorm", x)).collect();
        let project = |part: &str| -> Vec<Vec<f64>> {
            let name = format!("layers.0.self_attn.{part}_proj");
            normed.iter().map(|x| self.product(&name, x)).collect()
        };
        let (keys, values) = (project("k"), project("v"));
        let last = inputs.len() - 1;
        let queries = self.product("layers.0.self_attn.q_proj", &normed[last]);
        let mut out = Vec::new();
        for head in 0..heads {
            let of = |x: &[f64], head: usize| x[head * head_dim..(head + 1) * head_dim].to_vec();
            let query = self.rotated(&of(&queries, head), last);
            let score = |(position, key): (usize, &Vec<f64>)| {
                let key = self.rotated(&of(key, head / shared), position);
                let inner: f64 = query.iter().zip(key).map(|(q, k)| q * k).sum();
                (inner / (head_dim as f64).sqrt()).exp()
            };
            let scores: Vec<f64> = keys.iter().enumerate().map(score).collect();
            let total: f64 = scores.iter().sum();
            for index in 0..head_dim {
                let value = |row: usize| values[row][head / shared * head_dim + index];
                out.push((0..=last).map(|row| scores[row] / total * value(row)).sum());
            }
        }
        let x = add(&inputs[last], &self.product("layers.0.self_attn.o_proj", &out));
        add(&x, &self.mlp(0, &x))
    }
}

fn add(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a + b).collect()
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Computes the rows of a draft after the token of row `anchor`, as inference does.
fn reference_rows(
    stored: &StoredModel,
    target: &Target,
    text: &Text,
    (sequence, anchor): (usize, usize),
    positions: usize,
) -> Vec<Vec<f64>> {
    let hidden = target.config().hidden_size;
    let first = sequence * text.context;
    let feature = |row: usize| widen(&text.features[(first + row) * hidden..][..hidden]);
    let embedding = |row: usize| widen(target.embedding_of(text.inputs[first + row]));
    let masks = |name| stored.tensor(name).unwrap();
    match stored.config["speculator"].as_str().unwrap() {
        "medusa" => (0..positions)
            .map(|head| {
                let feature = feature(anchor);
                let inner = stored.product(&format!("{head}.0.linear"), &feature);
                let bias = stored.vector(&format!("{head}.0.linear.bias")).unwrap();
                let inner = add(&inner, &bias);
                let silu: Vec<f64> = inner.iter().map(|x| x / (1.0 + (-x).exp())).collect();
                add(&feature, &silu)
            })
            .collect(),
        "hydra" => (0..positions)
            .map(|head| {
                let tokens = (1..=head + 1).flat_map(|distance| embedding(anchor + distance));
                let inputs: Vec<f64> = feature(anchor).into_iter().chain(tokens).collect();
                let linear = |part: &str| {
                    let name = format!("hydra_mlp.{head}.0.{part}");
                    let bias = stored.vector(&format!("{name}.bias")).unwrap();
                    add(&stored.product(&name, &inputs), &bias)
                };
                let silu = linear("linear").into_iter().map(|x| x / (1.0 + (-x).exp()));
                add(&linear("res_connection"), &silu.collect::<Vec<f64>>())
            })
            .collect(),
        "parallelspec-medusa" => {
            let mut inputs: Vec<_> = (0..=anchor).map(embedding).collect();
            let mut rows = vec![stored.last_row(&inputs)];
            for mask in masks("mask_embeddings.weight") {
                inputs.push(mask);
                rows.push(stored.last_row(&inputs));
            }
            rows
        }
        "eagle" => {
            let mut inputs: Vec<_> =
                (0..=anchor).map(|row| stored.fc(&embedding(row + 1), &feature(row))).collect();
            let mut rows = vec![stored.last_row(&inputs)];
            for depth in 1..positions {
                let drafted = &rows[depth - 1];
                inputs.push(stored.fc(&embedding(anchor + 1 + depth), drafted));
                rows.push(stored.last_row(&inputs));
            }
            rows
        }
        kind @ ("dflash" | "dspark") => {
            let width = text.layer_features.len() / text.inputs.len();
            let context = |row: usize| {
                let feature = &text.layer_features[(first + row) * width..][..width];
                stored.norm("hidden_norm", &stored.product("fc", &widen(feature)))
            };
            let contexts: Vec<_> = (0..anchor).map(context).collect();
            let (options, silent) = match kind {
                "dflash" => (&stored.config["dflash_config"], 1),
                _ => (&stored.config, 0),
            };
            let mask = options["mask_token_id"].as_u64().unwrap();
            let mut inputs = vec![widen(target.embedding_of(mask as u32)); positions + silent];
            assert_eq!(stored.size("block_size"), inputs.len());
            inputs[0] = embedding(anchor);
            stored.block_rows(&contexts, &inputs).split_off(silent)
        }
        _ => {
            let mut inputs: Vec<_> =
                (0..=anchor).map(|row| stored.fc(&embedding(row + 1), &feature(row))).collect();
            let mut rows = vec![stored.last_row(&inputs)];
            let features = masks("mask_features.weight");
            for (embedding, feature) in masks("mask_embeddings.weight").iter().zip(&features) {
                inputs.push(stored.fc(embedding, feature));
                rows.push(stored.last_row(&inputs));
            }
            rows
        }
    }
}

fn assert_near(a: &[f32], b: &[f64], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let size = b.iter().map(|b| b.abs()).fold(1.0, f64::max);
    for (a, b) in a.iter().zip(b) {
        assert!((f64::from(*a) - b).abs() < 1e-5 * size, "{what}: {a} against {b}");
    }
}

#[test]
fn draft_rows_equal_the_rows_of_inference() {
    const CONTEXT: usize = 17;
    for (seed, kind) in (0..).zip(TrainedDrafterKind::ALL) {
        let folder = tempfile::tempdir().unwrap();
        let target = target_of(kind, &folder.path().join("target"), seed);
        let drafter = drafter(kind, &target);
        let written = folder.path().join("drafter");
        drafter.export(&target, &written, forerun_formats::checkpoint::Dtype::F32).unwrap();
        let stored = StoredModel::read(&written);
        assert_eq!(stored.config["speculator"], kind.to_string());
        let text = text(&target, 2, CONTEXT);
        let options = DrafterOptions::of(kind, MASKS);
        let anchors = [0, 1, 4, 9, 12];
        let rows = draft_rows(pair(&drafter, &target, &options), &text, &anchors).unwrap();
        assert_eq!(rows.len(), options.positions());
        for sequence in 0..2 {
            for (group, &anchor) in anchors.iter().enumerate() {
                let at = (sequence, anchor);
                let expected = reference_rows(&stored, &target, &text, at, rows.len());
                for (position, expected) in expected.iter().enumerate() {
                    let row = rows[position].get(sequence * anchors.len() + group).unwrap();
                    let what = format!("{kind}, anchor {anchor}, position {position}");
                    assert_near(&row.to_vec1().unwrap(), expected, &what);
                }
            }
        }
    }
}

/// Computing all groups of a sequence at once gives the same rows as computing each of them alone.
#[test]
fn every_row_of_every_group_equals_a_row_of_inference() {
    const CONTEXT: usize = 11;
    for (seed, kind) in
        [(1, TrainedDrafterKind::ParallelspecMedusa), (2, TrainedDrafterKind::ParallelspecEagle)]
    {
        let folder = tempfile::tempdir().unwrap();
        let target = target(&folder.path().join("target"), seed);
        let drafter = drafter(kind, &target);
        let written = folder.path().join("drafter");
        drafter.export(&target, &written, forerun_formats::checkpoint::Dtype::F32).unwrap();
        let stored = StoredModel::read(&written);
        let text = text(&target, 2, CONTEXT);
        let tokens = drafter.token_rows(CONTEXT);
        let groups = Arc::new(Groups::new(tokens, MASKS, (0..tokens).collect()));
        let inputs = drafter.token_inputs(&target, &text, None).unwrap();
        let rows = drafter.layer_rows_with_masks(&inputs, &groups).unwrap();
        for sequence in 0..2 {
            for anchor in 0..tokens {
                let at = (sequence, anchor);
                let expected = reference_rows(&stored, &target, &text, at, MASKS + 1);
                for (depth, expected) in expected.iter().enumerate() {
                    let row = sequence * groups.rows() + groups.row(anchor, depth);
                    let row = rows.get(row).unwrap().to_vec1().unwrap();
                    let what = format!("{kind}, anchor {anchor}, depth {depth}");
                    assert_near(&row, expected, &what);
                }
            }
        }
    }
}

/// Computes the logits of a drafter's row with the target's head.
fn head_logits(target: &StoredModel, drafter: &StoredModel, row: &[f64]) -> Vec<f64> {
    let head =
        target.tensor("lm_head.weight").or_else(|| target.tensor("model.embed_tokens.weight"));
    let row = drafter.norm("norm", row);
    let inner = |weights: &Vec<f64>| weights.iter().zip(&row).map(|(w, x)| w * x).sum();
    head.unwrap().iter().map(inner).collect()
}

/// Computes the logits of a draft after `tokens` with the engine, from the files that the trainer
/// wrote: one row per position. EAGLE reads the drafted tokens `drafted`.
fn engine_logits(
    kind: TrainedDrafterKind,
    folder: &Path,
    tokens: &[u32],
    drafted: &[u32],
    features: &[f32],
) -> Vec<Vec<f32>> {
    use forerun_core::{FeatureRows, Features, SequenceId, TokenTree};
    use forerun_cpu::{CpuHeads, SpeculatorWeights, Team, Transformer, Weights};
    use forerun_formats::{Speculator, WeightType};
    use forerun_lm::{ForwardRequest, LanguageModel};
    use forerun_model::{BlockModel, CachedTransformer, EagleModel};
    let context = ForwardRequest::next_token(SequenceId(0), tokens);
    let checkpoint = Checkpoint::open(&folder.join("target")).unwrap();
    let target = Weights::load_as(&checkpoint, WeightType::F32).unwrap();
    let speculator = Speculator::open(&folder.join("drafter"), &checkpoint).unwrap().unwrap();
    let team = Arc::new(Team::single_thread());
    let width = checkpoint.config().hidden_size;
    let weights = SpeculatorWeights::load(&speculator, &target, WeightType::F32.into()).unwrap();
    let logits = match (kind, weights) {
        (_, SpeculatorWeights::Heads(weights)) => {
            let mut heads = CpuHeads::model(weights, &team);
            let mut rows = Features::new();
            rows.push(FeatureRows::new(width, features.to_vec()));
            let tree = TokenTree::chain(drafted);
            let request = ForwardRequest { tree: &tree, ..context };
            heads.logits(&ForwardRequest { features: Some(&rows), ..request }).unwrap()
        }
        (TrainedDrafterKind::ParallelspecMedusa, SpeculatorWeights::Layers(weights)) => {
            let masks: Vec<u32> = weights.architecture().mask_ids().collect();
            let mut model = CachedTransformer::new(Transformer::new(weights, team));
            model.logits(&ForwardRequest { tree: &TokenTree::chain(&masks), ..context }).unwrap()
        }
        (TrainedDrafterKind::Medusa | TrainedDrafterKind::Hydra, SpeculatorWeights::Layers(_)) => {
            panic!("{kind} has layers")
        }
        (
            TrainedDrafterKind::Dflash | TrainedDrafterKind::Dspark,
            SpeculatorWeights::Layers(weights),
        ) => {
            let block = speculator.block().unwrap();
            let masks = TokenTree::chain(&vec![block.mask; block.size - 1]);
            let width = speculator.features().unwrap().width(width);
            let mut rows = Features::new();
            rows.push(FeatureRows::new(width, features.to_vec()));
            let request = ForwardRequest::new(SequenceId(0), tokens, &masks);
            let first_row = block.size - block.positions();
            let request = ForwardRequest { first_row, features: Some(&rows), ..request };
            BlockModel::new(Transformer::new(weights, team)).logits(&request).unwrap()
        }
        (_, SpeculatorWeights::Layers(weights)) => {
            let masks: Vec<u32> = weights.architecture().mask_ids().collect();
            let tree = TokenTree::chain(if masks.is_empty() { drafted } else { &masks });
            let mut feature_rows = Features::new();
            feature_rows.push(FeatureRows::new(width, features.to_vec()));
            let features = Some(&feature_rows);
            let request = ForwardRequest { tree: &tree, features, ..context };
            EagleModel::new(Transformer::new(weights, team)).logits(&request).unwrap()
        }
    };
    logits.rows().map(<[f32]>::to_vec).collect()
}

/// The engine's features are those of the trainer's own forward pass.
#[test]
fn features_equal_those_of_the_trainers_forward_pass() {
    const CONTEXT: usize = 40;
    for seed in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let text = text(&target(folder.path(), seed), 3, CONTEXT);
        let model = Llama::load(&Checkpoint::open(folder.path()).unwrap()).unwrap();
        let hidden = model.hidden(&text.inputs, CONTEXT).unwrap();
        let expected = model.apply_final_norm(&hidden).unwrap();
        assert_eq!(text.features.len(), expected.len());
        for (feature, expected) in text.features.iter().zip(expected) {
            assert!((feature - expected).abs() < 1e-4, "{feature}, expected {expected}");
        }
    }
}

/// The engine loads the files that the trainer wrote, and computes the same logits, of all tokens
/// and of some.
#[test]
fn draft_rows_equal_the_rows_of_the_engine() {
    const CONTEXT: usize = 17;
    let cases = TrainedDrafterKind::ALL.map(|kind| [(kind, false), (kind, true)]);
    for (seed, (kind, reduced)) in (0..).zip(cases.into_iter().flatten()) {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let target = target_of(kind, &folder.join("target"), seed);
        let vocabulary: Option<Arc<[u32]>> = reduced.then(|| (0..259).step_by(3).collect());
        let drafter = drafter(kind, &target).with_vocabulary(vocabulary, &target).unwrap();
        let written = folder.join("drafter");
        drafter.export(&target, &written, forerun_formats::checkpoint::Dtype::F32).unwrap();
        let [stored, stored_target] =
            [&written, &folder.join("target")].map(|path| StoredModel::read(path));
        let text = text(&target, 1, CONTEXT);
        let options = DrafterOptions::of(kind, MASKS);
        let anchors = [1, 4, 9, 12];
        let rows = draft_rows(pair(&drafter, &target, &options), &text, &anchors).unwrap();
        let hidden = target.config().hidden_size;
        for (group, &anchor) in anchors.iter().enumerate() {
            // A row of features reads the token after its position. The engine gives it to all
            // heads.
            let token_offset = usize::from(kind.predicts_features() || kind.has_draft_heads());
            let last = anchor + token_offset;
            let (tokens, drafted) = text.inputs.split_at(last + 1);
            let drafted = &drafted[..rows.len() - 1];
            let features = match kind {
                kind if kind.has_blocks() => {
                    &text.layer_features[..anchor * text.layer_features.len() / CONTEXT]
                }
                _ => &text.features[..(anchor + 1) * hidden],
            };
            let found = engine_logits(kind, folder, tokens, drafted, features);
            assert_eq!(found.len(), rows.len(), "{kind}");
            for (position, found) in found.iter().enumerate() {
                let row = rows[position].get(group).unwrap().to_vec1::<f32>().unwrap();
                let expected = head_logits(&stored_target, &stored, &widen(&row));
                let (mut own, mut others) = (Vec::new(), Vec::new());
                for (token, logit) in (0..).zip(found.iter().zip(expected)) {
                    match drafter.output_of(token) {
                        Some(_) => own.push(logit),
                        None => others.push(*logit.0),
                    }
                }
                let (found, expected): (Vec<f32>, Vec<f64>) = own.into_iter().unzip();
                assert_near(&found, &expected, &format!("{kind}, anchor {anchor}, {position}"));
                assert_eq!(found.len(), if reduced { 87 } else { 259 });
                assert!(others.iter().all(|&logit| logit == EXCLUDED_LOGIT), "{kind}");
            }
        }
    }
}

/// The engine reads DSpark's heads: the same bias of the logits and the same confidences as plain
/// loops over the file.
#[test]
fn dsparks_heads_equal_those_of_the_engine() {
    use forerun_cpu::{BlockHeadWeights, CpuBlockHeads, Team};
    use forerun_formats::{Speculator, WeightType};
    use forerun_lm::{BlockPosition, ForwardBlockHeads};
    let folder = tempfile::tempdir().unwrap();
    let kind = TrainedDrafterKind::Dspark;
    let target = target_of(kind, &folder.path().join("target"), 3);
    let all_tokens = drafter(kind, &target);
    let some_tokens = drafter(kind, &target);
    let some_tokens =
        some_tokens.with_vocabulary(Some((0..259).step_by(3).collect()), &target).unwrap();
    let text = text(&target, 1, 12);
    let options = DrafterOptions::of(kind, MASKS);
    for (name, drafter) in [("all", all_tokens), ("some", some_tokens)] {
        let written = folder.path().join(name);
        drafter.export(&target, &written, forerun_formats::checkpoint::Dtype::F32).unwrap();
        let stored = StoredModel::read(&written);
        let checkpoint = Checkpoint::open(&folder.path().join("target")).unwrap();
        let speculator = Speculator::open(&written, &checkpoint).unwrap().unwrap();
        let heads = speculator.block_heads().unwrap().unwrap();
        let weights = BlockHeadWeights::load(heads, &speculator, WeightType::F32.into()).unwrap();
        let mut heads = CpuBlockHeads::new(Arc::new(weights), Arc::new(Team::single_thread()));
        let rows = draft_rows(pair(&drafter, &target, &options), &text, &[2]).unwrap();
        for (position, row) in rows.iter().enumerate() {
            let hidden = row.get(0).unwrap().to_vec1::<f32>().unwrap();
            let previous = text.inputs[2 + position];
            let (state, candidates) = (&[][..], &[][..]);
            let read =
                BlockPosition { hidden: &hidden, previous, state, predicts: true, candidates };
            let found = heads.forward(&[read]).remove(0);
            let embedding =
                &stored.tensor("markov_head.markov_w1.weight").unwrap()[previous as usize];
            let bias = stored.product("markov_head.markov_w2", embedding);
            // The engine's logits are those of all the target's tokens.
            let of_output = |output| found.logit_bias[drafter.token_of(output)];
            let found_bias: Vec<f32> = (0..bias.len()).map(of_output).collect();
            assert_near(&found_bias, &bias, &format!("{name}, bias {position}"));
            let read = [stored.norm("norm", &widen(&hidden)), embedding.clone()].concat();
            let logit = stored.product("confidence_head.proj", &read)[0]
                + stored.vector("confidence_head.proj.bias").unwrap()[0];
            let confidence = 1.0 / (1.0 + (-logit).exp());
            assert_near(&[found.confidence], &[confidence], &format!("{name}, {position}"));
        }
    }
}

/// Only forerun's trainer stores `d2t` without a head.
#[test]
fn tokens_without_a_head_are_refused_from_other_writers() {
    use forerun_cpu::{SpeculatorWeights, Weights};
    use forerun_formats::{Speculator, WeightType};
    for kind in [TrainedDrafterKind::Dflash, TrainedDrafterKind::Dspark] {
        let folder = tempfile::tempdir().unwrap();
        let target = target_of(kind, &folder.path().join("target"), 3);
        let vocabulary = Some((0..259).step_by(2).collect());
        let drafter = drafter(kind, &target).with_vocabulary(vocabulary, &target).unwrap();
        let written = folder.path().join("drafter");
        drafter.export(&target, &written, forerun_formats::checkpoint::Dtype::F32).unwrap();
        let checkpoint = Checkpoint::open(&folder.path().join("target")).unwrap();
        let weights = Weights::load_as(&checkpoint, WeightType::F32).unwrap();
        let load = || {
            let speculator = Speculator::open(&written, &checkpoint)?.unwrap();
            SpeculatorWeights::load(&speculator, &weights, WeightType::F32.into()).map(drop)
        };
        load().unwrap();
        let file = written.join("config.json");
        let mut config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        config.as_object_mut().unwrap().remove("speculator");
        std::fs::write(&file, config.to_string()).unwrap();
        let error = load().unwrap_err().to_string();
        assert!(error.contains("d2t"), "{error}");
    }
}
