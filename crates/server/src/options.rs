//! The options of a server.

use std::net::SocketAddr;
use std::time::Duration;

/// How a server listens, and what it accepts.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address to listen on. Port 0 chooses a free one.
    pub address: SocketAddr,
    /// The number of answers that are generated at the same time, at least 1.
    pub parallel: usize,
    /// The number of requests that wait for their first place. Further ones are refused with 429.
    pub queue: usize,
    /// The longest body of a request, in bytes.
    pub max_body_bytes: usize,
    /// The longest time of one request, with waiting.
    pub request_timeout: Duration,
    /// How long a server that shuts down lets answers finish.
    pub drain: Duration,
    /// The keys that requests may have. Without any, every request is accepted.
    pub api_keys: Vec<String>,
    /// The origins whose web pages may use the server; `*` for all of them.
    pub cors_origins: Vec<String>,
}

impl ServerOptions {
    /// The options for this machine: up to 8 answers at a time, and 64 in the queue.
    #[must_use]
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            parallel: 8,
            queue: 64,
            max_body_bytes: 8 << 20,
            request_timeout: Duration::from_secs(600),
            drain: Duration::from_secs(30),
            api_keys: Vec::new(),
            cors_origins: Vec::new(),
        }
    }
}
