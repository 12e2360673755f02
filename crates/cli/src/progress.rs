//! Bars on standard error while models are downloaded and loaded.

use forerun::{Loader, Progress, Step};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// What takes less shows nothing.
const UNSEEN: Duration = Duration::from_millis(500);

/// A loader that shows how far it is, if `visible` and where somebody looks.
pub(crate) fn loader(offline: bool, visible: bool) -> Loader<'static> {
    let loader = Loader::new().offline(offline);
    if !visible || !std::io::stderr().is_terminal() {
        return loader;
    }
    let mut shown = Bar::default();
    loader.on_progress(move |progress| {
        shown.update(progress);
        ControlFlow::Continue(())
    })
}

/// The bar of the step under way.
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
        if self.bar.is_none() && self.since.is_some_and(|since| since.elapsed() >= UNSEEN) {
            let unseen = ProgressDrawTarget::hidden();
            let bar = ProgressBar::with_draw_target(Some(progress.total), unseen);
            bar.set_message(self.title.clone());
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            // What was here before says nothing of the speed.
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
        // An error message must not stand behind half a bar.
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// A bar of this length.
pub(crate) fn bar(length: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}
