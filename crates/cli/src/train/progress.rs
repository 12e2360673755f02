//! Progress of a training run: bars on a terminal; evaluations and checkpoints as lines.

use crate::note;
use crate::progress::bar;
use forerun_train::Event;
use forerun_train::data::{Phase, Progress};
use forerun_train::drafter::{PositionAcceptance, mean_accepted_tokens};
use indicatif::ProgressBar;
use std::io::IsTerminal;

/// A progress bar of the preparation of the data, on a terminal.
#[derive(Default)]
pub(super) struct DataProgress(Option<(Phase, ProgressBar)>);

impl DataProgress {
    pub(super) fn update(&mut self, progress: Progress) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let title = match progress.phase {
            Phase::Hashing => "reading files",
            Phase::Counting => "counting text",
            Phase::Sampling => "sampling words",
            Phase::Merging => "merging tokens",
            Phase::Encoding => "encoding text",
        };
        let current = match self.0.take() {
            Some((phase, bar)) if phase == progress.phase => bar,
            _ => bar(progress.total_bytes, "{msg} {wide_bar} {bytes}/{total_bytes} {eta} left")
                .with_message(title),
        };
        current.set_position(progress.done_bytes);
        if progress.done_bytes >= progress.total_bytes {
            current.finish_and_clear();
        }
        self.0 = Some((progress.phase, current));
    }
}

/// Progress of the training: a bar on a terminal; evaluations and checkpoints as lines.
pub(super) struct TrainingProgress {
    bar: ProgressBar,
}

impl TrainingProgress {
    pub(super) fn new(steps: u64, step: u64) -> Self {
        let bar = bar(steps, "step {pos}/{len} {wide_bar} {msg} {eta} left");
        bar.set_position(step);
        bar.reset_eta();
        Self { bar }
    }

    pub(super) fn event(&self, event: &Event) {
        match event {
            Event::Step(record) => {
                self.bar.set_position(record.step);
                self.bar.set_message(format!(
                    "loss {:.3} {:.0} tokens/s",
                    record.loss, record.tokens_per_s
                ));
            }
            Event::TextEvaluated(record) => self.bar.suspend(|| {
                note(format_args!(
                    "step {}: held-out loss {:.4} nats/token, {:.4} bits/byte",
                    record.step, record.validation_loss, record.bits_per_byte
                ));
            }),
            Event::DraftsEvaluated(record) => self.bar.suspend(|| {
                note(format_args!(
                    "step {}: held-out loss {:.4}; accepted by position: sampled {}; greedy {}",
                    record.step,
                    record.validation_loss,
                    rates(&record.acceptance, |rates| rates.overlap),
                    rates(&record.acceptance, |rates| rates.agreement),
                ));
            }),
            Event::Saved(path) => {
                self.bar.suspend(|| note(format_args!("saved {}", path.display())));
            }
        }
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Formats the rates by position, and the mean number of tokens per target forward pass that
/// follows from them.
fn rates(all: &[PositionAcceptance], rate: fn(&PositionAcceptance) -> f64) -> String {
    let shown = |rate: f64| match rate.is_finite() {
        true => format!("{rate:.3}"),
        // No draft reached the position.
        false => "–".to_owned(),
    };
    let each: Vec<String> = all.iter().map(|rates| shown(rate(rates))).collect();
    format!("{} ({:.2} tokens)", each.join(" "), mean_accepted_tokens(all.iter().map(rate)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_without_drafts_have_no_rate() {
        let all = [0.5, f64::NAN].map(|rate| PositionAcceptance { overlap: rate, agreement: rate });
        assert_eq!(rates(&all, |rates| rates.agreement), "0.500 – (1.50 tokens)");
    }
}
