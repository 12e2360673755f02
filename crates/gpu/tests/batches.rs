//! Requests that share their passes get the bits that they get alone. What a pass costs is counted.

use crate::common::{configs, gpu};
use crate::device::Gpu;
use forerun_core::{RowUse, SequenceId, TokenId, TokenTree};
use forerun_formats::WeightType;
use forerun_formats::checkpoint::random::RandomTensors;
use forerun_gpu::{GpuModel, GpuWeights};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use std::sync::Arc;

forerun_suite::batches!(Gpu);

fn plain_weights() -> Option<Arc<GpuWeights>> {
    let architecture = configs().remove(0).architecture();
    let tensors = RandomTensors::new(&architecture, 5);
    let types = WeightType::F32;
    Some(Arc::new(GpuWeights::load_architecture(gpu()?, architecture, &tensors, types).unwrap()))
}

/// A layer is ten dispatches, and a pass of few rows one submission that reads each matrix once.
#[test]
fn the_cost_of_a_pass_counts_its_dispatches_and_bytes() {
    let Some(weights) = plain_weights() else { return };
    let mut model = CachedTransformer::new(GpuModel::new(Arc::clone(&weights)));
    let tokens: Vec<TokenId> = (0..9).collect();
    let architecture = weights.architecture();
    let layers = architecture.layers.len();
    for end in [8, 9] {
        model.logits(&ForwardRequest::next_token(SequenceId(0), &tokens[..end])).unwrap();
        let cost = model.device().last_cost();
        assert_eq!((cost.rows, cost.submissions), (if end == 8 { 8 } else { 1 }, 1));
        // The embedding, and the norm and the product of the head.
        assert_eq!(cost.dispatches, 10 * layers + 3);
        let embedding = 4 * (architecture.vocab_size * architecture.hidden_size) as u64;
        assert_eq!(cost.weight_bytes, weights.bytes() - embedding);
        println!("{cost}");
    }
}

/// What comes home of a row is what is read of it: its logits, or a few tokens with theirs.
#[test]
fn only_what_is_read_of_rows_comes_home() {
    let Some(weights) = plain_weights() else { return };
    let vocab_size = weights.architecture().vocab_size;
    let tokens: Vec<TokenId> = (0..9).collect();
    let tree = TokenTree::chain(&[4, 7, 9]);
    let read_back = |rows_for| {
        let mut model = CachedTransformer::new(GpuModel::new(Arc::clone(&weights)));
        let request = ForwardRequest::new(SequenceId(0), &tokens, &tree);
        let output = model.logits(&ForwardRequest { rows_for, ..request }).unwrap();
        assert_eq!(output.best.is_empty(), rows_for == RowUse::Full);
        model.device().last_cost().read_back_bytes
    };
    // Whether the row's keys and values fit the cache's type.
    let overflows = 4 * (tokens.len() + tree.len()) as u64;
    let rows = (tree.len() + 1) as u64;
    assert_eq!(read_back(RowUse::Full), overflows + rows * 4 * vocab_size as u64);
    assert_eq!(read_back(RowUse::best(1, vocab_size)), overflows + rows * 8);
    assert_eq!(read_back(RowUse::best(20, vocab_size)), overflows + rows * 160);
}
