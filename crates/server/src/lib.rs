//! An HTTP server on [`forerun`], with OpenAI's API, Anthropic's Messages API and ollama's API.
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
mod models;
mod options;
mod page;

pub use admission::{Admission, Admitted, Place, QueueFull};
pub use generation::{Events, Generator, LineLimits, Speculation, SpeculationError, Task};
pub use metrics::Metrics;
pub use models::{KeepAlive, LoadFailure, ModelOptions, Models, ModelsError, UnknownKeepAlive};

pub use forerun::text::{ChatSyntax, UnknownSyntax};
pub use options::ServerOptions;

use api::state::State;
use axum::Router;
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
    #[error("cannot listen on {address}: {cause}{}", advice(cause))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        cause: std::io::Error,
    },
    /// A model that is loaded before the first request cannot be.
    #[error("cannot load the model {name:?}: {cause}")]
    Load {
        /// The model's name.
        name: String,
        /// The reason.
        cause: LoadFailure,
    },
    /// The system does not give the server what it needs.
    #[error("the server cannot run: {0}")]
    Run(std::io::Error),
}

fn advice(cause: &std::io::Error) -> &'static str {
    match cause.kind() {
        std::io::ErrorKind::AddrInUse => ": choose another `port`, or 0 for a free one",
        _ => "",
    }
}

/// A server that listens. Until it has its models, it serves the page and answers other requests
/// with 503.
pub struct Server {
    address: SocketAddr,
    options: ServerOptions,
    runtime: tokio::runtime::Runtime,
    /// The routes, once the server has its models.
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
            // One thread for each answer, and some for encoding prompts and loading models.
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

    /// Loads the models that are wanted before the first request.
    ///
    /// # Errors
    /// Names the first model that cannot be loaded.
    pub fn preload(&self, models: &Arc<Models>) -> Result<(), ServerError> {
        self.runtime
            .block_on(models.preload())
            .map_err(|(name, cause)| ServerError::Load { name, cause })
    }

    /// Answers requests until `stop` returns. It is called on a thread of its own when the server
    /// has its models. When it has returned, no connection is accepted, and answers may finish for
    /// [`ServerOptions::drain`] before they are cancelled.
    ///
    /// # Errors
    /// If the system fails.
    pub fn run(
        self,
        models: &Arc<Models>,
        stop: impl FnOnce() + Send + 'static,
    ) -> Result<(), ServerError> {
        let Self { options, runtime, routes, stopping, mut connections, .. } = self;
        let state = State {
            models: Arc::clone(models),
            admission: Admission::new(options.parallel, options.queue),
            keys: options.api_keys.iter().map(|key| api::key_hash(key)).collect(),
            started: SystemTime::now(),
            options,
        };
        let drain = state.options.drain;
        routes.get_or_init(|| api::router(Arc::new(state)));
        runtime.spawn(Arc::clone(models).unload_unused());
        let stopped = stopping.subscribe();
        std::thread::spawn(move || {
            stop();
            stopping.send_replace(true);
        });
        let ended = runtime.block_on(async {
            let cancel = async {
                until_stopped(stopped).await;
                tokio::time::sleep(drain).await;
                models.cancel_all();
                // Cancelled answers end at once. Connections that stay open do not hold up the end.
                tokio::time::sleep(Duration::from_secs(1)).await;
            };
            tokio::select! {
                ended = &mut connections => ended.map_err(std::io::Error::other).flatten(),
                () = cancel => Ok(()),
            }
        });
        models.cancel_all();
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
