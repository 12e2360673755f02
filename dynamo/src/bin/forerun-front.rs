//! `forerun-front`: NVIDIA Dynamo's front end, without Python.

use clap::{Parser, ValueEnum};
use dynamo_backend_common::RuntimeConfig;
use dynamo_llm::entrypoint::input::{Input, run_input};
use dynamo_llm::entrypoint::{EngineConfig, RouterConfig};
use dynamo_llm::local_model::LocalModelBuilder;
use dynamo_runtime::pipeline::RouterMode;
use dynamo_runtime::{DistributedRuntime, Runtime, logging};
use std::net::IpAddr;

/// Offer the workers' models at one address, with OpenAI's API.
///
/// There is no authentication: put a proxy before it, or listen on this machine only, as it does by
/// default.
#[derive(Parser, Debug)]
#[command(name = "forerun-front", version, max_term_width = 100)]
struct Arguments {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1", env = "DYN_HTTP_HOST")]
    host: IpAddr,

    /// Port to listen on.
    #[arg(long, default_value_t = 8000, env = "DYN_HTTP_PORT")]
    port: u16,

    /// How a request's worker is chosen.
    #[arg(long, value_enum, default_value_t = Route::Kv, env = "DYN_ROUTER_MODE")]
    router_mode: Route,

    /// How often a request may move to another worker.
    ///
    /// Answers with frequency or presence penalties change when they move, and those without a seed
    /// continue with other random numbers. All others keep their text.
    #[arg(long, value_name = "N", default_value_t = 3)]
    migration_limit: u32,

    /// Namespace in which to look for workers [default: all]
    #[arg(long, env = "DYN_NAMESPACE")]
    namespace: Option<String>,

    #[command(flatten)]
    runtime: RuntimeConfig,
}

/// How a request's worker is chosen.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Route {
    /// By what the workers' prefix caches hold, and by their load.
    Kv,
    /// In turn.
    RoundRobin,
    /// At random.
    Random,
    /// The one with the fewest requests.
    LeastLoaded,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    logging::init();
    arguments.runtime.apply_to_env();
    let runtime = Runtime::from_settings()?;
    let served = runtime.secondary().block_on(serve(runtime.clone(), arguments));
    runtime.shutdown();
    served
}

async fn serve(runtime: Runtime, arguments: Arguments) -> anyhow::Result<()> {
    let mode = match arguments.router_mode {
        Route::Kv => RouterMode::KV,
        Route::RoundRobin => RouterMode::RoundRobin,
        Route::Random => RouterMode::Random,
        Route::LeastLoaded => RouterMode::LeastLoaded,
    };
    let mut model = LocalModelBuilder::default();
    model
        .http_host(Some(arguments.host.to_string()))
        .http_port(arguments.port)
        .router_config(Some(RouterConfig { router_mode: mode, ..RouterConfig::default() }))
        .migration_limit(Some(arguments.migration_limit))
        .namespace(arguments.namespace);
    let model = Box::new(model.build().await?);
    let config = arguments.runtime.to_distributed_config()?;
    let distributed = DistributedRuntime::new(runtime.clone(), config).await?;
    let engine =
        EngineConfig::Dynamic { model, chat_engine_factory: None, prefill_load_estimator: None };
    tokio::select! {
        served = run_input(distributed, Input::Http, engine) => served,
        signal = tokio::signal::ctrl_c() => Ok(signal?),
        () = terminated() => Ok(()),
    }
}

/// Waits for SIGTERM.
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut signals) => {
            signals.recv().await;
        }
        Err(_) => std::future::pending().await,
    }
}
