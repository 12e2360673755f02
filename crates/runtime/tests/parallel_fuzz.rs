//! Randomised tests of speculative decoding, PEARL and DSI: with jobs in any order and of any
//! duration; with drafters that fail, have a short context or a small vocabulary, or find nothing;
//! with replicas that fail; with answers that end anywhere; and with constraints that determine
//! tokens.

use forerun_core::testing::env_number;
use forerun_core::{
    Cluster, ClusterError, Completion, Draft, DraftShape, Job, JobError, KeyedRandomness, Outcome,
    Role, Sampling, SamplingOptions, SequenceId, Ticket, TokenId, Verification, reference,
};
use forerun_decode::{
    Autoregressive, DecodeError, Decoder, DraftLength, Dsi, DsiLookahead, Limits, Pearl,
    PearlDraftLength, PearlSchedule, Sequence, Speculative, SpeculativeDraftLength, Ssd,
    TreeLimits, generate,
};
use forerun_draft::{DraftContext, Drafter, ModelDrafter, PromptLookup};
use forerun_lm::fake::TableModel;
use forerun_lm::{
    BatchEntry, ForwardOutput, ForwardRequest, LanguageModel, ModelError, complete_each,
};
use forerun_runtime::testing::Dice;
use forerun_runtime::{Engine, InlineCluster};
use std::ops::ControlFlow;
use std::sync::Arc;

/// A model that reads two tokens, and fails in one of `fails_one_in` calls (0: never).
#[derive(Clone, Copy)]
struct FlakyModel {
    model: TableModel,
    fails_one_in: usize,
    dice: Dice,
}

impl FlakyModel {
    fn new(seed: u64, vocab_size: usize, context_length: usize, dice: &Dice) -> Self {
        let model =
            TableModel { history: 2, context_length, ..TableModel::new(seed, vocab_size, 6.0) };
        Self { model, fails_one_in: 0, dice: *dice }
    }
}

impl FlakyModel {
    fn answer(&mut self, context: &ForwardRequest<'_>) -> Result<ForwardOutput, ModelError> {
        let ForwardRequest { tokens, tree, .. } = *context;
        let (len, longest) = (tokens.len() + tree.max_depth(), self.model.context_length);
        assert!(!tokens.is_empty() && len <= longest, "{len} of {longest}");
        let mut all = tokens.iter().chain(tree.tokens());
        assert!(all.all(|&token| (token as usize) < self.model.vocab_size));
        if self.fails_one_in > 0 && self.dice.one_in(self.fails_one_in) {
            return Err(ModelError::Empty);
        }
        self.model.logits(context)
    }
}

impl LanguageModel for FlakyModel {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size
    }

    fn context_length(&self) -> usize {
        self.model.context_length
    }

    fn forward(&mut self, batch: &mut [BatchEntry<'_>]) {
        complete_each(batch, |request| self.answer(request));
    }

    fn release(&mut self, _sequence: SequenceId) {}
}

/// A drafter that sometimes drafts fewer tokens than requested, or none.
struct UnreliableDrafter {
    drafter: Box<dyn Drafter>,
    dice: Dice,
}

impl Drafter for UnreliableDrafter {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        match self.dice.below(4) {
            0 => Ok(Draft::empty()),
            1 => {
                let shape = &context.shape.truncated(1);
                self.drafter.draft(&DraftContext { shape, ..*context })
            }
            _ => self.drafter.draft(context),
        }
    }

    fn release(&mut self, sequence: SequenceId) {
        self.drafter.release(sequence);
    }
}

/// A cluster in which the order and the durations of jobs depend on the seed. It also checks that a
/// decoder reports outcomes only for completed tickets.
struct ShuffledCluster {
    cluster: InlineCluster,
    dice: Dice,
    /// Roles that lose their worker after a number of submissions.
    lost_workers: Vec<(Role, u64)>,
    submitted: u64,
    completed: Vec<Ticket>,
}

impl Cluster for ShuffledCluster {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        self.submitted += 1;
        if self.lost_workers.iter().any(|&(role, at)| role == on && self.submitted > at) {
            return Err(ClusterError::WorkerGone(on));
        }
        self.cluster.submit(on, job)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.cluster.cancel(ticket);
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        let completion = self.cluster.next_completion()?;
        self.completed.push(completion.ticket);
        let duration_ns = self.dice.below(300_000) as u64;
        Ok(Completion { finished_ns: completion.started_ns + duration_ns, ..completion })
    }

    fn observe(&mut self, outcome: Outcome) {
        assert!(self.completed.contains(&outcome.ticket), "{outcome:?}");
        self.cluster.observe(outcome);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.cluster.release(sequence);
    }
}

struct Scenario {
    target: FlakyModel,
    limits: Limits,
    prompt: Vec<TokenId>,
    sampling: Sampling,
    logprobs: Option<usize>,
}

impl Scenario {
    fn new(dice: &mut Dice) -> Self {
        let vocab_size = 3 + dice.below(4);
        let context = 4 + dice.below(40);
        let target = FlakyModel::new(1, vocab_size, context, dice);
        let prompt_len = 1 + dice.below(3);
        let prompt = (0..prompt_len).map(|_| dice.below(vocab_size) as TokenId).collect();
        let eos = if dice.one_in(2) { vec![dice.below(vocab_size) as TokenId] } else { vec![] };
        let max_tokens = 1 + dice.below(30);
        let limits = Limits { max_tokens, context_length: context, eos };
        let penalty = |dice: &mut Dice| if dice.one_in(3) { 0.7 } else { 0.0 };
        let sampling = Sampling {
            options: SamplingOptions {
                temperature: if dice.one_in(2) { 0.0 } else { 1.0 },
                frequency_penalty: penalty(dice),
                presence_penalty: penalty(dice),
                repetition_penalty: 1.0 + penalty(dice),
                ..SamplingOptions::default()
            },
            dry_breakers: Arc::default(),
            adapter: None,
            verification: Verification::Coupled,
            randomness: KeyedRandomness { seed: dice.below(9) as u64, sample: 0 },
            constraint: dice
                .one_in(3)
                .then(|| reference::Runs { vocab_size: vocab_size as TokenId }.constraint()),
        };
        let logprobs = dice.one_in(2).then_some(2);
        Self { target, limits, prompt, sampling, logprobs }
    }

    fn sequence(&self) -> Sequence {
        let (prompt, sampling) = (self.prompt.clone(), self.sampling.clone());
        let sequence = Sequence::new(SequenceId(0), prompt, sampling, self.limits.clone());
        self.logprobs.iter().fold(sequence, |sequence, &top| sequence.with_logprobs(top))
    }

    fn autoregressive(&self) -> Sequence {
        let engine = Engine::new().with_target(0, self.target);
        let mut cluster = InlineCluster::new(engine, Arc::new(self.sampling.randomness));
        let mut sequence = self.sequence();
        let keep_going = |_: &[_]| ControlFlow::Continue(());
        generate(&mut Autoregressive, &mut sequence, &mut cluster, keep_going).unwrap();
        sequence
    }

    fn drafter(&self, dice: &mut Dice, fails_one_in: usize) -> Box<dyn Drafter> {
        let target = self.target.model;
        let seed = if dice.one_in(2) { target.seed } else { 5 };
        let vocab_size = (target.vocab_size + dice.below(3)).max(4) - 1;
        let context = if dice.one_in(2) { 1 + dice.below(20) } else { 90 };
        let model = FlakyModel { fails_one_in, ..FlakyModel::new(seed, vocab_size, context, dice) };
        let model = ModelDrafter::new(model).with_vocab_size(target.vocab_size);
        let drafter: Box<dyn Drafter> =
            if dice.one_in(3) { Box::new(PromptLookup) } else { Box::new(model) };
        if dice.one_in(3) { Box::new(UnreliableDrafter { drafter, dice: *dice }) } else { drafter }
    }
}

fn decoder(dice: &mut Dice, replicas: usize, drafters: usize) -> (Box<dyn Decoder>, String) {
    let mode = if dice.one_in(2) { DraftLength::Fixed } else { DraftLength::Auto };
    let (length, reproducible) = (1 + dice.below(6), dice.one_in(3));
    if replicas > 0 {
        let dsi = Dsi::new(replicas, DsiLookahead::new(length, mode, replicas));
        let dsi = dsi.with_drafters(drafters);
        let name = format!(
            "dsi, {replicas} replicas, {drafters} drafters, {length} {mode:?}, {reproducible}"
        );
        return (Box::new(if reproducible { dsi.reproducible() } else { dsi }), name);
    }
    if dice.one_in(3) {
        if dice.one_in(4) && mode == DraftLength::Auto {
            let limits = TreeLimits { depth: length, nodes: 12 };
            let policy = SpeculativeDraftLength::new(DraftShape::Chain { length }, mode);
            let name = format!("speculative, growing trees {limits:?}");
            return (Box::new(Speculative::new(policy.growing_trees(limits))), name);
        }
        let shape = match dice.below(4) {
            2 => DraftShape::Ranked { children: vec![2, 1, 0, 2] },
            0 => DraftShape::Top { width: 2, depth: length, budget: Some(5) },
            1 => DraftShape::Sampled { branching: vec![2, 1] },
            _ => DraftShape::Chain { length },
        };
        let name = format!("speculative {shape:?}, {mode:?}");
        return (Box::new(Speculative::new(SpeculativeDraftLength::new(shape, mode))), name);
    }
    if dice.one_in(4) {
        let draft_length = SpeculativeDraftLength::new(DraftShape::Chain { length }, mode);
        let verdicts = dice.below(12);
        let ssd = Ssd::new(draft_length).with_verdicts(verdicts);
        return (Box::new(ssd), format!("ssd, {length} {mode:?}, {verdicts} verdicts"));
    }
    let options = forerun_decode::PearlOptions {
        schedule: if dice.one_in(2) { PearlSchedule::Eager } else { PearlSchedule::Paper },
        pre_verify: !dice.one_in(3),
        post_verify: !dice.one_in(3),
    };
    let pearl = Pearl::new(options, PearlDraftLength::new(length, mode, dice.one_in(2)));
    let name = format!("pearl {options}, {length} {mode:?}, {reproducible}");
    (Box::new(if reproducible { pearl.reproducible() } else { pearl }), name)
}

fn check(seed: u64) {
    let mut dice = Dice::new(seed);
    let scenario = Scenario::new(&mut dice);
    let expected = scenario.autoregressive();
    let replicas = dice.below(4);
    // Whether drafters and targets fail.
    let (drafter_fails, target_fails) = (dice.one_in(5), dice.one_in(5));
    let drafters = if replicas > 0 { 1 + dice.below(3) } else { 1 };
    let mut engine = Engine::new();
    for index in 0..drafters {
        let drafter = scenario.drafter(&mut dice, if drafter_fails { 9 } else { 0 });
        engine = engine.with_drafter(index, BoxedDrafter(drafter));
        dice.below(2);
    }
    for index in 0..replicas.max(1) {
        let broken = target_fails && (index > 0 || replicas < 2);
        let fails_one_in = if broken { 6 } else { 0 };
        engine = engine.with_target(index, FlakyModel { fails_one_in, dice, ..scenario.target });
        dice.below(2);
    }
    let cluster = InlineCluster::new(engine, Arc::new(scenario.sampling.randomness));
    let mut lost_workers = Vec::new();
    if dice.one_in(5) {
        let index = dice.below(3);
        let role = if dice.one_in(2) { Role::Drafter(index) } else { Role::Target(index) };
        lost_workers.push((role, dice.below(30) as u64));
    }
    // Whether these failures may end the answer with an error. Those of drafters never do.
    let is_lost = |lost: Role| lost_workers.iter().any(|&(role, _)| role == lost);
    let may_end = match replicas {
        0 | 1 => target_fails || is_lost(Role::Target(0)),
        // Target 0 never fails by itself.
        _ => target_fails && is_lost(Role::Target(0)),
    };
    let mut cluster = ShuffledCluster {
        cluster: cluster.with_random_order(dice.below(1_000) as u64),
        dice,
        lost_workers,
        submitted: 0,
        completed: Vec::new(),
    };
    let (mut decoder, name) = decoder(&mut dice, replicas, drafters);
    let name = format!("seed {seed}: {name}");
    let mut sequence = scenario.sequence();
    let stop_at = if dice.one_in(4) { dice.below(20) } else { usize::MAX };
    let mut seen = 0;
    let outcome = generate(&mut *decoder, &mut sequence, &mut cluster, |tokens| {
        seen += tokens.len();
        if seen >= stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    decoder.stop(&mut cluster);

    // The committed tokens are those of the target, and complete unless something may end the
    // answer.
    let len = sequence.tokens().len();
    assert_eq!(sequence.tokens(), &expected.tokens()[..len], "{name}");
    let logprobs = expected.logprobs().map(|all| &all[..sequence.generated().len()]);
    assert_eq!(sequence.logprobs(), logprobs, "{name}");
    match &outcome {
        Ok(_) => assert!(len == expected.tokens().len() || seen >= stop_at, "{name}"),
        Err(DecodeError::Cluster(ClusterError::Idle)) => panic!("{name}: idle"),
        Err(error) => assert!(may_end, "{name}: {error}"),
    }
    // The statistics agree with the committed tokens.
    let statistics = sequence.statistics();
    assert_eq!(statistics.committed, sequence.generated().len() as u64, "{name}");
    let pairs = statistics.accepted.iter().zip(&statistics.tested);
    assert!(pairs.clone().all(|(accepted, tested)| accepted <= tested), "{name}");
    let accepted: u64 = statistics.accepted.iter().sum();
    assert!(accepted <= statistics.draft_tokens, "{name}");
    assert!(statistics.committed - accepted <= statistics.target_forwards, "{name}");
    assert!(statistics.drafts <= statistics.target_forwards, "{name}");
    // Each failed drafter or replica is reported once.
    let mut failures = statistics.failures.clone();
    failures.dedup_by_key(|failure| failure.split(" failed").next().unwrap_or_default().to_owned());
    assert_eq!(failures, statistics.failures, "{name}");
    let may_fail = drafter_fails || target_fails || !cluster.lost_workers.is_empty();
    assert!(may_fail || failures.is_empty(), "{name}: {failures:?}");
    // All remaining jobs are cancelled.
    let is_running = |completion: &Completion| completion.output != Err(JobError::Cancelled);
    let left = std::iter::from_fn(|| cluster.next_completion().ok()).filter(is_running).count();
    assert!(left == 0, "{name}: {left} jobs were not cancelled, {outcome:?}");
}

struct BoxedDrafter(Box<dyn Drafter>);

impl Drafter for BoxedDrafter {
    fn draft(&mut self, context: &DraftContext<'_>) -> Result<Draft, ModelError> {
        self.0.draft(context)
    }

    fn release(&mut self, sequence: SequenceId) {
        self.0.release(sequence);
    }
}

#[test]
fn the_text_equals_the_targets_and_no_job_remains() {
    let first = env_number("FORERUN_CASE_SEED", 0);
    for seed in first..first + env_number("FORERUN_CASES", 4_000) {
        check(seed);
    }
}
