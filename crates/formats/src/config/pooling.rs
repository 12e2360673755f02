//! How the hidden states of a text become its embedding.

use crate::checkpoint::read_text;
use crate::json_options::JsonOptions;
use crate::load_error::LoadError;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

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

/// The files and options that limit the tokens of a text. Tokenizers without a limit have numbers
/// beyond any size there.
const LIMITS: [(&str, &str); 2] = [
    ("sentence_bert_config.json", "max_seq_length"),
    ("tokenizer_config.json", "model_max_length"),
];

const MODES: &str = "the mean, the first token (cls) or the last token (lasttoken)";

impl From<PoolingMode> for Pooling {
    fn from(mode: PoolingMode) -> Self {
        Self { mode, max_tokens: None }
    }
}

impl Pooling {
    /// Reads the files of sentence-transformers in a checkpoint's directory; `None` if there are
    /// none. All embeddings are scaled to length 1, whether the files say so or not.
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
        let mut max_tokens = None;
        for (name, option) in LIMITS {
            let file = directory.join(name);
            if file.exists() {
                let text = read_text(&file)?;
                let limit = JsonOptions::parse(&text, &file)?.get(option).and_then(Value::as_u64);
                let limit = limit.filter(|limit| *limit > 0).map(|limit| limit as usize);
                max_tokens = max_tokens.into_iter().chain(limit).min();
            }
        }
        Ok(mode.map(|mode| Self { mode, max_tokens }))
    }
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
