//! Tokenizers within GGUF files: they encode every text as the `tokenizer.json` that they were made
//! from.

use crate::common;
use forerun::checkpoint::{Checkpoint, Config, export_gguf};
use forerun::text::{TextStream, Tokenizer};
use forerun::{ChatTemplate, Loader, Message, ModelSource, TokenId, WeightType};
use forerun_formats::checkpoint::gguf::{GgufValue, write_gguf};
use forerun_formats::checkpoint::random::{
    BOS, RandomDtype, example_config, write_random_checkpoint,
};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// The regular expressions in the `tokenizer.json` of Llama 3, Qwen2, Mistral NeMo and GPT-4o.
const LLAMA_3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN_35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Texts that tokenizers treat differently.
fn texts() -> Vec<String> {
    let mut texts: Vec<String> = [
        "",
        " ",
        "Hello, world! It's we'll THEY'RE I'd O'Neill ''s",
        "1 12 123 1234 12345678901234567890 3.14159 1,000,000 ٣٤٥ ⅷ ½",
        "  two   three    four\t\ttabs\n\n\nlines \n \r\n CRLF\r\n\r\nend   ",
        "nul\0 bell\u{7} escape\u{1b}[0m \u{a0}nbsp\u{2003}em\u{3000}wide\u{feff}bom",
        "👩‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇯🇵 👍🏽 ❤️ e\u{301}\u{302}\u{303} Zoë Zoe\u{308} ﬁ Å Å Å",
        "你好，世界。日本語のテキスト、カタカナ。한국어 텍스트 ㄱㄴㄷ 漢字かな交じり文",
        "مرحبا بالعالم ١٢٣، שָׁלוֹם עולם नमस्ते दुनिया ภาษาไทยไม่มีช่องว่าง",
        "def f(x):\n    return {'a': [x**2 for _ in range(10)]}  # <- comment\n\tpass\n",
        "<s>control</s> tokens <s> in </s><s>the text <|end|> [INST] <0x41> <unk> ▁low▁line",
        "http://example.com/a_b?c=d&e=%20#f camelCaseAndHTTPServer snake_case_name kebab-case",
        "…—–‘’“”„«»¿¡§¶†‡•™®©°±×÷≠≤≥∞√∑∏∫ $€£¥ +-*/=<>^~|`\\",
        "ǅ ʰ ªº ᾳ ꙮ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ſ K Ω ǰ",
    ]
    .map(str::to_owned)
    .to_vec();
    texts.push("long".repeat(3000));
    texts.push("ab1 ".repeat(500));
    texts.push(texts.concat());
    texts
}

/// A model's folder, and a GGUF file made from it.
struct Exported {
    folder: TempDir,
    unsupported: bool,
}

impl Exported {
    /// Exports a random model with a changed tokenizer.
    fn with(config: &Config, change: impl FnOnce(&mut Value)) -> Self {
        let folder = TempDir::new().unwrap();
        write_random_checkpoint(&folder.path().join("model"), config, 1, RandomDtype::F32).unwrap();
        let exported = Self { folder, unsupported: false };
        let file = exported.model().join("tokenizer.json");
        let mut json = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        change(&mut json);
        fs::write(file, json.to_string()).unwrap();
        exported.export()
    }

    fn export(mut self) -> Self {
        let source = ModelSource::from(self.model());
        let export = export_gguf(&source, &self.gguf(), WeightType::F32, &mut Loader::new());
        self.unsupported = export.unwrap().pre_tokenizer_unsupported;
        self
    }

    fn model(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    fn gguf(&self) -> PathBuf {
        self.folder.path().join("model.gguf")
    }

    fn check(&self, what: &str) {
        let json = Tokenizer::from_checkpoint(&self.model()).unwrap();
        check_equal(&json, &Tokenizer::from_checkpoint(&self.gguf()).unwrap(), what);
    }
}

/// Checks that two tokenizers have the same vocabulary, tokens, texts and streams.
fn check_equal(json: &Tokenizer, gguf: &Tokenizer, what: &str) {
    assert!(gguf.agrees_with(json), "{what}");
    for text in texts() {
        let tokens = json.encode(&text).unwrap();
        assert_eq!(gguf.encode(&text).unwrap(), tokens, "{what}: {text:?}");
        assert_eq!(gguf.decode(&tokens), json.decode(&tokens), "{what}: {text:?}");
        if text.len() < 1000 {
            let stream = |tokenizer| {
                let mut stream = TextStream::new(tokenizer, &[]);
                let text: String = tokens.iter().map(|&token| stream.push(token)).collect();
                text + &stream.finish()
            };
            assert_eq!(stream(gguf), stream(json), "{what}: {text:?}");
        }
    }
    for token in 0..gguf.vocab_size().min(2000) as TokenId {
        assert_eq!(gguf.piece(token), json.piece(token), "{what}: {token}");
    }
}

fn config() -> Config {
    Config { vocab_size: 1500, ..example_config() }
}

/// Changes the rules of a tokenizer to those of a family.
fn set_rules(json: &mut Value, steps: &[Value], nfc: bool, ignore_merges: bool) {
    json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": steps});
    json["normalizer"] = if nfc { json!({"type": "NFC"}) } else { Value::Null };
    json["model"]["ignore_merges"] = ignore_merges.into();
}

#[test]
fn every_rule_of_splitting_gives_the_tokens_of_the_tokenizer_json() {
    let split = |regex: &str| {
        json!({
            "type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false,
        })
    };
    let digits = json!({"type": "Digits", "individual_digits": true});
    let bytes = |use_regex: bool| {
        json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": use_regex,
        })
    };
    let alone = |regex| vec![split(regex), bytes(false)];
    let deepseek_coder = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"];
    let deepseek_coder =
        deepseek_coder.map(split).into_iter().chain([digits.clone(), bytes(false)]);
    for (name, steps, nfc, ignore_merges) in [
        ("gpt-2", vec![bytes(true)], false, false),
        ("llama-bpe", alone(LLAMA_3), false, true),
        ("qwen2", alone(QWEN_2), true, false),
        ("qwen35", alone(QWEN_35), true, false),
        ("deepseek-r1-qwen", alone(QWEN_2), false, false),
        ("smollm", vec![digits, bytes(true)], false, false),
        ("tekken", alone(TEKKEN), false, true),
        ("gpt-4o", alone(GPT_4O), false, false),
        ("deepseek-coder", deepseek_coder.collect(), false, false),
    ] {
        let exported = Exported::with(&config(), |json| {
            set_rules(json, &steps, nfc, ignore_merges);
        });
        assert!(!exported.unsupported, "{name}");
        let checkpoint = Checkpoint::open(&exported.gguf()).unwrap();
        let metadata = checkpoint.gguf().unwrap();
        assert_eq!(metadata.text("tokenizer.ggml.pre").unwrap(), Some(name));
        assert!(!metadata.contains("tokenizer.huggingface.json"), "{name}");
        exported.check(name);
    }
}

/// llama.cpp has no name for this rule, so the file has the whole `tokenizer.json`, too.
#[test]
fn a_rule_that_llama_cpp_lacks_is_kept() {
    let exported = Exported::with(&config(), |json| {
        let split = json!({
            "type": "Split", "pattern": {"Regex": "[a-z]{2}"}, "behavior": "Isolated",
            "invert": false,
        });
        let bytes = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false,
        });
        set_rules(json, &[split, bytes], false, false);
    });
    assert!(exported.unsupported);
    exported.check("a rule of its own");
}

#[test]
fn added_tokens_keep_their_ids_and_are_control_tokens_or_text() {
    let added = |id: u32, content: &str, special: bool| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special,
        })
    };
    let config = Config { vocab_size: 264, ..example_config() };
    let exported = Exported::with(&config, |json| {
        let new = [(259, "<|end|>", true), (260, "[INST]", false), (261, "  ", false)];
        let vocabulary = json["model"]["vocab"].as_object_mut().unwrap();
        vocabulary.retain(|_, id| id.as_u64() < Some(259));
        // The library takes ids from here.
        for (id, text) in [(256, "<s>"), (257, "</s>")] {
            vocabulary.insert(text.to_owned(), id.into());
        }
        for (id, text, _) in new {
            vocabulary.insert(text.to_owned(), id.into());
        }
        json["model"]["merges"].as_array_mut().unwrap().truncate(1);
        let tokens = json["added_tokens"].as_array_mut().unwrap();
        tokens.extend(new.map(|(id, text, special)| added(id, text, special)));
    });
    exported.check("several added tokens");
    let tokenizer = Tokenizer::from_checkpoint(&exported.gguf()).unwrap();
    let encode = |text| tokenizer.encode(text).unwrap();
    assert_eq!(encode("<|end|>[INST]  "), [BOS, 259, 260, 261]);
    assert_eq!(tokenizer.decode(&[259, 260, 261]), "[INST]  ");
}

#[test]
fn the_tokenizer_of_gpt_2_survives_the_export() {
    let Some(data) = common::data_folder() else { return };
    let config = Config { vocab_size: 50_257, hidden_size: 8, head_dim: 8, ..example_config() };
    let config = Config { num_attention_heads: 1, num_key_value_heads: 1, ..config };
    let exported = Exported::with(&config, |json| {
        let file = data.join("tokenizers/gpt2_tokenizer.json");
        *json = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    });
    assert!(!exported.unsupported);
    exported.check("GPT-2");
}

/// Metadata of a GGUF file.
type Metadata = Vec<(String, GgufValue)>;

/// Writes a random model with this tokenizer.
fn write_model(folder: &Path, vocab_size: usize, metadata: &Metadata) -> PathBuf {
    let (model, file) = (folder.join("random"), folder.join("model.gguf"));
    if !model.exists() {
        let config = Config {
            vocab_size,
            hidden_size: 8,
            num_attention_heads: 1,
            num_key_value_heads: 1,
            num_hidden_layers: 1,
            ..example_config()
        };
        write_random_checkpoint(&model, &config, 1, RandomDtype::F32).unwrap();
    }
    let checkpoint = Checkpoint::open(&model).unwrap();
    write_gguf(&checkpoint, &file, WeightType::F32, metadata).unwrap();
    file
}

fn entries(entries: Vec<(&str, GgufValue)>) -> Metadata {
    entries.into_iter().map(|(key, value)| (format!("tokenizer.{key}"), value)).collect()
}

fn texts_of(texts: &[&str]) -> GgufValue {
    GgufValue::Texts(texts.iter().map(|&text| text.to_owned()).collect())
}

/// The scores of Llama 2 follow from its ids, except for pieces of several spaces.
#[test]
fn pieces_with_scores_give_the_tokens_of_llama_2() {
    let Some(data) = common::data_folder() else { return };
    let file = data.join("tokenizers/llama2_tokenizer.json");
    let mut json: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let mut pieces: Vec<(u64, String)> = json["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(text, id)| (id.as_u64().unwrap(), text.clone()))
        .collect();
    pieces.sort();
    let is_spaces = |text: &str| text.chars().count() > 1 && text.chars().all(|c| c == '▁');
    let score = |(id, text): &(u64, String)| match id {
        0..259 => 0.0,
        _ if is_spaces(text) => -1e9,
        _ => -((id - 259) as f32),
    };
    let kind = |(id, _): &(u64, String)| match id {
        0 => 2,
        1 | 2 => 3,
        3..259 => 6,
        _ => 1,
    };
    let metadata = entries(vec![
        ("ggml.model", GgufValue::Text("llama".into())),
        ("ggml.scores", GgufValue::F32s(pieces.iter().map(score).collect())),
        ("ggml.token_type", GgufValue::I32s(pieces.iter().map(kind).collect())),
        ("ggml.tokens", GgufValue::Texts(pieces.into_iter().map(|(_, text)| text).collect())),
    ]);
    let folder = TempDir::new().unwrap();
    let gguf = Tokenizer::from_checkpoint(&write_model(folder.path(), 32_000, &metadata)).unwrap();
    // Control tokens are found in the text as it is.
    for token in json["added_tokens"].as_array_mut().unwrap() {
        token["normalized"] = false.into();
    }
    let huggingface = TempDir::new().unwrap();
    fs::write(huggingface.path().join("tokenizer.json"), json.to_string()).unwrap();
    let json = Tokenizer::from_checkpoint(huggingface.path()).unwrap();
    check_equal(&json, &gguf, "Llama 2");
    assert_eq!(gguf.encode("Hello this is a test").unwrap(), [1, 15043, 445, 338, 263, 1243]);
}

/// A tokenizer of the kind `llama` with few pieces.
fn few_pieces() -> Metadata {
    let mut texts: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    texts.extend((0..=255).map(|byte: u8| format!("<0x{byte:02X}>")));
    texts.extend(["▁a", "ab", "▁", "a", "b", "<new>"].map(str::to_owned));
    let mut types = vec![2, 3, 3];
    types.extend([6; 256]);
    types.extend([1, 1, 1, 1, 1, 4]);
    let scores = (0..texts.len()).map(|id| -(id as f32)).collect();
    entries(vec![
        ("ggml.model", GgufValue::Text("llama".into())),
        ("ggml.tokens", GgufValue::Texts(texts)),
        ("ggml.token_type", GgufValue::I32s(types)),
        ("ggml.scores", GgufValue::F32s(scores)),
        ("ggml.eos_token_id", GgufValue::U32(2)),
    ])
}

/// Gemma 4 merges the characters of the whole text, also over spaces and ends of lines.
#[test]
fn merged_pieces_give_the_tokens_of_gemma_4() {
    let mut texts: Vec<String> =
        ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>", "<|channel>"].map(str::to_owned).to_vec();
    texts.extend((0..=255).map(|byte: u8| format!("<0x{byte:02X}>")));
    let letters = "▁\n\tabcdefghijklmnopqrstuvwxyzHTIO0123456789.,:()[]{}'*#_界é";
    texts.extend(letters.chars().map(String::from));
    let merges = [
        ["\n", "\n"],
        ["\n\n", "\n"],
        ["▁", "▁"],
        ["▁▁", "▁▁"],
        ["l", "o"],
        ["o", "n"],
        ["lo", "n"],
        ["n", "g"],
        ["a", "b"],
        ["▁", "t"],
        ["h", "e"],
        ["▁t", "he"],
        ["e", "r"],
        ["d", "e"],
        ["r", "l"],
        ["s", "▁"],
        ["▁", "w"],
        ["▁w", "o"],
        [":", "\n"],
        [")", ":\n"],
        ["1", "2"],
    ];
    texts.extend(merges.iter().map(|pair| pair.concat()));
    let id = |text: &str| texts.iter().position(|other| other == text).unwrap();
    let vocabulary: serde_json::Map<String, Value> =
        (0_u32..).zip(&texts).map(|(id, text)| (text.clone(), id.into())).collect();
    let special = |text: &str| {
        json!({"id": id(text), "content": text, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": text != "<|channel>"})
    };
    let bos = json!([{"SpecialToken": {"id": "<bos>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}}]);
    let json = json!({
        "version": "1.0",
        "added_tokens": texts[..6].iter().map(|text| special(text)).collect::<Vec<_>>(),
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "},
            "behavior": "MergedWithPrevious", "invert": false},
        "post_processor": {"type": "TemplateProcessing", "single": bos, "pair": bos,
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>",
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": true,
            "byte_fallback": true, "ignore_merges": false, "vocab": vocabulary, "merges": merges},
    });
    let huggingface = TempDir::new().unwrap();
    fs::write(huggingface.path().join("tokenizer.json"), json.to_string()).unwrap();
    let kind = |id| match id {
        3 => 2,
        0..5 => 3,
        5 => 4,
        6..262 => 6,
        _ => 1,
    };
    let size = texts.len();
    let merges = merges.iter().map(|pair| pair.join(" ")).collect();
    let metadata = entries(vec![
        ("ggml.model", GgufValue::Text("gemma4".into())),
        ("ggml.token_type", GgufValue::I32s((0..size).map(kind).collect())),
        ("ggml.scores", GgufValue::F32s(vec![0.0; size])),
        ("ggml.merges", GgufValue::Texts(merges)),
        ("ggml.tokens", GgufValue::Texts(texts)),
        ("ggml.bos_token_id", GgufValue::U32(2)),
        ("ggml.eos_token_id", GgufValue::U32(1)),
        ("ggml.unknown_token_id", GgufValue::U32(3)),
        ("ggml.add_bos_token", GgufValue::Bool(false)),
    ]);
    let folder = TempDir::new().unwrap();
    let file = write_model(folder.path(), size, &metadata);
    let gguf = Tokenizer::from_checkpoint(&file).unwrap();
    check_equal(&Tokenizer::from_checkpoint(huggingface.path()).unwrap(), &gguf, "Gemma 4");
    // A turn ends an answer, too.
    assert_eq!(Checkpoint::open(&file).unwrap().config().eos_token_ids, [1, 4]);
}

fn with(mut metadata: Metadata, more: Vec<(&str, GgufValue)>) -> Metadata {
    for (key, value) in entries(more) {
        metadata.retain(|(other, _)| *other != key);
        metadata.push((key, value));
    }
    metadata
}

#[test]
fn options_decide_about_spaces_and_the_tokens_around_a_text() {
    let folder = TempDir::new().unwrap();
    let [a_, ab, space, a, b, new] = [259, 260, 261, 262, 263, 264];
    let (no, yes) = (GgufValue::Bool(false), GgufValue::Bool(true));
    for (options, text, expected) in [
        (vec![], "ab", vec![1, a_, b]),
        (vec![], "bab", vec![1, space, b, ab]),
        (vec![], "é", vec![1, space, 3 + 0xC3, 3 + 0xA9]),
        // A space is also put in front of the text after an added token.
        (vec![], "a<new>a</s>", vec![1, a_, new, a_, 2]),
        (vec![("ggml.add_space_prefix", no.clone())], "ab a", vec![1, ab, a_]),
        (vec![("ggml.add_bos_token", no.clone())], "a", vec![a_]),
        (vec![("ggml.add_eos_token", yes.clone())], "a", vec![1, a_, 2]),
        (vec![("ggml.bos_token_id", GgufValue::U32(b))], "a", vec![b, a_]),
        (vec![("ggml.remove_extra_whitespaces", yes)], "  a   b ", vec![1, a_, space, b]),
        (vec![], "  a", vec![1, space, space, a_]),
    ] {
        let file = write_model(folder.path(), 265, &with(few_pieces(), options.clone()));
        let tokenizer = Tokenizer::from_checkpoint(&file).unwrap();
        assert_eq!(tokenizer.encode(text).unwrap(), expected, "{options:?}: {text}");
    }
    let file = write_model(folder.path(), 265, &few_pieces());
    let tokenizer = Tokenizer::from_checkpoint(&file).unwrap();
    assert_eq!(tokenizer.decode(&[1, a_, new, a, 2]), "a<new>a");
}

#[test]
fn files_without_a_usable_tokenizer_are_refused_by_name() {
    let folder = TempDir::new().unwrap();
    let text = |text: &str| GgufValue::Text(text.into());
    let bytes = |more| {
        let (tokens, merges) = (texts_of(&["a", "b", "ab"]), texts_of(&["a b"]));
        let model = ("ggml.model", text("gpt2"));
        with(entries(vec![model, ("ggml.tokens", tokens), ("ggml.merges", merges)]), more)
    };
    let without = |key: &str| {
        let mut metadata = bytes(vec![]);
        metadata.retain(|(other, _)| !other.ends_with(key));
        metadata
    };
    for (metadata, words) in [
        (
            bytes(vec![("ggml.model", text("rwkv"))]),
            &["ggml.model is \"rwkv\"", "gpt2, llama, gemma4"][..],
        ),
        (bytes(vec![("ggml.pre", text("new"))]), &["ggml.pre is \"new\"", "llama-bpe, ", "qwen2"]),
        (bytes(vec![("ggml.merges", texts_of(&["ab"]))]), &["merge \"ab\""]),
        (bytes(vec![("ggml.merges", texts_of(&["a c"]))]), &["model.gguf", "`c`"]),
        (bytes(vec![("ggml.token_type", GgufValue::I32s(vec![1]))]), &["3 tokens, but 1 types"]),
        (bytes(vec![("ggml.merges", GgufValue::U32(7))]), &["tokenizer.ggml.merges"]),
        (without("merges"), &["no tokenizer.ggml.merges"]),
        (without("tokens"), &["no tokenizer.ggml.tokens"]),
        (without("model"), &["no tokenizer for", "within a GGUF file"]),
    ] {
        let file = write_model(folder.path(), 259, &metadata);
        let error = Tokenizer::from_checkpoint(&file).err().unwrap().to_string();
        for word in words.iter().chain(&["model.gguf"]) {
            assert!(error.contains(word), "{word}: {error}");
        }
    }
    // Without a rule, words are split as llama.cpp splits them.
    let file = write_model(folder.path(), 259, &bytes(vec![]));
    assert_eq!(Tokenizer::from_checkpoint(&file).unwrap().encode("ab").unwrap(), [2]);
}

/// As in llama.cpp, a text is encoded as the last of several tokens with this text.
#[test]
fn tokens_with_the_same_text_are_all_decoded_and_the_last_one_is_encoded() {
    let folder = TempDir::new().unwrap();
    let open = |size, metadata: &Metadata| {
        Tokenizer::from_checkpoint(&write_model(folder.path(), size, metadata)).unwrap()
    };
    let tokenizer = open(
        259,
        &entries(vec![
            ("ggml.model", GgufValue::Text("gpt2".into())),
            ("ggml.tokens", texts_of(&["a", "b", "ab", "a", "Ã", "ab", "Ã"])),
            ("ggml.merges", texts_of(&["a b"])),
        ]),
    );
    assert_eq!(tokenizer.encode("aab").unwrap(), [3, 5]);
    for same in [[0, 3], [2, 5], [4, 6]] {
        let [first, last] = same.map(|token| {
            let text = tokenizer.decode(&[1, token]);
            assert_eq!(tokenizer.piece(token), text[1..]);
            (text, tokenizer.bytes(token), tokenizer.vocabulary_text(token))
        });
        assert_eq!(first, last);
    }
    assert_eq!(tokenizer.bytes(4), [0xC3]);
    assert_eq!((tokenizer.vocab_size(), tokenizer.token("a")), (7, Some(3)));
    // Pieces with scores, an ordinary token with the text of a control token, and one of an added
    // token.
    let mut metadata = few_pieces();
    for (_, value) in &mut metadata {
        match value {
            GgufValue::Texts(texts) => texts.extend(["ab", "</s>", "<new>"].map(str::to_owned)),
            GgufValue::I32s(types) => types.extend([1, 1, 1]),
            GgufValue::F32s(scores) => scores.extend([-1.0, -2.0, -3.0]),
            _ => {}
        }
    }
    let tokenizer = open(268, &metadata);
    let [ab, other_ab, new, other_end, other_new] = [260, 265, 264, 266, 267];
    assert_eq!(tokenizer.encode("bab</s><new>").unwrap(), [1, 261, 263, other_ab, 2, new]);
    assert_eq!(
        tokenizer.decode(&[263, ab, other_ab, 2, other_end, new, other_new]),
        "babab</s><new><new>"
    );
    assert_eq!([2, other_end].map(|token| tokenizer.is_special(token)), [true, false]);
    assert_eq!(tokenizer.bytes(other_end), b"</s>");
}

/// llama.cpp also overrides the type of tokens that look like ends.
#[test]
fn known_ends_are_control_tokens_whatever_their_type() {
    let folder = TempDir::new().unwrap();
    for end in ["<|im_end|>", "<end_of_turn>", "<|eot_id|>", "_<EOT>", "<｜end▁of▁sentence｜>"]
    {
        for kind in [1, 3, 4] {
            let mut metadata = few_pieces();
            for (_, value) in &mut metadata {
                match value {
                    GgufValue::Texts(texts) => texts.push(end.to_owned()),
                    GgufValue::I32s(types) => types.push(kind),
                    GgufValue::F32s(scores) => scores.push(0.0),
                    _ => {}
                }
            }
            let file = write_model(folder.path(), 266, &metadata);
            assert_eq!(Checkpoint::open(&file).unwrap().config().eos_token_ids, [2, 265], "{end}");
            let tokenizer = Tokenizer::from_checkpoint(&file).unwrap();
            assert_eq!(tokenizer.encode(&format!("a{end}")).unwrap(), [1, 259, 265], "{end}");
            assert!(tokenizer.is_special(265), "{end}");
            assert_eq!(tokenizer.decode(&[262, 265, 263]), "ab", "{end}");
            assert_eq!(tokenizer.bytes_with_special(265), end.as_bytes());
        }
    }
}

#[test]
fn a_chat_template_comes_from_the_file_with_its_special_tokens() {
    let folder = TempDir::new().unwrap();
    let text = |text: &str| GgufValue::Text(text.into());
    let options = vec![
        ("chat_template", text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")),
        ("chat_template.tool_use", text("tools")),
        ("ggml.bos_token_id", GgufValue::U32(1)),
    ];
    let file = write_model(folder.path(), 265, &with(few_pieces(), options));
    // Files beside it belong to other models.
    fs::write(folder.path().join("chat_template.jinja"), "other").unwrap();
    let render = |template: ChatTemplate| template.render(&[Message::user("Hi")], true).unwrap();
    let template = ChatTemplate::from_checkpoint(&file).unwrap();
    assert_eq!(template.eos_token(), Some("</s>"));
    assert_eq!(render(template), "<s>Hi</s>");
    assert_eq!(render(ChatTemplate::choose(&file, "tool_use").unwrap()), "tools");
    let error = ChatTemplate::choose(&file, "rag").err().unwrap().to_string();
    assert!(error.contains("default, tool_use, plain"), "{error}");
    let file = write_model(folder.path(), 265, &few_pieces());
    assert!(ChatTemplate::from_checkpoint(&file).unwrap().is_plain());
    let options = vec![("chat_template", GgufValue::U32(3))];
    let file = write_model(folder.path(), 265, &with(few_pieces(), options));
    let error = ChatTemplate::from_checkpoint(&file).err().unwrap().to_string();
    assert!(error.contains("model.gguf") && error.contains("chat_template"), "{error}");
}

#[test]
fn exported_models_keep_their_chat_template_and_their_ends() {
    let exported = Exported::with(&config(), |_| ());
    let template = "{{ messages[0].content }}{{ eos_token }}";
    let json = json!({"chat_template": template, "eos_token": "</s>", "bos_token": "<s>"});
    fs::write(exported.model().join("tokenizer_config.json"), json.to_string()).unwrap();
    let generation = json!({"eos_token_id": [259, 257, 300]});
    fs::write(exported.model().join("generation_config.json"), generation.to_string()).unwrap();
    let exported = exported.export();
    let template = ChatTemplate::from_checkpoint(&exported.gguf()).unwrap();
    assert_eq!(template.render(&[Message::user("Hi")], true).unwrap(), "Hi</s>");
    let checkpoint = Checkpoint::open(&exported.gguf()).unwrap();
    assert_eq!(checkpoint.config().eos_token_ids, [257, 259, 300]);
}
