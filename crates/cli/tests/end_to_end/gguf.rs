//! GGUF files run by themselves: they give the text of the model that they were made from.

use crate::common::{Models, Run, edit_json};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

const PROMPT: [&str; 6] = ["-p", "Once upon 12 times,\n\n it's", "-n", "24", "--seed", "1"];

fn export(model: &Path, file: &Path, gguf_type: &str) {
    let run = Run::forerun().with(&["export", "--type", gguf_type]).with_path("--model", model);
    run.with_path("--gguf", file).succeed();
}

fn generate(model: &Path) -> Run {
    Run::of("generate").with(&PROMPT).with_path("--model", model)
}

fn text_from(model: &Path) -> String {
    generate(model).succeed().output()
}

/// The text of the model with its weights in this type.
fn text_with(dtype: &str, model: &Path) -> String {
    generate(model).with(&["--dtype", dtype]).succeed().output()
}

/// A folder with a copy of the file, alone and under another name.
fn copy_alone(folder: &Path, file: &Path, name: &str) -> PathBuf {
    let alone = folder.join("alone");
    drop(fs::remove_dir_all(&alone));
    fs::create_dir(&alone).unwrap();
    fs::copy(file, alone.join(name)).unwrap();
    alone
}

#[test]
fn an_exported_model_gives_the_text_of_the_original() {
    let models = Models::pair();
    let file = models.folder().join("model.gguf");
    for gguf_type in ["f32", "bf16"] {
        drop(fs::remove_file(&file));
        export(&models.target(), &file, gguf_type);
        assert_eq!(text_from(&file), text_with(gguf_type, &models.target()), "{gguf_type}");
    }
    let expected = text_from(&file);
    // As in a folder of ollama, and as the only model of a folder.
    let name = "sha256-0123456789abcdef";
    let alone = copy_alone(models.folder(), &file, name);
    assert_eq!(text_from(&alone.join(name)), expected);
    let alone = copy_alone(models.folder(), &file, "x.gguf");
    assert_eq!(text_from(&alone), expected);
    fs::copy(&file, alone.join("y.gguf")).unwrap();
    let several = generate(&alone).finish();
    several.assert_refused("several models", &["x.gguf", "y.gguf", "several models"]);
}

#[test]
fn drafters_and_targets_have_any_format() {
    let models = Models::pair();
    let (target, drafter) =
        (models.folder().join("target.gguf"), models.folder().join("drafter.gguf"));
    export(&models.target(), &target, "bf16");
    export(&models.drafter(), &drafter, "bf16");
    let original = text_from(&models.target());
    let exported = text_with("bf16", &models.target());
    for (target, drafter, expected) in [
        (&target, &models.drafter(), &exported),
        (&models.target(), &drafter, &original),
        (&target, &drafter, &exported),
    ] {
        let run = generate(target).with_path("--draft-model", drafter).on_one_core();
        let finished = run.succeed();
        assert_eq!(finished.output(), *expected, "{}", finished.errors);
        // The vocabularies are the same.
        assert!(!finished.errors.contains("translat"), "{}", finished.errors);
    }
}

#[test]
fn a_chat_uses_the_template_in_the_file() {
    let models = Models::pair();
    fs::write(
        models.target().join("tokenizer_config.json"),
        json!({"chat_template": "{{ bos_token }}[{{ messages[-1].content }}]", "bos_token": "<s>",
            "eos_token": "</s>"})
        .to_string(),
    )
    .unwrap();
    let file = models.folder().join("model.gguf");
    export(&models.target(), &file, "f32");
    let chat = |model: &Path| {
        let run = Run::of("chat -n 12 --seed 1 --no-history");
        run.with_path("--model", model).input("Hello\nWhy?\n").succeed()
    };
    let again = models.folder().join("again.gguf");
    export(&file, &again, "f32");
    let folder = chat(&models.target());
    for gguf in [chat(&file), chat(&again)] {
        assert_eq!(gguf.output(), folder.output());
        assert!(!gguf.errors.contains("no chat template"), "{}", gguf.errors);
    }
}

/// Writes a random llama2.c model of version 0 and its tokenizer.
fn write_llama2c(folder: &Path) -> PathBuf {
    let [hidden, inner, layers, heads, kv_heads, vocab, context] = [16, 24, 2, 2, 1, 264, 64];
    let head = hidden / heads;
    let mut bytes: Vec<u8> = [hidden, inner, layers, heads, kv_heads, vocab, context]
        .iter()
        .flat_map(|&size: &i32| size.to_le_bytes())
        .collect();
    let kv = head * kv_heads;
    let layer = 2 * hidden * hidden + 2 * kv * hidden + 3 * inner * hidden + 2 * hidden;
    let values = vocab * hidden + layers * layer + hidden + context * head;
    let mut state = 1_u32;
    for _ in 0..values {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.extend((state as f32 / u32::MAX as f32 - 0.5).to_le_bytes());
    }
    let model = folder.join("model.bin");
    fs::write(&model, bytes).unwrap();
    let mut pieces: Vec<String> = ["<unk>", "\n<s>\n", "\n</s>\n"].map(str::to_owned).to_vec();
    pieces.extend((0..=255).map(|byte: u8| format!("<0x{byte:02X}>")));
    pieces.extend([" t", "im", " ", "t", "i"].map(str::to_owned));
    let mut bytes = 7_i32.to_le_bytes().to_vec();
    for (rank, piece) in pieces.iter().enumerate() {
        bytes.extend((-(rank as f32)).to_le_bytes());
        bytes.extend((piece.len() as i32).to_le_bytes());
        bytes.extend(piece.as_bytes());
    }
    fs::write(folder.join("tok264.bin"), bytes).unwrap();
    model
}

#[test]
fn a_model_of_llama2c_is_exported_with_its_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let model = write_llama2c(folder.path());
    let file = folder.path().join("model.gguf");
    export(&model, &file, "f32");
    let alone = copy_alone(folder.path(), &file, "model");
    let json = |model: &Path| generate(model).words("--json --ignore-eos").succeed().json();
    let (original, gguf) = (json(&model), json(&alone.join("model")));
    assert_eq!(gguf["text"], original["text"]);
    assert_eq!(gguf["tokens"], original["tokens"]);
    assert!(original["text"].as_str().is_some_and(|text| text.len() > 10), "{original}");
}

#[test]
fn an_unknown_tokenizer_is_refused_by_name() {
    let models = Models::pair();
    // The writer's own checks do not apply to a file that is changed afterwards.
    let file = models.folder().join("model.gguf");
    edit_json(&models.target().join("tokenizer.json"), |_| ());
    export(&models.target(), &file, "f32");
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.windows(5).position(|window| window == b"gpt-2").unwrap();
    bytes[at..at + 5].copy_from_slice(b"gpt-9");
    fs::write(&file, bytes).unwrap();
    let finished = generate(&file).finish();
    finished.assert_refused("unknown", &["tokenizer.ggml.pre is \"gpt-9\"", "llama-bpe", "qwen2"]);
}
