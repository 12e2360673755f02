//! Layer-parallel forward passes: for every state of the cache and any number of threads, every row
//! has the bits of the slow reference model's layer-parallel pass, and every row that must be exact
//! has the bits of an exact pass.

use forerun_core::testing::cases;
use forerun_core::{SequenceId, TokenId, TokenTree, node_of_row};
use forerun_cpu::{GroupParallelism, Isa, Team, Transformer, Weights, snapshot};
use forerun_formats::checkpoint::random::{
    RandomDtype, example_config, example_families, write_random_checkpoint,
};
use forerun_formats::config::{SlidingLayers, SlidingWindow};
use forerun_formats::{Checkpoint, Config, Family, MixtureLayers, RecurrentLayers, WeightType};
use forerun_lm::fake::row_prefix;
use forerun_lm::{ForwardRequest, LanguageModel, LayerGroups, LayerOrder};
use forerun_model::CachedTransformer;
use forerun_reference::ReferenceModel;
use proptest::prelude::*;
use std::sync::{Arc, OnceLock};

const SEQUENCE: SequenceId = SequenceId(0);
const LAYERS: usize = 7;

struct Models {
    reference: ReferenceModel,
    weights: Arc<Weights>,
    isa: Isa,
}

/// A plain Llama model in every weight type on every instruction set, and the other families in
/// f32.
fn models() -> &'static [Models] {
    static MODELS: OnceLock<Vec<Models>> = OnceLock::new();
    let load = |config: &Config, weight_type, isa| {
        let mut config = Config { num_hidden_layers: LAYERS, ..config.clone() };
        if let Some(SlidingWindow { layers: SlidingLayers::Listed(layers), .. }) =
            &mut config.sliding_window
        {
            layers.resize(LAYERS, true);
            // The last layer of a Gemma 4 never has a window.
            layers[LAYERS - 1] = config.family != Family::Gemma4;
        }
        if let Some(shared) = &mut config.shared_keys {
            shared.layers = 3;
        }
        if let Some(has_rope) = &mut config.rope_layers {
            let any = has_rope.contains(&true);
            has_rope.resize(LAYERS, any);
        }
        if let Some(RecurrentLayers { layers, .. }) = &mut config.recurrent {
            layers.resize(LAYERS, true);
        }
        if let Some(MixtureLayers { dense, .. }) = &mut config.experts
            && !dense.is_empty()
        {
            dense.resize(LAYERS, false);
        }
        let dir = tempfile::tempdir().unwrap();
        write_random_checkpoint(dir.path(), &config, 5, RandomDtype::F32).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        Models {
            reference: ReferenceModel::load_as(&checkpoint, weight_type, isa).unwrap(),
            weights: Arc::new(Weights::load_as(&checkpoint, weight_type).unwrap()),
            isa,
        }
    };
    MODELS.get_or_init(|| {
        let types = [WeightType::F32, WeightType::Bf16, WeightType::F16, WeightType::INT8];
        let plain = Isa::available()
            .into_iter()
            .flat_map(|isa| types.map(|weight_type| load(&example_config(), weight_type, isa)));
        let families = example_families();
        plain
            .chain(families.iter().map(|config| load(config, WeightType::F32, Isa::best())))
            .collect()
    })
}

fn model(models: &Models, members: usize) -> CachedTransformer<Transformer> {
    model_with(models, members, GroupParallelism::Layers)
}

fn model_with(
    models: &Models,
    members: usize,
    work: GroupParallelism,
) -> CachedTransformer<Transformer> {
    let team = Arc::new(Team::unpinned(members).unwrap().with_isa(models.isa));
    let transformer = Transformer::new(Arc::clone(&models.weights), team);
    CachedTransformer::new(transformer.with_group_parallelism(work))
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|logit| logit.to_bits()).collect()
}

/// One request, relative to the tokens of the previous request.
#[derive(Clone, Debug)]
struct Step {
    keep: usize,
    follow: usize,
    append: Vec<TokenId>,
    nodes: Vec<(usize, TokenId)>,
    first_row: usize,
    /// Number of leading tokens that must be exact, at most all; in most cases all or none.
    exact: usize,
}

fn step() -> impl Strategy<Value = Step> {
    let token = || 0..4_u32;
    let exact = prop_oneof![Just(usize::MAX), Just(0), 0..40_usize];
    let nodes = prop::collection::vec((0..64_usize, token()), 0..12);
    (0..40_usize, 0..64_usize, prop::collection::vec(token(), 0..6), nodes, 0..8_usize, exact)
        .prop_map(|(keep, follow, append, nodes, first_row, exact)| Step {
            keep,
            follow,
            append,
            nodes,
            first_row,
            exact,
        })
}

/// Any partition of the layers.
fn groups() -> impl Strategy<Value = LayerGroups> {
    prop::collection::vec(any::<bool>(), LAYERS - 1).prop_map(|cuts| {
        let mut sizes = vec![1];
        for cut in cuts {
            match sizes.last_mut() {
                Some(size) if !cut => *size += 1,
                _ => sizes.push(1),
            }
        }
        LayerGroups::of_sizes(&sizes)
    })
}

/// Returns a request with layers in groups, after `exact` exact tokens.
fn in_groups<'a>(
    request: ForwardRequest<'a>,
    groups: &'a LayerGroups,
    exact: usize,
) -> ForwardRequest<'a> {
    ForwardRequest { order: LayerOrder::Groups(groups), exact_tokens: exact, ..request }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(48)))]

    #[test]
    fn every_row_has_the_bits_of_the_references_layer_parallel_forward(
        kind in 0..models().len(), members in 1..6_usize, groups in groups(),
        by_products in any::<bool>(), steps in prop::collection::vec(step(), 1..7),
    ) {
        let models = &models()[kind];
        let work = if by_products { GroupParallelism::Products } else { GroupParallelism::Layers };
        let mut model = model_with(models, members, work);
        let (mut tokens, mut tree, mut held): (_, _, Vec<TokenId>) = (vec![1], TokenTree::new(), vec![]);
        // The number of exact rows at the start of `held`, and the tokens of all rows that the cache
        // may hold exactly: nodes that no row was requested of may be such rows of an earlier step.
        let (mut exact, mut maybe_exact) = (0, Vec::<TokenId>::new());
        for step in steps {
            if !tree.is_empty() {
                let path = tree.path(step.follow % tree.len());
                tokens.extend(path.into_iter().map(|node| tree.token(node)));
            }
            tokens.truncate(1 + step.keep % tokens.len());
            tokens.extend(step.append);
            tree = TokenTree::new();
            for (parent, token) in step.nodes {
                tree.push((parent % (tree.len() + 1)).checked_sub(1), token);
            }
            let first_row = step.first_row % (tree.len() + 1);
            let required = step.exact.min(tokens.len());
            let agreeing = held.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
            // A requested row is always computed.
            let kept = agreeing.min(tokens.len() - usize::from(first_row == 0));
            exact = exact.min(kept).max(required);
            let agreeing = maybe_exact.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
            let most = agreeing.min(tokens.len() - usize::from(first_row == 0)).max(exact);
            let context = ForwardRequest::next_token(SEQUENCE, &tokens);
            let context = ForwardRequest { tree: &tree, first_row, ..context };
            let logits = model.logits(&in_groups(context, &groups, required)).unwrap();
            prop_assert_eq!(logits.rows().count(), tree.len() + 1 - first_row);
            if groups.is_exact() {
                exact = tokens.len();
            }
            let most = most.max(exact);
            // How many nodes of a path the cache may hold exactly.
            let also = |path: &[usize]| {
                let held = path.iter().zip(maybe_exact.iter().skip(tokens.len()));
                let is_held = |(node, token): &(&usize, &TokenId)| {
                    **node + 1 < first_row && **token == tree.token(**node)
                };
                if most == tokens.len() { held.take_while(is_held).count() } else { 0 }
            };
            for (row, logits) in (first_row..).zip(logits.rows()) {
                let prefix = row_prefix(&tokens, &tree, node_of_row(row));
                let also = also(&node_of_row(row).map(|node| tree.path(node)).unwrap_or_default());
                let expected = |exact| {
                    let order = LayerOrder::Groups(&groups);
                    bits(models.reference.logits_in_order(&prefix, order, exact).last().unwrap())
                };
                let fits = (exact..=most + also).any(|exact| bits(logits) == expected(exact));
                prop_assert!(fits, "{} row {} after {:?}, {} exact", &groups, row, prefix, exact);
            }
            let paths = (0..first_row.saturating_sub(1)).map(|node| tree.path(node));
            let held_path = paths.max_by_key(|path| also(path)).unwrap_or_default();
            let further = held_path.iter().take(also(&held_path)).map(|&node| tree.token(node));
            maybe_exact = tokens[..most].iter().copied().chain(further).collect();
            held.clone_from(&tokens);
        }
        // Exact rows never come from approximate entries.
        let logits = model.logits(&ForwardRequest::next_token(SEQUENCE, &tokens)).unwrap();
        prop_assert_eq!(bits(&logits.logits), bits(models.reference.logits(&tokens).last().unwrap()));
    }
}

/// Prompts that need several passes, with different numbers of exact tokens.
#[test]
fn long_prompts_have_the_bits_of_one_pass() {
    let tokens: Vec<TokenId> = (0..450).map(|index| index * 7 % 250).collect();
    let groups = LayerGroups::parallel(LAYERS, 3);
    let models = &models()[models().len() - 1];
    for exact in [0, 100, 300, 450] {
        let (tree, mut model) = (TokenTree::chain(&[3, 4]), model(models, 2));
        let context =
            ForwardRequest { tree: &tree, ..ForwardRequest::next_token(SEQUENCE, &tokens) };
        let logits = model.logits(&in_groups(context, &groups, exact)).unwrap();
        let all = [&tokens[..], &[3, 4]].concat();
        let rows = models.reference.logits_in_order(&all, LayerOrder::Groups(&groups), exact);
        for (logits, row) in logits.rows().zip(&rows[449..]) {
            assert_eq!(bits(logits), bits(row), "{exact} exact");
        }
    }
}

/// After a calibration the cache is what a fresh exact forward leaves, bit for bit.
#[test]
fn a_calibrated_cache_equals_that_of_a_fresh_exact_forward() {
    for (number, models) in models().iter().enumerate() {
        let groups = LayerGroups::parallel(LAYERS, 2 + number % 4);
        let work = [GroupParallelism::Layers, GroupParallelism::Products][number / 3 % 2];
        let mut approximate = model_with(models, 1 + number % 3, work);
        let mut tokens: Vec<TokenId> = (0..20).map(|index| index * 11 % 250).collect();
        for round in 0..4_u32 {
            let opening = ForwardRequest::next_token(SEQUENCE, &tokens);
            let logits = approximate.logits(&in_groups(opening, &groups, tokens.len())).unwrap();
            let mut fresh = model(models, 1);
            let expected = fresh.logits(&opening).unwrap();
            assert_eq!(bits(&logits.logits), bits(&expected.logits));
            let rows = |model: &CachedTransformer<Transformer>| {
                let (prefix, tree, rows) = snapshot(model, SEQUENCE).unwrap();
                ([&prefix, tree.tokens()].concat(), rows)
            };
            assert_eq!(rows(&approximate), rows(&fresh), "round {round}");
            // An approximate chain, of which a part is accepted, and a token of the target.
            let drafted = [7 + round, 8, 9];
            let tree = TokenTree::chain(&drafted);
            let drafting = ForwardRequest { tree: &tree, first_row: 1, ..opening };
            approximate.logits(&in_groups(drafting, &groups, tokens.len())).unwrap();
            let accepted = &drafted[..round as usize];
            tokens = [&tokens[..], accepted, &[40 + round]].concat();
        }
    }
}
