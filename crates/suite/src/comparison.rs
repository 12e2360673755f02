//! The bits of a device and those of the reference.

use crate::prelude::*;

/// The same model on a device and as the reference.
pub struct Models<D: Device> {
    /// The weights on the device.
    pub weights: Arc<D::Weights>,
    /// The reference.
    pub reference: Arc<ReferenceModel>,
}

impl<D: Device> Models<D> {
    /// Loads a model on both.
    pub fn load(
        device: &D,
        architecture: &Architecture,
        source: &dyn TensorSource,
        types: impl Into<ModelTypes>,
        variant: D::Variant,
    ) -> Self {
        let types = types.into();
        let weights = device.load((architecture, source), types);
        let arithmetic = device.arithmetic(types, variant);
        let reference = ReferenceModel::load_with(architecture.clone(), source, arithmetic, None);
        Self { weights: Arc::new(weights), reference: Arc::new(reference.unwrap()) }
    }

    /// Asserts that a device computes the reference's bits, with a prompt of `long` tokens.
    pub fn assert_same(
        &self,
        device: &D,
        run: Run<D::Variant>,
        (features, long): (&FeatureSource, usize),
        name: &str,
    ) {
        let n_layers = Some(self.reference.architecture().layers.len());
        let model = D::with_features(device.model(&self.weights, run), features.clone());
        let reference = ReferenceDevice::new(Arc::clone(&self.reference));
        let reference = reference.with_features(features.clone());
        let found = outputs(&mut CachedTransformer::new(model), n_layers, long);
        let expected = outputs(&mut CachedTransformer::new(reference), n_layers, long);
        assert_same_bits(&found, &expected, &format!("{name} ({run:?})"));
    }
}

/// Asserts that a device computes the reference's bits of an architecture, with a prompt of 40
/// tokens, and features before the first layer and after the last one.
pub(crate) fn assert_same<D: Device>(
    device: &D,
    architecture: &Architecture,
    source: &dyn TensorSource,
    (types, run): (impl Into<ModelTypes>, Run<D::Variant>),
    name: &str,
) {
    let models = Models::load(device, architecture, source, types, run.variant);
    models.assert_same(device, run, (&all_layers(architecture), 40), name);
}

/// Asserts that all bits are the same, and says how many are not.
pub(crate) fn assert_same_bits(found: &[u32], expected: &[u32], name: &str) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let different = found.iter().zip(expected).filter(|(found, expected)| found != expected);
    let count = different.count();
    assert_eq!(count, 0, "{count} of {} numbers differ: {name}", found.len());
}

/// Returns the features before the first layer and after the last one.
#[must_use]
pub fn all_layers(architecture: &Architecture) -> FeatureSource {
    FeatureSource::Layers(vec![0, architecture.layers.len()])
}

/// Runs passes over requests until all have ended.
pub(crate) fn run_all(
    model: &mut (impl LanguageModel + ?Sized),
    requests: &[ForwardRequest<'_>],
) -> Vec<Result<ForwardOutput, ModelError>> {
    let mut progress: Vec<Progress> = requests.iter().map(|_| Progress::default()).collect();
    while progress.iter().any(|progress| progress.result.is_none()) {
        let entries = requests.iter().zip(&mut progress);
        let entries = entries.map(|(&request, progress)| BatchEntry { request, progress });
        model.forward(&mut entries.collect::<Vec<_>>());
    }
    progress.into_iter().map(|progress| progress.result.unwrap()).collect()
}

/// Returns the bits of a request's logits and features.
pub(crate) fn bits(output: &ForwardOutput) -> impl Iterator<Item = u32> {
    let features = output.features.iter().flat_map(|rows| (0..).map_while(|row| rows.row(row)));
    output.logits.iter().chain(features.flatten()).map(|value| value.to_bits())
}

/// Returns the bits of logits and features of three sequences in the same passes: a prompt of
/// `long` tokens, a tree, and a single row; then of an approximate chain, if all layers are one
/// group, and of a continuation.
pub fn outputs(model: &mut impl LayeredModel, n_layers: Option<usize>, long: usize) -> Vec<u32> {
    let (long, short, last) = (text(long, 7), text(9, 5), text(3, 11));
    let tree = tree_of([(None, 4), (Some(0), 5), (Some(0), 6), (None, 4), (Some(2), 9)]);
    let none = TokenTree::new();
    let request = |sequence, tokens, tree| ForwardRequest::new(SequenceId(sequence), tokens, tree);
    let mut all = Vec::new();
    let mut run = |requests: &[ForwardRequest<'_>]| {
        for output in run_all(model, requests) {
            all.extend(bits(&output.unwrap()));
        }
    };
    run(&[
        ForwardRequest { features_from: Some(30), ..request(1, &long, &none) },
        ForwardRequest { features_from: Some(0), ..request(2, &short, &tree) },
        request(3, &last, &none),
    ]);
    if let Some(n_layers) = n_layers {
        let groups = LayerGroups::of_sizes(&[n_layers]);
        let (order, exact_tokens) = (LayerOrder::Groups(&groups), last.len());
        run(&[ForwardRequest { order, exact_tokens, ..request(3, &last, &tree) }]);
    }
    run(&[request(3, &[&last[..], &[4, 6, 9]].concat(), &none)]);
    all
}
