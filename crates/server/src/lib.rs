//! An HTTP server on [`forerun`], with OpenAI's API and Anthropic's Messages API.
//!
//! Each answer is a stream of the engine on a thread of its own. The engine's workers compute
//! everything that is queued for them in one pass, and a row's numbers do not depend on the other
//! rows of a pass. So answers share passes, and their texts do not depend on one another. `/` is a
//! page to try the server and to watch it.
//!
//! [`Generator`], [`Admission`] and [`Metrics`] are the parts without HTTP, for servers with
//! another transport.

mod admission;
mod api;
mod cache_room;
mod generation;
mod metrics;
mod options;
mod page;

pub use admission::{Admission, Admitted, Place, QueueFull};
pub use generation::{Events, Generator, Speculation, SpeculationError, Task};
pub use metrics::Metrics;

pub use forerun::text::{ChatSyntax, UnknownSyntax};
pub use options::ServerOptions;

use api::state::State;
use axum::Router;
use forerun::{ChatTemplate, Forerun};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Why a server cannot start or stopped.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        cause: std::io::Error,
    },
    /// The system does not give the server what it needs.
    #[error("the server cannot run: {0}")]
    Run(std::io::Error),
}

/// A server that listens. Until its model is loaded, it serves the page and answers other requests
/// with 503.
pub struct Server {
    address: SocketAddr,
    options: ServerOptions,
    runtime: tokio::runtime::Runtime,
    /// The routes, once the model is loaded.
    routes: Arc<OnceLock<Router>>,
    /// Whether the server stops.
    stopping: watch::Sender<bool>,
    connections: JoinHandle<std::io::Result<()>>,
}

impl Server {
    /// Starts to listen. A port that is in use is reported before a model is loaded.
    ///
    /// # Errors
    /// If the address is in use, or may not be used.
    pub fn bind(options: ServerOptions) -> Result<Self, ServerError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            // One thread for each answer, and some for encoding prompts.
            .max_blocking_threads(options.parallel + 4)
            .thread_name("forerun-http")
            .enable_all()
            .build()
            .map_err(ServerError::Run)?;
        let address = options.address;
        let listener = runtime.block_on(TcpListener::bind(address));
        let listener = listener.map_err(|cause| ServerError::Listen { address, cause })?;
        let address = listener.local_addr().map_err(ServerError::Run)?;
        let (stopping, stopped) = watch::channel(false);
        let routes = Arc::new(OnceLock::new());
        let service = api::when_loaded(Arc::clone(&routes));
        let serve = axum::serve(listener, service).with_graceful_shutdown(until_stopped(stopped));
        let connections = runtime.spawn(serve.into_future());
        Ok(Self { address, options, runtime, routes, stopping, connections })
    }

    /// Returns the address, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until `stop` returns. It is called on a thread of its own when the server
    /// has its model. When it has returned, no connection is accepted, and answers may finish for
    /// [`ServerOptions::drain`] before they are cancelled.
    ///
    /// # Errors
    /// If the system fails.
    pub fn run(
        self,
        forerun: Forerun,
        template: ChatTemplate,
        stop: impl FnOnce() + Send + 'static,
    ) -> Result<(), ServerError> {
        let Self { options, runtime, routes, stopping, mut connections, .. } = self;
        let metrics = Arc::new(Metrics::default());
        let syntax = options.chat_syntax.unwrap_or_else(|| ChatSyntax::of_template(&template));
        let generator = Arc::new(Generator::new(forerun, Arc::clone(&metrics)));
        let state = State {
            generator: Arc::clone(&generator),
            template,
            syntax,
            admission: Admission::new(options.parallel, options.queue, Arc::clone(&metrics)),
            metrics,
            keys: options.api_keys.iter().map(|key| api::key_hash(key)).collect(),
            started: SystemTime::now(),
            options,
        };
        let drain = state.options.drain;
        routes.get_or_init(|| api::router(Arc::new(state)));
        let stopped = stopping.subscribe();
        std::thread::spawn(move || {
            stop();
            stopping.send_replace(true);
        });
        let ended = runtime.block_on(async {
            let cancel = async {
                until_stopped(stopped).await;
                tokio::time::sleep(drain).await;
                generator.cancel_all();
                // Cancelled answers end at once. Connections that stay open do not hold up the end.
                tokio::time::sleep(Duration::from_secs(1)).await;
            };
            tokio::select! {
                ended = &mut connections => ended.map_err(std::io::Error::other).flatten(),
                () = cancel => Ok(()),
            }
        });
        generator.cancel_all();
        runtime.shutdown_timeout(Duration::from_secs(5));
        ended.map_err(ServerError::Run)
    }
}

/// Waits until the server is told to stop.
async fn until_stopped(mut stopped: watch::Receiver<bool>) {
    // A closed channel means that nobody can stop the server any more.
    if stopped.wait_for(|stopped| *stopped).await.is_err() {
        std::future::pending::<()>().await;
    }
}
