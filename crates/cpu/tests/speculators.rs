//! Drafters trained for a target: they compute what their papers define, compared with plain loops, and a
//! round keeps no rows that were computed from predicted features.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::{FeatureRows, Features, SequenceId, TokenId, TokenTree};
use forerun_cpu::{CpuHeads, Isa, SpeculatorWeights, Team, Transformer, Weights};
use forerun_formats::checkpoint::DRAFTER_FILES;
use forerun_formats::checkpoint::random::{
    RandomDtype, example_config, example_families, write_random_checkpoint,
    write_random_checkpoint_with_mtp,
};
use forerun_formats::checkpoint::random_speculator::{
    Eagle3Options, RandomSpeculator, SpeculatorLayout,
};
use forerun_formats::{
    Checkpoint, Config, Family as F, FeatureNorm, MarkovKind, Speculator, SpeculatorArchitecture,
    SpeculatorKind, WeightType,
};
use forerun_lm::{
    BatchEntry, EXCLUDED_LOGIT, FeatureModel, ForwardRequest, LanguageModel, ModelError, Progress,
};
use forerun_model::{BlockModel, CachedTransformer, EagleModel, HeadsModel};
use forerun_reference::{Arithmetic, ReferenceDevice, ReferenceHeads, ReferenceModel};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

const SEQUENCE: SequenceId = SequenceId(7);
const MASKS: usize = 3;

/// The name of the target's embedding.
const EMBEDDING: &str = "model.embed_tokens.weight";

/// The first layer of drafters other than EAGLE-3.
const PLAIN: (&str, bool) = ("layers.0", false);

/// A target and the folder of its drafters.
struct Target {
    folder: TempDir,
    config: Config,
    checkpoint: Checkpoint,
    weights: Arc<Weights>,
}

fn target() -> Target {
    target_of(Config { num_hidden_layers: 1, ..example_config() })
}

fn target_of(config: Config) -> Target {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("target");
    write_random_checkpoint(&path, &config, 3, RandomDtype::F32).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let weights = Arc::new(Weights::load_as(&checkpoint, WeightType::F32).unwrap());
    Target { folder, config, checkpoint, weights }
}

impl Target {
    /// Writes a random drafter. Returns it with its tensors by name.
    fn drafter(&self, layout: SpeculatorLayout) -> (Speculator, Tensors) {
        let path = self.folder.path().join(format!("{layout:?}"));
        let (target, hash) = (&self.config, self.checkpoint.embedding_sha256().unwrap());
        let target_embedding_sha256 = Some(hash);
        RandomSpeculator { layout, target, seed: 3, positions: MASKS, target_embedding_sha256 }
            .write(&path)
            .unwrap();
        let speculator = Speculator::open(&path, &self.checkpoint).unwrap().unwrap();
        let mut tensors = Tensors::read(&path);
        let of_target = Tensors::read(&self.folder.path().join("target"));
        for (name, short) in
            [(EMBEDDING, "embed_tokens.weight"), ("lm_head.weight", "lm_head.weight")]
        {
            let own = tensors.0.entry(short.into());
            // A tied head is the embedding.
            let stored = || of_target.0.get(name).unwrap_or(&of_target.0[EMBEDDING]);
            own.or_insert_with(|| stored().clone());
        }
        (speculator, tensors)
    }

    fn eagle(
        &self,
        layout: SpeculatorLayout,
        members: usize,
    ) -> (EagleModel<Transformer>, Tensors) {
        let (speculator, tensors) = self.drafter(layout);
        let weights = layers(&speculator, &self.weights);
        let team = Arc::new(Team::unpinned(members).unwrap());
        (EagleModel::new(Transformer::new(weights, team)), tensors)
    }
}

/// Packs a drafter's layers.
fn layers(speculator: &Speculator, target: &Weights) -> Arc<Weights> {
    match SpeculatorWeights::load(speculator, target, WeightType::F32.into()).unwrap() {
        SpeculatorWeights::Layers(weights) => weights,
        SpeculatorWeights::Heads(_) => panic!("layers, not heads"),
    }
}

/// Packs heads.
fn heads(
    speculator: &Speculator,
    target: &Weights,
    team: &Arc<Team>,
) -> HeadsModel<CpuHeads, Transformer> {
    match SpeculatorWeights::load(speculator, target, WeightType::F32.into()).unwrap() {
        SpeculatorWeights::Layers(_) => panic!("heads, not layers"),
        SpeculatorWeights::Heads(weights) => CpuHeads::model(weights, team),
    }
}

/// Row-major matrices and vectors, by name.
struct Tensors(HashMap<String, Vec<f64>>);

impl Tensors {
    fn read(folder: &Path) -> Self {
        let file =
            DRAFTER_FILES.map(|name| folder.join(name)).into_iter().find(|path| path.exists());
        let bytes = std::fs::read(file.unwrap()).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let values = |data: &[u8]| {
            let numbers = data.as_chunks::<4>().0.iter();
            numbers.map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect()
        };
        let floats = tensors.iter().filter(|(_, view)| view.dtype() == safetensors::Dtype::F32);
        let all = floats.map(|(name, view)| (name.to_owned(), values(view.data())));
        Self(all.collect())
    }

    fn times(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let rows = self.0[name].chunks_exact(x.len());
        rows.map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }

    fn row(&self, name: &str, index: usize, size: usize) -> &[f64] {
        &self.0[name][index * size..][..size]
    }

    /// Applies the norm of this name; returns the vector unchanged if there is none.
    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let Some(weight) = self.0.get(name) else { return x.to_vec() };
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        x.iter().zip(weight).map(|(x, w)| x / (mean + 1e-5).sqrt() * w).collect()
    }

    /// Computes the outputs of one layer for rows of a position and an input each. Row `r` attends to itself
    /// and to the earlier rows `o` for which `is_visible(r, o)` is true. EAGLE-3's first layer also reads
    /// `embeddings`, which are empty for other layers, and adds to its normed input if it is
    /// `normed_residual`.
    fn layer(
        &self,
        config: &Config,
        (layer, normed_residual): (&str, bool),
        rows: &[(usize, Vec<f64>)],
        embeddings: &[Vec<f64>],
        is_visible: impl Fn(usize, usize) -> bool,
    ) -> Vec<Vec<f64>> {
        let dim = config.head_dim;
        let name = |part: &str| format!("{layer}.{part}.weight");
        let project = |part: &str, with_rope: bool| -> Vec<Vec<f64>> {
            let of_row = |(index, (position, row)): (usize, &(usize, Vec<f64>))| {
                let normed = match embeddings.get(index) {
                    None => self.norm(&name("input_layernorm"), row),
                    Some(embeddings) => {
                        let embeddings = self.norm(&name("input_layernorm"), embeddings);
                        [embeddings, self.norm(&name("hidden_norm"), row)].concat()
                    }
                };
                let mut heads = self.times(&name(&format!("self_attn.{part}_proj")), &normed);
                for head in heads.chunks_exact_mut(dim).filter(|_| with_rope) {
                    for pair in 0..dim / 2 {
                        let frequency = f64::from(config.rope(0).frequency(pair));
                        let (sine, cosine) = (*position as f64 * frequency).sin_cos();
                        let (a, b) = (head[pair], head[pair + dim / 2]);
                        head[pair] = a * cosine - b * sine;
                        head[pair + dim / 2] = b * cosine + a * sine;
                    }
                }
                heads
            };
            rows.iter().enumerate().map(of_row).collect()
        };
        let [queries, keys] = [project("q", true), project("k", true)];
        let values = project("v", false);
        let group = config.num_attention_heads / config.num_key_value_heads;
        let one = |row: usize| {
            let visible: Vec<usize> = (0..=row).filter(|&other| is_visible(row, other)).collect();
            let mut attended = Vec::new();
            for head in 0..config.num_attention_heads {
                let query = &queries[row][head * dim..][..dim];
                let shared = head / group * dim..(head / group + 1) * dim;
                let score = |&other: &usize| {
                    let key = &keys[other][shared.clone()];
                    query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() / (dim as f64).sqrt()
                };
                let weights: Vec<f64> = visible.iter().map(score).map(f64::exp).collect();
                let total: f64 = weights.iter().sum();
                attended.extend(shared.clone().map(|at| {
                    let weighted = visible.iter().zip(&weights).map(|(&o, w)| values[o][at] * w);
                    weighted.sum::<f64>() / total
                }));
            }
            let plus = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect();
            let residual = match normed_residual {
                true => self.norm(&name("hidden_norm"), &rows[row].1),
                false => rows[row].1.clone(),
            };
            let hidden: Vec<f64> =
                plus(&residual, &self.times(&name("self_attn.o_proj"), &attended));
            let normed = self.norm(&name("post_attention_layernorm"), &hidden);
            let gate = self.times(&name("mlp.gate_proj"), &normed);
            let up = self.times(&name("mlp.up_proj"), &normed);
            let inner: Vec<f64> =
                gate.iter().zip(&up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
            plus(&hidden, &self.times(&name("mlp.down_proj"), &inner))
        };
        (0..rows.len()).map(one).collect()
    }

    /// Computes the logits of states, after the norm if there is one.
    fn logits(&self, states: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let of_state =
            |state: &Vec<f64>| self.times("lm_head.weight", &self.norm("norm.weight", state));
        states.iter().map(of_state).collect()
    }

    /// Computes `fc(cat(a, b))`.
    fn fused(&self, a: &[f64], b: &[f64]) -> Vec<f64> {
        let fused = self.times("fc.weight", &[a, b].concat());
        fused.iter().zip(&self.0["fc.bias"]).map(|(x, bias)| x + bias).collect()
    }
}

fn tokens() -> Vec<TokenId> {
    vec![17, 3, 250, 3, 99, 41, 41, 7, 120]
}

/// Returns arbitrary features for `count` tokens.
fn features(count: usize, size: usize) -> Features {
    let mut features = Features::new();
    // In two parts, as they arrive in different rounds.
    for part in [0..count / 2, count / 2..count] {
        let value = |at: usize| ((at * 7919 + 13) % 1000) as f32 / 500.0 - 1.0;
        let values = part.flat_map(|token| (0..size).map(move |i| value(token * size + i)));
        features.push(FeatureRows::new(size, values.collect()));
    }
    features
}

fn rows_of(features: &Features) -> Vec<Vec<f64>> {
    features.rows_from(0).map(|row| row.iter().map(|&x| f64::from(x)).collect()).collect()
}

fn assert_near(found: &[f32], expected: &[Vec<f64>], what: &str) {
    assert_eq!(found.len(), expected.iter().map(Vec::len).sum::<usize>(), "{what}");
    for (at, (found, expected)) in found.iter().zip(expected.iter().flatten()).enumerate() {
        assert!((f64::from(*found) - expected).abs() < 1e-3, "{what}, {at}: {found} {expected}");
    }
}

fn logits(
    model: &mut impl FeatureModel,
    tokens: &[TokenId],
    features: &Features,
    tree: &TokenTree,
    first_row: usize,
) -> Vec<f32> {
    let request = ForwardRequest::new(SEQUENCE, tokens, tree);
    let request = ForwardRequest { first_row, features: Some(features), ..request };
    model.logits(&request).unwrap().logits
}

/// ```text
/// 5 ─ 6 ─ 7
/// └ 8
/// 9
/// ```
fn tree() -> TokenTree {
    let mut tree = TokenTree::chain(&[5, 6, 7]);
    tree.push(Some(0), 8);
    tree.push(None, 9);
    tree
}

/// Row `i` combines token `i + 1` and feature `i` at position `i`. After the tokens, each node uses the
/// feature predicted by the row above it.
#[test]
fn eagle_matches_its_paper() {
    let target = target();
    let size = target.config.hidden_size;
    for layout in [SpeculatorLayout::Eagle, SpeculatorLayout::SharedEmbeddingEagle] {
        let (mut model, tensors) = target.eagle(layout, 2);
        let (tokens, tree) = (tokens(), tree());
        let features = features(tokens.len() - 1, size);
        let embedding = |token: TokenId| tensors.row("embed_tokens.weight", token as usize, size);
        let real = tokens[1..].iter().zip(rows_of(&features)).enumerate();
        let mut rows: Vec<(usize, Vec<f64>)> = real
            .map(|(position, (&token, f))| (position, tensors.fused(embedding(token), &f)))
            .collect();
        let real = rows.len();
        let is_visible = |row: usize, other: usize| {
            other < real || row == other || tree.path(row - real).contains(&(other - real))
        };
        for node in 0..tree.len() {
            let predictions = tensors.layer(&target.config, PLAIN, &rows, &[], is_visible);
            let above = tree.parent(node).map_or(real - 1, |parent| real + parent);
            let row = tensors.fused(embedding(tree.token(node)), &predictions[above]);
            rows.push((real - 1 + tree.depth(node), row));
        }
        let predictions = tensors.layer(&target.config, PLAIN, &rows, &[], is_visible);
        let expected = tensors.logits(&predictions[real - 1..]);
        let all = logits(&mut model, &tokens, &features, &tree, 0);
        assert_near(&all, &expected, "all at once");
        // Level by level, as a tree grows: the bits are the same.
        let mut grown = logits(&mut model, &tokens, &features, &TokenTree::new(), 0);
        for node in 0..tree.len() {
            grown.extend(logits(&mut model, &tokens, &features, &tree.first(node + 1), node + 1));
        }
        assert_eq!(grown, all, "{layout:?}");
    }
}

/// Rows of a position and an input each, and their embeddings.
type Inputs<'a> = (&'a [(usize, Vec<f64>)], &'a [Vec<f64>]);

impl Tensors {
    /// Computes EAGLE-3's layers.
    fn eagle3_layers(
        &self,
        config: &Config,
        options: &Eagle3Options,
        (rows, embeddings): Inputs<'_>,
        is_visible: impl Fn(usize, usize) -> bool,
    ) -> Vec<Vec<f64>> {
        let first = if options.speculators { "layers.0" } else { "midlayer" };
        let first = (first, options.norm_before_residual);
        let mut states = self.layer(config, first, rows, embeddings, &is_visible);
        for layer in 1..options.layers {
            let positions = rows.iter().map(|(position, _)| *position);
            let rows: Vec<_> = positions.zip(states).collect();
            let layer = format!("layers.{layer}");
            states = self.layer(config, (&layer, false), &rows, &[], &is_visible);
        }
        states
    }

    /// Computes EAGLE-3's input from a feature of hidden states.
    fn eagle3_input(&self, options: &Eagle3Options, feature: &[f64]) -> Vec<f64> {
        let normed = match options.feature_norm {
            FeatureNorm::None => feature.to_vec(),
            FeatureNorm::Whole => self.norm("input_norm.weight", feature),
            FeatureNorm::Parts(parts) => {
                let parts = feature.chunks(feature.len() / parts).enumerate();
                let norm = |(part, x)| self.norm(&format!("fc_norm.{part}.weight"), x);
                parts.flat_map(norm).collect()
            }
        };
        self.times("fc.weight", &normed)
    }
}

/// A row is `fc` of the target's features, or the feature predicted by the row above. The attention also
/// reads embeddings. Options add norms.
#[test]
fn eagle_3_matches_its_paper() {
    let target = target();
    let plain = Eagle3Options {
        speculators: false,
        layers: 1,
        feature_norm: FeatureNorm::None,
        norm_before_residual: false,
        norm_output: false,
    };
    let all = Eagle3Options::all().into_iter();
    let all = all.map(|options| (SpeculatorLayout::Eagle3With(options), options));
    for (layout, options) in [(SpeculatorLayout::Eagle3, plain)].into_iter().chain(all) {
        assert_matches_eagle_3(&target, layout, &options);
    }
}

fn assert_matches_eagle_3(target: &Target, layout: SpeculatorLayout, options: &Eagle3Options) {
    let (config, size) = (&target.config, target.config.hidden_size);
    let (mut model, tensors) = target.eagle(layout, 2);
    let width = target.drafter(layout).0.features().unwrap().width(size);
    let (tokens, tree) = (tokens(), tree());
    let features = features(tokens.len() - 1, width);
    let embedding =
        |token: TokenId| tensors.row("embed_tokens.weight", token as usize, size).to_vec();
    let real = rows_of(&features).into_iter().map(|f| tensors.eagle3_input(options, &f));
    let mut rows: Vec<(usize, Vec<f64>)> = real.enumerate().collect();
    let mut embeddings: Vec<Vec<f64>> = tokens[1..].iter().map(|&token| embedding(token)).collect();
    let real = rows.len();
    let is_visible = |row: usize, other: usize| {
        other < real || row == other || tree.path(row - real).contains(&(other - real))
    };
    for node in 0..tree.len() {
        let inputs = (&rows[..], &embeddings[..]);
        let predictions = tensors.eagle3_layers(config, options, inputs, is_visible);
        let above = tree.parent(node).map_or(real - 1, |parent| real + parent);
        let prediction = match options.norm_output {
            true => tensors.norm("norm.weight", &predictions[above]),
            false => predictions[above].clone(),
        };
        rows.push((real - 1 + tree.depth(node), prediction));
        embeddings.push(embedding(tree.token(node)));
    }
    let predictions = tensors.eagle3_layers(config, options, (&rows, &embeddings), is_visible);
    let found = logits(&mut model, &tokens, &features, &tree, 0);
    let known = tensors.logits(&predictions[real - 1..]);
    for (found, known) in found.chunks_exact(config.vocab_size).zip(&known) {
        let even: Vec<f32> = found.iter().copied().step_by(2).collect();
        assert_near(&even, std::slice::from_ref(known), &format!("{options:?}, known tokens"));
        assert!(found.iter().skip(1).step_by(2).all(|&logit| logit == -1e9), "and the others");
    }
    assert_eq!(found.len(), known.len() * config.vocab_size);
    // Level by level, as a tree grows, and on another team: the bits are the same.
    let (mut other, _) = target.eagle(layout, 1);
    let mut grown = logits(&mut other, &tokens, &features, &TokenTree::new(), 0);
    for node in 0..tree.len() {
        grown.extend(logits(&mut other, &tokens, &features, &tree.first(node + 1), node + 1));
    }
    assert_eq!(grown, found, "{options:?}");
}

/// A mask's row uses the mask's own embedding and feature. It attends to the tokens and to the masks before
/// it.
#[test]
fn parallelspec_matches_its_paper() {
    let target = target();
    let (config, size) = (&target.config, target.config.hidden_size);
    let first_mask = config.vocab_size as TokenId;
    let masks = TokenTree::chain(&[first_mask, first_mask + 1, first_mask + 2]);
    let tokens = tokens();
    let all = |_: usize, _: usize| true;
    let (mut model, tensors) = target.eagle(SpeculatorLayout::ParallelEagle, 1);
    let features = features(tokens.len() - 1, size);
    let embedding = |token: TokenId| tensors.row("embed_tokens.weight", token as usize, size);
    let of_mask = |name: &str, mask: usize| tensors.row(name, mask, size);
    let real = tokens[1..].iter().zip(rows_of(&features));
    let real = real.map(|(&token, feature)| tensors.fused(embedding(token), &feature));
    let rows = real.chain((0..MASKS).map(|mask| {
        let feature = of_mask("mask_features.weight", mask);
        tensors.fused(of_mask("mask_embeddings.weight", mask), feature)
    }));
    let rows: Vec<_> = rows.enumerate().collect();
    let predictions = tensors.layer(config, PLAIN, &rows, &[], all);
    let expected = tensors.logits(&predictions[tokens.len() - 2..]);
    let found = logits(&mut model, &tokens, &features, &masks, 0);
    assert_near(&found, &expected, "on features");

    let (speculator, tensors) = target.drafter(SpeculatorLayout::ParallelMedusa);
    let weights = layers(&speculator, &target.weights);
    assert_eq!(weights.architecture().mask_ids(), first_mask..first_mask + MASKS as TokenId);
    let team = Arc::new(Team::single_thread());
    let mut model = CachedTransformer::new(Transformer::new(weights, team));
    let real = tokens.iter().map(|&t| tensors.row("embed_tokens.weight", t as usize, size));
    let masked = (0..MASKS).map(|mask| tensors.row("mask_embeddings.weight", mask, size));
    let rows: Vec<_> = real.chain(masked).map(<[f64]>::to_vec).enumerate().collect();
    let states = tensors.layer(config, PLAIN, &rows, &[], all);
    let expected = tensors.logits(&states[tokens.len() - 1..]);
    let context = ForwardRequest { tree: &masks, ..ForwardRequest::next_token(SEQUENCE, &tokens) };
    let found = model.logits(&context).unwrap();
    assert_near(&found.logits, &expected, "on tokens");
}

/// A draft goes on after its own tokens in one pass. The features of these tokens are those that the draft predicted: the
/// last token's row that of the first, and each mask's row that of the next one.
#[test]
fn parallelspec_continues_a_draft_on_its_predictions() {
    let target = target();
    let (config, size) = (&target.config, target.config.hidden_size);
    let first_mask = config.vocab_size as TokenId;
    let masks = [first_mask, first_mask + 1, first_mask + 2];
    let (mut model, tensors) = target.eagle(SpeculatorLayout::ParallelEagle, 1);
    let tokens = tokens();
    let known = features(tokens.len(), size);
    let embedding = |token: TokenId| tensors.row("embed_tokens.weight", token as usize, size);
    let mask_rows = || {
        (0..MASKS).map(|mask| {
            let feature = tensors.row("mask_features.weight", mask, size);
            tensors.fused(tensors.row("mask_embeddings.weight", mask, size), feature)
        })
    };
    let read = |tokens: &[TokenId]| -> Vec<Vec<f64>> {
        let rows = tokens[1..].iter().zip(rows_of(&known));
        rows.map(|(&token, feature)| tensors.fused(embedding(token), &feature)).collect()
    };
    let predict = |rows: Vec<Vec<f64>>| {
        let rows: Vec<_> = rows.into_iter().chain(mask_rows()).enumerate().collect();
        tensors.layer(config, PLAIN, &rows, &[], |_, _| true)
    };
    let last = tokens.len() - 2;
    let drafted = [7, 30];
    logits(&mut model, &tokens, &known, &TokenTree::chain(&masks), 0);
    let first = predict(read(&tokens));

    // Both draft tokens are unverified.
    let ahead =
        [tensors.fused(embedding(7), &first[last]), tensors.fused(embedding(30), &first[last + 1])];
    let second = predict([read(&tokens), ahead.to_vec()].concat());
    let tree = TokenTree::chain(&[&drafted[..], &masks].concat());
    let found = logits(&mut model, &tokens, &known, &tree, 2);
    assert_near(&found, &tensors.logits(&second[last + 2..]), "two unverified tokens");

    // The target has read the last token, and its feature has come.
    let longer = [&tokens[..], &drafted[..1]].concat();
    let ahead = vec![tensors.fused(embedding(30), &second[last + 1])];
    let third = predict([read(&longer), ahead].concat());
    let tree = TokenTree::chain(&[&drafted[1..], &masks].concat());
    let found = logits(&mut model, &longer, &known, &tree, 1);
    assert_near(&found, &tensors.logits(&third[last + 2..]), "one unverified token");

    // After another token the predictions are of no use: the next token waits for its feature.
    let other = [&tokens[..], &[9]].concat();
    let chain = TokenTree::chain(&[30]);
    let found = logits(&mut model, &other, &known, &chain, 1);
    let (mut fresh, _) = target.eagle(SpeculatorLayout::ParallelEagle, 1);
    assert_eq!(found, logits(&mut fresh, &other, &known, &chain, 1));
}

#[test]
fn medusa_matches_its_paper_in_every_layout() {
    use SpeculatorLayout as L;
    let target = target();
    let feature: Vec<f32> =
        features(1, target.config.hidden_size).rows_from(0).flatten().copied().collect();
    let wide: Vec<f64> = feature.iter().map(|&x| f64::from(x)).collect();
    for layout in [L::Medusa, L::VllmMedusa, L::SharedHeadMedusa] {
        let (speculator, tensors) = target.drafter(layout);
        let mut heads = heads(&speculator, &target.weights, &Arc::new(Team::single_thread()));
        assert_eq!(heads.n_heads(), MASKS);
        let expected = (0..MASKS).map(|head| {
            let [weight, bias, own] = match layout {
                L::VllmMedusa => [
                    format!("blocks.{head}.layers.0.weight"),
                    String::new(),
                    format!("lm_heads.{head}.weight"),
                ],
                _ => [
                    format!("{head}.0.linear.weight"),
                    format!("{head}.0.linear.bias"),
                    format!("{head}.1.weight"),
                ],
            };
            let delta = tensors.times(&weight, &wide);
            let bias = tensors.0.get(&bias).cloned().unwrap_or_else(|| vec![0.0; delta.len()]);
            let state = wide.iter().zip(delta.iter().zip(bias)).map(|(x, (delta, bias))| {
                let delta = delta + bias;
                x + delta / (1.0 + (-delta).exp())
            });
            let own = if layout == L::SharedHeadMedusa { "lm_head.weight" } else { &own };
            tensors.times(own, &state.collect::<Vec<_>>())
        });
        let expected: Vec<_> = expected.collect();
        let depths = TokenTree::chain(&vec![0; heads.n_heads() - 1]);
        let mut logits = |feature: &[f32]| {
            let mut features = Features::new();
            features.push(FeatureRows::new(feature.len(), feature.to_vec()));
            let request = ForwardRequest::new(SEQUENCE, &[1, 2], &depths);
            heads.logits(&ForwardRequest { features: Some(&features), ..request })
        };
        assert_near(&logits(&feature).unwrap().logits, &expected, &format!("{layout:?}"));
        let message = logits(&feature[1..]).err().unwrap().to_string();
        assert!(
            message.contains("needs width 48") && message.contains("have width 47"),
            "{message}"
        );
    }
}

/// Heads with fewer tokens have the same logits for them as whole ones, and exclude all others.
#[test]
fn drafters_with_fewer_tokens_have_the_logits_of_their_tokens() {
    use SpeculatorLayout as L;
    let target = target();
    let (tokens, vocab_size) = (tokens(), target.config.vocab_size);
    let features = features(tokens.len() - 1, target.config.hidden_size);
    let rows = |layout| {
        let (speculator, _) = target.drafter(layout);
        let team = Arc::new(Team::single_thread());
        let tree = match layout {
            L::ParallelMedusa | L::ReducedParallelMedusa => {
                let weights = layers(&speculator, &target.weights);
                let masks: Vec<TokenId> = weights.architecture().mask_ids().collect();
                let mut model = CachedTransformer::new(Transformer::new(weights, team));
                let tree = TokenTree::chain(&masks);
                let context = ForwardRequest::next_token(SEQUENCE, &tokens);
                return model.logits(&ForwardRequest { tree: &tree, ..context }).unwrap().logits;
            }
            _ => TokenTree::chain(&[5, 6]),
        };
        let mut heads = heads(&speculator, &target.weights, &team);
        logits(&mut heads, &tokens, &features, &tree, 0)
    };
    for (whole, reduced) in [
        (L::Medusa, L::ReducedMedusa),
        (L::SharedHeadHydra, L::ReducedHydra),
        (L::ParallelMedusa, L::ReducedParallelMedusa),
    ] {
        let (all, some) = (rows(whole), rows(reduced));
        assert_eq!(all.len(), some.len());
        for (all, some) in all.chunks_exact(vocab_size).zip(some.chunks_exact(vocab_size)) {
            // The rows of random matrices of their own are the same. Of the target's head, they are those of even tokens.
            let row = |token| if whole == L::Medusa { token / 2 } else { token };
            for (token, &logit) in some.iter().enumerate() {
                let expected = if token % 2 == 0 { all[row(token)] } else { EXCLUDED_LOGIT };
                assert_eq!(logit, expected, "{reduced:?}, token {token}");
            }
        }
    }
}

impl Target {
    fn hydra(
        &self,
        layout: SpeculatorLayout,
        members: usize,
    ) -> (HeadsModel<CpuHeads, Transformer>, Tensors) {
        let (speculator, tensors) = self.drafter(layout);
        let team = Arc::new(Team::unpinned(members).unwrap());
        (heads(&speculator, &self.weights, &team), tensors)
    }
}

/// Head `h` reads the state, the last token and `h` drafted tokens. Hydra++ computes the state from all
/// features.
#[test]
fn hydra_matches_its_paper() {
    let target = target();
    let (config, size) = (&target.config, target.config.hidden_size);
    use SpeculatorLayout as L;
    for layout in [L::Hydra, L::HydraPlusPlus, L::SharedHeadHydra] {
        let plus = layout == SpeculatorLayout::HydraPlusPlus;
        let (mut model, tensors) = target.hydra(layout, 2);
        assert_eq!(model.n_heads(), MASKS);
        let (tokens, tree) = (tokens(), tree().first(5));
        let features = features(tokens.len() - 1, size);
        let mut state = rows_of(&features).pop().unwrap();
        if plus {
            let of_prefix = |(name, values): (&String, &Vec<f64>)| {
                Some((name.strip_prefix("prefix_embeding_layer.")?.to_owned(), values.clone()))
            };
            let prefix = Tensors(tensors.0.iter().filter_map(of_prefix).collect());
            let rows: Vec<_> = rows_of(&features).into_iter().enumerate().collect();
            let states = prefix.layer(config, PLAIN, &rows, &[], |_, _| true);
            state = prefix.norm("norm.weight", states.last().unwrap());
        }
        let plus_bias = |name: &str, x: &[f64]| -> Vec<f64> {
            let product = tensors.times(&format!("{name}.weight"), x);
            product.iter().zip(&tensors.0[&format!("{name}.bias")]).map(|(x, b)| x + b).collect()
        };
        let silu = |x: &f64| x / (1.0 + (-x).exp());
        let row = |path: Vec<TokenId>| {
            let head = path.len() - 1;
            let embedding = |&t: &TokenId| tensors.row("embed_tokens.weight", t as usize, size);
            let read: Vec<&[f64]> =
                std::iter::once(&state[..]).chain(path.iter().map(embedding)).collect();
            let read = read.concat();
            let first = if plus { 1 } else { 0 };
            let name = |layer: usize, part: &str| format!("hydra_mlp.{head}.{layer}.{part}");
            let activated = plus_bias(&name(first, "linear"), &read);
            let residual = plus_bias(&name(first, "res_connection"), &read);
            let mut x: Vec<f64> =
                residual.iter().zip(&activated).map(|(x, a)| x + silu(a)).collect();
            if plus {
                let activated = plus_bias(&name(3, "linear"), &x);
                x = x.iter().zip(&activated).map(|(x, a)| x + silu(a)).collect();
            }
            if layout == L::SharedHeadHydra {
                return tensors.times("lm_head.weight", &x);
            }
            let place = if plus { ".1" } else { "" };
            plus_bias(&format!("hydra_lm_head.{head}{place}"), &x)
        };
        // A chain of three nodes has more rows than there are heads.
        let nodes = [None, Some(0), Some(1), Some(3), Some(4)];
        let mut short = TokenTree::chain(&[5, 6]);
        short.push(Some(0), 8);
        short.push(None, 9);
        let path = |node: Option<usize>| {
            let path = node.map_or(Vec::new(), |node| tree.path(node));
            let path = path.into_iter().map(|node| tree.token(node));
            tokens.last().copied().into_iter().chain(path).collect::<Vec<_>>()
        };
        let expected: Vec<_> = nodes.map(path).into_iter().map(row).collect();
        let all = logits(&mut model, &tokens, &features, &short, 0);
        assert_near(&all, &expected, &format!("{layout:?}"));
        // Level by level, as a tree grows, and on another team: the bits are the same.
        let (mut other, _) = target.hydra(layout, 1);
        let mut grown = logits(&mut other, &tokens, &features, &TokenTree::new(), 0);
        for node in 0..short.len() {
            grown.extend(logits(&mut other, &tokens, &features, &short.first(node + 1), node + 1));
        }
        assert_eq!(grown, all, "{layout:?}");
        let request = ForwardRequest::new(SEQUENCE, &tokens, &tree);
        let request = ForwardRequest { features: Some(&features), ..request };
        let error = model.logits(&request).err();
        assert_eq!(error, Some(ModelError::Context { position: 3, context: 3 }));
    }
}

/// Rounds that continue, roll back and diverge, over more tokens than fit in one pass.
#[test]
fn hydras_cached_states_equal_those_of_a_fresh_model() {
    let target = target();
    let mut text: Vec<TokenId> = (0..600).map(|index| index * 37 % 250).collect();
    let all = features(text.len(), target.config.hidden_size);
    let (mut model, _) = target.hydra(SpeculatorLayout::HydraPlusPlus, 2);
    let chain = TokenTree::chain(&[5, 6]);
    for (round, len) in [2, 3, 300, 301, 304, 304, 120, 310, 500, 5].into_iter().enumerate() {
        // Another token, so that the cached tokens no longer agree.
        if round == 6 {
            text[60] += 1;
        }
        let tokens = &text[..len];
        let found = logits(&mut model, tokens, &all, &chain, 0);
        let (mut fresh, _) = target.hydra(SpeculatorLayout::HydraPlusPlus, 1);
        assert_eq!(found, logits(&mut fresh, tokens, &all, &chain, 0), "round {round}");
    }
    model.release(SEQUENCE);
}

/// Rounds that accept different parts of a tree, or diverge. Each returns the logits of a fresh drafter,
/// and only rows that were computed from the target's features count as exact.
#[test]
fn a_round_keeps_no_predicted_rows() {
    let target = target();
    let options = *Eagle3Options::all().last().unwrap();
    for layout in [SpeculatorLayout::Eagle, SpeculatorLayout::Eagle3With(options)] {
        let source = target.drafter(layout).0.features().unwrap();
        let size = source.width(target.config.hidden_size);
        assert_keeps_no_predicted_rows(size, |members| target.eagle(layout, members).0);
    }
}

/// The same with MTP heads, also of hybrids, whose heads have attention.
#[test]
fn rounds_of_mtp_heads_have_the_bits_of_fresh_ones() {
    let families = [F::DeepseekV3, F::Glm4Moe, F::Qwen3Next, F::Qwen35, F::Qwen35Moe];
    let has_head = |config: &Config| families.contains(&config.family);
    for config in example_families().into_iter().filter(has_head) {
        let folder = TempDir::new().unwrap();
        write_random_checkpoint_with_mtp(folder.path(), &config, 3, RandomDtype::F32).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let target = Weights::load_as(&checkpoint, WeightType::F32).unwrap();
        let weights = layers(&Speculator::open_mtp(&checkpoint).unwrap(), &target);
        assert!(!weights.architecture().layers.iter().any(|layer| layer.recurrent.is_some()));
        assert_keeps_no_predicted_rows(config.hidden_size, |members| {
            let team = Arc::new(Team::unpinned(members).unwrap());
            EagleModel::new(Transformer::new(Arc::clone(&weights), team))
        });
    }
}

/// `size` is the width of features, and `new` makes a drafter with this number of threads.
fn assert_keeps_no_predicted_rows(size: usize, new: impl Fn(usize) -> EagleModel<Transformer>) {
    let mut text: Vec<TokenId> = (0..400).map(|index| index * 37 % 250).collect();
    let all = features(text.len(), size);
    let mut model = new(2);
    let tree = tree();
    for (round, len) in [2, 3, 300, 301, 304, 304, 120, 310, 5, 6].into_iter().enumerate() {
        // The next round accepts a path of this round's tree.
        (0..3).for_each(|depth| text[len + depth] = tree.token(depth));
        let tokens = &text[..len];
        for (first_row, nodes) in [(0, 0), (1, 2), (3, 5)] {
            let tree = tree.first(nodes);
            let found = logits(&mut model, tokens, &all, &tree, first_row);
            let mut fresh = new(1);
            let expected = logits(&mut fresh, tokens, &all, &tree, first_row);
            assert_eq!(found, expected, "round {round}, {nodes} nodes");
            assert!(model.cache(SEQUENCE).unwrap().index().exact_len() < len);
        }
    }
    // Another first token changes all features after it, although the tokens stay the same.
    text[0] = 200;
    let other = features(7, size);
    let found = logits(&mut model, &text[..7], &other, &TokenTree::new(), 0);
    let mut fresh = new(1);
    assert_eq!(found, logits(&mut fresh, &text[..7], &other, &TokenTree::new(), 0));
}

/// Heads that use the target's head also apply its divisor of logits (Granite), and its limit (Gemma 2).
#[test]
fn logits_of_the_targets_head_are_divided_and_limited() {
    let of_family = |family| {
        let config = example_families().into_iter().find(|config| config.family == family);
        // The limit is small, so that it changes all logits.
        let config = config.unwrap();
        let final_logit_softcapping = config.final_logit_softcapping.map(|_| 1.0);
        Config { final_logit_softcapping, ..config }
    };
    for family in [F::Granite, F::Gemma2] {
        let target = target_of(of_family(family));
        let architecture = target.checkpoint.architecture();
        let is_changed =
            [architecture.factors.logit_divisor != 1.0, architecture.logit_cap.is_some()];
        assert_eq!(is_changed, [family == F::Granite, family == F::Gemma2]);
        let (speculator, _) = target.drafter(SpeculatorLayout::SharedHeadMedusa);
        let mut model = heads(&speculator, &target.weights, &Arc::new(Team::single_thread()));
        let SpeculatorArchitecture::Heads(layout) = speculator.architecture().unwrap() else {
            panic!("heads")
        };
        let (types, isa) = (WeightType::F32, Isa::best());
        let of_target = ReferenceModel::load_as(&target.checkpoint, types, isa).unwrap();
        let arithmetic = Arithmetic::cpu(types, isa);
        let reference =
            ReferenceHeads::load(layout, &speculator, arithmetic, Arc::new(of_target)).unwrap();
        let mut reference = HeadsModel::<_, ReferenceDevice>::new(reference, None);
        let (tokens, tree) = (tokens(), TokenTree::chain(&[0; MASKS - 1]));
        let features = features(tokens.len() - 1, target.config.hidden_size);
        let found = logits(&mut model, &tokens, &features, &tree, 0);
        let largest = found.iter().fold(0.0, |largest: f32, logit| largest.max(logit.abs()));
        assert!(family != F::Gemma2 || (0.1..=1.0).contains(&largest), "{largest}");
        let expected = logits(&mut reference, &tokens, &features, &tree, 0);
        let expected = expected.into_iter().map(f64::from).collect();
        assert_near(&found, &[expected], &family.to_string());
    }
}

/// PARD-2 shares nothing but the target's final norm, which can be loaded alone.
#[test]
fn pard_2_drafts_the_same_with_the_targets_final_norm_alone() {
    let tied = target_of(Config { tie_word_embeddings: true, ..example_config() });
    let target = target();
    let [_, final_norm] = [&tied, &target].map(|target| {
        let final_norm = Weights::load_final_norm(&target.checkpoint).unwrap();
        assert_eq!(final_norm.bytes(), 0);
        final_norm
    });
    let (speculator, _) = target.drafter(SpeculatorLayout::Pard2);
    let width = speculator.features().unwrap().width(target.config.hidden_size);
    let found = [&*target.weights, &final_norm].map(|shared| {
        let team = Arc::new(Team::unpinned(1).unwrap());
        let mut model = BlockModel::new(Transformer::new(layers(&speculator, shared), team));
        let tokens: Vec<TokenId> = (0..9).map(|index| index * 37 % 250).collect();
        let masks = TokenTree::chain(&[0; 3]);
        logits(&mut model, &tokens, &features(tokens.len(), width), &masks, 0)
    });
    assert_eq!(found[0], found[1]);
}

/// A long prompt takes several passes, alone or next to another one, and has the bits of one that came in steps.
#[test]
fn long_prompts_of_pard_2_have_the_bits_of_short_steps() {
    let example = example_config();
    let target =
        target_of(Config { num_hidden_layers: 1, max_position_embeddings: 1024, ..example });
    let (speculator, _) = target.drafter(SpeculatorLayout::Pard2);
    let weights = layers(&speculator, &target.weights);
    let width = speculator.features().unwrap().width(target.config.hidden_size);
    let new = || {
        let team = Arc::new(Team::unpinned(2).unwrap());
        BlockModel::new(Transformer::new(Arc::clone(&weights), team))
    };
    let text: Vec<TokenId> = (0..600).map(|index| index * 37 % 250).collect();
    let features = features(text.len(), width);
    let masks = TokenTree::chain(&[0; 3]);
    // They share no prefix, so neither has rows of the other.
    let texts = [&text[..], &text[1..301]];
    let expected = texts.map(|text| {
        let mut model = new();
        for part in (100..text.len()).step_by(100) {
            logits(&mut model, &text[..part], &features, &masks, 0);
        }
        logits(&mut model, text, &features, &masks, 0)
    });
    assert_eq!(logits(&mut new(), &text, &features, &masks, 0), expected[0]);
    let mut model = new();
    let mut progress: [Progress; 2] = Default::default();
    let mut passes = 0;
    while progress.iter().any(|progress| progress.result.is_none()) {
        let sequences = texts.into_iter().zip(1..).zip(&mut progress);
        let mut batch: Vec<BatchEntry<'_>> = sequences
            .filter(|(_, progress)| progress.result.is_none())
            .map(|((text, sequence), progress)| {
                let request = ForwardRequest::new(SequenceId(sequence), text, &masks);
                let request = ForwardRequest { features: Some(&features), ..request };
                BatchEntry { request, progress }
            })
            .collect();
        model.forward(&mut batch);
        passes += 1;
    }
    assert_eq!(passes, 4, "900 rows, at most 256 of prompts in a pass");
    for (progress, expected) in progress.into_iter().zip(expected) {
        assert_eq!(progress.result.unwrap().unwrap().logits, expected);
    }
}

#[test]
fn the_kind_of_a_drafter_is_detected_from_its_tensors() {
    use SpeculatorLayout as L;
    let target = target();
    for (layout, kind) in [
        (L::Medusa, SpeculatorKind::Medusa),
        (L::VllmMedusa, SpeculatorKind::Medusa),
        (L::SharedHeadMedusa, SpeculatorKind::Medusa),
        (L::ReducedMedusa, SpeculatorKind::Medusa),
        (L::Hydra, SpeculatorKind::Hydra),
        (L::HydraPlusPlus, SpeculatorKind::Hydra),
        (L::SharedHeadHydra, SpeculatorKind::Hydra),
        (L::ReducedHydra, SpeculatorKind::Hydra),
        (L::Eagle, SpeculatorKind::Eagle),
        (L::SharedEmbeddingEagle, SpeculatorKind::Eagle),
        (L::ReducedEagle, SpeculatorKind::Eagle),
        (L::Eagle3, SpeculatorKind::Eagle3),
        (L::PEagle, SpeculatorKind::PEagle),
        (L::Eagle3With(Eagle3Options::all()[23]), SpeculatorKind::Eagle3),
        (L::DFlash, SpeculatorKind::DFlash),
        (L::JetSpec, SpeculatorKind::DFlash),
        (L::DFlash2, SpeculatorKind::DFlash2),
        (L::DSpark(MarkovKind::Vanilla), SpeculatorKind::DSpark),
        (L::DSpark(MarkovKind::Gated), SpeculatorKind::DSpark),
        (L::DSpark(MarkovKind::Recurrent), SpeculatorKind::DSpark),
        (L::Pard2, SpeculatorKind::Pard2 { mask: 0 }),
        (L::ParallelMedusa, SpeculatorKind::ParallelMedusa),
        (L::ReducedParallelMedusa, SpeculatorKind::ParallelMedusa),
        (L::ParallelEagle, SpeculatorKind::ParallelEagle),
        (L::ReducedParallelEagle, SpeculatorKind::ParallelEagle),
    ] {
        let (speculator, _) = target.drafter(layout);
        assert_eq!(speculator.kind(), kind, "{layout:?}");
        let path = target.folder.path().join(format!("{layout:?}"));
        assert_eq!(SpeculatorKind::of(&path).unwrap(), Some(kind));
    }
    let whole = target.folder.path().join("target");
    assert_eq!(SpeculatorKind::of(&whole).unwrap(), None);
    assert!(Speculator::open(&whole, &target.checkpoint).unwrap().is_none());
    let config = std::fs::read_to_string(whole.join("config.json")).unwrap();
    let config = config.replacen('{', "{\"pard_token\": 77,", 1);
    std::fs::write(whole.join("config.json"), &config).unwrap();
    let pard = SpeculatorKind::Pard { mask: 77 };
    assert_eq!(SpeculatorKind::of(&whole).unwrap(), Some(pard));
    let pard2 = SpeculatorKind::Pard2 { mask: 77 };
    for (options, kind) in [
        (r#""spd_type": "pard""#, pard),
        (r#""spd_type": null"#, pard),
        (r#""spd_type": "pard", "pard2": false"#, pard),
        (r#""spd_type": "pard2""#, pard2),
        (r#""spd_type": "pard", "pard2": true"#, pard2),
    ] {
        let config = config.replacen('{', &format!("{{{options},"), 1);
        std::fs::write(whole.join("config.json"), config).unwrap();
        assert_eq!(SpeculatorKind::of(&whole).unwrap(), Some(kind), "{options}");
    }
    assert_eq!(SpeculatorKind::of(&target.folder.path().join("nothing")).unwrap(), None);
}

/// The errors of a drafter are reported before anything is computed.
#[test]
fn drafters_of_other_targets_and_broken_drafters_are_errors_with_a_reason() {
    use SpeculatorLayout as L;
    let target = target();
    let message = |path: &Path| {
        let opened = Speculator::open(path, &target.checkpoint);
        let loaded = opened.and_then(|speculator| {
            SpeculatorWeights::load(
                &speculator.unwrap(),
                &target.weights,
                forerun_formats::ModelTypes::default(),
            )
            .map(drop)
        });
        loaded.unwrap_err().to_string()
    };
    let path = target.folder.path().join("other");
    let write = |layout, config: &Config, hash: Option<&str>| {
        drop(std::fs::remove_dir_all(&path));
        let target_embedding_sha256 = hash.map(str::to_owned);
        let positions = MASKS;
        RandomSpeculator { layout, target: config, seed: 3, positions, target_embedding_sha256 }
            .write(&path)
            .unwrap();
    };
    let wide = Config { hidden_size: 60, head_dim: 10, ..target.config.clone() };
    let many = Config { vocab_size: 300, ..target.config.clone() };
    for layout in [
        L::Medusa,
        L::SharedHeadMedusa,
        L::Hydra,
        L::HydraPlusPlus,
        L::Eagle,
        L::ParallelMedusa,
        L::ParallelEagle,
    ] {
        write(layout, &wide, None);
        let found = message(&path);
        assert!(found.contains("hidden size is 60") && found.contains("is 48"), "{found}");
        write(layout, &target.config, Some("0123"));
        let found = message(&path);
        assert!(found.contains("the random target") && found.contains("`model`"), "{found}");
    }
    for layout in [L::Eagle, L::ParallelMedusa] {
        write(layout, &many, None);
        let found = message(&path);
        assert!(found.contains("vocabulary is 300") && found.contains("is 259"), "{found}");
    }
    write(L::Medusa, &many, None);
    assert!(message(&path).contains("expected [259, 48]"), "{}", message(&path));
    write(L::ParallelEagle, &target.config, None);
    let file = path.join("config.json");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, config.replace("\"n_mask_tokens\": 3", "\"n_mask_tokens\": 4")).unwrap();
    assert!(message(&path).contains("\"n_mask_tokens\" is 4; expected 3"), "{}", message(&path));
    // Heads that read no tokens, and heads that read another hidden state.
    write(L::Hydra, &target.config, None);
    rewrite(&path, |name| (!name.contains("res_connection")).then(|| name.to_owned()));
    assert!(message(&path).contains("grounded_heads"), "{}", message(&path));
    write(L::Hydra, &target.config, None);
    let config = std::fs::read_to_string(path.join("config.json")).unwrap();
    let config = config.replace("\"hidden_state_offset\": 0", "\"hidden_state_offset\": 1");
    std::fs::write(path.join("config.json"), config).unwrap();
    assert!(message(&path).contains("\"hidden_state_offset\" is 1"), "{}", message(&path));
    // Tokens that are not the target's, and a vocabulary of another size than the heads' or the configuration's.
    for layout in [L::ReducedMedusa, L::ReducedHydra, L::ReducedEagle, L::ReducedParallelMedusa] {
        for offset in [-130, 130, i64::MAX] {
            write(layout, &target.config, None);
            replace_tokens(&path, &[vec![0; 129], vec![offset]].concat());
            let found = message(&path);
            let words = "has 130 tokens, but `d2t` does not map each of them to one of the vocabulary's 259";
            assert!(found.contains(words), "{layout:?}: {found}");
        }
    }
    write(L::ReducedMedusa, &target.config, None);
    replace_tokens(&path, &[0; 50]);
    assert!(
        message(&path).contains("\"draft_vocab_size\" is 130; expected 50"),
        "{}",
        message(&path)
    );
    std::fs::remove_file(path.join("config.json")).unwrap();
    assert!(message(&path).contains("has 130 tokens, but `d2t` does not"), "{}", message(&path));
    write(L::ReducedMedusa, &target.config, None);
    rewrite(&path, |name| (name != "d2t").then(|| name.to_owned()));
    assert!(message(&path).contains("there is no `d2t`"), "{}", message(&path));
    std::fs::remove_file(path.join("config.json")).unwrap();
    assert!(message(&path).contains("expected [259, 48]"), "{}", message(&path));
    // A missing tensor, and an unexpected one.
    for (layout, lost, word) in [
        (L::Eagle, "layers.0.mlp.up_proj.weight", "`layers.0.mlp.up_proj.weight` is missing"),
        (L::ParallelEagle, "mask_features.weight", "`mask_features.weight` is missing"),
        (
            L::ParallelMedusa,
            "layers.0.input_layernorm.weight",
            "input_layernorm.weight` is missing",
        ),
        (L::ParallelMedusa, "norm.weight", "`norm.weight` is missing"),
        (L::Medusa, "1.1.weight", "`1.1.weight` is missing"),
        (L::Hydra, "hydra_lm_head.2.weight", "`hydra_lm_head.2.weight` is missing"),
        (
            L::HydraPlusPlus,
            "prefix_embeding_layer.layers.0.mlp.up_proj.weight",
            "layers.0.mlp.up_proj.weight` is missing",
        ),
        (L::HydraPlusPlus, "hydra_mlp.2.3.linear.weight", "2.3.linear.weight` is missing"),
        (L::Eagle3, "midlayer.mlp.down_proj.weight", "`midlayer.mlp.down_proj.weight` is missing"),
    ] {
        write(layout, &target.config, None);
        rewrite(&path, |name| (name != lost).then(|| name.to_owned()));
        let found = message(&path);
        assert!(found.contains(word), "{found}");
        write(layout, &target.config, None);
        let last = |name: &str| if name == lost { "layers.9.magic" } else { name }.to_owned();
        rewrite(&path, |name| Some(last(name)));
        let found = message(&path);
        assert!(found.contains("`layers.9.magic` is not part of"), "{found}");
    }
}

/// Replaces the offsets of a folder's `d2t`.
fn replace_tokens(folder: &Path, offsets: &[i64]) {
    let file = DRAFTER_FILES.map(|name| folder.join(name)).into_iter().find(|path| path.exists());
    let file = file.unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let stored: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
    let shape = vec![offsets.len()];
    let tokens = TensorView::new(safetensors::Dtype::I64, shape, &stored).unwrap();
    let others = tensors.iter().filter(|(name, _)| *name != "d2t");
    let all = others.chain([("d2t", tokens)]).collect::<Vec<_>>();
    std::fs::write(&file, safetensors::serialize(all, None).unwrap()).unwrap();
}

/// Rewrites a folder's tensors under other names. Tensors for which `rename` returns `None` are left out.
fn rewrite(folder: &Path, rename: impl Fn(&str) -> Option<String>) {
    let files = DRAFTER_FILES.map(|name| folder.join(name));
    let file = files.into_iter().find(|path| path.exists()).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let renamed = tensors.iter().filter_map(|(name, view)| Some((rename(name)?, view)));
    let bytes = safetensors::serialize(renamed.collect::<Vec<_>>(), None).unwrap();
    std::fs::write(&file, bytes).unwrap();
}
