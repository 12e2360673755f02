//! `forerun-worker`: a worker for NVIDIA Dynamo.

use clap::{Args, CommandFactory, Parser};
use dynamo_backend_common::{RuntimeConfig, WorkerConfig};
use forerun_cli::{EngineArguments, with_flags_of};
use forerun_dynamo::{ForerunWorker, ModelCard, WorkerOptions};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Serve a model to NVIDIA Dynamo's front end.
///
/// The options of models, drafts and devices are those of `forerun serve`. Where the worker, the
/// front end and the other workers find each other is an option here or a variable of the
/// environment, the same for all: DYN_DISCOVERY_BACKEND, DYN_FILE_KV, ETCD_ENDPOINTS and others.
/// See the guide, chapter "NVIDIA Dynamo".
#[derive(Parser, Debug)]
#[command(name = "forerun-worker", version, max_term_width = 100)]
struct Arguments {
    #[command(flatten)]
    worker: WorkerArguments,

    #[command(flatten, next_help_heading = "Dynamo")]
    runtime: RuntimeConfig,

    #[command(flatten)]
    engine: EngineArguments,
}

/// Options of the worker.
#[derive(Args, Debug)]
#[command(next_help_heading = "Worker")]
struct WorkerArguments {
    /// Name of the model in requests [default: that of its file or folder, or its hub id]
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,

    /// Number of answers that are generated at the same time; others wait.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    parallel: u16,

    /// Seconds in which answers may finish on shutdown, before they move to another worker.
    ///
    /// They begin after Dynamo's own grace period of 5 seconds
    /// (DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS). Dynamo ends the process after 30 seconds more
    /// (DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT).
    #[arg(long, value_name = "SECONDS", default_value_t = 3, value_parser = clap::value_parser!(u64).range(..=3600))]
    drain_seconds: u64,

    /// Refuse requests with frequency or presence penalties.
    ///
    /// They count the tokens of the answer. After a move to another worker, they would count only
    /// those since the move, and the text would change. Use it with a front end that moves requests
    /// (`--migration-limit`).
    #[arg(long)]
    refuse_penalties: bool,

    /// Do not tell the router what the prefix cache holds.
    #[arg(long)]
    no_kv_events: bool,

    /// Folder with config.json, tokenizer.json and tokenizer_config.json for the front end
    /// [default: the model's]
    ///
    /// A GGUF file needs one. The folder has the same path on all hosts, or the front end finds the
    /// model by its hub id.
    #[arg(long, value_name = "DIR")]
    model_card: Option<PathBuf>,

    /// Folder for the front end's files of a built-in model.
    #[arg(long, value_name = "DIR", env = "FORERUN_CARDS")]
    cards: Option<PathBuf>,

    /// Chat template to use instead of the model's.
    #[arg(long, value_name = "FILE", env = "DYN_CUSTOM_JINJA_TEMPLATE")]
    chat_template: Option<PathBuf>,

    /// What the front end offers: chat, completions, or both [default: both with a chat template]
    #[arg(long, value_name = "TYPES", env = "DYN_ENDPOINT_TYPES")]
    endpoint_types: Option<String>,

    /// Dynamo's parser for tool calls.
    #[arg(long, value_name = "NAME", env = "DYN_TOOL_CALL_PARSER")]
    tool_call_parser: Option<String>,

    /// Dynamo's parser for reasoning.
    #[arg(long, value_name = "NAME", env = "DYN_REASONING_PARSER")]
    reasoning_parser: Option<String>,

    /// Namespace in which the front end looks for workers.
    #[arg(long, default_value = "dynamo", env = "DYN_NAMESPACE")]
    namespace: String,

    /// Component of the namespace.
    #[arg(long, default_value = "backend", env = "DYN_COMPONENT")]
    component: String,

    /// Endpoint of the component.
    #[arg(long, default_value = "generate", env = "DYN_ENDPOINT")]
    endpoint: String,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", with_flags_of(&format!("{error:#}"), &Arguments::command()));
            ExitCode::FAILURE
        }
    }
}

fn run(Arguments { worker, runtime, mut engine }: Arguments) -> anyhow::Result<()> {
    let plan = engine.plan()?;
    if !plan.placement().ranks().is_empty() {
        anyhow::bail!(
            "`placement` names ranks of an MPI job, but a worker is one process: use `forerun serve` for MPI"
        );
    }
    let longest = shutdown_timeout().saturating_sub(2);
    if worker.drain_seconds > longest {
        anyhow::bail!(
            "--drain-seconds is {}, but Dynamo ends the process before: give {longest} at most, or set \
             DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT to {} or more",
            worker.drain_seconds,
            worker.drain_seconds + 2
        );
    }
    let cards = worker.cards.unwrap_or_else(default_cards);
    let mut loader = engine.loader();
    let card = ModelCard::find(plan.model(), worker.model_card.as_deref(), &cards, &mut loader)?;
    drop(loader);
    let model_name = worker.served_model_name.unwrap_or_else(|| engine.model_name());
    let has_template = card.has_template || worker.chat_template.is_some();
    let types = if has_template { "chat,completions" } else { "completions" };
    let config = WorkerConfig {
        namespace: worker.namespace,
        component: worker.component,
        endpoint: worker.endpoint,
        model_name: card.folder.to_string_lossy().into_owned(),
        served_model_name: Some(model_name.clone()),
        endpoint_types: worker.endpoint_types.unwrap_or_else(|| types.to_owned()),
        custom_jinja_template: worker.chat_template,
        tool_call_parser: worker.tool_call_parser,
        reasoning_parser: worker.reasoning_parser,
        enable_kv_routing: !worker.no_kv_events,
        runtime,
        ..WorkerConfig::default()
    };
    let options = WorkerOptions {
        engine,
        plan,
        model_name,
        parallel: worker.parallel.into(),
        drain: Duration::from_secs(worker.drain_seconds),
        refuse_penalties: worker.refuse_penalties,
    };
    dynamo_backend_common::run(Arc::new(ForerunWorker::new(options)), config)
}

/// Returns the seconds after which Dynamo ends a process that shuts down.
fn shutdown_timeout() -> u64 {
    use dynamo_runtime::worker::{
        DEFAULT_GRACEFUL_SHUTDOWN_TIMEOUT_DEBUG, DEFAULT_GRACEFUL_SHUTDOWN_TIMEOUT_RELEASE,
    };
    let given = std::env::var("DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT").ok();
    given.and_then(|given| given.parse().ok()).unwrap_or(match cfg!(debug_assertions) {
        true => DEFAULT_GRACEFUL_SHUTDOWN_TIMEOUT_DEBUG,
        false => DEFAULT_GRACEFUL_SHUTDOWN_TIMEOUT_RELEASE,
    })
}

/// The user's cache folder, or else the one for temporary files.
fn default_cards() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let folder = cache.filter(|path| path.is_absolute()).or_else(home);
    folder.unwrap_or_else(std::env::temp_dir).join("forerun").join("dynamo")
}
