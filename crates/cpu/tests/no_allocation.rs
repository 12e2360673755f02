//! A forward pass allocates no memory once a pass of the same size has run. Only the cache grows,
//! by whole segments. Passes of hybrids allocate a few short lists.

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
    // The cache keeps a list of the states of recurrent layers, and each of these layers gathers
    // the states of the pass. No allocation has the size of a state.
    let layers = &checkpoint.architecture().layers;
    let most = match layers.iter().filter(|layer| layer.recurrent.is_some()).count() as u64 {
        0 => 0,
        recurrent => 8 * (recurrent + 1),
    };
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
                    // What the first pass allocates does not count.
                    let most = if round == 0 { u64::MAX } else { most };
                    let (family, count) = (checkpoint.config().family, counted.count_total);
                    assert!(
                        count <= most,
                        "{family}, {weight_type}, {members} members: {count} allocations"
                    );
                }
            }
        }
    }
}
