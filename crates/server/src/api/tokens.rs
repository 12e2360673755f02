//! `/tokenize` and `/detokenize`.

use super::answers::prepare;
use super::error::{ApiError, of_engine};
use super::fields::Api;
use super::openai::body::Body;
use super::state::State;
use super::{body_of, parse};
use crate::models::Model;
use axum::Json;
use axum::body::Bytes;
use axum::extract;
use axum::extract::rejection::BytesRejection;
use forerun::TokenId;
use forerun::text::{SpecialTokens, Tokenizer};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use std::sync::Arc;

/// What to convert to tokens, in the fields of vLLM (`prompt`, `messages`) or of llama-server
/// (`content`).
#[derive(Deserialize)]
struct TokenizeBody {
    model: Option<String>,
    prompt: Option<String>,
    content: Option<String>,
    /// With the other fields of chat completions.
    messages: Option<IgnoredAny>,
    /// vLLM's name for `add_special`.
    add_special_tokens: Option<bool>,
    add_special: Option<bool>,
    parse_special: Option<bool>,
    /// llama-server's way to return the texts of tokens.
    with_pieces: Option<bool>,
    /// vLLM's way to return the texts of tokens.
    return_token_strs: Option<bool>,
}

impl TokenizeBody {
    /// Returns whether to add special tokens, if the request says so.
    fn adds_special(&self) -> Result<Option<bool>, ApiError> {
        match (self.add_special_tokens, self.add_special) {
            (Some(one), Some(other)) if one != other => {
                let message = "add_special and add_special_tokens mean the same, but differ";
                Err(ApiError::field("add_special", message))
            }
            (one, other) => Ok(one.or(other)),
        }
    }

    fn tokens(&self, bytes: &Bytes, model: &Model) -> Result<Vec<TokenId>, ApiError> {
        let (add, parse) = (self.adds_special()?, self.parse_special.unwrap_or(true));
        // As vLLM and llama-server have it, each for its own field.
        let (param, text, adds_by_default) = match (&self.prompt, &self.content, &self.messages) {
            (Some(prompt), None, None) => ("prompt", prompt, true),
            (None, Some(content), None) => ("content", content, false),
            (None, None, Some(_)) if add == Some(true) || !parse => {
                let message = "add_special must be false, and parse_special true, for messages: the chat \
                               template writes their special tokens";
                return Err(ApiError::field("messages", message));
            }
            (None, None, Some(_)) => {
                let mut prompts = Body::parse(Api::Chat, bytes)?.chat(model)?.prompts;
                return Ok(prompts.swap_remove(0));
            }
            (None, None, None) => {
                let message = "prompt is required, or content, or messages";
                return Err(ApiError::field("prompt", message));
            }
            _ => {
                let message = "only one of prompt, content and messages is possible";
                return Err(ApiError::field("prompt", message));
            }
        };
        let special = SpecialTokens { add: add.unwrap_or(adds_by_default), parse };
        let tokens = model.generator.forerun().encode_text(text, special);
        tokens.map_err(|error| of_engine(&error, param))
    }
}

pub(super) async fn tokenize(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
    let bytes = body_of(body)?;
    let body: TokenizeBody = parse(&bytes)?;
    let model = state.lend(body.model.as_deref()).await?;
    let response = prepare(move || {
        let tokens = body.tokens(&bytes, &model)?;
        let forerun = model.generator.forerun();
        let tokenizer = forerun.tokenizer();
        let context = forerun.config().max_position_embeddings;
        let mut response =
            json!({"count": tokens.len(), "max_model_len": context, "tokens": tokens});
        if body.with_pieces == Some(true) {
            response["tokens"] = tokens.iter().map(|token| piece(*token, tokenizer)).collect();
        }
        if body.return_token_strs == Some(true) {
            let texts = tokens.iter().map(|token| tokenizer.vocabulary_text(*token));
            response["token_strs"] = texts.collect();
        }
        Ok(Json(response))
    });
    response.await
}

/// Returns a token with its text, or with its bytes if it is a part of a character.
fn piece(token: TokenId, tokenizer: &Tokenizer) -> Value {
    let piece = match String::from_utf8(tokenizer.bytes_with_special(token)) {
        Ok(text) => Value::from(text),
        Err(error) => Value::from(error.into_bytes()),
    };
    json!({"id": token, "piece": piece})
}

#[derive(Deserialize)]
struct DetokenizeBody {
    model: Option<String>,
    tokens: Vec<TokenId>,
}

pub(super) async fn detokenize(
    extract::State(state): extract::State<Arc<State>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
    let DetokenizeBody { model, tokens } = parse(&body_of(body)?)?;
    let model = state.lend(model.as_deref()).await?;
    let forerun = model.generator.forerun();
    let (tokenizer, vocab_size) = (forerun.tokenizer(), forerun.config().vocab_size);
    let is_unknown = |token: &TokenId| {
        *token as usize >= vocab_size && tokenizer.vocabulary_text(*token).is_none()
    };
    if let Some(token) = tokens.iter().find(|token| is_unknown(token)) {
        let message = format!("{token} is no token of the model, which has {vocab_size} tokens");
        return Err(ApiError::field("tokens", message));
    }
    let text = tokenizer.decode_with_special(&tokens);
    Ok(Json(json!({"prompt": text, "content": text})))
}
