//! A line in the log, and an id, for each request.

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tracing::Instrument;

/// The header with the id of a request. A client or a proxy may choose it.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that a client may choose, in bytes.
const LONGEST_ID: usize = 128;

/// Why a request was refused: an extension of its response.
#[derive(Clone)]
pub(super) struct Refusal(pub(super) String);

/// Writes a line for the response of a request, and returns the request's id with it. Everything
/// that is logged meanwhile has the id, too. The line of a stream is written when it begins.
pub(super) async fn log_request(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = id_of(&request);
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let span = tracing::info_span!("request", id = id.to_str().unwrap_or_default());
    let mut response = next.run(request).instrument(span.clone()).await;
    let (status, milliseconds) = (response.status().as_u16(), started.elapsed().as_millis() as u64);
    let refusal = response.extensions_mut().remove::<Refusal>();
    let reason = refusal.as_ref().map(|refusal| refusal.0.as_str());
    span.in_scope(|| match path.as_str() {
        // Probes come every few seconds.
        "/health" | "/metrics" => tracing::debug!(%method, path, status, milliseconds, "response"),
        _ => tracing::info!(%method, path, status, milliseconds, reason, "response"),
    });
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

fn id_of(request: &Request) -> HeaderValue {
    let given = request.headers().get(REQUEST_ID);
    let usable = |id: &&HeaderValue| id.len() <= LONGEST_ID && id.to_str().is_ok();
    if let Some(id) = given.filter(usable) {
        return id.clone();
    }
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let id = format!("req-{:x}-{:x}", time.as_micros(), NEXT.fetch_add(1, Ordering::Relaxed));
    HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static("req"))
}
