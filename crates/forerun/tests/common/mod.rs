//! What the integration tests share.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun::{Checkpoint, Config, Family, RandomPair, RopeScaling, Tokenizer};
use forerun_model::checkpoint::random::{
    RandomDtype, example_config, write_random_checkpoint, write_random_pair,
};
use forerun_model::checkpoint::random_speculator::{RandomSpeculator, SpeculatorLayout};
use forerun_model::config::{SlidingLayers, SlidingWindow};
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The folder with real checkpoints and prompts: `FORERUN_DATA`, or `shared/data` beside the
/// checkout. Where there is none, tests of real checkpoints are skipped with a message; but a CI run
/// without it would prove less than it seems to, and fails.
pub(crate) fn data_folder() -> Option<PathBuf> {
    let shared_data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("FORERUN_DATA").map_or(shared_data, PathBuf::from);
    if folder.join("models").is_dir() {
        return Some(folder);
    }
    assert!(
        std::env::var_os("CI").is_none() && std::env::var_os("FORERUN_DATA").is_none(),
        "no data in {}: set FORERUN_DATA to the folder with models/ and prompts/",
        folder.display()
    );
    say(&format!("SKIPPED: no data in {} (set FORERUN_DATA)", folder.display()));
    None
}

/// Tells what a passing test did or left out, past the test harness's capture.
#[allow(dead_code, clippy::allow_attributes, reason = "not every test file says something")]
pub(crate) fn say(line: &str) {
    // A closed standard error is no reason to fail.
    drop(writeln!(std::io::stderr(), "{line}"));
}

/// A target and a drafter, with prompts for them.
#[allow(dead_code, clippy::allow_attributes, reason = "not every test file uses pairs")]
pub(crate) struct Pair {
    pub(crate) target: PathBuf,
    pub(crate) drafter: PathBuf,
    pub(crate) prompts: Vec<String>,
    /// Keeps the folders of a generated pair.
    _random: Option<RandomPair>,
    _folder: Option<TempDir>,
}

#[allow(dead_code, clippy::allow_attributes, reason = "not every test file uses pairs")]
impl Pair {
    /// The two story models that share a tokenizer, with prompts of Spec-Bench.
    pub(crate) fn real() -> Option<Self> {
        let data = data_folder()?;
        let file = data.join("prompts/spec_bench_question.jsonl");
        let text = std::fs::read_to_string(file).unwrap();
        let prompt = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            // A few words are enough: the models are small, and their contexts, too.
            line["turns"][0].as_str().unwrap().chars().take(120).collect()
        };
        // Neighbours in the file are of one category: a stride mixes them.
        let all: Vec<String> = text.lines().map(prompt).collect();
        let prompts = (0..all.len()).map(|index| all[index * 37 % all.len()].clone()).collect();
        Some(Self {
            target: data.join("models/stories260K"),
            drafter: data.join("models/stories280K-b"),
            prompts,
            _random: None,
            _folder: None,
        })
    }

    /// Two story models with tokenizers of their own, one way round and the other.
    pub(crate) fn of_two_vocabularies() -> Option<[Self; 2]> {
        let real = || Self::real();
        let words = data_folder()?.join("models/tinystories656k");
        let drafting = Self { drafter: words.clone(), ..real()? };
        let drafted = Self { drafter: real()?.target, target: words, ..real()? };
        Some([drafting, drafted])
    }

    /// A pair made on the spot, with prompts made of syllables.
    pub(crate) fn generated() -> Self {
        let pair = RandomPair::make().unwrap();
        let (target, drafter) = (pair.target().into(), pair.drafter().into());
        let prompts = syllables();
        Self { target, drafter, prompts, _random: Some(pair), _folder: None }
    }

    /// A pair whose drafter is deep enough for layers in parallel.
    pub(crate) fn deep() -> Self {
        let folder = TempDir::new().unwrap();
        let (target, drafter) = (folder.path().join("target"), folder.path().join("drafter"));
        let config = Config { num_hidden_layers: 9, ..example_config() };
        write_random_pair(&target, &drafter, &config, 2, 0.3, 3).unwrap();
        Self { target, drafter, prompts: syllables(), _random: None, _folder: Some(folder) }
    }

    /// A target with drafters of every layout that belongs to one, made for it; its second and third
    /// layers add little, so that a drafter of one layer is often right.
    pub(crate) fn with_speculators() -> (Self, Vec<(SpeculatorLayout, PathBuf)>) {
        use SpeculatorLayout as L;
        let folder = TempDir::new().unwrap();
        let (target, drafter) = (folder.path().join("target"), folder.path().join("drafter"));
        let (config, seed) = (Config { num_hidden_layers: 1, ..example_config() }, 3);
        write_random_pair(&target, &drafter, &config, 2, 0.3, seed).unwrap();
        let hash = Checkpoint::open(&target).unwrap().embedding_sha256().unwrap();
        let layouts = [
            L::Medusa,
            L::MedusaOfVllm,
            L::MedusaOnTargetHead,
            L::Hydra,
            L::HydraPlusPlus,
            L::Eagle,
            L::EagleOnTargetEmbedding,
            L::Eagle3,
            L::ParallelMedusa,
            L::ParallelEagle,
        ];
        let speculators = layouts.map(|layout| {
            let path = folder.path().join(format!("{layout:?}"));
            let target_embedding_sha256 = Some(hash.clone());
            let target = &config;
            RandomSpeculator { layout, target, seed, positions: 3, target_embedding_sha256 }
                .write(&path)
                .unwrap();
            (layout, path)
        });
        let pair =
            Self { target, drafter, prompts: syllables(), _random: None, _folder: Some(folder) };
        (pair, speculators.to_vec())
    }

    /// A pair that has all that is no plain Llama's: biases, norms of queries and keys, scaled RoPE,
    /// and a window shorter than its prompts.
    pub(crate) fn of_another_family() -> Self {
        let folder = TempDir::new().unwrap();
        let (target, drafter) = (folder.path().join("target"), folder.path().join("drafter"));
        let config = Config {
            family: Family::Qwen3,
            num_hidden_layers: 1,
            qkv_bias: true,
            output_bias: true,
            qk_norm: true,
            rope_scaling: RopeScaling::Linear { factor: 2.0 },
            sliding_window: Some(SlidingWindow { size: 7, layers: SlidingLayers::From(0) }),
            ..example_config()
        };
        write_random_pair(&target, &drafter, &config, 2, 0.3, 3).unwrap();
        Self { target, drafter, prompts: syllables(), _random: None, _folder: Some(folder) }
    }

    /// Pairs with one tokenizer, whose drafter has more tokens than the target, or fewer: tokens that
    /// no text is made of, but that both models take for likely ones, too.
    pub(crate) fn of_padded_vocabularies() -> [Self; 2] {
        let few = example_config();
        let many = Config { vocab_size: few.vocab_size + 4, ..few.clone() };
        [(&few, &many), (&many, &few)].map(|(target_config, drafter_config)| {
            let folder = TempDir::new().unwrap();
            let (target, drafter) = (folder.path().join("target"), folder.path().join("drafter"));
            write_random_pair(&target, &drafter, target_config, 2, 0.3, 3).unwrap();
            // What both have of a seed's tensors is the same.
            write_random_checkpoint(&drafter, drafter_config, 3, RandomDtype::F32).unwrap();
            Self { target, drafter, prompts: syllables(), _random: None, _folder: Some(folder) }
        })
    }

    pub(crate) fn tokenizer(&self) -> Tokenizer {
        Tokenizer::from_checkpoint(&self.target).unwrap()
    }
}

/// Prompts made of syllables.
fn syllables() -> Vec<String> {
    const SYLLABLES: [&str; 7] = ["ka", "lo", "mi", " tu", " re", "é", "."];
    let prompt = |number: usize| {
        let syllable = |at: usize| SYLLABLES[(number * 31 + at * at * 7 + at) % 7];
        (0..4 + number % 9).map(syllable).collect()
    };
    (1..500).map(prompt).collect()
}
