//! What a run shows while it goes: bars where somebody looks, tests and checkpoints as lines.

use crate::note;
use crate::progress::bar;
use forerun_train::Event;
use forerun_train::data::{Phase, Progress};
use forerun_train::drafter::{PositionAcceptance, mean_accepted_tokens};
use indicatif::ProgressBar;
use std::io::IsTerminal;

/// How far the data is, where somebody looks.
#[derive(Default)]
pub(super) struct DataBar(Option<(Phase, ProgressBar)>);

impl DataBar {
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

/// How far the training is: a bar where somebody looks, tests and checkpoints as lines.
pub(super) struct Shown {
    bar: ProgressBar,
}

impl Shown {
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
            Event::Evaluated(record) => self.bar.suspend(|| {
                note(format_args!(
                    "step {}: held-out loss {:.4} nats/token, {:.4} bits/byte",
                    record.step, record.validation_loss, record.bits_per_byte
                ));
            }),
            Event::Drafted(record) => self.bar.suspend(|| {
                note(format_args!(
                    "step {}: held-out loss {:.4}; accepted by position: sampled {}; most probable {}",
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

/// Rates of positions, and the tokens that a target forward yields with them.
fn rates(all: &[PositionAcceptance], rate: fn(&PositionAcceptance) -> f64) -> String {
    let each: Vec<String> = all.iter().map(|rates| format!("{:.3}", rate(rates))).collect();
    format!("{} ({:.2} tokens)", each.join(" "), mean_accepted_tokens(all.iter().map(rate)))
}
