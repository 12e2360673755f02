//! `/api/tags`, `/api/ps`, `/api/show` and `/api/version`: what there is.

use super::OllamaError;
use super::time::{NEVER, rfc3339};
use crate::api::answers::prepare;
use crate::api::error::ApiError;
use crate::api::state::State;
use crate::api::{body_of, parse};
use crate::models::Entry;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::{Json, extract};
use forerun::checkpoint::{ModelFormat, ModelSummary};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::sync::Arc;
use std::time::SystemTime;

/// The version of ollama whose API this is. Clients compare it with the one that they need.
const OLLAMA: &str = "0.12.11";

pub(crate) async fn version() -> Json<Value> {
    Json(json!({"version": OLLAMA, "forerun": env!("CARGO_PKG_VERSION")}))
}

/// All models.
pub(crate) async fn tags(
    extract::State(state): extract::State<Arc<State>>,
) -> Result<Json<Value>, OllamaError> {
    list(state, |entry, started| {
        let mut value = description(entry);
        value["modified_at"] = rfc3339(modified(entry).unwrap_or(started)).into();
        Some(value)
    })
    .await
}

/// The loaded models.
pub(crate) async fn ps(
    extract::State(state): extract::State<Arc<State>>,
) -> Result<Json<Value>, OllamaError> {
    list(state, |entry, _| {
        let context =
            entry.if_loaded(|model| model.generator.forerun().config().max_position_embeddings)?;
        let mut value = description(entry);
        value["context_length"] = context.into();
        value["size_vram"] = 0.into();
        value["expires_at"] = match entry.rest_of_life() {
            Some(rest) => rfc3339(SystemTime::now() + rest).into(),
            None => NEVER.into(),
        };
        Some(value)
    })
    .await
}

/// Lists models. `describe` may read files, and gets the time at which the server has started.
async fn list(
    state: Arc<State>,
    describe: fn(&Arc<Entry>, SystemTime) -> Option<Value>,
) -> Result<Json<Value>, OllamaError> {
    let models = prepare(move || {
        let entries = state.models.entries().iter();
        Ok(entries.filter_map(|entry| describe(entry, state.started)).collect::<Vec<_>>())
    });
    Ok(Json(json!({"models": models.await?})))
}

#[derive(Deserialize)]
struct ShowBody {
    model: Option<String>,
    /// The older name.
    name: Option<String>,
}

/// What is known of a model.
pub(crate) async fn show(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, OllamaError> {
    let ShowBody { model, name } = parse(&body_of(body)?)?;
    let name = model.or(name);
    let entry = state.models.find(state.ollama_name(name.as_deref()));
    let entry = Arc::clone(entry.map_err(ApiError::from)?);
    Ok(Json(prepare(move || Ok(shown(&entry, state.started))).await?))
}

fn shown(entry: &Arc<Entry>, started: SystemTime) -> Value {
    let facts = entry.facts();
    let template = entry.if_loaded(|model| model.template.text().to_owned());
    let own = || facts.and_then(|facts| facts.chat_template.as_ref().ok()?.clone());
    let template = template.or_else(own).unwrap_or_default();
    let embeds = facts.is_some_and(|facts| facts.config.pooling.is_some());
    let mut capabilities = if embeds { vec!["embedding"] } else { vec!["completion", "tools"] };
    let words = ["enable_thinking", "reasoning_effort", "<think>"];
    if !embeds && words.iter().any(|word| template.contains(word)) {
        capabilities.push("thinking");
    }
    let context = entry.context_length();
    let mut parameters = String::new();
    if let Some(context) = context {
        write!(parameters, "num_ctx {context}").ok();
    }
    let mut info = json!({});
    if let Some(ModelSummary { config, parameters, .. }) = facts {
        let family = config.family.model_type();
        info["general.architecture"] = family.into();
        info["general.parameter_count"] = (*parameters).into();
        for (name, number) in [
            ("context_length", config.max_position_embeddings),
            ("embedding_length", config.hidden_size),
            ("block_count", config.num_hidden_layers),
        ] {
            info[format!("{family}.{name}")] = number.into();
        }
    }
    json!({
        "modelfile": "",
        "parameters": parameters,
        "template": template,
        "details": details(facts),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": rfc3339(modified(entry).unwrap_or(started)),
    })
}

/// Returns when a model's checkpoint was written.
fn modified(entry: &Entry) -> Option<SystemTime> {
    entry.facts()?.path.metadata().ok()?.modified().ok()
}

fn description(entry: &Entry) -> Value {
    let facts = entry.facts();
    json!({
        "name": entry.name(),
        "model": entry.name(),
        "size": facts.map_or(0, |facts| facts.stored_bytes),
        "digest": digest(entry.name()),
        "details": details(facts),
    })
}

/// Returns what stands for a digest: that of the name. Clients show its beginning as an id.
fn digest(name: &str) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(name) {
        write!(text, "{byte:02x}").ok();
    }
    text
}

fn details(facts: Option<&ModelSummary>) -> Value {
    let family = facts.map(|facts| facts.config.family.model_type());
    let format = facts.map(|facts| match facts.format {
        ModelFormat::Gguf => "gguf",
        ModelFormat::Safetensors => "safetensors",
        ModelFormat::Llama2c => "llama2.c",
    });
    json!({
        "parent_model": "",
        "format": format.unwrap_or_default(),
        "family": family.unwrap_or_default(),
        "families": family.into_iter().collect::<Vec<_>>(),
        "parameter_size": facts.map(|facts| short_count(facts.parameters)).unwrap_or_default(),
        "quantization_level": facts.map(|facts| &*facts.types).unwrap_or_default(),
    })
}

/// Returns a number of parameters as ollama writes it, such as `134.5M`.
fn short_count(parameters: u64) -> String {
    let (unit, name) = match parameters {
        1_000_000_000.. => (1e9, "B"),
        1_000_000.. => (1e6, "M"),
        _ => (1e3, "K"),
    };
    format!("{:.1}{name}", parameters as f64 / unit)
}
