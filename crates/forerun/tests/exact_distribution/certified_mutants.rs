//! `forerun certify` finds mutants that decode with small checkpoints.

use crate::mutants::{ChangedKeys, Models, Mutant, Setup, SharedModels, mutants};
use crate::tables::rows_of;
use forerun::checkpoint::{Checkpoint, Config};
use forerun::{Canceller, ForerunError, Loader, Method, Options, Request, VerificationChoice};
use forerun_certify::{
    Certifier, CertifyOptions, Comparison, Outcome, PlainAnswers, Subject, SubjectAnswer,
};
use forerun_core::testing::cases;
use forerun_core::{
    Cluster, Constraint, Guess, Guesser, Key, KeyedRandomness, Node, Randomness, Sampling,
    SequenceId, TokenId, TokenTree, Verification,
};
use forerun_cpu::{Team, Transformer, Weights};
use forerun_decode::{Limits, Sequence, generate};
use forerun_draft::{CalibrationPolicy, Drafter, LayerParallelDrafter, ModelDrafter};
use forerun_formats::checkpoint::random::{
    RandomDtype, example_config, write_random_checkpoint, write_random_pair,
};
use forerun_lm::{ForwardRequest, LanguageModel, LayerGroups, LayerOrder};
use forerun_model::CachedTransformer;
use forerun_runtime::{Engine, InlineCluster};
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

type CpuModel = CachedTransformer<Transformer>;

/// The number of layers of the draft models.
const DRAFT_LAYERS: usize = 3;
/// The number of replicas that a setup may use.
const REPLICAS: usize = 3;
/// The number of tokens that are compared greedily and with seeds.
const COMPARED: usize = 600;
/// Topics of mutants of penalties and constraints. Seeded answers show them.
pub(crate) const OPTION_TOPICS: [&str; 2] = ["the root's ", "prompt counted"];
/// Topics of mutants, with the pair, the temperature and the number of sampled tokens that show
/// each of them. Seeded answers show the [`OPTION_TOPICS`]; known models show all others
/// (`known_mutants`).
const FOUND: [(&str, Pair, f32, usize); 15] = [
    (OPTION_TOPICS[0], HALF, 0.5, 1_000),
    (OPTION_TOPICS[1], HALF, 0.5, 1_000),
    ("ratio test on", HALF, 0.5, 2_000),
    ("layer-parallel ratio test on", HALF, 0.5, 2_000),
    ("block verification, TokenThresholds", HALF, 0.5, 1_000),
    ("block verification, StopsAtFirst", HALF, 0.5, 4_000),
    ("low confidence dropped", HALF, 0.5, 8_000),
    ("block verification, NoResidual", HALF, 0.5, 16_000),
    ("lookup, ", HALF, 0.25, 16_000),
    ("residual not subtracted", HALF, 0.5, 32_000),
    ("uniform reused between positions", HALF, 0.5, 32_000),
    ("Draft uniform reused between siblings", HALF, 0.25, 100_000),
    ("uniform reused between PEARL's positions", HALF, 0.25, 100_000),
    ("keys of tests by position", HALF, 0.25, 100_000),
    ("block verification, TokenResidual", HALF, 0.15, 100_000),
];
/// The largest number of sampled tokens, unless `FORERUN_CASES` is larger.
const SAMPLED: usize = 4_000;
const ANSWER_TOKENS: usize = 40;

/// The factor for the outputs of the target's further layers. The smaller it is, the more of the
/// drafter's tokens are accepted.
type Pair = f32;
const HALF: Pair = 0.5;

/// A random target, and two draft models for it, in a folder that is deleted with this value.
struct Folders(TempDir);

impl Folders {
    fn write(pair: Pair) -> Self {
        let folder = TempDir::with_prefix("forerun-mutants-").unwrap();
        let folders = Self(folder);
        let config = Config {
            hidden_size: 32,
            intermediate_size: 64,
            num_hidden_layers: DRAFT_LAYERS,
            num_attention_heads: 4,
            num_key_value_heads: 2,
            head_dim: 8,
            ..example_config()
        };
        let [target, drafter, other] = folders.paths();
        write_random_pair(&target, &drafter, &config, 2, pair, 3).unwrap();
        write_random_checkpoint(&other, &config, 4, RandomDtype::F32).unwrap();
        folders
    }

    /// Returns the folders of the target and of the draft models.
    fn paths(&self) -> [PathBuf; 3] {
        ["target", "drafter", "other"].map(|name| self.0.path().join(name))
    }
}

fn model(weights: &Arc<Weights>) -> CpuModel {
    let team = Arc::new(Team::single_thread());
    let model = CachedTransformer::new(Transformer::new(Arc::clone(weights), team));
    model.with_cache_bytes(Some(1 << 22))
}

/// Checkpoints on the calling thread.
struct Checkpoints {
    weights: [Arc<Weights>; 3],
    /// The models of [`Models::target_row`] and [`Models::draft_row`].
    rows: [RefCell<CpuModel>; 2],
}

impl Checkpoints {
    fn open(folders: &Folders) -> Self {
        let weights = folders
            .paths()
            .map(|path| Arc::new(Weights::load(&Checkpoint::open(&path).unwrap()).unwrap()));
        let rows = [0, 1].map(|index: usize| RefCell::new(model(&weights[index])));
        Self { weights, rows }
    }

    fn row(&self, index: usize, prefix: &[TokenId]) -> Vec<f32> {
        let tree = TokenTree::new();
        let request = ForwardRequest::new(SequenceId(0), prefix, &tree);
        self.rows[index].borrow_mut().logits(&request).unwrap().logits
    }
}

fn layer_groups() -> LayerGroups {
    LayerGroups::of_sizes(&[DRAFT_LAYERS])
}

impl Models for Checkpoints {
    fn target_row(&self, prefix: &[TokenId]) -> Vec<f32> {
        self.row(0, prefix)
    }

    fn draft_row(&self, prefix: &[TokenId]) -> Vec<f32> {
        self.row(1, prefix)
    }

    fn layer_parallel_row(
        &self,
        tokens: &[TokenId],
        tree: &TokenTree,
        at: Option<Node>,
    ) -> Vec<f32> {
        let groups = layer_groups();
        let order = LayerOrder::Groups(&groups);
        let exact_tokens = tokens.len();
        let request = ForwardRequest::new(SequenceId(1), tokens, tree);
        let request = ForwardRequest { order, exact_tokens, ..request };
        let output = self.rows[1].borrow_mut().logits(&request).unwrap();
        let row = rows_of(tree).position(|row| row == at).unwrap();
        output.rows().nth(row).unwrap().to_vec()
    }

    fn drafter(&self) -> Box<dyn Drafter> {
        Box::new(ModelDrafter::new(model(&self.weights[1])))
    }

    fn other_drafter(&self) -> Box<dyn Drafter> {
        Box::new(ModelDrafter::new(model(&self.weights[2])))
    }

    fn layer_parallel_drafter(&self) -> Box<dyn Drafter> {
        let (model, calibration) = (model(&self.weights[1]), CalibrationPolicy::EveryRound);
        Box::new(LayerParallelDrafter::new(model, layer_groups(), calibration))
    }

    fn guesser(&self) -> Box<dyn Guesser> {
        Box::new(SecondBest(model(&self.weights[1])))
    }
}

/// Guesses the tokens that the draft model finds second best.
struct SecondBest(CpuModel);

impl Guesser for SecondBest {
    fn guess(&mut self, tokens: &[TokenId], _prompt_len: usize, length: usize) -> Guess {
        let mut text = tokens.to_vec();
        for _ in 0..length {
            let tree = TokenTree::new();
            let request = ForwardRequest::new(SequenceId(0), &text, &tree);
            let row = self.0.logits(&request).unwrap().logits;
            let mut order: Vec<TokenId> = (0..row.len() as TokenId).collect();
            order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
            text.push(order[1]);
        }
        Guess { tokens: text.split_off(tokens.len()), score: length as f64 }
    }
}

/// The numbers of the answer in progress.
#[derive(Clone)]
struct NumbersOfAnswer(Arc<Mutex<KeyedRandomness>>);

impl Randomness for NumbersOfAnswer {
    fn locate(&self, key: Key, thresholds: &mut dyn Iterator<Item = f64>) -> usize {
        let randomness = *self.0.lock().unwrap();
        randomness.locate(key, thresholds)
    }
}

/// A setup that decodes with checkpoints.
struct DecodingSetup<'a> {
    setup: Setup,
    /// The engine whose tokenizer and grammars it uses.
    plain: &'a forerun::Engine,
    numbers: NumbersOfAnswer,
    randomness: Arc<dyn Randomness + Send + Sync>,
    cluster: RefCell<InlineCluster>,
}

impl<'a> DecodingSetup<'a> {
    fn new(setup: Setup, checkpoints: &Checkpoints, plain: &'a forerun::Engine) -> Self {
        let numbers = KeyedRandomness { seed: 0, sample: 0 };
        let numbers = NumbersOfAnswer(Arc::new(Mutex::new(numbers)));
        let changed = ChangedKeys { randomness: numbers.clone(), change: setup.keys };
        let randomness: Arc<dyn Randomness + Send + Sync> = Arc::new(changed);
        let mut engine = Engine::new();
        for replica in 0..REPLICAS {
            engine = engine.with_target(replica, model(&checkpoints.weights[0]));
        }
        for (index, make) in setup.drafters.iter().enumerate() {
            engine = engine.with_drafter(index, make());
        }
        let cluster = RefCell::new(InlineCluster::new(engine, Arc::clone(&randomness)));
        Self { setup, plain, numbers, randomness, cluster }
    }

    fn sampling(&self, request: &Request, eos: &[TokenId]) -> Sampling {
        let verification = match request.verification {
            VerificationChoice::Always(verification) => verification,
            VerificationChoice::Auto => Verification::Coupled,
        };
        let constraint = |grammar| -> Constraint { self.plain.constraint(grammar, eos).unwrap() };
        Sampling {
            options: request.sampling.clone(),
            verification,
            randomness: KeyedRandomness { seed: request.seed.unwrap_or(0), sample: 0 },
            constraint: request.grammar.as_ref().map(constraint),
            ..Sampling::greedy()
        }
    }
}

impl Subject for DecodingSetup<'_> {
    fn answer(
        &self,
        prompt: &str,
        request: &Request,
        _canceller: &Canceller,
    ) -> Result<SubjectAnswer, ForerunError> {
        let prompt = self.plain.encode_prompt(prompt)?;
        let (config, id) = (self.plain.config(), SequenceId(2));
        let sampling = self.sampling(request, &config.eos_token_ids);
        *self.numbers.0.lock().unwrap() = sampling.randomness;
        let limits = Limits {
            max_tokens: request.max_tokens,
            context_length: config.max_position_embeddings,
            eos: match request.ignore_eos {
                true => Vec::new(),
                false => config.eos_token_ids.clone(),
            },
        };
        let randomness = Arc::clone(&self.randomness);
        let sequence = Sequence::with_randomness(id, prompt, sampling, limits, randomness);
        let mut sequence = sequence.with_logprobs(request.logprobs.unwrap());
        let cluster = &mut *self.cluster.borrow_mut();
        let mut decoder = (self.setup.decoder)();
        generate(&mut *decoder, &mut sequence, cluster, |_| ControlFlow::Continue(())).unwrap();
        decoder.stop(cluster);
        while cluster.next_completion().is_ok() {}
        cluster.release(id);
        Ok(SubjectAnswer {
            tokens: sequence.generated().to_vec(),
            logprobs: sequence.logprobs().unwrap().to_vec(),
            statistics: sequence.statistics().clone(),
        })
    }

    fn verifies_whole_drafts(&self) -> bool {
        self.setup.verifies_whole_drafts
    }
}

/// Certifies setups that decode with one pair.
struct Laboratory {
    folders: Folders,
    checkpoints: Rc<Checkpoints>,
    engine: forerun::Engine,
}

impl Laboratory {
    fn open(pair: Pair) -> Self {
        let folders = Folders::write(pair);
        let checkpoints = Rc::new(Checkpoints::open(&folders));
        let engine = forerun::Engine::open(Self::plain(&folders)).unwrap();
        Self { folders, checkpoints, engine }
    }

    fn plain(folders: &Folders) -> Options {
        let [target, ..] = folders.paths();
        let (method, threads) = (Some(Method::Autoregressive.into()), Some(1));
        Options { model: target.into(), method, threads, ..Options::default() }
    }

    fn models(&self) -> SharedModels {
        Rc::clone(&self.checkpoints) as SharedModels
    }

    /// Returns a certifier that samples this number of tokens, with the answers of plain decoding.
    fn certifier(
        &self,
        temperature: f32,
        sampled_tokens: usize,
    ) -> (Certifier<'static>, PlainAnswers) {
        let prompt = |number: usize| format!("Question {number}: what is {number} times 7?");
        let options = CertifyOptions {
            prompts: (1..=40).map(prompt).collect(),
            tokens: COMPARED,
            sampled_tokens,
            // Counted by `known_mutants`.
            known_answers: 0,
            answer_tokens: ANSWER_TOKENS,
            temperature,
            seed: 1,
        };
        let (plain, loader) = (Self::plain(&self.folders), Loader::new().sharing_weights());
        let certifier = Certifier::open(options, &plain, loader, Canceller::new()).unwrap();
        let answers = certifier.plain_answers().unwrap();
        (certifier, answers)
    }

    fn certify(&self, setup: Setup, with: &(Certifier<'_>, PlainAnswers)) -> Outcome {
        let subject = DecodingSetup::new(setup, &self.checkpoints, &self.engine);
        with.0.check(&subject, &with.1).unwrap()
    }
}

/// Returns how a certificate shows that a subject is not exact.
fn evidence(outcome: &Outcome) -> Option<String> {
    let divergence = |comparison: &Option<Comparison>| comparison.clone()?.divergence;
    if let Some(found) = divergence(&outcome.greedy).or(divergence(&outcome.seeded)) {
        return Some(found.to_string());
    }
    let result = outcome.sampled.result;
    (!outcome.sampled.plausible).then(|| {
        let tokens = result.tokens;
        format!("{tokens} sampled tokens, p = {:.1e}", result.probability())
    })
}

/// With `FORERUN_CASES`, the number of tokens, topics that need many tokens are certified, too.
#[test]
fn certify_finds_mutants_on_checkpoints() {
    let most = SAMPLED.max(cases(0) as usize);
    for (topic, pair, temperature, tokens) in FOUND.into_iter().filter(|found| found.3 <= most) {
        let laboratory = Laboratory::open(pair);
        let certifier = laboratory.certifier(temperature, tokens);
        let all = mutants(&laboratory.models());
        let chosen: Vec<Mutant> =
            all.into_iter().filter(|mutant| mutant.name.starts_with(topic)).collect();
        assert!(!chosen.is_empty(), "there are mutants of \"{topic}\"");
        for Mutant { name, original, mutated, .. } in chosen {
            let outcome = laboratory.certify(mutated, &certifier);
            let found = evidence(&outcome);
            println!("{name}: {found:?}");
            assert!(found.is_some() && !outcome.is_exact(), "{name} was not found: {outcome:?}");
            let outcome = laboratory.certify(original, &certifier);
            assert!(outcome.is_exact(), "{name} without the mistake: {outcome:?}");
        }
    }
}
