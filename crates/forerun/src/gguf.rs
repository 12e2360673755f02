//! Export of models and tokenizers as GGUF files, for llama.cpp and compatible engines.

use crate::model_source::ModelSource;
use crate::open_model::{OpenModel, open_model};
use crate::{ForerunError, Loader};
use forerun_formats::checkpoint::gguf::{GgufType, GgufValue, write_gguf};
use forerun_formats::{Config, LoadError};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The result of [`export_gguf`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufExport {
    /// The size of the file in bytes.
    pub bytes: u64,
    /// Whether llama.cpp lacks this tokenizer's rule of splitting text into words. It then splits as
    /// for GPT-2, so that some texts have other tokens. The model itself is the same.
    pub pre_tokenizer_unsupported: bool,
}

/// Why a model cannot be exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The model or its tokenizer cannot be opened.
    #[error(transparent)]
    Open(#[from] ForerunError),
    /// The model cannot be read, or the file cannot be written.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The kind of tokenizer is not supported.
    #[error(
        "cannot export the tokenizer {file}: it has {found}, but only {supported} is supported"
    )]
    Tokenizer {
        /// The tokenizer's file.
        file: PathBuf,
        /// What is not supported.
        found: String,
        /// What is supported.
        supported: &'static str,
    },
}

/// Exports a model (a Hugging Face directory with a byte-level BPE tokenizer) as a GGUF file.
///
/// # Errors
/// If the model cannot be opened, has an option that llama.cpp does not compute, has an unsupported tokenizer,
/// or if the file cannot be written.
///
/// ```no_run
/// use forerun::{GgufType, Loader, ModelSource, export_gguf};
/// use std::path::Path;
///
/// let model = ModelSource::from("models/target");
/// let file = Path::new("target-q8_0.gguf");
/// let export = export_gguf(&model, file, GgufType::Q8_0, &mut Loader::new())?;
/// println!("{} bytes", export.bytes);
/// # Ok::<(), forerun::ExportError>(())
/// ```
pub fn export_gguf(
    model: &ModelSource,
    file: &Path,
    gguf_type: GgufType,
    loader: &mut Loader<'_>,
) -> Result<GgufExport, ExportError> {
    let opened = open_model(model, loader)?;
    let (mut metadata, pre_tokenizer_unsupported) = tokenizer_metadata(&opened)?;
    metadata.insert(0, ("general.name".to_owned(), GgufValue::Text(model.name())));
    write_gguf(&opened.checkpoint, file, gguf_type, &metadata)?;
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    Ok(GgufExport { bytes, pre_tokenizer_unsupported })
}

/// Rules of splitting text into words that llama.cpp supports: the regular expression in
/// `tokenizer.json`, whether words that are tokens are not merged (`ignore_merges`), and llama.cpp's
/// name.
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

/// The `token_type` of ordinary tokens.
const NORMAL: i32 = 1;
/// The `token_type` of control tokens, which have no text.
const CONTROL: i32 = 3;
/// The `token_type` of added tokens with a text.
const USER_DEFINED: i32 = 4;
/// The `token_type` of ids without a token.
const UNUSED: i32 = 5;

/// Returns the tokenizer's metadata, and whether llama.cpp lacks its rule of splitting words.
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

/// Returns the metadata of BOS and end-of-sequence tokens.
fn ends(model: &OpenModel) -> Result<Vec<(&'static str, GgufValue)>, ExportError> {
    let Config { bos_token_id, eos_token_ids, .. } = model.checkpoint.config();
    let named = [
        ("tokenizer.ggml.bos_token_id", *bos_token_id),
        ("tokenizer.ggml.eos_token_id", eos_token_ids.first().copied()),
        ("tokenizer.ggml.eot_token_id", eos_token_ids.get(1).copied()),
    ];
    let mut ends: Vec<_> =
        named.into_iter().filter_map(|(key, id)| Some((key, GgufValue::U32(id?)))).collect();
    let empty = model.tokenizer.encode("").map_err(ForerunError::from)?;
    let adds_bos = bos_token_id.is_some() && empty.first() == bos_token_id.as_ref();
    ends.push(("tokenizer.ggml.add_bos_token", GgufValue::Bool(adds_bos)));
    ends.push(("tokenizer.ggml.add_eos_token", GgufValue::Bool(false)));
    Ok(ends)
}

/// Returns llama.cpp's name for the rule of splitting words, `Some(None)` if it has none, and `None` if
/// the tokenizer does not represent bytes as GPT-2 does.
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
    // The default is true.
    let splits_as_gpt2 = bytes["use_regex"] != false;
    Some(match steps[..] {
        [_] if splits_as_gpt2 => Some("gpt-2"),
        [split, _] if !splits_as_gpt2 => {
            let (regex, whole) =
                (split["pattern"]["Regex"].as_str(), &json["model"]["ignore_merges"]);
            let known = SPLITTINGS
                .iter()
                .find(|rule| Some(rule.0) == regex && rule.1 == (whole.as_bool() == Some(true)));
            known.map(|rule| rule.2)
        }
        _ => None,
    })
}

/// The vocabulary, by id.
struct Tokens {
    texts: Vec<String>,
    types: Vec<i32>,
}

impl Tokens {
    /// Collects as many tokens as the model has. Ids without a token are unused.
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

/// Returns the merges in order, each as `first second`.
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
    fn splitting_rules_have_llama_cpps_names() {
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
    fn every_id_of_the_model_has_a_text_and_a_type() {
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
