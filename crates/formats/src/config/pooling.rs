//! How the hidden states of a text become its embedding.

use crate::checkpoint::read_text;
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Component, Path};

/// How a model computes the embedding of a text: one vector of the hidden states after the final
/// norm, scaled to length 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// What the vector is before it is scaled.
    pub mode: PoolingMode,
    /// The most tokens of a text, if the model was trained with fewer than its context has.
    pub max_tokens: Option<usize>,
}

/// The vector that stands for all hidden states of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolingMode {
    /// Their mean.
    Mean,
    /// That of the first token, BERT's `[CLS]`.
    First,
    /// That of the last token.
    Last,
}

const MODES: &str = "the mean, the first token (cls) or the last token (lasttoken)";

impl From<PoolingMode> for Pooling {
    fn from(mode: PoolingMode) -> Self {
        Self { mode, max_tokens: None }
    }
}

impl Pooling {
    /// Reads the files of sentence-transformers in a checkpoint's directory; `None` if there are
    /// none. All embeddings are scaled to length 1, whether the files say so or not.
    ///
    /// # Errors
    /// If a file is malformed, or asks for another computation.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>, LoadError> {
        #[derive(Deserialize)]
        struct Module {
            path: String,
            #[serde(rename = "type")]
            kind: String,
        }
        let file = directory.join("modules.json");
        if !file.exists() {
            return Ok(None);
        }
        let modules: Vec<Module> = serde_json::from_str(&read_text(&file)?)
            .map_err(|cause| LoadError::Json { file: file.clone(), cause })?;
        let mut mode = None;
        for Module { path, kind } in modules {
            match kind.rsplit('.').next() {
                Some("Transformer" | "Normalize") => {}
                Some("Pooling") => {
                    let is_normal = |part| matches!(part, Component::Normal(_));
                    if !Path::new(&path).components().all(is_normal) {
                        let supported = "a folder within the model's";
                        let (option, found) = ("path", format!("{path:?}"));
                        return Err(LoadError::UnsupportedOption {
                            file,
                            option,
                            found,
                            supported,
                        });
                    }
                    let file = directory.join(path).join("config.json");
                    mode = Some(read_mode(&read_text(&file)?, &file)?);
                }
                _ => {
                    let supported = "the modules Transformer, Pooling and Normalize";
                    let (option, found) = ("type", format!("{kind:?}"));
                    return Err(LoadError::UnsupportedOption { file, option, found, supported });
                }
            }
        }
        let limit = |option, options: &JsonOptions<'_>| {
            let limit = options.get(option).and_then(Value::as_u64).filter(|limit| *limit > 0);
            limit.map(|limit| limit as usize)
        };
        with_options(directory, "config_sentence_transformers.json", reject_changes)?;
        let own = with_options(directory, "sentence_bert_config.json", |options| {
            reject_changes(options)?;
            Ok(limit("max_seq_length", options))
        })?;
        // Tokenizers without a limit have a number beyond any size.
        let of_tokenizer = with_options(directory, "tokenizer_config.json", |options| {
            Ok(limit("model_max_length", options))
        })?;
        let max_tokens = own.flatten().or(of_tokenizer.flatten());
        Ok(mode.map(|mode| Self { mode, max_tokens }))
    }
}

/// Reads from a file's options, if there is the file.
fn with_options<T>(
    directory: &Path,
    name: &str,
    read: impl FnOnce(&JsonOptions<'_>) -> Result<T, LoadError>,
) -> Result<Option<T>, LoadError> {
    let file = directory.join(name);
    if !file.exists() {
        return Ok(None);
    }
    read(&JsonOptions::parse(&read_text(&file)?, &file)?).map(Some)
}

/// Rejects options of sentence-transformers' files that change embeddings.
fn reject_changes(options: &JsonOptions<'_>) -> Result<(), LoadError> {
    let states = json!({"method": "forward", "method_output_name": "last_hidden_state"});
    let is_empty = |prompt: &Value| {
        let prompts = options.get("prompts").and_then(Value::as_object);
        let prompt = prompts.and_then(|prompts| prompts.get(prompt.as_str()?));
        prompt.is_some_and(|prompt| prompt == "")
    };
    options.check_supported("do_lower_case", "false", |value| value == false)?;
    options.check_supported("include_prompt", "true", |value| value == true)?;
    let supported = "texts with the method \"forward\" and its \"last_hidden_state\"";
    options.check_supported("modality_config", supported, |value| value["text"] == states)?;
    let supported = "null, or the name of an empty prompt (write the prompt in front of each text)";
    options.check_supported("default_prompt_name", supported, is_empty)
}

/// Reads the options of a pooling module: a name, or flags of which one is set.
fn read_mode(text: &str, file: &Path) -> Result<PoolingMode, LoadError> {
    const NAME: &str = "pooling_mode";
    const FLAGS: [(&str, &str); 6] = [
        ("pooling_mode_mean_tokens", "mean"),
        ("pooling_mode_cls_token", "cls"),
        ("pooling_mode_lasttoken", "lasttoken"),
        ("pooling_mode_max_tokens", "max"),
        ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
        ("pooling_mode_weightedmean_tokens", "weightedmean"),
    ];
    let options = JsonOptions::parse(text, file)?;
    reject_changes(&options)?;
    let mut found = options.string(NAME)?.map(|name| (NAME, name));
    for (option, name) in FLAGS {
        if options.flag(option)? == Some(true) && found.replace((option, name.into())).is_some() {
            return Err(options.unsupported(option, "one kind of pooling"));
        }
    }
    match found.as_ref().map(|(option, name)| (*option, &**name)) {
        Some((_, "mean")) => Ok(PoolingMode::Mean),
        Some((_, "cls")) => Ok(PoolingMode::First),
        Some((_, "lasttoken")) => Ok(PoolingMode::Last),
        Some((option, _)) => Err(options.unsupported(option, MODES)),
        None => Err(options.missing(NAME, MODES)),
    }
}
