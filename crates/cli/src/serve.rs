//! `forerun serve`: an HTTP server with OpenAI's, Anthropic's and ollama's APIs.

mod models_file;

use crate::arguments::{LogFormat, ServeArguments};
use crate::generate::{
    NO_MODEL, TRANSLATED, demonstration_pair, detail_plan, options, use_demonstration,
};
use crate::interrupts::listen;
use crate::note::Verbosity;
use crate::ranks::Member;
use crate::{note, progress};
use anyhow::bail;
use forerun::Plan;
use forerun_server::{Models, Server, ServerOptions};
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

pub(crate) fn run(arguments: ServeArguments) -> anyhow::Result<ExitCode> {
    match arguments.models.clone() {
        Some(file) => serve_file(&arguments, &file),
        None => serve_one(arguments),
    }
}

/// Serves the models of a file.
fn serve_file(arguments: &ServeArguments, file: &Path) -> anyhow::Result<ExitCode> {
    check(arguments)?;
    let models = Arc::new(models_file::read(file)?);
    start_log(arguments);
    let server = Server::bind(server_options(arguments))?;
    server.preload(&models)?;
    answer(arguments, server, &models, &format!("the models of {}", file.display()))
}

/// Serves one model.
fn serve_one(mut arguments: ServeArguments) -> anyhow::Result<ExitCode> {
    let is_unnamed = use_demonstration(&mut arguments.engine, demonstration_pair())?;
    let Some(member) = Member::join(&mut arguments.engine)? else { return Ok(ExitCode::SUCCESS) };
    if is_unnamed {
        note(NO_MODEL);
    }
    check(&arguments)?;
    start_log(&arguments);
    let plan = Plan::new(options(&arguments.engine)?)?;
    let name = served_name(&arguments);
    if plan.adapters().iter().any(|adapter| adapter.name == name) {
        bail!("an adapter and the model have the name {name:?}: give --lora NAME=PATH another one");
    }
    let server = Server::bind(server_options(&arguments))?;
    let mut loader = progress::loader(arguments.engine.offline, true);
    let (forerun, _) = member.open(&plan, &mut loader)?;
    drop(loader);
    if forerun.translates_drafts() {
        note(TRANSLATED);
    }
    detail_plan(&forerun);
    let template = forerun.choose_chat_template(arguments.chat_template.as_deref())?;
    let pace = forerun.plan().placement().pace();
    let paced = pace.map_or(String::new(), |pace| format!(", paced as {}", pace.name));
    let models = Models::of_one(&*name, forerun, template, arguments.tool_parser);
    answer(&arguments, server, &Arc::new(models), &(name + &paced))
}

/// Checks the options that need no model.
fn check(arguments: &ServeArguments) -> anyhow::Result<()> {
    if arguments.api_key.iter().any(|key| key.trim().is_empty()) {
        bail!("--api-key is empty: give a key, or leave it out");
    }
    // Headers, which keys are sent in, have no other characters.
    if arguments.api_key.iter().any(|key| !key.trim().chars().all(|one| one.is_ascii_graphic())) {
        bail!(
            "--api-key has spaces, line breaks or letters beyond ASCII, which no request can send"
        );
    }
    for origin in &arguments.cors_origin {
        let address = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        let is_host = |host: &str| {
            !host.is_empty() && host.chars().all(|one| one.is_ascii_graphic() && one != '/')
        };
        if origin != "*" && !address.is_some_and(is_host) {
            bail!("--cors-origin is {origin:?}: give an origin such as https://example.com, or *");
        }
    }
    if arguments.served_model_name.as_ref().is_some_and(|name| name.trim().is_empty()) {
        bail!("--served-model-name is empty: give a name, or leave it out");
    }
    Ok(())
}

/// Answers requests until a signal.
fn answer(
    arguments: &ServeArguments,
    server: Server,
    models: &Arc<Models>,
    name: &str,
) -> anyhow::Result<ExitCode> {
    // The second signal ends the process at once.
    let (stop, stopped) = mpsc::channel();
    let again = AtomicBool::new(false);
    listen(move || {
        stop.send(()).ok();
        again.swap(true, Ordering::Relaxed)
    })?;
    let (address, name, parallel) = (server.address(), name.to_owned(), arguments.parallel);
    let until_stopped = move || {
        // For programs that start a server: it answers now, and with port 0 the line says which one
        // was chosen.
        let mut out = std::io::stdout();
        writeln!(out, "listening on http://{address}").and_then(|()| out.flush()).ok();
        note(format_args!(
            "serving {name}, up to {parallel} answers at a time: open http://{address} in a \
             browser; the base_url of OpenAI's clients is http://{address}/v1"
        ));
        stopped.recv().ok();
    };
    server.run(models, until_stopped)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes what the server reports to standard error.
fn start_log(arguments: &ServeArguments) {
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let is_terminal = std::io::stderr().is_terminal();
    let log = match arguments.log_format {
        LogFormat::Text => log.with_ansi(is_terminal).boxed(),
        LogFormat::Json => log.json().flatten_event(true).with_span_list(false).boxed(),
    };
    let usual = match Verbosity::current() {
        Verbosity::Quiet => LevelFilter::ERROR,
        Verbosity::Normal => LevelFilter::INFO,
        Verbosity::Verbose => LevelFilter::DEBUG,
    };
    let level = arguments.log_level.clone().unwrap_or_else(|| Targets::new().with_default(usual));
    tracing_subscriber::registry().with(log.with_filter(level)).init();
}

fn server_options(arguments: &ServeArguments) -> ServerOptions {
    ServerOptions {
        parallel: arguments.parallel,
        queue: arguments.queue,
        max_body_bytes: arguments.max_body_bytes,
        request_timeout: Duration::from_secs(arguments.request_seconds),
        drain: Duration::from_secs(arguments.drain_seconds),
        api_keys: arguments.api_key.iter().map(|key| key.trim().to_owned()).collect(),
        cors_origins: arguments.cors_origin.clone(),
        ..ServerOptions::new(SocketAddr::new(arguments.host, arguments.port))
    }
}

/// Returns the name that was given to the model, or else its own.
fn served_name(arguments: &ServeArguments) -> String {
    arguments.served_model_name.clone().unwrap_or_else(|| arguments.engine.model_name())
}
