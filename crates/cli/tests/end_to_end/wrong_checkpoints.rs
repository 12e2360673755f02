//! Missing, damaged and mismatched checkpoints: error messages.

use crate::common::{Models, Run, Weights, edit_json};
use forerun_formats::checkpoint::random::{RandomDtype, example_config, write_random_checkpoint};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

const UP: &str = "model.layers.1.mlp.up_proj.weight";
const DOWN: &str = "model.layers.1.mlp.down_proj.weight";

/// A name, a function that damages the checkpoint in a directory, and words of the error message.
type Damage = (&'static str, fn(&Path), &'static [&'static str]);

const DAMAGES: &[Damage] = &[
    ("no directory", |model| fs::remove_dir_all(model).unwrap(), &["no such file or directory"]),
    ("an empty directory", empty, &["config.json", "found neither"]),
    ("no weights", |model| remove(model, "model.safetensors"), &["model.safetensors", "missing"]),
    ("a missing shard", lose_a_shard, &["model-00002-of-00002.safetensors"]),
    ("truncated weights", truncate, &["model.safetensors", "bytes", "download"]),
    (
        "no safetensors at all",
        |model| write(model, "model.safetensors", "hello, weights"),
        &["safetensors"],
    ),
    ("whole numbers", store_as_i16, &["dtype I16", "F32, BF16 or F16"]),
    ("a wrong shape", transpose, &[DOWN, "[100, 48]", "[48, 100]"]),
    ("a NaN", |model| poison(model, f32::NAN), &[UP, "NaN"]),
    ("an infinity", |model| poison(model, f32::INFINITY), &[UP, "inf"]),
    ("a missing tensor", |model| rename_tensor(model, UP, None), &[UP, "missing"]),
    ("an unexpected tensor", |model| rename_tensor(model, UP, Some("model.bias")), &["model.bias"]),
    ("another architecture", use_bloom, &["model_type", "bloom", "llama"]),
    ("scaled positions", scale_positions, &["rope_type", "mrope", "not supported"]),
    ("another family", use_qwen2, &["model.layers.0.self_attn.q_proj.bias", "missing"]),
    ("no hidden size", |model| configure(model, "hidden_size", Value::Null), &["hidden_size"]),
    ("a broken configuration", |model| write(model, "config.json", "{"), &["config.json", "JSON"]),
    (
        "an invalid sampling option",
        |model| write(model, "generation_config.json", "{\"top_k\": -1}"),
        &["generation_config.json", "option \"top_k\" is -1"],
    ),
    ("no tokenizer", |model| remove(model, "tokenizer.json"), &["no tokenizer", "tokenizer.json"]),
    ("a broken tokenizer", |model| write(model, "tokenizer.json", "{"), &["tokenizer.json"]),
    ("too many tokens", enlarge_vocabulary, &["tokens up to 259", "only 259"]),
];

/// Both the target and the drafter are checked, and the error names the damaged one.
#[test]
fn damaged_checkpoints_are_refused_with_their_path() {
    for (what, damage, words) in DAMAGES {
        for drafter in [false, true] {
            let models = Models::pair();
            let damaged = if drafter { models.drafter() } else { models.target() };
            damage(&damaged);
            let run = Run::generate_with_drafter(&models).words("--prompt Hello");
            let finished = run.finish();
            finished.assert_refused(what, words);
            finished.assert_refused(what, &[damaged.to_str().unwrap()]);
        }
    }
}

#[test]
fn files_that_are_no_models_are_named() {
    let models = Models::pair();
    let header = [16, 64, 2, 3, 4, 256, 32_i32].map(i32::to_le_bytes).concat();
    let files: [(&str, &[u8], &[&str]); 6] = [
        ("config.json", b"{\n  \"hidden_size\": 64,\n  \"x\": 1\n}\n", &["JSON", "directory"]),
        ("list.json", b"[1]", &["JSON", "directory"]),
        ("notes.txt", b"The quick brown fox jumps over the lazy dog.\n", &["a text", "GGUF file"]),
        (
            "cat.png",
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x10\0\0\0\x10",
            &["an image", "GGUF file"],
        ),
        (
            "cat.jpg",
            &[b"\xff\xd8\xff\xe0\0\x10JFIF\0".as_slice(), &[0; 40]].concat(),
            &["an image"],
        ),
        ("llama2c.bin", &header, &["n_heads", "divisor"]),
    ];
    for (name, bytes, words) in files {
        let file = models.folder().join(name);
        fs::write(&file, bytes).unwrap();
        let run = Run::of("generate -p x").with_path("--model", &file);
        run.finish().assert_refused(name, &[words, &[name]].concat());
    }
}

fn empty(model: &Path) {
    fs::remove_dir_all(model).unwrap();
    fs::create_dir(model).unwrap();
}

fn remove(model: &Path, file: &str) {
    fs::remove_file(model.join(file)).unwrap();
}

fn write(model: &Path, file: &str, text: &str) {
    fs::write(model.join(file), text).unwrap();
}

/// Splits the weights into two shards, of which the second is missing.
fn lose_a_shard(model: &Path) {
    let shard = |number: u32| format!("model-0000{number}-of-00002.safetensors");
    let mut names = Vec::new();
    Weights::edit(&model.join("model.safetensors"), |weights| {
        names.extend(weights.header.as_object().unwrap().keys().cloned());
    });
    names.retain(|name| name != "__metadata__");
    let of = |name: String| {
        let number = if name.contains("layers.1") { 2 } else { 1 };
        (name, json!(shard(number)))
    };
    let map: serde_json::Map<String, Value> = names.into_iter().map(of).collect();
    fs::rename(model.join("model.safetensors"), model.join(shard(1))).unwrap();
    let index = json!({ "metadata": {}, "weight_map": map }).to_string();
    write(model, "model.safetensors.index.json", &index);
}

fn truncate(model: &Path) {
    let file = model.join("model.safetensors");
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() * 2 / 3]).unwrap();
}

/// Changes all elements to two bytes.
fn store_as_i16(model: &Path) {
    Weights::edit(&model.join("model.safetensors"), |weights| {
        let tensors = weights.header.as_object_mut().unwrap();
        for (_, tensor) in tensors.iter_mut().filter(|(name, _)| *name != "__metadata__") {
            tensor["dtype"] = json!("I16");
            for offset in tensor["data_offsets"].as_array_mut().unwrap() {
                *offset = json!(offset.as_u64().unwrap() / 2);
            }
        }
        weights.data.truncate(weights.data.len() / 2);
    });
}

fn transpose(model: &Path) {
    Weights::edit(&model.join("model.safetensors"), |weights| {
        weights.header[DOWN]["shape"].as_array_mut().unwrap().reverse();
    });
}

fn poison(model: &Path, value: f32) {
    Weights::edit(&model.join("model.safetensors"), |weights| {
        let at = weights.start_of(UP) + 40;
        weights.data[at..at + 4].copy_from_slice(&value.to_le_bytes());
    });
}

/// Adds a tensor with the name `more`, or without it renames the tensor `name`.
fn rename_tensor(model: &Path, name: &str, more: Option<&str>) {
    Weights::edit(&model.join("model.safetensors"), |weights| {
        let tensors = weights.header.as_object_mut().unwrap();
        match more {
            Some(more) => {
                // At the end of the data, because tensors must not overlap.
                let end = weights.data.len();
                let stored =
                    json!({ "dtype": "F32", "shape": [1], "data_offsets": [end, end + 4] });
                tensors.insert(more.to_owned(), stored);
                weights.data.extend([0; 4]);
            }
            None => {
                let stored = tensors.remove(name).unwrap();
                tensors.insert("rotary_emb.inv_freq".to_owned(), stored);
            }
        }
    });
}

fn configure(model: &Path, option: &str, value: Value) {
    edit_json(&model.join("config.json"), |config| config[option] = value);
}

fn use_bloom(model: &Path) {
    configure(model, "model_type", json!("bloom"));
    configure(model, "architectures", json!(["BloomForCausalLM"]));
}

fn scale_positions(model: &Path) {
    configure(model, "rope_scaling", json!({ "rope_type": "mrope", "factor": 8.0 }));
}

fn use_qwen2(model: &Path) {
    configure(model, "model_type", json!("qwen2"));
    configure(model, "architectures", json!(["Qwen2ForCausalLM"]));
}

/// Gives one more token an id beyond the model's vocabulary.
fn enlarge_vocabulary(model: &Path) {
    edit_json(&model.join("tokenizer.json"), |tokenizer| {
        tokenizer["model"]["vocab"]["ab"] = json!(259);
    });
}

/// Adds tokens to the tokenizer's 258.
fn add_tokens(model: &Path, count: u64) {
    edit_json(&model.join("tokenizer.json"), |tokenizer| {
        let added = tokenizer["added_tokens"].as_array_mut().unwrap();
        for id in 258..258 + count {
            let mut token = added[0].clone();
            token["id"] = json!(id);
            token["content"] = json!(format!("<extra {id}>"));
            added.push(token);
        }
    });
}

fn swap_two_tokens(model: &Path) {
    edit_json(&model.join("tokenizer.json"), |tokenizer| {
        let vocabulary = &mut tokenizer["model"]["vocab"];
        (vocabulary["a"], vocabulary["b"]) = (json!(98), json!(97));
    });
}

/// Some variants of models have padding tokens in the tokenizer without a row in the embedding.
#[test]
fn added_tokens_beyond_the_vocabulary_fail_only_in_texts_that_contain_them() {
    let models = Models::pair();
    add_tokens(&models.target(), 2);
    add_tokens(&models.drafter(), 2);
    let run = |prompt| Run::generate_with_drafter(&models).with(&["-n", "20", "-p", prompt]);
    run("Hello").succeed();
    let beyond = run("Hello<extra 259>").finish();
    beyond.assert_refused("in the prompt", &["token 259 is not in", "vocabulary of 259"]);
    // A token that only the drafter lacks prevents drafts, but not the answer.
    let models = Models::pair();
    add_tokens(&models.drafter(), 2);
    let prompt = ["-n", "20", "-p", "ab<extra 259>ab"];
    let plain = Run::generate(&models).with(&prompt).succeed();
    let drafted = Run::generate_with_drafter(&models).with(&prompt).words("--draft-tokens 3");
    let drafted = drafted.succeed();
    assert!(drafted.errors.contains("translated through their text"), "{}", drafted.errors);
    assert_eq!(drafted.output(), plain.output());
}

/// Drafts of another vocabulary are translated through their text; trees cannot be translated.
#[test]
fn a_tree_of_another_vocabulary_is_refused() {
    fn enlarge(drafter: &Path) {
        let mut config = example_config();
        config.vocab_size = 300;
        write_random_checkpoint(drafter, &config, 5, RandomDtype::F32).unwrap();
        swap_two_tokens(drafter);
    }
    let table: [Damage; 3] = [
        ("two tokens swapped", swap_two_tokens, &["both have 259 tokens"]),
        ("one more token in the tokenizer", |drafter| add_tokens(drafter, 1), &[]),
        ("another size", enlarge, &["300 tokens", "259 tokens"]),
    ];
    for (what, change, words) in table {
        let models = Models::pair();
        change(&models.drafter());
        let prompt = ["--prompt", "Hello", "-n", "5"];
        let run = Run::generate_with_drafter(&models).with(&prompt).words("--tree top:2x2");
        let finished = run.finish();
        finished.assert_refused(what, &["another vocabulary", "leave --tree out"]);
        finished.assert_refused(what, words);
        finished.assert_refused(what, &[models.drafter().to_str().unwrap()]);
        let chain = Run::generate_with_drafter(&models).with(&prompt).succeed();
        assert!(chain.errors.contains("translated through their text"), "{what}: {}", chain.errors);
        // An unused drafter is not checked.
        let plain = Run::generate_with_drafter(&models).words("-p Hello -n 3");
        plain.words("--method autoregressive").succeed();
    }
}
