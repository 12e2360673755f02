//! Checks which cache entries of EasySpec's drafter are exact, on real caches.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::{
    DraftShape, KeyedRandomness, Sampling, SamplingOptions, SequenceId, TargetFeedback, TokenId,
    TokenTree, Verification,
};
use forerun_cpu::{Team, Transformer, Weights, snapshot};
use forerun_draft::{CalibrationPolicy, DraftContext, Drafter, LayerParallelDrafter, ModelDrafter};
use forerun_formats::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use forerun_formats::{Checkpoint, Config};
use forerun_lm::{ForwardRequest, LanguageModel, LayerGroups};
use forerun_model::CachedTransformer;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const SEQUENCE: SequenceId = SequenceId(0);
const LAYERS: usize = 8;
const PROMPT: usize = 12;
const POLICIES: [CalibrationPolicy; 2] = [CalibrationPolicy::EveryRound, CalibrationPolicy::Never];

fn weights() -> Arc<Weights> {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { num_hidden_layers: LAYERS, ..example_config() };
    write_random_checkpoint(dir.path(), &config, 5, RandomDtype::F32).unwrap();
    Arc::new(Weights::load(&Checkpoint::open(dir.path()).unwrap()).unwrap())
}

fn model(weights: &Arc<Weights>) -> CachedTransformer<Transformer> {
    CachedTransformer::new(Transformer::new(Arc::clone(weights), Arc::new(Team::single_thread())))
}

fn shapes() -> [DraftShape; 6] {
    [
        DraftShape::Chain { length: 5 },
        DraftShape::Top { width: 1, depth: 4, budget: None },
        DraftShape::Top { width: 4, depth: 5, budget: None },
        DraftShape::Top { width: 4, depth: 4, budget: Some(9) },
        DraftShape::Ranked { children: vec![3, 2, 0, 1, 1] },
        DraftShape::Sampled { branching: vec![3, 2, 1] },
    ]
}

fn samplings() -> [Sampling; 2] {
    let verification = Verification::Rejection;
    [
        Sampling::greedy(),
        Sampling {
            options: SamplingOptions { temperature: 0.8, ..SamplingOptions::default() },
            verification,
            ..Sampling::greedy()
        },
    ]
}

/// Simulated rounds of drafting and verification, which accept a varying number of tokens.
struct Rounds {
    tokens: Vec<TokenId>,
    prompt_len: usize,
}

impl Rounds {
    fn new() -> Self {
        let tokens = (0..PROMPT as u32).map(|index| index * 37 % 250).collect();
        Self { tokens, prompt_len: PROMPT }
    }

    fn draft(
        &self,
        drafter: &mut dyn Drafter,
        shape: &DraftShape,
        sampling: &Sampling,
    ) -> forerun_core::Draft {
        let context = DraftContext {
            sequence: SEQUENCE,
            tokens: &self.tokens,
            prompt_len: self.prompt_len,
            sampling,
            randomness: &KeyedRandomness { seed: 3, sample: 0 },
            shape,
            feedback: &TargetFeedback::default(),
            cancel: &AtomicBool::new(false),
            tokens_on_last_device: None,
        };
        drafter.draft(&context).unwrap()
    }

    /// Accepts the first nodes of a deepest path, and adds a token that was not drafted. The number
    /// of accepted nodes depends on `round`.
    fn verify(&mut self, tree: &TokenTree, round: usize) {
        let deepest = (0..tree.len()).max_by_key(|&node| tree.depth(node)).unwrap();
        let path = tree.path(deepest);
        // First the whole path, then less and less of it.
        let accepted = path.len() - round % (path.len() + 1);
        self.tokens.extend(path[..accepted].iter().map(|&node| tree.token(node)));
        let at = accepted.checked_sub(1).map(|last| path[last]);
        let other = (0..).find(|&token| tree.child_with(at, token).is_none()).unwrap();
        self.tokens.push(other);
    }
}

/// Returns the bits of the first `count` cache entries of every layer.
fn rows(model: &CachedTransformer<Transformer>, count: usize) -> Vec<Vec<u32>> {
    let (prefix, tree, layers) = snapshot(model, SEQUENCE).unwrap();
    let slots = prefix.len() + tree.len();
    layers.iter().map(|bits| bits[..bits.len() / slots * count].to_vec()).collect()
}

/// Returns the bits of the cache entries after an exact forward of a new model.
fn fresh(weights: &Arc<Weights>, tokens: &[TokenId]) -> Vec<Vec<u32>> {
    let mut model = model(weights);
    model.logits(&ForwardRequest::next_token(SEQUENCE, tokens)).unwrap();
    rows(&model, tokens.len())
}

/// Returns how many of the first tokens have the cache entries of an exact forward.
fn exact_rows(
    drafter: &LayerParallelDrafter<CachedTransformer<Transformer>>,
    weights: &Arc<Weights>,
    tokens: &[TokenId],
) -> usize {
    let (own, exact) = (rows(drafter.model(), tokens.len()), fresh(weights, tokens));
    let width = own[0].len() / tokens.len();
    let agrees = |slot: &usize| {
        let part = slot * width..(slot + 1) * width;
        own.iter().zip(&exact).all(|(own, exact)| own[part.clone()] == exact[part.clone()])
    };
    (0..tokens.len()).take_while(agrees).count()
}

#[test]
fn groups_of_one_layer_equal_the_ordinary_drafter() {
    let weights = weights();
    for policy in POLICIES {
        for (shape, sampling) in shapes().iter().flat_map(|s| samplings().map(|own| (s, own))) {
            let groups = LayerGroups::parallel(LAYERS, 1);
            let mut layer_parallel = LayerParallelDrafter::new(model(&weights), groups, policy);
            let mut ordinary = ModelDrafter::new(model(&weights));
            let mut rounds = Rounds::new();
            for round in 0..8 {
                let draft = rounds.draft(&mut layer_parallel, shape, &sampling);
                assert_eq!(
                    draft,
                    rounds.draft(&mut ordinary, shape, &sampling),
                    "{policy} {shape:?}"
                );
                rounds.verify(&draft.tree, round);
            }
            // All cache entries are exact.
            let exact = layer_parallel.model().cache(SEQUENCE).unwrap().index().exact_len();
            assert_eq!(exact, layer_parallel.model().cache(SEQUENCE).unwrap().index().prefix_len());
        }
    }
}

/// The cache entries that a policy requires to be exact have the bits of an exact forward, and no
/// others do.
#[test]
fn caches_are_exact_where_the_policy_requires_it() {
    let weights = weights();
    for policy in POLICIES {
        for (number, shape) in shapes().iter().enumerate() {
            let sampling = &samplings()[number % 2];
            let groups = LayerGroups::parallel(LAYERS, 2 + number % 3);
            let mut drafter = LayerParallelDrafter::new(model(&weights), groups, policy);
            let mut rounds = Rounds::new();
            for round in 0..10 {
                let draft = rounds.draft(&mut drafter, shape, sampling);
                let expected = match policy {
                    CalibrationPolicy::EveryRound => rounds.tokens.len(),
                    CalibrationPolicy::Never => 0,
                };
                let exact = exact_rows(&drafter, &weights, &rounds.tokens);
                assert_eq!(exact, expected, "{policy}, {shape:?}, round {round}");
                rounds.verify(&draft.tree, round);
            }
        }
    }
}

/// Drafting twice after the same tokens gives the same draft. The cache only saves work.
#[test]
fn calibrated_drafts_are_a_function_of_the_tokens() {
    let weights = weights();
    for (shape, sampling) in shapes().iter().flat_map(|s| samplings().map(|own| (s, own))) {
        let groups = LayerGroups::parallel(LAYERS, 4);
        let new = || {
            LayerParallelDrafter::new(
                model(&weights),
                groups.clone(),
                CalibrationPolicy::EveryRound,
            )
        };
        let (mut drafter, mut rounds) = (new(), Rounds::new());
        for round in 0..6 {
            let draft = rounds.draft(&mut drafter, shape, &sampling);
            assert_eq!(draft, rounds.draft(&mut drafter, shape, &sampling), "a second time");
            assert_eq!(draft, rounds.draft(&mut new(), shape, &sampling), "with a new drafter");
            rounds.verify(&draft.tree, round);
        }
        drafter.release(SEQUENCE);
        assert!(drafter.model().cache(SEQUENCE).is_none());
    }
}

/// The turns of a chat share a sequence and its cache. A turn is drafted as by a new drafter, even
/// if it continues where the last turn's draft ended.
#[test]
fn drafts_do_not_depend_on_earlier_answers() {
    let weights = weights();
    for policy in POLICIES {
        for (shape, sampling) in shapes().iter().flat_map(|s| samplings().map(|own| (s, own))) {
            let groups = LayerGroups::parallel(LAYERS, 4);
            let new = || LayerParallelDrafter::new(model(&weights), groups.clone(), policy);
            let (mut drafter, mut rounds) = (new(), Rounds::new());
            for _ in 0..3 {
                let draft = rounds.draft(&mut drafter, shape, &sampling);
                // All tokens are accepted.
                rounds.verify(&draft.tree, 0);
            }
            rounds.prompt_len = rounds.tokens.len();
            let mut fresh = new();
            assert_eq!(
                rounds.draft(&mut drafter, shape, &sampling),
                rounds.draft(&mut fresh, shape, &sampling),
                "{policy} {shape:?}"
            );
            let caches = [&drafter, &fresh].map(|own| rows(own.model(), rounds.tokens.len()));
            assert_eq!(caches[0], caches[1], "{policy} {shape:?}");
        }
    }
}

/// If drafting runs ahead, several jobs of few tokens form one round. They draft the same tokens as
/// a single job. Only the tokens at the start of the round are exact, until the round is complete
/// or another token is committed.
#[test]
fn a_round_can_consist_of_several_jobs() {
    const ROUND: usize = 5;
    let weights = weights();
    for sampling in samplings() {
        let new = || {
            let groups = LayerGroups::parallel(LAYERS, 4);
            LayerParallelDrafter::new(model(&weights), groups, CalibrationPolicy::EveryRound)
        };
        let whole =
            Rounds::new().draft(&mut new(), &DraftShape::Chain { length: ROUND }, &sampling);
        for length in 1..=3 {
            let (mut drafter, mut rounds) = (new().with_round_length(ROUND), Rounds::new());
            let shape = DraftShape::Chain { length };
            let mut drafted = forerun_core::Draft::empty();
            while rounds.tokens.len() < PROMPT + ROUND {
                let draft = rounds.draft(&mut drafter, &shape, &sampling);
                assert_eq!(exact_rows(&drafter, &weights, &rounds.tokens), PROMPT);
                rounds.tokens.extend_from_slice(draft.tree.tokens());
                drafted.extend(draft);
            }
            assert_eq!(drafted.tree.tokens()[..ROUND], *whole.tree.tokens(), "{length}");
            // The next round.
            let all = rounds.tokens.len();
            let draft = rounds.draft(&mut drafter, &shape, &sampling);
            assert_eq!(exact_rows(&drafter, &weights, &rounds.tokens), all);
            // A token that differs from the draft's.
            rounds.tokens.push((draft.tree.token(0) + 1) % 250);
            rounds.draft(&mut drafter, &shape, &sampling);
            assert_eq!(exact_rows(&drafter, &weights, &rounds.tokens), all + 1);
        }
    }
}
