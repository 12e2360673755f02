//! `forerun demo`: the methods write the same text, one after another; then their recordings are
//! shown side by side.

mod panes;
mod recording;

use crate::arguments::DemoArguments;
use crate::generate::{DEMONSTRATION_DRAFTER, DEMONSTRATION_TARGET, NO_MODEL, OUTPUT_FAILED};
use crate::interrupts::{cancel_on_interrupt, interrupted};
use crate::shown_drafts::colours;
use crate::terminal::{self, Size};
use crate::{note, progress};
use anyhow::{Context, ensure};
use forerun::{
    Canceller, Forerun, Method, ModelSource, Options, Plan, Request, SamplingOptions, default_cores,
};
use panes::Panes;
use recording::Recording;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Pictures per second of the replay.
const FRAMES: f64 = 25.0;

/// The part of the timeline that is shown: about this many passes of plain decoding.
const SHOWN_PASSES: u64 = 14;

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
    write!(std::io::stdout(), "{}", summary(&recordings, seconds, is_terminal))
        .context(OUTPUT_FAILED)?;
    Ok(ExitCode::SUCCESS)
}

/// Runs the methods one after another, so that none of them slows another one down.
fn record(arguments: &DemoArguments, canceller: &Canceller) -> anyhow::Result<Vec<Recording>> {
    let [target, drafter] = models(arguments)?;
    let mut loader = progress::loader(arguments.offline, true).sharing_weights();
    let has_cores = default_cores().len() > 1;
    if !has_cores {
        note("PEARL and DSI need two cores, for drafter and target, and are left out");
    }
    let methods = if has_cores { &METHODS[..] } else { &METHODS[..2] };
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
    let mut recordings: Vec<Recording> = Vec::new();
    for &(method, title, explanation) in methods {
        let draft_model = (method != Method::Autoregressive).then(|| drafter.clone());
        let options = Options {
            model: target.clone(),
            draft_model,
            method: Some(method),
            ..Options::default()
        };
        let engine = Forerun::open_with(&Plan::new(options)?, &mut loader)?;
        let recording = Recording::of(&engine, &arguments.prompt, &request, canceller)?;
        let recording = Recording { title, explanation, ..recording };
        if canceller.is_cancelled() {
            return Ok(Vec::new());
        }
        let first = recordings.first().unwrap_or(&recording);
        ensure!(
            recording.tokens == first.tokens,
            "{} wrote another text than {}, which must not happen: please report it",
            recording.title,
            first.title
        );
        recordings.push(recording);
    }
    Ok(recordings)
}

fn models(arguments: &DemoArguments) -> anyhow::Result<[ModelSource; 2]> {
    match (arguments.model.get(), &arguments.draft_model) {
        (Some(target), Some(drafter)) => Ok([target.clone(), drafter.clone()]),
        (None, None) => {
            note(NO_MODEL);
            Ok([DEMONSTRATION_TARGET.into(), DEMONSTRATION_DRAFTER.into()])
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

/// Returns the explanations and the timelines after the replay.
fn summary(recordings: &[Recording], seconds: f64, replayed: bool) -> String {
    let Some(plain) = recordings.first() else { return String::new() };
    let Size { columns, .. } = terminal::size();
    let mut text = String::new();
    if replayed {
        let slowest_ns = recordings.iter().map(Recording::total_ns).max().unwrap_or(1);
        let factor = seconds * 1e9 / slowest_ns as f64;
        let shown = match factor >= 1.0 {
            true => format!("{factor:.0} times slower"),
            false => format!("{:.0} times faster", 1.0 / factor),
        };
        text += &format!("Recorded one after another, and shown {shown}.\n");
    }
    text += "All methods wrote the same tokens.\n";
    let token_ns = plain.total_ns() / plain.tokens.len().max(1) as u64;
    let window_ns = (token_ns * SHOWN_PASSES).max(1);
    let window_ms = window_ns as f64 / 1e6;
    text += &format!("\nWhat the cores did for {window_ms:.1} ms. D: drafting, S: verification,\n");
    text += "d and s: the same with a rejection, x: cancelled, a dot: idle.\n";
    for recording in recordings {
        text += &format!("\n{}: {}\n", recording.title, recording.explanation);
        text += &recording.timeline(window_ns, columns);
    }
    text
}
