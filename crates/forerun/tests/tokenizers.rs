//! Tokenizers of the model families: pieces that begin with spaces, and byte tokens (Llama 2); byte-level
//! BPE (GPT-2, Llama 3, Qwen); and BOS in front of a text.

#![expect(clippy::unwrap_used, reason = "tests")]

mod common;

use forerun::{TextStream, TokenId, Tokenizer};
use forerun_formats::checkpoint::random::{
    BOS, RandomDtype, example_config, write_random_checkpoint,
};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Texts that must be unchanged after encoding and decoding, including spaces and line breaks.
const TEXTS: [&str; 6] = [
    "Hello, world!",
    "two  spaces,   three\n\nlines\tand a tab",
    "def f(x):\n    return {'a': x ** 2}\n",
    "Zoë went to the café; 你好，世界。",
    "👩‍👧 and ❤️ are one character each, 🐱 too",
    " one space in front, one behind ",
];

/// Returns a tokenizer of the data folder, copied to a folder without other files.
fn real(name: &str) -> Option<(TempDir, Tokenizer)> {
    let file = common::data_folder()?.join("tokenizers").join(name);
    let folder = TempDir::new().unwrap();
    fs::copy(file, folder.path().join("tokenizer.json")).unwrap();
    let tokenizer = Tokenizer::from_checkpoint(folder.path()).unwrap();
    Some((folder, tokenizer))
}

/// Checks that text streamed token by token after a prompt equals the text decoded as a whole.
fn check_streams(tokenizer: &Tokenizer) {
    let prompt = tokenizer.encode("The prompt").unwrap();
    for text in TEXTS {
        let tokens = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode(&tokens), text);
        let mut stream = TextStream::new(tokenizer, &prompt);
        let streamed: String = tokens.iter().map(|&token| stream.push(token)).collect();
        let all: Vec<TokenId> = prompt.iter().chain(&tokens).copied().collect();
        assert_eq!("The prompt".to_owned() + &streamed + &stream.finish(), tokenizer.decode(&all));
    }
}

#[test]
fn the_tokenizer_of_llama_2_puts_its_bos_in_front() {
    let Some((_folder, tokenizer)) = real("llama2_tokenizer.json") else { return };
    let encode = |text| tokenizer.encode(text).unwrap();
    assert_eq!(encode("Hello this is a test"), [1, 15043, 445, 338, 263, 1243]);
    assert_eq!(encode(""), [1]);
    assert_eq!(tokenizer.vocab_size(), 32_000);
    check_streams(&tokenizer);
}

#[test]
fn the_tokenizer_of_gpt_2_puts_nothing_in_front() {
    let Some((_folder, tokenizer)) = real("gpt2_tokenizer.json") else { return };
    let encode = |text| tokenizer.encode(text).unwrap();
    assert_eq!(encode("Hello, world!"), [15496, 11, 995, 0]);
    assert_eq!(encode(""), [0; 0]);
    assert_eq!(tokenizer.vocab_size(), 50_257);
    check_streams(&tokenizer);
}

/// Returns the random checkpoint's tokenizer after a change, with an optional `tokenizer_config.json`.
fn changed(
    change: impl FnOnce(&mut Value),
    config: Option<&Value>,
) -> (TempDir, Result<Tokenizer, String>) {
    let folder = TempDir::new().unwrap();
    write_random_checkpoint(folder.path(), &example_config(), 1, RandomDtype::Bf16).unwrap();
    edit(&folder.path().join("tokenizer.json"), change);
    if let Some(config) = config {
        fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    }
    let tokenizer = Tokenizer::from_checkpoint(folder.path()).map_err(|error| error.to_string());
    (folder, tokenizer)
}

fn edit(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    change(&mut value);
    fs::write(file, value.to_string()).unwrap();
}

/// The template in tokenizer.json decides. If it adds nothing, `add_bos_token` decides.
#[test]
fn bos_comes_from_the_template_or_else_from_the_configuration() {
    let keep = |_: &mut Value| ();
    let drop_template = |tokenizer: &mut Value| tokenizer["post_processor"] = Value::Null;
    let first = |change: fn(&mut Value), config: Option<Value>| {
        let (_folder, tokenizer) = changed(change, config.as_ref());
        let tokens = tokenizer.unwrap().encode("ab").unwrap();
        let text = tokens.strip_suffix(&[97, 98]).unwrap();
        text.to_vec()
    };
    let (with, without) = (vec![BOS], Vec::<TokenId>::new());
    assert_eq!(first(keep, None), with);
    assert_eq!(first(keep, Some(json!({"add_bos_token": true, "bos_token": "<s>"}))), with);
    assert_eq!(first(keep, Some(json!({"add_bos_token": false, "bos_token": "<s>"}))), with);
    assert_eq!(first(drop_template, None), without);
    assert_eq!(first(drop_template, Some(json!({"bos_token": "<s>"}))), without);
    assert_eq!(first(drop_template, Some(json!({"add_bos_token": true}))), without);
    let no = json!({"add_bos_token": false, "bos_token": "<s>", "eos_token": {"content": "</s>"}});
    assert_eq!(first(drop_template, Some(no)), without);
    let text = json!({"add_bos_token": true, "bos_token": "<s>"});
    assert_eq!(first(drop_template, Some(text)), with);
    let object = json!({"add_bos_token": true, "bos_token": {"content": "<s>", "lstrip": false}});
    assert_eq!(first(drop_template, Some(object)), with);
}

#[test]
fn a_configuration_that_names_no_token_is_refused() {
    let drop_template = |tokenizer: &mut Value| tokenizer["post_processor"] = Value::Null;
    let message = |config| changed(drop_template, Some(&config)).1.err().unwrap();
    let unknown = message(json!({"add_bos_token": true, "bos_token": "<begin>"}));
    assert!(unknown.contains("tokenizer_config.json"), "{unknown}");
    assert!(unknown.contains("\"<begin>\" is not a token"), "{unknown}");
    let broken = message(json!({"add_bos_token": "yes"}));
    assert!(broken.contains("tokenizer_config.json: invalid type"), "{broken}");
}
