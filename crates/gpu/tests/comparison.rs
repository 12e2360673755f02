//! The bits of a GPU and those of the reference.

#![expect(clippy::unwrap_used, reason = "tests")]

use crate::models::Models;
use forerun_core::{SequenceId, TokenId, TokenTree};
use forerun_formats::{Architecture, BlockType, FeatureSource, WeightType};
use forerun_lm::{BatchEntry, ForwardRequest, LayerGroups, LayerOrder, LayeredModel, Progress};
use forerun_model::CachedTransformer;
use forerun_reference::ReferenceDevice;
use std::sync::Arc;

/// The types of weights that GPUs compute.
pub(crate) const TYPES: [WeightType; 6] = [
    WeightType::F32,
    WeightType::Bf16,
    WeightType::F16,
    WeightType::INT8,
    WeightType::Quantized(BlockType::Q4_K),
    WeightType::Quantized(BlockType::Q6_K),
];

/// Returns the bits of logits and features of three sequences in the same passes: a long prompt, a tree,
/// and a single row; then of an approximate chain, if all layers are one group, and of a continuation.
pub(crate) fn outputs(
    model: &mut impl LayeredModel,
    n_layers: Option<usize>,
    long: u32,
) -> Vec<u32> {
    let prompt = |len: u32, step: u32| (0..len).map(|i| i * step % 250).collect::<Vec<TokenId>>();
    let (long, short, mut last) = (prompt(long, 7), prompt(9, 5), prompt(3, 11));
    let mut tree = TokenTree::new();
    for (parent, token) in [(None, 4), (Some(0), 5), (Some(0), 6), (None, 4), (Some(2), 9)] {
        tree.push(parent, token);
    }
    let none = TokenTree::new();
    let requests = [
        ForwardRequest {
            features_from: Some(30),
            ..ForwardRequest::new(SequenceId(1), &long, &none)
        },
        ForwardRequest {
            features_from: Some(0),
            ..ForwardRequest::new(SequenceId(2), &short, &tree)
        },
        ForwardRequest::new(SequenceId(3), &last, &none),
    ];
    let mut bits = Vec::new();
    let mut run = |requests: &[ForwardRequest<'_>]| {
        let mut progress: Vec<Progress> = requests.iter().map(|_| Progress::default()).collect();
        while progress.iter().any(|progress| progress.result.is_none()) {
            let entries = requests.iter().zip(&mut progress);
            let entries = entries.map(|(&request, progress)| BatchEntry { request, progress });
            model.forward(&mut entries.collect::<Vec<_>>());
        }
        for output in progress.into_iter().map(|progress| progress.result.unwrap().unwrap()) {
            let features = output.features.iter().flat_map(|rows| (0..).map_while(|i| rows.row(i)));
            let values = output.logits.iter().chain(features.flatten());
            bits.extend(values.map(|value| value.to_bits()));
        }
    };
    run(&requests);
    if let Some(n_layers) = n_layers {
        let groups = LayerGroups::of_sizes(&[n_layers]);
        let (order, exact_tokens) = (LayerOrder::Groups(&groups), last.len());
        let approximate = ForwardRequest::new(SequenceId(3), &last, &tree);
        run(&[ForwardRequest { order, exact_tokens, ..approximate }]);
    }
    last.extend([4, 6, 9]);
    run(&[ForwardRequest::new(SequenceId(3), &last, &none)]);
    bits
}

/// Asserts that a GPU computes the reference's bits, and returns the number of numbers that were compared.
pub(crate) fn assert_same(
    models: &Models,
    features: &FeatureSource,
    long: u32,
    name: &str,
) -> usize {
    let n_layers = Some(models.reference.architecture().layers.len());
    let gpu = models.gpu().with_features(features.clone());
    let reference =
        ReferenceDevice::new(Arc::clone(&models.reference)).with_features(features.clone());
    let found = outputs(&mut CachedTransformer::new(gpu), n_layers, long);
    let expected = outputs(&mut CachedTransformer::new(reference), n_layers, long);
    assert_eq!(found.len(), expected.len(), "{name}");
    let different = found.iter().zip(&expected).filter(|(found, expected)| found != expected);
    let count = different.count();
    assert_eq!(count, 0, "{count} of {} numbers differ: {name}", found.len());
    found.len()
}

/// Returns the features before the first layer and after the last one.
pub(crate) fn all_layers(architecture: &Architecture) -> FeatureSource {
    FeatureSource::Layers(vec![0, architecture.layers.len()])
}
