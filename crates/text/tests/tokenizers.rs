//! Tokenizers of the model families: pieces that begin with spaces, and byte tokens (Llama 2);
//! byte-level BPE (GPT-2, Llama 3, Qwen); characters; and BOS in front of a text. A model's
//! tokenizer among several.

#![expect(clippy::unwrap_used, reason = "tests")]

use forerun_core::TokenId;
use forerun_core::testing::data_folder;
use forerun_formats::Checkpoint;
use forerun_formats::checkpoint::random::{
    BOS, RandomDtype, example_config, write_random_checkpoint,
};
use forerun_text::{SpecialTokens, TextStream, Tokenizer};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
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
    let file = data_folder()?.join("tokenizers").join(name);
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

/// Returns the random checkpoint's tokenizer after a change, with an optional
/// `tokenizer_config.json`.
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
fn models_for_embeddings_get_the_eos_token_of_the_configuration() {
    let config = json!({"add_eos_token": true, "eos_token": "</s>"});
    let (folder, tokenizer) = changed(|_| (), Some(&config));
    let plain = tokenizer.unwrap().encode("ab").unwrap();
    fs::write(folder.path().join("modules.json"), "[]").unwrap();
    let tokenizer = Tokenizer::from_checkpoint(folder.path()).unwrap();
    let end = tokenizer.token("</s>").unwrap();
    assert_eq!(tokenizer.encode("ab").unwrap(), [&plain[..], &[end]].concat());
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

/// Writes a llama2.c model with a vocabulary of this size to a folder.
fn write_llama2c_model(folder: &Path, vocab_size: usize) -> PathBuf {
    // The sizes of the hidden state, the MLP, layers, heads, key/value heads, vocabulary and
    // context.
    let header = [8, 6, 1, 2, 1, vocab_size as i32, 3];
    let layer = 2 * 8 + 2 * 8 * 8 + 2 * 4 * 8 + 3 * 8 * 6;
    let floats = vocab_size * 8 + layer + 8 + 2 * 3 * 2;
    let mut bytes: Vec<u8> = header.iter().flat_map(|size| size.to_le_bytes()).collect();
    bytes.resize(bytes.len() + 4 * floats, 0);
    let file = folder.join("model.bin");
    fs::write(&file, bytes).unwrap();
    file
}

/// Writes a llama2.c tokenizer: unknown token, BOS and EOS, then these pieces.
fn write_llama2c_tokenizer(file: &Path, pieces: &[&str]) {
    let mut bytes = 9_i32.to_le_bytes().to_vec();
    for piece in ["<unk>", "\n<s>\n", "\n</s>\n"].iter().chain(pieces) {
        bytes.extend(0_f32.to_le_bytes());
        bytes.extend((piece.len() as i32).to_le_bytes());
        bytes.extend(piece.as_bytes());
    }
    fs::write(file, bytes).unwrap();
}

#[test]
fn of_several_llama2c_tokenizers_the_one_of_the_models_size_is_used() {
    let folder = TempDir::new().unwrap();
    write_llama2c_tokenizer(&folder.path().join("tok5.bin"), &[" ", "a"]);
    write_llama2c_tokenizer(&folder.path().join("tokenizer.bin"), &[" ", "b", "a", "c"]);
    for (vocab_size, tokens) in [(5, [1, 3, 4]), (7, [1, 3, 5])] {
        let model = write_llama2c_model(folder.path(), vocab_size);
        for path in [&model, folder.path()] {
            let tokenizer = Tokenizer::from_checkpoint(path).unwrap();
            assert_eq!(tokenizer.vocab_size(), vocab_size);
            assert_eq!(tokenizer.encode("a").unwrap(), tokens);
        }
    }
    // A damaged file does not hide the right one.
    fs::write(folder.path().join("tok0.bin"), [1]).unwrap();
    assert!(Tokenizer::from_checkpoint(folder.path()).is_ok());
    fs::remove_file(folder.path().join("tok0.bin")).unwrap();

    let model = write_llama2c_model(folder.path(), 6);
    let error = Tokenizer::from_checkpoint(&model).err().unwrap().to_string();
    let (few, many) = (folder.path().join("tok5.bin"), folder.path().join("tokenizer.bin"));
    let expected = format!(
        "no tokenizer for {}, which has 6 tokens: {} has 5, {} has 7; copy the model's own tokenizer",
        model.display(),
        few.display(),
        many.display(),
    );
    assert!(error.starts_with(&expected), "{error}");
    let checkpoint = Checkpoint::open(&model).unwrap();
    assert_eq!(Tokenizer::of_checkpoint(&checkpoint).err().unwrap().to_string(), error);
}

#[test]
fn llama2c_tokenizers_without_byte_tokens_use_the_unknown_token() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("tokenizer.bin");
    for (pieces, prefix) in [(&["a", "b", "é", " "][..], &[1, 6][..]), (&["a", "b", "é"], &[1])] {
        write_llama2c_tokenizer(&file, pieces);
        write_llama2c_model(folder.path(), 3 + pieces.len());
        let tokenizer = Tokenizer::from_checkpoint(folder.path()).unwrap();
        let tokens = tokenizer.encode("aéx😀b").unwrap();
        assert_eq!(tokens, [prefix, &[3, 5, 0, 4]].concat());
        assert_eq!(tokenizer.decode(&tokens), "aéb");
    }
}

/// Returns character-level tokenizers of three kinds, whose vocabulary is `a`, `b` and perhaps an
/// unknown token.
fn character_level(unknown: bool) -> [(&'static str, Value); 3] {
    let tokens =
        if unknown { json!({"a": 0, "b": 1, "<unk>": 2}) } else { json!({"a": 0, "b": 1}) };
    let mut pieces = vec![json!(["a", -1.0]), json!(["b", -1.0]), json!(["<unk>", 0.0])];
    pieces.truncate(if unknown { 3 } else { 2 });
    let name = unknown.then_some("<unk>");
    let models = [
        ("BPE", json!({"type": "BPE", "vocab": tokens, "merges": [], "unk_token": name})),
        ("WordLevel", json!({"type": "WordLevel", "vocab": tokens, "unk_token": "<unk>"})),
        ("Unigram", json!({"type": "Unigram", "vocab": pieces, "unk_id": unknown.then_some(2)})),
    ];
    let special = json!({
        "id": 3, "content": "<end>", "special": true, "normalized": false,
        "single_word": false, "lstrip": false, "rstrip": false,
    });
    models.map(|(kind, model)| {
        let tokenizer = json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": if unknown { json!([special]) } else { json!([]) },
            "normalizer": null,
            "pre_tokenizer": {
                "type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": false,
            },
            "post_processor": null,
            "decoder": {"type": "Fuse"},
            "model": model,
        });
        (kind, tokenizer)
    })
}

#[test]
fn character_level_tokenizers_use_the_unknown_token_or_name_the_character() {
    let folder = TempDir::new().unwrap();
    let load = |json: &Value| {
        fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
        Tokenizer::from_checkpoint(folder.path()).unwrap()
    };
    for (kind, json) in character_level(true) {
        let tokenizer = load(&json);
        let tokens = tokenizer.encode("baé<end>a").unwrap();
        assert_eq!(tokens, [1, 0, 2, 3, 0], "{kind}");
    }
    for (kind, mut json) in character_level(false) {
        let encode =
            |json: &Value, text| load(json).encode(text).map_err(|error| error.to_string());
        assert_eq!(encode(&json, "abba"), Ok(vec![0, 1, 1, 0]), "{kind}");
        // The characters of an added token need no tokens of their own.
        json["added_tokens"] = character_level(true)[0].1["added_tokens"].clone();
        json["added_tokens"][0]["id"] = 2.into();
        assert_eq!(encode(&json, "a<end>b"), Ok(vec![0, 2, 1]), "{kind}");
        let error = encode(&json, "ab<end>aéx").unwrap_err();
        assert!(error.starts_with("cannot encode 'é': "), "{kind}: {error}");
        assert!(error.contains("tokenizer.json has neither a token for it"), "{kind}: {error}");
    }
}

/// Writes a tokenizer of a few characters, with these added tokens, and these in its configuration.
fn listed(folder: &TempDir, added: &Value, listed: &Value) -> Result<Tokenizer, String> {
    let json = json!({
        "version": "1.0",
        "added_tokens": added,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "BPE", "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "▁": 4, "c": 5},
            "merges": [["a", "b"]], "unk_token": "<unk>",
        },
    });
    fs::write(folder.path().join("tokenizer.json"), json.to_string()).unwrap();
    let config = json!({"added_tokens_decoder": listed});
    fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    Tokenizer::from_checkpoint(folder.path()).map_err(|error| error.to_string())
}

fn added_token(content: &str, flags: &[&str]) -> Value {
    let mut token = json!({
        "content": content, "lstrip": false, "normalized": false, "rstrip": false, "single_word": false,
        "special": false,
    });
    for flag in flags {
        token[flag] = true.into();
    }
    token
}

/// The tokens and texts are those of transformers 5.24.
#[test]
fn tokens_of_the_configuration_alone_are_added_with_their_flags() {
    let folder = TempDir::new().unwrap();
    let token = added_token;
    let rows: [(Value, &str, &[TokenId], &str); 5] = [
        (
            json!({"6": token("<x>", &["special"]), "7": token("<y>", &[])}),
            "ab<x>a<y>",
            &[3, 6, 1, 7],
            "aba<y>",
        ),
        (
            json!({"6": token("<x>", &["special", "lstrip"]), "7": token("<y>", &["rstrip"])}),
            "a <x> b<y>  c",
            &[1, 6, 0, 2, 7, 5],
            "a<unk>b<y>c",
        ),
        (
            json!({"6": token("x", &["single_word"])}),
            "a x axa x",
            &[1, 0, 6, 0, 1, 0, 1, 0, 6],
            "a<unk>x<unk>a<unk>a<unk>x",
        ),
        // A token that is in the vocabulary already.
        (json!({"1": token("a", &["special"])}), "aab", &[1, 1, 2], "b"),
        (json!({"6": token("ab a", &["normalized"])}), "ab a", &[6], "ab a"),
    ];
    for (tokens, text, expected, decoded) in rows {
        let tokenizer = listed(&folder, &json!([]), &tokens).unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), expected, "{tokens}");
        assert_eq!(tokenizer.decode(expected), decoded, "{tokens}");
    }
    // The flags replace those of tokenizer.json, which decides about the id.
    let mut known = token("<x>", &[]);
    known["id"] = 6.into();
    for id in ["6", "9"] {
        let flags = json!({id: token("<x>", &["special", "rstrip"])});
        let tokenizer = listed(&folder, &json!([known]), &flags).unwrap();
        assert_eq!(tokenizer.encode("ab<x>  a").unwrap(), [3, 6, 1]);
        assert_eq!(tokenizer.decode(&[3, 6, 1]), "aba");
    }
    assert!(listed(&folder, &json!([known]), &Value::Null).is_ok());
    // transformers gives such tokens other ids than those that the model was trained with.
    for (tokens, words) in [
        (json!({"8": token("<y>", &[])}), ["\"<y>\" as token 8", "next token is 7"]),
        (json!({"6": token("<y>", &[])}), ["\"<y>\" as token 6", "there it is \"<x>\""]),
        (json!({"1": token("<y>", &[])}), ["\"<y>\" as token 1", "there it is \"a\""]),
        (json!({"7": token("<y>", &[]), "9": token("<z>", &[])}), ["\"<z>\" as token 9", "is 8"]),
        (json!({"7": {"special": true}}), ["content", "line 1"]),
    ] {
        let error = listed(&folder, &json!([known]), &tokens).err().unwrap();
        for word in words.iter().chain(&["tokenizer_config.json"]) {
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}

/// An end of turn that no file marks is a special token, which ends answers, and cannot be typed by
/// users.
#[test]
fn known_ends_are_special_tokens_whatever_their_file_says() {
    let folder = TempDir::new().unwrap();
    let mut plain = added_token("<|im_end|>", &[]);
    plain["id"] = 6.into();
    let in_config = json!({"6": added_token("<|im_end|>", &[])});
    for (added, config) in [(json!([plain]), Value::Null), (json!([]), in_config)] {
        let tokenizer = listed(&folder, &added, &config).unwrap();
        assert_eq!(tokenizer.encode("ab<|im_end|>").unwrap(), [3, 6]);
        assert!(tokenizer.is_special(6));
        assert_eq!(tokenizer.decode(&[3, 6, 1]), "aba");
        let special = SpecialTokens { add: false, parse: false };
        assert!(!tokenizer.encode_with("ab<|im_end|>", special).unwrap().contains(&6));
    }
}

#[test]
fn the_bytes_of_tokens_are_those_of_their_text() {
    for name in ["llama2_tokenizer.json", "gpt2_tokenizer.json"] {
        let Some((_folder, tokenizer)) = real(name) else { return };
        for text in TEXTS {
            let special = SpecialTokens { add: false, parse: true };
            let tokens = tokenizer.encode_with(text, special).unwrap();
            let bytes = tokens.iter().flat_map(|token| tokenizer.bytes(*token));
            let bytes = String::from_utf8(bytes.collect()).unwrap();
            // Llama 2 puts a space in front of a text.
            assert!(bytes == text || bytes == format!(" {text}"), "{bytes:?}");
        }
    }
}
