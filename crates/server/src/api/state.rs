//! What all requests share.

use super::answers::timed_out;
use super::error::{ApiError, of_loading};
use crate::admission::Admission;
use crate::models::{Lease, LendError, Models, Patience};
use crate::options::ServerOptions;
use axum::http::StatusCode;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::time::Instant;

/// The state of a server.
pub(crate) struct State {
    pub(crate) options: ServerOptions,
    pub(crate) models: Arc<Models>,
    pub(crate) admission: Admission,
    /// The hashes of the keys that requests may have.
    pub(crate) keys: Vec<[u8; 32]>,
    /// When the server started.
    pub(crate) started: SystemTime,
}

impl State {
    /// Lends the model that a request names, and loads it if necessary.
    ///
    /// # Errors
    /// If there is no such model, it cannot be loaded, or the queue is full.
    pub(crate) async fn lend(&self, name: Option<&str>) -> Result<Arc<Lease>, ApiError> {
        // Editors send an empty name where none is set.
        let name = name.filter(|name| !name.is_empty());
        let deadline = Instant::now() + self.options.request_timeout;
        let patience = Patience { deadline, queue: self.options.queue };
        self.models.lend(name, patience).await.map_err(ApiError::from)
    }
}

impl From<LendError> for ApiError {
    fn from(error: LendError) -> Self {
        let with = |status| Self::new(status, error.to_string());
        match &error {
            LendError::Unknown { .. } => {
                with(StatusCode::NOT_FOUND).with_param("model").with_code("model_not_found")
            }
            LendError::Unnamed(_) => with(StatusCode::BAD_REQUEST).with_param("model"),
            LendError::QueueFull(_) => with(StatusCode::TOO_MANY_REQUESTS),
            LendError::TimedOut => timed_out(),
            LendError::Load { name, cause } => of_loading(name, cause.to_string()),
        }
    }
}

/// Returns the seconds since 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
