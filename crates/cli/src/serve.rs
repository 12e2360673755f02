//! `forerun serve`: an HTTP server with OpenAI's API.

use crate::arguments::{EngineArguments, ServeArguments};
use crate::generate::{TRANSLATED, demonstration, options};
use crate::interrupts::listen;
use crate::{note, progress};
use anyhow::bail;
use forerun::{ChatTemplate, Forerun, ModelSource, Plan};
use forerun_server::{Server, ServerOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

pub(crate) fn run(mut arguments: ServeArguments) -> anyhow::Result<ExitCode> {
    demonstration(&mut arguments.engine)?;
    if arguments.api_key.iter().any(|key| key.trim().is_empty()) {
        bail!("--api-key is empty: give a key, or leave it out");
    }
    let plan = Plan::new(options(&arguments.engine))?;
    let mut loader = progress::loader(arguments.engine.offline, true);
    let forerun = Forerun::open_with(&plan, &mut loader)?;
    drop(loader);
    if forerun.translates_drafts() {
        note(TRANSLATED);
    }
    let template = template(&arguments, &forerun)?;
    let options = server_options(&arguments);
    let (model, parallel) = (options.model_name.clone(), options.parallel);
    let server = Server::bind(forerun, template, options)?;
    let address = server.address()?;
    // The second signal ends the process at once.
    let (stop, stopped) = mpsc::channel();
    let again = AtomicBool::new(false);
    listen(move || {
        stop.send(()).ok();
        again.swap(true, Ordering::Relaxed)
    })?;
    // For programs that start a server: with port 0, the line says which one was chosen.
    let mut out = std::io::stdout();
    writeln!(out, "listening on http://{address}")?;
    out.flush()?;
    note(format_args!("serving {model}, up to {parallel} answers at a time"));
    server.run(move || _ = stopped.recv())?;
    Ok(ExitCode::SUCCESS)
}

fn server_options(arguments: &ServeArguments) -> ServerOptions {
    let name = arguments.served_model_name.clone();
    let name = name.unwrap_or_else(|| model_name(&arguments.engine));
    ServerOptions {
        parallel: arguments.parallel,
        queue: arguments.queue,
        max_body_bytes: arguments.max_body_bytes,
        request_timeout: Duration::from_secs(arguments.request_seconds),
        drain: Duration::from_secs(arguments.drain_seconds),
        api_keys: arguments.api_key.iter().map(|key| key.trim().to_owned()).collect(),
        cors_origins: arguments.cors_origin.clone(),
        ..ServerOptions::new(SocketAddr::new(arguments.host, arguments.port), name)
    }
}

/// Returns the name of the model's file or directory, or its hub id.
fn model_name(arguments: &EngineArguments) -> String {
    let model = arguments.model.clone().unwrap_or_default();
    let path = model.path().filter(|path| path.exists()).map(std::path::Path::to_owned);
    let path = path.map(|path| path.canonicalize().unwrap_or(path));
    let name = path.as_deref().and_then(|path| path.file_name());
    name.map_or_else(|| model.to_string(), |name| name.to_string_lossy().into_owned())
}

fn template(arguments: &ServeArguments, forerun: &Forerun) -> anyhow::Result<ChatTemplate> {
    let file = forerun.tokenizer().file();
    Ok(match (forerun.plan().model(), &arguments.chat_template) {
        (ModelSource::Embedded(model), Some(choice)) => {
            ChatTemplate::choose_embedded(model, choice)?
        }
        (ModelSource::Embedded(model), None) => ChatTemplate::from_embedded(model)?,
        (_, Some(choice)) => ChatTemplate::choose(file, choice)?,
        (_, None) => ChatTemplate::from_checkpoint(file)?,
    })
}
