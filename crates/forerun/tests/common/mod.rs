//! Models, prompts and helpers that the integration tests share.

use forerun::checkpoint::{Checkpoint, Config, Family, Mix, RopeScaling, export_gguf};
use forerun::placement::{Pace, PassTimes};
use forerun::text::Tokenizer;
use forerun::{CacheType, Loader, Placement, RandomPair};
pub(crate) use forerun_core::testing::{data_folder, report};
use forerun_formats::checkpoint::random::{
    RandomDtype, example_config, write_random_checkpoint, write_random_checkpoint_with_mtp,
    write_random_pair,
};
use forerun_formats::checkpoint::random_speculator::{
    Eagle3Options, RandomSpeculator, SpeculatorLayout,
};
use forerun_formats::config::{SlidingLayers, SlidingWindow};
use forerun_formats::{MarkovKind, QkNorms};
use std::path::PathBuf;
use tempfile::TempDir;

/// Parses a placement. One that is paced has passes of 300 and 100 microseconds; a further row takes
/// a tenth of that, and a prompt three times as long.
pub(crate) fn parse_placement(text: &str) -> Placement {
    let times =
        |ns: u64| PassTimes { rows_ns: vec![(1, ns), (11, 2 * ns)], first_ns: Some(3 * ns) };
    let pace = |name: &str| {
        let (target, drafter) = (times(300_000), Some(times(100_000)));
        Ok(Pace { name: name.into(), target, drafter })
    };
    Placement::parse_paced(text, pace).unwrap()
}

/// A target and a drafter, with prompts for them.
pub(crate) struct Pair {
    pub(crate) target: PathBuf,
    pub(crate) drafter: PathBuf,
    pub(crate) prompts: Vec<String>,
    /// The type of cached keys and values; `None` for each model's default.
    pub(crate) cache_type: Option<CacheType>,
    /// Keeps the folders of a random pair.
    _random: Option<RandomPair>,
    _folder: Option<TempDir>,
}
impl Pair {
    /// Returns the two story models that share a tokenizer, with prompts of Spec-Bench.
    pub(crate) fn real() -> Option<Self> {
        let data = data_folder()?;
        let file = data.join("prompts/spec_bench_question.jsonl");
        let text = std::fs::read_to_string(file).unwrap();
        let prompt = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            // A few words are enough: the models and their contexts are small.
            line["turns"][0].as_str().unwrap().chars().take(120).collect()
        };
        // Neighbours in the file have the same category. A stride mixes them.
        let all: Vec<String> = text.lines().map(prompt).collect();
        let prompts = (0..all.len()).map(|index| all[index * 37 % all.len()].clone()).collect();
        Some(Self {
            target: data.join("models/stories260K"),
            drafter: data.join("models/stories280K-b"),
            prompts,
            cache_type: None,
            _random: None,
            _folder: None,
        })
    }

    /// Returns two story models with different tokenizers, as target and drafter in both ways.
    pub(crate) fn of_two_vocabularies() -> Option<[Self; 2]> {
        let real = || Self::real();
        let other = data_folder()?.join("models/tinystories656k");
        let as_drafter = Self { drafter: other.clone(), ..real()? };
        let as_target = Self { drafter: real()?.target, target: other, ..real()? };
        Some([as_drafter, as_target])
    }

    /// Writes a random pair, with prompts made of syllables.
    pub(crate) fn generated() -> Self {
        let pair = RandomPair::make().unwrap();
        let (target, drafter) = (pair.target().into(), pair.drafter().into());
        let prompts = syllables();
        Self { target, drafter, prompts, cache_type: None, _random: Some(pair), _folder: None }
    }

    /// Writes a pair with a drafter that is deep enough for layer-parallel drafting.
    pub(crate) fn deep() -> Self {
        Self::of_config(&Config { num_hidden_layers: 9, ..example_config() })
    }

    /// Writes a target, and drafters for it in every layout. The target's second and third layers
    /// add little, so that a drafter of one layer is often right.
    pub(crate) fn with_speculators() -> (Self, Vec<(SpeculatorLayout, PathBuf)>) {
        use SpeculatorLayout as L;
        let config = Config { num_hidden_layers: 1, ..example_config() };
        let pair = Self::of_config(&config);
        let hash = Checkpoint::open(&pair.target).unwrap().embedding_sha256().unwrap();
        let layouts = [
            L::Medusa,
            L::VllmMedusa,
            L::SharedHeadMedusa,
            L::ReducedMedusa,
            L::Hydra,
            L::HydraPlusPlus,
            L::SharedHeadHydra,
            L::ReducedHydra,
            L::Eagle,
            L::SharedEmbeddingEagle,
            L::ReducedEagle,
            L::Eagle3,
            L::Eagle3With(*Eagle3Options::all().last().unwrap()),
            L::PEagle,
            L::DFlash,
            L::JetSpec,
            L::DFlash2,
            L::DSpark(MarkovKind::Vanilla),
            L::DSpark(MarkovKind::Gated),
            L::DSpark(MarkovKind::Recurrent),
            L::Pard2,
            L::ParallelMedusa,
            L::ReducedParallelMedusa,
            L::ParallelEagle,
            L::ReducedParallelEagle,
        ];
        let speculators = layouts.map(|layout| {
            let path = pair.target.with_file_name(format!("{layout:?}"));
            let target_embedding_sha256 = Some(hash.clone());
            let target = &config;
            RandomSpeculator { layout, target, seed: 3, positions: 3, target_embedding_sha256 }
                .write(&path)
                .unwrap();
            (layout, path)
        });
        (pair, speculators.to_vec())
    }

    /// Writes a pair with everything that a plain Llama lacks: biases, norms of queries and keys,
    /// scaled RoPE, and a sliding window shorter than the prompts.
    pub(crate) fn of_another_family() -> Self {
        Self::of_config(&Config {
            family: Family::Qwen3,
            num_hidden_layers: 1,
            qkv_bias: true,
            output_bias: true,
            qk_norms: QkNorms::Heads,
            rope_scaling: RopeScaling::Linear { factor: 2.0 },
            sliding_window: Some(SlidingWindow { size: 7, layers: SlidingLayers::From(0) }),
            ..example_config()
        })
    }

    /// Writes a pair of Granite models: factors of embeddings, scores, residuals and logits.
    pub(crate) fn of_granite() -> Self {
        Self::of_config(&Config {
            family: Family::Granite,
            num_hidden_layers: 1,
            attention_multiplier: Some(0.25),
            embedding_multiplier: 1.3,
            residual_multiplier: 0.8,
            logits_scaling: 0.9,
            ..example_config()
        })
    }

    /// Writes a pair of SmolLM3 models, whose first layer has no RoPE.
    pub(crate) fn of_smollm3() -> Self {
        Self::of_config(&Config {
            family: Family::SmolLm3,
            num_hidden_layers: 1,
            rope_layers: Some(vec![false]),
            ..example_config()
        })
    }

    /// Writes a random pair. The drafter has this configuration, and the target two layers more.
    pub(crate) fn of_config(config: &Config) -> Self {
        let pair = Self::in_new_folder();
        write_random_pair(&pair.target, &pair.drafter, config, 2, 0.3, 3).unwrap();
        pair
    }

    /// Returns the places of two models, which the caller writes.
    fn in_new_folder() -> Self {
        let folder = TempDir::new().unwrap();
        Self {
            target: folder.path().join("target"),
            drafter: folder.path().join("drafter"),
            prompts: syllables(),
            cache_type: None,
            _random: None,
            _folder: Some(folder),
        }
    }

    /// Writes a target with an MTP head, which is also the drafter's checkpoint.
    pub(crate) fn with_mtp_head(config: &Config) -> Self {
        let pair = Self::in_new_folder();
        write_random_checkpoint_with_mtp(&pair.target, config, 3, RandomDtype::F32).unwrap();
        Self { drafter: pair.target.clone(), ..pair }
    }

    /// Writes a pair of a Gemma 4, and an assistant of the target.
    pub(crate) fn with_assistant(config: &Config) -> (Self, [(SpeculatorLayout, PathBuf); 1]) {
        let pair = Self::of_config(config);
        let target = Checkpoint::open(&pair.target).unwrap();
        let (target, layout) = (target.config(), SpeculatorLayout::Assistant);
        let path = pair.target.with_file_name("assistant");
        let hash = None;
        RandomSpeculator { layout, target, seed: 3, positions: 0, target_embedding_sha256: hash }
            .write(&path)
            .unwrap();
        (pair, [(layout, path)])
    }

    /// Writes a pair whose target is a GGUF file with Q4_K and Q6_K matrices.
    pub(crate) fn of_mixed_types() -> Self {
        let pair = Self::in_new_folder();
        let config = Config {
            hidden_size: 256,
            intermediate_size: 256,
            num_hidden_layers: 1,
            num_attention_heads: 4,
            num_key_value_heads: 1,
            head_dim: 64,
            ..example_config()
        };
        write_random_pair(&pair.target, &pair.drafter, &config, 1, 0.3, 3).unwrap();
        let (source, file) = (pair.target.as_path().into(), pair.target.with_extension("gguf"));
        export_gguf(&source, &file, Mix::Q4_K_M, &mut Loader::new()).unwrap();
        Self { target: file, ..pair }
    }

    /// Writes two pairs with one tokenizer. In one the drafter has more tokens than the target, in
    /// the other fewer. No text has these tokens, but the models consider them likely.
    pub(crate) fn of_padded_vocabularies() -> [Self; 2] {
        let few = example_config();
        let many = Config { vocab_size: few.vocab_size + 4, ..few.clone() };
        [(&few, &many), (&many, &few)].map(|(target_config, drafter_config)| {
            let pair = Self::of_config(target_config);
            // The tensors that both models have follow from the same seed, and are equal.
            write_random_checkpoint(&pair.drafter, drafter_config, 3, RandomDtype::F32).unwrap();
            pair
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
