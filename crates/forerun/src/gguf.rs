//! Models as GGUF files, with their tokenizers, for llama.cpp and its kin.

use crate::open_model::{OpenModel, open_model};
use crate::{ForerunError, Loader};
use forerun_model::checkpoint::gguf::{GgufType, GgufValue, write_gguf};
use forerun_model::{Config, LoadError};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufExport {
    /// Bytes of the file.
    pub bytes: u64,
    /// Set where llama.cpp has no rule that splits text into words as this tokenizer does: it then
    /// splits as GPT-2, and gives some texts other tokens. The model itself is the same.
    pub splits_otherwise: bool,
}

/// Why there is no GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The model or its tokenizer cannot be opened.
    #[error(transparent)]
    Open(#[from] ForerunError),
    /// The model cannot be read, or the file not be written.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A tokenizer of another kind.
    #[error("the tokenizer {file} has {found}; what can be exported is {supported}")]
    Tokenizer {
        /// Its file.
        file: PathBuf,
        /// What it has.
        found: String,
        /// What is known here.
        supported: &'static str,
    },
}

/// Writes a model (a Hugging Face directory with a byte-level BPE tokenizer) as a GGUF file.
///
/// # Errors
/// If it cannot be opened, is no model that llama.cpp's `llama` computes, has another kind of
/// tokenizer, or the file cannot be written.
pub fn export_gguf(
    model: &Path,
    file: &Path,
    gguf_type: GgufType,
    loader: &mut Loader<'_>,
) -> Result<GgufExport, ExportError> {
    let opened = open_model(model, loader)?;
    let (mut metadata, splits_otherwise) = tokenizer_metadata(&opened)?;
    let name = model.file_name().unwrap_or(model.as_os_str()).to_string_lossy().into_owned();
    metadata.insert(0, ("general.name".to_owned(), GgufValue::Text(name)));
    write_gguf(&opened.checkpoint, file, gguf_type, &metadata)?;
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    Ok(GgufExport { bytes, splits_otherwise })
}

/// Ways of splitting text into words that llama.cpp knows by a name: the regular expression of
/// `tokenizer.json`, whether merges are passed over where a whole word is a token, and the name.
const SPLITTINGS: [(&str, bool, &str); 2] = [
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        true,
        "llama-bpe",
    ),
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        false,
        "qwen2",
    ),
];

/// `token_type` of ordinary tokens.
const NORMAL: i32 = 1;
/// Of tokens that stand for no text.
const CONTROL: i32 = 3;
/// Of tokens that were added for their text.
const USER_DEFINED: i32 = 4;
/// Of places without a token.
const UNUSED: i32 = 5;

/// The tokenizer as llama.cpp has it, and whether it splits words otherwise there.
fn tokenizer_metadata(model: &OpenModel) -> Result<(Vec<(String, GgufValue)>, bool), ExportError> {
    let file = model.tokenizer.file();
    let unsupported = |found: &str| ExportError::Tokenizer {
        file: file.to_owned(),
        found: found.to_owned(),
        supported: "byte-level BPE without a normalizer, as tokenizer.json",
    };
    let text = std::fs::read_to_string(file)
        .map_err(|cause| LoadError::Read { path: file.to_owned(), cause })?;
    let json: Value = serde_json::from_str(&text).map_err(|_| unsupported("another format"))?;
    let bpe = &json["model"];
    if bpe["type"] != "BPE" || bpe["byte_fallback"] == true {
        return Err(unsupported("another model than byte-level BPE"));
    }
    if !json["normalizer"].is_null() {
        return Err(unsupported("a normalizer"));
    }
    let splitting = splitting(&json).ok_or_else(|| unsupported("no byte-level pre-tokenizer"))?;
    let Tokens { texts, types } = Tokens::of(&json, model.checkpoint.config().vocab_size);
    let merges = merges(bpe).ok_or_else(|| unsupported("merges of an unknown form"))?;
    let mut metadata = vec![
        ("tokenizer.ggml.model", GgufValue::Text("gpt2".into())),
        ("tokenizer.ggml.pre", GgufValue::Text(splitting.unwrap_or("gpt-2").into())),
        ("tokenizer.ggml.tokens", GgufValue::Texts(texts)),
        ("tokenizer.ggml.token_type", GgufValue::I32s(types)),
        ("tokenizer.ggml.merges", GgufValue::Texts(merges)),
    ];
    metadata.extend(ends(model)?);
    let metadata = metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Ok((metadata, splitting.is_none()))
}

/// The tokens around a text.
fn ends(model: &OpenModel) -> Result<Vec<(&'static str, GgufValue)>, ExportError> {
    let Config { bos_token_id, eos_token_ids, .. } = model.checkpoint.config();
    let named = [
        ("tokenizer.ggml.bos_token_id", *bos_token_id),
        ("tokenizer.ggml.eos_token_id", eos_token_ids.first().copied()),
        ("tokenizer.ggml.eot_token_id", eos_token_ids.get(1).copied()),
    ];
    let mut ends: Vec<_> =
        named.into_iter().filter_map(|(key, id)| Some((key, GgufValue::U32(id?)))).collect();
    let of_nothing = model.tokenizer.encode("").map_err(ForerunError::from)?;
    let adds_bos = bos_token_id.is_some() && of_nothing.first() == bos_token_id.as_ref();
    ends.push(("tokenizer.ggml.add_bos_token", GgufValue::Bool(adds_bos)));
    ends.push(("tokenizer.ggml.add_eos_token", GgufValue::Bool(false)));
    Ok(ends)
}

/// llama.cpp's name for how words are split; `Some(None)` where it has none, and `None` where bytes are
/// not spelt as GPT-2 spells them.
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
    // Absent, it is true.
    let splits_as_gpt2 = bytes["use_regex"] != false;
    Some(match steps[..] {
        [_] if splits_as_gpt2 => Some("gpt-2"),
        [split, _] if !splits_as_gpt2 => {
            let (regex, whole) =
                (split["pattern"]["Regex"].as_str(), &json["model"]["ignore_merges"]);
            let known = SPLITTINGS
                .iter()
                .find(|own| Some(own.0) == regex && own.1 == (whole.as_bool() == Some(true)));
            known.map(|own| own.2)
        }
        _ => None,
    })
}

/// The vocabulary by token.
struct Tokens {
    texts: Vec<String>,
    types: Vec<i32>,
}

impl Tokens {
    /// As many as the model has, those without a text unused.
    fn of(json: &Value, vocab_size: usize) -> Self {
        let mut named: BTreeMap<u64, (String, i32)> = BTreeMap::new();
        for (text, id) in json["model"]["vocab"].as_object().into_iter().flatten() {
            if let Some(id) = id.as_u64() {
                named.insert(id, (text.clone(), NORMAL));
            }
        }
        for token in json["added_tokens"].as_array().into_iter().flatten() {
            if let (Some(id), Some(text)) = (token["id"].as_u64(), token["content"].as_str()) {
                let kind = if token["special"] == true { CONTROL } else { USER_DEFINED };
                named.insert(id, (text.to_owned(), kind));
            }
        }
        let mut token = |id| named.remove(&id).unwrap_or_else(|| (format!("[PAD{id}]"), UNUSED));
        let (texts, types) = (0..vocab_size as u64).map(&mut token).unzip();
        Self { texts, types }
    }
}

/// Pairs in the order in which they are merged, as `first second`.
fn merges(bpe: &Value) -> Option<Vec<String>> {
    let pair = |merge: &Value| match merge.as_array() {
        Some(parts) => Some(format!("{} {}", parts.first()?.as_str()?, parts.get(1)?.as_str()?)),
        None => merge.as_str().map(str::to_owned),
    };
    bpe["merges"].as_array()?.iter().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn words_are_split_as_llama_cpp_knows_it() {
        let bytes = |regex: bool| json!({"type": "ByteLevel", "use_regex": regex});
        let of = |pre: Value, whole: bool| {
            splitting(&json!({"pre_tokenizer": pre, "model": {"ignore_merges": whole}}))
        };
        assert_eq!(of(bytes(true), false), Some(Some("gpt-2")));
        assert_eq!(of(bytes(false), false), Some(None));
        assert_eq!(of(json!({"type": "Metaspace"}), false), None);
        let split = |regex: &str| {
            let split = json!({"type": "Split", "pattern": {"Regex": regex}});
            json!({"type": "Sequence", "pretokenizers": [split, bytes(false)]})
        };
        let [(llama, ..), (qwen, ..)] = SPLITTINGS;
        assert_eq!(of(split(llama), true), Some(Some("llama-bpe")));
        assert_eq!(of(split(llama), false), Some(None));
        assert_eq!(of(split(qwen), false), Some(Some("qwen2")));
        assert_eq!(of(split("."), false), Some(None));
    }

    #[test]
    fn every_token_of_the_model_has_a_text() {
        let json = json!({
            "model": {"vocab": {"b": 1, "a": 0}, "merges": [["a", "b"], "b a"]},
            "added_tokens": [
                {"id": 2, "content": "<s>", "special": true},
                {"id": 3, "content": "new", "special": false},
            ],
        });
        let Tokens { texts, types } = Tokens::of(&json, 5);
        assert_eq!(texts, ["a", "b", "<s>", "new", "[PAD4]"]);
        assert_eq!(types, [NORMAL, NORMAL, CONTROL, USER_DEFINED, UNUSED]);
        assert_eq!(merges(&json["model"]), Some(vec!["a b".into(), "b a".into()]));
    }
}
