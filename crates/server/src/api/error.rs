//! Errors in the form of OpenAI's API.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use forerun::{EncodeError, ForerunError, GrammarError};
use serde_json::{Value, json};

/// An error of a request.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    /// The field that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
}

impl ApiError {
    /// A field of the request is wrong.
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = Some(param.into());
        Self { status: StatusCode::BAD_REQUEST, message: message.into(), param, code: None }
    }

    /// The request is wrong as a whole.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None }
    }

    pub(crate) fn with_param(self, param: &str) -> Self {
        Self { param: Some(param.to_owned()), ..self }
    }

    pub(crate) fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// Returns the error with another API's names of fields.
    pub(crate) fn renamed(mut self, names: &[(&str, &str)]) -> Self {
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

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
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
    let message = plain(&error.to_string());
    match error {
        ForerunError::PromptTooLong { .. } | ForerunError::PromptFarTooLong { .. } => {
            ApiError::field(param, message).with_code("context_length_exceeded")
        }
        ForerunError::EmptyPrompt | ForerunError::Tokenizer(_) => ApiError::field(param, message),
        ForerunError::Request(error) => {
            // The message begins with the option in backticks.
            let name = message.split('\'').nth(1).unwrap_or(param).to_owned();
            ApiError::field(name, plain(&error.to_string()))
        }
        ForerunError::Grammar(GrammarError::NoEnd) => ApiError::field("ignore_eos", message),
        _ => ApiError::internal(message),
    }
}

/// An error of a conversation.
pub(crate) fn of_chat(error: &EncodeError) -> ApiError {
    let wrong = ApiError::field("messages", plain(&error.to_string()));
    match error {
        EncodeError::TooLong { .. } => wrong.with_code("context_length_exceeded"),
        _ => wrong,
    }
}

/// Returns a message in which options are quoted as JSON fields usually are.
fn plain(message: &str) -> String {
    message.replace('`', "'")
}
