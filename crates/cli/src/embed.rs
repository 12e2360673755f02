//! `forerun embed`: prints the embeddings of texts.

use crate::arguments::EmbedArguments;
use crate::progress;
use anyhow::Context;
use forerun::{Engine, Options, Plan};
use std::io::Write;
use std::process::ExitCode;

/// Prints one JSON array for each text.
pub(crate) fn run(arguments: EmbedArguments) -> anyhow::Result<ExitCode> {
    let EmbedArguments { model, mut texts, weights, offline } = arguments;
    let options = Options { weight_type: weights.dtype, ..Options::new(model.require()?.clone()) };
    let plan = Plan::new(options)?;
    let engine = Engine::open_with(&plan, &mut progress::loader(offline, true))?;
    if texts.is_empty() {
        let lines = std::io::stdin().lines().collect::<Result<_, _>>();
        texts = lines.context("cannot read the texts from standard input")?;
    }
    let mut out = std::io::stdout().lock();
    for embedding in engine.embed(&texts)? {
        serde_json::to_writer(&mut out, &embedding)?;
        writeln!(out)?;
    }
    Ok(ExitCode::SUCCESS)
}
