//! ollama's API: `/api/chat`, `/api/generate`, and what it says of models.

mod embed;
mod listing;
mod request;
mod time;
mod writer;

pub(crate) use embed::{embed, embeddings};
pub(crate) use listing::{ps, show, tags, version};

use super::answers::{Answers, prepare, stream_lines};
use super::body_of;
use super::error::ApiError;
use super::fields::Api;
use super::state::State;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse, Response};
use axum::{Json, extract};
use request::{FIELDS, OllamaBody};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use writer::AnswerWriter;

/// An error in the form of ollama's API.
pub(crate) struct OllamaError(ApiError);

impl From<ApiError> for OllamaError {
    fn from(error: ApiError) -> Self {
        Self(error.renamed(&FIELDS))
    }
}

impl OllamaError {
    fn body(&self) -> Value {
        json!({"error": self.0.message()})
    }
}

impl IntoResponse for OllamaError {
    fn into_response(self) -> Response {
        self.0.with_body(&self.body())
    }
}

pub(crate) async fn chat(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, OllamaError> {
    answer(Api::OllamaChat, &state, body_of(body)?).await
}

pub(crate) async fn generate(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, OllamaError> {
    answer(Api::OllamaGenerate, &state, body_of(body)?).await
}

/// Answers a request, or loads or unloads the model of one without a prompt.
async fn answer(api: Api, state: &State, bytes: Bytes) -> Result<Response, OllamaError> {
    let body = prepare(move || OllamaBody::parse(api, &bytes)).await?;
    let model = state.ollama_name(body.model());
    let keep_alive = body.keep_alive();
    if body.is_empty() && keep_alive.is_some_and(|kept| kept.duration() == Some(Duration::ZERO)) {
        return unload(api, state, model).await;
    }
    let model = state.lend(model).await?;
    if let Some(keep_alive) = keep_alive {
        model.keep(keep_alive);
    }
    if body.is_empty() {
        return Ok(Json(writer::without_answer(api, &model.name, "load")).into_response());
    }
    let (streams, shared) = (body.streams(), Arc::clone(&model));
    let prepared = prepare(move || body.prepare(&shared)).await?;
    let answers = Answers::start(state, &model, prepared).await?;
    let left_out = answers.left_out.clone();
    let mut writer = AnswerWriter::new(api, model);
    if streams {
        return Ok((left_out, stream_lines(answers, writer)).into_response());
    }
    let collected = answers.collect().await?;
    Ok((left_out, Json(writer.whole(collected))).into_response())
}

async fn unload(api: Api, state: &State, model: Option<&str>) -> Result<Response, OllamaError> {
    let entry = state.models.find(model).map_err(ApiError::from)?;
    if !state.models.unload(entry).await {
        let message = "keep_alive is 0, but the only model of this server stays loaded";
        return Err(ApiError::field("keep_alive", message).into());
    }
    Ok(Json(writer::without_answer(api, entry.name(), "unload")).into_response())
}

impl State {
    /// Returns a model's name without ollama's tag `latest`, unless a model has it in its name.
    fn ollama_name<'a>(&self, name: Option<&'a str>) -> Option<&'a str> {
        let name = name?;
        let short = name.strip_suffix(":latest").unwrap_or(name);
        Some(if self.models.named(name).is_ok() { name } else { short })
    }
}
