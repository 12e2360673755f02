//! Progress of long tasks on standard error.

use crate::note::{Verbosity, detail, note};
use forerun::{Loader, Progress, Step};
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use std::fmt;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Time after which the progress of loading appears; shorter steps show none.
const DELAY: Duration = Duration::from_millis(500);

/// Time after which the rest of a task can be estimated.
const MEASURED: Duration = Duration::from_secs(2);

/// A task that takes longer says so.
const LONG: Duration = Duration::from_secs(60);

/// Time between two lines of a long task, if standard error is not a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(30);

/// Creates a loader that shows its progress, if `visible`.
pub(crate) fn loader(offline: bool, visible: bool) -> Loader<'static> {
    let loader = Loader::new().offline(offline);
    if !visible || is_hidden() {
        return loader;
    }
    let mut steps = LoaderSteps::default();
    loader.on_progress(move |progress| {
        steps.update(progress);
        ControlFlow::Continue(())
    })
}

/// The progress of the current step of a loader.
#[derive(Default)]
struct LoaderSteps {
    name: String,
    since: Option<Instant>,
    task: Option<Task>,
}

impl LoaderSteps {
    fn update(&mut self, progress: Progress<'_>) {
        let (name, unit) = match progress.step {
            Step::Cached { model } => {
                return note(format_args!(
                    "the hub cannot be reached: {model} comes from the cache"
                ));
            }
            Step::Download { model, file } => (format!("downloading {model} {file}"), Unit::Bytes),
            Step::Load { model, types } => {
                (format!("loading {model} as {types}"), Unit::Pieces("layers"))
            }
            Step::Split { gpu, .. } => {
                let Progress { done, total, .. } = progress;
                return note(format_args!(
                    "{done} of {total} layers are on gpu:{gpu}, the others on cores"
                ));
            }
            Step::Export { model } => (format!("exporting {model}"), Unit::Pieces("tensors")),
        };
        let Progress { done, total, .. } = progress;
        if name != self.name {
            *self = Self { name: name.clone(), since: Some(Instant::now()), task: None };
        }
        if done >= total {
            self.task = None;
            if let Some(since) = self.since.take() {
                let seconds = since.elapsed().as_secs_f64();
                detail(format_args!("finished {name} in {seconds:.2} s"));
            }
        } else if self.since.is_some_and(|since| since.elapsed() >= DELAY) {
            let task = self.task.get_or_insert_with(|| Task::resumed(&name, unit, done, total));
            task.update(done);
        }
    }
}

/// Returns a function that shows the progress of a task when it gets the number of pieces that are
/// done, and the number of all pieces.
pub(crate) fn counted(name: &str, pieces: &'static str) -> impl FnMut(usize, usize) {
    let mut task = None;
    move |done, all| {
        if done >= all {
            task = None;
        } else {
            let new = || Task::new(name, Unit::Pieces(pieces), all as u64);
            task.get_or_insert_with(new).update(done as u64);
        }
    }
}

/// Returns whether no progress is shown.
fn is_hidden() -> bool {
    Verbosity::current() == Verbosity::Quiet
}

/// Creates a bar with the look of a template, or a hidden one.
fn bar(name: &str, template: &str, new: impl FnOnce() -> ProgressBar) -> ProgressBar {
    let bar = if is_hidden() { ProgressBar::hidden() } else { new() };
    if let Ok(style) = ProgressStyle::with_template(template) {
        // No time is known before the first progress.
        bar.set_style(style.with_key(
            "left",
            |state: &ProgressState, text: &mut dyn fmt::Write| {
                let left = state.eta();
                let _ = if left.is_zero() { Ok(()) } else { write!(text, "{} left", about(left)) };
            },
        ));
    }
    bar.with_prefix(name.to_owned())
}

/// A task of unknown length: a line on a terminal, as long as this value exists.
pub(crate) struct Waiting(ProgressBar);

impl Waiting {
    /// Shows the name of the task. The line appears after a moment, so that short tasks show
    /// nothing.
    pub(crate) fn new(name: &str) -> Self {
        let bar = bar(name, "{prefix} {elapsed}", ProgressBar::new_spinner);
        // The first line is drawn after this time.
        bar.enable_steady_tick(DELAY);
        Self(bar)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// What a task consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    /// Pieces with this name.
    Pieces(&'static str),
}

/// The progress of a long task: a bar on a terminal, otherwise a line every 30 seconds. If it takes
/// longer than a minute, a line says how long, as soon as that can be estimated. The bar disappears
/// with this value.
pub(crate) struct Task {
    name: String,
    unit: Unit,
    total: u64,
    bar: ProgressBar,
    /// The progress before the measured part, and its start.
    before: u64,
    since: Instant,
    lines: Lines,
}

impl Task {
    /// Starts a task.
    pub(crate) fn new(name: &str, unit: Unit, total: u64) -> Self {
        Self::resumed(name, unit, 0, total)
    }

    /// Starts a task whose time left is estimated elsewhere, because its pieces differ.
    pub(crate) fn estimated(name: &str, pieces: &'static str, total: u64) -> Self {
        let task = Self::new(name, Unit::Pieces(pieces), total);
        let template = format!("{{prefix}} {{pos}}/{{len}} {pieces} {{wide_bar}} {{msg}}");
        if let Ok(style) = ProgressStyle::with_template(&template) {
            task.bar.set_style(style);
        }
        task
    }

    /// Continues a task of which `before` was done earlier.
    pub(crate) fn resumed(name: &str, unit: Unit, before: u64, total: u64) -> Self {
        let template = match unit {
            Unit::Bytes => {
                "{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {left}".to_owned()
            }
            Unit::Pieces(pieces) => {
                format!("{{prefix}} {{pos}}/{{len}} {pieces} {{wide_bar}} {{msg}} {{left}}")
            }
        };
        let bar = bar(name, &template, || ProgressBar::new(total));
        // Progress made before does not count for the speed.
        bar.set_position(before);
        bar.reset_eta();
        bar.tick();
        let lines = Lines { repeated: !std::io::stderr().is_terminal(), last: None };
        let (name, since) = (name.to_owned(), Instant::now());
        Self { name, unit, total, bar, before, since, lines }
    }

    /// Sets how much is done. Time before the first progress counts only from the last such call,
    /// so that warm-ups do not count.
    pub(crate) fn update(&mut self, done: u64) {
        if done <= self.before {
            self.since = Instant::now();
            self.bar.reset_eta();
        }
        self.bar.set_position(done);
        let left = Left { elapsed: self.since.elapsed(), done: done.saturating_sub(self.before) };
        if let Some(left) = left.time(self.total.saturating_sub(done)) {
            self.report(done, left);
        }
    }

    /// Sets how much of an [`estimated`](Self::estimated) task is done, what it does, and the time
    /// that is left.
    pub(crate) fn update_estimated(&mut self, done: u64, doing: &str, left: Duration) {
        self.bar.set_position(done);
        self.bar.set_message(format!("{doing}, {} left", about(left)));
        self.report(done, left);
    }

    /// Prints a line, if one is due.
    fn report(&mut self, done: u64, left: Duration) {
        if self.lines.is_due(self.since.elapsed(), left) {
            let (name, total, left) = (&self.name, self.total, about(left));
            self.note(match self.unit {
                Unit::Bytes => {
                    let megabytes = |bytes: u64| bytes as f64 / 1e6;
                    format!(
                        "{name}: {:.1} of {:.1} MB, {left} left",
                        megabytes(done),
                        megabytes(total)
                    )
                }
                Unit::Pieces(pieces) => format!("{name}: {done} of {total} {pieces}, {left} left"),
            });
        }
    }

    /// Sets the text next to the bar.
    pub(crate) fn message(&self, message: String) {
        self.bar.set_message(message);
    }

    /// Prints a line on standard error, above the bar.
    pub(crate) fn note(&self, line: impl fmt::Display) {
        self.suspend(|| note(line));
    }

    /// Hides the bar while `print` prints.
    pub(crate) fn suspend<T>(&self, print: impl FnOnce() -> T) -> T {
        self.bar.suspend(print)
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        // Otherwise the next message would follow half a bar on the same line.
        self.bar.finish_and_clear();
    }
}

/// What was measured of a task.
struct Left {
    elapsed: Duration,
    done: u64,
}

impl Left {
    /// Returns the time for the rest; `None` if there is none, or too little was measured.
    fn time(&self, rest: u64) -> Option<Duration> {
        if self.done == 0 || rest == 0 || self.elapsed < MEASURED {
            return None;
        }
        let seconds = self.elapsed.as_secs_f64() * rest as f64 / self.done as f64;
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}

/// The lines of a task.
struct Lines {
    /// Whether there is more than the first one.
    repeated: bool,
    last: Option<Duration>,
}

impl Lines {
    /// Returns whether a line is due now.
    fn is_due(&mut self, elapsed: Duration, left: Duration) -> bool {
        let is_due = match self.last {
            None => elapsed.saturating_add(left) > LONG,
            Some(last) => self.repeated && elapsed.saturating_sub(last) >= LINE_INTERVAL,
        };
        if is_due {
            self.last = Some(elapsed);
        }
        is_due
    }
}

/// Formats an estimated time in one unit, such as `about 4 minutes`.
pub(crate) fn about(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (count, unit) = match seconds {
        ..50.0 => (seconds, "second"),
        ..5_400.0 => (seconds / 60.0, "minute"),
        ..172_800.0 => (seconds / 3_600.0, "hour"),
        _ => (seconds / 86_400.0, "day"),
    };
    let count = count.round().max(1.0);
    format!("about {count} {unit}{}", if count == 1.0 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_time_left_follows_from_the_first_measured_pieces() {
        let left = |elapsed, done, rest| Left { elapsed: seconds(elapsed), done }.time(rest);
        assert_eq!(left(10, 2, 20), Some(seconds(100)));
        assert_eq!(left(10, 0, 20), None);
        assert_eq!(left(10, 5, 0), None);
        assert_eq!(left(1, 5, 20), None);
        assert_eq!(left(10, 1, u64::MAX).map(|left| left > seconds(1 << 40)), Some(true));
    }

    #[test]
    fn only_long_tasks_have_lines_and_a_terminal_has_one() {
        let due = |repeated| {
            let mut lines = Lines { repeated, last: None };
            let times = [(2, 50), (5, 300), (20, 290), (36, 270), (50, 200), (70, 10)];
            times.map(|(elapsed, left)| lines.is_due(seconds(elapsed), seconds(left)))
        };
        assert_eq!(due(false), [false, true, false, false, false, false]);
        assert_eq!(due(true), [false, true, false, true, false, true]);
    }

    #[test]
    fn estimated_times_have_one_unit() {
        let table = [
            (0, "about 1 second"),
            (49, "about 49 seconds"),
            (59, "about 1 minute"),
            (250, "about 4 minutes"),
            (5_399, "about 90 minutes"),
            (9_100, "about 3 hours"),
            (40_000, "about 11 hours"),
            (300_000, "about 3 days"),
        ];
        for (time, text) in table {
            assert_eq!(about(seconds(time)), text);
        }
        assert!(about(Duration::MAX).ends_with(" days"));
    }
}
