//! Where GGUF files are found: by path, in folders, and in parts.

use super::builder::{Builder, U16, text, u32_value};
use forerun_formats::Checkpoint;
use forerun_formats::checkpoint::Tensor;
use std::fs;
use std::path::Path;

fn message(path: &Path) -> String {
    Checkpoint::open(path).unwrap_err().to_string()
}

/// Splits a model into three parts: the last one has no tensor.
fn parts() -> [Builder; 3] {
    let whole = Builder::llama();
    [0..4, 4..12, 0..0].map(|tensors| {
        let number = match tensors.start {
            0 if tensors.end == 4 => 0_u16,
            4 => 1,
            _ => 2,
        };
        let mut part = whole.clone();
        part.tensors = whole.tensors[tensors].to_vec();
        if number > 0 {
            part.metadata.clear();
        }
        part.set("split.no", (U16, number.to_le_bytes().into()));
        part.set("split.count", (U16, 3_u16.to_le_bytes().into()));
        part.set("split.tensors.count", u32_value(12));
        part
    })
}

fn name(part: usize) -> String {
    format!("tiny-{part:05}-of-00003.gguf")
}

fn write_parts(folder: &Path, parts: &[Builder]) {
    for (part, builder) in (1..).zip(parts) {
        fs::write(folder.join(name(part)), builder.bytes()).unwrap();
    }
}

#[test]
fn files_of_any_name_open_by_their_first_bytes() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["model.gguf", "sha256-0123456789abcdef", "model.bin"] {
        let file = folder.path().join(name);
        fs::write(&file, Builder::llama().bytes()).unwrap();
        let checkpoint = Checkpoint::open(&file).unwrap();
        assert_eq!((checkpoint.path(), checkpoint.config().hidden_size), (&*file, 4));
    }
}

#[test]
fn a_folder_may_have_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    write("model.gguf", &Builder::llama().bytes());
    write("mmproj-model.gguf", b"a projector of images");
    write("tokenizer.bin", b"a tokenizer");
    assert!(Checkpoint::open(folder.path()).unwrap().gguf().is_some());
    // Repositories of GGUF files often have a configuration, too.
    write("config.json", br#"{"model_type": "llama"}"#);
    assert!(Checkpoint::open(folder.path()).unwrap().gguf().is_some());
    fs::remove_file(folder.path().join("config.json")).unwrap();
    write("model-00001-of-00002.gguf", b"a part");
    write("model-00002-of-00002.gguf", b"its other part");
    let split = message(folder.path());
    let several = "several models: [\"model-00001-of-00002.gguf\", \"model.gguf\"]";
    assert!(split.contains(several), "{split}");
    for part in ["model-00001-of-00002.gguf", "model-00002-of-00002.gguf"] {
        fs::remove_file(folder.path().join(part)).unwrap();
    }
    write("other.gguf", &Builder::llama().bytes());
    let message = message(folder.path());
    assert!(message.contains("several models: [\"model.gguf\", \"other.gguf\"]"), "{message}");
}

#[test]
fn safetensors_take_precedence_in_a_folder() {
    use forerun_formats::checkpoint::random::{
        RandomDtype, example_config, write_random_checkpoint,
    };
    let folder = tempfile::tempdir().unwrap();
    write_random_checkpoint(folder.path(), &example_config(), 1, RandomDtype::F32).unwrap();
    fs::write(folder.path().join("model.gguf"), Builder::llama().bytes()).unwrap();
    assert!(Checkpoint::open(folder.path()).unwrap().gguf().is_none());
}

#[test]
fn a_split_model_opens_by_any_part_and_by_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    write_parts(folder.path(), &parts());
    let whole = Builder::llama().read().unwrap();
    let paths = [1, 2, 3].map(|part| folder.path().join(name(part)));
    for path in paths.iter().map(|path| &**path).chain([folder.path()]) {
        let checkpoint = Checkpoint::open(path).unwrap();
        for tensor in whole.architecture().tensors() {
            assert_eq!(checkpoint.tensor(tensor).unwrap(), whole.tensor(tensor).unwrap());
        }
        assert_eq!(checkpoint.config(), whole.config());
        assert!(checkpoint.gguf().unwrap().contains("general.architecture"));
    }
}

#[test]
fn parts_that_are_missing_or_do_not_belong_together_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join(name(1));
    let rejected = |change: &dyn Fn(&mut [Builder; 3]), words: &[&str]| {
        let mut parts = parts();
        change(&mut parts);
        write_parts(folder.path(), &parts);
        let message = message(&first);
        for word in words {
            assert!(message.contains(word), "no {word:?} in: {message}");
        }
    };
    let u16_value = |value: u16| (U16, value.to_le_bytes().to_vec());
    rejected(
        &|parts| parts[1].set("split.no", u16_value(2)),
        &["00002-of-00003.gguf", "\"split.no\" is 2; expected 1"],
    );
    rejected(
        &|parts| parts[1].set("split.count", u16_value(4)),
        &["00002-of-00003.gguf", "\"split.count\" is 4; expected 3"],
    );
    rejected(
        &|parts| parts[2].remove("split.count"),
        &["00003-of-00003.gguf", "\"split.count\" is absent; expected 3"],
    );
    rejected(
        &|parts| parts[0].set("split.no", u16_value(3)),
        &["\"split.no\" is 3; expected a number below 3"],
    );
    rejected(
        &|parts| parts[0].set("split.count", text("3")),
        &["\"split.count\" is \"3\"; expected an integer"],
    );
    rejected(
        &|parts| parts[0].set("split.tensors.count", u32_value(13)),
        &["\"split.tensors.count\" is 13; expected 12"],
    );
    rejected(
        &|parts| {
            let again = parts[0].tensors[0].clone();
            parts[2].tensors.push(again);
            parts.iter_mut().for_each(|part| part.set("split.tensors.count", u32_value(13)));
        },
        &["00003-of-00003.gguf", "tensor `token_embd.weight` is also stored in"],
    );
    write_parts(folder.path(), &parts());
    fs::remove_file(folder.path().join(name(2))).unwrap();
    let missing = "tiny-00002-of-00003.gguf: file is missing";
    assert!(message(&first).contains(missing));
    assert!(message(&folder.path().join(name(3))).contains(missing));
    let renamed = folder.path().join("renamed.gguf");
    fs::rename(&first, &renamed).unwrap();
    let message = message(&renamed);
    assert!(message.contains("the file's name is renamed.gguf"), "{message}");
    assert!(message.contains("-00001-of-00003.gguf: it is part 1 of 3"), "{message}");
}

/// llama.cpp writes a count of 0 when it merges parts.
#[test]
fn a_merged_file_is_its_only_part() {
    let mut merged = Builder::llama();
    merged.set("split.count", (U16, vec![0, 0]));
    assert!(merged.read().unwrap().tensor(Tensor::Head).is_ok());
}
