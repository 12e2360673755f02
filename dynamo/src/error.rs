//! Errors in Dynamo's terms.

use dynamo_backend_common::{BackendError, DynamoError, ErrorType};
use forerun::ForerunError;

fn error(kind: BackendError, message: impl Into<String>) -> DynamoError {
    DynamoError::builder().error_type(ErrorType::Backend(kind)).message(message.into()).build()
}

/// The request is wrong, or asks for something that the worker does not do. No other worker would
/// do it.
pub(crate) fn invalid(message: impl Into<String>) -> DynamoError {
    let message = message.into().replace('`', "'");
    DynamoError::builder()
        .error_type(ErrorType::Backend(BackendError::InvalidArgument))
        .message(message.clone())
        // Clients see it.
        .public_message(message)
        .build()
}

/// The worker shuts down. Another one can continue.
pub(crate) fn shut_down() -> DynamoError {
    error(BackendError::EngineShutdown, "the worker shuts down")
}

/// The worker cannot start.
pub(crate) fn cannot_start(message: impl Into<String>) -> DynamoError {
    error(BackendError::Unknown, message)
}

/// Returns the error of an answer.
pub(crate) fn of_engine(error: &ForerunError) -> DynamoError {
    match error {
        ForerunError::EmptyPrompt
        | ForerunError::PromptTooLong { .. }
        | ForerunError::PromptFarTooLong { .. }
        | ForerunError::Request(_)
        | ForerunError::Grammar(_) => invalid(error.to_string()),
        // The engine failed. Another worker can continue.
        _ => self::error(BackendError::EngineShutdown, error.to_string()),
    }
}
