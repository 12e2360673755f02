//! Compares one tiny random model of each family with Hugging Face transformers
//! (`scripts/goldens`): the logits and the greedy tokens of the slow reference, of the forward
//! pass, and of the engine.
//!
//! The folders are as transformers saves them: in one file or in shards, in f32, bf16 or f16, with
//! configurations in the format of version 5 or of earlier versions. The peer widens all weights to
//! f32 and computes in f32, so weights are f32 here, too.

use crate::common;
use forerun::checkpoint::{BlockType, Checkpoint, Config, RopeScaling};
use forerun::cpu::{Team, Weights};
use forerun::{Engine, Finish, Options, Request, TokenId, WeightType};
use forerun_core::{SequenceId, TokenTree};
use forerun_cpu::{Isa, Transformer};
use forerun_formats::checkpoint::gguf::write_gguf;
use forerun_lm::{ForwardRequest, LanguageModel};
use forerun_model::CachedTransformer;
use forerun_reference::ReferenceModel;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FAMILIES: [&str; 140] = [
    "cohere",
    "cohere-bias",
    "cohere-norm",
    "cohere2",
    "cohere2-bias",
    "cohere2-pattern",
    "deepseek-v2",
    "deepseek-v2-bias",
    "deepseek-v2-lite",
    "deepseek-v3",
    "deepseek-v3-bias",
    "deepseek-v3-halves",
    "deepseek-v3.2",
    "deepseek-v3.2-bias",
    "dots1",
    "dots1-window",
    "ernie4.5",
    "ernie4.5-bias",
    "ernie4.5-moe",
    "ernie4.5-moe-bias",
    "falcon",
    "falcon-new",
    "falcon-one-norm",
    "falcon-sequential",
    "gemma2",
    "gemma2-uncapped",
    "gemma2-window",
    "gemma3",
    "gemma3-bias",
    "gemma3-linear",
    "gemma4",
    "gemma4-bias",
    "gemma4-inputs",
    "gemma4-inputs-head",
    "gemma4-moe",
    "gemma4-moe-bias",
    "gemma4-moe-inputs",
    "glm",
    "glm-5",
    "glm-5-groups",
    "glm-plain",
    "glm-whole",
    "glm4",
    "glm4-bias",
    "glm4-moe",
    "glm4-moe-group",
    "glm4-moe-lite",
    "glm4-moe-lite-groups",
    "glm4-moe-lite-types",
    "glm4-moe-sparse",
    "glm4-whole",
    "gpt-neox",
    "gpt-neox-plain",
    "gpt-neox-sequential",
    "gpt-oss",
    "gpt-oss-plain",
    "gpt-oss-truncate",
    "gpt2",
    "gpt2-head",
    "gpt2-inner",
    "granite",
    "granite-bias",
    "granite-linear",
    "granite4",
    "granite4-dense",
    "granite4-groups",
    "granitemoe",
    "granitemoe-bias",
    "granitemoe-linear",
    "lfm2",
    "lfm2-adjusted",
    "lfm2-head",
    "lfm2-moe",
    "lfm2-moe-plain",
    "llama-bias",
    "llama-dynamic",
    "llama-linear",
    "llama-longrope",
    "llama-yarn",
    "llama-yarn-exact",
    "llama2",
    "llama3",
    "minimax-m2",
    "minimax-m2-three",
    "mistral",
    "mixtral",
    "mixtral-three",
    "mixtral-tied",
    "olmo",
    "olmo-bias",
    "olmo-tied",
    "olmo2",
    "olmo2-bias",
    "olmo2-tied",
    "olmo3",
    "olmo3-bias",
    "olmo3-plain",
    "olmoe",
    "olmoe-bias",
    "olmoe-clip",
    "opt",
    "opt-head",
    "opt-plain",
    "phi",
    "phi-tied",
    "phi3",
    "phi3-longrope",
    "phi3-longrope-new",
    "phi3-partial",
    "qwen2",
    "qwen2-moe",
    "qwen2-moe-sparse",
    "qwen2-moe-window",
    "qwen2-window",
    "qwen3",
    "qwen3-moe",
    "qwen3-moe-sparse",
    "qwen3-moe-window",
    "qwen3-next",
    "qwen3-next-bias",
    "qwen3-next-equal",
    "qwen3-next-fused",
    "qwen3-window",
    "qwen3-yarn",
    "qwen3.5",
    "qwen3.5-bias",
    "qwen3.5-moe",
    "qwen3.5-moe-bias",
    "qwen3.5-moe-equal",
    "qwen3.5-moe-published",
    "qwen3.5-tied",
    "smollm3",
    "smollm3-list",
    "smollm3-window",
    "stablelm",
    "stablelm-norms",
    "stablelm-plain",
    "starcoder2",
    "starcoder2-linear",
    "starcoder2-plain",
];

/// The tolerance of logits. The peer adds in another order.
const TOLERANCE: f64 = 1e-4;

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/families")
}

/// A prompt, the tokens of the peer's greedy decoding, and the logits of some steps.
pub(crate) struct Golden {
    pub(crate) prompt: Vec<TokenId>,
    pub(crate) generated: Vec<TokenId>,
    logits: Vec<(usize, Vec<f64>)>,
}

fn goldens(family: &str) -> Vec<Golden> {
    goldens_of(&folder().join(family))
}

pub(crate) fn goldens_of(folder: &Path) -> Vec<Golden> {
    let file = folder.join("golden.json");
    let golden: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let ids = |value: &Value| -> Vec<TokenId> { serde_json::from_value(value.clone()).unwrap() };
    let step = |(step, row): (&String, &Value)| {
        (step.parse().unwrap(), serde_json::from_value(row.clone()).unwrap())
    };
    let prompts = golden["prompts"].as_array().unwrap().iter().map(|record| Golden {
        prompt: ids(&record["prompt_ids"]),
        generated: ids(&record["generated_ids"]),
        logits: record["logits"].as_object().unwrap().iter().map(step).collect(),
    });
    prompts.collect()
}

pub(crate) fn checkpoint(family: &str) -> Checkpoint {
    Checkpoint::open(&folder().join(family)).unwrap()
}

fn assert_close(family: &str, step: usize, row: &[f32], expected: &[f64]) -> f64 {
    assert_eq!(row.len(), expected.len());
    let difference = |(own, peer): (&f32, &f64)| (f64::from(*own) - peer).abs();
    let largest = row.iter().zip(expected).map(difference).fold(0.0, f64::max);
    assert!(largest < TOLERANCE, "{family}, step {step}: logits differ by {largest}");
    largest
}

/// Checks the rows after the prompt, one for each generated token: the most probable token and, for
/// some steps, the logits. Returns the largest difference.
pub(crate) fn assert_rows<'a>(
    family: &str,
    golden: &Golden,
    rows: impl Iterator<Item = &'a [f32]>,
) -> f64 {
    let (mut steps, mut largest) = (0, 0.0_f64);
    for (row, &token) in rows.zip(&golden.generated) {
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(row[token as usize].to_bits(), best.to_bits(), "{family}, step {steps}");
        if let Some((_, expected)) = golden.logits.iter().find(|(step, _)| *step == steps) {
            largest = largest.max(assert_close(family, steps, row, expected));
        }
        steps += 1;
    }
    assert_eq!(steps, 200);
    largest
}

#[test]
fn every_golden_folder_is_tested() {
    let names = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, FAMILIES);
}

/// Checks the slow reference's rows for a checkpoint of a family.
fn assert_reference(family: &str, checkpoint: &Checkpoint) {
    let reference = ReferenceModel::load_as(checkpoint, WeightType::F32, Isa::best()).unwrap();
    for golden in goldens(family) {
        let all = [&golden.prompt[..], &golden.generated[..199]].concat();
        let rows = reference.logits(&all);
        let rows = rows[golden.prompt.len() - 1..].iter().map(|row| &row[..]);
        assert_rows(family, &golden, rows);
    }
}

#[test]
fn the_reference_agrees_with_the_peer() {
    for family in FAMILIES {
        assert_reference(family, &checkpoint(family));
    }
}

/// The same models in GGUF files: the order of the rows of queries and keys, biases, norms, and
/// RoPE's divisors and factors keep their meaning. llama.cpp computes no windows for these
/// architectures.
#[test]
fn models_in_gguf_files_agree_with_the_peer() {
    let folder = tempfile::tempdir().unwrap();
    for family in ["llama-bias", "llama-linear", "llama2", "llama3", "qwen2", "qwen3"] {
        let file = folder.path().join(format!("{family}.gguf"));
        write_gguf(&checkpoint(family), &file, WeightType::F32, &[]).unwrap();
        assert_reference(family, &Checkpoint::open(&file).unwrap());
    }
}

/// The models that a script has converted by llama.cpp's rules: the checkpoints of the same names.
const CONVERTED: [&str; 46] = [
    "cohere-norm",
    "cohere2-bias",
    "deepseek-v2-lite",
    "deepseek-v3",
    "deepseek-v3.2",
    "dots1",
    "ernie4.5",
    "ernie4.5-moe",
    "falcon-new",
    "gemma2",
    "gemma3",
    "gemma4",
    "gemma4-inputs",
    "gemma4-moe",
    "gemma4-moe-inputs",
    "glm",
    "glm-5",
    "glm4",
    "glm4-moe-group",
    "glm4-moe-lite",
    "gpt-neox",
    "gpt-oss",
    "gpt2",
    "granite",
    "granite4",
    "granite4-dense",
    "granitemoe-bias",
    "lfm2",
    "lfm2-moe",
    "minimax-m2",
    "mixtral-tied",
    "olmo",
    "olmo2",
    "olmoe",
    "phi",
    "phi3-longrope",
    "qwen2-moe",
    "qwen3-moe",
    "qwen3-next",
    "qwen3.5-bias",
    "qwen3.5-moe",
    "qwen3.5-tied",
    "smollm3",
    "stablelm",
    "stablelm-norms",
    "starcoder2",
];

/// The folder of the converted models.
fn converted() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/gguf")
}

#[test]
fn models_converted_by_llama_cpps_rules_agree_with_the_peer() {
    let names = fs::read_dir(converted()).unwrap().map(|entry| entry.unwrap().path());
    let mut names: Vec<_> =
        names.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    assert_eq!(names, CONVERTED);
    for family in CONVERTED {
        let file = converted().join(format!("{family}.gguf"));
        assert_reference(family, &Checkpoint::open(&file).unwrap());
    }
}

/// The engine's tokens from a converted model, one token per pass.
#[test]
fn greedy_tokens_of_converted_models_equal_those_of_the_peer() {
    for family in CONVERTED {
        let file = converted().join(format!("{family}.gguf"));
        for golden in goldens(family) {
            let request = Request { max_tokens: 200, ignore_eos: true, ..Request::default() };
            let (tokens, _) = answer(&file, &golden.prompt, &request);
            assert_eq!(tokens, golden.generated, "{family}");
        }
    }
}

/// Experts that are stored in blocks stay blocks, and give about the logits of the restored values.
#[test]
fn experts_in_blocks_stay_blocks() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/tests/gguf/goldens");
    for (name, block_type) in [("gpt-oss", BlockType::MXFP4), ("qwen3moe", BlockType::Q8_0)] {
        let checkpoint = Checkpoint::open(&folder.join(format!("{name}.gguf"))).unwrap();
        let stored = Weights::load(&checkpoint).unwrap();
        let types = stored.weight_types();
        let is_block = |kind: &WeightType| *kind == WeightType::Quantized(block_type);
        assert!(types.iter().any(|(kind, _)| is_block(kind)), "{name}: {types:?}");
        let widened = Weights::load_as(&checkpoint, WeightType::F32).unwrap();
        let [stored, widened] = [stored, widened].map(|weights| {
            let team = Arc::new(Team::unpinned(2).unwrap());
            let mut model = CachedTransformer::new(Transformer::new(Arc::new(weights), team));
            let tree = TokenTree::chain(&[2, 6, 1, 3]);
            let request = ForwardRequest::next_token(SequenceId(0), &[1, 5, 4]);
            let logits = model.logits(&ForwardRequest { tree: &tree, ..request }).unwrap();
            logits.rows().flatten().copied().collect::<Vec<f32>>()
        });
        let size = widened.iter().map(|logit| logit.abs()).fold(0.0, f32::max);
        let differences = stored.iter().zip(&widened).map(|(one, other)| (one - other).abs());
        let largest = differences.fold(0.0, f32::max);
        assert!(largest < 0.03 * size, "{name}: {largest} of {size}");
    }
}

/// All tokens in one pass, on every instruction set.
#[test]
fn the_forward_pass_agrees_with_the_peer() {
    let mut largest = 0.0_f64;
    for family in FAMILIES {
        let weights = Weights::load_as(&checkpoint(family), WeightType::F32).unwrap();
        let weights = Arc::new(weights);
        for isa in Isa::available() {
            let team = Arc::new(Team::unpinned(2).unwrap().with_isa(isa));
            let mut model = CachedTransformer::new(Transformer::new(Arc::clone(&weights), team));
            for (number, golden) in (0..).zip(goldens(family)) {
                let tree = TokenTree::chain(&golden.generated[..199]);
                let prompt = ForwardRequest::next_token(SequenceId(number), &golden.prompt);
                let logits = model.logits(&ForwardRequest { tree: &tree, ..prompt }).unwrap();
                largest = largest.max(assert_rows(family, &golden, logits.rows()));
            }
        }
    }
    common::report(&format!("families: logits within {largest:.1e} of the peer's"));
}

fn answer(model: &Path, prompt: &[TokenId], request: &Request) -> (Vec<TokenId>, Finish) {
    let weight_type = Some(WeightType::F32.into());
    let options = Options { model: model.into(), weight_type, ..Options::default() };
    let engine = Engine::open(options).unwrap();
    let go_on = |_: &str| ControlFlow::Continue(());
    let answer = engine.generate_tokens(prompt.to_vec(), request, go_on).unwrap();
    (answer.tokens, answer.finish)
}

/// One token per pass.
#[test]
fn greedy_tokens_equal_those_of_the_peer() {
    for family in FAMILIES {
        for golden in goldens(family) {
            let request = Request { max_tokens: 200, ignore_eos: true, ..Request::default() };
            let (tokens, _) = answer(&folder().join(family), &golden.prompt, &request);
            assert_eq!(tokens, golden.generated, "{family}");
        }
    }
}

/// The end-of-sequence tokens are all those of generation_config.json, and not those of
/// config.json.
#[test]
fn an_answer_ends_at_any_eos_token_of_the_generation_config() {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder().join("llama3")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    let golden = &goldens("llama3")[0];
    let first = |token| golden.generated.iter().position(|&other| other == token).unwrap();
    let (early, late) = (golden.generated[20], golden.generated[90]);
    let config: Value =
        serde_json::from_slice(&fs::read(copy.path().join("config.json")).unwrap()).unwrap();
    assert_eq!(config["eos_token_id"], json!([2, 5, 7]));
    let unlimited = Request { max_tokens: 200, ..Request::default() };
    for (ids, ends_at) in [
        (json!([early, late]), first(early).min(first(late))),
        (json!([130, late]), first(late)),
        (json!(late), first(late)),
    ] {
        let generation = json!({"eos_token_id": ids, "do_sample": true, "temperature": 2.0});
        fs::write(copy.path().join("generation_config.json"), generation.to_string()).unwrap();
        // The checkpoint suggests sampling, but the request does not: the text stays greedy.
        let (tokens, finish) = answer(copy.path(), &golden.prompt, &unlimited);
        assert_eq!(tokens, golden.generated[..=ends_at], "{ids}");
        assert_eq!(finish, Finish::Eos);
    }
}

#[test]
fn configurations_of_both_formats_are_understood() {
    let config = |family: &str| -> Config { checkpoint(family).config().clone() };
    let windows = |family: &str| [0, 1].map(|layer| config(family).window(layer));
    assert_eq!(config("llama-linear").rope_scaling, RopeScaling::Linear { factor: 4.0 });
    assert!(matches!(config("llama3").rope_scaling, RopeScaling::Llama3 { .. }));
    assert_eq!(windows("mistral"), [Some(16); 2]);
    assert_eq!(windows("qwen2"), [None; 2]);
    assert_eq!(windows("qwen2-window"), [None, Some(24)]);
    assert_eq!(windows("qwen3-window"), [Some(13), None]);
    let own_types = ["llama2", "llama3", "llama-linear"]
        .map(|family| Weights::load(&checkpoint(family)).unwrap().weight_types()[0].0);
    assert_eq!(own_types, [WeightType::F32, WeightType::Bf16, WeightType::F16]);
    let suggested = config("qwen3").suggested_sampling.unwrap();
    assert_eq!((suggested.temperature, suggested.top_k, suggested.top_p), (0.6, 20, 0.9));
    let request = Request { max_tokens: 7, ..Request::default() }.sampled_as(suggested);
    let sampling = &request.sampling;
    assert_eq!((sampling.temperature, sampling.top_k, sampling.top_p), (0.6, 20, 0.9));
    assert_eq!(request.max_tokens, 7);
}

/// The language model of a Gemma 3, Gemma 4, Qwen3-VL or Qwen3.5 with images: its options are an
/// object in `config.json`, its tensors have a prefix, and the tensors for images are not read.
#[test]
fn the_language_model_of_a_multimodal_checkpoint_agrees_with_the_peer() {
    let [gemma, qwen] = ["gemma3-linear", "qwen3.5"];
    let [vl, unified] =
        ["Qwen3VLForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"];
    assert_multimodal("qwen3", "qwen3_vl", vl, "model.visual.blocks.0");
    assert_multimodal("gemma4", "gemma4_unified", unified, "model.vision_embedder.patch_dense");
    assert_multimodal(gemma, "gemma3", "Gemma3ForConditionalGeneration", "vision_tower.encoder");
    let of_keys = "model.language_model.layers.4.self_attn.k_proj";
    for unread in ["model.audio_tower.layers.0", "model.embed_vision.embedding", of_keys] {
        assert_multimodal("gemma4-inputs", "gemma4", "Gemma4ForConditionalGeneration", unread);
    }
    assert_multimodal(qwen, "qwen3_5", "Qwen3_5ForConditionalGeneration", "model.visual.blocks.0");
}

fn assert_multimodal(family: &str, model_type: &str, class: &str, of_images: &str) {
    let source = folder().join(family);
    for prefix in ["language_model.model.", "model.language_model."] {
        let copy = tempfile::tempdir().unwrap();
        let config = fs::read(source.join("config.json")).unwrap();
        let text_config: Value = serde_json::from_slice(&config).unwrap();
        write_multimodal_config(copy.path(), model_type, class, text_config);
        let bytes = fs::read(source.join("model.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let renamed = |name: &str| name.replacen("model.", prefix, 1);
        let mut tensors: Vec<_> =
            tensors.iter().map(|(name, view)| (renamed(name), view)).collect();
        let of_images = (format!("{of_images}.weight"), tensors[0].1.clone());
        tensors.push(of_images);
        let file = copy.path().join("model.safetensors");
        safetensors::serialize_to_file(tensors, None, &file).unwrap();
        assert_reference(family, &Checkpoint::open(copy.path()).unwrap());
    }
}

/// Writes the `config.json` of a model that also reads images.
fn write_multimodal_config(folder: &Path, model_type: &str, class: &str, mut text_config: Value) {
    text_config["model_type"] = json!(format!("{model_type}_text"));
    text_config["architectures"] = Value::Null;
    let config = json!({
        "architectures": [class], "model_type": model_type,
        "eos_token_id": [1, 106], "text_config": text_config, "vision_config": {"hidden_size": 8},
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

/// Published files of Qwen3-VL's mixtures have the inputs of all experts first, and those of
/// transformers 5 the outputs.
#[test]
fn the_language_model_of_a_qwen3_vl_with_experts_agrees_with_the_peer() {
    let (family, class) = ("qwen3-moe", "Qwen3VLMoeForConditionalGeneration");
    for inputs_first in [true, false] {
        let (copy, source) = (tempfile::tempdir().unwrap(), folder().join(family));
        let config = fs::read(source.join("config.json")).unwrap();
        let text_config = serde_json::from_slice(&config).unwrap();
        write_multimodal_config(copy.path(), "qwen3_vl_moe", class, text_config);
        write_with_fused_experts(&source, copy.path(), inputs_first);
        assert_reference(family, &Checkpoint::open(copy.path()).unwrap());
    }
}

/// The form in which transformers 5 computes: `gate_up_proj` and `down_proj` of all experts of a
/// layer.
#[test]
fn experts_may_be_stored_as_one_tensor() {
    let families = [
        "deepseek-v2",
        "deepseek-v3",
        "dots1",
        "ernie4.5-moe",
        "glm-5",
        "glm4-moe",
        "olmoe",
        "qwen2-moe",
        "qwen3-moe",
    ];
    for family in families {
        let (copy, source) = (tempfile::tempdir().unwrap(), folder().join(family));
        fs::copy(source.join("config.json"), copy.path().join("config.json")).unwrap();
        write_with_fused_experts(&source, copy.path(), false);
        assert_reference(family, &Checkpoint::open(copy.path()).unwrap());
    }
}

/// Writes the tensors of a checkpoint with those of all experts of a layer as one:
/// `[experts, outputs, inputs]`, or with the inputs first.
fn write_with_fused_experts(source: &Path, folder: &Path, inputs_first: bool) {
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<(String, TensorView<'_>)> =
        tensors.iter().map(|(name, view)| (name.to_owned(), view)).collect();
    all.retain(|(name, _)| !name.contains(".mlp.experts."));
    let layers =
        tensors.names().into_iter().filter_map(|name| name.split_once("experts.0.gate_proj"));
    let mut fused = Vec::new();
    for (layer, _) in layers {
        for (name, parts) in
            [("gate_up_proj", &["gate_proj", "up_proj"][..]), ("down_proj", &["down_proj"])]
        {
            let experts = (0..).map_while(|expert| {
                let part = |part: &&str| {
                    tensors.tensor(&format!("{layer}experts.{expert}.{part}.weight")).ok()
                };
                parts.iter().map(part).collect::<Option<Vec<_>>>()
            });
            let experts: Vec<_> = experts.collect();
            let [rows, columns] = *experts[0][0].shape() else { panic!("a matrix") };
            let rows = parts.len() * rows;
            let size = experts[0][0].dtype().bitsize() / 8;
            let values = experts.iter().flat_map(|parts| {
                let matrix: Vec<u8> = parts.iter().flat_map(TensorView::data).copied().collect();
                let value = |index: usize| matrix[index * size..][..size].to_vec();
                let order: Vec<usize> = match inputs_first {
                    true => (0..columns)
                        .flat_map(|column| (0..rows).map(move |row| row * columns + column))
                        .collect(),
                    false => (0..rows * columns).collect(),
                };
                order.into_iter().flat_map(value).collect::<Vec<u8>>()
            });
            let shape = match inputs_first {
                true => vec![experts.len(), columns, rows],
                false => vec![experts.len(), rows, columns],
            };
            let values: Vec<u8> = values.collect();
            fused.push((format!("{layer}experts.{name}"), shape, experts[0][0].dtype(), values));
        }
    }
    assert!(!fused.is_empty());
    for (name, shape, dtype, values) in &fused {
        let view = TensorView::new(*dtype, shape.clone(), values).unwrap();
        all.push((name.clone(), view));
    }
    safetensors::serialize_to_file(all, None, &folder.join("model.safetensors")).unwrap();
}

/// The published GPT-2 is stored without the class's prefix, and with causal masks.
#[test]
fn tensors_may_have_the_names_of_the_base_class() {
    for (family, prefix) in
        [("gpt2", "transformer."), ("opt", "model."), ("falcon-new", "transformer.")]
    {
        let (copy, source) = (tempfile::tempdir().unwrap(), folder().join(family));
        fs::copy(source.join("config.json"), copy.path().join("config.json")).unwrap();
        let bytes = fs::read(source.join("model.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let write = |further: &str| {
            let renamed = |name: &str| name.strip_prefix(prefix).unwrap_or(name).to_owned();
            let mut all: Vec<_> =
                tensors.iter().map(|(name, view)| (renamed(name), view)).collect();
            all.push((further.to_owned(), all[0].1.clone()));
            let file = copy.path().join("model.safetensors");
            safetensors::serialize_to_file(all, None, &file).unwrap();
            Checkpoint::open(copy.path())
        };
        assert_reference(family, &write("h.0.attn.bias").unwrap());
        let message = write("h.9.ln_1.weight").err().unwrap().to_string();
        assert!(message.contains("h.9.ln_1.weight"), "{message}");
    }
}

/// Published files of Gemma 4 hold keys of layers that attend to those of others. They are not
/// read.
#[test]
fn keys_that_no_layer_attends_to_are_not_read() {
    let copy = tempfile::tempdir().unwrap();
    let source = folder().join("gemma4-inputs");
    fs::copy(source.join("config.json"), copy.path().join("config.json")).unwrap();
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let write = |further: &str| {
        let further = (further.to_owned(), tensors.tensor("model.norm.weight").unwrap());
        let all = tensors.iter().map(|(name, view)| (name.to_owned(), view)).chain([further]);
        let file = copy.path().join("model.safetensors");
        safetensors::serialize_to_file(all.collect::<Vec<_>>(), None, &file).unwrap();
        Checkpoint::open(copy.path())
    };
    assert_reference("gemma4-inputs", &write("model.layers.3.self_attn.k_norm.weight").unwrap());
    let of_others =
        ["model.layers.2.self_attn.k_proj.bias", "model.layers.3.self_attn.o_proj.bias"];
    for of_other in of_others {
        assert!(write(of_other).err().unwrap().to_string().contains(of_other));
    }
}

/// GLM-4.5 and later have a layer after the others that predicts a further token. It is not read.
#[test]
fn layers_that_predict_further_tokens_are_not_read() {
    let copy = tempfile::tempdir().unwrap();
    let source = folder().join("glm4-moe");
    fs::copy(source.join("config.json"), copy.path().join("config.json")).unwrap();
    let bytes = fs::read(source.join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let layers = checkpoint("glm4-moe").config().num_hidden_layers;
    let write = |further: String| {
        let of_layer = (further, tensors.tensor("model.norm.weight").unwrap());
        let all = tensors.iter().map(|(name, view)| (name.to_owned(), view)).chain([of_layer]);
        let file = copy.path().join("model.safetensors");
        safetensors::serialize_to_file(all.collect::<Vec<_>>(), None, &file).unwrap();
        Checkpoint::open(copy.path())
    };
    assert_reference("glm4-moe", &write(format!("model.layers.{layers}.enorm.weight")).unwrap());
    let within = write(format!("model.layers.{}.enorm.weight", layers - 1));
    assert!(within.err().unwrap().to_string().contains("enorm.weight"));
}
