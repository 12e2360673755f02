//! Compares logits of GGUF files with llama.cpp's, by family and weight type. Run it with
//! `bench/peers/install.sh PEERS llama.cpp` and `FORERUN_LLAMA_LOGITS=PEERS/build/llama_logits`;
//! without the variable it is skipped. With `FORERUN_GGUF_FILES=FOLDER`, it compares the files of a
//! folder in place of the golden ones, for example those that llama.cpp's own
//! `convert_hf_to_gguf.py` writes.
//!
//! llama.cpp has no single value for a logit: its result depends on how it packs the weights, on
//! flash attention, and on the type of its cache. The distances between its own ways are the
//! measure for ours.

use crate::common::report;
use forerun::checkpoint::{BlockType, Checkpoint, Config, Family, Mix, RopeScaling, export_gguf};
use forerun::cpu::{Team, Weights};
use forerun::{Loader, ModelSource, TokenId, WeightType, WeightTypes};
use forerun_core::{SequenceId, TokenTree};
use forerun_cpu::Transformer;
use forerun_formats::QkNorms;
use forerun_formats::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// The ways in which llama.cpp computes. All but the first differ from it in one respect.
const WAYS: [&[&str]; 4] = [
    &["-fa", "off", "-ctk", "f32", "-ctv", "f32", "--no-repack"],
    &["-fa", "off", "-ctk", "f32", "-ctv", "f32"],
    &["-fa", "on", "-ctk", "f32", "-ctv", "f32", "--no-repack"],
    &["-fa", "off", "-ctk", "f16", "-ctv", "f16", "--no-repack"],
];

/// Ours may be this much farther from llama.cpp than its own ways are from one another: it rounds
/// activations to blocks of 8 bits, and a rounding that falls the other way moves a logit as much
/// as another way does.
const MARGIN: f32 = 1.5;

fn families() -> Vec<Config> {
    let base = Config {
        hidden_size: 256,
        intermediate_size: 512,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 64,
        ..example_config()
    };
    let llama3 = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 32,
    };
    vec![
        base.clone(),
        Config { rope_scaling: llama3, ..base.clone() },
        Config { family: Family::Mistral, ..base.clone() },
        Config { family: Family::Qwen2, qkv_bias: true, ..base.clone() },
        Config {
            family: Family::Qwen3,
            qk_norms: QkNorms::Heads,
            tie_word_embeddings: true,
            ..base
        },
    ]
}

fn types() -> Vec<WeightTypes> {
    let blocks = [
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
        BlockType::Q8_0,
        BlockType::Q2_K,
        BlockType::Q3_K,
        BlockType::Q4_K,
        BlockType::Q5_K,
        BlockType::Q6_K,
        BlockType::IQ4_NL,
        BlockType::IQ4_XS,
        BlockType::MXFP4,
    ];
    let plain = [WeightType::F32, WeightType::F16, WeightType::Bf16].map(WeightTypes::from);
    let blocks = blocks.into_iter().map(|block| WeightType::Quantized(block).into());
    plain.into_iter().chain([Mix::Q4_K_M.into()]).chain(blocks).collect()
}

/// Returns the logits after each token, or llama.cpp's messages if it fails.
fn llama_logits(
    program: &str,
    model: &Path,
    way: &[&str],
    tokens: &[TokenId],
) -> Result<Vec<f32>, String> {
    let mut command = Command::new(program);
    command.arg("-m").arg(model).args(way).args(["-t", "1", "-c", "256"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let words: Vec<String> = tokens.iter().map(ToString::to_string).collect();
    child.stdin.take().unwrap().write_all(words.join(" ").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let floats = output.stdout.chunks_exact(4);
    Ok(floats.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect())
}

/// Returns the logits after each token.
fn own_logits(checkpoint: &Checkpoint, tokens: &[TokenId]) -> Vec<f32> {
    let weights = Arc::new(Weights::load(checkpoint).unwrap());
    let team = Arc::new(Team::unpinned(1).unwrap());
    let mut model = CachedTransformer::new(Transformer::new(weights, team));
    let tree = TokenTree::chain(&tokens[1..]);
    let request = ForwardRequest::new(SequenceId(0), &tokens[..1], &tree);
    model.logits(&request).unwrap().logits
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Compares the logits of one file. Returns a line if ours are too far away.
fn compare(program: &str, name: &str, file: &Path, tokens: &[TokenId]) -> Option<String> {
    let logits = |way| llama_logits(program, file, way, tokens);
    let theirs = WAYS.map(|way| logits(way).unwrap_or_else(|error| panic!("{name}: {error}")));
    let own = own_logits(&Checkpoint::open(file).unwrap(), tokens);
    let between = theirs[1..].iter().map(|other| distance(&theirs[0], other));
    let between = between.fold(0.0, f32::max);
    let nearest = theirs.iter().map(|other| distance(&own, other)).fold(f32::MAX, f32::min);
    let line = format!("{name}: {nearest:.5} from llama.cpp, whose ways are {between:.5} apart");
    report(&line);
    (nearest > (between * MARGIN).max(1e-3)).then_some(line)
}

#[test]
fn logits_are_as_close_to_llama_cpp_as_its_own_ways_are_to_one_another() {
    let Ok(program) = std::env::var("FORERUN_LLAMA_LOGITS") else {
        return report("SKIPPED: no llama.cpp (set FORERUN_LLAMA_LOGITS)");
    };
    let tokens: Vec<TokenId> = (0..100).map(|index| 3 + index * 37 % 250).collect();
    let folder = tempfile::tempdir().unwrap();
    let mut too_far = Vec::new();
    for (number, config) in families().iter().enumerate() {
        let model = folder.path().join(format!("model-{number}"));
        write_random_checkpoint(&model, config, 7, RandomDtype::F32).unwrap();
        for types in types() {
            let file = folder.path().join("model.gguf");
            export_gguf(&ModelSource::from(model.clone()), &file, types, &mut Loader::new())
                .unwrap();
            let name = format!("{} {number} {types}", config.family);
            too_far.extend(compare(&program, &name, &file, &tokens));
        }
    }
    assert!(too_far.is_empty(), "{too_far:#?}");
}

/// Files with an option of the checkpoint that llama.cpp does not read for this architecture.
const NOT_IN_LLAMA_CPP: [(&str, &str); 12] = [
    ("cohere-norm", "biases"),
    ("cohere2-bias", "biases"),
    ("gemma2", "a factor of scores that does not follow from the sizes"),
    ("gemma3", "a factor of scores that does not follow from the sizes"),
    ("gemma4-inputs", "keys of other layers than the last two that have some"),
    ("glm4-moe-lite", "weights of experts by a sigmoid, unless it has the size of GLM-4.7-Flash"),
    ("granite4-dense", "RoPE of a hybrid"),
    ("qwen3-next", "values of another width than keys"),
    ("qwen3.5-bias", "values of another width than keys"),
    ("qwen3.5-moe", "values of another width than keys"),
    ("qwen3.5-tied", "values of another width than keys"),
    ("starcoder2", "windows"),
];

/// The golden checkpoints of all families that llama.cpp converts.
#[test]
fn converted_files_of_every_family_agree_with_llama_cpp() {
    let Ok(program) = std::env::var("FORERUN_LLAMA_LOGITS") else {
        return report("SKIPPED: no llama.cpp (set FORERUN_LLAMA_LOGITS)");
    };
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/gguf");
    let other = std::env::var_os("FORERUN_GGUF_FILES").map(PathBuf::from);
    let mut files: Vec<PathBuf> = std::fs::read_dir(other.as_ref().unwrap_or(&golden))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|file| file.extension().is_some_and(|extension| extension == "gguf"))
        .collect();
    files.sort();
    let mut too_far = Vec::new();
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy();
        let known = NOT_IN_LLAMA_CPP.iter().find(|(other, _)| *other == name);
        if let (Some((_, option)), None) = (known, &other) {
            report(&format!("{name}: llama.cpp does not read {option}"));
            continue;
        }
        let checkpoint = match Checkpoint::open(&file) {
            Ok(checkpoint) => checkpoint,
            Err(error) if other.is_some() => {
                report(&format!("{name}: {error}"));
                continue;
            }
            Err(error) => panic!("{name}: {error}"),
        };
        let vocabulary = checkpoint.config().vocab_size as TokenId;
        let tokens: Vec<TokenId> =
            (0..100).map(|index| 3 + index * 37 % (vocabulary - 3)).collect();
        if let (Err(error), true) =
            (llama_logits(&program, &file, WAYS[0], &tokens), other.is_some())
        {
            let line = error.lines().find(|line| line.contains("error")).unwrap_or_default();
            report(&format!("{name}: {line}"));
            continue;
        }
        too_far.extend(compare(&program, &name, &file, &tokens));
    }
    assert!(too_far.is_empty(), "{too_far:#?}");
}
