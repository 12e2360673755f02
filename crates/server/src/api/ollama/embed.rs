//! `/api/embed`, and `/api/embeddings` before it.

use super::OllamaError;
use crate::api::embeddings::{Embedded, Input, Texts, check_dimensions};
use crate::api::error::ApiError;
use crate::api::state::State;
use crate::api::{body_of, parse};
use crate::models::KeepAlive;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::{Json, extract};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EmbedBody {
    model: Option<String>,
    input: Option<Input>,
    /// The text of the older path.
    prompt: Option<String>,
    truncate: Option<bool>,
    dimensions: Option<usize>,
    keep_alive: Option<KeepAlive>,
    /// They change no embedding.
    #[serde(rename = "options")]
    _options: Option<IgnoredAny>,
}

pub(crate) async fn embed(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, OllamaError> {
    let started = Instant::now();
    let mut body: EmbedBody = parse(&body_of(body)?)?;
    let fields = [("input", body.input.take()), ("prompt", body.prompt.take().map(Input::Text))];
    let (name, Embedded { embeddings, tokens }) = compute(&state, body, fields).await?;
    let nanoseconds = started.elapsed().as_nanos() as u64;
    Ok(Json(json!({
        "model": name, "embeddings": embeddings, "total_duration": nanoseconds, "load_duration": 0,
        "prompt_eval_count": tokens,
    })))
}

pub(crate) async fn embeddings(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, OllamaError> {
    let mut body: EmbedBody = parse(&body_of(body)?)?;
    let fields = [("prompt", body.prompt.take().map(Input::Text)), ("input", body.input.take())];
    let (_, mut embedded) = compute(&state, body, fields).await?;
    Ok(Json(json!({"embedding": embedded.embeddings.pop()})))
}

/// Embeds the text in a path's field. The other field belongs to the other path.
async fn compute(
    state: &State,
    body: EmbedBody,
    [(param, input), (other, unused)]: [(&'static str, Option<Input>); 2],
) -> Result<(String, Embedded), ApiError> {
    if unused.is_some() {
        return Err(ApiError::field(
            other,
            format!("here, the text is in {param}, not in {other}"),
        ));
    }
    let input = input.ok_or_else(|| ApiError::field(param, format!("{param} is required")))?;
    let model = state.lend(state.ollama_name(body.model.as_deref())).await?;
    if let Some(keep_alive) = body.keep_alive {
        model.keep(keep_alive);
    }
    check_dimensions(body.dimensions, model.generator.forerun().config().hidden_size)?;
    let truncates = body.truncate.unwrap_or(true);
    let texts = Texts { truncates, dimensions: body.dimensions, ..input.into() };
    Ok((model.name.clone(), texts.embed(state, model, param).await?))
}
