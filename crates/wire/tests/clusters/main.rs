//! The production decoders give the same results through byte channels as on the cluster itself:
//! the same jobs, completions, texts, log-probabilities and statistics. The worker's end forgets
//! what it holds at random.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod feature_models;
mod wire_cluster;

use common::Choices;
use feature_models::{FeatureTable, TargetWithFeatures};
use forerun_core::testing::cases;
use forerun_core::{
    Cluster, ClusterError, Completion, DraftShape, Job, KeyedRandomness, Outcome, Role, Sampling,
    SamplingOptions, SequenceId, Ticket, TokenId, TokenLogprob, Verification,
};
use forerun_decode::{
    Autoregressive, Decoder, DraftLength, Dsi, DsiLookahead, Finish, Limits, Pearl,
    PearlDraftLength, PearlOptions, PearlSchedule, Sequence, Speculative, SpeculativeDraftLength,
    Statistics, VerificationRecord, next_tokens,
};
use forerun_draft::{
    EagleDrafter, LookaheadDrafter, ModelDrafter, OuroborosDrafter, PromptLookup, SuffixDrafter,
};
use forerun_lm::fake::TableModel;
use forerun_runtime::{Engine, InlineCluster};
use std::sync::Arc;
use wire_cluster::{Memory, WireCluster};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    Autoregressive,
    Speculative,
    Pearl(PearlOptions),
    Dsi { drafters: usize, replicas: usize },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum DrafterKind {
    Model,
    PromptLookup,
    Suffix,
    Lookahead,
    Ouroboros,
    Eagle,
}

/// A random combination of everything that shapes jobs and completions.
#[derive(Clone, Debug)]
struct World {
    seed: u64,
    vocab_size: usize,
    sampling: Sampling,
    logprobs: Option<usize>,
    method: Method,
    drafter: DrafterKind,
    shape: DraftShape,
    prompts: Vec<Vec<TokenId>>,
    max_tokens: usize,
    eos: Vec<TokenId>,
    releases: bool,
    reproducible: bool,
    memory: Memory,
}

impl World {
    fn new(seed: u64) -> Self {
        let choices = &mut Choices::new(seed);
        let vocab_size = 4 + choices.below(20);
        let options = SamplingOptions {
            temperature: choices.of(&[0.0, 0.5, 1.0]),
            top_k: choices.of(&[0, 0, 2, 5]),
            top_p: choices.of(&[1.0, 1.0, 0.7]),
            repetition_penalty: choices.of(&[1.0, 1.0, 1.2]),
            logit_bias: choices.of(&[vec![], vec![(1, 0.5), (3, -2.0)]]).into_iter().collect(),
            ..SamplingOptions::default()
        };
        let verification = choices.of(&[Verification::Rejection, Verification::Coupled]);
        let randomness = KeyedRandomness { seed, sample: choices.below(3) as u32 };
        let pearl = PearlOptions {
            schedule: choices.of(&[PearlSchedule::Eager, PearlSchedule::Paper]),
            pre_verify: choices.below(3) > 0,
            post_verify: choices.below(3) > 0,
        };
        let dsi = Method::Dsi { drafters: 1 + choices.below(2), replicas: 1 + choices.below(3) };
        let method = choices.of(&[
            Method::Autoregressive,
            Method::Speculative,
            Method::Speculative,
            Method::Speculative,
            Method::Pearl(pearl),
            Method::Pearl(pearl),
            dsi,
            dsi,
        ]);
        let speculative = method == Method::Speculative;
        let drafter = match choices.below(if speculative { 7 } else { 4 }) {
            0 | 1 => DrafterKind::Model,
            2 => DrafterKind::PromptLookup,
            3 => DrafterKind::Suffix,
            4 => DrafterKind::Lookahead,
            5 => DrafterKind::Ouroboros,
            _ => DrafterKind::Eagle,
        };
        let length = 1 + choices.below(4);
        let chain = DraftShape::Chain { length };
        let top = DraftShape::Top { width: 2, depth: length, budget: choices.of(&[None, Some(5)]) };
        let sampled = DraftShape::Sampled { branching: vec![2; length.min(3)] };
        let ranked = DraftShape::Ranked { children: vec![2; length] };
        let shape = if speculative { choices.of(&[chain, top, sampled, ranked]) } else { chain };
        let first: Vec<TokenId> =
            (0..2 + choices.below(30)).map(|_| choices.below(vocab_size) as TokenId).collect();
        // The second prompt may continue the first one, or differ from it early.
        let kept = choices.below(first.len()).max(2);
        let more = (0..choices.below(6)).map(|_| choices.below(vocab_size) as TokenId);
        let second = first[..kept].iter().copied().chain(more).collect();
        Self {
            seed,
            vocab_size,
            sampling: Sampling {
                options,
                randomness,
                verification,
                constraint: None,
                dry_breakers: Arc::default(),
                adapter: None,
            },
            logprobs: choices.of(&[None, None, Some(0), Some(2)]),
            method,
            drafter,
            shape,
            prompts: vec![first, second],
            max_tokens: 1 + choices.below(14),
            eos: choices.of(&[vec![], vec![2]]),
            releases: choices.below(2) == 0,
            reproducible: choices.below(2) == 0,
            memory: Memory {
                budget: choices.of(&[0, 600, 1 << 20]),
                forgets_one_in: choices.of(&[0, 2, 10]),
                seed,
            },
        }
    }

    fn cluster(&self) -> InlineCluster {
        let target = TableModel { history: 3, ..TableModel::new(self.seed, self.vocab_size, 8.0) };
        // Drafters that are often right.
        let model = TableModel { history: 2, ..target };
        let mut engine = Engine::new();
        for replica in 0..3 {
            engine = match self.drafter {
                DrafterKind::Eagle => engine.with_target(replica, TargetWithFeatures(target)),
                _ => engine.with_target(replica, target),
            };
        }
        engine = match self.drafter {
            DrafterKind::Model => {
                let model = if self.seed.is_multiple_of(2) { target } else { model };
                engine.with_drafter(0, ModelDrafter::new(model))
            }
            DrafterKind::PromptLookup => engine.with_drafter(0, PromptLookup),
            DrafterKind::Suffix => engine.with_drafter(0, SuffixDrafter::new()),
            DrafterKind::Lookahead => engine.with_drafter(0, LookaheadDrafter::new()),
            DrafterKind::Ouroboros => engine.with_drafter(0, OuroborosDrafter::new(model)),
            DrafterKind::Eagle => engine.with_drafter(0, EagleDrafter::new(FeatureTable(model))),
        };
        engine = engine.with_drafter(1, ModelDrafter::new(model));
        InlineCluster::new(engine, Arc::new(self.sampling.randomness)).with_random_order(self.seed)
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        let length = self.shape.depth();
        match self.method {
            Method::Autoregressive => Box::new(Autoregressive),
            Method::Speculative => Box::new(Speculative::new(SpeculativeDraftLength::new(
                self.shape.clone(),
                DraftLength::Fixed,
            ))),
            Method::Pearl(options) => {
                let eager = options.schedule == PearlSchedule::Eager;
                let policy = PearlDraftLength::new(length, DraftLength::Fixed, eager);
                let pearl = Pearl::new(options, policy);
                Box::new(if self.reproducible { pearl.reproducible() } else { pearl })
            }
            Method::Dsi { drafters, replicas } => {
                let policy = DsiLookahead::new(length, DraftLength::Fixed, replicas);
                let dsi = Dsi::new(replicas, policy).with_drafters(drafters);
                Box::new(if self.reproducible { dsi.reproducible() } else { dsi })
            }
        }
    }

    fn sequence(&self, id: u64, prompt: &[TokenId]) -> Sequence {
        let limits =
            Limits { max_tokens: self.max_tokens, context_length: 1_000, eos: self.eos.clone() };
        let sampling = self.sampling.clone();
        let mut sequence = Sequence::new(SequenceId(id), prompt.to_vec(), sampling, limits);
        if let Some(top) = self.logprobs {
            sequence = sequence.with_logprobs(top);
        }
        match self.drafter {
            DrafterKind::Eagle => sequence.with_features(),
            DrafterKind::Lookahead | DrafterKind::Ouroboros => sequence.with_draft_feedback(),
            _ => sequence,
        }
    }

    /// Decodes two answers, then continues the first one's sequence with another prompt. Methods
    /// without jobs between steps decode both at the same time.
    fn decode(&self, cluster: &mut dyn Cluster) -> Vec<Answer> {
        let mut answers: Vec<_> = (0..)
            .zip(&self.prompts)
            .map(|(id, prompt)| (self.decoder(), self.sequence(id, prompt)))
            .collect();
        let take_turns = matches!(self.method, Method::Autoregressive | Method::Speculative);
        while answers.iter().any(|(_, sequence)| sequence.finish().is_none()) {
            for (decoder, sequence) in &mut answers {
                while next_tokens(&mut **decoder, sequence, cluster).unwrap().is_none()
                    && !take_turns
                {}
                if sequence.finish().is_some() {
                    decoder.stop(cluster);
                }
            }
        }
        if self.releases {
            cluster.release(SequenceId(1));
        }
        let text = answers[0].1.tokens().to_vec();
        let mut decoder = self.decoder();
        let mut next = self.sequence(0, &[&text[..text.len() - 1], &[1, 2]].concat());
        while next_tokens(&mut *decoder, &mut next, cluster).unwrap().is_none() {}
        decoder.stop(cluster);
        cluster.release(SequenceId(0));
        // The completions of cancelled jobs.
        while cluster.next_completion().is_ok() {}
        answers.push((decoder, next));
        answers.iter().map(|(_, sequence)| Answer::of(sequence)).collect()
    }
}

/// Everything that a sequence reports about an answer.
#[derive(Debug, PartialEq)]
struct Answer {
    tokens: Vec<TokenId>,
    finish: Option<Finish>,
    logprobs: Option<Vec<TokenLogprob>>,
    statistics: Statistics,
    verifications: Vec<VerificationRecord>,
    features: Vec<u32>,
}

impl Answer {
    fn of(sequence: &Sequence) -> Self {
        let features = sequence.features().into_iter().flat_map(|all| all.rows_from(0)).flatten();
        Self {
            tokens: sequence.tokens().to_vec(),
            finish: sequence.finish(),
            logprobs: sequence.logprobs().map(<[_]>::to_vec),
            statistics: sequence.statistics().clone(),
            verifications: sequence.verifications().to_vec(),
            features: features.map(|value| value.to_bits()).collect(),
        }
    }
}

/// Records what passes between a decoder and a cluster.
struct Recorded<C> {
    cluster: C,
    jobs: Vec<(Role, Job)>,
    completions: Vec<Completion>,
    released: usize,
}

impl<C: Cluster> Recorded<C> {
    fn new(cluster: C) -> Self {
        Self { cluster, jobs: Vec::new(), completions: Vec::new(), released: 0 }
    }
}

impl<C: Cluster> Cluster for Recorded<C> {
    fn submit(&mut self, on: Role, job: Job) -> Result<Ticket, ClusterError> {
        self.jobs.push((on, job.clone()));
        self.cluster.submit(on, job)
    }

    fn cancel(&mut self, ticket: Ticket) {
        self.cluster.cancel(ticket);
    }

    fn next_completion(&mut self) -> Result<Completion, ClusterError> {
        let completion = self.cluster.next_completion()?;
        self.completions.push(completion.clone());
        Ok(completion)
    }

    fn observe(&mut self, outcome: Outcome) {
        self.cluster.observe(outcome);
    }

    fn release(&mut self, sequence: SequenceId) {
        self.released += 1;
        self.cluster.release(sequence);
    }
}

#[test]
fn decoders_cannot_tell_a_wire_from_the_cluster_itself() {
    let cases = cases(2_000).into();
    let (mut missed, mut cancelled, mut sampled_rows) = (0, 0, 0);
    for seed in 0..cases {
        let world = World::new(seed);
        let mut direct = Recorded::new(world.cluster());
        let expected = world.decode(&mut direct);

        let (worker, memory) = (world.clone(), world.memory);
        let mut wire = Recorded::new(WireCluster::start(move || worker.cluster(), memory));
        let answers = world.decode(&mut wire);
        assert_eq!(answers, expected, "{world:?}");
        assert!(wire.completions == direct.completions, "completions of {world:?}");
        let log = wire.cluster.finish();
        assert!(log.jobs == direct.jobs, "jobs of {world:?}");
        assert_eq!(log.released, direct.released, "{world:?}");

        missed += log.missed;
        cancelled +=
            wire.completions.iter().filter(|completion| completion.output.is_err()).count();
        let rejection = !world.sampling.is_deterministic();
        sampled_rows += usize::from(rejection && world.sampling.top_k == 0);
    }
    // The worlds reach what they are meant to reach.
    let cases = cases as usize;
    println!(
        "{missed} jobs sent again, {cancelled} cancelled, {sampled_rows} worlds with full rows"
    );
    assert!(missed > cases && cancelled > cases / 10 && sampled_rows > cases / 20);
}
