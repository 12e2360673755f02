//! `forerun models show`: what a model is, whether it runs here, and which drafters it may have.

use super::draft_models::{GUIDE, known_target};
use crate::arguments::ShowModelArguments;
use crate::flags::with_flags;
use crate::note::printable;
use crate::progress;
use crate::size::{bytes, parameters};
use forerun::checkpoint::{Config, LoadError, ModelSummary, SpeculatorKind};
use forerun::{ForerunError, ModelSource};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// Prints what a model is.
pub(super) fn run(arguments: &ShowModelArguments) -> anyhow::Result<ExitCode> {
    let mut loader = progress::loader(true, true);
    let path = match &arguments.name {
        ModelSource::Embedded(_) => None,
        model => Some(loader.locate(model)?),
    };
    let drafter = match &path {
        // An error is found again below.
        Some(path) => SpeculatorKind::of(path).unwrap_or_default(),
        None => None,
    };
    let mut fields = Fields::default();
    fields.add("model", arguments.name.to_string());
    if let Some(path) = &path {
        fields.add("path", path.display().to_string());
    }
    let complete = drafter.is_none_or(SpeculatorKind::is_model);
    let (mut template, mut suggestions) = (None, None);
    if let (Some(kind), false) = (drafter, complete) {
        fields.add("family", declared_family(path.as_deref()).unwrap_or_else(|| "unknown".into()));
        fields.add("kind", kind.to_string());
        fields
            .add("runs here", "with its target: give it as --draft-model, next to --model".into());
    } else {
        match ModelSummary::read(&arguments.name, arguments.weights.dtype, &mut loader) {
            Ok(summary) => {
                describe(&summary, &mut fields);
                if let Some(kind) = drafter {
                    fields.add("kind", kind.to_string());
                }
                fields.verdict(summary.check_memory());
                // The demonstration pair has its own drafter.
                if path.is_some() {
                    let name = arguments.name.to_string();
                    let target = known_target(&name, &summary.config)?;
                    let drafters = target.as_ref().map_or(&[][..], |target| &target.drafters);
                    fields.json_only("draft models", serde_json::to_value(drafters)?);
                    suggestions = match target {
                        Some(target) => Some(target.text(&name)),
                        None if drafter.is_some() => None,
                        None => Some(format!("No draft model for it is known; see {GUIDE}\n")),
                    };
                }
                template = summary.chat_template.ok().flatten();
            }
            Err(error) => {
                let family = declared_family(path.as_deref());
                let is_unsupported =
                    matches!(error, ForerunError::Load(LoadError::GgufUnsupported { .. }));
                // Nothing is known of what cannot be read.
                if family.is_none() && !is_unsupported {
                    return Err(error.into());
                }
                fields.add("family", family.unwrap_or_else(|| "unknown".into()));
                fields.verdict(Err(error));
            }
        }
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let mut object = fields.json();
        if arguments.template {
            object["template_text"] = json!(template);
        }
        writeln!(out, "{object}")?;
        return Ok(ExitCode::SUCCESS);
    }
    write!(out, "{}", fields.text())?;
    if let Some(suggestions) = suggestions {
        write!(out, "\n{}", printable(&suggestions))?;
    }
    if arguments.template {
        let template = template.as_deref().unwrap_or("(no chat template)");
        writeln!(out, "\n{}", printable(template))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Adds what is known of a model that can run.
fn describe(summary: &ModelSummary, fields: &mut Fields) {
    let config = &summary.config;
    fields.add("family", config.family.model_type().into());
    fields.number("parameters", summary.parameters, parameters(summary.parameters));
    fields.add("format", summary.format.to_string());
    fields.number("size", summary.stored_bytes, bytes(summary.stored_bytes));
    fields.add("types in memory", summary.types.clone());
    fields.number("memory", summary.memory_bytes, bytes(summary.memory_bytes));
    fields.add("layers", shape(config));
    fields.number("vocabulary", config.vocab_size as u64, format!("{} tokens", config.vocab_size));
    let context = config.max_position_embeddings;
    fields.number("context", context as u64, format!("{context} tokens"));
    fields.add(
        "chat template",
        match &summary.chat_template {
            Ok(Some(text)) if text.contains("tools") => "its own, with tools".into(),
            Ok(Some(_)) => "its own".into(),
            Ok(None) => "none: chats use \"User: …\" and \"Assistant: …\"".into(),
            Err(error) => format!("unusable: {error}"),
        },
    );
    let sampling = config.suggested_sampling.map(|sampling| sampling.to_string());
    fields.add("suggested sampling", sampling.unwrap_or_else(|| "none".into()));
}

fn shape(config: &Config) -> String {
    let mut text = format!("{} of width {}", config.num_hidden_layers, config.hidden_size);
    if let Some(layers) = &config.experts {
        let experts = &layers.experts;
        text += &format!(
            ", {} of {} experts for a token",
            experts.router.experts_per_token, experts.n_experts
        );
    }
    if config.recurrent.is_some() {
        text += ", some of them recurrent";
    }
    text
}

/// Returns the family that the configuration of a folder names, also if forerun does not support
/// it.
fn declared_family(path: Option<&Path>) -> Option<String> {
    let text = std::fs::read_to_string(path?.join("config.json")).ok()?;
    let config: Value = serde_json::from_str(&text).ok()?;
    Some(config["model_type"].as_str()?.to_owned())
}

/// What is known of a model, in the order of the output.
#[derive(Default)]
struct Fields(Vec<Field>);

struct Field {
    name: &'static str,
    text: String,
    /// The value in JSON, if it is not the text.
    value: Option<Value>,
}

impl Fields {
    fn add(&mut self, name: &'static str, text: String) {
        self.0.push(Field { name, text, value: None });
    }

    fn number(&mut self, name: &'static str, number: u64, text: String) {
        self.0.push(Field { name, text, value: Some(number.into()) });
    }

    /// Adds a value that the text does not have.
    fn json_only(&mut self, name: &'static str, value: Value) {
        self.0.push(Field { name, text: String::new(), value: Some(value) });
    }

    /// Adds whether the model runs here, and if not, why.
    fn verdict(&mut self, result: Result<(), ForerunError>) {
        let (text, reason) = match result {
            Ok(()) => ("yes".to_owned(), Value::Null),
            Err(error) => {
                let reason = with_flags(&error.to_string());
                (format!("no: {reason}"), reason.into())
            }
        };
        self.0.push(Field { name: "runs here", text, value: Some(reason.is_null().into()) });
        if !reason.is_null() {
            self.json_only("reason", reason);
        }
    }

    fn text(&self) -> String {
        // What only JSON has is empty as text.
        let shown = self.0.iter().filter(|field| !field.text.is_empty());
        shown.map(|Field { name, text, .. }| format!("{name:<20}{}\n", printable(text))).collect()
    }

    fn json(&self) -> Value {
        let entry = |field: &Field| {
            let value = field.value.clone().unwrap_or_else(|| field.text.clone().into());
            (field.name.replace(' ', "_"), value)
        };
        self.0.iter().map(entry).collect::<serde_json::Map<_, _>>().into()
    }
}
