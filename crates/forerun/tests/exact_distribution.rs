//! Losslessness above temperature 0: the joint distribution of consecutive tokens is exactly the
//! target's, for every combination of decoder, drafter and shape.
//!
//! Nothing is sampled. The production decoders, drafters and verification run unchanged on a
//! vocabulary of three tokens, but an enumerator replaces their keyed generator. Every key is one
//! unknown number in [0, 1). The enumerator splits its interval at each requested threshold, runs
//! every combination of splits to its end, and weighs it by the lengths of its intervals. The result
//! is the exact joint distribution of the first two tokens, or of more tokens if rounds reach further.
//!
//! Mutants of the algorithms check the proof itself: published and likely mistakes. The distribution
//! of each mutant must be visibly wrong.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun::{DrafterKind, Method, Need};
use forerun_certify::SamplingTest;
use forerun_core::{
    Cluster, Constraint, Distribution, Draft, DraftShape, FeatureRows, Guesser, Job, JobOutput,
    Key, KeyedRandomness, Node, Proposal, Purpose, Randomness, Role, Sampler, Sampling,
    SamplingOptions, ScoreJob, Scores, SequenceId, TargetFeedback, TokenId, TokenTree, Verdict,
    Verification, node_of_row, reference, verify,
};
use forerun_decode::{
    Autoregressive, DecodeError, Decoder, DraftLength, Dsi, DsiLookahead, Limits, Pearl,
    PearlDraftLength, PearlOptions, PearlSchedule, Round, Sequence, Speculative,
    SpeculativeDraftLength, Ssd, generate,
};
use forerun_draft::{
    CalibrationPolicy, DraftContext, Drafter, EagleDrafter, HydraDrafter, LayerParallelDrafter,
    LookaheadDrafter, Masks, MedusaDrafter, ModelDrafter, OuroborosDrafter, ParallelDrafter,
    ParallelEagleDrafter, PromptLookup,
};
use forerun_lm::fake::{TableModel, row_prefix};
use forerun_lm::{
    BatchEntry, FeatureModel, ForwardOutput, ForwardRequest, LanguageModel, LayerGroups,
    LayerOrder, LayeredModel, ModelError, complete_each,
};
use forerun_runtime::{Engine, InlineCluster};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

const VOCAB: usize = 3;
/// The number of target replicas.
const REPLICAS: usize = 3;
/// The prompt lacks one token, so that penalties make a difference between paths.
const PROMPT: [TokenId; 6] = [0, 1, 0, 1, 0, 1];

// ---------------------------------------------------------------------------------------------
// Models: tables from prefixes to logits and features

/// A model with approximate rows from another table.
struct LayerParallelTable(TableModel);

impl LayerParallelTable {
    /// Returns the table of the row after `tokens`, of which `exact` are exact.
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

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            if request.order == LayerOrder::Sequential {
                return self.0.logits(request);
            }
            let ForwardRequest { tokens, tree, first_row, exact_tokens, .. } = *request;
            let row = |at| self.table(tokens, exact_tokens, at).row(&row_prefix(tokens, tree, at));
            let logits = rows_of(tree).skip(first_row).flat_map(row).collect();
            Ok(output(logits, self.0.vocab_size, tree))
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

impl LayeredModel for LayerParallelTable {}

fn output(logits: Vec<f32>, vocab_size: usize, tree: &TokenTree) -> ForwardOutput {
    ForwardOutput { logits, vocab_size, computed_tokens: tree.len(), features: None }
}

/// A target that reports features: one number for each token, a function of its prefix.
struct TableWithFeatures {
    table: TableModel,
}

impl LanguageModel for TableWithFeatures {
    fn vocab_size(&self) -> usize {
        self.table.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.table.context_length()
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            let ForwardRequest { tokens, tree, features_from, .. } = *request;
            let feature = |prefix: &[TokenId]| self.table.row(prefix)[0];
            let of_tokens = (1..=tokens.len()).map(|len| feature(&tokens[..len]));
            let nodes = (0..tree.len()).map(|node| feature(&row_prefix(tokens, tree, Some(node))));
            let all: Vec<f32> = of_tokens.chain(nodes).collect();
            let features = features_from.map(|from| FeatureRows::new(1, all[from..].to_vec()));
            Ok(ForwardOutput { features, ..self.table.logits(request)? })
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

/// A drafter's table by its inputs: the feature before the last token, the last token, and a path.
struct FeatureTable(TableModel);

impl FeatureTable {
    fn row(&self, feature: &[f32], path: &[TokenId]) -> Vec<f32> {
        let feature: Vec<TokenId> = feature.iter().map(|number| number.to_bits()).collect();
        self.0.row(&[&feature[..], path].concat())
    }
}

/// Computes rows from the feature before the last token.
fn answer_from_features(
    request: &ForwardRequest<'_>,
    vocab_size: usize,
    row: impl Fn(&[f32], Option<Node>) -> Vec<f32>,
) -> Result<ForwardOutput, ModelError> {
    let ForwardRequest { tokens, tree, first_row, .. } = *request;
    let feature = request.features.unwrap().rows_from(tokens.len() - 2).next().unwrap();
    let logits = rows_of(tree).skip(first_row).flat_map(|at| row(feature, at)).collect();
    Ok(output(logits, vocab_size, tree))
}

impl LanguageModel for FeatureTable {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size
    }

    fn context_length(&self) -> usize {
        64
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            let last = &request.tokens[request.tokens.len() - 1..];
            answer_from_features(request, self.0.vocab_size, |feature, at| {
                self.row(feature, &row_prefix(last, request.tree, at))
            })
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

impl FeatureModel for FeatureTable {}

/// Three heads, each of which reads the feature before the last token.
struct HeadsTable(FeatureTable);

impl LanguageModel for HeadsTable {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    fn context_length(&self) -> usize {
        64
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            answer_from_features(request, self.0.vocab_size(), |feature, at| {
                let head = at.map_or(0, |node| request.tree.depth(node));
                assert!(head < 3, "a head for each depth");
                self.0.row(feature, &[head as TokenId])
            })
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

impl FeatureModel for HeadsTable {}

// ---------------------------------------------------------------------------------------------
// The enumerator

/// One branch of the enumeration, replayed and extended run by run.
#[derive(Default)]
struct Branch {
    /// The interval in which each key's number lies.
    intervals: BTreeMap<Key, (f64, f64)>,
    /// The decisions of this branch: whether the number lies below the threshold.
    path: Vec<bool>,
    /// The number of decisions taken so far in this run.
    taken: usize,
}

#[derive(Clone, Default)]
struct Enumerator(Arc<Mutex<Branch>>);

impl Randomness for Enumerator {
    fn locate(&self, key: Key, thresholds: &mut dyn Iterator<Item = f64>) -> usize {
        let mut branch = self.0.lock().unwrap();
        let (mut low, mut high) = branch.intervals.get(&key).copied().unwrap_or((0.0, 1.0));
        let mut count = 0;
        for threshold in thresholds {
            if threshold > low {
                let below = threshold >= high || branch.decide();
                if below {
                    high = high.min(threshold);
                    break;
                }
                low = threshold;
            }
            count += 1;
        }
        branch.intervals.insert(key, (low, high));
        count
    }
}

impl Branch {
    fn decide(&mut self) -> bool {
        if self.taken == self.path.len() {
            self.path.push(true);
        }
        self.taken += 1;
        self.path[self.taken - 1]
    }

    /// Goes to the next branch. Returns whether there is one.
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

/// The setup of an enumeration.
struct Experiment<'a> {
    target: TableModel,
    sampling: Sampling,
    drafter: &'a dyn Fn() -> Box<dyn Drafter>,
    /// The additional drafters, for DSI.
    others: &'a [&'a dyn Fn() -> Box<dyn Drafter>],
    decoder: &'a dyn Fn() -> Box<dyn Decoder>,
    /// The number of tokens in the joint distribution.
    tokens: usize,
    /// The seed of the order of jobs ([`InlineCluster::with_random_order`]). `None` is the order of
    /// submission.
    order: Option<u64>,
    /// Whether the target reports its features and its feedback on drafts.
    features: bool,
    /// Wraps the enumerator, for mutants of the keys.
    keys: &'a dyn Fn(Enumerator) -> Arc<dyn Randomness + Send + Sync>,
}

impl<'a> Experiment<'a> {
    /// Creates an experiment on two tokens of the first target, with jobs in the order of submission.
    fn of(
        sampling: Sampling,
        drafter: &'a dyn Fn() -> Box<dyn Drafter>,
        decoder: &'a dyn Fn() -> Box<dyn Decoder>,
    ) -> Self {
        let (target, keys) = (target(1), &unchanged);
        let (order, features) = (None, false);
        Self { target, sampling, drafter, others: &[], decoder, tokens: 2, order, features, keys }
    }

    /// Returns the joint distribution of the first tokens, and the number of branches.
    fn enumerate(&self) -> (Joint, usize) {
        let enumerator = Enumerator::default();
        let (mut joint, mut branches) = (Joint::new(), 0);
        loop {
            let tokens = self.run((self.keys)(enumerator.clone()));
            branches += 1;
            let mut branch = enumerator.0.lock().unwrap();
            *joint.entry(tokens).or_default() += branch.weight();
            if !branch.advance() {
                return (joint, branches);
            }
        }
    }

    fn run(&self, randomness: Arc<dyn Randomness + Send + Sync>) -> Vec<TokenId> {
        let engine = Engine::new().with_drafter(0, (self.drafter)());
        let replica = || TableWithFeatures { table: self.target };
        let engine = (0..REPLICAS).fold(engine, |engine, at| engine.with_target(at, replica()));
        let others = (1..).zip(self.others);
        let with_drafter =
            |engine: Engine, (at, other): (usize, &Make<'_>)| engine.with_drafter(at, other());
        let engine = others.fold(engine, with_drafter);
        let mut cluster = InlineCluster::new(engine, Arc::clone(&randomness));
        if let Some(order) = self.order {
            cluster = cluster.with_random_order(order);
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

    /// Returns the joint distribution of the target's own samples, by the chain rule and the slow reference.
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

    /// Samples answers, and adds their tokens to the test of `forerun certify`.
    fn add_samples(&self, test: &mut SamplingTest) {
        let ((found, _), exact) = (self.enumerate(), self.exact());
        let random = KeyedRandomness { seed: self.target.seed, sample: 0 };
        let number = |index: usize, candidate| {
            random.uniform(Key { position: index, purpose: Purpose::Sample, candidate })
        };
        let with_prefix = |prefix: &[TokenId]| -> f64 {
            exact.iter().filter(|(answer, _)| answer.starts_with(prefix)).map(|(_, p)| p).sum()
        };
        // The distribution after each prefix, best token first.
        let mut rows: BTreeMap<&[TokenId], Vec<(f64, TokenId)>> = BTreeMap::new();
        for answer in found.keys() {
            for length in 0..answer.len() {
                rows.entry(&answer[..length]).or_insert_with(|| {
                    let prefix = &answer[..length];
                    let all = with_prefix(prefix);
                    let chance = |token| with_prefix(&[prefix, &[token]].concat()) / all;
                    let mut row: Vec<_> =
                        (0..VOCAB as TokenId).map(|token| (chance(token), token)).collect();
                    row.sort_by(|a, b| b.0.total_cmp(&a.0));
                    row
                });
            }
        }
        for index in 0..CERTIFIED_ANSWERS {
            let (place, mut sum) = (number(index, 0), 0.0);
            let mut answers = found.iter();
            let drawn = answers.find(|(_, chance)| {
                sum += *chance;
                place < sum
            });
            let (answer, _) = drawn.or(found.last_key_value()).unwrap();
            test.start_answer();
            for (at, &token) in answer.iter().enumerate() {
                let row = &rows[&answer[..at]];
                let chances: Vec<f64> = row.iter().map(|&(chance, _)| chance).collect();
                let rank = row.iter().position(|&(_, other)| other == token).unwrap();
                test.add(&chances, rank, number(index, at as u32 + 1));
            }
        }
    }

    /// Returns the largest difference from the exact joint distribution.
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

/// Returns the rows of a tree: the row after the prefix, then the rows after its nodes.
fn rows_of(tree: &TokenTree) -> impl Iterator<Item = Option<Node>> {
    (0..=tree.len()).map(node_of_row)
}

fn sampling(temperature: f32, top_k: usize, top_p: f32) -> Sampling {
    let verification = Verification::Rejection;
    Sampling {
        options: SamplingOptions { temperature, top_k, top_p, ..SamplingOptions::default() },
        verification,
        ..Sampling::greedy()
    }
}

/// Returns a constraint that forbids other tokens after every prefix.
fn constraint(nth: TokenId) -> Option<Constraint> {
    Some(reference::EveryNth { vocab_size: VOCAB as TokenId, nth }.constraint())
}

/// Returns options that change rows of a tree differently, and all others, alone and together.
fn more_options() -> Vec<Sampling> {
    let warm = || sampling(1.0, 0, 1.0);
    let penalised = Sampling {
        options: SamplingOptions {
            repetition_penalty: 1.6,
            frequency_penalty: 0.7,
            presence_penalty: -0.4,
            logit_bias: [(1, 0.6)].into(),
            ..warm().options
        },
        ..warm()
    };
    vec![
        Sampling {
            options: SamplingOptions { repetition_penalty: 1.8, ..warm().options },
            ..warm()
        },
        Sampling {
            options: SamplingOptions { frequency_penalty: 1.2, ..warm().options },
            ..warm()
        },
        Sampling { options: SamplingOptions { presence_penalty: 1.5, ..warm().options }, ..warm() },
        Sampling {
            options: SamplingOptions { logit_bias: [(0, 1.5), (2, -1.0)].into(), ..warm().options },
            ..warm()
        },
        Sampling { options: SamplingOptions { min_p: 0.3, ..warm().options }, ..warm() },
        Sampling { constraint: constraint(3), ..warm() },
        Sampling {
            constraint: constraint(2),
            options: SamplingOptions { top_k: 2, ..penalised.options.clone() },
            ..penalised.clone()
        },
        Sampling {
            options: SamplingOptions {
                temperature: 0.7,
                min_p: 0.1,
                top_p: 0.9,
                ..penalised.options.clone()
            },
            ..penalised.clone()
        },
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

/// A tree that reaches its budget within a depth, so that only some siblings of expanded nodes stay.
fn best(budget: usize) -> DraftShape {
    DraftShape::Top { width: 2, depth: 2, budget: Some(budget) }
}

/// A tree of ranked candidates: the number of children of each row.
fn ranked(children: &[usize]) -> DraftShape {
    DraftShape::Ranked { children: children.to_vec() }
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

/// Asserts that a combination is exact for several targets and sampling options.
fn assert_exact(
    name: &str,
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
) {
    assert_exact_of(name, drafter, decoder, (2, false));
}

/// Asserts that a combination is exact for the given number of tokens, and for a target with or without
/// features.
fn assert_exact_of(
    name: &str,
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
    (tokens, features): (usize, bool),
) {
    let rule = Verification::Rejection;
    assert_exact_with(rule, name, drafter, decoder, (tokens, features));
}

/// Asserts the same with another rule of verification.
fn assert_exact_with(
    verification: Verification,
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
            let sampling = Sampling { verification, ..sampling };
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
fn speculative_decoding_with_top_trees_is_exact() {
    for shape in [top(2, 1), top(3, 1), top(2, 2), top(3, 3), best(3), best(5)] {
        let name = format!("speculative, model, {shape:?}");
        assert_exact(&name, &model_drafter, &|| speculative(&shape));
    }
}

#[test]
fn speculative_decoding_with_ranked_trees_is_exact() {
    for shape in [ranked(&[2]), ranked(&[2, 1, 1]), ranked(&[3, 0, 2, 0, 1]), ranked(&[9, 9])] {
        let name = format!("speculative, model, {shape:?}");
        assert_exact(&name, &model_drafter, &|| speculative(&shape));
    }
}

/// Trees whose shape follows the verdicts, as those of the planner do.
struct FollowingVerdicts;

impl Decoder for FollowingVerdicts {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let accepted: u64 = sequence.statistics().accepted.iter().sum();
        let last = sequence.tokens().last().map_or(0, |&token| token as usize);
        let shape = match accepted as usize + last {
            sum if sum % 2 == 0 => ranked(&[1, 2]),
            _ => ranked(&[2, 0, 1]),
        };
        speculative(&shape).step(sequence, cluster)
    }
}

#[test]
fn trees_that_follow_the_verdicts_are_exact() {
    assert_exact("following verdicts", &model_drafter, &|| Box::new(FollowingVerdicts));
    assert_exact_of(
        "following verdicts, more tokens",
        &model_drafter,
        &|| Box::new(FollowingVerdicts),
        (3, false),
    );
}

#[test]
fn speculative_decoding_with_sampled_trees_is_exact() {
    for shape in [iid(&[2]), iid(&[3]), iid(&[2, 1]), iid(&[1, 2])] {
        let name = format!("speculative, model, {shape:?}");
        assert_exact(&name, &model_drafter, &|| speculative(&shape));
    }
}

/// Drafters that lack a token of the target, or have additional ones.
#[test]
fn drafters_with_another_vocabulary_size_are_exact() {
    for vocab_size in [VOCAB - 1, VOCAB + 2] {
        let model = TableModel { vocab_size, ..DRAFT_MODEL };
        let drafter =
            || -> Box<dyn Drafter> { Box::new(ModelDrafter::new(model).with_vocab_size(VOCAB)) };
        for shape in [chain(2), top(3, 2), ranked(&[3, 1]), best(3), iid(&[3]), iid(&[2, 1])] {
            let name = format!("speculative, {vocab_size} tokens, {shape:?}");
            assert_exact(&name, &drafter, &|| speculative(&shape));
        }
    }
}

#[test]
fn speculative_decoding_with_all_drafters_on_tokens_is_exact() {
    for kind in DrafterKind::all().filter(|kind| kind.is_on_tokens()) {
        let drafter = || kind.make_on_tokens().unwrap();
        let feedback = kind.needs(Need::Feedback);
        for shape in [chain(1), chain(3), top(2, 2), best(3), iid(&[2, 1])] {
            let name = format!("speculative, {kind}, {shape:?}");
            assert_exact_of(&name, &drafter, &|| speculative(&shape), (2, feedback));
        }
    }
}

/// Every drafter on tokens, with every parallel method that offers what it needs.
#[test]
fn parallel_methods_with_all_drafters_on_tokens_are_exact() {
    for kind in DrafterKind::all().filter(|kind| kind.is_on_tokens()) {
        let drafter = || kind.make_on_tokens().unwrap();
        let offers = |method: Method| kind.traits().needs.iter().all(|&need| method.offers(need));
        for options in ["eager", "paper"].into_iter().filter(|_| offers(Method::Pearl)) {
            let name = format!("pearl, {options}, {kind}");
            assert_exact(&name, &drafter, &|| pearl(2, options));
        }
        if offers(Method::Dsi) {
            let decoder = || -> Box<dyn Decoder> { Box::new(dsi(2, 2)) };
            assert_exact_in_any_order(&format!("dsi, {kind}"), &drafter, &decoder);
        }
        if offers(Method::Ssd) {
            assert_exact_in_any_order(&format!("ssd, {kind}"), &drafter, &|| ssd(2, 3));
        }
    }
}

/// EasySpec, with every calibration policy.
#[test]
fn speculative_decoding_with_layer_parallel_rows_is_exact() {
    for calibration in [
        CalibrationPolicy::EveryRound,
        CalibrationPolicy::OnMismatch,
        CalibrationPolicy::DuringVerification,
        CalibrationPolicy::PrefillOnly,
        CalibrationPolicy::Never,
    ] {
        for shape in [
            chain(2),
            chain(3),
            top(2, 1),
            top(2, 2),
            top(3, 3),
            ranked(&[2, 1]),
            best(3),
            iid(&[2, 1]),
        ] {
            let name = format!("speculative, easyspec {calibration}, {shape:?}");
            assert_exact(&name, &|| layer_parallel_drafter(calibration), &|| speculative(&shape));
        }
    }
}

/// EasySpec's drafts are calibrated during their verification, which ends before or after it.
#[test]
fn speculative_decoding_that_calibrates_during_verification_is_exact() {
    let drafter = || layer_parallel_drafter(CalibrationPolicy::DuringVerification);
    for length in [1, 2, 3] {
        let decoder = || -> Box<dyn Decoder> {
            let policy = SpeculativeDraftLength::new(chain(length), DraftLength::Fixed);
            Box::new(Speculative::new(policy).calibrating())
        };
        let name = format!("speculative, easyspec calibrated during verification, chain {length}");
        assert_exact_in_any_order(&name, &drafter, &decoder);
    }
}

/// EasySpec with methods that draft after unverified tokens.
#[test]
fn parallel_methods_with_layer_parallel_rows_are_exact() {
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

/// DFlash, Medusa, Hydra and EAGLE. The first round has no features, so the distribution is of three tokens.
#[test]
fn speculative_decoding_on_features_is_exact() {
    let table = || FeatureTable(DRAFT_MODEL);
    let medusa = || -> Box<dyn Drafter> { Box::new(MedusaDrafter::new(HeadsTable(table()), 3)) };
    let hydra = || -> Box<dyn Drafter> { Box::new(HydraDrafter::new(table(), 2)) };
    let eagle = || -> Box<dyn Drafter> { Box::new(EagleDrafter::new(table())) };
    let masks = Masks::PerPosition(VOCAB as TokenId..VOCAB as TokenId + 2);
    let parallel =
        || -> Box<dyn Drafter> { Box::new(ParallelEagleDrafter::new(table(), masks.clone())) };
    let block = Masks::Block { mask: 1, size: 4 };
    let dflash =
        || -> Box<dyn Drafter> { Box::new(ParallelEagleDrafter::new(table(), block.clone())) };
    let drafters: [(&str, Make<'_>); 5] = [
        ("dflash", &dflash),
        ("medusa", &medusa),
        ("hydra", &hydra),
        ("eagle", &eagle),
        ("parallelspec on eagle", &parallel),
    ];
    for (name, drafter) in drafters {
        for shape in [chain(1), chain(2), top(2, 2), ranked(&[2, 1]), best(3), iid(&[2, 1])] {
            let name = format!("speculative, {name}, {shape:?}");
            assert_exact_of(&name, drafter, &|| speculative(&shape), (3, true));
        }
    }
}

/// EAGLE drafts ahead on predicted features, and starts afresh with the target's after a rejection. DFlash, ParallelSpec and
/// P-EAGLE read the target's features as they come.
#[test]
fn pearl_on_features_is_exact() {
    let eagle = || -> Box<dyn Drafter> { Box::new(EagleDrafter::new(FeatureTable(DRAFT_MODEL))) };
    assert_pearl_on_features_is_exact("eagle", &eagle);
    for (name, masks) in [
        ("dflash", Masks::Block { mask: 1, size: 7 }),
        ("dflash with a short block", Masks::Block { mask: 1, size: 4 }),
        ("parallelspec on eagle", Masks::PerPosition(VOCAB as TokenId..VOCAB as TokenId + 2)),
        ("p-eagle", Masks::Repeated(VOCAB as TokenId)),
    ] {
        let drafter = || -> Box<dyn Drafter> {
            Box::new(ParallelEagleDrafter::new(FeatureTable(DRAFT_MODEL), masks.clone()))
        };
        assert_pearl_on_features_is_exact(name, &drafter);
    }
}

fn assert_pearl_on_features_is_exact(drafter_name: &str, drafter: Make<'_>) {
    for (length, options) in [(1, "eager"), (2, "eager"), (2, "paper"), (3, "paper")] {
        let name = format!("pearl, {drafter_name}, {options}, chain {length}");
        assert_exact_of(&name, drafter, &|| pearl(length, options), (3, true));
        for order in [None, Some(1), Some(2), Some(3)] {
            for waits in [false, true] {
                let options = format!("{options},pre-verify-lookup");
                let decoder = || guessing_pearl(length, &options, true, waits);
                let experiment = Experiment::of(sampling(1.0, 0, 1.0), drafter, &decoder);
                let experiment = Experiment { tokens: 3, features: true, order, ..experiment };
                let deviation = experiment.deviation();
                assert!(deviation < 1e-6, "{name}, guesses, order {order:?}: off by {deviation}");
            }
        }
    }
}

/// Lookahead decoding, whose drafts depend on the target's feedback on earlier drafts.
#[test]
fn speculative_decoding_with_lookahead_is_exact() {
    let drafter = || -> Box<dyn Drafter> { Box::new(LookaheadDrafter::new()) };
    for shape in [chain(2), top(7, 1), top(7, 2), top(7, 10)] {
        let name = format!("speculative, lookahead, {shape:?}");
        assert_exact_of(&name, &drafter, &|| speculative(&shape), (4, true));
    }
}

/// Ouroboros, whose phrases depend on the text, on drafts, and on the target's feedback on them.
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

/// ParallelSpec on tokens, which has one row for each depth, independent of the tokens drawn before.
#[test]
fn parallel_drafting_is_exact() {
    let own = Masks::PerPosition(VOCAB as TokenId..VOCAB as TokenId + 2);
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

/// Block verification, over several rounds: where a round ends depends on the tokens that it drops.
#[test]
fn speculative_decoding_in_blocks_is_exact() {
    let rule = Verification::Block;
    for shape in [chain(1), chain(2), chain(3)] {
        let name = format!("speculative in blocks, model, {shape:?}");
        assert_exact_with(rule, &name, &model_drafter, &|| speculative(&shape), (2, false));
    }
    let penalised = more_options().pop().unwrap();
    for (shape, tokens, sampling) in [
        (chain(2), 3, sampling(1.0, 0, 1.0)),
        (chain(2), 4, sampling(1.0, 0, 1.0)),
        (chain(2), 3, penalised.clone()),
        (iid(&[3]), 2, sampling(1.0, 0, 1.0)),
        (iid(&[2, 1]), 2, sampling(1.0, 0, 1.0)),
        (iid(&[2, 1]), 2, penalised),
        (iid(&[1, 2]), 2, sampling(1.0, 0, 1.0)),
    ] {
        let name = format!("speculative in blocks, model, {shape:?}, {tokens} tokens");
        let sampling = Sampling { verification: rule, ..sampling };
        let decoder = || speculative(&shape);
        let experiment = Experiment::of(sampling, &model_drafter, &decoder);
        let experiment = Experiment { tokens, ..experiment };
        let deviation = experiment.deviation();
        println!("{name}: off by {deviation:.1e} in {} branches", experiment.enumerate().1);
        assert!(deviation < 1e-6, "{name}: off by {deviation}");
    }
}

/// Block verification with drafters of every kind: on tokens, on features, approximate, failing.
#[test]
fn drafters_of_all_kinds_in_blocks_are_exact() {
    let easyspec = || layer_parallel_drafter(CalibrationPolicy::OnMismatch);
    let eagle = || -> Box<dyn Drafter> { Box::new(EagleDrafter::new(FeatureTable(DRAFT_MODEL))) };
    let fewer = TableModel { vocab_size: VOCAB - 1, ..DRAFT_MODEL };
    let fewer =
        || -> Box<dyn Drafter> { Box::new(ModelDrafter::new(fewer).with_vocab_size(VOCAB)) };
    let masks = Masks::PerPosition(VOCAB as TokenId..VOCAB as TokenId + 2);
    let parallel =
        || -> Box<dyn Drafter> { Box::new(ParallelDrafter::new(DRAFT_MODEL, masks.clone())) };
    let ouroboros = || -> Box<dyn Drafter> { Box::new(OuroborosDrafter::new(DRAFT_MODEL)) };
    let (on_token, after_one) = (|| failing_on(1), || failing_after(1, &model_drafter));
    let drafters: [(&str, Make<'_>, bool); 8] = [
        ("easyspec", &easyspec, false),
        ("eagle", &eagle, true),
        ("fewer tokens", &fewer, false),
        ("parallel", &parallel, false),
        ("ouroboros", &ouroboros, true),
        ("prompt-lookup", &lookup_drafter, false),
        ("fails on a token", &on_token, false),
        ("fails after a job", &after_one, false),
    ];
    for (name, drafter, features) in drafters {
        for shape in [chain(2), top(2, 2)] {
            let name = format!("speculative in blocks, {name}, {shape:?}");
            let (decoder, tokens) = (|| speculative(&shape), if features { 3 } else { 2 });
            assert_exact_with(Verification::Block, &name, drafter, &decoder, (tokens, features));
        }
    }
}

/// A draft-length policy that has measured before, so that it drafts from the first round on.
#[test]
fn an_adapting_draft_length_is_exact() {
    let mut learner = Speculative::new(SpeculativeDraftLength::new(chain(2), DraftLength::Auto));
    // It learns with a drafter that is always right, so that drafting pays.
    let perfect = ModelDrafter::new(target(1));
    let engine = Engine::new().with_target(0, target(1)).with_drafter(0, perfect);
    let randomness = Arc::new(KeyedRandomness { seed: 1, sample: 0 });
    let mut cluster = InlineCluster::new(engine, randomness);
    let limits = Limits { max_tokens: 50, context_length: 64, eos: Vec::new() };
    let (id, sampling) = (SequenceId(0), sampling(1.0, 0, 1.0));
    let mut sequence = Sequence::new(id, PROMPT.to_vec(), sampling, limits);
    generate(&mut learner, &mut sequence, &mut cluster, |_| ControlFlow::Continue(())).unwrap();
    let learned = learner.draft_length().for_new_answer(PROMPT.len());
    assert_ne!(learned.next_shape(), chain(0), "it drafts at once");
    let decoder = || -> Box<dyn Decoder> { Box::new(Speculative::new(learned.clone())) };
    assert_exact("speculative, model, auto", &model_drafter, &decoder);
}

/// Returns the policy of assisted generation after drafts were rejected, so that its length changes from 1 to 3 when a
/// token is accepted.
fn growing_draft_length() -> SpeculativeDraftLength {
    let mut policy = SpeculativeDraftLength::new(chain(3), DraftLength::Assisted);
    let round = |accepted, rejected| Round { drafted: 1, accepted, rejected, ..Round::default() };
    (0..8).for_each(|_| policy.observe(&round(0, true)));
    assert_eq!(policy.next_shape(), chain(1));
    let mut after = policy.clone();
    after.observe(&round(1, false));
    assert_eq!(after.next_shape(), chain(3));
    policy
}

/// SSD also uses drafts that were prepared with another length.
#[test]
fn a_draft_length_that_follows_acceptance_is_exact() {
    let decoder = || -> Box<dyn Decoder> { Box::new(Speculative::new(growing_draft_length())) };
    assert_exact("speculative, model, assisted", &model_drafter, &decoder);
    assert_exact_in_any_order("speculative, model, assisted", &model_drafter, &decoder);
    let decoder =
        || -> Box<dyn Decoder> { Box::new(Ssd::new(growing_draft_length()).with_verdicts(3)) };
    assert_exact("ssd, model, assisted", &model_drafter, &decoder);
    assert_exact_in_any_order("ssd, model, assisted", &model_drafter, &decoder);
}

fn pearl(length: usize, options: &str) -> Box<dyn Decoder> {
    let options: PearlOptions = options.parse().unwrap();
    let eager = options.schedule == PearlSchedule::Eager;
    Box::new(Pearl::new(options, PearlDraftLength::new(length, DraftLength::Fixed, eager)))
}

/// Guesses that the text counts on from its last token.
struct Counting;

impl Guesser for Counting {
    fn guess(&mut self, tokens: &[TokenId], _prompt_len: usize, length: usize) -> Vec<TokenId> {
        let last = tokens[tokens.len() - 1];
        (1..=length as TokenId).map(|step| (last + step) % VOCAB as TokenId).collect()
    }
}

/// PEARL with guesses, which counts or looks up.
fn guessing_pearl(length: usize, options: &str, counts: bool, waits: bool) -> Box<dyn Decoder> {
    let options: PearlOptions = options.parse().unwrap();
    let eager = options.schedule == PearlSchedule::Eager;
    let pearl = Pearl::new(options, PearlDraftLength::new(length, DraftLength::Fixed, eager));
    let guesser: Box<dyn Guesser> =
        if counts { Box::new(Counting) } else { Box::new(PromptLookup) };
    let pearl = pearl.with_guesser(guesser);
    Box::new(if waits { pearl.reproducible() } else { pearl })
}

fn dsi(replicas: usize, lookahead: usize) -> Dsi {
    Dsi::new(replicas, DsiLookahead::new(lookahead, DraftLength::Fixed, replicas))
}

/// Asserts that a combination is exact for three tokens, and so over several rounds, with jobs in any order.
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

/// Rounds with and without unverified tokens, which are all accepted, partly accepted, or rejected.
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

/// Guesses that the drafter confirms, contradicts or is late for, and that are longer or shorter than its chain.
#[test]
fn pearl_with_guesses_is_exact() {
    let variants = ["eager", "paper", "paper,no-post-verify"];
    for (options, length) in variants.into_iter().flat_map(|o| [1, 2, 3].map(|length| (o, length)))
    {
        let options = format!("{options},pre-verify-lookup");
        for (counts, waits) in [(false, false), (true, false), (true, true)] {
            let name = format!("pearl, {options}, counts {counts}, waits {waits}, chain {length}");
            let decoder = || guessing_pearl(length, &options, counts, waits);
            assert_exact(&name, &model_drafter, &decoder);
            assert_exact_in_any_order(&name, &model_drafter, &decoder);
        }
    }
    let decoder = || guessing_pearl(2, "eager,pre-verify-lookup", true, false);
    assert_exact_in_any_order("pearl, guesses, prompt-lookup", &lookup_drafter, &decoder);
    for number in 0..VOCAB {
        let after = || failing_after(number, &model_drafter);
        let name = format!("pearl, guesses, fails after {number} jobs");
        assert_exact_in_any_order(&name, &after, &decoder);
        let token = number as TokenId;
        let name = format!("pearl, guesses, fails on token {token}");
        assert_exact_in_any_order(&name, &|| failing_on(token), &decoder);
    }
}

/// Siblings that are corrections, or not, next to tokens that were drawn, or not.
#[test]
fn pearl_with_siblings_is_exact() {
    let eagle = || -> Box<dyn Drafter> { Box::new(EagleDrafter::new(FeatureTable(DRAFT_MODEL))) };
    for (options, length) in [("eager", 1), ("eager", 2), ("paper", 2), ("paper", 3)] {
        for siblings in [1, 2] {
            let options = format!("{options},siblings-{siblings}");
            let name = format!("pearl, {options}, model, chain {length}");
            let decoder = || pearl(length, &options);
            assert_exact(&name, &model_drafter, &decoder);
            assert_exact_in_any_order(&name, &model_drafter, &decoder);
            assert_exact_in_any_order(&format!("{name}, lookup"), &lookup_drafter, &decoder);
        }
        let options = format!("{options},siblings-1");
        let name = format!("pearl, {options}, eagle, chain {length}");
        assert_exact_of(&name, &eagle, &|| pearl(length, &options), (3, true));
        for number in 0..VOCAB {
            let decoder = || pearl(length, &options);
            let name = format!("pearl, {options}, fails after {number} jobs");
            assert_exact_in_any_order(&name, &|| failing_after(number, &model_drafter), &decoder);
            let name = format!("pearl, {options}, fails on token {number}");
            assert_exact_in_any_order(&name, &|| failing_on(number as TokenId), &decoder);
        }
    }
    let decoder = || guessing_pearl(2, "eager,pre-verify-lookup,siblings-1", true, false);
    assert_exact_in_any_order("pearl, guesses and siblings", &model_drafter, &decoder);
}

/// Replicas finish in any order, jobs have several sizes, and the drafter is early or late.
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

fn ssd(length: usize, verdicts: usize) -> Box<dyn Decoder> {
    let draft_length = SpeculativeDraftLength::new(chain(length), DraftLength::Fixed);
    Box::new(Ssd::new(draft_length).with_verdicts(verdicts))
}

/// Drafts that were prepared for the verdict, or for others, or not at all, in blocks and token by token.
#[test]
fn ssd_is_exact() {
    for (length, verdicts) in [(1, 1), (1, 3), (2, 1), (2, 3)] {
        let name = format!("ssd, model, chain {length}, {verdicts} verdicts");
        assert_exact_in_any_order(&name, &model_drafter, &|| ssd(length, verdicts));
    }
    let easyspec = || layer_parallel_drafter(CalibrationPolicy::OnMismatch);
    assert_exact_in_any_order("ssd, easyspec", &easyspec, &|| ssd(2, 3));
    let (decoder, sampling) = (|| ssd(2, 3), sampling(1.0, 0, 1.0));
    for order in [None, Some(1), Some(2), Some(3)] {
        let sampling = Sampling { verification: Verification::Block, ..sampling.clone() };
        let experiment = Experiment::of(sampling, &model_drafter, &decoder);
        let deviation = Experiment { tokens: 3, order, ..experiment }.deviation();
        assert!(deviation < 1e-6, "ssd in blocks, order {order:?}: off by {deviation}");
    }
    for number in 0..VOCAB {
        let after = || failing_after(number, &model_drafter);
        let name = format!("ssd, fails after {number} jobs");
        assert_exact_in_any_order(&name, &after, &|| ssd(2, 2));
        let token = number as TokenId;
        let name = format!("ssd, fails on token {token}");
        assert_exact_in_any_order(&name, &|| failing_on(token), &|| ssd(2, 2));
    }
}

/// Makes a drafter for every run.
type Make<'a> = &'a dyn Fn() -> Box<dyn Drafter>;

fn other_drafter() -> Box<dyn Drafter> {
    Box::new(ModelDrafter::new(TableModel { seed: 5, ..DRAFT_MODEL }))
}

fn lookup_drafter() -> Box<dyn Drafter> {
    Box::new(PromptLookup)
}

/// Several drafters: different models, one model twice, and different kinds. The tokens of each are tested
/// against the residual that earlier rejections left.
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

/// A drafter that fails at its job with this number, and at all later ones.
struct FailingDrafter {
    drafter: Box<dyn Drafter>,
    jobs_left: usize,
}

impl Drafter for FailingDrafter {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        self.jobs_left = self.jobs_left.checked_sub(1).ok_or(ModelError::Empty)?;
        self.drafter.draft(context)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.drafter.release(sequence);
    }
}

/// A model that fails once it has to read a token after the prompt.
struct FailingTable {
    table: TableModel,
    token: TokenId,
}

impl LanguageModel for FailingTable {
    fn vocab_size(&self) -> usize {
        self.table.vocab_size
    }

    fn context_length(&self) -> usize {
        self.table.context_length
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            let mut read = request.tokens[PROMPT.len()..].iter().chain(request.tree.tokens());
            match read.any(|&token| token == self.token) {
                true => Err(ModelError::Empty),
                false => self.table.logits(request),
            }
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

/// Returns a model drafter that fails on a token that it has drawn.
fn failing_on(token: TokenId) -> Box<dyn Drafter> {
    Box::new(ModelDrafter::new(FailingTable { table: DRAFT_MODEL, token }))
}

/// Returns a drafter that fails after a number of jobs.
fn failing_after(jobs_left: usize, drafter: Make<'_>) -> Box<dyn Drafter> {
    Box::new(FailingDrafter { drafter: drafter(), jobs_left })
}

#[test]
fn speculative_decoding_without_a_failed_drafter_is_exact() {
    let eagle = || -> Box<dyn Drafter> { Box::new(EagleDrafter::new(FeatureTable(DRAFT_MODEL))) };
    for jobs_left in 0..2 {
        let drafter = || failing_after(jobs_left, &model_drafter);
        for shape in [chain(2), best(3), iid(&[2, 1])] {
            let name = format!("speculative, {shape:?}, fails after {jobs_left} jobs");
            assert_exact(&name, &drafter, &|| speculative(&shape));
        }
        let on_features = || failing_after(jobs_left, &eagle);
        let name = format!("speculative, eagle, fails after {jobs_left} jobs");
        assert_exact_of(&name, &on_features, &|| speculative(&chain(2)), (3, true));
    }
}

/// The tokens that the drafter draws decide whether it fails.
#[test]
fn speculative_decoding_without_a_drafter_that_fails_on_its_tokens_is_exact() {
    for token in 0..VOCAB as TokenId {
        for shape in [chain(1), chain(3), best(5), iid(&[2, 1])] {
            let name = format!("speculative, {shape:?}, fails on token {token}");
            assert_exact(&name, &|| failing_on(token), &|| speculative(&shape));
        }
    }
}

#[test]
fn pearl_without_a_failed_drafter_is_exact() {
    for options in ["eager", "paper", "paper,no-pre-verify", "paper,no-post-verify"] {
        for number in 0..VOCAB {
            let name = format!("pearl, {options}, fails after {number} jobs");
            let drafter = || failing_after(number, &model_drafter);
            assert_exact_in_any_order(&name, &drafter, &|| pearl(2, options));
            let token = number as TokenId;
            let name = format!("pearl, {options}, fails on token {token}");
            assert_exact_in_any_order(&name, &|| failing_on(token), &|| pearl(2, options));
        }
    }
}

#[test]
fn dsi_without_a_failed_drafter_is_exact() {
    let plain = || -> Box<dyn Decoder> { Box::new(dsi(2, 1)) };
    let waits = || -> Box<dyn Decoder> { Box::new(dsi(2, 1).reproducible()) };
    for number in 0..VOCAB {
        let name = format!("dsi, fails after {number} jobs");
        let drafter = || failing_after(number, &model_drafter);
        assert_exact_in_any_order(&name, &drafter, &plain);
        assert_exact_in_any_order(&name, &drafter, &waits);
        // A job less changes the order of the others, so the decoder must not depend on it.
        let token = number as TokenId;
        let name = format!("dsi, fails on token {token}");
        assert_exact_in_any_order(&name, &|| failing_on(token), &waits);
    }
}

/// The other drafter goes on.
#[test]
fn dsi_without_one_of_two_drafters_is_exact() {
    let sampling = sampling(1.0, 0, 1.0);
    let assert_exact = |name: &str, drafter: Make<'_>, waits: bool| {
        let decoder = || -> Box<dyn Decoder> {
            let dsi = dsi(2, 1).with_drafters(2);
            Box::new(if waits { dsi.reproducible() } else { dsi })
        };
        for order in [None, Some(1), Some(2)] {
            let experiment = Experiment::of(sampling.clone(), drafter, &decoder);
            let experiment = Experiment { others: &[&other_drafter], order, ..experiment };
            let deviation = experiment.deviation();
            assert!(deviation < 1e-6, "dsi, two drafters, {name}: off by {deviation}");
        }
    };
    for number in 0..VOCAB {
        let drafter = || failing_after(number, &model_drafter);
        assert_exact(&format!("fails after {number} jobs"), &drafter, false);
        assert_exact(&format!("fails after {number} jobs"), &drafter, true);
        let token = number as TokenId;
        assert_exact(&format!("fails on token {token}"), &|| failing_on(token), true);
    }
}

/// The target as its own drafter: every token is accepted.
#[test]
fn a_perfect_drafter_is_exact_and_never_rejected() {
    let drafter = || -> Box<dyn Drafter> { Box::new(ModelDrafter::new(target(1))) };
    for shape in [chain(3), iid(&[2, 1]), top(2, 2)] {
        let decoder = || speculative(&shape);
        let (target, sampling) = (target(1), sampling(1.0, 0, 1.0));
        let (drafter, decoder) = (&drafter, &decoder);
        let experiment = Experiment { target, ..Experiment::of(sampling, drafter, decoder) };
        assert!(experiment.deviation() < 1e-6, "{shape:?}");
        // The drafter applies all sampling options as the target does.
        for sampling in more_options() {
            let sampling = Sampling { verification: Verification::Coupled, ..sampling };
            let engine = Engine::new().with_target(0, target).with_drafter(0, drafter());
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

/// Returns the largest deviation over five targets.
fn worst_deviation(
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
    keys: &dyn Fn(Enumerator) -> Arc<dyn Randomness + Send + Sync>,
) -> f64 {
    worst_deviation_with(Verification::Rejection, drafter, decoder, keys)
}

fn worst_deviation_with(
    verification: Verification,
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
    keys: &dyn Fn(Enumerator) -> Arc<dyn Randomness + Send + Sync>,
) -> f64 {
    let deviation = |seed| {
        let (target, sampling) = (target(seed), sampling(1.0, 0, 1.0));
        let sampling = Sampling { verification, ..sampling };
        Experiment { target, keys, ..Experiment::of(sampling, drafter, decoder) }.deviation()
    };
    (1..=5).map(deviation).fold(0.0, f64::max)
}

/// Answers that are sampled of each target for the test of `forerun certify`.
const CERTIFIED_ANSWERS: usize = 40_000;

/// Returns the probability of samples of five targets by the test of `forerun certify`.
fn certified(
    verification: Verification,
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
    keys: &dyn Fn(Enumerator) -> Arc<dyn Randomness + Send + Sync>,
) -> f64 {
    let mut test = SamplingTest::default();
    for seed in 1..=5 {
        let (target, sampling) = (target(seed), sampling(1.0, 0, 1.0));
        let sampling = Sampling { verification, ..sampling };
        let experiment = Experiment::of(sampling, drafter, decoder);
        Experiment { target, keys, ..experiment }.add_samples(&mut test);
    }
    test.result().probability()
}

/// Asserts that a mutant's joint distribution is visibly wrong for some target, and that `forerun certify`
/// finds it.
fn assert_caught(
    name: &str,
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
    keys: &dyn Fn(Enumerator) -> Arc<dyn Randomness + Send + Sync>,
) {
    assert_caught_with(Verification::Rejection, name, drafter, decoder, keys);
}

fn assert_caught_with(
    verification: Verification,
    name: &str,
    drafter: &dyn Fn() -> Box<dyn Drafter>,
    decoder: &dyn Fn() -> Box<dyn Decoder>,
    keys: &dyn Fn(Enumerator) -> Arc<dyn Randomness + Send + Sync>,
) {
    let worst = worst_deviation_with(verification, drafter, decoder, keys);
    let probability = certified(verification, drafter, decoder, keys);
    println!("mutant \"{name}\" is off by {worst:.4}; certify: p = {probability:.1e}");
    assert!(worst > 1e-3, "the mutant \"{name}\" was not caught: off by {worst}");
    // So many samples do not show smaller deviations.
    if worst > 0.01 {
        assert!(probability < 1e-6, "`certify` did not find \"{name}\": p = {probability}");
    }
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

/// As in PEARL's published code: the position that is pre-verified shares its uniform with the next one.
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

/// The tokens of two drafters are tested with one uniform.
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

/// As in EasySpec's published code: the most probable candidates are accepted with min(1, target/draft).
#[test]
fn mutant_ratio_test_on_most_probable_candidates() {
    let mutate = |draft: Draft, context: &DraftContext<'_>| {
        let sampler = Sampler::new(context.sampling, context.tokens, context.prompt_len);
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

/// The published rule for EasySpec's drafts. They are exact as they are verified here.
#[test]
fn mutant_ratio_test_on_layer_parallel_candidates() {
    struct Ratio(Box<dyn Drafter>);

    impl Drafter for Ratio {
        fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
            let draft = self.0.draft(context)?;
            let sampler = Sampler::new(context.sampling, context.tokens, context.prompt_len);
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
        let name = format!("layer-parallel ratio test on {shape:?}");
        assert_caught(&name, &published, &decoder, &unchanged);
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
        let sampler = Sampler::new(context.sampling, context.tokens, context.prompt_len);
        let logits = DRAFT_MODEL.row(context.tokens);
        let row = sampler.distribution(&logits, &TokenTree::new(), None).unwrap();
        let confident = draft.tree.tokens().first().is_some_and(|&t| row.probability(t) > 0.4);
        if confident { draft } else { Draft::empty() }
    };
    let drafter = || -> Box<dyn Drafter> { Box::new(MutantDrafter(mutate)) };
    assert_caught("low confidence dropped", &drafter, &|| speculative(&chain(1)), &unchanged);
}

/// Chain verification without `verify`, with the correction drawn from the residual or, as a mutant, from
/// the target's whole row.
struct ExplicitVerification {
    subtract: bool,
}

impl Decoder for ExplicitVerification {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let draft = draft(sequence, cluster, chain(1))?;
        let scores = scores(sequence, cluster, &draft)?;
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

/// Returns a draft of the drafter.
fn draft(
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

/// Returns the target's scores of a draft.
fn scores(
    sequence: &Sequence,
    cluster: &mut dyn Cluster,
    draft: &Draft,
) -> Result<Scores, DecodeError> {
    let job = Job::Score(ScoreJob {
        sequence: sequence.id(),
        tokens: sequence.tokens().into(),
        prompt_len: sequence.prompt_len(),
        tree: draft.tree.clone(),
        sampling: sequence.sampling().clone(),
        logprobs: None,
        features_from: None,
    });
    cluster.submit(Role::Target(0), job)?;
    let Ok(JobOutput::Score(scores)) = cluster.next_completion()?.output else { panic!() };
    Ok(scores)
}

#[test]
fn mutant_the_residual_is_not_subtracted() {
    let decoder = || -> Box<dyn Decoder> { Box::new(ExplicitVerification { subtract: false }) };
    assert_caught("residual not subtracted", &model_drafter, &decoder, &unchanged);
}

/// A draft token and a guess for the same position, or a mistake.
struct ExplicitGuess(GuessMistake);

#[derive(Clone, Copy, Debug, PartialEq)]
enum GuessMistake {
    None,
    /// The guess is tested as if the draft token had not been rejected.
    TargetRow,
    /// Both are tested with one number.
    OneKey,
    /// The correction may be the rejected guess.
    KeepsGuess,
}

impl Decoder for ExplicitGuess {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let mistake = self.0;
        let drafted = draft(sequence, cluster, chain(1))?;
        let guess = Counting.guess(sequence.tokens(), sequence.prompt_len(), 1)[0];
        let guessed = Draft { tree: TokenTree::chain(&[guess]), proposal: Proposal::Deterministic };
        let scores = scores(sequence, cluster, &guessed)?;
        let Proposal::Sampled(proposed) = &drafted.proposal else { panic!() };
        let (rows, token, position) =
            (&scores.rows, drafted.tree.token(0), sequence.tokens().len());
        let random = sequence.randomness();
        let accepts = |candidate, chance| {
            random.below(Key { position, purpose: Purpose::Accept, candidate }, chance)
        };
        let pick = |row: &Distribution, position| {
            row.pick(random, Key { position, purpose: Purpose::Sample, candidate: 0 })
        };
        let after = |token| (token == guess).then(|| pick(&rows[1], position + 1));
        let chance = rows[0].probability(token) / proposed[0].probability(token);
        let (walked, token, rejected) = if accepts(0, chance) {
            (token, after(token), false)
        } else {
            let residual = rows[0].residual(&proposed[0]).unwrap_or_default();
            let tested = if mistake == GuessMistake::TargetRow { &rows[0] } else { &residual };
            let key = u32::from(mistake != GuessMistake::OneKey);
            let rest = residual.without(guess).filter(|_| mistake != GuessMistake::KeepsGuess);
            match accepts(key, tested.probability(guess)) {
                true => (guess, after(guess), false),
                false => (guess, Some(pick(&rest.unwrap_or(residual), position)), true),
            }
        };
        let accepted = if rejected { vec![] } else { vec![0] };
        let walked = Draft { tree: TokenTree::chain(&[walked]), proposal: Proposal::Deterministic };
        sequence.commit(&walked, &Verdict { accepted, token, rejected }, &scores);
        Ok(())
    }
}

#[test]
fn mutants_of_guesses() {
    let with = |mistake| move || -> Box<dyn Decoder> { Box::new(ExplicitGuess(mistake)) };
    let worst = worst_deviation(&model_drafter, &with(GuessMistake::None), &unchanged);
    assert!(worst < 1e-6, "without a mistake it is off by {worst}");
    for mistake in [GuessMistake::TargetRow, GuessMistake::OneKey, GuessMistake::KeepsGuess] {
        let name = format!("guess, {mistake:?}");
        assert_caught(&name, &model_drafter, &with(mistake), &unchanged);
    }
    // The production code, if the draft token and the guess had one number.
    let keys = |enumerator| -> Arc<dyn Randomness + Send + Sync> {
        Arc::new(MutantKeys(enumerator, |key| match key.purpose {
            Purpose::Accept => Key { candidate: 0, ..key },
            _ => key,
        }))
    };
    let decoder = || guessing_pearl(2, "eager,pre-verify-lookup", true, false);
    assert_caught("PEARL's guess has the draft token's key", &model_drafter, &decoder, &keys);
}

/// PEARL's siblings, with one number for a draft token and its sibling, and with a sibling that is tested as if it were
/// drawn, too.
#[test]
fn mutants_of_siblings() {
    let decoder = || pearl(2, "paper,siblings-1");
    assert!(worst_deviation(&model_drafter, &decoder, &unchanged) < 1e-6);
    let keys = |enumerator| -> Arc<dyn Randomness + Send + Sync> {
        Arc::new(MutantKeys(enumerator, |key| match key.purpose {
            Purpose::Accept => Key { candidate: 0, ..key },
            _ => key,
        }))
    };
    // In PEARL's passes, the first token never has siblings.
    let worst = worst_deviation(&model_drafter, &decoder, &keys);
    println!("mutant \"PEARL's sibling has the draft token's key\" is off by {worst:.4}");
    assert!(worst > 1e-3, "the mutant was not caught: off by {worst}");
    let shape = DraftShape::ChainWithSiblings { length: 2, siblings: 1 };
    let decoder = || speculative(&shape);
    assert_caught("a sibling has the draft token's key", &model_drafter, &decoder, &keys);
    struct Drawn;
    impl Drafter for Drawn {
        fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
            let shape = DraftShape::ChainWithSiblings { length: 1, siblings: 1 };
            let context = DraftContext { shape: &shape, ..*context };
            let draft = ModelDrafter::new(DRAFT_MODEL).draft(&context)?;
            let Proposal::SampledWithSiblings(rows) = draft.proposal else { panic!() };
            Ok(Draft { proposal: Proposal::Sampled(rows), ..draft })
        }

        fn release(&mut self, _sequence: SequenceId) {}
    }
    let drafter = || -> Box<dyn Drafter> { Box::new(Drawn) };
    let decoder = || speculative(&chain(1));
    assert_caught("a sibling is tested as drawn", &drafter, &decoder, &unchanged);
}

/// A chain with siblings is exact without PEARL, too.
#[test]
fn speculative_decoding_with_siblings_is_exact() {
    for siblings in [1, 2] {
        let shape = DraftShape::ChainWithSiblings { length: 2, siblings };
        let name = format!("speculative, model, {shape:?}");
        assert_exact(&name, &model_drafter, &|| speculative(&shape));
    }
}

/// Algorithm 2 of block verification for chains, written as in the paper, or with a mistake.
struct ExplicitBlock(BlockMistake);

#[derive(Clone, Copy, Debug, PartialEq)]
enum BlockMistake {
    None,
    /// The product of the ratios may exceed 1 on the way.
    NoMinimum,
    /// The threshold of each token is that of token-by-token verification.
    TokenThresholds,
    /// The tests stop at the first one that fails.
    StopsAtFirst,
    /// The correction is drawn from the residual of token-by-token verification.
    TokenResidual,
    /// The correction is drawn from the target's whole row.
    NoResidual,
}

impl Decoder for ExplicitBlock {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let mistake = self.0;
        let draft = draft(sequence, cluster, chain(2))?;
        let scores = scores(sequence, cluster, &draft)?;
        let (rows, tokens) = (&scores.rows, draft.tree.tokens());
        let Proposal::Sampled(proposed) = &draft.proposal else { panic!() };
        let position = sequence.tokens().len();

        let mut products = vec![1.0];
        for (index, &token) in tokens.iter().enumerate() {
            let ratio = rows[index].probability(token) / proposed[index].probability(token);
            let product = products[index] * ratio;
            products.push(if mistake == BlockMistake::NoMinimum {
                product
            } else {
                product.min(1.0)
            });
        }
        let mut accepted = 0;
        for length in 1..=tokens.len() {
            let product: f64 = products[length].min(1.0);
            let threshold = if mistake == BlockMistake::TokenThresholds {
                let (at, token) = (length - 1, tokens[length - 1]);
                rows[at].probability(token) / proposed[at].probability(token)
            } else if length == tokens.len() {
                product
            } else {
                let excess = |(token, target): (TokenId, f64)| {
                    (products[length] * target - proposed[length].probability(token)).max(0.0)
                };
                let excess: f64 = rows[length].iter().map(excess).sum();
                if product >= 1.0 { 1.0 } else { excess / (excess + 1.0 - product) }
            };
            let key = Key { position, purpose: Purpose::Accept, candidate: length as u32 };
            if threshold >= 1.0 || sequence.randomness().below(key, threshold) {
                accepted = length;
            } else if mistake == BlockMistake::StopsAtFirst {
                break;
            }
        }
        let rejected = accepted < tokens.len();
        let row = &rows[accepted];
        let rest = match mistake {
            _ if !rejected => None,
            BlockMistake::NoResidual => None,
            BlockMistake::TokenResidual => row.residual(&proposed[accepted]),
            _ => row.excess(products[accepted], &proposed[accepted]),
        };
        let key = Key { position: position + accepted, purpose: Purpose::Sample, candidate: 0 };
        let token = rest.as_ref().unwrap_or(row).pick(sequence.randomness(), key);
        let verdict = Verdict { accepted: (0..accepted).collect(), token: Some(token), rejected };
        sequence.commit(&draft, &verdict, &scores);
        Ok(())
    }
}

#[test]
fn mutants_of_block_verification() {
    let rule = Verification::Block;
    let with = |mistake| move || -> Box<dyn Decoder> { Box::new(ExplicitBlock(mistake)) };
    let worst = worst_deviation_with(rule, &model_drafter, &with(BlockMistake::None), &unchanged);
    assert!(worst < 1e-6, "the algorithm itself is off by {worst}");
    for mistake in [
        BlockMistake::NoMinimum,
        BlockMistake::TokenThresholds,
        BlockMistake::StopsAtFirst,
        BlockMistake::TokenResidual,
        BlockMistake::NoResidual,
    ] {
        let name = format!("block verification, {mistake:?}");
        assert_caught_with(rule, &name, &model_drafter, &with(mistake), &unchanged);
    }
}

/// The next round draws or tests a position with the number that has decided where this round ends.
#[test]
fn mutants_of_the_keys_of_block_verification() {
    let (rule, decoder) = (Verification::Block, || speculative(&chain(2)));
    assert!(worst_deviation_with(rule, &model_drafter, &decoder, &unchanged) < 1e-6);
    fn by_position(key: Key) -> Key {
        Key { position: key.position + key.candidate as usize, candidate: 0, ..key }
    }
    type Change = fn(Key) -> Key;
    let mutants: [(&str, Change); 2] = [
        ("draws", |key| if key.purpose == Purpose::Draft { by_position(key) } else { key }),
        ("tests", |key| if key.purpose == Purpose::Accept { by_position(key) } else { key }),
    ];
    for (name, change) in mutants {
        let keys = |enumerator| -> Arc<dyn Randomness + Send + Sync> {
            Arc::new(MutantKeys(enumerator, change))
        };
        let worst = worst_deviation_with(rule, &model_drafter, &decoder, &keys);
        println!("mutant \"keys of {name} by position\" is off by {worst:.4}");
        assert!(worst > 0.01, "the mutant was not caught: off by {worst}");
    }
}

/// Speculative decoding that applies the sampling options itself: to each row with the prefix of its own
/// path or, as mutants, to all rows with those of the prefix, or as if the prompt were part of the answer.
struct ExplicitSampling {
    target: TableModel,
    shape: DraftShape,
    own_path: bool,
    prompt_apart: bool,
}

impl Decoder for ExplicitSampling {
    fn step(
        &mut self,
        sequence: &mut Sequence,
        cluster: &mut dyn Cluster,
    ) -> Result<(), DecodeError> {
        let draft = draft(sequence, cluster, self.shape.clone())?;
        let (tokens, sampling) = (sequence.tokens(), sequence.sampling());
        let prompt_len = if self.prompt_apart { sequence.prompt_len() } else { 0 };
        let sampler = Sampler::new(sampling, tokens, prompt_len);
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

/// Returns the largest deviation over shapes and three targets, with one penalty.
fn worst_explicit_sampling(sampling: &Sampling, own_path: bool, prompt_apart: bool) -> f64 {
    let mut worst = 0.0_f64;
    for shape in [chain(2), top(2, 2), iid(&[2, 1])] {
        for target in (1..=3).map(target) {
            let decoder = || -> Box<dyn Decoder> {
                let shape = shape.clone();
                Box::new(ExplicitSampling { target, shape, own_path, prompt_apart })
            };
            let (drafter, sampling) = (&model_drafter, sampling.clone());
            let experiment = Experiment { target, ..Experiment::of(sampling, drafter, &decoder) };
            worst = worst.max(experiment.deviation());
        }
    }
    worst
}

#[test]
fn mutant_all_rows_of_a_tree_have_the_penalties_and_the_constraint_of_its_root() {
    let warm = || sampling(1.0, 0, 1.0);
    for sampling in [
        Sampling {
            options: SamplingOptions { repetition_penalty: 1.8, ..warm().options },
            ..warm()
        },
        Sampling {
            options: SamplingOptions { frequency_penalty: 1.2, ..warm().options },
            ..warm()
        },
        Sampling { options: SamplingOptions { presence_penalty: 1.5, ..warm().options }, ..warm() },
        Sampling { constraint: constraint(3), ..warm() },
    ] {
        assert!(worst_explicit_sampling(&sampling, true, true) < 1e-6, "{sampling:?}");
        let worst = worst_explicit_sampling(&sampling, false, true);
        println!("mutant \"options of the root\" is off by {worst:.4}: {sampling:?}");
        assert!(worst > 1e-3, "the mutant was not caught: off by {worst}, {sampling:?}");
    }
}

#[test]
fn mutant_the_prompt_counts_as_part_of_the_answer() {
    let sampling = Sampling {
        options: SamplingOptions { frequency_penalty: 0.5, ..sampling(1.0, 0, 1.0).options },
        ..sampling(1.0, 0, 1.0)
    };
    let worst = worst_explicit_sampling(&sampling, true, false);
    println!("mutant \"prompt counted\" is off by {worst:.4}");
    assert!(worst > 1e-3, "the mutant was not caught: off by {worst}");
}

/// The harness of the mutants is exact without a mutation, so the mutations are what is caught.
#[test]
fn the_harness_of_mutants_is_exact_without_mutations() {
    let keys = |enumerator| -> Arc<dyn Randomness + Send + Sync> {
        Arc::new(MutantKeys(enumerator, |key| key))
    };
    let drafter = || -> Box<dyn Drafter> { Box::new(MutantDrafter(|draft, _| draft)) };
    for shape in [chain(1), chain(2), top(2, 2), iid(&[2])] {
        assert!(worst_deviation(&drafter, &|| speculative(&shape), &keys) < 1e-6, "{shape:?}");
        let rule = Verification::Rejection;
        let probability = certified(rule, &drafter, &|| speculative(&shape), &keys);
        assert!(probability > 1e-3, "{shape:?}: p = {probability}");
    }
    let decoder = || -> Box<dyn Decoder> { Box::new(ExplicitVerification { subtract: true }) };
    assert!(worst_deviation(&model_drafter, &decoder, &unchanged) < 1e-6);
}

// ---------------------------------------------------------------------------------------------
// DSpark: heads that correct a block position by position

use forerun_lm::{BlockCorrection, BlockPosition, ForwardBlockHeads};

/// A drafter's table that returns a number for each row of a block as its hidden state.
struct BlockTable(FeatureTable);

impl LanguageModel for BlockTable {
    fn vocab_size(&self) -> usize {
        self.0.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.0.context_length()
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| {
            let output = self.0.logits(request)?;
            let last = &request.tokens[request.tokens.len() - 1..];
            let hidden = |at| self.0.0.row(&row_prefix(last, request.tree, at))[0];
            let hidden: Vec<f32> = rows_of(request.tree).map(hidden).collect();
            let features = request.features_from.map(|_| FeatureRows::new(1, hidden.clone()));
            Ok(ForwardOutput { features, ..output })
        });
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

impl FeatureModel for BlockTable {}

/// Heads whose state is a number that depends on all tokens of the block so far. Some of their confidences end a draft.
struct TableHeads {
    table: TableModel,
    is_recurrent: bool,
}

impl ForwardBlockHeads for TableHeads {
    fn is_recurrent(&self) -> bool {
        self.is_recurrent
    }

    fn forward(&mut self, positions: &[BlockPosition<'_>]) -> Vec<BlockCorrection> {
        let correction = |position: &BlockPosition<'_>| {
            let BlockPosition { hidden, previous, state, .. } = *position;
            let state = state.first().map_or(0, |state| *state as TokenId);
            let row = self.table.row(&[hidden[0].to_bits(), previous, state]);
            let confidence = if row[0] > 0.75 { 0.05 } else { 0.6 };
            let next = (3 * state + previous + 1) as f32;
            let state = if self.is_recurrent { vec![next] } else { Vec::new() };
            BlockCorrection { logit_bias: row, confidence, state }
        };
        positions.iter().map(correction).collect()
    }
}

fn dspark(masks: &Masks, is_recurrent: bool) -> Box<dyn Drafter> {
    let drafter = ParallelEagleDrafter::new(BlockTable(FeatureTable(DRAFT_MODEL)), masks.clone());
    let table = TableModel::new(11, VOCAB, 3.0);
    Box::new(drafter.with_heads(Box::new(TableHeads { table, is_recurrent })))
}

#[test]
fn blocks_with_heads_are_exact() {
    let anchored = |size| Masks::AnchoredBlock { mask: 1, size };
    for (name, masks, is_recurrent) in [
        ("dspark", anchored(3), false),
        ("recurrent dspark", anchored(3), true),
        ("recurrent dspark in place", Masks::Block { mask: 1, size: 4 }, true),
    ] {
        let drafter = || dspark(&masks, is_recurrent);
        for shape in [chain(1), chain(2), top(2, 2), ranked(&[2, 1]), best(3), iid(&[2, 1])] {
            let name = format!("speculative, {name}, {shape:?}");
            assert_exact_of(&name, &drafter, &|| speculative(&shape), (3, true));
        }
    }
    for (name, size) in [("dspark", 7), ("dspark with a short block", 3)] {
        assert_pearl_on_features_is_exact(name, &|| dspark(&anchored(size), true));
    }
}

/// Heads end some drafts, and change their tokens.
#[test]
fn heads_make_a_difference() {
    let features = |tokens: &[TokenId]| {
        let mut features = forerun_core::Features::new();
        let rows = tokens.iter().map(|&token| token as f32).collect();
        features.push(FeatureRows::new(1, rows));
        features
    };
    let draft = |drafter: &mut dyn Drafter, tokens: &[TokenId]| {
        let sampling = Sampling::greedy();
        let context = DraftContext {
            sequence: SequenceId(0),
            tokens,
            prompt_len: 1,
            sampling: &sampling,
            randomness: &sampling.randomness,
            shape: &chain(3),
            feedback: &TargetFeedback { features: features(tokens), last_draft: None },
            cancel: &std::sync::atomic::AtomicBool::new(false),
            tokens_on_last_device: None,
        };
        drafter.draft(&context).unwrap().tree.tokens().to_vec()
    };
    let masks = Masks::AnchoredBlock { mask: 1, size: 3 };
    let mut plain = ParallelEagleDrafter::new(BlockTable(FeatureTable(DRAFT_MODEL)), masks.clone());
    let [mut shorter, mut longest, mut other] = [0; 3];
    for number in 0..27 {
        let tokens = [number / 9, number / 3 % 3, number % 3];
        let (with, without) =
            (draft(&mut *dspark(&masks, true), &tokens), draft(&mut plain, &tokens));
        assert_eq!(without.len(), 3);
        shorter += usize::from(with.len() < 3);
        longest += usize::from(with.len() == 3);
        other += usize::from(!without.starts_with(&with));
    }
    assert!(shorter > 3 && longest > 3 && other > 3, "{shorter}, {longest}, {other}");
}

/// The proposal's distributions are those before the bias.
#[test]
fn mutant_proposals_without_the_bias_of_the_heads() {
    struct Uncorrected;

    impl Drafter for Uncorrected {
        fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
            let masks = Masks::AnchoredBlock { mask: 1, size: 3 };
            let mut plain =
                ParallelEagleDrafter::new(BlockTable(FeatureTable(DRAFT_MODEL)), masks.clone());
            let draft = dspark(&masks, false).draft(context)?;
            let Proposal::Sampled(mut rows) = plain.draft(context)?.proposal else {
                return Ok(draft);
            };
            rows.resize(draft.tree.len() + 1, Distribution::default());
            rows[draft.tree.len()] = Distribution::default();
            Ok(Draft { proposal: Proposal::Sampled(rows), ..draft })
        }

        fn release(&mut self, _sequence: SequenceId) {}
    }

    let decoder = || speculative(&chain(1));
    let drafter = || -> Box<dyn Drafter> { Box::new(Uncorrected) };
    let off = |drafter: Make<'_>| {
        let experiment = Experiment::of(sampling(1.0, 0, 1.0), drafter, &decoder);
        Experiment { tokens: 3, features: true, ..experiment }.deviation()
    };
    let deviation = off(&drafter);
    println!("mutant \"bias left out\" is off by {deviation:.4}");
    assert!(deviation > 1e-3, "the mutant was not caught: off by {deviation}");
    assert!(off(&|| dspark(&Masks::AnchoredBlock { mask: 1, size: 3 }, false)) < 1e-6);
}
