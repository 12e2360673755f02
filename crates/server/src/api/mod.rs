//! The HTTP interface.

mod access_log;
pub(crate) mod answers;
mod anthropic;
mod embeddings;
pub(crate) mod error;
pub(crate) mod fields;
mod infill;
mod ollama;
mod openai;
mod props;
pub(crate) mod state;
mod tokens;

use crate::models::Entry;
use crate::page;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, extract};
use error::ApiError;
use serde::Deserializer;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use state::{State, unix_seconds};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;
use tower::ServiceExt;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Returns the routes of a server.
pub(crate) fn router(state: Arc<State>) -> Router {
    let guarded = Router::new()
        .route("/v1/completions", post(openai::completions::completions))
        .route("/infill", post(infill::infill))
        .route("/v1/chat/completions", post(openai::chat::chat_completions))
        .route("/v1/responses", post(openai::responses::responses))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/v1/rerank", post(embeddings::rerank))
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::ps))
        .route("/api/show", post(ollama::show))
        .route("/api/embed", post(ollama::embed))
        .route("/api/embeddings", post(ollama::embeddings))
        .route("/props", get(props::props))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .layer(axum::middleware::from_fn_with_state(Arc::clone(&state), require_key))
        .layer(DefaultBodyLimit::max(state.options.max_body_bytes));
    let router = Router::new()
        .merge(guarded)
        .merge(page::router())
        .route("/health", get(async || Json(json!({"status": "ok"}))))
        .route("/api/version", get(ollama::version))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(openapi))
        .fallback(async |request: Request| {
            let (method, path) = (request.method(), request.uri().path());
            let instead = instead_of(path).map(|other| format!(": {other}"));
            let message = format!("there is no {method} {path}{}", instead.unwrap_or_default());
            of_path(path, ApiError::new(StatusCode::NOT_FOUND, message))
        })
        .method_not_allowed_fallback(async |request: Request| {
            let (method, path) = (request.method(), request.uri().path());
            let message = format!("{path} does not answer {method}");
            of_path(path, ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message))
        });
    let router = match cors(&state.options.cors_origins) {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router.layer(axum::middleware::from_fn(access_log::log_request)).with_state(state)
}

/// Returns what stands in place of a path of llama-server or ollama, or of one without `/v1`.
fn instead_of(path: &str) -> Option<&'static str> {
    Some(match path {
        "/completion" | "/completions" => "use POST /v1/completions",
        "/chat/completions" => "use POST /v1/chat/completions",
        "/responses" => "use POST /v1/responses",
        "/messages" => "use POST /v1/messages",
        "/v1" | "/v1/" => {
            "use POST /v1/chat/completions, /v1/responses, /v1/completions or /v1/messages, or GET \
             /v1/models"
        }
        "/models" => "use GET /v1/models",
        "/embedding" | "/embeddings" => "use POST /v1/embeddings",
        "/rerank" | "/reranking" => "use POST /v1/rerank",
        "/api/pull" | "/api/push" | "/api/create" | "/api/copy" | "/api/delete" => {
            "name the models when the server is started"
        }
        _ => return None,
    })
}

/// Returns an error in the form of the API that a path belongs to.
fn of_path(path: &str, error: ApiError) -> Response {
    match path.starts_with("/api/") {
        true => ollama::OllamaError::from(error).into_response(),
        false => error.into_response(),
    }
}

/// Returns routes that lead to `routes` as soon as they are there. Before, the model is still being
/// loaded, and only the page is served.
pub(crate) fn when_loaded(routes: Arc<OnceLock<Router>>) -> Router {
    let before = page::router().fallback(async |request: Request| {
        let error = ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the model is being loaded");
        of_path(request.uri().path(), error.with_code("loading"))
    });
    Router::new().fallback(move |request: Request| {
        let routes = routes.get().unwrap_or(&before).clone();
        async move { routes.oneshot(request).await.into_response() }
    })
}

/// Returns what allows web pages of these origins to use the server.
fn cors(origins: &[String]) -> Option<CorsLayer> {
    let origin = match origins {
        [] => return None,
        origins if origins.iter().any(|origin| origin == "*") => AllowOrigin::any(),
        origins => AllowOrigin::list(origins.iter().filter_map(|origin| origin.parse().ok())),
    };
    let cors = CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST])
        // Clients send headers of their own, such as x-stainless-lang and anthropic-version.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([access_log::REQUEST_ID, answers::LEFT_OUT, header::RETRY_AFTER]);
    Some(cors)
}

/// Returns the hash of a key.
pub(crate) fn key_hash(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// Refuses requests without one of the server's keys.
async fn require_key(
    extract::State(state): extract::State<Arc<State>>,
    request: Request,
    next: Next,
) -> Response {
    if state.keys.is_empty() {
        return next.run(request).await;
    }
    let hash = key_hash(key_of(&request).unwrap_or_default().trim());
    // Every byte is compared, so that the time says nothing about the keys.
    let differs = |known: &[u8; 32]| known.iter().zip(hash).fold(0, |sum, (a, b)| sum | (a ^ b));
    if state.keys.iter().fold(false, |found, known| found | (differs(known) == 0)) {
        return next.run(request).await;
    }
    let message = "this server requires an API key: send the header Authorization: Bearer KEY";
    let error = ApiError::new(StatusCode::UNAUTHORIZED, message).with_code("invalid_api_key");
    of_path(request.uri().path(), error)
}

/// The body of a request: a JSON object within the limits, whose integers are kept as they are.
pub(crate) fn body_of(body: Result<Bytes, BytesRejection>) -> Result<Bytes, ApiError> {
    let body =
        body.map_err(|rejection| ApiError::new(rejection.status(), rejection.body_text()))?;
    if let Some(number) = forerun::text::large_integer(&body) {
        return Err(bad_request(forerun::text::integer_too_large(number)));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(&body);
    let object = deserializer.deserialize_map(AnyObject).and_then(|()| deserializer.end());
    match object {
        Ok(()) => Ok(body),
        Err(error) => {
            let near = match excerpt(&body, &error) {
                text if text.is_empty() => text,
                text => format!(", near: {text}"),
            };
            Err(bad_request(format!("the body is not a valid JSON object: {error}{near}")))
        }
    }
}

/// The most bytes that an excerpt has before and after a place.
const EXCERPT: usize = 30;

/// Returns what stands around the place of an error, on its line.
fn excerpt(body: &[u8], error: &serde_json::Error) -> String {
    let mut lines = body.split(|byte| *byte == b'\n');
    let line = lines.nth(error.line().saturating_sub(1)).unwrap_or_default();
    let place = error.column().saturating_sub(1).min(line.len());
    let around = place.saturating_sub(EXCERPT)..line.len().min(place + EXCERPT);
    // A character may be cut at both ends.
    String::from_utf8_lossy(&line[around]).trim_matches('\u{fffd}').trim().to_owned()
}

/// Reads a JSON object, and keeps nothing of it.
struct AnyObject;

impl<'de> Visitor<'de> for AnyObject {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

/// Parses some fields of a request. Errors name the field.
pub(crate) fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, ApiError> {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
        let (path, inner) = (error.path().to_string(), in_terms_of_json(error.inner()));
        match &*path {
            "." => bad_request(format!("the body is not a valid request: {inner}")),
            path => ApiError::field(path, format!("{path}: {inner}")),
        }
    })
}

/// Returns the message of an error that names types as JSON does, and not as Rust does.
fn in_terms_of_json(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let Some((found, expected)) = message.rsplit_once(", expected ") else { return message };
    let place = expected.rfind(" at line ").unwrap_or(expected.len());
    let (expected, place) = expected.split_at(place);
    let expected = match expected {
        "f32" | "f64" => "a number",
        "i32" | "i64" => "a whole number",
        "u32" | "u64" | "usize" => "a whole number, not below 0",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") || other.contains("tagged enum ") => "an object",
        other => other,
    };
    format!("{found}, expected {expected}{place}")
}

fn bad_request(message: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, message)
}

/// Returns the key of a request. Anthropic's clients send it in a header of their own.
fn key_of(request: &Request) -> Option<&str> {
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    let bearer = header("authorization").and_then(|text| text.strip_prefix("Bearer "));
    bearer.or_else(|| header("x-api-key"))
}

/// Describes a model, or its adapter with this name. It may read files.
fn description(entry: &Entry, name: &str, started: SystemTime) -> Value {
    let is_adapter = name != entry.name();
    let aliases = if is_adapter { &[][..] } else { &entry.options().aliases[..] };
    json!({
        "id": name,
        "object": "model",
        "created": unix_seconds(started),
        "owned_by": "forerun",
        "max_model_len": entry.context_length(),
        "aliases": aliases,
        "parent": is_adapter.then(|| entry.name()),
    })
}

async fn models(
    extract::State(state): extract::State<Arc<State>>,
) -> Result<Json<Value>, ApiError> {
    let list = answers::prepare(move || {
        let entries = state.models.entries().iter();
        let of_entry = |entry: &Arc<Entry>| {
            let names = entry.names();
            names.map(|name| description(entry, name, state.started)).collect::<Vec<_>>()
        };
        Ok(entries.flat_map(of_entry).collect::<Vec<_>>())
    });
    Ok(Json(json!({"object": "list", "data": list.await?})))
}

async fn model(
    extract::State(state): extract::State<Arc<State>>,
    extract::Path(id): extract::Path<String>,
) -> Result<Json<Value>, ApiError> {
    let entry = Arc::clone(state.models.named(&id)?);
    let described = answers::prepare(move || {
        let name = entry.names().find(|name| *name == id).unwrap_or(entry.name());
        Ok(description(&entry, name, state.started))
    });
    Ok(Json(described.await?))
}

/// The description of the API in the form of OpenAPI 3.1.
async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("openapi.json")).into_response()
}

async fn metrics(extract::State(state): extract::State<Arc<State>>) -> Response {
    let text = state.models.render_metrics();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::openai::body::BodyFields;
    use super::openai::sampling::SamplingFields;
    use super::*;

    #[test]
    fn errors_of_fields_name_types_of_json() {
        let sampling = |text: &'static str| parse::<SamplingFields>(&Bytes::from(text)).map(drop);
        let body = |text: &'static str| parse::<BodyFields>(&Bytes::from(text)).map(drop);
        for (parsed, expected) in [
            (
                sampling("{\"temperature\": \"warm\"}"),
                "string \"warm\", expected a number at line 1",
            ),
            (sampling("{\"top_k\": 1.5}"), "`1.5`, expected a whole number at line 1"),
            (
                sampling("{\"stop_token_ids\": [-1]}"),
                "expected a whole number, not below 0 at line",
            ),
            (sampling("{\"logit_bias\": [1]}"), "expected an object at line"),
            (sampling("{\"seed\": \"a\"}"), "expected a 64-bit integer, or -1 for a random seed"),
            (body("{\"n\": \"two\"}"), "n: invalid type: string \"two\", expected a whole number"),
            (body("{\"stream\": 1}"), "expected true or false"),
            (body("{\"messages\": 5}"), "expected a list"),
            (
                body("{\"messages\": [5]}"),
                "messages[0]: invalid type: integer `5`, expected an object",
            ),
        ] {
            let error = parsed.expect_err(expected);
            assert!(error.message().contains(expected), "{expected}: {}", error.message());
        }
    }
}
