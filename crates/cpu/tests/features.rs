//! Features, the hidden states of the target that drafters read: they have the same bits in every
//! pass, and move with the cache's slots.

use forerun_core::{FeatureRows, SequenceId, TokenId, TokenTree};
use forerun_cpu::{Team, Transformer, Weights};
use forerun_formats::checkpoint::Tensor;
use forerun_formats::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use forerun_formats::{Checkpoint, FeatureSource, WeightType};
use forerun_lm::{ForwardRequest, LanguageModel, ModelError};
use forerun_model::CachedTransformer;
use std::sync::Arc;

const SEQUENCE: SequenceId = SequenceId(7);

fn checkpoint() -> (tempfile::TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    write_random_checkpoint(dir.path(), &example_config(), 3, RandomDtype::F32).unwrap();
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    (dir, checkpoint)
}

fn model(
    weights: &Arc<Weights>,
    source: &FeatureSource,
    members: usize,
) -> CachedTransformer<Transformer> {
    let team = Arc::new(Team::unpinned(members).unwrap());
    let transformer = Transformer::new(Arc::clone(weights), team);
    CachedTransformer::new(transformer.with_features(source.clone()))
}

/// Returns the logits of all rows, and the features of all tokens and nodes.
fn logits_and_features(
    model: &mut CachedTransformer<Transformer>,
    tokens: &[TokenId],
    tree: &TokenTree,
) -> (Vec<f32>, FeatureRows) {
    let request = ForwardRequest::new(SEQUENCE, tokens, tree);
    let output = model.logits(&ForwardRequest { features_from: Some(0), ..request }).unwrap();
    (output.logits, output.features.unwrap())
}

/// Returns the features of a sequence, computed by a fresh model in one pass.
fn fresh(weights: &Arc<Weights>, source: &FeatureSource, tokens: &[TokenId]) -> FeatureRows {
    logits_and_features(&mut model(weights, source, 1), tokens, &TokenTree::new()).1
}

#[test]
fn features_have_the_same_bits_in_every_pass_and_tree() {
    let (_dir, checkpoint) = checkpoint();
    let sources = [FeatureSource::LastHidden, FeatureSource::Layers(vec![0, 1, 2])];
    for weight_type in [WeightType::F32, WeightType::Bf16, WeightType::INT8] {
        let weights = Arc::new(Weights::load_as(&checkpoint, weight_type).unwrap());
        for source in &sources {
            let mut model = model(&weights, source, 2);
            let mut tokens: Vec<TokenId> = (0..300).map(|index| index * 31 % 250).collect();
            // Prefill, then rounds with a tree, of which a different path is accepted each time.
            for round in 0..6 {
                let mut tree = TokenTree::chain(&[5 + round, 6, 7]);
                tree.push(None, 100 + round);
                tree.push(Some(0), 101);
                let features = logits_and_features(&mut model, &tokens, &tree).1;
                assert_eq!(features.len(), tokens.len() + tree.len());
                for node in 0..tree.len() {
                    let path = tree.path(node);
                    let path: Vec<TokenId> = path.iter().map(|&node| tree.token(node)).collect();
                    let expected = fresh(&weights, source, &[&tokens[..], &path].concat());
                    let last = expected.row(tokens.len() + path.len() - 1);
                    assert_eq!(features.row(tokens.len() + node), last, "{weight_type} {source:?}");
                    if node == 0 {
                        let first = features.gather(0..tokens.len());
                        assert_eq!(first, expected.gather(0..tokens.len()));
                    }
                }
                match round {
                    0 => tokens.extend([5, 6, 7, 9]),
                    1 => tokens.extend([101]),
                    2 => tokens.extend([7, 101]),
                    // A rollback into the prompt.
                    3 => tokens.truncate(290),
                    _ => tokens.push(3),
                }
            }
        }
    }
}

#[test]
fn features_are_the_embedding_the_residual_stream_and_the_head_input() {
    let (_dir, checkpoint) = checkpoint();
    let weights = Arc::new(Weights::load_as(&checkpoint, WeightType::F32).unwrap());
    let (config, tokens) = (checkpoint.config(), [3, 1, 4, 1, 5, 9, 2, 6]);
    let size = config.hidden_size;
    let layers = fresh(&weights, &FeatureSource::Layers(vec![0, 2]), &tokens);
    let embedding = checkpoint.tensor(Tensor::Embedding).unwrap();
    let norm = checkpoint.tensor(Tensor::FinalNorm).unwrap();
    let head = checkpoint.tensor(Tensor::Head).unwrap();
    let mut model = model(&weights, &FeatureSource::LastHidden, 1);
    let (logits, last) = logits_and_features(&mut model, &tokens, &TokenTree::new());
    assert_eq!((layers.width(), last.width()), (2 * size, size));
    for (index, &token) in tokens.iter().enumerate() {
        let (first, output) = layers.row(index).unwrap().split_at(size);
        assert_eq!(first, &embedding[token as usize * size..][..size], "the embedding");
        let square = output.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / size as f64;
        let scale = 1.0 / (square + f64::from(config.rms_norm_eps)).sqrt();
        let normed = output.iter().zip(&norm).map(|(&x, &w)| f64::from(x) * scale * f64::from(w));
        for (found, expected) in last.row(index).unwrap().iter().zip(normed) {
            assert!((f64::from(*found) - expected).abs() < 1e-4, "{found} {expected}");
        }
    }
    let read = last.row(tokens.len() - 1).unwrap();
    for (found, weights) in logits.iter().zip(head.chunks_exact(size)) {
        let expected: f32 = weights.iter().zip(read).map(|(w, x)| w * x).sum();
        assert!((found - expected).abs() < 1e-4, "{found} {expected}");
    }
}

#[test]
fn a_model_without_a_feature_source_has_no_features() {
    let (_dir, checkpoint) = checkpoint();
    let weights = Arc::new(Weights::load(&checkpoint).unwrap());
    let transformer = Transformer::new(weights, Arc::new(Team::single_thread()));
    let mut model = CachedTransformer::new(transformer);
    let request = ForwardRequest::next_token(SEQUENCE, &[1, 2]);
    assert_eq!(model.logits(&request).unwrap().features, None);
    let error = model.logits(&ForwardRequest { features_from: Some(0), ..request }).err();
    assert_eq!(error, Some(ModelError::NoFeatures));
}
