//! The files of a checkpoint that hold chat templates and special tokens.

use super::ChatTemplateError;
use forerun_formats::checkpoint::gguf::GgufMetadata;
use forerun_formats::{EmbeddedModel, LoadError};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The source text of a template.
pub(super) struct Source {
    pub(super) text: String,
    /// The origin of the text, for messages.
    pub(super) origin: String,
}

/// The file of the default template.
const TEMPLATE: &str = "chat_template.jinja";
/// The folder of further templates, by name.
const ADDITIONAL_TEMPLATES: &str = "additional_chat_templates";
/// The tokenizer's configuration, which may hold templates and special tokens.
const CONFIG: &str = "tokenizer_config.json";
/// The file of special tokens.
const TOKENS: &str = "special_tokens_map.json";

/// The name of a template without a name.
const DEFAULT: &str = "default";

/// Where a checkpoint's files are.
#[derive(Clone, Copy)]
pub(super) enum Files<'a> {
    /// In a folder on disk.
    Folder(&'a Path),
    /// In the program.
    Embedded(&'a EmbeddedModel),
    /// In the metadata of a GGUF file.
    Gguf(GgufMetadata<'a>),
}

impl<'a> Files<'a> {
    /// Returns the text of a file with its path, or `None` if there is no such file.
    fn read(self, name: &str) -> Result<Option<(PathBuf, Cow<'a, str>)>, ChatTemplateError> {
        match self {
            Self::Folder(folder) => {
                let file = folder.join(name);
                if !file.is_file() {
                    return Ok(None);
                }
                let text = read_text(&file)?;
                Ok(Some((file, text.into())))
            }
            Self::Embedded(model) => {
                Ok(model.text(name).map(|text| (model.path().join(name), text.into())))
            }
            Self::Gguf(_) => Ok(None),
        }
    }

    /// Returns a file of JSON with its path, or `None` if there is no such file.
    fn read_json(self, name: &str) -> Result<Option<(PathBuf, Value)>, ChatTemplateError> {
        let Some((file, text)) = self.read(name)? else { return Ok(None) };
        match serde_json::from_str(&text) {
            Ok(json) => Ok(Some((file, json))),
            Err(error) => Err(unreadable(&file, &error)),
        }
    }

    /// Returns the paths of the additional templates.
    fn additional_templates(self) -> Vec<PathBuf> {
        let Self::Folder(folder) = self else { return Vec::new() };
        let additional = std::fs::read_dir(folder.join(ADDITIONAL_TEMPLATES));
        additional.into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    }
}

/// Returns the template with this name among a checkpoint's files, or the default one.
pub(super) fn shipped(
    files: Files<'_>,
    name: Option<&str>,
) -> Result<Option<Source>, ChatTemplateError> {
    let mut templates = all(files)?;
    if let Some((_, source)) = templates.remove(name.unwrap_or(DEFAULT)) {
        return Ok(Some(source));
    }
    match templates.values().next() {
        Some((file, _)) if name.is_none() => Err(ChatTemplateError::NoDefault {
            file: file.clone(),
            names: templates.into_keys().collect(),
        }),
        _ => Ok(None),
    }
}

/// Returns the names of all templates of a checkpoint.
pub(super) fn names(files: Files<'_>) -> Result<Vec<String>, ChatTemplateError> {
    Ok(all(files)?.into_keys().collect())
}

/// Returns all templates of a checkpoint by name, each with its file. Template files take
/// precedence over templates in the tokenizer's configuration.
fn all(files: Files<'_>) -> Result<BTreeMap<String, (PathBuf, Source)>, ChatTemplateError> {
    let mut templates = BTreeMap::new();
    if let Files::Gguf(metadata) = files {
        for (name, text) in in_metadata(metadata).map_err(|error| of_gguf(metadata, &error))? {
            let file = metadata.path().to_owned();
            let source = Source { text, origin: file.display().to_string() };
            templates.insert(name, (file, source));
        }
    }
    if let Some((file, config)) = files.read_json(CONFIG)? {
        for (name, text) in in_config(&file, config)? {
            let source = Source { text, origin: file.display().to_string() };
            templates.insert(name, (file.clone(), source));
        }
    }
    for file in files.additional_templates() {
        let name = file.file_stem().and_then(|name| name.to_str()).map(str::to_owned);
        if let Some(name) = name.filter(|_| file.extension().is_some_and(|e| e == "jinja")) {
            let source = read_template(&file)?;
            templates.insert(name, (file, source));
        }
    }
    if let Some((file, text)) = files.read(TEMPLATE)? {
        let source = Source { text: text.into_owned(), origin: file.display().to_string() };
        templates.insert(DEFAULT.into(), (file, source));
    }
    Ok(templates)
}

/// Returns the templates in a tokenizer's configuration: one text, or a list of names and texts.
fn in_config(file: &Path, mut config: Value) -> Result<Vec<(String, String)>, ChatTemplateError> {
    let unknown = |reason: &str| ChatTemplateError::Unreadable {
        file: file.to_owned(),
        reason: reason.into(),
    };
    match config.get_mut("chat_template").map(Value::take) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![(DEFAULT.into(), text)]),
        Some(Value::Array(list)) => {
            let named = |entry: &Value| {
                let text = |key| entry.get(key).and_then(Value::as_str).map(str::to_owned);
                text("name").zip(text("template"))
            };
            let named: Option<Vec<_>> = list.iter().map(named).collect();
            named.ok_or_else(|| unknown("chat_template is a list without names and templates"))
        }
        Some(_) => Err(unknown("chat_template is neither a text nor a list")),
    }
}

/// Returns the templates in a GGUF file's metadata, by name.
fn in_metadata(metadata: GgufMetadata<'_>) -> Result<Vec<(String, String)>, LoadError> {
    const TEMPLATE: &str = "tokenizer.chat_template";
    let name = |key: &str| match key.strip_prefix(TEMPLATE)? {
        "" => Some(DEFAULT.to_owned()),
        rest => rest.strip_prefix('.').map(str::to_owned),
    };
    let mut templates = Vec::new();
    for key in metadata.keys() {
        let Some(name) = name(key) else { continue };
        if let Some(text) = metadata.text(key)? {
            templates.push((name, text.to_owned()));
        }
    }
    Ok(templates)
}

/// Returns the special tokens that a GGUF file's metadata name.
fn tokens_in_metadata(metadata: GgufMetadata<'_>) -> Result<BTreeMap<String, String>, LoadError> {
    // The name of the separator is misspelt in the format.
    const NAMES: [(&str, &str); 7] = [
        ("bos", "bos"),
        ("eos", "eos"),
        ("unknown", "unk"),
        ("padding", "pad"),
        ("seperator", "sep"),
        ("cls", "cls"),
        ("mask", "mask"),
    ];
    let Some(texts) = metadata.strings("tokenizer.ggml.tokens")? else {
        return Ok(BTreeMap::new());
    };
    let texts: Vec<&str> = texts.collect();
    let mut tokens = BTreeMap::new();
    for (key, name) in NAMES {
        let id = metadata.u32(&format!("tokenizer.ggml.{key}_token_id"))?;
        if let Some(text) = id.and_then(|id| texts.get(id as usize)) {
            tokens.insert(format!("{name}_token"), (*text).to_owned());
        }
    }
    Ok(tokens)
}

/// Returns the special tokens that templates can use, by names such as `bos_token`.
pub(super) fn special_tokens(
    files: Files<'_>,
) -> Result<BTreeMap<String, String>, ChatTemplateError> {
    if let Files::Gguf(metadata) = files {
        return tokens_in_metadata(metadata).map_err(|error| of_gguf(metadata, &error));
    }
    let mut tokens = BTreeMap::new();
    for file in [TOKENS, CONFIG] {
        let Some((_, Value::Object(entries))) = files.read_json(file)? else { continue };
        for (name, value) in entries {
            // Either the token's text, or an object with it.
            let text = value.as_str().or_else(|| value.get("content").and_then(Value::as_str));
            if let Some(text) = text.filter(|_| name.ends_with("_token")) {
                tokens.insert(name, text.to_owned());
            }
        }
    }
    Ok(tokens)
}

pub(super) fn read_template(file: &Path) -> Result<Source, ChatTemplateError> {
    Ok(Source { text: read_text(file)?, origin: file.display().to_string() })
}

fn read_text(file: &Path) -> Result<String, ChatTemplateError> {
    std::fs::read_to_string(file).map_err(|error| unreadable(file, &error))
}

fn of_gguf(metadata: GgufMetadata<'_>, error: &LoadError) -> ChatTemplateError {
    unreadable(metadata.path(), error)
}

fn unreadable(file: &Path, error: &dyn std::error::Error) -> ChatTemplateError {
    ChatTemplateError::Unreadable { file: file.to_owned(), reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::super::ChatTemplate;
    use super::*;
    use crate::Message;

    type Outcome = Result<(), Box<dyn std::error::Error>>;

    fn render(template: &ChatTemplate) -> Result<String, ChatTemplateError> {
        template.render(&[Message::user("x")], true)
    }

    #[test]
    fn templates_and_tokens_are_found_in_all_their_files() -> Outcome {
        let folder = tempfile::tempdir()?;
        let path = folder.path();
        let write = |file: &str, text: &str| std::fs::write(path.join(file), text);
        assert!(ChatTemplate::from_checkpoint(path)?.is_plain());
        write(CONFIG, r#"{"chat_template": null, "bos_token": null}"#)?;
        assert!(ChatTemplate::from_checkpoint(path)?.is_plain());
        write(
            CONFIG,
            r#"{"chat_template": "{{ bos_token }}{{ unk_token }}!", "bos_token": {"content": "<s>"},
                "eos_token": "</s>", "add_bos_token": true}"#,
        )?;
        write(TOKENS, r#"{"bos_token": "<old>", "unk_token": "<unk>"}"#)?;
        let template = ChatTemplate::from_checkpoint(path)?;
        assert_eq!((render(&template)?, template.eos_token()), ("<s><unk>!".into(), Some("</s>")));
        write(
            CONFIG,
            r#"{"chat_template": [{"name": "default", "template": "one"},
                {"name": "tool_use", "template": "two"}]}"#,
        )?;
        assert_eq!(render(&ChatTemplate::from_checkpoint(path)?)?, "one");
        assert_eq!(render(&ChatTemplate::choose(path, "tool_use")?)?, "two");
        assert!(ChatTemplate::choose(path, "plain")?.is_plain());
        // Template files take precedence.
        std::fs::create_dir(path.join(ADDITIONAL_TEMPLATES))?;
        write("additional_chat_templates/rag.jinja", "three")?;
        write(TEMPLATE, "four")?;
        assert_eq!(render(&ChatTemplate::from_checkpoint(path)?)?, "four");
        assert_eq!(render(&ChatTemplate::choose(path, "rag")?)?, "three");
        write("other.txt", "five {{ eos_token }}")?;
        let other = path.join("other.txt").display().to_string();
        assert_eq!(render(&ChatTemplate::choose(path, &other)?)?, "five ");
        // A checkpoint may also be a file in the folder.
        write("model.bin", "")?;
        assert_eq!(render(&ChatTemplate::from_checkpoint(&path.join("model.bin"))?)?, "four");
        Ok(())
    }

    #[test]
    fn errors_name_the_file_and_the_fault() -> Outcome {
        let folder = tempfile::tempdir()?;
        let path = folder.path();
        let refuse = |config: &str, choice: Option<&str>, words: &[&str]| -> Outcome {
            std::fs::write(path.join(CONFIG), config)?;
            let template = match choice {
                Some(choice) => ChatTemplate::choose(path, choice),
                None => ChatTemplate::from_checkpoint(path),
            };
            let message = template.err().map(|error| error.to_string()).unwrap_or_default();
            for word in words {
                assert!(message.contains(word), "{word}: {message}");
            }
            Ok(())
        };
        let list = r#"{"chat_template": [{"name": "a", "template": "1"}]}"#;
        refuse("{", None, &[CONFIG, "EOF"])?;
        refuse(r#"{"chat_template": 3}"#, None, &[CONFIG, "neither a text nor a list"])?;
        refuse(r#"{"chat_template": [{}]}"#, None, &[CONFIG, "without names"])?;
        refuse(list, None, &[CONFIG, "none is the default", "`chat_template`: a"])?;
        refuse(list, Some("b"), &["no chat template \"b\"", "a, plain"])?;
        refuse(r#"{"chat_template": "{% if %}"}"#, None, &[CONFIG, "cannot be used"])?;
        Ok(())
    }
}
