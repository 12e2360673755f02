//! Export of models and tokenizers as GGUF files, for llama.cpp and compatible engines.

use crate::model_source::ModelSource;
use crate::open_model::{OpenModel, open_model};
use crate::text_windows::{DEFAULT_WINDOW, text_windows};
use crate::tokenizer::gguf::{JSON, SPACE, token_type};
use crate::tokenizer::llama2c;
use crate::tokenizer::splitting::{DIGIT, GPT_2, Splitting};
use crate::{ChatTemplate, ChatTemplateError, ForerunError, Loader, Step};
use forerun_cpu::importance::ImportanceProbe;
use forerun_cpu::{Isa, Team, TeamError, Weights};
use forerun_formats::checkpoint::gguf::{GgufValue, GgufWeights, write_gguf_with};
use forerun_formats::{Config, Importance, LoadError, WeightTypes};
use forerun_lm::ModelError;
use forerun_runtime::default_cores;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The number of tokens of a text for importance that are used.
const MOST_IMPORTANCE_TOKENS: usize = 16_384;

/// The result of [`export_gguf`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufExport {
    /// The size of the file in bytes.
    pub bytes: u64,
    /// Whether llama.cpp lacks this tokenizer's rule of splitting text into words. It then splits
    /// as for GPT-2, so that some texts have other tokens. The model itself is the same.
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
    /// The chat template cannot be read.
    #[error(transparent)]
    ChatTemplate(#[from] ChatTemplateError),
    /// The text for importance is empty or too short.
    #[error(
        "the text for importance has fewer than two tokens for {tokenizer}: give a longer text, like those \
         that the model is for"
    )]
    ShortText {
        /// The tokenizer's file.
        tokenizer: PathBuf,
    },
    /// The text for importance has no effect on floats.
    #[error("importance has no effect on {types}: choose a type with blocks, such as q4_k_m")]
    UselessText {
        /// The types.
        types: WeightTypes,
    },
    /// The threads for a forward pass over the text for importance cannot be started.
    #[error(transparent)]
    Team(#[from] TeamError),
    /// A forward pass over the text for importance failed.
    #[error(transparent)]
    Model(#[from] ModelError),
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

/// How a model is exported: its types, and a text that shows which inputs matter.
#[derive(Clone, Copy, Debug)]
pub struct GgufOptions<'a> {
    /// The types of matrices.
    pub types: WeightTypes,
    /// A text. Block types are then chosen so that the outputs of matrices have the least expected
    /// error on texts like its first 16,384 tokens. Without it, the weights have the least error.
    pub importance: Option<&'a str>,
}

impl<T: Into<WeightTypes>> From<T> for GgufOptions<'_> {
    fn from(types: T) -> Self {
        Self { types: types.into(), importance: None }
    }
}

/// Exports a model (a Hugging Face directory with a byte-level BPE tokenizer, a llama2.c file, or
/// another GGUF file) as a GGUF file, with its matrices in these types and its default chat
/// template.
///
/// # Errors
/// If the model cannot be opened, has an option that llama.cpp does not compute, has an unsupported
/// tokenizer, or if the file cannot be written.
///
/// ```no_run
/// use forerun::{Loader, Mix, ModelSource, export_gguf};
/// use std::path::Path;
///
/// let model = ModelSource::from("models/target");
/// let file = Path::new("target-q4_k_m.gguf");
/// let export = export_gguf(&model, file, Mix::Q4_K_M, &mut Loader::new())?;
/// println!("{} bytes", export.bytes);
/// # Ok::<(), forerun::ExportError>(())
/// ```
pub fn export_gguf<'a>(
    model: &ModelSource,
    file: &Path,
    options: impl Into<GgufOptions<'a>>,
    loader: &mut Loader<'_>,
) -> Result<GgufExport, ExportError> {
    let GgufOptions { types, importance: text } = options.into();
    if text.is_some() && !types.has_blocks() {
        return Err(ExportError::UselessText { types });
    }
    let opened = open_model(model, loader)?;
    let TokenizerMetadata { entries, pre_tokenizer_unsupported } = tokenizer_metadata(&opened)?;
    let name = ("general.name".to_owned(), GgufValue::Text(model.name()));
    let metadata: Vec<_> = std::iter::once(name).chain(entries).collect();
    let importance = text.map(|text| importance(&opened, text)).transpose()?;
    let weights = GgufWeights { types, importance: importance.as_ref() };
    let name = model.to_string();
    let on_tensor = &mut |done: usize, total: usize| {
        loader.report(Step::Export { model: &name }, done, total);
    };
    write_gguf_with(&opened.checkpoint, file, weights, &metadata, on_tensor)?;
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    Ok(GgufExport { bytes, pre_tokenizer_unsupported })
}

/// Computes the importance of a model's inputs on a text, with the weights as stored.
fn importance(model: &OpenModel, text: &str) -> Result<Importance, ExportError> {
    let OpenModel { checkpoint, tokenizer } = model;
    let window = DEFAULT_WINDOW.min(checkpoint.config().max_position_embeddings);
    let windows = text_windows(tokenizer, text, MOST_IMPORTANCE_TOKENS, window);
    let windows = windows.map_err(ForerunError::from)?;
    if windows.is_empty() {
        return Err(ExportError::ShortText { tokenizer: tokenizer.file().to_owned() });
    }
    Isa::from_environment().map_err(ForerunError::from)?;
    let team = Team::unpinned(default_cores().len())?;
    let mut probe = ImportanceProbe::new(Arc::new(Weights::load(checkpoint)?), &Arc::new(team));
    for window in &windows {
        probe.add(window)?;
    }
    Ok(probe.importance())
}

/// What describes a tokenizer and its chat template in a GGUF file.
struct TokenizerMetadata {
    entries: Vec<(String, GgufValue)>,
    pre_tokenizer_unsupported: bool,
}

/// Returns the metadata of a model's tokenizer and chat template. Those of a GGUF file are copied.
fn tokenizer_metadata(model: &OpenModel) -> Result<TokenizerMetadata, ExportError> {
    let file = model.tokenizer.file();
    if let Some(metadata) = model.checkpoint.gguf() {
        let keys = metadata.keys().filter(|key| key.starts_with("tokenizer."));
        let entries = keys.filter_map(|key| Some((key.to_owned(), metadata.stored(key)?)));
        let entries = entries.collect();
        return Ok(TokenizerMetadata { entries, pre_tokenizer_unsupported: false });
    }
    let read = |cause| LoadError::Read { path: file.to_owned(), cause };
    let vocab_size = model.checkpoint.config().vocab_size;
    let mut metadata = if file.extension().is_some_and(|ending| ending == "bin") {
        let pieces = llama2c::read_pieces(&std::fs::read(file).map_err(read)?);
        scored_pieces(&pieces.map_err(|reason| unsupported(file, &reason))?, vocab_size)
    } else {
        // With the tokens of tokenizer_config.json.
        let json = model.tokenizer.to_json().map_err(ForerunError::from)?;
        byte_level(&json, file, vocab_size)?
    };
    metadata.entries.extend(named(ends(model)?));
    metadata.entries.extend(chat_template(model)?);
    Ok(metadata)
}

fn named(entries: Vec<(&str, GgufValue)>) -> impl Iterator<Item = (String, GgufValue)> {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value))
}

fn unsupported(file: &Path, found: &str) -> ExportError {
    ExportError::Tokenizer {
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
) -> Result<TokenizerMetadata, ExportError> {
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
    let Tokens { texts, types } = Tokens::of(&json, vocab_size);
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
    Ok(TokenizerMetadata { entries, pre_tokenizer_unsupported: splitting.is_none() })
}

/// Returns the metadata of a tokenizer of llama2.c.
fn scored_pieces(pieces: &[llama2c::Piece], vocab_size: usize) -> TokenizerMetadata {
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
    TokenizerMetadata { entries: named(entries).collect(), pre_tokenizer_unsupported: false }
}

/// Returns the text of an id without a token.
fn padding(id: u64) -> String {
    format!("[PAD{id}]")
}

/// Returns the metadata of BOS and end-of-sequence tokens.
fn ends(model: &OpenModel) -> Result<Vec<(&'static str, GgufValue)>, ExportError> {
    let Config { bos_token_id, eos_token_ids, .. } = model.checkpoint.config();
    let special = ChatTemplate::special_tokens(model.tokenizer.file())?;
    let template_end = special.get("eos_token").and_then(|text| model.tokenizer.token(text));
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
    let empty = model.tokenizer.encode("").map_err(ForerunError::from)?;
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
fn chat_template(model: &OpenModel) -> Result<Option<(String, GgufValue)>, ExportError> {
    let source = ChatTemplate::default_source(model.tokenizer.file())?;
    Ok(source.map(|text| ("tokenizer.chat_template".to_owned(), GgufValue::Text(text))))
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
                named.insert(id, (text.clone(), token_type::NORMAL));
            }
        }
        for token in json["added_tokens"].as_array().into_iter().flatten() {
            if let (Some(id), Some(text)) = (token["id"].as_u64(), token["content"].as_str()) {
                let kind = match token["special"] == true {
                    true => token_type::CONTROL,
                    false => token_type::USER_DEFINED,
                };
                named.insert(id, (text.to_owned(), kind));
            }
        }
        let mut token = |id| named.remove(&id).unwrap_or_else(|| (padding(id), token_type::UNUSED));
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
        let Tokens { texts, types } = Tokens::of(&json, 5);
        assert_eq!(texts, ["a", "b", "<s>", "new", "[PAD4]"]);
        assert_eq!(types, [1, 1, 3, 4, 5]);
        assert_eq!(merges(&json["model"]), Some(vec!["a b".into(), "b a".into()]));
    }
}
