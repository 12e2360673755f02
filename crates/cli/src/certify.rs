//! `forerun certify`: whether every method gives the text of plain decoding.

use crate::arguments::{CertifyArguments, EngineArguments};
use crate::generate::{OUTPUT_FAILED, demonstration, options};
use crate::interrupts::{cancel_on_interrupt, interrupted};
use crate::progress::{self, Task, about};
use crate::{note, text_file};
use anyhow::{Context, bail};
use forerun::{
    Canceller, DraftTokens, DrafterKind, Lookup, Method, MethodOptions, Options, PlanError, Tree,
};
use forerun_certify::{
    Certifier, CertifyError, CertifyOptions, CertifyProgress, Endpoint, compare_endpoints,
};
use forerun_output::OutputFile;
use serde::Serialize;
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

/// How much is compared, unless options say otherwise. Their help has these numbers, too.
struct Extent {
    prompts: usize,
    tokens: usize,
    answer_tokens: usize,
    known_answers: usize,
}

/// Some seconds with small models: an answer to each of the first prompts, as few as draft enough
/// to certify every method of the demonstration pair.
const QUICK: Extent = Extent { prompts: 4, tokens: 200, answer_tokens: 50, known_answers: 800 };
/// `--full`, and servers.
const FULL: Extent =
    Extent { prompts: PROMPTS.len(), tokens: 1_000, answer_tokens: 100, known_answers: 40_000 };

pub(crate) fn run(mut arguments: CertifyArguments) -> anyhow::Result<ExitCode> {
    let CertifyArguments { temperature, seed, .. } = arguments;
    if !(temperature > 0.0 && temperature.is_finite()) {
        bail!(
            "--temperature is {temperature}, but it must be above 0: greedy answers are compared anyway"
        );
    }
    let of_servers = !arguments.endpoint.is_empty();
    let extent = if arguments.full || of_servers { FULL } else { QUICK };
    let prompts = match &arguments.prompts {
        Some(file) => read_prompts(file)?,
        None => PROMPTS[..extent.prompts].iter().copied().map(str::to_owned).collect(),
    };
    let report = arguments.report.as_deref().map(|path| {
        OutputFile::create(path).with_context(|| format!("cannot create {}", path.display()))
    });
    let report = report.transpose()?;
    if of_servers {
        return compare_servers(&arguments, &prompts, report);
    }
    demonstration(&mut arguments.engine)?;
    // Each method computes its own pages.
    (arguments.engine.cache_dir, arguments.engine.cache_dir_size) = (None, None);
    let configurations = configurations(&arguments.engine, arguments.full)?;
    let canceller = Canceller::new();
    cancel_on_interrupt(&canceller)?;
    let loader = progress::loader(arguments.engine.offline, true).sharing_weights();
    let tokens = arguments.tokens.unwrap_or(extent.tokens);
    let certify = CertifyOptions {
        prompts,
        tokens,
        sampled_tokens: arguments.sampled_tokens.unwrap_or(tokens),
        known_answers: arguments.known_answers.unwrap_or(extent.known_answers),
        answer_tokens: arguments.max_tokens.unwrap_or(extent.answer_tokens),
        temperature,
        seed,
    };
    arguments.engine.refuse_adapters()?;
    let engine = options(&arguments.engine)?;
    let certifier = Certifier::open(certify, &engine, loader, canceller)?;
    let mut task = None;
    let certificate = certifier.run(&configurations, |progress| show(&mut task, progress));
    drop(task);
    let certificate = match certificate {
        Err(CertifyError::Cancelled) => return Ok(ExitCode::from(interrupted())),
        certificate => certificate?,
    };
    let mut output = std::io::stdout().lock();
    writeln!(output, "{certificate}").context(OUTPUT_FAILED)?;
    if !arguments.full {
        let more = if arguments.engine.method.is_some() { MORE_OF_METHOD } else { MORE };
        writeln!(output, "{more}").context(OUTPUT_FAILED)?;
    }
    write_report(report, &certificate)?;
    Ok(if certificate.is_certified() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Shows how far a certification is, with the expected time first, as soon as it can be estimated.
fn show(task: &mut Option<Task>, progress: CertifyProgress<'_>) {
    let CertifyProgress { configuration, done, all, left: Some(left) } = progress else { return };
    let task = task.get_or_insert_with(|| {
        note(format_args!("this is expected to take {}", about(left)));
        Task::estimated("certifying", "configurations", all as u64)
    });
    task.update_estimated(done as u64, configuration, left);
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
        Endpoint { name, url, api_key }
    };
    let endpoints: Vec<Endpoint> = arguments.endpoint.iter().map(endpoint).collect();
    let [reference, others @ ..] = &endpoints[..] else { return Ok(ExitCode::SUCCESS) };
    if others.is_empty() {
        bail!("--endpoint was given once: give a reference and at least one other server");
    }
    let max_tokens = arguments.max_tokens.unwrap_or(FULL.answer_tokens);
    let mut comparisons = Vec::new();
    for other in others {
        let comparison = compare_endpoints(reference, other, prompts, max_tokens)?;
        writeln!(std::io::stdout(), "{comparison}").context(OUTPUT_FAILED)?;
        comparisons.push(comparison);
    }
    write_report(report, &comparisons)?;
    let equal = comparisons.iter().all(|comparison| comparison.divergence.is_none());
    Ok(if equal { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The last line of a quick run.
const MORE: &str = "--full covers more: every drafter and shape of drafts with each method, \
                    longer answers to more prompts, and more samples";

/// The same for one method.
const MORE_OF_METHOD: &str = "--full covers more: longer answers to more prompts, and more samples";

/// Returns the configurations to check: the chosen one, or every method once, with chains and
/// a tree, with the drafter and with prompt lookup; in `full`, all that differ in how they draft
/// and verify. They have the chosen draft length, tree and lookup if there are such.
fn configurations(arguments: &EngineArguments, full: bool) -> Result<Vec<Options>, PlanError> {
    let chosen = options(arguments)?;
    if arguments.method.is_some() {
        return Ok(vec![chosen]);
    }
    let with = |method: MethodOptions, draft_tokens| Options {
        method: Some(method),
        draft_tokens,
        ..chosen.clone()
    };
    let [short, long] = match chosen.draft_tokens {
        DraftTokens::Auto => [2, 6].map(DraftTokens::Fixed),
        chosen => [chosen; 2],
    };
    let drafting = |tree, lookup| with(MethodOptions::Speculative { tree, lookup }, short);
    let mut trees = match chosen.tree() {
        Tree::None => vec![
            Tree::Top { width: 3, depth: Some(3), budget: None },
            Tree::Sampled { branching: vec![3, 2] },
        ],
        chosen => vec![chosen.clone()],
    };
    if !full {
        trees.truncate(1);
    }
    let mut all = Vec::new();
    let has_drafter = chosen.draft_model.is_some() || chosen.drafter.is_some();
    if has_drafter {
        all.push(with(Method::Speculative.into(), short));
        if full && long != short {
            all.push(with(Method::Speculative.into(), long));
        }
        all.extend(trees.into_iter().map(|tree| drafting(tree, Lookup::None)));
        all.extend([
            with(Method::Pearl.into(), long),
            with(Method::Dsi.into(), short),
            with(Method::Ssd.into(), long),
            with(Method::Auto.into(), long),
        ]);
        if full || chosen.lookup() != Lookup::None {
            all.push(drafting(Tree::None, Lookup::Suffix));
        }
    }
    let with_lookup = [Method::Speculative, Method::Pearl, Method::Dsi, Method::Ssd];
    let count = if full || !has_drafter { with_lookup.len() } else { 1 };
    for method in with_lookup.into_iter().take(count) {
        let drafter = Some(DrafterKind::PromptLookup.into());
        all.push(Options { draft_model: None, drafter, ..with(method.into(), long) });
    }
    Ok(all)
}

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

/// Texts of several kinds: what is easy to draft, and what is not. The first one repeats itself, so
/// that what is looked up is often right: it is used most, and first without penalties. A quick run
/// has only the first ones.
const PROMPTS: [&str; 12] = [
    "Tom has a red ball. Tom has a red ball. Tom has a red ball. Tom has a red",
    "Once upon a time, there was a little fox who lived at the edge of a forest.",
    "def fibonacci(n):\n    \"\"\"Returns the n-th Fibonacci number.\"\"\"\n",
    "1, 2, 3, 4, 5, 6, 7,",
    "Question: A farmer has 17 sheep and buys 25 more. How many sheep are there?\nAnswer:",
    "Dear Sir or Madam,\n\nI am writing to you because",
    "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is",
    "{\"name\": \"Ada\", \"age\": 36, \"languages\": [",
    "Es war einmal ein König, der hatte drei Töchter.",
    "Translate to French: The weather is nice today.\n",
    "# Shopping list\n\n- apples\n- bread\n-",
    "\"Where are you going?\" asked the old woman.",
];
