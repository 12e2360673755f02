//! `forerun certify`: whether every method gives the text of plain decoding.

use crate::arguments::{CertifyArguments, EngineArguments};
use crate::generate::{OUTPUT_FAILED, demonstration, options};
use crate::interrupts::{cancel_on_interrupt, interrupted};
use crate::progress::{self, Task, Unit};
use crate::text_file;
use anyhow::{Context, bail};
use forerun::{Canceller, DraftTokens, DrafterKind, Lookup, Method, Options, Tree};
use forerun_certify::{Certifier, CertifyError, CertifyOptions, Endpoint, compare_endpoints};
use forerun_output::OutputFile;
use serde::Serialize;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(mut arguments: CertifyArguments) -> anyhow::Result<ExitCode> {
    let CertifyArguments { temperature, seed, tokens, max_tokens, .. } = arguments;
    if !(temperature > 0.0 && temperature.is_finite()) {
        bail!(
            "--temperature is {temperature}, but it must be above 0: greedy answers are compared anyway"
        );
    }
    let prompts = match &arguments.prompts {
        Some(file) => read_prompts(file)?,
        None => PROMPTS.map(str::to_owned).to_vec(),
    };
    let report = arguments.report.as_deref().map(|path| {
        OutputFile::create(path).with_context(|| format!("cannot create {}", path.display()))
    });
    let report = report.transpose()?;
    if !arguments.endpoint.is_empty() {
        return compare_servers(&arguments, &prompts, report);
    }
    demonstration(&mut arguments.engine)?;
    let configurations = configurations(&arguments.engine);
    let canceller = Canceller::new();
    cancel_on_interrupt(&canceller)?;
    let loader = progress::loader(arguments.engine.offline, true).sharing_weights();
    let certify = CertifyOptions {
        prompts,
        tokens,
        sampled_tokens: arguments.sampled_tokens.unwrap_or(tokens),
        known_answers: arguments.known_answers,
        answer_tokens: max_tokens,
        temperature,
        seed,
    };
    let engine = options(&arguments.engine);
    let certifier = Certifier::open(certify, &engine, loader, canceller)?;
    let mut task =
        Task::new("certifying", Unit::Pieces("configurations"), configurations.len() as u64 + 1);
    let mut begun = 0;
    let certificate = certifier.run(&configurations, |name| {
        task.message(name.to_owned());
        task.update(begun);
        begun += 1;
    });
    drop(task);
    let certificate = match certificate {
        Err(CertifyError::Cancelled) => return Ok(ExitCode::from(interrupted())),
        certificate => certificate?,
    };
    writeln!(std::io::stdout(), "{certificate}").context(OUTPUT_FAILED)?;
    write_report(report, &certificate)?;
    Ok(if certificate.is_exact() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes the certificate to the file of `--report`.
fn write_report(report: Option<OutputFile>, content: &impl Serialize) -> anyhow::Result<()> {
    if let Some(mut report) = report {
        serde_json::to_writer_pretty(&mut report, content)?;
        report.finish().context("cannot write the file of --report")?;
    }
    Ok(())
}

/// Compares each server with the first one.
fn compare_servers(
    arguments: &CertifyArguments,
    prompts: &[String],
    report: Option<OutputFile>,
) -> anyhow::Result<ExitCode> {
    let endpoint = |text: &String| {
        let (name, url) = match text.split_once('=') {
            Some((name, url)) if !name.contains(':') => (name, url),
            _ => (text.as_str(), text.as_str()),
        };
        let (name, url, api_key) = (name.to_owned(), url.to_owned(), arguments.api_key.clone());
        Endpoint { name, url, api_key, fields: serde_json::Map::new() }
    };
    let endpoints: Vec<Endpoint> = arguments.endpoint.iter().map(endpoint).collect();
    let [reference, others @ ..] = &endpoints[..] else { return Ok(ExitCode::SUCCESS) };
    if others.is_empty() {
        bail!("--endpoint was given once: give a reference and at least one other server");
    }
    let mut comparisons = Vec::new();
    for other in others {
        let comparison = compare_endpoints(reference, other, prompts, arguments.max_tokens)?;
        writeln!(std::io::stdout(), "{comparison}").context(OUTPUT_FAILED)?;
        comparisons.push(comparison);
    }
    write_report(report, &comparisons)?;
    let equal = comparisons.iter().all(|comparison| comparison.divergence.is_none());
    Ok(if equal { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the configurations to check: the chosen one, or all that differ in how they draft and verify.
fn configurations(arguments: &EngineArguments) -> Vec<Options> {
    let chosen = options(arguments);
    if chosen.method.is_some() {
        return vec![chosen];
    }
    let with = |method, draft_tokens, tree: &str| Options {
        method: Some(method),
        draft_tokens,
        // The trees below are valid.
        tree: tree.parse().unwrap_or(Tree::None),
        lookup: Lookup::None,
        ..chosen.clone()
    };
    let [short, long] = [DraftTokens::Fixed(2), DraftTokens::Fixed(6)];
    let mut all = Vec::new();
    let lookup = match chosen.lookup {
        Lookup::None => Lookup::Suffix,
        chosen => chosen,
    };
    let has_drafter = chosen.draft_model.is_some() || chosen.drafter.is_some();
    if has_drafter {
        all.extend([
            with(Method::Speculative, short, "none"),
            with(Method::Speculative, long, "none"),
            with(Method::Speculative, DraftTokens::Auto, "none"),
            with(Method::Speculative, DraftTokens::Auto, "top:3x3"),
            with(Method::Speculative, DraftTokens::Auto, "sampled:3,2"),
            with(Method::Pearl, long, "none"),
            with(Method::Dsi, short, "none"),
            with(Method::Ssd, long, "none"),
            with(Method::Auto, DraftTokens::Auto, "none"),
            Options { lookup, ..with(Method::Speculative, short, "none") },
        ]);
    }
    for method in [Method::Speculative, Method::Pearl, Method::Dsi, Method::Ssd] {
        let drafter = Some(DrafterKind::PromptLookup);
        all.push(Options { draft_model: None, drafter, ..with(method, long, "none") });
    }
    all
}

/// Reads prompts from a file.
pub(crate) fn read_prompts(file: &Path) -> anyhow::Result<Vec<String>> {
    let text = text_file::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut prompts = Vec::new();
    if file.extension().is_some_and(|extension| extension == "jsonl") {
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let place = || format!("{}, line {}", file.display(), number + 1);
            let value: Value = serde_json::from_str(line).with_context(place)?;
            let prompt = ["prompt", "text"].iter().find_map(|field| value.get(field)?.as_str());
            prompts.push(
                prompt
                    .with_context(|| {
                        format!("{}: there is no text in `prompt` or `text`", place())
                    })?
                    .to_owned(),
            );
        }
    } else {
        let parts = text.split("\n\n").map(str::trim).filter(|part| !part.is_empty());
        prompts.extend(parts.map(str::to_owned));
    }
    if prompts.is_empty() {
        bail!("{} has no prompts", file.display());
    }
    Ok(prompts)
}

/// Texts of several kinds: what is easy to draft, and what is not.
const PROMPTS: [&str; 12] = [
    "Once upon a time, there was a little fox who lived at the edge of a forest.",
    "The three most important things to know about the ocean are",
    "def fibonacci(n):\n    \"\"\"Returns the n-th Fibonacci number.\"\"\"\n",
    "Question: A farmer has 17 sheep and buys 25 more. How many sheep are there?\nAnswer:",
    "1, 2, 3, 4, 5, 6, 7,",
    "Dear Sir or Madam,\n\nI am writing to you because",
    "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is",
    "{\"name\": \"Ada\", \"age\": 36, \"languages\": [",
    "Es war einmal ein König, der hatte drei Töchter.",
    "Translate to French: The weather is nice today.\n",
    "# Shopping list\n\n- apples\n- bread\n-",
    "\"Where are you going?\" asked the old woman.",
];
