//! An HTTP server on [`forerun`], with OpenAI's API.
//!
//! Each answer is a stream of the engine on a thread of its own. The engine's workers compute everything that
//! is queued for them in one pass, and a row's numbers do not depend on the other rows of a pass. So answers
//! share passes, and their texts do not depend on one another.

mod admission;
mod api;
mod generation;
mod metrics;
mod options;

pub use options::ServerOptions;

use admission::Admission;
use api::state::State;
use forerun::{ChatTemplate, Forerun};
use generation::Generator;
use metrics::Metrics;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::net::TcpListener;

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

/// A server that listens, and does not answer yet.
pub struct Server {
    listener: TcpListener,
    state: Arc<State>,
    runtime: tokio::runtime::Runtime,
}

impl Server {
    /// Starts to listen.
    ///
    /// # Errors
    /// If the address is in use, or may not be used.
    pub fn bind(
        forerun: Forerun,
        template: ChatTemplate,
        options: ServerOptions,
    ) -> Result<Self, ServerError> {
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
        let metrics = Arc::new(Metrics::default());
        let state = State {
            generator: Arc::new(Generator::new(forerun, template, Arc::clone(&metrics))),
            admission: Admission::new(options.parallel, options.queue, Arc::clone(&metrics)),
            metrics,
            keys: options.api_keys.iter().map(|key| api::key_hash(key)).collect(),
            started: SystemTime::now(),
            options,
        };
        Ok(Self { listener, state: Arc::new(state), runtime })
    }

    /// Returns the address, with the port that was chosen.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn address(&self) -> Result<SocketAddr, ServerError> {
        self.listener.local_addr().map_err(ServerError::Run)
    }

    /// Answers requests until `stop` returns, on a thread of its own. Then no connection is accepted, and
    /// answers may finish for [`ServerOptions::drain`] before they are cancelled.
    ///
    /// # Errors
    /// If the system fails.
    pub fn run(self, stop: impl FnOnce() + Send + 'static) -> Result<(), ServerError> {
        let Self { listener, state, runtime } = self;
        let (drain, generator) = (state.options.drain, Arc::clone(&state.generator));
        let (stopping, stopped) = tokio::sync::watch::channel(false);
        std::thread::spawn(move || {
            stop();
            stopping.send_replace(true);
        });
        let wait = |mut stopped: tokio::sync::watch::Receiver<bool>| async move {
            // A closed channel means that nobody can stop the server any more.
            if stopped.wait_for(|stopped| *stopped).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let graceful = wait(stopped.clone());
        let result = runtime.block_on(async {
            let service = api::router(state);
            let serve = axum::serve(listener, service).with_graceful_shutdown(graceful);
            let cancel = async {
                wait(stopped).await;
                tokio::time::sleep(drain).await;
                generator.cancel_all();
                // Cancelled answers end at once. Connections that stay open do not hold up the end.
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            };
            tokio::select! {
                result = serve => result,
                () = cancel => Ok(()),
            }
        });
        generator.cancel_all();
        runtime.shutdown_timeout(std::time::Duration::from_secs(5));
        result.map_err(ServerError::Run)
    }
}
