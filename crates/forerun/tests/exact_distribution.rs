//! Invariant 1 above temperature 0: the joint distribution of consecutive tokens is exactly the
//! target's, for every decoder × drafter × shape.
//!
//! Nothing is sampled. The production decoders, drafters and verification run unchanged on a
//! vocabulary of three tokens, but their keyed generator is replaced by an enumerator: every key is
//! one unknown number in [0, 1), cut wherever a threshold is asked, and each way of cutting is run
//! to its end and weighed by the lengths of its intervals. What comes out is the exact joint
//! distribution of the first two tokens, or more of them where rounds reach further.
//!
//! Beside the real thing stand mutants: the mistakes that were published, or that lie near. Each
//! must be told from the real thing, or the proof would prove nothing.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::{
    Cluster, Distribution, Draft, DraftShape, FeatureRows, Features, Job, JobOutput, Key,
    KeyedRandomness, Node, Proposal, Purpose, Randomness, Role, Sampling, Scores, SequenceId,
    TargetFeedback, TokenId, TokenTree, Verdict, Verification, reference, verify,
};
use forerun_decode::{
    Autoregressive, DecodeError, Decoder, DraftLength, Dsi, DsiLookahead, Limits, Pearl,
    PearlDraftLength, PearlOptions, PearlSchedule, Sequence, Speculative, SpeculativeDraftLength,
    generate,
};
use forerun_draft::{
    CalibrationPolicy, DraftContext, Drafter, EagleDrafter, HydraDrafter, LayerParallelDrafter,
    LookaheadDrafter, Masks, MedusaDrafter, ModelDrafter, OuroborosDrafter, ParallelDrafter,
    ParallelEagleDrafter, PromptLookup,
};
use forerun_model::fake::{TableModel, row_prefix};
use forerun_model::{
    FeatureHeads, FeatureModel, LanguageModel, LayerGroups, LayeredModel, Logits, LogitsContext,
    ModelError,
};
use forerun_runtime::{Engine, InlineCluster};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex};

const VOCAB: usize = 3;
/// Target replicas that there are.
const REPLICAS: usize = 3;
/// One token is missing, so that penalties of what came before can tell paths apart.
const PROMPT: [TokenId; 6] = [0, 1, 0, 1, 0, 1];

// ---------------------------------------------------------------------------------------------
// Models: tables from prefixes to logits, and what is told beside them

/// A model whose approximate rows are those of another table.
struct LayerParallelTable(TableModel);

impl LayerParallelTable {
    /// The table of a row behind `tokens`, of which so many are exact.
    fn table(&self, tokens: &[TokenId], exact: usize, at: Option<Node>) -> TableModel {
        let is_exact = at.is_none() && exact == tokens.len();
        TableModel { seed: self.0.seed + u64::from(!is_exact), ..self.0 }
    }
}

impl LanguageModel for LayerParallelTable {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.0.context_length()
    }

    fn logits(&mut self, context: &LogitsContext<'_>) -> Result<Logits, ModelError> {
        self.0.logits(context)
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

impl LayeredModel for LayerParallelTable {
    fn layer_parallel_logits(
        &mut self,
        context: &LogitsContext<'_>,
        _groups: &LayerGroups,
        exact: usize,
    ) -> Result<Logits, ModelError> {
        let LogitsContext { tokens, tree, first_row, .. } = *context;
        let row = |at| self.table(tokens, exact, at).row(&row_prefix(tokens, tree, at));
        let values = rows_of(tree).skip(first_row).flat_map(row).collect();
        Ok(Logits { values, vocab_size: self.0.vocab_size, computed_tokens: tree.len() })
    }
}

/// A target that tells features: each token's is a number that its prefix gives.
struct TellingTable {
    table: TableModel,
    /// Of the last call's tokens, then of its nodes.
    features: Vec<f32>,
}

impl LanguageModel for TellingTable {
    fn vocab_size(&self) -> usize {
        self.table.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.table.context_length()
    }

    fn logits(&mut self, context: &LogitsContext<'_>) -> Result<Logits, ModelError> {
        let LogitsContext { tokens, tree, .. } = *context;
        let feature = |prefix: &[TokenId]| self.table.row(prefix)[0];
        let of_tokens = (1..=tokens.len()).map(|len| feature(&tokens[..len]));
        let nodes = (0..tree.len()).map(|node| feature(&row_prefix(tokens, tree, Some(node))));
        self.features = of_tokens.chain(nodes).collect();
        self.table.logits(context)
    }

    fn features(&self, _sequence: SequenceId, rows: Range<usize>) -> Option<FeatureRows> {
        Some(FeatureRows::new(1, self.features[rows].to_vec()))
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

/// A drafter's table by what it reads: the feature before the last token, that token, and a path.
struct FeatureTable(TableModel);

impl FeatureTable {
    fn row(&self, feature: &[f32], path: &[TokenId]) -> Vec<f32> {
        let feature: Vec<TokenId> = feature.iter().map(|number| number.to_bits()).collect();
        self.0.row(&[&feature[..], path].concat())
    }
}

impl FeatureModel for FeatureTable {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size
    }

    fn context_length(&self) -> usize {
        64
    }

    fn logits(
        &mut self,
        context: &LogitsContext<'_>,
        features: &Features,
    ) -> Result<Logits, ModelError> {
        let LogitsContext { tokens, tree, first_row, .. } = *context;
        let feature = features.rows_from(tokens.len() - 2).next().unwrap();
        let last = &tokens[tokens.len() - 1..];
        let values = rows_of(tree).skip(first_row);
        let values = values.flat_map(|at| self.row(feature, &row_prefix(last, tree, at))).collect();
        Ok(Logits { values, vocab_size: self.0.vocab_size, computed_tokens: tree.len() })
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

impl FeatureHeads for FeatureTable {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size
    }

    fn logits(&mut self, features: &[f32]) -> Result<Logits, ModelError> {
        let values = (0..3).flat_map(|head| self.row(features, &[head])).collect();
        Ok(Logits { values, vocab_size: self.0.vocab_size, computed_tokens: 1 })
    }
}

// ---------------------------------------------------------------------------------------------
// The enumerator

/// One way of cutting, replayed and extended run by run.
#[derive(Default)]
struct Cuts {
    /// What is known of each key's number.
    intervals: BTreeMap<Key, (f64, f64)>,
    /// Decisions of this branch: whether the number lies below the cut.
    path: Vec<bool>,
    /// Decisions taken so far in this run.
    taken: usize,
}

#[derive(Clone, Default)]
struct Enumerator(Arc<Mutex<Cuts>>);

impl Randomness for Enumerator {
    fn locate(&self, key: Key, thresholds: &mut dyn Iterator<Item = f64>) -> usize {
        let mut cuts = self.0.lock().unwrap();
        let (mut low, mut high) = cuts.intervals.get(&key).copied().unwrap_or((0.0, 1.0));
        let mut count = 0;
        for threshold in thresholds {
            if threshold > low {
                let below = threshold >= high || cuts.decide();
                if below {
                    high = high.min(threshold);
                    break;
                }
                low = threshold;
            }
            count += 1;
        }
        cuts.intervals.insert(key, (low, high));
        count
    }
}

impl Cuts {
    fn decide(&mut self) -> bool {
        if self.taken == self.path.len() {
            self.path.push(true);
        }
        self.taken += 1;
        self.path[self.taken - 1]
    }

    /// Goes to the next branch; false after the last.
    fn advance(&mut self) -> bool {
        self.intervals.clear();
        self.taken = 0;
        while self.path.last() == Some(&false) {
            self.path.pop();
        }
        match self.path.last_mut() {
            Some(decision) => {
                *decision = false;
                true
            }
            None => false,
        }
    }

    fn weight(&self) -> f64 {
        self.intervals.values().map(|(low, high)| high - low).product()
    }
}

// ---------------------------------------------------------------------------------------------
// The experiment

type Joint = BTreeMap<Vec<TokenId>, f64>;

/// Everything that a run is made of.
struct Experiment<'a> {
    target: TableModel,
    sampling: Sampling,
    drafter: &'a dyn Fn() -> Box<dyn Drafter>,
    /// Drafters beside that one, for decoders that ask them.
    others: &'a [&'a dyn Fn() -> Box<dyn Drafter>],
    decoder: &'a dyn Fn() -> Box<dyn Decoder>,
    /// Tokens that are looked at.
    tokens: usize,
    /// In which order jobs are run, as [`InlineCluster::in_order_of`] has it.
    order: Option<u64>,
    /// Whether the target tells its features, and what it made of drafts.
    features: bool,
    /// Wraps the enumerator, for mutants of the keys.
    keys: &'a dyn Fn(Enumerator) -> Arc<dyn Randomness + Send + Sync>,
}

impl<'a> Experiment<'a> {
    /// Two tokens of the first target, in the order of submission.
    fn of(
        sampling: Sampling,
        drafter: &'a dyn Fn() -> Box<dyn Drafter>,
        decoder: &'a dyn Fn() -> Box<dyn Decoder>,
    ) -> Self {
        let (target, keys) = (target(1), &unchanged);
        let (order, features) = (None, false);
        Self { target, sampling, drafter, others: &[], decoder, tokens: 2, order, features, keys }
    }

    /// The exact joint distribution of the first tokens, and the number of branches.
    fn enumerate(&self) -> (Joint, usize) {
        let enumerator = Enumerator::default();
        let (mut joint, mut branches) = (Joint::new(), 0);
        loop {
            let tokens = self.run((self.keys)(enumerator.clone()));
            branches += 1;
            let mut cuts = enumerator.0.lock().unwrap();
            *joint.entry(tokens).or_default() += cuts.weight();
            if !cuts.advance() {
                return (joint, branches);
            }
        }
    }

    fn run(&self, randomness: Arc<dyn Randomness + Send + Sync>) -> Vec<TokenId> {
        let engine = Engine::new().with_drafter(0, Boxed((self.drafter)()));
        let replica = || TellingTable { table: self.target, features: Vec::new() };
        let engine = (0..REPLICAS).fold(engine, |engine, at| engine.with_target(at, replica()));
        let others = (1..).zip(self.others);
        let engine = others.fold(engine, |engine, (at, own)| engine.with_drafter(at, Boxed(own())));
        let mut cluster = InlineCluster::new(engine, Arc::clone(&randomness));
        if let Some(order) = self.order {
            cluster = cluster.in_order_of(order);
        }
        let limits = Limits { max_tokens: self.tokens + 2, context_length: 64, eos: Vec::new() };
        let (id, prompt) = (SequenceId(0), PROMPT.to_vec());
        let mut sequence =
            Sequence::with_randomness(id, prompt, self.sampling.clone(), limits, randomness);
        if self.features {
            sequence = sequence.with_features().with_draft_feedback();
        }
        let mut generated = 0;
        generate(&mut *(self.decoder)(), &mut sequence, &mut cluster, |tokens| {
            generated += tokens.len();
            if generated >= self.tokens {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .unwrap();
        sequence.generated()[..self.tokens].to_vec()
    }

    /// What autoregressive sampling of the target gives, by the chain rule and the slow reference.
    fn exact(&self) -> Joint {
        let mut joint = Joint::from([(Vec::new(), 1.0)]);
        for _ in 0..self.tokens {
            let mut longer = Joint::new();
            for (answer, chance) in &joint {
                let logits = self.target.row(&[&PROMPT[..], answer].concat());
                let row = reference::probabilities(&self.sampling, &PROMPT, answer, &logits);
                for (token, then) in (0..).zip(row) {
                    longer.insert([&answer[..], &[token]].concat(), chance * then);
                }
            }
            joint = longer;
        }
        joint
    }

    /// The largest difference from the exact joint distribution.
    fn deviation(&self) -> f64 {
        let (found, _) = self.enumerate();
        let total: f64 = found.values().sum();
        assert!((total - 1.0).abs() < 1e-9, "branches weigh {total} together");
        deviation(&found, &self.exact())
    }
}

fn deviation(a: &Joint, b: &Joint) -> f64 {
    let at = |joint: &Joint, key: &Vec<TokenId>| joint.get(key).copied().unwrap_or(0.0);
    a.keys().chain(b.keys()).map(|key| (at(a, key) - at(b, key)).abs()).fold(0.0, f64::max)
}

/// The rows of a tree: that of the prefix, then those behind its nodes.
fn rows_of(tree: &TokenTree) -> impl Iterator<Item = Option<Node>> {
    (0..=tree.len()).map(|row| row.checked_sub(1))
}

/// A boxed drafter is a drafter.
struct Boxed(Box<dyn Drafter>);

impl Drafter for Boxed {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        self.0.draft(context)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.0.release(sequence);
    }
}

fn sampling(temperature: f32, top_k: usize, top_p: f32) -> Sampling {
    let verification = Verification::Rejection;
    Sampling { temperature, top_k, top_p, verification, ..Sampling::greedy() }
}

/// Options that differ from row to row of a tree, and the others, alone and together.
fn more_options() -> Vec<Sampling> {
    let warm = || sampling(1.0, 0, 1.0);
    let penalised = Sampling {
        repetition_penalty: 1.6,
        frequency_penalty: 0.7,
        presence_penalty: -0.4,
        logit_bias: [(1, 0.6)].into(),
        ..warm()
    };
    vec![
        Sampling { repetition_penalty: 1.8, ..warm() },
        Sampling { frequency_penalty: 1.2, ..warm() },
        Sampling { presence_penalty: 1.5, ..warm() },
        Sampling { logit_bias: [(0, 1.5), (2, -1.0)].into(), ..warm() },
        Sampling { min_p: 0.3, ..warm() },
        Sampling { temperature: 0.7, min_p: 0.1, top_p: 0.9, ..penalised.clone() },
        penalised,
    ]
}

fn speculative(shape: &DraftShape) -> Box<dyn Decoder> {
    Box::new(Speculative::new(SpeculativeDraftLength::new(shape.clone(), DraftLength::Fixed)))
}

fn chain(length: usize) -> DraftShape {
    DraftShape::Chain { length }
}

fn top(width: usize, depth: usize) -> DraftShape {
    DraftShape::Top { width, depth, budget: None }
}

/// Ends at its budget within a depth, so that siblings of expanded nodes stay and others go.
fn best(budget: usize) -> DraftShape {
    DraftShape::Top { width: 2, depth: 2, budget: Some(budget) }
}

fn iid(branching: &[usize]) -> DraftShape {
    DraftShape::Sampled { branching: branching.to_vec() }
}

const DRAFT_MODEL: TableModel = TableModel::new(77, VOCAB, 3.0);

fn model_drafter() -> Box<dyn Drafter> {
    Box::new(ModelDrafter::new(DRAFT_MODEL))
}

fn layer_parallel_drafter(calibration: CalibrationPolicy) -> Box<dyn Drafter> {
    let groups = LayerGroups::of_sizes(&[2]);
    Box::new(LayerParallelDrafter::new(LayerParallelTable(DRAFT_MODEL), groups, calibration))
}

fn unchanged(enumerator: Enumerator) -> Arc<dyn Randomness + Send + Sync> {
    Arc::new(enumerator)
}

fn target(seed: u64) -> TableModel {
    TableModel::new(seed, VOCAB, 4.0)
}

/// Runs one cell of the matrix over targets and sampling options.
fn assert_exact(
    name: &str,
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
) {
    assert_exact_of(name, drafter, decoder, (2, false));
}

/// The same of so many tokens, and of a target that tells its features or does not.
fn assert_exact_of(
    name: &str,
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
    (tokens, features): (usize, bool),
) {
    let mut branches = 0;
    for seed in [1, 2] {
        let filters = [
            sampling(1.0, 0, 1.0),
            sampling(0.4, 0, 1.0),
            sampling(1.5, 2, 1.0),
            sampling(0.8, 0, 0.75),
        ];
        for sampling in filters.into_iter().chain(more_options()) {
            let target = target(seed);
            let experiment = Experiment::of(sampling, drafter, decoder);
            let experiment = Experiment { target, tokens, features, ..experiment };
            let deviation = experiment.deviation();
            let sampling = &experiment.sampling;
            assert!(deviation < 1e-6, "{name}, target {seed}, {sampling:?}: off by {deviation}");
            branches += experiment.enumerate().1;
        }
    }
    println!("{name}: exact in {branches} branches");
}

// ---------------------------------------------------------------------------------------------
// The matrix

#[test]
fn autoregressive_decoding_is_exact() {
    assert_exact("autoregressive", &model_drafter, &|| Box::new(Autoregressive));
}

#[test]
fn speculative_decoding_with_chains_is_exact() {
    for length in 1..=3 {
        let name = format!("speculative, model, chain {length}");
        assert_exact(&name, &model_drafter, &|| speculative(&chain(length)));
    }
}

#[test]
fn speculative_decoding_with_the_most_probable_nodes_is_exact() {
    for shape in [top(2, 1), top(3, 1), top(2, 2), top(3, 3), best(3), best(5)] {
        let name = format!("speculative, model, {shape:?}");
        assert_exact(&name, &model_drafter, &|| speculative(&shape));
    }
}

#[test]
fn speculative_decoding_with_independent_siblings_is_exact() {
    for shape in [iid(&[2]), iid(&[3]), iid(&[2, 1]), iid(&[1, 2])] {
        let name = format!("speculative, model, {shape:?}");
        assert_exact(&name, &model_drafter, &|| speculative(&shape));
    }
}

/// Drafters that lack a token of the target, or have more than it.
#[test]
fn drafters_with_another_number_of_tokens_are_exact() {
    for vocab_size in [VOCAB - 1, VOCAB + 2] {
        let model = TableModel { vocab_size, ..DRAFT_MODEL };
        let drafter =
            || -> Box<dyn Drafter> { Box::new(ModelDrafter::new(model).with_vocab_size(VOCAB)) };
        for shape in [chain(2), top(3, 2), best(3), iid(&[3]), iid(&[2, 1])] {
            let name = format!("speculative, {vocab_size} tokens, {shape:?}");
            assert_exact(&name, &drafter, &|| speculative(&shape));
        }
    }
}

#[test]
fn speculative_decoding_with_prompt_lookup_is_exact() {
    for shape in [chain(1), chain(3), top(2, 2), best(3), iid(&[2, 1])] {
        let name = format!("speculative, prompt-lookup, {shape:?}");
        assert_exact(&name, &|| Box::new(PromptLookup), &|| speculative(&shape));
    }
}

/// EasySpec: whichever rows of the drafter are fuzzy, by whichever policy.
#[test]
fn speculative_decoding_with_layer_parallel_rows_is_exact() {
    for calibration in [
        CalibrationPolicy::EveryRound,
        CalibrationPolicy::OnMismatch,
        CalibrationPolicy::PrefillOnly,
        CalibrationPolicy::Never,
    ] {
        for shape in [chain(2), chain(3), top(2, 1), top(2, 2), top(3, 3), best(3), iid(&[2, 1])] {
            let name = format!("speculative, easyspec {calibration}, {shape:?}");
            assert_exact(&name, &|| layer_parallel_drafter(calibration), &|| speculative(&shape));
        }
    }
}

/// The same where drafting goes on behind tokens that are not yet verified.
#[test]
fn drafting_fuzzily_beside_verification_is_exact() {
    for calibration in [CalibrationPolicy::EveryRound, CalibrationPolicy::OnMismatch] {
        let drafter = || layer_parallel_drafter(calibration);
        let name = format!("pearl, easyspec {calibration}");
        assert_exact(&name, &drafter, &|| pearl(2, "eager"));
        let name = format!("dsi, easyspec {calibration}");
        assert_exact(&name, &drafter, &|| Box::new(dsi(2, 2)));
    }
    // Rounds of several jobs.
    let in_rounds = || -> Box<dyn Drafter> {
        let groups = LayerGroups::of_sizes(&[2]);
        let drafter = LayerParallelDrafter::new(
            LayerParallelTable(DRAFT_MODEL),
            groups,
            CalibrationPolicy::EveryRound,
        );
        Box::new(drafter.with_round_length(2))
    };
    assert_exact("pearl, easyspec in rounds", &in_rounds, &|| pearl(2, "eager"));
    assert_exact("dsi, easyspec in rounds", &in_rounds, &|| Box::new(dsi(2, 1).reproducible()));
}

/// Medusa, Hydra and EAGLE, on features that the target tells. The first round has none, so three tokens are
/// looked at.
#[test]
fn speculative_decoding_on_features_is_exact() {
    let table = || FeatureTable(DRAFT_MODEL);
    let medusa = || -> Box<dyn Drafter> { Box::new(MedusaDrafter::new(table())) };
    let hydra = || -> Box<dyn Drafter> { Box::new(HydraDrafter::new(table(), 2)) };
    let eagle = || -> Box<dyn Drafter> { Box::new(EagleDrafter::new(table())) };
    let masks = Masks::Own(VOCAB as TokenId..VOCAB as TokenId + 2);
    let parallel =
        || -> Box<dyn Drafter> { Box::new(ParallelEagleDrafter::new(table(), masks.clone())) };
    let drafters: [(&str, Make<'_>); 4] = [
        ("medusa", &medusa),
        ("hydra", &hydra),
        ("eagle", &eagle),
        ("parallelspec on eagle", &parallel),
    ];
    for (name, drafter) in drafters {
        for shape in [chain(1), chain(2), top(2, 2), best(3), iid(&[2, 1])] {
            let name = format!("speculative, {name}, {shape:?}");
            assert_exact_of(&name, drafter, &|| speculative(&shape), (3, true));
        }
    }
}

/// Lookahead decoding: what is guessed follows from what the target made of earlier drafts.
#[test]
fn speculative_decoding_with_lookahead_is_exact() {
    let drafter = || -> Box<dyn Drafter> { Box::new(LookaheadDrafter::new()) };
    for shape in [chain(2), top(7, 1), top(7, 2), top(7, 10)] {
        let name = format!("speculative, lookahead, {shape:?}");
        assert_exact_of(&name, &drafter, &|| speculative(&shape), (4, true));
    }
}

/// Ouroboros: phrases follow from the text, from drafts and from what the target made of them.
#[test]
fn speculative_decoding_with_phrases_is_exact() {
    let drafter = || -> Box<dyn Drafter> { Box::new(OuroborosDrafter::new(DRAFT_MODEL)) };
    let phrases =
        |length, phrase| DraftShape::Phrases { length, width: 2, phrase, budget: Some(6) };
    let shapes = [chain(1), chain(3), top(2, 2), top(3, 5), best(3), iid(&[2, 1])];
    for shape in shapes.into_iter().chain([phrases(1, 2), phrases(2, 3)]) {
        let name = format!("speculative, ouroboros, {shape:?}");
        assert_exact_of(&name, &drafter, &|| speculative(&shape), (4, true));
    }
    // A target with a token that the model lacks.
    let fewer = TableModel { vocab_size: VOCAB - 1, ..DRAFT_MODEL };
    let drafter =
        || -> Box<dyn Drafter> { Box::new(OuroborosDrafter::new(fewer).with_vocab_size(VOCAB)) };
    assert_exact_of("ouroboros, fewer tokens", &drafter, &|| speculative(&top(2, 5)), (4, true));
}

/// ParallelSpec on tokens: rows of a depth are one, whatever was drawn before them.
#[test]
fn parallel_drafting_is_exact() {
    let own = Masks::Own(VOCAB as TokenId..VOCAB as TokenId + 2);
    for masks in [own, Masks::Repeated(1)] {
        let drafter =
            || -> Box<dyn Drafter> { Box::new(ParallelDrafter::new(DRAFT_MODEL, masks.clone())) };
        for shape in [chain(2), chain(3), top(2, 2), top(3, 3), best(3), best(5), iid(&[2, 1])] {
            let name = format!("speculative, parallel {masks:?}, {shape:?}");
            assert_exact(&name, &drafter, &|| speculative(&shape));
        }
        let name = format!("parallel {masks:?}");
        assert_exact(&format!("pearl, {name}"), &drafter, &|| pearl(2, "eager"));
        assert_exact_in_any_order(&format!("pearl, {name}"), &drafter, &|| pearl(2, "paper"));
        let decoder = || -> Box<dyn Decoder> { Box::new(dsi(2, 2)) };
        assert_exact(&format!("dsi, {name}"), &drafter, &decoder);
    }
}

/// The controller has measured before, and drafts from the first round on.
#[test]
fn an_adapting_draft_length_is_exact() {
    let mut learner = Speculative::new(SpeculativeDraftLength::new(chain(2), DraftLength::Auto));
    // It learns from a drafter that is always right, so that drafting pays.
    let perfect = ModelDrafter::new(target(1));
    let engine = Engine::new().with_target(0, target(1)).with_drafter(0, perfect);
    let randomness = Arc::new(KeyedRandomness { seed: 1, sample: 0 });
    let mut cluster = InlineCluster::new(engine, randomness);
    let limits = Limits { max_tokens: 50, context_length: 64, eos: Vec::new() };
    let (id, sampling) = (SequenceId(0), sampling(1.0, 0, 1.0));
    let mut sequence = Sequence::new(id, PROMPT.to_vec(), sampling, limits);
    generate(&mut learner, &mut sequence, &mut cluster, |_| ControlFlow::Continue(())).unwrap();
    let learned = learner.draft_length().for_new_answer(PROMPT.len());
    assert_eq!(learned.next_shape(), chain(2), "it drafts at once");
    let decoder = || -> Box<dyn Decoder> { Box::new(Speculative::new(learned.clone())) };
    assert_exact("speculative, model, auto", &model_drafter, &decoder);
}

fn pearl(length: usize, options: &str) -> Box<dyn Decoder> {
    let options: PearlOptions = options.parse().unwrap();
    let goes_on = options.schedule == PearlSchedule::Eager;
    Box::new(Pearl::new(options, PearlDraftLength::new(length, DraftLength::Fixed, goes_on)))
}

fn dsi(replicas: usize, lookahead: usize) -> Dsi {
    Dsi::new(replicas, DsiLookahead::new(lookahead, DraftLength::Fixed, replicas))
}

/// The joint distribution of as many tokens as several rounds reach, whatever is ready first.
fn assert_exact_in_any_order(
    name: &str,
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
) {
    let mut branches = 0;
    let options = [sampling(1.0, 0, 1.0), more_options().pop().unwrap()];
    for (sampling, order) in options.iter().cycle().zip([None, Some(1), Some(2), Some(3), Some(4)])
    {
        let experiment = Experiment::of(sampling.clone(), drafter, decoder);
        let experiment = Experiment { tokens: 3, order, ..experiment };
        let deviation = experiment.deviation();
        assert!(deviation < 1e-6, "{name}, order {order:?}, {sampling:?}: off by {deviation}");
        branches += experiment.enumerate().1;
    }
    println!("{name}: exact in {branches} branches");
}

/// Rounds without and with unverified tokens, each accepted wholly, in part and not at all.
#[test]
fn pearl_is_exact() {
    let variants = ["eager", "paper", "paper,no-pre-verify", "paper,no-post-verify"];
    for (options, length) in variants.into_iter().flat_map(|o| [1, 2, 3].map(|length| (o, length)))
    {
        let name = format!("pearl, {options}, model, chain {length}");
        let decoder = || pearl(length, options);
        assert_exact(&name, &model_drafter, &decoder);
        assert_exact_in_any_order(&name, &model_drafter, &decoder);
    }
    assert_exact("pearl, prompt-lookup", &|| Box::new(PromptLookup), &|| pearl(2, "eager"));
}

/// Replicas that finish in any order, jobs of every size, and a drafter that is early or late.
#[test]
fn dsi_is_exact() {
    for (replicas, lookahead) in [(1, 1), (1, 2), (2, 1), (3, 1), (3, 2)] {
        let name = format!("dsi, {replicas} replicas, lookahead {lookahead}");
        let decoder = || -> Box<dyn Decoder> { Box::new(dsi(replicas, lookahead)) };
        assert_exact(&name, &model_drafter, &decoder);
        assert_exact_in_any_order(&name, &model_drafter, &decoder);
        let decoder = || -> Box<dyn Decoder> { Box::new(dsi(replicas, lookahead).reproducible()) };
        assert_exact_in_any_order(&format!("{name}, reproducible"), &model_drafter, &decoder);
    }
    let decoder = || -> Box<dyn Decoder> { Box::new(dsi(2, 2)) };
    assert_exact("dsi, prompt-lookup", &|| Box::new(PromptLookup), &decoder);
}

/// Makes a drafter for every run.
type Make<'a> = &'a dyn Fn() -> Box<dyn Drafter>;

fn other_drafter() -> Box<dyn Drafter> {
    Box::new(ModelDrafter::new(TableModel { seed: 5, ..DRAFT_MODEL }))
}

fn lookup_drafter() -> Box<dyn Drafter> {
    Box::new(PromptLookup)
}

/// Several drafters, tested in turn against what the rejections before left: of different models, of the
/// same model, and of different kinds.
#[test]
fn dsi_with_several_drafters_is_exact() {
    let kinds: [(&str, Make<'_>, &[Make<'_>]); 5] = [
        ("two models", &model_drafter, &[&other_drafter]),
        ("one model twice", &model_drafter, &[&model_drafter]),
        ("a model and a lookup", &model_drafter, &[&lookup_drafter]),
        ("a lookup and a model", &lookup_drafter, &[&model_drafter]),
        ("three", &lookup_drafter, &[&model_drafter, &other_drafter]),
    ];
    let options = [sampling(1.0, 0, 1.0), more_options().pop().unwrap()];
    for (name, drafter, others) in kinds {
        let mut branches = 0;
        for (replicas, lookahead) in [(1, 1), (2, 1), (2, 2), (3, 1)] {
            for (sampling, order) in options.iter().cycle().zip([None, Some(1), Some(2), Some(3)]) {
                for waits in [false, true] {
                    let decoder = || -> Box<dyn Decoder> {
                        let dsi = dsi(replicas, lookahead).with_drafters(1 + others.len());
                        Box::new(if waits { dsi.reproducible() } else { dsi })
                    };
                    let experiment = Experiment::of(sampling.clone(), drafter, &decoder);
                    let experiment = Experiment { others, order, ..experiment };
                    let deviation = experiment.deviation();
                    let label = format!("{name}, {replicas} {lookahead} {order:?} {sampling:?}");
                    assert!(deviation < 1e-6, "{label}: off by {deviation}");
                    branches += experiment.enumerate().1;
                }
            }
        }
        println!("dsi, {name}: exact in {branches} branches");
    }
}

/// A drafter that is the target itself has every token accepted, and that is exact, too.
#[test]
fn a_perfect_drafter_is_exact_and_never_rejected() {
    let drafter = || -> Box<dyn Drafter> { Box::new(ModelDrafter::new(target(1))) };
    for shape in [chain(3), iid(&[2, 1]), top(2, 2)] {
        let decoder = || speculative(&shape);
        let (target, sampling) = (target(1), sampling(1.0, 0, 1.0));
        let (drafter, decoder) = (&drafter, &decoder);
        let experiment = Experiment { target, ..Experiment::of(sampling, drafter, decoder) };
        assert!(experiment.deviation() < 1e-6, "{shape:?}");
        // It bends its rows as the target does, whatever the options.
        for sampling in more_options() {
            let sampling = Sampling { verification: Verification::Coupled, ..sampling };
            let engine = Engine::new().with_target(0, target).with_drafter(0, Boxed(drafter()));
            let randomness = Arc::new(sampling.randomness);
            let mut cluster = InlineCluster::new(engine, randomness);
            let limits = Limits { max_tokens: 40, context_length: 64, eos: Vec::new() };
            let mut sequence =
                Sequence::new(SequenceId(0), PROMPT.to_vec(), sampling.clone(), limits);
            let go_on = |_: &[TokenId]| ControlFlow::Continue(());
            generate(&mut *decoder(), &mut sequence, &mut cluster, go_on).unwrap();
            let statistics = sequence.statistics();
            assert_eq!(statistics.accepted, statistics.tested, "{shape:?}, {sampling:?}");
        }
    }
}

// ---------------------------------------------------------------------------------------------
// Mutants

/// The worst deviation over five targets.
fn worst_deviation(
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
    keys: &dyn Fn(Enumerator) -> Arc<dyn Randomness + Send + Sync>,
) -> f64 {
    let deviation = |seed| {
        let (target, sampling) = (target(seed), sampling(1.0, 0, 1.0));
        Experiment { target, keys, ..Experiment::of(sampling, drafter, decoder) }.deviation()
    };
    (1..=5).map(deviation).fold(0.0, f64::max)
}

/// Asserts that a mutant's joint distribution is visibly wrong for some target.
fn assert_caught(
    name: &str,
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
    keys: &dyn Fn(Enumerator) -> Arc<dyn Randomness + Send + Sync>,
) {
    let worst = worst_deviation(drafter, decoder, keys);
    println!("mutant \"{name}\" is off by {worst:.4}");
    assert!(worst > 1e-3, "the mutant \"{name}\" was not caught: off by {worst}");
}

/// Changes keys before they are looked up.
struct MutantKeys(Enumerator, fn(Key) -> Key);

impl Randomness for MutantKeys {
    fn locate(&self, key: Key, thresholds: &mut dyn Iterator<Item = f64>) -> usize {
        self.0.locate((self.1)(key), thresholds)
    }
}

/// Changes drafts after they were made.
struct MutantDrafter(fn(Draft, &DraftContext<'_>) -> Draft);

impl Drafter for MutantDrafter {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        let draft = ModelDrafter::new(DRAFT_MODEL).draft(context)?;
        Ok((self.0)(draft, context))
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

#[test]
fn mutant_one_acceptance_uniform_for_two_positions() {
    let keys = |enumerator| -> Arc<dyn Randomness + Send + Sync> {
        Arc::new(MutantKeys(enumerator, |key| match key.purpose {
            Purpose::Accept => Key { position: 0, ..key },
            _ => key,
        }))
    };
    assert_caught(
        "uniform reused between positions",
        &model_drafter,
        &|| speculative(&chain(2)),
        &keys,
    );
}

/// PEARL's published code: a position that is tested before its round and the next one in it.
#[test]
fn mutant_one_acceptance_uniform_in_pearls_rounds() {
    let keys = |enumerator| -> Arc<dyn Randomness + Send + Sync> {
        Arc::new(MutantKeys(enumerator, |key| match key.purpose {
            Purpose::Accept => Key { position: key.position / 2, ..key },
            _ => key,
        }))
    };
    for options in ["eager", "paper"] {
        let name = format!("uniform reused between PEARL's positions, {options}");
        assert_caught(&name, &model_drafter, &|| pearl(2, options), &keys);
    }
}

#[test]
fn mutant_one_uniform_for_all_siblings() {
    for purpose in [Purpose::Accept, Purpose::Draft] {
        let keys = move |enumerator| -> Arc<dyn Randomness + Send + Sync> {
            let change: fn(Key) -> Key = match purpose {
                Purpose::Accept => |key| match key.purpose {
                    Purpose::Accept => Key { candidate: 0, ..key },
                    _ => key,
                },
                _ => |key| match key.purpose {
                    Purpose::Draft => Key { candidate: 0, ..key },
                    _ => key,
                },
            };
            Arc::new(MutantKeys(enumerator, change))
        };
        let name = format!("{purpose:?} uniform reused between siblings");
        assert_caught(&name, &model_drafter, &|| speculative(&iid(&[2])), &keys);
    }
}

/// Two drafters that are tested with one uniform.
#[test]
fn mutant_one_uniform_for_several_drafters() {
    let change: fn(Key) -> Key = |key| match key.purpose {
        Purpose::Accept => Key { candidate: 0, ..key },
        _ => key,
    };
    let keys = |enumerator| -> Arc<dyn Randomness + Send + Sync> {
        Arc::new(MutantKeys(enumerator, change))
    };
    let decoder = || -> Box<dyn Decoder> { Box::new(dsi(2, 1).with_drafters(2)) };
    let worst = |keys: &dyn Fn(Enumerator) -> Arc<dyn Randomness + Send + Sync>| {
        let deviation = |seed| {
            let experiment = Experiment::of(sampling(1.0, 0, 1.0), &model_drafter, &decoder);
            let others: &[&dyn Fn() -> Box<dyn Drafter>] = &[&other_drafter];
            Experiment { target: target(seed), others, keys, ..experiment }.deviation()
        };
        (1..=3).map(deviation).fold(0.0, f64::max)
    };
    assert!(worst(&unchanged) < 1e-6);
    let worst = worst(&keys);
    println!("mutant \"accept uniform shared by drafters\" is off by {worst:.4}");
    assert!(worst > 1e-3, "the mutant was not caught: off by {worst}");
}

/// EasySpec's published code: most probable candidates accepted with min(1, target/draft).
#[test]
fn mutant_ratio_test_on_most_probable_candidates() {
    let mutate = |draft: Draft, context: &DraftContext<'_>| {
        let sampler = context.sampling.sampler(context.tokens, context.prompt_len);
        let row = |at: Option<Node>| {
            let logits = DRAFT_MODEL.row(&row_prefix(context.tokens, &draft.tree, at));
            sampler.distribution(&logits, &draft.tree, at).unwrap()
        };
        let rows = rows_of(&draft.tree).map(row).collect();
        Draft { proposal: Proposal::Sampled(rows), ..draft }
    };
    let drafter = || -> Box<dyn Drafter> { Box::new(MutantDrafter(mutate)) };
    for shape in [top(1, 1), top(2, 1), top(2, 2)] {
        let name = format!("ratio test on {shape:?}");
        assert_caught(&name, &drafter, &|| speculative(&shape), &unchanged);
    }
}

/// The same of EasySpec's own drafts: what is exact for them as they are verified here is not by the
/// published rule.
#[test]
fn mutant_ratio_test_on_layer_parallel_candidates() {
    struct Ratio(Box<dyn Drafter>);

    impl Drafter for Ratio {
        fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
            let draft = self.0.draft(context)?;
            let sampler = context.sampling.sampler(context.tokens, context.prompt_len);
            let (tokens, tree) = (context.tokens, &draft.tree);
            let row = |at: Option<Node>| {
                let table = LayerParallelTable(DRAFT_MODEL).table(tokens, tokens.len(), at);
                sampler.distribution(&table.row(&row_prefix(tokens, tree, at)), tree, at).unwrap()
            };
            let rows = rows_of(tree).map(row).collect();
            Ok(Draft { proposal: Proposal::Sampled(rows), ..draft })
        }

        fn release(&mut self, _sequence: SequenceId) {}
    }

    let ours = || layer_parallel_drafter(CalibrationPolicy::EveryRound);
    let published = || -> Box<dyn Drafter> { Box::new(Ratio(ours())) };
    for shape in [top(1, 2), top(2, 1), top(2, 2)] {
        let decoder = || speculative(&shape);
        assert!(worst_deviation(&ours, &decoder, &unchanged) < 1e-6, "{shape:?}");
        assert_caught(&format!("fuzzy ratio test on {shape:?}"), &published, &decoder, &unchanged);
    }
}

#[test]
fn mutant_a_repeated_sibling_is_tested_once() {
    let mutate = |draft: Draft, _: &DraftContext<'_>| {
        let mut tree = TokenTree::new();
        for node in draft.tree.children(None) {
            let token = draft.tree.token(node);
            if tree.child_with(None, token).is_none() {
                tree.push(None, token);
            }
        }
        Draft { tree, ..draft }
    };
    let drafter = || -> Box<dyn Drafter> { Box::new(MutantDrafter(mutate)) };
    assert_caught(
        "repeated sibling tested once",
        &drafter,
        &|| speculative(&iid(&[2])),
        &unchanged,
    );
}

#[test]
fn mutant_a_token_is_dropped_for_its_own_low_confidence() {
    let mutate = |draft: Draft, context: &DraftContext<'_>| {
        let sampler = context.sampling.sampler(context.tokens, context.prompt_len);
        let logits = DRAFT_MODEL.row(context.tokens);
        let row = sampler.distribution(&logits, &TokenTree::new(), None).unwrap();
        let confident = draft.tree.tokens().first().is_some_and(|&t| row.probability(t) > 0.4);
        if confident { draft } else { Draft::empty() }
    };
    let drafter = || -> Box<dyn Drafter> { Box::new(MutantDrafter(mutate)) };
    assert_caught("low confidence dropped", &drafter, &|| speculative(&chain(1)), &unchanged);
}

/// Chain verification written out, with the correction drawn from the residual or, as a mutant, from
/// the target's whole row.
struct WrittenOut {
    subtract: bool,
}

impl Decoder for WrittenOut {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let draft = drafted(sequence, cluster, chain(1))?;
        let score = Job::Score {
            sequence: sequence.id(),
            tokens: sequence.tokens().into(),
            prompt_len: sequence.prompt_len(),
            tree: draft.tree.clone(),
            sampling: sequence.sampling().clone(),
            logprobs: None,
            features_from: None,
        };
        cluster.submit(Role::Target(0), score)?;
        let Ok(JobOutput::Score(scores)) = cluster.next_completion()?.output else { panic!() };
        let rows = &scores.rows;
        let Proposal::Sampled(proposed) = &draft.proposal else { panic!() };
        let position = sequence.tokens().len();
        let key = |position, purpose| Key { position, purpose, candidate: 0 };
        let token = draft.tree.token(0);
        let chance = rows[0].probability(token) / proposed[0].probability(token);
        let accepted = sequence.randomness().below(key(position, Purpose::Accept), chance);
        let pick =
            |row: &Distribution, at| row.pick(sequence.randomness(), key(at, Purpose::Sample));
        let verdict = if accepted {
            let token = Some(pick(&rows[1], position + 1));
            Verdict { accepted: vec![0], token, rejected: false }
        } else {
            let residual = rows[0].residual(&proposed[0]).unwrap_or_default();
            let token = Some(pick(if self.subtract { &residual } else { &rows[0] }, position));
            Verdict { accepted: Vec::new(), token, rejected: true }
        };
        sequence.commit(&draft, &verdict, &scores);
        Ok(())
    }
}

/// Has the drafter draft.
fn drafted(
    sequence: &Sequence,
    cluster: &mut dyn Cluster,
    shape: DraftShape,
) -> Result<Draft, DecodeError> {
    let job = Job::Draft {
        sequence: sequence.id(),
        tokens: sequence.tokens().into(),
        prompt_len: sequence.prompt_len(),
        sampling: sequence.sampling().clone(),
        shape,
        feedback: TargetFeedback::default(),
    };
    cluster.submit(Role::Drafter(0), job)?;
    let Ok(JobOutput::Draft(draft)) = cluster.next_completion()?.output else { panic!() };
    Ok(draft)
}

#[test]
fn mutant_the_residual_is_not_subtracted() {
    let decoder = || -> Box<dyn Decoder> { Box::new(WrittenOut { subtract: false }) };
    assert_caught("residual not subtracted", &model_drafter, &decoder, &unchanged);
}

/// Speculative decoding whose target rows are warped here: each by the penalties of its own path or,
/// as mutants, all by those of the prefix, or as if the prompt were part of the answer.
struct WarpedHere {
    target: TableModel,
    shape: DraftShape,
    own_path: bool,
    prompt_apart: bool,
}

impl Decoder for WarpedHere {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let draft = drafted(sequence, cluster, self.shape.clone())?;
        let (tokens, sampling) = (sequence.tokens(), sequence.sampling());
        let prompt_len = if self.prompt_apart { sequence.prompt_len() } else { 0 };
        let sampler = sampling.sampler(tokens, prompt_len);
        let row = |at| {
            let logits = self.target.row(&row_prefix(tokens, &draft.tree, at));
            sampler.distribution(&logits, &draft.tree, at.filter(|_| self.own_path)).unwrap()
        };
        let scores = Scores { rows: rows_of(&draft.tree).map(row).collect(), ..Scores::default() };
        let verdict = verify(&draft, &scores.rows, tokens.len(), sequence.randomness());
        sequence.commit(&draft, &verdict, &scores);
        Ok(())
    }
}

/// The worst deviation over shapes and three targets, under one penalty.
fn warped_here(sampling: &Sampling, own_path: bool, prompt_apart: bool) -> f64 {
    let mut worst = 0.0_f64;
    for shape in [chain(2), top(2, 2), iid(&[2, 1])] {
        for target in (1..=3).map(target) {
            let decoder = || -> Box<dyn Decoder> {
                let shape = shape.clone();
                Box::new(WarpedHere { target, shape, own_path, prompt_apart })
            };
            let (drafter, sampling) = (&model_drafter, sampling.clone());
            let experiment = Experiment { target, ..Experiment::of(sampling, drafter, &decoder) };
            worst = worst.max(experiment.deviation());
        }
    }
    worst
}

#[test]
fn mutant_all_rows_of_a_tree_have_the_penalties_of_its_root() {
    let warm = || sampling(1.0, 0, 1.0);
    for sampling in [
        Sampling { repetition_penalty: 1.8, ..warm() },
        Sampling { frequency_penalty: 1.2, ..warm() },
        Sampling { presence_penalty: 1.5, ..warm() },
    ] {
        assert!(warped_here(&sampling, true, true) < 1e-6, "{sampling:?}");
        let worst = warped_here(&sampling, false, true);
        println!("mutant \"penalties of the root\" is off by {worst:.4}: {sampling:?}");
        assert!(worst > 1e-3, "the mutant was not caught: off by {worst}, {sampling:?}");
    }
}

#[test]
fn mutant_the_prompt_counts_as_part_of_the_answer() {
    let sampling = Sampling { frequency_penalty: 0.5, ..sampling(1.0, 0, 1.0) };
    let worst = warped_here(&sampling, true, false);
    println!("mutant \"prompt counted\" is off by {worst:.4}");
    assert!(worst > 1e-3, "the mutant was not caught: off by {worst}");
}

/// The mutants' scaffolding with nothing mutated is exact: so it is the mutation that is caught.
#[test]
fn the_mutants_without_their_mutation_are_exact() {
    let keys = |enumerator| -> Arc<dyn Randomness + Send + Sync> {
        Arc::new(MutantKeys(enumerator, |key| key))
    };
    let drafter = || -> Box<dyn Drafter> { Box::new(MutantDrafter(|draft, _| draft)) };
    for shape in [chain(1), chain(2), top(2, 2), iid(&[2])] {
        assert!(worst_deviation(&drafter, &|| speculative(&shape), &keys) < 1e-6, "{shape:?}");
    }
    let decoder = || -> Box<dyn Decoder> { Box::new(WrittenOut { subtract: true }) };
    assert!(worst_deviation(&model_drafter, &decoder, &unchanged) < 1e-6);
}
