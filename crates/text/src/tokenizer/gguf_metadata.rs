//! The metadata that describes a tokenizer and its chat template in a GGUF file.

use super::gguf::{JSON, SPACE, token_type};
use super::llama2c;
use super::splitting::{DIGIT, GPT_2, Splitting};
use super::{Tokenizer, TokenizerError};
use crate::chat_template::{ChatTemplate, ChatTemplateError};
use forerun_formats::checkpoint::gguf::GgufValue;
use forerun_formats::{Checkpoint, Config, LoadError};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What describes a tokenizer and its chat template in a GGUF file.
pub struct GgufTokenizer {
    /// The keys of the metadata, with their values.
    pub entries: Vec<(String, GgufValue)>,
    /// Whether llama.cpp lacks this tokenizer's rule of splitting text into words.
    pub pre_tokenizer_unsupported: bool,
}

/// Why a GGUF file cannot describe a tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum GgufTokenizerError {
    /// The tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The tokenizer's file cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The chat template cannot be read.
    #[error(transparent)]
    ChatTemplate(#[from] ChatTemplateError),
    /// The kind of tokenizer is not supported.
    #[error(
        "cannot export the tokenizer {file}: it has {found}, but only {supported} is supported"
    )]
    Unsupported {
        /// The tokenizer's file.
        file: PathBuf,
        /// What is not supported.
        found: String,
        /// What is supported.
        supported: &'static str,
    },
}

impl GgufTokenizer {
    /// Returns the metadata of the tokenizer and the chat template of a checkpoint. Those of a GGUF
    /// file are copied.
    ///
    /// # Errors
    /// If the tokenizer is neither byte-level BPE nor one of llama2.c, or a file cannot be read.
    pub fn new(tokenizer: &Tokenizer, checkpoint: &Checkpoint) -> Result<Self, GgufTokenizerError> {
        let file = tokenizer.file();
        if let Some(metadata) = checkpoint.gguf() {
            let keys = metadata.keys().filter(|key| key.starts_with("tokenizer."));
            let entries = keys.filter_map(|key| Some((key.to_owned(), metadata.stored(key)?)));
            return Ok(Self { entries: entries.collect(), pre_tokenizer_unsupported: false });
        }
        let read = |cause| LoadError::Read { path: file.to_owned(), cause };
        let vocab_size = checkpoint.config().vocab_size;
        let mut metadata = if file.extension().is_some_and(|ending| ending == "bin") {
            let pieces = llama2c::read_pieces(&std::fs::read(file).map_err(read)?);
            scored_pieces(&pieces.map_err(|reason| unsupported(file, &reason))?, vocab_size)
        } else {
            // With the tokens of tokenizer_config.json.
            byte_level(&tokenizer.to_json()?, file, vocab_size)?
        };
        metadata.entries.extend(named(ends(tokenizer, checkpoint.config())?));
        metadata.entries.extend(chat_template(file)?);
        Ok(metadata)
    }
}

fn named(entries: Vec<(&str, GgufValue)>) -> impl Iterator<Item = (String, GgufValue)> {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value))
}

fn unsupported(file: &Path, found: &str) -> GgufTokenizerError {
    GgufTokenizerError::Unsupported {
        file: file.to_owned(),
        found: found.to_owned(),
        supported: "byte-level BPE as tokenizer.json, without a normalizer other than NFC, or a \
                    tokenizer of llama2.c",
    }
}

/// Returns the metadata of a byte-level BPE tokenizer, given its `tokenizer.json`.
fn byte_level(
    text: &str,
    file: &Path,
    vocab_size: usize,
) -> Result<GgufTokenizer, GgufTokenizerError> {
    let unsupported = |found: &str| unsupported(file, found);
    let json: Value = serde_json::from_str(text).map_err(|_| unsupported("another format"))?;
    let bpe = &json["model"];
    if bpe["type"] != "BPE" || bpe["byte_fallback"] == true {
        return Err(unsupported("another model than byte-level BPE"));
    }
    if !json["normalizer"].is_null() && json["normalizer"]["type"] != "NFC" {
        return Err(unsupported("a normalizer"));
    }
    let splitting = splitting(&json).ok_or_else(|| unsupported("no byte-level pre-tokenizer"))?;
    let Tokens { texts, types } =
        Tokens::of(&json, vocab_size).map_err(|found| unsupported(&found))?;
    let merges = merges(bpe).ok_or_else(|| unsupported("merges of an unknown form"))?;
    let mut entries = vec![
        ("tokenizer.ggml.model", GgufValue::Text("gpt2".into())),
        ("tokenizer.ggml.pre", GgufValue::Text(splitting.unwrap_or("gpt-2").into())),
        ("tokenizer.ggml.tokens", GgufValue::Texts(texts)),
        ("tokenizer.ggml.token_type", GgufValue::I32s(types)),
        ("tokenizer.ggml.merges", GgufValue::Texts(merges)),
    ];
    if splitting.is_none() {
        // For engines that can use any rule.
        entries.push((JSON, GgufValue::Text(text.to_owned())));
    }
    let entries = named(entries).collect();
    Ok(GgufTokenizer { entries, pre_tokenizer_unsupported: splitting.is_none() })
}

/// Returns the metadata of a tokenizer of llama2.c.
fn scored_pieces(pieces: &[llama2c::Piece], vocab_size: usize) -> GgufTokenizer {
    const UNUSED_SCORE: f32 = 0.0;
    let kind = |id, text: &str| match id {
        0 => token_type::UNKNOWN,
        1 | 2 => token_type::CONTROL,
        3.. if text.len() == 6 && text.starts_with("<0x") && text.ends_with('>') => {
            token_type::BYTE
        }
        _ => token_type::NORMAL,
    };
    let starts_with_space = pieces.iter().any(|(text, _)| text == " ");
    let (mut texts, mut types, mut scores) = (Vec::new(), Vec::new(), Vec::new());
    for id in 0..vocab_size {
        let (text, kind, score) = match pieces.get(id) {
            // llama2.c prints the texts of its control tokens between line breaks.
            Some((text, score)) if id < 3 => (text.trim().to_owned(), kind(id, text), *score),
            Some((text, score)) => (text.replace(' ', SPACE), kind(id, text), *score),
            None => (padding(id as u64), token_type::UNUSED, UNUSED_SCORE),
        };
        texts.push(text);
        types.push(kind);
        scores.push(score);
    }
    let entries = vec![
        ("tokenizer.ggml.model", GgufValue::Text("llama".into())),
        ("tokenizer.ggml.pre", GgufValue::Text("default".into())),
        ("tokenizer.ggml.tokens", GgufValue::Texts(texts)),
        ("tokenizer.ggml.token_type", GgufValue::I32s(types)),
        ("tokenizer.ggml.scores", GgufValue::F32s(scores)),
        ("tokenizer.ggml.unknown_token_id", GgufValue::U32(0)),
        ("tokenizer.ggml.add_space_prefix", GgufValue::Bool(starts_with_space)),
    ];
    GgufTokenizer { entries: named(entries).collect(), pre_tokenizer_unsupported: false }
}

/// Returns the text of an id without a token.
fn padding(id: u64) -> String {
    format!("[PAD{id}]")
}

/// Returns the metadata of BOS and end-of-sequence tokens.
fn ends(
    tokenizer: &Tokenizer,
    config: &Config,
) -> Result<Vec<(&'static str, GgufValue)>, GgufTokenizerError> {
    let Config { bos_token_id, eos_token_ids, .. } = config;
    let special = ChatTemplate::special_tokens(tokenizer.file())?;
    let template_end = special.get("eos_token").and_then(|text| tokenizer.token(text));
    // The chat template knows only the first one.
    let mut end_ids = eos_token_ids.clone();
    end_ids.sort_by_key(|id| Some(*id) != template_end);
    let named = [
        ("tokenizer.ggml.bos_token_id", *bos_token_id),
        ("tokenizer.ggml.eos_token_id", end_ids.first().copied()),
        ("tokenizer.ggml.eot_token_id", end_ids.get(1).copied()),
        ("tokenizer.ggml.eom_token_id", end_ids.get(2).copied()),
    ];
    let mut ends: Vec<_> =
        named.into_iter().filter_map(|(key, id)| Some((key, GgufValue::U32(id?)))).collect();
    let empty = tokenizer.encode("")?;
    let adds_bos = bos_token_id.is_some() && empty.first() == bos_token_id.as_ref();
    ends.push(("tokenizer.ggml.add_bos_token", GgufValue::Bool(adds_bos)));
    ends.push(("tokenizer.ggml.add_eos_token", GgufValue::Bool(false)));
    Ok(ends)
}

/// Returns llama.cpp's name for the rule of splitting words, `Some(None)` if it has none, and
/// `None` if the tokenizer does not represent bytes as GPT-2 does.
fn splitting(json: &Value) -> Option<Option<&'static str>> {
    let pre = &json["pre_tokenizer"];
    let steps: Vec<&Value> = match pre["pretokenizers"].as_array() {
        Some(steps) => steps.iter().collect(),
        None => vec![pre],
    };
    let bytes = steps.iter().find(|step| step["type"] == "ByteLevel")?;
    if bytes["add_prefix_space"] == true {
        return None;
    }
    let mut regexes = Vec::new();
    for step in steps {
        match step["type"].as_str()? {
            "Split" if step["behavior"] == "Isolated" && step["invert"] != true => {
                // Splitting at a text is no rule of llama.cpp.
                regexes.push(step["pattern"]["Regex"].as_str().unwrap_or_default());
            }
            "Digits" if step["individual_digits"] == true => regexes.push(DIGIT),
            // The default is true.
            "ByteLevel" if step["use_regex"] != false => regexes.push(GPT_2),
            "ByteLevel" => {}
            _ => return Some(None),
        }
    }
    let nfc = json["normalizer"]["type"] == "NFC";
    let known = Splitting::of(&regexes, nfc, json["model"]["ignore_merges"] == true);
    Some(known.map(|rule| rule.names[0]))
}

/// Returns the entry of the model's own chat template. A model without a default template has none.
fn chat_template(tokenizer: &Path) -> Result<Option<(String, GgufValue)>, GgufTokenizerError> {
    let source = ChatTemplate::default_source(tokenizer)?;
    Ok(source.map(|text| ("tokenizer.chat_template".to_owned(), GgufValue::Text(text))))
}

/// The vocabulary, by id.
struct Tokens {
    texts: Vec<String>,
    types: Vec<i32>,
}

impl Tokens {
    /// Collects as many tokens as the model has. Ids without a token are unused. Fails with the
    /// reason if two tokens have the same id.
    fn of(json: &Value, vocab_size: usize) -> Result<Self, String> {
        let mut named: BTreeMap<u64, (String, i32)> = BTreeMap::new();
        for (text, id) in json["model"]["vocab"].as_object().into_iter().flatten() {
            if let Some(id) = id.as_u64() {
                named.insert(id, (text.clone(), token_type::NORMAL));
            }
        }
        for token in json["added_tokens"].as_array().into_iter().flatten() {
            if let (Some(id), Some(text)) = (token["id"].as_u64(), token["content"].as_str()) {
                let kind = match token["special"] == true {
                    true => token_type::CONTROL,
                    false => token_type::USER_DEFINED,
                };
                let same = named.insert(id, (text.to_owned(), kind));
                if let Some((other, _)) = same.filter(|(other, _)| other != text) {
                    return Err(format!("two tokens with the id {id}, {other:?} and {text:?}"));
                }
            }
        }
        let mut token = |id| named.remove(&id).unwrap_or_else(|| (padding(id), token_type::UNUSED));
        let (texts, types) = (0..vocab_size as u64).map(&mut token).unzip();
        Ok(Self { texts, types })
    }
}

/// Returns the merges in order, each as `first second`.
fn merges(bpe: &Value) -> Option<Vec<String>> {
    let pair = |merge: &Value| match merge.as_array() {
        Some(parts) => Some(format!("{} {}", parts.first()?.as_str()?, parts.get(1)?.as_str()?)),
        None => merge.as_str().map(str::to_owned),
    };
    bpe["merges"].as_array()?.iter().map(pair).collect()
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn splitting_rules_have_llama_cpps_names() {
        let bytes = |regex: bool| json!({"type": "ByteLevel", "use_regex": regex});
        let of = |pre: Value, whole: bool| {
            splitting(&json!({"pre_tokenizer": pre, "model": {"ignore_merges": whole}}))
        };
        assert_eq!(of(bytes(true), false), Some(Some("gpt-2")));
        assert_eq!(of(bytes(false), false), Some(None));
        assert_eq!(of(json!({"type": "Metaspace"}), false), None);
        let sequence = |steps: &[Value]| json!({"type": "Sequence", "pretokenizers": steps});
        let split = |regex: &str| {
            let pattern = json!({"Regex": regex});
            let split = json!({"type": "Split", "pattern": pattern, "behavior": "Isolated"});
            sequence(&[split, bytes(false)])
        };
        let regex = |name| Splitting::named(Some(name)).map_or("", |rule| rule.regexes[0]);
        assert_eq!(of(split(regex("llama3")), true), Some(Some("llama-bpe")));
        assert_eq!(of(split(regex("llama3")), false), Some(Some("dbrx")));
        assert_eq!(of(split(regex("qwen2")), false), Some(Some("deepseek-r1-qwen")));
        assert_eq!(of(split("."), false), Some(None));
        let digits = |each: bool| json!({"type": "Digits", "individual_digits": each});
        assert_eq!(of(sequence(&[digits(true), bytes(true)]), false), Some(Some("smollm")));
        assert_eq!(of(sequence(&[digits(false), bytes(true)]), false), Some(None));
        let nfc = json!({"pre_tokenizer": split(regex("qwen2")), "normalizer": {"type": "NFC"}});
        assert_eq!(splitting(&nfc), Some(Some("qwen2")));
    }

    #[test]
    fn every_id_of_the_model_has_a_text_and_a_type() {
        let json = json!({
            "model": {"vocab": {"b": 1, "a": 0}, "merges": [["a", "b"], "b a"]},
            "added_tokens": [
                {"id": 2, "content": "<s>", "special": true},
                {"id": 3, "content": "new", "special": false},
            ],
        });
        let Tokens { texts, types } = Tokens::of(&json, 5).unwrap();
        assert_eq!(texts, ["a", "b", "<s>", "new", "[PAD4]"]);
        assert_eq!(types, [1, 1, 3, 4, 5]);
        assert_eq!(merges(&json["model"]), Some(vec!["a b".into(), "b a".into()]));
    }
}
