//! EasySpec's drafter on real caches: what is exact, and when.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::{
    DraftShape, KeyedRandomness, Sampling, SequenceId, TargetFeedback, TokenId, TokenTree,
    Verification,
};
use forerun_draft::{CalibrationPolicy, DraftContext, Drafter, LayerParallelDrafter, ModelDrafter};
use forerun_model::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use forerun_model::{
    CachedTransformer, Checkpoint, Config, LanguageModel, LayerGroups, LogitsContext, Team,
    Transformer, Weights,
};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

const SEQUENCE: SequenceId = SequenceId(0);
const LAYERS: usize = 8;
const PROMPT: usize = 12;
const POLICIES: [CalibrationPolicy; 4] = [
    CalibrationPolicy::EveryRound,
    CalibrationPolicy::OnMismatch,
    CalibrationPolicy::PrefillOnly,
    CalibrationPolicy::Never,
];

fn weights() -> Arc<Weights> {
    let dir = tempfile::tempdir().unwrap();
    let config = Config { num_hidden_layers: LAYERS, ..example_config() };
    write_random_checkpoint(dir.path(), &config, 5, RandomDtype::F32).unwrap();
    Arc::new(Weights::load(&Checkpoint::open(dir.path()).unwrap()).unwrap())
}

fn model(weights: &Arc<Weights>) -> CachedTransformer {
    CachedTransformer::new(Transformer::new(Arc::clone(weights), Arc::new(Team::single_thread())))
}

fn shapes() -> [DraftShape; 5] {
    [
        DraftShape::Chain { length: 5 },
        DraftShape::Top { width: 1, depth: 4, budget: None },
        DraftShape::Top { width: 4, depth: 5, budget: None },
        DraftShape::Top { width: 4, depth: 4, budget: Some(9) },
        DraftShape::Sampled { branching: vec![3, 2, 1] },
    ]
}

fn samplings() -> [Sampling; 2] {
    let verification = Verification::Rejection;
    [Sampling::greedy(), Sampling { temperature: 0.8, verification, ..Sampling::greedy() }]
}

/// A conversation of rounds: drafts, and answers to them that accept more or less.
struct Rounds {
    tokens: Vec<TokenId>,
    prompt_len: usize,
    /// The longest path of the last draft was accepted as a whole.
    accepted_all: bool,
}

impl Rounds {
    fn new() -> Self {
        let tokens = (0..PROMPT as u32).map(|index| index * 37 % 250).collect();
        Self { tokens, prompt_len: PROMPT, accepted_all: false }
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
        };
        drafter.draft(&context).unwrap()
    }

    /// Accepts the first nodes of the deepest path (of one of them, by the round's number), and adds
    /// a token that nobody drafted.
    fn answer(&mut self, tree: &TokenTree, round: usize) {
        let deepest = (0..tree.len()).max_by_key(|&node| tree.depth(node)).unwrap();
        let path = tree.path(deepest);
        // All of it, then less and less.
        let accepted = path.len() - round % (path.len() + 1);
        self.accepted_all = accepted == path.len();
        self.tokens.extend(path[..accepted].iter().map(|&node| tree.token(node)));
        let at = accepted.checked_sub(1).map(|last| path[last]);
        let other = (0..).find(|&token| tree.child_with(at, token).is_none()).unwrap();
        self.tokens.push(other);
    }
}

/// The bits of the first `count` rows of every layer.
fn rows(model: &CachedTransformer, count: usize) -> Vec<Vec<u32>> {
    let (prefix, tree, layers) = model.cache(SEQUENCE).unwrap().snapshot();
    let slots = prefix.len() + tree.len();
    layers.iter().map(|bits| bits[..bits.len() / slots * count].to_vec()).collect()
}

/// The same of a fresh exact forward.
fn fresh(weights: &Arc<Weights>, tokens: &[TokenId]) -> Vec<Vec<u32>> {
    let mut model = model(weights);
    model.logits(&LogitsContext::next_token(SEQUENCE, tokens)).unwrap();
    rows(&model, tokens.len())
}

/// How many of the first tokens have the bits of a fresh exact forward.
fn exact_rows(
    drafter: &LayerParallelDrafter<CachedTransformer>,
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
fn one_layer_at_a_time_is_the_ordinary_drafter() {
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
                rounds.answer(&draft.tree, round);
            }
            // All that it holds is exact.
            let exact = layer_parallel.model().cache(SEQUENCE).unwrap().exact_len();
            assert_eq!(exact, layer_parallel.model().cache(SEQUENCE).unwrap().prefix_len());
        }
    }
}

/// What a policy says is exact has the bits of a fresh exact forward, and nothing else has.
#[test]
fn caches_are_exact_where_the_policy_says() {
    let weights = weights();
    let (mut kept_all, mut dropped) = (0, 0);
    for policy in POLICIES {
        for (number, shape) in shapes().iter().enumerate() {
            let sampling = &samplings()[number % 2];
            let groups = LayerGroups::parallel(LAYERS, 2 + number % 3);
            let mut drafter = LayerParallelDrafter::new(model(&weights), groups, policy);
            let mut rounds = Rounds::new();
            // The tokens at the last calibration.
            let mut calibrated = 0;
            for round in 0..10 {
                let draft = rounds.draft(&mut drafter, shape, sampling);
                let all = rounds.tokens.len();
                let expected = match policy {
                    CalibrationPolicy::EveryRound => all,
                    CalibrationPolicy::OnMismatch if round > 0 && rounds.accepted_all => {
                        kept_all += 1;
                        calibrated
                    }
                    CalibrationPolicy::OnMismatch => {
                        dropped += 1;
                        all
                    }
                    CalibrationPolicy::PrefillOnly => PROMPT,
                    CalibrationPolicy::Never => 0,
                };
                calibrated = expected;
                let exact = exact_rows(&drafter, &weights, &rounds.tokens);
                assert_eq!(exact, expected, "{policy}, {shape:?}, round {round}");
                rounds.answer(&draft.tree, round);
            }
        }
    }
    assert!(kept_all > 3 && dropped > 3, "both cases occur: {kept_all}, {dropped}");
}

/// Tokens that are given a second time are drafted the same: what was held saved only work.
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
            assert_eq!(draft, rounds.draft(&mut drafter, shape, &sampling), "again");
            assert_eq!(draft, rounds.draft(&mut new(), shape, &sampling), "by a fresh one");
            rounds.answer(&draft.tree, round);
        }
        drafter.release(SEQUENCE);
        assert!(drafter.model().cache(SEQUENCE).is_none());
    }
}

/// A chat's turns share a sequence and its cache: a turn is drafted as by a fresh drafter, though it may go on
/// where the last one's draft ended.
#[test]
fn an_answer_is_drafted_alike_whatever_came_before_it() {
    let weights = weights();
    for policy in POLICIES {
        for (shape, sampling) in shapes().iter().flat_map(|s| samplings().map(|own| (s, own))) {
            let groups = LayerGroups::parallel(LAYERS, 4);
            let new = || LayerParallelDrafter::new(model(&weights), groups.clone(), policy);
            let (mut drafter, mut rounds) = (new(), Rounds::new());
            for _ in 0..3 {
                let draft = rounds.draft(&mut drafter, shape, &sampling);
                // All is accepted.
                rounds.answer(&draft.tree, 0);
            }
            rounds.prompt_len = rounds.tokens.len();
            let mut fresh = new();
            assert_eq!(
                rounds.draft(&mut drafter, shape, &sampling),
                rounds.draft(&mut fresh, shape, &sampling),
                "{policy} {shape:?}"
            );
            let held = [&drafter, &fresh].map(|own| rows(own.model(), rounds.tokens.len()));
            assert_eq!(held[0], held[1], "{policy} {shape:?}");
        }
    }
}

/// Where drafting runs ahead, jobs of few tokens make one round: they draft what one job drafts, and what
/// opened the round is exact and nothing else, until the round is full or another token was committed.
#[test]
fn a_round_may_be_of_several_jobs() {
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
                assert!(drafted.extend(draft));
            }
            assert_eq!(drafted.tree.tokens()[..ROUND], *whole.tree.tokens(), "{length}");
            // The next round.
            let all = rounds.tokens.len();
            let draft = rounds.draft(&mut drafter, &shape, &sampling);
            assert_eq!(exact_rows(&drafter, &weights, &rounds.tokens), all);
            // Another token than the draft's.
            rounds.tokens.push((draft.tree.token(0) + 1) % 250);
            rounds.draft(&mut drafter, &shape, &sampling);
            assert_eq!(exact_rows(&drafter, &weights, &rounds.tokens), all + 1);
        }
    }
}
