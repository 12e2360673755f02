//! Adapters: each row has the bits that its sequence has alone with its own adapter, whatever
//! shares the pass or was in the cache before.

use forerun_core::{AdapterId, SequenceId, TokenId, TokenTree};
use forerun_cpu::{AdapterWeights, Team, Transformer, Weights};
use forerun_formats::checkpoint::random::{
    RandomDtype, example_config, write_random_adapter, write_random_checkpoint,
};
use forerun_formats::{Adapter, Checkpoint, Config, WeightType};
use forerun_lm::{BatchEntry, ForwardRequest, LanguageModel, ModelError, Progress};
use forerun_model::CachedTransformer;
use std::sync::Arc;

const CHOICES: [Option<AdapterId>; 3] = [None, Some(AdapterId(0)), Some(AdapterId(1))];

struct Model {
    weights: Arc<Weights>,
    adapters: Vec<Arc<AdapterWeights>>,
}

impl Model {
    fn random(weight_type: WeightType) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = Config { num_hidden_layers: 2, ..example_config() };
        write_random_checkpoint(folder.path(), &config, 3, RandomDtype::F32).unwrap();
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let adapter = |seed| {
            let path = folder.path().join(format!("adapter-{seed}"));
            write_random_adapter(&path, &config, seed).unwrap();
            let architecture = checkpoint.architecture();
            let adapter = Adapter::open(&path, checkpoint.config(), architecture).unwrap();
            Arc::new(AdapterWeights::pack(&adapter, architecture))
        };
        let weights = Arc::new(Weights::load_as(&checkpoint, weight_type).unwrap());
        Self { weights, adapters: [1, 2].map(adapter).to_vec() }
    }

    fn on(&self, threads: usize) -> CachedTransformer<Transformer> {
        let team = Arc::new(Team::unpinned(threads).unwrap());
        let model = Transformer::new(Arc::clone(&self.weights), team);
        CachedTransformer::new(model.with_adapters(self.adapters.clone()))
    }

    /// Returns the rows of a request in a fresh model.
    fn alone(&self, request: &ForwardRequest<'_>) -> Vec<u32> {
        bits(&self.on(1).logits(request).unwrap().logits)
    }
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

fn text(tokens: u32) -> Vec<TokenId> {
    (0..tokens).map(|index| index * 31 % 250).collect()
}

/// Runs requests together, and returns their rows and the numbers of tokens that were computed.
fn together(
    model: &mut CachedTransformer<Transformer>,
    requests: &[ForwardRequest<'_>],
) -> Vec<(Vec<u32>, usize)> {
    let mut progress: Vec<_> = requests.iter().map(|_| Progress::default()).collect();
    while progress.iter().any(|progress| progress.result.is_none()) {
        let entries = requests.iter().zip(&mut progress);
        let entries = entries.map(|(&request, progress)| BatchEntry { request, progress });
        model.forward(&mut entries.collect::<Vec<_>>());
    }
    let outputs = progress.into_iter().map(|progress| progress.result.unwrap().unwrap());
    outputs.map(|output| (bits(&output.logits), output.computed_tokens)).collect()
}

#[test]
fn rows_of_several_adapters_in_one_pass_have_the_bits_of_each_alone() {
    for weight_type in [WeightType::F32, WeightType::Bf16, WeightType::INT8] {
        let model = Model::random(weight_type);
        // The same tokens, so that a page of another adapter would fit.
        let (tokens, tree) = (text(150), TokenTree::chain(&[5, 6, 7]));
        let requests: Vec<ForwardRequest<'_>> = (0..6)
            .map(|number| ForwardRequest {
                adapter: CHOICES[number as usize % 3],
                ..ForwardRequest::new(SequenceId(number), &tokens, &tree)
            })
            .collect();
        let expected: Vec<_> = requests.iter().map(|request| model.alone(request)).collect();
        assert!(expected[0] != expected[1] && expected[1] != expected[2]);
        for threads in [1, 2] {
            let outputs = together(&mut model.on(threads), &requests);
            for (number, (rows, computed)) in outputs.into_iter().enumerate() {
                assert!(rows == expected[number], "{weight_type}, request {number}");
                // The second one with an adapter uses the pages of the first.
                let shares = computed < tokens.len();
                assert_eq!(shares, number >= 3, "{weight_type}, request {number}");
            }
        }
    }
}

#[test]
fn a_sequence_that_changes_its_adapter_keeps_no_row() {
    let model = Model::random(WeightType::F32);
    let (tokens, tree) = (text(100), TokenTree::chain(&[5, 6]));
    let mut changing = model.on(2);
    for round in 0..7 {
        let tokens = &tokens[..60 + round * 5];
        let adapter = CHOICES[round % 3];
        let request =
            ForwardRequest { adapter, ..ForwardRequest::new(SequenceId(1), tokens, &tree) };
        let rows = bits(&changing.logits(&request).unwrap().logits);
        assert!(rows == model.alone(&request), "round {round}");
    }
    let unknown = ForwardRequest {
        adapter: Some(AdapterId(2)),
        ..ForwardRequest::new(SequenceId(1), &tokens, &tree)
    };
    assert_eq!(changing.logits(&unknown).err(), Some(ModelError::Adapter(2)));
}
