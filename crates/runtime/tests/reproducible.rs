//! Reproducible decoders: with rejection sampling, the text of a seed does not depend on which
//! device finishes first.

use forerun_core::{
    Cluster, ClusterError, Completion, Constraint, DraftShape, Job, Key, KeyedRandomness, Outcome,
    Purpose, Randomness, Role, Sampling, SamplingOptions, SequenceId, Ticket, TokenId,
    Verification, reference,
};
use forerun_decode::{
    Decoder, DecoderOptions, DraftLength, DraftPattern, Dsi, DsiLookahead, Limits, METHODS, Pearl,
    PearlDraftLength, PearlOptions, PearlSchedule, Sequence, Speculative, SpeculativeDraftLength,
    Ssd, Statistics, TreeLimits, generate,
};
use forerun_draft::{
    CalibrationPolicy, Drafter, LayerParallelDrafter, ModelDrafter, PromptLookup, SuffixDrafter,
};
use forerun_lm::fake::TableModel;
use forerun_lm::{
    BatchEntry, ForwardOutput, ForwardRequest, LanguageModel, LayerGroups, LayerOrder,
    LayeredModel, ModelError, complete_each,
};
use forerun_runtime::{Engine, InlineCluster};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

const VOCAB: usize = 3;
const REPLICAS: usize = 3;

/// A model with a small vocabulary that reads two tokens, so that its text repeats itself.
fn table(seed: u64) -> TableModel {
    TableModel { history: 2, ..TableModel::new(seed, VOCAB, 12.0) }
}

/// A fake layer-parallel model. A row depends on which rows before it are exact, and the model
/// keeps track of these like a cache.
#[derive(Default)]
struct LayerParallelTable {
    held: Vec<(TokenId, bool)>,
}

impl LanguageModel for LayerParallelTable {
    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn context_length(&self) -> usize {
        1_000
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| self.answer(request));
    }

    fn release(&mut self, _sequence: SequenceId) {
        self.held.clear();
    }
}

impl LayeredModel for LayerParallelTable {}

impl LayerParallelTable {
    fn answer(&mut self, context: &ForwardRequest<'_>) -> Result<ForwardOutput, ModelError> {
        if context.order == LayerOrder::Sequential {
            return table(9).logits(context);
        }
        let exact = context.exact_tokens;
        let tokens = context.tokens;
        let agrees = |(held, token): &(&(TokenId, bool), &TokenId)| held.0 == **token;
        let same = self.held.iter().zip(tokens).take_while(agrees).count();
        self.held.truncate(same);
        let first_approximate =
            self.held.iter().position(|&(_, is_exact)| !is_exact).unwrap_or(same);
        if first_approximate < exact.min(tokens.len()) {
            self.held.truncate(first_approximate);
        }
        let new = (self.held.len()..tokens.len()).map(|at| (tokens[at], at < exact));
        self.held.extend(new);
        let approximate = self.held.iter().map(|&(_, is_exact)| u64::from(!is_exact));
        let seed = approximate
            .fold(9, |hash: u64, approximate| hash.wrapping_mul(31).wrapping_add(approximate))
            >> 8;
        table(seed % 1_000).logits(context)
    }
}

/// A cluster in which the order and the durations of jobs depend on the seed, as with devices of
/// varying speed.
struct ShuffledCluster {
    cluster: InlineCluster,
    seed: u64,
}

impl Cluster for ShuffledCluster {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        self.cluster.submit(on, job)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.cluster.cancel(ticket);
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        let completion = self.cluster.next_completion()?;
        let randomness = KeyedRandomness { seed: self.seed, sample: 1 };
        let position = completion.ticket.0 as usize;
        let key = Key { position, purpose: Purpose::Sample, candidate: 0 };
        let duration_ns = (randomness.uniform(key) * 200_000.0) as u64;
        Ok(Completion { finished_ns: completion.started_ns + duration_ns, ..completion })
    }

    fn observe(&mut self, outcome: Outcome) {
        self.cluster.observe(outcome);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.cluster.release(sequence);
    }
}

fn generate_with_drafter(
    decoder: &mut dyn Decoder,
    drafter: impl Drafter + 'static,
    constraint: Option<&Constraint>,
    seed: u64,
) -> Vec<TokenId> {
    let engine = Engine::new().with_drafter(0, drafter);
    generated(decoder, engine, seed, Verification::Rejection, constraint).0
}

/// Returns no constraint, and one that determines runs of tokens.
fn constraints() -> [Option<Constraint>; 2] {
    [None, Some(reference::Runs { vocab_size: VOCAB as TokenId }.constraint())]
}

/// Generates a text with the engine's drafters and [`REPLICAS`] replicas of the target.
fn generate_with_engine(decoder: &mut dyn Decoder, drafters: Engine, seed: u64) -> Vec<TokenId> {
    generated(decoder, drafters, seed, Verification::Rejection, None).0
}

fn generated(
    decoder: &mut dyn Decoder,
    drafters: Engine,
    seed: u64,
    verification: Verification,
    constraint: Option<&Constraint>,
) -> (Vec<TokenId>, Statistics) {
    let engine = (0..REPLICAS).fold(drafters, |engine, index| engine.with_target(index, table(1)));
    let randomness = KeyedRandomness { seed: 11, sample: 0 };
    let sampling = Sampling {
        options: SamplingOptions { temperature: 1.0, ..SamplingOptions::default() },
        verification,
        randomness,
        constraint: constraint.cloned(),
        ..Sampling::greedy()
    };
    let randomness: Arc<dyn Randomness + Send + Sync> = Arc::new(randomness);
    let cluster = InlineCluster::new(engine, randomness).with_random_order(seed);
    let mut cluster = ShuffledCluster { cluster, seed };
    let limits = Limits { max_tokens: 80, context_length: 1_000, eos: Vec::new() };
    let mut sequence = Sequence::new(SequenceId(0), vec![1], sampling, limits);
    generate(decoder, &mut sequence, &mut cluster, |_| ControlFlow::Continue(())).unwrap();
    (sequence.generated().to_vec(), sequence.statistics().clone())
}

/// Asserts that a decoder generates the same text for many orders of jobs, with every kind of
/// drafter, with and without tokens that a constraint determines.
fn assert_one_text(name: &str, decoder: &dyn Fn() -> Box<dyn Decoder>) {
    for constraint in constraints() {
        let constraint = constraint.as_ref();
        let name = format!("{name}, {constraint:?}");
        let assert_one_text_of = |drafter_name: &str, drafter: &dyn Fn() -> Box<dyn Drafter>| {
            let texts = (0..60)
                .map(|order| generate_with_drafter(&mut *decoder(), drafter(), constraint, order));
            assert_eq!(texts.collect::<BTreeSet<_>>().len(), 1, "{name}, {drafter_name}");
        };
        assert_one_text_of("model", &|| Box::new(ModelDrafter::new(table(9))));
        assert_one_text_of("prompt-lookup", &|| Box::new(PromptLookup));
        assert_one_text_of("suffix", &|| Box::new(SuffixDrafter::new()));
        for (calibration, round) in [
            (CalibrationPolicy::EveryRound, 1),
            (CalibrationPolicy::EveryRound, 5),
            (CalibrationPolicy::Never, 5),
        ] {
            let drafter_name = format!("easyspec {calibration} in rounds of {round}");
            assert_one_text_of(&drafter_name, &|| {
                let groups = LayerGroups::of_sizes(&[2]);
                let drafter =
                    LayerParallelDrafter::new(LayerParallelTable::default(), groups, calibration);
                Box::new(drafter.with_round_length(round))
            });
        }
    }
}

#[test]
fn pearls_text_does_not_depend_on_the_order_of_jobs() {
    for options in [
        "eager",
        "paper",
        "eager,no-pre-verify",
        "eager,no-post-verify",
        "paper,no-pre-verify",
        "eager,no-pre-verify,no-post-verify",
    ] {
        for length in [1, 3, 4] {
            let options: PearlOptions = options.parse().unwrap();
            let continues = options.schedule == PearlSchedule::Eager;
            let name = format!("pearl {options}, {length} tokens");
            assert_one_text(&name, &|| {
                let draft_length = PearlDraftLength::new(length, DraftLength::Fixed, continues);
                Box::new(Pearl::new(options, draft_length).reproducible())
            });
        }
    }
}

/// A prepared draft is the one that would be made after the verdict. So the text is that of
/// speculative decoding, whether drafts are prepared in time or not.
#[test]
fn ssds_text_is_that_of_speculative_decoding() {
    let draft_length =
        |length| SpeculativeDraftLength::new(DraftShape::Chain { length }, DraftLength::Fixed);
    let rules = [Verification::Rejection, Verification::Block].into_iter();
    for (verification, constraint) in
        rules.flat_map(|rule| constraints().map(|constraint| (rule, constraint)))
    {
        for length in [1, 3, 4] {
            let drafters: [&dyn Fn() -> Engine; 4] = [
                &|| Engine::new().with_drafter(0, ModelDrafter::new(table(9))),
                &|| Engine::new().with_drafter(0, PromptLookup),
                &|| Engine::new().with_drafter(0, SuffixDrafter::new()),
                &|| {
                    let (model, groups) =
                        (LayerParallelTable::default(), LayerGroups::of_sizes(&[2]));
                    let policy = CalibrationPolicy::EveryRound;
                    let drafter = LayerParallelDrafter::new(model, groups, policy);
                    Engine::new().with_drafter(0, drafter)
                },
            ];
            for (number, drafter) in drafters.into_iter().enumerate() {
                let mut speculative = Speculative::new(draft_length(length));
                let generated = |decoder: &mut dyn Decoder, order| {
                    generated(decoder, drafter(), order, verification, constraint.as_ref())
                };
                let (expected, _) = generated(&mut speculative, 0);
                let mut prepared = 0;
                for order in 0..40 {
                    let mut ssd =
                        Ssd::new(draft_length(length)).with_verdicts(1 + order as usize % 6);
                    let (tokens, of) = generated(&mut ssd, order);
                    assert_eq!(tokens, expected, "{verification:?}, {length}, drafter {number}");
                    prepared += of.prepared;
                }
                assert!(prepared > 40, "{verification:?}, {length}, drafter {number}: {prepared}");
            }
        }
    }
}

/// The automatic length of speculative decoding follows the acceptance and the sizes of the models,
/// and no clock.
#[test]
fn automatic_lengths_do_not_follow_the_clock() {
    let method = METHODS.iter().find(|entry| entry.name == "speculative").unwrap();
    let options = |reproducible, pass_per_mille, trees| DecoderOptions {
        reproducible,
        pattern: DraftPattern { pass_per_mille, ..DraftPattern::default() },
        trees,
        ..DecoderOptions::new(DraftShape::Chain { length: 8 }, DraftLength::Auto)
    };
    for pass_per_mille in [0, 10, 100, 400] {
        let options = options(true, pass_per_mille, None);
        let name = format!("speculative, auto, {pass_per_mille} per mille");
        assert_one_text(&name, &|| (method.decoder)(&options));
    }
    let in_one_forward = DecoderOptions {
        pattern: DraftPattern { pass_per_mille: 100, ..DraftPattern::in_one_forward(None) },
        lookup: Some(|| Box::new(SuffixDrafter::new())),
        ..options(true, 100, None)
    };
    assert_one_text("speculative, one forward, lookup", &|| (method.decoder)(&in_one_forward));
    let growing = options(true, 100, Some(TreeLimits { depth: 5, nodes: 12 }));
    assert_one_text("speculative, growing trees", &|| (method.decoder)(&growing));
    // By measured times, the lengths differ, and so do the texts.
    let measured = options(false, 100, None);
    let texts = (0..60).map(|order| {
        let drafter = ModelDrafter::new(table(9));
        generate_with_drafter(&mut *(method.decoder)(&measured), drafter, None, order)
    });
    assert!(texts.collect::<BTreeSet<_>>().len() > 1);
}

#[test]
fn a_drafter_that_reads_as_much_as_the_target_drafts_rarely() {
    let method = METHODS.iter().find(|entry| entry.name == "speculative").unwrap();
    let drafted = |pass_per_mille| {
        let options = DecoderOptions {
            reproducible: true,
            pattern: DraftPattern { pass_per_mille, ..DraftPattern::default() },
            ..DecoderOptions::new(DraftShape::Chain { length: 8 }, DraftLength::Auto)
        };
        let engine = Engine::new().with_drafter(0, ModelDrafter::new(table(9)));
        let mut decoder = (method.decoder)(&options);
        generated(&mut *decoder, engine, 0, Verification::Rejection, None).1.draft_tokens
    };
    let [little, as_much] = [20, 1_000].map(drafted);
    assert!(little > 3 * as_much, "{little} {as_much}");
}

#[test]
fn dsis_text_does_not_depend_on_the_order_of_jobs() {
    for (replicas, length) in [(1, 1), (1, 4), (2, 3), (3, 1), (3, 4)] {
        assert_one_text(&format!("dsi, {replicas} replicas, lookahead {length}"), &|| {
            let lookahead = DsiLookahead::new(length, DraftLength::Fixed, replicas);
            Box::new(Dsi::new(replicas, lookahead).reproducible())
        });
    }
}

#[test]
fn dsis_text_with_several_drafters_does_not_depend_on_the_order_of_jobs() {
    for (replicas, length) in [(1, 1), (2, 2), (3, 1), (3, 4)] {
        for calibration in [CalibrationPolicy::EveryRound, CalibrationPolicy::Never] {
            let texts = (0..60).map(|order| {
                let groups = LayerGroups::of_sizes(&[2]);
                let approximate =
                    LayerParallelDrafter::new(LayerParallelTable::default(), groups, calibration);
                let engine = Engine::new()
                    .with_drafter(0, ModelDrafter::new(table(9)))
                    .with_drafter(1, PromptLookup)
                    .with_drafter(2, ModelDrafter::new(table(4)))
                    .with_drafter(3, approximate.with_round_length(5));
                let lookahead = DsiLookahead::new(length, DraftLength::Fixed, replicas);
                let mut decoder = Dsi::new(replicas, lookahead).with_drafters(4).reproducible();
                generate_with_engine(&mut decoder, engine, order)
            });
            let texts = texts.collect::<BTreeSet<_>>();
            let name = format!("dsi, {replicas} replicas, lookahead {length}, {calibration}");
            assert_eq!(texts.len(), 1, "{name}");
        }
    }
}
