//! `forerun demo`: the methods write the same text in turn; then a recording of each is shown side
//! by side.

mod panes;
mod recording;
mod summary;

use crate::arguments::DemoArguments;
use crate::generate::{NO_MODEL_SO_PADDED, OUTPUT_FAILED, demonstration_pair, padded_pair};
use crate::interrupts::{cancel_on_interrupt, interrupted};
use crate::progress::{self, Task, Unit};
use crate::shown_drafts::colours;
use crate::{note, terminal};
use anyhow::{Context, ensure};
use forerun::placement::{PlacementError, default_cores};
use forerun::{
    Canceller, DraftTokens, Engine, Method, ModelSource, Options, Placement, Plan, Request,
    SamplingOptions, TokenId,
};
use forerun_bench::pacing;
use panes::Panes;
use recording::Recording;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};
use summary::summary;

/// Pictures per second of the replay.
const FRAMES: f64 = 25.0;

/// The number of times that each method is measured.
const RUNS: usize = 3;

/// The most tokens of an answer before these, which is not measured.
const WARM_UP_TOKENS: usize = 16;

/// The length of drafts. With automatic lengths, drafting may pause, and there is nothing to see.
const DRAFT_TOKENS: usize = 4;

/// A method, its title, and what it does.
const METHODS: [(Method, &str, &str); 4] = [
    (Method::Autoregressive, "plain decoding", "the target writes one token in each pass."),
    (
        Method::Speculative,
        "speculative",
        "the drafter guesses some tokens, then the target checks all of them in one pass.",
    ),
    (Method::Pearl, "PEARL", "the drafter goes on guessing while the target checks."),
    (
        Method::Dsi,
        "DSI",
        "several targets, if there are cores for them, check as soon as there are guesses.",
    ),
];

/// Runs all methods, and shows them.
pub(crate) fn run(arguments: &DemoArguments) -> anyhow::Result<ExitCode> {
    let canceller = Canceller::new();
    cancel_on_interrupt(&canceller)?;
    let recordings = record(arguments, &canceller)?;
    if canceller.is_cancelled() {
        return Ok(ExitCode::from(interrupted()));
    }
    let is_terminal = std::io::stdout().is_terminal();
    let seconds = arguments.seconds as f64;
    let panes = Panes::new(&recordings, terminal::size(), colours());
    if is_terminal {
        replay(&panes, seconds, &canceller).context(OUTPUT_FAILED)?;
    } else {
        let whole = panes.frame(panes.end_ns()).join("\n");
        writeln!(std::io::stdout(), "{whole}").context(OUTPUT_FAILED)?;
    }
    if canceller.is_cancelled() {
        return Ok(ExitCode::from(interrupted()));
    }
    let replayed = if is_terminal { replayed(&panes, seconds) } else { String::new() };
    let summary = summary(&recordings, terminal::size().columns);
    write!(std::io::stdout(), "{replayed}{summary}").context(OUTPUT_FAILED)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the methods in turn, so that none of them slows another one down, and other programs slow
/// all of them down alike. Returns the median run of each.
fn record(arguments: &DemoArguments, canceller: &Canceller) -> anyhow::Result<Vec<Recording>> {
    let [target, drafter] = models(arguments)?;
    let has_cores = default_cores().len() > 1 || arguments.paced.is_some();
    if !has_cores {
        note("PEARL and DSI need two cores, for drafter and target, and are left out");
    }
    let methods = if has_cores { &METHODS[..] } else { &METHODS[..2] };
    // Plain decoding ignores the drafter.
    let options = Options {
        model: target,
        draft_model: Some(drafter),
        draft_tokens: DraftTokens::Fixed(DRAFT_TOKENS),
        ..Options::default()
    };
    let mut loader = progress::loader(arguments.offline, true).sharing_weights();
    let open = |&(method, ..): &(Method, &str, &str)| {
        let placement = arguments.paced.as_deref().map(|pace| paced(method, pace)).transpose()?;
        let plan =
            Plan::new(Options { method: Some(method.into()), placement, ..options.clone() })?;
        anyhow::Ok(Engine::open_with(&plan, &mut loader)?)
    };
    let engines = methods.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    drop(loader);
    let request = Request {
        sampling: SamplingOptions {
            temperature: arguments.temperature,
            ..SamplingOptions::default()
        },
        max_tokens: arguments.max_tokens,
        // With a seed, every method writes the same text.
        seed: Some(arguments.seed),
        ..Request::default()
    };
    let max_tokens = arguments.max_tokens.min(WARM_UP_TOKENS);
    let warm_up = Request { max_tokens, ..request.clone() };
    for engine in &engines {
        Recording::of(engine, &arguments.prompt, &warm_up, canceller)?;
    }
    let mut runs: Vec<Vec<Recording>> = engines.iter().map(|_| Vec::new()).collect();
    let mut tokens: Option<Vec<TokenId>> = None;
    let mut task = Task::new("measuring", Unit::Pieces("answers"), (RUNS * engines.len()) as u64);
    for round in 0..RUNS {
        for (index, (engine, &(_, title, explanation))) in engines.iter().zip(methods).enumerate() {
            let run = Recording::of(engine, &arguments.prompt, &request, canceller)?;
            if canceller.is_cancelled() {
                return Ok(Vec::new());
            }
            ensure!(
                run.tokens == *tokens.get_or_insert_with(|| run.tokens.clone()),
                "{title} wrote another text than plain decoding before, which must not happen: \
                 please report it"
            );
            ensure!(
                run.timed_tokens() > 0,
                "{title} wrote the whole answer at once, so that it has no speed: raise \
                 --max-tokens, or give a --prompt with a longer answer"
            );
            runs[index].push(Recording { title, explanation, ..run });
            task.update((round * engines.len() + index + 1) as u64);
        }
    }
    drop(task);
    let recordings: Vec<Recording> = runs.into_iter().filter_map(Recording::median).collect();
    for Recording { title, statistics, .. } in &recordings {
        for failure in &statistics.failures {
            note(format_args!("{title}: {failure}; decoding continued without it"));
        }
    }
    Ok(recordings)
}

/// The number of targets that DSI has on paced devices.
const PACED_REPLICAS: usize = 4;

/// Returns a method's placement on paced devices. All compute on all cores: they wait most of the
/// time.
fn paced(method: Method, pace: &str) -> Result<Placement, PlacementError> {
    let cores: Vec<String> = default_cores().iter().map(|core| format!("cpu:{core}")).collect();
    let cores = cores.join("+");
    let drafter = if method.drafts() { format!("drafter={cores},") } else { String::new() };
    let replicas = if method.has_replicas() { PACED_REPLICAS } else { 1 };
    let targets = format!("target={cores},").repeat(replicas);
    pacing::placement(&format!("{drafter}{targets}paced={pace}"))
}

fn models(arguments: &DemoArguments) -> anyhow::Result<[ModelSource; 2]> {
    match (arguments.model.get(), &arguments.draft_model) {
        (Some(target), Some(drafter)) => Ok([target.clone(), drafter.clone()]),
        (Some(ModelSource::Embedded(_)), None) => Ok(demonstration_pair().map(Into::into)),
        (None, None) => {
            note(NO_MODEL_SO_PADDED);
            Ok(padded_pair().map(Into::into))
        }
        _ => anyhow::bail!("--model and --draft-model belong together: give both, or neither"),
    }
}

/// Shows the recordings in the terminal. The slowest one takes `seconds`.
fn replay(panes: &Panes<'_>, seconds: f64, canceller: &Canceller) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let _cursor = HiddenCursor::hide()?;
    let ns_per_second = panes.end_ns() as f64 / seconds;
    let started = Instant::now();
    let mut drawn = 0;
    loop {
        let elapsed = started.elapsed().as_secs_f64();
        let now_ns = ((elapsed * ns_per_second) as u64).min(panes.end_ns());
        let lines = panes.frame(now_ns);
        if drawn > 0 {
            write!(out, "\x1b[{drawn}A")?;
        }
        for line in &lines {
            write!(out, "\r\x1b[K{line}\r\n")?;
        }
        out.flush()?;
        drawn = lines.len();
        if elapsed >= seconds || canceller.is_cancelled() {
            return Ok(());
        }
        sleep(Duration::from_secs_f64(1.0 / FRAMES));
    }
}

/// Hides the cursor of a terminal, and shows it again.
struct HiddenCursor;

impl HiddenCursor {
    fn hide() -> std::io::Result<Self> {
        write!(std::io::stdout(), "\x1b[?25l")?;
        Ok(Self)
    }
}

impl Drop for HiddenCursor {
    fn drop(&mut self) {
        let _ = write!(std::io::stdout(), "\x1b[?25h");
    }
}

/// Says how much faster or slower the replay was.
fn replayed(panes: &Panes<'_>, seconds: f64) -> String {
    let factor = seconds * 1e9 / panes.end_ns() as f64;
    let shown = match factor >= 1.0 {
        true => format!("{factor:.0} times slower"),
        false => format!("{:.0} times faster", 1.0 / factor),
    };
    format!("Recorded in turn, and shown {shown}.\n")
}
