//! The file of `forerun serve --models`, in TOML. Each `[[model]]` has a name, a path, and options
//! of the engine by their names on the command line.

use crate::arguments::{EngineArguments, values};
use crate::config_file::{option, words_of};
use crate::generate::{demonstration_pair, options, use_demonstration};
use crate::text_file;
use anyhow::{Context, bail};
use clap::{CommandFactory, Parser};
use forerun::Plan;
use forerun_server::{ChatSyntax, KeepAlive, ModelOptions, Models};
use serde::Deserialize;
use std::ffi::OsString;
use std::path::Path;
use toml::{Table, Value};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelsFile {
    /// The model of requests that name none, or an unknown one.
    default: Option<String>,
    #[serde(alias = "memory-budget")]
    memory_budget: Option<Value>,
    #[serde(default)]
    model: Vec<ModelTable>,
}

#[derive(Deserialize)]
struct ModelTable {
    name: Option<String>,
    path: Option<String>,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    preload: bool,
    #[serde(alias = "keep-alive")]
    keep_alive: Option<KeepAlive>,
    #[serde(alias = "chat-template")]
    chat_template: Option<String>,
    #[serde(alias = "tool-parser")]
    tool_parser: Option<String>,
    /// Options of the engine.
    #[serde(flatten)]
    options: Table,
}

/// The engine's options of a model, in the form of a command line.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Engine {
    #[command(flatten)]
    arguments: EngineArguments,
}

/// Reads the models of a server. None of them is loaded.
///
/// # Errors
/// Names the file, the model, and the entry that is wrong.
pub(super) fn read(file: &Path) -> anyhow::Result<Models> {
    let context = || format!("the file of models {}", file.display());
    let text = text_file::read(file).with_context(context)?;
    parse(&text).with_context(context)
}

fn parse(text: &str) -> anyhow::Result<Models> {
    let file: ModelsFile = toml::from_str(text)?;
    let budget = file.memory_budget.map(|value| match value {
        Value::String(text) => values::bytes(&text),
        Value::Integer(number) => values::bytes(&number.to_string()),
        // It is no number of bytes.
        _ => values::bytes(""),
    });
    let budget = budget.transpose().map_err(|reason| anyhow::anyhow!("memory-budget: {reason}"))?;
    let model = |(table, number): (ModelTable, usize)| {
        let name = match &table.name {
            Some(name) => format!("the model {name:?}"),
            None => format!("the {number}. [[model]]"),
        };
        table.read().context(name)
    };
    let models = file.model.into_iter().zip(1..).map(model).collect::<anyhow::Result<_>>()?;
    let budget = budget.map(|bytes| bytes as u64);
    Ok(Models::new(models, file.default.as_deref(), budget)?)
}

impl ModelTable {
    fn read(self) -> anyhow::Result<ModelOptions> {
        let Self {
            name,
            path,
            aliases,
            preload,
            keep_alive,
            chat_template,
            tool_parser,
            options: given,
        } = self;
        let path = path.context("path is missing: give a folder, a file, or a hub id")?;
        let mut engine = engine(&path, &given)?;
        use_demonstration(&mut engine, demonstration_pair())?;
        let name = name.unwrap_or_else(|| engine.model_name());
        if [&name].into_iter().chain(&aliases).any(|name| name.trim().is_empty()) {
            bail!("a name is empty: give one");
        }
        let plan = Plan::new(options(&engine)?)?;
        if let Some(rank) = plan.placement().ranks().first() {
            bail!("its placement names rank:{rank}, but only a single model may run on ranks");
        }
        let chat_syntax = tool_parser
            .map(|name| name.parse::<ChatSyntax>())
            .transpose()
            .context("tool-parser")?;
        Ok(ModelOptions {
            name,
            aliases,
            plan,
            offline: engine.offline,
            chat_template,
            chat_syntax,
            preload,
            keep_alive: keep_alive.unwrap_or(KeepAlive::ALWAYS),
        })
    }
}

/// Returns the engine's options of a model.
fn engine(path: &str, given: &Table) -> anyhow::Result<EngineArguments> {
    let command = Engine::command();
    let mut words = vec![OsString::from(format!("--model={path}"))];
    for (name, value) in given {
        let Some(argument) = option(&command, name) else {
            bail!("{name}: there is no such option of a model");
        };
        words.extend(words_of(argument, name, value)?);
    }
    Engine::try_parse_from(words).map(|engine| engine.arguments).map_err(|error| {
        // The usage after the message is that of no command.
        let text = error.to_string();
        let message = text.split("\n\n").next().unwrap_or_default();
        anyhow::anyhow!("{}", message.strip_prefix("error: ").unwrap_or(message))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_the_engines_options_by_their_names() -> anyhow::Result<()> {
        let text = "
            default = \"b\"
            memory-budget = \"16G\"
            [[model]]
            path = \"demo\"
            aliases = [\"tiny\"]
            preload = true
            [[model]]
            name = \"b\"
            path = \"demo\"
            method = \"autoregressive\"
            drafter = \"none\"
            cache_bytes = \"1G\"
            context-length = 512
            keep-alive = \"5m\"
            offline = true
            tool-parser = \"hermes\"
        ";
        parse(text)?;
        Ok(())
    }

    #[test]
    fn wrong_files_name_the_model_and_the_entry() {
        for (text, words) in [
            ("", &["there is no model"][..]),
            ("models = 1", &["unknown field `models`"]),
            ("[[model]]\nname = \"a\"", &["the model \"a\"", "path is missing"]),
            ("[[model]]\npath = \"demo\"\nspeed = 3", &["the 1. [[model]]", "speed"]),
            ("[[model]]\npath = \"demo\"\nport = 80", &["port"]),
            ("[[model]]\npath = \"demo\"\ndtype = \"q9\"", &["'q9'", "--dtype"]),
            ("[[model]]\npath = \"demo\"\nkeep-alive = \"soon\"", &["\"soon\"", "5m"]),
            ("[[model]]\npath = \"demo\"\ntool-parser = \"x\"", &["tool-parser", "hermes"]),
            ("[[model]]\npath = \"demo\"\naliases = [\"\"]", &["a name is empty"]),
            ("memory-budget = \"much\"\n[[model]]\npath = \"demo\"", &["memory-budget", "512M"]),
            ("default = \"x\"\n[[model]]\nname = \"a\"\npath = \"demo\"", &["\"x\"", "\"a\""]),
            (
                "[[model]]\nname = \"a\"\npath = \"demo\"\n\
                 [[model]]\nname = \"b\"\npath = \"demo\"\naliases = [\"a\"]",
                &["two models have the name \"a\""],
            ),
        ] {
            let error = parse(text).err().map(|error| format!("{error:#}")).unwrap_or_default();
            for word in words {
                assert!(error.contains(word), "{text}: {error}");
            }
        }
    }
}
