//! What all requests share.

use crate::admission::Admission;
use crate::generation::Generator;
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use forerun::ChatTemplate;
use forerun::text::ChatSyntax;
use std::sync::Arc;
use std::time::SystemTime;

/// The state of a server.
pub(crate) struct State {
    pub(crate) options: ServerOptions,
    pub(crate) generator: Arc<Generator>,
    pub(crate) template: ChatTemplate,
    /// How the model writes reasoning and tool calls.
    pub(crate) syntax: ChatSyntax,
    pub(crate) admission: Admission,
    pub(crate) metrics: Arc<Metrics>,
    /// The hashes of the keys that requests may have.
    pub(crate) keys: Vec<[u8; 32]>,
    /// When the server started.
    pub(crate) started: SystemTime,
}

/// Returns the seconds since 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
