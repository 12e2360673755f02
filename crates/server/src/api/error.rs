//! Errors in the form of OpenAI's API.

use super::access_log::Refusal;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use forerun::ForerunError;
use forerun::text::{ChatTemplateError, EncodeError, GrammarError, TokenizerError};
use serde_json::{Value, json};

/// An error of a request.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    /// The field that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
    /// Whether the field has the name of the request's own API.
    is_renamed: bool,
}

impl ApiError {
    /// A field of the request is wrong.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    /// The request is wrong as a whole.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let message = shortened(message.into());
        Self { status, message, param: None, code: None, is_renamed: false }
    }

    pub(crate) fn with_param(self, param: &str) -> Self {
        Self { param: Some(param.to_owned()), ..self }
    }

    pub(crate) fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// Returns the error of a field that has the name of the request's own API.
    pub(crate) fn with_own_name(self) -> Self {
        Self { is_renamed: true, ..self }
    }

    /// Returns the error with another API's names of fields.
    pub(crate) fn renamed(mut self, names: &[(&str, &str)]) -> Self {
        if self.is_renamed {
            return self;
        }
        let param = self.param.as_deref().unwrap_or_default();
        // Only the first part of a path, such as `messages[0].content`, has another name.
        let first = param.split(['[', '.']).next().unwrap_or_default();
        if let Some((from, to)) = names.iter().find(|(from, _)| *from == first) {
            self.param = Some(param.replacen(from, to, 1));
            self.message = self.message.replace(from, to);
        }
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The model could not answer.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// Returns the body.
    pub(crate) fn body(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        let Self { message, param, code, .. } = self;
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    }
}

/// The longest message, in characters. Some quote what the client sent, which may have any length.
const LONGEST: usize = 2_000;

fn shortened(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(LONGEST) {
        message.truncate(end);
        message.push('…');
    }
    message
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.with_body(&self.body())
    }
}

impl ApiError {
    /// Returns the response with the body of any API.
    pub(crate) fn with_body(&self, body: &Value) -> Response {
        let mut response = (self.status, axum::Json(body)).into_response();
        response.extensions_mut().insert(Refusal(self.message.clone()));
        let later = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE];
        if later.contains(&self.status) {
            let wait = header::HeaderValue::from_static("1");
            response.headers_mut().insert(header::RETRY_AFTER, wait);
        }
        response
    }
}

/// An error of the engine before or during an answer. `param` is the field of the prompt.
pub(crate) fn of_engine(error: &ForerunError, param: &str) -> ApiError {
    match error {
        ForerunError::PromptTooLong { prompt: tokens, context, .. }
        | ForerunError::PromptFarTooLong { tokens, context, .. } => {
            let message = format!(
                "the prompt has {tokens} tokens, but the model has a context of {context}: shorten the prompt to at most {} \
                 tokens",
                context - 1
            );
            ApiError::field(param, message).with_code("context_length_exceeded")
        }
        ForerunError::TextTooLong { tokens, context, .. } => {
            let message = format!(
                "a text has {tokens} tokens, but the model's context has room for {context}: shorten or split it"
            );
            ApiError::field(param, message).with_code("context_length_exceeded")
        }
        ForerunError::NoEmbeddings { .. } => ApiError::field(
            "model",
            "this model generates text and gives no embeddings: name a model for embeddings",
        ),
        ForerunError::OnlyEmbeddings { .. } => ApiError::field(
            "model",
            "this model gives embeddings and generates no text: use /v1/embeddings, or name another model",
        ),
        ForerunError::EmptyPrompt | ForerunError::UnknownToken { .. } => {
            ApiError::field(param, plain(&error.to_string()))
        }
        ForerunError::Tokenizer(error) => ApiError::field(param, of_tokenizer(error)),
        ForerunError::Request(error) => {
            let message = plain(&error.to_string());
            // The message begins with the option in backticks.
            let name = message.split('\'').nth(1).unwrap_or(param).to_owned();
            ApiError::field(name, message)
        }
        ForerunError::Grammar(GrammarError::NoEnd) => {
            ApiError::field("ignore_eos", plain(&error.to_string()))
        }
        _ => ApiError::internal(plain(&without_paths(error.to_string()))),
    }
}

/// A model cannot be loaded.
pub(crate) fn of_loading(model: &str, reason: String) -> ApiError {
    let reason = plain(&without_paths(reason));
    ApiError::internal(format!("cannot load the model {model:?}: {reason}"))
}

/// An error of a conversation.
pub(crate) fn of_chat(error: &EncodeError) -> ApiError {
    let message = match error {
        EncodeError::Template(ChatTemplateError::Render { reason, .. }) => {
            format!("the model's chat template cannot render these messages: {reason}")
        }
        EncodeError::Tokenizer(error) => of_tokenizer(error),
        error => error.to_string(),
    };
    let wrong = ApiError::field("messages", plain(&message));
    match error {
        EncodeError::TooLong { .. } => wrong.with_code("context_length_exceeded"),
        _ => wrong,
    }
}

/// Returns the message of an error without the tokenizer's file.
fn of_tokenizer(error: &TokenizerError) -> String {
    match error {
        TokenizerError::Character { character, .. } => format!(
            "cannot encode {character:?}: the model has neither a token for it nor an unknown token, so leave it out"
        ),
        TokenizerError::Encode { reason, .. } => format!("cannot encode the text: {reason}"),
        error => without_paths(error.to_string()),
    }
}

/// Returns a message for clients, which learn nothing about the server's files. They are in the
/// log.
fn without_paths(message: String) -> String {
    if !message.contains(['/', '\\']) {
        return message;
    }
    tracing::error!(error = message, "a request failed");
    "the server could not answer, for a reason that its log tells".to_owned()
}

/// Returns a message in which options are quoted as JSON fields usually are.
fn plain(message: &str) -> String {
    message.replace('`', "'")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path that no message may show.
    const PATH: &str = "/srv/secret/model";

    #[test]
    fn errors_name_no_files_of_the_server() {
        let file = || PATH.into();
        let context = 64;
        let of_engine = [
            ForerunError::PromptTooLong { prompt: 99, context, model: PATH.into() },
            ForerunError::PromptFarTooLong { bytes: 9, tokens: 99, context, model: PATH.into() },
            ForerunError::TextTooLong { tokens: 99, context, model: PATH.into() },
            ForerunError::Tokenizer(TokenizerError::Character { file: file(), character: '\u{7}' }),
            ForerunError::Tokenizer(TokenizerError::Encode { file: file(), reason: "no".into() }),
            ForerunError::Tokenizer(TokenizerError::Missing(file())),
        ]
        .map(|error| of_engine(&error, "prompt"));
        let origin = || PATH.to_owned();
        let of_chat = [
            EncodeError::Template(ChatTemplateError::Render {
                origin: origin(),
                reason: "no".into(),
            }),
            EncodeError::Tokenizer(TokenizerError::Encode { file: file(), reason: "no".into() }),
        ]
        .map(|error| of_chat(&error));
        for error in of_engine.into_iter().chain(of_chat) {
            assert!(!error.message().contains("secret"), "{}", error.message());
            assert!(error.message().len() > 20, "{}", error.message());
        }
    }
}
