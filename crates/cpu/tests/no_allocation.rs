//! A forward pass allocates no memory once a pass of the same size has run. Only the cache grows, by whole
//! segments.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_cache::Keep;
use forerun_core::TokenTree;
use forerun_cpu::{GroupParallelism, Team, Transformer, Weights};
use forerun_formats::checkpoint::random::{
    RandomDtype, example_config, example_families, write_random_checkpoint,
};
use forerun_formats::{Checkpoint, WeightType};
use forerun_lm::{LayerGroups, LayerOrder};
use forerun_model::SequenceRunner;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[test]
fn a_forward_allocates_nothing_after_the_first() {
    for config in example_families().iter().chain([&example_config()]) {
        let dir = tempfile::tempdir().unwrap();
        write_random_checkpoint(dir.path(), config, 3, RandomDtype::F32).unwrap();
        check(&Checkpoint::open(dir.path()).unwrap());
    }
}

fn check(checkpoint: &Checkpoint) {
    for weight_type in [WeightType::F32, WeightType::Bf16, WeightType::INT8] {
        for (members, work) in [
            (1, GroupParallelism::Layers),
            (2, GroupParallelism::Layers),
            (1, GroupParallelism::Products),
            (2, GroupParallelism::Products),
        ] {
            let weights = Arc::new(Weights::load_as(checkpoint, weight_type).unwrap());
            let team = Arc::new(Team::unpinned(members).unwrap());
            let transformer = Transformer::new(weights, team).with_group_parallelism(work);
            let mut runner = SequenceRunner::new(transformer);
            let never = AtomicBool::new(false);
            let prompt = [1, 2, 3, 4, 5];
            let mut tree = TokenTree::chain(&[6, 7, 8]);
            tree.push(Some(0), 9);
            let one = TokenTree::chain(&[6]);
            let prefill = TokenTree::chain(&prompt);
            let n_layers = checkpoint.config().num_hidden_layers;
            let together = LayerGroups::of_sizes(&[n_layers]);
            let orders = [LayerOrder::Sequential, LayerOrder::Groups(&together)];
            runner.forward(&prefill, 5, orders[0], &never).unwrap();
            for round in 0..4 {
                for (tree, order) in [&tree, &one].into_iter().flat_map(|t| orders.map(|o| (t, o)))
                {
                    runner.seek(&prompt, &TokenTree::new(), Keep::Exact);
                    let counted = allocation_counter::measure(|| {
                        runner.forward(tree, 0, order, &never).unwrap();
                    });
                    let expected = if round == 0 { counted.count_total } else { 0 };
                    assert_eq!(
                        counted.count_total,
                        expected,
                        "{}, {weight_type}, {members} members",
                        checkpoint.config().family
                    );
                }
            }
        }
    }
}
