//! Progress of a training run: of its steps, and evaluations and checkpoints as lines.

use crate::progress::{Task, Unit};
use forerun_train::Event;
use forerun_train::data::{Phase, Progress};
use forerun_train::drafter::{PositionAcceptance, mean_accepted_tokens};

/// Progress of the preparation of the data.
#[derive(Default)]
pub(super) struct DataProgress(Option<(Phase, Task)>);

impl DataProgress {
    pub(super) fn update(&mut self, progress: Progress) {
        let name = match progress.phase {
            Phase::Hashing => "reading files",
            Phase::Counting => "counting text",
            Phase::Sampling => "sampling words",
            Phase::Merging => "merging tokens",
            Phase::Encoding => "encoding text",
        };
        let mut task = match self.0.take() {
            Some((phase, task)) if phase == progress.phase => task,
            _ => Task::new(name, Unit::Bytes, progress.total_bytes),
        };
        if progress.done_bytes < progress.total_bytes {
            task.update(progress.done_bytes);
            self.0 = Some((progress.phase, task));
        }
    }
}

/// Shows an event of the training.
pub(super) fn show(event: &Event, task: &mut Task) {
    match event {
        Event::Step(record) => {
            let (loss, tokens_per_s) = (record.loss, record.tokens_per_s);
            task.message(format!("loss {loss:.3} {tokens_per_s:.0} tokens/s"));
            task.update(record.step);
        }
        Event::TextEvaluated(record) => task.note(format_args!(
            "step {}: held-out loss {:.4} nats/token, {:.4} bits/byte",
            record.step, record.validation_loss, record.bits_per_byte
        )),
        Event::DraftsEvaluated(record) => task.note(format_args!(
            "step {}: held-out loss {:.4}; accepted by position: sampled {}; greedy {}",
            record.step,
            record.validation_loss,
            rates(&record.acceptance, |rates| rates.overlap),
            rates(&record.acceptance, |rates| rates.agreement),
        )),
        Event::Saved(path) => task.note(format_args!("saved {}", path.display())),
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
