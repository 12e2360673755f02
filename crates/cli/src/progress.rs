//! Progress bars on standard error.

use forerun::{Loader, Progress, Step};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Time after which a bar appears; shorter steps show none.
const DELAY: Duration = Duration::from_millis(500);

/// Creates a loader that shows a progress bar, if `visible` and if standard error is a terminal.
pub(crate) fn loader(offline: bool, visible: bool) -> Loader<'static> {
    let loader = Loader::new().offline(offline);
    if !visible || !std::io::stderr().is_terminal() {
        return loader;
    }
    let mut bar = Bar::default();
    loader.on_progress(move |progress| {
        bar.update(progress);
        ControlFlow::Continue(())
    })
}

/// The progress bar of the current step.
#[derive(Default)]
struct Bar {
    title: String,
    since: Option<Instant>,
    bar: Option<ProgressBar>,
}

impl Bar {
    fn update(&mut self, progress: Progress<'_>) {
        let (title, template) = match progress.step {
            Step::Download { model, file } => (
                format!("{model} {file}"),
                "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta} left",
            ),
            Step::Load { model } => {
                (format!("loading {model}"), "{msg} {wide_bar} {pos}/{len} layers {eta} left")
            }
        };
        if title != self.title {
            *self = Self { title, since: Some(Instant::now()), bar: None };
        }
        if progress.done >= progress.total {
            if let Some(bar) = self.bar.take() {
                bar.finish_and_clear();
            }
            return;
        }
        if self.bar.is_none() && self.since.is_some_and(|since| since.elapsed() >= DELAY) {
            let hidden = ProgressDrawTarget::hidden();
            let bar = ProgressBar::with_draw_target(Some(progress.total), hidden);
            bar.set_message(self.title.clone());
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            // Progress made before this run does not count for the speed.
            bar.set_position(progress.done);
            bar.reset_eta();
            bar.set_draw_target(ProgressDrawTarget::stderr());
            self.bar = Some(bar);
        }
        if let Some(bar) = &self.bar {
            bar.set_position(progress.done);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        // Otherwise an error message would follow half a bar on the same line.
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Creates a bar of this length.
#[cfg(any(feature = "laboratory", feature = "train"))]
pub(crate) fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
