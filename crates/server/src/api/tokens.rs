//! `/tokenize` and `/detokenize`.

use super::error::{ApiError, of_engine};
use super::state::State;
use super::{body_of, parse};
use axum::Json;
use axum::body::Bytes;
use axum::extract;
use axum::extract::rejection::BytesRejection;
use forerun::TokenId;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// The fields of vLLM (`prompt`) or of llama-server (`content`).
#[derive(Deserialize)]
struct Text {
    prompt: Option<String>,
    content: Option<String>,
}

pub(super) async fn tokenize(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
    let Text { prompt, content } = parse(&body_of(body)?)?;
    let text = prompt.or(content).ok_or_else(|| ApiError::field("prompt", "prompt is required"))?;
    let forerun = state.generator.forerun();
    let tokens = match &*text {
        "" => Vec::new(),
        text => forerun.encode_prompt(text).map_err(|error| of_engine(&error, "prompt"))?,
    };
    let context = forerun.config().max_position_embeddings;
    Ok(Json(json!({"count": tokens.len(), "max_model_len": context, "tokens": tokens})))
}

#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<TokenId>,
}

pub(super) async fn detokenize(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
    let Tokens { tokens } = parse(&body_of(body)?)?;
    let text = state.generator.forerun().tokenizer().decode(&tokens);
    Ok(Json(json!({"prompt": text, "content": text})))
}
